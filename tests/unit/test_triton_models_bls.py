"""`tensorrt_llm_bls` around stand-ins of the three inner models; a token is one byte, so text is easy to read."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import types
import weakref

import numpy as np
import pytest
import triton_fakes
from executor_helpers import wait_until
from triton_fakes import InferenceResponse, Sender, Tensor, TritonError, arguments, request, strings

from reference_backend.models import tensorrt_llm_bls
from reference_backend.models.bls import calls, detokenizer, reply
from reference_backend.models.bls.detokenizer import Chunk
from reference_backend.models.bls.reply import Reply
from reference_backend.models.text import Tokenizer

INT = np.int32


class Inner:
    """preprocessing, tensorrt_llm and postprocessing. `script` yields (row, text), (row, sequence, text) or
    (row, text, log probabilities) for each response of the LLM."""

    def __init__(self, script=(), include_prompt=True):
        self.script, self.include_prompt = script, include_prompt
        self.calls, self.stops, self.decodes = [], [], []
        self.stopped = threading.Event()

    def preprocessing(self, inputs, request_id):
        self.calls.append(("preprocessing", inputs))
        texts = [item.decode() for item in inputs["QUERY"].reshape(-1)]
        if "refuse" in texts:
            yield InferenceResponse(error=TritonError("QUERY is not valid.", TritonError.INVALID_ARG))
            return
        longest = max(map(len, texts))
        outputs = {
            "INPUT_ID": np.array([[ord(c) for c in text.ljust(longest)] for text in texts], INT),
            "REQUEST_INPUT_LEN": np.array([[len(text)] for text in texts], INT),
            "REQUEST_OUTPUT_LEN": inputs["REQUEST_OUTPUT_LEN"],
            "OUT_END_ID": np.full((len(texts), 1), 2, INT),
            "OUT_PAD_ID": np.full((len(texts), 1), 2, INT),
            "STOP_WORDS_IDS": np.zeros((len(texts), 2, 0), INT),
        }
        yield InferenceResponse([Tensor(k, array) for k, array in outputs.items()])

    def tensorrt_llm(self, inputs, request_id):
        if inputs.get("stop", np.zeros(1)).any():
            self.stops.append(request_id)
            self.stopped.set()
            yield InferenceResponse([])
            return
        self.calls.append(("tensorrt_llm", inputs, request_id))
        streaming = inputs.get("streaming", np.zeros(1)).any()
        for row, *more, text in self.script(self) if callable(self.script) else self.script:
            if isinstance(text, np.ndarray):
                more, text, log_probs = [], more[0], text
            else:
                log_probs = None
            prompt = "".join(map(chr, inputs["input_ids"][row, : inputs["input_lengths"][row, 0]]))
            beams = text if isinstance(text, list) else [text]
            if not streaming and self.include_prompt:
                beams = [prompt + beam for beam in beams]
            longest = max(map(len, beams))
            tensors = [
                Tensor("output_ids", np.array([[[*map(ord, b), *[-1] * (longest - len(b))] for b in beams]], INT)),
                Tensor("sequence_length", np.array([[len(beam) for beam in beams]], INT)),
            ]
            if len(inputs["input_ids"]) > 1:
                tensors.append(Tensor("batch_index", np.array([[row]], INT)))
            if more:
                tensors.append(Tensor("sequence_index", np.array([more], INT)))
            if log_probs is not None:
                tensors.append(Tensor("cum_log_probs", log_probs))
            yield InferenceResponse(tensors)

    def postprocessing(self, inputs, request_id):
        lengths = inputs["SEQUENCE_LENGTH"][0]
        rows = [ids[:length].tolist() for ids, length in zip(inputs["TOKENS_BATCH"][0], lengths, strict=True)]
        self.decodes.append(len(rows))
        if any(token == 0xFFFF for ids in rows for token in ids):
            yield InferenceResponse(error=TritonError("Token id 65535 is outside.", TritonError.INVALID_ARG))
            return
        decoded = [bytes(ids).decode("utf-8", "replace").encode() for ids in rows]
        yield InferenceResponse([Tensor("OUTPUT", np.array(decoded, np.object_))])


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setattr(reply, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(reply, "SILENT_SECONDS", 3600.0)  # calls are counted here
    made = []

    def build(inner, decoupled=True, prefix="", **parameters):
        for name in ("preprocessing", "tensorrt_llm", "postprocessing"):
            triton_fakes.MODELS[prefix + name] = getattr(inner, name)
        model = tensorrt_llm_bls.TritonPythonModel()
        model.initialize(arguments(prefix + "tensorrt_llm_bls", decoupled, **parameters))
        made.append(model)
        return model

    yield build
    for model in made:
        model.finalize()
        assert not model.detokenizer._thread.is_alive() and not model.monitor._thread.is_alive()
    triton_fakes.MODELS.clear()


def send(model, *prompts, sender=None, **inputs):
    prompts = prompts or ("Hi",)
    tensors = {"text_input": strings(*prompts), "max_tokens": np.full((len(prompts), 1), 9, INT)}
    for name, value in inputs.items():
        tensors[name] = value if isinstance(value, np.ndarray) else np.array([[value]] * len(prompts))
    sender = sender or Sender()
    assert model.execute([request(tensors, "", sender)]) is None
    return sender


def pieces(sent):
    return [content["text_output"].tolist() for content, _ in sent if content]


def texts(sent):
    return [text for (text,) in pieces(sent)]


def refused(sender, code="INVALID_ARG"):
    ((error, final),) = sender.wait()
    assert final and error.code() == code
    return error.message()


def script(*chunks):
    return [(0, chunk) for chunk in chunks]


def test_every_chunk_is_sent_and_final_comes_alone(make):
    sent = send(make(Inner(script("a", " b", "c"))), stream=True).wait()
    assert texts(sent) == ["a", " b", "c"]
    assert [final for _, final in sent] == [False, False, False, True]
    assert sent[-1][0] is None
    assert set(sent[0][0]) == {"text_output"}


def test_multi_byte_characters_survive(make):
    chunks = [chr(byte) for byte in "né😀".encode()]  # one byte a token
    sent = send(make(Inner(script(*chunks))), stream=True).wait()
    assert texts(sent) == ["n", "", "é", "", "", "", "😀"]


def test_an_end_without_a_token_adds_no_chunk(make):
    assert texts(send(make(Inner(script("a", ""))), stream=True).wait()) == ["a"]
    assert texts(send(make(Inner(script(""))), stream=True).wait()) == [""]


def test_accumulate_tokens_sends_the_whole_text_so_far(make):
    chunks = ["a", *(chr(byte) for byte in "é".encode()), "b"]
    sent = send(make(Inner(script(*chunks)), accumulate_tokens="true"), stream=True).wait()
    assert texts(sent) == ["a", "a", "aé", "aéb"]


def test_without_stream_one_text(make):
    inner = Inner(script("xyz"))
    assert texts(send(make(inner)).wait()) == ["Hixyz"]
    assert inner.decodes == [1]
    assert texts(send(make(Inner(script("xyz"), include_prompt=False)), exclude_input_in_output=True).wait()) == ["xyz"]


def test_several_beams_give_several_texts(make):
    assert pieces(send(make(Inner([(0, ["one", "three"])])), beam_width=2).wait()) == [["Hione", "Hithree"]]


def test_streamed_beams_are_whole_texts_that_replace_each_other(make):
    inner = Inner([(0, ["a", "b"]), (0, ["bc", "ad"]), (0, ["ade", "bc"])])
    sent = send(make(inner), stream=True, beam_width=2).wait()
    assert pieces(sent) == [["a", "b"], ["bc", "ad"], ["ade", "bc"]]
    said = refused(send(make(inner, accumulate_tokens="true"), stream=True, beam_width=2))
    assert "beam_width above 1 cannot be streamed with accumulate_tokens" in said
    assert pieces(send(make(inner, accumulate_tokens="true"), beam_width=2).wait())[-1] == ["Hiade", "Hibc"]


def test_sequences_are_texts_of_their_own_and_end_by_themselves(make):
    chunks = [(0, 1, "a"), (0, 0, "b"), (0, 1, "STOP"), (0, 1, "unseen"), (0, 0, "c")]
    inner = Inner(chunks)
    sent = send(make(inner), stream=True, num_return_sequences=2, stop_words=strings("STOP")).wait()
    found = {0: "", 1: ""}
    for content, _ in sent[:-1]:
        found[content["sequence_index"].item()] += content["text_output"][0]
    assert found == {0: "bc", 1: "aSTOP"}
    assert [final for _, final in sent] == [False] * (len(sent) - 1) + [True]
    assert not inner.stops, "the other sequence goes on"
    assert inner.calls[-1][1]["num_return_sequences"].tolist() == [[2]]


def places(sent):
    """(row, sequence, texts) of each response."""
    data = [content for content, _ in sent if content]
    return [(c["batch_index"].item(), c["sequence_index"].item(), c["text_output"].tolist()) for c in data]


@pytest.mark.parametrize("beams_first", [False, True])
def test_rows_may_be_of_different_kinds(make, beams_first):
    """A row with beams is one sequence, whatever num_return_sequences says."""
    if beams_first:
        inner, widths = Inner([(0, 0, ["x", "y"]), (1, 0, "a"), (1, 2, "c"), (1, 1, "b")]), [[2], [1]]
        expected = [(0, 0, ["x", "y"]), (1, 0, ["a"]), (1, 2, ["c"]), (1, 1, ["b"])]
    else:
        inner, widths = Inner([(0, 0, "a"), (0, 1, "b"), (1, 0, ["x", "y"]), (0, 2, "c")]), [[1], [2]]
        expected = [(0, 0, ["a"]), (0, 1, ["b"]), (1, 0, ["x", "y"]), (0, 2, ["c"])]
    wanted = np.array([[2], [3]] if beams_first else [[3], [2]])
    model = make(inner)
    sent = send(
        model, "Hi", "Yo", stream=True, num_return_sequences=wanted, beam_width=np.array(widths)
    ).wait()  # fmt: skip
    assert sorted(places(sent)) == sorted(expected) and sent[-1] == (None, True)


def test_rows_may_want_different_numbers_of_sequences(make):
    inner = Inner([(0, 0, "a"), (1, 0, "x"), (1, 1, "y"), (1, 2, "z")])
    sent = send(make(inner), "Hi", "Yo", num_return_sequences=np.array([[1], [3]])).wait()
    assert sorted(places(sent)) == [(0, 0, ["Hia"]), (1, 0, ["Yox"]), (1, 1, ["Yoy"]), (1, 2, ["Yoz"])]


def test_more_sequences_than_can_be_meant_are_refused_before_anything_is_made_for_them(make):
    inner = Inner()
    model = make(inner)
    said = refused(send(model, num_return_sequences=np.array([[10**8]])))
    assert said == "num_return_sequences is 100000000; it must be from 1 to 1024, over all rows together."
    assert "num_return_sequences is [600, 600]; it must be" in refused(
        send(model, "one", "two", num_return_sequences=600)
    )
    assert inner.calls == []


def test_the_end_of_a_sequence_adds_no_chunk(make):
    """The LLM's last response has no id, but a sequence_index."""
    inner = Inner([(0, 0, "a"), (0, 1, "b"), (0, 0, ""), (0, 1, "")])
    sent = send(make(inner), stream=True, num_return_sequences=2).wait()
    assert [(c["sequence_index"].item(), c["text_output"].item()) for c, _ in sent[:-1]] == [(0, "a"), (1, "b")]


