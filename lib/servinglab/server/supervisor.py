"""Own one tritonserver, so that nothing of it outlives the Python that asked for it.

Run as a script by `servinglab.server.process`, with the standard library only (it starts in about 30 ms). Protocol:

* stdin, one JSON line: {"argv": [...], "env": {...}, "log": path, "grace": seconds, "key": "..."}; argv may hold
  "{shm_prefix}" and "{key}". Arguments with the key reach tritonserver, but not the command line that others see.
* stdout, one JSON line: {"pid": of tritonserver, "shm_prefix": "..."} or {"error": "..."}.
* afterwards "stop" (orderly, then SIGKILL after `grace`), "kill" (at once), or end of file (same as "stop").

The parent's death is also seen by its process id, because a fork of the parent may hold the pipe open. If this process
is itself killed, the kernel kills tritonserver (PR_SET_PDEATHSIG), and its Python stubs leave when they miss it.
"""

import contextlib
import ctypes
import json
import math
import os
import re
import select
import signal
import stat
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

SHM = Path("/dev/shm")
TRITON_FOLDERS = "python_env_??????"  # the Python backend makes one at each start, for packed environments
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PTRACE_TRACEME, PTRACE_GETREGS, PTRACE_DETACH = 0, 12, 17
STACK_POINTER = 19  # its place among the x86-64 registers of ptrace(2)
ARGV_AND_ENVIRON = slice(45, 49)  # where each begins and ends: of the fields of /proc/PID/stat behind the name
IN_ATTRIB, IN_CREATE = 0x4, 0x100  # inotify(7): Triton creates a file, and then sets its mode
HIDDEN = "SERVINGLAB_ARGUMENT_"
# Ctrl-C, a closing terminal, the end of a session: the parent tells us what it wants, or we see that it ended.
PARENTS_BUSINESS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _fields(pid: int | str) -> list[str]:
    """Of /proc/PID/stat, behind the name: state, parent, … Raises OSError where there is no such process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def start_time(pid: int) -> str | None:
    """Clock ticks since boot at which a process started, None if there is no such process (a zombie counts as none)."""
    try:
        fields = _fields(pid)
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def pid_namespace() -> int:
    """Process ids mean something within it; a container has another."""
    return os.stat("/proc/self/ns/pid").st_ino


def identity(pid: int) -> str:
    """What only this process has, as long as the machine runs."""
    return f"{pid_namespace()}-{pid}-{start_time(pid)}"


def remove_shm(prefix: str) -> None:
    for path in SHM.glob(prefix + "*"):
        with contextlib.suppress(OSError):  # another user's, or already gone
            path.unlink()


def remove_forgotten(folder: Path, began: Sequence[float]) -> None:
    """Remove the empty folders of servers that were killed: those made before any server began that runs now, as Triton
    ends with an exception when its own is gone. began: their times in seconds since the epoch."""
    for made in folder.glob(TRITON_FOLDERS):
        with contextlib.suppress(OSError):  # a full one is another's
            if made.stat().st_mtime < min(began, default=math.inf):
                made.rmdir()


def _tritons() -> list[float]:
    """When each tritonserver that runs on this machine began, in seconds since the epoch."""
    booted, found = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME), []
    for entry in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # ended meanwhile
            if entry.read_text() == "tritonserver\n" and (ticks := start_time(int(entry.parent.name))):
                found.append(booted + int(ticks) / os.sysconf("SC_CLK_TCK"))
    return found


def _sweep_leftovers() -> None:
    """Remove shared memory of servers whose supervisor is gone; another pid namespace's (container's) stays."""
    for path in SHM.glob(f"servinglab-{pid_namespace()}-*"):
        owner = re.match(r"servinglab-(\d+-(\d+)-\d+)-", path.name)
        if owner and owner[1] != identity(int(owner[2])):
            remove_shm(owner[0])


def _kill_children(wait: float = 4.0) -> None:
    """SIGKILL whoever is our child and wait (bounded): as subreaper we inherit what a killed server started, such as
    its stubs, or the ranks of an mpirun, each in a process group of its own."""
    deadline = time.monotonic() + wait
    while time.monotonic() < deadline:
        _reap()
        if not (found := _children(os.getpid())):
            return
        for pid in found:
            with contextlib.suppress(OSError):  # ended meanwhile
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            if _fields(entry.name)[1] == str(pid):
                found.append(int(entry.name))
    return found


def kill_stubs(prefix: str) -> None:
    """SIGKILL every process of the server with this prefix: it is in the arguments of Python stubs and of MPI ranks."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if prefix.encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)


def _reap() -> set[int]:
    """Collect every child that ended."""
    ended = set()
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            ended.add(pid)
    return ended


def _trace_me() -> bool:
    return os.uname().machine == "x86_64" and ctypes.CDLL(None).ptrace(PTRACE_TRACEME, 0, None, None) == 0


