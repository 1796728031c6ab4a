"""Every notebook of the course, executed: with each parameter set, with stubs and with solutions, and by nbval.

The first set runs with the stubs as they are, the others with the solutions put in.
"""

from __future__ import annotations

import json

import execute_notebooks
import exercises
import pytest
from notebook_files import notebook_of, read_source, tags, text_sources
from running import leftovers, nbval

from servinglab.course import load

pytestmark = [pytest.mark.notebooks, pytest.mark.slow, pytest.mark.timeout(900)]

ENTRIES = [entry for entry in load().notebooks if entry.id in {source.stem for source in text_sources()}]
SOURCES = {source.stem: source for source in text_sources()}


EACH_SET = [
    pytest.param(entry, parameter_set.name, index > 0, id=f"{entry.id}-{parameter_set.name}")
    for entry in ENTRIES
    for index, parameter_set in enumerate(entry.sets)
]


@pytest.mark.parametrize("entry, set_name, solved", EACH_SET)
def test_runs_with_each_parameter_set(entry, set_name, solved):
    notebook = read_source(SOURCES[entry.id])
    if solved:
        notebook = exercises.with_solutions(notebook, exercises.load_answers(entry.id[:2]).solutions)
    values = entry.values(set_name=set_name)
    executed, _ = execute_notebooks.execute(notebook, entry, values)

    found = exercises.verdicts(executed)
    assert sorted(found) == exercises.exercise_ids(notebook)
    assert {status for status, _ in found.values()} == {"right" if solved else "not attempted"}, found

    injected = next(cell for cell in executed.cells if "injected-parameters" in tags(cell))
    names: dict[str, object] = {}
    exec(injected.source, names)
    assert {name: names[name] for name in values} == values

    line = json.loads(executed.cells[-1].outputs[0].text)
    assert line["notebook"] == entry.id[:2] and line["seed"] == values["seed"] and line["seconds"] > 0
    assert line["lane"] in entry.lanes and line["versions"]["numpy"] and line["device"]

    problems = [
        output for cell in executed.cells for output in cell.get("outputs", []) if output.output_type == "error"
    ]
    assert problems == []


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_stored_results_are_the_results(entry, tmp_path):
    """nbval: every cell runs again, and what the cells marked nbval-check-output print is what is stored."""
    marker = str(tmp_path)
    code, printed = nbval(notebook_of(SOURCES[entry.id]), limit=entry.timeout, marker=marker)
    assert code == 0, printed[-6000:]
    assert leftovers(marker) == [], "the notebook's server or another process outlived its kernel"
