"""Notebooks run in their own process: parameters arrive, a failure is one line, a hang is ended, nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import nbformat
import psutil
import pytest

from course import manifest, runner
from servinglab.errors import CourseError

LIMIT = 25  # seconds, of the tests in which a notebook hangs
SOCKETS = """import os, psutil
from ipykernel.kernelapp import IPKernelApp
app = IPKernelApp.instance()
ports = [each for each in psutil.Process().net_connections("inet") if each.status == "LISTEN"]
print(app.transport, len(ports) > 1, os.stat(os.path.dirname(app.abs_connection_file)).st_mode & 0o077)
"""
HELLO = ["seed = 0\nlane = 'auto'", "print('seed is', seed)\nprint('lane is', lane)"]


@pytest.fixture
def make(tmp_path):
    def build(cells: list[str], *, timeout: int = 60, kernel: str = "python3", name: str = "00_small"):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
        notebook.cells[0].metadata["tags"] = ["parameters"]
        notebook.metadata["kernelspec"] = {"name": kernel, "display_name": kernel, "language": "python"}
        notebook.metadata["language_info"] = {"name": "python"}
        path = tmp_path / "notebooks" / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        nbformat.write(notebook, path)
        sets = (manifest.ParameterSet("default", {}), manifest.ParameterSet("other", {"seed": 1}))
        parameters = {"seed": 0, "lane": "auto"}
        return manifest.Notebook(name, "Small", 1, ("embedded",), (), parameters, sets, timeout, path)

    return build


def test_a_notebook_runs_from_a_copy_with_its_parameters(make, tmp_path, monkeypatch):
    """By this interpreter, although somebody's kernel folder names another one python3 (papermill issues 776, 352)."""
    spec = tmp_path / "home" / "kernels" / "python3"
    spec.mkdir(parents=True)
    kernel = {"argv": ["/nowhere/python"], "display_name": "x", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(kernel))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "home"))
    streaming = """import time
for word in "one two three".split():
    print(word, end=" ", flush=True)
    time.sleep(0.3)"""
    notebook = make([*HELLO, "import os, sys\nprint(sys.executable, os.getcwd())", SOCKETS, streaming])
    before = notebook.path.read_bytes()
    seen = []
    result = runner.run_notebook(notebook, tmp_path / "out", {"seed": 5, "lane": "embedded"}, on_progress=seen.append)
    assert (result.status, result.error) == ("passed", "")
    executed = nbformat.read(tmp_path / "out" / "00_small.ipynb", as_version=4)
    texts = [output.text for cell in executed.cells for output in cell.get("outputs", [])]
    text = "".join(texts)
    assert texts[-1] == "one two three ", "a streamed sentence is one output"
    assert "seed is 5\nlane is embedded" in text
    assert "ipc False 0\n" in texts, "no other user can hear the kernel"
    assert sys.executable in text, "the kernel is this environment's interpreter"
    assert str(notebook.path.parent) in text, "the kernel works in the notebooks' folder, as in JupyterLab"
    assert notebook.path.read_bytes() == before
    cells = [p.cell for p in seen]
    assert cells == sorted(set(cells)) and (seen[-1].cell, seen[-1].cells) == (6, 6)
    assert seen[-1].source == "import time"


def test_the_memory_of_a_notebook_is_that_of_all_its_processes(make, tmp_path):
    """Three times 200 MB: of the kernel, of a program of its own, and of one that the program started."""
    hold = "import subprocess, sys, time; x = b'x' * 200_000_000; "
    child = f"{hold}subprocess.run([sys.executable, '-c', {hold + 'time.sleep(4)'!r}])"
    notebook = make(["seed = 0", f"{hold}subprocess.run([sys.executable, '-c', {child!r}])"])
    result = runner.run_notebook(notebook, tmp_path / "out", {"seed": 5})
    assert result.status == "passed" and 600 < result.memory_mb < 900
    assert runner.held_by(2**22 + 1) == 0, "no such process"


