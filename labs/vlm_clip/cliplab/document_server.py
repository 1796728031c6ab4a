"""The offline document store: SecantusDB (beta), a server that speaks MongoDB's protocol (notebook 15).

Chosen by benchmarks/document_stores.py, where servers got SIGKILL 25 times each while four clients wrote
(data/results/cpu/document_stores.json):

    SecantusDB, write concern {w: 1}                    lost 524 of 14,831 acknowledged writes
    SecantusDB, write concern {w: "majority", j: true}  lost none of 12,624
    PostgreSQL (wheel pgserver), JSONB                  lost none of 64,441

So SecantusDB keeps its word when it is asked to, and DocumentStore asks for every write; then it reaches the disk (one
fsync for each write, as PostgreSQL does) before it is acknowledged. It is the default and not PostgreSQL, because the
same code and the same words then reach MongoDB, and because it runs as any user. PostgreSQL is older, starts sooner
(0.4 against 1.3 s) and is the better choice where nothing has to be MongoDB.

SecantusDB is a program of its own under GPL-2.0; this course only starts it and talks to it.

Who reaches it can also write any file of its user ("secantusAdmin.restoreArchive"), so no other user of the machine
may. It has passwords, but the first one must be set while the server is open to all. own_user.py leaves no such moment.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from pathlib import Path

from filelock import FileLock, Timeout

from cliplab import own_user
from servinglab.errors import CourseError
from servinglab.server.install import ServerError
from servinglab.server.process import GRACE_SECONDS, TritonProcess, new_log

HOST = "127.0.0.1"
PROGRAM = "secantusd-py"
SETTINGS = Path(__file__).with_name("no_settings.toml")
LOCK = ".documents.lock"
LOCKED_SECONDS = 2.0  # how long a Python that was killed may take to end
ENDING_SECONDS = GRACE_SECONDS + 5.0  # and then its server: the supervisor waits, kills, and looks that all are gone


class DocumentServerError(CourseError):
    """The server did not start, or ended."""


class DocumentServer:
    """A server on a folder, at a free port of 127.0.0.1. It ends with `stop`, with the block, or with this Python.

    Args:
        folder: where the documents are kept, in its folder `data`; made if it is not there. One server at a time.
        timeout: seconds to become ready; after a SIGKILL it first reads its journal.
    Raises DocumentServerError of one sentence.
    """

    def __init__(self, folder: str | Path, *, timeout: float = 60.0) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self._lock = FileLock(self.folder / LOCK, thread_local=False)  # held until the server has ended
        self._process: TritonProcess | None = None
        program = shutil.which(PROGRAM, path=str(Path(sys.executable).parent))
        if not program:
            raise DocumentServerError(f"{PROGRAM} is not in this environment: run `make setup`.")
        try:
            self.port = self._open(program, timeout)
        except BaseException:
            self.stop()
            raise

    @property
    def uri(self) -> str:
        return f"mongodb://{HOST}:{self.port}/?directConnection=true"

    @property
    def pid(self) -> int:
        return self._process.pid

    def _open(self, program: str, timeout: float) -> int:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=LOCKED_SECONDS)
            deadline = time.monotonic() + ENDING_SECONDS
            while not (port := self._start(program, timeout)):
                if time.monotonic() > deadline:
                    raise Timeout(self._lock.lock_file)
            return port
        except Timeout:
            raise DocumentServerError(
                f"Another server has the documents in {self.folder} open: stop it, or use another folder."
            ) from None
        except OSError as error:
            raise DocumentServerError(f"Documents cannot be kept in {self.folder}: {error.strerror}.") from None
        except ServerError:
            raise DocumentServerError(f"{PROGRAM} could not be started: its log is {self.log}.") from None

    def _start(self, program: str, timeout: float) -> int | None:
        """The port, or None if a server has the folder open: that of a Python which was killed, for a while."""
        # A log of its own: that server may still say in its log that it listens.
        self.log = new_log("documents")
        # Port 0: the kernel gives a free one. A file of no settings: one elsewhere must not change anything.
        command = [sys.executable, own_user.__file__, program, "--config", str(SETTINGS)]
        command += ["--host", HOST, "--port", "0", "--storage-path", str(self.folder / "data")]
        env = {name: value for name, value in os.environ.items() if not name.startswith("SECANTUS")}
        self._process = TritonProcess(command, env, self.log, key="")  # ends whatever it is told to start
        deadline = time.monotonic() + timeout
        while True:
            alive = self._process.alive()  # before its log is read: what it says last counts
            text = self.log.read_text(errors="replace")
            if found := re.search(r"listening on \S+:(\d+)", text):
                return int(found[1])
            if not alive:
                if "resource busy" in text.lower():
                    return None
                free = shutil.disk_usage(self.folder).free
                silent = "it said nothing" if free > 2**20 else "its disk is full"
                reason = (text.strip().splitlines() or [silent])[-1][:300]
                raise DocumentServerError(f"{PROGRAM} ended while it started ({reason}): its log is {self.log}.")
            if time.monotonic() > deadline:
                raise DocumentServerError(
                    f"{PROGRAM} was not ready after {timeout:.0f} s: give it more time, or read {self.log}."
                )
            time.sleep(0.02)

    def stop(self) -> None:
        """End the server in order and wait for it. No effect the second time."""
        if self._process:
            self._process.stop()
        self._lock.release()

    def __enter__(self) -> DocumentServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
