"""Guesses ahead: the model reads several tokens in one step, and a request keeps those it would have chosen itself.

Reading four tokens costs little more than reading one (fp32, two cores: 26 ms against 23), because both wait for the
same weights. So a request may have guesses for its next tokens read along with its last one, in a step of its own. Each
row of logits then goes to the request's own sampler, as if it came from a step of its own: its choice is the next
token, and as long as it is the guess, the next row of logits is right too. Penalties, bans, stop words and the random
numbers see one token after another as ever, so greedy and seeded outputs are the same with and without guesses, only
in fewer steps. (With int4 weights logits depend in the last digits on how many tokens go in together, see Sampler.)

That is what TensorRT-LLM does with `draft_input_ids` alone. Sampled tokens stay true to the model's distribution, for
they are the sampler's own. The other rule, which needs the draft's probabilities, is in decoding/speculative.py.
"""

from __future__ import annotations

from typing import Protocol

from .params import RequestError


class Drafter(Protocol):
    """Guesses the next tokens of a request. Called in the engine's thread between two steps, so it must be quick."""

    def propose(self, tokens: list[int], at_most: int) -> list[int]:
        """Up to `at_most` (1 or more) ids that may follow `tokens`, prompt and generated ones, which are not to be
        changed; none is a good answer."""


class Speculation:
    """The guesses of one request: first those that it came with, then its drafter's."""

    def __init__(self, drafter: Drafter | None, given: list[int], vocab_size: int) -> None:
        self._drafter, self._given, self._vocab_size = drafter, given, vocab_size

    def propose(self, tokens: list[int], at_most: int) -> list[int]:
        """At most so many guesses. Raises RequestError for one that is no token."""
        guesses, self._given = self._given, []
        if self._drafter and not guesses and at_most > 0:
            guesses = [int(token) for token in self._drafter.propose(tokens, at_most)]
            for token in guesses:
                if not 0 <= token < self._vocab_size:
                    raise RequestError(
                        f"The drafter proposed token id {token}, but the vocabulary has {self._vocab_size} tokens; "
                        "a draft must share the tokenizer of its target."
                    )
        return guesses[: max(0, at_most)]
