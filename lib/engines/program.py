"""Run one program, here or in a container, with its output in a log, and leave no process behind (engine/build.py)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engines import EngineError

_PATIENCE = 5.0  # seconds between asking a program to end and ending it


@dataclass(frozen=True)
class Place:
    """Where programs run: in the folder `workdir`; with an `image` in a container, which sees that folder as /work."""

    workdir: Path
    image: str | None = None

    @property
    def container(self) -> str:
        """The container's name, by which it is ended."""
        return f"servinglab-build-{os.getpid()}"

    def prefix(self) -> list[str]:
        """What stands before a command: docker with its options, or nothing."""
        if self.image is None:
            return []
        # Shared memory and limits as NVIDIA's images ask for them; --init, so that the first process ends on a signal.
        docker = "docker run --rm --init --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 -e HF_TOKEN"
        return [*docker.split(), "-v", f"{self.workdir}:/work", "-w", "/work", self.image]

    def words(self, words: list[str]) -> list[str]:
        """The argument vector, with docker around it where there is an image."""
        docker = self.prefix()
        return [*docker[:2], "--name", self.container, *docker[2:], *words] if docker else words

    def run(self, words: list[str], log: Path, say: Callable[[str], None], keep: tuple[int, ...] = ()) -> int:
        """Run a program to its end and hand every line of its output to `say`; returns the exit code.

        keep: file descriptors that the program inherits. It gets a process group of its own, which ends with it, and on
        Ctrl-C. Raises EngineError when it cannot be started.
        """
        with log.open("wb") as sink, log.open(encoding="utf-8", errors="replace") as tail:
            try:
                process = subprocess.Popen(
                    self.words(words), cwd=self.workdir, stdin=subprocess.DEVNULL, stdout=sink,
                    stderr=subprocess.STDOUT, start_new_session=True, pass_fds=keep,
                )  # fmt: skip
            except OSError as error:
                raise EngineError(f"{self.words(words)[0]} cannot be started: {error.strerror}.") from error
            try:
                rest, ended = "", False
                while not ended:
                    ended = process.poll() is not None  # asked first, so that nothing it wrote last is missed
                    *lines, rest = (rest + tail.read()).split("\n")
                    for line in lines:
                        say(line)
                    if not ended:
                        time.sleep(0.05)
                if rest:
                    say(rest)
            finally:
                self._end(process)
        return process.returncode

    def _end(self, process: subprocess.Popen) -> None:
        """End the program and all that it started, also what outlived it."""
        if process.poll() is None and self.image:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(["docker", "kill", self.container], capture_output=True, timeout=30, check=False)
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
        process.wait()
