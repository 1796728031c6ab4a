"""Answers of notebook 08, and what people believe instead."""

SETUP = r"""import exercises, numpy as np
from scipy.special import log_softmax, softmax
from servinglab.client import gather, inputs

client = exercises.served


def text(result):
    return result.as_numpy("text_output")[0].decode()


def answer(entries):
    shared = {"return_log_probs": True, "exclude_input_in_output": True, "stream": False, "max_tokens": 8}
    shared |= {"stop_words": ["\n"]}
    prompts = [f"Q: What is the capital of Norway?\nA: Oslo\nQ: {entry['question']}\nA:" for entry in entries]
    asked = {n: inputs(**shared, text_input=prompt) for n, prompt in enumerate(prompts)}
    return [result for (result,) in gather(client, "tensorrt_llm_bls", asked).values()]
"""

LIVE = {"08.3"}

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
def reply(question, threshold):
    (said,) = answer([{"question": question}])
    sure = np.exp(said.as_numpy("cum_log_probs")[0, 0])
    return text(said).strip() if sure >= threshold else "I do not know."
""",
}

_PICK = "rows[np.arange(len(ids) - 1), ids[1:]]"
_EXP, _EXP_SUM = "np.exp(logits)", "np.exp(logits).sum(-1, keepdims=True)"
_SOFT = "softmax(logits, axis=-1)"


def _sequence(result: str, rows: str = "log_softmax(logits, axis=-1)") -> str:
    return f"def sequence_log_prob(logits, ids):\n    rows = {rows}\n    return {result}"


def _add(result: str) -> str:
    return f"def log_add(a, b):\n    return {result}"


def _reply(old: str, new: str) -> str:
    assert old in SOLUTIONS["08.3"]
    return SOLUTIONS["08.3"].replace(old, new)


_WHOLE = 'np.exp(said.as_numpy("cum_log_probs")[0, 0])'

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
        ("a log is compared", _reply(_WHOLE, 'said.as_numpy("cum_log_probs")[0, 0]'), "take exp of it first"),
        ("the mean", _reply(_WHOLE, 'np.exp(said.as_numpy("output_log_probs")[0, 0].mean())'), "the mean per token"),
        ("the first token", _reply(_WHOLE, 'np.exp(said.as_numpy("output_log_probs")[0, 0, 0])'), "the first token"),
        ("the other way round", _reply(">=", "<"), "the other way round"),
        ("always an answer", _reply(">= threshold", ">= 0"), "compare the probability of the whole answer"),
        ("always silent", _reply(">= threshold", "> 2"), "you are silent"),
        ("silence is None", _reply('"I do not know."', "None"), "return a text"),
        ("other words", _reply("I do not know.", "?"), "expected 'I do not know.'"),
        ("a form of its own", _reply("text(said).strip()", '"A: " + text(said)'), "you return 'A:"),
    ],
}  # fmt: skip
