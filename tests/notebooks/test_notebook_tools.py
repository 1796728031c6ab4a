"""The tools that make, solve and compare notebooks, on a tiny example notebook."""

from __future__ import annotations

import dataclasses
import shutil

import execute_notebooks
import exercises
import nbformat
import notebook_files
import pytest
from notebook_files import NotebookError, read_source, storage_problems
from running import EXAMPLE, leftovers, nbval

pytestmark = [pytest.mark.notebooks, pytest.mark.timeout(300)]


def cell_with(notebook, text):
    return next(cell for cell in notebook.cells if text in cell.source)


def test_made_notebook_equals_its_text_and_is_clean(made, executed):
    fresh = read_source(made[0])
    assert [(c.cell_type, c.source, c.id, c.metadata) for c in executed.cells] == [
        (c.cell_type, c.source, c.id, c.metadata) for c in fresh.cells
    ]
    assert storage_problems(executed) == []
    counts = [cell.execution_count for cell in executed.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))


def test_storing_a_stored_notebook_again_changes_no_byte(made, executed, tmp_path):
    notebook_files.scrub(executed)
    notebook_files.write(executed, tmp_path / "again.ipynb")
    assert (tmp_path / "again.ipynb").read_bytes() == made[1].read_bytes()


def test_a_failing_cell_is_named_and_nothing_is_written(made, example_entry):
    source, path = made
    broken = source.with_name("98_broken.py")
    text = source.read_text(encoding="utf-8").replace("second = first + 1", "second = first + None")
    broken.write_text(text, encoding="utf-8")
    with pytest.raises(NotebookError, match=r"98_broken, cell 5: TypeError: unsupported operand"):
        execute_notebooks.make(broken, dataclasses.replace(example_entry, id="98_broken"))
    assert not (path.parent / "98_broken.ipynb").exists()


def test_what_was_typed_into_the_notebook_and_not_into_its_text_is_kept(
    made, executed, example_entry, tmp_path, monkeypatch
):
    def execute(notebook, entry):
        for cell, stored in zip(notebook.cells, executed.cells, strict=True):
            if cell.cell_type == "code":
                cell.update(outputs=stored.outputs, execution_count=stored.execution_count)
        return notebook, 3.0

    monkeypatch.setattr(execute_notebooks, "execute", execute)
    source, path = tmp_path / "text" / made[0].name, tmp_path / made[1].name
    source.parent.mkdir()
    for copy, original in ((source, made[0]), (path, made[1])):
        shutil.copy(original, copy)
    typed = nbformat.read(path, as_version=4)
    cell_with(typed, "first + 1").source += "\n# ANSWER"
    nbformat.write(typed, path)
    execute_notebooks.make(source, example_entry)
    assert "ANSWER" in (tmp_path / "yours" / "1" / path.name).read_text() and "ANSWER" not in path.read_text()
    source.write_text(source.read_text().replace("first + 1", "1 + first"))
    execute_notebooks.make(source, example_entry)
    assert "1 + first" in path.read_text() and not (tmp_path / "yours" / "2").exists()  # it was the tool's own


def test_stubs_are_not_attempted_and_do_not_stop_the_run(executed):
    assert {i: status for i, (status, _) in exercises.verdicts(executed).items()} == {
        "99.1": "not attempted",
        "99.2": "not attempted",
    }


def test_solutions_are_right_and_parameters_reach_what_is_derived_from_them(fresh, example_entry):
    answers = exercises.load_answers("99", EXAMPLE / "solutions")
    solved = exercises.with_solutions(fresh, answers.solutions)
    executed, _ = execute_notebooks.execute(solved, example_entry, {"first": 1000})
    assert exercises.verdicts(executed) == {"99.1": ("right", "1 and 2 make 3"), "99.2": ("right", "it adds")}
    assert cell_with(executed, "print(first + second)").outputs[0].text == "2001\n"


def test_nbval_fails_on_a_changed_result_but_not_on_a_changed_duration(executed, tmp_path):
    cell_with(executed, "perf_counter").outputs[0].text = "measured at 99.125 s\n"
    cell_with(executed, '"odd" if').outputs[0].text = "even\n"
    nbformat.write(executed, tmp_path / "99_example.ipynb")
    code, printed = nbval(tmp_path / "99_example.ipynb", limit=120)
    cells = sum(cell.cell_type == "code" for cell in executed.cells)
    assert code == 1
    assert f"1 failed, {cells - 1} passed" in printed
    assert "Cell outputs differ" in printed and "perf_counter" not in printed


@pytest.mark.long
def test_nbval_is_killed_at_its_limit_and_says_where(executed, tmp_path):
    executed.cells[4].source = "import time\ntime.sleep(600)"
    nbformat.write(executed, tmp_path / "99_example.ipynb")
    marker = str(tmp_path / "marker")
    code, printed = nbval(tmp_path / "99_example.ipynb", limit=25, marker=marker)
    assert code == 124
    assert "Cell 1 PASSED" in printed and "Cell 3 PASSED" not in printed and "stopped after 25 s" in printed
    assert leftovers(marker) == []


def test_unknown_ids_are_refused(capsys):
    assert execute_notebooks.main(["77"]) == 2
    assert "no notebook '77'" in capsys.readouterr().err
