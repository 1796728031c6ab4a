"""The scheduler alone: whatever comes and goes, slots stay 0 … n-1 and blocks add up."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from servinglab.executor.cache import BlockPool
from servinglab.executor.params import SamplingParams
from servinglab.executor.request import Request
from servinglab.executor.scheduler import Scheduler, Sequence


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
    assert admitted == arrived[: len(admitted)], "nobody overtakes"
