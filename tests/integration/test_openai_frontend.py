"""The front end for OpenAI's tools before a real Triton: the same text as gRPC gives, streamed and whole."""

from __future__ import annotations

import gzip
import json
import logging
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
import torch
from tritonclient.utils import InferenceServerException

from servinglab import chat
from servinglab.client import explained
from servinglab.errors import CourseError
from servinglab.openai_frontend import OpenAIFrontend
from servinglab.openai_objects import Answer, Chat, Completion

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
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": [{"role": "user"}]}, "messages.0.content: Field required."),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "url: Field required."),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "'text', 'image_url'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            "image_url_input was given, but model 'tensorrt_llm_bls' serves text only",
        ),
        ({"max_tokens": 10**400}, "max_tokens: Input should be less than 2147483648, not '1000"),
        ({"min_tokens": -(10**400)}, "min_tokens: Input should be greater than or equal to -2147483648, not '-1000"),
        ({"model": "gpt"}, "There is no model 'gpt'"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "'system', 'developer', 'user' or 'assistant', not 'tool'"),
        ({"messages": [{"role": "user", "content": "a", "name": "Ada"}]}, "cannot do what 'messages.0.name' asks for"),
        ({"temprature": 1}, "cannot do what 'temprature' asks for: leave it out"),
        ({"top_p": -0.5}, "top_p: Input should be greater than or equal to 0, not '-0.5'"),
        ({"top_p": 1.1}, "top_p: Input should be less than or equal to 1, not '1.1'"),
        ({"temperature": 2.1}, "temperature: Input should be less than or equal to 2, not '2.1'"),
        ({"temperature": -0.1}, "temperature: Input should be greater than or equal to 0"),
        ({"presence_penalty": 2.1}, "presence_penalty: Input should be less than or equal to 2"),
        ({"frequency_penalty": -2.1}, "frequency_penalty: Input should be greater than or equal to -2"),
        ({"seed": -1}, "seed: Input should be greater than or equal to 0, not '-1'"),
        ({"seed": 2**63}, "seed: Input should be less than 9223372036854775808"),
        ({"n": 0}, "n: Input should be greater than or equal to 1"),
        ({"n": 129}, "n: Input should be less than or equal to 128"),
        ({"stop": [".", "!", "?", ":", ";"]}, "stop: List should have at most 4 items"),
        ({"stop": ""}, "stop.0: String should have at least 1 character"),
        ({"stop": [1]}, "stop.0: Input should be a valid string"),
        ({"logprobs": True, "top_logprobs": 2}, "top_logprobs: Input should be 0, not '2'"),
        ({"logprobs": 1}, "logprobs: Input should be a valid boolean"),
        ({"stream_options": {"include_usage": True}}, "`stream_options` can only be used when `stream` is True."),
        ({"logit_bias": {"5": 101}}, "logit_bias.5: Input should be less than or equal to 100, not '101'"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a.[key]: String should match pattern"),
        ({"logit_bias": {"49152": 1}}, "logit_bias: no text has just these token ids"),
        ({"logit_bias": {"9" * 30: 1}}, "logit_bias: no text has just these token ids"),
        ({"temperature": False}, "temperature: Input should be a valid number"),
        ({"seed": [1, 2]}, "seed: Input should be a valid integer"),  # for Triton, two answers in one
        ({"stream_options": "all"}, "stream_options: "),
        ({"stream_options": {"include_usage": "false"}}, "stream_options.include_usage: Input should be a valid bool"),
        ({"stream_options": {"continuous_usage_stats": True}}, "'stream_options.continuous_usage_stats' asks for"),
        ({"max_completion_tokens": 0}, "max_completion_tokens: Input should be greater than or equal to 1, not '0'"),
        ({"stream": "false"}, "stream: Input should be a valid boolean"),
    ],
)
def test_what_it_cannot_serve_is_refused_with_a_sentence(web, body, said):
    answer = ask(web, **body)
    assert answer.status_code == 400 and said in answer.json()["error"]["message"]


@pytest.mark.parametrize("key", ["tools", "response_format", "top_k", "echo"])
def test_a_key_that_would_change_the_answer_is_refused_by_its_name(web, key):
    answer = ask(web, **{key: ["."]})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == f"This front end cannot do what {key!r} asks for: leave it out."


