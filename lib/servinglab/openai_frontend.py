"""A small front end with OpenAI's protocol before a Triton: enough for AIPerf and other tools that speak nothing else.

    with OpenAIFrontend(server.grpc_url, tokenizer_dir) as frontend:
        ...  # POST {frontend.url}/v1/chat/completions

On 127.0.0.1 only, and for programs: what a browser sends for a page gets 403. Keys that `Request` has not are refused
with status 400 and a sentence that names them. What differs from OpenAI: without temperature and top_p it is greedy,
and without a length an answer ends after 64 tokens. A request whose deadline passes gets 504, one whose model or server
is gone 503, one that a model failed on 500. In a stream that has begun, the error is an event of its own (`event:
error`, without which AIPerf takes it for an answer), then [DONE]. NVIDIA's container has a complete front end
(openai_frontend/main.py).

`usage` counts the answer's tokens anew, as no model of the contract says how many it generated. A text has more than
one way into tokens, so the count is held between two bounds: each response with text stands for a token or more, and
there are never more than were asked for. It can be off by a few where an answer ended early, and the finish_reason
"length" hangs on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import secrets
import threading
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

from aiohttp import http_exceptions, web
from pydantic import BaseModel, Field, ValidationError, model_validator
from tokenizers import Tokenizer

from servinglab import chat
from servinglab.errors import FAULT, CourseError
from servinglab.old_client.kserve import DeadlinePassed, ServerGone, check_deadline
from servinglab.old_client.triton import BLS, ClientError, TritonClient

_OURS = re.compile(r"(?i)(127\.0\.0\.1|localhost|\[::1\])(:\d+)?")  # another port: one that is forwarded to ours


class _Strict(BaseModel, extra="forbid", strict=True):
    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


class Part(_Strict):
    type: Literal["text"]
    text: str


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]


class StreamOptions(_Strict):
    include_usage: bool = False


class Request(_Strict):
    """What is served of OpenAI's object, and `min_tokens`, which Triton has; `user` and `n` change nothing."""

    messages: list[Message] = Field(min_length=1)
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_completion_tokens: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int | None = None
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, ge=0)
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    n: Literal[1] = 1
    user: str | None = None

    def length(self) -> int:
        return self.max_completion_tokens or self.max_tokens or 64

    def chat(self) -> list[dict[str, str]]:
        """The messages as chat templates know them."""
        roles = {"developer": "system"}
        texts = (m.content if isinstance(m.content, str) else "".join(p.text for p in m.content) for m in self.messages)
        return [{"role": roles.get(m.role, m.role), "content": t} for m, t in zip(self.messages, texts, strict=True)]

    def inputs(self) -> dict[str, Any]:
        """Inputs of the BLS model, but for the prompt."""
        sampled = self.model_dump(include={"temperature", "top_p"}, exclude_none=True)
        others = {"min_tokens", "seed", "presence_penalty", "frequency_penalty"}
        inputs = {"max_tokens": self.length(), "exclude_input_in_output": True}
        inputs |= self.model_dump(include=others, exclude_none=True)
        if sampled and 0 not in sampled.values():  # Triton's greedy is no top_k and no top_p
            inputs = {
                "top_p": 1.0,
                "seed": secrets.randbits(63),
                **sampled,
                **inputs,
            }  # its own seed is always the same
        return inputs


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
        app = web.Application(middlewares=[_guard])
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
            asked = Request.model_validate_json(await asyncio.wait_for(request.read(), self._deadline))
            if asked.model not in (None, self._model):
                raise CourseError(f"There is no model {asked.model!r}; this front end serves {self._model!r}.")
            prompt = chat.render(self._folder, asked.chat())
        except web.HTTPRequestEntityTooLarge as error:
            return _refuse(str(error.text), error.status)
        except asyncio.TimeoutError:
            return _refuse(f"The request's body did not arrive within {self._deadline:g} s.", 408, close=True)
        except web.RequestPayloadError:
            return _refuse("The request's body is not encoded as its headers say.", close=True)
        except ValidationError as error:
            return _refuse(_sentence(error))
        except CourseError as error:
            return _refuse(str(error))
        chunks = self._client.astream(prompt, model=self._model, deadline=self._deadline, **asked.inputs())
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": self._model}
        async with contextlib.aclosing(chunks):
            try:
                first = await anext(chunks, None)  # an error before the first token can still have a status of its own
                texts = [first.text] if first else []
                if not asked.stream:
                    texts += [chunk.text async for chunk in chunks]
                    message = {"role": "assistant", "content": "".join(texts)}
                    usage = self._usage(prompt, texts, asked.length())
                    choice = {"index": 0, "message": message, "finish_reason": _reason(usage, asked)}
                    whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
                    return web.json_response(whole)
            except ClientError as error:
                return _refuse(str(error), error_status(error))
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
            await response.prepare(request)
            async for event in self._events(prompt, asked, texts, chunks):
                if "error" in event:
                    await response.write(b"event: error\n" + _event(event))
                else:
                    await response.write(_event({**head, "object": "chat.completion.chunk", **event}))
            await response.write(b"data: [DONE]\n\n")
            return response

    async def _events(
        self, prompt: str, asked: Request, texts: list[str], chunks: AsyncIterator
    ) -> AsyncIterator[dict]:
        """Server-sent events, but for what all have in common. texts: those that came already."""
        yield _choice({"role": "assistant", "content": ""})
        if texts and texts[0]:
            yield _choice({"content": texts[0]})
        try:
            async for chunk in chunks:
                texts.append(chunk.text)
                if chunk.text:
                    yield _choice({"content": chunk.text})
        except ClientError as error:
            yield _error(str(error), error_status(error))
            return
        usage = self._usage(prompt, texts, asked.length())
        yield _choice({}, _reason(usage, asked))
        if asked.stream_options.include_usage:
            yield {"choices": [], "usage": usage}

    def _usage(self, prompt: str, texts: list[str], length: int) -> dict[str, int]:
        answer = count_tokens(self._count, texts, length)
        asked = self._count(prompt)
        return {"prompt_tokens": asked, "completion_tokens": answer, "total_tokens": asked + answer}

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


