"""Exercises of notebook 04: what statistics say, steps of two ways to batch, requests that fit into a KV cache."""

from __future__ import annotations

import math

from servinglab.checks import Verdict, exercise, is_stub, right, unattempted, wrong


def _judge(answer: dict, known: dict[str, dict[float, str | None]], advice: dict[str, str], praise: str) -> Verdict:
    """The first wrong part with its misconception, or right with ``praise``.

    known: part → value → what is wrong with it, None for the right one; advice: part → what to say to other values.
    """
    parts = {name: answer[name] for name in known}
    if all(map(is_stub, parts.values())):
        return unattempted()
    for name, part in parts.items():
        if is_stub(part):
            continue
        value = float(part)
        near = [said for wanted, said in known[name].items() if math.isclose(value, wanted, rel_tol=1e-3)]
        if not near or near[0]:
            return wrong(f"{name} {part!r}: {near[0] if near else advice[name]}")
    if missing := [name for name, part in parts.items() if is_stub(part)]:
        return wrong(f"the other one is right; {missing[0]} is still missing")
    return right(praise)


# --- 04.1: 100 → 164 inferences, 40 → 56 executions, 500 → 884 million ns ---------------------------------------------

_STATISTICS = {
    "mean_batch": {
        4: None,
        0.25: "you divided executions by inferences; a batch is inferences for each execution",
        164 / 56: "that is the mean since the server started; take the differences first",
        2.5: "that is the mean before the burst",
        64: "that is how many rows the burst had; divide by the executions they took",
        16: "that is the number of executions in the burst, not how many rows each one had",
    },
    "queue_ms": {
        6: None,
        24: "you divided by executions; each request of a batch has waited, so divide by inferences",
        384: "that is the time of all requests together; divide by their number",
        884 / 164: "counters start with the server; take the differences first",
        6_000_000: "that is in nanoseconds",
        0.006: "that is in seconds",
    },
}


@exercise("04.1", expects="a dict with mean_batch and queue_ms")
def statistics(answer: dict[str, float]) -> Verdict:
    advice = {
        "mean_batch": "64 inferences were made in 16 executions",
        "queue_ms": "the burst added 384 000 000 ns for 64 requests",
    }
    praise = "4 rows a batch, and 6 ms in the queue: differences of counters, divided by differences"
    return _judge(answer, _STATISTICS, advice, praise)


# --- 04.2: 2, 8, 3, 5 tokens in two slots -----------------------------------------------------------------------------

_STEPS = {
    "static": {
        13: None,
        10: "a static batch lets nobody in when the 2 tokens are done; its second batch begins after the 8",
        11: "nobody sorts them: the first batch is 2 and 8, as they came",
        18: "that is one after another; a step serves both slots",
        9: "that would need both slots full all the time; 2 waits for 8",
        8: "the first batch takes 8 steps, then comes a second one",
        7: "a batch lasts as long as its longest answer, not as its shortest",
    },
    "inflight": {
        10: None,
        9: "18 tokens in 9 steps need both slots full to the end; the last request runs alone for a while",
        8: "there are only two slots: the fourth request begins when the third has ended",
        13: "that is the static batch; in flight the third request takes the slot of the first after 2 steps",
        18: "that is one after another; a step serves both slots",
        11: "nobody waits for the 8: the slot of the first request is taken after 2 steps and again after 5",
    },
}


@exercise("04.2", expects="a dict with static and inflight, two numbers of steps")
def steps(answer: dict[str, float]) -> Verdict:
    advice = {
        "static": "two batches, each as long as its longest answer",
        "inflight": "draw two rows: 8 in one of them, and 2, 3, 5 one behind the other in the other",
    }
    praise = "max(2, 8) + max(3, 5) = 13 against 2 + 3 + 5 = 10, in the slot that the 8 leaves free"
    return _judge(answer, _STEPS, advice, praise)


# --- 04.3: 2048 tokens in blocks of 64, requests of 128 + 150 ---------------------------------------------------------

_REQUESTS = {
    "guaranteed_no_evict": {
        6: None,
        7: "blocks are not shared: 278 tokens take 5 whole blocks of 64, not 4.3",
        16: "it reserves for max_tokens as well, not only for the prompt",
        10: "it reserves for the prompt and all of max_tokens, 278 tokens; 10 requests would have 3 blocks each",
        32: "that is the number of blocks; a request needs several",
        64: "that is how many the batch may hold; the cache is smaller",
        5: "that is how many blocks a request needs; how often does it fit into 32?",
    },
    "max_utilization": {
        10: None,
        16: "2 blocks hold the prompt and are full with it: the one more token needs a third",
        6: "that is the careful policy; this one takes blocks for 129 tokens to begin with",
        15: "129 tokens take 3 whole blocks of 64, not 2.02",
        32: "one block holds 64 tokens, and the prompt has 128",
        64: "that is how many the batch may hold; the cache is smaller",
        7: "it does not look at max_tokens: 129 tokens, in whole blocks",
        3: "that is how many blocks a request takes to begin with; how often do they fit into 32?",
    },
}


@exercise("04.3", expects="a dict with guaranteed_no_evict and max_utilization, two numbers of requests")
def requests(answer: dict[str, float]) -> Verdict:
    advice = {
        "guaranteed_no_evict": "there are 2048 / 64 = 32 blocks; round the 278 tokens of a request up to whole blocks",
        "max_utilization": "there are 32 blocks; round 129 tokens up to whole blocks",
    }
    praise = "5 blocks each against 3 each, out of 32: more requests start, and not all of them can stay"
    return _judge(answer, _REQUESTS, advice, praise)
