"""Every notebook of the course as it is committed: in step with its text, clean, in style, its exercises sound.

Every solution is checked in each run of the tests. So is what the checks say to a misconception, but where a check
starts servers or asks one: of those exercises a quarter, by COURSE_TURN (conftest.py); the others are marked long.
"""

from __future__ import annotations

import functools
import os

import exercises
import nbformat
import pytest
from notebook_files import notebook_folders, notebook_of, read_source, storage_problems, tagged, text_sources
from notebook_style import findings, uses

from course.manifest import load
from servinglab.checks import check, known_exercises

ENTRIES = {entry.id: entry for entry in load().notebooks}
SOURCES = {source.stem: source for source in text_sources()}

each_notebook = pytest.mark.parametrize("name", [name for name in ENTRIES if name in SOURCES])


@functools.cache
def stored(name):
    return nbformat.read(notebook_of(SOURCES[name]), as_version=4)


@functools.cache
def fresh(name):
    return read_source(SOURCES[name])


@functools.cache
def answers_of(name):
    return exercises.load_answers(ENTRIES[name].number)


EXERCISES = [(name, number) for name in SOURCES for number in exercises.exercise_ids(fresh(name))]
LIVE = [(name, number) for name, number in EXERCISES if number in answers_of(name).live]
TURN = LIVE[int(os.environ["COURSE_TURN"]) % 4 :: 4]
each_exercise = pytest.mark.parametrize("name, exercise_id", EXERCISES)


def test_manifest_texts_and_notebooks_name_the_same():
    made = {path.stem for folder in notebook_folders() for path in folder.glob("*.ipynb")}
    assert set(ENTRIES) == set(SOURCES) == made, "run tools/execute_notebooks.py, or correct course.toml"


@each_notebook
def test_notebook_is_in_step_with_its_text(name):
    made, committed = fresh(name), stored(name)
    pairs = zip(made.cells, committed.cells, strict=False)
    differing = [f"cell {n}: {a.source[:60]!r}" for n, (a, b) in enumerate(pairs, 1) if _content(a) != _content(b)]
    assert not differing, f"run tools/execute_notebooks.py {name}"
    assert len(made.cells) == len(committed.cells)


@each_notebook
def test_each_solution_is_folded_under_its_check_as_it_stands_in_solutions(name):
    notebook = fresh(name)
    for number, check_cell in tagged(notebook, "check:").items():
        shown = notebook.cells[notebook.cells.index(check_cell) + 1].source
        assert shown.startswith(f"<details><summary>Solution {number}</summary>")
        code = answers_of(name).solutions[number].strip("\n")
        assert shown.split("```")[1] == f"python\n{code}\n", f"run tools/fold_solutions.py {name[:2]}"


def _content(cell):
    return cell.cell_type, cell.source, cell.id, cell.metadata


@each_notebook
def test_stored_outputs_are_complete_and_clean(name):
    assert storage_problems(stored(name)) == []


@each_notebook
def test_notebook_follows_the_style(name):
    assert findings(stored(name), ENTRIES[name]) == []


def test_most_notebooks_talk_to_triton_through_its_own_client():
    users = [name for name in SOURCES if uses(fresh(name), "tritonclient")]
    assert len(users) >= 9, users


@each_notebook
def test_checks_solutions_mutants_and_cells_belong_together(name):
    """No check without a cell, no cell without a solution, and at least one known misconception each."""
    number = ENTRIES[name].number
    ids, answers = exercises.exercise_ids(fresh(name)), answers_of(name)
    assert ids == known_exercises(number) == sorted(answers.solutions) == sorted(answers.mutants)
    assert all(answers.mutants.values())


@each_exercise
def test_stub_is_not_attempted_and_promises_what_the_solution_gives(name, exercise_id):
    notebook, answers = fresh(name), answers_of(name)
    stub = tagged(notebook, "exercise:")[exercise_id].source
    assert exercises.ask(notebook, exercise_id, stub, answers.setup)[0] == "not attempted"
    assert exercises.assigned_names(stub) <= exercises.assigned_names(answers.solutions[exercise_id])


@each_exercise
def test_solution_is_right(name, exercise_id):
    notebook, answers = fresh(name), answers_of(name)
    status, message = exercises.ask(notebook, exercise_id, answers.solutions[exercise_id], answers.setup)
    assert status == "right", message


@pytest.mark.parametrize(
    "name, exercise_id",
    [pytest.param(*one, marks=[pytest.mark.long] * (one in LIVE and one not in TURN)) for one in EXERCISES],
)
def test_each_misconception_is_named(name, exercise_id):
    notebook, answers = fresh(name), answers_of(name)
    messages = []
    for misconception, code, said in answers.mutants[exercise_id]:
        status, message = exercises.ask(notebook, exercise_id, code, answers.setup)
        assert status == "wrong" and said in message, f"{misconception}: {status}: {message}"
        messages.append(message)
    assert len(set(messages)) == len(messages), "two misconceptions get the same message"


NONSENSE = {"0": 0, "text": "", "list": [], "dict": {}, "object": object(), "bytes": b"\x00", "-1.5": -1.5}
NONSENSE |= {"function": lambda: 1, "nested": [None, 1]}


@each_exercise
def test_no_check_raises_or_passes_on_nonsense(name, exercise_id):
    found = {answer: check(exercise_id, value).status for answer, value in NONSENSE.items()}
    assert set(found.values()) <= {"wrong", "not attempted"}, found
