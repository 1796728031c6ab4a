"""`tensorrt_llm` around a stand-in executor: what it submits, what it sends, and where FINAL goes."""

from __future__ import annotations

import json
import time
import types
from dataclasses import replace

import numpy as np
import pytest
import triton_fakes
from triton_fakes import LOG, Sender, arguments, request, strings

from reference_backend.executor import Beam, Output, RequestError
from reference_backend.executor.request import Limits, RequestMetrics
from reference_backend.models import common, tensorrt_llm
from reference_backend.models.llm import responses

INT = np.int32


class StandIn:
    """Executor that generates what the test tells it to."""

    def __init__(self, engine_dir, **options):
        self.limits = Limits(50_000, 2048, options["max_beam_width"], 2047)
        self.engine_dir, self.options, self.requests, self.cancelled, self.closed = engine_dir, options, [], [], False
        self.waiting = 0

    def submit(self, submitted):
        if submitted.prompt[0] == 666:
            raise RequestError("Prompt length (9) exceeds maximum input length (8).")
        self.requests.append(submitted)

    def cancel(self, request_id):
        self.cancelled.append(request_id)
        return True

    def stats(self):
        figures = "max_batch_size active running reading generating kv_tokens_per_block kv_reused_blocks steps".split()
        return dict.fromkeys(figures, 1) | {"waiting": self.waiting, "kv_blocks_used": 3, "kv_blocks_total": 12}

    def shutdown(self):
        self.closed = True

    def emit(self, index, tokens, finish=None, error=None, **more):
        submitted = self.requests[index]
        submitted.on_output(Output(submitted.id, list(tokens), finish, error, **more))


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setattr(tensorrt_llm, "Executor", StandIn)
    made = []

    def build(decoupled=True, **parameters):
        model = tensorrt_llm.TritonPythonModel()
        parameters = {"gpt_model_path": "/engine", "cancellation_check_period_ms": 10, **parameters}
        model.initialize(arguments("tensorrt_llm", decoupled, **parameters))
        made.append(model)
        return model

    yield build
    for model in made:
        model.finalize()


def send(model, request_id="", rows=((5, 6, 7),), sender=None, **inputs):
    """Send one request with these prompts; returns its sender. Scalars are given once or once a row."""
    longest = max(map(len, rows))
    tensors = {
        "input_ids": np.array([[*row, *[0] * (longest - len(row))] for row in rows], INT),
        "input_lengths": np.array([len(row) for row in rows], INT),
        "request_output_len": np.full(len(rows), 4, INT),
    }
    for name, value in inputs.items():
        tensors[name] = value if isinstance(value, np.ndarray) else np.array([value] * len(rows))
    sender = sender or Sender()
    assert model.execute([request(tensors, request_id, sender)]) is None, "execute must return at once"
    return sender


def refused(model, *args, **inputs):
    ((error, final),) = send(model, *args, **inputs).wait()
    assert final and error.code() == "INVALID_ARG"
    assert "\n" not in error.message()
    return error.message()


