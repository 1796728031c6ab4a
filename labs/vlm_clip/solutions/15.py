"""Answers of notebook 15, and what people believe instead."""

SETUP = """
import sys, tempfile
import numpy as np
from servinglab.root import find_root

sys.path.append(str(find_root() / "labs" / "vlm_clip"))

class Lazy:  # the two stores, from when the check first looks at them
    def __getattr__(self, name):
        from cliplab import indexing
        vars(self).update(vars(indexing.Stores(tempfile.mkdtemp())))
        return vars(self)[name]

stores = Lazy()
"""

LIVE = {"15.1"}

SOLUTIONS = {
    "15.2": """
wish = {
    "mongo": {"category": {"$in": ["animals", "food"]}, "price_cents": {"$gte": 2000, "$lte": 6000}},
    "milvus": 'category in ["animals", "food"] and price_cents >= 2000 and price_cents <= 6000',
}
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


def _wish(right: str, wrong: str) -> str:
    assert right in SOLUTIONS["15.2"]
    return SOLUTIONS["15.2"].replace(right, wrong)


def _filtered(body: str) -> str:
    return f"def filtered(scores, keep, k):\n    rows = np.flatnonzero(keep)\n    return {body}"


def _add(*calls: str) -> str:
    lines = "\n".join(f"    {call}" for call in calls)
    return f"def add(item, put_document, upsert_vector, acknowledge):\n{lines}"


MUTANTS = {
    "15.2": [
        ("prices are euros", _wish('{"$gte": 2000, "$lte": 6000}', '{"$gte": 20, "$lte": 60}'), "mongo: prices are"),
        ("from is above", _wish('"$gte"', '"$gt"'), "mongo: 2000 cents do not pass"),
        ("to is below", _wish("<= 6000", "< 6000"), "milvus: 6000 cents do not pass"),
        ("a key may come twice", _wish('{"$gte": 2000, "$lte": 6000}', '{"$gte": 2000}, "price_cents": {"$lte": 6000}'),
         "one key twice"),
        ("or comes first", _wish('category in ["animals", "food"]', 'category == "animals" or category == "food"'),
         "binds tighter"),
        ("and lists categories", _wish('category in ["animals", "food"]',
         'category == "animals" and category == "food"'), "never both"),
        ("the first one will do", _wish('{"$in": ["animals", "food"]}', '"animals"'), "one of the two"),
        ("the upper end is understood", _wish(" and price_cents <= 6000", ""), "milvus: a picture above 60"),
        ("MongoDB says between", _wish('"$gte"', '"$from"'), "is no comparison"),
        ("a text needs no quotes", _wish('in ["animals", "food"] and', "in [animals, food] and"), "stands in quotes"),
        ("Milvus reads SQL", _wish("price_cents >= 2000 and", "price_cents between 2000 and"), "could not read"),
        ("both read texts", 'wish = {"mongo": "category = food", "milvus": "category = food"}', "takes a dict"),
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
