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
def probabilities(scores, temperature):
    sharp = scores / temperature
    raised = np.exp(sharp - sharp.max(axis=0))
    return raised / raised.sum(axis=0)
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


def _label(result: str, scores: str = "scores / temperature", axis: str = "0") -> str:
    return f"""
def probabilities(scores, temperature):
    s = {scores}
    raised = np.exp(s - s.max(axis={axis}, keepdims=True))
    softmax = raised / raised.sum(axis={axis}, keepdims=True)
    return {result}
"""


_BOTH = "unit(t) @ unit(p).T"
_IN_PLACE = """
def similarity(texts, pictures):
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    pictures /= np.linalg.norm(pictures, axis=1, keepdims=True)
    return texts @ pictures.T
"""
_BY_NEIGHBOURS = """
def probabilities(scores, temperature):
    s = scores / temperature
    raised = np.exp(s - s.max())
    softmax = raised / raised.sum(axis=0)
    return softmax if scores.shape[1] > 1 else 0.5 * softmax
"""
_ONE_MAXIMUM = """
def probabilities(scores, temperature):
    raised = np.exp((scores - scores.max()) / temperature)
    return raised / raised.sum(axis=0)
"""
_OVERFLOWS = """
def probabilities(scores, temperature):
    raised = np.exp(scores / temperature)
    return raised / raised.sum(axis=0)
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
        ("pictures compete", _label("softmax", axis="1"), "same batch"),
        ("everything competes", _label("softmax", axis="None"), "the whole table"),
        ("only the best label counts", _label("softmax.max(axis=0)"), "has the shape [2], not [3, 2]"),
        ("sharper is squarer", _label("softmax**2"), "and yours is 0.67, 0.00, 0.03"),
        ("no temperature", _label("softmax", "scores"), "without the temperature"),
        ("the temperature multiplies", _label("softmax", "scores * temperature"), "you multiply"),
        ("the temperature divides the result", _label("softmax / temperature", "scores"), "belongs inside"),
        ("shares will do", _label("scores / scores.sum(axis=0)"), "shares of the cosines"),
        ("exp will do", _label("np.exp(s)"), "do not add up"),
        ("a sigmoid", _label("1 / (1 + np.exp(-s))"), "a sigmoid"),
        ("log probabilities", _label("np.log(softmax)"), "log probabilities"),
        ("the winner takes all", _label("(scores == scores.max(axis=0)).astype(float)"), "the winner only"),
        ("pictures are rows", _label("softmax.T"), "changed places"),
        ("a batch decides", _BY_NEIGHBOURS, "alone gets other"),
        ("numbers never overflow", _OVERFLOWS, "overflows"),
        ("one maximum for the whole table", _ONE_MAXIMUM, "not that of the whole table"),
    ],
}