def test_log_probs_go_on_with_the_text_and_the_end_tokens_too(make):
    """The last response of the LLM brings a log probability (of the end token) and no id."""
    logs = [np.array([[-1.0]]), np.array([[-2.0]]), np.array([[-3.0]])]
    inner = Inner([(0, "a", logs[0]), (0, "\xc3", logs[1]), (0, "", logs[2])])
    sent = send(make(inner), stream=True, return_log_probs=True).wait()
    assert [(content["text_output"][0], content["cum_log_probs"].item()) for content, _ in sent[:-1]] == [
        ("a", -1.0), ("", -2.0), ("", -3.0), ("\ufffd", -3.0),
    ]  # fmt: skip
    assert texts(send(make(Inner([(0, "", logs[0])], False)), return_log_probs=True).wait()) == [""]


def test_names_of_all_three_models_are_parameters(make):
    inner = Inner(script("a"))
    names = {f"{name}_model_name": f"gly-{name}" for name in ("preprocessing", "tensorrt_llm", "postprocessing")}
    assert texts(send(make(inner, prefix="gly-", **names), stream=True).wait()) == ["a"]
    plain = make(Inner(), tensorrt_llm_model_name="${tensorrt_llm_model_name}")
    assert (plain.models.preprocessing, plain.models.llm, plain.models.postprocessing) == (
        "preprocessing", "tensorrt_llm", "postprocessing",
    )  # fmt: skip