def count_tokens(count: Any, texts: list[str], most: int) -> int:
    """Tokens of an answer that came in these texts: see the top of this file."""
    return min(most, max(sum(map(bool, texts)), count("".join(texts))))


def error_status(error: ClientError) -> int:
    """The HTTP status of a request that Triton did not answer; what is no fault of its own counts as the client's."""
    if isinstance(error, DeadlinePassed):
        return 504
    if isinstance(error, ServerGone):
        return 503
    return 500 if FAULT in str(error) else 400


def _reason(usage: dict[str, int], asked: Request) -> str:
    """Triton does not say why an answer ended; as long as was asked for means that the length ended it."""
    return "length" if usage["completion_tokens"] >= asked.length() else "stop"


@web.middleware
async def _guard(request: web.Request, handler: Any) -> web.StreamResponse:
    if foreign := _foreign(request):
        return _refuse(foreign, 403)
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        served = "GET /v1/models and POST /v1/chat/completions"
        return _refuse(f"This front end serves {served}, not {request.method} {request.path}.", error.status)


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


def _is_ours(record: logging.LogRecord) -> bool:
    """Not what a client did: bytes that are no HTTP, or badly encoded (they got their 400), and a cut connection."""
    error = record.exc_info and record.exc_info[1]
    return not isinstance(error, (http_exceptions.HttpProcessingError, web.RequestPayloadError, ConnectionError))


_LOG = logging.getLogger(__name__)
_LOG.addFilter(_is_ours)


def _sentence(error: ValidationError) -> str:
    """What is wrong with the request's object, in one sentence."""
    found = error.errors(include_url=False)[0]
    where = ".".join(map(str, found["loc"]))
    if found["type"] == "extra_forbidden":
        return f"This front end cannot do what {where!r} asks for: leave it out."
    return f"{where or 'The body'}: {found['msg']}, not {str(found['input'])[:60]!r}."


def _choice(delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def _error(message: str, status: int) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "code": status}}


def _refuse(message: str, status: int = 400, *, close: bool = False) -> web.Response:
    """close: nothing more can be read from the connection."""
    answer = web.json_response(_error(message, status), status=status)
    if close:
        answer.force_close()
    return answer
