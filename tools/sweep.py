"""`course sweep`: one notebook with every combination of values, and a table and a figure of what the runs recorded.

Each run is a `course run` of its own, into a folder of its own, which is named after its values. A run that has passed
there is not run again, until the notebook is another.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from course import doctor, manifest, report, runner
from course.manifest import Course, Notebook
from servinglab.errors import CourseError, did_you_mean
from servinglab.keep import Keeper
from servinglab.root import module

Given = tuple[dict[str, str], dict[str, Any]]  # of one run: what was typed, and every parameter with its value
SHOWN = 6  # figures in the printed table; the file has all


def grid(course: Course, name: str, pairs: list[str], set_name: str | None) -> tuple[Notebook, list[Given]]:
    """The notebook, and each combination once, the last parameter changing fastest. Refuses what `course run` does."""
    chosen = course.select([name])
    if len(chosen) != 1:
        raise CourseError(f"A sweep is of one notebook; {name} has {', '.join(n.id for n in chosen)}.")
    texts: dict[str, list[str]] = {}
    for pair in pairs:
        parameter, equals, listed = pair.partition("=")
        values = next(csv.reader(io.StringIO(listed), skipinitialspace=True), [""]) if equals else []
        for value in values or [None]:  # without the equals sign it is refused below
            manifest.parse_assignments([pair if value is None else f"{parameter}={value}"], chosen)
        texts.setdefault(parameter, []).extend(values)
    found: dict[str, Given] = {}
    for combination in itertools.product(*texts.values()):
        given = dict(zip(texts, combination, strict=True))
        overrides = manifest.parse_assignments([f"{name}={value}" for name, value in given.items()], chosen)
        values = chosen[0].values(overrides[chosen[0].id], set_name)
        found.setdefault(json.dumps(values), (given, values))
    return chosen[0], list(found.values())


def sweep(
    course: Course, notebook: Notebook, runs: list[Given], folder: Path, *,
    flags: list[str], figure: str | None, jobs: int | None, again: bool,
) -> bool:  # fmt: skip
    """Run what has not passed yet, then show and write the results. Whether all have passed."""
    places = [folder / _name(notebook, *run) for run in runs]
    passed = [not again and (found := _result(place)) is not None and found.status == "passed" for place in places]
    todo = [n for n, done in enumerate(passed) if not done]
    jobs = jobs or default_jobs()
    report.say(f"{notebook.id}: {len(runs)} runs, {sum(passed)} from before; {jobs} at a time")
    for done, (n, error) in enumerate(_run(course, notebook, runs, places, todo, jobs, flags), 1):
        result = _result(places[n]) or runner.Result(notebook.id, "failed", 0.0, error)
        said = f"{done} of {len(todo)}  {_words(runs[n][0])}  {result.status} in {result.seconds:.1f} s  {result.error}"
        report.say(said.rstrip())
    results = [_result(place) or runner.Result(notebook.id, "failed", 0.0, "has not run") for place in places]
    rows = [
        {**{name: run[1][name] for name in run[0]}, "status": result.status, "seconds": result.seconds,
         **(dict(_flat(runner.figures(_record(place, notebook)))) if result.status == "passed" else {})}
        for run, place, result in zip(runs, places, results, strict=True)
    ]  # fmt: skip
    _table(rows, list(runs[0][0]), folder)
    _picture(notebook, rows, list(runs[0][0]), figure, folder, json.loads(_first_record(places, notebook)))
    return all(result.status == "passed" for result in results)


def default_jobs() -> int:
    """A run for every two cores, because server and client compute at the same time, and for the memory of each."""
    return max(1, min(len(os.sched_getaffinity(0)) // 2, psutil.virtual_memory().available // doctor.RAM_NEEDED))


def _run(
    course: Course, notebook: Notebook, runs: list[Given], places: list[Path], todo: list[int], jobs: int,
    flags: list[str],
) -> Iterator[tuple[int, str]]:  # fmt: skip
    """Execute; the number of each run that has ended, and what it said on stderr. Ctrl-C ends the others in order."""
    waiting, running = list(todo), {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                n = waiting.pop(0)
                given = itertools.chain(*(("-p", f"{name}={value}") for name, value in runs[n][0].items()))
                places[n].mkdir(parents=True, exist_ok=True)
                running[n] = subprocess.Popen(
                    module("course.cli", "run", notebook.id, "--out", str(places[n]), *flags, *given), cwd=course.root,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                    start_new_session=True,  # Ctrl-C in the terminal reaches us, once, and we pass it on
                )  # fmt: skip
            time.sleep(0.1)
            for n in [n for n, child in running.items() if child.poll() is not None]:
                yield n, " ".join(running.pop(n).stderr.read().split())
    finally:
        for child in running.values():
            child.send_signal(signal.SIGINT)
        for child in running.values():
            child.communicate()


def _name(notebook: Notebook, given: dict[str, str], values: dict[str, Any]) -> str:
    """A folder for these values and this notebook: readable, and another one for another of either."""
    source = notebook.path.read_bytes() if notebook.path.exists() else b""
    digest = hashlib.sha256(json.dumps(values).encode() + source).hexdigest()[:8]
    return re.sub(r"[^\w.=+-]+", "-", _words(given))[:60] + f"-{digest}"


def _words(given: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in given.items())


def _record(place: Path, notebook: Notebook) -> Path:
    return place / "records" / f"{notebook.number}.json"


def _first_record(places: list[Path], notebook: Notebook) -> str:
    paths = (_record(place, notebook) for place in places)
    return next((path.read_text(encoding="utf-8") for path in paths if path.exists()), "{}")


def _result(place: Path) -> runner.Result | None:
    return next(iter(runner.earlier(place)), None)


def _flat(found: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Figures with one value each: those inside of another one are named `outer.inner`."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        elif value is not None:  # None: this run found no such number
            yield f"{above}{name}", value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(rows: list[dict[str, Any]], given: list[str]) -> dict[str, bool]:
    """Names of recorded numbers, those first that differ between runs: whether each does."""
    names = [name for name in dict.fromkeys(itertools.chain(*rows)) if name not in (*given, "status", "seconds")]
    columns = {name: [row[name] for row in rows if name in row] for name in names}
    numbers = {n: len(set(v)) > 1 for n, v in columns.items() if all(map(_number, v)) and n != "seed"}
    return dict(sorted(numbers.items(), key=lambda each: not each[1]))


def _table(rows: list[dict[str, Any]], given: list[str], folder: Path) -> None:
    names = list(dict.fromkeys(itertools.chain(*rows)))
    written = io.StringIO()
    csv.DictWriter(written, names, lineterminator="\n").writeheader()
    csv.DictWriter(written, names, lineterminator="\n").writerows(rows)
    Keeper(folder).write(folder / "table.csv", written.getvalue().encode())
    shown = [*given, "status", "seconds", *list(_numbers(rows, given))[:SHOWN]]
    cells = [[f"{row[n]:.4g}" if isinstance(row.get(n), float) else row.get(n, "") for n in shown] for row in rows]
    named = [[report.status(c) if n == "status" else c for n, c in zip(shown, row, strict=True)] for row in cells]
    report.show(shown, named)
    more = len(names) - len(shown)
    report.say(f"table:  {folder / 'table.csv'}" + f" ({more} more columns)" * (more > 0))


def _picture(
    notebook: Notebook, rows: list[dict[str, Any]], given: list[str], wanted: str | None, folder: Path,
    record: dict[str, Any],
) -> None:  # fmt: skip
    """A figure against the first parameter, a line for each value of the second: a dot is a run, a line joins means."""
    import matplotlib.pyplot as plt
    import numpy as np

    from servinglab.figures import style

    known = _numbers(rows, given)
    differing = [name for name, differs in known.items() if differs]
    if wanted and wanted not in known:
        have = ", ".join(known) or "none"
        raise CourseError(f"No run recorded a number '{wanted}'; they have: {have}.{did_you_mean(wanted, known)}")
    if not (drawn := wanted or next(iter(differing), None)):
        report.say("figure: none, because no recorded number differs between the runs")
        return
    rows = [row for row in rows if drawn in row]
    numeric = all(_number(row[given[0]]) for row in rows)
    ticks = list(dict.fromkeys(row[given[0]] for row in rows))
    ticks = sorted(ticks) if numeric else ticks
    x = {value: value if numeric else n for n, value in enumerate(ticks)}
    lines = list(dict.fromkeys(row[given[1]] for row in rows)) if given[1:] else [None]
    style.use(" · ".join([notebook.id, f"{record.get('lane', 'auto')} lane", record.get("device", "")]))
    fig, axes = plt.subplots()
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.75, len(lines)))
    ends = []
    for line, colour in zip(lines, colours, strict=True):
        own = [row for row in rows if line is None or row[given[1]] == line]
        means = {v: np.mean(found) for v in ticks if (found := [row[drawn] for row in own if row[given[0]] == v])}
        axes.plot([x[row[given[0]]] for row in own], [row[drawn] for row in own], "o", color=colour, markersize=5)
        axes.plot([x[v] for v in means], list(means.values()), "-" if numeric else ":", color=colour, linewidth=1.5)
        ends.append((list(means.values())[-1], f"{given[1]} {line}" if line is not None else "", colour))
    axes.margins(y=0.12)
    low, high = axes.get_ylim()
    ends = sorted(ends, key=lambda end: end[0])[:: -(-len(ends) // 12)]
    places = [ends[0][0]]
    for y, *_ in ends[1:]:  # labels in the order of the ends, none on another
        places.append(max(y, places[-1] + 0.075 * (high - low)))
    for (_, words, colour), place in zip(ends, places, strict=True):
        style.beside(axes, words, place - max(0, places[-1] - high), color=colour)
    axes.set(xlabel=given[0], ylabel=drawn)
    if len(ticks) <= 12 or not numeric:
        axes.set_xticks(list(x.values()), [f"{value}"[:24] for value in ticks])
    first, last = (np.mean([row[drawn] for row in rows if row[given[0]] == v]) for v in (ticks[0], ticks[-1]))
    title = f"{drawn}: {first:.3g} at {given[0]} {ticks[0]}" + f", {last:.3g} at {ticks[-1]}" * (len(ticks) > 1)
    style.show(fig, title if len(title) <= 80 else drawn, f"{title}; {len(rows)} runs")
    for kind in ("png", "svg"):
        made = io.BytesIO()
        fig.savefig(made, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else None)
        Keeper(folder).write(folder / f"figure.{kind}", made.getvalue())
    report.say(f"figure: {folder / 'figure.png'}, figure.svg (--figure draws another: {', '.join(differing[:8])})")
