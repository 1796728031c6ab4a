"""One batch row of a BLS request: from the LLM's token ids to the text its client sees."""

from __future__ import annotations

from typing import Any

import numpy as np

from servinglab.triton_models._bls_reply import Reply
from servinglab.triton_models._common import InputError, texts
from servinglab.triton_models._text import Detokenizer, StopText


class Row:
    """Text of row `index` of a request.

    inputs: the client's; given: the inputs of `tensorrt_llm`. With `accumulate` every streamed text is the whole text
    so far.
    """

    def __init__(
        self, reply: Reply, inputs: dict[str, np.ndarray], given: dict[str, np.ndarray], index: int, accumulate: bool
    ) -> None:
        words = texts(inputs["stop_words"][index], "stop_words") if "stop_words" in inputs else []
        self.reply, self.index = reply, index
        self._streaming = "stream" in inputs and bool(inputs["stream"][index])
        self._stop, self._detokenizer = StopText(words), Detokenizer()
        self._prompt = given["input_ids"][index, : int(given["input_lengths"][index, 0])].tolist()
        self._accumulate = accumulate
        self._text = ""
        self._answered = False

    def sequences(self, beams: list[list[int]]) -> list[list[int]]:
        """The id lists to decode for a chunk of the LLM's tokens; none when nothing is to be shown."""
        if self._stop.stopped or self.reply.closed or not any(beams):
            return []
        if not self._streaming:
            return [*beams, self._prompt] if self._stop.words else beams
        if len(beams) > 1:
            self.reply.fail(InputError("Streaming needs beam_width 1 in this model; leave stream or beam_width out."))
            return []
        return list(self._detokenizer.windows(beams[0]))

    def answer(self, decoded: list[str], extra: dict[str, Any], last: bool) -> None:
        """Send what the texts of `sequences` bring; `last` also gives out what is still held back, and ends the row."""
        if self._streaming:
            shown = self._next(decoded, last)
        else:
            shown = self._whole(decoded)
        if last and not shown and not self._answered:
            shown = [""]
        if shown:
            self._answered = True
            self.reply.send(shown, self.index, extra)
        if last or self._stop.stopped:
            self.reply.end_row(self.index)

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
        return [self._cut(text, len(prompt) if text.startswith(prompt) else 0) for text in beams]

    def _cut(self, text: str, start: int) -> str:
        end = self._stop.end_of_first(text[start:])
        return text if end is None else text[: start + end]
