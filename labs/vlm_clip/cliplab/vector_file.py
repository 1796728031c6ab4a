"""A file of vectors: Milvus Lite opened and released for `vectors.VectorStore` (notebook 15).

milvus-lite starts a program for the file and leaves five things to its caller: whether another Python has the file
open, when the program may end, that Ctrl-C does not end it, what is wrong with a file that it cannot read, and whether
what it says it wrote is in the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

from filelock import FileLock, Timeout

from servinglab.errors import CourseError

_ROOM = 2**20  # bytes; a new file takes a tenth
LOCKED_SECONDS = 5.0  # how long a file may still be held by the program of a Python that was killed

_opened: Counter[str] = Counter()
_held: dict[str, FileLock] = {}  # locked files beside those that this Python has open
_opening = threading.Lock()
writing = threading.Lock()  # held for a write and `verify`: reading the file meanwhile could make the write fail


class VectorError(CourseError):
    """The vector store cannot be reached, or refuses something."""


class _InUse(VectorError):
    """Another Python has the file."""


def open_file(file: Path, connect: Callable[[str], Any]) -> Any:
    """What `connect` gives for a resolved path; the file is made if need be. Waits for a Python that is ending."""
    if file.suffix != ".db" or not all(c.isascii() and (c.isalnum() or c in ".-_") for c in file.name):
        raise VectorError(
            f"{file.name} cannot be a file of vectors: its name must end in .db and have only letters, digits, dots, "
            "hyphens and underscores."
        )
    if len(file.name) > 36:
        raise VectorError(f"The name {file.name} is longer than 36 characters, the most that Milvus takes.")
    # Without this each program leaves its log in the temporary folder, and says on the terminal what we say here.
    os.environ.setdefault("GLOG_minloglevel", "3")
    with _opening:
        try:
            new = not file.exists()
            _take(file)
            _clear_dead(file)
            client = _connected(file, connect)
            _opened[str(file)] += 1
        except OSError as error:
            raise VectorError(f"Vectors cannot be kept in {file.parent}: {error.strerror}.") from None
        except _InUse:
            raise
        except VectorError:
            if shutil.disk_usage(file.parent).free < _ROOM:
                raise VectorError(f"Vectors cannot be kept in {file.parent}: its disk is full; make room.") from None
            if new:
                raise VectorError(
                    f"Milvus did not come up for the new file {file}: try again, or set TMPDIR to /tmp."
                ) from None
            raise VectorError(
                f"{file} is no file of vectors that Milvus can read: move it away and build the index again."
            ) from None
        finally:
            _give_back(file)
    return client


def _connected(file: Path, connect: Callable[[str], Any]) -> Any:
    """A file that is yet to be made is tried twice: now and then Milvus does not come up, and nothing can be lost."""
    new = not file.exists()
    try:
        return connect(str(file))
    except VectorError:
        if not new or shutil.disk_usage(file.parent).free < _ROOM:
            raise
        return connect(str(file))


def release(file: Path) -> None:
    """To be called once for each `open_file`. After the last one of this Python, the file's program has ended."""
    with _opening:
        _opened[str(file)] -= 1
        _give_back(file)


def verify(file: Path, collection: str, rows: Mapping[str, str]) -> None:
    """See with SQLite, which milvus-lite writes with, whether the file holds the rows that were acknowledged last.

    What milvus-lite cannot insert (a full disk, a file that was removed) it acknowledges all the same, and answers from
    its memory until it ends; it reports deletions that fail. rows: {id: fingerprint}. Raises VectorError, and ends the
    program, so that the next one to open the file sees what there is.
    """
    newest = f'SELECT milvus_id, CAST(data AS BLOB) FROM "{collection}" ORDER BY id DESC LIMIT {len(rows)}'
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=30)) as base:
            there = {name for name, data in base.execute(newest) if name in rows and rows[name].encode() in data}
        reason = "" if there == rows.keys() else "is its disk full?"
    except sqlite3.Error as error:
        reason = str(error)
    if reason:
        with _opening:
            _end(file)
        raise VectorError(
            f"{file} does not hold what was written to it last ({reason}): mend that, open it again, write again."
        )


def _take(file: Path) -> None:
    """Make the file this Python's, if it is not yet. Waits for a Python, or a program of one, that is ending.

    milvus-lite has a lock too and removes it when a second Python asks: a third one would write beside the first.
    """
    if str(file) in _held:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = _held[str(file)] = FileLock(file.parent / f".{file.name}.open", thread_local=False)  # any thread may close
    deadline = time.monotonic() + LOCKED_SECONDS
    try:
        lock.acquire(timeout=LOCKED_SECONDS)
        while _locked(file):
            if time.monotonic() > deadline:
                raise Timeout(lock.lock_file)
            time.sleep(0.1)
    except Timeout:
        raise _InUse(
            f"{file} is open in another Python (another notebook?): close it there, or use another file."
        ) from None
    if file.exists() and not os.access(file, os.W_OK):  # milvus-lite would open it and lose what is written
        raise PermissionError(errno.EACCES, "Permission denied")


def _give_back(file: Path) -> None:
    """Unless this Python still has the file open."""
    if _opened[str(file)] <= 0 and (lock := _held.pop(str(file), None)):
        _end(file)
        lock.release()


def _end(file: Path) -> None:
    manager = _manager()
    if str(file) in manager._servers:
        manager.release_server(str(file))


def _clear_dead(file: Path) -> None:
    """Forget a program that was killed, and remove the sockets that it and others for this name have left."""
    server = _manager()._servers.get(str(file))
    if server and server._p.poll() is not None:
        _end(file)
    for path in Path(_sockets()).glob(f"tmp*_{file.name}.sock"):
        with socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(1)
            try:
                asked.connect(str(path))
            except ConnectionRefusedError:  # nobody listens
                with contextlib.suppress(OSError):
                    path.unlink()
            except OSError:
                pass


def _sockets() -> str:
    """Where programs listen. A socket's path has 107 bytes at most: a long TMPDIR leaves too few for the name."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= 50 else "/tmp"


def _manager() -> Any:
    """What milvus-lite knows of the programs that this Python has started."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="pkg_resources is deprecated")  # milvus-lite imports it
        from milvus_lite import server
        from milvus_lite.server_manager import server_manager_instance
    # In a session of its own: JupyterLab's Stop interrupts all processes of the kernel's group, and this one would end.
    popen = functools.partial(subprocess.Popen, start_new_session=True)
    server.tempfile = SimpleNamespace(mktemp=lambda: tempfile.mktemp(dir=_sockets()))
    server.subprocess = SimpleNamespace(Popen=popen, TimeoutExpired=subprocess.TimeoutExpired)
    return server_manager_instance


def _locked(file: Path) -> bool:
    """Whether a program of milvus-lite has the file open: that of another Python, which may have been killed."""
    lock = file.parent / f".{file.name}.lock"
    # A process that closes a file gives up its own locks on it, so one that has it open must not look.
    if str(file) in _manager()._servers or not lock.exists():
        return False
    with open(lock, "a") as handle:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
