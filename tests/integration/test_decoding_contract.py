"""Log probabilities, logits, biases, several sequences and beams on a real Triton, through all three models.

Where TensorRT-LLM answers differently:
* Greedy log probabilities are 0 there (tensorrtllm_backend#276), because output_log_probs are relative to the tokens
  that survive top-k. That is its `normalize_log_probs`, which has no effect here.
* output_log_probs has no entry for end_id there; here it has, so there may be one more than new ids.
* Beams of different length are filled up with 0 in output_log_probs and generation_logits, and with -1 in output_ids.
* Beams come in the order of their score. So cum_log_probs, a plain sum in either, fall only with length_penalty 0.
* The temperature most likely divides the logits of a beam search there (executor/beams.py); here it has no effect.
* While streaming, every response holds the beams whole, because a path may change from its root.
* Its BLS model does not pass num_return_sequences on.
* A stop word that only the text shows ends the text of BLS, not the work of the LLM: without streaming the log
  probabilities cover all that was generated, and two beams can be one text. There nothing looks for it in the text.
* Where bans leave fewer continuations than beam_width, fewer beams come back.
* `early_stopping` is declared as BOOL and read as a number by its C++ backend, and neither it nor
  `beam_search_diversity_rate` is an input of the ensemble and the BLS model (the same holds here).
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from servinglab.repository import build_default
from servinglab.server import TritonServer
from triton_client import ClientError, TritonClient

pytestmark = pytest.mark.integration

PROMPT = "The capital of France is"
TEXT_MODELS = ["ensemble", "tensorrt_llm_bls"]
MODELS = ["tensorrt_llm", *TEXT_MODELS]
WIDEST = 4
LONG = 1500  # new tokens of a request that is cancelled
KV_TOKENS = WIDEST * 1536 + 8 * 64  # room for one beam search of that length, and for a few short requests


@pytest.fixture(scope="module")
def client(tmp_path_factory, smollm2_engine_int4):
    repository = build_default(
        tmp_path_factory.mktemp("beams"),
        precision="fp32",
        max_beam_width=WIDEST,
        max_tokens_in_paged_kv_cache=KV_TOKENS,
        draft_engine_dir=smollm2_engine_int4,
    )
    with TritonServer(repository) as server, TritonClient(server.grpc_url, server.http_url) as opened:
        yield opened


@pytest.fixture(scope="module")
def ids(hf_tokenizer):
    return hf_tokenizer.encode(PROMPT)


@pytest.fixture(scope="module")
def ask(client, ids):
    """ask(model, max_tokens, stream=…, **inputs) -> the responses with data; inputs by the text models' names."""
    return lambda *args, **inputs: responses(client, ids, *args, **inputs)


def responses(client, ids, model, max_tokens=6, *, prefix="", stream=False, **inputs):
    if model == "tensorrt_llm":
        names = {"top_k": "runtime_top_k", "length_penalty": "len_penalty"}
        given = {"input_ids": [ids], "input_lengths": len(ids), "request_output_len": max_tokens, "streaming": stream}
        given |= {names.get(name, name): value for name, value in inputs.items()}
        return [chunk for chunk in client.stream_inputs(prefix + model, given) if chunk.outputs]
    chunks = client.stream(PROMPT, model=prefix + model, max_tokens=max_tokens, stream=stream, **inputs)
    return [chunk for chunk in chunks if chunk.outputs]


@pytest.fixture(scope="module")
def exact(hf_model, ids):
    """exact(tokens) -> transformers' logits [prompt + tokens, vocab], float64."""
    import torch

    def logits(tokens):
        with torch.inference_mode():
            return hf_model(torch.tensor([ids + list(tokens)])).logits[0].double()

    return logits


def log_softmax(logits, tokens):
    import torch

    return torch.log_softmax(logits, -1)[range(len(tokens)), list(tokens)].numpy()


# --- log probabilities and logits


