"""Exercises of notebook 06: softmax with a temperature, its log form, and the temperature that gives what you want."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import log_softmax, logsumexp, softmax

from servinglab.checks import Verdict, exercise, right, wrong

# --- 06.1: softmax for a batch ----------------------------------------------------------------------------------------

_ROWS = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, -1.0]])
_T = 0.5


def _over_sum(weights: np.ndarray, axis: int | None = 1) -> np.ndarray:
    return weights / weights.sum(axis=axis, keepdims=True)


def _batch_mistakes() -> list[tuple[str, np.ndarray]]:
    """What a wrong function gives for _ROWS at _T, without and with the maximum subtracted: (message, values)."""
    plain, z = _over_sum(np.exp(_ROWS)), _ROWS / _T
    raw, stable = np.exp(z), np.exp(z - z.max(axis=1, keepdims=True))
    one_maximum, before = np.exp(z - z.max()), np.exp(z - _ROWS.max(axis=1, keepdims=True))
    columns = "each column sums to 1: a row holds the logits of one prompt, so sum along the last axis"
    together = "all rows together sum to 1: every row is a distribution of its own, so sum along axis 1, with keepdims"
    weights = "these are weights, not probabilities: divide each row by its sum"
    missing = "the temperature is missing in the denominator: the sum runs over exp(z/T), too, or it does not give 1"
    heights = [0 * _ROWS, _ROWS.max(axis=1, keepdims=True), z.max(axis=1, keepdims=True), z.max(), _ROWS.max()]
    sums = [np.exp(_ROWS - height).sum(axis=1, keepdims=True) for height in heights]
    return [
        *((columns, _over_sum(w, axis=0)) for w in (raw, stable, before)),
        *((together, _over_sum(w, axis=None)) for w in (raw, stable, before)),
        *((weights, w) for w in (raw, stable, one_maximum, before)),
        *((missing, w / total) for w in (raw, stable, one_maximum, before) for total in sums),
        (
            "you divide the probabilities by the temperature, after the softmax: their sum is 1/T. Divide the logits",
            plain / _T,
        ),
        ("the temperature has no effect: it is left out, or divides probabilities that you then normalise", plain),
        (
            "a softmax of probabilities is nearly flat: the temperature divides the logits, and one softmax follows",
            _over_sum(np.exp(plain / _T)),
        ),
        ("p ** (1/T) has the right ratios, but must be divided by its sum again", plain ** (1 / _T)),
        (
            "you multiply by the temperature: 0.5 must make the differences larger, not smaller",
            _over_sum(np.exp(_ROWS * _T)),
        ),
    ]


@exercise("06.1", expects="a function batch_softmax(logits, temperature) that returns an array of the same shape")
def for_a_batch(function: Callable[[np.ndarray, float], np.ndarray]) -> Verdict:
    given = _ROWS.copy()
    try:
        answer = np.asarray(function(given, _T), dtype=float)
    except ValueError as error:
        if "(2,)" in str(error):
            return wrong("one number a row has shape [2], which does not go with rows [2, 3]: use keepdims=True")
        if "(3,1)" in str(error):
            return wrong("that is one number for each token, along axis 0; a row needs one for itself, along axis 1")
        raise
    if answer.shape != _ROWS.shape:
        return wrong(f"for logits of shape [2, 3] it returns {list(answer.shape)}: one probability for each logit")
    if not np.array_equal(given, _ROWS):
        return wrong("it changes the logits it was given: write z = logits / temperature, not logits /= temperature")
    if not np.allclose(answer, softmax(_ROWS / _T, axis=1), atol=1e-6):
        known = [said for said, values in _batch_mistakes() if np.allclose(answer, values, atol=1e-6)]
        return wrong(known[0] if known else "row 1 at temperature 0.5 must be about 0.867, 0.117, 0.016")
    with np.errstate(all="ignore"):
        large = np.asarray(function(np.array([[1000.0, 999.0]]), 1.0), dtype=float)
        mixed = np.asarray(function(np.array([[1000.0, 999.0], [1.0, 0.0]]), 1.0), dtype=float)
        wide = np.asarray(function(np.array([[2000.0, 0.0]]), 1.0), dtype=float)
        colder = np.asarray(function(np.array([[1000.0, 999.0]]), _T), dtype=float)
    if not np.isfinite(large).all():
        return wrong("logits of 1000 give nan: exp overflows. Subtract the row's maximum before exp")
    if not np.isfinite(mixed).all():
        return wrong("a row far below another gives nan: subtract each row's own maximum, not that of the whole array")
    if not np.allclose(wide, [[1, 0]], atol=1e-6):
        return wrong("logits 2000 and 0 give nan: subtract the row's maximum, not its minimum or its mean")
    if not np.isfinite(colder).all():
        return wrong("logits of 1000 give nan at T = 0.5: the maximum to subtract is that of z/T, not that of z")
    if not np.allclose(mixed, 1 / (1 + np.exp([[-1, 1], [-1, 1]])), atol=1e-6):
        return wrong("logits 1000 and 999 must give the same row as 1 and 0: only differences count")
    return right("each row sums to 1, and no logit is too large")


# --- 06.2: the log form -----------------------------------------------------------------------------------------------

_Z = np.array([4.0, 1.0, 0.0])
_WARM = 4.0  # not 2, where two mistakes give the same


def _log_mistakes() -> dict[str, np.ndarray]:
    """What a wrong function gives for _Z at _WARM: message → values."""
    shrunk = _Z.max() / _WARM - _Z.max()  # the maximum of z/T less that of z
    truth, total = log_softmax(_Z / _WARM), logsumexp(_Z / _WARM)
    return {
        "that is in base 2: np.log2 counts bits, the formula is in natural logarithms": truth / math.log(2),
        "that is in base 10: the formula is in natural logarithms, np.log": truth / math.log(10),
        "T is missing inside the log of the sum: the sum runs over exp(z/T)": _Z / _WARM - logsumexp(_Z),
        "T is missing inside the log of the sum: it runs over exp(z/T - m), with the same m outside": (
            _Z / _WARM - logsumexp(_Z) - shrunk
        ),
        "after log you add the maximum of z, but before exp you subtracted that of z/T: take that of z/T twice": (
            truth + shrunk
        ),
        "before exp you subtract the maximum of z, but after log you add that of z/T: take that of z/T twice": (
            truth - shrunk
        ),
        "T is missing in front: it is z/T minus the log of the sum, not z": _Z - total,
        "you divide the log probability by T, and it is no longer normalised: divide the logits": (
            log_softmax(_Z) / _WARM
        ),
        "the temperature has no effect: these are the log probabilities at temperature 1": log_softmax(_Z),
        "the maximum is missing: what you subtracted before exp must be added after log": truth + _Z.max() / _WARM,
        "the sign is turned: a probability is at most 1, so its logarithm is at most 0": -truth,
        "these are probabilities: the logarithm is asked for": np.exp(truth),
        "that is z/T alone: subtract the log of the sum, the same number for each token": _Z / _WARM,
    }


@exercise("06.2", expects="a function log_form(logits, temperature) that returns an array of the same shape")
def in_logs(function: Callable[[np.ndarray, float], np.ndarray]) -> Verdict:
    answer = np.asarray(function(_Z.copy(), _WARM), dtype=float)
    if answer.shape != _Z.shape:
        return wrong(f"for three logits it returns shape {list(answer.shape)}: one log probability for each logit")
    if not np.allclose(answer, log_softmax(_Z / _WARM), atol=1e-6):
        known = [said for said, values in _log_mistakes().items() if np.allclose(answer, values, atol=1e-6)]
        return wrong(known[0] if known else "logits 4, 1, 0 at temperature 4 must give about -0.610, -1.360, -1.610")
    with np.errstate(all="ignore"):
        far = np.asarray(function(np.array([0.0, -1000.0]), 1.0), dtype=float)
        high = np.asarray(function(np.array([1000.0, 999.0]), 1.0), dtype=float)
        colder = np.asarray(function(np.array([1000.0, 999.0]), _T), dtype=float)
        wide = np.asarray(function(np.array([0.0, -4000.0]), 1.0), dtype=float)
    if not np.isfinite(high).all():
        return wrong("a logit of 1000 overflows in exp: subtract the maximum inside the log of the sum")
    if not np.isfinite(wide.flat[0]):  # only here: the log of an underflowed probability is -inf for the second
        return wrong("logits 0 and -4000 overflow: subtract the maximum, not the minimum or the mean")
    if not np.isfinite(far).all():
        return wrong("the log of an underflowed probability is -inf, the truth is -1000: never form the probability")
    if far.shape == (2,) and -750 < far[1] < -1:  # exp(-750) is 0 in any type, so no tiny number gives less
        return wrong(
            f"a small number before log, added or as a floor, hides -inf behind an invented value: "
            f"{far[1]:.1f} instead of -1000"
        )
    if not np.allclose(far, [0, -1000], atol=1e-6) or not np.allclose(high, [-0.3132617, -1.3132617], atol=1e-6):
        return wrong("logits 0 and -1000 must give 0 and -1000; logits 1000 and 999 about -0.313 and -1.313")
    if not np.allclose(colder, [-0.1269280, -2.1269280], atol=1e-6):
        return wrong("logits of 1000 overflow at T = 0.5: the maximum to subtract is that of z/T, not that of z")
    return right("-1000 is a log probability like any other, and nothing overflowed on the way")


# --- 06.3: options that reach a share ---------------------------------------------------------------------------------

_LOGITS = np.array([1.0, 4.0, 2.5, 0.0, -3.0, 1.5])
_SHARES = (0.5, 0.3, 0.9, 0.1667 + 0.02, 0.9999)


@exercise("06.3", expects="a function knob(logits, share) that returns a dict of options")
def knob(answer: Callable[[np.ndarray, float], dict[str, float]]) -> Verdict:
    for share in _SHARES:
        options = dict(answer(_LOGITS.copy(), share))
        if strange := set(options) - {"temperature", "top_p", "top_k"}:
            return wrong(f"leave out {sorted(strange)[0]!r}: temperature and one of top_k and top_p are all you need")
        if "temperature" not in options:
            return wrong("without a temperature the share is that of T = 1, whatever you want")
        if not {"top_p", "top_k"} & set(options):
            return wrong("with a temperature alone the server is greedy: the first token comes every time (section 8)")
        if options.get("top_k") == 1:
            return wrong("top_k 1 leaves one token, which then has probability 1 at any temperature")
        if 0 < options.get("top_k", 0) < len(_LOGITS) or options.get("top_p", 1) < 1:
            return wrong("that cuts tokens off, and the first one gains what they lose: top_p 1.0 keeps all")
        temperature = float(options["temperature"])
        if not temperature > 0:
            return wrong(f"a temperature of {temperature:g} is refused, or greedy: it must be above 0")
        p = softmax(_LOGITS / temperature)
        if abs(p.max() - share) < 0.002:
            continue
        if math.isclose(temperature, softmax(_LOGITS).max() / share, rel_tol=1e-3):
            return wrong("T divides the logits, not the probability: at p / share the first token has "
                         f"{p.max():.2f}, not {share:g}")  # fmt: skip
        if math.isclose(softmax(_LOGITS * temperature).max(), share, abs_tol=0.002):
            return wrong("that is 1/T: the server divides by what you send")
        what = f"for a share of {share:g} your T = {temperature:.3g} gives {p.max():.2f}"
        return wrong(f"{what}: search wider" if share in _SHARES[3:] else f"{what}: solve softmax(z / T).max() = share")
    return right("the share of the first token only falls with T, so each share has one T, if sampling is on")
