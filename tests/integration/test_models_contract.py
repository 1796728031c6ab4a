"""The four Python models on a real Triton with the real weights: tensors, final flags, texts, sampling, stopping."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from tritonclient.grpc import InferenceServerClient

from servinglab.repository import build_default, lint
from servinglab.server import TritonServer
from triton_client import ClientError, TritonClient

pytestmark = pytest.mark.integration

COUNT = "Count: one two three four five six"  # greedy goes on with " seven eight nine ten eleven"
JAPANESE = "日本語の文: 私は猫が好きです。私は犬が好きです。私は"  # most tokens of the answer are parts of characters
TEXT_MODELS = ["ensemble", "tensorrt_llm_bls"]
PROMPTS = [
    COUNT,
    JAPANESE,
    "The capital of France is",
    "Write a haiku about rain.",
    "def fibonacci(n):",
    "<|im_start|>user\nName three fruits.<|im_end|>\n<|im_start|>assistant\n",
    "Emojis: 😀 🎉 😀 🎉 😀",
    " leading and trailing blanks ",
    "1, 1, 2, 3, 5, 8,",
    "In 1969",
]


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    """int4, which loads faster: a BLS model that accumulates and decodes itself, an LLM that leaves the prompt out."""
    root = tmp_path_factory.mktemp("variants")
    options = {"prefix": "acc-", "accumulate_tokens": True, "exclude_input_in_output": True, "bls_decodes": True}
    repository = build_default(root, precision="int4", **options)
    assert not lint(repository)
    with TritonServer(repository) as server, TritonClient(server.grpc_url, server.http_url) as opened:
        yield opened


def llm(prompt_ids, max_tokens, **inputs):
    """Inputs of `tensorrt_llm` for one prompt."""
    given = {"input_ids": [list(prompt_ids)], "input_lengths": len(prompt_ids), "request_output_len": max_tokens}
    return given | inputs


def whole(client, prompt, max_tokens=16, model="tensorrt_llm_bls", **inputs):
    """The one text of a request that does not stream."""
    chunks = [c for c in client.stream(prompt, model=model, max_tokens=max_tokens, stream=False, **inputs) if c.outputs]
    assert len(chunks) == 1
    return chunks[0].text


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def joined(client, prompt, max_tokens=16, **inputs):
    return "".join(chunk.text for chunk in client.stream(prompt, max_tokens=max_tokens, **inputs))


def test_only_the_arithmetic_stands_back(server, client):
    """The threads of the executor have a lower priority than those that carry requests and responses."""
    joined(client, "Hi", 2)
    niceness = {}
    for process in psutil.Process(server.pid).children(recursive=True):
        name = next((part.parent.parent.name for part in map(Path, process.cmdline()) if part.name == "model.py"), None)
        lines = []
        for thread in process.threads():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a request's thread may just have ended
                lines.append(Path(f"/proc/{process.pid}/task/{thread.id}/stat").read_text())
        niceness[name] = sorted({int(line.rpartition(")")[2].split()[16]) for line in lines})
    own = os.nice(0)
    assert niceness["tensorrt_llm"] == sorted({own, max(own, 10)})
    assert niceness["tensorrt_llm_bls"] == niceness["preprocessing"] == [own]


# --- tensors on the wire


def test_preprocessing_on_the_wire(client, hf_tokenizer):
    prompts = ["Hello", "one two three"]
    given = {"QUERY": prompts, "REQUEST_OUTPUT_LEN": 4, "STOP_WORDS_DICT": [[" a b"], [" c"]]}
    out = client.infer_inputs("preprocessing", given).outputs
    ids = [hf_tokenizer.encode(prompt) for prompt in prompts]
    stop = hf_tokenizer.encode(" a b", add_special_tokens=False)
    pad = hf_tokenizer.pad_token_id
    assert out["INPUT_ID"].tolist() == [ids[0] + [pad] * (len(ids[1]) - len(ids[0])), ids[1]]
    assert out["REQUEST_INPUT_LEN"].tolist() == [[len(ids[0])], [len(ids[1])]]
    assert out["STOP_WORDS_IDS"].tolist() == [
        [stop, [len(stop), -1]],
        [[*hf_tokenizer.encode(" c", add_special_tokens=False), 0], [1, -1]],
    ]
    assert out["BAD_WORDS_IDS"].shape == (2, 2, 0)
    assert out["EMBEDDING_BIAS"].shape == (2, 0)
    assert out["DECODER_INPUT_ID"].tolist() == out["OUT_PAD_ID"].tolist() == [[pad], [pad]]
    assert out["OUT_END_ID"].tolist() == [[hf_tokenizer.eos_token_id]] * 2
    assert {name: array.dtype for name, array in out.items() if array.dtype != np.int32} == {
        "EMBEDDING_BIAS": np.dtype(np.float32)
    }
    usual = client.infer_inputs("preprocessing", given | {"STOP_WORDS_DICT": [[""], [""]]}).outputs
    assert usual["STOP_WORDS_IDS"].tolist() == [[[0], [-1]]] * 2


def test_postprocessing_on_the_wire(client, hf_tokenizer):
    ids = hf_tokenizer.encode("The quick brown fox")
    given = {"TOKENS_BATCH": [[ids, ids]], "SEQUENCE_LENGTH": [[2, len(ids)]]}
    out = client.infer_inputs("postprocessing", given).outputs["OUTPUT"]
    assert out.tolist() == [hf_tokenizer.decode(ids[:2]).encode(), b"The quick brown fox"]


def test_llm_streams_new_ids_and_ends_with_data(client, hf_tokenizer):
    chunks = list(client.stream_inputs("tensorrt_llm", llm(hf_tokenizer.encode(COUNT), 5, streaming=True)))
    assert [chunk.final for chunk in chunks] == [False] * 4 + [True]
    assert all(chunk.outputs["output_ids"].shape == (1, 1, 1) for chunk in chunks)
    assert all(chunk.outputs["sequence_length"].tolist() == [[1]] for chunk in chunks)
    assert all(set(chunk.outputs) == {"output_ids", "sequence_length"} for chunk in chunks)


def test_greedy_ids_are_those_of_transformers(client, hf_tokenizer, hf_model):
    import torch

    for prompt in PROMPTS[:1]:
        ids = hf_tokenizer.encode(prompt)
        with torch.inference_mode():
            reference = hf_model.generate(
                torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=8, do_sample=False,
                pad_token_id=hf_tokenizer.pad_token_id, eos_token_id=None,
            )[0].tolist()  # fmt: skip
        (chunk,) = client.stream_inputs("tensorrt_llm", llm(ids, 8))
        assert chunk.outputs["output_ids"].tolist() == [[reference]]
        assert chunk.outputs["sequence_length"].tolist() == [[len(reference)]]
        assert whole(client, prompt, 8, exclude_input_in_output=True) == hf_tokenizer.decode(reference[len(ids) :])


# --- how many responses, and where FINAL goes


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_sixteen_tokens_are_sixteen_responses_or_one(client, model):
    """tensorrtllm_backend#70, #348, #268."""
    data = [chunk for chunk in client.stream(COUNT, model=model, max_tokens=16) if chunk.outputs]
    assert len(data) == 16
    assert whole(client, COUNT, 16, model) == COUNT + "".join(chunk.text for chunk in data)


