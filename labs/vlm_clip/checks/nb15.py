"""Exercises of notebook 15: the order of neighbours, when to filter, the order of two writes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from servinglab.checks import Verdict, exercise, right, wrong

# --- 15.2: the nearest rows of an index -------------------------------------------------------------------------------

# Rows of different lengths: the second points the query's way, the fourth away from it, the fifth is long and askew.
_QUERY = np.array([1.0, 0.0])
_ROWS = np.array([[0.4, 0.3], [0.5, 0.0], [0.0, 2.0], [-1.0, 0.1], [3.0, 4.0]])
_NEAREST = [1, 0, 4]  # cosines 1, 0.8, 0.6; then 0 and -1


def _order(values: np.ndarray, *, largest: bool) -> list[int]:
    order = np.argsort(-values if largest else values, kind="stable")
    return [int(row) for row in order[: len(_NEAREST)]]


def _known_orders() -> list[tuple[list[int], str]]:
    cosines = _ROWS @ _QUERY / np.linalg.norm(_ROWS, axis=1)
    distances = np.linalg.norm(_ROWS - _QUERY, axis=1)
    return [
        (_order(cosines, largest=False), "the farthest ones: argsort counts up, and a similarity is best when large"),
        (
            _order(_ROWS @ _QUERY, largest=True),
            "that is the dot product, or lengths down the columns (axis 0): a long row wins without being near; divide "
            "by each row's own length, axis 1",
        ),
        (_order(distances, largest=False), "that is the order by distance: the same only when all rows have length 1"),
        (_order(distances, largest=True), "the largest distances: a distance is best when small"),
    ]


@exercise("15.2", expects="a function nearest(query, rows, k) that returns k row numbers")
def nearest_rows(nearest: Callable[[np.ndarray, np.ndarray, int], object]) -> Verdict:
    given = np.asarray(nearest(_QUERY.copy(), _ROWS.copy(), len(_NEAREST)))
    if given.shape != (len(_NEAREST),):
        return wrong(f"the answer has shape {given.shape}: k = {len(_NEAREST)} row numbers are asked for")
    if not np.issubdtype(given.dtype, np.integer):
        return wrong("these are scores: row numbers are asked for, because with them you find the documents")
    answer = [int(row) for row in given]
    if answer == _NEAREST:
        rows = np.random.default_rng(0).normal(size=(40, 8)) * np.arange(1, 41)[:, None]
        expected = np.argsort(-(rows @ rows[7] / np.linalg.norm(rows, axis=1)), kind="stable")[:5]
        found = [int(row) for row in np.asarray(nearest(rows[7].copy(), rows.copy(), 5))]
        if found != expected.tolist():
            return wrong(f"right for five rows; of forty others {expected.tolist()} are the best, and not {found}")
        return right("largest cosine first: rows 1, 0, 4, whatever their lengths")
    for order, said in _known_orders():
        if answer == order:
            return wrong(said)
    if sorted(answer) == sorted(_NEAREST):
        return wrong("the right rows in another order: the best comes first")
    return wrong(f"rows {answer} are not the nearest three; cosine = dot product / product of both lengths")


# --- 15.3: filter, then take the nearest ------------------------------------------------------------------------------

_SCORES = np.array([0.9, 0.8, -0.2, 0.7, -0.3, 0.6])
_KEEP = np.array([False, False, True, True, False, False])


@exercise("15.3", expects="a function filtered(scores, keep, k) that returns row numbers, best first")
def filter_before(filtered: Callable[[np.ndarray, np.ndarray, int], object]) -> Verdict:
    answer = [int(row) for row in filtered(_SCORES.copy(), _KEEP.copy(), 2)]
    if answer == [3, 2]:
        one = [int(row) for row in filtered(_SCORES.copy(), np.arange(6) == 5, 2)]
        if one != [5]:
            return wrong(f"one row passes and two are asked for: the answer is that one row alone, not {one}")
        scores, rare = np.linspace(1, -1, 40), np.arange(40) % 13 == 12
        found = [int(row) for row in filtered(scores.copy(), rare.copy(), 2)]
        if found != [12, 25]:
            return wrong(f"of forty rows only 12, 25 and 38 pass: the best two are 12 and 25, and not {found}")
        return right("rows that do not pass never compete; two were asked for and two came")
    if answer == []:
        return wrong("the nearest two, then the filter: both fail it, and nothing is found although two rows pass")
    if answer == [0, 1]:
        return wrong("rows 0 and 1 do not pass: the filter was not used")
    if answer == [1, 0]:
        return wrong("these count among the rows that pass; turn them back into rows of the whole index")
    if answer == [2, 3]:
        return wrong("the right rows in another order: the best comes first")
    if answer[:1] == [3]:
        return wrong("times the mask, a row that fails gets 0 and beats a cosine below 0: it must not compete at all")
    return wrong(f"rows {answer}; of the rows that pass, 3 has 0.7 and 2 has -0.2")


# --- 15.1: two stores, one failure ------------------------------------------------------------------------------------


class _Outage(Exception):
    """What a store raises when it cannot be reached."""


_CALLS = {"document": "put_document", "vector": "upsert_vector", "acknowledge": "acknowledge"}


def _run(add: Callable[..., object], failing: str | None) -> tuple[list[str], bool]:
    """The calls that worked, in order, and whether the caller heard of the failure."""
    done: list[str] = []

    def call(name: str) -> Callable[[object], None]:
        def work(item: object) -> None:
            if name == failing:
                raise _Outage(f"the {name} store does not answer")
            done.append(name)

        work.__qualname__ = _CALLS[name]  # what Python says when it is called in a wrong way
        return work

    try:
        add("kite", *map(call, _CALLS))
    except _Outage:
        return done, True
    return done, False


@exercise("15.1", expects="a function add(item, put_document, upsert_vector, acknowledge) that calls the three")
def order_of_writes(add: Callable[..., object]) -> Verdict:
    whole, _ = _run(add, None)
    for name in ("document", "vector"):
        if name not in whole:
            return wrong(
                f"both stores work, and yet the {name} is not written: call {_CALLS[name]}(item), and expect no return "
                "value of any of the three"
            )
    if "acknowledge" not in whole:
        return wrong("nobody hears that the item is safe, so it will be sent again: end with acknowledge(item)")
    for failing in ("document", "vector"):
        done, heard_of = _run(add, failing)
        if "acknowledge" in done and not heard_of:
            return wrong(
                f"an error of the {failing} store is swallowed, and an item that is not whole is acknowledged: leave "
                "out try, so that the error ends add"
            )
        if "acknowledge" in done and whole[-1] == "acknowledge":
            return wrong(
                f"acknowledge is called although the {failing} store has failed, as `finally` does: call it only after "
                "both writes have returned"
            )
        if done[:1] == ["acknowledge"]:
            return wrong(
                "the item is acknowledged before anything was written: when a store fails now, the caller believes in "
                "an item that is nowhere; call acknowledge last"
            )
        if "acknowledge" in done:
            return wrong(
                "the item is acknowledged after one of two writes: when the other fails, the caller believes in half "
                "an item; call acknowledge last"
            )
        if "vector" in done and "document" not in done:
            return wrong(
                "the vector is written before its document: when the document store fails now, a search finds an item "
                "about which nothing can be said; write the document first"
            )
        if not heard_of:
            return wrong(
                f"an error of the {failing} store is swallowed, so nobody tries again: leave out try, so that the "
                "error reaches the caller"
            )
    return right("document, vector, acknowledge: a failure leaves at most a document that no search finds")
