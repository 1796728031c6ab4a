"""The server of the reliability tests: the course's deployment with int4 weights, which loads and runs fastest."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def int4_repository(tmp_path_factory):
    from servinglab.repository import build_default

    return build_default(tmp_path_factory.mktemp("reliability"), precision="int4")


@pytest.fixture(scope="session")
def served(int4_repository):
    """One server for all tests that do not end theirs: a test must leave it working."""
    from servinglab.server import TritonServer

    with TritonServer(int4_repository) as server:
        yield server
        assert server.ready(), "a test has ended the server"


@pytest.fixture(scope="session")
def asker(served):
    from triton_client import TritonClient

    with TritonClient(served.grpc_url, served.http_url) as client:
        yield client
