"""The executor's machinery over a fake model: batching, queueing, ends of every kind, and what a failure may touch."""

from __future__ import annotations

import gc
import json
import threading
import time
import types
import weakref

import numpy as np
import pytest
from executor_helpers import (
    MAX_SEQ_LEN,
    Collector,
    expected_tokens,
    fake_executor,
    request,
    wait_until,
    write_fake_engine,
)

from drafters import generate
from reference_backend import BackendError
from reference_backend.executor import Executor, ExecutorError, RequestError


@pytest.fixture
def start(tmp_path, monkeypatch):
    """start(**options) -> executor, fake model; shut down at the end."""
    running = []

    def make(**options):
        executor, model = fake_executor(tmp_path, monkeypatch, **options)
        running.append((executor, model))
        return executor, model

    yield make
    for executor, model in running:
        model.release()
        executor.shutdown()


@pytest.fixture
def collector():
    return Collector()


# --- tokens


def test_one_output_for_each_token(start, collector):
    executor, _ = start()
    executor.submit(request("a", [5, 6], 4, collector))
    collector.wait("a")
    expected = expected_tokens([5, 6], 4)
    assert [output.tokens for output in collector.outputs["a"]] == [[token] for token in expected]
    assert [output.finish_reason for output in collector.outputs["a"]] == [None, None, None, "length"]
    assert generate(executor, [5, 6], 4) == expected


def test_end_id_is_not_a_token(start):
    executor, _ = start()
    expected = expected_tokens([5, 6], 10)
    end = expected[4]
    assert generate(executor, [5, 6], 10, end_id=end) == expected[: expected.index(end)]
    assert generate(executor, [end, 5], 3, end_id=end) == expected_tokens([end, 5], 3), "in the prompt it is text"


def test_stop_words_stay_in_the_tokens(start, collector):
    executor, _ = start()
    expected = expected_tokens([5, 6], 10)
    executor.submit(request("a", [5, 6], 10, collector, stop_words=[[1, 2], expected[3:5]]))
    collector.wait("a")
    assert collector.tokens("a") == expected[:5]
    assert collector.reason("a") == "stop_words"
    assert generate(executor, [5, 6], 10, stop_words=[expected[:1]]) == expected[:1]
    assert generate(executor, [5, 6], 10, stop_words=[[6, expected[0]]]) == expected[:1], "it may begin in the prompt"


def test_bad_words_change_the_tokens(start):
    executor, _ = start()
    expected = expected_tokens([5, 6], 4)
    assert generate(executor, [5, 6], 4, bad_words=[expected[1:3]])[:2] == expected[:2]
    assert generate(executor, [5, 6], 4, bad_words=[expected[1:3]])[2] != expected[2]


# --- batching


@pytest.mark.parametrize("prefill_tokens", [1, 7, 128])
def test_tokens_do_not_depend_on_neighbours(start, collector, prefill_tokens):
    """Requests join and leave at any token; slots move; pieces of prompts come in between."""
    executor, model = start(max_batch_size=4, prefill_tokens=prefill_tokens)
    random = np.random.default_rng(prefill_tokens)
    prompts = {str(n): random.integers(0, 97, random.integers(1, 60)).tolist() for n in range(60)}
    lengths = {name: int(random.integers(1, 40)) for name in prompts}
    for name, prompt in prompts.items():
        executor.submit(request(name, prompt, lengths[name], collector))
        if random.random() < 0.3:
            wait_until(lambda: executor.stats()["waiting"] < 3)
    collector.wait(*prompts)
    for name, prompt in prompts.items():
        assert collector.tokens(name) == expected_tokens(prompt, lengths[name]), name
    assert executor.stats()["kv_blocks_used"] == 0
    assert {rows for _, rows, new in model.calls if new == 1} >= ({1, 2} if prefill_tokens == 1 else {1, 2, 3, 4})


def test_a_request_joins_a_running_batch(start, collector):
    executor, model = start()
    model.hold()
    executor.submit(request("first", [1], 20, collector))
    model.allow(3)
    collector.wait_for_tokens("first", 3)
    executor.submit(request("second", [2], 5, collector))
    model.release()
    collector.wait("first", "second")
    joined = collector.order.index("second")
    assert joined >= 3
    assert collector.order[joined:][:9] == ["second"] + ["first", "second"] * 4


