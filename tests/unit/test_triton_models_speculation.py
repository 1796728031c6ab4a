"""Speculative decoding through `tensorrt_llm_bls`: two `tensorrt_llm` over fake weights, the draft often wrong."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
import triton_fakes
from executor_helpers import MAX_SEQ_LEN, VOCAB, FakeModel, expected_tokens, write_fake_engine
from triton_fakes import InferenceResponse, Sender, Tensor, TritonError, arguments, request, strings

from reference_backend.models import common, tensorrt_llm, tensorrt_llm_bls
from reference_backend.models.bls import reply
from reference_backend.models.bls.speculation import check_draft
from reference_backend.models.common import InputError

INT = np.int32
PROMPT = "HELLO"
EXPECTED = expected_tokens([*map(ord, PROMPT)], 120)
METRICS = ("acceptance_rate", "total_draft_tokens", "total_accepted_draft_tokens", "kv_cache_reused_blocks")


class Draft(FakeModel):
    """Wrong after every third position."""

    def forward(self, ids, lengths, first_slot, logit_rows, table=None):
        logits = super().forward(ids, lengths, first_slot, logit_rows)
        return np.roll(logits, 1, axis=1) if lengths[0] % 3 == 0 else logits


def preprocessing(inputs, request_id):
    texts = [item.decode() for item in inputs["QUERY"].reshape(-1)]
    words = [[[ord(c) for c in w.decode()] for w in row] for row in inputs.get("STOP_WORDS_DICT", np.zeros((1, 0)))]
    outputs = {
        "INPUT_ID": np.array([[ord(c) for c in text] for text in texts], INT),
        "REQUEST_INPUT_LEN": np.array([[len(text)] for text in texts], INT),
        "REQUEST_OUTPUT_LEN": inputs["REQUEST_OUTPUT_LEN"],
        "OUT_END_ID": inputs.get("END_ID", np.full((len(texts), 1), -1, INT)),
        "OUT_PAD_ID": np.zeros((len(texts), 1), INT),
        "STOP_WORDS_IDS": common.encode_words(words),
    }
    wanted = [k for k in outputs if k != "STOP_WORDS_IDS" or "STOP_WORDS_DICT" in inputs]
    yield InferenceResponse([Tensor(k, outputs[k]) for k in wanted])


def postprocessing(inputs, request_id):
    lengths = inputs["SEQUENCE_LENGTH"][0]
    rows = [ids[:length] for ids, length in zip(inputs["TOKENS_BATCH"][0], lengths, strict=True)]
    yield InferenceResponse([Tensor("OUTPUT", np.array(["".join(map(chr, ids)).encode() for ids in rows], np.object_))])


class Counted:
    """One of our models, and the inputs of each call to it."""

    def __init__(self, model):
        self.model, self.calls = model, []

    def execute(self, requests):
        self.calls += [triton_fakes.as_dict(one) for one in requests]
        return self.model.execute(requests)


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """serve(**parameters of the BLS model) -> it, the target and the draft (Counted)."""
    kinds = {"target": FakeModel, "draft": Draft}
    monkeypatch.setattr(
        "reference_backend.executor.device.Model", lambda config, *a, **k: kinds[config.folder.name](config, *a, **k)
    )
    monkeypatch.setattr(reply, "SILENT_SECONDS", 3600.0)  # calls are counted here
    made = []

    def build(
        draft_seq_len=MAX_SEQ_LEN, decoupled=True, excluded=False, draft="tensorrt_llm_draft", kv_tokens=("", "")
    ):
        triton_fakes.MODELS.update(preprocessing=preprocessing, postprocessing=postprocessing)
        counted = []
        for name, folder, length, room in (
            ("tensorrt_llm", tmp_path / "target", MAX_SEQ_LEN, kv_tokens[0]),
            ("tensorrt_llm_draft", tmp_path / "draft", draft_seq_len, kv_tokens[1]),
        ):
            write_fake_engine(folder, max_seq_len=length)
            inner = tensorrt_llm.TritonPythonModel()
            given = {"gpt_model_path": folder, "exclude_input_in_output": excluded}
            inner.initialize(arguments(name, decoupled, max_tokens_in_paged_kv_cache=room, **given))
            triton_fakes.MODELS[name] = Counted(inner)
            counted.append(triton_fakes.MODELS[name])
            made.append(inner)
        bls = tensorrt_llm_bls.TritonPythonModel()
        bls.initialize(arguments("tensorrt_llm_bls", decoupled, tensorrt_llm_draft_model_name=draft))
        made.append(bls)
        return bls, *counted

    yield build
    for model in reversed(made):
        model.finalize()
    triton_fakes.MODELS.clear()


def ask(bls, max_tokens=20, prompt=PROMPT, **inputs):
    """The outputs of a request, or its error."""
    tensors = {"text_input": strings(prompt), "max_tokens": np.array([[max_tokens]], INT)}
    for name, value in inputs.items():
        tensors[name] = value if isinstance(value, np.ndarray) else np.array([[value]])
    sender = Sender(decoupled=bls.decoupled)
    bls.execute([request(tensors, "", sender)])
    sent = [content for content, _ in sender.wait() if content is not None]
    assert len(sent) == 1
    return sent[0]


def text_of(ids, prompt=""):
    return prompt + "".join(map(chr, ids))


CASES = {
    "greedy": {},
    "end_id": {"end_id": INT(EXPECTED[7])},
    "end_id, held back": {"end_id": INT(EXPECTED[4]), "min_tokens": INT(9)},
    "stop word": {"stop_words": strings(["".join(map(chr, EXPECTED[6:9]))])},
    "seeded": {"seed": np.uint64(5), "temperature": np.float32(3), "top_k": INT(30), "top_p": np.float32(0.9)},
    "penalties": {"repetition_penalty": np.float32(1.4), "frequency_penalty": np.float32(2)},
    "log probs": {"return_log_probs": True},
    "with the prompt": {"exclude_input_in_output": False},
    "without the prompt": {"exclude_input_in_output": True},
    "one token": {"max_tokens": 1},
    "as long as the engine allows": {"max_tokens": 500},
}


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_that_without_a_draft(serve, case, decoupled):
    bls, target, draft = serve(decoupled=decoupled)
    plain = ask(bls, **CASES[case])
    for length in (1, 4):
        target.calls.clear()
        speculative = ask(bls, **CASES[case], num_draft_tokens=INT(length))
        assert speculative.keys() == plain.keys()
        for name in plain:
            if name == "text_output":
                assert speculative[name].tolist() == plain[name].tolist()
            else:
                np.testing.assert_allclose(speculative[name], plain[name], rtol=1e-5)
        assert all("num_draft_tokens" not in call for call in target.calls)
    assert bool(draft.calls) == (case != "one token")
    if case == "greedy":
        assert plain["text_output"][0] == text_of(EXPECTED[:20], PROMPT)


@pytest.mark.parametrize("excluded", [True, False])
@pytest.mark.parametrize("prompt", ["H", PROMPT])
def test_the_prompt_is_returned_as_the_llm_is_deployed(serve, excluded, prompt):
    bls, *_ = serve(excluded=excluded)
    wanted = text_of(expected_tokens([*map(ord, prompt)], 9), "" if excluded else prompt)
    for length in (0, 3):
        assert ask(bls, 9, prompt, num_draft_tokens=INT(length))["text_output"][0] == wanted


def test_a_round_is_one_call_to_each_and_reads_only_what_is_new(serve):
    bls, target, draft = serve()
    outputs = ask(bls, 20, num_draft_tokens=INT(4), exclude_input_in_output=True, return_perf_metrics=True)
    assert outputs["text_output"][0] == text_of(EXPECTED[:20])
    assert len(target.calls) < 12
    drafted = [call["draft_input_ids"].shape[1] for call in target.calls if "draft_input_ids" in call]
    asked = [int(call["request_output_len"].item()) for call in draft.calls]
    assert drafted == asked and set(drafted[:-2]) == {4}, "no more than there is room for"
    totals = {name: outputs[name].item() for name in METRICS}
    assert totals["total_draft_tokens"] == sum(drafted)
    assert totals["total_accepted_draft_tokens"] == 20 - len(target.calls)
    assert totals["acceptance_rate"] == pytest.approx((20 - len(target.calls)) / sum(drafted))
    assert outputs["arrival_time_ns"].item() < outputs["first_token_time_ns"].item()
    assert outputs["first_token_time_ns"].item() < outputs["last_token_time_ns"].item()
    stats = target.model.executor.stats()
    assert stats["prompt_tokens"] <= len(PROMPT) + len(target.calls), "each round reads the last token only"
    assert draft.model.executor.stats()["prompt_tokens"] <= len(PROMPT) + 3 * len(draft.calls)


@pytest.mark.parametrize("drafted", [0, 4])
def test_numbers_of_tokens_are_those_of_the_answer_and_not_of_the_rounds(serve, drafted):
    bls, target, _ = serve()
    given = {"return_num_input_tokens": True, "return_num_output_tokens": True, "exclude_input_in_output": True}
    outputs = ask(bls, 20, num_draft_tokens=INT(drafted), **given)
    assert len(target.calls) > 3 or not drafted
    assert (outputs["num_input_tokens"].tolist(), outputs["num_output_tokens"].tolist()) == ([[len(PROMPT)]], [[20]])


@pytest.mark.parametrize(
    ("smaller", "max_tokens", "fits"), [({"draft_seq_len": 16}, 30, 16), ({"kv_tokens": ("", 64)}, 100, 64)]
)
@pytest.mark.parametrize("case", ["greedy", "seeded", "stop word", "end_id", "log probs"])
def test_where_the_draft_s_engine_or_cache_ends_the_llm_goes_on_alone_in_one_call(
    serve, smaller, max_tokens, fits, case
):
    bls, target, draft = serve(**smaller)
    plain = ask(bls, max_tokens, **CASES[case])
    target.calls.clear()
    outputs = ask(bls, max_tokens, num_draft_tokens=INT(4), **CASES[case])
    assert outputs["text_output"].tolist() == plain["text_output"].tolist()
    if case == "log probs":
        np.testing.assert_allclose(outputs["output_log_probs"], plain["output_log_probs"], rtol=1e-5)
    calls = [call for call in target.calls if call["request_output_len"].item() > 1]
    if case in ("greedy", "seeded"):
        assert "draft_input_ids" not in calls[-1] and all("draft_input_ids" in call for call in calls[:-1])
        assert fits - 6 < calls[-1]["input_ids"].size <= fits + 1


def test_a_request_that_can_never_fit_is_refused_at_once_as_without_a_draft(serve):
    bls, target, draft = serve(kv_tokens=(64, ""))
    plain = ask(bls, 100)
    assert "needs 2 KV cache blocks of 64 tokens, but the cache has 1" in plain.message()
    target.calls.clear()
    speculative = ask(bls, 100, num_draft_tokens=INT(4))
    assert (speculative.message(), speculative.code()) == (plain.message(), "INVALID_ARG")
    assert len(target.calls) == len(draft.calls) == 1
    plain, speculative = (ask(bls, 59, num_draft_tokens=INT(length)) for length in (0, 4))
    assert speculative["text_output"] == plain["text_output"] == [text_of(EXPECTED[:59], PROMPT)]


@pytest.mark.parametrize("max_tokens", [0, -4])
def test_a_length_below_1_is_refused_as_without_a_draft(serve, max_tokens):
    bls, *_ = serve()
    plain, speculative = (ask(bls, max_tokens, num_draft_tokens=INT(length)) for length in (0, 4))
    assert f"is {max_tokens}; it must be from 1" in plain.message()
    assert (speculative.message(), speculative.code()) == (plain.message(), "INVALID_ARG")


def test_more_draft_tokens_than_may_follow_are_those_that_may(serve):
    bls, _, draft = serve()
    outputs = ask(bls, 9, num_draft_tokens=INT(10**6), exclude_input_in_output=True)
    assert outputs["text_output"][0] == text_of(EXPECTED[:9])
    assert draft.calls[0]["request_output_len"].item() == 8


def quick_monitor(monkeypatch):
    monkeypatch.setattr(reply, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(reply, "SILENT_SECONDS", 0.02)


def test_a_draft_whose_process_dies_ends_the_request(serve, monkeypatch):
    """As Triton 24.10 has it: the call that was being served never ends, and later ones get an error."""
    bls, *_ = serve()
    quick_monitor(monkeypatch)
    said, calls, never = "Stub process 'tensorrt_llm_draft_0_0' is not healthy.", [], threading.Event()

    def dead(inputs, request_id):
        calls.append(inputs)
        if len(calls) == 1:
            never.wait(30)
        yield InferenceResponse(error=TritonError(said))

    triton_fakes.MODELS["tensorrt_llm_draft"] = dead
    began = time.monotonic()
    for _ in range(2):  # the second one meets a process that is dead
        error = ask(bls, num_draft_tokens=INT(4))
        assert (error.message(), error.code()) == (said, "UNAVAILABLE")
    assert time.monotonic() - began < 5
    never.set()


def test_a_draft_that_dies_with_many_requests_leaves_places_for_those_without_a_draft(serve, monkeypatch):
    bls, *_ = serve()
    quick_monitor(monkeypatch)
    died, never = threading.Event(), threading.Event()

    def dying(inputs, request_id):  # no generator: as in Triton, the call itself waits for the first response
        if "stop" not in inputs:
            never.wait(30)
            return iter(())
        error = TritonError("Stub process 'tensorrt_llm_draft_0_0' is not healthy.")
        return iter([InferenceResponse(error=error)] if died.is_set() else ())

    triton_fakes.MODELS["tensorrt_llm_draft"] = dying
    with ThreadPoolExecutor(31) as pool:
        drafted = [pool.submit(ask, bls, num_draft_tokens=INT(4)) for _ in range(30)]
        time.sleep(0.5)
        died.set()
        assert all("is not healthy" in one.result(10).message() for one in drafted)
        plain = pool.submit(ask, bls, 9)
        done = wait([plain], 5).done
        never.set()
    assert done and plain.result()["text_output"] == [text_of(EXPECTED[:9], PROMPT)]


def test_a_draft_that_is_slow_is_waited_for(serve, monkeypatch):
    bls, _, draft = serve()
    quick_monitor(monkeypatch)
    serving = draft.model.execute

    def slowly(requests):
        if "stop" not in triton_fakes.as_dict(requests[0]):
            time.sleep(0.1)
        return serving(requests)

    monkeypatch.setattr(draft.model, "execute", slowly)
    outputs = ask(bls, 9, num_draft_tokens=INT(8), exclude_input_in_output=True)
    assert outputs["text_output"][0] == text_of(EXPECTED[:9])
    assert any("stop" in call for call in draft.calls)


def test_draft_input_ids_to_the_llm_alone_bring_the_right_ones_and_one_more(serve):
    _, target, _ = serve()
    tensors = {
        "input_ids": np.array([[*map(ord, PROMPT)]], INT),
        "input_lengths": np.array([[len(PROMPT)]], INT),
        "request_output_len": np.array([[9]], INT),
        "exclude_input_in_output": np.array([[True]]),
    }
    for draft, count in ((EXPECTED[:3], 4), ([*EXPECTED[:2], 1, 2], 3), ([1], 1), (EXPECTED[:30], 9), ([], 9)):
        sender = Sender()
        target.execute([request(tensors | {"draft_input_ids": np.array([draft], INT)}, "", sender)])
        ((content, final),) = sender.wait()
        assert final and content["output_ids"][0, 0].tolist() == EXPECTED[:count]
    sender = Sender()
    target.execute([request(tensors | {"draft_input_ids": np.array([[VOCAB]], INT)}, "", sender)])
    assert "draft_tokens holds token id 97" in sender.wait()[0][0].message()


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"stream": True}, "streaming is not supported with speculative decoding"),
        ({"return_context_logits": True}, "context logits are not supported with speculative decoding"),
        ({"return_generation_logits": True}, "generation logits are not supported"),
        ({"beam_width": INT(2)}, "beam_width above 1 is not supported"),
        ({"num_return_sequences": INT(2)}, "num_return_sequences above 1"),
        ({"num_draft_tokens": INT(-1)}, "num_draft_tokens is -1"),
        ({"use_draft_logits": True}, "use_draft_logits asks"),
        ({"prompt_embedding_table": np.ones((1, 1, 4), np.float16)}, "prompt tables are not supported"),
    ],
)
def test_limits(serve, inputs, words):
    bls, *_ = serve()
    error = ask(bls, **{"num_draft_tokens": INT(2), **inputs})
    assert words in error.message() and error.code() == "INVALID_ARG" and "\n" not in error.message()


def test_limits_of_batch_and_deployment(serve):
    bls, *_ = serve(draft="")
    message = ask(bls, num_draft_tokens=INT(2)).message()
    assert "cannot perform speculative decoding without draft model" in message
    assert ask(bls, num_draft_tokens=INT(0))["text_output"][0] == text_of(EXPECTED[:20], PROMPT)
    with pytest.raises(InputError, match="batch size > 1"):
        check_draft({"num_draft_tokens": np.array([[2], [2]]), "text_input": strings("A", "B")}, "draft")


def test_a_client_that_has_left_ends_the_rounds(serve):
    from reference_backend.models.bls.calls import InnerModels
    from reference_backend.models.bls.speculation import speculate

    _, target, draft = serve()
    given = {
        "input_ids": np.array([[*map(ord, PROMPT)]], INT),
        "input_lengths": np.array([[len(PROMPT)]], INT),
        "request_output_len": np.array([[50]], INT),
    }
    left = iter([False, False, False])
    cancelled = property(lambda self: next(left, True))
    reply = type("Reply", (), {"id": "a", "closed": False, "cancelled": cancelled, "waits_for": lambda *_: None})()
    models = InnerModels("preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_draft")
    assert list(speculate(models, given, reply, ["output_ids", "sequence_length"], 3)) == []
    assert len(target.calls) == 3
