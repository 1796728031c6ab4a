"""Runs the course's notebooks, each in a process with a hard time limit, into a folder of results."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from course import doctor
from course.manifest import Course, Notebook
from servinglab import scratch
from servinglab.errors import CourseError
from servinglab.keep import Keeper
from servinglab.lane import resolve_lane
from servinglab.root import module

COMMON = ("notebook", "lane", "device", "versions", "seconds")  # the same in all records, or measured better here
MEMORY = doctor.RAM_NEEDED  # bytes that a notebook and its server may take
LOOK = 1.0  # seconds between two looks at the memory of a notebook's processes
GRACE = 20.0  # seconds a stopped notebook has to end its kernel and its server by itself

# Two notebooks may write into one folder, whose notes are one file.
writing = threading.Lock()


@dataclass
class Result:
    """What became of one notebook. `seconds` is wall time; `error` is one line, empty when all went well. `memory_mb`
    is the most that its processes were seen to hold together, servers included, 0 when that could not be read."""

    id: str
    status: str  # "passed", "failed", "timeout"
    seconds: float
    error: str = ""
    last_cell: int = 0
    cells: int = 0
    memory_mb: int = 0


@dataclass
class Progress:
    """Handed to `on_progress` when another cell runs: which of how many, and its first line."""

    id: str
    cell: int = 0
    cells: int = 0
    source: str = ""


def run_all(
    notebooks: list[Notebook], out: Path, values: dict[str, dict[str, Any]], **how: Any
) -> Iterator[Result]:
    """`run_notebook` for each, with its `values`; a result as soon as there is one. The untimed ones come first, two at
    a time where the memory is enough for both: while one waits or starts a server, the other computes. Not in the lane
    trtllm, whose servers take most of a GPU's memory."""
    stopped = threading.Event()
    together = 2 if psutil.virtual_memory().available >= 2 * MEMORY else 1
    lanes = {n.id: resolve_lane(values[n.id].get("lane", "auto")) for n in notebooks}
    first = [n for n in notebooks if n.untimed and lanes[n.id] == "embedded"]
    with ThreadPoolExecutor(together) as pool:
        runs = [pool.submit(run_notebook, n, out, values[n.id], stopped=stopped, **how) for n in first]
        try:
            for run in as_completed(runs):
                yield run.result()
        finally:  # Ctrl-C, say, of which the threads do not hear
            stopped.set()
            pool.shutdown(cancel_futures=True)
    for notebook in notebooks:
        if notebook not in first:
            yield run_notebook(notebook, out, values[notebook.id], **how)


def run_notebook(
    notebook: Notebook,
    out: Path,
    parameters: dict[str, Any],
    *,
    timeout: float | None = None,
    folder: Path | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    stopped: threading.Event | None = None,
) -> Result:
    """Execute `notebook` into `out`/<id>.ipynb; the committed notebook is only read, and a page of it is gone.

    `timeout`: seconds for the whole notebook (default: the manifest's). `folder`: where it runs (default: where it
    lies). `stopped`: set by another thread, it is a KeyboardInterrupt here. Never raises for a failing notebook.
    """
    limit = notebook.timeout if timeout is None else timeout
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"{notebook.id}.ipynb"
    with writing:
        for old in (target, target.with_suffix(".html")):
            Keeper(out).make_room(old.name)  # if you have written in it
            old.unlink(missing_ok=True)
        save(earlier(out), out)  # what is not finished this time has no result
    started = time.monotonic()
    # Whatever the notebook writes into its temporary folder goes with it, even when its kernel is killed.
    with scratch.folder() as own:
        (temporary := own / "tmp").mkdir(mode=0o700)  # the kernel's socket files are in it
        (told := own / "told.jsonl").touch()  # by course.execute; the notebook's own output goes elsewhere
        made = own / target.name  # not in `out`, where you may open it meanwhile
        state, reached = Progress(notebook.id), None
        peak = looked = 0.0
        child = subprocess.Popen(
            module("course.execute", str(notebook.path), str(made), json.dumps(parameters),
                   str(folder or notebook.path.parent), str(told)),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            # A session of its own: Ctrl-C in the terminal reaches us, and we end the notebook in order.
            start_new_session=True,
            env=environment(COURSE_RECORD_DIR=str(out / "records"), TMPDIR=str(temporary)),
        )  # fmt: skip
        try:
            while child.poll() is None and not reached:
                if stopped and stopped.is_set():
                    raise KeyboardInterrupt
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=0.2)
                if time.monotonic() - looked > LOOK:
                    peak, looked = max(peak, held_by(child.pid)), time.monotonic()
                before, (state, _) = state, read(told, notebook.id)
                if state.cell != before.cell:
                    on_progress(state)
                if time.monotonic() - started > limit and child.poll() is None:
                    reached = state  # while it ends, it may still run a few cells
        finally:
            stop(child)
            with writing:
                unwritten = _publish(made, out, notebook.path.with_name("pictures"))
        state, error = read(told, notebook.id)
    seconds, state = round(time.monotonic() - started, 1), reached or state
    if reached:
        where = f"at cell {state.cell} of {state.cells} ({state.source})" if state.cell else "before its first cell"
        status, error = "timeout", f"stopped after {limit:g} s, {where}"
    elif unwritten:
        status, error = "failed", unwritten
    elif child.returncode == 0:
        status, error = "passed", ""
    else:
        status, error = "failed", error or f"ended with exit code {child.returncode}"
    return Result(notebook.id, status, seconds, error, state.cell, state.cells, round(peak / 1e6))


