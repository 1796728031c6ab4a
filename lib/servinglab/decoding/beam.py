"""Beam search over any function that gives next-token log probabilities, with its tree kept for drawing.

The rules are those of transformers' `generate(num_beams=...)`. In every step all live beams are extended by every token
and the 2 * width best extensions are looked at:
- one that ends with `end_id` and ranks among the first `width` is a finished hypothesis (ranked lower, it is dropped);
- the best `width` of the others stay alive.
At `max_tokens` the first `width` extensions join the hypotheses as they are. The best `width` hypotheses by score win.

score = log_prob / length**length_penalty. Length counts the generated tokens, the end token too because its log prob is
part of the sum. The prompt is not counted (older transformers did). TensorRT-LLM has the same score and the same first
rule.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from servinglab.errors import CourseError

from .scores import score as score_of

#: From token sequences [B][t] to the log probs of their next token [B, vocab] (from a log_softmax, -inf = forbidden).
NextLogProbs = Callable[[list[list[int]]], np.ndarray]

MAX_SEQUENCES = 300_000  # exhaustive_search refuses to write down more


@dataclass(frozen=True)
class Hypothesis:
    """A complete answer. `tokens`: the generated ones, end token included. `finished`: it ended with `end_id`, not at
    `max_tokens`. `node`: the id of its last token in the tree."""

    tokens: list[int]
    log_prob: float
    score: float
    finished: bool
    node: int


@dataclass
class Node:
    """One extension that was looked at. `id` is its place in the tree; node 0, the root, stands for the start, and its
    parent and token are None. `log_prob` is the token's own, `cum_log_prob` the sum from the root. `kept`: it stayed
    alive or became a hypothesis; pruned otherwise. `finished`: its token is `end_id`."""

    id: int
    parent: int | None
    depth: int
    token: int | None
    log_prob: float
    cum_log_prob: float
    kept: bool = False
    finished: bool = False


@dataclass
class BeamResult:
    """`hypotheses`: best score first. `tree`: step by step, best first within a step."""

    hypotheses: list[Hypothesis] = field(default_factory=list)
    tree: list[Node] = field(default_factory=list)

    def path(self, node: int) -> list[int]:
        """The tokens from the root (excluded) to a node."""
        tokens = []
        while self.tree[node].parent is not None:
            tokens.append(self.tree[node].token)
            node = self.tree[node].parent
        return tokens[::-1]


def beam_search(
    next_log_probs: NextLogProbs,
    start: Sequence[int],
    *,
    width: int,
    max_tokens: int,
    end_id: int | None = None,
    length_penalty: float = 0.0,
    early_stopping: int = 1,
) -> BeamResult:
    """The best `width` continuations of `start` (token ids, may be empty) that a search of this width finds.

    early_stopping: what to do once `width` hypotheses are complete. 1: stop. 0: stop when the best live beam, scored at
    its present length, is no better than the worst of them. 2: the same at the most hopeful length it may still reach,
    so that nothing this width could find is missed. (In transformers: True, False and "never".)

    Raises CourseError for settings out of range, for log probs that are none (above 0, nan, wrong shape), and when
    every continuation is forbidden.
    """
    width, max_tokens = _whole("width", width, 1), _whole("max_tokens", max_tokens, 1)
    if early_stopping not in (0, 1, 2):
        raise CourseError(f"early_stopping is {early_stopping}; it must be 0, 1 or 2.")
    result = _Search(next_log_probs, start, end_id, length_penalty)
    live = result.tree[:1]
    for length in range(1, max_tokens + 1):
        ranked = result.extend(live, 2 * width)
        last = length == max_tokens
        for node in ranked[:width]:
            if node.finished or last:
                result.complete(node)
        result.sort()
        del result.hypotheses[width:]
        live = [] if last else [node for node in ranked if not node.finished][:width]
        for node in live:
            node.kept = True
        if not live:  # at the limit, or every way on is forbidden or ended
            break
        if len(result.hypotheses) == width:
            hopeful = max_tokens if early_stopping == 2 and length_penalty > 0 else length
            reachable = score_of(live[0].cum_log_prob, hopeful, length_penalty)
            if early_stopping == 1 or reachable <= result.hypotheses[-1].score:
                break
    return result.done()


def greedy_search(
    next_log_probs: NextLogProbs, start: Sequence[int], *, max_tokens: int, end_id: int | None = None
) -> BeamResult:
    """The likeliest token at every step: a beam search of width 1."""
    return beam_search(next_log_probs, start, width=1, max_tokens=max_tokens, end_id=end_id)


def exhaustive_search(
    next_log_probs: NextLogProbs,
    start: Sequence[int],
    *,
    max_tokens: int,
    end_id: int | None = None,
    length_penalty: float = 0.0,
) -> BeamResult:
    """Every possible continuation, best score first, so the first one is the true optimum. For tiny vocabularies:
    vocab**max_tokens sequences; CourseError beyond 300,000."""
    max_tokens = _whole("max_tokens", max_tokens, 1)
    result = _Search(next_log_probs, start, end_id, length_penalty)
    live = result.tree[:1]
    for length in range(1, max_tokens + 1):
        extensions = result.extend(live, None)  # of no live node: none
        if result.vocab**max_tokens > MAX_SEQUENCES:
            raise CourseError(
                f"{result.vocab} tokens to the power {max_tokens} are more than {MAX_SEQUENCES:,} sequences; "
                "use a smaller vocabulary or max_tokens."
            )
        live = [node for node in extensions if not node.finished]
        for node in extensions:
            node.kept = True
            if node.finished or length == max_tokens:
                result.complete(node)
    return result.done()


class _Search(BeamResult):
    """What both searches share: extending live nodes, and turning a node into a hypothesis."""

    def __init__(
        self, next_log_probs: NextLogProbs, start: Sequence[int], end_id: int | None, length_penalty: float
    ) -> None:
        super().__init__([], [Node(0, None, 0, None, 0.0, 0.0, kept=True)])
        self._next, self._start = next_log_probs, [int(token) for token in start]
        self._end_id, self._length_penalty = end_id, length_penalty

    def extend(self, live: list[Node], count: int | None) -> list[Node]:
        """Adds the best `count` extensions (None: all) of the live nodes to the tree, best first; no forbidden ones."""
        if not live:
            return []
        own = _checked(self._next([self._start + self.path(node.id) for node in live]), len(live))
        total = (np.array([node.cum_log_prob for node in live])[:, None] + own).ravel()
        order = _best(total, count)
        self.vocab = own.shape[1]
        nodes = []
        for id, index in enumerate(order.tolist(), len(self.tree)):
            row, token = divmod(index, self.vocab)
            parent, log_prob, cumulative = live[row], float(own[row, token]), float(total[index])
            ends = token == self._end_id
            nodes.append(Node(id, parent.id, parent.depth + 1, token, log_prob, cumulative, finished=ends))
        self.tree += nodes
        return nodes

    def complete(self, node: Node) -> None:
        """Makes a hypothesis of a node."""
        node.kept = True
        score = score_of(node.cum_log_prob, node.depth, self._length_penalty)
        self.hypotheses.append(Hypothesis(self.path(node.id), node.cum_log_prob, score, node.finished, node.id))

    def sort(self) -> None:
        """Best score first; among equals the older stays in front."""
        self.hypotheses.sort(key=lambda hypothesis: -hypothesis.score)

    def done(self) -> BeamResult:
        self.sort()
        if not self.hypotheses:
            raise CourseError("Every continuation became forbidden (-inf), so there is no hypothesis; loosen the bans.")
        return BeamResult(self.hypotheses, self.tree)


def _best(values: np.ndarray, count: int | None) -> np.ndarray:
    """Indices of the `count` highest values that are not -inf, highest first, the lower index first among equals."""
    candidates = np.flatnonzero(values > -np.inf)
    if count is not None and candidates.size > count:  # sorting 8 vocabularies whole would cost more than the model
        threshold = np.partition(values[candidates], -count)[-count]
        candidates = candidates[values[candidates] >= threshold]
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]


def _checked(log_probs: np.ndarray, rows: int) -> np.ndarray:
    log_probs = np.asarray(log_probs, np.float64)
    if log_probs.ndim != 2 or len(log_probs) != rows:
        raise CourseError(
            f"next_log_probs returned shape {log_probs.shape} for {rows} sequence(s); it must be [{rows}, vocab]."
        )
    if not (log_probs <= 1e-6).all():
        raise CourseError("next_log_probs returned values above 0 or nan; pass logits through log_softmax first.")
    return log_probs


def _whole(name: str, value: int, low: int) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        whole = low - 1
    if whole < low:
        raise CourseError(f"{name} is {value!r}; it must be a whole number, {low} or more.")
    return whole