def test_final_comes_with_the_last_text_of_the_ensemble_and_alone_from_the_bls_model(client):
    for stream in (True, False):
        ensemble = list(client.stream(COUNT, model="ensemble", max_tokens=3, stream=stream))
        bls = list(client.stream(COUNT, max_tokens=3, stream=stream))
        count = 3 if stream else 1
        assert [(c.final, "text_output" in c.outputs) for c in ensemble] == [(False, True)] * (count - 1) + [
            (True, True)
        ]
        assert [(c.final, "text_output" in c.outputs) for c in bls] == [(False, True)] * count + [(True, False)]


def test_without_empty_finals_the_bls_model_sends_its_texts_only(client):
    """What a client gets that does not ask for empty final responses: it must count, or stop by itself."""
    answers: queue.SimpleQueue = queue.SimpleQueue()
    inputs = client.tensors("tensorrt_llm_bls", {"text_input": COUNT, "max_tokens": 3, "stream": True})
    with InferenceServerClient(client.grpc_url) as raw:
        raw.start_stream(lambda result, error: answers.put(result))
        raw.async_stream_infer("tensorrt_llm_bls", inputs)
        raw.stop_stream()  # comes back when the request has ended
    found = [answers.get().get_response() for _ in range(answers.qsize())]
    found = [response.parameters["triton_final_response"].bool_param for response in found]
    assert found == [False] * 3


