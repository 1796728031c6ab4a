"""The figures of a request: their order in time, blocks counted by hand, drafts, and that every output has them."""

from __future__ import annotations

import time

import numpy as np
import pytest
from executor_helpers import Collector, fake_executor, request, wait_until
from tiny_models import write_checkpoint, write_engine

from reference_backend.executor import Executor
from reference_backend.executor.request import RequestMetrics


@pytest.fixture
def collector():
    return Collector()


@pytest.fixture
def start(tmp_path, monkeypatch):
    running = []

    def make(**options):
        running.append(fake_executor(tmp_path, monkeypatch, **options))
        return running[-1]

    yield make
    for executor, model in running:
        model.release()
        executor.shutdown()


def metrics(collector: Collector, name: str) -> RequestMetrics:
    """Those of the last output; that each has its own, which grow, is checked."""
    found = [output.metrics for output in collector.outputs[name]]
    last_tokens = [one.last_token_time_ns for one in found]
    assert last_tokens == sorted(last_tokens) and len({id(one) for one in found}) == len(found)
    assert len(found) < 2 or len(set(last_tokens)) > 1, "figures of that moment, not of the end"
    return found[-1]


def test_times_are_in_order_and_waiting_shows(start, collector):
    executor, model = start(max_batch_size=1)
    model.hold()
    before = time.monotonic_ns()
    executor.submit(request("first", [1], 5, collector))
    executor.submit(request("second", [2], 5, collector))
    arrived = time.monotonic_ns()
    wait_until(lambda: executor.stats()["running"])
    time.sleep(0.05)
    model.release()
    collector.wait("first", "second")
    first, second = metrics(collector, "first"), metrics(collector, "second")
    for one in (first, second):
        times = [one.arrival_time_ns, one.first_scheduled_time_ns, one.first_token_time_ns, one.last_token_time_ns]
        assert times == sorted(times) and len(set(times)) == 4
        assert before < times[0] < arrived and times[3] < time.monotonic_ns()
    assert first.first_token_time_ns - first.first_scheduled_time_ns > 40e6, "the prompt was held"
    assert second.first_scheduled_time_ns > first.last_token_time_ns, "there was one place"


def test_one_token_is_the_first_and_the_last(start, collector):
    executor, _ = start()
    executor.submit(request("a", [1], 1, collector))
    collector.wait("a")
    assert metrics(collector, "a").first_token_time_ns == metrics(collector, "a").last_token_time_ns > 0


def test_what_never_ran_has_no_times(start, collector):
    executor, model = start(max_batch_size=1)
    model.hold()
    executor.submit(request("runs", [1], 5, collector))
    executor.submit(request("waits", [2], 5, collector))
    wait_until(lambda: executor.stats()["running"])
    executor.cancel("waits")
    model.release()
    collector.wait("runs", "waits")
    found = metrics(collector, "waits")
    assert found == RequestMetrics(arrival_time_ns=found.arrival_time_ns) and found.arrival_time_ns


def blocks(found: RequestMetrics) -> tuple[int, int, int]:
    return found.kv_cache_alloc_new_blocks, found.kv_cache_reused_blocks, found.kv_cache_alloc_total_blocks


def test_blocks_are_those_of_the_prompt(start, collector):
    """Blocks of 8 and a pool of 12. By hand: 30 tokens are 4 blocks; of the same prompt again 29 tokens are there: 3
    whole blocks, and the beginning of a fourth, which is copied into a new one."""
    executor, _ = start(tokens_per_block=8, max_tokens_in_paged_kv_cache=96)
    for name in "ab":
        executor.submit(request(name, range(30), 3, collector))
        collector.wait(name)
    executor.submit(request("beams off", [*range(24), 50, 51], 3, collector))
    collector.wait("beams off")
    assert [blocks(metrics(collector, name)) for name in ("a", "b", "beams off")] == [(4, 0, 4), (1, 4, 1), (1, 3, 1)]
    # Kept by now: 3 shared blocks, one of the first two and one of the third. 9 blocks of the 12 need 2 of them.
    executor.submit(request("large", range(40, 90), 22, collector))
    collector.wait("large")
    assert blocks(metrics(collector, "large")) == (5, 0, 7)
    stats = executor.stats()
    assert (stats["kv_reused_blocks"], stats["kv_evicted_blocks"]) == (7, 2)


def test_each_beam_has_blocks_of_its_own(start, collector):
    executor, _ = start(tokens_per_block=8, max_beam_width=3)
    executor.submit(request("beams", range(10), 3, collector, beam_width=3))
    collector.wait("beams")
    assert blocks(metrics(collector, "beams")) == (6, 0, 6)


def test_the_acceptance_rate():
    assert RequestMetrics(total_draft_tokens=8, total_accepted_draft_tokens=6).acceptance_rate == 0.75
    assert RequestMetrics().acceptance_rate == 0


@pytest.fixture(scope="module")
def tiny_engine(tmp_path_factory):
    root = tmp_path_factory.mktemp("tiny")
    write_checkpoint(root / "checkpoint", tie_word_embeddings=True)
    return write_engine(root / "checkpoint", root / "engine")


@pytest.mark.parametrize("partial", [True, False])
def test_a_real_model_gives_the_same_tokens_and_logits_with_reuse(tiny_engine, collector, partial):
    """Random prompts that share random beginnings, greedy and sampled, over a cache that evicts."""
    random = np.random.default_rng(1)
    stems = [random.integers(3, 300, 120).tolist() for _ in range(3)]
    options = {"max_batch_size": 3, "tokens_per_block": 16, "prefill_tokens": 32 if partial else 8, "threads": 1}
    with (
        Executor(tiny_engine, max_tokens_in_paged_kv_cache=768, enable_partial_reuse=partial, **options) as reusing,
        Executor(tiny_engine, enable_kv_cache_reuse=False, **options) as plain,
    ):
        names = []
        for number in range(40):
            prompt = stems[number % 3][: random.integers(0, 120)] + random.integers(3, 300, 5).tolist()
            sampling = {"temperature": 2.0, "top_p": 0.9, "seed": number} if number % 2 else {}
            for kind, executor in (("reuse", reusing), ("plain", plain)):
                one = request(f"{kind} {number}", prompt, 10, collector, **sampling)
                one.return_generation_logits = True
                executor.submit(one)
                names.append(one.id)
        collector.wait(*names)
        stats = reusing.stats()
    assert stats["kv_reused_tokens"] > 1000 and stats["kv_evicted_blocks"] > 10
    for number in range(40):
        ours, theirs = (collector.outputs[f"{kind} {number}"] for kind in ("reuse", "plain"))
        assert [output.tokens for output in ours] == [output.tokens for output in theirs]
        logits = [np.concatenate([output.generation_logits for output in outputs]) for outputs in (ours, theirs)]
        np.testing.assert_allclose(*logits, atol=1e-4)
