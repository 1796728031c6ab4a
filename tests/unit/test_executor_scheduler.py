"""The scheduler alone: whatever comes and goes, slots stay 0 … n-1 and blocks add up."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reference_backend.executor.cache import BlockPool
from reference_backend.executor.params import SamplingParams
from reference_backend.executor.request import Request
from reference_backend.executor.scheduler import Scheduler, Sequence


def sequence(prompt: int, max_tokens: int, width: int = 1) -> Sequence:
    request = Request("r", np.ones(prompt, np.int32), max_tokens, SamplingParams(beam_width=width))
    return Sequence(request, max_tokens, vocab_size=10)


def running(scheduler: Scheduler, *widths: int) -> list[Sequence]:
    made = [sequence(4, 4, width) for width in widths]
    for one in made:
        scheduler.add(one)
        assert scheduler.next_prompt() is one
        assert scheduler.join() is None
    return made


def test_the_last_rows_fill_the_holes():
    scheduler = Scheduler(BlockPool(1000, 10), 6)
    a, b, c, d, e = running(scheduler, 1, 1, 1, 1, 1)
    moves, freed = scheduler.retire([b, a])
    assert sorted(freed) == [0, 1]
    assert {(move.sequence, move.source) for move in moves} == {(d, 3), (e, 4)}
    assert sorted(s.slots for s in scheduler.running) == [[0], [1], [2]] and c.slots == [2]
    assert scheduler.pool.used == 3


def test_beams_have_a_slot_and_blocks_each_and_count_as_one_request():
    scheduler = Scheduler(BlockPool(1000, 10), 3)
    a, b, c = running(scheduler, 1, 4, 2)
    assert (a.slots, b.slots, c.slots) == ([0], [1, 2, 3, 4], [5, 6])
    assert scheduler.pool.used == 7 and scheduler.rows == 7
    scheduler.add(sequence(4, 4))
    assert scheduler.next_prompt() is None, "three requests run"
    moves, freed = scheduler.retire([b])
    assert freed == [1, 2, 3, 4] and scheduler.pool.used == 3
    assert sorted(c.slots) == [1, 2] and {(m.sequence, m.source) for m in moves} == {(c, 5), (c, 6)}
    assert [move.target for move in moves] == c.slots


def test_a_beam_request_waits_until_there_are_blocks_for_every_beam():
    scheduler = Scheduler(BlockPool(40, 10), 8)
    (a,) = running(scheduler, 1)
    scheduler.add(sequence(4, 4, 4))
    assert scheduler.next_prompt() is None and scheduler.pool.used == 1
    scheduler.retire([a])
    assert scheduler.next_prompt() and scheduler.pool.used == 4


def test_a_sequence_that_left_and_was_last_moves_nobody():
    scheduler = Scheduler(BlockPool(1000, 10), 6)
    made = running(scheduler, 1, 1, 1)
    assert scheduler.retire([made[2]]) == ([], [2])


def test_a_prefilled_sequence_moves_down_when_rows_left_meanwhile():
    scheduler = Scheduler(BlockPool(1000, 10), 6)
    a, b = running(scheduler, 1, 1)
    late = sequence(4, 4, 3)
    scheduler.add(late)
    assert scheduler.next_prompt() is late and late.slots == [2]
    scheduler.retire([a])
    move = scheduler.join()
    assert (move.sequence, move.source, move.target, late.slots) == (late, 2, 1, [1, 2, 3])
    assert scheduler.running == [b, late]


@given(st.lists(st.tuples(st.sampled_from("add read join leave".split()), st.integers(0, 50)), max_size=80))
def test_slots_and_blocks_always_add_up(events):
    scheduler = Scheduler(BlockPool(300, 10), 4)
    arrived, admitted = [], []
    for event, number in events:
        everyone = scheduler.everyone()
        if event == "add":
            arrived.append(sequence(1 + number, 1 + number, 1 + number % 3))
            scheduler.add(arrived[-1])
        elif event == "read":
            before = scheduler.prefilling
            if (head := scheduler.next_prompt()) and before is None:
                admitted.append(head)
        elif event == "join" and scheduler.prefilling:
            scheduler.join()
        elif event == "leave" and everyone:
            leaving = everyone[number % len(everyone) :: 2]
            before = {(s, row): slot for s in scheduler.running for row, slot in enumerate(s.slots)}
            moves, _ = scheduler.retire(leaving)
            arrived = [s for s in arrived if s not in leaving or s in admitted]
            assert sorted((move.source, move.target) for move in moves) == sorted(
                (slot, s.slots[row]) for (s, row), slot in before.items() if s not in leaving and s.slots[row] != slot
            )
        slots = [slot for s in scheduler.running for slot in s.slots]
        assert sorted(slots) == list(range(scheduler.rows))
        held = [*scheduler.running, *([scheduler.prefilling] if scheduler.prefilling else [])]
        assert len(held) <= 4
        assert not scheduler.prefilling or scheduler.prefilling.slots[0] >= scheduler.rows
        assert scheduler.pool.used == sum(s.blocks(scheduler.pool) for s in held) <= scheduler.pool.total
        assert [s.held for s in held] == [s.blocks(scheduler.pool) for s in held]
    assert admitted == arrived[: len(admitted)], "nobody overtakes"


# --- max_utilization: blocks are taken as they are needed


def advance(scheduler: Scheduler) -> list[Sequence]:
    """One step: some are preempted, the others get a token, those with all theirs leave. Returns the preempted."""
    preempted = scheduler.grow()
    scheduler.preempt(preempted)
    for one in list(scheduler.running):
        one.cached = one.decoder.length
        if one.width == 1 and one.decoder.step(np.zeros((1, 10), np.float32)).finish_reason:
            scheduler.retire([one])
    return preempted


def read(scheduler: Scheduler) -> list[Sequence]:
    """Reads every prompt there is room for."""
    got = []
    while one := scheduler.next_prompt():
        one.cached = len(one.tokens)
        one.decoder.step(np.zeros((1, 10), np.float32))
        scheduler.join()
        got.append(one)
    return got


def test_more_requests_run_when_blocks_are_taken_as_needed():
    careful = Scheduler(BlockPool(80, 10), 6)
    eager = Scheduler(BlockPool(80, 10), 6, policy="max_utilization")
    for scheduler in (careful, eager):
        for _ in range(5):
            scheduler.add(sequence(5, 20))
    assert (len(read(careful)), len(read(eager))) == (2, 5)


def test_the_youngest_pauses_and_comes_back_before_those_behind_it():
    scheduler = Scheduler(BlockPool(30, 10), 6, policy="max_utilization")
    a, b, c, d = (sequence(8, 20), sequence(8, 20), sequence(8, 20), sequence(3, 2))
    for one in (a, b, c, d):
        scheduler.add(one)
    assert read(scheduler) == [a, b, c]
    preempted = []
    while not preempted:
        preempted = advance(scheduler)
    assert preempted == [c, b] and list(scheduler.waiting) == [b, c, d], "a and b needed a block each"
    assert (b.slots, b.held, b.cached, a.slots) == ([], 0, 0, [0])
    assert scheduler.pool.used == a.held == 2
    assert b.tokens.tolist() == b.decoder.tokens and len(b.tokens) > 8
    assert scheduler.next_prompt() is None, "its tokens do not fit until somebody ends"
    while not scheduler.next_prompt():
        assert not advance(scheduler)
    assert scheduler.prefilling is b and a not in scheduler.running


def test_a_beam_search_never_pauses_under_max_utilization():
    scheduler = Scheduler(BlockPool(60, 10), 6, policy="max_utilization")
    a, beams = sequence(8, 20), sequence(8, 12, 2)
    for one in (a, beams):
        scheduler.add(one)
    assert read(scheduler) == [a, beams] and beams.held == 4
    b = sequence(8, 20)
    scheduler.add(b)
    assert read(scheduler) == [b]
    preempted = []
    while not preempted:
        preempted = advance(scheduler)
    assert preempted == [b]


@given(st.lists(st.tuples(st.integers(1, 25), st.integers(1, 30)), min_size=1, max_size=12), st.integers(1, 5))
def test_everybody_ends_and_no_block_is_lost_under_max_utilization(sizes, batch):
    scheduler = Scheduler(BlockPool(60, 10), batch, policy="max_utilization")
    made = [sequence(prompt, min(more, 60 - prompt)) for prompt, more in sizes]
    for one in made:
        scheduler.add(one)
    for _ in range(2000):
        read_now = read(scheduler)
        scheduler.retire([one for one in read_now if one.decoder.length == len(one.request.prompt) + one.max_tokens])
        advance(scheduler)
        begun = scheduler.running
        assert scheduler.pool.used == sum(one.held for one in begun) <= scheduler.pool.total
        assert all(one.held * 10 >= one.cached for one in begun)
        assert sorted(one.slots[0] for one in begun) == list(range(len(begun)))
        if not scheduler.everyone():
            break
    assert scheduler.pool.used == 0 and not scheduler.everyone()
    assert [one.decoder.length for one in made] == [len(one.request.prompt) + one.max_tokens for one in made]


# --- static batches


def test_nobody_joins_a_static_batch_that_has_begun():
    scheduler = Scheduler(BlockPool(1000, 10), 3, static=True)
    a, b = running(scheduler, 1, 1)
    scheduler.close()
    c = sequence(4, 4)
    scheduler.add(c)
    assert scheduler.next_prompt() is None
    scheduler.retire([a])
    assert scheduler.next_prompt() is None
    scheduler.retire([b])
    assert scheduler.next_prompt() is c
