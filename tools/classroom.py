"""The commands for a class, which need a checkout: lab, progress, sweep, editions, new. `course` has them from here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from course import manifest

app = typer.Typer()


@app.command(context_settings={"ignore_unknown_options": True})
def lab(
    arguments: Annotated[list[str] | None, Argument(help="A notebook, such as 05; options of JupyterLab.")] = None,
    at: Annotated[int | None, Option(min=1, help="With all cells before this section executed.")] = None,
    instructor: Annotated[bool, Option("--instructor", help="The edition with outputs and solutions.")] = False,
) -> None:
    """Open the notebooks in JupyterLab, as copies of yours without outputs: build/lab."""
    import lab as working

    course, rest = manifest.load(), list(arguments or ())
    first = course.select([rest.pop(0)])[0] if rest and not rest[0].startswith("-") else course.notebooks[0]
    if instructor:
        import editions

        folder, newer = editions.instructor(course)
    else:
        folder, newer = working.working_copy(course)
    for yours, other in newer:
        typer.echo(f"{yours} has a new version, {other}; yours stays as it is")
    then = None
    if at:
        import jump

        then = jump.before(folder / first.folder / first.path.name, folder, at)
    sys.exit(working.open_jupyterlab(folder, rest, first, then))


@app.command()
def progress() -> None:
    """Show which exercises you have passed in build/lab, and the next one. The list stays on this machine."""
    import passed

    passed.show(manifest.load())


@app.command()
def sweep(
    notebook: Annotated[str, Argument(help="A notebook's id or number, such as 06.")],
    parameter: Annotated[list[str], Option("-p", metavar="NAME=A,B,…", help='Values; quote a comma: NAME="a, b",c')],
    parameter_set: Annotated[str | None, Option("--set", help="A parameter set of course.toml, for the rest.")] = None,
    figure: Annotated[str | None, Option(help="What to draw, of all that the notebook records.")] = None,
    jobs: Annotated[int | None, Option(min=1, help="Runs at a time; else what cores and memory allow.")] = None,
    again: Annotated[bool, Option("--again", help="Run also what has run already.")] = False,
    out: Annotated[Path | None, Option(help="Folder for the results; else build/sweep/NOTEBOOK.")] = None,
    timeout: Annotated[float | None, Option(min=1, help="Seconds a run may take.")] = None,
) -> None:
    """Execute a notebook with every combination of values; one table and one figure of what it records."""
    import sweep as tool

    from course import doctor, runner

    course = manifest.load()
    chosen, given = tool.grid(course, notebook, parameter, parameter_set)  # refused here, before anything runs
    if any(values.get("lane") == "trtllm" for _, values in given):
        doctor.require_trtllm()
    folder = (out or course.root / "build" / "sweep" / chosen.id).resolve()
    runner.require_writable(folder)
    flags = [*(["--set", parameter_set] if parameter_set else []), *(["--timeout", f"{timeout}"] if timeout else [])]
    if not tool.sweep(course, chosen, given, folder, flags=flags, figure=figure, jobs=jobs, again=again):
        raise typer.Exit(1)


@app.command()
def editions() -> None:
    """Write the notebooks for learners (no outputs, no solutions) and for instructors (both): build/editions."""
    import editions

    for made in (editions.learner, editions.instructor):
        folder, newer = made(manifest.load())
        typer.echo(str(folder) + "".join(f"\n  {yours} is yours; its new version: {other}" for yours, other in newer))


@app.command()
def new(name: Annotated[str, Argument(help="What it is about, such as my_topic; its number is the next.")]) -> None:
    """Add a notebook that runs: text, checks, solutions, an entry in course.toml; executed and in style."""
    import new_notebook

    for path in new_notebook.add(manifest.load(), name):
        typer.echo(path)
