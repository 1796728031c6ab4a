"""Exercises of notebook 07: top-k and top-p as functions of one row, and settings that end a loop on a server."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from servinglab import decoding
from servinglab.checks import Verdict, exercise, is_stub, right, unattempted, wrong
from servinglab.client import gather, inputs

Row = np.ndarray


def _near(a: Row, b: Row) -> bool:
    return np.shape(a) == np.shape(b) and np.allclose(a, b, atol=1e-6)


def _normal(p: Row) -> Row:
    return p / p.sum()


def _first_match(answer: Row, mistakes: dict[str, Row], otherwise: str) -> Verdict:
    """The message of the mistake whose values these are."""
    return wrong(next((said for said, values in mistakes.items() if _near(answer, values)), otherwise))


# --- 07.1: top-k ------------------------------------------------------------------------------------------------------

_Z = np.array([0.5, 3.0, -1.0, 2.0, 1.0, 2.5])
_K = 3


def _top_k_mistakes() -> dict[str, Row]:
    """What a wrong function gives for _Z and 3: message → values."""
    p = decoding.softmax(_Z)
    kept = np.isin(np.arange(_Z.size), [1, 5, 3])
    return {
        "nothing is cut: these are the probabilities of all tokens": p,
        "forgot to renormalise: what is left sums to less than 1, divide it by its sum": np.where(kept, p, 0),
        "a logit of 0 is not cut: exp(0) = 1. Cut logits become -inf, or cut the probabilities": decoding.softmax(
            np.where(kept, _Z, 0)
        ),
        "that keeps the k smallest logits: an ascending sort has the likeliest at its end": decoding.softmax(
            np.where(np.isin(np.arange(_Z.size), [2, 0, 4]), _Z, -np.inf)
        ),
        "that keeps the first k ids of the vocabulary: a token's id says nothing about its logit": decoding.softmax(
            np.where(np.arange(_Z.size) < _K, _Z, -np.inf)
        ),
        "one too few: the k-th logit itself stays, so compare with >=": decoding.distribution(_Z, top_k=_K - 1),
        "one too many: index k is the (k+1)-th logit, counting begins at 0": decoding.distribution(_Z, top_k=_K + 1),
        "the ids are lost: each probability must stay at the place of its token, 0 for the others": np.sort(
            decoding.distribution(_Z, top_k=_K)
        )[::-1],
        "cut tokens must have exactly 0: exp of a low number is a little more. Their logit becomes -inf": (
            decoding.softmax(np.where(kept, _Z, _Z.min() - 1))
        ),
        "a softmax of probabilities flattens them: renormalising is a division by the sum": decoding.softmax(
            np.where(kept, p, -np.inf)
        ),
    }


@exercise("07.1", expects="a function top_k(logits, k) that returns an array of probabilities")
def top_k(function: Callable[[Row, int], Row]) -> Verdict:
    given = _Z.copy()
    answer = np.asarray(function(given, _K), dtype=float)
    if answer.shape == (_K,):
        return wrong("k numbers without their ids: return one probability for each token, 0 for those that are cut")
    if not np.array_equal(given, _Z):
        return wrong("it changes the logits it was given, which the next strategy needs: work on a copy")
    if not _near(answer, decoding.distribution(_Z, top_k=_K)):
        return _first_match(answer, _top_k_mistakes(), "the tokens 1, 5 and 3 must keep about 0.51, 0.31 and 0.19")
    if np.count_nonzero(answer) > _K:
        return wrong("cut tokens must have exactly 0: exp of a low number is a little more. Their logit becomes -inf")
    with np.errstate(all="ignore"):
        negative = _value_or_error(function, np.array([-9.0, 1.0, 0.0, 2.0]), 2)
        high, low = (_value_or_error(function, z + np.array([0.0, -1.0, -3.0]), 2) for z in (1000, -2000))
        large = _value_or_error(function, _Z.copy(), 50)
        off = _value_or_error(function, _Z.copy(), 0)
    pair = decoding.softmax([0.0, -1.0])
    if not _near(negative, [0, pair[1], 0, pair[0]]):
        return wrong("a logit of -9 is a low one: compare the logits themselves, not their absolute values")
    if not _near(high, [*pair, 0]):
        return wrong("logits of 1000 overflow in exp: subtract the highest logit first")
    if not _near(low, [*pair, 0]):
        return wrong("logits near -2000 are as good as others: subtract the highest one, and cut with -inf")
    if not _near(large, decoding.softmax(_Z)):
        return wrong("k = 50 is more than the six tokens there are, and must change nothing")
    if not _near(off, decoding.softmax(_Z)):
        return wrong("k = 0 means off, as in the server: it must change nothing")
    return right("three tokens share all of the probability, in the old proportions")


def _value_or_error(function: Callable, *arguments: object) -> Row:
    """What the function returns, or nothing that matches anything when it raises."""
    try:
        return np.asarray(function(*arguments), dtype=float)
    except Exception:
        return np.empty(0)


# --- 07.2: top-p ------------------------------------------------------------------------------------------------------

_P = np.array([0.08, 0.04, 0.19, 0.10, 0.05, 0.30, 0.06, 0.18])
_RANKED = np.argsort(-_P)  # 5, 2, 7, 3, 0, 6, 4, 1; their sums 0.30 0.49 0.67 0.77 0.85 0.91 0.96 1
_LIMIT = 0.65
_HALVES = np.array([0.125, 0.5, 0.25, 0.125])  # their sums are exact in floating point, too


def _kept(*ids: int) -> Row:
    return np.where(np.isin(np.arange(_P.size), ids), _P, 0)


def _top_p_mistakes() -> dict[str, Row]:
    """What a wrong function gives for _P and 0.65: message → values."""
    leading = np.isin(np.arange(_P.size), [0, 1, 2])  # the mask in the order of the ranks
    ranked = _normal(np.where(leading, _P[_RANKED], 0))
    return {
        "nothing is cut: 0.65 is reached by three tokens": _P,
        "forgot to renormalise: what is left sums to 0.67, divide it by its sum": _kept(5, 2, 7),
        "you divide by p itself: the nucleus holds a little more than p, so divide by what is left": (
            _kept(5, 2, 7) / _LIMIT
        ),
        "that is NVIDIA's draw; here, as on our server, the crossing token keeps its whole probability": (
            np.where(np.arange(_P.size) == 7, _LIMIT - 0.49, _kept(5, 2)) / _LIMIT
        ),
        "dropped the crossing token: the two tokens you keep reach 0.49 only, the one that crosses 0.65 stays": _normal(
            _kept(5, 2)
        ),
        "one too many: 0.67 has reached 0.65, the token after the crossing one goes": _normal(_kept(5, 2, 7, 3)),
        "p is no share of the tokens: 65 % of eight tokens are about five, but three hold 65 % of the probability": (
            _normal(_kept(5, 2, 7, 3, 0))
        ),
        "no sorting: you add up in the order of the ids; the likeliest tokens come first": _normal(
            _kept(0, 1, 2, 3, 4, 5)
        ),
        "no sorting, and the crossing token is dropped: the likeliest tokens come first": _normal(_kept(0, 1, 2, 3, 4)),
        "sorted, but the mask is not carried back: it says which ranks stay, so use kept[order[mask]]": _normal(
            _kept(0, 1, 2)
        ),
        "s[order] sorts once more; back leads s[np.argsort(order)], or kept[order] = s": ranked[_RANKED],
        "mask[order] sorts once more; back leads mask[np.argsort(order)], or kept[order[mask]]": _normal(
            np.where(leading[_RANKED], _P, 0)
        ),
        "sorted the wrong way: you gather the least likely tokens, begin with the likeliest": _normal(_P - _kept(5)),
        "the threshold is for the sum, not for single probabilities: no single token reaches 0.65": np.zeros(_P.size),
        "that is min-p: it compares each token with the likeliest; top-p adds up": _kept(5) / _P[5],
        "the ids are lost: undo the sorting, each probability belongs at the place of its token": ranked,
    }


@exercise("07.2", expects="a function top_p(probabilities, p) that returns an array of probabilities")
def top_p(function: Callable[[Row, float], Row]) -> Verdict:
    given, truth = _P.copy(), _normal(_kept(5, 2, 7))
    with np.errstate(all="ignore"):
        answer = np.asarray(function(given, _LIMIT), dtype=float)
    if answer.shape != _P.shape:
        said = "one probability for each token, 0 for those that are cut"
        return wrong(f"for eight tokens it returns shape {list(answer.shape)}: {said}")
    if not np.array_equal(given, _P):
        return wrong("it changes the probabilities it was given: work on a copy")
    if not _near(np.nan_to_num(answer), truth):
        return _first_match(np.nan_to_num(answer), _top_p_mistakes(), "of probabilities 0.30, 0.19, 0.18 and smaller "
                            "ones, p = 0.65 keeps three, which become 0.45, 0.28 and 0.27")  # fmt: skip
    with np.errstate(all="ignore"):
        narrow = _value_or_error(function, _P.copy(), 0.2)
        whole = _value_or_error(function, _HALVES.copy(), 1.0)
        exact = _value_or_error(function, _HALVES.copy(), 0.5)
    if not _near(narrow, np.eye(_P.size)[5]):
        return wrong("the likeliest token crosses p = 0.2 at once: it must stay, and stay alone")
    if not _near(whole, _HALVES):
        return wrong("p = 1 must change nothing: every token is needed to reach 1")
    if not _near(exact, np.eye(_HALVES.size)[1]):
        return wrong("a token of probability 0.5 reaches p = 0.5 exactly, and that is enough: it stays alone")
    return right("the crossing token stays, and three tokens share the whole")


# --- 07.3: end a loop on the server that the notebook runs ------------------------------------------------------------

_TASKS = {
    "loop": ("The children played in the park. The children", 40),
    "count on": ("2, 4, 6, 8,", 4),
    "copy": ("say cat -> cat\nsay house -> house\nsay river ->", 4),
}
_MOST = 0.1  # of the 4-grams may have occurred before


def _asked(client: InferenceServerClient, settings: dict) -> dict[str, str]:
    """The answer to each task, and to the first one with another seed. One by one: int4 rounds otherwise in company."""
    common = {"stream": False, "exclude_input_in_output": True, **settings}
    prompts = {name: {"text_input": text, "max_tokens": most} for name, (text, most) in _TASKS.items()}
    prompts["again"] = prompts["loop"] | {"seed": 1 + int(settings.get("seed", 0))}
    said = {}
    for name, each in prompts.items():
        results = gather(client, "tensorrt_llm_bls", {0: inputs(**common | each)})[0]
        said[name] = results[-1].as_numpy("text_output")[0].decode()
    return said


def _repeated(text: str) -> float:
    """Share of the 4-grams, of words and marks, that have occurred before."""
    words = re.findall(r"\w+|[^\w\s]", text)
    grams = [tuple(words[at : at + 4]) for at in range(len(words) - 3)]
    return 1 - len(set(grams)) / max(len(grams), 1)


@exercise("07.3", expects="a dict of settings of a request, such as {'top_k': 1}")
def loop(answer: tuple[dict, InferenceServerClient]) -> Verdict:
    settings, client = answer
    if is_stub(settings):
        return unattempted()
    if not isinstance(settings, dict) or settings.keys() & {"text_input", "max_tokens", "stop_words", "bad_words"}:
        return wrong("change only how the next token is chosen: a dict of such settings")
    try:
        said = _asked(client, settings)
    except InferenceServerException as error:
        return wrong(f"the server refuses it: {error.message()}")
    rate = _repeated(said["loop"])
    told = f"{rate:.0%} of the 4-grams repeat, in {said['loop'][-60:]!r}"
    if rate > _MOST and settings.keys() <= {"temperature", "seed", "random_seed"}:
        return wrong(f"{told}: without top_k or top_p nothing is drawn, so temperature and seed have no effect")
    if rate > _MOST:
        return wrong(f"{told}: the loop's favourite still leads by more than that takes off its logit")
    if said["again"] != said["loop"]:
        return wrong(f"{told}, but another seed tells another story: a draw leaves the loop by luck")
    if "10" not in said["count on"]:
        return wrong(f"{told}, but after 2, 4, 6, 8 comes {said['count on']!r}: too strong, what the prompt holds is "
                     "pushed away, too")  # fmt: skip
    if "river" not in said["copy"]:
        return wrong(f"{told}, but the copy of 'river' became {said['copy']!r}: too strong for a word just read")
    return right(f"{told}; counting and copying still work, and every seed tells the same")
