"""Answers of notebook 15, and what people believe instead."""

SETUP = "import numpy as np"

SOLUTIONS = {
    "15.2": """
def nearest(query, rows, k):
    cosines = rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query)
    return np.argsort(-cosines)[:k]
""",
    "15.3": """
def filtered(scores, keep, k):
    rows = np.flatnonzero(keep)
    return rows[np.argsort(-scores[rows])][:k]
""",
    "15.1": """
def add(item, put_document, upsert_vector, acknowledge):
    put_document(item)
    upsert_vector(item)
    acknowledge(item)
""",
}


def _nearest(body: str) -> str:
    return f"def nearest(query, rows, k):\n    lengths = np.linalg.norm(rows, axis=1)\n    return {body}"


def _filtered(body: str) -> str:
    return f"def filtered(scores, keep, k):\n    rows = np.flatnonzero(keep)\n    return {body}"


def _add(*calls: str) -> str:
    lines = "\n".join(f"    {call}" for call in calls)
    return f"def add(item, put_document, upsert_vector, acknowledge):\n{lines}"


MUTANTS = {
    "15.2": [
        ("the smallest cosine is the nearest", _nearest("np.argsort(rows @ query / lengths)[:k]"), "argsort counts up"),
        ("the dot product is the cosine", _nearest("np.argsort(-(rows @ query))[:k]"), "a long row wins"),
        (
            "distance and cosine order alike",
            _nearest("np.argsort(np.linalg.norm(rows - query, axis=1))[:k]"),
            "only when all rows have length 1",
        ),
        (
            "the largest distance is the nearest",
            _nearest("np.argsort(-np.linalg.norm(rows - query, axis=1))[:k]"),
            "a distance is best when small",
        ),
        ("scores are what a search returns", _nearest("np.sort(rows @ query / lengths)[::-1][:k]"), "these are scores"),
        (
            "a length is the sum of absolute values",
            _nearest("np.argsort(-(rows @ query / np.abs(rows).sum(axis=1)))[:k]"),
            "right for five rows",
        ),
        ("any order will do", _nearest("np.argsort(-(rows @ query / lengths))[:k][::-1]"), "another order"),
    ],
    "15.3": [
        (
            "filter after the nearest were taken",
            _filtered("[row for row in np.argsort(-scores)[:k] if keep[row]]"),
            "the nearest two, then the filter",
        ),
        ("the filter is only a wish", _filtered("np.argsort(-scores)[:k]"), "the filter was not used"),
        ("times the mask is a filter", _filtered("np.argsort(-scores * keep, kind='stable')[:k]"), "a cosine below 0"),
        ("numbers among those that pass are rows", _filtered("np.argsort(-scores[rows])[:k]"), "count among the rows"),
        (
            "twice as many are enough",
            _filtered("[row for row in np.argsort(-scores)[: 2 * k + 1] if keep[row]][:k]"),
            "of forty rows",
        ),
        ("fill up to k", _filtered("[*rows[np.argsort(-scores[rows])], *np.flatnonzero(~keep)][:k]"), "one row passes"),
    ],
    "15.1": [
        (
            "the vector first, because searches need it",
            _add("upsert_vector(item)", "put_document(item)", "acknowledge(item)"),
            "before its document",
        ),
        (
            "acknowledge first, write later",
            _add("acknowledge(item)", "put_document(item)", "upsert_vector(item)"),
            "before anything was written",
        ),
        (
            "one store is enough to acknowledge",
            _add("put_document(item)", "acknowledge(item)", "upsert_vector(item)"),
            "one of two writes",
        ),
        (
            "an error can be passed over",
            _add("try:", "    put_document(item)", "    upsert_vector(item)", "except Exception:", "    pass",
                 "acknowledge(item)"),
            "store is swallowed",
        ),
        (
            "whatever happens, acknowledge",
            _add("try:", "    put_document(item)", "    upsert_vector(item)", "finally:", "    acknowledge(item)"),
            "as `finally` does",
        ),
        (
            "a write returns whether it worked",
            _add("if put_document(item) and upsert_vector(item):", "    acknowledge(item)"),
            "expect no return value",
        ),
        ("no acknowledgement is needed", _add("put_document(item)", "upsert_vector(item)"), "nobody hears"),
        ("the document store is a cache", _add("upsert_vector(item)", "acknowledge(item)"), "document is not written"),
    ],
}  # fmt: skip
