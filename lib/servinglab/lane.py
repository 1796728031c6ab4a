"""Whose programs run: lane `trtllm` (NVIDIA's container, a GPU) or `embedded` (this Python, any Linux machine).

A lane is looked up here and nowhere else. A server that already runs needs none: TritonServer.attach(url).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from servinglab.errors import CourseError

if TYPE_CHECKING:
    from servinglab.server.triton import TritonServer

LANES = ("embedded", "trtllm")
TRTLLM_BACKEND = Path("/opt/tritonserver/backends/tensorrtllm")
IN_THE_CONTAINER = "docker compose up serve"


def resolve_lane(lane: str = "auto") -> str:
    """The lane to use: "embedded", or "trtllm" where this machine is NVIDIA's TensorRT-LLM container.

    An explicit name is taken as it is; "auto" looks at SERVINGLAB_LANE, then for the tensorrtllm backend.
    Raises CourseError for an unknown name.
    """
    if lane == "auto":
        lane = os.environ.get("SERVINGLAB_LANE") or ("trtllm" if TRTLLM_BACKEND.is_dir() else "embedded")
    if lane not in LANES:
        raise CourseError(f"unknown lane {lane!r}; use one of: auto, {', '.join(LANES)}")
    return lane


def programs() -> dict[str, str]:
    """Where the container's mpirun and tritonserver are. Raises CourseError, with the command for the container, for a
    missing one."""
    from servinglab.server.launch import TRITONSERVER

    found = {name: shutil.which(name) for name in ("mpirun", "tritonserver")}
    if found["tritonserver"] is None and os.access(TRITONSERVER, os.X_OK):
        found["tritonserver"] = TRITONSERVER
    if missing := [name for name, path in found.items() if path is None]:
        raise CourseError(
            f"The trtllm lane runs in NVIDIA's container, and {' and '.join(missing)} cannot be found here: run "
            f"`{IN_THE_CONTAINER}` at the root of the course, or see the command with --dry-run."
        )
    return found


def new_server(
    repository: Path, lane: str = "auto", *, ports: Mapping[str, int | None], models: list[str] | None = None,
    world_size: int | None = None, all_interfaces: bool = False, timeout: float | None = None,
) -> TritonServer:  # fmt: skip
    """The server of that lane for a repository, not yet started. `models`: embedded only; `world_size` and
    `all_interfaces`: trtllm only, as `plan_launch` takes them."""
    more = {"timeout": timeout} if timeout else {}
    if resolve_lane(lane) == "embedded":
        from servinglab.server import TritonServer

        return TritonServer(repository, models=models, **{f"{name}_port": p for name, p in ports.items()}, **more)
    from servinglab.server.launch import TrtllmServer, plan_launch

    launch = plan_launch(repository, world_size=world_size, all_interfaces=all_interfaces, ports=ports)
    return TrtllmServer(launch, programs(), **more)
