"""TensorRT-LLM's LLM API where notebook 12 runs: NVIDIA's package, or the course's stand-in where that is missing."""

import contextlib
import importlib.util
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path

import httpx

from engines import llm_api

INSTALLED = importlib.util.find_spec("tensorrt_llm") is not None
RUNS_ON = "NVIDIA's tensorrt_llm" if INSTALLED else "the stand-in, tensorrt_llm is not installed"
_FOLDER = str(Path(llm_api.__file__).parents[2] / "tests" / "image")
ENVIRONMENT = os.environ | ({} if INSTALLED else {"PYTHONPATH": os.pathsep.join([_FOLDER, *sys.path])})


def run(program: str) -> list[str]:
    """The lines that a program of the LLM API prints. Raises RuntimeError with the end of what it said of an error."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "program.py")
        file.write_text(program)
        done = subprocess.run([sys.executable, file], env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-1000:])
    return done.stdout.splitlines()


class TrtllmServe:
    """`trtllm-serve MODEL` on a free port, from here on to `stop()`, or until this object or this Python ends.

    Prints the command and does not wait: `url` does, until the model is loaded.
    """

    def __init__(self, model: str, host: str = "127.0.0.1") -> None:
        with socket.create_server((host, 0)) as free:
            port = str(free.getsockname()[1])
        command = ["trtllm-serve", model, "--host", host, "--port", port, "--max_batch_size", "8"]
        print(shlex.join(command))
        if not INSTALLED:  # what the stand-in's command does
            command[:1] = [sys.executable, "-c", "from tensorrt_llm.commands.serve import main; main()"]
        self._url, self._log = f"http://{host}:{port}", tempfile.TemporaryFile()
        self._process = subprocess.Popen(command, env=ENVIRONMENT, stdout=self._log, stderr=self._log)
        self.stop = weakref.finalize(self, _end, self._process)

    @property
    def url(self) -> str:
        """Raises RuntimeError with the end of the log when it ended before it could answer."""
        while not _answers(f"{self._url}/health"):
            if self._process.poll() is not None:
                self._log.seek(0)
                raise RuntimeError(self._log.read()[-1000:].decode(errors="replace"))
            time.sleep(0.2)
        return self._url


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    process.wait()


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, trust_env=False).status_code == 200
    return False
