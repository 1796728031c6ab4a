"""Answers of notebook 13, and what people believe instead."""

SETUP = "import numpy as np"

SOLUTIONS = {
    "13.1": """
options = {
    "input_names": ["input_ids", "attention_mask"], "output_names": ["text_embedding"],
    "dynamic_axes": {"input_ids": {0: "batch", 1: "tokens"}, "attention_mask": {0: "batch", 1: "tokens"},
                     "text_embedding": {0: "batch"}},
}
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


def _options(right: str, wrong: str, count: int = -1) -> str:
    assert right in SOLUTIONS["13.1"]
    return SOLUTIONS["13.1"].replace(right, wrong, count)


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


MUTANTS = {
    "13.1": [
        ("names are a matter of taste", _options('["input_ids", "attention_mask"]', '["ids", "mask"]'), "these names"),
        ("the order does not matter", _options('["input_ids", "attention_mask"]', '["attention_mask", "input_ids"]'),
         "order of the module"),
        ("an example has any size", SOLUTIONS["13.1"].replace('"dynamic_axes": {', '"dynamic_axes": {} and {'),
         "takes 2 sentences and no other"),
        ("the batch is all that varies", _options(', 1: "tokens"', ""), "must have 5 tokens"),
        ("the mask follows the ids", _options('"attention_mask": {0: "batch", 1: "tokens"},', ""),
         "attention_mask takes 2"),
        ("open is open", _options('"tokens"', '"batch"'), "both dimensions"),
        ("everything is open", _options('"text_embedding": {0: "batch"}', '"text_embedding": {0: "batch", 1: "size"}'),
         "the same length"),
        ("outputs are called as in the code", _options('"text_embedding": {', '"output": {'), "no input and no output"),
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
