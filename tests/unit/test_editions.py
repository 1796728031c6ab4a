"""`course editions`: no outputs and no solutions for learners; for instructors each solution under its exercise."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import editions
import exercises
import lab
import nbformat
import pytest
from nbformat.v4 import new_output
from notebook_files import read_source, tagged, write
from typer.testing import CliRunner

from course import cli, manifest

EXAMPLE = Path(__file__).parents[1] / "notebooks" / "example"
FOLDED = "\n\n<details><summary>Hint</summary>the answer: count</details>"
FOLDED += "\n\n<details>\n<summary><b>Solution</b></summary>\n\n3\n\n</details>"


@pytest.fixture
def course(tmp_path, monkeypatch):
    """The example notebook as a course, with outputs, a hint and a folded solution in its text."""
    shutil.copytree(EXAMPLE, tmp_path / "notebooks", ignore=shutil.ignore_patterns("__pycache__"))
    notebook = read_source(EXAMPLE / "text" / "99_example.py")
    (asked,) = [cell for cell in notebook.cells if cell.source.startswith("**Exercise 99.1**")]
    asked.source += FOLDED
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [new_output("stream", text="STORED\n")], 1
    write(notebook, tmp_path / "notebooks" / "99_example.ipynb")
    (tmp_path / "course.toml").write_text(
        '[[notebook]]\nid = "99_example"\ntitle = "T"\nminutes = 5\nlanes = ["embedded"]\nneeds = []\n'
        'parameters = { lane = "auto", first = 1, seed = 0 }\nsets = [{ name = "a" }, { name = "b", first = 1 }]\n'
    )
    monkeypatch.chdir(tmp_path)
    return manifest.load(tmp_path)


def made(course, name):
    return nbformat.read(course.root / "build" / "editions" / name / "notebooks" / "99_example.ipynb", as_version=4)


def test_both_are_made_and_the_source_is_only_read(course):
    before = course.notebooks[0].path.read_bytes()
    done = CliRunner().invoke(cli.app, ["editions"])
    folders = [str(course.root / "build" / "editions" / name) for name in ("learner", "instructor")]
    assert done.output.splitlines() == folders and course.notebooks[0].path.read_bytes() == before
    nbformat.validate(made(course, "learner"))
    nbformat.validate(made(course, "instructor"))


def test_learners_get_hints_but_no_outputs_and_no_solutions(course):
    folder, _ = editions.learner(course)
    notebook, source = made(course, "learner"), nbformat.read(course.notebooks[0].path, as_version=4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
    assert len(notebook.cells) == len(source.cells)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert "Hint" in text and "Solution" not in text and "<details>\n" not in text
    assert "Solution" in "\n".join(cell.source for cell in source.cells)
    assert not (folder / "notebooks" / "solutions").exists()
    assert (lab.working_copy(course)[0] / "notebooks" / "solutions").exists(), "who works alone can look"


def test_instructors_find_each_solution_under_its_exercise_and_the_verdict_on_it(course):
    editions.instructor(course)
    notebook = made(course, "instructor")
    for number, solution in exercises.load_answers("99", EXAMPLE / "solutions").solutions.items():
        at = notebook.cells.index(tagged(notebook, "exercise:")[number])
        words, code, check = notebook.cells[at + 1 : at + 4]
        while check.cell_type == "markdown":
            at += 1
            check = notebook.cells[at + 3]
        assert words.source == f"**Solution {number}**" and code.source == solution
        assert check is tagged(notebook, "check:")[number]
        assert exercises.verdicts_of(check.outputs[0].text)[number][0] == "right"
    assert notebook.cells[1].outputs[0].text == "STORED\n"
    believed = [cell.source for cell in notebook.cells if "people believe" in cell.source]
    assert len(believed) == 1 and "- subtracts: “you subtracted”" in believed[0]


def test_a_wrong_answer_that_divides_by_zero_says_nothing_beside_its_verdict(course, recwarn):
    notebook = nbformat.read(course.notebooks[0].path, as_version=4)
    setup = exercises.load_answers("99", EXAMPLE / "solutions").setup
    status, _ = exercises.ask(notebook, "99.1", "import numpy\nanswer_1 = numpy.float64(1) / 0", setup)
    assert status == "wrong" and not recwarn.list


def test_the_instructors_notebook_runs_from_top_to_bottom_and_passes_its_checks(course):
    editions.instructor(course)
    code = "\n".join(cell.source for cell in made(course, "instructor").cells if cell.cell_type == "code")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = exercises.verdicts_of(done.stdout)
    assert {number: status for number, (status, _) in found.items()} == {"99.1": "right", "99.2": "right"}


def test_what_you_wrote_in_an_edition_stays(course):
    editions.instructor(course)
    path = course.root / "build" / "editions" / "instructor" / "notebooks" / "99_example.ipynb"
    path.write_text(mine := path.read_text().replace("answer_1 = 1 + 2", "MINE"))
    source = course.notebooks[0].path
    source.write_text(source.read_text().replace("You add two", "You sum two"))
    assert editions.instructor(course)[1] == [("notebooks/99_example.ipynb", "notebooks/99_example.new.ipynb")]
    assert path.read_text() == mine


def test_a_folded_solution_is_told_from_a_hint():
    for words in ("<b>Solution</b>", "Solution", "Answer 99.1"):
        text = "a" + FOLDED.replace("<b>Solution</b>", words) + " b"
        assert editions._FOLDED.sub("", text) == "a\n\n<details><summary>Hint</summary>the answer: count</details> b"


def test_what_a_check_says_is_shown_to_the_letter():
    assert editions._plain("p ** (1/T) < x_i") == r"p \*\* (1/T) \< x\_i"
