"""Stop words and bad words: sequences of tokens, indexed by what comes before the last of them."""

from __future__ import annotations

from collections.abc import Sequence


class Words:
    """Finds the tokens that would complete a word. What that costs does not grow with the number of words, only with
    that of their different lengths (and with how many do come up)."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._last: dict[tuple[int, ...], list[int]] = {}  # by the tokens before
        for word in words:
            self._last.setdefault(tuple(word[:-1]), []).append(word[-1])
        self._lengths = sorted({len(beginning) for beginning in self._last})

    def __bool__(self) -> bool:
        return bool(self._last)

    def completed_by(self, tokens: list[int]) -> list[int]:
        """Each token that completes a word if it is the next after `tokens`."""
        fitting = (length for length in self._lengths if length <= len(tokens))
        return [last for length in fitting for last in self._last.get(tuple(tokens[len(tokens) - length :]), ())]
