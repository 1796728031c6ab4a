"""Checks of notebook 00: the three waits, tokens per second, what max_tokens bounds."""

from __future__ import annotations

from servinglab.checks import exercise, right, wrong

_WAITS = ["start", "first", "next"]


@exercise("00.1", expects='a list of "start", "first" and "next"')
def waits(answer):
    if sorted(answer) != sorted(_WAITS):
        return wrong('use each of "start", "first" and "next" once')
    order = list(answer)
    if order == _WAITS:
        return right("starting loads the weights, the first token reads the whole prompt, each next one is one step")
    if order[0] != "start":
        return wrong("an answer waits less than the start: the weights are loaded once, at the start, not per answer")
    return wrong("the first token is not as quick as the next: the model must read the whole prompt before it")


@exercise("00.2", expects="a function of a list of seconds that returns a number")
def rate(answer):
    # First token after 1 s, then two more, 0.25 s apart: 2 tokens in 0.5 s.
    got, even = answer([1.0, 1.25, 1.5]), answer([2.0, 2.5, 3.0, 3.5, 4.0])
    if abs(got - 4.0) < 1e-6 and abs(even - 2.0) < 1e-6:
        return right("n arrivals have n - 1 waits between them, and the first token's wait is not one of them")
    if abs(got - 6.0) < 1e-6:
        return wrong("you divided the number of tokens by the time after the first: n tokens have n - 1 waits")
    if abs(got - 2.0) < 1e-6:
        return wrong("you counted the wait for the first token as generation: start the clock at the first arrival")
    if abs(got - 2.0 / 1.5) < 1e-6:
        return wrong("the waits are counted right, but the clock starts at the first arrival, not at the request")
    if abs(got - 0.25) < 1e-6:
        return wrong("that is seconds per token; tokens per second is its inverse")
    return wrong(f"for arrivals at 1.0, 1.25 and 1.5 s you return {got:g}; two tokens came in the last 0.5 s")


@exercise("00.3", expects="a number")
def bound(answer):
    if answer == 42:
        return right("max_tokens bounds the new tokens only: 30 + 12")
    if answer == 12:
        return wrong("that would be a bound on prompt and answer together; max_tokens counts new tokens only")
    if answer == 30:
        return wrong("a prompt longer than max_tokens is no obstacle: max_tokens counts new tokens only")
    return wrong("add the prompt's tokens and the new ones")
