"""Running notebooks from tests: nbval in a process with a hard limit, and a search for what a run left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from course.runner import environment

HERE = Path(__file__).parent
EXAMPLE = HERE / "example"
CELL_SECONDS = 300


def nbval(path: Path, *, limit: float, marker: str = "none") -> tuple[int, str]:
    """Run nbval (lax) over one notebook; (exit code, everything it printed). ``marker`` goes to ``leftovers``.

    A run over ``limit`` seconds is killed; what it printed so far names the last cell, and the exit code is 124.
    """
    command = [
        sys.executable, "-m", "pytest", "-v", "--color=no", "-c", str(HERE / "nbval.ini"),
        "--rootdir", str(path.parent),
        "--nbval-lax", "--nbval-current-env", "--nbval-sanitize-with", str(HERE / "sanitize.cfg"),
        "--nbval-cell-timeout", str(CELL_SECONDS), str(path),
    ]  # fmt: skip
    with tempfile.TemporaryFile() as log:  # no pipe: whatever a cell leaves running could hold it open
        child = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=path.parent, start_new_session=True,
            env=environment(COURSE_RECORD_DIR=marker),
        )  # fmt: skip
        end = ""
        try:
            code = child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            code, end = 124, f"\nstopped after {limit:g} s"
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        log.seek(0)
        return code, log.read().decode(errors="replace") + end


def leftovers(marker: str, *, patience: float = 15) -> list[str]:
    """Processes still alive, ``patience`` seconds after a run, that inherited its COURSE_RECORD_DIR."""
    until = time.monotonic() + patience
    while (alive := _marked(marker)) and time.monotonic() < until:
        time.sleep(0.5)
    return alive


def _marked(marker: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("COURSE_RECORD_DIR", "").startswith(marker):
                found.append(" ".join(process.cmdline())[:120])
        except psutil.Error:  # gone, or another user's
            continue
    return found
