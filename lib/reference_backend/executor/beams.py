"""Beam search for one request: `beam_width` paths side by side, each in a row of the batch.

A step adds one token to every path and ranks the continuations of all paths together; of each path the `width`
likeliest, and the `width` likeliest that do not end it, are enough for that. One that ends (with end_id, a stop
word or at max_tokens) becomes a finished beam if it is among the first `width`; the first `width` of the others go on.
Of the finished ones the best `width` by score are kept. A path that has no continuation is dropped.

score = log probability / choices ** length_penalty, where the choices are the generated tokens, end_id included and the
prompt not, as in TensorRT-LLM (cpp/tensorrt_llm/kernels/beamSearchKernels) and transformers 5.

The ends follow transformers' early_stopping: 1 is its True, 0 its False, 2 and more its "never". Other differences:
* transformers, and newer versions of TensorRT-LLM, take the log softmax before their processors; here it comes after
  penalties and bans (transformers' `renormalize_logits=True`).
* TensorRT-LLM ends with early_stopping 0 by the best continuation of the step, even if it has just ended; here and in
  transformers by the best that goes on. For 2 it takes the room up to max_seq_len for the longest length.
* beam_search_diversity_rate adds rate x rank of its parent to a continuation while the step ranks them, as in
  TensorRT-LLM's kernel. It is part of no score.
* Where embedding_bias and bad_words leave fewer continuations than beam_width, fewer beams come back, all of them
  possible ones. transformers fills up with forbidden ones.
"""

from dataclasses import dataclass, field, replace
from os.path import commonprefix  # which takes any lists
from typing import NamedTuple

import numpy as np

from .request import Beam, Output, Request
from .sampler import LogitsProcessor, NoTokenLeft, Words, largest, log_normaliser


class Copy(NamedTuple):
    """The KV memory of row `source`, from position `first` on, must be copied to row `target`."""

    source: int
    target: int
    first: int


@dataclass(frozen=True)
class _Path:
    """A running beam. tokens: with the prompt; logits: the model's own of each choice, if wanted."""

    tokens: list[int]
    log_probs: list[float]
    total: float
    rank: int = 0
    logits: list[np.ndarray] = field(default_factory=list)


class _Candidate(NamedTuple):
    order: float  # what the step ranks by
    total: float
    row: int
    token: int
    log_prob: float
    end: str | None  # why the path ends here, apart from its length


