"""The one base class of every error a learner may meet, and the hint that its messages end with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

FAULT = "failed on this request:"  # marks, in a message of our Triton models, an error that is not the client's


class CourseError(Exception):
    """An expected failure. Its message is one clear sentence: what went wrong, where, and what to do."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question that names the nearest known word, with a space before it; empty when no word is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
