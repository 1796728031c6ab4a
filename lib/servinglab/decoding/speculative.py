"""Speculative sampling: a cheap draft guesses, the target reads all guesses in one step and keeps what it may.

The rule is that of Leviathan et al. 2023 ("Fast Inference from Transformers via Speculative Decoding") and Chen et al.
2023 ("Accelerating Large Language Model Decoding with Speculative Sampling"): a token x that was drawn from the draft's
q is kept with probability min(1, p(x) / q(x)), where p is the target's; the first one that is not is replaced by a draw
from the residual, max(0, p - q) divided by its sum. What comes out has the distribution p, however bad the draft is: a
token x is kept with probability min(p(x), q(x)), replaced by with what is missing, p(x) - min(p(x), q(x)).

TensorRT-LLM has two ways (cpp/tensorrt_llm/kernels/speculativeDecoding/externalDraftTokensKernels.cu). Without draft
logits the target chooses its own tokens and keeps the draft as far as it agrees, which is this rule for a draft that is
certain of itself. With draft logits it is this rule, unless a `draft_acceptance_threshold` is given: a constant in
place of the random number, which no longer keeps the distribution. Taught in notebook 10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from servinglab.errors import CourseError

from .distributions import as_probabilities, categorical


def acceptance(p: ArrayLike, q: ArrayLike) -> np.ndarray:
    """The probability that a token drawn from q [..., vocab] is kept, [...]: the sum of min(p, q), which is 1 minus the
    total variation distance of the two."""
    return np.minimum(as_probabilities(p), as_probabilities(q)).sum(-1)


def residual(p: ArrayLike, q: ArrayLike) -> np.ndarray:
    """What a rejected token is replaced from: max(0, p - q) / its sum, [..., vocab]. Where p equals q nothing is ever
    rejected, and the result is p."""
    p = as_probabilities(p)
    rest = np.maximum(p - as_probabilities(q), 0.0)
    total = rest.sum(-1, keepdims=True)
    return np.divide(rest, total, out=p.copy(), where=total > 0)


def verify(
    target_probs: ArrayLike, draft_probs: ArrayLike | None, draft: Sequence[int], rng: np.random.Generator
) -> list[int]:
    """The accepted tokens of a draft plus one: the replacement of the first rejected, or a further one if none was.

    target_probs [k + 1, vocab]: the target's probabilities before each drafted token, and after the last.
    draft_probs [k, vocab]: those that each was drawn from; None for a draft that is certain of itself (a lookup, or the
        likeliest token), all mass on the drafted one.
    draft: k token ids, k >= 0.

    Raises CourseError for a draft that is not one row of probabilities shorter than `target_probs`.
    """
    p = as_probabilities(target_probs)
    if len(p) != len(draft) + 1:
        raise CourseError(f"{len(draft)} drafted tokens need {len(draft) + 1} rows of target_probs, not {len(p)}.")
    q = np.eye(p.shape[1])[list(draft)] if draft_probs is None else as_probabilities(draft_probs)
    for at, token in enumerate(draft):
        if rng.random() * q[at, token] >= p[at, token]:
            return [*draft[:at], categorical(residual(p[at], q[at]), rng)]
    return [*draft, categorical(p[-1], rng)]


def expected_tokens(acceptance_rate: float, draft_length: int) -> float:
    """Tokens that one step of the target brings on average, if each drafted token is kept with the same probability a,
    independently: 1 + a + a² + … + a^k."""
    if not 0 <= acceptance_rate <= 1:
        raise CourseError(f"The acceptance rate is {acceptance_rate}; it must be from 0 to 1.")
    return float(sum(acceptance_rate**kept for kept in range(draft_length + 1)))


def speedup(acceptance_rate: float, draft_length: int, draft_cost: float, verify_cost: Callable[[int], float]) -> float:
    """Tokens per second with a draft, over those without.

    Costs are in steps of the target without a draft: `draft_cost` to draft one token, `verify_cost(k)` for the target's
    step over k drafted tokens (so verify_cost(0) is 1).
    """
    cost = draft_length * draft_cost + verify_cost(draft_length)
    return expected_tokens(acceptance_rate, draft_length) / cost


def best_k(
    acceptance_rate: float, draft_cost: float, verify_cost: Callable[[int], float], longest: int = 16
) -> tuple[int, float]:
    """The draft length from 0 (do not draft) to `longest` with the highest `speedup`, the shortest of equals, and that
    speed-up."""
    speedups = [speedup(acceptance_rate, k, draft_cost, verify_cost) for k in range(longest + 1)]
    best = int(np.argmax(speedups))
    return best, speedups[best]
