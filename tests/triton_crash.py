"""Tests that cancel many streams: a cancel that meets a response on its way can crash Triton 24.10's gRPC server itself
(upstream issue 7368, mended in 24.12)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from servinglab.server import TritonServer
from triton_client import ClientError, TritonClient


def with_a_server(repository: Path, run: Callable[[TritonServer, TritonClient], None]) -> None:
    """Call `run` with a server of its own. A run in which tritonserver died says nothing about us, so it is repeated,
    once; any other fault fails at once."""
    for attempt in (1, 2):
        with TritonServer(repository) as server, TritonClient(server.grpc_url, server.http_url) as client:
            try:
                return run(server, client)
            except ClientError:
                if _runs_on(server) or attempt == 2:
                    raise


def _runs_on(server: TritonServer, seconds: float = 5.0) -> bool:
    """False as soon as it has died: its connections may break a moment earlier."""
    deadline = time.monotonic() + seconds
    while server.pid is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    return server.pid is not None
