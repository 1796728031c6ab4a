"""The front end for OpenAI's tools before a real Triton: the same text as gRPC gives, streamed and whole."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from servinglab import chat
from servinglab.errors import CourseError
from servinglab.loadtest.load import closed_loop, openai_ask
from servinglab.openai_frontend import OpenAIFrontend

pytestmark = pytest.mark.integration
QUESTION = [{"role": "user", "content": "Name three fruits."}]
MODEL = "tensorrt_llm_bls"


@pytest.fixture(scope="module")
def frontend(server, smollm2_tokenizer_dir):
    with OpenAIFrontend(server.grpc_url, smollm2_tokenizer_dir) as running:
        yield running


@pytest.fixture(scope="module")
def web(frontend):
    with httpx.Client(base_url=frontend.url, timeout=60, trust_env=False) as client:
        yield client


def ask(web, **more):
    return web.post("/v1/chat/completions", json={"model": MODEL, "messages": QUESTION, "max_tokens": 8, **more})


def events(answer):
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.fixture(scope="module")
def reference(client, smollm2_tokenizer_dir):
    prompt = chat.render(smollm2_tokenizer_dir, QUESTION)
    return "".join(c.text for c in client.stream(prompt, max_tokens=8, exclude_input_in_output=True))


def test_listens_on_this_machine_only_and_names_its_model(frontend, web):
    assert frontend.url.startswith("http://127.0.0.1:")
    assert [model["id"] for model in web.get("/v1/models").json()["data"]] == [MODEL]


def test_whole_answer_has_the_text_of_the_stream_over_grpc(web, reference):
    answer = ask(web).json()
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (reference, "length")
    usage = answer["usage"]
    assert usage["completion_tokens"] == 8 and usage["total_tokens"] == usage["prompt_tokens"] + 8


def test_streamed_answer_has_a_chunk_a_token_then_the_reason_the_usage_and_done(web, reference):
    answer = ask(web, stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, reason, usage = events(answer)
    texts = [chunk["choices"][0]["delta"]["content"] for chunk in chunks]
    assert "".join(texts) == reference and texts[0] == "" and len(texts) > 6
    assert reason["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 8


def test_seeds_and_temperatures_reach_the_model(web):
    sampled = {ask(web, temperature=1.5, seed=seed).json()["choices"][0]["message"]["content"] for seed in (1, 1, 2, 3)}
    assert 1 < len(sampled) < 4


@pytest.mark.parametrize(
    "body, said",
    [
        ({"messages": []}, "'messages' must be"),
        ({"messages": [{"role": "user"}]}, "'role' and a 'content'"),
        ({"model": "gpt"}, "There is no model 'gpt'"),
        ({"n": 2}, "one plain text"),
        ({"stop": "."}, "one plain text"),
        ({"max_tokens": -1}, "1 or more, not -1"),
        ({"max_completion_tokens": 0}, "1 or more, not 0"),
        ({"max_tokens": [4]}, "1 or more, not [4]"),
        ({"logit_bias": {"1": 5}}, "one plain text"),
        ({"stream": "false"}, "'stream' must be"),
        ({"stream_options": "all"}, "'stream' must be"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]}, "'role' and a 'content'"),
    ],
)
def test_what_it_cannot_serve_is_refused_with_a_sentence(web, body, said):
    answer = ask(web, **body)
    assert answer.status_code == 400 and said in answer.json()["error"]["message"]


def test_a_closed_loop_through_the_front_end_counts_tokens_and_reports_refusals(frontend, hf_tokenizer):
    def count(text):
        return len(hf_tokenizer(text, add_special_tokens=False)["input_ids"])

    ask = openai_ask(frontend.url, model=MODEL, max_tokens=6)
    run = closed_loop(ask, ["Name a fruit.", "Name a river."], concurrency=2, count=count)
    assert run.failed == 0 and all(abs(trace.tokens - 6) <= 1 and len(trace.arrivals) > 3 for trace in run.traces)
    refused = closed_loop(openai_ask(frontend.url, model="gpt", max_tokens=6), ["A"], concurrency=1, count=count)
    assert "There is no model 'gpt'" in refused.traces[0].error


@pytest.mark.parametrize("body", [b"\xff", b"{", b"[" * 100_000, b" " * 2**21], ids=["utf8", "half", "deep", "large"])
def test_a_body_that_is_no_json_gets_openai_s_error_object(web, body):
    answer = web.post("/v1/chat/completions", content=body)
    assert answer.status_code in (400, 413) and answer.json()["error"]["message"]


def test_a_client_that_leaves_frees_its_place_whether_it_streams_or_not(frontend, web, client):
    """As many as the server has places, each for an answer of minutes."""
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 3000, "min_tokens": 3000}
    with httpx.Client(base_url=frontend.url, timeout=1.0, trust_env=False) as impatient:
        with ThreadPoolExecutor(8) as pool:
            left = [pool.submit(impatient.post, "/v1/chat/completions", json=body) for _ in range(8)]
            assert all(isinstance(one.exception(), httpx.ReadTimeout) for one in left)
    began = time.monotonic()
    assert ask(web).status_code == 200 and time.monotonic() - began < 20


def test_without_its_server_it_answers_503(smollm2_tokenizer_dir):
    with OpenAIFrontend("127.0.0.1:9", smollm2_tokenizer_dir) as alone, httpx.Client(trust_env=False) as web:
        answer = web.post(f"{alone.url}/v1/chat/completions", json={"messages": QUESTION}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")
    assert answer.json()["error"]["message"].startswith("No server answers at 127.0.0.1:9: ")


def test_a_port_that_is_none_is_one_sentence(server, smollm2_tokenizer_dir):
    with pytest.raises(CourseError, match="port 70000"):
        OpenAIFrontend(server.grpc_url, smollm2_tokenizer_dir, port=70000).start()


def test_a_port_that_is_taken_is_one_sentence(frontend, server, smollm2_tokenizer_dir):
    port = int(frontend.url.rsplit(":", 1)[1])
    with pytest.raises(CourseError, match=f"port {port}"):
        OpenAIFrontend(server.grpc_url, smollm2_tokenizer_dir, port=port).start()