def test_with_a_tokenizer_of_its_own_it_does_not_call_postprocessing(make, tmp_path):
    folder = triton_fakes.byte_fallback_tokenizer(tmp_path)
    ids = Tokenizer(str(folder)).encode("Hello é world", False)
    inner = Inner(script(*map(chr, ids)))
    model = make(inner, tokenizer_dir=folder)
    assert "".join(texts(send(model, stream=True).wait())) == "Hello é world"
    assert inner.decodes == []
    kept = make(Inner(script(chr(2), chr(ids[-1]))), tokenizer_dir=folder, skip_special_tokens="false")
    assert "".join(texts(send(kept, stream=True).wait())) == "</s>d"


def test_an_ended_stream_of_the_llm_is_kept_for_a_while(make, monkeypatch):
    """Triton's stub lets go of it in a thread that does not hold the interpreter's lock; to be the last is fatal."""
    ended = []

    class Responses:  # as Triton's: an iterator of its own
        def __init__(self, items):
            self.items = iter(items)
            ended.append(weakref.ref(self))

        def __iter__(self):
            return self

        def __next__(self):
            return next(self.items)

    inner = Inner(script("a", "b"))
    model = make(inner)
    triton_fakes.MODELS["tensorrt_llm"] = lambda inputs, id: Responses(inner.tensorrt_llm(inputs, id))
    before = set(threading.enumerate())
    send(model).wait()
    wait_until(lambda: set(threading.enumerate()) <= before)
    gc.collect()
    assert len(ended) == 1 and ended[0]() is not None
    monkeypatch.setattr(calls, "KEEP_ENDED_SECONDS", -1.0)
    send(model).wait()
    wait_until(lambda: ended[0]() is None)


