"""trtllm-serve of the stand-in, OpenAI's paths before its LLM: trtllm-serve [serve] MODEL --host HOST --port PORT"""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from aiohttp import web
from tensorrt_llm.llmapi import LLM, SamplingParams

# Fields of SamplingParams that a request may say. Without a word it samples, as OpenAI does.
SAMPLING = set(SamplingParams.__dataclass_fields__) - {"end_id", "bad", "logprobs", "exclude_input_from_output"}
DEFAULTS = {"max_tokens": None, "temperature": 1.0, "top_p": 1.0}
OTHERS = {"model", "prompt", "messages", "stream", "echo", "user"}


def application(llm: LLM, name: str) -> web.Application:
    async def state(_: web.Request) -> web.Response:  # nothing listens before the LLM is ready
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model", "created": 0}]})

    async def answer(request: web.Request) -> web.StreamResponse:
        chat, asked = "chat" in request.path, None
        try:
            body = json.loads(await request.read())
            asked = _ask(llm, body, chat)
            head = {"id": uuid.uuid4().hex, "created": int(time.time()), "model": name}
            head["object"] = "chat.completion" if chat else "text_completion"
            if body.get("stream"):
                return await _stream(request, head, asked, chat)
            choices = [_choice(one, one.text, chat and "message") for one in (await asked).outputs]
            before, after = len(asked.prompt_token_ids), sum(len(one.token_ids) for one in asked.outputs)
            usage = {"prompt_tokens": before, "completion_tokens": after, "total_tokens": before + after}
            return web.json_response({**head, "choices": choices, "usage": usage})
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            said = {"object": "error", "message": str(error), "type": "BadRequestError", "param": None, "code": 400}
            return web.json_response(said, status=400)
        finally:
            if asked:
                asked.abort()  # the client may have left

    app = web.Application()
    app.add_routes([web.get(path, state) for path in ("/health", "/v1/models")])
    app.add_routes([web.post(path, answer) for path in ("/v1/completions", "/v1/chat/completions")])
    return app


def _ask(llm: LLM, body: dict[str, Any], chat: bool) -> Any:
    """The LLM's request for one prompt. Raises what is wrong with the body."""
    if chat:  # its template brings the special tokens
        body = {"add_special_tokens": False, "max_tokens": body.pop("max_completion_tokens", None), **body}
    if unknown := sorted(set(body) - SAMPLING - OTHERS):
        raise ValueError(f"{unknown[0]!r} is no field of a request, or none that the stand-in serves.")
    said = DEFAULTS | {name: value for name, value in body.items() if name in SAMPLING and value is not None}
    if (streaming := bool(body.get("stream"))) and said.get("n", 1) > 1 or body.get("echo"):
        raise ValueError("The stand-in has no echo, and streams only one answer (n).")
    template = {"tokenize": False, "add_generation_prompt": True}
    prompt = llm.tokenizer.apply_chat_template(body["messages"], **template) if chat else body["prompt"]
    return llm.generate_async(prompt, SamplingParams(**said), streaming=streaming)


async def _stream(request: web.Request, head: dict, asked: Any, chat: bool) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    head["object"] += ".chunk" * chat
    async for step in asked:
        event = {**head, "choices": [_choice(one, one.text_diff, chat and "delta") for one in step.outputs]}
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


def _choice(one: Any, text: str, key: str | bool) -> dict[str, Any]:
    said = {key: {"role": "assistant", "content": text}} if key else {"text": text}
    return {"index": one.index, **said, "finish_reason": one.finish_reason, "stop_reason": one.stop_reason}


def main() -> None:
    parser = argparse.ArgumentParser("trtllm-serve", allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    for name in ("max_batch_size", "max_beam_width", "max_seq_len"):
        parser.add_argument(f"--{name}", type=int)
    given = vars(parser.parse_args(sys.argv[1 + (sys.argv[1:2] == ["serve"]) :]))
    address, folder = {name: given.pop(name) for name in ("host", "port")}, Path(given["model"])
    with LLM(**given) as llm:
        name = folder.name if folder.is_dir() else given["model"]
        web.run_app(application(llm, name), **address, handler_cancellation=True)
