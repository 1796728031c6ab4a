"""Answers of notebook 13, and what people believe instead."""

SETUP = "import numpy as np"

SOLUTIONS = {
    "13.1": """
def similarity(texts, pictures):
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (texts, pictures)]
    return unit[0] @ unit[1].T
""",
    "13.2": """
def recall(scores, k):
    better = (scores > np.diag(scores)[:, None]).sum(axis=1)
    return np.mean(better < k)
""",
    "13.3": """
def gate(vectors, reference, limit):
    if not np.isfinite(vectors).all():
        raise ValueError("not finite")
    if np.allclose(vectors, vectors[0]):
        raise ValueError("the same vector for everybody")
    drift = (1 - (vectors * reference).sum(axis=1)).max()
    if drift > limit:
        raise ValueError(f"off by {drift:.2g}")
    return drift
""",
}


def _similarity(result: str, unit: str = "rows / np.linalg.norm(rows, axis=1, keepdims=True)") -> str:
    return f"""
def similarity(texts, pictures):
    unit = lambda rows: {unit}
    t, p = texts, pictures
    return {result}
"""


def _recall(result: str, scores: str = "scores") -> str:
    return f"""
def recall(scores, k):
    scores = {scores}
    rank = (scores > np.diag(scores)[:, None]).sum(axis=1)
    return {result}
"""


def _gate(right: str, wrong: str) -> str:
    assert right in SOLUTIONS["13.3"]
    return SOLUTIONS["13.3"].replace(right, wrong)


_BOTH = "unit(t) @ unit(p).T"
_IN_PLACE = """
def similarity(texts, pictures):
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    pictures /= np.linalg.norm(pictures, axis=1, keepdims=True)
    return texts @ pictures.T
"""

MUTANTS = {
    "13.1": [
        ("the dot product is enough", _similarity("t @ p.T"), "the plain dot product"),
        ("one side is enough", _similarity("unit(t) @ p.T"), "only the sentences"),
        ("the other side is enough", _similarity("t @ unit(p).T"), "only the pictures"),
        ("length is down the column", _similarity(_BOTH, "rows / np.linalg.norm(rows, axis=0)"), "axis 0"),
        ("one length for all", _similarity(_BOTH, "rows / np.linalg.norm(rows)"), "one number for all"),
        ("length is the sum", _similarity(_BOTH, "rows / rows.sum(1, keepdims=True)"), "sum of the numbers"),
        ("length is the sum of squares", _similarity(_BOTH, "rows / (rows**2).sum(1, keepdims=True)"), "the root"),
        ("normalise afterwards", _similarity("unit(t @ p.T)"), "rows of the result"),
        ("near is near", _similarity("np.linalg.norm(t[:, None] - p, axis=-1)"), "those are distances: "),
        (
            "near is near on the sphere",
            _similarity("np.linalg.norm(unit(t)[:, None] - unit(p), axis=-1)"),
            "distances of normalised",
        ),
        ("pictures first", _similarity("unit(p) @ unit(t).T"), "rows for pictures"),
        ("in place is thrifty", _IN_PLACE, "changed the caller's"),
    ],
    "13.2": [
        ("captions are ranked", _recall("np.mean(rank < k)", "scores.T"), "the other axis"),
        ("small is good", _recall("np.mean(rank < k)", "-scores"), "the lowest scores"),
        ("only the first counts", _recall("np.mean(rank < 1)"), "recall at 1"),
        ("only place k counts", _recall("np.mean(rank == k - 1)"), "place k only"),
        ("one place more", _recall("np.mean(rank <= k)"), "k + 1 places"),
        ("recall is precision", _recall("np.mean(rank < k) / k"), "precision"),
        ("a count", _recall("np.sum(rank < k)"), "a count"),
        ("chance", _recall("k / len(scores)"), "guessing"),
        ("eight captions", _recall("np.sum(rank < k) / 8"), "take both from the arguments"),
        ("argsort gives places", _recall("np.mean(np.diag(np.argsort(-scores)) < k)"), "numbers of argsort for places"),
        ("the mean rank", _recall("np.mean(rank)"), "count in each row"),
    ],
    "13.3": [
        ("nan is a large number", _gate("not np.isfinite(vectors).all()", "(vectors > 1e6).any()"), "nan passed"),
        ("only nan is no number", _gate("not np.isfinite(vectors).all()", "np.isnan(vectors).any()"), "infinite"),
        ("the reference sees everything", _gate("np.allclose(vectors, vectors[0])", "False"), "the same vector"),
        ("on average it is right", _gate(").max()", ").mean()"), "the mean hides it"),
        ("a sign is no matter", _gate("(vectors * reference).sum(axis=1)", "abs((vectors * reference).sum(axis=1))"),
         "the other way"),
        ("near is the same", _gate("vectors[0])", "vectors[0], atol=1)"), "you refuse the reference itself"),
        ("a report is enough", "def gate(vectors, reference, limit):\n    return False", "it refuses nothing"),
        ("return the cosine", _gate("return drift", "return 1 - drift"), "return 1 - cos"),
    ],
}  # fmt: skip
