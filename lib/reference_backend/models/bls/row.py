"""One sequence of a BLS request: from the LLM's token ids to the text its client sees.

What else the LLM sends (log probabilities, logits, sequence_index) goes on with the text of the same response. A text
that was held back, for a character or a stop word might go on, comes with the latest of it.

A stop word that only the text shows (its letters are part of a longer token, or of several) ends the text but not the
LLM's work. Log probabilities and logits then cover tokens behind it as well: while streaming the one or two that came
before the LLM was stopped (and no performance metrics come, for these are with its last tokens), otherwise all that it
generated, up to max_tokens. And several beams that differ only behind such a stop word give the same text. A stop word
that the LLM generates as the tokens which the word alone would have is found by the LLM itself, and nothing comes
behind it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reference_backend.models.bls.calls import PERF_METRICS
from reference_backend.models.bls.reply import Reply
from reference_backend.models.common import texts
from reference_backend.models.text import IncrementalText, StopText

# Outputs that one response's newer value replaces: those of a chunk that is merged with the next are not missed.
LASTING = {"sequence_index", "cum_log_probs", "output_log_probs", *PERF_METRICS}


class Row:
    """Text of a sequence of batch row `index`.

    inputs: the client's; given: the inputs of `tensorrt_llm`. With `accumulate` every streamed text is the whole text
    so far. Of several beams each text is whole in any case, for they may change from the root at any step.
    """

    def __init__(
        self, reply: Reply, inputs: dict[str, np.ndarray], given: dict[str, np.ndarray], index: int, accumulate: bool
    ) -> None:
        words = texts(inputs["stop_words"][index], "stop_words") if "stop_words" in inputs else []
        self.reply, self.index = reply, index
        self._streaming = "stream" in inputs and bool(inputs["stream"][index])
        self.several = "beam_width" in inputs and int(inputs["beam_width"][index].item()) > 1
        self._stop, self._detokenizer = StopText(words), IncrementalText()
        self._prompt = given["input_ids"][index, : int(given["input_lengths"][index, 0])].copy()
        excluded = "exclude_input_in_output" in inputs and bool(inputs["exclude_input_in_output"][index])
        self._may_hold_prompt = not (self._streaming or excluded)
        self._accumulate = accumulate
        self._text = ""
        self._count = 1  # texts of a response
        self._latest: dict[str, Any] = {}  # outputs of the LLM that stay true until newer ones come
        self._answered = self._ended = False

    def sequences(self, beams: list[list[int]]) -> list[list[int]]:
        """The id lists to decode for a chunk of the LLM's tokens; none when nothing is to be shown."""
        self._count = len(beams) or self._count
        if self._stop.stopped or self.reply.closed or not any(beams):
            return []
        if self._streaming and not self.several:
            return list(self._detokenizer.windows(beams[0]))
        return [*beams, self._prompt.tolist()] if self._stop.words else beams

    def answer(self, decoded: list[str], extra: dict[str, Any], last: bool) -> None:
        """Send what the texts of `sequences` bring; `last` also gives out what is still held back, and ends the row."""
        if self._ended:
            return
        if self._streaming and not self.several:
            shown = self._next(decoded, last)
        else:
            shown = self._whole(decoded)
        self._latest |= {name: extra[name] for name in LASTING if name in extra}
        if not shown and (extra.keys() - {"sequence_index"} or (last and not self._answered)):
            shown = [self._text if self._accumulate else ""] * self._count
        if shown:
            self._answered = True
            self.reply.send(shown, self.index, self._latest | extra)
        if last or self._stop.stopped:
            self._ended = True
            self.reply.end_row(self)

    def _next(self, decoded: list[str], last: bool) -> list[str]:
        piece = self._stop.feed(self._detokenizer.advance(*decoded)) if decoded else ""
        if last and not self._stop.stopped:
            piece += self._stop.feed(self._detokenizer.flush())
        if last and not self._stop.stopped:
            piece += self._stop.flush()
        if not decoded and not piece:
            return []
        self._text += piece
        return [self._text if self._accumulate else piece]

    def _whole(self, decoded: list[str]) -> list[str]:
        """One text for each beam, cut behind a stop word that was generated (not one of the prompt)."""
        if not decoded or not self._stop.words:
            return decoded
        *beams, prompt = decoded
        start = len(prompt) if self._may_hold_prompt else 0
        return [self._cut(text, start if text.startswith(prompt) else 0) for text in beams]

    def _cut(self, text: str, start: int) -> str:
        end = self._stop.end_of_first(text[start:])
        return text if end is None else text[: start + end]
