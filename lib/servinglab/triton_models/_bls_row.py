"""One batch row of a BLS request: from the LLM's token ids to the text its client sees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from servinglab.triton_models._common import InputError, texts
from servinglab.triton_models._text import Detokenizer, StopText

Decode = Callable[[list[list[int]]], list[str]]


class Row:
    """Text of one row.

    inputs: the client's; given: the inputs of `tensorrt_llm`. With `accumulate` every streamed text is the whole text
    so far. `done` once a stop word has appeared in the text.
    """

    def __init__(
        self,
        inputs: dict[str, np.ndarray],
        given: dict[str, np.ndarray],
        index: int,
        accumulate: bool,
        decode: Decode,
    ) -> None:
        words = texts(inputs["stop_words"][index], "stop_words") if "stop_words" in inputs else []
        self.streaming = "stream" in inputs and bool(inputs["stream"][index])
        self._stop, self._detokenizer = StopText(words), Detokenizer()
        self._prompt = given["input_ids"][index, : int(given["input_lengths"][index, 0])].tolist()
        self._accumulate, self._decode = accumulate, decode
        self._text = ""
        self.answered = False

    @property
    def done(self) -> bool:
        return self._stop.stopped

    def texts(self, response: dict[str, np.ndarray]) -> list[str]:
        """The strings to send for one response of the LLM; empty when it brings no token."""
        lengths = response["sequence_length"][0].tolist()
        beams = [ids[:length] for ids, length in zip(response["output_ids"][0].tolist(), lengths, strict=True)]
        shown = self._chunk(beams) if self.streaming else self._whole(beams)
        self.answered = self.answered or bool(shown)
        return shown

    def rest(self) -> list[str]:
        """What is still held back when the LLM has ended; an empty text if there never was one."""
        piece = "" if self.done else self._stop.feed(self._detokenizer.flush())
        if not self.done:
            piece += self._stop.flush()
        return [self._shown(piece)] if piece or not self.answered else []

    def _chunk(self, beams: list[list[int]]) -> list[str]:
        if len(beams) > 1:
            raise InputError("Streaming through this model needs beam_width 1; leave stream or beam_width out.")
        if not beams[0]:
            return []
        before, now = self._decode(list(self._detokenizer.windows(beams[0])))
        return [self._shown(self._stop.feed(self._detokenizer.advance(before, now)))]

    def _shown(self, piece: str) -> str:
        self._text += piece
        return self._text if self._accumulate else piece

    def _whole(self, beams: list[list[int]]) -> list[str]:
        """One text for each beam, cut behind a stop word that was generated (not one of the prompt)."""
        if not self._stop.words:
            return self._decode(beams)
        *decoded, prompt = self._decode([*beams, self._prompt])
        # Whether the prompt is in there may be a parameter of the LLM, which is not known here: look.
        return [
            self._cut(text, prompt if ids[: len(self._prompt)] == self._prompt else "")
            for ids, text in zip(beams, decoded, strict=True)
        ]

    def _cut(self, text: str, prompt: str) -> str:
        start = len(prompt) if text.startswith(prompt) else 0
        end = self._stop.end_of_first(text[start:])
        return text if end is None else text[: start + end]