@pytest.mark.parametrize("model", MODELS)
def test_log_probs_and_logits_are_those_of_transformers(ask, exact, hf_tokenizer, ids, model):
    """tensorrtllm_backend#276: none is 0, and their sum is cum_log_probs."""
    wanted = {"return_log_probs": True, "return_context_logits": True, "return_generation_logits": True}
    (chunk,) = ask(model, **wanted, exclude_input_in_output=True)
    found = chunk.outputs
    if model == "tensorrt_llm":
        tokens = found["output_ids"][0, 0].tolist()
    else:
        tokens = hf_tokenizer.encode(chunk.text)
    logits = exact(tokens)
    assert found["output_log_probs"].shape == (1, 1, 6) and found["cum_log_probs"].shape == (1, 1)
    np.testing.assert_allclose(
        found["output_log_probs"][0, 0], log_softmax(logits[len(ids) - 1 : -1], tokens), atol=1e-4
    )
    assert (found["output_log_probs"] < 0).all()
    assert found["cum_log_probs"].item() == pytest.approx(found["output_log_probs"].sum(), abs=1e-5)
    np.testing.assert_allclose(found["context_logits"][0], logits[: len(ids)], atol=1e-3)
    np.testing.assert_allclose(found["generation_logits"][0, 0], logits[len(ids) - 1 : -1], atol=1e-3)


@pytest.mark.parametrize("model", MODELS)
def test_streamed_log_probs_are_all_so_far_and_logits_those_of_the_step(ask, exact, ids, model):
    """And those of the prompt, and the metrics so far, are in each, as in TensorRT-LLM."""
    prompt = exact(())
    wanted = {"return_log_probs": True, "return_context_logits": True, "return_generation_logits": True}
    (whole,) = ask(model, **wanted)
    chunks = ask(model, stream=True, return_perf_metrics=True, **wanted)
    assert len(chunks) >= 6
    for chunk in chunks:
        np.testing.assert_allclose(chunk.outputs["context_logits"][0], prompt, atol=1e-3)
        assert chunk.outputs["acceptance_rate"].item() == 0
    times = [chunk.outputs["last_token_time_ns"].item() for chunk in chunks]
    assert times[0] == chunks[0].outputs["first_token_time_ns"].item() > chunks[0].outputs["arrival_time_ns"].item()
    assert times == sorted(times) and len(set(times)) >= 6
    for count, chunk in enumerate(chunks[:6], 1):
        np.testing.assert_allclose(
            chunk.outputs["output_log_probs"], whole.outputs["output_log_probs"][..., :count], atol=1e-5
        )
        assert chunk.outputs["cum_log_probs"].item() == pytest.approx(chunk.outputs["output_log_probs"].sum(), abs=1e-5)
        step = whole.outputs["generation_logits"][:, :, count - 1 : count]
        np.testing.assert_allclose(chunk.outputs["generation_logits"], step, atol=1e-4)


def test_without_asking_there_are_none(ask):
    for model in TEXT_MODELS:
        assert set(ask(model)[0].outputs) == {"text_output"}


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_biased_words_are_avoided_or_forced(ask, model):
    assert ask(model)[0].text.startswith(PROMPT + " Paris")
    away = ask(model, embedding_bias_words=[" Paris"], embedding_bias_weights=[-50.0])[0].text
    assert " Paris" not in away and away.startswith(PROMPT)
    assert ask(model, 1, embedding_bias_words=[" Rome"], embedding_bias_weights=[50.0])[0].text == PROMPT + " Rome"


def test_a_dense_bias_for_the_llm(ask, exact):
    bias = np.zeros((1, 49152), np.float32)
    bias[0, 100] = np.inf
    with pytest.raises(ClientError, match="embedding_bias holds nan or \\+inf"):
        ask("tensorrt_llm", embedding_bias=bias)
    bias[0, 100] = 60
    found = ask("tensorrt_llm", 2, embedding_bias=bias, return_log_probs=True, exclude_input_in_output=True)[0].outputs
    assert found["output_ids"].tolist() == [[[100, 100]]] and found["cum_log_probs"].item() > -1e-3