def _start(order: dict, prefix: str) -> subprocess.Popen:
    """Start tritonserver so that no other user of this machine reads the key.

    Triton takes it by an argument only, and everybody may read the arguments of every process. So the command line
    shows "{key}", the real argument stands in the environment, which only its owner may read, and before the program's
    first instruction its argument is pointed there. Where a process may not be traced, the key is in the command line.
    """
    argv = [argument.replace("{shm_prefix}", prefix) for argument in order["argv"]]
    real = {text: text.replace("{key}", order["key"]) for text in argv if "{key}" in text}
    supervisor, traced = os.getpid(), bool(real) and _may_trace()

    def setup() -> None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in PARENTS_BUSINESS:
            signal.signal(number, signal.SIG_DFL)
        if os.getppid() != supervisor:  # we lost the race: it died before prctl
            os._exit(1)
        if traced:
            _trace_me()

    with open(order["log"], "ab") as log:
        child = subprocess.Popen(
            argv if traced else [real.get(text, text) for text in argv],
            env=order["env"] | {f"{HIDDEN}{n}": text for n, text in enumerate(real.values()) if traced},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=setup,
            umask=0o077,
        )  # fmt: skip
    if traced:
        os.waitpid(child.pid, 0)  # it stands before its first instruction
        try:
            _point_to_environment(child.pid, list(real))
        except BaseException:
            child.kill()
            raise
        finally:
            ctypes.CDLL(None).ptrace(PTRACE_DETACH, child.pid, None, None)
    return child


def _may_trace() -> bool:
    """Whether a child may ask to be traced: some containers and hardened systems forbid it."""
    if (pid := os.fork()) == 0:
        os._exit(not _trace_me())
    return os.waitpid(pid, 0)[1] == 0


def _point_to_environment(pid: int, shown: list[str]) -> None:
    """In a process that is stopped at its start, let argv point from each text that is shown to its real one."""
    registers = (ctypes.c_ulong * 27)()
    ctypes.CDLL(None).ptrace(PTRACE_GETREGS, pid, None, registers)
    places = list(map(int, _fields(pid)[ARGV_AND_ENVIRON]))
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        argv, environ = (_texts(memory, *places[at : at + 2]) for at in (0, 2))
        for n, text in enumerate(argv.values()):
            if text.decode(errors="replace") in shown:
                name = f"{HIDDEN}{shown.index(text.decode())}=".encode()
                (at,) = (at for at, entry in environ.items() if entry.startswith(name))
                memory.seek(registers[STACK_POINTER] + 8 * (1 + n))  # argc, then argv
                memory.write((at + len(name)).to_bytes(8, "little"))


def _texts(memory: BinaryIO, start: int, end: int) -> dict[int, bytes]:
    """The texts between two addresses, each with its own."""
    memory.seek(start)
    found = {}
    for text in memory.read(end - start).split(b"\0")[:-1]:
        found[start] = text
        start += len(text) + 1
    return found


def close_shm(prefix: str) -> None:
    """Take shared memory from the machine's other users: Triton makes it readable for everybody."""
    for path in SHM.glob(prefix + "*"):
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # another user may have put a link there
            try:
                state = os.fstat(file)
                if stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid() and state.st_mode & 0o077:
                    os.fchmod(file, 0o600)
            finally:
                os.close(file)


def _shm_events() -> list[int]:
    """A descriptor that tells of what changes in /dev/shm, if there can be one."""
    libc = ctypes.CDLL(None)
    file = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    libc.inotify_add_watch(file, bytes(SHM), IN_ATTRIB | IN_CREATE)
    return [file] if file >= 0 else []


def _watch(pid: int, parent: int, prefix: str) -> str:
    """Wait for a reason to end: "exited", "stop" or "kill"."""
    events = _shm_events()
    while True:
        close_shm(prefix)
        if pid in _reap():
            return "exited"
        if os.getppid() != parent:
            return "stop"
        ready = select.select([0, *events], [], [], 0.2)[0]
        if 0 in ready:
            return "kill" if os.read(0, 64).startswith(b"kill") else "stop"
        for file in ready:
            os.read(file, 2**16)


def main() -> None:
    parent = os.getppid()
    for number in PARENTS_BUSINESS:
        signal.signal(number, signal.SIG_IGN)
    with open(0, "rb", buffering=0, closefd=False) as orders:  # unbuffered: the next word is for _watch
        line = orders.readline()
    if not line.endswith(b"\n"):
        return
    order = json.loads(line)
    _sweep_leftovers()
    # It names the owner, so that a later start can tell leftovers.
    prefix = f"servinglab-{identity(os.getpid())}-"
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        child = _start(order, prefix)
    except (OSError, subprocess.SubprocessError) as error:
        _say({"error": str(error)})
        return
    try:
        _say({"pid": child.pid, "shm_prefix": prefix})
        if _watch(child.pid, parent, prefix) == "stop":
            models = _children(child.pid)
            os.kill(child.pid, signal.SIGTERM)
            deadline = time.monotonic() + order["grace"]
            while time.monotonic() < deadline and child.pid not in _reap():
                if models and not any(map(start_time, models)):  # all ended in order; Triton looks once a second
                    break
                time.sleep(0.02)
    finally:
        _kill_children()
        remove_shm(prefix)
        remove_forgotten(Path("/tmp"), _tritons())
        child.returncode = 0  # reaped above; keeps Popen's destructor quiet


def _say(message: dict) -> None:
    with contextlib.suppress(OSError):  # the parent is gone; _watch notices
        os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