def test_inputs_reach_the_inner_models_under_their_names(make):
    inner = Inner(script("a"))
    given = {
        "top_k": 5, "top_p": 0.5, "temperature": 0.1, "length_penalty": 1.0, "min_tokens": 2, "seed": 7, "stream": True,
        "stop_words": strings(["x"]), "return_log_probs": np.array([False]),
    }  # fmt: skip
    send(make(inner), **given).wait()
    (_, pre), (_, llm, request_id) = inner.calls
    assert set(pre) == {"QUERY", "REQUEST_OUTPUT_LEN", "STOP_WORDS_DICT"}
    assert set(llm) == {
        "input_ids", "input_lengths", "request_output_len", "end_id", "pad_id", "stop_words_list", "runtime_top_k",
        "runtime_top_p", "temperature", "len_penalty", "min_tokens", "seed", "streaming", "return_log_probs",
    }  # fmt: skip
    assert llm["return_log_probs"].shape == (1, 1), "on the wire a scalar is [rows, 1]"
    assert request_id


def test_rows_of_a_batch_stream_side_by_side(make):
    chunks = [(1, "x"), (0, "a"), (1, "y"), (0, "b"), (1, "z")]
    sent = send(make(Inner(chunks)), "one", "two", stream=True).wait()
    by_row = {0: "", 1: ""}
    for content, _ in sent[:-1]:
        by_row[content["batch_index"].item()] += content["text_output"].item()
        assert content["batch_index"].shape == (1, 1)
    assert by_row == {0: "ab", 1: "xyz"}


