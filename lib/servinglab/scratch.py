"""Temporary folders that name their owner, so that what a killed process left is told from what is in use; and how
folders of this machine are shown."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from servinglab.root import find_root

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
        owner, _outer = os.getpid(), outer()
        made = _own = os.environ["TMPDIR"] = tempfile.tempdir = str(_make(_outer))
        atexit.register(lambda: os.getpid() == owner and shutil.rmtree(made, ignore_errors=True))  # not in a fork of it


def outer() -> str:
    """The temporary folder that this process shares with others."""
    return _outer or tempfile.gettempdir()


def shorten(text: str) -> str:
    """``text`` with this machine's folders shortened, so that what you see is what another reader sees: those in the
    course folder relative, the cache ``$SERVINGLAB_CACHE``, the home folder ``~``, the temporary folder ``$TMPDIR``."""
    from servinglab import assets

    root = str(find_root())
    folders = {root + os.sep: "", root: ".", outer(): "$TMPDIR", tempfile.gettempdir(): "$TMPDIR"}
    folders |= {str(Path.home()): "~", str(assets.cache_dir()): "$SERVINGLAB_CACHE"}
    for folder in sorted(folders, key=len, reverse=True):
        if len(folder.strip(os.sep)) > 1:
            end = "" if folder.endswith(os.sep) else r"(?![\w.-])"
            text = re.sub(re.escape(folder) + end, lambda _, short=folders[folder]: short, str(text))
    return text


def _make(parent: Path | str) -> Path:
    for path in Path(parent).glob("servinglab-*"):
        if _is_left(path):
            shutil.rmtree(path, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix="servinglab-", dir=parent))
    (made / OWNER).write_text(" ".join(_process(os.getpid())))
    return made


def _process(pid: int) -> list[str]:
    """What is only one process's: the host and its pid namespace (that of a container), within which ids mean
    something, its id, and when it started, in clock ticks since boot; "" if there is none, or only a zombie."""
    started = ""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        started = "" if fields[0] == "Z" else fields[19]
    return [os.uname().nodename, str(os.stat("/proc/self/ns/pid").st_ino), str(pid), started]


def _is_left(path: Path) -> bool:
    """Whether this is a folder of ours whose owner is dead, as are those of all such folders in it."""
    try:
        found, owner = path.lstat(), (path / OWNER).read_text().split()
        now = _process(int(owner[2]))
    except (OSError, ValueError, IndexError):
        return False
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and len(owner) == 4
    if not mine or owner[:2] != now[:2] or owner == now:
        return False
    return all(_is_left(inner) for inner in path.glob("servinglab-*") if (inner / OWNER).exists())