def test_keys_that_change_nothing_and_answers_sent_back_are_taken(web, reference):
    answer = ask(web, n=1, user="u", seed=3, audio=None).json()
    assert answer["choices"][0]["message"]["content"] == reference
    said_before = [*QUESTION, answer["choices"][0]["message"] | {"tool_calls": None, "refusal": None}, *QUESTION]
    assert ask(web, messages=said_before).status_code == 200


def test_a_developer_speaks_as_the_system_does(web):
    spoken = {
        role: ask(web, messages=[{"role": role, "content": "Answer in French."}, *QUESTION]).json()["choices"]
        for role in ("system", "developer", "user")
    }
    assert spoken["developer"] == spoken["system"] != spoken["user"]


def test_top_p_alone_samples_anew_each_time_and_top_p_0_is_greedy(web, reference):
    texts = {ask(web, top_p=1, max_tokens=24).json()["choices"][0]["message"]["content"] for _ in range(4)}
    assert len(texts) > 1
    assert ask(web, top_p=0, temperature=1).json()["choices"][0]["message"]["content"] == reference


# --- the official client: it parses an answer into the package's own classes

MORE = {"model": MODEL, "max_tokens": 8}
PROMPT = "1, 2, 3, 4, 5,"
SAMPLED = {"temperature": 1.5, "top_p": 0.9, "max_tokens": 12}


@pytest.fixture(scope="module")
def app(frontend):
    http = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=f"{frontend.url}/v1", api_key="any", max_retries=0, http_client=http) as client:
        yield client


@pytest.fixture
def said(client):
    """said(prompt, …) -> Triton's own text over gRPC."""

    def over_grpc(prompt, max_tokens=8, **more):
        return "".join(
            c.text for c in client.stream(prompt, max_tokens=max_tokens, exclude_input_in_output=True, **more)
        )

    return over_grpc


def test_models_are_listed_and_retrieved(app):
    assert [model.id for model in app.models.list()] == [MODEL] == [app.models.retrieve(MODEL).id]
    with pytest.raises(openai.NotFoundError, match="There is no model 'gpt/4'; this front end serves"):
        app.models.retrieve("gpt/4")


def test_a_completion_of_text_has_no_chat_template(app, said):
    answer = app.completions.create(prompt=PROMPT, **MORE)
    assert (answer.object, answer.model, answer.id[:5]) == ("text_completion", MODEL, "cmpl-")
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, choice.logprobs) == (said(PROMPT), "length", None)
    assert len(app.completions.create(prompt=PROMPT, model=MODEL).choices[0].text) > len(choice.text)  # 16 tokens
    pieces = list(app.completions.create(prompt=PROMPT, stream=True, stream_options={"include_usage": True}, **MORE))
    assert "".join(each.choices[0].text for each in pieces[:-1]) == choice.text and len(pieces) > 8
    assert pieces[-2].choices[0].finish_reason == "length" and pieces[-1].usage == answer.usage


def test_a_list_of_prompts_and_of_token_ids_answers_in_their_order(app, said, hf_tokenizer):
    prompts = [PROMPT, "The capital of France is"]
    ids = [hf_tokenizer.encode(prompt) for prompt in prompts]
    wanted = [said(prompt) for prompt in prompts]
    assert wanted[0] != wanted[1]
    for given, texts in ((prompts, wanted), (ids, wanted), (ids[0], wanted[:1]), ([ids[0], prompts[1]], wanted)):
        answer = app.completions.create(prompt=given, **MORE)
        assert [(choice.index, choice.text) for choice in answer.choices] == list(enumerate(texts))
        assert answer.usage.prompt_tokens == sum(map(len, ids[: len(texts)]))
        assert answer.usage.completion_tokens == 8 * len(texts)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "prompt: List should have at least 1 item"),
        ([[2**33]], "no text has just these token ids"),
        ([[9, -1]], "no text has just these token ids"),
        ([49151, 2, 49151, 10**6], "no text has just these token ids"),
        ({"a": 1}, "prompt: Input should be a valid array"),
        ([True], "prompt.0"),
        (["a"] * 65, "prompt and n ask for 130 answers, and 128 is the most"),
    ],
)
def test_prompts_that_cannot_be_served(app, prompt, words):
    with pytest.raises(openai.BadRequestError, match=words):
        app.completions.create(prompt=prompt, n=2, **MORE)