# --- several sequences


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", MODELS)
def test_several_sequences_are_the_next_seeds(ask, model, stream):
    """npuichigo/openai_trtllm#48, TensorRT-LLM#3311; tensorrtllm_backend#237: seed 0 unless given."""

    def shown(chunk):
        return chunk.outputs["output_ids"][0, 0].tolist() if model == "tensorrt_llm" else chunk.text

    options = {"top_k": 50, "temperature": 1.5, "exclude_input_in_output": True}
    alone = [shown(ask(model, **options, seed=seed)[0]) for seed in (5, 6, 7)]
    found = [alone[0][:0]] * 3
    for chunk in ask(model, stream=stream, **options, seed=5, num_return_sequences=3):
        assert chunk.outputs["sequence_index"].shape == (1, 1)
        index = chunk.outputs["sequence_index"].item()
        found[index] = found[index] + shown(chunk)
    assert found == alone
    assert len(set(map(str, found))) > 1
    assert "sequence_index" not in ask(model, **options, num_return_sequences=1)[0].outputs


def test_sequences_of_several_rows(client):
    prompts = [PROMPT, "In 1969"]
    options = {"top_k": 50, "temperature": 1.5, "max_tokens": 4, "stream": False}
    for model in TEXT_MODELS:
        chunks = [c for c in client.stream(prompts, model=model, num_return_sequences=2, **options) if c.outputs]
        found = {(c.outputs["batch_index"].item(), c.outputs["sequence_index"].item()): c.text for c in chunks}
        assert sorted(found) == [(0, 0), (0, 1), (1, 0), (1, 1)] and len(chunks) == 4
        assert all(text.startswith(prompts[row]) for (row, _), text in found.items())


# --- beams


