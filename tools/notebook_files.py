"""Notebooks as files: the text source, the committed .ipynb, and what must not be stored in the latter.

``notebooks/text/NN_topic.py`` (jupytext, py:percent) is what people write and review; ``notebooks/NN_topic.ipynb`` is
made from it by ``tools/execute_notebooks.py`` and holds the outputs. A lab, ``labs/NAME``, has the same folders.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]

# What a stored notebook says about itself: nothing that differs from machine to machine.
_METADATA = {
    "jupytext": {"formats": "ipynb,text//py:percent"},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class NotebookError(Exception):
    """A notebook that cannot be stored or executed; the message says which cell and why."""


def notebook_folders(root: Path = ROOT) -> list[Path]:
    """Where notebooks lie: ``notebooks`` and each lab."""
    return [root / "notebooks", *sorted(path.parent for path in root.glob("labs/*/text"))]


def text_sources(root: Path = ROOT) -> list[Path]:
    """Text sources in course order."""
    return sorted((s for f in notebook_folders(root) for s in f.glob("text/*.py")), key=lambda s: s.stem)


def notebook_of(source: Path) -> Path:
    """Where the executed notebook of a text source lives."""
    return source.parents[1] / f"{source.stem}.ipynb"


def read_source(source: Path) -> NotebookNode:
    """The notebook of a text source, without outputs, with plain metadata and stable cell ids."""
    notebook = jupytext.read(source, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(_METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{number:03d}"
        cell.metadata = nbformat.from_dict({"tags": tags(cell)} if tags(cell) else {})
    return notebook


def tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def tagged(notebook: NotebookNode, prefix: str) -> dict[str, NotebookNode]:
    """Cells with a tag such as ``check:05.1``, by what follows the prefix ("check:")."""
    return {tag.removeprefix(prefix): cell for cell in notebook.cells for tag in tags(cell) if tag.startswith(prefix)}


def write(notebook: NotebookNode, path: Path) -> None:
    """Store a notebook as Jupyter would, so that saving it there changes nothing else."""
    nbformat.validate(notebook)
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def write_text(notebook: NotebookNode, source: Path) -> None:
    """Store its text as jupytext would, to the byte: JupyterLab refuses a pair whose text is older and differs."""
    source.write_text(jupytext.writes(notebook, fmt="py:percent"), encoding="utf-8")


def scrub(notebook: NotebookNode) -> None:
    """Make a freshly executed notebook independent of when, where and how fast it ran."""
    notebook.metadata = nbformat.from_dict(_METADATA)
    count = 0
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({"tags": tags(cell)} if tags(cell) else {})
        if cell.cell_type != "code":
            continue
        count += 1
        cell.execution_count = count
        cell.outputs = _joined_streams(cell.outputs)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count


def _joined_streams(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Neighbouring pieces of one stream as one output: how the kernel cut them is chance."""
    joined: list[NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def machine_paths() -> list[str]:
    """Folders of this machine that no stored output may name."""
    folders = {ROOT, Path.home(), Path(sys.prefix), Path(tempfile.gettempdir())}
    # "/" is the home folder of some containers; as a pattern it would match everything.
    return sorted({str(f) for f in folders if len(f.parts) > 1}, key=len, reverse=True)


def storage_problems(notebook: NotebookNode, folders: list[str] | None = None) -> list[str]:
    """Why this executed notebook must not be committed: errors, missing runs, widgets, machine paths. [] when clean.

    ``folders``: paths that no output may contain (default: this machine's).
    """
    folders = machine_paths() if folders is None else folders
    found = []
    if "widgets" in notebook.metadata:
        found.append("the metadata holds widget state")
    if dict(notebook.metadata) != _METADATA:
        found.append(f"the metadata must be {json.dumps(_METADATA)}")
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "code":
            continue
        where = f"cell {number}"
        if cell.execution_count is None:
            found.append(f"{where} was not executed")
        if set(cell.metadata) - {"tags"}:
            found.append(f"{where} stores metadata: {', '.join(sorted(set(cell.metadata) - {'tags'}))}")
        for output in cell.outputs:
            found += [f"{where} {problem}" for problem in _output_problems(output, tags(cell), folders)]
    return found


def _output_problems(output: NotebookNode, cell_tags: list[str], folders: list[str]) -> list[str]:
    found = []
    if output.output_type == "error" and "raises-exception" not in cell_tags:
        found.append(f"ends in {output.ename}: {output.evalue}")
    if any("jupyter.widget" in kind for kind in output.get("data", {})):
        found.append("stores a widget; use servinglab.explore, which draws a figure where no slider can move")
    shown = {k: v for k, v in output.items() if k != "data"}
    shown |= {k: v for k, v in output.get("data", {}).items() if not k.startswith("image/")}
    text = json.dumps(shown, ensure_ascii=False)
    # A path ends at a separator or at the end of a word: "/tmp" must not be found in "/tmpfs".
    named = [folder for folder in folders if re.search(re.escape(folder) + r"(?![\w.-])", text)]
    if named:
        found.append(f"shows a path of this machine ({named[0]}); print it through servinglab.notebook.shorten")
    return found
