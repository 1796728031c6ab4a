"""Exercises of notebook 15: a filter in two languages, when to filter, the order of two writes."""

from __future__ import annotations

import ast
import contextlib
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from servinglab.checks import Verdict, exercise, is_stub, right, unattempted, wrong
from servinglab.errors import CourseError

# --- 15.2: one wish in two languages ----------------------------------------------------------------------------------

_WANTED = [{"category": name, "price_cents": cents} for name in ("animals", "food") for cents in (2000, 3970, 6000)]
_REFUSED = {  # what passes a filter and must not, by what it shows
    "a picture below 20 euros passes; does your dict have one key twice? Only the last one counts": [("food", 1999)],
    "prices are stored in cents: 60 euros are 6000": [("food", 20), ("food", 40)],
    "a picture above 60 euros passes": [("food", 6001)],
    "an animal of any price passes: `and` binds tighter than `or`, so use `in`, or brackets": [("animals", 9000)],
    "a picture of another category passes": [("town", 3000)],
}
_COMPARE = {"$eq": operator.eq, "$ne": operator.ne, "$lt": operator.lt, "$lte": operator.le, "$gt": operator.gt,
            "$gte": operator.ge, "$in": lambda value, among: value in among}  # fmt: skip


def _mongo(query: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    """Whether a document matches; ValueError for what MongoDB would refuse, or what this exercise does not need."""
    for key, wanted in query.items():
        if key in ("$and", "$or"):
            found = (all if key == "$and" else any)(_mongo(each, document) for each in wanted)
        elif key not in document:
            raise ValueError(f"a record has category and price_cents, no {key!r}")
        elif isinstance(wanted, Mapping):
            if strange := [name for name in wanted if name not in _COMPARE]:
                raise ValueError(f"{strange[0]!r} is no comparison; use $in, $gte, $lte")
            found = all(_COMPARE[name](document[key], value) for name, value in wanted.items())
        else:
            found = document[key] == wanted
        if not found:
            return False
    return True


def _milvus(text: str, document: Mapping[str, Any]) -> bool:
    """The same for Milvus's language, as far as it is Python's; a call or an attribute is none."""
    try:
        tree = ast.parse(re.sub(r"(?i)\b(and|or|in|not)\b", lambda word: word[0].lower(),
                                text.replace("&&", " and ").replace("||", " or ")).strip(), mode="eval")  # fmt: skip
    except SyntaxError as error:
        raise ValueError(f"Milvus could not read it, near {error.text!r}") from None
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if strange := sorted(names - set(document)):
        raise ValueError(f"a row has category and price_cents, no {strange[0]}; a text stands in quotes")
    if any(isinstance(node, ast.Call | ast.Attribute | ast.Subscript) for node in ast.walk(tree)):
        raise ValueError("compare fields with values; nothing else is needed")
    return bool(eval(compile(tree, "filter", "eval"), {"__builtins__": {}}, dict(document)))


@exercise("15.2", expects="a dict with mongo, a dict, and milvus, a text")
def wish(answer: Mapping[str, Any]) -> Verdict:
    if any(is_stub(answer[store]) for store in ("mongo", "milvus")):
        return unattempted()
    for store, passes, kind in (("mongo", _mongo, Mapping), ("milvus", _milvus, str)):
        query = answer[store]
        if not isinstance(query, kind):
            return wrong(f"{store}: MongoDB takes a dict, Milvus a text")
        try:
            missed = [document for document in _WANTED if not passes(query, document)]
            let_in = [
                said
                for said, documents in _REFUSED.items()
                if any(passes(query, {"category": name, "price_cents": cents}) for name, cents in documents)
            ]
        except ValueError as error:
            return wrong(f"{store}: {error}")
        if let_in:
            return wrong(f"{store}: {let_in[0]}")
        if {document["category"] for document in missed} == {"animals"} or missed == _WANTED[3:]:
            return wrong(f"{store}: one of the two categories never passes")
        if len(missed) == len(_WANTED):
            return wrong(f"{store}: nothing passes; a picture has one category, never both")
        if missed:
            return wrong(f"{store}: {missed[0]['price_cents']} cents do not pass: both ends are included")
    return right("one wish, two languages, the same six pictures")


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


def _on_stores(add: Callable[..., object], stores: Any, refused: str = "") -> tuple[bool, bool, bool]:
    """Whether the real stores have the item, document and vector, and whether the caller believes so; one of the two
    gets something that it cannot store."""
    from cliplab.documents import FIELDS

    told: list[object] = []
    item = dict.fromkeys(FIELDS, "exercise 15.1") | {"_id": "exercise-15.1", "price_cents": 1}
    caption = object() if refused == "document" else "a kite"
    vector = np.eye(1, 3 if refused == "vector" else 384, dtype=np.float32)
    try:
        with contextlib.suppress(CourseError):
            add(
                item,
                lambda one: stores.documents.put([one | {"caption": caption}]),
                lambda one: stores.vectors.upsert([one["_id"]], vector, [one["category"]], [1], [one["fingerprint"]]),
                told.append,
            )
        name = item["_id"]
        return name in stores.documents.get([name]), name in stores.vectors.rows(), bool(told)
    finally:
        stores.documents.delete([item["_id"]])
        stores.vectors.delete([item["_id"]])


@exercise("15.1", expects="a function add(item, put_document, upsert_vector, acknowledge) that calls the three")
def order_of_writes(answer: tuple[Callable[..., object], Any]) -> Verdict:
    add, stores = answer
    if is_stub(add):
        return unattempted()
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
    expected = {"": (True, True, True), "vector": (True, False, False), "document": (False, False, False)}
    for refused, wanted in expected.items():
        if (found := _on_stores(add, stores, refused)) != wanted:
            held = ", ".join(f"{what}: {yes}" for what, yes in zip(("document", "vector", "told"), found, strict=True))
            return wrong(f"on your two stores, {f'when the {refused} is refused' if refused else 'in order'}: {held}")
    return right("your stores refused a vector, and kept one document that no search finds; nobody was told it is safe")
