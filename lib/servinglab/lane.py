"""Whose programs run: lane `trtllm` (NVIDIA's container, a GPU) or `embedded` (this Python, any Linux machine); and
whether a server runs already, somewhere else.

A lane is looked up here and nowhere else.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from pathlib import Path

from servinglab.errors import CourseError

LANES = ("embedded", "trtllm")
TRTLLM_BACKEND = Path("/opt/tritonserver/backends/tensorrtllm")
ADDRESS = "grpc://"
_ADDRESS = re.compile(r"grpc://([\w.-]+|\[[\da-fA-F:]+\]):(\d{1,5})/?(?:\s*,\s*(http://[\w.\[\]:-]+)/?)?")
_TLS = re.compile(r"\b(grpcs|https)://")
_HERE = ("127.0.0.1", "localhost", "::1")


def resolve_lane(lane: str = "auto") -> str:
    """The lane to use: "embedded", or "trtllm" where this machine is NVIDIA's TensorRT-LLM container.

    An explicit name is taken as it is; "auto", or the address of a server, looks at SERVINGLAB_LANE, then for the
    tensorrtllm backend. Raises CourseError for an unknown name.
    """
    if lane == "auto" or lane.startswith(ADDRESS):
        lane = os.environ.get("SERVINGLAB_LANE") or ("trtllm" if TRTLLM_BACKEND.is_dir() else "embedded")
    if lane not in LANES:
        others = "or the address of a server that runs, such as grpc://127.0.0.1:8001"
        raise CourseError(f"unknown lane {lane!r}; use one of: auto, {', '.join(LANES)}, {others}")
    return lane


def choose(lane: str) -> str:
    """`resolve_lane`, for this process and those that it starts; an address is kept for `server_elsewhere`."""
    os.environ["SERVINGLAB_LANE"] = chosen = resolve_lane(lane)
    if lane.startswith(ADDRESS):
        os.environ["SERVINGLAB_SERVER"] = lane
    return chosen


def server_elsewhere() -> tuple[str, str] | None:
    """The addresses (gRPC "host:port", HTTP "http://host:port") in SERVINGLAB_SERVER, of a server that somebody else
    started; None when it is unset. "grpc://gpu-box:8001" stands for HTTP on the port below, too, as Triton's own ports
    are; another one follows behind a comma: "grpc://gpu-box:9001,http://gpu-box:9000". Raises CourseError."""
    given = os.environ.get("SERVINGLAB_SERVER", "").strip()
    if not given:
        return None
    refuse_tls(given)
    if not (found := _ADDRESS.fullmatch(given)):
        raise CourseError(f"SERVINGLAB_SERVER is {given!r}; it must be like grpc://127.0.0.1:8001.")
    host, port, http = found.groups()
    return f"{host}:{port}", http or f"http://{host}:{int(port) - 1}"


def refuse_tls(address: str) -> None:
    """Raise CourseError for the address of a server that wants TLS."""
    if _TLS.search(address):
        cure = "open a tunnel (ssh -L 8001:localhost:8001 HOST) and give its near end, grpc://127.0.0.1:8001"
        raise CourseError(f"{address} asks for TLS, which the clients of this course do not speak: {cure}.")


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
