"""tritonserver as a process: its ports, start through the supervisor, readiness, end, its log and what that says."""

import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servinglab import scratch
from servinglab.assets import cache_dir
from servinglab.server import supervisor
from servinglab.server.install import ServerError
from servinglab.triton_24_10 import clean, dead_processes

HOST = "127.0.0.1"
GRACE_SECONDS = 4.0  # after an orderly stop was asked for, tritonserver is killed
DEAD_SECONDS = 3.0  # Triton itself notices most deaths of a model's process within a second
# Of the log: errors that every machine without an NVIDIA driver has, and consequences of an error that stands there.
HARMLESS = ("CudaDriverHelper", "NVML", "DCGM", "Failed to create instance", "failed to load all models")
CONSEQUENCE = ("which has no loaded version", "depends on", "not ready")
LOGS_KEPT = 300  # the one that explains a failure should outlive the servers of a whole test run
LINE = re.compile(r"^[EF]\d{4} [\d:.]+ \d+ [\w.]+:\d+\] (.*)$", re.M)


class PortTaken(Exception):
    """Another program took this port between choosing it and binding it."""


class Aborted(ServerError):
    """Triton ended itself during the start, by an exception that it did not catch: seen once in some thousand starts of
    24.10, of its Python backend (a lock)."""


def choose_ports(fixed: dict[str, int | None]) -> dict[str, int]:
    """A free port for each service, or the fixed one if it can be bound; ServerError otherwise."""
    ports: dict[str, int] = {}
    with contextlib.ExitStack() as held:  # until all are chosen, so that no two are equal
        for service, port in fixed.items():
            if port in ports.values():
                raise ServerError(f"Port {port} is given twice: HTTP, gRPC and metrics need a port each.")
            each = held.enter_context(socket.socket())
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                each.bind((HOST, port or 0))
            except (OSError, OverflowError) as error:
                raise port_error(port, service, getattr(error, "strerror", None) or str(error)) from None
            ports[service] = each.getsockname()[1]
    return ports


def port_error(port: int | None, service: str, reason: str) -> ServerError:
    cure = f"give another {service}_port, or leave it out and a free one is chosen"
    return ServerError(f"Triton cannot use port {port} for {service} ({reason}): {cure}.")


def is_ready(port: int, path: str = "/v2/health/ready") -> bool:
    """Whether a server, with all of its models, is ready; False when nobody answers within two seconds."""
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=2)) as connection:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", path)
            return connection.getresponse().status == 200
    return False


def read_log(path: Path, offset: int = 0) -> str:
    """What the log holds after byte `offset`; "" when there is none."""
    with contextlib.suppress(OSError):
        return path.read_bytes()[offset:].decode(errors="replace")
    return ""


def log_error(log: str) -> str | None:
    """The log's own reason as one sentence, None if it holds no error: a library the loader misses, shared memory, a
    model that fails to load, or any other error line."""
    if found := re.search(r"error while loading shared libraries: ([^:\s]+): (.*)", log):
        return f"the library {found[1]} is missing ({found[2].strip()})"
    if re.search(r"No space left on device|shared memory key|--shm-size", log):
        return "/dev/shm is full: in Docker start the container with --shm-size=1g"
    errors = dict.fromkeys(clean(text) for text in LINE.findall(log) if not any(word in text for word in HARMLESS))
    if causes := [e for e in errors if not any(word in e for word in CONSEQUENCE)] or [*errors]:
        return causes[0] + (f" (and {len(causes) - 1} more, see the log)" if len(causes) > 1 else "")
    found = re.search(r"^error: (.*)", log, re.M)
    return clean(found[1]) if found else None


def taken_port(log: str) -> int | None:
    """Port that another program had, if that is why the server did not start."""
    found = re.search(r"Socket '[^']*:(\d+)' already in use", log)
    return int(found[1]) if found else None


