"""Fixtures of the server and client tests: tiny Python models, no weights."""

from __future__ import annotations

from pathlib import Path

import pytest

TINY_MODELS = Path(__file__).parents[1] / "models"


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory):
    """A Triton with the models of tests/models: `echo` (one response) and `counter` (decoupled)."""
    from servinglab.server import TritonServer

    cancelled = tmp_path_factory.mktemp("tiny") / "cancelled.txt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUNTER_CANCELLED", str(cancelled))
        with TritonServer(TINY_MODELS, timeout=60) as server:
            server.cancelled_file = cancelled  # request id and piece at which `counter` noticed a cancellation
            yield server