# --- stop words in the text


def test_a_stop_word_across_chunks_ends_the_stream_and_the_inner_request(make):
    def until_stopped(inner):
        yield from script("the", " br", "anch")
        for _ in range(500):
            yield (0, " more")
            if inner.stopped.wait(0.01):
                return

    inner = Inner(until_stopped)
    sent = send(make(inner), stream=True, stop_words=strings(["branch", ""])).wait()
    assert "".join(texts(sent)) == "the branch"
    assert inner.stopped.wait(5)
    assert inner.stops == [inner.calls[1][2]], "the stop carries the id of the inner request, once"


def test_text_held_back_for_a_stop_word_is_given_out_in_the_end(make):
    sent = send(make(Inner(script("a b", "ra"))), stream=True, stop_words=strings(["branch"])).wait()
    assert "".join(texts(sent)) == "a bra"


@pytest.mark.parametrize("exclude", [False, True])
def test_without_stream_the_text_is_cut_behind_a_generated_stop_word(make, exclude):
    inner = Inner(script(" one stop two stop"), include_prompt=not exclude)
    model = make(inner)
    sent = send(model, "Never stop here:", stop_words=strings(["stop"]), exclude_input_in_output=exclude).wait()
    assert texts(sent) == [" one stop" if exclude else "Never stop here: one stop"]


@pytest.mark.parametrize("inputs", [{"exclude_input_in_output": True}, {"stream": True, "beam_width": 2}])
def test_a_text_that_repeats_the_prompt_is_cut_at_a_stop_word_in_it(make, inputs):
    """Without the prompt in front, a stop word in those words was generated."""
    texts = ["stop it", "x stop y"] if "beam_width" in inputs else "stop it"
    sent = send(make(Inner([(0, texts)], False)), "stop", stop_words=strings(["stop"]), **inputs).wait()
    assert pieces(sent)[-1] == (["stop", "x stop"] if "beam_width" in inputs else ["stop"])


def test_a_batch_is_stopped_when_every_row_has_met_its_stop_word(make):
    def chunks(inner):
        yield from [(0, "a."), (1, "b"), (0, "late")]
        assert not inner.stopped.is_set()
        yield (1, ".c")
        for _ in range(500):
            yield (1, "late")
            if inner.stopped.wait(0.01):
                return

    inner = Inner(chunks)
    sent = send(make(inner), "one", "two", stream=True, stop_words=strings(["."], ["."])).wait()
    shown = sorted((content["batch_index"].item(), content["text_output"].item()) for content, _ in sent[:-1])
    assert shown == [(0, "a."), (1, "."), (1, "b")]
    assert inner.stopped.wait(5)


# --- errors


def test_the_inner_models_sentence_and_code_reach_the_client(make):
    assert refused(send(make(Inner()), "refuse")) == "QUERY is not valid."


