"""tritonserver as a process: its ports, start through the supervisor, readiness, end, and what its log says of it."""

from __future__ import annotations

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
from pathlib import Path
from urllib.parse import urlsplit

from servinglab.server import supervisor
from servinglab.server.install import ServerError
from servinglab.triton_24_10 import clean, dead_processes

HOST = "127.0.0.1"
GRACE_SECONDS = 4.0  # after an orderly stop was asked for, tritonserver is killed
DEAD_SECONDS = 3.0  # Triton itself notices most deaths of a model's process within a second
# Of the log: errors that every machine without an NVIDIA driver has, and consequences of an error that stands there.
HARMLESS = ("CudaDriverHelper", "NVML", "DCGM", "Failed to create instance", "failed to load all models")
CONSEQUENCE = ("which has no loaded version", "depends on", "not ready")
LINE = re.compile(r"^[EF]\d{4} [\d:.]+ \d+ [\w.]+:\d+\] (.*)$", re.M)


class PortTaken(Exception):
    """Another program took a port between choosing it and binding it."""

    def __init__(self, port: int) -> None:
        self.port = port


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


def http_status(url: str, path: str) -> int | None:
    """Status of a GET, None when nobody answers within two seconds."""
    with contextlib.closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=2)) as connection:
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException, ValueError):
            return None


def read_log(path: Path, offset: int = 0) -> str:
    """What the log holds after byte `offset`; "" when there is none."""
    try:
        return path.read_bytes()[offset:].decode(errors="replace")
    except OSError:
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
            try:
                with open(log, "ab") as errors:
                    popen = subprocess.Popen(
                        [sys.executable, "-I", "-S", supervisor.__file__],
                        stdin=read_end, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
                    )  # fmt: skip
            finally:
                os.close(read_end)
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
        self._lifeline = write_end
        self._owner = os.getpid()  # a forked child must not end what is its parent's
        self._end = weakref.finalize(self, _end, popen, write_end, self._owner)  # runs once, at the latest at exit
        threading.Thread(target=_clean_after, args=(popen, answer["shm_prefix"]), daemon=True).start()

    def alive(self) -> bool:
        """Whether tritonserver runs."""
        return supervisor.start_time(self.pid) is not None

    def stop(self, at_once: bool = False) -> None:
        """End both and wait; `at_once` lets no request finish. No effect the second time."""
        if self._end.alive and os.getpid() == self._owner:
            _tell(self._lifeline, b"kill\n" if at_once else b"stop\n")
        self._end()

    def wait_ready(self, models: list[str], ports: dict[str, int], timeout: float) -> None:
        """Return when the server and every model are ready. Raises ServerError with the log's reason, or PortTaken."""
        url, metrics_url = (f"http://{HOST}:{ports[service]}" for service in ("http", "metrics"))
        paths = ["/v2/health/ready", *(f"/v2/models/{name}/ready" for name in models)]
        deadline = time.monotonic() + timeout
        dead: dict[int, float] = {}  # when each was seen first
        reason = None
        while reason is None:
            alive, log = self.alive(), read_log(self._log)
            if not alive:
                if port := taken_port(log):
                    raise PortTaken(port)
                reason = log_error(log) or "it ended during the start"
            # Whoever stole a port might answer in Triton's place, so Triton's own log must say that it listens: gRPC
            # and HTTP come first, metrics last.
            elif "Started Metrics Service" in log and http_status(metrics_url, "/metrics") == 200:
                if all(http_status(url, path) == 200 for path in paths) and not taken_port(log):
                    return
            dead = {pid: dead.get(pid, time.monotonic()) for pid in dead_processes(self.pid)}
            if dead and time.monotonic() - min(dead.values()) > DEAD_SECONDS:  # Triton would wait for it until the end
                reason = reason or "a model's Python process died while it was being loaded, perhaps out of memory"
            if time.monotonic() > deadline:
                late = [name for name in models if f"successfully loaded '{name}'" not in log] or ["itself"]
                reason = reason or f"it was not ready after {timeout:.0f} s, still loading: {', '.join(late)}"
            time.sleep(0.03)
        raise ServerError(f"Triton did not start: {reason}. Its log: {self._log}")


def _end(popen: subprocess.Popen, lifeline: int, owner: int) -> None:
    """Tell the supervisor to end and wait for it (it needs GRACE_SECONDS and a little). Nothing in a forked child.

    At once, unless `stop` has said otherwise before: at the end of a Python there is nobody to answer any more, and a
    Jupyter kernel that takes longer than 2.5 s to end is killed, before its temporary folders are removed.
    """
    if os.getpid() != owner:
        return
    _tell(lifeline, b"kill\n")
    os.close(lifeline)
    try:
        popen.wait(GRACE_SECONDS + 4)
    except subprocess.TimeoutExpired:
        popen.kill()  # the kernel then kills tritonserver
        popen.wait()
    popen.stdout.close()


def _tell(lifeline: int, word: bytes) -> None:
    with contextlib.suppress(OSError):  # the supervisor has ended
        os.write(lifeline, word)


def _clean_after(popen: subprocess.Popen, shm_prefix: str) -> None:
    """Wait for the supervisor; if it was killed, do its last duties."""
    if popen.wait() != 0:
        time.sleep(0.1)  # the kernel is killing tritonserver
        supervisor.kill_stubs(shm_prefix)
        supervisor.remove_shm(shm_prefix)
