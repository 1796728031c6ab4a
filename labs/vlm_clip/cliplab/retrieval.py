"""How well sentences find their pictures: recall among the first k, with intervals.

Every picture's caption is a query over all pictures. It is a hit when a picture with that very caption is among the k
most similar ones: some captions belong to several pictures, and nothing in the sentence says which is meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ROUNDS = 2000  # of the bootstrap
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A share with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def similarity(captions: np.ndarray, pictures: np.ndarray) -> np.ndarray:
    """Cosine of every caption with every picture: [captions, pictures], from vectors of length 1."""
    return captions @ pictures.T


def ranks(scores: np.ndarray, captions: Sequence[str]) -> np.ndarray:
    """For each row the rank, from 1, of the best picture with the row's caption; of equal scores the worst case counts.

    scores: [n, n], row i is the caption of picture i.
    """
    names = np.asarray(captions)
    own = np.where(names[:, None] == names[None, :], scores, -np.inf).max(axis=1)
    other = names[:, None] != names[None, :]
    return 1 + ((scores >= own[:, None]) & other).sum(axis=1)


def recall(ranks: np.ndarray, k: int, captions: Sequence[str] | None = None, *, seed: int = 0) -> Estimate:
    """The share of queries whose rank is at most k. With `captions`, equal ones are drawn together by the bootstrap."""
    return _estimate((np.asarray(ranks) <= k).astype(float), captions, seed)


def difference(
    ranks: np.ndarray, base: np.ndarray, k: int, captions: Sequence[str] | None = None, *, seed: int = 0
) -> Estimate:
    """Recall of `ranks` minus that of `base` on the same queries; the interval is of the paired difference."""
    gain = (np.asarray(ranks) <= k).astype(float) - (np.asarray(base) <= k).astype(float)
    return _estimate(gain, captions, seed)


def _estimate(values: np.ndarray, captions: Sequence[str] | None, seed: int) -> Estimate:
    groups = np.arange(len(values)) if captions is None else np.unique(np.asarray(captions), return_inverse=True)[1]
    sums, sizes = np.bincount(groups, weights=values), np.bincount(groups)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(sums), size=(ROUNDS, len(sums)))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(values.mean()), float(low), float(high))
