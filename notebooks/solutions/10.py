"""Answers of notebook 10, and what people believe instead."""

SETUP = """import exercises, numpy as np
from servinglab.client import gather, inputs
client = exercises.served
chat = "<|im_start|>user\\n{}<|im_end|>\\n<|im_start|>assistant\\n"
traffic = {
    "copy": chat.format(
        "Repeat this text exactly: The keeper found a letter in a green bottle on the third of March."),
    "poem": chat.format("Write a poem about rain."),
}
def served(**more):
    asked = {"stream": False, "return_perf_metrics": True, **more}
    return gather(client, "tensorrt_llm_bls", {"": inputs(**asked)})[""][0]
"""

LIVE = {"10.3"}

SOLUTIONS = {
    "10.1": """
def rule(p, q, token):
    missing = np.maximum(p - q, 0)
    return min(1, p[token] / q[token]), missing / missing.sum()
""",
    "10.2": """
def best_length(a, c, v):
    speedups = [sum(a**i for i in range(k + 1)) / (k * c + v[k]) for k in range(len(v))]
    return int(np.argmax(speedups))
""",
    "10.3": """
def saved(kind, k):
    if k == 0:
        return 0.0
    found = served(text_input=traffic[kind], max_tokens=24, min_tokens=24, num_draft_tokens=k)
    guesses, kept = (found.as_numpy(f"total_{name}draft_tokens").item() for name in ("", "accepted_"))
    return kept - 0.3 * guesses


answer_3 = {kind: max(range(5), key=lambda k: saved(kind, k)) for kind in traffic}
""",
}


_MISSING = "np.maximum(p - q, 0) / np.maximum(p - q, 0).sum()"


def _rule(keep: str = "min(1, p[token] / q[token])", rest: str = _MISSING) -> str:
    return f"def rule(p, q, token):\n    return {keep}, {rest}"


def _length(cost: str, least: int = 0, most: str = "len(v)", tokens: str = "range(k + 1)") -> str:
    return f"""
def best_length(a, c, v):
    values = [sum(a**i for i in {tokens}) / ({cost}) for k in range({least}, {most})]
    return {least} + int(np.argmax(values))
"""


_STOPS = """
def best_length(a, c, v):
    speedup = lambda k: sum(a**i for i in range(k + 1)) / (k * c + v[k])
    k = 0
    while k + 1 < len(v) and speedup(k + 1) > speedup(k):
        k += 1
    return k
"""


MUTANTS = {
    "10.1": [
        ("disliked tokens are rejected", _rule("float(p[token] >= q[token])"), "is rejected always"),
        ("the target can do it alone", _rule("0.0", "p"), "you keep nothing"),
        ("everything is kept", _rule("1.0"), "you keep everything"),
        ("the ratio is q over p", _rule("q[token] / p[token]"), "upside down"),
        ("the target decides alone", _rule("p[token]"), "that is p(x):"),
        ("both must like it", _rule("p[token] * q[token]"), "p(x) times q(x)"),
        ("the excess is taken off", _rule("q[token] - p[token]"), "minus the draft's excess"),
        ("q over p, at most 1", _rule("min(1, q[token] / p[token])"), "swapped p and q"),
        ("the decision itself", _rule("np.random.random() < p[token] / q[token]"), "you decide, yes or no"),
        ("a ratio may pass 1", _rule("p[token] / q[token]"), "a probability ends at 1"),
        ("a rejected token is drawn anew from p", _rule(rest="p"), "you replace from p"),
        ("the draft may try again", _rule(rest="q"), "has just been rejected"),
        (
            "only the rejected token is struck out",
            _rule(rest="np.where(np.arange(len(p)) == token, 0, p) / (1 - p[token])"),
            "strike the rejected token out",
        ),
        ("the rest is a distribution", _rule(rest="np.maximum(p - q, 0)"), "does not sum to 1"),
        ("differences are probabilities", _rule(rest="p - q"), "p - q is negative"),
        ("differences count both ways", _rule(rest="abs(p - q) / abs(p - q).sum()"), "|p - q|"),
        ("what the draft has too much", _rule(rest="np.maximum(q - p, 0) / 0.4"), "too much, q - p"),
        (
            "only the rejected token can be negative",
            _rule(rest="np.where(np.arange(len(p)) == token, 0, p - q) / np.delete(p - q, token).sum()"),
            "right for three tokens, but",
        ),
        ("the rest is what it was in one example", _rule(rest="np.maximum(p - q, 0) / 0.4"), "right for three tokens"),
        ("what both have", _rule(rest="np.minimum(p, q) / np.minimum(p, q).sum()"), "that is min(p, q)"),
    ],
    "10.2": [
        ("more tokens are better", _length("1"), "steps become slower"),
        ("verifying is free", _length("1 + k * c"), "the verifying step grows"),
        ("drafting is free", _length("v[k]"), "drafting is not free"),
        ("the draft runs once", _length("c + v[k]"), "once for each drafted token"),
        ("the first draft costs twice", _length("(k + 1) * c + v[k]"), "not (k + 1) c"),
        ("costs are multiplied", _length("(1 + k * c) * v[k]"), "one after the other"),
        ("the target's own token is no gain", _length("k * c + v[k]", tokens="range(1, k + 1)"), "own token is"),
        ("the speed-up is asked for", "def best_length(a, c, v):\n    return 1.49", "not its speed-up"),
        ("one must draft", _length("k * c + v[k]", least=1), "do not draft"),
        ("the last length is not tried", _length("k * c + v[k]", most="len(v) - 1"), "the last too"),
        ("the first that is worse ends the search", _STOPS, "do not stop at the"),
    ],
    "10.3": [
        ("a draft never pays", 'answer_3 = {"copy": 0, "poem": 0}', "more than its guesses cost"),
        ("longer is better", 'answer_3 = {"copy": 4, "poem": 4}', "pays for all that are not"),
        ("the acceptance rate decides", 'answer_3 = {"copy": 1, "poem": 1}', "not the largest saving"),
        ("one length for all", 'answer_3 = {"copy": 2, "poem": 2}', "poem: with 2"),
        ("no limit", 'answer_3 = {"copy": 3, "poem": 9}', "from 0 to 4"),
    ],
}
