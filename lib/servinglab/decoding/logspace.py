"""Softmax and its relatives, with the maximum subtracted first so that no exponential can overflow."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from servinglab.errors import CourseError


def logsumexp(x: ArrayLike, axis: int = -1) -> np.ndarray:
    """log(sum(exp(x))) along `axis`, which disappears; -inf where every x is -inf (the log of a sum of zeros)."""
    x = as_logits(x, axis, name="x")
    highest = x.max(axis, keepdims=True)
    shift = np.where(highest == -np.inf, 0.0, highest)
    with np.errstate(divide="ignore", over="ignore"):
        return np.log(np.exp(x - shift).sum(axis)) + shift.squeeze(axis)


def log_softmax(logits: ArrayLike, temperature: float = 1.0, axis: int = -1) -> np.ndarray:
    """Log probabilities, same shape: z/T - logsumexp(z/T) along `axis`.

    Temperature 0 and math.inf are the limits: all mass on the highest logit (ties share it equally), and equal mass on
    every logit that is not -inf. Never above 0, and exact where `np.log(softmax(...))` has underflowed to -inf.
    """
    below = _below_highest(logits, temperature, axis)
    return below - np.log(np.exp(below).sum(axis, keepdims=True))


def softmax(logits: ArrayLike, temperature: float = 1.0, axis: int = -1) -> np.ndarray:
    """Probabilities, same shape, sum 1 along `axis`: exp(z/T) / sum(exp(z/T)). Temperature as in `log_softmax`."""
    weights = np.exp(_below_highest(logits, temperature, axis))
    return weights / weights.sum(axis, keepdims=True)


def entropy(p: ArrayLike, axis: int = -1, base: float = math.e) -> np.ndarray:
    """Shannon entropy -sum(p log p) along `axis`, with 0 log 0 = 0: in nats, or with base 2 in bits.

    Unlike scipy's, it does not normalise: probabilities that do not sum to 1 (within 0.001) raise CourseError.
    """
    p = as_probabilities(p, axis)
    if not (math.isfinite(base) and base > 0 and base != 1):
        raise CourseError(f"base is {base}; it must be a positive number other than 1, such as 2 or math.e.")
    logs = np.log(p, where=p > 0, out=np.zeros_like(p))
    return 0.0 - (p * logs).sum(axis) / math.log(base)  # 0 - x, so that a certain outcome gives 0 and not -0


def as_logits(x: ArrayLike, axis: int = -1, name: str = "logits") -> np.ndarray:
    """`x` as float64 with at least one value along `axis`; CourseError for anything that is not a number below +inf."""
    x = _real(x, axis, name)
    if np.isnan(x).any() or (x == np.inf).any():
        raise CourseError(f"The {name} hold nan or +inf; look for an overflow in the step that computed them.")
    return x


def as_row(logits: ArrayLike) -> np.ndarray:
    """One row of logits [vocab], float64, as `as_logits`; CourseError for more dimensions."""
    row = as_logits(logits)
    if row.ndim != 1:
        raise CourseError(f"The logits have shape {row.shape}; give one row of the vocabulary at a time.")
    return row


def as_probabilities(p: ArrayLike, axis: int = -1) -> np.ndarray:
    """`p` as float64; CourseError unless its values are at least 0 and sum to 1 (within 0.001) along `axis`."""
    p = _real(p, axis, "probabilities")
    if not (p >= 0).all():
        raise CourseError("The probabilities hold a negative value or nan; did you pass logits or log probabilities?")
    wrong = [total for total in np.ravel(p.sum(axis)) if not abs(total - 1) <= 1e-3]
    if wrong:
        raise CourseError(f"The probabilities sum to {wrong[0]:.4g} along axis {axis}; divide them by their sum first.")
    return p


def _real(x: ArrayLike, axis: int, name: str) -> np.ndarray:
    try:
        x = np.asarray(x)
        if x.dtype.kind not in "fiub":
            raise TypeError
    except (TypeError, ValueError):
        raise CourseError(f"The {name} must be an array of real numbers that numpy can read.") from None
    if not -x.ndim <= axis < x.ndim or not x.shape[axis]:
        raise CourseError(f"The {name} have shape {x.shape}; axis {axis} must exist and hold at least one value.")
    return x.astype(np.float64)


def _below_highest(logits: ArrayLike, temperature: float, axis: int) -> np.ndarray:
    """(z - max z) / T: 0 for the highest logit, negative for the rest; as large as a softmax ever needs."""
    z = as_logits(logits, axis)
    if not temperature >= 0:
        raise CourseError(f"temperature is {temperature}; it must be 0 (always the likeliest) or more.")
    highest = z.max(axis, keepdims=True)
    if (highest == -np.inf).any():
        raise CourseError("Every logit is -inf, so no token is left; loosen the filter or the ban that did it.")
    if temperature == 0:
        return np.where(z == highest, 0.0, -np.inf)
    if temperature == math.inf:
        return np.where(z == -np.inf, -np.inf, 0.0)
    with np.errstate(over="ignore"):  # to -inf, a probability of 0
        return 2 * ((z / 2 - highest / 2) / temperature)  # halves, because 1e308 - -1e308 has no float64