def test_an_error_that_comes_as_data_reaches_the_client(make):
    def script_then_error(inner):
        yield (0, "a")
        inner.error = "Größe falsch."

    inner = Inner(script_then_error)
    inner.error = ""

    def llm(inputs, request_id):
        yield from inner.tensorrt_llm(inputs, request_id)
        sentence = np.frombuffer(inner.error.encode(), np.uint8).astype(INT)
        length = Tensor("sequence_length", np.array([[-1]], INT))
        yield InferenceResponse([Tensor("output_ids", sentence[None, None]), length])

    model = make(inner)
    triton_fakes.MODELS["tensorrt_llm"] = llm
    sent = send(model, stream=True).wait()
    assert sent[-1][0].message() == "Größe falsch." and sent[-1][1]
    wait_until(lambda: not model.detokenizer._rows)


def test_a_token_that_cannot_be_decoded_ends_only_its_own_request(make):
    gate = threading.Barrier(2, timeout=10)

    def both(text):
        def chunks(_):
            for part in text:
                gate.wait()
                yield (0, part)

        return chunks

    good, bad = Inner(both(["a", "b"])), Inner(both(["c", "\uffff"]))
    model = make(good)
    fine = send(model, stream=True)
    while len(good.calls) < 2:
        time.sleep(0.001)
    triton_fakes.MODELS["tensorrt_llm"] = bad.tensorrt_llm
    broken = send(model, stream=True)
    assert texts(fine.wait()) == ["a", "b"]
    assert broken.wait()[-1][0].message() == "Token id 65535 is outside."


def test_a_fault_of_ours_is_one_line_for_the_client_and_a_traceback_in_the_log(make, monkeypatch):
    triton_fakes.LOG.clear()
    model = make(Inner(script("a")))
    monkeypatch.setattr(model.models, "preprocess", lambda inputs: 1 / 0)
    said = refused(send(model), code="INTERNAL")
    assert said.startswith("tensorrt_llm_bls failed on this request: ZeroDivisionError") and "\n" not in said
    assert any("Traceback" in line for line in triton_fakes.LOG)


@pytest.mark.parametrize("decoupled", [True, False])
def test_a_response_that_does_not_fit_into_shared_memory_ends_the_request_with_the_reason(make, monkeypatch, decoupled):
    monkeypatch.setattr("shutil.disk_usage", lambda path: types.SimpleNamespace(free=10**7))
    triton_fakes.LOG.clear()
    logs = np.zeros((1, 200_000))
    inner = Inner([(0, "a", logs[:, :1]), (0, "b", logs), (0, "c", logs[:, :3])][1 - decoupled : 2 + decoupled])
    model = make(inner, decoupled)
    sent = send(model, stream=decoupled, sender=Sender(10**6, decoupled), return_log_probs=True).wait()
    if decoupled:
        assert [final for _, final in sent] == [False, True] and texts(sent[:1]) == ["a"]
        assert "Failed to increase the shared memory" in sent[1][0].message()
    else:
        assert sent == [(None, True)], "Triton lets it say no more than that it has ended"
    assert any("could not be sent: Failed to increase" in line for line in triton_fakes.LOG)
    wait_until(lambda: not model.detokenizer._rows)
    assert texts(send(make(Inner(script("d")), decoupled)).wait()) == ["Hid"]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"image_url_input": strings("http://x")}, "image_url_input"),
        ({"image_bytes_input": np.zeros((1, 1, 2, 2, 3), np.uint8)}, "image_bytes_input"),
        ({"num_draft_tokens": 4}, "num_draft_tokens"),
        ({"use_draft_logits": np.array([True])}, "use_draft_logits"),
    ],
)
def test_a_feature_that_is_missing_is_named(make, inputs, said):
    assert said in refused(send(make(Inner()), **inputs))


@pytest.mark.parametrize("lacking", ["output_ids", "sequence_length", "everything"])
def test_an_llm_that_leaves_out_a_tensor_is_named_and_so_is_the_tensor(make, lacking):
    class Lacking(Inner):
        def tensorrt_llm(self, inputs, request_id):
            for response in super().tensorrt_llm(inputs, request_id):
                kept = [tensor for tensor in response.output_tensors() if lacking not in (tensor.name(), "everything")]
                yield InferenceResponse(kept)

    for streaming in (True, False):
        said = refused(send(make(Lacking(script("ab"))), stream=streaming), "INTERNAL")
        tensor = "output_ids" if lacking == "everything" else lacking
        assert said.startswith(f"Model 'tensorrt_llm' failed on this request: it answered without {tensor}, ")