@pytest.fixture(scope="module")
def their_beams(hf_model, hf_tokenizer, ids):
    """transformers' beam search of width 4."""
    import torch

    return hf_model.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=6, do_sample=False, num_beams=4,
        num_return_sequences=4, length_penalty=0.0, early_stopping=True, pad_token_id=hf_tokenizer.pad_token_id,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_beams_are_those_of_transformers_best_first(ask, their_beams, hf_tokenizer, ids, model):
    """TensorRT-LLM#691, FasterTransformer#300: all beams come back, the best first; transformers returns that one."""
    out = their_beams
    (chunk,) = ask(model, beam_width=4, return_log_probs=True)
    if model == "tensorrt_llm":
        assert chunk.outputs["output_ids"].tolist() == [out.sequences.tolist()]
        assert chunk.outputs["sequence_length"].tolist() == [[len(ids) + 6] * 4]
    else:
        assert chunk.texts == hf_tokenizer.batch_decode(out.sequences, skip_special_tokens=True)
    cum = chunk.outputs["cum_log_probs"]
    assert cum.shape == (1, 4) and (np.diff(cum[0]) <= 0).all()
    np.testing.assert_allclose(cum[0], out.sequences_scores, atol=1e-3)
    np.testing.assert_allclose(chunk.outputs["output_log_probs"].sum(-1), cum, atol=1e-5)
    (few,) = ask(model, beam_width=4, num_return_sequences=2, return_log_probs=True)
    np.testing.assert_allclose(few.outputs["cum_log_probs"], cum[:, :2], atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_streamed_beams_are_whole_each_time(ask, model):
    """tensorrtllm_backend#140: the last response is the answer."""

    def shown(chunk):
        return chunk.outputs["output_ids"].tolist() if model == "tensorrt_llm" else chunk.texts

    chunks = ask(model, stream=True, beam_width=3)
    (whole,) = ask(model, beam_width=3, exclude_input_in_output=True)
    assert len(chunks) == 6 and shown(chunks[-1]) == shown(whole)


def test_length_penalty_and_diversity_reach_the_executor(ask, hf_tokenizer):
    """A full stop ends many beams: without a penalty short ones win, with one the longer ones."""
    (stop,) = hf_tokenizer.encode(".")
    options = {"beam_width": 4, "end_id": stop}
    for model in MODELS:
        short, long = (ask(model, 8, **options, length_penalty=penalty)[0].outputs for penalty in (0.0, 2.0))
        name = "output_ids" if model == "tensorrt_llm" else "text_output"
        assert short[name].tolist() != long[name].tolist()
    for early in (True, False):  # what it changes is compared in tests/unit/test_executor_beams.py
        (chunk,) = ask("tensorrt_llm", 8, **options, early_stopping=early)
        assert chunk.outputs["sequence_length"].shape == (1, 4)
    plain, diverse = (
        ask("tensorrt_llm", 8, beam_width=4, beam_search_diversity_rate=rate)[0].outputs["output_ids"].tolist()
        for rate in (0.0, 5.0)
    )
    assert plain != diverse


def test_a_wider_beam_than_the_repository_s_names_both_numbers_and_the_server_lives(ask):
    """tensorrtllm_backend#115."""
    for model in MODELS:
        with pytest.raises(ClientError, match="beam_width 8 exceeds max_beam_width 4"):
            ask(model, beam_width=8)
        with pytest.raises(ClientError, match="num_return_sequences 3 exceeds beam_width 2"):
            ask(model, beam_width=2, num_return_sequences=3)
    assert ask("ensemble", 1)[0].text == PROMPT + " Paris"


def test_stop_words_end_beams(ask):
    for model in TEXT_MODELS:
        texts = ask(model, 8, beam_width=4, stop_words=["."])[0].texts
        assert any("." in text for text in texts), "else nothing was stopped"
        assert all(text.index(".") == len(text) - 1 for text in texts if "." in text)


def test_a_stop_word_in_the_text_alone_cuts_the_text_and_not_the_log_probs(ask):
    """The token of " Paris" holds "is", which is a token of its own."""
    options = {"stop_words": ["is"], "exclude_input_in_output": True, "return_log_probs": True}
    (chunk,) = ask("tensorrt_llm_bls", 8, **options)
    assert chunk.text == " Paris" and chunk.outputs["output_log_probs"].shape == (1, 1, 8)
    (chunk,) = ask("tensorrt_llm_bls", 4, **options, beam_width=2)
    assert chunk.texts == [" Paris", " Paris"] and chunk.outputs["output_log_probs"].shape == (1, 2, 4)


def test_fewer_continuations_than_beams_give_fewer_beams(ask):
    bias = np.full((1, 49152), -np.inf, np.float32)
    bias[0, [100, 200]] = 0
    found = ask("tensorrt_llm", 1, beam_width=4, embedding_bias=bias, exclude_input_in_output=True)[0].outputs
    assert sorted(found["output_ids"][0].tolist()) == [[100], [200]]


def test_beams_beside_others_and_cancelled_ones(client, ask):
    """Answers are those of a lone request; what a cancelled beam search held is free again, or the next would wait."""
    kinds = [{"beam_width": 4}, {"top_k": 40, "seed": 3}, {}]
    alone = [ask("tensorrt_llm_bls", 12, **options)[0].texts for options in kinds]
    for _ in range(3):
        left = client.stream(PROMPT, max_tokens=LONG, beam_width=WIDEST)
        next(left)
        streams = [client.stream(PROMPT, max_tokens=12, stream=False, **options) for options in kinds]
        left.cancel()
        assert [next(stream).texts for stream in streams] == alone
        for stream in streams:
            stream.close()


def test_the_logits_of_a_prompt_come_with_each_sequence(ask, exact):
    for model in MODELS:
        wanted = {"top_k": 9, "num_return_sequences": 3, "return_context_logits": True, "return_log_probs": True}
        found = {chunk.outputs["sequence_index"].item(): chunk.outputs for chunk in ask(model, 2, **wanted)}
        assert sorted(found) == [0, 1, 2]
        for outputs in found.values():
            np.testing.assert_allclose(outputs["context_logits"][0], exact(()), atol=1e-3)


def test_what_is_more_than_can_be_meant_is_refused_and_the_server_lives(ask):
    for model in MODELS:
        with pytest.raises(ClientError, match="return_generation_logits may take"):
            ask(model, LONG, beam_width=WIDEST, return_generation_logits=True)
        with pytest.raises(ClientError, match="length_penalty is 1000; it must be from 0"):
            ask(model, beam_width=2, length_penalty=1000.0)
        with pytest.raises(ClientError, match="num_return_sequences is 100000000; it must be from 1 to 1024"):
            ask(model, num_return_sequences=10**8)
    assert ask("ensemble", 1)[0].text == PROMPT + " Paris"


def test_rows_of_different_kinds(client):
    """A beam search beside several sequences, and neither mistaken for the other."""
    kinds = {"num_return_sequences": np.array([[2], [3]], np.int32), "beam_width": np.array([[2], [1]], np.int32)}
    for model in TEXT_MODELS:
        stream = client.stream([PROMPT, "In 1969"], model=model, max_tokens=3, stream=False, top_k=9, **kinds)
        chunks = [chunk for chunk in stream if chunk.outputs]
        found = {(c.outputs["batch_index"].item(), c.outputs["sequence_index"].item()): c.texts for c in chunks}
        assert {place: len(texts) for place, texts in found.items()} == {(0, 0): 2, (1, 0): 1, (1, 1): 1, (1, 2): 1}


# --- int4, accumulating


@pytest.fixture(scope="module")
def int4(tmp_path_factory, client):
    root = tmp_path_factory.mktemp("int4")
    options = {"prefix": "acc-", "accumulate_tokens": True, "max_beam_width": 2, "bls_decodes": True}
    options["generation"] = "1.1"
    with (
        TritonServer(build_default(root, precision="int4", **options)) as server,
        TritonClient(server.grpc_url, server.http_url) as opened,
    ):
        yield opened


@pytest.mark.parametrize("model", MODELS)
def test_every_feature_with_int4(int4, ids, model):
    def ask(**inputs):
        return responses(int4, ids, model, 4, prefix="acc-", **inputs)

    wanted = {"return_log_probs": True, "return_context_logits": True, "return_generation_logits": True}
    for options in ({}, {"beam_width": 2}, {"stream": True}):
        found = ask(**wanted, **options)[-1].outputs
        assert found["cum_log_probs"].shape == (1, options.get("beam_width", 1))
        np.testing.assert_allclose(found["output_log_probs"].sum(-1), found["cum_log_probs"], atol=1e-5)
        assert found["generation_logits"].shape[:2] == (1, options.get("beam_width", 1))
    assert {chunk.outputs["sequence_index"].item() for chunk in ask(top_k=9, num_return_sequences=2)} == {0, 1}


@pytest.mark.parametrize("model", MODELS)
def test_numbers_of_tokens(int4, ids, model):
    """Those of the response, as NVIDIA's backends count: the prompt's too where it is in the answer, and of all beams.
    The two are what Triton's own OpenAI front end (since 2.63) asks for with every request."""

    def counts(**inputs):
        wanted = {"return_num_input_tokens": True, "return_num_output_tokens": True}
        found = [chunk.outputs for chunk in responses(int4, ids, model, 5, prefix="acc-", **wanted, **inputs)]
        assert {outputs["num_input_tokens"].item() for outputs in found} == {len(ids)}
        return [outputs["num_output_tokens"].item() for outputs in found]

    assert counts(exclude_input_in_output=True) == [5]
    assert counts() == [len(ids) + 5]
    assert counts(stream=True) == [1] * 5
    assert counts(exclude_input_in_output=True, beam_width=2) == [10]
    assert counts(exclude_input_in_output=True, num_return_sequences=2, top_k=9) == [5, 5]
    assert "num_input_tokens" not in responses(int4, ids, model, 1, prefix="acc-")[0].outputs


def test_int4_biases_ranks_and_refuses(int4, ids, hf_tokenizer):
    def ask(model, max_tokens, **inputs):
        return responses(int4, ids, model, max_tokens, prefix="acc-", **inputs)[0].outputs

    bias = np.zeros((1, 49152), np.float32)
    bias[0, 100] = 60
    found = ask("tensorrt_llm", 2, embedding_bias=bias, exclude_input_in_output=True)
    assert found["output_ids"].tolist() == [[[100, 100]]]
    (stop,) = hf_tokenizer.encode(".")
    for model in MODELS:
        short, long = (ask(model, 8, beam_width=2, end_id=stop, length_penalty=penalty) for penalty in (0.0, 2.0))
        name = "output_ids" if model == "tensorrt_llm" else "text_output"
        assert short[name].tolist() != long[name].tolist()
        with pytest.raises(ClientError, match="beam_width 3 exceeds max_beam_width 2"):
            ask(model, 2, beam_width=3)


def test_accumulating_text_cannot_stream_beams(int4, ids):
    with pytest.raises(ClientError, match="beam_width above 1 cannot be streamed with accumulate_tokens"):
        responses(int4, ids, "tensorrt_llm_bls", prefix="acc-", stream=True, beam_width=2)
    chunks = responses(int4, ids, "tensorrt_llm_bls", prefix="acc-", stream=True, return_log_probs=True)
    assert [chunk.outputs["output_log_probs"].shape[-1] for chunk in chunks] == list(range(1, len(chunks) + 1))


# --- a draft


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 7}])
def test_speculative_decoding_answers_as_without_a_draft(ask, sampling):
    """The draft is the int4 model; the accepted tokens are counted over all rounds."""
    given = {"exclude_input_in_output": True, "return_log_probs": True, "return_perf_metrics": True, **sampling}
    (plain,) = ask("tensorrt_llm_bls", 24, **given)
    (drafted,) = ask("tensorrt_llm_bls", 24, num_draft_tokens=4, **given)
    assert drafted.text == plain.text
    for name in ("output_log_probs", "cum_log_probs"):
        np.testing.assert_allclose(drafted.outputs[name], plain.outputs[name], atol=1e-3)
    totals = {name: drafted.outputs[name].item() for name in ("total_draft_tokens", "total_accepted_draft_tokens")}
    assert 0 < totals["total_accepted_draft_tokens"] <= totals["total_draft_tokens"] < 24 * 4
    rate = totals["total_accepted_draft_tokens"] / totals["total_draft_tokens"]
    assert drafted.outputs["acceptance_rate"].item() == pytest.approx(rate) and rate > 0.4
    assert plain.outputs["total_draft_tokens"].item() == 0