@pytest.mark.parametrize("asked", [{"suffix": "x"}, {"best_of": 2}, {"logprobs": 1}, {"echo": True, "logprobs": 0}])
def test_what_a_completion_cannot_have_is_named(app, asked):
    with pytest.raises(openai.BadRequestError, match=next(iter(asked))):
        app.completions.create(prompt=PROMPT, **MORE, **asked)


@pytest.mark.parametrize("stream", [False, True])
def test_echo_puts_each_prompt_before_its_answer_and_looks_for_no_stop_word_in_it(app, said, stream, hf_tokenizer):
    asked = {"model": MODEL, "max_tokens": 8, "stop": ["3,"], "stream": stream, "echo": True}
    answer = app.completions.create(prompt=[PROMPT, hf_tokenizer.encode("Once")], **asked)
    texts = ["", ""]
    for each in answer if stream else [answer]:
        for choice in each.choices:
            texts[choice.index] += choice.text
    assert texts == [PROMPT + said(PROMPT), "Once" + said("Once")]
    assert stream or answer.usage.completion_tokens == 16


def test_logit_bias_is_added_to_the_logits_of_its_tokens_alone(app, said, hf_tokenizer, hf_model):
    """What comes is what transformers' own logits say, with the same numbers added."""
    greedy = hf_tokenizer.encode(said(PROMPT), add_special_tokens=False)
    bias = {greedy[0]: -100, hf_tokenizer.encode(" six")[0]: 4.5, greedy[1]: -2}
    ids = hf_tokenizer.encode(PROMPT)
    for _ in range(8):
        logits = hf_model(torch.tensor([ids])).logits[0, -1]
        for token, number in bias.items():
            logits[token] += number
        ids.append(int(logits.argmax()))
    wanted = hf_tokenizer.decode(ids).removeprefix(PROMPT)
    asked = {"logit_bias": {str(token): number for token, number in bias.items()}, "max_tokens": 8, "model": MODEL}
    assert app.completions.create(prompt=PROMPT, **asked).choices[0].text == wanted != said(PROMPT)
    messages = [{"role": "user", "content": "Say yes."}]
    yes = app.chat.completions.create(messages=messages, logit_bias={str(greedy[0]): 100}, max_tokens=3, model=MODEL)
    assert yes.choices[0].message.content == hf_tokenizer.decode(greedy[:1]) * 3


@pytest.mark.parametrize("stream", [False, True])
def test_n_answers_have_the_next_seeds(app, said, stream, smollm2_tokenizer_dir):
    prompt = chat.render(smollm2_tokenizer_dir, QUESTION)
    wanted = {i: said(prompt, 12, temperature=1.5, top_p=0.9, seed=5 + i) for i in range(3)}
    assert len(set(wanted.values())) > 1
    answer = app.chat.completions.create(messages=QUESTION, model=MODEL, n=3, seed=5, stream=stream, **SAMPLED)
    found, reasons = dict.fromkeys(range(3), ""), {}
    for each in answer if stream else [answer]:
        for choice in each.choices:
            found[choice.index] += (choice.delta if stream else choice.message).content or ""
            reasons |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
    assert found == wanted and set(reasons) == {0, 1, 2} and set(reasons.values()) <= {"length", "stop"}
    if not stream:
        assert answer.usage.completion_tokens <= 36
    both = app.completions.create(prompt=[PROMPT, "Once"], model=MODEL, n=2, seed=5, **SAMPLED).choices
    texts = [said(text, 12, temperature=1.5, top_p=0.9, seed=5 + i) for text in (PROMPT, "Once") for i in (0, 1)]
    assert [choice.text for choice in both] == texts


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", [" 7", ["no such word", ", 8", " 8"], ", 9, 1", ["7, 8,", "6, 7"]])
def test_the_text_ends_before_the_stop_word(app, said, stop, stream):
    """Triton's ends with it, and a stream has sent the beginning of a word before it knows."""
    whole = said(PROMPT, 24)
    words = [stop] if isinstance(stop, str) else stop
    wanted = whole[: min(whole.index(word) for word in words if word in whole)]
    answer = app.completions.create(prompt=PROMPT, model=MODEL, max_tokens=24, stop=stop, stream=stream)
    choices = [each.choices[0] for each in (answer if stream else [answer])]
    assert "".join(choice.text for choice in choices) == wanted
    assert choices[-1].finish_reason == "stop"
    if stream:
        assert len(choices) > 2 or len(wanted) < 4  # and it streams all the same