def test_a_long_prompt_is_read_between_the_tokens_of_others(start, collector):
    executor, model = start(prefill_tokens=10)
    model.hold()
    executor.submit(request("short", [1], 30, collector))
    executor.submit(request("long", range(90), 5, collector))
    model.release()
    collector.wait("short", "long")
    pieces = [at for at, (_, _, new) in enumerate(model.calls) if new > 1]
    assert [model.calls[at][2] for at in pieces] == [10] * 9
    assert all(model.calls[at + 1] == (0, 1, 1) for at in pieces[:-1]), "a decode step after each piece"


def test_short_prompts_are_read_together(start, collector):
    executor, model = start(prefill_tokens=10, enable_kv_cache_reuse=False)
    model.hold()
    executor.submit(request("a", [1], 2, collector))
    wait_until(lambda: executor.stats()["running"])
    for name in "bcd":
        executor.submit(request(name, [1, 2, 3, 4], 3, collector))
    model.release()
    collector.wait(*"abcd")
    assert [(rows, new) for _, rows, new in model.calls][:6] == [(1, 1), (1, 1), (1, 4), (1, 4), (2, 1), (1, 4)]


# --- queue and cache


def test_first_come_first_served_when_the_batch_is_full(start, collector):
    executor, model = start(max_batch_size=2)
    model.hold()
    names = [str(n) for n in range(6)]
    for name in names:
        executor.submit(request(name, [1, int(name)], 10, collector))
    assert executor.stats()["active"] == 6
    model.release()
    collector.wait(*names)
    assert list(collector.outputs) == names, "first tokens come in the order of submission"
    assert max(rows for _, rows, _ in model.calls) == 2


def test_a_full_cache_makes_requests_wait(start, collector):
    executor, model = start(max_tokens_in_paged_kv_cache=130, tokens_per_block=10)
    model.hold()
    executor.submit(request("big", [1] * 50, 50, collector))  # 10 of 13 blocks
    executor.submit(request("bigger", [2] * 20, 20, collector))  # 4: has to wait
    executor.submit(request("small", [3] * 5, 5, collector))  # 1: would fit, but does not overtake
    wait_until(lambda: executor.stats()["kv_blocks_used"] == 10)
    model.release()
    collector.wait("big", "bigger", "small")
    assert collector.order[:50] == ["big"] * 50
    assert collector.tokens("bigger") == expected_tokens([2] * 20, 20)
    assert executor.stats()["kv_blocks_used"] == 0


def test_the_default_cache_takes_most_of_the_free_memory_at_most(start, monkeypatch):
    """A token of the fake model takes 32 bytes, a full row 128 tokens."""

    def blocks(free_bytes, **options):
        monkeypatch.setattr("psutil.virtual_memory", lambda: types.SimpleNamespace(available=free_bytes))
        return start(tokens_per_block=10, max_batch_size=4, **options)[0].stats()["kv_blocks_total"]

    assert blocks(2**40) == 4 * 13, "every row can be full"
    assert blocks(2**40, max_beam_width=3) == 12 * 13
    assert blocks(32 * 1000, max_beam_width=3) == 90, "nine tenths of the free memory"
    assert blocks(0) == 13 and blocks(0, max_beam_width=3) == 3 * 13, "one request can always run"
    assert blocks(0, max_tokens_in_paged_kv_cache=5000) == 500, "what was asked for is not judged"
    assert blocks(32 * 1000, kv_cache_free_gpu_mem_fraction=0.25) == 25
    both = {"max_tokens_in_paged_kv_cache": 400, "kv_cache_free_gpu_mem_fraction": 0.25}
    assert (blocks(32 * 1000, **both), blocks(2**40, **both)) == (25, 40), "the lower of the two"


def test_what_waits_holds_nothing_but_its_request(start, collector):
    executor, model = start(max_batch_size=1)
    model.hold()
    for name in "abc":
        executor.submit(request(name, [1], 9, collector, presence_penalty=0.1))
    wait_until(lambda: executor.stats()["running"])
    assert ["decoder" in vars(executor._active[name]) for name in "bc"] == [False, False]
    model.release()
    collector.wait(*"abc")
    assert collector.tokens("c") == collector.tokens("a") != []


