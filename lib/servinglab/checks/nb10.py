"""Exercises of notebook 10: the acceptance rule, the tokens that a step brings, the draft length that pays."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from servinglab.checks import Verdict, exercise, right, wrong
from servinglab.decoding import speculative

# --- 10.1: the acceptance rule ----------------------------------------------------------------------------------------

_P = np.array([0.5, 0.3, 0.2])
_Q = np.array([0.2, 0.7, 0.1])
_LIKED, _DISLIKED = 0, 1  # q[0] < p[0]: always kept; q[1] > p[1]: kept with probability 3/7

_KEEP = {
    0.0: "a token that the draft likes more than the target is rejected always: it comes out too rarely then",
    1.0: "you keep everything: what comes out is the draft's distribution",
    7 / 3: "the ratio is upside down: p over q",
    0.3: "that is p(x): the token has been drawn with probability q(x) already, so divide by it",
    0.3 * 0.7: "that is p(x) times q(x): divide by q(x), with which the token has been drawn",
    0.4: "that is p(x) minus the draft's excess: a ratio is needed, for a token drawn q of the time",
}


def _rests() -> dict[str, np.ndarray]:
    """What a wrong function gives as the distribution of the replacement: message → distribution."""
    rest = np.maximum(_P - _Q, 0)
    without = np.where(np.arange(3) == _DISLIKED, 0, _P)
    return {
        "you replace from p: the tokens that were kept come on top, so the draft's favourites come out too often": _P,
        "you replace from the draft's q, which is what has just been rejected": _Q,
        "you strike the rejected token out of p: what is missing of each token is p - q, not p": without / 0.7,
        "right shape, but it does not sum to 1: divide by the sum of what is left": rest,
        "p - q is negative where the draft has too much: nothing is missing there, so it counts as 0": _P - _Q,
        "that is |p - q|: where the draft has too much, nothing is missing": np.abs(_P - _Q) / np.abs(_P - _Q).sum(),
        "that is what the draft has too much, q - p: the target lacks p - q": np.maximum(_Q - _P, 0) / 0.4,
        "that is min(p, q), what has been kept already: what is missing is p - min(p, q)": np.minimum(_P, _Q) / 0.6,
    }


@exercise("10.1", expects="a function rule(p, q, token) that returns a number and an array of probabilities")
def answer_rule(rule: Callable[[np.ndarray, np.ndarray, int], tuple[float, np.ndarray]]) -> Verdict:
    keep, rest = rule(_P.copy(), _Q.copy(), _DISLIKED)
    liked = rule(_P.copy(), _Q.copy(), _LIKED)[0]
    again = {float(rule(_P.copy(), _Q.copy(), _DISLIKED)[0]) for _ in range(30)}
    if isinstance(keep, bool | np.bool_) or len(again) > 1:
        return wrong("you decide, yes or no: return the probability of keeping, a number from 0 to 1, and draw nothing")
    keep, liked, rest = float(keep), float(liked), np.asarray(rest, float)
    if math.isclose(keep, 1.0) and math.isclose(liked, 0.4):
        return wrong(
            f"{keep:.3g} for a token that the draft likes too much, {liked:.3g} for one that it likes too little: you "
            "have swapped p and q, the ratio is the target's p over the draft's q"
        )
    if not math.isclose(keep, 3 / 7, rel_tol=1e-6):
        near = (text for value, text in _KEEP.items() if math.isclose(keep, value, rel_tol=1e-6, abs_tol=1e-9))
        said = next(near, "")
        return wrong(f"{keep:.3g}: {said or 'keep with probability p(x) / q(x) where that is below 1'}")
    if rest.shape != _P.shape:
        return wrong(f"the replacement has shape {list(rest.shape)}: one probability for each token of the vocabulary")
    for said, mistaken in _rests().items():
        if np.allclose(rest, mistaken):
            return wrong(said)
    if not np.allclose(rest, speculative.residual(_P, _Q)):
        return wrong(f"{np.round(rest, 3).tolist()}: the replacement comes from what is missing, max(0, p - q)")
    if not math.isclose(liked, 1.0):
        return wrong(f"{liked:.3g} for a token that the target likes more than the draft: a probability ends at 1")
    return right("p(x)/q(x), at most 1; the replacement makes up for what the draft lacks, and only for that")


# --- 10.2: tokens a step ----------------------------------------------------------------------------------------------

_A, _K = 0.6, 3
_EXPECTED = 1 + 0.6 + 0.36 + 0.216
_TOKENS = {
    4.0: "that is the best case: all drafted tokens and one more",
    1 + 0.6 * 3: "each token counts by itself here, but the second is of use only if the first was kept: a, a², a³",
    0.6 * 3: "you count every drafted token by itself, and the target's own token is missing",
    _EXPECTED - 1: "the target's own token is missing: a step brings one even if nothing was kept",
    1 + 0.6**3 * 3: "you keep all or nothing: the tokens before the first miss stay",
    0.6**3 * 4: "you keep all or nothing, and nothing is not even the target's own token",
    1 / 0.4: "that is the limit of an endless draft: stop after k terms",
    _EXPECTED + 0.6**4: "one term too many: k drafted tokens and the target's own are k + 1 terms, to the power of k",
    0.6 / 0.4: "that is the limit of an endless draft, without the target's own token",
}


@exercise("10.2", expects="a function tokens_per_step(a, k) that returns a number")
def answer_tokens(tokens_per_step: Callable[[float, int], float]) -> Verdict:
    answer = float(tokens_per_step(_A, _K))
    if not math.isclose(answer, _EXPECTED, rel_tol=1e-6):
        said = next((text for value, text in _TOKENS.items() if math.isclose(answer, value, rel_tol=1e-6)), "")
        return wrong(f"{answer:.4g}: {said or 'add 1 + a + a² + … + a^k'}")
    try:
        sure = float(tokens_per_step(1.0, _K))
    except ZeroDivisionError:
        return wrong("a = 1 divides by zero in your formula: a draft that is always right brings k + 1 tokens")
    if not math.isclose(sure, _K + 1):
        return wrong(f"{sure:.4g} for a = 1 and k = {_K}: a draft that is always right brings k + 1 tokens")
    return right("1 + a + a² + … + a^k: at most k + 1, at least 1, and below 1/(1 - a) for any a < 1")


# --- 10.3: the draft length that pays ---------------------------------------------------------------------------------

_RATE, _COST = 0.75, 0.25
_VERIFY = [1.0, 1.02, 1.05, 1.1, 1.15, 1.25, 1.4, 1.6, 2.0]
_FLAT = [1.0, 1.01, 1.02, 1.03]  # with a good, cheap draft the longest is the best
_STEP = [1.0, 1.9, 1.95, 2.0, 2.1, 3.5]  # and here 1 guess is worse than none, and 4 are the best
_GOOD, _CHEAP = 0.9, 0.05


def _argmax(value: Callable[[int], float]) -> int:
    return max(range(len(_VERIFY)), key=value)


def _lengths() -> dict[int, str]:
    """What wrong functions choose: draft length → message."""
    tokens = [speculative.expected_tokens(_RATE, k) for k in range(len(_VERIFY))]
    return {
        _argmax(lambda k: tokens[k]): "the longest draft brings most tokens a step, but steps become slower: divide",
        _argmax(lambda k: tokens[k] / (1 + k * _COST)): "the verifying step grows, too: divide by k c + v(k)",
        _argmax(lambda k: tokens[k] / _VERIFY[k]): "drafting is not free: divide by k c + v(k)",
        _argmax(lambda k: tokens[k] / (_COST + _VERIFY[k])): "the draft runs once for each drafted token: k c, not c",
    }


@exercise("10.3", expects="a function best_length(a, c, v) that returns a whole number")
def answer_length(best_length: Callable[[float, float, list[float]], int]) -> Verdict:
    best, _ = speculative.best_k(_RATE, _COST, lambda k: _VERIFY[k], longest=len(_VERIFY) - 1)
    answer = best_length(_RATE, _COST, list(_VERIFY))
    if answer != best:
        said = _lengths().get(answer, "take the k with the largest (1 + a + … + a^k) / (k c + v[k])")
        return wrong(f"{answer}: {said}")
    useless = best_length(0.05, 0.3, list(_VERIFY))
    if useless != 0:
        return wrong(f"{useless} for a draft that is hardly ever right: k = 0 is a choice, too, do not draft")
    if (longest := best_length(_GOOD, _CHEAP, list(_FLAT))) != 3:
        return wrong(f"{longest} where the longest draft, k = 3, is the best: try every k to len(v) - 1, the last too")
    if (behind := best_length(_GOOD, _CHEAP, list(_STEP))) != 4:
        return wrong(
            f"{behind} where the speed-up falls first and rises later: try every k, do not stop at the "
            "first that is worse"
        )
    return right(f"{best}; and 0 for a draft that costs more than it brings")