@pytest.mark.parametrize("stream", [False, True])
def test_log_probs_are_those_of_triton_and_their_tokens_are_the_text(app, client, stream, smollm2_tokenizer_dir):
    def of(prompt):
        given = {"max_tokens": 6, "exclude_input_in_output": True, "return_log_probs": True}
        return list(client.stream(prompt, stream=False, **given))[0].outputs["output_log_probs"].ravel().tolist()

    asked = {"model": MODEL, "max_tokens": 6, "stream": stream}
    answer = app.chat.completions.create(messages=QUESTION, logprobs=True, **asked)
    choices = [each.choices[0] for each in (answer if stream else [answer])]
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    text = "".join((choice.delta if stream else choice.message).content or "" for choice in choices)
    assert [token.logprob for token in tokens] == pytest.approx(of(chat.render(smollm2_tokenizer_dir, QUESTION)))
    assert "".join(token.token for token in tokens) == text == bytes(sum((t.bytes for t in tokens), [])).decode()
    assert all(token.top_logprobs == [] for token in tokens)

    answer = app.completions.create(prompt=PROMPT, logprobs=0, **asked)
    choices = [each.choices[0] for each in (answer if stream else [answer])]
    text, told = "".join(choice.text for choice in choices), [c.logprobs for c in choices if c.logprobs]
    tokens, starts = [[x for each in told for x in getattr(each, name)] for name in ("tokens", "text_offset")]
    assert [x for each in told for x in each.token_logprobs] == pytest.approx(of(PROMPT)) and "".join(tokens) == text
    assert [text[start : start + len(token)] for start, token in zip(starts, tokens, strict=True)] == tokens
    assert app.chat.completions.create(messages=QUESTION, **asked | {"stream": False}).choices[0].logprobs is None


def test_log_probs_of_what_a_stop_word_cut_off_are_not_told(app):
    answer = app.completions.create(prompt=PROMPT, model=MODEL, max_tokens=24, stop=" 8", logprobs=0)
    (choice,) = answer.choices
    assert "".join(choice.logprobs.tokens) == choice.text and choice.text.endswith("7,")


def test_the_readme_says_of_every_field_of_openai_s_whether_it_is_served():
    """The fields are the official package's, and what is served is what the objects have."""
    page = (Path(__file__).parents[2] / "lib" / "servinglab" / "README.md").read_text()
    rows = dict(re.findall(r"^\| (chat|completions) \| ([^|]+) \|", page, re.M))
    refused = dict(re.findall(r"^\| (chat|completions) \| [^|]+ \| ([^|]+) \|", page, re.M))
    fields = {
        "chat": (Chat, openai.types.chat.completion_create_params.CompletionCreateParamsBase),
        "completions": (Completion, openai.types.completion_create_params.CompletionCreateParamsBase),
    }
    for path, (ours, theirs) in fields.items():
        served, left = (set(re.findall(r"`(\w+)`", table[path])) for table in (rows, refused))
        assert served == set(ours.model_fields) - {"min_tokens"}
        assert served | left >= {*theirs.__annotations__, "stream"} and not served & left


# --- usage


def test_usage_of_a_text_that_the_tokenizer_would_write_otherwise(web, client, smollm2_tokenizer_dir, hf_tokenizer):
    """The log probabilities of the same answer over gRPC say how many tokens it has: one each."""
    given = {"temperature": 2.0, "top_p": 1.0, "seed": 2, "min_tokens": 24}
    prompt = chat.render(smollm2_tokenizer_dir, QUESTION)
    chunks = list(client.stream(prompt, max_tokens=24, exclude_input_in_output=True, return_log_probs=True, **given))
    tokens = [chunk for chunk in chunks if chunk.outputs][-1].outputs["output_log_probs"].shape[-1]
    answer = ask(web, max_tokens=24, **given).json()
    text = answer["choices"][0]["message"]["content"]
    assert text == "".join(chunk.text for chunk in chunks)
    assert len(hf_tokenizer(text, add_special_tokens=False)["input_ids"]) > tokens == 24
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (24, "length")