class BeamSearch:
    """Continues one request by one token a step, in `width` rows of the batch.

    copies: what the last step asks for before the next: each path that goes on stays in its row, if it goes on twice
    it is copied into the row of one that does not. added: tokens that the last step brought, over all paths.
    """

    def __init__(self, request: Request, vocab_size: int, max_tokens: int) -> None:
        self.width = request.sampling.beam_width
        self.copies: list[Copy] = []
        self.added = self.drafted = self.accepted = 0
        self._request, self._params, self._max_tokens = request, request.sampling, max_tokens
        self._processor = LogitsProcessor(request, vocab_size, temperature=False)
        self._prompt_length = len(request.prompt)
        self._paths: list[_Path | None] = [_Path(request.prompt.tolist(), [], 0.0)]  # by row
        self._finished: list[tuple[Beam, list[np.ndarray]]] = []  # best first, each with the logits of its path
        self.length = self._prompt_length
        self._stop_words = Words(request.stop_words)

    @property
    def last_tokens(self) -> list[int]:
        """The token of each row that the model reads next; any token for a row without a path."""
        return [path.tokens[-1] if path else 0 for path in self._paths]

    plain = False  # see SequenceDecoder

    def draft(self, at_most: int) -> list[int]:
        """None: a draft is for one path."""
        return []

    def step(self, logits: np.ndarray) -> Output:
        """Takes the logits float32 [rows, vocab] after the paths so far, which it may change; the prompt has one row.

        Raises RequestError when no token can be chosen.
        """
        own = [row.copy() for row in logits] if self._request.return_generation_logits else None
        self.length += 1
        self.added = 0
        going_on: list[_Candidate] = []
        for place, candidate in enumerate(self._candidates(logits)):
            reason = candidate.end or ("length" if self._choices == self._max_tokens else None)
            if reason is None:
                going_on.append(candidate)
            elif place < self.width:
                self._finish(candidate, reason, own)
            else:
                continue
            self.added += reason != "end_id"
            if len(going_on) == self.width:
                break
        if self._is_over(going_on):
            stacked = [np.stack(rows) if rows else None for _, rows in self._finished]  # float32 [choices, vocab]
            beams = tuple(replace(beam, logits=rows) for (beam, _), rows in zip(self._finished, stacked, strict=True))
            return Output(self._request.id, [], beams[0].finish_reason, beams=beams)
        self._go_on(going_on, own)
        beams = [*(beam for beam, _ in self._finished), *map(self._beam, filter(None, self._paths))]
        beams.sort(key=lambda beam: -beam.score)
        return Output(self._request.id, [], beams=tuple(beams[: self.width]))

    def _candidates(self, logits: np.ndarray) -> list[_Candidate]:
        """The likeliest continuations, best first. Raises NoTokenLeft when there is none and no beam has finished."""
        found, dead_end = [], None
        rate = self._params.beam_search_diversity_rate
        for row, path in enumerate(self._paths):
            if path is None:
                continue
            self._processor.forget()
            try:
                self._processor.apply(logits[row], path.tokens)
            except NoTokenLeft as error:
                dead_end = error
                continue
            normaliser = log_normaliser(logits[row])
            ends = dict.fromkeys(self._stop_words.completed_by(path.tokens), "stop_words")
            if self._request.end_id is not None:
                ends[self._request.end_id] = "end_id"
            for token in self._likeliest(logits[row], ends):
                log_prob = float(logits[row, token]) - normaliser
                total = path.total + log_prob
                found.append(_Candidate(total + rate * path.rank, total, row, token, log_prob, ends.get(token)))
        found = [candidate for candidate in found if candidate.total > -np.inf]
        if dead_end and not found and not self._finished:
            raise dead_end
        return sorted(found, key=lambda candidate: -candidate.order)

    def _likeliest(self, logits: np.ndarray, ends: dict[int, str]) -> list[int]:
        """The `width` likeliest tokens [vocab], then those of the `width` likeliest without an end that are no part of
        them: an end counts only among the first `width` of all paths, and at most `width` go on."""
        first = largest(logits, self.width).tolist()
        if not ends.keys() & set(first):
            return first
        others = logits.copy()
        others[list(ends)] = -np.inf
        return first + [token for token in largest(others, self.width).tolist() if token not in first]

    @property
    def _choices(self) -> int:
        return self.length - self._prompt_length

    def _score(self, total: float, choices: int) -> float:
        return total / float(choices) ** self._params.length_penalty

    def _finish(self, candidate: _Candidate, reason: str, own: list[np.ndarray] | None) -> None:
        path = self._extend(candidate, own)
        self._finished.append((self._beam(path, reason), path.logits))
        self._finished = sorted(self._finished, key=lambda pair: -pair[0].score)[: self.width]

    def _beam(self, path: _Path, reason: str | None = None) -> Beam:
        tokens = path.tokens[self._prompt_length : -1 if reason == "end_id" else None]
        return Beam(tokens, path.log_probs, path.total, self._score(path.total, self._choices), reason)

    def _is_over(self, going_on: list[_Candidate]) -> bool:
        if not going_on:
            return True
        if len(self._finished) < self.width:
            return False
        stopping, penalty = self._params.early_stopping, self._params.length_penalty
        if stopping == 1:
            return True
        choices = self._max_tokens if stopping > 1 and penalty > 0 else self._choices
        hope = max(candidate.total for candidate in going_on)  # not the first one's: a diversity rate changes the order
        return self._score(hope, choices) <= self._finished[-1][0].score

    def _extend(self, candidate: _Candidate, own: list[np.ndarray] | None, rank: int = 0) -> _Path:
        path, total = self._paths[candidate.row], candidate.total
        logits = [*path.logits, own[candidate.row]] if own else []
        return _Path([*path.tokens, candidate.token], [*path.log_probs, candidate.log_prob], total, rank, logits)

    def _go_on(self, chosen: list[_Candidate], own: list[np.ndarray] | None) -> None:
        """Puts the next paths into rows, so that as little memory as possible has to be copied."""
        old = self._paths + [None] * (self.width - len(self._paths))
        self._paths = old[:]
        parents = {candidate.row for candidate in chosen}
        free = [row for row in range(self.width) if row not in parents]
        self.copies, placed, new = [], set(), [None] * self.width
        for rank, candidate in enumerate(chosen):
            source = target = candidate.row
            if source in placed:
                target = free.pop()
                self.copies.append(Copy(source, target, _first_difference(old[source], old[target])))
            placed.add(source)
            new[target] = self._extend(candidate, own, rank)
        self._paths = new


def _first_difference(source: _Path, target: _Path | None) -> int:
    """The first position at which the KV memory of two rows differs: equal prefixes have equal memory, for they are
    copies of each other or were made by the same step."""
    return len(commonprefix([source.tokens, target.tokens])) if target else 0
