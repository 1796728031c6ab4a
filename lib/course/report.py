"""What the `course` command shows, in a terminal or in a CI log: tables, a run's progress, and the index of a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from course.manifest import Course
from servinglab.keep import Keeper

STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "bold red", "passed": "green", "failed": "bold red",
          "timeout": "bold red", "error": "bold red", "warning": "yellow", "info": "cyan"}  # fmt: skip


def console() -> Console:
    """Standard output, as it is when this is called. A pipe has no width, and tables there should not wrap."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)


def table(*columns: str, title: str | None = None) -> Table:
    """A table without lines; names of things are never cut, numbers stand to the right."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in columns:
        justify = "right" if name in ("seconds", "minutes", "size") else "left"
        made.add_column(name, justify=justify, overflow="fold", no_wrap=name in ("id", "notebook"))
    return made


def status(word: str) -> Text:
    return Text(word, style=STYLES[word])


def say(text: object) -> None:
    """One line, however long."""
    console().print(Text(str(text)), soft_wrap=True)


def show_doctor(lines: list[Any], lanes: dict[str, str]) -> None:
    found = table("", "what", "found", "cure")
    for line in lines:
        found.add_row(status(line.status), line.name, Text(line.detail), Text(line.cure))
    console().print(found)
    for lane, reason in lanes.items():
        say(f"lane {lane}: " + (f"cannot run here ({reason})" if reason else "runs here"))


def show_notebooks(course: Course) -> None:
    found = table("id", "minutes", "lanes", "needs", "title")
    for n in course.notebooks:
        found.add_row(n.id, str(n.minutes), ", ".join(n.lanes), ", ".join(n.needs), Text(n.title))
    console().print(found)


def show_results(results: list[Any], index: Path) -> None:
    found = table("notebook", "seconds", "status", "")
    for r in results:
        found.add_row(r.id, f"{r.seconds:.1f}", status(r.status), Text(r.error))
    console().print(found)
    say(f"pages: {index}")


def show_models(found: list[Any], data: list[Any], cache: Path, root: Path) -> None:
    """Models in the cache, and the labs' data; paths below the cache or the course's folder are shown from there."""
    models = table("model", "kind", "size", "licence", "source", "where in the cache")
    for m in found:
        facts = (Text(str(fact)) for fact in (m.licence, m.source, _below(m.path, cache)))
        models.add_row(m.name, m.use, f"{m.bytes / 1e6:.0f} MB", *facts)
    console().print(models if found else "No model in the cache yet; bring the course's with: course fetch")
    say(f"cache: {cache}\n")
    sets = table("data of the labs", "size", "licence", "used as", "source", "where")
    for d in data:
        facts = d.licence, d.use, d.source, _below(d.path, root, cache) if d.path else "not kept here"
        sets.add_row(d.name, f"{d.bytes / 1e6:.0f} MB" if d.path else "", *(Text(str(fact)) for fact in facts))
    console().print(sets)


def _below(path: Path, *folders: Path) -> Path:
    """`path` as seen from the first of the folders that it lies in."""
    return next((path.relative_to(folder) for folder in folders if path.is_relative_to(folder)), path)


def show_findings(findings: list[Any], folder: Path) -> None:
    for f in findings:
        place = f"{f.file}:{f.line}" if f.line else f.file
        console().print(status(f.severity), Text(f"{f.code} {place}: {f.message}"), soft_wrap=True)
        if f.cure:
            say(f"      cure: {f.cure}")
    errors = sum(f.severity == "error" for f in findings)
    say(f"{folder}: {errors} errors, {len(findings) - errors} warnings")


@contextmanager
def progress() -> Iterator[tuple[Callable[[Any], None], Callable[[Any], None]]]:
    """What to call at a cell, with a `Progress`, and at a notebook's end, with its `Result`.

    A line when a notebook ends; in a terminal also, for as long as it runs, the cell that it is at.
    """
    with console().status("starting the first notebook") as now:

        def at_cell(state: Any) -> None:
            now.update(f"{state.id}: cell {state.cell} of {state.cells}  [dim]{escape(state.source[:60])}")

        def at_end(result: Any) -> None:
            now.console.print(Text(f"{result.id}: {result.status} in {result.seconds:.1f} s {result.error}".rstrip()))

        yield at_cell, at_end


def write_index(course: Course, results: list[Any], out: Path) -> Path:
    """Write `out`/index.html: the notebooks that ran, with time, status and links to page and notebook."""
    from jinja2 import Template

    from servinglab.notebook import device

    template = Path(__file__).with_name("templates") / "index.html"
    titles = {n.id: n.title for n in course.notebooks}
    made = [[(out / f"{r.id}{kind}").exists() for kind in (".html", ".ipynb")] for r in results]
    rows = [(titles.get(r.id, r.id), r, *there) for r, there in zip(results, made, strict=True)]
    page = Template(template.read_text(encoding="utf-8"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text = page.render(rows=rows, when=time.strftime("%Y-%m-%d %H:%M"), device=device())
    Keeper(out).write(out / "index.html", f"{text}\n".encode())
    return out / "index.html"
