"""`course new NAME`: the skeleton of a notebook, with all that the course's tests ask of one, executed.

Its text, its two exercises with their checks, solutions and one misconception each, its entry in course.toml, and the
pages that derive from that. From there on you change words, and run tools/execute_notebooks.py NN.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import execute_notebooks
import exercises
import fold_solutions
import pages
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from notebook_files import NotebookError, notebook_of, read_source, write_text

from course.manifest import Course, load
from servinglab.errors import CourseError
from servinglab.root import MANIFEST

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates") / "new"), undefined=StrictUndefined,
    keep_trailing_newline=True,
)  # fmt: skip


def add(course: Course, name: str) -> list[Path]:
    """Make the files of a notebook, and execute it; they. Raises CourseError when there is one of this name, or a file
    would be overwritten; then nothing is left behind."""
    topic = name.strip().lower().replace("-", "_").replace(" ", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", topic):
        raise CourseError(f"{name!r} is no name for a notebook; use letters, digits and _, such as my_topic.")
    if taken := [n.id for n in course.notebooks if n.id.partition("_")[2] == topic]:
        raise CourseError(f"There is {taken[0]} already; choose another name.")
    last = max((n for n in course.notebooks if n.number.isdigit()), key=lambda n: n.id)
    number = f"{int(last.number) + 1:02}"
    previous = os.path.relpath(last.path, course.root / "notebooks")
    words = {"number": number, "topic": topic, "title": topic.replace("_", " ").capitalize()}
    words |= {"last": last, "previous": previous}
    folder = course.root / "notebooks"
    source = folder / "text" / f"{number}_{topic}.py"
    files = {"text": source, "checks": folder / "checks" / f"nb{number}.py",
             "solutions": folder / "solutions" / f"{number}.py"}  # fmt: skip
    if there := [path for path in [*files.values(), notebook_of(source)] if path.exists()]:
        raise CourseError(f"{there[0]} is there already; move it away first.")
    manifest = course.root / MANIFEST
    before = manifest.read_text(encoding="utf-8")
    try:
        for kind, path in files.items():
            path.write_text(_TEMPLATES.get_template(f"{kind}.py").render(words), encoding="utf-8")
        numbered, playground, rest = before.partition('\n[[notebook]]\nid = "playground"')  # which stays the last
        entry = _TEMPLATES.get_template("course.toml").render(words)
        manifest.write_text(f"{numbered}{entry}\n{playground}{rest}", encoding="utf-8")
        notebook = read_source(source)
        fold_solutions.fold(notebook, exercises.load_answers(number, files["solutions"].parent).solutions)
        write_text(notebook, source)
        execute_notebooks.make(source, load(course.root).select([number])[0])
    except BaseException as error:
        manifest.write_text(before, encoding="utf-8")
        for path in [*files.values(), notebook_of(source)]:
            path.unlink(missing_ok=True)
        if isinstance(error, NotebookError):
            raise CourseError(str(error)) from None
        raise
    for path, content in pages.derived(course.root).items():
        path.write_text(content, encoding="utf-8")
    return [notebook_of(source), *files.values(), manifest]
