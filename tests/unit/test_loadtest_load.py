"""The load generator against servers of known behaviour: no queue, one place, silence, errors."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from scipy import stats

from servinglab.errors import CourseError
from servinglab.loadtest.load import arrival_times, closed_loop, open_loop

PROMPTS = [str(number) for number in range(8)]


class Server:
    """Answers "one two three" in three responses `pause` s apart; `places` requests at a time, the others wait."""

    def __init__(self, places=8, pause=0.01):
        self.pause = pause
        self.places, self.running, self.most, self.seen = threading.Semaphore(places), 0, 0, []
        self.lock = threading.Lock()

    def __call__(self, prompt):
        sent = time.perf_counter()
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.seen.append(prompt)
        with self.places:
            for text in ("one", "", " two", " three"):
                time.sleep(self.pause)
                yield time.perf_counter() - sent, text
        with self.lock:
            self.running -= 1


def words(text):
    return len(text.split())


def test_a_closed_loop_has_so_many_requests_on_their_way_and_no_more():
    server = Server()
    run = closed_loop(server, PROMPTS, concurrency=3, count=words)
    assert server.most == 3 and sorted(server.seen) == PROMPTS
    assert [trace.tokens for trace in run.traces] == [3] * 8
    assert all(len(trace.arrivals) == 3 for trace in run.traces), "an empty response is no arrival"
    assert all(trace.due == trace.sent for trace in run.traces)
    assert run.seconds >= 3 * 0.04 and run.load == {"concurrency": 3}


def test_an_open_loop_waits_for_nobody_and_shows_the_queue():
    """One place, 400 ms each, asked every 10 ms on average: the last ones wait for all before them."""
    server = Server(places=1, pause=0.1)
    run = open_loop(server, PROMPTS, rate=100, seed=0, count=words)
    assert server.most >= 5
    waits = run.values("ttft")
    assert waits.max() > 3 * waits.min()
    assert np.allclose([trace.due for trace in run.traces], arrival_times(8, 100, 0))
    assert all(trace.sent >= trace.due for trace in run.traces)
    closed = closed_loop(Server(places=1, pause=0.1), PROMPTS, concurrency=1, count=words)
    assert closed.values("ttft").max() < waits.max(), "a closed loop of one user never meets the queue"


def test_a_fast_server_answers_no_more_than_it_was_asked():
    run = open_loop(Server(), PROMPTS[:3], rate=10, seed=0, count=words)
    assert run.seconds >= 0.3 and run.requests_per_second <= 10.001


def test_arrivals_are_a_poisson_process():
    times = arrival_times(2000, 5.0, seed=3)
    assert times[0] == 0
    assert stats.kstest(np.diff(times), stats.expon(scale=1 / 5.0).cdf).pvalue > 0.01
    assert np.array_equal(times, arrival_times(2000, 5.0, seed=3))


@pytest.mark.parametrize("count, seed", [(8, 5), (20, 0), (2, 1)])
def test_few_arrivals_have_the_rate_that_was_asked_for(count, seed):
    gaps = np.diff(arrival_times(count, 5.0, seed))
    assert np.isclose(gaps.mean(), 1 / 5.0) and (gaps > 0).all()
    assert arrival_times(1, 5.0, seed).tolist() == [0]


def test_failures_are_kept_and_do_not_stop_the_others():
    def ask(prompt):
        if prompt == "3":
            raise CourseError("The server is away.")
        yield 0.01, "" if prompt == "5" else "word"

    run = closed_loop(ask, PROMPTS, concurrency=2, count=words)
    assert run.failed == 2 and len(run.values("ttft")) == 6
    assert {trace.error for trace in run.traces} == {"", "The server is away.", "The answer held no text."}


def test_time_in_which_requests_were_lost_counts():
    def ask(prompt):
        if prompt != "0":
            time.sleep(0.3)
            raise CourseError("The server is away.")
        yield 0.01, "word"

    run = closed_loop(ask, PROMPTS[:3], concurrency=3, count=words)
    assert run.failed == 2 and run.requests_per_second < 1 / 0.3


@pytest.mark.parametrize("load", [{"concurrency": 0}, {"rate": 0.0, "seed": 0}])
def test_a_load_of_nothing_is_refused(load):
    loop = closed_loop if "concurrency" in load else open_loop
    with pytest.raises(CourseError, match="needs prompts"):
        loop(Server(), PROMPTS, count=words, **load)
    with pytest.raises(CourseError, match="needs prompts"):
        loop(Server(), [], count=words, **{name: value or 1 for name, value in load.items()})
