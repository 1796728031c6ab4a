"""The rules for notebooks, on the tiny example: it follows them, and each way to break one is named."""

from __future__ import annotations

import exercises
import notebook_files
import notebook_style
import pytest
from nbformat.v4 import new_output
from notebook_files import NotebookError, scrub, storage_problems
from running import EXAMPLE


def cell_with(notebook, text):
    return next(cell for cell in notebook.cells if text in cell.source)


# --- the style -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code, said",
    [
        ("n: int = 2 * 3  # six", "n is derived"),
        ("n: int = other  # six", "n is derived"),
        ("n: int = 6", "n has no comment"),
        ("n = 6  # six", "must be 'name: type = value"),
        ("import os", "must be 'name: type = value"),
        ('n: str = "#"', "n has no comment"),
    ],
)
def test_parameter_cells_hold_plain_typed_commented_values(code, said):
    assert [p for p in notebook_style.parameter_problems(code) if said in p]


def test_good_parameters_pass():
    code = 'n: int = -6  # minus six\nlanes: list = ["a"]  # list\ntext: str = "a#b"  # text'
    assert notebook_style.parameter_problems(code) == []
    assert notebook_style.parameters(code) == {"n": -6, "lanes": ["a"], "text": "a#b"}


def test_the_example_follows_the_style(fresh, example_entry):
    assert notebook_style.findings(fresh, example_entry) == []


def _header(old, new):
    def change(notebook):
        assert old in notebook.cells[0].source
        notebook.cells[0].source = notebook.cells[0].source.replace(old, new)

    return change


def _long_cell(lines, count=1):
    def change(notebook):
        for cell in [c for c in notebook.cells if c.cell_type == "code"][3 : 3 + count]:
            cell.source = "\n".join(f"x = {i}" for i in range(lines))

    return change


def _names_of_ours(notebook):
    """Five in cell 2 and six more in the middle: a module, a renamed one, three of another, one inside a cell."""
    for text, code in (
        ('print("odd', "import engines.flags, course.manifest as manifest"),
        ("{time", "from cliplab import search, ask, find\nif first:\n    import servinglab"),
    ):
        cell_with(notebook, text).source = code


def _without_prose(notebook):
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "code" or cell.source.startswith("#")]


@pytest.mark.parametrize(
    "change, said",
    [
        (_header("# 99 · Adding", "# Adding"), "the header must begin with '# 99 · Adding two numbers'"),
        (_header("You add two numbers and see", "You add. You see"), "in one sentence"),
        (_header("- add\n- subtract\n", "- add\n"), "3 to 5 objectives"),
        (_header("- add\n", "- add\n- a\n- b\n- c\n"), "3 to 5 objectives"),
        (_header("5 minutes", "6 minutes"), "says 6 minutes, course.toml 5"),
        (_header("5 minutes", "5 min"), "the line '**Time:**"),
        (_header("embedded", "embedded, trtllm"), "says lanes embedded, trtllm"),
        (_header("do: 3 min", "do: 4 min"), "'read: N min, do: N min', together 5"),
        (_header("Previous: none", "Before: none"), "'Previous: … · Next: …'"),
        (_header("Next: none", "Next: [98](98_missing.ipynb)"), "98_missing.ipynb leads nowhere"),
        (lambda n: n.cells.pop(1), "cell 2 must be code that imports"),
        (lambda n: n.cells[1].update(source=n.cells[1].source + "\nlane = 1"), "cell 2 must be code that imports"),
        (lambda n: cell_with(n, "begin(").update(source="lane = lane"), 'notebook.begin("99",'),
        (lambda n: cell_with(n, "begin(").update(source='lane = notebook.begin("98", lane)'), 'notebook.begin("99",'),
        (lambda n: cell_with(n, "begin(").update(source="lane = notebook.begin()"), 'notebook.begin("99",'),
        (_names_of_ours, "11 names come from our packages; at most 10: "),
        (lambda n: n.cells[2].metadata.update(tags=[]), "cell 3 must be tagged"),
        (lambda n: n.cells[2].update(source="first: int = 2  # two"), "make them equal"),
        (_long_cell(31), "has 31 lines; at most 30"),
        (_long_cell(13, count=4), "of the code cells have at most 12 lines"),
        (_long_cell(7, count=9), "the median code cell has 7 lines"),
        (_without_prose, "follow prose"),
        (lambda n: n.cells.pop(), "the last cell must call"),
        (lambda n: n.cells[-1].update(source='notebook.record("99", total=1)'), "the last cell must call"),
        (lambda n: cell_with(n, "## Recap").update(source="## The end"), "'## Break it' is missing"),
        (lambda n: cell_with(n, "answer_1 = None").metadata.update(tags=[]), "has 2 or 3 exercises, this one 1"),
        (lambda n: n.cells[4].update(source="!pip install numpy"), "runs the shell command '!pip install numpy'"),
        (lambda n: n.cells[4].update(source="%%bash\nls"), "runs the shell command '%%bash'"),
        (lambda n: n.cells[4].update(source="show(fig, 'title', 'words')"), "draws, but no picture is stored"),
        (
            lambda n: n.cells[4].outputs.append(new_output("display_data", {"image/png": "A" * 200_004})),
            "stores a picture of 150 kB",
        ),
        (
            lambda n: n.cells[4].outputs.append(new_output("display_data", {"image/jpeg": "A" * 400_000})),
            "stores a picture of 300 kB",
        ),
    ],
)  # fmt: skip
def test_every_break_of_style_is_named(fresh, example_entry, change, said):
    change(fresh)
    found = notebook_style.findings(fresh, example_entry)
    assert [f for f in found if said in f], found


