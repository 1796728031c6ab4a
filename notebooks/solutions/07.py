"""Answers of notebook 07, and what people believe instead."""

SETUP = "import exercises, numpy as np; client = exercises.served"

LIVE = {"07.3"}

SOLUTIONS = {
    "07.1": """
def top_k(logits, k):
    weights = np.exp(logits - logits.max())
    if 0 < k < len(logits):
        weights[np.argsort(-weights)[k:]] = 0
    return weights / weights.sum()
""",
    "07.2": """
def top_p(probabilities, p):
    order = np.argsort(-probabilities)
    missed = np.cumsum(probabilities[order]) < p
    kept = np.zeros(len(probabilities))
    leading = order[: missed.sum() + 1]
    kept[leading] = probabilities[leading]
    return kept / kept.sum()
""",
    "07.3": """
answer_3 = {"repetition_penalty": 1.1}
""",
}

_NORMAL = "return kept / kept.sum()"
_COUNT = "(np.cumsum(q[order]) < p).sum() + 1"


def _function(head: str, lines: tuple[str, ...]) -> str:
    return "\n    ".join([f"def {head}:", *lines])


def _top_k(*lines: str) -> str:
    return _function("top_k(logits, k)", ("w = np.exp(logits - logits.max())", "p = w / w.sum()", *lines))


def _top_p(*lines: str) -> str:
    return _function("top_p(probabilities, p)", ("q = probabilities", "order = np.argsort(-q)", *lines))


def _first(count: str, end: str = _NORMAL) -> str:
    """The `count` likeliest tokens are kept."""
    return _top_p(f"n = {count}", "kept = q.copy()", "kept[order[n:]] = 0", end)


