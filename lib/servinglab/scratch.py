"""Temporary folders that name their owner, so that what a killed process left is told from what is in use."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

OWNER = ".owner"
_outer = _own = ""


@contextlib.contextmanager
def folder(parent: Path | str | None = None) -> Iterator[Path]:
    """A new folder in `parent` (default: the temporary folder), gone at the end. First removes what the dead left."""
    made = _make(parent or tempfile.gettempdir())
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def adopt() -> None:
    """From now on whatever is temporary of this process and of its children is in one folder, which goes with it.

    A process that is killed leaves the folder to the next one that calls this.
    """
    global _outer, _own
    if not os.path.isdir(_own):
        _outer = outer()
        _own = os.environ["TMPDIR"] = tempfile.tempdir = str(_make(_outer))
        atexit.register(_remove, _own, os.getpid())


def outer() -> str:
    """The temporary folder that this process shares with others."""
    return _outer or tempfile.gettempdir()


def _make(parent: Path | str) -> Path:
    for path in Path(parent).glob("servinglab-*"):
        if _is_left(path):
            shutil.rmtree(path, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix="servinglab-", dir=parent))
    (made / OWNER).write_text(" ".join([*_here(), str(os.getpid()), str(_started(os.getpid()))]))
    return made


def _started(pid: int) -> str | None:
    """Clock ticks since boot at which a process started; None if there is none, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _here() -> list[str]:
    """Process ids mean something within these: the host and its pid namespace (that of a container)."""
    return [os.uname().nodename, str(os.stat("/proc/self/ns/pid").st_ino)]


def _is_left(path: Path) -> bool:
    """Whether this is a folder of ours whose owner is dead, as are those of all such folders in it."""
    try:
        found = path.lstat()
        *where, pid, started = (path / OWNER).read_text().split()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or where != _here():
            return False
        if _started(int(pid)) == started:
            return False
    except (OSError, ValueError):
        return False
    return all(_is_left(inner) for inner in path.glob("servinglab-*") if (inner / OWNER).exists())


def _remove(own: str, owner: int) -> None:
    if os.getpid() == owner:  # not a fork of it
        shutil.rmtree(own, ignore_errors=True)
