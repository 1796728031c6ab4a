"""A small front end with OpenAI's protocol before a Triton: enough for AIPerf and other tools that speak nothing else.

    with OpenAIFrontend(server.grpc_url, tokenizer_dir) as frontend:
        ...  # POST {frontend.url}/v1/chat/completions

On 127.0.0.1 only; knows messages, max_tokens, max_completion_tokens, min_tokens, temperature, top_p, seed, the two
penalties and stream, and refuses what it cannot serve (several choices, stop, tools, images). Without a temperature it
is greedy. NVIDIA's container has a complete one (openai_frontend/main.py).
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from aiohttp import web
from tokenizers import Tokenizer

from servinglab import chat
from servinglab.client import BLS, ClientError, TritonClient
from servinglab.errors import CourseError
from servinglab.kserve import ServerGone

_PLAIN = ("min_tokens", "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty")  # as in Triton
_LENGTHS = ("max_completion_tokens", "max_tokens")
_REFUSED = ("stop", "logit_bias", "logprobs", "top_logprobs", "tools", "functions", "response_format", "audio",
            "modalities")  # fmt: skip
_WORDLESS = {"role": "assistant", "content": ""}


class OpenAIFrontend:
    """Serves in a thread of its own from `start` to `stop` (or a `with` block). `url`: "http://127.0.0.1:<port>".

    Args:
        grpc_url: the Triton behind it, "host:port".
        tokenizer_dir: folder of the model's tokenizer, with its chat template; tokens for `usage` are counted with it.
        model: the Triton model, which is also the name that clients give.
        port: 0 for a free one.
    """

    def __init__(self, grpc_url: str, tokenizer_dir: Path | str, *, model: str = BLS, port: int = 0) -> None:
        self.url = ""
        self._client = TritonClient(grpc_url)
        self._folder, self._model, self._port = Path(tokenizer_dir), model, port
        self._tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self) -> OpenAIFrontend:
        """Raises CourseError when the port is taken or is none."""
        self._thread.start()
        self._ready.wait()
        if self._problem:
            self._client.close()
            raise CourseError(f"No front end on port {self._port}: {self._problem}. Use port=0 for a free one.")
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
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        # A client that leaves cancels its handler, and with it the request in Triton.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1, handler_cancellation=True)
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
            body = json.loads(await request.read())
            prompt, inputs = self._translate(body)
        except web.HTTPRequestEntityTooLarge as error:
            return _refuse(str(error.text), error.status)
        except (CourseError, ValueError, RecursionError) as error:  # ValueError: no JSON, or no UTF-8
            return _refuse(str(error))
        stream = self._client.astream(prompt, model=self._model, deadline=600, **inputs)
        try:
            first = await anext(stream, None)  # an error before the first token can still have a status of its own
        except ClientError as error:
            return _failed(error)
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": self._model}
        answer = _Answer(request, head, self._count, self._count(prompt), inputs["max_tokens"])
        async with stream:
            if not body.get("stream"):
                return await answer.whole(first, stream)
            return await answer.streamed(first, stream, bool((body.get("stream_options") or {}).get("include_usage")))

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _translate(self, body: Any) -> tuple[str, dict[str, Any]]:
        """OpenAI's object as prompt and inputs of the BLS model. Raises CourseError with what is wrong."""
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
            raise CourseError("'messages' must be a list of objects with 'role' and 'content'.")
        if body.get("model", self._model) != self._model:
            raise CourseError(f"There is no model {body['model']!r}; this front end serves {self._model!r}.")
        if (body.get("n") or 1) != 1 or any(body.get(name) for name in _REFUSED):
            raise CourseError(f"This front end gives one plain text; leave out n > 1 and {', '.join(_REFUSED)}.")
        if body.get("stream") not in (None, True, False) or not isinstance(body.get("stream_options") or {}, dict):
            raise CourseError("'stream' must be true or false, and 'stream_options' an object.")
        prompt = chat.render(self._folder, [_message(message) for message in body["messages"]])
        asked = next((body[name] for name in _LENGTHS if body.get(name) is not None), 64)
        if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
            raise CourseError(f"{' and '.join(_LENGTHS)} are whole numbers of 1 or more, not {asked!r}.")
        inputs = {name: body[name] for name in _PLAIN if body.get(name) is not None}
        if inputs.get("temperature", 0) == 0:  # OpenAI's greedy; Triton's is no top_k and no top_p
            inputs = {name: value for name, value in inputs.items() if name not in ("temperature", "top_p")}
        elif "top_p" not in inputs:
            inputs["top_p"] = 1.0
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
            return _failed(error)
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
            await response.write(_event({"error": {"message": str(error)}}))
        else:
            await self._send(response, [_choice({}, self._reason())])
            if usage:
                await self._send(response, [], usage=self._usage())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _send(self, response: web.StreamResponse, choices: list[dict[str, Any]], **more: Any) -> None:
        await response.write(_event({**self._head, "object": "chat.completion.chunk", "choices": choices, **more}))

    def _usage(self) -> dict[str, int]:
        answer = self._count("".join(self._texts))
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": answer,
                "total_tokens": self._prompt_tokens + answer}  # fmt: skip

    def _reason(self) -> str:
        """Triton does not say why an answer ended; as long as was asked for means that the length ended it."""
        return "length" if self._count("".join(self._texts)) >= self._asked else "stop"


def _message(message: Any) -> dict[str, str]:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list) and all(
        isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in content
    ):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str) or not isinstance(message.get("role"), str):
        raise CourseError("Each message needs a 'role' and a 'content' of text.")
    return {"role": message["role"], "content": content}


async def _chain(first: Any, stream: Any):
    if first is not None:
        yield first
    async for chunk in stream:
        yield chunk


def _choice(delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": reason}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def _failed(error: ClientError) -> web.Response:
    return _refuse(str(error), 503 if isinstance(error, ServerGone) else 400)


def _refuse(message: str, status: int = 400) -> web.Response:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return web.json_response({"error": {"message": message, "type": kind}}, status=status)

