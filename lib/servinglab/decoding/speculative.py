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

from .logspace import as_probabilities
from .sampling import categorical


def acceptance(p: ArrayLike, q: ArrayLike) -> np.ndarray:
    """The probability that a token drawn from q [..., vocab] is kept, [...]: the sum of min(p, q), which is 1 minus the
    total variation distance of the two."""
    p, q = _pair(p, q)
    return np.minimum(p, q).sum(-1)


def residual(p: ArrayLike, q: ArrayLike) -> np.ndarray:
    """What a rejected token is replaced from: max(0, p - q) / its sum, [vocab]. Where p equals q nothing is ever
    rejected, and the result is p."""
    p, q = _pair(p, q)
    rest = np.maximum(p - q, 0.0)
    total = rest.sum(-1, keepdims=True)
    return np.where(total > 0, rest / np.where(total > 0, total, 1.0), p)


def verify(
    target_probs: ArrayLike, draft_probs: ArrayLike | None, draft: Sequence[int], rng: np.random.Generator
) -> list[int]:
    """The accepted tokens of a draft plus one: the replacement of the first rejected, or a further one if none was.

    target_probs [k + 1, vocab]: the target's probabilities before each drafted token, and after the last.
    draft_probs [k, vocab]: those that each was drawn from; None for a draft that is certain of itself (a lookup, or the
        likeliest token), all mass on the drafted one.
    draft: k token ids, k >= 0.

    Raises CourseError for shapes that do not fit, or a drafted token whose draft probability is 0.
    """
    draft = [int(token) for token in draft]
    p = as_probabilities(target_probs)
    if p.ndim != 2 or len(p) != len(draft) + 1:
        raise CourseError(
            f"target_probs has shape {list(p.shape)}; {len(draft)} drafted tokens need {len(draft) + 1} rows of "
            "probabilities, one more than the draft has."
        )
    vocab = p.shape[1]
    if any(not 0 <= token < vocab for token in draft):
        raise CourseError(f"The draft {draft} holds a token id outside 0 to {vocab - 1}.")
    q = np.eye(vocab)[draft] if draft_probs is None else _draft_rows(draft_probs, (len(draft), vocab))
    for at, token in enumerate(draft):
        if q[at, token] == 0:
            raise CourseError(f"Token {token} was drafted at place {at}, but its draft probability is 0.")
        if rng.random() * q[at, token] >= p[at, token]:
            return [*draft[:at], categorical(residual(p[at], q[at]), rng)]
    return [*draft, categorical(p[-1], rng)]


def verify_greedy(choices: Sequence[int], draft: Sequence[int]) -> list[int]:
    """`verify` where the target always takes its likeliest token: `choices` [k + 1] are those tokens. The result is
    what the target alone would have written, token for token."""
    choices, draft = [int(token) for token in choices], [int(token) for token in draft]
    if len(choices) != len(draft) + 1:
        raise CourseError(f"{len(draft)} drafted tokens need {len(draft) + 1} choices, not {len(choices)}.")
    kept = next((at for at, token in enumerate(draft) if token != choices[at]), len(draft))
    return choices[: kept + 1]


def expected_tokens(acceptance_rate: float, draft_length: int) -> float:
    """Tokens that one step of the target brings on average, if each drafted token is kept with the same probability a,
    independently: 1 + a + a² + … + a^k = (1 - a^(k+1)) / (1 - a), and k + 1 for a = 1."""
    a, k = _rate(acceptance_rate), _length(draft_length)
    return float(k + 1) if a == 1 else (1 - a ** (k + 1)) / (1 - a)


def speedup(acceptance_rate: float, draft_length: int, draft_cost: float, verify_cost: Callable[[int], float]) -> float:
    """Tokens per second with a draft, over those without.

    Costs are in steps of the target without a draft: `draft_cost` to draft one token, `verify_cost(k)` for the target's
    step over k drafted tokens (so verify_cost(0) is 1).
    """
    cost = _length(draft_length) * draft_cost + verify_cost(draft_length)
    if not (draft_cost >= 0 and cost > 0):
        raise CourseError(
            f"draft_cost {draft_cost} and verify_cost({draft_length}) must be 0 or more, and together more than 0."
        )
    return expected_tokens(acceptance_rate, draft_length) / cost


def best_k(
    acceptance_rate: float, draft_cost: float, verify_cost: Callable[[int], float], longest: int = 16
) -> tuple[int, float]:
    """The draft length from 0 (do not draft) to `longest` with the highest `speedup`, the shortest of equals, and that
    speed-up."""
    speedups = [speedup(acceptance_rate, k, draft_cost, verify_cost) for k in range(_length(longest) + 1)]
    best = int(np.argmax(speedups))
    return best, speedups[best]


def _pair(p: ArrayLike, q: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    p, q = as_probabilities(p), as_probabilities(q)
    if p.shape != q.shape:
        raise CourseError(f"p has shape {p.shape} and q has shape {q.shape}; both need the same vocabulary.")
    return p, q


def _draft_rows(draft_probs: ArrayLike, shape: tuple[int, int]) -> np.ndarray:
    if not shape[0]:
        return np.empty(shape)
    q = as_probabilities(draft_probs)
    if q.shape != shape:
        raise CourseError(f"draft_probs has shape {list(q.shape)}; this draft and vocabulary need {list(shape)}.")
    return q


def _rate(a: float) -> float:
    if not 0 <= a <= 1:
        raise CourseError(f"The acceptance rate is {a}; it must be from 0 to 1.")
    return float(a)


def _length(k: int) -> int:
    if isinstance(k, bool) or k != int(k) or k < 0:
        raise CourseError(f"The draft length is {k}; it must be a whole number, 0 or more.")
    return int(k)
