"""Two ways to load a server: a closed loop of so many users, and an open loop of arrivals that wait for nobody.

    ask = triton_ask(client, count_tokens, max_tokens=24)
    run = closed_loop(ask, prompts, concurrency=4)
    run = open_loop(ask, prompts, rate=3.0, seed=0)

`ask(prompt)` sends one request and yields the text of each response as it comes, with the seconds since it was sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from servinglab.errors import CourseError
from servinglab.loadtest.measures import Run, Trace

Ask = Callable[[str], Iterable[tuple[float, str]]]
Count = Callable[[str], int]


def triton_ask(client: Any, *, max_tokens: int, deadline: float = 120.0, **inputs: Any) -> Ask:
    """Streams from a TritonClient; the end token is held back, so that each answer has `max_tokens` tokens."""

    def ask(prompt: str) -> Iterator[tuple[float, str]]:
        with client.stream(
            prompt, max_tokens=max_tokens, min_tokens=max_tokens, exclude_input_in_output=True, deadline=deadline,
            **inputs,
        ) as stream:  # fmt: skip
            for chunk in stream:
                yield chunk.seconds, chunk.text

    return ask


def closed_loop(ask: Ask, prompts: Sequence[str], *, concurrency: int, count: Count) -> Run:
    """`concurrency` users; each sends the next prompt when its last one is answered. `count`: tokens of a text.

    The time a request is due is the time it is sent, so a slow server is asked less often: its queue stays short.
    """
    if concurrency < 1 or not prompts:
        raise CourseError(f"A closed loop needs prompts and at least one user, not {concurrency} and {len(prompts)}.")
    began = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as users:
        traces = list(users.map(lambda prompt: _request(ask, prompt, began, None, count), prompts))
    return _run(traces, concurrency=concurrency)


def open_loop(ask: Ask, prompts: Sequence[str], *, rate: float, seed: int, count: Count) -> Run:
    """Each prompt is sent at its time, however many are on their way: Poisson arrivals, `rate` a second.

    Latencies count from the time a request was due. The run lasts len(prompts) / rate seconds, or to the last response,
    whichever is later: n requests have n - 1 gaps, and without one more they would seem answered faster than asked for.
    """
    if not rate > 0 or not prompts:
        raise CourseError(f"An open loop needs prompts and a rate above 0, not {len(prompts)} and {rate}.")
    due = arrival_times(len(prompts), rate, seed)
    traces: list[Trace | None] = [None] * len(prompts)

    def one(number: int) -> None:
        traces[number] = _request(ask, prompts[number], began, due[number], count)

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(len(prompts))]
    began = time.perf_counter()
    for thread, moment in zip(threads, due, strict=True):
        time.sleep(max(0.0, moment - (time.perf_counter() - began)))
        thread.start()
    for thread in threads:
        thread.join()
    return _run(traces, len(prompts) / rate, rate=rate)


def arrival_times(count: int, rate: float, seed: int) -> np.ndarray:
    """Seconds at which `count` requests are due: the first one at 0, the last one at (count - 1) / rate.

    A Poisson process given these two arrivals: exponential gaps, scaled so that their mean is 1 / rate. Without that,
    chance puts the rate of 20 arrivals 20 % off and more, and a load "above the capacity" may lie below it.
    """
    gaps = np.random.default_rng(seed).exponential(size=count - 1)
    return np.concatenate([[0.0], np.cumsum(gaps) / max(gaps.sum(), 1e-300) * (count - 1) / rate])


def _request(ask: Ask, prompt: str, began: float, due: float | None, count: Count) -> Trace:
    sent = time.perf_counter() - began
    due = sent if due is None else float(due)
    arrivals, texts = [], []
    tokens, error = None, ""
    try:
        for seconds, text in ask(prompt):
            if text:  # half a character, or the end alone: nothing to read yet
                arrivals.append(sent + seconds)
                texts.append(text)
        tokens = count("".join(texts)) if texts else None
        error = "" if texts else "The answer held no text."
    except Exception as problem:  # whatever it is, the other requests go on and are counted
        error = str(problem) or type(problem).__name__
    return Trace(due, sent, tuple(arrivals), tokens, error, ended=time.perf_counter() - began)


def _run(traces: Sequence[Trace], at_least: float = 0.0, **load: float) -> Run:
    first = min(trace.due for trace in traces)
    ends = [trace.arrivals[-1] if trace.ok else trace.ended for trace in traces]  # time that was lost counts as well
    return Run(tuple(traces), max(first + at_least, *ends) - first, load)