def test_what_can_never_fit_is_refused_at_once(start, collector):
    executor, _ = start(max_tokens_in_paged_kv_cache=50, tokens_per_block=10)
    with pytest.raises(RequestError, match=r"needs 6 KV cache blocks of 10 tokens, but the cache has 5"):
        executor.submit(request("a", [1] * 30, 30, collector))
    assert generate(executor, [1] * 20, 30) == expected_tokens([1] * 20, 30)


def test_memory_is_free_when_the_last_output_arrives(start):
    executor, _ = start()
    seen = []

    def receiver(output):
        if output.finish_reason:
            stats = executor.stats()
            seen.append((stats["kv_blocks_used"], stats["active"]))

    executor.submit(request("a", [1, 2, 3], 5, receiver))
    wait_until(lambda: seen)
    assert seen == [(0, 0)]


# --- ends


def test_cancel_while_running_waiting_and_reading_the_prompt(start, collector):
    executor, model = start(max_batch_size=2, prefill_tokens=10)
    model.hold()
    executor.submit(request("stays", [1], 60, collector))
    executor.submit(request("running", [2], 60, collector))
    executor.submit(request("waiting", [3], 60, collector))
    model.allow(4)
    collector.wait_for_tokens("running", 2)
    assert executor.cancel("waiting") and executor.cancel("running")
    model.allow(1)  # the step that had begun when they were cancelled
    collector.wait("waiting", "running")
    executor.submit(request("prompt", range(90), 20, collector))
    model.allow(3)
    wait_until(lambda: executor.stats()["prompt_tokens"] > 2)
    assert executor.cancel("prompt")
    model.release()
    collector.wait("prompt", "stays")
    assert [collector.reason(name) for name in ("running", "waiting", "prompt")] == ["cancelled"] * 3
    assert not collector.tokens("waiting") and not collector.tokens("prompt")
    assert collector.tokens("running") == expected_tokens([2], 60)[: len(collector.tokens("running"))]
    assert collector.tokens("stays") == expected_tokens([1], 60)
    assert not executor.cancel("running") and not executor.cancel("never seen")
    assert executor.stats()["kv_blocks_used"] == 0


def test_an_id_can_be_used_again_once_it_has_ended(start, collector):
    executor, model = start()
    model.hold()
    executor.submit(request("a", [1], 3, collector))
    with pytest.raises(RequestError, match="A request with id 'a' is still running"):
        executor.submit(request("a", [1], 3, collector))
    model.release()
    collector.wait("a")
    again = Collector()
    executor.submit(request("a", [2], 3, again))
    again.wait("a")
    assert again.tokens("a") == expected_tokens([2], 3)


def test_a_receiver_can_submit_and_cancel(start, collector):
    executor, _ = start()

    def receiver(output):
        if output.finish_reason == "length":
            executor.submit(request("second", [2], 100, collector))
        else:
            executor.cancel("nobody")

    executor.submit(request("first", [1], 2, receiver))
    wait_until(lambda: collector.reason("second"))
    assert collector.tokens("second") == expected_tokens([2], 100)


def test_shutdown_ends_everything_once(start, collector):
    executor, model = start(max_batch_size=2)
    model.hold()
    for name in "abcd":
        executor.submit(request(name, [1], 120, collector))
    model.allow(4)
    collector.wait_for_tokens("a", 1)
    stopper = threading.Thread(target=executor.shutdown)
    stopper.start()
    wait_until(executor._stopping.is_set)
    model.release()
    stopper.join()
    executor.shutdown()
    assert [collector.reason(name) for name in "abcd"] == ["cancelled"] * 4
    with pytest.raises(RequestError, match="has been shut down"):
        executor.submit(request("e", [1], 3, collector))
    assert not executor._thread.is_alive()


def test_shutdown_frees_the_memory_although_somebody_holds_the_executor(tmp_path, monkeypatch, collector):
    """A notebook's variable does, and its next cell makes another executor."""
    executor = fake_executor(tmp_path, monkeypatch)[0]
    monkeypatch.undo()  # it holds the fake model
    executor.submit(request("a", [1], 3, collector))
    wait_until(lambda: executor.stats()["completed"])
    before, held = executor.stats(), [weakref.ref(executor._batch._model), weakref.ref(executor._batch._cache)]
    executor.shutdown()
    assert [each() for each in held] == [None, None]
    assert executor.stats() == before


