"""Own one tritonserver, so that nothing of it outlives the Python that asked for it.

Run as a script by `servinglab.server`, with the standard library only (it starts in about 30 ms). Protocol:

* stdin, one JSON line: {"argv": [...], "env": {...}, "log": path, "grace": seconds}; argv may hold "{shm_prefix}".
* stdout, one JSON line: {"pid": of tritonserver, "shm_prefix": "..."} or {"error": "..."}.
* afterwards "stop" (orderly, then SIGKILL after `grace`), "kill" (at once), or end of file (same as "stop").

The parent's death is also seen by its process id, because a fork of the parent may hold the pipe open. If this process
is itself killed, the kernel kills tritonserver (PR_SET_PDEATHSIG), and its Python stubs leave when they miss it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

SHM = Path("/dev/shm")
TRITON_FOLDERS = "python_env_??????"  # the Python backend makes one at each start, for packed environments
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def start_time(pid: int) -> str | None:
    """Clock ticks since boot at which a process started, None if there is no such process (a zombie counts as none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def shm_prefix() -> str:
    """Prefix of this server's shared-memory files. It names the owner, so that a later start can tell leftovers."""
    pid = os.getpid()
    return f"servinglab-{_pid_namespace()}-{pid}-{start_time(pid)}-"


def remove_shm(prefix: str) -> None:
    for path in SHM.glob(prefix + "*"):
        try:
            path.unlink()
        except OSError:  # another user's, or already gone
            pass


def remove_empty(folders: set[Path]) -> None:
    """Triton forgets them when it is killed. Another server that started meanwhile does not miss an empty one."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def sweep_leftovers() -> None:
    """Remove shared memory of servers whose supervisor is gone; another pid namespace's (container's) stays."""
    for path in SHM.glob(f"servinglab-{_pid_namespace()}-*"):
        owner = re.match(r"servinglab-\d+-(\d+)-(\d+)-", path.name)
        if owner and start_time(int(owner[1])) != owner[2]:
            remove_shm(owner[0])


def kill_group(pgid: int, wait: float = 2.0) -> None:
    """SIGKILL a whole process group and wait (bounded) until no member is left."""
    deadline = time.monotonic() + wait
    while time.monotonic() < deadline:
        try:
            os.killpg(pgid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
        _reap()
        time.sleep(0.02)


def kill_children(wait: float = 2.0) -> None:
    """SIGKILL whoever is our child now and wait (bounded): as subreaper we inherit what a killed server started, such
    as the ranks of an mpirun, each in a process group of its own."""
    deadline = time.monotonic() + wait
    while time.monotonic() < deadline:
        _reap()
        found = [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _parent(entry) == os.getpid()]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _parent(entry: Path) -> int | None:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def kill_stubs(prefix: str) -> None:
    """SIGKILL every process of the server with this prefix: it is in the arguments of Python stubs and of MPI ranks."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if prefix.encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except OSError:
            continue


def _reap() -> dict[int, int]:
    """Collect every child that ended; as subreaper we also inherit Triton's stubs."""
    ended = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def _child_setup(parent: int) -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if os.getppid() != parent:  # we lost the race: the supervisor died before prctl
        os._exit(1)


def _read_order() -> dict:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 65536)
        if not byte:
            sys.exit(0)
        line += byte
    return json.loads(line)


def _watch(pid: int, parent: int, stopping: list[str]) -> str:
    """Wait for a reason to end: "exited", "stop" or "kill"."""
    while True:
        if pid in _reap():
            return "exited"
        if stopping or os.getppid() != parent:
            return "stop"
        if select.select([0], [], [], 0.2)[0]:
            return "kill" if os.read(0, 64).startswith(b"kill") else "stop"


def main() -> None:
    parent = os.getppid()
    stopping: list[str] = []
    # Ctrl-C and a closing terminal are the parent's business: it tells us what it wants.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stopping.append("stop"))
    order = _read_order()
    sweep_leftovers()
    prefix = shm_prefix()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    supervisor = os.getpid()
    others = set(Path("/tmp").glob(TRITON_FOLDERS))
    try:
        with open(order["log"], "ab") as log:
            child = subprocess.Popen(
                [argument.replace("{shm_prefix}", prefix) for argument in order["argv"]],
                env=order["env"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=lambda: _child_setup(supervisor),
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        _say({"error": str(error)})
        return
    try:
        _say({"pid": child.pid, "shm_prefix": prefix})
        reason = _watch(child.pid, parent, stopping)
        if reason == "stop":
            os.kill(child.pid, signal.SIGTERM)
            deadline = time.monotonic() + order["grace"]
            while time.monotonic() < deadline and child.pid not in _reap():
                time.sleep(0.02)
    finally:
        kill_group(child.pid)
        kill_children()
        remove_shm(prefix)
        remove_empty(set(Path("/tmp").glob(TRITON_FOLDERS)) - others)
        child.returncode = 0  # reaped above; keeps Popen's destructor quiet


def _say(message: dict) -> None:
    try:
        os.write(1, json.dumps(message).encode() + b"\n")
    except OSError:  # the parent is gone; _watch notices
        pass


if __name__ == "__main__":
    main()
