"""One line that starts a server: the course's model in a repository of its own, and the command that ran."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from servinglab.repository import build_default
from servinglab.server import TritonServer


def serve(
    folder: str | Path | None = None, *, precision: str = "fp32", server: dict[str, Any] | None = None, **fields: Any
) -> TritonServer:
    """Write the five models into `folder` (default: a temporary one), start tritonserver, and print its command.

    `precision`, `fields`: of `build_default`; `server`: further arguments of TritonServer. The server and the temporary
    folder end with this process, or at `stop()`.
    """
    folder = folder or tempfile.mkdtemp(prefix="repository-")
    started = TritonServer(build_default(folder, precision=precision, **fields), **(server or {})).start()
    print(started.command_line)
    return started
