"""Exercises of notebook 16: ids of pictures in a prompt; an extra id and a guard on the live server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral

import numpy as np

from servinglab.checks import Verdict, exercise, is_stub, right, unattempted, wrong

# --- 16.1: where pictures stand in a prompt ---------------------------------------------------------------------------

_PARTS, _SIZE, _ROWS = [[5, 6], [7], [8, 9]], 100, 3
_IDS = [5, 6, 100, 101, 102, 7, 103, 104, 105, 8, 9]
_PROMPTS = {
    "the second picture begins at vocab_size again, so the model would see the first picture twice: its rows lie below "
    "those of the first": [5, 6, 100, 101, 102, 7, 100, 101, 102, 8, 9],
    "vocab_size itself is no word: ids are counted from 0, so the last word is vocab_size - 1 and the first row "
    "vocab_size": [5, 6, 101, 102, 103, 7, 104, 105, 106, 8, 9],
    "each picture has one id, and so one row of its three": [5, 6, 100, 7, 101, 8, 9],
    "all ids of a picture are equal: that is its first row, three times": [5, 6, 100, 100, 100, 7, 101, 101, 101, 8, 9],
    "row numbers of the table count from vocab_size: 0 to 2 are words": [5, 6, 0, 1, 2, 7, 3, 4, 5, 8, 9],
    "a picture stands between two texts, so there are two of them: you put one behind the last text, too":
        [5, 6, 100, 101, 102, 7, 103, 104, 105, 8, 9, 106, 107, 108],
    "the pictures stand in front of all texts; the words around a picture say what it is for":
        [100, 101, 102, 103, 104, 105, 5, 6, 7, 8, 9],
}  # fmt: skip


@exercise("16.1", expects="a function prompt_ids(parts, vocab_size, rows) that returns a list of ids")
def prompt_ids(answer: Callable[[list[list[int]], int, int], Sequence[int]]) -> Verdict:
    found = [int(id) for id in answer([list(part) for part in _PARTS], _SIZE, _ROWS)]
    if found != _IDS:
        said = next((text for text, ids in _PROMPTS.items() if ids == found), None)
        return wrong(said or f"for {_PARTS}, vocab_size {_SIZE} and {_ROWS} rows you return {found}")
    for parts, expected in (([[1]], [1]), ([[], [1]], [50, 51, 1])):
        found = [int(id) for id in answer(parts, 50, 2)]
        if found != expected:
            return wrong(f"for the parts {parts}, vocab_size 50 and 2 rows comes {expected}, not {found}")
    return right("the second picture's rows follow those of the first: one id, one row of the table")


# --- 16.2: a picture's extra id, asked of the running server ----------------------------------------------------------


@exercise("16.2", expects="a function extra_id(pixels) that returns a whole number")
def extra_id(answer: tuple[Callable[[np.ndarray], int], Callable[[np.ndarray, int], tuple[str, int]], np.ndarray]):
    name, ask, (one, other) = answer
    if is_stub(name):
        return unattempted()
    ids = [name(pixels.copy()) for pixels in (one, other, one)]
    if not all(isinstance(id, Integral) and 0 < id < 2**64 for id in ids):
        return wrong(f"the server wants a whole number from 1 to 2**64 - 1, and got {ids[0]!r}")
    truth = [ask(pixels, int(np.random.default_rng().integers(2**62, 2**63)))[0] for pixels in (one, other)]
    first = ask(one, int(ids[0]))[0]
    second, third = ask(other, int(ids[1]))[0], ask(one, int(ids[2]))
    if first != truth[0]:
        return wrong(f"the server kept blocks of another picture under this id: {first!r}; depend on the pixels alone")
    if second != truth[1]:
        return wrong(f"the trap is still there: the second picture is called {second!r}, and it is {truth[1]!r}")
    if ids[0] != ids[2] or not third[1]:
        return wrong("the same picture came again under another id, and no KV block was reused: make it of the pixels")
    if name(one[:, :, ::-1].copy()) == ids[0]:
        return wrong("a picture and its mirror image share an id: use the bytes in their order, not a sum of them")
    for place in ((0, 0, 0), (1, 100, 100), (2, -1, -1)):
        changed = one.copy()
        changed[place] += np.float16(0.5)
        if name(changed) == ids[0]:
            return wrong(f"a picture that differs in one pixel only, at {place}, has the same id: read all of them")
    return right(f"{second!r} for the second picture, and {third[1]} block reused when the first came again")


# --- 16.3: a guard in front of the running ensemble -------------------------------------------------------------------

_THING, _THERE, _COLOUR = "a dog", "Is there a dog?", "What colour is the dog?"
_MISTAKES = {  # what the model says to _THERE → what is wrong when the guard does not do as it should
    "No.": "the model says No, and goes along when it is asked for the colour: ask first whether the thing is there",
    "A cat.": "A cat. is no Yes: only an answer that says yes lets the question through",
    "Yes.": "the thing is there and no answer came: a guard that refuses all invents nothing and finds nothing",
    "yes": "yes in small letters is a Yes, too",
}


def _says_yes(text: str) -> bool:
    return text.lower().startswith("yes")


@exercise("16.3", expects="a function careful(ask_it, thing, question) that returns an answer or None")
def careful(answer: tuple[Callable, Callable[[list[tuple]], list[str]], list[tuple[np.ndarray, str, str]]]) -> Verdict:
    guard, ask, doubts = answer
    if is_stub(guard):
        return unattempted()

    def guarded(thing: str, question: str, reply: Callable[[str], str]) -> tuple[str | None, dict[str, str]]:
        """What the guard returns, and what it asked: question → what the model said."""
        said = {}
        return guard(lambda text: said.setdefault(text, reply(text)), thing, question), said

    for there, mistake in _MISTAKES.items():
        found, said = guarded(_THING, _COLOUR, {_THERE: there, _COLOUR: "Brown."}.get)
        if strange := sorted(said.keys() - {_THERE, _COLOUR}):
            return wrong(f"the model was asked {strange[0]!r}: {_THING!r} has its article, so ask {_THERE!r}")
        if found not in (None, "Brown."):
            return wrong(f"you return {found!r}: the customer reads the answer to the question, or gets None")
        if (found is not None) != _says_yes(there):
            return wrong(mistake)
        if found is None and len(said) > 1:
            return wrong("a thing that is not there needs one request: put the customer's question only after a Yes")
    answered = 0
    for picture, thing, question in doubts:
        found, said = guarded(thing, question, lambda text, picture=picture: ask([(picture, text)])[0])
        if found != (said[question] if _says_yes(said.get(f"Is there {thing}?", "")) else None):
            return wrong(f"the ensemble said {said}, and you return {found!r}")
        answered += found is not None
    return right(f"{answered} of {len(doubts)} questions passed to the running ensemble; half were about absent things")
