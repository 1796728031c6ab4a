"""How good a whole sequence is: its log probability, its length-normalised score, its perplexity."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from servinglab.errors import CourseError


def sequence_log_prob(log_probs: ArrayLike) -> float:
    """The log of the product of the tokens' probabilities: the sum of their log probs [T], in nats (0.0 for none).

    Raises CourseError for a value above 0, which no log probability is.
    """
    return math.fsum(_log_probs(log_probs))


def score(log_prob: float, length: int, length_penalty: float = 0.0) -> float:
    """log_prob / length**length_penalty, the measure by which beams are ranked.

    length: generated tokens, the end token included. 0 leaves the log probability as it is and so favours short
    sequences; 1 is the mean per token; more favours long ones.
    """
    if not length >= 1:
        raise CourseError(f"length is {length}; a sequence that is scored has at least one token.")
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
    values = _log_probs(log_probs)
    if not values.size:
        raise CourseError("Perplexity needs the log prob of at least one token.")
    with np.errstate(over="ignore"):
        return float(np.exp(-math.fsum(values) / values.size))


def _log_probs(log_probs: ArrayLike) -> np.ndarray:
    values = np.asarray(log_probs, np.float64)
    if values.ndim != 1:
        raise CourseError(f"The log probs have shape {values.shape}; give one value per token of one sequence.")
    if not (values <= 1e-6).all():
        raise CourseError("The log probs hold a value above 0 or nan; did you pass probabilities or logits?")
    return values
