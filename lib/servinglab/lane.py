"""Whose programs run: lane `trtllm` (NVIDIA's container, a GPU) or `embedded` (this Python, any Linux machine).

A lane is looked up here and nowhere else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from servinglab.errors import CourseError

if TYPE_CHECKING:
    from servinglab.server.triton import TritonServer

LANES = ("embedded", "trtllm")
TRTLLM_BACKEND = Path("/opt/tritonserver/backends/tensorrtllm")
_HERE = ("127.0.0.1", "localhost", "::1")


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

    found = {
        "mpirun": shutil.which("mpirun"),
        "tritonserver": shutil.which("tritonserver") or shutil.which(TRITONSERVER),
    }
    if missing := [name for name, path in found.items() if path is None]:
        raise CourseError(
            f"The trtllm lane runs in NVIDIA's container, and {' and '.join(missing)} cannot be found here: run "
            "`docker compose up serve` at the root of the course, or see the command with --dry-run."
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


def spare_the_proxy(env: MutableMapping[str, str] = os.environ) -> None:
    """No proxy of this environment leads to a server on this machine: add that to the user's own exceptions.

    Of `no_proxy` and `NO_PROXY` some programs read only one. In both, "*" stands for everything if it stands alone, but
    not for gRPC, which has a variable of its own.
    """
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        value = next((env[key] for key in (name, "no_proxy", "NO_PROXY") if key in env), "")
        there = value.replace(" ", "").split(",")
        if value != "*" or name == "no_grpc_proxy":
            env[name] = ",".join(filter(None, [value, *(host for host in _HERE if host not in there)]))
