"""How good an answer is, and whether a confidence means what it says. Notebooks 08 and 09."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from servinglab.errors import CourseError


def score(log_prob: float, length: int, length_penalty: float = 0.0) -> float:
    """log_prob / length**length_penalty, the measure by which beams are ranked.

    length: generated tokens, the end token included. 0 leaves the log probability as it is and so favours short
    sequences; 1 is the mean per token; more favours long ones.
    """
    try:
        divisor = float(length) ** float(length_penalty)
    except OverflowError:
        divisor = math.inf
    if not 0 < divisor < math.inf:
        raise CourseError(
            f"length_penalty is {length_penalty:g}: it divides by the number of tokens to that power, "
            f"and for {length} tokens that is no usable number; use one nearer to 0, such as 1 (the mean per token)."
        )
    return float(log_prob) / divisor


def perplexity(log_probs: ArrayLike) -> float:
    """exp(-mean) of the tokens' natural log probs [T]: among how many equally likely tokens the model hesitated."""
    values = np.asarray(log_probs, np.float64)
    if not (values.size and (values <= 1e-6).all()):
        raise CourseError("Perplexity needs one log prob or more, none above 0; did you pass probabilities or logits?")
    with np.errstate(over="ignore"):
        return float(np.exp(-values.mean()))


@dataclass(frozen=True)
class Reliability:
    """One entry per bin that holds any answer, in order of confidence; all arrays are [bins]."""

    confidence: np.ndarray  # mean confidence
    accuracy: np.ndarray  # share of answers that are right
    count: np.ndarray


def reliability(confidences: ArrayLike, outcomes: ArrayLike, n_bins: int = 10) -> Reliability:
    """Sorts answers into `n_bins` equally wide bins of confidence; perfect calibration has accuracy = confidence.

    confidences: [N], from 0 to 1. outcomes: [N], true or 1 for a right answer. A confidence on an edge belongs to the
    bin above it, 1.0 to the last bin.
    """
    confidences, outcomes = np.asarray(confidences, np.float64), np.asarray(outcomes, np.float64)
    if not ((confidences >= 0) & (confidences <= 1)).all():
        raise CourseError("A confidence is outside 0 to 1; turn log probabilities into probabilities with np.exp.")
    bins = np.searchsorted(np.linspace(0, 1, n_bins + 1)[1:-1], confidences, side="right")
    count = np.bincount(bins, minlength=n_bins)
    used = count > 0
    confidence, accuracy = (np.bincount(bins, v, n_bins)[used] / count[used] for v in (confidences, outcomes))
    return Reliability(confidence, accuracy, count[used])


def expected_calibration_error(confidences: ArrayLike, outcomes: ArrayLike, n_bins: int = 10) -> float:
    """Mean distance between accuracy and confidence over the bins of `reliability`, weighted by count: 0 is perfect
    (Guo et al. 2017, "On Calibration of Modern Neural Networks")."""
    bins = reliability(confidences, outcomes, n_bins)
    return float(np.average(np.abs(bins.accuracy - bins.confidence), weights=bins.count))


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Lower and upper bound of a proportion (Wilson 1927); unlike the textbook mean +- 2 sigma it stays inside 0 to 1
    and has a width at 0 and at all successes."""
    import scipy.stats  # half a second, which not every caller needs

    return tuple(scipy.stats.binomtest(successes, trials).proportion_ci(confidence, "wilson"))
