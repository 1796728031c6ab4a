"""Kept KV blocks: the tree alone against a plain list of all sequences, then the executor over a model whose tokens
show any wrong block, position or slot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import psutil
import pytest
from executor_helpers import Collector, expected_tokens, fake_executor, request, wait_until
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters import generate
from reference_backend.executor import Executor, Request
from reference_backend.executor.cache import KVCache
from reference_backend.executor.reuse import PrefixTree


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


# --- the tree alone


class Memory:
    """What a cache would hold: place -> the beginning that its block ends, token by token."""

    def __init__(self, tokens_per_block: int) -> None:
        self.places = {}
        self.tree = PrefixTree(tokens_per_block, self.places.pop)

    def insert(self, tokens: list[int], room: int) -> None:
        for span in self.tree.insert(tokens, room):
            self.places[span.place] = [tokens[: at + 1] for at in range(span.first, span.first + span.count)]

    def match(self, tokens: list[int]) -> int:
        """How much of `tokens` is found; that each position holds the right token and beginning is checked."""
        found = 0
        for span in self.tree.match(tokens):
            assert span.first == found
            for at in range(span.count):
                assert self.places[span.place][at] == tokens[: found + at + 1]
            found += span.count
        return found


def common(a: list[int], b: list[int]) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_the_longest_kept_beginning_is_found():
    memory = Memory(3)
    memory.insert([1, 2, 3, 4, 5, 6, 7], room=9)
    memory.insert([1, 2, 3, 4, 8], room=9)
    assert len(memory.tree) == 4, "the first block is shared"
    assert memory.match([1, 2, 3, 4, 5, 6, 7, 9]) == 7
    assert memory.match([1, 2, 3, 4, 5, 9]) == 5, "the beginning of a block"
    assert memory.match([1, 2, 3, 4, 8, 6]) == 5
    assert memory.match([1, 2]) == 2 and memory.match([2, 3]) == 0 and memory.match([]) == 0
    assert memory.match([4, 5, 6]) == 0, "the same tokens behind another beginning are another block"


def test_a_sequence_that_went_on_takes_the_place_of_its_shorter_self():
    memory = Memory(4)
    for length in (1, 2, 3, 4, 5, 6):
        memory.insert([1, 2, 3, 4, 5, 6][:length], room=9)
    assert len(memory.tree) == 2 and memory.tree.evicted == 0
    memory.insert([1, 2, 3], room=9)
    memory.insert([1, 2, 3, 4, 5], room=9)
    assert len(memory.tree) == 2, "what is covered is not kept twice"


def test_the_least_recently_used_goes_and_never_a_block_that_others_hang_on():
    memory = Memory(2)
    memory.insert([1, 1, 2, 2], room=4)
    memory.insert([3, 3, 4, 4], room=4)
    assert memory.match([1, 1, 2, 2]) == 4
    memory.insert([5, 5], room=4)
    assert memory.tree.evicted == 1
    assert [memory.match(tokens) for tokens in ([3, 3, 4, 4], [1, 1, 2, 2], [5, 5])] == [2, 4, 2]
    memory.insert([6, 6, 7, 7, 8, 8, 9, 9, 9], room=3)
    assert memory.match([6, 6, 7, 7, 8, 8, 9, 9, 9]) == 6, "as far as there is room"
    assert memory.tree.evict(1) == 2 and memory.tree.evict(0) == 1
    assert not memory.places and len(memory.tree) == 0
    memory.insert([1, 2, 3], room=0)
    assert len(memory.tree) == 0


TOKENS = st.lists(st.integers(0, 2), max_size=12)
EVENTS = st.lists(st.tuples(st.sampled_from(["insert", "match", "shrink"]), TOKENS, st.integers(0, 8)), max_size=30)


@given(st.integers(1, 4), EVENTS)
@settings(deadline=None)
def test_never_a_wrong_block_and_never_too_many(size, events):
    memory = Memory(size)
    for event, tokens, room in events:
        if event == "insert":
            memory.insert(tokens, room)
            memory.tree.evict(room)
        elif event == "match":
            memory.match(tokens)
        else:
            memory.tree.evict(room)
        assert len(memory.tree) == len(memory.places)
        assert event == "match" or len(memory.tree) <= room
        assert all(place < 9 for place in memory.places), "places are used again"


@given(st.integers(1, 4), st.lists(TOKENS, max_size=8), st.data())
@settings(deadline=None)
def test_with_room_everything_kept_is_found(size, kept, data):
    memory = Memory(size)
    for tokens in kept:
        memory.insert(tokens, room=1000)
    wanted = data.draw(TOKENS)
    assert memory.match(wanted) == max((common(tokens, wanted) for tokens in kept), default=0)
    assert all(memory.match(tokens) == len(tokens) for tokens in kept)


# --- memory


def test_kept_blocks_are_copies_whose_memory_comes_and_goes():
    def resident() -> float:
        return psutil.Process().memory_info().rss / 2**20

    cache = KVCache(tensors=60, slots=2, heads=3, max_seq_len=512, head_size=64)
    cache.keep_blocks(200, 64)  # 560 MiB of address space
    cache.buffers[:, 1] = np.random.default_rng(0).standard_normal((60, 3, 512, 64), np.float32)
    start = resident()
    for place in range(7):
        cache.save(1, place, 64 * place, 64)
    cache.save(1, 150, 448, 50)
    assert 15 < resident() - start < 40
    for place in range(7):
        cache.load(place, 0, 64 * place, 64)
    cache.load(150, 0, 448, 50)
    np.testing.assert_array_equal(cache.buffers[:, 0, :, :498], cache.buffers[:, 1, :, :498])
    assert not cache.buffers[:, 0, :, 498:].any()
    full = resident()
    for place in range(7):
        cache.forget(place)
    assert full - resident() > 15
    cache.load(150, 0, 0, 50)
    np.testing.assert_array_equal(cache.buffers[:, 0, :, :50], cache.buffers[:, 1, :, 448:498])


# --- the executor


@pytest.mark.parametrize("pool", [None, 256])
@pytest.mark.parametrize("size", [1, 8, 64])
def test_tokens_are_the_same_over_prompts_with_shared_beginnings(start, pool, size):
    """Requests come and go; some are cancelled anywhere. With the small pool blocks are evicted all the time."""
    collector = Collector()
    executor, _ = start(max_batch_size=4, tokens_per_block=size, prefill_tokens=16, max_tokens_in_paged_kv_cache=pool)
    random = np.random.default_rng(size)
    stems = [random.integers(0, 97, 50).tolist() for _ in range(3)]
    prompts, lengths = {}, {}
    for number in range(100):
        stem = stems[number % 3][: random.integers(0, 50)]
        prompts[str(number)] = stem + random.integers(0, 97, random.integers(1, 20)).tolist()
        lengths[str(number)] = int(random.integers(1, 30))
        executor.submit(request(str(number), prompts[str(number)], lengths[str(number)], collector))
        if number % 7 == 0:
            executor.cancel(str(max(0, number - 2)))
    collector.wait(*prompts)
    for name, prompt in prompts.items():
        expected = expected_tokens(prompt, lengths[name])
        cancelled = collector.reason(name) == "cancelled"
        assert collector.tokens(name) == (expected[: len(collector.tokens(name))] if cancelled else expected), name
    stats = executor.stats()
    assert stats["kv_blocks_used"] == 0 and 0 < stats["kv_cached_blocks"] <= stats["kv_blocks_total"]
    assert stats["kv_reused_tokens"] > 500
    assert stats["kv_evicted_blocks"] > 0


def test_what_a_request_leaves_is_not_read_again(start):
    executor, model = start(tokens_per_block=8)
    prompt = list(range(40))
    answer = generate(executor, prompt, 10)
    assert generate(executor, prompt, 10) == answer == expected_tokens(prompt, 10)
    assert model.calls[10] == (0, 1, 1), "the last token of the prompt is always read"
    following = prompt + answer + [1, 2, 3]
    read = executor.stats()["prompt_tokens"]
    assert generate(executor, following, 5) == expected_tokens(following, 5)
    assert executor.stats()["prompt_tokens"] - read == 4, "the last token of the answer had not been read"
    off, _ = start(enable_kv_cache_reuse=False)
    assert generate(off, prompt, 10) == generate(off, prompt, 10) == answer
    assert off.stats()["prompt_tokens"] == 80 and off.stats()["kv_cached_blocks"] == 0


def test_requests_with_one_prompt_submitted_together_read_it_once(start):
    collector = Collector()
    executor, model = start(prefill_tokens=64)
    model.hold()
    for name in "abc":
        executor.submit(request(name, range(50), 10, collector))
    model.release()
    collector.wait("a", "b", "c")
    assert executor.stats()["prompt_tokens"] == 50 + 2
    assert all(collector.tokens(name) == expected_tokens(range(50), 10) for name in "abc")


def test_a_beam_search_uses_and_leaves_the_prompt(start):
    executor, _ = start(max_beam_width=3, tokens_per_block=8)
    prompt = list(range(30))
    generate(executor, prompt, 4)
    beams = generate(executor, prompt, 8, beam_width=3)
    assert executor.stats()["prompt_tokens"] == 31
    off, _ = start(max_beam_width=3, enable_kv_cache_reuse=False)
    assert beams == generate(off, prompt, 8, beam_width=3)
    assert generate(executor, [*prompt, 5], 4, beam_width=2) == generate(off, [*prompt, 5], 4, beam_width=2)
    assert executor.stats()["kv_blocks_used"] == 0


def test_the_logits_of_the_prompt_turn_reuse_off(start):
    collector = Collector()
    executor, _ = start()
    generate(executor, range(40), 4)
    one = request("logits", range(40), 4, collector)
    one.return_context_logits = True
    executor.submit(one)
    collector.wait("logits")
    assert collector.outputs["logits"][0].context_logits.shape == (40, 97)
    assert executor.stats()["prompt_tokens"] == 80
    assert collector.outputs["logits"][-1].metrics.kv_cache_reused_blocks == 0


def test_what_a_cancelled_request_had_read_is_kept(start):
    collector = Collector()
    executor, model = start(prefill_tokens=10, tokens_per_block=8)
    model.hold()
    executor.submit(request("a", range(90), 10, collector))
    model.allow(3)
    wait_until(lambda: executor.stats()["prompt_tokens"] == 30)
    executor.cancel("a")
    model.release()
    collector.wait("a")
    read = executor.stats()["prompt_tokens"]
    assert generate(executor, range(90), 10) == expected_tokens(range(90), 10)
    assert executor.stats()["prompt_tokens"] - read == 90 - read


def test_a_failed_step_leaves_nothing(start):
    collector = Collector()
    executor, model = start(prefill_tokens=10, tokens_per_block=8)
    model.hold()
    executor.submit(request("a", range(40), 4, collector))
    model.allow(2)
    wait_until(lambda: executor.stats()["prompt_tokens"] == 20)
    model.broken = RuntimeError("no")
    model.release()
    collector.wait("a")
    model.broken = None
    assert collector.reason("a") == "error" and executor.stats()["kv_cached_blocks"] == 0
    assert generate(executor, range(40), 4) == expected_tokens(range(40), 4)
    assert executor.stats()["prompt_tokens"] == 60


def test_only_whole_blocks_of_prompts_are_exact():
    tree = PrefixTree(2, lambda place: None)
    assert len(tree.insert([1, 2, 3, 4, 5, 6, 7], room=9, exact=5)) == 4
    assert [span.first for span in tree.match([1, 2, 3, 4, 5, 6, 7], exact=True)] == [0, 2]
    assert len(tree.match([1, 2, 3, 4, 5, 6, 7])) == 4
    assert tree.match([1, 9], exact=True) == [] and len(tree.match([1, 9])) == 1
    again = tree.insert([1, 2, 3, 4, 5, 6, 8], room=9, exact=7)  # 5, 6 was generated, and now it was read
    assert [(span.first, span.count) for span in again] == [(4, 2), (6, 1)]
    assert len(tree.match([1, 2, 3, 4, 5, 6, 8, 8], exact=True)) == 3


def test_int4_reuse_changes_no_bit(smollm2_engine_int4):
    """Other pieces of a prompt would give other roundings, and now and then another token."""
    prompt = np.random.default_rng(1).integers(1000, 40_000, 200)
    alone = served(smollm2_engine_int4, [prompt], enable_kv_cache_reuse=False)
    twice = served(smollm2_engine_int4, [prompt, prompt, np.append(prompt[:190], 7)])
    assert np.array_equal(twice[0].generation_logits, alone[0].generation_logits)
    assert np.array_equal(twice[1].generation_logits, alone[0].generation_logits)
    assert [output.metrics.kv_cache_reused_blocks for output in twice] == [0, 3, 2]


def served(engine, prompts, **options):
    """The last output of each prompt, one after the other; the answers are one token, with its logits."""
    with Executor(engine, max_batch_size=2, **options) as executor:
        found = []
        for number, prompt in enumerate(prompts):
            outputs = Collector()
            executor.submit(Request(str(number), prompt, 1, on_output=outputs, return_generation_logits=True))
            outputs.wait(str(number))
            found.append(outputs.outputs[str(number)][-1])
        return found


@pytest.mark.parametrize("max_tokens, read", [(6, 2), (1, 1)])
def test_the_sequences_of_one_request_read_its_prompt_once(start, max_tokens, read):
    """Of num_return_sequences 5, three run at once. When the others begin, none runs any more from which they could
    copy keys and values; for one token they need none."""
    executor, model = start(max_batch_size=3, enable_kv_cache_reuse=False, prefill_tokens=8)
    received, prompt = Collector(), list(range(11))
    one = request("0", prompt, max_tokens, received)
    for name in "01234":
        executor.submit(replace(one, id=name, return_context_logits=name == "0"))
    received.wait(*"01234")
    for name in "01234":
        assert received.tokens(name) == expected_tokens(prompt, max_tokens)
    assert executor.stats()["prompt_tokens"] == read * len(prompt)
    assert received.outputs["0"][0].context_logits.shape[0] == len(prompt)
    executor.submit(replace(one, id="late"))
    executor.submit(request("other", prompt, max_tokens, received))  # a request of its own, which happens to be equal
    received.wait("late", "other")
    assert received.tokens("late") == received.tokens("other") == expected_tokens(prompt, max_tokens)
    assert executor.stats()["prompt_tokens"] == (read + (2 if max_tokens > 1 else 1)) * len(prompt)