def until(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def ids(sent):
    return [content["output_ids"].tolist() for content, _ in sent]


def test_streaming_sends_the_new_ids_of_each_step_and_final_with_the_last_data(make):
    model = make()
    sender = send(model, streaming=True)
    for tokens, finish in (([1], None), ([2], None), ([3], "length")):
        model.executor.emit(0, tokens, finish)
    sent = sender.wait()
    assert ids(sent) == [[[[1]]], [[[2]]], [[[3]]]]
    assert [content["sequence_length"].tolist() for content, _ in sent] == [[[1]], [[1]], [[1]]]
    assert [final for _, final in sent] == [False, False, True]
    assert all(set(content) == {"output_ids", "sequence_length"} for content, _ in sent)
    assert sent[0][0]["output_ids"].dtype == sent[0][0]["sequence_length"].dtype == INT


def test_an_end_without_a_token_still_carries_tensors(make):
    """A BLS or ensemble step could not decode a response without output_ids."""
    model = make()
    sender = send(model, streaming=True)
    model.executor.emit(0, [1])
    model.executor.emit(0, [], "end_id")
    assert ids(sender.wait()) == [[[[1]]], [[[]]]]
    assert sender.sent[-1][0]["output_ids"].shape == (1, 1, 0)
    assert sender.sent[-1][0]["sequence_length"].tolist() == [[0]]


@pytest.mark.parametrize(
    ("parameter", "given", "prompt"),
    [("false", None, True), ("true", None, False), ("false", True, False), ("true", False, True)],
)
def test_a_single_response_holds_the_prompt_unless_excluded(make, parameter, given, prompt):
    model = make(exclude_input_in_output=parameter)
    sender = send(model, **({} if given is None else {"exclude_input_in_output": given}))
    for tokens, finish in (([1], None), ([2, 3], None), ([], "end_id")):
        model.executor.emit(0, tokens, finish)
    expected = [5, 6, 7, 1, 2, 3] if prompt else [1, 2, 3]
    ((content, final),) = sender.wait()
    assert final
    assert content["output_ids"].tolist() == [[expected]]
    assert content["sequence_length"].tolist() == [[len(expected)]]


def test_rows_answer_for_themselves_and_final_comes_once(make):
    model = make()
    sender = send(model, rows=((5, 6, 7), (8, 9)), streaming=np.array([True, False]))
    first, second = model.executor.requests
    assert (first.prompt.tolist(), second.prompt.tolist()) == ([5, 6, 7], [8, 9])
    model.executor.emit(1, [4], "length")
    model.executor.emit(0, [1])
    model.executor.emit(0, [2], "length")
    sent = sender.wait()
    assert [(c["batch_index"].tolist(), c["output_ids"].tolist(), final) for c, final in sent] == [
        ([[1]], [[[8, 9, 4]]], False),
        ([[0]], [[[1]]], False),
        ([[0]], [[[2]]], True),
    ]


def test_every_setting_reaches_the_executor(make):
    model = make(max_beam_width=2)
    send(
        model,
        temperature=np.array([0.5], np.float32),
        runtime_top_k=np.array([7], INT),
        runtime_top_p=np.array([0.25], np.float32),
        seed=np.array([2**64 - 1], np.uint64),
        repetition_penalty=np.array([1.5], np.float32),
        presence_penalty=np.array([0.75], np.float32),
        frequency_penalty=np.array([-0.5], np.float32),
        min_tokens=np.array([3], INT),
        end_id=np.array([2], INT),
        stop_words_list=np.array([[[10, 11, 12], [2, 3, -1]]], INT),
        bad_words_list=np.array([[[13], [1]]], INT),
        request_output_len=np.array([99], INT),
        beam_width=np.array([2], INT),
        len_penalty=np.array([1.5], np.float32),
        early_stopping=np.array([False]),
        beam_search_diversity_rate=np.array([0.25], np.float32),
    )
    (submitted,) = model.executor.requests
    sampling = vars(submitted.sampling)
    assert sampling == {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.25,
        "seed": 2**64 - 1,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.75,
        "frequency_penalty": -0.5,
        "min_tokens": 3,
        "beam_width": 2,
        "length_penalty": 1.5,
        "early_stopping": 0,
        "beam_search_diversity_rate": 0.25,
    }
    assert (submitted.end_id, submitted.max_tokens) == (2, 99)
    assert (submitted.stop_words, submitted.bad_words) == ([[10, 11], [12]], [[13]])


def test_absent_settings_are_the_executors_own_defaults_and_old_names_work(make):
    model = make()
    send(model)
    send(model, random_seed=np.array([5], np.uint64), min_length=np.array([2], INT), runtime_top_p=np.array([-1.0]))
    first, second = (submitted.sampling for submitted in model.executor.requests)
    assert (first.seed, first.top_k, first.top_p, first.temperature, first.min_tokens) == (0, 0, 0.0, 1.0, 1)
    assert (second.seed, second.min_tokens, second.top_p) == (5, 2, 0.0)
    assert model.executor.requests[0].end_id is None


def test_what_the_ensemble_always_sends_counts_as_absent(make):
    model = make()
    send(
        model,
        decoder_input_ids=np.array([[2]], INT),
        decoder_input_lengths=np.array([1], INT),
        embedding_bias=np.zeros((1, 0), np.float32),
        stop_words_list=np.zeros((1, 2, 0), INT),
        bad_words_list=np.array([[[0], [-1]]], INT),
        prompt_table_extra_ids=np.zeros((1, 3), np.uint64),
        return_log_probs=False,
        beam_width=1,
        num_return_sequences=1,
        pad_id=2,
    )
    assert len(model.executor.requests) == 1
    assert model.executor.requests[0].stop_words == model.executor.requests[0].bad_words == []


def test_each_row_has_its_own_table_and_extra_ids_as_long_as_its_prompt(make):
    model, rows = make(), ((5, 50_001, 50_000), (50_001,))
    tables = np.arange(2 * 2 * 4, dtype=np.float16).reshape(2, 2, 4)
    extra_ids = np.array([[0, 8, 8], [9, 0, 0]], np.uint64)
    send(model, rows=rows, prompt_embedding_table=tables, prompt_table_extra_ids=extra_ids, prompt_vocab_size=2)
    for submitted, table, ids in zip(model.executor.requests, tables, ([0, 8, 8], [9]), strict=True):
        assert np.array_equal(submitted.prompt_embedding_table, table)
        assert submitted.prompt_table_extra_ids.tolist() == ids


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt_vocab_size": 3}, "prompt_vocab_size is 3, but prompt_embedding_table has 2 rows."),
        ({"prompt_embedding_table": np.zeros((2, 2, 4), np.float16)}, "holds 2 tables; send one for each of"),
        ({"prompt_embedding_table": np.zeros((1, 2), np.float16)}, "prompt_embedding_table is [1, 2]; it must be"),
        ({"prompt_embedding_table": np.zeros((1, 2, 4), np.int32)}, "prompt_embedding_table is an array of int32"),
        ({"prompt_table_extra_ids": np.ones((1, 2), np.uint64)}, "[1, 2], but input_ids [1, 3]; send an extra id for"),
        ({"prompt_table_extra_ids": np.ones((1, 3), np.float32)}, "[3] of float32, but the prompt has 3 ids"),
    ],
)
def test_a_table_that_does_not_fit_is_one_sentence(make, change, said):
    table = np.zeros((1, 2, 4), np.float16)
    assert said in refused(make(), **{"prompt_embedding_table": table, **change})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("lora_task_id", np.array([0], np.uint64), "LoRA"),
        ("lora_weights", np.ones((1, 2, 2), np.float16), "LoRA"),
        ("encoder_input_features", np.ones((1, 2, 2), np.float16), "encoder-decoder"),
        ("mrope_rotary_cos_sin", np.ones((1, 2), np.float32), "M-RoPE"),
        ("cross_attention_mask", np.ones((1, 2, 2), bool), "encoder-decoder"),
        ("guided_decoding_guide", strings("{}"), "guided decoding"),
        ("lookahead_window_size", np.array([[1]], INT), "lookahead"),
        ("draft_logits", np.ones((1, 2, 9), np.float32), "draft_logits"),
        ("draft_acceptance_threshold", np.ones(1, np.float32), "draft_acceptance_threshold"),
        ("context_phase_params", np.ones((1, 4), np.uint8), "disaggregated"),
        ("retention_token_range_starts", np.array([[0]], INT), "retention"),
        ("num_return_sequences", np.array([0], INT), "0"),
        ("runtime_top_p_decay", np.array([0.5], np.float32), "0.5"),
        ("beam_width", np.array([0], INT), "from 1 to 256"),
    ],
)
def test_a_feature_that_is_missing_is_named(make, name, value, said):
    model = make(max_beam_width=4)
    message = refused(model, **{name: value})
    assert name in message and said in message
    assert model.executor.requests == []