@pytest.mark.parametrize(("model", "tensor"), [("preprocessing", "REQUEST_INPUT_LEN"), ("postprocessing", "OUTPUT")])
def test_another_model_that_leaves_out_a_tensor_is_named(make, model, tensor):
    class Lacking(Inner):
        pass

    def without(self, inputs, request_id):
        for response in getattr(Inner, model)(self, inputs, request_id):
            yield InferenceResponse([kept for kept in response.output_tensors() if kept.name() != tensor])

    setattr(Lacking, model, without)
    said = refused(send(make(Lacking(script("ab"))), stream=True), "INTERNAL")
    assert said.startswith(f"Model {model!r} failed on this request: it answered without {tensor}, which every")


def test_the_empty_response_that_ends_a_stream_is_no_answer(make):
    """TensorRT-LLM's backend may end a stream with a response of its own, which has no tensors."""

    class Ending(Inner):
        def tensorrt_llm(self, inputs, request_id):
            yield from super().tensorrt_llm(inputs, request_id)
            yield InferenceResponse([])

    assert pieces(send(make(Ending(script("a", "b"))), stream=True).wait()) == [["a"], ["b"]]


def test_not_decoupled(make):
    model = make(Inner(script("xyz")), decoupled=False)
    ((content, final),) = send(model).wait()
    assert final and content["text_output"].tolist() == ["Hixyz"]
    streaming = refused(send(model, stream=True))
    assert streaming.endswith("is deployed using decoupled mode; 'tensorrt_llm_bls' is not.")
    assert "decoupled transaction policy" in refused(send(model, "one", "two"))


# --- the client leaves


@pytest.mark.parametrize("streaming", [True, False])
def test_the_inner_request_is_stopped_when_the_client_leaves(make, streaming):
    def endless(inner):
        for text in itertools.count():
            if streaming:
                yield (0, str(text))
            if inner.stopped.wait(0.005):
                yield (0, "")
                return

    inner = Inner(endless)
    sender = send(make(inner), stream=streaming)
    while len(inner.calls) < 2:
        time.sleep(0.001)
    sender.cancelled = True
    assert sender.wait()[-1][1]
    assert set(inner.stops) == {inner.calls[1][2]}


# --- a model dies


@pytest.fixture
def watched(make, monkeypatch):
    """watched(script, answer) -> model whose LLM is soon asked if it lives: by a stop, which answer(id) answers."""
    monkeypatch.setattr(reply, "SILENT_SECONDS", 0.05)

    def build(script, answer):
        inner = Inner(script)
        model = make(inner)
        triton_fakes.MODELS["tensorrt_llm"] = lambda inputs, request_id: (
            answer(request_id) if "stop" in inputs else inner.tensorrt_llm(inputs, request_id)
        )
        return model

    return build


def test_a_stream_whose_llm_dies_ends_with_the_reason(watched):
    """As Triton 24.10 has it: the calls that were being served never end, and a later one gets an error."""
    said, died, never = "Stub process 'tensorrt_llm_0_0' is not healthy.", threading.Event(), threading.Event()
    sender = Sender()

    def dying(_):
        yield (0, "a")
        wait_until(lambda: sender.sent)
        died.set()
        never.wait(30)

    def answer(_):
        return iter([InferenceResponse(error=TritonError(said))] if died.is_set() else ())

    first, (error, final) = send(watched(dying, answer), stream=True, sender=sender).wait()
    never.set()
    assert texts([first]) == ["a"] and final
    assert (error.message(), error.code()) == (said, "UNAVAILABLE")


