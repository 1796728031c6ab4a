"""Say what a preparation is doing: a live bar on a terminal, one plain line for each stage elsewhere."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """Context manager; `stage` names the step (with `total` bytes where they are known), `at` tells how far it is."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._bar: Any = None
        self._task: Any = None
        self._total: int | None = None

    def __enter__(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        if sys.stderr.isatty():
            text, amount = TextColumn("{task.description}"), TextColumn("{task.fields[amount]}")
            columns = (SpinnerColumn(), text, BarColumn(bar_width=20), amount, TimeElapsedColumn())
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
        return self

    def stage(self, text: str, total: int | None = None) -> None:
        if self._bar is None:
            print(f"{self._model}: {text}", file=sys.stderr, flush=True)
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(f"{self._model}: {text}", total=total, amount="")
        self._total = total

    def at(self, done: int) -> None:
        if self._bar is not None:
            amount = f"{done / 1e6:.0f} of {self._total / 1e6:.0f} MB"
            self._bar.update(self._task, completed=done, amount=amount)

    def __exit__(self, *failure: object) -> None:
        if self._bar is not None:
            self._bar.stop()