def test_one_that_nobody_holds_ends_with_its_requests_and_frees_its_memory(tmp_path, monkeypatch, collector):
    """A cell that runs twice leaves no second executor; gc is off, for memory that waits for it is not free."""
    executor, model = fake_executor(tmp_path, monkeypatch)
    batch, thread = weakref.ref(executor._batch), executor._thread  # the batch holds the model and the cache
    model.hold()
    executor.submit(request("a", [1], 120, collector))
    gc.disable()
    try:
        del executor
        model.release()
        thread.join(20)
        assert not thread.is_alive() and batch() is None
    finally:
        gc.enable()
    assert collector.reason("a") == "cancelled"


def test_generate_says_when_it_was_cut_short(start):
    executor, model = start()
    model.hold()
    caught = []

    def run():
        try:
            generate(executor, [1], 100)
        except RequestError as error:
            caught.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: executor.stats()["active"])
    (running,) = executor._active
    executor.cancel(running)
    model.release()
    thread.join()
    assert caught == ["The request was cancelled."]


# --- failures


def test_a_failing_receiver_fails_its_own_request_only(start, collector):
    executor, _ = start()
    got = []

    def receiver(output):
        got.append(output)
        if len(got) == 3:
            raise ValueError("no thanks")

    executor.submit(request("good", [1], 50, collector))
    executor.submit(request("bad", [2], 50, receiver))
    collector.wait("good")
    wait_until(lambda: executor.stats()["active"] == 0)
    assert collector.tokens("good") == expected_tokens([1], 50)
    assert [output.finish_reason for output in got] == [None, None, None, "error"]
    assert got[-1].error == "The receiver of the output failed: ValueError: no thanks"
    assert executor.stats()["kv_blocks_used"] == 0


def test_a_receiver_that_fails_on_the_last_output_is_left_alone(start, collector):
    executor, _ = start()
    got = []

    def receiver(output):
        got.append(output)
        raise ValueError("no thanks")

    executor.submit(request("bad", [2], 1, receiver))
    assert generate(executor, [1], 3) == expected_tokens([1], 3)
    assert [output.finish_reason for output in got] == ["length"]


def test_no_token_to_choose_fails_its_own_request_only(start, collector):
    executor, _ = start()
    executor.submit(request("good", [1], 20, collector))
    executor.submit(request("bad", [2], 20, collector, bad_words=[[token] for token in range(97)]))
    collector.wait("good", "bad")
    assert collector.tokens("good") == expected_tokens([1], 20)
    assert collector.outputs["bad"][-1].error == "No token is left to choose: bad_words forbids the whole vocabulary."


def test_a_failing_step_fails_the_running_requests_and_the_engine_lives_on(start, collector):
    executor, model = start(max_batch_size=2)
    model.hold()
    for name in "abc":
        executor.submit(request(name, [1], 100, collector))
    model.allow(4)
    collector.wait_for_tokens("b", 2)
    model.broken = RuntimeError("out of\n  memory")
    model.release()
    collector.wait("a", "b", "c")
    model.broken = None
    for name in "abc":  # c too: it came in when the others were gone, and its prompt failed
        assert collector.reason(name) == "error"
        assert collector.outputs[name][-1].error == "The model step failed: RuntimeError: out of memory"
    assert generate(executor, [7], 5) == expected_tokens([7], 5)
    assert executor.stats()["kv_blocks_used"] == 0


@pytest.mark.parametrize("broken", ["copy", "concatenate"])
def test_no_memory_for_the_logits_of_a_prompt_is_the_matter_of_its_request(start, collector, monkeypatch, broken):
    class NoMemory(np.ndarray):
        def copy(self, order="C"):
            raise MemoryError

    class Numpy:
        def __getattr__(self, name):
            return getattr(np, name)

        def concatenate(self, arrays):
            raise MemoryError

    executor, model = start()
    model.hold()
    executor.submit(request("good", [1], 20, collector))
    bad = request("bad", [2, 3], 20, collector)
    bad.return_context_logits = True
    executor.submit(bad)
    if broken == "copy":
        forward = model.forward
        short = lambda logits: logits.view(NoMemory) if len(logits) > 1 else logits  # noqa: E731  of "bad" alone
        monkeypatch.setattr(model, "forward", lambda *args: short(forward(*args)))
    else:
        monkeypatch.setattr("reference_backend.executor.inflight.np", Numpy())
    model.release()
    collector.wait("good", "bad")
    assert collector.tokens("good") == expected_tokens([1], 20)
    assert "MemoryError" in collector.outputs["bad"][-1].error
    assert executor.stats()["kv_blocks_used"] == 0


