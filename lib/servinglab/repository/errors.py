"""The error of this package, and the hint that its messages end with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from servinglab.errors import CourseError


class RepositoryError(CourseError):
    """A repository, a template or a spec that cannot be used. The message says what, where and what to do."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question that names the nearest known word, with a space before it; empty when no word is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
