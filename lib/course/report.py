"""What the `course` command shows: tables and the progress of a run, in a terminal or in a CI log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from course.manifest import Course, Notebook

STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "bold red", "passed": "green", "failed": "bold red",
          "timeout": "bold red", "error": "bold red", "warning": "yellow", "info": "cyan"}  # fmt: skip


def _console() -> Console:
    # Made when used: tests and notebooks replace sys.stdout. A pipe has no width, and tables there should not wrap.
    width = None if sys.stdout.isatty() else 160
    return Console(file=sys.stdout, width=width, highlight=False, markup=False)  # "[red]" in a file is no colour


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in columns:
        right = name in ("seconds", "minutes", "size")
        whole = name in ("id", "notebook")
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=whole)
    return table


def _status(word: str) -> Text:
    return Text(word, style=STYLES.get(word, ""))


def show_doctor(lines: list[Any]) -> None:
    from course import doctor

    table = _table("", "what", "found", "cure")
    for line in lines:
        table.add_row(_status(line.status), line.name, Text(line.detail), Text(line.cure))
    console = _console()
    console.print(table)
    for lane, reason in doctor.lanes(lines).items():
        console.print(Text(f"lane {lane}: " + (f"cannot run here ({reason})" if reason else "runs here")))


def show_notebooks(course: Course) -> None:
    table = _table("id", "minutes", "lanes", "needs", "title")
    for n in course.notebooks:
        table.add_row(n.id, str(n.minutes), ", ".join(n.lanes), ", ".join(n.needs), Text(n.title))
    _console().print(table)


def show_results(results: list[Any], index: Path) -> None:
    table = _table("notebook", "seconds", "status", "")
    for r in results:
        table.add_row(r.id, f"{r.seconds:.1f}", _status(r.status), Text(r.error))
    console = _console()
    console.print(table)
    console.print(Text(f"pages: {index}"), soft_wrap=True)


def show_models(found: list[Any], data: list[Any], cache: Path, root: Path) -> None:
    """Models in the cache, and the labs' data; paths below the cache or the course's folder are shown from there."""
    console = _console()
    if found:
        table = _table("model", "kind", "size", "licence", "source", "where in the cache")
        for m in found:
            facts = (Text(str(fact)) for fact in (m.licence, m.source, _below(m.path, cache)))
            table.add_row(m.name, m.kind, f"{m.bytes / 1e6:.0f} MB", *facts)
        console.print(table)
    else:
        console.print(Text("No model in the cache yet; bring the course's with: course fetch"))
    console.print(Text(f"cache: {cache}\n"), soft_wrap=True)
    table = _table("data of the labs", "size", "licence", "used as", "source", "where")
    for d in data:
        place = "not kept here" if d.path is None else _below(d.path, root, cache)
        facts = (Text(str(fact)) for fact in (d.licence, d.use, d.source, place))
        table.add_row(d.name, f"{d.bytes / 1e6:.0f} MB" if d.path else "", *facts)
    console.print(table)


def _below(path: Path, *folders: Path) -> Path:
    """`path` as seen from the first of the folders that it lies in."""
    return next((path.relative_to(folder) for folder in folders if path.is_relative_to(folder)), path)


def show_findings(findings: list[Any], folder: Path) -> None:
    console = _console()
    for f in findings:
        place = f"{f.file}:{f.line}" if f.line else f"{f.file}"
        console.print(_status(f.severity), Text(f"{f.code} {place}: {f.message}"), soft_wrap=True)
        if f.cure:
            console.print(Text(f"      cure: {f.cure}"), soft_wrap=True)
    errors = sum(f.severity == "error" for f in findings)
    console.print(Text(f"{folder}: {errors} errors, {len(findings) - errors} warnings"), soft_wrap=True)


class Display(Protocol):
    """Told about a run as it goes on."""

    def begin(self, notebook: Notebook) -> None: ...
    def cell(self, progress: Any) -> None: ...
    def end(self, result: Any) -> None: ...


@contextmanager
def progress(notebooks: list[Notebook]) -> Iterator[Display]:
    """A live display in a terminal; in a log one line when a notebook begins and one when it ends."""
    if not sys.stdout.isatty():
        yield _Lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<24}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[now]}", style="dim"))  # fmt: skip
    with Progress(*columns, console=_console()) as bars:
        yield _Bars(bars, notebooks)


class _Lines:
    def begin(self, notebook: Notebook) -> None:
        print(f"{notebook.id} …", flush=True)

    def cell(self, progress: Any) -> None:
        pass

    def end(self, result: Any) -> None:
        print(f"{result.id}: {result.status} in {result.seconds:.1f} s {result.error}".rstrip(), flush=True)


class _Bars:
    def __init__(self, bars: Any, notebooks: list[Notebook]) -> None:
        self.bars = bars
        self.tasks = {n.id: bars.add_task(n.id, total=None, start=False, now="") for n in notebooks}

    def begin(self, notebook: Notebook) -> None:
        self.bars.start_task(self.tasks[notebook.id])

    def cell(self, progress: Any) -> None:
        now = progress.source[:40].replace("[", "\\[")
        self.bars.update(self.tasks[progress.id], total=progress.cells, completed=progress.cell - 1, now=now)

    def end(self, result: Any) -> None:
        task = self.tasks[result.id]
        done = {"completed": result.cells, "total": result.cells} if result.status == "passed" else {}
        self.bars.update(task, now=f"[{STYLES[result.status]}]{result.status}", **done)
        self.bars.stop_task(task)
