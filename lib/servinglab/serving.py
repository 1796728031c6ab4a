"""One line that starts a server: the course's model in a repository of its own, and the command that ran."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from servinglab.assets import cache_dir
from servinglab.lane import resolve_lane
from servinglab.repository import build_default
from servinglab.server import TritonServer, install


def serve(folder: str | Path | None = None, *, precision: str = "fp32", **fields: Any) -> TritonServer:
    """Write the five models into `folder` (default: a temporary one), start tritonserver, and print its command.

    `precision`, `fields`: of `build_default`. The server and the temporary folder end with this process, or at
    `stop()`.
    """
    folder = folder or tempfile.mkdtemp(prefix="repository-")
    started = TritonServer(build_default(folder, precision=precision, **fields)).start()
    print(started.command_line)
    return started


def tritonserver() -> tuple[list[str], dict[str, str]]:
    """The first words of a command that starts Triton, and the environment that it needs.

    In NVIDIA's container the word is `tritonserver`. The wheel's has to be told where its backends and the libraries of
    this Python are.
    """
    if resolve_lane() == "trtllm":
        return ["tritonserver"], dict(os.environ)
    backends = install.backend_directory(cache_dir())
    return [str(install.locate() / "bin" / "tritonserver"), f"--backend-directory={backends}"], install.environment()