def test_prompt_is_in_a_whole_answer_unless_excluded(client, variants):
    for model in TEXT_MODELS:
        assert whole(client, COUNT, 4, model) == COUNT + " seven eight nine ten"
        assert whole(client, COUNT, 4, model, exclude_input_in_output=True) == " seven eight nine ten"
        assert not whole(variants, COUNT, 4, f"acc-{model}").startswith(COUNT), "the repository's own default"
        assert whole(variants, COUNT, 4, f"acc-{model}", exclude_input_in_output=False).startswith(COUNT)


# --- text


def test_streamed_text_is_the_whole_text(client):
    """server#8073: joined chunks against the answer in one piece, 20 prompts, greedy and sampled; eight at a time."""

    def both(prompt, sampling):
        expected = whole(client, prompt, 10, exclude_input_in_output=True, **sampling)
        assert joined(client, prompt, 10, **sampling) == expected, (prompt, sampling)

    prompts = PROMPTS + [f"{prompt} And then:" for prompt in PROMPTS]
    sampled = {"top_k": 40, "top_p": 0.9, "temperature": 1.2}
    ways = [(prompt, {**sampled, "seed": number + 1} if number % 4 else {}) for number, prompt in enumerate(prompts)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(both, *zip(*ways, strict=True)))


def test_characters_of_several_tokens_survive_in_the_bls_model_and_break_in_the_ensemble(client):
    pieces = [chunk.text for chunk in client.stream(JAPANESE, max_tokens=16) if chunk.outputs]
    assert len(pieces) in (16, 17), "one for each token, and one more if the last character lacks bytes"
    text = "".join(pieces)
    assert "猫が好きです" in text
    assert "\ufffd" not in text.rstrip("\ufffd"), "only the very end may lack bytes"
    broken = joined(client, JAPANESE, 24, model="ensemble")
    assert "\ufffd" in broken and "猫" not in broken


def test_accumulate_tokens_sends_the_whole_text_so_far(variants):
    chunks = [c.text for c in variants.stream(JAPANESE, model="acc-tensorrt_llm_bls", max_tokens=12) if c.outputs]
    assert len(chunks) in (12, 13)
    assert all(later.startswith(earlier) for earlier, later in zip(chunks, chunks[1:], strict=False))
    assert chunks[-1] == whole(variants, JAPANESE, 12, "acc-tensorrt_llm_bls")


def test_the_same_request_by_every_road_gives_the_same_text(client):
    """server#6337 and npuichigo/openai_trtllm#58: one request, many encodings."""
    given = {"max_tokens": 8, "exclude_input_in_output": True}
    expected = whole(client, COUNT, 8, exclude_input_in_output=True)
    for model in TEXT_MODELS:
        assert client.generate(COUNT, model=model, **given)["text_output"] == expected
        assert "".join(chunk.text for chunk in client.generate_stream(COUNT, model=model, **given)) == expected
        assert joined(client, COUNT, 8, model=model) == expected


# --- batches


