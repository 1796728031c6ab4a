"""Does a confidence mean what it says? Reliability bins, expected calibration error, Wilson's interval."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from servinglab.errors import CourseError


@dataclass(frozen=True)
class Reliability:
    """One entry per bin that holds any answer, in order of confidence; all arrays are [bins]."""

    edges: np.ndarray  # the bin boundaries, [n_bins + 1], empty bins included
    confidence: np.ndarray  # mean confidence
    accuracy: np.ndarray  # share of answers that are right
    count: np.ndarray


def reliability(confidences: ArrayLike, outcomes: ArrayLike, n_bins: int = 10) -> Reliability:
    """Sorts answers into `n_bins` equally wide bins of confidence; perfect calibration has accuracy = confidence.

    confidences: [N], from 0 to 1. outcomes: [N], true or 1 for a right answer. A confidence on an edge belongs to the
    bin above it, 1.0 to the last bin.
    """
    confidences, outcomes = np.asarray(confidences, np.float64), np.asarray(outcomes, np.float64)
    if confidences.ndim != 1 or confidences.shape != outcomes.shape or not confidences.size:
        raise CourseError(
            f"Confidences {confidences.shape} and outcomes {outcomes.shape} must be two lists of one length, not empty."
        )
    if not ((confidences >= 0) & (confidences <= 1)).all():
        raise CourseError("A confidence is outside 0 to 1; turn log probabilities into probabilities with np.exp.")
    if not np.isin(outcomes, (0, 1)).all():
        raise CourseError("Outcomes must be true/false or 1/0, one for each answer.")
    if n_bins < 1:
        raise CourseError(f"n_bins is {n_bins}; it must be 1 or more.")
    edges = np.linspace(0, 1, n_bins + 1)
    bins = np.searchsorted(edges[1:-1], confidences, side="right")
    count = np.bincount(bins, minlength=n_bins)
    used = count > 0
    confidence, accuracy = (np.bincount(bins, v, n_bins)[used] / count[used] for v in (confidences, outcomes))
    return Reliability(edges, confidence, accuracy, count[used])


def expected_calibration_error(confidences: ArrayLike, outcomes: ArrayLike, n_bins: int = 10) -> float:
    """Mean distance between accuracy and confidence over the bins of `reliability`, weighted by count: 0 is perfect
    (Guo et al. 2017, "On Calibration of Modern Neural Networks")."""
    bins = reliability(confidences, outcomes, n_bins)
    return float(np.abs(bins.accuracy - bins.confidence) @ bins.count / bins.count.sum())


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Lower and upper bound of a proportion (Wilson 1927); unlike the textbook mean +- 2 sigma it stays inside 0 to 1
    and has a width at 0 and at all successes."""
    if not 0 <= successes <= trials or trials < 1 or not 0 < confidence < 1:
        raise CourseError(
            f"Wilson's interval needs 0 <= successes <= trials, trials >= 1 and a confidence between 0 and 1, "
            f"not {successes}, {trials} and {confidence}."
        )
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / trials
    middle = share + z * z / (2 * trials)
    spread = z * sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)
