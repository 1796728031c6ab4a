"""Exercises of notebook {{ number }}: pairs of dice, and the probability of a sum."""

from __future__ import annotations

import math
from collections.abc import Callable

from servinglab.checks import Verdict, exercise, right, wrong


@exercise("{{ number }}.1", expects="a whole number")
def pairs(answer: int) -> Verdict:
    if answer == 4:
        return right("1 + 4, 2 + 3, 3 + 2 and 4 + 1")
    if answer == 2:
        return wrong("1 + 4 and 4 + 1 are two pairs: tell the dice apart")
    return wrong("write down every pair that makes 5, the first die before the second")


@exercise("{{ number }}.2", expects="a function of one number that returns a probability")
def probability(answer: Callable[[int], float]) -> Verdict:
    found = [answer(total) for total in (7, 2, 13)]
    if all(map(math.isclose, found, [6 / 36, 1 / 36, 0])):
        return right("6 of 36 pairs make 7, one makes 2, none makes 13")
    if all(math.isclose(value, 1 / 11) for value in found):
        return wrong("the eleven sums are not equally likely: count the pairs of each")
    return wrong(f"for 7, 2 and 13 it returns {found}: divide the number of pairs by 36")
