"""The loads of notebook 04: bursts to a model of Triton (`measured`), and to executors (`run_all`, `rate`).
What Triton says of them: `settled`, `clocks`, `memory`, `numbers`.
"""

import contextlib
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import numpy as np
import psutil
from tokenizers import Tokenizer
from tritonclient.grpc import InferenceServerClient, InferResult

from reference_backend.executor import Executor, Request, SamplingParams
from servinglab.server import TritonServer

# --- Triton -----------------------------------------------------------------------------------------------------------


def settled(client: InferenceServerClient, model: str) -> np.ndarray:
    """A model's inferences, executions and nanoseconds in the queue, once they stand still: they grow a moment after
    the response."""
    last, found = None, _counters(client, model)
    while not np.array_equal(found, last):
        time.sleep(0.03)
        last, found = found, _counters(client, model)
    return found


def _counters(client: InferenceServerClient, model: str) -> np.ndarray:
    stats = client.get_inference_statistics(model).model_stats[0]
    return np.array([stats.inference_count, stats.execution_count, stats.inference_stats.queue.ns])


def burst(call: Callable[[str, str], Any], model: str, count: int) -> tuple[float, list[Any]]:
    """`call(model, text)` from many threads at the same moment: the seconds until all are back, and what they gave."""
    began: list[float] = []
    ready = threading.Barrier(count, lambda: began.append(time.perf_counter()), timeout=10)

    def one(number: int) -> Any:
        ready.wait()
        return call(model, f"fox {number} " * 8)

    with ThreadPoolExecutor(count) as pool:
        done = list(pool.map(one, range(count)))
    return time.perf_counter() - began[0], done


def measured(
    server: TritonServer, client: InferenceServerClient, call: Callable[[str, str], Any], model: str, count: int
) -> tuple[dict[str, float], list[tuple[float, int]]]:
    """A burst between two readings of the counters: what they say, and (seconds, requests in the queue) meanwhile."""
    call(model, "warm up")
    before = settled(client, model)
    with httpx.Client(timeout=60, trust_env=False) as web:
        web.get(server.metrics_url)  # its first call takes longer than a burst
        with meanwhile(_watch, web, server.metrics_url, model) as (points,):
            seconds, _ = burst(call, model, count)
            began = time.perf_counter() - seconds
    inferences, executions, ns = settled(client, model) - before
    row = {"executions": executions, "mean batch": inferences / executions, "queue ms": ns / inferences / 1e6}
    watched = [(at - began, waiting) for at, waiting in points.result() if at >= began]
    return {**row, "requests/s": count / seconds}, watched


def _watch(web: httpx.Client, url: str, model: str, until: threading.Event) -> list[tuple[float, int]]:
    """Readings of a clock, and how many requests wait."""
    pattern = re.compile(rf'nv_inference_pending_request_count{{model="{model}".*}} (\d+)')
    points, last = [], False
    while not last:
        last = until.is_set()  # so that one reading comes after it
        waiting = int(pattern.search(web.get(url).text)[1])
        points.append((time.perf_counter(), waiting))
        time.sleep(0.003)
    return points


@contextlib.contextmanager
def meanwhile(function: Callable, *arguments: Any, threads: int = 1) -> Iterator[list[Future]]:
    """Run a function in threads while the block lasts; its last argument is an Event, set at the end of the block."""
    over = threading.Event()
    with ThreadPoolExecutor(threads) as pool:
        try:
            yield [pool.submit(function, *arguments, over) for _ in range(threads)]
        finally:
            over.set()


def clocks(server: TritonServer) -> Counter:
    """Milliseconds that each model has spent by Triton's clocks, in its queue and in `execute`, from the metrics."""
    found: Counter = Counter()
    for line in httpx.get(server.metrics_url, trust_env=False).text.splitlines():
        if hit := re.match(r'nv_inference_(?:queue|compute_infer)_duration_us{.*?model="(\w+)".*} ([\d.]+)', line):
            found[hit[1]] += float(hit[2]) / 1e3
    return found


def memory(server: TritonServer, model: str) -> tuple[int, float]:
    """A model's processes, and the megabytes that no other process shares."""
    found = [p for p in psutil.Process(server.pid).children(recursive=True) if f"/{model}/" in " ".join(p.cmdline())]
    return len(found), sum(p.memory_full_info().uss for p in found) / 1e6


def numbers(result: InferResult) -> dict[str, int]:
    """The whole numbers of a response, by name."""
    arrays = {tensor.name: result.as_numpy(tensor.name) for tensor in result.get_response().outputs}
    return {name: int(array.flat[0]) for name, array in arrays.items() if array.dtype.kind == "i"}


# --- executors --------------------------------------------------------------------------------------------------------


class Ran(NamedTuple):
    """What a load brought: times and text of each request, and how far the executor's counters moved."""

    metrics: list[Any]
    texts: list[str]
    counts: dict[str, int]  # steps, prompt_tokens, preempted


def run_all(
    running: Executor, tokenizer: Tokenizer, prompts: Sequence[str], lengths: Sequence[int], end_id: int | None = None
) -> Ran:
    """All prompts at once. An answer has the length asked for, unless `end_id` ends it."""
    before = running.stats()
    outputs, metrics, texts = queue.SimpleQueue(), {}, {f"{time.time_ns()} {n}": [] for n, _ in enumerate(prompts)}
    try:
        more = {"sampling": SamplingParams(), "end_id": end_id, "on_output": outputs.put}
        asked = zip(texts, [np.array(each.ids) for each in tokenizer.encode_batch(prompts)], lengths, strict=True)
        for request in [Request(*each, **more) for each in asked]:
            running.submit(request)
        while len(metrics) < len(prompts):
            output = outputs.get(timeout=300)
            texts[output.request_id] += output.tokens
            if output.finish_reason:
                metrics[output.request_id] = output.metrics
    finally:
        for name in texts.keys() - metrics.keys():  # none, unless you stop the cell
            running.cancel(name)
    counts = {name: running.stats()[name] - before[name] for name in ("steps", "prompt_tokens", "preempted")}
    return Ran([metrics[name] for name in texts], [tokenizer.decode(ids) for ids in texts.values()], counts)


def rate(executors: Sequence[Executor], tokenizer: Tokenizer, prompts: Sequence[str], tokens: int) -> float:
    """Tokens per second of executors that share the prompts."""
    shares = [prompts[i :: len(executors)] for i in range(len(executors))]
    with ThreadPoolExecutor(len(executors)) as pool:
        list(pool.map(lambda each: run_all(each, tokenizer, prompts[:1], [2]), executors))  # warm up
        began = time.perf_counter()
        list(pool.map(lambda each, own: run_all(each, tokenizer, own, [tokens] * len(own)), executors, shares))
    return len(prompts) * tokens / (time.perf_counter() - began)
