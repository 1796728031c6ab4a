"""Exercises of notebook 08: the log probability of a sequence, the log of a sum, a service with a threshold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import log_softmax

from servinglab.checks import Verdict, exercise, is_stub, right, unattempted, wrong

Known = Sequence[tuple[float, str]]  # what a misconception gives, and what to say then


def _number(function: Callable[..., float], *arguments: object) -> float:
    """The function's value; an overflow as inf and the log of zero as -inf, also where Python raises for them."""
    with np.errstate(all="ignore"):
        try:
            value = np.asarray(function(*arguments), np.float64)
        except (OverflowError, ZeroDivisionError):
            return math.inf
        except ValueError as error:
            if "domain" not in str(error):
                raise
            return -math.inf
    if value.size != 1:
        raise TypeError(f"it returned {value.size} numbers, not one")
    return float(value.reshape(()))


def _said(value: float, known: Known) -> str | None:
    return next((said for guess, said in known if math.isclose(value, guess, rel_tol=1e-6, abs_tol=1e-9)), None)


# --- 08.1: log p(ids[1:] | ids[0]) from the logits of every position --------------------------------------------------


def _plain() -> tuple[np.ndarray, np.ndarray]:
    """Four positions, three tokens."""
    logits = np.array([[2.0, 1.0, 0.0], [0.5, 0.0, 1.5], [1.0, 3.0, 2.5], [0.0, 1.0, 4.0]])
    return logits, np.array([0, 2, 1, 0])


