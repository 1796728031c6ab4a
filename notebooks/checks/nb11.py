"""Exercises of notebook 11: the times of one request, what a late sender hides, the highest good rate."""

from __future__ import annotations

import functools
import math
import queue
import time
from collections.abc import Callable, Sequence

import numpy as np
from tritonclient.grpc import InferenceServerClient

from servinglab.checks import SLEEPER, SLEEPER_CONFIG, Verdict, exercise, repository_of, right, wrong
from servinglab.client import inputs
from servinglab.server import TritonServer

# --- 11.1: the times of one request -----------------------------------------------------------------------------------

_SENT, _ARRIVALS, _TOKENS = 2.0, (2.2, 2.5, 2.6, 2.9), (0, 1, 3, 2)
_TTFT = {
    0.5: None,
    0.2: "the first response is empty, so there is nothing to read yet: wait for the first one that holds a token",
    2.5: "that is a time of the clock: subtract the time it was sent",
    0.3: "that is the wait between the first two responses; the request was sent before both",
    500: "seconds are asked for, and that is in milliseconds",
}
_ITL = {
    0.08: None,
    0.4 / 2: "you count responses: the second one held 3 tokens, so 5 tokens came after the first",
    0.7 / 3: "you count responses, the empty one too: 5 tokens came after the first",
    0.7 / 5: "you begin at the empty response: the first token came with the one after it",
    0.4 / 6: "six tokens have five waits between them",
    0.9 / 5: "the wait for the first token is no wait between tokens: begin at the first token",
    0.9 / 6: "the whole time over all tokens mixes the first wait into the others",
    80: "seconds are asked for, and that is in milliseconds",
}
_RATE = {
    6 / 0.9: None,
    3 / 0.9: "you count responses with text: count tokens",
    4 / 0.9: "you count responses: count tokens",
    6 / 0.4: "you leave out the wait for the first token, and the user does wait: take the whole time",
    5 / 0.4: "that is 1 / ITL, which some tools call throughput per user; here the first wait counts as well",
    6 / 2.9: "that divides by a time of the clock: subtract the time it was sent",
    0.9 / 6: "that is seconds a token: turn it round",
}
_NAMES, _SEVERAL = ("TTFT", "ITL", "tokens/s"), ((0.25, 0.5, 0.75), (2, 2, 0))
_SECOND = (
    {0.25: None},
    {
        0.25 / 3: None,
        0.25 / 2: "you divide by the tokens after the first response; ITL divides by all tokens but one, here 3",
        0.5 / 3: "the last response is empty: the last token came at 0.5 s",
        0.5 / 2: "the last response is empty, and ITL divides by all tokens but one, here 3",
    },
    {8.0: None, 4 / 0.75: "the last response is empty: the last token came at 0.5 s"},
)


@exercise("11.1", expects="a function measure(sent, arrivals, tokens) that returns three numbers")
def request_times(measure: Callable[[float, Sequence[float], Sequence[int]], tuple[float, float, float]]) -> Verdict:
    answer = [float(value) for value in measure(_SENT, list(_ARRIVALS), list(_TOKENS))]
    if len(answer) != 3:
        return wrong(f"{len(answer)} numbers came back: return TTFT, ITL and tokens per second")
    fallback = "six tokens came, the first at 2.5 s and the last at 2.9 s; sent at 2.0 s"
    if said := _first_mistake(answer, (_TTFT, _ITL, _RATE), fallback):
        return wrong(said)
    answer = [float(value) for value in measure(0.0, *map(list, _SEVERAL))]
    fallback = "2 tokens came at 0.25 s and 2 more at 0.5 s"
    if said := _first_mistake(answer, _SECOND, fallback):
        arrivals, tokens = map(list, _SEVERAL)
        return wrong(f"right for one request, but for sent 0, arrivals {arrivals}, tokens {tokens}: {said}")
    return right("0.5 s, then 80 ms a token, although the responses came up to 300 ms apart")


def _first_mistake(answer: Sequence[float], known: Sequence[dict[float, str | None]], fallback: str) -> str | None:
    for name, value, values in zip(_NAMES, answer, known, strict=True):
        near = [said for number, said in values.items() if math.isclose(value, number, rel_tol=1e-3)]
        if not near or near[0]:
            return f"{name} {value:.4g}: {near[0] if near else fallback}"
    return None


# --- 11.2: one connection that is late --------------------------------------------------------------------------------

_DUE = np.array([0.0, 1.0, 2.0, 3.0, 9.0])
_BUSY = np.array([0.5, 4.0, 0.5, 0.5, 0.5])


def _felt(due: np.ndarray, busy: np.ndarray) -> np.ndarray:
    """Each request waits until the one before it is done: done = max(due, done before) + busy."""
    done, felt = -math.inf, []
    for moment, seconds in zip(due, busy, strict=True):
        done = max(moment, done) + seconds
        felt.append(done - moment)
    return np.array(felt)


