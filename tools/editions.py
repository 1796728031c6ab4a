"""`course editions`: the notebooks for learners and for instructors, both made of the notebooks of the course.

Both are working copies, as build/lab is: their links and imports lead somewhere, and what you write in them is kept.
"""

from __future__ import annotations

import re
from pathlib import Path

import exercises
import nbformat
from lab import without_outputs, working_copy
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from notebook_files import tagged

from course.manifest import Course

Made = tuple[Path, list[tuple[str, str]]]
_FOLDED = re.compile(r"\n*<details[^>]*>\s*<summary>\s*(?:<\w+>)?(?:Solution|Answer)\b.*?</details>", re.DOTALL)


def learner(course: Course) -> Made:
    """No outputs and no solutions, those folded in the text neither."""
    return working_copy(course, "editions/learner", without_solutions, "solutions")


def instructor(course: Course) -> Made:
    """With outputs, and under each exercise its solution and what people believe instead."""
    return working_copy(course, "editions/instructor", with_solutions)


def without_solutions(path: Path) -> str:
    notebook = nbformat.reads(without_outputs(path), as_version=4)
    return nbformat.writes(_unfolded(notebook)) + "\n"


def _unfolded(notebook: NotebookNode) -> NotebookNode:
    """Without folded solutions, nor the cells that held nothing else."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _FOLDED.sub("", cell.source)
    notebook.cells = [cell for cell in notebook.cells if cell.source or cell.cell_type == "code"]
    return notebook


def with_solutions(path: Path) -> str:
    """The verdict under a check is that on the solution, asked now; one that a server gives, when you run the cell.
    All other outputs are those of the course."""
    notebook = _unfolded(nbformat.read(path, as_version=4))
    notebook.metadata.pop("jupytext", None)
    ids, cells = exercises.exercise_ids(notebook), []
    answers = exercises.load_answers(path.name[:2], path.parent / "solutions") if ids else exercises.Answers({})
    stubs = {id(cell): number for number, cell in tagged(notebook, "exercise:").items()}
    checks = {id(cell): number for number, cell in tagged(notebook, "check:").items()}
    for cell in notebook.cells:
        cells.append(cell)
        if number := stubs.get(id(cell)):
            cells.append(new_markdown_cell(f"**Solution {number}**", id=f"solution-{number.replace('.', '-')}-words"))
            code = answers.solutions[number].strip("\n")
            cells.append(new_code_cell(code, id=f"solution-{number.replace('.', '-')}"))
        elif number := checks.get(id(cell)):
            cell.outputs = []
            if number not in answers.live:
                status, message = exercises.ask(notebook, number, answers.solutions[number], answers.setup)
                cell.outputs = [new_output("stream", name="stdout", text=f"{number} {status}: {message}\n")]
            if answers.mutants.get(number):
                cells.append(new_markdown_cell(_beliefs(notebook, number, answers),
                                               id=f"beliefs-{number.replace('.', '-')}"))  # fmt: skip
    notebook.cells = cells
    return nbformat.writes(notebook) + "\n"


def _beliefs(notebook: NotebookNode, number: str, answers: exercises.Answers) -> str:
    """What people believe instead, and what the check answers them; of a server's verdict, words that it holds."""
    said = {}
    for belief, code, words in answers.mutants[number]:
        live = number in answers.live
        said[belief] = f"… {words} …" if live else exercises.ask(notebook, number, code, answers.setup)[1]
    lines = [f"- {_plain(belief)}: “{_plain(message)}”" for belief, message in said.items()]
    return "\n".join(["<details><summary>What people believe instead</summary>", "", *lines, "", "</details>"])


def _plain(text: str) -> str:
    """As Markdown that shows it to the letter."""
    return re.sub(r"([\\`*_$<>\[\]])", r"\\\1", text)
