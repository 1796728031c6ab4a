#!/usr/bin/env python
"""Make notebooks/NN_topic.ipynb, executed and with outputs, from notebooks/text/NN_topic.py.

No argument: every notebook, in order. ``05 03``: only these. ``--check``: execute and write nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from notebook_files import (
    NotebookError,
    notebook_of,
    read_source,
    scrub,
    storage_problems,
    text_sources,
    write,
    write_text,
)

from course.manifest import Notebook, load
from course.runner import Progress, run_notebook
from servinglab import scratch
from servinglab.errors import CourseError
from servinglab.keep import Keeper, digest


def execute(notebook: NotebookNode, entry: Notebook, parameters: dict | None = None) -> tuple[NotebookNode, float]:
    """Execute a notebook as ``course run`` would, beside its modules and into a folder of its own; (executed, seconds).

    Raises NotebookError that names the cell.
    """
    with scratch.folder() as folder:
        path = folder / "notebooks" / f"{entry.id}.ipynb"
        path.parent.mkdir()
        write(notebook, path)
        out = folder / "out"
        copy = dataclasses.replace(entry, path=path)
        result = run_notebook(copy, out, parameters or {}, folder=entry.path.parent, on_progress=_show)
        if result.status != "passed":
            raise NotebookError(f"{entry.id}, {result.error}")
        return nbformat.read(out / path.name, as_version=4), result.seconds


def make(source: Path, entry: Notebook, *, keep: bool = True) -> float:
    """Execute one text source; with ``keep``, write the .ipynb. Returns the seconds."""
    before, fresh = source.read_bytes(), read_source(source)
    executed, seconds = execute(fresh, entry)
    scrub(executed)
    if problems := storage_problems(executed):
        raise NotebookError(f"{entry.id}: " + "; ".join(problems))
    if keep:
        if source.read_bytes() != before:
            raise NotebookError(f"{entry.id}: {source.name} was changed while it was executed; execute it again.")
        _make_room(notebook_of(source), fresh)
        write(executed, notebook_of(source))
        Keeper(source.parents[1]).note([digest(notebook_of(source))])
        write_text(executed, source)
    return seconds


def _make_room(path: Path, fresh: NotebookNode) -> None:
    """Move a notebook away in which something was typed that is not in its text."""
    if path.exists():
        stored = nbformat.read(path, as_version=4)
        typed = [cell.source for cell in stored.cells] != [cell.source for cell in fresh.cells]
        if typed and (yours := Keeper(path.parent).make_room(path.name)):
            print(f"{path.name} was not what its text had made: it is now {yours}", file=sys.stderr)


def _show(progress: Progress) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{progress.id}: cell {progress.cell} of {progress.cells}", end="\r", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", help="notebook ids, or their numbers such as 05")
    parser.add_argument("--check", action="store_true", help="execute without writing anything")
    options = parser.parse_args(arguments)
    try:
        course = load()
        entries = {entry.id: entry for entry in course.select(options.ids)}
    except CourseError as error:
        print(error, file=sys.stderr)
        return 2
    sources = [s for s in text_sources(course.root) if s.stem in entries]
    failed = 0
    for source in sources:
        try:
            seconds = make(source, entries[source.stem], keep=not options.check)
            print(f"{source.stem}: {seconds:.1f} s", flush=True)
        except NotebookError as error:
            failed += 1
            print(f"FAILED {error}", file=sys.stderr, flush=True)
    if missing := set(entries) - {s.stem for s in sources}:
        failed += 1
        places = ", ".join(f"{entries[i].folder}/text/{i}.py" for i in sorted(missing))
        print(f"no text source {places}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