def test_a_client_that_leaves_stops_its_draft(ask):
    """As many as there are places, each with a draft of many seconds."""
    given = {"num_draft_tokens": 1500, "min_tokens": 1500, "deadline": 1.0}
    with ThreadPoolExecutor(8) as pool:
        left = [pool.submit(ask, "tensorrt_llm_bls", 1500, **given) for _ in range(8)]
        assert all("within 1 s" in str(one.exception()) for one in left)
    began = time.monotonic()
    ask("tensorrt_llm_bls", 4, num_draft_tokens=2)
    assert time.monotonic() - began < 20


def test_draft_input_ids_are_verified_by_the_llm(ask, ids):
    (plain,) = ask("tensorrt_llm", 5, exclude_input_in_output=True)
    tokens = plain.outputs["output_ids"][0, 0].tolist()
    wrong = [*tokens[:2], tokens[2] + 1, tokens[3]]
    for draft, count in ((tokens[:4], 5), (wrong, 3)):
        (chunk,) = ask("tensorrt_llm", 5, exclude_input_in_output=True, draft_input_ids=[draft])
        assert chunk.outputs["output_ids"][0, 0].tolist() == tokens[:count]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"stream": True}, "streaming is not supported with speculative decoding"),
        ({"return_context_logits": True}, "context logits are not supported with speculative decoding"),
        ({"use_draft_logits": True}, "use_draft_logits asks"),
    ],
)
def test_limits_of_speculative_decoding(ask, inputs, said):
    with pytest.raises(ClientError, match=said):
        ask("tensorrt_llm_bls", num_draft_tokens=2, **inputs)