def test_an_llm_that_is_slow_is_asked_and_waited_for(watched):
    asked = threading.Event()

    def slow(_):
        yield (0, "a")
        assert asked.wait(10)
        yield (0, "b")

    def answer(_):
        asked.set()
        return iter([InferenceResponse(error=TritonError("stop needs the id of a request."))])

    sent = send(watched(slow, answer), stream=True).wait()
    assert texts(sent) == ["a", "b"] and sent[-1] == (None, True)


def test_an_llm_that_answers_no_question_is_asked_no_more_than_twice_at_a_time(watched):
    asked, go_on = [], threading.Event()

    def slow(_):
        assert go_on.wait(10)
        yield (0, "a")

    def answer(request_id):
        asked.append(request_id)
        go_on.wait(10)
        return iter(())

    model = watched(slow, answer)
    senders = [send(model, stream=True) for _ in range(3)]
    wait_until(lambda: len(asked) == 2)
    time.sleep(0.3)
    assert asked == ["", ""]
    go_on.set()
    assert [texts(sender.wait()) for sender in senders] == [["a"]] * 3


def test_a_model_whose_process_is_there_is_not_asked(make, monkeypatch):
    """Not even when it is stopped: Triton would die of the question. A dead one is a zombie until Triton reaps it."""
    said = "Stub process 'tensorrt_llm_0_0' is not healthy."
    monkeypatch.setattr("os.getppid", os.getpid)  # as Triton is the parent of all stubs
    models = make(Inner()).models
    triton_fakes.MODELS["tensorrt_llm"] = lambda *_: iter([InferenceResponse(error=TritonError(said))])
    script = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    stub = subprocess.Popen([*script, "/models/tensorrt_llm/1/model.py"], stdout=subprocess.PIPE)
    try:
        stub.stdout.readline()
        models.check_alive("tensorrt_llm")
        stub.send_signal(signal.SIGSTOP)
        models.check_alive("tensorrt_llm")
        stub.kill()
        os.waitid(os.P_PID, stub.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(calls.InnerModelError, match="is not healthy"):
            models.check_alive("tensorrt_llm")
    finally:
        stub.kill()
        stub.communicate()


def test_nothing_follows_final(make):
    sender = Sender()
    reply = Reply(sender, "id", "bls", decoupled=True)
    reply.close()
    reply.close()
    reply.fail(ValueError("late"))
    reply.send(["late"], 0, {})
    assert sender.sent == [(None, True)]
    assert not reply.client_left(), "and Triton is not asked: the sender asserts it"


@pytest.mark.parametrize("name", ["text_input", "max_tokens"])
def test_a_missing_input_is_named(make, name):
    tensors = {"text_input": strings("Hi"), "max_tokens": np.array([[9]], INT), "stream": np.array([[True]])}
    del tensors[name]
    sender = Sender()
    make(Inner(script("a"))).execute([request(tensors, "", sender)])
    ((error, final),) = sender.wait()
    assert final and error.message().startswith(f"{name} is missing")


# --- the detokenizer


def test_waiting_streams_are_decoded_in_one_call_and_stay_in_order(make):
    release = threading.Event()

    def chunks(_):
        assert release.wait(10)
        yield from script(*"abcd")

    inner = Inner(chunks)
    model = make(inner)
    senders = [send(model, stream=True) for _ in range(8)]
    while len(inner.calls) < 16:
        time.sleep(0.001)
    release.set()
    for sender in senders:
        assert "".join(texts(sender.wait())) == "abcd"
    assert len(inner.decodes) < 8 * 4, "eight streams must share calls"
    assert max(inner.decodes) > 2


def test_rounds_take_one_chunk_of_each_row():
    a, b = object(), object()
    few = [Chunk(a, [[1]]), Chunk(b, [[7]]), Chunk(a, [[2]])]
    now, later = detokenizer._next_round(few)
    assert (now, later) == ([few[0], few[1]], [few[2]])
