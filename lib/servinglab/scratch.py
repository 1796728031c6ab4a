"""Temporary folders that are locked by their owner, so that what a killed process left is told from what is in use; and
how folders of this machine are shown."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from servinglab.root import find_root

LOCK = ".in-use"  # the kernel frees it when its last holder dies, the owner or a fork of it
_outer = _own = ""


@contextlib.contextmanager
def folder(parent: Path | str | None = None) -> Iterator[Path]:
    """A new folder in `parent` (default: the temporary folder), gone at the end. First removes what the dead left."""
    parent, owner = Path(parent or tempfile.gettempdir()), os.getpid()
    for path in parent.glob("servinglab-*"):
        if _is_left(path):
            shutil.rmtree(path, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix="servinglab-", dir=parent))
    with open(made / f"{LOCK}.new", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(lock.name, made / LOCK)  # nobody sees it unlocked
        try:
            yield made
        finally:
            if os.getpid() == owner:  # not in a fork of it
                shutil.rmtree(made, ignore_errors=True)


def adopt() -> None:
    """From now on whatever is temporary of this process and of its children is in one folder, which goes with it.

    A process that is killed leaves the folder to the next one that calls this.
    """
    global _outer, _own
    if not os.path.isdir(_own):
        _outer, made = outer(), contextlib.ExitStack()
        _own = os.environ["TMPDIR"] = tempfile.tempdir = str(made.enter_context(folder(_outer)))
        atexit.register(made.close)


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


def _is_left(path: Path) -> bool:
    """Whether this is a folder of ours that nobody has locked any more, as are all such folders in it."""
    try:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False
        with open(path / LOCK, "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return all(_is_left(inner) for inner in path.glob("servinglab-*") if (inner / LOCK).exists())
