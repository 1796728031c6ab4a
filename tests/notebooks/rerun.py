"""What a learner does to cells: run each twice, stop a long one and run it again. Problems come back as sentences.

    .venv/bin/python tests/notebooks/rerun.py 04            # with the solutions and the last parameter set, "short"
    .venv/bin/python tests/notebooks/rerun.py 04 05 --set default --stubs

Two ways through a notebook, each in a kernel of its own:

* twice: every cell runs twice in a row. The second time there is no error either, and what it prints is the same: to
  the letter (but for sanitize.cfg) in cells tagged nbval-check-output, else in all words that are no numbers. Output
  that may differ in more has the tag "varies" on its cell. A number that turns into nan or inf is always a problem.
* stop: what took over a second is interrupted once, in the middle, as JupyterLab's Stop does it, and runs again. The
  same must hold, and the cell must end within STOP_SECONDS of the interrupt (more on a machine that is overloaded).

In both no process that outlives a cell may be in the kernel's process group: Stop sends its signal to all of that.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from nbval.plugin import get_sanitize_patterns

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import exercises
from notebook_files import read_source, tags, text_sources

from course.manifest import Notebook, load
from course.runner import environment

LONG, CELL_SECONDS = 1.0, 300
STOP_SECONDS = END_SECONDS = 60  # on a busy machine IPython takes 15 s to render a first traceback
RULES = get_sanitize_patterns((Path(__file__).parent / "sanitize.cfg").read_text(encoding="utf-8"))
RANDOM_ID = re.compile(r"\b[0-9a-f]{8,}\b")
NUMBER = re.compile(r"[-+−]?\d(?:[\d.,  _]*\d)?(?:e[-+]?\d+)?%?")
LOST = re.compile(r"\b(nan|inf)\b", re.IGNORECASE)
# A module whose import was stopped half-way, numpy for one, may not come back before the kernel is restarted. That is
# Python's; so the second kernel imports all that the first one had before its cells begin.
MODULES = "import json, sys; print(json.dumps(sorted(name for name in sys.modules if name != '__main__')))"
IMPORT = """import contextlib, importlib, io
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    for _ in {names}:
        with contextlib.suppress(BaseException):
            importlib.import_module(_)