def _steep(token: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits so far apart that exp overflows; the log probability of token 1 is 0, that of token 0 is -900."""
    return np.array([[0.0, 900.0], [0.0, 0.0]]), np.array([0, token])


_HEIGHTS = np.array([[900.0, 900.0], [0.0, 0.0], [0.0, 0.0]]), np.array([0, 0, 1])  # half and half in every row

_LIKELIEST = "that is the likeliest token of each row; a given text asks for its own tokens, ids, likely or not"
_OUTER = "rows[:, ids] takes every id from every row; pair each row with one id: rows[np.arange(n), ids]"
_EPSILON = "a small number added before the log hides -inf behind an invented value"


@exercise("08.1", expects="a function sequence_log_prob(logits, ids) that returns one number")
def from_logits(sequence_log_prob: Callable[[np.ndarray, np.ndarray], float]) -> Verdict:
    logits, ids = _plain()
    value, own = _number(sequence_log_prob, logits, ids), log_softmax(logits, axis=-1)
    steps = own[np.arange(3), ids[1:]]
    truth = float(steps.sum())
    if not math.isclose(value, truth, rel_tol=1e-6):
        return wrong(_said(value, _wrong_from_logits(logits, ids, own, truth)) or _hint(value, truth))
    likely, unlikely = (_number(sequence_log_prob, *_steep(token)) for token in (1, 0))
    if not math.isfinite(likely):
        return wrong(f"{likely} for a token that is almost certain: exp(900) is inf; subtract the largest logit first")
    if unlikely == -math.inf:
        return wrong("-inf for a token that is only very unlikely: its softmax became 0 before you took the log of it")
    if -700 < unlikely < -1:
        return wrong(f"{_EPSILON}: {unlikely:.1f}, where log softmax gives -900")
    if not (math.isclose(likely, 0, abs_tol=1e-6) and math.isclose(unlikely, -900, rel_tol=1e-6)):
        return wrong(f"for logits [0, 900] the two log probabilities are -900 and 0, not {unlikely:g} and {likely:g}")
    if not math.isclose(_number(sequence_log_prob, *_HEIGHTS), 2 * math.log(0.5), rel_tol=1e-6):
        return wrong("a row 900 below another one goes wrong: subtract each row's own maximum, not that of all rows")
    return right("row t of the logits predicts token t + 1, and log softmax never leaves log space")


def _wrong_from_logits(logits: np.ndarray, ids: np.ndarray, own: np.ndarray, truth: float) -> Known:
    rows, others = np.arange(4), log_softmax(logits, axis=0)
    raw, together = logits[rows[:3], ids[1:]], log_softmax(logits)[rows[:3], ids[1:]]
    steps = np.exp(own[rows[:3], ids[1:]])
    return [
        (math.exp(truth), "that is the probability, a product; asked is its log, which is the sum of the logs"),
        (own[rows, ids].sum(), "you looked up token t in row t; row t comes after token t and predicts the next"),
        (own[1:][rows[:3], ids[1:]].sum(), "you looked up token t in row t; it is predicted by the row before, t - 1"),
        (own[1:][rows[:3], ids[:3]].sum(), "shifted the wrong way: row t predicts token t + 1, not token t - 1"),
        *((own[:end].max(axis=1).sum(), _LIKELIEST) for end in (3, 4)),
        *((own[:end][:, ids[begin:]].sum(), _OUTER) for end in (3, 4) for begin in (0, 1)),
        (others[rows[:3], ids[1:]].sum(), "axis 0 is positions; the tokens of the vocabulary lie along axis 1 (-1)"),
        (together.sum(), "one softmax over all rows together: each row is a distribution of its own, so axis=-1"),
        (truth / math.log(2), "that is in bits, base 2; log probabilities here are natural, base e"),
        (truth / math.log(10), "that is base 10; log probabilities here are natural, base e"),
        (raw.sum(), "these are raw logits; they become log probabilities by subtracting the log-sum-exp of their row"),
        (truth / 3, "that is the mean for each token; the log probability of the sequence is the sum"),
        (-truth, "that is the loss, minus log p; a log probability is never above 0"),
        *((np.log(steps + small).sum(), _EPSILON) for small in (1e-3, 1e-4, 1e-5, 1e-6)),  # below, it shows when steep
    ]


def _hint(value: float, truth: float) -> str:
    if value > 0:
        return f"{value:g} is above 0, so it is no log probability"
    return f"the hand example gives {truth:.3f}, you return {value:.3f}: log softmax, look up, shift by one, sum"


# --- 08.2: log(exp(a) + exp(b)) ---------------------------------------------------------------------------------------


@exercise("08.2", expects="a function log_add(a, b) that returns one number")
def of_a_sum(log_add: Callable[[float, float], float]) -> Verdict:
    a, b = math.log(0.5), math.log(0.25)
    value = _number(log_add, a, b)
    known = [
        (a + b, "a + b is the log of the product, the probability of both; asked is the log of the sum"),
        (0.75, "that is the probability itself; return its log"),
        (math.log2(2**a + 2**b), "you went back with 2**x, but these are natural logs: exp goes back"),
        (math.log10(10**a + 10**b), "you went back with 10**x, but these are natural logs: exp goes back"),
        (math.log2(0.75), "back with exp, but then a log of base 2; stay with base e"),
        (math.log10(0.75), "back with exp, but then a log of base 10; stay with base e"),
        (math.log(1.5), "you took the larger log out of the sum and did not add it again at the end"),
        (max(a, b), "that is the larger one alone; the other one counts, too"),
        ((a + b) / 2, "a mean of logs is the log of the geometric mean, not of the sum"),
    ]
    if not math.isclose(value, math.log(0.75), rel_tol=1e-6):
        return wrong(_said(value, known) or f"1/2 + 1/4 = 3/4, whose log is -0.288; you return {value:.3f}")
    falling, rising = _number(log_add, -1000.0, -3000.0), _number(log_add, -3000.0, -1000.0)
    if -math.inf in (falling, rising):
        return wrong("-inf for a = -1000: exp(-1000) is 0 in float64; take the larger log out of the sum first")
    if not math.isfinite(falling) and not math.isfinite(rising):
        return wrong("inf for -1000 and -3000: you took out the smaller log, and exp(2000) overflows; take the larger")
    if not math.isfinite(falling) or not math.isfinite(rising):
        order = "second" if math.isfinite(falling) else "first"
        return wrong(f"it depends on the order: when the larger log comes {order}, exp(2000) overflows")
    if not all(math.isclose(value, -1000, rel_tol=1e-9) for value in (falling, rising)):
        return wrong(f"for -1000 and -3000 the sum is practically equal to the larger, -1000; you return {falling:g}")
    if not math.isclose(_number(log_add, -math.inf, b), b, rel_tol=1e-6):
        return wrong("log(0) is -inf, and adding a probability of 0 changes nothing: (-inf, b) must give b")
    return right("take out the larger log: one exponential is exp(0) = 1, the other cannot overflow")


# --- 08.3: a service, on the running server ---------------------------------------------------------------------------

_ASKED = ("What is the capital of Belgium?", "Which animal says moo?", "What colour is snow?")
_SILENT = "I do not know."


@exercise("08.3", expects="a function reply(question, threshold) that returns a text")
def service(answer: tuple[Callable[[str, float], str], Callable]) -> Verdict:
    reply, ask = answer
    if is_stub(reply):
        return unattempted()
    for question in _ASKED:
        (result,) = ask([{"question": question}])
        text = result.as_numpy("text_output")[0].decode().strip()
        logs, total = result.as_numpy("output_log_probs")[0, 0], float(result.as_numpy("cum_log_probs")[0, 0])
        p = min(math.exp(total), 1.0)
        told = f"{question} {text} has the probability {p:.3g}; with the threshold"
        silent = f"{told} {0.9 * p:.3g} you are silent"
        sure, unsure = reply(question, 0.9 * p), reply(question, 1.1 * p)
        if not isinstance(sure, str) or not isinstance(unsure, str):
            return wrong("return a text, not the response: the answer, or I do not know.")
        if sure.strip() == text and unsure.strip() == _SILENT:
            continue
        if sure.strip() == _SILENT:
            if unsure.strip() == text:
                return wrong(f"{silent}, with {1.1 * p:.3g} you answer: the other way round")
            if reply(question, total - 1).strip() == text:
                return wrong(f"{silent}: a log is below every threshold; take exp of it first")
            return wrong(silent)
        if sure.strip() != text:
            return wrong(f"the server answers {text!r}, you return {sure!r}")
        if unsure.strip() != text:
            return wrong(f"{told} {1.1 * p:.3g} you return {unsure!r}; expected {_SILENT!r}")
        for value, said in (
            (math.exp(total / len(logs)), "that is the mean per token; the threshold was found for the whole answer"),
            (math.exp(float(logs[0])), "that is the first token alone; every token and the end count"),
        ):
            if reply(question, 1.01 * value).strip() == _SILENT and reply(question, 0.99 * value).strip() == text:
                return wrong(f"{told} {1.1 * p:.3g} you answer: {said}")
        return wrong(f"{told} {1.1 * p:.3g} you answer: compare the probability of the whole answer with it")
    return right("exp of cum_log_probs is the probability of the whole answer, and the server says it with each one")