def _late_mistakes() -> dict[str, np.ndarray]:
    felt, before = _felt(_DUE, _BUSY), np.concatenate([[0.0], _BUSY[:-1]])
    gaps = np.diff(_DUE, prepend=-math.inf)
    return {
        "that counts from the moment of sending: the wait to be sent is hidden, which is coordinated omission": _BUSY,
        "that is the wait to be sent alone: the answer takes its time as well": felt - _BUSY,
        "you look back one request only, but a queue hands its delay on: use when the one before was done": (
            np.maximum(0, before - gaps) + _BUSY
        ),
        "you add up all busy times: the connection was idle before the last request": np.cumsum(_BUSY) - _DUE,
        "those are times of the clock: subtract when each was due": felt + _DUE,
        "one value is asked for each request, not their mean": np.array([felt.mean()]),
    }


@exercise("11.2", expects="a function felt(due, busy) that returns one number for each request")
def late_sender(felt: Callable[[np.ndarray, np.ndarray], Sequence[float]]) -> Verdict:
    answer = np.atleast_1d(np.asarray(felt(_DUE.copy(), _BUSY.copy()), dtype=float))
    if not _same(answer, _felt(_DUE, _BUSY)):
        known = [said for said, values in _late_mistakes().items() if _same(answer, values)]
        fallback = "due at 0, 1, 2, 3, 9 and busy for 0.5, 4, 0.5, 0.5, 0.5: the third is sent at 5 and done at 5.5"
        return wrong(known[0] if known else fallback)
    rng = np.random.default_rng(11)
    due, busy = np.cumsum(rng.exponential(size=30)), rng.exponential(size=30)
    if not _same(np.asarray(felt(due, busy), dtype=float), _felt(due, busy)):
        return wrong("right for this example, wrong for thirty random requests: does a queue pass on and end?")
    return right("one stall of 4 s, and three of five users felt it; the sender's own clock shows one")


def _same(answer: np.ndarray, values: np.ndarray) -> bool:
    return answer.shape == values.shape and np.allclose(answer, values)


# --- 11.3: the highest good rate of a model that takes 10 ms a request, one after another ----------------------------

BUSY, WITHIN, LOW, HIGH, MOST_TESTS, GAP, ENOUGH = 0.01, 0.05, 20.0, 160.0, 8, 1.2, 0.95


@functools.cache
def _desk() -> TritonServer:
    """A Triton with the model `desk`; it ends with this process."""
    return TritonServer(repository_of("desk", SLEEPER % BUSY, SLEEPER_CONFIG % ("desk", 1))).start()


def _share(rate: float) -> float:
    """The share of the requests of one second that an open loop at `rate` got back within the limit."""
    gaps = np.random.default_rng(11).exponential(size=max(10, round(rate)))
    due, done, tensors = np.cumsum(gaps) / gaps.mean() / rate, queue.SimpleQueue(), inputs(text="fox")
    with InferenceServerClient(_desk().grpc_url) as client:
        client.infer("desk", tensors)
        began = time.perf_counter()
        for moment in due:
            time.sleep(max(0.0, began + moment - time.perf_counter()))
            client.async_infer("desk", tensors, functools.partial(_note, done, began + moment))
        seconds = [done.get(timeout=60) for _ in due]
    return float(np.mean(np.array(seconds) <= WITHIN))


def _note(done: queue.SimpleQueue, due: float, result: object, error: object) -> None:
    done.put(math.inf if error else time.perf_counter() - due)


class _TooMany(Exception):
    pass


@exercise("11.3", expects="a function highest(share, low, high) that returns a rate")
def good_rate(highest: Callable[[Callable[[float], float], float, float], float]) -> Verdict:
    known = {LOW: 1.0, HIGH: 0.0}

    def share(rate: float) -> float:
        if len(known) == 2 + MOST_TESTS:
            raise _TooMany
        known[rate] = _share(rate)
        return known[rate]

    try:
        rate = float(highest(share, LOW, HIGH))
    except _TooMany:
        return wrong(f"more than {MOST_TESTS} load tests: one in the middle of the gap rules out half of it")
    if len(known) == 2:
        return wrong("not one load test was made: call share(rate)")
    if rate not in known:
        return wrong(f"{rate:.1f} a second was not tested: return the highest rate that passed")
    if known[rate] < ENOUGH:
        return wrong(f"{rate:.1f} a second: only {known[rate]:.0%} kept the limit; return the rate that passed")
    failed = min(other for other in known if known[other] < ENOUGH)
    if failed > GAP * rate:
        return wrong(f"{rate:.1f} a second passed and {failed:.1f} failed; the knee may be anywhere between: go on")
    return right(f"{rate:.1f} a second passed, {failed:.1f} failed, after {len(known) - 2} load tests")
