"""Beam search over any function that gives next-token log probabilities, with its tree kept for drawing. Notebook 09.

The rules are those of transformers' `generate(num_beams=...)`. In every step all live beams are extended by every token
and the 2 * width best extensions are looked at:
- one that ends with `end_id` and ranks among the first `width` is a finished hypothesis (ranked lower, it is dropped);
- the best `width` of the others stay alive.
At `max_tokens` the first `width` extensions join the hypotheses as they are. The best `width` hypotheses by score win.

score = log_prob / length**length_penalty. Length counts the generated tokens, the end token too because its log prob is
part of the sum. TensorRT-LLM has the same score and the same first rule.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from servinglab.errors import CourseError

#: From token sequences [B][t] to the log probs of their next token [B, vocab] (from a log_softmax, -inf = forbidden).
NextLogProbs = Callable[[list[list[int]]], np.ndarray]


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

    hypotheses: list[Hypothesis]
    tree: list[Node]

    def path(self, node: int) -> list[int]:
        """The tokens from the root (excluded) to a node."""
        tokens = []
        while self.tree[node].parent is not None:
            tokens.append(self.tree[node].token)
            node = self.tree[node].parent
        return tokens[::-1]


def score(log_prob: float, length: int, length_penalty: float = 0.0) -> float:
    """log_prob / length**length_penalty, the measure by which beams are ranked. A penalty of 0 leaves the log prob as
    it is and so favours short sequences; 1 is the mean per token; more favours long ones."""
    with np.errstate(all="ignore"):
        divisor = np.float64(length) ** length_penalty
    if not 0 < divisor < math.inf:
        what = f"length_penalty is {length_penalty:g}: it divides by the number of tokens to that power"
        cure = "use one nearer to 0, such as 1 (the mean per token)"
        raise CourseError(f"{what}, and for {length} tokens that is no usable number; {cure}.")
    return float(log_prob / divisor)


def beam_search(
    next_log_probs: NextLogProbs, start: Sequence[int], *, width: int, max_tokens: int, end_id: int | None = None,
    length_penalty: float = 0.0, early_stopping: int = 1,
) -> BeamResult:  # fmt: skip
    """The best `width` continuations of `start` (token ids, may be empty) that a search of this width finds.

    early_stopping: what to do once `width` hypotheses are complete. 1: stop. 0: stop when the best live beam, scored at
    its present length, is no better than the worst of them. 2: the same at the most hopeful length it may still reach,
    so that nothing this width could find is missed. (In transformers: True, False and "never".)

    Raises CourseError for a width or length below 1, for log probs that are none (above 0, nan), and when every
    continuation is forbidden.
    """
    if width < 1 or max_tokens < 1:
        raise CourseError(f"width is {width} and max_tokens {max_tokens}; both must be 1 or more.")
    live = [Node(0, None, 0, None, 0.0, 0.0, kept=True)]
    result = BeamResult([], list(live))
    for length in range(1, max_tokens + 1):
        own = np.asarray(next_log_probs([[*start, *result.path(node.id)] for node in live]), np.float64)
        if not (own <= 1e-6).all():
            raise CourseError("next_log_probs returned values above 0 or nan; pass logits through log_softmax first.")
        total = (np.array([node.cum_log_prob for node in live])[:, None] + own).ravel()
        ranked = []
        for id, index in enumerate(_best(total, 2 * width).tolist(), len(result.tree)):
            row, token = divmod(index, own.shape[1])
            log_probs = float(own[row, token]), float(total[index])
            ranked.append(Node(id, live[row].id, length, token, *log_probs, finished=token == end_id))
        result.tree += ranked
        for node in ranked[:width]:
            if node.finished or length == max_tokens:
                node.kept, path = True, result.path(node.id)
                points = score(node.cum_log_prob, length, length_penalty)
                result.hypotheses.append(Hypothesis(path, node.cum_log_prob, points, node.finished, node.id))
        result.hypotheses.sort(key=lambda hypothesis: -hypothesis.score)  # among equals the older stays in front
        del result.hypotheses[width:]
        live = [node for node in ranked if not node.finished][:width] if length < max_tokens else []
        for node in live:
            node.kept = True
        if not live:  # at the limit, or every way on is forbidden or ended
            break
        if len(result.hypotheses) == width:
            hopeful = max_tokens if early_stopping == 2 and length_penalty > 0 else length
            reachable = score(live[0].cum_log_prob, hopeful, length_penalty)
            if early_stopping == 1 or reachable <= result.hypotheses[-1].score:
                break
    if not result.hypotheses:
        raise CourseError("Every continuation became forbidden (-inf), so there is no hypothesis; loosen the bans.")
    return result


def _best(values: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` highest values that are not -inf, highest first, the lower index first among equals."""
    candidates = np.flatnonzero(values > -np.inf)
    if candidates.size > count:  # sorting 8 vocabularies whole would cost more than the model
        threshold = np.partition(values[candidates], -count)[-count]
        candidates = candidates[values[candidates] >= threshold]
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]
