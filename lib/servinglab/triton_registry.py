"""The `run` folder of the cache: logs, and servers that other commands find (`course serve`, `course ask`)."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from servinglab import supervisor
from servinglab.assets import cache_dir
from servinglab.triton_install import ServerError

if TYPE_CHECKING:
    from servinglab.server import TritonServer


LOGS_KEPT = 100  # the one that explains a failure should outlive the servers of a whole test run


def run_folder() -> Path:
    """`run` of the cache; beside a cache that is read-only, a folder of this user's in the temporary one."""
    folder = cache_dir() / "run"
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if os.access(there, os.W_OK):
        return folder
    own = Path(tempfile.gettempdir()) / f"servinglab-run-{os.getuid()}"
    with contextlib.suppress(OSError):
        own.mkdir(mode=0o700, exist_ok=True)
        if own.stat().st_uid == os.getuid() and not own.is_symlink():
            return own
    return folder


def new_log() -> Path:
    """Path for one more log. Of the old ones the newest are kept, and those of Pythons that still run."""
    folder = run_folder()
    old = sorted(folder.glob("triton-*-*-*-*.log"))
    for path in old[: max(0, len(old) - LOGS_KEPT + 1)]:
        owner = path.stem.split("-")[3]
        if not (owner.isdigit() and supervisor.start_time(int(owner))):
            with contextlib.suppress(OSError):  # another user's
                path.unlink()
    return folder / f"triton-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{time.monotonic_ns() % 10**6}.log"


def announce(server: TritonServer) -> Path:
    """Write the state file of a started server; `running` removes it when the server has ended."""
    state = {
        "pid": server.pid, "started": supervisor.start_time(server.pid), "grpc_url": server.grpc_url,
        "http_url": server.http_url, "metrics_url": server.metrics_url,
        "log": str(server.log_path), "repository": str(server.repository),
    }  # fmt: skip
    path = run_folder() / f"server-{time.time_ns()}.json"
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(state))
    draft.rename(path)  # a reader never sees half of it
    return path


def running() -> list[TritonServer]:
    """Announced servers that answer now, newest first, each attached; forgets those that are gone."""
    from servinglab.server import TritonServer

    found = []
    for path in sorted(run_folder().glob("server-*.json"), reverse=True):
        try:
            state = json.loads(path.read_text())
            alive = supervisor.start_time(state["pid"]) == state["started"]
        except (OSError, ValueError, KeyError):
            alive = False
        if not alive:
            path.unlink(missing_ok=True)
            continue
        try:
            server = TritonServer.attach(state["grpc_url"], state["http_url"])
        except ServerError:  # alive, not ready
            continue
        server.metrics_url, server.repository = state["metrics_url"], Path(state["repository"])
        server.log_path = Path(state["log"])
        found.append(server)
    return found
