"""What a sentence names, explained with WordNet: a rare word means little to MiniLM, its explanation more.

The sentence and the explained sentence count alike (after K-LITE, Shen et al. 2022, https://arxiv.org/abs/2204.09222).
Standard library and numpy only: the Triton model `text_encoder` carries a copy (notebook 14).
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

FILE = "words.json.gz"
LONGEST = 64  # words of a sentence that are looked at: what it names stands near its beginning
ROOM = 1_000  # characters; an explanation behind a longer text would be cut off
PHRASE = 3  # words of the longest name that is looked for
# A phrase ends here, and the thing that it names stands last in it: "a bunny | with an Easter egg" names a bunny.
_END = re.compile(
    r"[^\w\s'-]|\s-|--|\b(?:of|on|in|with|at|for|from|by|over|under|above|below|near|beside|between|behind|before|into"
    r"|through|and|or|is|are|that|who|which|to)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]+(?:['-]+[^\W\d_]+)*")
# Words that WordNet has as things too, and what stands before "of" and leaves the thing to the next phrase.
_PLAIN = frozenset("a an the it it's this your my his her i so do no can us one two three be me as "
                   "photo picture image drawing sketch icon pair piece kind set bunch group slice "
                   "red green blue yellow black white brown grey gray".split())  # fmt: skip
_PLURALS = (("s", ""), ("ies", "y"), ("es", ""), ("ves", "f"), ("ves", "fe"))


class Dictionary:
    """The things that WordNet explains. file: as `training_data.write_dictionary` makes it."""

    def __init__(self, file: str | Path) -> None:
        with gzip.open(file, "rt", encoding="utf-8") as text:
            content = json.load(text)
        self._rows, self._meanings = content["words"], content["meanings"]

    def thing(self, sentence: str) -> str:
        """The name of what the first phrase with a known name names, as WordNet spells it; "" when there is none."""
        left = LONGEST
        for phrase in _END.split(sentence.replace("’", "'")):
            words = _WORD.findall(phrase.lower())[: max(left, 0)]
            left -= len(words)
            for end in range(len(words), 0, -1):
                for start in range(max(0, end - PHRASE), end):
                    if found := self._known(" ".join(words[start:end])):
                        return found
        return ""

    def explained(self, sentence: str) -> str:
        """The sentence, and behind it what it names, what that is, and of which kind. Unchanged for no known name."""
        name = self.thing(sentence) if len(sentence) <= ROOM else ""
        return f"{sentence} {name}: {self._meanings[self._rows[name]]}" if name else sentence

    def encode(self, texts: Sequence[str], encode: Callable[[list[str]], np.ndarray]) -> np.ndarray:
        """Vectors of length 1, float32 [n, d]: the middle of each text's vector and its explanation's, by `encode`."""
        vectors, explained = encode(list(texts)), [self.explained(text) for text in texts]
        if rows := [row for row, text in enumerate(texts) if explained[row] != text]:
            both = vectors[rows] + encode([explained[row] for row in rows])
            vectors[rows] = both / np.linalg.norm(both, axis=1, keepdims=True)
        return vectors

    def _known(self, name: str) -> str:
        if name in _PLAIN:
            return ""
        singular = (name.removesuffix(ending) + instead for ending, instead in _PLURALS if name.endswith(ending))
        return next((form for form in (name, *singular) if form in self._rows), "")
