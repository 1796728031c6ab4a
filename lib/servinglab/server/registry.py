"""The `run` folder of the cache: logs, and servers that other commands find (`course serve`, `course ask`)."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servinglab import scratch
from servinglab.assets import cache_dir
from servinglab.server.supervisor import pid_namespace, start_time

LOGS_KEPT = 100  # the one that explains a failure should outlive the servers of a whole test run


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
    """Path for one more log. Of the old ones the newest are kept, and those of Pythons that still run."""
    for path in list(_own(f"{program}-*-*-*-*.log"))[: 1 - LOGS_KEPT]:
        owner = path.stem.split("-")[3]
        if not (owner.isdigit() and start_time(int(owner))):
            with contextlib.suppress(OSError):
                path.unlink()
    return run_folder() / f"{program}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{time.monotonic_ns() % 10**6}.log"


def announce(pid: int, **facts: str) -> Path:
    """Write the state file of a started server, for this user only: its pid and what `announced` shall tell of it."""
    state = {"pid": pid, "started": start_time(pid), "namespace": pid_namespace(), **facts}
    path = run_folder() / f"server-{time.time_ns()}.json"
    draft = path.with_suffix(".tmp")
    draft.parent.mkdir(parents=True, exist_ok=True)
    draft.touch(0o600)  # the administrator's key is in it
    draft.write_text(json.dumps(state))
    draft.rename(path)  # a reader never sees half of it
    return path


def announced() -> list[dict[str, Any]]:
    """What was said of this user's servers whose process still lives, newest first; forgets the others."""
    found = []
    for path in reversed(list(_own("server-*.json"))):
        try:
            state = json.loads(path.read_text())
            alive = start_time(state["pid"]) == state["started"]
            here = state["namespace"] == pid_namespace()
        except (OSError, ValueError, KeyError, TypeError):
            alive, here = False, True
        if alive and here:
            found.append(state)
        elif here:
            with contextlib.suppress(OSError):  # a folder that is read-only by now
                path.unlink()
    return found


def _own(pattern: str) -> Iterator[Path]:
    """This user's files in the run folder, by name. Those of others, in a cache that is shared, are not ours to read
    or to remove."""
    for path in sorted(run_folder().glob(pattern)):
        with contextlib.suppress(OSError):  # gone meanwhile
            if path.stat().st_uid == os.getuid():
                yield path
