"""One line that starts a server: the course's model in a repository of its own, and the command that ran. Or it takes
the server that somebody else started (SERVINGLAB_SERVER)."""

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from servinglab.assets import cache_dir
from servinglab.lane import resolve_lane, server_elsewhere
from servinglab.repository import build_default
from servinglab.server import TritonServer, install
from servinglab.server.launch import TrtllmServer


def serve(folder: str | Path | None = None, *, precision: str = "fp32", **fields: Any) -> TritonServer:
    """Write the five models into `folder` (default: a temporary one), start tritonserver, and print its command.

    `precision`, `fields`: of `build_default`. The server and the temporary folder end with this process, or at
    `stop()`. With SERVINGLAB_SERVER set nothing is started: what runs there has its own model and settings.
    """
    if server := attached():
        print(f"# {server.grpc_url} runs already. Its model and settings are its own, not {precision=}, {fields}")
        _say_where_its_tokenizer_is(server)
        return server
    folder = folder or tempfile.mkdtemp(prefix="repository-")
    started = of_lane(build_default(folder, precision=precision, **fields)).start()
    print(started.command_line)
    return started


def _say_where_its_tokenizer_is(server: TritonServer) -> None:
    with suppress(InferenceServerException), grpcclient.InferenceServerClient(server.grpc_url) as client:
        folder = client.get_model_config("preprocessing").config.parameters["tokenizer_dir"].string_value
        if not Path(folder).is_dir():
            print(f"# Its tokenizer is in {folder}, which this machine lacks: cells that read it fail until it is here")


def attached() -> TritonServer | None:
    """The server that SERVINGLAB_SERVER names, None without. Raises ServerError when it does not answer."""
    there = server_elsewhere()
    return TritonServer.attach(*there) if there else None


def of_lane(repository: Path) -> TritonServer:
    """A server of this machine's lane, not started; on free ports, because a notebook may start two. The command is the
    same in both lanes, but an engine of several ranks needs as many processes."""
    if resolve_lane() == "trtllm":
        several = TrtllmServer(repository, http_port=None, grpc_port=None, metrics_port=None)
        if several.world_size > 1:
            return several
    return TritonServer(repository)


def tritonserver() -> tuple[list[str], dict[str, str]]:
    """The first words of a command that starts Triton, and the environment that it needs: of the wheel's, where its
    backends and the libraries of this Python are; in NVIDIA's container the word `tritonserver` is enough."""
    return install.program(resolve_lane(), cache_dir())
