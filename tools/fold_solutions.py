#!/usr/bin/env python
"""Put each exercise's solution, folded, under its check: from `solutions/NN.py` into the text and the .ipynb.

No argument: every notebook. ``05 03``: only these. Outputs stay as they are, since only words come and go.
"""

from __future__ import annotations

import sys
from pathlib import Path

import exercises
import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from notebook_files import notebook_of, read_source, tagged, text_sources, write, write_text

from servinglab.keep import Keeper, digest

BEGIN = "<details><summary>Solution "


def folded(number: str, code: str) -> str:
    lines = [f"{BEGIN}{number}</summary>", "", "```python", code.strip("\n"), "```", "", "</details>"]
    return "\n".join(lines)


def fold(notebook: NotebookNode, solutions: dict[str, str]) -> None:
    """Replace the folded solutions in a notebook, or add them."""
    checks = {id(cell): number for number, cell in tagged(notebook, "check:").items()}
    cells = []
    for cell in notebook.cells:
        if not cell.source.startswith(BEGIN):
            cells.append(cell)
        if number := checks.get(id(cell)):
            cells.append(new_markdown_cell(folded(number, solutions[number])))
    notebook.cells = cells


def update(source: Path) -> None:
    """Bring the text of a notebook, and its stored .ipynb, up to date. No effect where both are."""
    notebook = read_source(source)
    if not exercises.exercise_ids(notebook):
        return
    fold(notebook, exercises.load_answers(source.stem[:2]).solutions)
    write_text(notebook, source)
    stored, path = nbformat.read(notebook_of(source), as_version=4), notebook_of(source)
    made = read_source(source)
    old, new = ([cell for cell in each.cells if cell.cell_type == "code"] for each in (stored, made))
    if [cell.source for cell in old] != [cell.source for cell in new]:
        print(f"{path.name} is not what its text makes: run tools/execute_notebooks.py {source.stem[:2]}")
        return
    for before, after in zip(old, new, strict=True):
        after.outputs, after.execution_count = before.outputs, before.execution_count
    write(made, path)
    Keeper(source.parents[1]).note([digest(path)])


if __name__ == "__main__":
    for each in text_sources():
        if len(sys.argv) == 1 or each.stem[:2] in sys.argv[1:]:
            update(each)
