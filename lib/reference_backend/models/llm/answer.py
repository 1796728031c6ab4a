"""What the executor's outputs of one sequence add up to, and the tensors that carry it (taught in notebook 08).

A response while streaming holds the new ids of its step, all log probabilities so far, and the logits of its step; one
without streaming holds everything. context_logits come with the first response, of the first sequence if there are
several; the performance metrics with the last one. What a cancelled request had generated is answered only while
streaming. How a log probability is defined is in executor/request.py.

Beams are whole in every response, while streaming as well: a path may change from its root at any step, so a client
shows the last response and forgets those before it. Beams of different length are filled up with -1 in output_ids, and
with 0 in output_log_probs, so that each row still adds up to its cum_log_probs, and in generation_logits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
import triton_python_backend_utils as pb_utils

from reference_backend.executor.request import Beam, Output, RequestMetrics


@dataclass(eq=False)
class Answer:
    """Outputs of one sequence that are sent together. `log_probs` are all since the start."""

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    context_logits: np.ndarray | None = None
    generation_logits: list[np.ndarray] = field(default_factory=list)
    beams: tuple[Beam, ...] = ()
    finish_reason: str | None = None
    error: str | None = None
    metrics: RequestMetrics | None = None

    def add(self, output: Output) -> None:
        """Take in the executor's next output."""
        self.tokens += output.tokens
        self.log_probs += output.log_probs
        self.generation_logits += [] if output.generation_logits is None else [output.generation_logits]
        self.context_logits = self.context_logits if output.context_logits is None else output.context_logits
        self.beams = output.beams or self.beams
        self.finish_reason, self.error, self.metrics = output.finish_reason, output.error, output.metrics

    def next(self) -> Answer:
        """The answer that follows, empty but for the log probabilities so far."""
        return Answer(log_probs=list(self.log_probs))


@dataclass(frozen=True)
class ResponseFormat:
    """How the answers of a sequence look.

    streaming: an answer has only what is new. prompt: the ids before the new ones. log_probs: whether they are wanted.
    beams: how many to return, 0 where no beams were asked for. logits_type: datatype of the declared outputs.
    metrics: whether the performance metrics are wanted.
    """

    streaming: bool
    prompt: list[int]
    log_probs: bool = False
    beams: int = 0
    logits_type: type = np.float32
    metrics: bool = False

    def tensors(self, answer: Answer) -> list:
        """output_ids [1, beams, longest], sequence_length [1, beams], and what else there is."""
        found = self._arrays(answer)
        if self.metrics and (metrics := answer.metrics):
            for name in (*(figure.name for figure in fields(metrics)), "acceptance_rate"):
                kind = np.float32 if name == "acceptance_rate" else np.int64 if name.endswith("_ns") else np.int32
                found[name] = np.array([[getattr(metrics, name)]], kind)
        return [pb_utils.Tensor(name, array) for name, array in found.items()]

    def _arrays(self, answer: Answer) -> dict[str, np.ndarray]:
        if answer.finish_reason == "cancelled" and not (self.streaming and (answer.tokens or answer.beams)):
            return _ids([[]] * max(self.beams, 1))
        if self.beams:
            beams = answer.beams[: self.beams]
            found, generation = _ids([self.prompt + beam.tokens for beam in beams]), [beam.logits for beam in beams]
            log_probs, sums = [beam.log_probs for beam in beams], [beam.cum_log_prob for beam in beams]
        else:
            found = _ids([self.prompt + answer.tokens])
            generation = [np.concatenate(answer.generation_logits)] if answer.generation_logits else [None]
            log_probs, sums = [answer.log_probs], [sum(answer.log_probs)]
        if self.log_probs:
            found["output_log_probs"] = _filled([np.array(row, np.float32) for row in log_probs], 0)[None]
            found["cum_log_probs"] = np.array([sums], np.float32)
        logits = {} if answer.context_logits is None else {"context_logits": answer.context_logits}
        if any(rows is not None and rows.size for rows in generation):
            logits["generation_logits"] = _filled(generation, 0)
        return found | {name: array[None].astype(self.logits_type) for name, array in logits.items()}


def _ids(rows: list[list[int]]) -> dict[str, np.ndarray]:
    """output_ids [1, beams, longest] and sequence_length [1, beams]."""
    ids = _filled([np.array(row, np.int32) for row in rows], -1)[None]
    return {"output_ids": ids, "sequence_length": np.array([[len(row) for row in rows]], np.int32)}


def _filled(rows: list[np.ndarray], value: float) -> np.ndarray:
    """Arrays [n, …] of different n as one [rows, longest, …]; `value` fills the ends."""
    longest = max(rows, key=len)
    filled = np.full((len(rows), *longest.shape), value, longest.dtype)
    for target, row in zip(filled, rows, strict=True):
        target[: len(row)] = row
    return filled
