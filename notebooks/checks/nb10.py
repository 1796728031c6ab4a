"""Exercises of notebook 10: the acceptance rule, the tokens that a step brings, the draft length that pays."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from servinglab.checks import Verdict, exercise, right, wrong


def _expected(a: float, k: int) -> float:
    """Tokens that a step brings, if each of k drafted ones is kept with probability a: 1 + a + … + a^k."""
    return float(sum(a**kept for kept in range(k + 1)))


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


# Two tokens that the draft likes too much: what only strikes out the rejected one, or divides by 0.4, shows here.
_P4, _Q4 = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.2, 0.6, 0.1, 0.1])


def _rests(p: np.ndarray, q: np.ndarray, token: int) -> dict[str, np.ndarray]:
    """What a wrong function gives as the distribution of the replacement: message → distribution."""
    excess, least = np.maximum(q - p, 0), np.minimum(p, q)
    others = np.where(np.arange(len(p)) == token, 0, p)
    return {
        "you replace from p: the tokens that were kept come on top, so the draft's favourites come out too often": p,
        "you replace from the draft's q, which is what has just been rejected": q,
        "you strike the rejected token out of p: what is missing of each token is p - q, not p": others / others.sum(),
        "that is |p - q|: where the draft has too much, nothing is missing": np.abs(p - q) / np.abs(p - q).sum(),
        "that is what the draft has too much, q - p: the target lacks p - q": excess / excess.sum(),
        "that is min(p, q), what has been kept already: what is missing is p - min(p, q)": least / least.sum(),
    }


def _rest_mistake(rest: np.ndarray, p: np.ndarray, q: np.ndarray, token: int) -> str:
    """What is wrong with the distribution of the replacement, "" if nothing is."""
    if rest.shape != p.shape:
        return f"the replacement has shape {list(rest.shape)}: one probability for each token of the vocabulary"
    missing = np.maximum(p - q, 0) / np.maximum(p - q, 0).sum()
    if np.allclose(rest, missing):
        return ""
    for said, mistaken in _rests(p, q, token).items():
        if np.allclose(rest, mistaken):
            return said
    if (rest < 0).any():
        return "p - q is negative where the draft has too much: nothing is missing there, so it counts as 0"
    if rest.sum() > 0 and np.allclose(rest / rest.sum(), missing):
        return "right shape, but it does not sum to 1: divide by the sum of what is left"
    return f"{np.round(rest, 3).tolist()}: the replacement comes from what is missing, max(0, p - q)"


@exercise("10.1", expects="a function rule(p, q, token) that returns a number and an array of probabilities")
def answer_rule(rule: Callable[[np.ndarray, np.ndarray, int], tuple[float, np.ndarray]]) -> Verdict:
    keep, rest = rule(_P.copy(), _Q.copy(), _DISLIKED)
    liked = rule(_P.copy(), _Q.copy(), _LIKED)[0]
    again = {repr(float(rule(_P.copy(), _Q.copy(), _DISLIKED)[0])) for _ in range(30)}  # nan is not equal to itself
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
    if said := _rest_mistake(rest, _P, _Q, _DISLIKED):
        return wrong(said)
    if not math.isclose(liked, 1.0):
        return wrong(f"{liked:.3g} for a token that the target likes more than the draft: a probability ends at 1")
    keep, rest = rule(_P4.copy(), _Q4.copy(), 1)
    said = _rest_mistake(np.asarray(rest, float), _P4, _Q4, 1)
    if not math.isclose(float(keep), 0.5):
        said = f"the token is kept with {float(keep):.3g}, not p/q = 0.5"
    if said:
        return wrong(f"right for three tokens, but for p {_P4.tolist()}, q {_Q4.tolist()}, token 1: {said}")
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


_OTHERS = (
    (1.0, 3, "a draft that is always right brings k + 1 tokens"),
    (0.0, 4, "a draft that is never right brings the target's own token, 1"),
    (0.6, 1, "add 1 + a + … up to a^k, for this k"),
    (0.3, 5, "add 1 + a + … up to a^k, for this k"),
)


@exercise("10.2", expects="a function tokens_per_step(a, k) that returns a number")
def answer_tokens(tokens_per_step: Callable[[float, int], float]) -> Verdict:
    answer = float(tokens_per_step(_A, _K))
    if not math.isclose(answer, _EXPECTED, rel_tol=1e-6):
        said = next((text for value, text in _TOKENS.items() if math.isclose(answer, value, rel_tol=1e-6)), "")
        return wrong(f"{answer:.4g}: {said or 'add 1 + a + a² + … + a^k'}")
    for a, k, why in _OTHERS:
        wanted = _expected(a, k)
        try:
            other = float(tokens_per_step(a, k))
        except ZeroDivisionError:
            return wrong(f"a = {a:g} divides by zero in your formula: {why}")
        if not math.isclose(other, wanted, rel_tol=1e-6):
            return wrong(f"right for a = {_A} and k = {_K}, but {other:.4g} for a = {a:g} and k = {k}: {why}")
    return right("1 + a + a² + … + a^k: at most k + 1, at least 1, and at most 1/(1 - a) for any a < 1")


# --- 10.3: the draft length that pays ---------------------------------------------------------------------------------

_Case = tuple[float, float, list[float]]  # a, c, v
_CASES: list[_Case] = [
    (0.75, 0.25, [1.0, 1.02, 1.05, 1.1, 1.15, 1.25, 1.4, 1.6, 2.0]),
    (0.05, 0.3, [1.0, 1.02, 1.05, 1.1, 1.15, 1.25, 1.4, 1.6, 2.0]),  # hardly ever right: none is the best
    (0.9, 0.05, [1.0, 1.01, 1.02, 1.03]),  # a good, cheap draft: the longest is the best
    (0.9, 0.05, [1.0, 1.9, 1.95, 2.0, 2.1, 3.5]),  # 1 guess is worse than none, and 4 are the best
    (0.85, 0.3, [1.0, 1.3, 1.6, 1.9, 2.2, 2.5, 2.8]),
    (0.9, 0.1, [1.0, 1.1, 1.2, 1.4, 1.7, 2.1, 2.6, 3.2]),
    (0.8, 0.02, [1.0, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.8]),
    (0.6, 0.1, [1.0, 1.0, 1.1, 1.26, 1.26, 1.3, 1.34]),
]


def _largest(denominator: Callable[..., float], least: int = 0, spare: int = 0, own: float = 0.0) -> Callable:
    """best_length with another cost of a round, other bounds of k, or `own` tokens taken off each round."""

    def choose(a: float, c: float, v: list[float]) -> int:
        value = lambda k: (_expected(a, k) - own) / denominator(c, v[k], k)  # noqa: E731
        return max(range(least, len(v) - spare), key=value)

    return choose


def _cost(c: float, v: float, k: int) -> float:
    return k * c + v


def _stops(a: float, c: float, v: list[float]) -> int:
    value = lambda k: _expected(a, k) / _cost(c, v[k], k)  # noqa: E731
    return next((k for k in range(len(v) - 1) if value(k + 1) <= value(k)), len(v) - 1)


_right_length = _largest(_cost)
_LENGTHS = {
    "the longest draft brings most tokens a step, but steps become slower: divide": _largest(lambda c, v, k: 1),
    "the verifying step grows, too: divide by k c + v(k)": _largest(lambda c, v, k: 1 + k * c),
    "drafting is not free: divide by k c + v(k)": _largest(lambda c, v, k: v),
    "the draft runs once for each drafted token: k c, not c": _largest(lambda c, v, k: c + v),
    "k guesses cost k c, not (k + 1) c": _largest(lambda c, v, k: (k + 1) * c + v),
    "drafting and verifying come one after the other: add k c and v(k)": _largest(lambda c, v, k: (1 + k * c) * v),
    "the target's own token is missing: a round brings 1 + a + … + a^k": _largest(_cost, own=1.0),
    "k = 0 is a choice, too: do not draft where the draft is hardly ever right": _largest(_cost, least=1),
    "the longest draft is never tried: try every k to len(v) - 1, the last too": _largest(_cost, spare=1),
    "the speed-up may fall first and rise later: try every k, do not stop at the first that is worse": _stops,
}


@exercise("10.3", expects="a function best_length(a, c, v) that returns a whole number")
def answer_length(best_length: Callable[[float, float, list[float]], int]) -> Verdict:
    answers = [float(best_length(a, c, list(v))) for a, c, v in _CASES]
    if odd := [answer for answer in answers if not answer.is_integer()]:
        return wrong(f"{odd[0]:.4g} is no draft length: return the k, not its speed-up")
    wanted = [_right_length(*case) for case in _CASES]
    if answers == wanted:
        return right(f"{wanted[0]}; and 0 for a draft that costs more than it brings")
    said = next((text for text, mistaken in _LENGTHS.items() if answers == [mistaken(*case) for case in _CASES]), "")
    at = next(n for n, answer in enumerate(answers) if answer != wanted[n])
    a, c, v = _CASES[at]
    said = said or "take the k with the largest (1 + a + … + a^k) / (k c + v[k])"
    return wrong(f"{answers[at]:g} for a = {a}, c = {c}, v = {v}, where {wanted[at]} is the best: {said}")