@pytest.mark.parametrize(
    "code, used",
    [
        ("import tritonclient.grpc as grpcclient\ngrpcclient.InferInput", True),
        ("import tritonclient.grpc\ntritonclient.grpc.InferInput", True),
        ("from tritonclient.utils import InferenceServerException\ntry: x\nexcept InferenceServerException: y", True),
        ("import tritonclient.grpc as grpcclient", False),
        ("import tritonclientx\ntritonclientx", False),
        ("# tritonclient\nprint('tritonclient')", False),
    ],
)
def test_a_package_is_used_when_a_name_of_it_is(fresh, code, used):
    fresh.cells[4].source = code
    assert notebook_style.uses(fresh, "tritonclient") == used


def test_nothing_is_counted_twice_and_names_of_others_are_not(fresh):
    fresh.cells[4].source = "import numpy, servingly\nfrom servinglab.checks import check as again"
    ours = [name for module, name in notebook_style.imported(fresh) if module.startswith("servinglab.")]
    assert ours == ["check", "exercise", "right", "wrong"]
    assert notebook_style.names_of_ours(fresh) == []


# --- what may be stored ------------------------------------------------------------------------------------------


@pytest.fixture
def clean(fresh):
    """The example as if it had run and printed nothing."""
    scrub(fresh)
    return fresh


def test_a_notebook_that_ran_is_clean(clean):
    assert storage_problems(clean) == []


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda n: n.cells[1].update(execution_count=None), "cell 2 was not executed"),
        (lambda n: n.metadata.update(widgets={}), "widget state"),
        (lambda n: n.metadata.kernelspec.update(name="my-env"), "the metadata must be"),
        (lambda n: n.cells[1].metadata.update(execution={"iopub.status.busy": "2025"}), "stores metadata: execution"),
        (
            lambda n: n.cells[1].outputs.append(new_output("error", ename="ValueError", evalue="no", traceback=[])),
            "ends in ValueError: no",
        ),
        (
            lambda n: n.cells[1].outputs.append(
                new_output("display_data", {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}})
            ),
            "stores a widget",
        ),
        (
            lambda n: n.cells[1].outputs.append(new_output("stream", text="/home/ada/course/x\n")),
            "shows a path of this machine (/home/ada)",
        ),
        (
            lambda n: n.cells[1].outputs.append(new_output("display_data", {"text/html": "<a href='/home/ada'>"})),
            "shows a path of this machine (/home/ada)",
        ),
    ],
)
def test_what_must_not_be_stored_is_named(clean, change, said):
    change(clean)
    problems = storage_problems(clean, folders=["/home/ada"])
    assert [p for p in problems if said in p], problems


def test_a_longer_name_is_not_the_folder(clean):
    clean.cells[1].outputs.append(new_output("stream", text="/home/adair and /home/ada.txt\n"))
    assert storage_problems(clean, ["/home/ada"]) == []


def test_an_expected_error_may_stay_where_the_cell_says_so(clean):
    clean.cells[1].metadata.tags = ["raises-exception"]
    clean.cells[1].outputs.append(new_output("error", ename="ValueError", evalue="no", traceback=[]))
    assert storage_problems(clean, []) == []


def test_neighbouring_pieces_of_a_stream_become_one(fresh):
    pieces = (("stdout", "a"), ("stdout", "b"), ("stderr", "c"))
    fresh.cells[1].outputs = [new_output("stream", name=name, text=text) for name, text in pieces]
    scrub(fresh)
    assert [(o.name, o.text) for o in fresh.cells[1].outputs] == [("stdout", "ab"), ("stderr", "c")]


def test_machine_paths_hold_home_and_course_but_never_the_root(monkeypatch):
    monkeypatch.setenv("HOME", "/")
    folders = notebook_files.machine_paths()
    assert "/" not in folders and str(notebook_files.ROOT) in folders


# --- answers of exercises ------------------------------------------------------------------------------------------


def test_answers_need_files_ids_and_both_cells(fresh, tmp_path):
    with pytest.raises(NotebookError, match="no solutions/98.py"):
        exercises.load_answers("98", tmp_path)
    (tmp_path / "97.py").write_text("x = 1")
    with pytest.raises(NotebookError, match="must define SOLUTIONS"):
        exercises.load_answers("97", tmp_path)
    with pytest.raises(NotebookError, match="exercise 99.1 has no solution"):
        exercises.with_solutions(fresh, {"99.2": "x"})
    cell_with(fresh, 'check("99.2"').metadata.tags = []
    with pytest.raises(NotebookError, match="exercise 99.2 needs both"):
        exercises.exercise_ids(fresh)


def test_names_a_stub_promises_are_found():
    assert exercises.assigned_names("a = None  # x\nb, c = 1, 2\nd: int = 3\ndef e(): f = 1\nprint(g)") == set("abcde")


def test_answers_are_asked_without_a_kernel(fresh):
    answers = exercises.load_answers("99", EXAMPLE / "solutions")
    for exercise_id in exercises.exercise_ids(fresh):
        stub = notebook_files.tagged(fresh, "exercise:")[exercise_id].source
        assert exercises.ask(fresh, exercise_id, stub, answers.setup)[0] == "not attempted"
        assert exercises.ask(fresh, exercise_id, answers.solutions[exercise_id], answers.setup)[0] == "right"
    for _, code, said in answers.mutants["99.1"]:
        assert exercises.ask(fresh, "99.1", code, answers.setup) == ("wrong", said)
