"""What to do when Triton takes responses more slowly than the executor makes tokens."""

from __future__ import annotations

from collections import Counter
from typing import Any

# Items of one row waiting at once before they become one: a longer queue would only delay every token after it.
MERGE_ABOVE = 16


def merge(items: list) -> list:
    """The items in order, those of a row that is far behind merged as far as they allow.

    An item that belongs to a row has the attribute `row` and a method `absorb(later) -> bool`, which takes the row's
    next item in, or says that it cannot.
    """
    count = Counter(_row(item) for item in items)
    newest: dict[Any, Any] = {}
    merged = []
    for item in items:
        row = _row(item)
        if row is not None and count[row] > MERGE_ABOVE:
            if row in newest and newest[row].absorb(item):
                continue
            newest[row] = item
        merged.append(item)
    return merged


def _row(item: Any) -> Any:
    return getattr(item, "row", None)