@pytest.mark.parametrize("stream", [True, False])
def test_rows_of_a_batch_carry_their_index_and_the_text_of_a_single_request(client, stream):
    prompts = [COUNT, "The capital of France is", "In 1969"]
    alone = [whole(client, prompt, 6, exclude_input_in_output=stream) for prompt in prompts]
    texts = dict.fromkeys(range(3), "")
    chunks = list(client.stream(prompts, max_tokens=6, stream=stream))
    for chunk in chunks[:-1]:
        assert chunk.outputs["batch_index"].shape == (1, 1)
        texts[chunk.outputs["batch_index"].item()] += chunk.text
    assert list(texts.values()) == alone
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_rows_of_a_batch_in_the_llm(client, hf_tokenizer):
    rows = [hf_tokenizer.encode(COUNT), hf_tokenizer.encode("In 1969")]
    longest = max(map(len, rows))
    given = {
        "input_ids": [row + [0] * (longest - len(row)) for row in rows],
        "input_lengths": [len(row) for row in rows],
        "request_output_len": [4, 2],
    }
    found = {}
    chunks = list(client.stream_inputs("tensorrt_llm", given))
    for chunk in chunks:
        found[chunk.outputs["batch_index"].item()] = chunk.outputs["output_ids"][0, 0].tolist()
    assert [len(found[i]) - len(rows[i]) for i in range(2)] == [4, 2]
    assert all(found[i][: len(rows[i])] == rows[i] for i in range(2))
    assert [chunk.final for chunk in chunks] == [False, True]


# --- sampling


def test_temperature_alone_changes_nothing(client):
    """tensorrtllm_backend#221: without top_k and top_p the choice is greedy."""
    greedy = whole(client, COUNT)
    assert whole(client, COUNT, temperature=1.9, seed=5) == greedy
    assert whole(client, COUNT, top_k=1, temperature=1.9, seed=5) == greedy
    assert whole(client, "In 1969", top_k=50, temperature=1.9, seed=5) != whole(client, "In 1969")


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_the_seed_is_fixed_unless_given(client, model):
    """tensorrtllm_backend#237: the same text every time, until the client changes the seed."""

    def ask(**inputs):
        return whole(client, "Once upon a time", 12, model, top_k=50, temperature=1.5, **inputs)

    first = ask()
    assert ask() == ask() == ask(seed=0) == first
    texts = [ask(seed=seed) for seed in (1, 2, 3)]
    assert len(set(texts)) > 1
    assert ask(seed=2) == texts[1]


# --- where an answer ends


def test_a_stop_word_is_found_in_the_text_although_its_ids_differ(client):
    """tensorrtllm_backend#47: "nine" is not the token " nine" that is generated."""
    past = joined(client, COUNT, 8, model="ensemble", stop_words=["nine"])
    assert past.startswith(" seven eight nine ten"), "the ensemble compares ids only"
    for words in (["nine"], ["unused", "nine"], ["", "nine te"]):
        assert joined(client, COUNT, 8, stop_words=words) == " seven eight " + words[-1]
        assert whole(client, COUNT, 8, stop_words=words) == COUNT + " seven eight " + words[-1]


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_a_stop_word_with_the_generated_ids_stops_everywhere_and_stays_in_the_text(client, model):
    assert joined(client, COUNT, 30, model=model, stop_words=[" nine"]) == " seven eight nine"
    assert whole(client, COUNT, 30, model, stop_words=[[" ten", " nine"]]) == COUNT + " seven eight nine"


def test_a_stop_word_of_the_prompt_does_not_cut_it(client):
    assert whole(client, COUNT, 4, stop_words=["three"]) == COUNT + " seven eight nine ten"


def test_a_stop_word_in_the_text_frees_the_executor(client):
    """The inner request must end too, or it would generate 1,500 tokens for nobody."""
    for _ in range(8):
        assert joined(client, COUNT, 1500, stop_words=["nine"]) == " seven eight nine"
    assert_free(client)


def test_bad_words_are_avoided(client):
    assert " nine" not in joined(client, COUNT, 8, bad_words=[" nine"])
    assert " nine" in joined(client, COUNT, 8)


def test_end_id_ends_and_is_not_in_the_text(client, hf_tokenizer):
    """tensorrtllm_backend#82, #113."""
    (nine,) = hf_tokenizer.encode(" nine", add_special_tokens=False)
    for model in TEXT_MODELS:
        assert joined(client, COUNT, 12, model=model, end_id=nine) == " seven eight"
        assert whole(client, COUNT, 12, model, end_id=nine) == COUNT + " seven eight"


def test_an_end_token_in_the_prompt_does_not_end_it(client):
    prompt = "<|im_start|>user\nName three fruits.<|im_end|>\n<|im_start|>assistant\n"
    visible = whole(client, prompt, 6)
    assert visible.startswith("user\nName three fruits.\nassistant\n"), "special tokens are left out, nothing else"
    assert len(visible) > len("user\nName three fruits.\nassistant\n")