def held_by(pid: int) -> int:
    """Bytes of memory that a process and all that it started hold; what they share counts once (PSS)."""
    total = 0
    with contextlib.suppress(psutil.Error):
        for process in [(first := psutil.Process(pid)), *first.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):  # it has just ended
                total += process.memory_full_info().pss
    return total


def read(told: Path, notebook: str) -> tuple[Progress, str]:
    """How far a notebook's process has come, from the lines that are complete; and its error, "" for none."""
    found: dict[str, Any] = {}
    for line in told.read_text(encoding="utf-8").rpartition("\n")[0].splitlines():
        with contextlib.suppress(ValueError, TypeError):  # none of ours
            found |= json.loads(line)
    error = found.pop("error", "")
    return Progress(notebook, **{name: value for name, value in found.items() if name != "ok"}), error


def _publish(made: Path, out: Path, pictures: Path) -> str:
    """Copy the executed notebook and the pictures it may show to `out`; the sentence to show if it fails."""
    files = {made.name: made} if made.exists() else {}
    for name, path in (files | {f"pictures/{path.name}": path for path in pictures.glob("*.svg")}).items():
        try:
            (out / name).parent.mkdir(exist_ok=True)
            Keeper(out).write(out / name, path.read_bytes())
        except OSError as error:
            return f"{out / name} cannot be written ({error.strerror}): free some space or give another --out."
    return ""


def require_writable(out: Path) -> None:
    """Raise CourseError, before anything runs, when `out` cannot be made: a checkout may be read-only, or another's."""
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not os.access(there, os.W_OK):
        raise CourseError(f"{out} cannot be written, because {there} is read-only for you: choose a folder with --out.")


def require_results(out: Path, course: Course) -> None:
    """Raise CourseError when `out` holds other things than an earlier run; hidden files do not count."""
    found = [path.name for path in out.glob("[!.]*")] if out.is_dir() else []
    if found and out != course.root / "build" and _results(out / "results.json") is None:
        raise CourseError(f"{out} holds something else ({min(found)}) and no earlier results; name a new folder.")


def earlier(out: Path) -> list[Result]:
    """The results that an earlier run left in `out`, of notebooks whose pages are still there."""
    return [result for result in _results(out / "results.json") or () if (out / f"{result.id}.ipynb").exists()]


def _results(path: Path) -> list[Result] | None:
    """What `save` wrote; None for a file of somebody else, or none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return [Result(**entry) for entry in found] if isinstance(found, list) else None
    except (OSError, ValueError, TypeError):
        return None


def figures(path: Path) -> dict[str, Any]:
    """What a notebook recorded with its last cell. Raises CourseError when there is nothing to be read."""
    try:
        recorded = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CourseError(f"{path} cannot be read ({error}): run that notebook again with the same --out.") from None
    return {name: value for name, value in recorded.items() if name not in COMMON}


def save(results: list[Result], out: Path) -> Path:
    """Write the results as `out`/results.json."""
    path = out / "results.json"
    try:
        Keeper(out).write(path, (json.dumps([asdict(r) for r in results], indent=2) + "\n").encode())
    except OSError as error:
        reason = error.strerror
        raise CourseError(f"{path} cannot be written ({reason}): free some space or give another --out.") from None
    return path


def environment(**extra: str) -> dict[str, str]:
    """The environment notebooks are run in: no slider, no debugger chatter, the interpreter's own programs first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    fixed = {"PATH": path, "PYDEVD_DISABLE_FILE_VALIDATION": "1", "SERVINGLAB_STATIC": "1"}
    return {**os.environ, **fixed, "TOKENIZERS_PARALLELISM": "false", **extra}


def stop(child: subprocess.Popen) -> None:
    """End a notebook's process if it still runs: papermill first shuts its kernel down; what stays is killed.

    Only the process and its kernel: a Triton belongs to the kernel's supervisor, which ends it when the kernel is gone.
    """
    if child.poll() is not None:
        return
    kernels = _kernels(child)
    child.send_signal(signal.SIGINT)
    try:
        child.wait(timeout=GRACE)
    except subprocess.TimeoutExpired:
        kernels += _kernels(child)  # an interrupt lost while Python imports lets the kernel start after it
        child.kill()
        child.wait()
    for kernel in kernels:
        with contextlib.suppress(psutil.NoSuchProcess):
            kernel.kill()


def _kernels(child: subprocess.Popen) -> list[psutil.Process]:
    try:
        children = psutil.Process(child.pid).children()
        return [process for process in children if "ipykernel_launcher" in " ".join(process.cmdline())]
    except psutil.Error:
        return []
