"""Say what a preparation is doing, on standard error."""

from __future__ import annotations

import sys


class Progress:
    def __init__(self, model: str) -> None:
        self._model = model

    def stage(self, text: str) -> None:
        print(f"{self._model}: {text}", file=sys.stderr, flush=True)
