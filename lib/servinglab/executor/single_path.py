"""Greedy decoding and sampling: a request that follows one path, in one row of the batch."""

from __future__ import annotations

import numpy as np

from .logits import ends_with, log_normaliser
from .request import Output, Request
from .sampler import Sampler


class SinglePath:
    """Continues one request by one token a step. `width` rows of the batch are its own; `copies` is for beams only."""

    width = 1
    copies = ()
    added = 0  # tokens that the last step brought

    def __init__(self, request: Request, vocab_size: int, max_tokens: int) -> None:
        self._request = request
        self._sampler = Sampler(request, vocab_size)
        self._tokens: list[int] = request.prompt.tolist()
        self._longest = len(self._tokens) + max_tokens

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

    def step(self, logits: np.ndarray) -> Output:
        """Takes the logits float32 [1, vocab] after the tokens so far, which it may change, and chooses the next.

        Raises RequestError when no token can be chosen.
        """
        request, row = self._request, logits[0]
        own = row[None].copy() if request.return_generation_logits else None
        token = self._sampler.choose(row, self._tokens)
        log_probs = [float(row[token]) - log_normaliser(row)] if request.return_log_probs else ()
        reason = self._take(token)
        tokens = [] if reason == "end_id" else [token]
        self.added = len(tokens)
        return Output(request.id, tokens, reason, log_probs=log_probs, generation_logits=own)

    def _take(self, token: int) -> str | None:
        if token == self._request.end_id:
            return "end_id"
        self._tokens.append(token)
        if any(ends_with(self._tokens, word) for word in self._request.stop_words):
            return "stop_words"
        return "length" if len(self._tokens) >= self._longest else None
