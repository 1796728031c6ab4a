"""A file of vectors: Milvus Lite opened and released for `vectors.VectorStore` (notebook 15).

milvus-lite starts a program for the file and leaves three things to its caller: whether another Python has the file
open, when the program may end, and what is wrong with a file that it cannot read.
"""

from __future__ import annotations

import fcntl
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servinglab.errors import CourseError

LOCKED_SECONDS = 5.0  # how long a file may still be held by the program of a Python that was killed

_opened: Counter[str] = Counter()
_opening = threading.Lock()


class VectorError(CourseError):
    """The vector store cannot be reached, or refuses something."""


def open_file(file: Path, connect: Callable[[str], Any]) -> Any:
    """What `connect` gives for the file, which is made if it is not there. Waits for a Python that is ending."""
    if file.suffix != ".db" or not all(c.isascii() and (c.isalnum() or c in ".-_") for c in file.name):
        raise VectorError(
            f"{file.name} cannot be a file of vectors: its name must end in .db and have only letters, digits, dots, "
            "hyphens and underscores."
        )
    if len(file.name) > 36:
        raise VectorError(f"The name {file.name} is longer than 36 characters, the most that Milvus takes.")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + LOCKED_SECONDS
        while _locked(file):
            if time.monotonic() > deadline:
                raise VectorError(
                    f"{file} is open in another Python (another notebook?): close it there, or use another file."
                )
            time.sleep(0.1)
    except OSError as error:
        raise VectorError(f"Vectors cannot be kept in {file.parent}: {error.strerror}.") from None
    with _opening:
        try:
            client = connect(str(file))
        except VectorError:
            raise VectorError(
                f"{file} is no file of vectors that Milvus can read: remove it and build the index again."
            ) from None
        _opened[str(file)] += 1
    return client


def release(file: Path) -> None:
    """To be called once for each `open_file`. After the last one of this Python, the file's program has ended."""
    with _opening:
        _opened[str(file)] -= 1
        if _opened[str(file)] <= 0:
            _manager().release_server(str(file))


def _manager() -> Any:
    """What milvus-lite knows of the programs that this Python has started."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="pkg_resources is deprecated")  # milvus-lite imports it
        from milvus_lite.server_manager import server_manager_instance
    return server_manager_instance


def _locked(file: Path) -> bool:
    """Whether another Python has the file open.

    Asked before milvus-lite is: when it finds the file locked, it removes the lock of the other and says only "failed",
    and whoever comes third would write to the file beside the first.
    """
    lock = file.parent / f".{file.name}.lock"
    # A process that closes a file gives up its own locks on it, so one that has it open must not look.
    if str(file.resolve()) in _manager()._servers or not lock.exists():
        return False
    with open(lock, "a") as handle:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
