"""Every notebook of the course, executed: by nbval as it is stored, and by papermill with other parameters.

What is stored was made by papermill with the first parameter set and the stubs as they are, so nbval repeats that one.
The other sets run with the solutions put in: in each run of the tests those of one notebook, by COURSE_TURN
(conftest.py), and all in the weekly run of what is marked long.
"""

from __future__ import annotations

import os
import re

import execute_notebooks
import exercises
import nbformat
import pytest
from notebook_files import notebook_of, read_source, tags, text_sources
from running import leftovers, nbval

from course.manifest import load

pytestmark = [pytest.mark.notebooks, pytest.mark.slow, pytest.mark.timeout(900)]

ENTRIES = [entry for entry in load().notebooks if entry.id in {source.stem for source in text_sources()}]
SOURCES = {source.stem: source for source in text_sources()}
TURN = ENTRIES[int(os.environ["COURSE_TURN"]) % len(ENTRIES)]
OTHER_SETS = [
    pytest.param(entry, one.name, id=f"{entry.id}-{one.name}", marks=[pytest.mark.long] * (entry is not TURN))
    for entry in ENTRIES
    for one in entry.sets[1:]
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_stored_results_are_the_results(entry, tmp_path):
    """nbval: every cell runs again, and what the cells marked nbval-check-output print is what is stored."""
    path = notebook_of(SOURCES[entry.id])
    stored = nbformat.read(path, as_version=4)
    _check_outputs(stored, entry, entry.values(), exercises.exercise_ids(stored), "not attempted")

    marker = str(tmp_path)
    code, printed = nbval(path, limit=entry.timeout, marker=marker)
    assert code == 0, printed[-6000:]
    assert leftovers(marker) == [], "the notebook's server or another process outlived its kernel"


@pytest.mark.parametrize("entry, set_name", OTHER_SETS)
def test_other_parameters_with_solutions(entry, set_name):
    notebook = read_source(SOURCES[entry.id])
    notebook = exercises.with_solutions(notebook, exercises.load_answers(entry.number).solutions)
    values = entry.values(set_name=set_name)
    executed, _ = execute_notebooks.execute(notebook, entry, values)

    injected = next(cell for cell in executed.cells if "injected-parameters" in tags(cell))
    names: dict[str, object] = {}
    exec(injected.source, names)
    assert {name: names[name] for name in values} == values
    _check_outputs(executed, entry, values, exercises.exercise_ids(notebook), "right")


def _check_outputs(notebook, entry, values, exercise_ids, status):
    found = exercises.verdicts(notebook)
    assert sorted(found) == exercise_ids
    assert {verdict for verdict, _ in found.values()} == ({status} if exercise_ids else set()), found

    lane, *made_by, seconds = notebook.cells[-1].outputs[0].text.strip().split(" · ")
    assert lane.removesuffix(" lane") in entry.lanes and re.fullmatch(r"[1-9]\d* s", seconds)
    assert f"seed {values['seed']}" in made_by and any(re.fullmatch(r"numpy \d\S+", part) for part in made_by)

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [output for output in outputs if output.output_type == "error"] == []
