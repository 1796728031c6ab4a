"""Answers of notebook 06, and what people believe instead."""

SETUP = "import numpy as np\nfrom scipy.special import softmax"

SOLUTIONS = {
    "06.1": """
def batch_softmax(logits, temperature):
    z = logits / temperature
    weights = np.exp(z - z.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
""",
    "06.2": """
def log_form(logits, temperature):
    z = logits / temperature
    highest = z.max()
    return z - (highest + np.log(np.exp(z - highest).sum()))
""",
    "06.3": """
def knob(logits, share):
    from scipy.optimize import brentq

    temperature = brentq(lambda T: softmax(logits / T).max() - share, 0.01, 1000)
    return {"temperature": temperature, "top_p": 1.0}
""",
}

_ROWS = "return w / w.sum(axis=1, keepdims=True)"
_STABLE = "z = logits / temperature; w = np.exp(z - z.max(axis=1, keepdims=True))"
_P = "np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)"


def _softmax(*lines: str) -> str:
    return "\n    ".join(["def batch_softmax(logits, temperature):", *lines])


def _log(*lines: str) -> str:
    return "\n    ".join(["def log_form(logits, temperature):", "z = logits / temperature", *lines])


def _knob(right: str, wrong: str) -> str:
    assert right in SOLUTIONS["06.3"]
    return SOLUTIONS["06.3"].replace(right, wrong)


