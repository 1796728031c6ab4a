"""Measures of a load test against cases worked out by hand; the loops of notebook 11; the tools' command lines."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from pathlib import Path

import jupytext
import numpy as np
import pytest

from servinglab import loadtest
from servinglab.errors import CourseError
from servinglab.loadtest import Run, Trace

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "text" / "11_benchmarking.py"

# Due at 1.0, sent 0.2 late; text after 1.5, then every 0.1, with 2 tokens in the second response: 5 tokens in 4.
CHUNKED = Trace(1.0, 1.2, (1.5, 1.6, 1.7, 1.8), tokens=5)
QUICK = Trace(0.0, 0.0, (0.1, 0.2, 0.3), tokens=3)
SINGLE = Trace(2.0, 2.0, (2.3,), tokens=1)
FAILED = Trace(2.5, 2.5)
RUN = Run((QUICK, CHUNKED, SINGLE, FAILED), seconds=2.3)


def test_times_of_a_request_count_from_when_it_was_due():
    assert CHUNKED.ttft == pytest.approx(0.5), "0.2 s of a late sender are felt by the user"
    assert CHUNKED.latency == pytest.approx(0.8)


def test_inter_token_latency_counts_tokens_and_leaves_out_the_first_wait():
    assert CHUNKED.itl == pytest.approx(0.3 / 4), "5 tokens have 4 waits, whatever responses they came in"
    assert QUICK.itl == pytest.approx(0.1)
    assert np.isnan(SINGLE.itl) and np.isnan(FAILED.itl) and np.isnan(FAILED.ttft)


def test_a_run_adds_up_what_was_answered():
    assert RUN.tokens_per_second == pytest.approx(9 / 2.3)
    assert RUN.requests_per_second == pytest.approx(3 / 2.3)
    assert RUN.sent_per_second == pytest.approx(3 / 2.5)
    np.testing.assert_allclose(RUN.values("ttft"), [0.1, 0.5, 0.3])
    np.testing.assert_allclose(RUN.values("itl"), [0.1, 0.075])


@pytest.mark.parametrize(
    "ttft, itl, kept",
    [
        (0.4, 0.2, [True, False, True, False]),  # the chunked one comes too late
        (0.6, 0.08, [False, True, True, False]),  # the quick one is too slow afterwards
        (0.05, 1.0, [False, False, False, False]),
    ],
)
def test_goodput_counts_requests_within_both_limits_and_never_a_failed_one(ttft, itl, kept):
    assert RUN.kept(ttft, itl).tolist() == kept
    assert RUN.goodput(ttft, itl) == pytest.approx(sum(kept) / 2.3)


def test_percentiles_of_a_hand_worked_list():
    assert loadtest.percentile([1, 2, 3, 4, 5], 50) == 3
    assert loadtest.percentile([1, 2, 3, 4, 5], 90) == pytest.approx(4.6)  # rank 0.9 * 4 = 3.6
    assert np.isnan(loadtest.percentile([], 50))


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """Of 100 samples of a known distribution, about 95 % of the intervals must hold its median, log 2."""
    rng = np.random.default_rng(0)
    hits = 0
    for number in range(100):
        low, high = loadtest.interval(rng.exponential(size=40), seed=number)
        hits += low <= np.log(2) <= high
    assert 88 <= hits <= 99


def test_an_interval_of_a_percentile_grows_narrower_with_more_requests():
    values = np.random.default_rng(1).exponential(size=400)
    few, many = (loadtest.interval(values[:n], 95) for n in (20, 400))
    assert few[1] - few[0] > 2 * (many[1] - many[0])
    with pytest.raises(CourseError, match="at least two"):
        loadtest.interval([1.0])


def test_one_connection_hands_a_stall_on_and_recovers_when_idle():
    """Due each second, busy 0.5 s, one stall of 2.5 s: the next ones wait 2, 1.5, 1, then 0.5 again."""
    waits = loadtest.one_connection([0, 1, 2, 3, 4, 5], [0.5, 2.5, 0.5, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(waits, [0.5, 2.5, 2.0, 1.5, 1.0, 0.5])


# --- the loops that notebook 11 writes ---


@pytest.fixture(scope="module")
def loops():
    """`measured`, `closed_loop` and `open_loop` of notebook 11, before a server that answers 0.05 s after the last."""
    names = {"asyncio": asyncio, "np": np, "loadtest": loadtest, "clock": time.perf_counter}
    names |= {"count": lambda text: len(text.split()), "running": 0, "most": 0}
    source = "\n\n".join(cell.source for cell in jupytext.read(NOTEBOOK).cells if cell.cell_type == "code")
    for name in ("measured", "closed_loop", "open_loop"):
        found = re.search(rf"^async def {name}\(.*?(?=^\S)", source, re.DOTALL | re.MULTILINE)[0]
        exec(found, names)

    async def ask(prompt):
        names["running"] += 1
        names["most"] = max(names["most"], names["running"])
        sent = time.perf_counter()
        async with names["places"]:
            for text in ("one", "", " two", " three"):
                await asyncio.sleep(0.0125)
                yield time.perf_counter() - sent, text
        names["running"] -= 1

    names["ask"] = ask
    return names


def test_a_closed_loop_has_so_many_requests_on_their_way_and_no_more(loops):
    loops |= {"places": asyncio.Semaphore(8), "most": 0}
    run = asyncio.run(loops["closed_loop"](["a"] * 8, users=3))
    assert loops["most"] == 3 and len(run.traces) == 8 and run.seconds >= 3 * 0.05
    assert all(trace.tokens == len(trace.arrivals) == 3 for trace in run.traces), "an empty response is no arrival"


def test_an_open_loop_waits_for_nobody_and_shows_the_queue(loops):
    """One place, 50 ms each, asked every 5 ms on average: the last ones wait for all before them."""
    loops |= {"places": asyncio.Semaphore(1), "most": 0}
    run = asyncio.run(loops["open_loop"](["a"] * 8, 200.0, np.random.default_rng(0)))
    due = [trace.due for trace in run.traces]
    assert loops["most"] >= 5 and run.values("ttft").max() > 3 * run.values("ttft").min()
    assert due == sorted(due) and np.diff(due).mean() == pytest.approx(1 / 200)
    assert all(trace.sent >= trace.due for trace in run.traces)


# --- command lines ---


def test_perf_analyzer_streams_over_grpc_with_named_inputs_only():
    assert loadtest.as_shell(loadtest.perf_analyzer("data.json")).replace(" \\\n ", "") == (
        "perf_analyzer -m tensorrt_llm_bls -i grpc -u localhost:8001 --streaming --input-data data.json "
        "--concurrency-range 1:8:1 --measurement-interval 10000 --profile-export-file profile.json"
    )
    open_loop = loadtest.perf_analyzer("data.json", rates=(1, 9, 2))
    assert "--request-rate-range 1:9:2 --request-distribution poisson" in " ".join(open_loop)
    assert "--concurrency-range" not in open_loop


LOAD = {"concurrency": 4, "requests": 8, "warmup": 2, "input_tokens": 64, "output_tokens": 12}


def test_aiperf_is_told_to_generate_as_many_tokens_as_it_counts():
    words = " ".join(loadtest.aiperf("folder", url="http://127.0.0.1:9000", **LOAD))
    assert "--endpoint-type chat --streaming --url http://127.0.0.1:9000 --tokenizer folder" in words
    assert "--output-tokens-mean 12" in words and "--extra-inputs min_tokens:12" in words and "--concurrency 4" in words


def test_a_command_for_the_shell_is_the_same_command():
    command = loadtest.aiperf("my folder", url="http://127.0.0.1:9000", **LOAD)
    assert shlex.split(loadtest.as_shell(command).replace("\\\n", "")) == command