def test_a_bug_in_the_machinery_ends_the_requests_not_the_service(start, collector, monkeypatch):
    executor, model = start()
    with monkeypatch.context() as patched:
        patched.setattr(executor._batch, "iterate", lambda: 1 / 0)
        executor.submit(request("a", [1], 100, collector))
        collector.wait("a")
    assert collector.outputs["a"][-1].error == "The executor failed: ZeroDivisionError: division by zero"
    assert generate(executor, [7], 5) == expected_tokens([7], 5)


def test_two_hundred_requests_with_random_cancels(start, collector):
    executor, _ = start(max_batch_size=8, max_tokens_in_paged_kv_cache=256, tokens_per_block=16, prefill_tokens=16)
    random = np.random.default_rng(3)
    prompts = {str(n): random.integers(0, 97, random.integers(1, 40)).tolist() for n in range(200)}
    lengths = {name: int(random.integers(1, 30)) for name in prompts}

    def client(names):
        for name in names:
            executor.submit(request(name, prompts[name], lengths[name], collector))
            if int(name) % 3 == 0:
                executor.cancel(name if int(name) % 2 else names[0])

    threads = [threading.Thread(target=client, args=(list(prompts)[first::4],)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    collector.wait(*prompts)
    for name, prompt in prompts.items():
        expected = expected_tokens(prompt, lengths[name])
        if collector.reason(name) == "length":
            assert collector.tokens(name) == expected
        else:
            assert collector.reason(name) == "cancelled"
            assert collector.tokens(name) == expected[: len(collector.tokens(name))]
    stats = executor.stats()
    assert stats["completed"] + stats["cancelled"] == 200 and stats["cancelled"] >= 10
    assert (stats["active"], stats["waiting"], stats["running"], stats["kv_blocks_used"]) == (0, 0, 0, 0)


# --- engine folders and options


def test_prompt_and_length_limits(start, caplog):
    executor, _ = start(max_seq_len=20)
    with pytest.raises(RequestError, match=r"Prompt length \(20\) exceeds maximum input length \(19\)"):
        generate(executor, [1] * 20, 1)
    assert generate(executor, [1] * 15, 100) == expected_tokens([1] * 15, 5)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_scheduler_policy": "fifo"}, "batch_scheduler_policy is 'fifo'; it must be one of guaranteed_no"),
        ({"batching_strategy": "V2"}, "batching_strategy is 'V2'; it must be one of inflight_fused_batching, "),
        ({"kv_cache_free_gpu_mem_fraction": 1.5}, "kv_cache_free_gpu_mem_fraction is 1.5; it must be between 0 and 1"),
        ({"max_batch_size": 0}, "max_batch_size is 0; it must be from 1 to 256, for which"),
        ({"prefill_tokens": 0}, "prefill_tokens is 0; it must be 1 or more."),
        ({"threads": -1}, "threads is -1; it must be 1 or more."),
        ({"max_seq_len": 4096}, f"max_seq_len is 4096; it must be from 2 to {MAX_SEQ_LEN}, for which"),
        ({"max_tokens_in_paged_kv_cache": 10}, "cache is 10; it must be 64 or more."),
    ],
)
def test_options_out_of_range(start, options, says):
    with pytest.raises(ExecutorError, match=says):
        start(**options)


