"""A figure always, sliders only where a person sits in front: tried in real kernels, asked as each front end asks."""

from __future__ import annotations

import os
from types import SimpleNamespace

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from servinglab.errors import CourseError
from servinglab.explore import explore, is_live

mpl.use("Agg")


@pytest.fixture
def drawn(monkeypatch):
    """What explore drew: the values of each panel, and the figure."""
    seen = []
    monkeypatch.setattr(plt, "close", lambda fig=None: seen.append(fig))
    monkeypatch.setitem(mpl.rcParams, "axes.titlelocation", "left")  # as style.use() sets it
    calls = []

    def draw(axes, **values):
        calls.append((axes, values))
        axes.plot([0, 1])

    def run(**grid):
        explore(draw, title="Title", summary="one line", **grid)
        return [values for _, values in calls], seen[0]

    return run


def titles(fig):
    return [axes.get_title(loc="left") for axes in fig.axes if axes.axison]


def test_one_name_gives_a_panel_for_each_value(drawn, capsys):
    values, fig = drawn(temperature=[0.5, 1.0, 1.5, 2.0])
    assert values == [{"temperature": t} for t in (0.5, 1.0, 1.5, 2.0)]
    assert titles(fig) == ["temperature 0.5", "temperature 1.0", "temperature 1.5", "temperature 2.0"]
    assert capsys.readouterr().out == "one line\n"


def test_two_names_give_rows_and_columns(drawn):
    values, fig = drawn(top_k=[1, 5], top_p=[0.2, 0.6, 0.9], seed=[3])
    assert values[0] == {"top_k": 1, "top_p": 0.2, "seed": 3} and values[-1] == {"top_k": 5, "top_p": 0.9, "seed": 3}
    assert titles(fig)[1] == "top_k 1, top_p 0.6"
    assert fig.axes[0].get_subplotspec().get_gridspec().get_geometry() == (2, 3)


@pytest.mark.parametrize("grid, said", [({}, "at least one name"), ({"a": []}, "at least one name"),
                                        ({"a": range(5), "b": range(2)}, "10 panels")])  # fmt: skip
def test_grids_nobody_can_read_are_refused(grid, said):
    with pytest.raises(CourseError, match=said):
        explore(lambda axes, **values: None, title="", summary="", **grid)


@pytest.mark.parametrize("live", [{"b": [1]}, {"a": []}])
def test_live_values_belong_to_a_slider(live):
    with pytest.raises(CourseError, match="no slider .* it has a"):
        explore(lambda axes, **values: None, title="", summary="", live=live, a=[1])


def test_live_values_change_the_sliders_and_not_the_panels(drawn, monkeypatch):
    shown = []
    monkeypatch.setattr("servinglab.explore.is_live", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda *things: shown.extend(things))
    values, _ = drawn(temperature=[1.0, 2.0], live={"temperature": [0.5, 1.0, 1.5, 2.0]})
    (slider,) = next(thing for thing in shown if hasattr(thing, "children")).children
    assert [each["temperature"] for each in values[:2]] == [1.0, 2.0]
    assert slider.options == (0.5, 1.0, 1.5, 2.0) and slider.value == 1.0


def test_a_title_may_say_what_the_panels_found(monkeypatch):
    shown = []
    monkeypatch.setattr("servinglab.explore.show", lambda fig, title, summary: shown.append(title))
    explore(lambda axes, n: 2 * n, title=lambda found: f"found {found}", summary="", n=[1, 3])
    assert shown == ["found [2, 6]"]


def test_what_a_server_refuses_is_a_sentence_where_the_figure_was(monkeypatch, capsys):
    def draw(axes, n):
        if n > 1:
            raise CourseError(f"n is {n}; at most 1.")

    monkeypatch.setattr("servinglab.explore.is_live", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda *things: None)
    explore(draw, title="", summary="", live={"n": [2]}, n=[1])
    assert capsys.readouterr().out.splitlines()[-1] == "n is 2; at most 1."


def test_a_script_is_not_live(monkeypatch):
    monkeypatch.delenv("SERVINGLAB_STATIC", raising=False)
    monkeypatch.setenv("JPY_SESSION_NAME", "a.ipynb")
    assert not is_live()


# --- real kernels --------------------------------------------------------------------------------------------------

CODE = """
from servinglab.explore import explore, is_live
explore(lambda axes, n: axes.plot([0, n]), title="T", summary="one line", n=[1, 2])
print("live", is_live())
"""
SIGNS = ("SERVINGLAB_STATIC", "JPY_SESSION_NAME", "VSCODE_PID")


@pytest.fixture(scope="module")
def ask():
    """Run CODE in a kernel of JupyterLab, asked with this metadata; the types of what came back, and the text."""
    manager = KernelManager(kernel_name="python3")
    manager.kernel_spec_manager = KernelSpecManager(kernel_dirs=[], ensure_native_kernel=True)
    plain = {k: v for k, v in os.environ.items() if k not in SIGNS}
    manager.start_kernel(env=plain | {"JPY_SESSION_NAME": "a.ipynb"})
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=60)

    def run(metadata):
        request = client.session.msg("execute_request", {
            "code": CODE, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False,
            "stop_on_error": True}, metadata=metadata)  # fmt: skip
        client.shell_channel.send(request)
        kinds, text = [], ""
        while True:
            message = client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != request["msg_id"]:
                continue
            content = message["content"]
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return kinds, text
            assert message["msg_type"] != "error", content["traceback"]
            text += content.get("text", "") + content.get("metadata", {}).get("image/png", {}).get("alt", "")
            kinds += list(content.get("data", {})) if message["msg_type"] == "display_data" else []

    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)


WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.mark.parametrize(
    "metadata, live",
    [
        ({"cellId": "1"}, True),  # JupyterLab
        ({}, False),  # papermill started from a notebook in JupyterLab
    ],
)
def test_sliders_appear_only_for_a_person_and_the_figure_always(ask, metadata, live):
    kinds, text = ask(metadata)
    assert f"live {live}" in text and "one line" in text
    assert "image/png" in kinds
    assert (WIDGET in kinds) == live


@pytest.mark.parametrize(
    "environment, metadata, live",
    [
        ({"JPY_SESSION_NAME": "a.ipynb"}, {"cellId": "1"}, True),
        ({"VSCODE_PID": "7"}, {"cellId": "vscode-notebook-cell:a"}, True),
        ({}, {"cellId": "1"}, False),  # papermill, nbclient, nbval from a terminal
        ({"JPY_SESSION_NAME": "a.ipynb", "SERVINGLAB_STATIC": "1"}, {"cellId": "1"}, False),
    ],
)
def test_each_front_end_is_known_by_its_signs(monkeypatch, environment, metadata, live):
    for sign in SIGNS:
        monkeypatch.delenv(sign, raising=False)
    for sign, value in environment.items():
        monkeypatch.setenv(sign, value)
    running = SimpleNamespace(get_parent=lambda channel: {"metadata": metadata})
    monkeypatch.setattr("servinglab.explore.kernel", lambda: running)
    assert is_live() == live