def test_empty_inputs_of_a_missing_feature_ask_for_nothing(make):
    """The ensemble sends them, whether wanted or not."""
    model = make()
    send(model, lora_task_id=np.zeros((1, 0), np.uint64), cross_attention_mask=np.zeros((1, 2, 2), bool),
         guided_decoding_guide=strings(""))  # fmt: skip
    assert len(model.executor.requests) == 1


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"input_lengths": np.array([0], INT)}, "prompt is empty"),
        ({"input_lengths": np.array([9], INT)}, "input_lengths is 9"),
        ({"input_lengths": np.array([-1], INT)}, "input_lengths is -1"),
        ({"request_output_len": np.array([-5], INT)}, "max_tokens is -5"),
        ({"temperature": np.array([-1.0], np.float32)}, "temperature is -1"),
        ({"runtime_top_p": np.array([100.0], np.float32)}, "top_p is 100"),
        ({"temperature": np.array([1.0, 2.0], np.float32)}, "one value for each of the 1 rows"),
        ({"stop_words_list": np.array([[[1, 2], [5, -1]]], INT)}, "stop_words_list"),
    ],
)
def test_bad_values_give_one_sentence_and_the_next_request_works(make, inputs, said):
    model = make()
    assert said in refused(model, **inputs)
    send(model)
    assert len(model.executor.requests) == 1


def test_a_refused_row_ends_the_whole_request(make):
    model = make()
    sender = send(model, rows=((5, 6), (666, 1)), streaming=True)
    ((error, final),) = sender.wait()
    assert final and error.message().startswith("Prompt length (9)")
    until(lambda: model.executor.requests[0].id in model.executor.cancelled)
    model.executor.emit(0, [], "cancelled")  # must not be sent: Sender asserts it


@pytest.mark.parametrize("late", [False, True])
def test_after_a_failure_no_more_sequences_start(make, late):
    """`late`: the failure comes while the next one is on its way in, behind the cancelling."""
    model = make()
    executor, taken = model.executor, model.executor.submit

    def submit(submitted):
        if not late:
            taken(submitted)
        if len(executor.requests) == 2 and not executor.cancelled:
            executor.emit(0, [], "error", "No token is left.")
            until(lambda: sender.done.is_set())
        if late:
            taken(submitted)

    executor.submit, sender = submit, Sender()
    ((error, final),) = send(model, num_return_sequences=50, runtime_top_k=5, sender=sender).wait()
    assert final and error.message() == "No token is left."
    assert len(executor.requests) == 2 + late
    assert executor.cancelled[-50:].index(executor.requests[-1].id) == 1 + late, "and once more when all are in"


def test_a_stop_while_the_sequences_are_submitted(make):
    model = make()
    executor, taken = model.executor, model.executor.submit

    def submit(submitted):
        taken(submitted)
        if len(executor.requests) == 2:
            model.execute([request({"stop": np.array([True])}, "me", stopped)])
            stopped.wait()

    executor.submit, stopped = submit, Sender()
    sender = send(model, "me", num_return_sequences=50, runtime_top_k=5, streaming=True)
    assert len(executor.requests) == 2 and executor.requests[1].id in executor.cancelled
    for index in range(2):
        executor.emit(index, [], "cancelled")
    sent = sender.wait()
    assert len(sent) == 50 and all(content["output_ids"].size == 0 for content, _ in sent)


def test_errors_go_as_data_to_a_model_that_asks_for_it(make):
    """Triton 24.10 mixes up the streams of a BLS model when one of them gets an error response."""

    def ask(**tensors):
        asked, sender = triton_fakes.InferenceRequest(parameters={"errors_as_data": True}, sender=Sender()), Sender()
        asked._inputs, asked._sender = [triton_fakes.Tensor(k, v) for k, v in tensors.items()], sender
        model.execute([asked])
        ((outputs, final),) = sender.wait()
        assert final and outputs["sequence_length"].tolist() == [[-1]]
        return bytes(outputs["output_ids"].astype(np.uint8).reshape(-1)).decode()

    model = make()
    given = {"input_ids": np.array([[666, 1]], INT), "input_lengths": np.array([2], INT)}
    assert ask(**given, request_output_len=np.array([4], INT)).startswith("Prompt length (9)")
    assert "request ID is not provided" in ask(**given, stop=np.array([True]))


