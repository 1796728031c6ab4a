"""What the `course` command shows, in a terminal or in a CI log: tables, a run's progress.

What is only handed on is `Any` here, because importing its class would take time that most commands do not need.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "bold red", "passed": "green", "failed": "bold red",
          "timeout": "bold red", "error": "bold red", "warning": "yellow", "info": "cyan"}  # fmt: skip


def console() -> Console:
    """Standard output, as it is when this is called. A pipe has no width, and tables there should not wrap."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)


def show(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table without lines; names of things are never cut, numbers stand to the right, and no text is markup."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in columns:
        justify = "right" if name in ("seconds", "minutes", "size") else "left"
        made.add_column(name, justify=justify, overflow="fold", no_wrap=name in ("id", "notebook"))
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    console().print(made)


def status(word: str) -> Text:
    return Text(word, style=STYLES[word])


def say(text: object) -> None:
    """One line, however long."""
    console().print(Text(str(text)), soft_wrap=True)


def show_doctor(lines: list[Any], lanes: dict[str, str]) -> None:
    show(("", "what", "found", "cure"), [(status(line.status), line.name, line.detail, line.cure) for line in lines])
    for lane, reason in lanes.items():
        say(f"lane {lane}: " + (f"cannot run here ({reason})" if reason else "runs here"))


def show_models(found: list[Any], data: list[Any], cache: Path, root: Path) -> None:
    """Models in the cache, and the labs' data; paths below the cache or the course's folder are shown from there."""

    def place(path: Path | None) -> object:
        return next((path.relative_to(above) for above in (cache, root) if path and path.is_relative_to(above)), path)

    columns = ("model", "kind", "size", "licence", "source", "where in the cache")
    models = [(m.name, m.use, f"{m.bytes / 1e6:.0f} MB", m.licence, m.source, place(m.path)) for m in found]
    if found:
        show(columns, models)
    else:
        say("No model in the cache yet; bring the course's with: course fetch")
    say(f"cache: {cache}\n")
    sizes = [f"{d.bytes / 1e6:.0f} MB" if d.path else "" for d in data]
    rows = [(d.name, size, d.licence, d.use, d.source, place(d.path) or "not kept here")
            for d, size in zip(data, sizes, strict=True)]  # fmt: skip
    show(("data of the labs", "size", "licence", "used as", "source", "where"), rows)


def show_findings(findings: list[Any], folder: Path) -> None:
    for f in findings:
        place = f"{f.file}:{f.line}" if f.line else f.file
        console().print(status(f.severity), Text(f"{f.code} {place}: {f.message}"), soft_wrap=True)
        if f.cure:
            say(f"      cure: {f.cure}")
    errors = sum(f.severity == "error" for f in findings)
    say(f"{folder}: {errors} errors, {len(findings) - errors} warnings")


def show_versions(containers: Sequence[Any], best: Any, driver: str | None) -> None:
    """``containers``: of `engines.versions`; `best`: the newest for `driver`, or None."""
    columns = ("container", "TensorRT-LLM", "TensorRT", "CUDA", "driver from", "Python", "size", "tensor names")
    tags = [Text(c.tag, style="bold green" if c == best else "") for c in containers]
    rows = [(tag, c.trtllm, c.tensorrt, c.cuda, c.driver, c.python, f"{c.size_gb:.1f} GB", c.generation)
            for tag, c in zip(tags, containers, strict=True)]  # fmt: skip
    show(columns, rows)
    if driver is not None:
        found = f"the newest container is {best.tag}: {best.image}" if best else "no container of this table runs"
        say(f"With driver {driver} {found}.")


def show_recipe(recipe: Any, explain: bool) -> None:
    for note in recipe.notes:
        say(f"# {note}")
    say("\n\n".join(command.text() for command in recipe.commands))
    for row in recipe.explain() if explain else ():  # comments, for the whole may go to a shell
        say("# {program} {flag} {value}: {explain}".format(**row))


def show_estimate(e: Any) -> None:
    from engines.memory import gigabytes

    rows = [(name, gigabytes(count), words) for name, count, words in e.parts()]
    show(("part", "size", ""), rows, title=f"{e.model}, memory on {'each GPU' if e.tp_size > 1 else 'one GPU'}")
    say(e.sentence())


def show_inspection(found: dict[str, Any]) -> None:
    from engines.inspection import shown

    def listed(values: dict[str, Any]) -> str:
        return ", ".join(f"{name} {shown(name, value)}" for name, value in values.items())

    def text(key: str, value: Any) -> str:
        if key == "files":
            return "\n".join(map(listed, value))
        if isinstance(value, dict):
            return listed(value)
        return f"{value:,}" if key == "parameters" else shown(key, value)

    said = {key: value for key, value in found.items() if value not in (None, 0, {}, [])}
    show(("", ""), [(key.removesuffix("_bytes"), text(key, value)) for key, value in said.items()])


def show_differences(differences: Sequence[Any], a: str, b: str) -> None:
    from engines.inspection import shown

    if not differences:
        say(f"{a} and {b} say the same.")
        return
    rows = [(d.setting.removesuffix("_bytes"), shown(d.setting, d.a), shown(d.setting, d.b), d.meaning)
            for d in differences]  # fmt: skip
    show(("setting", a, b, "meaning"), rows)


@contextmanager
def progress() -> Iterator[tuple[Callable[[Any], None], Callable[[Any], None]]]:
    """What to call at a cell, with a `Progress`, and at a notebook's end, with its `Result`."""
    with console().status("starting the first notebook") as now:

        def at_cell(state: Any) -> None:
            now.update(f"{state.id}: cell {state.cell} of {state.cells}  [dim]{escape(state.source[:60])}")

        def at_end(result: Any) -> None:
            now.console.print(Text(f"{result.id}: {result.status} in {result.seconds:.1f} s {result.error}".rstrip()))

        yield at_cell, at_end