"""


def patience(seconds: float) -> float:
    """`seconds` of a machine that has nothing else to do, on this one."""
    return seconds * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


@dataclass
class Run:
    """What one run of a cell gave. `error`: "" when it ended well; `ended` False: it had to be given up."""

    seconds: float = 0.0
    text: str = ""
    error: str = ""
    stopped: bool = False
    ended: bool = True


class Kernel:
    """One kernel of this interpreter, started as JupyterLab starts it, in `folder`."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        specs = KernelSpecManager(kernel_dirs=[], ensure_native_kernel=True)
        self.manager = KernelManager(kernel_spec_manager=specs)
        self.manager.start_kernel(cwd=str(folder), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)
        self.process = psutil.Process(self.manager.provisioner.pid)

    def run(self, source: str, *, limit: float | None = None, stop_after: float | None = None) -> Run:
        """Run a cell; with `stop_after`, interrupt it then, if it has not ended."""
        run, began = Run(), time.monotonic()
        asked = self.client.execute(source, allow_stdin=False)
        until = began + patience(limit or CELL_SECONDS)
        while True:
            now = time.monotonic()
            if stop_after is not None and now - began >= stop_after and not run.stopped:
                run.stopped = True
                until = now + patience(STOP_SECONDS)
                self.manager.interrupt_kernel()
            if now > until or not self.manager.is_alive():
                hang = "runs on after a stop" if run.stopped else f"hangs ({now - began:.0f} s)"
                run.error = hang if self.manager.is_alive() else "the kernel died"
                run.ended = False
                return run
            try:
                message = self.client.get_iopub_msg(timeout=0.05)
            except queue.Empty:
                continue
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != asked:
                continue
            if kind == "status" and content["execution_state"] == "idle":
                break
            data = content.get("data", {})
            run.text += content.get("text", "") + (data.get("text/markdown") or data.get("text/plain") or "")
            if kind == "error":
                run.error = f"{content['ename']}: {content['evalue']}"
        # The reply on the other channel says no more, and an interrupt at the end of a cell can lose it.
        run.seconds = time.monotonic() - began
        return run

    def in_its_group(self) -> list[str]:
        """Processes that a Stop would hit beside the kernel."""
        found = []
        for child in self.process.children(recursive=True):
            try:
                if os.getpgid(child.pid) == self.process.pid and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(child.cmdline())[:100])
            except (psutil.Error, ProcessLookupError):
                continue
        return found

    def ends(self) -> bool:
        """Ask it to end, as closing a notebook does; whether it did."""
        self.client.shutdown()
        until = time.monotonic() + patience(END_SECONDS)
        while self.manager.is_alive() and time.monotonic() < until:
            time.sleep(0.1)
        return not self.manager.is_alive()

    def kill(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def prepare(entry: Notebook, set_name: str | None = None, *, solved: bool = True) -> list[nbformat.NotebookNode]:
    """The notebook's code cells, with solutions and with the values of a parameter set (default: the last one)."""
    source = next(source for source in text_sources() if source.stem == entry.id)
    notebook = read_source(source)
    if solved:
        notebook = exercises.with_solutions(notebook, exercises.load_answers(entry.number).solutions)
    values = entry.values(set_name=set_name or entry.sets[-1].name)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    place = next((n for n, cell in enumerate(cells, 1) if "parameters" in tags(cell)), 0)
    given = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    cells.insert(place, nbformat.v4.new_code_cell(given))
    return cells


def differences(cell: nbformat.NotebookNode, before: Run, after: Run) -> str:
    """In what the second run differs although it should not; "" when in nothing."""
    raises = "raises-exception" in tags(cell)
    if after.error and not (raises and before.error):
        return after.error
    if raises and before.error and not after.error:
        return f"no longer raises {before.error}"
    if (lost := LOST.search(after.text)) and not LOST.search(before.text):
        return f"prints {lost[0]}: {_line(after.text, lost[0])}"
    if "varies" in tags(cell):
        return ""
    texts = [_plain(run.text, exact="nbval-check-output" in tags(cell)) for run in (before, after)]
    if texts[0] != texts[1]:
        pairs = zip(*(text.splitlines() + [""] * 1000 for text in texts), strict=False)
        return "prints {!r} first, then {!r}".format(*next(pair for pair in pairs if pair[0] != pair[1]))
    return ""


def _line(text: str, word: str) -> str:
    return next(line.strip() for line in text.splitlines() if word in line)


def _plain(text: str, *, exact: bool) -> str:
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    if not exact:
        text = NUMBER.sub("#", RANDOM_ID.sub("#", text))
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def _name(number: int, cell: nbformat.NotebookNode) -> str:
    lines = [line.strip() for line in cell.source.splitlines() if line.strip() and not line.startswith("#")]
    return f"cell {number} ({lines[0][:60] if lines else 'empty'})"


class GivenUp(Exception):
    """A cell did not end, so nothing more can run in this kernel."""


class Again:
    """Both ways through `cells`, of a notebook that lies in `folder`; afterwards `problems` and `stopped` tell.

    `marker` goes to ``running.leftovers``; `tell` hears a line for each cell.
    """

    def __init__(self, cells, folder: Path, *, marker: str = "", tell=lambda line: None) -> None:
        self.cells, self.folder, self.marker, self.tell = cells, folder, marker, tell
        self.firsts: list[Run] = []
        self.modules: list[str] = []
        self.problems: list[str] = []
        self.stopped: list[str] = []
        for way in (self._twice, self._stop):
            self._in_a_kernel(way)

    def _in_a_kernel(self, way) -> None:
        with tempfile.TemporaryDirectory(prefix="servinglab-again-", ignore_cleanup_errors=True) as scratch:
            env = environment(COURSE_RECORD_DIR=self.marker or scratch, TMPDIR=scratch)
            env.pop("PYTEST_CURRENT_TEST", None)  # with it, ipykernel does not look at the real stdout
            kernel = Kernel(self.folder, env)
            try:
                way(kernel)
                if not kernel.ends():
                    self.problems.append("the kernel does not end: a thread of it waits for ever")
            except GivenUp:
                pass
            finally:
                kernel.kill()

    def _twice(self, kernel: Kernel) -> None:
        for number, cell in enumerate(self.cells, 1):
            self.firsts.append(first := kernel.run(cell.source))
            if first.error and "raises-exception" not in tags(cell):
                self.problems.append(f"{_name(number, cell)}, first run: {first.error}")
            runs = [first, kernel.run(cell.source, limit=60 + 10 * first.seconds)] if first.ended else [first]
            self._judge(number, cell, "second run", runs, kernel)
            self.modules = json.loads(kernel.run(MODULES).text)

    def _stop(self, kernel: Kernel) -> None:
        if self.modules:
            kernel.run(IMPORT.format(names=self.modules))
        for number, (cell, first) in enumerate(zip(self.cells, self.firsts, strict=False), 1):
            runs = []
            if not first.ended:
                raise GivenUp
            if first.seconds > LONG:
                runs.append(kernel.run(cell.source, stop_after=first.seconds / 2))
                if runs[0].ended and not runs[0].stopped:  # quicker than in the other kernel
                    runs = [kernel.run(cell.source, stop_after=runs[0].seconds / 2)]
                if runs[0].stopped:
                    self.stopped.append(_name(number, cell))
            if not runs or runs[0].ended:
                runs.append(kernel.run(cell.source, limit=60 + 10 * first.seconds))
            how = "stopped" if not runs[0].ended else "run after a stop" if runs[0].stopped else "with others stopped"
            self._judge(number, cell, how, runs, kernel)

    def _judge(self, number: int, cell, how: str, runs: list[Run], kernel: Kernel) -> None:
        last = runs[-1]
        took = ", then ".join(f"{run.seconds:.1f} s {run.error or 'ok'}" for run in runs)
        self.tell(f"{_name(number, cell)}: {took}")
        if problem := differences(cell, self.firsts[number - 1], last):
            self.problems.append(f"{_name(number, cell)}, {how}: {problem}")
        if not last.ended:
            raise GivenUp
        if group := kernel.in_its_group():
            self.problems.append(f"{_name(number, cell)}: Stop also hits what it started: {group}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="+", help="notebook ids, or their numbers such as 05")
    parser.add_argument("--set", help="parameter set of course.toml")
    parser.add_argument("--stubs", action="store_true", help="leave the exercises unsolved")
    options = parser.parse_args()
    failed = 0
    for entry in load().select(options.ids):
        began = time.monotonic()
        cells = prepare(entry, options.set, solved=not options.stubs)
        done = Again(cells, entry.path.parent, tell=lambda line: print(line, flush=True))
        print(f"{entry.id}: {time.monotonic() - began:.0f} s, stopped: {'; '.join(done.stopped) or 'none'}")
        print(*(f"PROBLEM {problem}" for problem in done.problems), sep="\n", flush=True)
        failed += bool(done.problems)
    return failed


if __name__ == "__main__":
    sys.exit(main())
