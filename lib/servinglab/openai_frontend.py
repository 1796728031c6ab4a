"""A small front end with OpenAI's protocol before a Triton, for AIPerf and other tools that speak nothing else.

    with OpenAIFrontend(server.grpc_url, tokenizer_dir) as frontend:
        ...  # openai.OpenAI(base_url=f"{frontend.url}/v1", api_key="any")

On 127.0.0.1 only, and for programs: what a browser sends for a page gets 403. Keys that `openai_objects` has not get
400, a deadline that passes 504, a model or server that is gone 503, a model's fault 500; in a stream that has begun, an
event of its own (`event: error`, without which AIPerf takes it for an answer), then [DONE]. NVIDIA's container has a
complete front end (openai_frontend/main.py).
"""

import asyncio
import contextlib
import json
import logging
import re
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from aiohttp import http_exceptions, web
from pydantic import ValidationError
from tokenizers import Tokenizer
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from servinglab import chat
from servinglab.client import astream, channel_args, explained, inputs
from servinglab.errors import CourseError
from servinglab.openai_objects import COUNT, MOST_ANSWERS, Answer, Chat, Completion

MOST_BYTES = 2**26  # of a body: a few pictures
_DONE = b"data: [DONE]\n\n"
_PATHS = {"/v1/chat/completions": Chat, "/v1/completions": Completion}
_LOG = logging.getLogger(__name__)
_OURS = re.compile(r"(?i)(127\.0\.0\.1|localhost|\[::1\])(:\d+)?")  # another port: one that is forwarded to ours


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
        try:
            self._tokenizer = Tokenizer.from_file(str(file := self._folder / "tokenizer.json"))
        except Exception as error:  # the library has no class for it
            raise CourseError(f"{file} cannot be read ({error}): give the folder of the model's tokenizer.") from None
        self._loop, self._end = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> "OpenAIFrontend":
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
        app = web.Application(middlewares=[_guard], client_max_size=MOST_BYTES)
        app.add_routes([web.get("/v1/models", self._models), web.get("/v1/models/{name:.+}", self._models)])
        app.add_routes(web.post(path, self._answer) for path in _PATHS)
        # A client that leaves cancels its handler, and with it the request in Triton. A small packed body is gigabytes.
        options = {"handler_cancellation": True, "auto_decompress": False, "shutdown_timeout": 1}
        runner = web.AppRunner(app, access_log=None, logger=_LOG, **options)
        await runner.setup()
        await web.SockSite(runner, self._socket).start()
        await self._end.wait()
        await runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        found = {"id": self._model, "object": "model", "created": 0, "owned_by": "triton"}
        if (name := request.match_info.get("name")) is None:
            return web.json_response({"object": "list", "data": [found]})
        return web.json_response(found) if name == self._model else _refuse(self._no_model(name), 404)

    def _no_model(self, name: str) -> str:
        return f"There is no model {name!r}; this front end serves {self._model!r}."

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _prompts(self, asked: Chat | Completion) -> list[str]:
        """Raises CourseError for what no model can be sent."""
        if asked.model not in (None, self._model):
            raise CourseError(self._no_model(asked.model))
        if asked.stream_options and not asked.stream:
            raise CourseError("`stream_options` can only be used when `stream` is True.")
        if asked.echo and asked.tells:
            raise CourseError("echo: Triton tells no log probabilities of a prompt; leave out echo or logprobs.")
        if isinstance(asked, Chat):
            return [chat.render(self._folder, asked.chat())]
        if (count := len(asked.prompt) * asked.n) > MOST_ANSWERS:
            raise CourseError(f"prompt and n ask for {count} answers, and {MOST_ANSWERS} is the most.")
        return [each if isinstance(each, str) else self._text(each) for each in asked.prompt]

    def _text(self, ids: list[int], name: str = "prompt", bos: bool = True) -> str:
        """The text that the model's `preprocessing` makes these ids of: it takes no ids."""
        with contextlib.suppress(OverflowError):
            for skip in (False, True):  # it adds a beginning-of-sequence token itself, where the model has one
                if self._tokenizer.encode(text := self._tokenizer.decode(ids, skip), add_special_tokens=bos).ids == ids:
                    return text
        raise CourseError(f"{name}: no text has just these token ids, and the model takes text only.")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await asyncio.wait_for(request.read(), self._deadline)
            asked = _PATHS[request.path].model_validate_json(body)
            prompts = self._prompts(asked)
            words = [self._text([int(token)], "logit_bias", False) for token in asked.logit_bias]
            tensors = [inputs(text_input=prompt, **given) for prompt in prompts for given in asked.inputs(words)]
        except web.HTTPRequestEntityTooLarge as error:
            return _refuse(str(error.text), error.status)
        except asyncio.TimeoutError:
            return _refuse(f"The request's body did not arrive within {self._deadline:g} s.", 408)
        except web.RequestPayloadError:
            return _refuse("The request's body is not encoded as its headers say.")
        except ValidationError as error:
            return _refuse(_sentence(error))
        except CourseError as error:
            return _refuse(str(error))
        name, *kinds = asked.KIND
        head = {"id": f"{name}-{uuid.uuid4().hex}", "object": kinds[asked.stream], "created": int(time.time())}
        head["model"] = self._model
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        told = 0  # tokens of a prompt with pictures
        answers = [Answer(asked, prompt) for prompt in prompts for _ in range(asked.n)]

        def choice(index: int, text: str | None, tokens: Any = (), reason: Any = None, first: bool = False) -> dict:
            return {"index": index, **asked.choice(text, tokens, first), "finish_reason": reason}

        async def send(**what: Any) -> None:
            await response.prepare(request)  # until the first, an error has a status of its own
            await response.write(_event(head | what))

        try:
            with InferenceServerClient(self._triton, channel_args=channel_args(self._triton)) as client:
                if any(tensor.name() == COUNT for each in tensors for tensor in each):  # templates before 1.1 lack it
                    known = {tensor.name for tensor in client.get_model_metadata(self._model).inputs}
                    tensors = [[t for t in each if t.name() in known or t.name() != COUNT] for each in tensors]
                results = astream(client, self._model, dict(enumerate(tensors)), timeout=self._deadline)
                async with contextlib.aclosing(results):
                    async for result in results:
                        log_probs = result.as_numpy("output_log_probs")
                        text = result.as_numpy("text_output").flat[0].decode(errors="replace")
                        if (count := result.as_numpy("num_input_tokens")) is not None:
                            told = int(count.flat[0])
                        answers[result.key].take(text, [] if log_probs is None else log_probs.ravel().tolist())
                        if asked.stream and not response.prepared and isinstance(asked, Chat):
                            await send(choices=[choice(number, "", first=True) for number in range(len(answers))])
                        if asked.stream and any(more := answers[result.key].more()):
                            await send(choices=[choice(result.key, *more)])
        except InferenceServerException as error:
            said = explained(error, self._triton, self._deadline)
            if not response.prepared:
                return _refuse(*said)
            await response.write(b"event: error\n" + _event(_error(*said)) + _DONE)
            return response
        ends = [answer.end(self._count) for answer in answers]
        before, after = told or sum(map(self._count, prompts)), sum(tokens for tokens, _ in ends)
        usage = {"prompt_tokens": before, "completion_tokens": after, "total_tokens": before + after}
        rest = [(number, *answer.more(ended=True)) for number, answer in enumerate(answers)]
        if not asked.stream:
            choices = [choice(*more, reason, first=True) for more, (_, reason) in zip(rest, ends, strict=True)]
            return web.json_response({**head, "choices": choices, "usage": usage})
        for (number, *more), (_, reason) in zip(rest, ends, strict=True):
            if any(more):
                await send(choices=[choice(number, *more)])
            await send(choices=[choice(number, None, reason=reason)])
        if asked.stream_options and asked.stream_options.include_usage:
            await send(choices=[], usage=usage)
        await response.write(_DONE)
        return response


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
    if "Content-Encoding" in request.headers:
        return _refuse("This front end unpacks no body: send it without Content-Encoding.", 415)
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        said = f"This front end serves GET /v1/models and POST {' or '.join(_PATHS)}, not"
        return _refuse(f"{said} {request.method} {request.path}.", error.status)


def _is_ours(record: logging.LogRecord) -> bool:
    """Not what a client did: bytes that are no HTTP, or badly encoded (they got their 400), and a cut connection."""
    error = record.exc_info and record.exc_info[1]
    return not isinstance(error, (http_exceptions.HttpProcessingError, web.RequestPayloadError, ConnectionError))


def _sentence(error: ValidationError) -> str:
    """What is wrong with the request's object, in one sentence."""
    found = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))  # of a choice, what came furthest
    where = ".".join(map(str, found["loc"]))
    if found["type"] == "extra_forbidden":
        return f"This front end cannot do what {where!r} asks for: leave it out."
    said = "" if found["type"] in ("missing", "json_invalid") else f", not {str(found['input'])[:60]!r}"
    return f"{where or 'The body'}: {found['msg']}{said}."


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def _error(message: str, status: int) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "code": status}}


def _refuse(message: str, status: int = 400) -> web.Response:
    answer = web.json_response(_error(message, status), status=status)
    answer.force_close()  # of some requests the rest cannot be read
    return answer
