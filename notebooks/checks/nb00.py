"""Checks of notebook 00: the three waits, tokens per second, a request to the running server."""

from __future__ import annotations

import httpx

from servinglab.checks import exercise, right, unattempted, wrong

_WAITS = ["start", "first", "next"]


@exercise("00.1", expects='a list of "start", "first" and "next"')
def waits(answer):
    if sorted(answer) != sorted(_WAITS):
        return wrong('use each of "start", "first" and "next" once')
    order = list(answer)
    if order == _WAITS:
        return right("starting loads the weights, the first token reads the whole prompt, each next one is one step")
    if order[0] != "start":
        return wrong("an answer waits less than the start: the weights are loaded once, at the start, not per answer")
    return wrong("the first token is not as quick as the next: the model must read the whole prompt before it")


@exercise("00.2", expects="a function of a list of seconds that returns a number")
def rate(answer):
    # First token after 1 s, then two more, 0.25 s apart: 2 tokens in 0.5 s.
    got, even = answer([1.0, 1.25, 1.5]), answer([2.0, 2.5, 3.0, 3.5, 4.0])
    if abs(got - 4.0) < 1e-6 and abs(even - 2.0) < 1e-6:
        return right("n arrivals have n - 1 waits between them, and the first token's wait is not one of them")
    if abs(got - 6.0) < 1e-6:
        return wrong("you divided the number of tokens by the time after the first: n tokens have n - 1 waits")
    if abs(got - 2.0) < 1e-6:
        return wrong("you counted the wait for the first token as generation: start the clock at the first arrival")
    if abs(got - 2.0 / 1.5) < 1e-6:
        return wrong("the waits are counted right, but the clock starts at the first arrival, not at the request")
    if abs(got - 0.25) < 1e-6:
        return wrong("that is seconds per token; tokens per second is its inverse")
    return wrong(f"for arrivals at 1.0, 1.25 and 1.5 s you return {got:g}; two tokens came in the last 0.5 s")


def _generate(server, body):
    url = f"{server.http_url}/v2/models/tensorrt_llm_bls/generate"
    return httpx.post(url, json=body, timeout=60, trust_env=False).json()


@exercise("00.3", expects="a dict, the body of a request to /generate")
def request(answer):
    body, question, server = answer
    if body is None:
        return unattempted()
    if not isinstance(body, dict) or not isinstance(text := body.get("text_input"), str):
        return wrong('the body is a dict, and the text for the model stands in it as "text_input"')
    if "max_tokens" not in body:
        return wrong("without max_tokens the server uses its own limit, which is not 12")
    if text != question:
        return wrong("the model shall read `question`: it marks who speaks, and your text goes on where it ends")
    said, wanted = _generate(server, body), _generate(server, {"text_input": question, "max_tokens": 12})["text_output"]
    if "exactly 1 response" in (error := str(said.get("error", ""))):
        return wrong("stream asks for a response for each token, but /generate carries one: leave it out, or False")
    if error:
        return wrong(f"the server refuses it: {error}")
    got, wanted = (words.removeprefix(question) for words in (said["text_output"], wanted))
    if got == wanted:
        return right(f"12 new tokens, however long the question is: {got!r}")
    if got.startswith(wanted):
        return wrong("more than 12 tokens came back: the question's own tokens do not count for max_tokens")
    if wanted.startswith(got):
        return wrong("fewer than 12 tokens came back: max_tokens counts the new tokens")
    return wrong("that is another text: ask for the likeliest tokens, without further settings")
