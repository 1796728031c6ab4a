"""Answers of notebook 08, and what people believe instead."""

SETUP = "import numpy as np\nfrom scipy.special import log_softmax, softmax"

SOLUTIONS = {
    "08.1": """
def sequence_log_prob(logits, ids):
    rows = log_softmax(logits, axis=-1)
    return sum(rows[t, ids[t + 1]] for t in range(len(ids) - 1))
""",
    "08.2": """
def log_add(a, b):
    high, low = max(a, b), min(a, b)
    return high + np.log1p(np.exp(low - high))
""",
    "08.3": """
def perplexity(log_probs):
    return np.exp(-np.mean(log_probs))
""",
}

_PICK = "rows[np.arange(len(ids) - 1), ids[1:]]"
_EXP, _EXP_SUM = "np.exp(logits)", "np.exp(logits).sum(-1, keepdims=True)"
_SOFT = "softmax(logits, axis=-1)"


def _sequence(result: str, rows: str = "log_softmax(logits, axis=-1)") -> str:
    return f"def sequence_log_prob(logits, ids):\n    rows = {rows}\n    return {result}"


def _add(result: str) -> str:
    return f"def log_add(a, b):\n    return {result}"


def _perplexity(result: str) -> str:
    return f"def perplexity(log_probs):\n    p, n = np.exp(log_probs), len(log_probs)\n    return {result}"


MUTANTS = {
    "08.1": [
        ("product instead of sum", _sequence(f"np.prod(np.exp({_PICK}))"), "a product"),
        ("row t predicts token t", _sequence("rows[np.arange(len(ids)), ids].sum()"), "predicts the next"),
        ("row t predicts token t, from 1 on", _sequence("rows[np.arange(1, len(ids)), ids[1:]].sum()"), "before"),
        ("shifted the wrong way", _sequence("rows[np.arange(1, len(ids)), ids[:-1]].sum()"), "wrong way"),
        ("softmax over positions", _sequence(f"{_PICK}.sum()", "log_softmax(logits, axis=0)"), "axis 0"),
        ("one softmax for the whole array", _sequence(f"{_PICK}.sum()", "log_softmax(logits)"), "all rows together"),
        ("a text is what greedy writes", _sequence("rows[:-1].max(axis=-1).sum()"), "the likeliest token of each row"),
        ("a comma pairs rows and ids", _sequence("rows[:-1, ids[1:]].sum()"), "every id from every row"),
        (
            "one maximum serves all rows",
            _sequence(f"{_PICK}.sum()", "(s := logits - logits.max()) - np.log(np.exp(s).sum(-1, keepdims=True))"),
            "each row's own maximum",
        ),
        ("base 2", _sequence(f"({_PICK} / np.log(2)).sum()"), "in bits"),
        ("base 10", _sequence(f"({_PICK} / np.log(10)).sum()"), "base 10"),
        ("logits are log probs", _sequence(f"{_PICK}.sum()", "logits"), "raw logits"),
        ("mean instead of sum", _sequence(f"{_PICK}.mean()"), "the mean"),
        ("loss instead of log prob", _sequence(f"-{_PICK}.sum()"), "the loss"),
        ("log of a softmax that is zero", _sequence(f"{_PICK}.sum()", "np.log(softmax(logits, axis=-1))"), "became 0"),
        ("an epsilon cures the log of zero", _sequence(f"{_PICK}.sum()", f"np.log({_SOFT} + 1e-12)"), "invented value"),
        ("a large epsilon, too", _sequence(f"{_PICK}.sum()", f"np.log({_SOFT} + 1e-6)"), "invented value"),
        ("no max subtraction", _sequence(f"{_PICK}.sum()", f"np.log({_EXP} / {_EXP_SUM})"), "nan for"),
        ("none in log-sum-exp", _sequence(f"{_PICK}.sum()", f"logits - np.log({_EXP_SUM})"), "almost certain"),
    ],
    "08.2": [
        ("adding logs adds probabilities", _add("a + b"), "the product"),
        ("the probability, not its log", _add("np.exp(a) + np.exp(b)"), "itself"),
        ("2**x goes back from a natural log", _add("np.log2(2**a + 2**b)"), "with 2**x"),
        ("10**x goes back from a natural log", _add("np.log10(10**a + 10**b)"), "with 10**x"),
        ("back by exp, forth by log2", _add("np.log2(np.exp(a) + np.exp(b))"), "log of base 2"),
        ("back by exp, forth by log10", _add("np.log10(np.exp(a) + np.exp(b))"), "log of base 10"),
        ("the larger log is not added again", _add("np.log1p(np.exp(min(a, b) - max(a, b)))"), "did not add"),
        ("the larger one is enough", _add("max(a, b)"), "larger one alone"),
        ("mean of the logs", _add("(a + b) / 2"), "geometric mean"),
        ("no max subtraction", _add("np.log(np.exp(a) + np.exp(b))"), "exp(-1000) is 0"),
        ("the smaller log taken out", _add("min(a, b) + np.log1p(np.exp(max(a, b) - min(a, b)))"), "the smaller log"),
        ("the first is the larger", _add("a + np.log1p(np.exp(b - a))"), "the order"),
        ("a zero makes the sum zero", _add("a + b if np.isinf(a + b) else np.logaddexp(a, b)"), "log(0) is -inf"),
    ],
    "08.3": [
        ("exp(+mean)", _perplexity("np.exp(np.mean(log_probs))"), "a minus"),
        ("sum instead of mean", _perplexity("np.exp(-np.sum(log_probs))"), "the sum"),
        ("no exponential", _perplexity("-np.mean(log_probs)"), "cross-entropy"),
        ("2 to the mean of natural logs", _perplexity("2 ** -np.mean(log_probs)"), "2**x"),
        ("10 to the mean of natural logs", _perplexity("10 ** -np.mean(log_probs)"), "10**x"),
        ("mean of 1/p", _perplexity("np.mean(1 / p)"), "mean of 1/p"),
        ("one over the mean of p", _perplexity("1 / np.mean(p)"), "mean probability; take"),
        ("the first token of the text is counted", _perplexity("np.exp(-np.sum(log_probs) / (n + 1))"), "divided by 5"),
        ("one log prob too few", _perplexity("np.exp(-np.sum(log_probs) / (n - 1))"), "divided by 3"),
        ("median", _perplexity("np.exp(-np.median(log_probs))"), "median"),
        ("root of a product", _perplexity("np.prod(p) ** (-1 / n)"), "underflows"),
    ],
}