def test_engine_folder_errors(tmp_path):
    with pytest.raises(ExecutorError, match=r"config.json does not exist; name an engine folder .*gpt_model_path"):
        Executor(tmp_path)
    (tmp_path / "config.json").write_text("\n")
    with pytest.raises(ExecutorError, match=r"config.json is empty; copy or build the engine again\.$"):
        Executor(tmp_path)
    (tmp_path / "config.json").write_text("{oops")
    with pytest.raises(ExecutorError, match="is not the config.json of an engine"):
        Executor(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_config": {}, "build_config": {}}))
    with pytest.raises(ExecutorError, match="an engine of version None, which the reference executor cannot run"):
        Executor(tmp_path)
    write_fake_engine(tmp_path)
    with pytest.raises(BackendError, match=r"rank0\.engine cannot be read: No such file"):
        Executor(tmp_path)
    (tmp_path / "rank0.engine").write_bytes(b"ftrt, a plan of TensorRT for some GPU")
    with pytest.raises(BackendError, match=r"rank0\.engine is damaged or of another kind"):
        Executor(tmp_path)


# --- policies


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 3.0, "top_k": 20}])
def test_who_pauses_goes_on_as_if_nothing_had_been(start, collector, reuse, sampling):
    """Blocks run out again and again; every token comes once, and is what it is with blocks for everybody."""
    options = {"max_batch_size": 6, "tokens_per_block": 8, "prefill_tokens": 16, "enable_kv_cache_reuse": reuse}
    tight, held = start(max_tokens_in_paged_kv_cache=136, batch_scheduler_policy="max_utilization", **options)
    roomy, _ = start(**options)
    random = np.random.default_rng(0)
    prompts = {str(number): random.integers(0, 97, random.integers(1, 50)).tolist() for number in range(30)}
    held.hold()
    for name, prompt in prompts.items():
        tight.submit(request(name, prompt, 60, collector, seed=int(name), **sampling))
        roomy.submit(request(f"roomy {name}", prompt, 60, collector, seed=int(name), **sampling))
    held.release()
    collector.wait(*prompts, *[f"roomy {name}" for name in prompts])
    for name, prompt in prompts.items():
        assert collector.tokens(name) == collector.tokens(f"roomy {name}")
        assert sampling or collector.tokens(name) == expected_tokens(prompt, 60)
    stats = tight.stats()
    assert stats["preempted"] > 5 and stats["kv_blocks_used"] == stats["active"] == 0
    assert (stats["kv_reused_tokens"] > 0) == reuse


def test_a_paused_request_can_be_cancelled(start, collector):
    executor, model = start(
        max_tokens_in_paged_kv_cache=64, tokens_per_block=8, batch_scheduler_policy="max_utilization"
    )
    model.hold()
    executor.submit(request("a", [1] * 20, 40, collector))
    executor.submit(request("b", [2] * 20, 40, collector))
    while not executor.stats()["preempted"]:
        model.allow(1)
        time.sleep(0.002)
    executor.cancel("b")
    model.release()
    collector.wait("a", "b")
    assert collector.tokens("a") == expected_tokens([1] * 20, 40)
    assert executor.stats()["kv_blocks_used"] == 0


def test_the_logits_of_a_prompt_come_once_even_after_a_pause(start, collector):
    executor, model = start(
        max_tokens_in_paged_kv_cache=72, tokens_per_block=8, batch_scheduler_policy="max_utilization"
    )
    model.hold()
    for name in "ab":
        one = request(name, [1] * 20, 50, collector)
        one.return_context_logits = True
        executor.submit(one)
    model.release()
    collector.wait("a", "b")
    assert executor.stats()["preempted"]
    for name in "ab":
        assert collector.tokens(name) == expected_tokens([1] * 20, 50)
        assert [output.context_logits is not None for output in collector.outputs[name]] == [True] + [False] * 49
        assert len(collector.outputs[name][0].context_logits) == 20


def test_a_static_batch_ends_before_the_next_begins(start, collector):
    executor, model = start(max_batch_size=3, batching_strategy="V1", prefill_tokens=10)
    model.hold()
    lengths = {"1": 3, "2": 20, "3": 5, "4": 4, "5": 4}
    for name, length in lengths.items():
        executor.submit(request(name, [int(name)] * 25, length, collector))
    model.release()
    collector.wait(*lengths)
    ends = {name: len(collector.order) - collector.order[::-1].index(name) for name in lengths}
    assert min(collector.order.index("4"), collector.order.index("5")) == ends["2"], "all wait for the longest"
    assert all(collector.tokens(name) == expected_tokens([int(name)] * 25, length) for name, length in lengths.items())
    decodes = [rows for _, rows, new in model.calls if new == 1]
    assert decodes[0] == 3, "all prompts are read before the first step"