# --- stop and cancel


def assert_free(client, seconds=20.0):
    """A new request starts: no place is taken by one that nobody wants any more (1,500 tokens take a minute)."""
    began = time.perf_counter()
    joined(client, "Hi", 1)
    assert time.perf_counter() - began < seconds


def test_stop_ends_the_request_with_the_same_id(client, hf_tokenizer):
    ids = hf_tokenizer.encode(COUNT)
    running = client.stream_inputs("tensorrt_llm", llm(ids, 1500, streaming=True), request_id="to-be-stopped")
    first = next(running)
    assert first.outputs["output_ids"].size == 1
    (answer,) = client.stream_inputs("tensorrt_llm", llm([1], 1, stop=True), request_id="to-be-stopped")
    assert answer.final and answer.outputs == {}
    rest = list(running)
    assert rest[-1].final and rest[-1].outputs["output_ids"].size == 0
    assert len(rest) < 1000


def test_stop_of_an_unknown_id_does_no_harm(client):
    """server#7181."""
    (answer,) = client.stream_inputs("tensorrt_llm", llm([1], 1, stop=True), request_id="nobody")
    assert answer.final and answer.outputs == {}
    assert joined(client, COUNT, 2) == " seven eight"


@pytest.mark.parametrize("stream", [True, False])
def test_cancelling_the_bls_model_stops_the_llm(client, stream):
    running = [client.stream(COUNT, max_tokens=1500, stream=stream) for _ in range(8)]
    if stream:
        for one in running:
            next(one)
    else:
        time.sleep(1.0)
    for one in running:
        one.cancel()
    assert_free(client)


def test_http_clients_that_leave_stop_the_llm(client):
    """server#7077: seen by the server when it writes the next chunk."""
    for _ in range(8):
        with contextlib.closing(client.generate_stream(COUNT, max_tokens=1500)) as stream:
            next(iter(stream))
    time.sleep(0.5)
    assert_free(client)