def test_an_executed_copy_in_which_somebody_wrote_is_kept(make, tmp_path, monkeypatch):
    class Copies(subprocess.Popen):
        """A process that only copies the notebook to its place."""

        def __init__(self, command, **options):
            super().__init__(["cp", *command[3:5]], **options)

    monkeypatch.setattr(subprocess, "Popen", Copies)
    notebook, out = make(["pass"]), tmp_path / "out"
    for text in (None, "FIRST ANSWER", "SECOND ANSWER"):
        if text:
            copy = nbformat.read(out / "00_small.ipynb", as_version=4)
            copy.cells[0].source = text
            nbformat.write(copy, out / "00_small.ipynb")
        for _ in range(2):  # the second one replaces only what the first has made
            assert runner.run_notebook(notebook, out, {"seed": 5, "lane": "embedded"}).status == "passed"
    kept = [path.read_text() for path in sorted((out / "yours").rglob("*.ipynb"))]
    assert ["FIRST" in kept[0], "SECOND" in kept[1], len(kept)] == [True, True, 2]


def test_results_go_to_no_folder_of_other_things(make, tmp_path):
    notebook = make(["pass"])
    own = manifest.Course(tmp_path, (notebook,))
    with pytest.raises(CourseError, match=r"notebooks holds something else \(00_small.ipynb\).*name a new folder"):
        runner.require_results(notebook.path.parent, own)
    (tmp_path / "out").mkdir()
    for folder in ("absent", "out"):
        runner.require_results(tmp_path / folder, own)
    for name in ("results.json", ".hidden", "mine"):
        runner.save([], tmp_path / "out") if name == "results.json" else (tmp_path / "out" / name).touch()
        runner.require_results(tmp_path / "out", own)
    (tmp_path / "out" / "results.json").write_text('{"mine": 1}')
    with pytest.raises(CourseError, match="holds something else"):
        runner.require_results(tmp_path / "out", own)
    (tmp_path / "build" / "serving").mkdir(parents=True)
    runner.require_results(tmp_path / "build", own)  # the default, which other commands use too


def test_nothing_of_yours_in_the_folder_of_results_is_overwritten(make, tmp_path):
    """Before the run, and while it is at work: one that JupyterLab has open is saved by it."""
    out = tmp_path / "out"
    out.mkdir()
    for name in ("results.json", "00_small.html"):
        (out / name).write_text("mine")
    wrote = f"open({str(out / '00_small.ipynb')!r}, 'w').write('MY ANSWER')"
    assert runner.run_notebook(make([*HELLO, wrote]), out, {}).status == "passed"
    kept = {path.name: path.read_text() for path in (out / "yours").rglob("*") if path.is_file()}
    assert kept == {"results.json": "mine", "00_small.html": "mine", "00_small.ipynb": "MY ANSWER"}
    assert "seed is" in (out / "00_small.ipynb").read_text()


def test_where_the_name_of_a_socket_file_would_be_too_long_a_kernel_listens_on_tcp(make, tmp_path, monkeypatch):
    """And a failing cell is one line that no terminal obeys."""
    (long := tmp_path / ("long" * 20)).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    notebook = make([*HELLO, SOCKETS, "raise ValueError('the cause\\n\\x1b]0;owned\\x07')", "print('never')"])
    result = runner.run_notebook(notebook, tmp_path / "out", {"seed": 1})
    assert (result.status, result.error) == ("failed", "cell 5: ValueError: the cause \ufffd]0;owned\ufffd")
    cells = nbformat.read(tmp_path / "out" / "00_small.ipynb", 4).cells
    assert [c.outputs[0].text.strip() for c in cells if "abs_connection_file" in c.source] == ["tcp True 0"]


def test_all_that_a_cell_shows_is_there_and_a_long_line_takes_no_time(make, tmp_path):
    """ZeroMQ keeps a thousand messages for a slow reader; it dropped the others, and the word that all is done.
    nbclient's search for carriage returns took minutes for the line."""
    cells = ["for i in range(2_000): display(i)", "print('x' * 3_000_000, end='\\rshort')"]
    result = runner.run_notebook(make([*HELLO, *cells]), tmp_path / "out", {})
    *_, many, line = nbformat.read(tmp_path / "out" / "00_small.ipynb", 4).cells
    assert result.status == "passed" and line.outputs[0].text == "short"
    assert [each.data["text/plain"] for each in many.outputs] == [str(i) for i in range(2_000)]


def test_what_no_notebook_can_hold_is_one_line(make, tmp_path):
    raw = "from IPython.display import display\ndisplay({'text/html': 5, 'text/plain': 'x'}, raw=True)"
    result = runner.run_notebook(make([*HELLO, raw]), tmp_path / "out", {})
    assert result.status == "failed" and "a cell displays what no notebook can hold: 5 is not" in result.error


