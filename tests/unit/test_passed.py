"""`course progress`: a right answer in the working copy is noted, for its owner alone; nothing else is."""

from __future__ import annotations

import json

import nbformat
import passed
import pytest
from exercises import exercise_ids
from typer.testing import CliRunner

from course import cli, manifest
from servinglab import checks

CHECKS = """from servinglab.checks import exercise, right, wrong
for number in ("97.1", "97.2", "97.10"):
    exercise(number, expects="a number")(lambda answer: right("yes") if answer == 1 else wrong("no"))
"""


@pytest.fixture
def course(tmp_path, monkeypatch):
    """Two notebooks, one of them with exercises, and a working copy's folder; the current folder is that."""
    for folder in ("notebooks/checks", "build/lab/notebooks"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "notebooks" / "checks" / "nb97.py").write_text(CHECKS)
    entry = '[[notebook]]\nid = "{}"\ntitle = "T"\nminutes = 1\nlanes = ["embedded"]\nneeds = []\n'
    entry += 'parameters = {{ seed = 0 }}\nsets = [{{ name = "default" }}, {{ name = "s", seed = 2 }}]\n'
    for name, numbers in (("96_none", ()), ("97_some", ("97.1", "97.2", "97.10"))):
        cells = []
        for tags in ([f"{kind}:{number}"] for number in numbers for kind in ("exercise", "check")):
            cells.append(nbformat.v4.new_code_cell("x = None", metadata={"tags": tags}))
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "notebooks" / f"{name}.ipynb")
    (tmp_path / "course.toml").write_text(entry.format("96_none") + entry.format("97_some"))
    monkeypatch.setattr(checks, "_EXERCISES", {})
    checks._load.cache_clear()
    monkeypatch.chdir(tmp_path / "build" / "lab" / "notebooks")
    yield manifest.load(tmp_path)
    checks._load.cache_clear()


def test_only_right_answers_in_the_working_copy_are_noted(course, monkeypatch):
    note = course.root / "build" / "lab" / checks.PASSED
    for answer in (None, 2, "text"):
        assert not checks.check("97.1", answer)
    monkeypatch.chdir(course.root / "notebooks")  # where `course run` and an author's kernel work
    assert checks.check("97.1", 1)
    (course.root / "build" / "laboratory").mkdir()
    monkeypatch.chdir(course.root / "build" / "laboratory")
    assert checks.check("97.1", 1) and not note.exists() and passed.passed(course) == set()
    monkeypatch.chdir(course.root / "build" / "lab" / "notebooks")
    for number in ("97.10", "97.1", "97.1"):
        assert checks.check(number, 1)
    assert passed.passed(course) == {"97.1", "97.10"} and note.stat().st_mode & 0o077 == 0


def test_a_note_that_cannot_be_written_is_no_error(course, capsys):
    (course.root / "build" / "lab" / checks.PASSED).mkdir()
    assert checks.check("97.1", 1) and capsys.readouterr().out == "97.1 right: yes\n"


def test_the_command_says_how_many_of_each_and_which_is_next(course):
    def call():
        return CliRunner().invoke(cli.app, ["progress"]).output.splitlines()

    lines = [line.split() for line in call()]
    assert lines[1:3] == [["96_none", "0", "of", "0"], ["97_some", "0", "of", "3", "97.1"]]
    assert [" ".join(line) for line in lines[3:]] == [
        "0 of 3 exercises passed", "next: 97.1, in 97_some: course lab 97"
    ]  # fmt: skip
    for number in ("97.1", "97.10"):
        checks.check(number, 1)
    assert call()[2].split() == ["97_some", "2", "of", "3", "97.2"]
    assert call()[-1] == "next: 97.2, in 97_some: course lab 97"
    checks.check("97.2", 1)
    assert call()[-1] == "3 of 3 exercises passed"


def test_the_exercises_are_those_that_the_checks_know():
    """From the tags alone, for every notebook of the course."""
    loaded = manifest.load()
    found = {n.id: exercise_ids(nbformat.read(n.path, as_version=4)) for n in loaded.notebooks if n.number.isdigit()}
    assert all(len(numbers) >= 2 for numbers in found.values())
    assert found["05_streaming_grpc"] == checks.known_exercises("05")
    assert json.dumps(found)  # plain names
