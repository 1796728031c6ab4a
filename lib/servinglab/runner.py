"""Runs the course's notebooks one after another, each in a process with a hard time limit, into a folder of results."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from servinglab import scratch
from servinglab.course import Course, Notebook
from servinglab.errors import CourseError
from servinglab.keep import Keeper, write

GRACE = 20.0  # seconds a stopped notebook has to end its kernel and its server by itself


@dataclass
class Result:
    """What became of one notebook. `seconds` is wall time; `error` is one line, empty when all went well."""

    id: str
    status: str  # "passed", "failed", "timeout"
    seconds: float
    error: str = ""
    last_cell: int = 0
    cells: int = 0


@dataclass
class Progress:
    """Handed to `on_progress` at every cell: which of how many cells runs now."""

    id: str
    cell: int
    cells: int
    source: str


def run_notebook(
    notebook: Notebook,
    out: Path,
    parameters: dict[str, Any],
    *,
    timeout: float | None = None,
    folder: Path | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Result:
    """Execute `notebook` into `out`/<id>.ipynb and .html; the committed notebook is only read.

    `timeout`: seconds for the whole notebook (default: the manifest's). `folder`: where it runs (default: where it
    lies). Never raises for a failing notebook.
    """
    limit = notebook.timeout if timeout is None else timeout
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"{notebook.id}.ipynb"
    for old in (target, target.with_suffix(".html")):
        Keeper(out).make_room(old.name)  # if you have written in it
        old.unlink(missing_ok=True)
    save(earlier(out), out)  # what is not finished this time has no result
    state = Progress(notebook.id, 0, 0, "")
    outcome: dict[str, Any] = {}
    started = time.monotonic()
    # Whatever the notebook writes into its temporary folder goes with it, even when its kernel is killed.
    with scratch.folder() as temporary, scratch.folder() as apart:
        made = apart / target.name  # not in `out`, where you may open it meanwhile
        arguments = [str(notebook.path), str(made), json.dumps(parameters), str(folder or notebook.path.parent)]
        # What the child prints is mixed with what its kernel does, and all that this starts; what it tells us is not.
        (told, tell), (printed, prints) = os.pipe(), os.pipe()
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", "servinglab.execute", *arguments, str(tell)],
                stdout=subprocess.DEVNULL,
                stderr=prints,
                stdin=subprocess.DEVNULL,
                pass_fds=[tell],
                # A session of its own: Ctrl-C in the terminal reaches us, and we end the notebook in order.
                start_new_session=True,
                env=environment(COURSE_RECORD_DIR=str(out / "records"), TMPDIR=str(temporary)),
            )
        finally:
            os.close(tell)
            os.close(prints)
        reader = threading.Thread(target=_read, args=(told, printed, state, outcome, on_progress), daemon=True)
        reader.start()
        reached = None
        try:
            child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            reached = replace(state)  # a copy: while it ends, it may still run a few cells
            stop(child)
        except BaseException:
            stop(child)
            raise
        finally:
            unwritten = _publish(made, out)
        reader.join(timeout=5)
        outcome |= {"ok": False, "error": unwritten} if unwritten else {}
        seconds = round(time.monotonic() - started, 1)
        if reached:
            where = f"at cell {reached.cell} of {reached.cells} ({reached.source})"
            error = f"stopped after {limit:g} s, {where if reached.cell else 'before its first cell'}"
            return Result(notebook.id, "timeout", seconds, error, reached.cell, reached.cells)
        if child.returncode == 0 and outcome.get("ok"):
            return Result(notebook.id, "passed", seconds, "", state.cell, state.cells)
        end = outcome.get("printed") if child.returncode > 0 else ""
        error = outcome.get("error") or end or f"ended with exit code {child.returncode}"
        return Result(notebook.id, "failed", seconds, error, state.cell, state.cells)


def _publish(made: Path, out: Path) -> str:
    """Copy the executed notebook and its page to `out`; the sentence to show when that fails."""
    for page in filter(Path.exists, (made, made.with_suffix(".html"))):
        try:
            write(out / page.name, page.read_bytes())
        except OSError as error:
            return f"{out / page.name} cannot be written ({error.strerror}): free some space or give another --out."
    return ""


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


def save(results: list[Result], out: Path) -> Path:
    """Write the results as `out`/results.json."""
    path = out / "results.json"
    try:
        write(path, (json.dumps([asdict(r) for r in results], indent=2) + "\n").encode())
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
    """End a notebook's process: papermill first shuts its kernel down; what does not go by itself is killed.

    Only the process and its kernel: a Triton belongs to the kernel's supervisor, which ends it when the kernel is gone.
    """
    kernels = _kernels(child)
    child.send_signal(signal.SIGINT)
    try:
        child.wait(timeout=GRACE)
    except subprocess.TimeoutExpired:
        kernels += _kernels(child)  # an interrupt lost while Python imports lets the kernel start after it
        child.kill()
        child.wait()
    for kernel in kernels:
        try:
            kernel.kill()
        except psutil.NoSuchProcess:
            pass


def _kernels(child: subprocess.Popen) -> list[psutil.Process]:
    try:
        children = psutil.Process(child.pid).children()
        return [process for process in children if "ipykernel_launcher" in " ".join(process.cmdline())]
    except psutil.Error:
        return []


def _read(told: int, printed: int, state: Progress, outcome: dict, on_progress: Callable[[Progress], None]) -> None:
    """Take what the child tells until it ends, and keep the last line of what is printed.

    Only the child holds the other end of `told`; that of `printed` is also held by whatever the notebook left running.
    """
    rest = end = b""
    with open(told, "rb", 0) as channel, open(printed, "rb", 0) as log, selectors.DefaultSelector() as ready:
        for file in (log, channel):
            ready.register(file, selectors.EVENT_READ)
        while channel in ready.get_map():
            for key, _ in ready.select():
                if not (data := key.fileobj.read(65536)):
                    ready.unregister(key.fileobj)
                elif key.fileobj is log:
                    end = (end + data)[-4096:]
                else:
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        _take(line, state, outcome, on_progress)
        os.set_blocking(printed, False)
        end += log.read(65536) or b""
    outcome["printed"] = (end.decode(errors="replace").strip().splitlines() or [""])[-1].strip()


def _take(line: bytes, state: Progress, outcome: dict, on_progress: Callable[[Progress], None]) -> None:
    try:
        said = dict(json.loads(line))
    except (ValueError, TypeError):  # not ours; what follows still is
        return
    if "cells" in said:
        state.cells = said["cells"]
    elif "cell" in said:
        state.cell, state.source = said["cell"], said["source"]
        on_progress(Progress(**vars(state)))
    else:
        outcome.update(said)
