"""`course progress`: which exercises are passed, from the list that `check` writes beside the working copy."""

from __future__ import annotations

import nbformat
from exercises import exercise_ids

from course import report
from course.manifest import Course
from servinglab.checks import PASSED


def passed(course: Course) -> set[str]:
    """Ids of the exercises to which `check` has said "right" in the working copy."""
    path = course.root / "build" / "lab" / PASSED
    return set(path.read_text(encoding="utf-8").split()) if path.exists() else set()


def show(course: Course) -> None:
    done, rows = passed(course), []
    for notebook in course.notebooks:
        ids = exercise_ids(nbformat.read(notebook.path, as_version=4))
        rows.append((notebook, ids, [number for number in ids if number not in done]))
    table = [(n.id, f"{len(ids) - len(left)} of {len(ids)}", left[0] if left else "") for n, ids, left in rows]
    report.show(("notebook", "passed", "next"), table)
    total, open_ = sum(len(ids) for _, ids, _ in rows), [(n, left[0]) for n, _, left in rows if left]
    report.say(f"{total - sum(len(left) for *_, left in rows)} of {total} exercises passed")
    if open_:
        report.say(f"next: {open_[0][1]}, in {open_[0][0].id}: course lab {open_[0][0].number}")
