"""A small front end with OpenAI's protocol before a Triton: enough for AIPerf and other tools that speak nothing else.

    with OpenAIFrontend(server.grpc_url, tokenizer_dir) as frontend:
        ...  # POST {frontend.url}/v1/chat/completions

On 127.0.0.1 only, and for programs: what a browser sends for a page gets 403. It serves the keys of `_SERVED` and
ignores those of `_IGNORED`, which change no answer; any other one is refused with status 400 and a sentence that names
it, unless its value asks for nothing. What differs from OpenAI: without temperature and top_p it is greedy, and without
a length an answer ends after 64 tokens. A request whose deadline passes gets 504, one whose model or server is gone
503, one that a model failed on 500. In a stream that has begun, the error is an event of its own (`event: error`,
without which AIPerf takes it for an answer), then [DONE]. NVIDIA's container has a complete front end
(openai_frontend/main.py).

`usage` counts the answer's tokens anew: no model of the contract says how many it generated (sequence_length ends in
the BLS model, and log probabilities would cost the model work that nobody asked for). A text has more than one way into
tokens, and a sampled one often took another than the tokenizer's. So the count is held between two bounds: each
response with text stands for a token or more, and there are never more tokens than were asked for. It can still be off
by a few where an answer ended early, or where one response brought several tokens (the bytes of one character, or those
of a reader that was far behind). Special tokens, which have no text, and the token that ends an answer do not count.
The finish_reason "length" hangs on this count.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import threading
import time
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from aiohttp import http_exceptions, web
from tokenizers import Tokenizer

from servinglab import chat
from servinglab.client.kserve import DeadlinePassed, ServerGone, check_deadline
from servinglab.client.triton import BLS, ClientError, TritonClient
from servinglab.errors import FAULT, CourseError

_PLAIN = ("min_tokens", "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty")  # as in Triton
_LENGTHS = ("max_completion_tokens", "max_tokens")
_SERVED = ("messages", "model", "stream", "stream_options", *_LENGTHS, *_PLAIN)
_IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
            "prompt_cache_retention", "prediction", "parallel_tool_calls")  # fmt: skip
# Values with which a key that is not served asks for nothing, so that a client which sends all of them is not refused.
_NEUTRAL = {
    "n": [1], "best_of": [1], "echo": [False], "suffix": [""], "stop": ["", []], "logit_bias": [{}],
    "logprobs": [False], "top_logprobs": [0], "tools": [[]], "tool_choice": ["none", "auto"], "functions": [[]],
    "function_call": ["none", "auto"], "response_format": [{"type": "text"}], "modalities": [["text"]],
}  # fmt: skip
_UNSAID = {"tool_calls": [[]], "annotations": [[]]}  # the same in an answer that is sent back as a message
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}  # OpenAI's → templates'
_WORDLESS = {"role": "assistant", "content": ""}
_ROADS = "GET /v1/models and POST /v1/chat/completions"
_OURS = re.compile(r"(?i)(127\.0\.0\.1|localhost|\[::1\])(:\d+)?")  # another port: one that is forwarded to ours


class OpenAIFrontend:
    """Serves in a thread of its own from `start` to `stop` (or a `with` block). `url`: "http://127.0.0.1:<port>".

    Args:
        grpc_url: the Triton behind it, "host:port".
        tokenizer_dir: folder of the model's tokenizer, with its chat template; tokens for `usage` are counted with it.
        model: the Triton model, which is also the name that clients give.
        port: 0 for a free one.
        deadline: seconds that a whole answer may take; then the request is cancelled in Triton.
    """

    def __init__(
        self, grpc_url: str, tokenizer_dir: Path | str, *, model: str = BLS, port: int = 0, deadline: float = 600.0
    ) -> None:
        check_deadline(deadline)
        self.url, self._deadline = "", deadline
        self._client = TritonClient(grpc_url)
        self._folder, self._model, self._port = Path(tokenizer_dir), model, port
        file = self._folder / "tokenizer.json"
        if not file.is_file():
            raise CourseError(f"There is no {file}: give the folder of the model's tokenizer.")
        self._tokenizer = Tokenizer.from_file(str(file))
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self) -> OpenAIFrontend:
        """Raises CourseError when the port is taken or is none, and when it has been started before."""
        if self._thread.ident is not None:
            raise CourseError("This front end has been started already: make a new one.")
        self._thread.start()
        self._ready.wait()
        if self._problem:
            self._client.close()
            why = str(self._problem).rstrip(".")
            raise CourseError(f"No front end on port {self._port}: {why}. Use port=0 for a free one.")
        return self

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
        self._client.close()

    def __enter__(self) -> OpenAIFrontend:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application(middlewares=[_refuse_other_roads])
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        # A client that leaves cancels its handler, and with it the request in Triton.
        runner = web.AppRunner(app, access_log=None, logger=_LOG, shutdown_timeout=1, handler_cancellation=True)
        try:
            self._loop.run_until_complete(runner.setup())
            site = web.TCPSite(runner, "127.0.0.1", self._port)
            self._loop.run_until_complete(site.start())
            self.url = "http://{}:{}".format(*runner.addresses[0][:2])
        except Exception as error:  # a port that is taken, or is none
            self._problem = error
        self._ready.set()
        try:
            if not self._problem:
                self._loop.run_forever()
        finally:
            self._loop.run_until_complete(runner.cleanup())
            self._loop.close()

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "triton"}
        return web.json_response({"object": "list", "data": [model]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            body = json.loads(await asyncio.wait_for(request.read(), self._deadline))
            prompt, inputs = self._translate(body)
        except web.HTTPRequestEntityTooLarge as error:
            return _refuse(str(error.text), error.status)
        except asyncio.TimeoutError:
            return _refuse(f"The request's body did not arrive within {self._deadline:g} s.", 408, close=True)
        except web.RequestPayloadError:
            return _refuse("The request's body is not encoded as its headers say.", close=True)
        except CourseError as error:
            return _refuse(str(error))
        except (ValueError, RecursionError) as error:  # ValueError: no UTF-8 as well
            return _refuse(f"The request's body is no JSON that can be read: {error}.")
        stream = self._client.astream(prompt, model=self._model, deadline=self._deadline, **inputs)
        try:
            first = await anext(stream, None)  # an error before the first token can still have a status of its own
        except ClientError as error:
            return _refuse(str(error), _status(error))
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": self._model}
        answer = _Answer(request, head, self._count, self._count(prompt), inputs["max_tokens"])
        async with stream:
            if not body.get("stream"):
                return await answer.whole(first, stream)
            return await answer.streamed(first, stream, bool(_options(body).get("include_usage")))

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _translate(self, body: Any) -> tuple[str, dict[str, Any]]:
        """OpenAI's object as prompt and inputs of the BLS model. Raises CourseError with what is wrong."""
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
            raise CourseError("'messages' must be a list of objects with 'role' and 'content'.")
        if body.get("model", self._model) != self._model:
            raise CourseError(f"There is no model {body['model']!r}; this front end serves {self._model!r}.")
        _check_known(body, (*_SERVED, *_IGNORED), _NEUTRAL)
        flags = (body.get("stream"), _options(body).get("include_usage"))
        if not all(flag is None or isinstance(flag, bool) for flag in flags):
            raise CourseError("'stream' and 'include_usage' must be true or false.")
        prompt = chat.render(self._folder, [_message(message) for message in body["messages"]])
        asked = next((body[name] for name in _LENGTHS if body.get(name) is not None), 64)
        if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
            raise CourseError(f"{' and '.join(_LENGTHS)} are whole numbers of 1 or more, not {asked!r}.")
        inputs = {name: body[name] for name in _PLAIN if body.get(name) is not None}
        sampled = inputs.keys() & {"temperature", "top_p"}
        for name, value in inputs.items():
            if not isinstance(value, (int, float)) or isinstance(value, bool):  # for Triton, a list is a batch
                raise CourseError(f"{name!r} is a number, not {value!r}.")
            if name in sampled and not value >= 0:
                raise CourseError(f"{name!r} is a number of 0 or more, not {value!r}.")
        if not sampled or 0 in (inputs[name] for name in sampled):  # Triton's greedy is no top_k and no top_p
            inputs = {name: value for name, value in inputs.items() if name not in sampled}
        else:  # without a seed, Triton takes the same one for each request
            inputs = {"top_p": 1.0, "seed": secrets.randbits(63), **inputs}
        return prompt, {"max_tokens": asked, "exclude_input_in_output": True, **inputs}