def test_a_dead_kernel_is_one_line(make, tmp_path):
    result = runner.run_notebook(make([*HELLO, "import os\nos._exit(9)"]), tmp_path / "out", {})
    assert result.status == "failed" and "kernel died" in result.error


LOUD = """import os, subprocess, sys
subprocess.run(["echo", '{"error": "a foreign reason"}'])
os.write(1, b'{"ok": true}\\n')
for descriptor in (1, 2):
    subprocess.run("yes | head -c 30000000", shell=True, stdout=descriptor)
left = subprocess.Popen(["sleep", "600"], start_new_session=True)  # outlives the kernel, with its stdout and stderr
open("left", "w").write(str(left.pid))
os.kill(os.getppid(), 9)
"""


def test_what_a_notebook_prints_cannot_reach_what_its_process_tells(make, tmp_path):
    """To any descriptor, more than a pipe holds, and by a process that keeps them open when the notebook is killed."""
    notebook = make([*HELLO, LOUD])
    try:
        result = runner.run_notebook(notebook, tmp_path / "out", {}, timeout=240)
    finally:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((notebook.path.parent / "left").read_text()), signal.SIGKILL)
    assert (result.status, result.error, result.last_cell) == ("failed", "ended with exit code -9", 3)


def test_a_line_is_taken_when_it_is_complete(tmp_path):
    told = tmp_path / "told"
    told.write_text('{"cells": 3}\n{"cell": 1, "source": "x"}\n{"cell": 2, "sou')
    assert runner.read(told, "00") == (runner.Progress("00", 1, 3, "x"), "")
    told.write_text(told.read_text() + 'rce": "y"}\n{"error": "boom"}\n')
    assert runner.read(told, "00") == (runner.Progress("00", 2, 3, "y"), "boom")


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """A file; a limit of LIMIT seconds is over a second after something is in it, however long the start took."""
    path, begun = tmp_path / "pid", []

    def clock():
        if not begun and path.exists() and path.read_text():
            begun.append(time.monotonic())
        return LIMIT - 1 + time.monotonic() - begun[0] if begun else 0.0

    monkeypatch.setattr(runner, "time", types.SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(runner, "GRACE", 2.0)
    return path


def gone(marker: Path) -> bool:
    """Whether the kernel, too, is gone; its new parent reaps it."""
    deadline = time.monotonic() + 10
    while psutil.pid_exists(int(marker.read_text())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not psutil.pid_exists(int(marker.read_text()))


def test_a_hanging_notebook_is_ended_and_its_last_cell_named(make, tmp_path, marker):
    hang = (
        "# waits for ever\nimport os, signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"open({str(marker)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    )
    result = runner.run_notebook(make([*HELLO, hang]), tmp_path / "out", {"seed": 1}, timeout=LIMIT)
    assert result.status == "timeout" and result.seconds < 90
    assert result.error == "stopped after 25 s, at cell 4 of 4 (# waits for ever)"
    assert gone(marker)


def test_a_frozen_papermill_with_a_frozen_kernel_is_killed(make, tmp_path, marker):
    """Neither answers a signal any more (papermill issues 711, 684)."""
    freeze = (
        f"import os, signal\nopen({str(marker)!r}, 'w').write(str(os.getpid()))\n"
        "os.kill(os.getppid(), signal.SIGSTOP)\nos.kill(os.getpid(), signal.SIGSTOP)"
    )
    result = runner.run_notebook(make([*HELLO, freeze]), tmp_path / "out", {"seed": 1}, timeout=LIMIT)
    assert (result.status, result.last_cell) == ("timeout", 4)
    assert gone(marker)


def test_a_kernel_the_environment_lacks_is_a_clear_error(make, tmp_path):
    result = runner.run_notebook(make(HELLO, kernel="julia-1.9"), tmp_path / "out", {})
    assert result.status == "failed"
    assert "asks for the kernel 'julia-1.9'" in result.error and "choose the kernel 'Python 3'" in result.error


def test_a_notebook_that_never_gets_going_says_so(make, tmp_path):
    result = runner.run_notebook(make(HELLO), tmp_path / "out", {}, timeout=0.01)
    assert (result.status, result.error) == ("timeout", "stopped after 0.01 s, before its first cell")


def test_a_notebook_that_runs_on_while_it_is_stopped_says_where_it_was_at_its_limit(make, tmp_path, monkeypatch):
    """An interrupt that arrives while Python imports something can be lost; the cells then run until the kill."""
    monkeypatch.setattr(runner, "GRACE", 60.0)
    monkeypatch.setattr(subprocess.Popen, "send_signal", lambda self, signal: None)
    result = runner.run_notebook(make(HELLO), tmp_path / "out", {}, timeout=0.01)
    assert (tmp_path / "out" / "00_small.ipynb").exists()  # its cells did run
    assert (result.status, result.error) == ("timeout", "stopped after 0.01 s, before its first cell")


def test_missing_and_broken_files_are_one_sentence(make, tmp_path):
    notebook = make(HELLO)
    notebook.path.write_text("{not json")
    assert "is not a notebook" in runner.run_notebook(notebook, tmp_path / "out", {}).error
    notebook.path.unlink()
    assert "does not exist" in runner.run_notebook(notebook, tmp_path / "out", {}).error


@pytest.mark.parametrize("lane, most", [("embedded", 2), ("trtllm", 1)])
def test_untimed_notebooks_run_two_at_a_time_and_the_others_alone(make, tmp_path, monkeypatch, lane, most):
    class Copies(subprocess.Popen):
        """A process that copies the notebook to its place, and notes when it began and ended."""

        def __init__(self, command, **options):
            source, made = command[3:5]
            times = tmp_path / f"{Path(source).stem}.times"
            note = f"date +%s.%N >> {times}"
            super().__init__(["sh", "-c", f"{note}; cp {source} {made}; sleep 1; {note}"], **options)

    monkeypatch.setattr(subprocess, "Popen", Copies)
    monkeypatch.setattr(runner, "MEMORY", 0)
    monkeypatch.setenv("SERVINGLAB_LANE", lane)
    notebooks = [replace(make(HELLO, name=f"0{n}_small"), untimed=n > 0) for n in range(4)]
    results = list(runner.run_all(notebooks, tmp_path / "out", {n.id: {} for n in notebooks}))
    assert [result.status for result in results] == ["passed"] * 4
    began, ended = zip(*(map(float, (tmp_path / f"{n.id}.times").read_text().split()) for n in notebooks), strict=True)
    running = [sum(b <= begin < e for b, e in zip(began, ended, strict=True)) for begin in began]
    assert running[0] == 1 and max(running) == most, "the timed one alone, the others in pairs"
    assert not (tmp_path / "out" / "yours").exists(), "neither takes the other's files for yours"


def test_interrupting_the_run_ends_the_notebooks(make, tmp_path):
    """Ctrl-C in the terminal: the command ends, and so do papermill and the kernel of both notebooks that run."""
    markers = [tmp_path / f"pid{n}" for n in range(2)]
    wait = "import os, time\nopen({!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    paths = [str(make([*HELLO, wait.format(str(m))], name=f"0{n}_small").path) for n, m in enumerate(markers)]
    script = (
        "from dataclasses import replace; from pathlib import Path; from course import manifest, runner\n"
        f"runner.MEMORY, first = 0, manifest.load({str(Path(__file__).parents[2])!r}).notebooks[0]\n"
        f"both = [replace(first, id=Path(p).stem, path=Path(p), untimed=True) for p in {paths!r}]\n"
        f"list(runner.run_all(both, Path({str(tmp_path / 'out')!r}), {{n.id: {{}} for n in both}}))"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not all(marker.exists() and marker.read_text() for marker in markers) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(child.pid, signal.SIGINT)
    assert "KeyboardInterrupt" in child.communicate(timeout=40)[1]
    assert all(map(gone, markers))


def test_results_are_saved(tmp_path):
    results = [runner.Result("00_a", "passed", 1.5), runner.Result("01_b", "failed", 2.0, "cell 3: E: x", 3, 9)]
    saved = json.loads(Path(runner.save(results, tmp_path)).read_text())
    assert [r["id"] for r in saved] == ["00_a", "01_b"] and saved[1]["error"] == "cell 3: E: x"


def test_a_run_of_one_notebook_keeps_the_results_of_the_others(tmp_path):
    before = [runner.Result("00_a", "passed", 1.0), runner.Result("03_b", "failed", 2.0, "boom")]
    runner.save(before, tmp_path)
    (tmp_path / "00_a.ipynb").write_text("{}")  # the page of 03_b is gone
    assert runner.earlier(tmp_path) == before[:1]
    (tmp_path / "results.json").write_text("not json")
    assert runner.earlier(tmp_path) == []
