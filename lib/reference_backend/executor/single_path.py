"""Greedy decoding and sampling: a request that follows one path, in one row of the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .logits import log_normaliser
from .params import RequestError
from .request import Output, Request
from .sampler import Sampler
from .speculation import Speculation
from .words import Words


class SinglePath:
    """Continues one request by a token a step, or by several if it has guesses. `width` rows of the batch are its own;
    `copies` is for beams only. drafted, accepted: guesses of the last step, and those of them that became tokens."""

    width = 1
    copies = ()
    added = 0  # tokens that the last step brought
    drafted = accepted = 0

    def __init__(self, request: Request, vocab_size: int, max_tokens: int) -> None:
        self._request = request
        self._sampler = Sampler(request, vocab_size)
        self._stop_words = Words(request.stop_words)
        self._tokens: list[int] = request.prompt.tolist()
        self._longest = len(self._tokens) + max_tokens
        self._speculation = Speculation(request.drafter, request.draft_tokens, vocab_size)
        self._ends = request.end_after_draft
        self._guesses: list[int] = []
        self._failure: Exception | None = None  # of the drafter
        self._plain = not (request.return_log_probs or request.return_generation_logits)

    @property
    def length(self) -> int:
        """Tokens so far, those of the prompt included."""
        return len(self._tokens)

    @property
    def tokens(self) -> list[int]:
        """The tokens so far, those of the prompt included; not to be changed."""
        return self._tokens

    @property
    def last_tokens(self) -> list[int]:
        """The token of each row that the model reads next."""
        return self._tokens[-1:]

    def guess(self, at_most: int) -> list[int]:
        """Tokens that may come next: the model reads them after the last one, and `step` gets that many more rows."""
        try:
            self._guesses = self._speculation.propose(self._tokens, min(at_most, self._longest - self.length - 1))
        except Exception as error:
            self._guesses, self._failure = [], error
        return self._guesses

    @property
    def plain(self) -> bool:
        """Whether the next token is the likeliest of the model's own logits, and nothing else is asked of them."""
        return self._plain and self._sampler.is_free(self.length) and not self._guesses

    def take(self, token: int) -> Output:
        """`step` for a token that the model has chosen, of a request that is `plain`."""
        if self._failure:
            raise self._failure
        self.drafted = self.accepted = 0
        reason = self._take(token)
        self.added = reason != "end_id"
        return Output(self._request.id, [token] if self.added else [], reason)

    def step(self, logits: np.ndarray) -> Output:
        """Takes the logits float32 [1 + guesses, vocab] after the tokens so far and after each guess, which it may
        change, and chooses the next token, and more of them as long as the guesses are right.

        Raises RequestError when no token can be chosen, and whatever the drafter raised.
        """
        if self._failure:
            raise self._failure
        guesses, self._guesses, outputs = self._guesses, [], []
        for row, guess in zip(logits, [*guesses, None], strict=True):
            try:
                outputs.append(self._choose(row))
            except RequestError:
                if not outputs:  # else the next step meets it again, behind the tokens before it
                    raise
                break
            if outputs[-1].finish_reason or outputs[-1].tokens != [guess]:
                break
        self.added = sum(len(output.tokens) for output in outputs)
        self.drafted = len(guesses)
        if self._ends and not outputs[-1].finish_reason:
            outputs[-1] = replace(outputs[-1], finish_reason="length")
        self.accepted = sum(output.tokens == [guess] for output, guess in zip(outputs, guesses, strict=False))
        return _as_one(outputs)

    def _choose(self, row: np.ndarray) -> Output:
        request = self._request
        own = row[None].copy() if request.return_generation_logits else None
        token = self._sampler.choose(row, self._tokens)
        log_probs = [float(row[token]) - log_normaliser(row)] if request.return_log_probs else ()
        reason = self._take(token)
        tokens = [] if reason == "end_id" else [token]
        return Output(request.id, tokens, reason, log_probs=log_probs, generation_logits=own)

    def _take(self, token: int) -> str | None:
        if token == self._request.end_id:
            return "end_id"
        stops = token in self._stop_words.completed_by(self._tokens)
        self._tokens.append(token)
        if stops:
            return "stop_words"
        return "length" if len(self._tokens) >= self._longest else None


def _as_one(outputs: list[Output]) -> Output:
    if len(outputs) == 1:
        return outputs[0]
    rows = [output.generation_logits for output in outputs if output.generation_logits is not None]
    return Output(
        outputs[0].request_id,
        [token for output in outputs for token in output.tokens],
        outputs[-1].finish_reason,
        log_probs=[log_prob for output in outputs for log_prob in output.log_probs],
        generation_logits=np.concatenate(rows) if rows else None,
    )