@pytest.mark.parametrize(
    ("texts", "asked", "said"),
    [
        (["", "", "", "🜁"], 8, 3),  # one character of four bytes, a token each: the tokenizer would write it as three
        (["", "🜁"], 2, 2),  # never more than were asked for
        (["h", "e", "l"], 8, 3),  # "hel" is one token of the tokenizer
        (["hel", ""], 8, 1),  # the end token is none
    ],
)
def test_usage_where_a_response_is_not_a_token(hf_tokenizer, texts, asked, said):
    answer = Answer(Completion(prompt="x", max_tokens=asked))
    for text in texts:
        answer.take(text, [])
    assert answer.end(lambda text: len(hf_tokenizer.encode(text)))[0] == said


def test_tokens_that_come_together_share_their_text_and_each_is_told_once():
    answer = Answer(Completion(prompt="x", max_tokens=9, stop=[" end"], logprobs=0))
    answer.take("Two words", [-1.0, -2.0])
    assert answer.more() == ("Two words", [("Two words", -1.0, 0), ("", -2.0, 9)])
    answer.take(" e", [-1.0, -2.0, -3.0])
    assert answer.more() == ("", [])  # it may be the beginning of the stop word
    answer.take("at", [-1.0, -2.0, -3.0, -4.0])
    assert answer.more() == (" eat", [(" e", -3.0, 9), ("at", -4.0, 11)])
    answer.take(" end of", [-1.0, -2.0, -3.0, -4.0, -5.0])
    assert answer.more(ended=True) == ("", []) and answer.end(len) == (9, "stop")


# --- errors


def test_a_deadline_that_passes_is_504_and_in_a_stream_an_error_event_and_the_end(server, smollm2_tokenizer_dir):
    long = {"max_tokens": 1500, "min_tokens": 1500}
    with (
        OpenAIFrontend(server.grpc_url, smollm2_tokenizer_dir, deadline=8.0) as slow,
        httpx.Client(base_url=slow.url, timeout=30, trust_env=False) as web,
        ThreadPoolExecutor(2) as pool,
    ):
        whole, streamed = pool.submit(ask, web, **long), pool.submit(ask, web, stream=True, **long)
        whole, streamed = whole.result(), streamed.result()
    assert (whole.status_code, whole.json()["error"]["type"]) == (504, "server_error")
    assert "within 8 s" in whole.json()["error"]["message"]
    *before, error, done, end = streamed.text.split("\n\n")
    assert (done, end, streamed.status_code) == ("data: [DONE]", "", 200) and len(before) > 2
    name, data = error.split("\n")
    found = json.loads(data.removeprefix("data: "))["error"]
    assert (name, found["code"], found["type"]) == ("event: error", 504, "server_error")
    assert "within 8 s" in found["message"]


def test_a_fault_of_a_model_is_500_and_a_request_that_it_refuses_400(web):
    from reference_backend import FAULT  # what our models say

    fault = InferenceServerException(f"tensorrt_llm {FAULT} MemoryError: (the server's log …)")
    assert explained(fault, "127.0.0.1:1", 1.0)[1] == 500
    assert ask(web, max_tokens=4, min_tokens=-1).status_code == 400


def test_a_model_that_is_not_loaded_is_503(server, smollm2_tokenizer_dir):
    with OpenAIFrontend(server.grpc_url, smollm2_tokenizer_dir, model="gone") as lost:
        answer = httpx.post(f"{lost.url}/v1/chat/completions", json={"messages": QUESTION}, trust_env=False)
    assert answer.status_code == 503 and "unknown model: 'gone'" in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"\xff", b"{", b"[" * 100_000, b" " * 2**21], ids=["utf8", "half", "deep", "large"])
def test_a_body_that_is_no_json_gets_openai_s_error_object(web, body):
    answer = web.post("/v1/chat/completions", content=body)
    assert answer.status_code in (400, 413) and answer.json()["error"]["message"]


GOOD = json.dumps({"messages": QUESTION, "max_tokens": 2}).encode()


@pytest.mark.parametrize("body", [GOOD, gzip.compress(GOOD), gzip.compress(b" " * 2**29)], ids=["not", "good", "bomb"])
def test_a_packed_body_is_refused_and_nobody_waits_while_it_is_unpacked(web, frontend, caplog, body):
    with ThreadPoolExecutor(4) as pool, httpx.Client(trust_env=False, timeout=60) as other:
        packed = {"url": f"{frontend.url}/v1/completions", "content": body, "headers": {"Content-Encoding": "gzip"}}
        sent = [pool.submit(other.post, **packed) for _ in range(4)]
        time.sleep(0.1)
        began = time.monotonic()
        assert web.get("/v1/models").status_code == 200 and time.monotonic() - began < 1
    for answer in (each.result() for each in sent):
        assert answer.status_code == 415 and "without Content-Encoding" in answer.json()["error"]["message"]
        assert answer.headers["Connection"] == "close"
    assert ask(web).status_code == 200 and not caplog.records


