"""Whose programs run: lane `trtllm` (NVIDIA's container, a GPU) or `embedded` (this Python, any Linux machine).

A lane is looked up here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

from servinglab.errors import CourseError

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