class _Answer:
    """One answer in OpenAI's two forms."""

    def __init__(self, request: web.Request, head: dict[str, Any], count: Any, prompt_tokens: int, asked: int) -> None:
        self._request, self._head, self._count = request, head, count
        self._prompt_tokens, self._asked = prompt_tokens, asked
        self._texts: list[str] = []

    async def whole(self, first: Any, stream: Any) -> web.Response:
        try:
            async for chunk in _chain(first, stream):
                self._texts.append(chunk.text)
        except ClientError as error:
            return _refuse(str(error), _status(error))
        message = {"role": "assistant", "content": "".join(self._texts)}
        choice = {"index": 0, "message": message, "finish_reason": self._reason()}
        return web.json_response(
            {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage()}
        )

    async def streamed(self, first: Any, stream: Any, usage: bool) -> web.StreamResponse:
        """Server-sent events. A client that goes away cancels this task, and with it the request in Triton."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(self._request)
        await self._send(response, [_choice(_WORDLESS)])
        try:
            async for chunk in _chain(first, stream):
                self._texts.append(chunk.text)
                if chunk.text:
                    await self._send(response, [_choice({"content": chunk.text})])
        except ClientError as error:
            await response.write(b"event: error\n" + _event(_error(str(error), _status(error))))
        else:
            await self._send(response, [_choice({}, self._reason())])
            if usage:
                await self._send(response, [], usage=self._usage())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _send(self, response: web.StreamResponse, choices: list[dict[str, Any]], **more: Any) -> None:
        await response.write(_event({**self._head, "object": "chat.completion.chunk", "choices": choices, **more}))

    def _usage(self) -> dict[str, int]:
        answer = self._tokens()
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": answer,
                "total_tokens": self._prompt_tokens + answer}  # fmt: skip

    def _reason(self) -> str:
        """Triton does not say why an answer ended; as long as was asked for means that the length ended it."""
        return "length" if self._tokens() >= self._asked else "stop"

    def _tokens(self) -> int:
        """See the top of this file."""
        return min(self._asked, max(sum(map(bool, self._texts)), self._count("".join(self._texts))))


@web.middleware
async def _refuse_other_roads(request: web.Request, handler: Any) -> web.StreamResponse:
    if foreign := _foreign(request):
        return _refuse(foreign, 403)
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        answer = _refuse(f"This front end serves {_ROADS}, not {request.method} {request.path}.", error.status)
        if "Allow" in error.headers:
            answer.headers["Allow"] = error.headers["Allow"]
        return answer


def _foreign(request: web.Request) -> str | None:
    """What is wrong with a request that a page of the web made a browser send. There the page chooses all but these two
    headers, and a name that it owns may lead here (DNS rebinding). Programs send no Origin."""
    hosts = request.headers.getall("Host", ())
    for host in hosts:
        if not _OURS.fullmatch(host):
            return f"This front end answers at 127.0.0.1 and localhost, not for {host!r}: use its own address."
    for origin in request.headers.getall("Origin", ()):
        if origin not in [f"http://{host}" for host in hosts]:
            return f"This front end does not answer to pages, such as one of {origin!r}: ask it from a program."
    return None


def _is_news(record: logging.LogRecord) -> bool:
    """Not what a client did: bytes that are no HTTP, or badly encoded (they got their 400), and a cut connection."""
    error = record.exc_info and record.exc_info[1]
    return not isinstance(error, (http_exceptions.HttpProcessingError, web.RequestPayloadError, ConnectionError))


_LOG = logging.getLogger(__name__)
_LOG.addFilter(_is_news)


def _check_known(given: dict[str, Any], known: Collection[str], neutral: Mapping[str, list]) -> None:
    """Raises CourseError for another key that asks for something."""
    for name, value in given.items():
        if name not in known and value is not None and value not in neutral.get(name, ()):
            raise CourseError(f"This front end cannot do what {name!r} asks for: leave it out.")


def _options(body: dict[str, Any]) -> dict[str, Any]:
    options = body.get("stream_options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise CourseError("'stream_options' must be an object.")
    _check_known(options, ("include_usage", "include_obfuscation"), {})
    return options


def _message(message: Any) -> dict[str, str]:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list) and all(
        isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in content
    ):
        content = "".join(part["text"] for part in content)
    role = message.get("role") if isinstance(content, str) else None
    if not isinstance(role, str) or role not in _ROLES:
        raise CourseError(f"Each message needs a 'role' and a 'content' of text; roles are {', '.join(_ROLES)}.")
    _check_known(message, ("role", "content"), _UNSAID)
    return {"role": _ROLES[role], "content": content}


async def _chain(first: Any, stream: Any):
    if first is not None:
        yield first
    async for chunk in stream:
        yield chunk


def _choice(delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": reason}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def _status(error: ClientError) -> int:
    """The HTTP status of a request that Triton did not answer; what is no fault of its own counts as the client's."""
    if isinstance(error, DeadlinePassed):
        return 504
    if isinstance(error, ServerGone):
        return 503
    return 500 if FAULT in str(error) else 400


def _error(message: str, status: int) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "code": status}}


def _refuse(message: str, status: int = 400, *, close: bool = False) -> web.Response:
    """close: nothing more can be read from the connection."""
    answer = web.json_response(_error(message, status), status=status)
    if close:
        answer.force_close()
    return answer
