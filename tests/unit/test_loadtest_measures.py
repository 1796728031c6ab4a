"""Measures of a load test against cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from servinglab.errors import CourseError
from servinglab.loadtest import measures
from servinglab.loadtest.measures import Run, Trace

# Due at 1.0, sent 0.2 late; text after 1.5, then every 0.1, with 2 tokens in the second response: 5 tokens in 4.
CHUNKED = Trace(1.0, 1.2, (1.5, 1.6, 1.7, 1.8), tokens=5)
QUICK = Trace(0.0, 0.0, (0.1, 0.2, 0.3), tokens=3)
SINGLE = Trace(2.0, 2.0, (2.3,), tokens=1)
FAILED = Trace(2.5, 2.5, (), error="No answer.")
RUN = Run((QUICK, CHUNKED, SINGLE, FAILED), seconds=2.3)


def test_times_of_a_request_count_from_when_it_was_due():
    assert CHUNKED.ttft == pytest.approx(0.5), "0.2 s of a late sender are felt by the user"
    assert CHUNKED.latency == pytest.approx(0.8)


def test_inter_token_latency_counts_tokens_and_leaves_out_the_first_wait():
    assert CHUNKED.itl == pytest.approx(0.3 / 4), "5 tokens have 4 waits, whatever responses they came in"
    assert QUICK.itl == pytest.approx(0.1)
    np.testing.assert_allclose(CHUNKED.gaps, [0.1, 0.1, 0.1])
    assert np.isnan(SINGLE.itl) and np.isnan(FAILED.itl) and np.isnan(FAILED.ttft)


def test_a_run_adds_up_what_was_answered():
    assert RUN.tokens_per_second == pytest.approx(9 / 2.3)
    assert RUN.requests_per_second == pytest.approx(3 / 2.3)
    assert RUN.sent_per_second == pytest.approx(3 / 2.5)
    assert RUN.failed == 1
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
    assert measures.percentile([1, 2, 3, 4, 5], 50) == 3
    assert measures.percentile([1, 2, 3, 4, 5], 90) == pytest.approx(4.6)  # rank 0.9 * 4 = 3.6
    assert np.isnan(measures.percentile([], 50))


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """Of 100 samples of a known distribution, about 95 % of the intervals must hold its median, log 2."""
    rng = np.random.default_rng(0)
    hits = 0
    for number in range(100):
        low, high = measures.interval(rng.exponential(size=40), np.median, seed=number)
        hits += low <= np.log(2) <= high
    assert 88 <= hits <= 99


def test_an_interval_of_a_percentile_grows_narrower_with_more_requests():
    values = np.random.default_rng(1).exponential(size=400)
    few, many = (measures.interval(values[:n], measures.at(95)) for n in (20, 400))
    assert few[1] - few[0] > 2 * (many[1] - many[0])
    with pytest.raises(CourseError, match="at least two"):
        measures.interval([1.0])


def test_one_connection_hands_a_stall_on_and_recovers_when_idle():
    """Due each second, busy 0.5 s, one stall of 2.5 s: the next ones wait 2, 1.5, 1, then 0.5 again."""
    waits = measures.one_connection([0, 1, 2, 3, 4, 5], [0.5, 2.5, 0.5, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(waits, [0.5, 2.5, 2.0, 1.5, 1.0, 0.5])


def test_cost_of_a_million_tokens():
    """100 tokens/s are 360,000 an hour, so a million take 2.78 hours: at 3.60 an hour, 10."""
    assert measures.cost_per_million(100, 3.6) == pytest.approx(10)
    for arguments in ((0, 1), (1, -1)):
        with pytest.raises(CourseError):
            measures.cost_per_million(*arguments)
