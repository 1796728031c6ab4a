"""Exercises of notebook 10: the acceptance rule, the draft length that pays, and the lengths of a server."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from tritonclient.grpc import InferenceServerClient

from servinglab.checks import Verdict, exercise, is_stub, right, unattempted, wrong
from servinglab.client import gather, inputs


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
    if keep == liked == 0:
        return wrong("you keep nothing: what is drawn from p alone is right, but no guess ever saves a step")
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


# --- 10.2: the draft length that pays ---------------------------------------------------------------------------------

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


@exercise("10.2", expects="a function best_length(a, c, v) that returns a whole number")
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


# --- 10.3: draft lengths of a server ----------------------------------------------------------------------------------

LONGEST, GUESS = 4, 0.3  # the longest draft; what a guess costs, in steps of the target
_CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
_TRAFFIC = {
    "copy": "Repeat this text exactly: The keeper found a letter in a green bottle on the third of March.",
    "poem": "Write a poem about rain.",
}


@functools.cache
def _counts(client: InferenceServerClient, kind: str) -> list[tuple[int, int]]:
    """(guesses, accepted ones) of one answer of 24 tokens, for each length from 0 to LONGEST."""
    asked = {"text_input": _CHAT.format(_TRAFFIC[kind]), "max_tokens": 24, "min_tokens": 24, "stream": False}
    asked["return_perf_metrics"] = True
    counts = [(0, 0)]
    for k in range(1, LONGEST + 1):  # one by one: in int4 a text depends on what else is computed
        (found,) = gather(client, "tensorrt_llm_bls", {k: inputs(**asked, num_draft_tokens=k)})[k]
        counts.append(tuple(found.as_numpy(f"total_{name}draft_tokens").item() for name in ("", "accepted_")))
    return counts


@exercise("10.3", expects="a dict with copy and poem, two numbers of guesses")
def served_lengths(answer: tuple[dict[str, int], InferenceServerClient]) -> Verdict:
    lengths, client = answer
    if is_stub(lengths):
        return unattempted()
    if set(lengths) != set(_TRAFFIC) or not all(k in range(LONGEST + 1) for k in lengths.values()):
        return wrong(f"expected copy and poem, each with a whole number from 0 to {LONGEST}")
    for kind, k in lengths.items():
        counts = _counts(client, kind)
        saved = [kept - GUESS * guesses for guesses, kept in counts]
        if saved[k] >= max(saved) - 0.2:
            continue
        guesses, kept = counts[k]
        told = f"{kind}: with {k} the server accepted {kept} of {guesses} guesses, which saves {saved[k]:.1f} steps"
        return wrong(f"{told}; {_why(k, saved, counts)}")
    return right("; ".join(f"{kind} {k}: saves {_counts(client, kind)[k][1] - GUESS * _counts(client, kind)[k][0]:.1f} "
                           "steps" for kind, k in lengths.items()))  # fmt: skip


def _why(k: int, saved: list[float], counts: list[tuple[int, int]]) -> str:
    shares = [kept / max(guesses, 1) for guesses, kept in counts]
    if k == 0:
        return "some length brings more than its guesses cost"
    if k == LONGEST:
        return "the longest draft has most guesses accepted, and pays for all that are not"
    if k == int(np.argmax(shares)):
        return "the best acceptance rate is not the largest saving: a longer draft may lose more and still save more"
    return "another length saves more: subtract the cost of all guesses from those accepted, for each length"
