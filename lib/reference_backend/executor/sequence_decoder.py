"""Greedy decoding and sampling: a request that follows one path, in one row of the batch, with or without a draft.

Draft tokens: the model reads several tokens in one step. Each row of logits goes to the request's own sampler, as if it
came from a step of its own, and as long as its choice is the draft token, the next row of logits is right too. So
greedy and seeded outputs are the same with and without a draft. That is what TensorRT-LLM does with `draft_input_ids`.
"""

from dataclasses import replace
from itertools import takewhile

import numpy as np

from .params import RequestError
from .request import Output, Request, joined
from .sampler import Sampler, Words, log_normaliser


class SequenceDecoder:
    """Continues one request by a token a step, or by several if it has a draft. `width` rows of the batch are its own;
    `copies` is for beams only. drafted, accepted: draft tokens of the last step, and those that became tokens."""

    width = 1
    copies = ()
    added = 0  # tokens that the last step brought
    drafted = accepted = 0

    def __init__(self, request: Request, vocab_size: int, max_tokens: int) -> None:
        self._request, self._vocab_size = request, vocab_size
        self._sampler = Sampler(request, vocab_size)
        self._stop_words = Words(request.stop_words)
        self.tokens: list[int] = request.prompt.tolist()  # so far, those of the prompt included; not to be changed
        self._longest = len(self.tokens) + max_tokens
        self._given = list(request.draft_tokens)  # for the first step; later ones are the drafter's
        self._draft: list[int] = []
        self._failure: Exception | None = None  # of the drafter
        self._plain = not (request.return_log_probs or request.return_generation_logits)

    @property
    def length(self) -> int:
        """Tokens so far, those of the prompt included."""
        return len(self.tokens)

    @property
    def last_tokens(self) -> list[int]:
        """The token of each row that the model reads next."""
        return self.tokens[-1:]

    def draft(self, at_most: int) -> list[int]:
        """Tokens that may come next: the model reads them after the last one, and `step` gets that many more rows."""
        at_most = min(at_most, self._longest - self.length - 1)
        proposed, self._given = self._given, []
        try:
            if self._request.drafter and not proposed and at_most > 0:
                proposed = [int(token) for token in self._request.drafter.propose(self.tokens, at_most)]
                if self._request.prompt_embedding_table is not None:  # a repeated fake id is no token
                    proposed = list(takewhile(lambda token: token < self._vocab_size, proposed))
                for token in proposed:
                    if not 0 <= token < self._vocab_size:
                        raise RequestError(
                            f"The drafter proposed token id {token}, but the vocabulary has {self._vocab_size} tokens; "
                            "a draft must share the tokenizer of its target."
                        )
        except Exception as error:
            proposed, self._failure = [], error
        self._draft = proposed[: max(0, at_most)]
        return self._draft

    @property
    def plain(self) -> bool:
        """Whether the next token is the likeliest of the model's own logits, and nothing else is asked of them."""
        return self._plain and self._sampler.is_free(self.length) and not self._draft

    def take(self, token: int) -> Output:
        """`step` for a token that the model has chosen, of a request that is `plain`."""
        if self._failure:
            raise self._failure
        self.drafted = self.accepted = 0
        reason = self._append(token)
        self.added = reason != "end_id"
        return Output(self._request.id, [token] if self.added else [], reason)

    def step(self, logits: np.ndarray) -> Output:
        """Takes the logits float32 [1 + draft tokens, vocab] after the tokens so far and after each draft token, which
        it may change, and chooses the next token, and more of them as long as the draft is right.

        Raises RequestError when no token can be chosen, and whatever the drafter raised.
        """
        if self._failure:
            raise self._failure
        draft, self._draft, outputs = self._draft, [], []
        for row, proposed in zip(logits, [*draft, None], strict=True):
            try:
                outputs.append(self._choose(row))
            except RequestError:
                if not outputs:  # else the next step meets it again, behind the tokens before it
                    raise
                break
            if outputs[-1].finish_reason or outputs[-1].tokens != [proposed]:
                break
        self.added = sum(len(output.tokens) for output in outputs)
        self.drafted = len(draft)
        self.accepted = sum(output.tokens == [token] for output, token in zip(outputs, draft, strict=False))
        if self._request.end_after_draft and not outputs[-1].finish_reason:
            outputs[-1] = replace(outputs[-1], finish_reason="length")
        return joined(outputs)

    def _choose(self, row: np.ndarray) -> Output:
        request = self._request
        own = row[None].copy() if request.return_generation_logits else None
        token = self._sampler.choose(row, self.tokens)
        log_probs = [float(row[token]) - log_normaliser(row)] if request.return_log_probs else ()
        reason = self._append(token)
        tokens = [] if reason == "end_id" else [token]
        return Output(request.id, tokens, reason, log_probs=log_probs, generation_logits=own)

    def _append(self, token: int) -> str | None:
        """Takes the token in, unless it ends the request; why the request ends with it."""
        if token == self._request.end_id:
            return "end_id"
        stops = token in self._stop_words.completed_by(self.tokens)
        self.tokens.append(token)
        if stops:
            return "stop_words"
        return "length" if len(self.tokens) >= self._longest else None
