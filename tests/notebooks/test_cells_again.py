"""Each code cell run twice in a row, and each longer one stopped and run again: see rerun.py.

All take three quarters of an hour, so they run weekly, with what is marked long; each run of the tests has the
shortest one. One of them alone: python tests/notebooks/rerun.py 05
"""

from __future__ import annotations

import textwrap

import nbformat
import pytest
from rerun import Again, prepare
from running import leftovers

from course.manifest import load

pytestmark = [pytest.mark.notebooks, pytest.mark.timeout(1800)]

SHORTEST = "00"


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry",
    [pytest.param(e, id=e.id, marks=[pytest.mark.long] * (not e.id.startswith(SHORTEST))) for e in load().notebooks],
)
def test_cells_run_twice_and_after_a_stop(entry, tmp_path):
    marker = str(tmp_path)
    done = Again(prepare(entry), entry.path.parent, marker=marker)
    assert done.problems == [], f"these were stopped: {done.stopped}"
    assert leftovers(marker) == []


def cell(source, *tags):
    return nbformat.v4.new_code_cell(textwrap.dedent(source).strip(), metadata={"tags": list(tags)})


@pytest.mark.long
def test_what_breaks_hangs_or_differs_is_named(tmp_path, monkeypatch):
    """One cell for each kind, and cells that do what they may."""
    monkeypatch.setattr("rerun.END_SECONDS", 3)
    cells = [
        cell("import subprocess, threading, time"),
        cell("values = [1.0]; started = threading.Event(); rounds, child = 0, None"),
        cell("raise ValueError('on purpose')", "raises-exception"),
        cell("time.sleep(2); print(f'took {time.perf_counter()} s')"),
        cell("values.append(float('nan')) if len(values) > 1 else None; print(sum(values)); values.append(1)"),
        cell("rounds += 1; print('round', rounds)"),
        cell("rounds += 1; print('round', rounds)", "nbval-check-output"),
        cell("rounds += 1; print('round' * rounds)", "varies"),
        cell("open('new', 'x').close()"),
        cell("child = child or subprocess.Popen(['sleep', '600'])"),
        cell("if child: child = child.kill() or child.wait() and None"),
        cell("child = child or subprocess.Popen(['sleep', '600'], start_new_session=True)"),
        cell("if child: child = child.kill() or child.wait() and None"),
        cell("""
            if started.is_set():
                threading.Thread(target=threading.Event().wait).start()  # as a pool that waits for what a stop left out
            started.set()
            time.sleep(1.5)
        """),
    ]
    done = Again(cells, tmp_path)
    found = "\n".join(done.problems)
    named = [line.split(" ", 2)[1] for line in done.problems]
    assert named == ["5", "7", "9", "10", "kernel", "7", "9", "10", "kernel"], found
    for said in ("second run: prints nan: nan", "'round 3' first, then 'round 4'", "second run: FileExistsError",
                 "Stop also hits what it started: ['sleep 600']", "the kernel does not end"):  # fmt: skip
        assert said in found
    assert [name.split(" (")[0] for name in done.stopped] == ["cell 4", "cell 14"]


@pytest.mark.long
def test_a_cell_that_cannot_be_stopped_or_not_run_twice_is_given_up_in_bounded_time(tmp_path, monkeypatch):
    """What a notebook did whose thread waited for an Event that only success sets."""
    monkeypatch.setattr("rerun.STOP_SECONDS", 3)
    deaf = """
        import time
        try:
            time.sleep(2)
        except KeyboardInterrupt:
            while True:
                try:
                    time.sleep(60)
                except KeyboardInterrupt:
                    pass
    """
    done = Again([cell(deaf)], tmp_path)
    assert done.problems == ["cell 1 (import time), stopped: runs on after a stop"]
    monkeypatch.setattr("rerun.CELL_SECONDS", 2)
    done = Again([cell("import time\ntime.sleep(600)")], tmp_path)
    assert done.problems[0].startswith("cell 1 (import time), first run: hangs (")