@pytest.mark.parametrize("generated", ["x", 1.5, -1, 4])
def test_a_strange_count_of_generated_tokens_never_reaches_the_executor(make, generated):
    """There it was an error of all requests that ran: whoever reaches the port could end those of the others."""
    model, sender = make(), Sender()
    given = {"input_ids": np.array([[5, 6, 7]], INT), "input_lengths": np.array([3], INT)}
    asked = request({**given, "request_output_len": np.array([4], INT)}, sender=sender)
    asked._parameters = json.dumps({"generated_tokens": generated})
    model.execute([asked])
    ((error, final),) = sender.wait()
    assert final and error.code() == "INVALID_ARG" and error.message().startswith(f"generated is {generated!r}; ")
    assert not model.executor.requests


def test_an_error_of_the_executor_reaches_the_client(make):
    model = make()
    sender = send(model, streaming=True)
    model.executor.emit(0, [1])
    model.executor.emit(0, [], "error", "The executor failed: no memory.")
    assert sender.wait()[-1][0].message() == "The executor failed: no memory."


# --- log probabilities, logits, bias, several sequences, beams


def near(array):
    return np.round(array.astype(float), 6).tolist()


def test_log_probs_are_all_so_far_and_logits_those_of_the_step(make):
    model = make()
    sender = send(model, streaming=True, return_log_probs=True, return_generation_logits=True)
    assert model.executor.requests[0].return_log_probs and model.executor.requests[0].return_generation_logits
    assert not model.executor.requests[0].return_context_logits
    model.executor.emit(0, [1], log_probs=[-0.5], generation_logits=np.full((1, 4), 1, np.float32))
    model.executor.emit(0, [2], log_probs=[-0.25], generation_logits=np.full((1, 4), 2, np.float32))
    model.executor.emit(0, [], "end_id", log_probs=[-0.125], generation_logits=np.full((1, 4), 3, np.float32))
    sent = [content for content, _ in sender.wait()]
    assert [near(c["output_log_probs"]) for c in sent] == [[[[-0.5]]], [[[-0.5, -0.25]]], [[[-0.5, -0.25, -0.125]]]]
    assert [near(c["cum_log_probs"]) for c in sent] == [[[-0.5]], [[-0.75]], [[-0.875]]]
    assert [c["generation_logits"].shape for c in sent] == [(1, 1, 1, 4)] * 3
    assert [c["generation_logits"].max() for c in sent] == [1, 2, 3]
    assert {c[name].dtype for c in sent for name in c if "log" in name} == {np.dtype(np.float32)}


def test_without_streaming_everything_comes_once(make):
    model = make()
    sender = send(
        model, return_log_probs=True, return_context_logits=True, return_generation_logits=True,
        embedding_bias=np.array([[0, 1, 2]], np.float32),
    )  # fmt: skip
    assert model.executor.requests[0].embedding_bias.tolist() == [0, 1, 2]
    rows = np.ones((1, 4), np.float32)
    model.executor.emit(0, [1], log_probs=[-0.5], generation_logits=rows, context_logits=np.zeros((3, 4), np.float32))
    model.executor.emit(0, [2], "length", log_probs=[-0.25], generation_logits=rows)
    ((content, final),) = sender.wait()
    assert final and content["context_logits"].shape == (1, 3, 4) and content["generation_logits"].shape == (1, 1, 2, 4)
    assert near(content["output_log_probs"]) == [[[-0.5, -0.25]]] and near(content["cum_log_probs"]) == [[-0.75]]
    assert content["output_ids"].tolist() == [[[5, 6, 7, 1, 2]]]


def test_what_is_not_asked_for_is_not_sent(make):
    model = make()
    sender = send(model, return_log_probs=False)
    model.executor.emit(0, [1], "length")
    ((content, _),) = sender.wait()
    assert set(content) == {"output_ids", "sequence_length"}
    assert model.executor.requests[0].embedding_bias is None


def test_several_sequences_are_requests_with_the_next_seeds(make):
    model = make()
    last = np.array([[2**64 - 1]] * 2, np.uint64)
    sender = send(model, rows=((5, 6), (7, 8)), num_return_sequences=3, runtime_top_k=5, seed=last)
    assert [r.sampling.seed for r in model.executor.requests] == [2**64 - 1, 0, 1] * 2
    for index in (4, 0, 1, 2, 3, 5):
        model.executor.emit(index, [index], "length")
    found = [(c["batch_index"].item(), c["sequence_index"].item(), c["output_ids"][0, 0, -1]) for c, _ in sender.wait()]
    assert found == [(1, 1, 4), (0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 3), (1, 2, 5)]
    assert c_shapes(sender) == {(1, 1)}
    assert "decoupled transaction policy" in refused(make(decoupled=False), num_return_sequences=2)


def test_rows_may_want_different_numbers_of_sequences(make):
    model = make(max_beam_width=2)
    sender = send(
        model, rows=((5, 6), (7, 8), (9, 1)), num_return_sequences=np.array([1, 3, 2], INT),
        beam_width=np.array([1, 1, 2], INT), runtime_top_k=5,
    )  # fmt: skip
    assert [r.prompt[0] for r in model.executor.requests] == [5, 7, 7, 7, 9]
    for index in range(4):
        model.executor.emit(index, [index], "length")
    model.executor.emit(4, [], "length", beams=(beam([1], [-1]), beam([2], [-2])))
    found = [(c["batch_index"].item(), c["sequence_index"].item()) for c, _ in sender.wait()]
    assert found == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]