MUTANTS = {
    "06.1": [
        ("wrong axis", _softmax(_STABLE, "return w / w.sum(axis=0)"), "each column"),
        ("one sum for all rows", _softmax(_STABLE, "return w / w.sum()"), "all rows"),
        (
            "no keepdims",
            _softmax("w = np.exp(logits / temperature)", "return w / w.sum(axis=1)"),
            "keepdims=True",
        ),
        (
            "no keepdims for the maximum",
            _softmax("z = logits / temperature", "w = np.exp(z - z.max(axis=0).reshape(-1, 1))", _ROWS),
            "along axis 0",
        ),
        (
            "T missing in the denominator",
            _softmax(_STABLE, f"return w / {_P.split(' / ')[1]}"),
            "missing in the denominator",
        ),
        ("T after softmax", _softmax(f"p = {_P}", "return p / temperature"), "after the softmax"),
        (
            "T after softmax, normalised again",
            _softmax(f"p = {_P} / temperature", "return p / p.sum(axis=1, keepdims=True)"),
            "has no effect",
        ),
        (
            "softmax twice",
            _softmax(f"w = np.exp({_P} / temperature)", "return w / w.sum(axis=1, keepdims=True)"),
            "softmax of probabilities",
        ),
        ("a power needs no sum", _softmax(f"p = {_P}", "return p ** (1 / temperature)"), "by its sum again"),
        (
            "T multiplies",
            _softmax("w = np.exp(logits * temperature)", "return w / w.sum(axis=1, keepdims=True)"),
            "you multiply",
        ),
        ("weights are probabilities", _softmax(_STABLE, "return w"), "weights, not probabilities"),
        (
            "exp takes any number",
            _softmax("w = np.exp(logits / temperature)", "return w / w.sum(axis=1, keepdims=True)"),
            "exp overflows",
        ),
        (
            "any shift will do",
            _softmax("z = logits / temperature", "w = np.exp(z - z.min(axis=1, keepdims=True))", _ROWS),
            "not its minimum",
        ),
        (
            "the maximum is that of the logits",
            _softmax("w = np.exp(logits / temperature - logits.max(axis=1, keepdims=True))", _ROWS),
            "that of z/T",
        ),
        (
            "one maximum serves all rows",
            _softmax("w = np.exp((logits - logits.max()) / temperature)", "return w / w.sum(axis=1, keepdims=True)"),
            "each row's own maximum",
        ),
        (
            "arguments are mine to change",
            _softmax(
                "logits /= temperature",
                "w = np.exp(logits - logits.max(axis=1, keepdims=True))",
                "return w / w.sum(axis=1, keepdims=True)",
            ),
            "changes the logits",
        ),
    ],
    "06.2": [
        (
            "take the softmax, then the log",
            _log("w = np.exp(z - z.max())", "return np.log(w / w.sum())"),
            "underflowed probability",
        ),
        (
            "a tiny number makes log safe",
            _log("w = np.exp(z - z.max())", "return np.log(w / w.sum() + 1e-12)"),
            "hides -inf behind an invented value",
        ),
        (
            "a floor makes log safe",
            _log("w = np.exp(z - z.max())", "return np.log(np.maximum(w / w.sum(), 1e-300))"),
            "hides -inf behind an invented value",
        ),
        ("exp takes any number", _log("return z - np.log(np.exp(z).sum())"), "overflows in exp"),
        ("any base will do", _log("w = np.exp(z - z.max())", "return np.log2(w / w.sum())"), "base 2"),
        ("log means base 10", _log("w = np.exp(z - z.max())", "return np.log10(w / w.sum())"), "base 10"),
        ("T missing in the log of the sum", _log("return z - np.log(np.exp(logits).sum())"), "inside the log"),
        (
            "T missing in the log of the sum, stable",
            _log("m = z.max()", "return z - (m + np.log(np.exp(logits - logits.max()).sum()))"),
            "the same m outside",
        ),
        (
            "the maximum of the logits added",
            _log("m = logits.max()", "return z - (m + np.log(np.exp(z - z.max()).sum()))"),
            "you add the maximum of z,",
        ),
        (
            "the maximum of z/T added",
            _log("m = logits.max()", "return z - (z.max() + np.log(np.exp(z - m).sum()))"),
            "you subtract the maximum of z,",
        ),
        (
            "the maximum is that of the logits",
            _log("m = logits.max()", "return z - (m + np.log(np.exp(z - m).sum()))"),
            "overflow at T = 0.5",
        ),
        (
            "any shift will do",
            _log("m = z.min()", "return z - (m + np.log(np.exp(z - m).sum()))"),
            "not the minimum",
        ),
        ("T missing in front", _log("return logits - np.log(np.exp(z).sum())"), "missing in front"),
        (
            "T divides the log probability",
            _log("return (logits - np.log(np.exp(logits).sum())) / temperature"),
            "divide the log probability",
        ),
        ("T is left out", _log("return logits - np.log(np.exp(logits).sum())"), "has no effect"),
        ("the maximum is gone for good", _log("return z - np.log(np.exp(z - z.max()).sum())"), "maximum is missing"),
        ("surprise is a log probability", _log("return np.log(np.exp(z).sum()) - z"), "sign is turned"),
        ("exp at the end", _log("w = np.exp(z - z.max())", "return w / w.sum()"), "these are probabilities"),
        ("the sum is the same for all, so drop it", _log("return z"), "z/T alone"),
    ],
    "06.3": [
        ("temperature switches sampling on", _knob(', "top_p": 1.0', ""), "alone the server is greedy"),
        ("top_k switches sampling on", _knob('"top_p": 1.0', '"top_k": 1'), "leaves one token"),
        ("top_p is the share", _knob('"top_p": 1.0', '"top_p": share'), "cuts tokens off"),
        ("no knob at all", _knob('"temperature": temperature, ', ""), "that of T = 1"),
        ("T divides the probability",
         _knob("brentq(lambda T: softmax(logits / T).max() - share, 0.01, 1000)", "softmax(logits).max() / share"),
         "not the probability"),
        ("T multiplies", _knob('"temperature": temperature', '"temperature": 1 / temperature'), "that is 1/T"),
        ("one temperature will do", _knob('"temperature": temperature', '"temperature": 1.0'), "solve softmax"),
        ("T is between 0.1 and 5",
         _knob("brentq(lambda T: softmax(logits / T).max() - share, 0.01, 1000)",
               "min(np.linspace(0.1, 5, 4000), key=lambda T: abs(softmax(logits / T).max() - share))"),
         "search wider"),
        ("cold is negative", _knob('"temperature": temperature', '"temperature": -temperature'), "above 0"),
        ("a seed is needed", _knob('"top_p": 1.0', '"top_p": 1.0, "seed": 1'), "leave out 'seed'"),
    ],
}  # fmt: skip
