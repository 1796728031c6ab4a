"""`course progress`: which exercises are passed, from the list that `check` writes beside the working copy."""

from __future__ import annotations

import json
from pathlib import Path

from course import report
from course.manifest import Course
from servinglab.checks import PASSED


def exercises_of(path: Path) -> list[str]:
    """Ids of a notebook's exercises, in its order, from the tags of its cells: no check has to be imported."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    names = [tag.partition(":") for cell in cells for tag in cell["metadata"].get("tags", ())]
    return [number for kind, _, number in names if kind == "exercise"]


def passed(course: Course) -> set[str]:
    """Ids of the exercises to which `check` has said "right" in the working copy."""
    path = course.root / "build" / "lab" / PASSED
    return set(path.read_text(encoding="utf-8").split()) if path.exists() else set()


def show(course: Course) -> None:
    done, rows = passed(course), []
    for notebook in course.notebooks:
        ids = exercises_of(notebook.path)
        rows.append((notebook, ids, [number for number in ids if number not in done]))
    table = [(n.id, f"{len(ids) - len(left)} of {len(ids)}", left[0] if left else "") for n, ids, left in rows]
    report.show(("notebook", "passed", "next"), table)
    total, open_ = sum(len(ids) for _, ids, _ in rows), [(n, left[0]) for n, _, left in rows if left]
    report.say(f"{total - sum(len(left) for *_, left in rows)} of {total} exercises passed")
    if open_:
        report.say(f"next: {open_[0][1]}, in {open_[0][0].id}: course lab {open_[0][0].number}")