def test_other_paths_and_methods_are_refused_in_openai_s_form(web):
    for method, path, status in (("GET", "/v1/completions", 405), ("PUT", "/v1/models", 405), ("POST", "/v1", 404)):
        answer = web.request(method, path)
        assert answer.status_code == status and answer.json()["error"]["code"] == status
        assert answer.json()["error"]["message"].endswith(f" or /v1/completions, not {method} {path}.")


def named(host, **more):
    return {"Host": host, **more}


@pytest.mark.parametrize(
    ("headers", "word"),
    [
        (named("127.0.0.1"), None),
        (named("LOCALHOST:1234"), None),  # a port that ssh forwards
        (named("[::1]:80"), None),
        (named("localhost:1", Origin="http://localhost:1"), "pages"),
        (named("evil.example"), "evil.example"),
        (named("127.0.0.1.evil.example:80"), "evil.example"),
        (named("me@127.0.0.1"), "me@127"),
        (named("localhost.:80"), "localhost."),
        (named(""), "''"),
        (named("localhost:1", Origin="http://localhost:2"), "pages"),
        (named("localhost", Origin="https://localhost"), "pages"),
        (named("evil.example", Origin="http://evil.example"), "evil.example"),
        (named("localhost", Origin="null"), "pages"),
        (named("localhost", **{"Sec-Fetch-Site": "cross-site"}), "pages"),
        (named("localhost", **{"Sec-Fetch-Site": "same-origin"}), "pages"),
    ],
)
def test_what_a_page_sends_never_reaches_triton(smollm2_tokenizer_dir, headers, word):
    """Nobody is behind this front end, so what it lets through gets 503."""
    with OpenAIFrontend("127.0.0.1:9", smollm2_tokenizer_dir) as alone, httpx.Client(trust_env=False) as web:
        headers |= {"Content-Type": "text/plain"}  # what a page may send without asking first
        answer = web.post(f"{alone.url}/v1/chat/completions", content=GOOD, headers=headers, timeout=60)
        status, error = answer.status_code, answer.json()["error"]
        assert (status, error["code"]) == ((403, 403) if word else (503, 503))
        assert not word or (word in error["message"] and error["type"] == "invalid_request_error")
        assert web.get(f"{alone.url}/v1/models", headers=headers).status_code == (403 if word else 200)


def raw(frontend, content):
    """An open connection over which this was sent."""
    opened = socket.create_connection(("127.0.0.1", int(frontend.url.rsplit(":", 1)[1])), timeout=10)
    opened.sendall(content)
    return opened


def test_bytes_that_are_no_http_and_a_reader_that_is_gone_leave_no_traceback_in_the_log(frontend, caplog):
    with raw(frontend, b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n") as opened:
        assert b"400 Bad Request" in opened.recv(4096)
    assert not caplog.records
    cut = ConnectionResetError("Cannot write to closing transport")  # by chance, when a reader leaves within an event
    for error, told in ((cut, False), (RuntimeError("ours"), True)):
        logging.getLogger("servinglab.openai_frontend").error("Error handling request", exc_info=error)
        assert bool(caplog.records) is told


def test_a_body_that_does_not_arrive_meets_the_deadline(server, smollm2_tokenizer_dir):
    with OpenAIFrontend(server.grpc_url, smollm2_tokenizer_dir, deadline=0.5) as slow:
        with raw(slow, b"POST /v1/chat/completions HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 500\r\n\r\n{") as opened:
            answer = opened.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408") and b"did not arrive within 0.5 s" in answer


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


def test_a_front_end_that_was_started_before_and_a_folder_without_tokenizer_are_one_sentence(frontend, tmp_path):
    with pytest.raises(CourseError, match="started already"):
        frontend.start()
    with pytest.raises(CourseError, match=r"tokenizer\.json cannot be read \(No such file.*give the folder"):
        OpenAIFrontend("127.0.0.1:9", tmp_path)