def test_requests_with_the_same_id_do_not_meet(client):
    results = {}

    def ask(index, prompt):
        results[index] = "".join(chunk.text for chunk in client.stream(prompt, max_tokens=6, request_id="same"))

    prompts = [COUNT, "In 1969", COUNT, "The capital of France is"]
    threads = [threading.Thread(target=ask, args=item) for item in enumerate(prompts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[index] for index in range(4)] == [joined(client, prompt, 6) for prompt in prompts]


def test_more_streams_than_service_threads(client):
    """Triton gives a BLS model 32 threads; 40 requests on 8 places must all be served, whole and in order."""
    expected = joined(client, COUNT, 4)
    streams = [client.stream(COUNT, max_tokens=4, deadline=120) for _ in range(40)]
    assert ["".join(chunk.text for chunk in stream) for stream in streams] == [expected] * 40


# --- not decoupled


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_not_decoupled_answers_plain_requests_together(client_blocking, model):
    assert client_blocking.infer(COUNT, model=model, max_tokens=4).text == COUNT + " seven eight nine ten"
    answer = client_blocking.generate(COUNT, model=model, max_tokens=4, stop_words=["nine"])
    assert answer["text_output"].endswith("nine") == (model == "tensorrt_llm_bls")
    texts = []
    threads = [
        threading.Thread(target=lambda: texts.append(client_blocking.infer(COUNT, model=model, max_tokens=8).text))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 4 and len(set(texts)) == 1


# --- performance metrics


@pytest.mark.parametrize("model", [*TEXT_MODELS, "tensorrt_llm"])
def test_metrics_say_when_a_request_spoke_and_what_it_reused(client, model):
    """Of two requests with one prompt, the second finds its blocks; metrics come once, in the last response."""
    prompt = f"{model}: " + " ".join(f"item {number}" for number in range(40))

    def metrics() -> dict[str, float]:
        inputs = {"return_perf_metrics": True}
        if model == "tensorrt_llm":
            stream = client.stream_inputs(model, llm(range(200, 400), 8, streaming=True, **inputs))
        else:
            stream = client.stream(prompt, model=model, max_tokens=8, **inputs)
        chunks = [chunk.outputs for chunk in stream if chunk.outputs]
        assert len(chunks) > 2 and all("arrival_time_ns" in chunk for chunk in chunks)
        return {name: a.item() for name, a in chunks[-1].items() if a.size == 1 and a.dtype.kind in "if"}

    before = time.monotonic_ns()
    first, second = metrics(), metrics()
    times = "arrival first_scheduled first_token last_token".split()
    for found in (first, second):
        moments = [found[f"{name}_time_ns"] for name in times]
        assert before < moments[0] and moments == sorted(moments) and moments[-1] < time.monotonic_ns()
        assert found["acceptance_rate"] == found["total_draft_tokens"] == 0
    assert first["kv_cache_alloc_total_blocks"] >= 3
    assert second["kv_cache_reused_blocks"] == first["kv_cache_alloc_total_blocks"] - 1
    assert second["kv_cache_alloc_total_blocks"] == 1, "the last block is not a whole one, and is read again"


def test_each_end_token_of_a_chat_model_ends_its_turn(tmp_path, smollm2_tokenizer_dir, hf_model, hf_tokenizer):
    """As in gemma-2b-it, whose generation_config.json lists two; here " eight" becomes the second one."""
    folder = shutil.copytree(smollm2_tokenizer_dir, tmp_path / "tokenizer")
    ids = hf_tokenizer(COUNT, return_tensors="pt")
    plain = hf_model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids.input_ids.shape[1] :].tolist()
    ends = [hf_tokenizer.eos_token_id, plain[3]]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    theirs = hf_model.generate(**ids, max_new_tokens=12, do_sample=False, eos_token_id=ends)[0]
    expected = hf_tokenizer.decode(theirs, skip_special_tokens=True)
    assert len(theirs) == ids.input_ids.shape[1] + plain.index(ends[1]) + 1 < ids.input_ids.shape[1] + 12
    repository = build_default(tmp_path / "root", tokenizer_dir=folder)
    with TritonServer(repository) as server, TritonClient(server.grpc_url, server.http_url) as client:
        for model in TEXT_MODELS:
            assert whole(client, COUNT, 12, model) == expected
            assert COUNT + joined(client, COUNT, model=model, max_tokens=12) == expected
            alone = whole(client, COUNT, 12, model, end_id=hf_tokenizer.eos_token_id)
            assert alone == COUNT + hf_tokenizer.decode(plain)


def test_a_full_queue_refuses_at_once_and_the_next_request_works(tmp_path):
    """max_queue_size of `tensorrt_llm` bounds the executor's queue, as TensorRT-LLM's. (Triton applies it, too, to its
    own queue in front, with a sentence of its own; one after the other, the requests never wait there.)"""
    repository = build_default(tmp_path, precision="int4", max_batch_size=1, max_queue_size=6)
    full = "Maximum queue size of 6 has been reached, please try again later"
    with TritonServer(repository) as server, TritonClient(server.grpc_url, server.http_url) as client:
        model, ids = "tensorrt_llm", [504, 3575, 282]
        with client.stream_inputs(model, llm(ids, 2000, streaming=True, min_tokens=2000)) as busy:
            next(busy)
            streams = []
            for _ in range(12):
                streams.append(client.stream_inputs(model, llm(ids, 3)))
                time.sleep(0.1)
            for refused in streams[6:]:
                with pytest.raises(ClientError, match=full):
                    next(refused)
            busy.cancel()
            assert [next(waiting).outputs["sequence_length"].item() for waiting in streams[:6]] == [6] * 6
        bls = {"text_input": COUNT, "max_tokens": 3, "num_return_sequences": 7, "top_k": 5}
        for kind, several in ((model, llm(ids, 3, num_return_sequences=7)), ("tensorrt_llm_bls", bls)):
            with pytest.raises(ClientError, match=full):
                list(client.stream_inputs(kind, several))
        assert joined(client, COUNT, max_tokens=2) == " seven eight"


def figures(server, prefix, label, model="tensorrt_llm"):
    """{label's value: number} of one family of /metrics."""
    lines = httpx.get(server.metrics_url).text.splitlines()
    ours = [line for line in lines if line.startswith(f"{prefix}{{") and f'model="{model}",' in line]
    assert all('version="' in line for line in ours)
    return {re.search(rf'{label}="(\w+)"', line)[1]: float(line.rpartition(" ")[2]) for line in ours}


def test_the_executors_figures_are_in_the_servers_metrics(server, client, hf_tokenizer):
    """Families, labels and values as TensorRT-LLM's Triton backend has them; the tokens are counted by the client."""
    tokens = [("nv_llm_input_token_len", "total_input_tokens"), ("nv_llm_output_token_len", "total_output_tokens")]

    def sums():
        return [figures(server, f"{name}_sum", "response_metric_type").get(label, 0) for name, label in tokens]

    before, prompts, counted = sums(), PROMPTS[:4], [0, 0]
    for prompt in prompts:
        ids = hf_tokenizer.encode(prompt)
        chunks = client.stream_inputs("tensorrt_llm", llm(ids, 7, streaming=True))
        new = sum(chunk.outputs["sequence_length"].item() for chunk in chunks if chunk.outputs)
        counted = [counted[0] + len(ids), counted[1] + new]
    wait_until(lambda: [now - old for now, old in zip(sums(), before, strict=True)] == counted)
    blocks, label = "nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type"
    with client.stream_inputs("tensorrt_llm", llm(ids, 1500, streaming=True, min_tokens=1500)) as busy:
        next(busy)
        wait_until(lambda: figures(server, blocks, label)["used"] > 0)
        found = figures(server, blocks, label)
        assert found["free"] + found["used"] == found["max"] and found["tokens_per"] == 64
        assert found["fraction"] == pytest.approx(found["used"] / found["max"])
        requests = figures(server, "nv_trt_llm_request_metrics", "request_type")
        assert requests["active"] == requests["scheduled"] == 1 and requests["max"] == 8 and requests["waiting"] == 0
    wait_until(lambda: figures(server, blocks, label)["used"] == 0)
    text = httpx.get(server.metrics_url).text
    buckets = re.findall(r'^nv_llm_input_token_len_bucket{.*le="(.*?)"', text, re.M)
    assert buckets == ["10", "50", "100", "500", "1000", "+Inf"]


def test_the_figures_outlive_loading_again_and_a_second_deployment(tmp_path):
    """Two models share the families, and a new instance shares the figures with the old one, which goes later."""
    build_default(tmp_path, precision="int4")
    repository = build_default(tmp_path, precision="int4", prefix="b-")
    config, policies = repository / "tensorrt_llm" / "config.pbtxt", ("guaranteed_no_evict", "max_utilization")
    name, asked = "nv_llm_output_token_len_count", 0
    with TritonServer(repository) as server, TritonClient(server.grpc_url, server.http_url) as client:
        for _ in range(2):
            with client.stream(COUNT, max_tokens=64, min_tokens=64) as stream:
                next(stream)  # the old instance has to finish it
                config.write_text(config.read_text().replace(*policies))
                server.load("tensorrt_llm")  # which Triton does only for a file that has changed
                assert len(list(stream)) >= 63
            assert joined(client, COUNT, 2) == " seven eight"
            policies, asked = policies[::-1], asked + 2
            wait_until(lambda: figures(server, name, "response_metric_type")["total_output_tokens"] == asked)  # noqa: B023
            time.sleep(3)  # the old one is gone, and the new one goes on writing
        assert joined(client, COUNT, 2, model="b-tensorrt_llm_bls") == " seven eight"
        own = functools.partial(figures, server, name, "response_metric_type", "b-tensorrt_llm")
        wait_until(lambda: own() == {"total_output_tokens": 1})
        client.raw.unload_model("b-tensorrt_llm", headers=server.admin_headers)
        wait_until(lambda: "b-tensorrt_llm" not in server.models())
        assert joined(client, COUNT, 2) == " seven eight"
        wait_until(lambda: figures(server, name, "response_metric_type")["total_output_tokens"] == asked + 1)
        assert own() == {"total_output_tokens": 1}
        requests = figures(server, "nv_trt_llm_request_metrics", "request_type")
        assert requests["max"] == 8 and requests["active"] == 0
