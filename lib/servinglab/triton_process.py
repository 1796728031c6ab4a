"""tritonserver as a process: started through the supervisor, watched, ended. Plumbing of `servinglab.server`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import psutil

from servinglab import supervisor
from servinglab.triton_install import ServerError

GRACE_SECONDS = 4.0  # after an orderly stop was asked for, tritonserver is killed


class TritonProcess:
    """The supervisor and, through it, tritonserver. A TritonServer that is dropped ends it."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        self._owner = os.getpid()
        self._stub_names: dict[int, str] = {}
        self._zombies: dict[int, float] = {}
        self._looked = 0.0
        with open(log, "ab") as errors:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            )  # fmt: skip
        order = {"argv": command, "env": env, "log": str(log), "grace": GRACE_SECONDS}
        try:
            self._popen.stdin.write(json.dumps(order).encode() + b"\n")
            self._popen.stdin.flush()
            answer = json.loads(self._popen.stdout.readline() or b"{}")
        except (OSError, ValueError):
            answer = {}
        except BaseException:
            self._popen.stdin.close()
            raise
        if "pid" not in answer:
            raise ServerError(f"Triton could not be started: {answer.get('error', 'its supervisor ended')}. Log: {log}")
        self.pid: int = answer["pid"]
        prefix: str = answer["shm_prefix"]
        weakref.finalize(self, _end, self._popen, self._owner)  # garbage collection and the end of Python
        threading.Thread(target=_clean_after, args=(self._popen, prefix), daemon=True).start()

    def alive(self) -> bool:
        """Whether tritonserver runs."""
        return supervisor.start_time(self.pid) is not None

    def dead_stub(self) -> str | None:
        """Model whose Python process has died; Triton 24.10 itself would wait for it until the stub timeout."""
        now = time.monotonic()
        if now - self._looked < 0.5:
            return None
        self._looked = now
        try:
            children = psutil.Process(self.pid).children()
        except psutil.Error:
            return None
        for child in children:
            try:
                if child.status() == psutil.STATUS_ZOMBIE:
                    if now - self._zombies.setdefault(child.pid, now) > 1.0:
                        return self._stub_names.get(child.pid, "?")
                elif scripts := [a for a in child.cmdline() if a.endswith("/model.py")]:
                    self._stub_names[child.pid] = Path(scripts[0]).parents[1].name
            except psutil.Error:
                continue
        return None

    def stop(self, at_once: bool = False) -> None:
        _end(self._popen, self._owner, at_once)


def _end(popen: subprocess.Popen, owner: int, at_once: bool = False) -> None:
    """Tell the supervisor to end and wait for it (it needs at most GRACE_SECONDS plus 2). Nothing in a forked child."""
    if os.getpid() != owner:
        return
    try:
        if popen.stdin and not popen.stdin.closed:
            popen.stdin.write(b"kill\n" if at_once else b"stop\n")
            popen.stdin.close()
    except OSError:  # it has ended
        pass
    try:
        popen.wait(GRACE_SECONDS + 4)
    except subprocess.TimeoutExpired:
        popen.kill()  # the kernel then kills tritonserver
        popen.wait()
    if popen.stdout:
        popen.stdout.close()


def _clean_after(popen: subprocess.Popen, prefix: str) -> None:
    """Wait for the supervisor; if it was killed, do its last duties."""
    if popen.wait() != 0:
        time.sleep(0.1)  # the kernel is killing tritonserver
        supervisor.kill_stubs(prefix)
        supervisor.remove_shm(prefix)