def test_more_sequences_than_can_be_meant_are_refused(make):
    model = make()
    rest = "it must be from 1 to 1024, over all rows together."
    assert refused(model, num_return_sequences=1025) == f"num_return_sequences is 1025; {rest}"
    assert refused(model, rows=((5, 6), (7, 8)), num_return_sequences=600) == (
        f"num_return_sequences is [600, 600]; {rest}"
    )
    assert model.executor.requests == []
    send(model, rows=((5, 6), (7, 8)), num_return_sequences=512)
    assert len(model.executor.requests) == 1024


def test_words_count_for_each_sequence(make):
    model = make()
    words = np.stack([np.full((1, 300), 7), np.arange(1, 301)[None]], 1).astype(INT)
    assert words.shape == (1, 2, 300)
    said = refused(model, num_return_sequences=900, stop_words_list=words)
    assert said.startswith("stop_words_list and bad_words_list hold 270,000 ids") and "at most 262,144" in said
    send(model, num_return_sequences=800, stop_words_list=words)
    assert len(model.executor.requests) == 800


@pytest.mark.parametrize("streaming", [True, False])
def test_the_logits_of_the_prompt_are_computed_once_and_come_with_every_response(make, streaming):
    model = make()
    wanted = {"return_context_logits": True, "return_generation_logits": True, "streaming": streaming}
    sender = send(model, rows=((5, 6), (7, 8, 9)), num_return_sequences=2, **wanted)
    wanted = [(r.return_context_logits, r.return_generation_logits) for r in model.executor.requests]
    assert wanted == [(True, True), (False, True)] * 2
    for index in (0, 2):
        prompt = np.full((2 + index // 2, 4), index, np.float32)
        model.executor.emit(index, [1], context_logits=prompt)
        model.executor.emit(index + 1, [1])
        model.executor.emit(index + 1, [2], "length")  # the other sequence ends first
        model.executor.emit(index, [2], "cancelled")
    sent = [content for content, _ in sender.wait()]
    assert len(sent) == (8 if streaming else 4)
    for found in sent:
        row = found["batch_index"].item()
        assert (found["context_logits"] == np.full((1, 2 + row, 4), 2 * row)).all()
        assert found["context_logits"].shape == (1, 2 + row, 4)


@pytest.mark.parametrize(
    ("inputs", "megabytes"),
    [
        ({"rows": ([1] * 3000,), "return_context_logits": True, "request_output_len": 1}, "600"),
        ({"request_output_len": 10**6, "return_generation_logits": True}, None),  # 2045 tokens fit into the engine
        ({"request_output_len": 1500, "return_generation_logits": True, "num_return_sequences": 2}, "600"),
        ({"request_output_len": 800, "return_generation_logits": True, "beam_width": 4}, "640"),
        ({"rows": ((1, 2),) * 4, "request_output_len": 750, "return_generation_logits": True}, "600"),
        ({"request_output_len": 1500, "num_return_sequences": 2, "return_log_probs": True}, None),
        ({"request_output_len": 1000, "return_context_logits": True, "streaming": True}, "600"),  # again and again
        ({"request_output_len": 1000, "return_context_logits": True}, None),
    ],
)
def test_logits_that_no_machine_should_hold_are_refused(make, inputs, megabytes):
    """The stand-in has 50,000 words: 0.2 MB a token."""
    model = make(max_beam_width=4)
    if megabytes is None:
        send(model, **inputs)
        assert model.executor.requests
    else:
        said = refused(model, **inputs)
        assert f"may take {megabytes} MB" in said and "at most 537 MB" in said
        assert model.executor.requests == []


def c_shapes(sender):
    return {content["sequence_index"].shape for content, _ in sender.sent}


def beam(tokens, log_probs, **more):
    return Beam(tokens, log_probs, sum(log_probs), sum(log_probs), **more)


def test_beams_come_together_and_are_filled_up(make):
    model = make(max_beam_width=4)
    sender = send(model, beam_width=3, num_return_sequences=2, return_log_probs=True, return_generation_logits=True)
    assert [r.sampling.beam_width for r in model.executor.requests] == [3]
    ones = np.ones((2, 4), np.float32)
    beams = (
        beam([1], [-0.5, -0.25], logits=ones),
        beam([2, 3, 4], [-0.5, -0.25, -0.25], logits=np.ones((3, 4), np.float32)),
        beam([9], [-7], logits=ones[:1]),
    )
    model.executor.emit(0, [], beams=beams[2:])
    model.executor.emit(0, [], "length", beams=beams)
    ((content, _),) = sender.wait()
    assert content["output_ids"].tolist() == [[[5, 6, 7, 1, -1, -1], [5, 6, 7, 2, 3, 4]]]
    assert content["sequence_length"].tolist() == [[4, 6]]
    assert near(content["cum_log_probs"]) == [[-0.75, -1.0]]
    assert near(content["output_log_probs"]) == [[[-0.5, -0.25, 0], [-0.5, -0.25, -0.25]]]
    assert content["generation_logits"].shape == (1, 2, 3, 4) and content["generation_logits"].sum() == 20
    assert "sequence_index" not in content


def test_streamed_beams_are_whole_in_every_response(make):
    model = make(max_beam_width=4)
    sender = send(model, beam_width=2, streaming=True)
    model.executor.emit(0, [], beams=(beam([1], [-1]), beam([2], [-2])))
    model.executor.emit(0, [], "length", beams=(beam([2, 3], [-1, -1]), beam([1, 4], [-2, -1])))
    assert ids(sender.wait()) == [[[[1], [2]]], [[[2, 3], [1, 4]]]]


def test_what_does_not_go_together_is_said(make):
    model = make(max_beam_width=4)
    assert "num_return_sequences 3 exceeds beam_width 2" in refused(model, beam_width=2, num_return_sequences=3)
    assert "needs streaming false" in refused(model, beam_width=2, streaming=True, return_generation_logits=True)


def test_logits_have_the_declared_datatype(monkeypatch):
    monkeypatch.setattr(tensorrt_llm, "Executor", StandIn)
    given = arguments("tensorrt_llm", gpt_model_path="/engine")
    config = json.loads(given["model_config"]) | {"output": [{"name": "generation_logits", "data_type": "TYPE_FP16"}]}
    model = tensorrt_llm.TritonPythonModel()
    model.initialize(given | {"model_config": json.dumps(config)})
    sender = send(model, return_generation_logits=True)
    model.executor.emit(0, [1], "length", generation_logits=np.ones((1, 4), np.float32))
    assert sender.wait()[0][0]["generation_logits"].dtype == np.float16
    model.finalize()


# --- responses that do not fit into shared memory


def large(rows):
    return np.ones((rows, 50_000), np.float32)


@pytest.mark.parametrize("decoupled", [True, False])
def test_a_last_response_that_does_not_fit_becomes_an_error(make, monkeypatch, decoupled):
    monkeypatch.setattr("shutil.disk_usage", lambda path: types.SimpleNamespace(free=2 * 10**7))
    triton_fakes.LOG.clear()
    model = make(decoupled)
    sender = send(model, sender=Sender(10**6, decoupled), return_context_logits=True)
    model.executor.emit(0, [1], "length", context_logits=large(6))
    ((content, final),) = sender.wait()
    assert final and not model.responses._open
    if decoupled:
        assert "Failed to increase the shared memory" in content.message() and content.code() == "INTERNAL"
    else:
        assert content is None, "Triton lets it say no more than that it has ended, and makes an error of that"
    assert any("could not be sent: Failed to increase" in line for line in triton_fakes.LOG)
    fine = send(model, return_context_logits=True, sender=Sender(decoupled=decoupled))
    model.executor.emit(1, [1], "length", context_logits=large(6))
    assert [(content is None, final) for content, final in fine.wait()] == [(False, False), (True, True)]
    monkeypatch.setattr("shutil.disk_usage", lambda path: types.SimpleNamespace(free=3 * 10**7))
    roomy = send(model, return_context_logits=True, sender=Sender(decoupled=decoupled))
    model.executor.emit(2, [1], "length", context_logits=large(6))
    assert [final for _, final in roomy.wait()] == [True], "one response where there is room"


def test_a_response_on_the_way_that_does_not_fit_ends_the_request(make):
    """Otherwise tokens would be missing in the middle."""
    model = make()
    sender = send(model, streaming=True, rows=((1, 2), (3, 4)), sender=Sender(10**6), return_context_logits=True)
    model.executor.emit(1, [7], context_logits=large(1))
    model.executor.emit(0, [1], context_logits=large(6))
    sent = sender.wait()
    assert [final for _, final in sent] == [False, True] and "shared memory" in sent[1][0].message()
    until(lambda: set(model.executor.cancelled) >= {r.id for r in model.executor.requests})
    model.executor.emit(0, [2])
    model.executor.emit(0, [], "cancelled")
    model.executor.emit(1, [], "cancelled")
    next_one = send(model)
    model.executor.emit(2, [1], "length")
    assert next_one.wait()[0][0]["output_ids"].tolist() == [[[5, 6, 7, 1]]]


def test_an_answer_that_cannot_be_built_is_an_error(make, monkeypatch):
    model = make()
    monkeypatch.setattr(responses, "_ids", lambda rows: 1 / 0)
    sender = send(model)
    model.executor.emit(0, [1], "length")
    ((error, final),) = sender.wait()
    assert final and "ZeroDivisionError" in error.message()


# --- a queue with an end


def test_more_than_may_wait_are_refused_as_tensorrt_llm_refuses_them(make, monkeypatch):
    """Executor::Impl::enqueueRequests counts those that wait, each sequence as one; a request is refused as a whole."""
    given = arguments("tensorrt_llm", gpt_model_path="/engine")
    queue = {"dynamic_batching": {"default_queue_policy": {"max_queue_size": 3}}}
    monkeypatch.setattr(tensorrt_llm, "Executor", StandIn)
    model = tensorrt_llm.TritonPythonModel()
    model.initialize(given | {"model_config": json.dumps(json.loads(given["model_config"]) | queue)})

    def code_of(waiting, **inputs):
        model.executor.waiting, before = waiting, len(model.executor.requests)
        sender = send(model, **inputs)
        if len(model.executor.requests) > before:
            return None
        ((error, final),) = sender.wait()
        assert final and error.message() == "Maximum queue size of 3 has been reached, please try again later"
        return error.code()

    assert [code_of(waiting) for waiting in (0, 2, 3, 9)] == [None, None, "INTERNAL", "INTERNAL"]
    several = {"num_return_sequences": 2, "runtime_top_k": 5}
    assert [code_of(waiting, **several) for waiting in (1, 2)] == [None, "INTERNAL"]
    assert [code_of(waiting, rows=((5, 6), (7, 8))) for waiting in (1, 2)] == [None, "INTERNAL"]
    model.finalize()
    unlimited = make()
    unlimited.executor.waiting = 10**6
    send(unlimited)
    assert len(unlimited.executor.requests) == 1, "0 and absent are no limit"


# --- stop and cancellation


def test_stop_cancels_every_request_with_the_id_and_gets_an_empty_response(make):
    model = make()
    same = [send(model, "a", streaming=True), send(model, "a")]
    other = send(model, "b", streaming=True)
    assert send(model, "a", stop=True).wait() == [({}, True)]
    first, second, third = (submitted.id for submitted in model.executor.requests)
    assert len({first, second, third}) == 3, "the executor needs unique ids"
    assert model.executor.cancelled == [first, second]
    model.executor.emit(0, [], "cancelled")
    model.executor.emit(1, [], "cancelled")
    for sender, left in zip(same, ([], [5, 6, 7]), strict=True):  # as in TensorRT-LLM: the prompt, unless it streams
        ((content, final),) = sender.wait()
        assert final and content["output_ids"].tolist() == [[left]]
        assert content["sequence_length"].tolist() == [[len(left)]]
    assert not other.done.is_set()


def test_a_stopped_request_that_leaves_out_its_prompt_or_has_beams(make):
    model = make(max_beam_width=2)
    without, beams = send(model, "a", exclude_input_in_output=True), send(model, "a", beam_width=2)
    model.executor.emit(0, [], "cancelled")
    model.executor.emit(1, [], "cancelled")
    assert without.wait()[0][0]["output_ids"].shape == (1, 1, 0)
    assert beams.wait()[0][0]["output_ids"].tolist() == [[[5, 6, 7], [5, 6, 7]]]


def test_stop_of_an_unknown_id_is_no_error_for_the_client(make):
    triton_fakes.LOG.clear()
    assert send(make(), "gone", stop=True).wait() == [({}, True)]
    assert any("'gone', which is not active" in line for line in triton_fakes.LOG)


def test_stop_without_an_id_is_one(make):
    assert refused(make(), stop=True) == "Trying to stop a request but request ID is not provided"


def test_a_client_that_left_is_noticed_without_a_token(make):
    model = make()
    sender = send(model, rows=((1, 2), (3, 4)), streaming=True)
    sender.cancelled = True
    until(lambda: len(set(model.executor.cancelled)) == 2)
    model.executor.emit(0, [], "cancelled")
    model.executor.emit(1, [], "cancelled")
    assert sender.wait()[-1][1]


# --- not decoupled


def test_not_decoupled_answers_once(make):
    model = make(decoupled=False)
    sender = send(model)
    model.executor.emit(0, [1])
    model.executor.emit(0, [2], "length")
    assert ids(sender.wait()) == [[[[5, 6, 7, 1, 2]]]]


def test_not_decoupled_cannot_stream_nor_take_several_rows(make):
    model = make(decoupled=False)
    said = "Streaming is only supported if model is deployed using decoupled mode; 'tensorrt_llm' is not."
    assert refused(model, streaming=True) == said
    assert "decoupled transaction policy" in (said := refused(model, rows=((1, 2), (3,))))
    assert said.endswith("2 rows, and model 'tensorrt_llm' is not decoupled.")


@pytest.mark.parametrize("name", ["input_lengths", "request_output_len", "input_ids"])
def test_a_missing_input_is_named(make, name):
    tensors = {"input_ids": np.array([[5, 6]], INT), "input_lengths": np.array([2], INT)}
    tensors |= {"request_output_len": np.array([4], INT), "temperature": np.array([1], np.float32)}
    del tensors[name]
    sender = Sender()
    make().execute([request(tensors, "", sender)])
    ((error, final),) = sender.wait()
    assert final and error.code() == "INVALID_ARG" and error.message().startswith(f"{name} is missing")


# --- the sender


@pytest.mark.parametrize("width", [-1, 0])
def test_a_max_beam_width_below_one_is_one(make, width):
    model = make(max_beam_width=width)
    assert model.executor.options["max_beam_width"] == 1
    send(model, beam_width=1)
    assert len(model.executor.requests) == 1


METRICS = RequestMetrics(10, 20, 30, 2**40, 3, 2, 4, 8, 6)


def test_metrics_come_with_every_response_of_each_sequence(make):
    """As TensorRT-LLM sends them; clients that expect them in each chunk die where one has none."""
    model = make()
    sender = send(model, return_perf_metrics=True, streaming=True, num_return_sequences=2, runtime_top_k=5)
    for index in (0, 1):
        model.executor.emit(index, [8], metrics=replace(METRICS, last_token_time_ns=40))
        model.executor.emit(index, [9], finish="length" if index else "cancelled", metrics=METRICS)
    responses = [content for content, _ in sender.wait()]
    assert [found["last_token_time_ns"].item() for found in responses] == [40, 2**40] * 2
    for found in responses[1::2]:
        assert found["acceptance_rate"].dtype == np.float32 and found["acceptance_rate"].tolist() == [[0.75]]
        assert found["last_token_time_ns"].dtype == np.int64 and found["last_token_time_ns"].tolist() == [[2**40]]
        names = "kv_cache_alloc_new_blocks kv_cache_reused_blocks kv_cache_alloc_total_blocks".split()
        assert [found[name].tolist() for name in names] == [[[3]], [[2]], [[4]]]
        assert all(found[name].dtype == np.int32 for name in names)
        assert {found[name].tolist()[0][0] for name in ("total_draft_tokens", "total_accepted_draft_tokens")} == {8, 6}


@pytest.mark.parametrize(("wanted", "counted"), [("input", {0}), ("output", {1}), ("both", {0, 1}), ("none", set())])
def test_numbers_of_tokens_that_are_asked_for(make, wanted, counted):
    names = ("num_input_tokens", "num_output_tokens")
    model = make(max_beam_width=2)
    for streaming, expected in ((True, [(3, 1), (3, 2), (3, 0)]), (False, [(3, 3 + 3)])):
        asked = {f"return_{name}": index in counted for index, name in enumerate(names)}
        sender, index = send(model, streaming=streaming, **asked), len(model.executor.requests) - 1
        for tokens, finish in (([1], None), ([2, 3], None), ([], "end_id")):
            model.executor.emit(index, tokens, finish)
        sent = [content for content, _ in sender.wait()]
        assert [{name: found[name].tolist() for name in names if name in found} for found in sent] == [
            {names[index]: [[pair[index]]] for index in counted} for pair in expected
        ]
        assert all(found[name].dtype == INT for found in sent for name in names if name in found)


def test_what_ended_is_in_the_servers_metrics_under_nvidias_names(make):
    """Two sequences, of 3 + 2 and 3 + 1 tokens, a beam search of 3 + (2 + 1), and a request that fails."""
    triton_fakes.MetricFamily.shown.clear()
    model = make(max_beam_width=2, stats_check_period_ms=10)
    sender = send(model, num_return_sequences=2, runtime_top_k=5, streaming=True)
    model.executor.emit(0, [8])
    model.executor.emit(0, [9], "length")
    model.executor.emit(1, [9], "end_id")
    beams = send(model, beam_width=2, streaming=True)
    model.executor.emit(2, [], beams=(beam([1], [-1]), beam([2], [-2])))
    model.executor.emit(2, [], "length", beams=(beam([1, 2], [-1, -1]), beam([2], [-2])))
    failed = send(model)
    model.executor.emit(3, [], "error", "Broken.")
    for one in (sender, beams, failed):
        one.wait()
    model.finalize()  # after a last look
    shown, where = triton_fakes.MetricFamily.shown, (("model", "tensorrt_llm"), ("version", "1"))

    def of(family, label, value):
        return shown[family][tuple(sorted([*where, (label, value)]))]

    assert of("nv_llm_input_token_len", "response_metric_type", "total_input_tokens") == ["histogram", 3, 3, 3, 3]
    assert of("nv_llm_output_token_len", "response_metric_type", "total_output_tokens") == ["histogram", 2, 1, 3, 0]
    assert of("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "free")[:2] == ["gauge", 9]
    assert of("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "fraction")[:2] == ["gauge", 0.25]
    for family, label, values in (
        ("request", "request_type", "active max scheduled context waiting"),
        ("kv_cache_block", "kv_cache_block_type", "max free used tokens_per reused fraction"),
        ("general", "general_type", "timestamp iteration_counter"),
        ("runtime_memory", "memory_type", "cpu"),
        ("inflight_batcher", "inflight_batcher_specific_metric", "generation_requests"),
    ):
        labels = {dict(key)[label] for key in shown[f"nv_trt_llm_{family}_metrics"]}
        assert labels == set(values.split())


def test_metrics_that_nobody_asked_for_are_not_sent(make):
    model = make()
    sender = send(model)
    model.executor.emit(0, [9], finish="length", metrics=METRICS)
    ((found, _),) = sender.wait()
    assert found.keys() == {"output_ids", "sequence_length"}


def test_parameters_of_the_repository_reach_the_executor(make):
    model = make(
        max_tokens_in_paged_kv_cache=512,
        batch_scheduler_policy="${batch_scheduler_policy}",
        kv_cache_free_gpu_mem_fraction="0.5",
        enable_kv_cache_reuse="False",
        gpt_model_type="V1",
    )
    assert model.executor.engine_dir == "/engine"
    assert model.executor.options == {
        "max_batch_size": 8,
        "max_beam_width": 1,
        "max_tokens_in_paged_kv_cache": 512,
        "kv_cache_free_gpu_mem_fraction": 0.5,
        "enable_kv_cache_reuse": False,
        "batch_scheduler_policy": "guaranteed_no_evict",
        "batching_strategy": "V1",
    }


def test_finalize_ends_executor_and_sender(make):
    model = make()
    model.finalize()
    assert model.executor.closed
    assert not model.responses._thread.is_alive()


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"encoder_model_path": "/encoder"}, "encoder_model_path is '/encoder', .* encoder-decoder models"),
        ({"sink_token_length": 4}, "sink_token_length is '4', .* sink tokens"),
        ({"max_attention_window_size": "4096,1024"}, "max_attention_window_size is 1024, .* up to 2048"),
    ],
)
def test_parameters_that_would_change_answers_are_refused(make, parameters, says):
    with pytest.raises(common.InputError, match=says):
        make(**parameters)


def test_parameters_as_nvidias_script_leaves_them_are_unset_and_unknown_ones_are_told(make):
    LOG.clear()
    unset = {"max_beam_width": "${max_beam_width}", "encoder_model_path": "${encoder_engine_dir}", "decoding_mode": ""}
    model = make(**unset, sink_token_length=0, max_attention_window_size=2560, executor_worker_path="/x")
    assert model.executor.options["max_beam_width"] == 1 and not LOG
    make(decoding_mode="medusa", lora_prefetch_dir="/l", normalize_log_probs="true", kv_cache_onboard_blocks="true")
    (told,) = LOG
    for name in ("decoding_mode", "lora_prefetch_dir", "normalize_log_probs", "kv_cache_onboard_blocks"):
        assert name in told
