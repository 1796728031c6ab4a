"""The scheduler alone: whatever comes and goes, slots stay 0 … n-1 and blocks add up."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from servinglab.executor.cache import BlockPool
from servinglab.executor.request import Request
from servinglab.executor.sampler import Sampler
from servinglab.executor.scheduler import Scheduler, Sequence


def sequence(prompt: int, max_tokens: int) -> Sequence:
    request = Request("r", np.ones(prompt, np.int32), max_tokens)
    return Sequence(request, Sampler(request, 10), max_tokens)


def running(scheduler: Scheduler, count: int) -> list[Sequence]:
    made = [sequence(4, 4) for _ in range(count)]
    for one in made:
        scheduler.add(one)
        assert scheduler.next_prompt() is one
        assert scheduler.join() is None
    return made


def test_the_last_rows_fill_the_holes():
    scheduler = Scheduler(BlockPool(1000, 10), 6)
    a, b, c, d, e = running(scheduler, 5)
    moves, freed = scheduler.retire([b, a])
    assert sorted(freed) == [0, 1]
    assert {(move.sequence, move.source) for move in moves} == {(d, 3), (e, 4)}
    assert [s.slot for s in scheduler.running] == [0, 1, 2] and scheduler.running[2] is c
    assert scheduler.pool.used == 3


def test_a_sequence_that_left_and_was_last_moves_nobody():
    scheduler = Scheduler(BlockPool(1000, 10), 6)
    made = running(scheduler, 3)
    assert scheduler.retire([made[2]]) == ([], [2])


def test_a_prefilled_sequence_moves_down_when_rows_left_meanwhile():
    scheduler = Scheduler(BlockPool(1000, 10), 6)
    a, b = running(scheduler, 2)
    late = sequence(4, 4)
    scheduler.add(late)
    assert scheduler.next_prompt() is late and late.slot == 2
    scheduler.retire([a])
    move = scheduler.join()
    assert (move.sequence, move.source, late.slot) == (late, 2, 1)
    assert scheduler.running == [b, late]


@given(st.lists(st.tuples(st.sampled_from("add read join leave".split()), st.integers(0, 50)), max_size=80))
def test_slots_and_blocks_always_add_up(events):
    scheduler = Scheduler(BlockPool(300, 10), 4)
    arrived, admitted = [], []
    for event, number in events:
        everyone = scheduler.everyone()
        if event == "add":
            arrived.append(sequence(1 + number, 1 + number))
            scheduler.add(arrived[-1])
        elif event == "read":
            before = scheduler.prefilling
            if (head := scheduler.next_prompt()) and before is None:
                admitted.append(head)
        elif event == "join" and scheduler.prefilling:
            scheduler.join()
        elif event == "leave" and everyone:
            leaving = everyone[number % len(everyone) :: 2]
            before = {s: s.slot for s in scheduler.running}
            moves, _ = scheduler.retire(leaving)
            arrived = [s for s in arrived if s not in leaving or s in admitted]
            assert {move.sequence: move.source for move in moves} == {
                s: slot for s, slot in before.items() if s not in leaving and s.slot != slot
            }
        assert [s.slot for s in scheduler.running] == list(range(len(scheduler.running)))
        held = [*scheduler.running, *([scheduler.prefilling] if scheduler.prefilling else [])]
        assert len(held) <= 4
        assert len({s.slot for s in held}) == len(held)
        assert scheduler.pool.used == sum(scheduler.pool.blocks(s.reserved) for s in held) <= scheduler.pool.total
    assert admitted == arrived[: len(admitted)], "nobody overtakes"
