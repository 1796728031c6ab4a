"""A small front end with OpenAI's protocol before a Triton: enough for AIPerf and other tools that speak nothing else.

    with OpenAIFrontend(server.grpc_url, tokenizer_dir) as frontend:
        ...  # POST {frontend.url}/v1/chat/completions

On 127.0.0.1 only, and for programs: what a browser sends for a page gets 403. Keys that `Request` has not are refused
with status 400 by their names. What differs from OpenAI: without temperature and top_p it is greedy, and without a
length an answer ends after 64 tokens. A deadline that passes is 504, a model or server that is gone 503, a model's
fault 500; in a stream that has begun, an event of its own (`event: error`, without which AIPerf takes it for an
answer), then [DONE]. NVIDIA's container has a complete front end (openai_frontend/main.py).

`usage` counts the answer's tokens anew, as no model of the contract says how many it generated. A text has more than
one way into tokens, so the count is held between two bounds: each response with text stands for a token or more, and
there are never more than were asked for. The finish_reason "length" hangs on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import secrets
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Literal

from aiohttp import http_exceptions, web
from pydantic import BaseModel, Field, ValidationError, model_validator
from tokenizers import Tokenizer
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from servinglab import chat
from servinglab.client import astream, channel_args, explained, inputs
from servinglab.errors import CourseError

_CHUNK, _DONE = "chat.completion.chunk", b"data: [DONE]\n\n"
_LOG = logging.getLogger(__name__)
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
        roles = [m.role.replace("developer", "system") for m in self.messages]
        texts = [m.content if isinstance(m.content, str) else "".join(p.text for p in m.content) for m in self.messages]
        return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]

    def inputs(self) -> dict[str, Any]:
        """Inputs of the BLS model, but for the prompt."""
        sampled = self.model_dump(include={"temperature", "top_p"}, exclude_none=True)
        given = self.model_dump(include={"min_tokens", "seed", "presence_penalty", "frequency_penalty"})
        given |= {"max_tokens": self.length(), "exclude_input_in_output": True, "stream": True}
        if sampled and 0 not in sampled.values():  # Triton's greedy is no top_k and no top_p
            given = {"top_p": 1.0, **given, **sampled, "seed": secrets.randbits(63) if self.seed is None else self.seed}
        return given


class OpenAIFrontend:
    """Serves in a thread of its own, on a free port, from `start` to `stop` (or a `with` block). `url`: its address.

    `grpc_url`: the Triton behind it; `tokenizer_dir`: of its model, with the chat template; `model`: the Triton model,
    which is also the name that clients give; `deadline`: seconds for a whole answer.
    """

    def __init__(
        self, grpc_url: str, tokenizer_dir: Path | str, *, model: str = "tensorrt_llm_bls", deadline: float = 600.0
    ) -> None:
        self.url, self._deadline, self._triton = "", deadline, grpc_url
        self._folder, self._model = Path(tokenizer_dir), model
        if not (file := self._folder / "tokenizer.json").is_file():
            raise CourseError(f"There is no {file}: give the folder of the model's tokenizer.")
        tokenizer = Tokenizer.from_file(str(file))
        self._count = lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
        self._loop, self._end = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> OpenAIFrontend:
        """Raises CourseError when it has been started before."""
        if self._thread.ident is not None:
            raise CourseError("This front end has been started already: make a new one.")
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = "http://{}:{}".format(*self._socket.getsockname())
        self._thread.start()
        return self

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(10)

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        _LOG.addFilter(_is_ours)
        app = web.Application(middlewares=[_guard])
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        # A client that leaves cancels its handler, and with it the request in Triton.
        runner = web.AppRunner(app, access_log=None, logger=_LOG, shutdown_timeout=1, handler_cancellation=True)
        await runner.setup()
        await web.SockSite(runner, self._socket).start()
        await self._end.wait()
        await runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        found = [{"id": self._model, "object": "model", "created": 0, "owned_by": "triton"}]
        return web.json_response({"object": "list", "data": found})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = Request.model_validate_json(await asyncio.wait_for(request.read(), self._deadline))
            if asked.model not in (None, self._model):
                raise CourseError(f"There is no model {asked.model!r}; this front end serves {self._model!r}.")
            prompt = chat.render(self._folder, asked.chat())
            tensors = inputs(text_input=prompt, **asked.inputs())
        except web.HTTPRequestEntityTooLarge as error:
            return _refuse(str(error.text), error.status)
        except asyncio.TimeoutError:
            return _refuse(f"The request's body did not arrive within {self._deadline:g} s.", 408)
        except web.RequestPayloadError:
            return _refuse("The request's body is not encoded as its headers say.")
        except ValidationError as error:
            return _refuse(_sentence(error))
        except (CourseError, TypeError, OverflowError) as error:  # no tensor of its datatype can hold a value
            return _refuse(str(error))
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": self._model}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        texts: list[str] = []
        try:
            with InferenceServerClient(self._triton, channel_args=channel_args(self._triton)) as client:
                answer = astream(client, self._model, tensors, timeout=self._deadline)
                async with contextlib.aclosing(answer):
                    async for result in answer:
                        texts.append(result.as_numpy("text_output").flat[0].decode(errors="replace"))
                        if asked.stream and not response.prepared:  # earlier, an error has a status of its own
                            await response.prepare(request)
                            await response.write(_chunk(head, {"role": "assistant", "content": ""}))
                        if asked.stream and texts[-1]:
                            await response.write(_chunk(head, {"content": texts[-1]}))
        except InferenceServerException as error:
            said = explained(error, self._triton, self._deadline)
            if not response.prepared:
                return _refuse(*said)
            await response.write(b"event: error\n" + _event(_error(*said)) + _DONE)
            return response
        before, after = self._count(prompt), count_tokens(self._count, texts, asked.length())
        usage = {"prompt_tokens": before, "completion_tokens": after, "total_tokens": before + after}
        # Triton does not say why an answer ended; as long as was asked for means that the length ended it.
        reason = "length" if after >= asked.length() else "stop"
        if not asked.stream:
            choice = {"index": 0, "message": {"role": "assistant", "content": "".join(texts)}, "finish_reason": reason}
            return web.json_response({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        await response.write(_chunk(head, {}, reason))
        if asked.stream_options.include_usage:
            await response.write(_event({**head, "object": _CHUNK, "choices": [], "usage": usage}))
        await response.write(_DONE)
        return response


def count_tokens(count: Any, texts: list[str], most: int) -> int:
    """Tokens of an answer that came in these texts: see the top of this file."""
    return min(most, max(sum(map(bool, texts)), count("".join(texts))))


@web.middleware
async def _guard(request: web.Request, handler: Any) -> web.StreamResponse:
    """Refuse what a page of the web made a browser send. There the page chooses all but these headers, and a name that
    it owns may lead here (DNS rebinding). Programs send no Origin."""
    for host in request.headers.getall("Host", ()):
        if not _OURS.fullmatch(host):
            said = f"This front end answers at 127.0.0.1 and localhost, not for {host!r}: use its own address."
            return _refuse(said, 403)
    if "Origin" in request.headers or request.headers.get("Sec-Fetch-Site", "none") != "none":  # an <img> has no Origin
        return _refuse("This front end does not answer to pages: ask it from a program.", 403)
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        said = "This front end serves GET /v1/models and POST /v1/chat/completions, not"
        return _refuse(f"{said} {request.method} {request.path}.", error.status)


def _is_ours(record: logging.LogRecord) -> bool:
    """Not what a client did: bytes that are no HTTP, or badly encoded (they got their 400), and a cut connection."""
    error = record.exc_info and record.exc_info[1]
    return not isinstance(error, (http_exceptions.HttpProcessingError, web.RequestPayloadError, ConnectionError))


def _sentence(error: ValidationError) -> str:
    """What is wrong with the request's object, in one sentence."""
    found = error.errors(include_url=False)[0]
    where = ".".join(map(str, found["loc"]))
    if found["type"] == "extra_forbidden":
        return f"This front end cannot do what {where!r} asks for: leave it out."
    return f"{where or 'The body'}: {found['msg']}, not {str(found['input'])[:60]!r}."


def _chunk(head: dict[str, Any], delta: dict[str, str], reason: str | None = None) -> bytes:
    return _event({**head, "object": _CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def _error(message: str, status: int) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "code": status}}


def _refuse(message: str, status: int = 400) -> web.Response:
    answer = web.json_response(_error(message, status), status=status)
    answer.force_close()  # of some requests the rest cannot be read
    return answer
