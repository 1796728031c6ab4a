"""Where draft tokens come from: the text so far (`PromptLookup`), or a smaller model (`DraftModel`)."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from .device import choose, place
from .model import EngineConfig, ExecutorError


class Drafter(Protocol):
    """Proposes the next tokens of a request. Called in the engine's thread between two steps, so it must be quick."""

    def propose(self, tokens: list[int], at_most: int) -> list[int]:
        """Up to `at_most` (1 or more) ids that may follow `tokens`, prompt and generated ones, which are not to be
        changed; none is a good answer."""


class PromptLookup:
    """What followed the last tokens when they came before: good where the answer repeats its prompt or itself.

    It finds the latest earlier place that ends with the same `ngram` tokens, else with fewer, down to one. The latest,
    because what the text does now resembles most what it did last. The longer the two places agree (looking back as far
    as it goes), the longer the draft: it has as many tokens as agree, at most `max_draft`. Where it reaches
    the end of the text it goes on with its own draft, so that a loop is followed.

    The idea is that of prompt lookup decoding (A. Saxena 2023), which takes the first place and a fixed length. No
    state, so one may serve any number of requests.
    """

    def __init__(self, ngram: int = 3, max_draft: int = 8) -> None:
        _check(ngram=ngram, max_draft=max_draft)
        self.ngram, self.max_draft = ngram, max_draft

    def propose(self, tokens: list[int], at_most: int) -> list[int]:
        """See `Drafter`."""
        end, ids = len(tokens), np.array(tokens)
        found = np.flatnonzero(ids[: end - 1] == ids[-1]) + 1  # places just behind the last token's twins
        if not found.size:
            return []
        for back in range(2, min(self.ngram, end - 1) + 1):
            longer = found[(found >= back) & (ids[found - back] == ids[-back])]
            if not longer.size:
                break
            found = longer
        place = int(found[-1])
        differ = np.flatnonzero(ids[:place][::-1] != ids[end - place :][::-1])
        agree = int(differ[0]) if differ.size else place
        draft: list[int] = []
        for at in range(place, place + min(agree, self.max_draft, at_most)):
            draft.append(tokens[at] if at < end else draft[at - end])
        return draft


class DraftModel:
    """The likeliest next tokens according to a smaller model with the same tokenizer.

    engine_dir: its engine folder. max_draft: how many tokens it proposes. Its KV cache has `slots` rows; a text goes
    where its longest prefix is remembered, so that only what is new is read, whatever was rejected meanwhile.

    It belongs to one executor, whose thread calls it. Raises ExecutorError when the engine cannot be used.
    """

    def __init__(
        self, engine_dir: Path | str, max_draft: int = 4, *, slots: int = 8, threads: int | None = None
    ) -> None:
        _check(max_draft=max_draft, slots=slots)
        self.max_draft = max_draft
        config = EngineConfig.read(engine_dir)
        self.vocab_size, self._longest = config.vocab_size, config.max_seq_len
        device = choose(config)
        self._cache, self._model = place(config, slots, config.max_seq_len, device=device, threads=threads)
        self._known = np.full((slots, config.max_seq_len), -1, np.int64)  # the tokens in each row of the cache
        self._used = np.zeros(slots, np.int64)  # when
        self._now = 0

    def propose(self, tokens: list[int], at_most: int) -> list[int]:
        """See `Drafter`. None when the text is longer than the draft's engine allows."""
        ids, draft = np.array(tokens, np.int64), []
        count = min(self.max_draft, at_most, self._longest - len(ids))
        if count < 1 or ids.max() >= self.vocab_size:
            return draft
        slot, end = self._place(ids)
        new = ids[end:]
        while True:
            self._known[slot, end : end + len(new)] = new
            end += len(new)
            logits = self._model.forward(new[None], np.array([end]), slot, np.array([len(new) - 1]))
            draft.append(int(logits[0].argmax()))
            if len(draft) == count:
                return draft
            new = np.array(draft[-1:])

    def _place(self, ids: np.ndarray) -> tuple[int, int]:
        """The row to use, and how many of its tokens are right; the last id is always read, for its logits. What is
        behind them is forgotten."""
        same = self._known[:, : len(ids) - 1] == ids[:-1]
        common = np.where(same.all(1), len(ids) - 1, same.argmin(1)) if same.size else np.zeros(len(same), int)
        slot = int(common.argmax())
        end = int(common[slot])
        if (self._known[slot] >= 0).sum() - end > self.max_draft:  # another text with the same prefix, let it be
            source, slot = slot, int(self._used.argmin())
            self._cache.copy(source, slot, 0, end)
            self._known[slot, :end] = ids[:end]
        self._known[slot, end:] = -1
        self._now += 1
        self._used[slot] = self._now
        return slot, end


def _check(**counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ExecutorError(f"{name} is {value!r}; it must be a whole number, 1 or more.")