class TritonProcess:
    """The supervisor and, through it, tritonserver. Dropping the object, or the end of this Python, ends both."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path, key: str) -> None:
        self._log = log
        order = {"argv": command, "env": env, "log": str(log), "grace": GRACE_SECONDS, "key": key}
        read_end, write_end = os.pipe()  # ours, not Popen's: whatever interrupts us, its end can be closed
        try:
            with open(read_end, "rb") as orders, open(log, "ab") as errors:
                popen = subprocess.Popen(
                    [sys.executable, "-I", "-S", supervisor.__file__],
                    stdin=orders, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
                )  # fmt: skip
            try:
                for start in range(0, len(data := json.dumps(order).encode() + b"\n"), 4096):
                    os.write(write_end, data[start : start + 4096])
                answer = json.loads(popen.stdout.readline())
            except (OSError, ValueError):
                answer = {}
            if "pid" not in answer:
                raise ServerError(f"Triton could not be started: {answer.get('error', 'no supervisor')}. Log: {log}")
        except BaseException:
            os.close(write_end)
            raise
        self.pid: int = answer["pid"]
        self._end = weakref.finalize(self, _end, popen, write_end, os.getpid())  # runs once, at the latest at exit
        threading.Thread(target=_clean_after, args=(popen, answer["shm_prefix"]), daemon=True).start()

    def alive(self) -> bool:
        return supervisor.start_time(self.pid) is not None

    def stop(self, at_once: bool = False) -> None:
        """End both and wait; `at_once` lets no request finish. No effect the second time."""
        if ending := self._end.detach():
            _end(*ending[2], b"kill\n" if at_once else b"stop\n")

    def wait_ready(self, models: list[str], ports: dict[str, int], timeout: float) -> None:
        """Return when the server and every model are ready. Raises ServerError with the log's reason (maybe Aborted),
        or PortTaken."""
        deadline = time.monotonic() + timeout
        dead: dict[int, float] = {}  # when each was seen first
        look = 0.0  # for the dead among all processes of the machine, which takes longer than the rest of a round
        reason = None
        while reason is None:
            alive, log = self.alive(), read_log(self._log)
            if not alive:
                if port := taken_port(log):
                    raise PortTaken(port)
                if found := re.search(r"^terminate called after.*?$(?:\s+what\(\): +(.*))?", log, re.M):
                    said = (found[1] or found[0]).strip()
                    raise Aborted(f"Triton did not start: it ended itself ({said}). Its log: {self._log}")
                reason = log_error(log) or "it ended during the start"
            # Whoever stole a port might answer in Triton's place, so Triton's own log must say that it listens: gRPC
            # and HTTP come first, metrics last. It says so, too, of a metrics port that it finds taken a moment later.
            elif "Started Metrics Service" in log and is_ready(ports["metrics"], "/metrics"):
                if is_ready(ports["http"]) and not taken_port(read_log(self._log)):
                    return
            if time.monotonic() > look:
                dead = {pid: dead.get(pid, time.monotonic()) for pid in dead_processes(self.pid)}
                look = time.monotonic() + 0.5
            if dead and time.monotonic() - min(dead.values()) > DEAD_SECONDS:  # Triton would wait for it until the end
                reason = reason or "a model's Python process died while it was being loaded, perhaps out of memory"
            if time.monotonic() > deadline:
                late = [name for name in models if f"successfully loaded '{name}'" not in log] or ["itself"]
                reason = reason or f"it was not ready after {timeout:.0f} s, still loading: {', '.join(late)}"
            time.sleep(0.03)
        raise ServerError(f"Triton did not start: {reason}. Its log: {self._log}")


def _end(popen: subprocess.Popen, lifeline: int, owner: int, word: bytes = b"kill\n") -> None:
    """Tell the supervisor to end and wait for it (it needs GRACE_SECONDS and a little).

    At once, unless `stop` says otherwise: a Jupyter kernel that takes longer than 2.5 s to end is killed, before its
    temporary folders are removed.
    """
    if os.getpid() != owner:  # a forked child must not end what is its parent's
        return
    with contextlib.suppress(OSError):  # the supervisor has ended
        os.write(lifeline, word)
    os.close(lifeline)
    try:
        popen.wait(GRACE_SECONDS + 4)
    except subprocess.TimeoutExpired:
        popen.kill()  # the kernel then kills tritonserver
        popen.wait()
    popen.stdout.close()


def _clean_after(popen: subprocess.Popen, shm_prefix: str) -> None:
    """Wait for the supervisor; if it was killed, do its last duties."""
    if popen.wait() != 0:
        time.sleep(0.1)  # the kernel is killing tritonserver
        supervisor.kill_stubs(shm_prefix)
        supervisor.remove_shm(shm_prefix)


# --- the folder `run` of the cache: logs, and servers that other commands find (`course serve`, `course ask`) ---------


def run_folder() -> Path:
    """`run` of the cache; beside a cache that is read-only, a folder of this user's in the temporary one."""
    folder = cache_dir() / "run"
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if os.access(there, os.W_OK):
        return folder
    own = Path(scratch.outer()) / f"servinglab-run-{os.getuid()}"
    with contextlib.suppress(OSError):
        own.mkdir(mode=0o700, exist_ok=True)
        if own.stat().st_uid == os.getuid() and not own.is_symlink():
            return own
    return folder


def new_log(program: str = "triton") -> Path:
    """One more log, empty. Of the old ones the newest are kept, and those of Pythons that still run. Raises OSError."""
    for path in list(_own(f"{program}-*-*-*-*.log"))[: 1 - LOGS_KEPT]:
        owner = path.stem.split("-")[3]
        if not (owner.isdigit() and supervisor.start_time(int(owner))):
            with contextlib.suppress(OSError):
                path.unlink()
    name = f"{program}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{time.monotonic_ns() % 10**6}.log"
    (log := run_folder() / name).parent.mkdir(parents=True, exist_ok=True)
    log.touch(0o600)  # prompts may stand in it
    return log


def announce(pid: int, **facts: str) -> Path:
    """Write the state file of a started server: what `announced` shall tell this user of it."""
    path = run_folder() / f"server-{time.time_ns()}-{supervisor.identity(pid)}.json"
    draft = path.with_suffix(".tmp")
    draft.parent.mkdir(parents=True, exist_ok=True)
    draft.write_text(json.dumps(facts))
    draft.rename(path)  # a reader never sees half of it
    return path


def announced() -> list[dict[str, Any]]:
    """What was said of this user's servers whose process still lives, newest first; forgets the others."""
    found = []
    for path in reversed(list(_own(f"server-*-{supervisor.pid_namespace()}-*.json"))):
        _, when, _, pid, _ = path.stem.split("-")
        with contextlib.suppress(OSError):  # a folder that is read-only by now
            if path.stem == f"server-{when}-{supervisor.identity(int(pid))}":
                found.append(json.loads(path.read_text()))
            else:
                path.unlink()
    return found


def _own(pattern: str) -> Iterator[Path]:
    """This user's files in the run folder, by name. Those of others, in a cache that is shared, are not ours to read
    or to remove."""
    for path in sorted(run_folder().glob(pattern)):
        with contextlib.suppress(OSError):  # gone meanwhile
            if path.stat().st_uid == os.getuid():
                yield path