MUTANTS = {
    "07.1": [
        ("k is ignored", _top_k("return p"), "nothing is cut"),
        ("what is left is a distribution", _top_k("p[np.argsort(-p)[k:]] = 0", "return p"), "forgot to renormalise"),
        (
            "a logit of 0 is cut",
            _top_k("z = logits.copy()", "z[np.argsort(-z)[k:]] = 0", "w = np.exp(z)", "return w / w.sum()"),
            "exp(0) = 1",
        ),
        (
            "sorting puts the likeliest first",
            _top_k("kept = np.where(np.isin(np.arange(len(p)), np.argsort(p)[:k]), p, 0)", _NORMAL),
            "k smallest",
        ),
        ("low ids are likely", _top_k("kept = p.copy()", "kept[k:] = 0", _NORMAL), "first k ids"),
        ("the k-th is the first to go", _top_k("kept = np.where(p > np.sort(p)[-k], p, 0)", _NORMAL), "one too few"),
        (
            "counting begins at 1",
            _top_k("kept = np.where(p >= np.sort(p)[::-1][k], p, 0)", _NORMAL),
            "one too many",
        ),
        (
            "ids do not matter",
            _top_k("kept = np.sort(p)[::-1].copy()", "kept[k:] = 0", _NORMAL),
            "the ids are lost",
        ),
        ("k numbers are enough", _top_k("kept = np.sort(p)[-k:]", _NORMAL), "without their ids"),
        (
            "a softmax renormalises",
            _top_k("w = np.where(p >= np.sort(p)[-k], np.exp(p), 0)", "return w / w.sum()"),
            "softmax of probabilities",
        ),
        (
            "a low logit is as good as -inf",
            _top_k("z = np.where(p >= np.sort(p)[-k], logits, -20)", "w = np.exp(z - z.max())", "return w / w.sum()"),
            "exactly 0",
        ),
        (
            "a large number is a large logit",
            _top_k(
                "best = np.argsort(-abs(logits))[: k or None]",
                "kept = np.where(np.isin(np.arange(len(p)), best), p, 0)",
                _NORMAL,
            ),
            "absolute values",
        ),
        (
            "exp takes any number",
            _function(
                "top_k(logits, k)", ("w = np.exp(logits)", "w[np.argsort(-w)[k or len(w) :]] = 0", "return w / w.sum()")
            ),
            "logits of 1000 overflow",
        ),
        (
            "no logit is below -1000",
            _top_k(
                "best = np.argsort(-logits)[: k or None]",
                "z = np.where(np.isin(np.arange(len(p)), best), logits, -1000)",
                "w = np.exp(z - z.max())",
                "return w / w.sum()",
            ),
            "near -2000",
        ),
        (
            "k is below the vocabulary",
            _top_k("if k == 0: return p", "kept = np.where(p >= np.partition(p, -k)[-k], p, 0)", _NORMAL),
            "k = 50",
        ),
        ("k = 0 keeps none", _top_k("p[np.argsort(-p)[k:]] = 0", "return p / p.sum()"), "k = 0 means off"),
        (
            "the logits are mine to change",
            _function(
                "top_k(logits, k)",
                ("if 0 < k < len(logits): logits[np.argsort(-logits)[k:]] = -np.inf", "w = np.exp(logits)")
                + ("return w / w.sum()",),
            ),
            "changes the logits",
        ),
    ],
    "07.2": [
        ("p is ignored", _top_p("return q"), "nothing is cut"),
        ("what is left is a distribution", _first(_COUNT, "return kept"), "forgot to renormalise"),
        ("the nucleus holds exactly p", _first(_COUNT, "return kept / p"), "divide by p itself"),
        ("the crossing token is too much", _first("(np.cumsum(q[order]) < p).sum()"), "dropped the crossing token"),
        ("one more does no harm", _first(f"{_COUNT} + 1"), "one too many"),
        ("the ids are in order", _first("(np.cumsum(q) < p).sum() + 1").replace("order[n:]", "n:"), "no sorting: you"),
        (
            "ranks are ids",
            _top_p("mask = np.arange(len(q)) < (np.cumsum(q[order]) < p).sum() + 1", "kept = np.where(mask, q, 0)")
            + f"\n    {_NORMAL}",
            "mask is not carried back",
        ),
        (
            "order leads there and back",
            _top_p("s = q[order]", "s[(np.cumsum(s) < p).sum() + 1 :] = 0", "kept = s[order]", _NORMAL),
            "s[order] sorts",
        ),
        (
            "the mask goes back by order",
            _top_p(
                "mask = np.arange(len(q)) < (np.cumsum(q[order]) < p).sum() + 1",
                "kept = np.where(mask[order], q, 0)",
                _NORMAL,
            ),
            "mask[order] sorts",
        ),
        ("p is a share of tokens", _first("round(p * len(q))"), "no share of the tokens"),
        (
            "as NVIDIA draws",
            _top_p("kept = q.copy()", "kept[order] = np.diff(np.minimum(np.cumsum(q[order]), p), prepend=0) / p")
            + "\n    return kept",
            "NVIDIA's draw",
        ),
        ("the nucleus is enough", _top_p(f"kept = q[order[:{_COUNT}]]", _NORMAL), "it returns shape"),
        ("p must be passed", _first("(np.cumsum(q[order]) <= p).sum() + 1"), "reaches p = 0.5 exactly"),
        ("the same, below p", _top_p("kept = np.where(np.cumsum(q) < p, q, 0)", _NORMAL), "no sorting, and"),
        ("ascending is fine", _first(_COUNT).replace("argsort(-q)", "argsort(q)"), "sorted the wrong way"),
        ("each token needs p", _top_p("kept = np.where(q >= p, q, 0)", _NORMAL), "no single token reaches"),
        ("p is a share of the best", _top_p("kept = np.where(q >= p * q.max(), q, 0)", _NORMAL), "that is min-p"),
        (
            "ids do not matter",
            _top_p("kept = q[order]", "kept[(np.cumsum(kept) < p).sum() + 1 :] = 0", _NORMAL),
            "undo the sorting",
        ),
        ("one token is no distribution", _first(f"max({_COUNT}, 2)"), "must stay, and stay alone"),
        ("some sum is always above p", _first("(np.cumsum(q[order]) > p).argmax() + 1"), "p = 1 must change nothing"),
        (
            "the array is mine to change",
            _top_p(f"n = {_COUNT}", "q[order[n:]] = 0", "return q / q.sum()"),
            "changes the probabilities",
        ),
    ],
    "07.3": [
        ("a temperature brings variety", 'answer_3 = {"temperature": 1.5}', "nothing is drawn"),
        ("any penalty will do", 'answer_3 = {"presence_penalty": 0.5}', "favourite still leads"),
        ("drawing is the cure", 'answer_3 = {"top_p": 0.9}', "by luck"),
        ("more is better", 'answer_3 = {"repetition_penalty": 1.5}', "too strong"),
        ("shorter answers do not loop", 'answer_3 = {"max_tokens": 8}', "change only"),
        ("1 is the strongest", 'answer_3 = {"repetition_penalty": -1.0}', "the server refuses it"),
    ],
}
