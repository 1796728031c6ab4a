"""AIPerf and the course's own closed loop against the same server, through the same front end.

    python benchmarks/aiperf_run.py [--precision int4] [--concurrency 4] [--requests 40] [--install] [--json]

AIPerf must be in the cache: python benchmarks/aiperf.py (1.2 GB). Prompts have about as many tokens in both.
Half of the closed loop runs before AIPerf and half after it, so that other work on the machine meets both.

Keys of --json
    aiperf       what AIPerf said: name → {"avg", "p50", …}; times in ms
    closed_loop  the same averages of the loop in this file: one number each
    load_average of the machine just before, when this program had sent nothing: other work on it
    command      AIPerf's command line
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiperf
import httpx
import numpy as np

from servinglab import loadtest
from servinglab.errors import CourseError

WORDS = "river stone lamp window garden letter winter engine bridge apple music silver road captain paper cloud".split()


def openai_ask(url, *, model, max_tokens, deadline=120.0):
    """`ask(prompt)` yields seconds and text of each response of a server of OpenAI's protocol, at `url` without /v1."""
    # One client for all: to make one takes tens of milliseconds, which would count as the server's.
    client = httpx.Client(base_url=url, timeout=deadline, trust_env=False, limits=httpx.Limits(max_connections=None))

    def ask(prompt):
        messages = [{"role": "user", "content": prompt}]
        body = {"model": model, "messages": messages, "max_completion_tokens": max_tokens, "min_tokens": max_tokens}
        began, complete = time.perf_counter(), False
        with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as got:
            if got.is_error:
                raise CourseError(f"The server answered {got.status_code}: {got.read().decode(errors='replace')}")
            for line in got.iter_lines():
                complete = complete or line.strip() == "data: [DONE]"
                if line.startswith("data: {"):
                    event = json.loads(line[len("data: ") :])
                    if "error" in event:
                        raise CourseError(event["error"]["message"])
                    for choice in event["choices"]:
                        yield time.perf_counter() - began, choice["delta"].get("content") or ""
        if not complete:
            raise CourseError(f"{url} ended the stream before [DONE].")

    return ask


def closed_loop(ask, prompts, *, concurrency, count):
    """So many users; each sends the next prompt when its last one is answered. A failure ends the run."""
    began = time.perf_counter()

    def one(prompt):
        sent = time.perf_counter() - began
        answer = [(sent + seconds, text) for seconds, text in ask(prompt) if text]
        times, texts = zip(*answer, strict=True)
        return loadtest.Trace(sent, sent, times, count("".join(texts)))

    with ThreadPoolExecutor(concurrency) as users:
        traces = tuple(users.map(one, prompts))
    return loadtest.Run(traces, max(trace.arrivals[-1] for trace in traces) - min(trace.due for trace in traces))


def measure(options):
    from tokenizers import Tokenizer

    from servinglab import assets
    from servinglab.notebook import device
    from servinglab.openai_frontend import OpenAIFrontend
    from servinglab.repository import build_default
    from servinglab.server import TritonServer

    folder = assets.tokenizer("smollm2")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rng = np.random.default_rng(0)
    prompts = [" ".join(rng.choice(WORDS, options.input_tokens)) for _ in range(options.requests + 4)]
    load = {"requests": options.requests, "warmup": 4, "input_tokens": options.input_tokens}
    load |= {"output_tokens": options.output_tokens, "concurrency": options.concurrency}
    with tempfile.TemporaryDirectory() as scratch:
        setup = {"precision": options.precision, "max_batch_size": options.concurrency, "bls_decodes": True}
        repository = build_default(Path(scratch, "serving"), **setup)
        with TritonServer(repository) as server, OpenAIFrontend(server.grpc_url, folder) as frontend:
            ask = openai_ask(frontend.url, model="tensorrt_llm_bls", max_tokens=options.output_tokens)
            count = lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)  # noqa: E731
            busy = os.getloadavg()[0]
            closed_loop(ask, prompts[:4], concurrency=options.concurrency, count=count)
            half = 4 + options.requests // 2
            runs = [closed_loop(ask, prompts[4:half], concurrency=options.concurrency, count=count)]
            out = Path(scratch, "aiperf")
            said = aiperf.profile(loadtest.aiperf(folder, url=frontend.url, folder=out, **load), out)
            runs.append(closed_loop(ask, prompts[half:], concurrency=options.concurrency, count=count))
    ours = {f"{name}_ms": 1e3 * np.mean([*runs[0].values(name), *runs[1].values(name)]) for name in ("ttft", "itl")}
    for name in ("tokens_per_second", "requests_per_second"):
        ours[name] = np.mean([getattr(run, name) for run in runs])
    return {
        "date": datetime.date.today().isoformat(),
        "device": device(),
        "load_average": round(busy, 1),
        "precision": options.precision,
        "version": aiperf.VERSION,
        "command": " ".join(loadtest.aiperf("SmolLM2", url="http://127.0.0.1:9000", **load)),
        "aiperf": said,
        "closed_loop": {name: round(float(value), 3) for name, value in ours.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", default="int4", choices=["int4", "fp32"])
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--input-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=24)
    parser.add_argument("--install", action="store_true", help="AIPerf first, if it is not in the cache")
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    options = parser.parse_args()
    if options.install:
        aiperf.ensure(lambda text: print(text, file=sys.stderr))
    result = measure(options)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name in ("ttft_ms", "itl_ms", "tokens_per_second", "requests_per_second"):
        print(f"{name:20} AIPerf {result['aiperf'][name]['avg']:8.2f}   closed loop {result['closed_loop'][name]:8.2f}")


if __name__ == "__main__":
    main()
