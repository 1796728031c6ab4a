"""What a server or a command leaves behind: processes, shared memory. Shared by the reliability tests."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import psutil

TINY_MODELS = Path(__file__).parents[1] / "models"
CLEAN_SECONDS = 20.0  # an orderly stop takes two seconds; what is left behind does not go by itself


class Mark:
    """A word in the environment by which every process that comes from one command is found, whoever adopted it."""

    NAME = "SERVINGLAB_TEST_MARK"

    def __init__(self) -> None:
        self.word = uuid.uuid4().hex
        self.env = {**os.environ, self.NAME: self.word}
        self._prefixes: set[str] = set()

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(self.NAME) == self.word:
                    found.append(process)
        return found

    def of(self, part: str) -> list[psutil.Process]:
        """Those with `part` in their command line."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                command = " ".join(process.cmdline())
                self._prefixes |= set(re.findall(r"shm-region-prefix-name=(servinglab-[0-9-]+)", command))
                if part in command:
                    found.append(process)
        return found

    def wait_for(self, part: str, seconds: float = 60.0) -> list[psutil.Process]:
        deadline = time.monotonic() + seconds
        while not (found := self.of(part)):
            assert time.monotonic() < deadline, f"no {part} after {seconds} s"
            time.sleep(0.01)
        return found

    def left(self) -> list[str]:
        shm = [name for name in os.listdir("/dev/shm") for prefix in self._prefixes if name.startswith(prefix)]
        return [f"{process}" for process in self.processes()] + shm

    def assert_gone(self, seconds: float = CLEAN_SECONDS) -> None:
        self.of("")
        deadline = time.monotonic() + seconds
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.left() == []


class Trace:
    """Everything a started server consists of: supervisor, tritonserver, stubs and shared-memory files."""

    def __init__(self, triton_pid: int) -> None:
        triton = psutil.Process(triton_pid)
        self.triton = triton
        self.supervisor = triton.parent()
        self.prefix = f"servinglab-{os.stat('/proc/self/ns/pid').st_ino}-{self.supervisor.pid}-"
        deadline = time.monotonic() + 30
        while not (self.shm() and (stubs := triton.children(recursive=True))):
            assert time.monotonic() < deadline, "no stub, or no shared memory"
            time.sleep(0.02)
        self.stubs = stubs

    def shm(self) -> list[str]:
        return [name for name in os.listdir("/dev/shm") if name.startswith(self.prefix)]

    def left(self) -> list[str]:
        names = []
        for process in (self.supervisor, self.triton, *self.stubs):
            with contextlib.suppress(psutil.NoSuchProcess):  # it may go between the two questions
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    names.append(str(process.pid))
        return names + self.shm()

    def assert_gone(self, seconds: float = CLEAN_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.left() == []


def run_owner(body: str, **popen) -> subprocess.Popen:
    """A Python that starts a server as `s` and prints its pid as its first line; `body` follows."""
    code = f"""
        import os, signal, sys, time
        from servinglab.server import TritonServer
        s = TritonServer({str(TINY_MODELS)!r}, timeout=60)
    """
    script = textwrap.dedent(code) + textwrap.dedent(body)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, **popen)


def started(process: subprocess.Popen) -> Trace:
    return Trace(int(process.stdout.readline()))


START_AND_SLEEP = """
    s.start(); print(s.pid, flush=True)
    time.sleep(60)
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def broken_repository(root: Path, name: str, script: str | None = None, config: str | None = None) -> Path:
    """A repository with `echo`, good, and one model made from it that is not."""
    shutil.copytree(TINY_MODELS / "echo", root / "echo")
    shutil.copytree(TINY_MODELS / "echo", root / name)
    text = (root / name / "config.pbtxt").read_text().replace('name: "echo"', f'name: "{name}"')
    (root / name / "config.pbtxt").write_text(config or text)
    if script is not None:
        (root / name / "1" / "model.py").write_text(textwrap.dedent(script))
    return root
