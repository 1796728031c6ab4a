"""Start Triton with TensorRT-LLM in NVIDIA's container, one MPI process for each rank of the engine: lane `trtllm`.

The command is that of NVIDIA's launch_triton_server.py (tensorrtllm_backend v0.19.0, the same in TensorRT-LLM
1.3.0rc3): rank 0 loads the whole repository and answers clients; the other ranks load the LLM only, and
wait in it for their share of the work. Ours differs in that it listens on 127.0.0.1, wants a key for administration
(mpirun hands it on in the command line, so whoever sees the container's processes sees it), gives `--allow-run-as-root`
to root only, waits until every model is ready, and takes all ranks with it when it ends (supervisor.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from servinglab.repository.lint import MOST_RANKS, engine_problem, engine_sizes
from servinglab.server.install import ServerError, require_plain_path
from servinglab.server.process import HOST
from servinglab.server.triton import TritonServer, read_plain_config, restricted, typed

TRITONSERVER = "/opt/tritonserver/bin/tritonserver"
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}  # as NVIDIA's script has them


def as_shell(argv: Sequence[str]) -> str:
    """The command as one would type it, a line for each rank, after the line that makes the administrator's key."""
    return "ADMIN_KEY=$(openssl rand -hex 24)\n" + typed(argv).replace(" -n 1 ", " \\\n  -n 1 ")


@dataclass(frozen=True)
class Launch:
    """What will be started, checked. engines: the folder of each TensorRT-LLM model's engine."""

    repository: Path
    engines: Mapping[str, Path]
    world_size: int
    ports: Mapping[str, int]
    all_interfaces: bool = False

    def argv(
        self, *, mpirun: str = "mpirun", tritonserver: str = TRITONSERVER, shm_prefix: str = "prefix"
    ) -> list[str]:
        """The mpirun command line, with "{key}" where the administrator's key goes."""
        argv = [mpirun] + ["--allow-run-as-root"] * (os.geteuid() == 0)
        services, address = ("grpc", "http", "metrics"), "0.0.0.0" if self.all_interfaces else HOST
        for rank in range(self.world_size):
            argv += [":"] * (rank > 0) + ["-n", "1", tritonserver, f"--model-repository={self.repository}"]
            argv += [f"--{service}-port={self.ports[service]}" for service in services]
            argv += [f"--{service}-address={address}" for service in services]
            if rank > 0:
                argv += ["--model-control-mode=explicit", *(f"--load-model={name}" for name in self.engines)]
            argv += ["--disable-auto-complete-config"]
            argv += [f"--backend-config=python,shm-region-prefix-name={shm_prefix}{rank}_", *restricted("{key}")]
        return argv


def plan_launch(
    repository: str | Path, *, world_size: int | None = None, all_interfaces: bool = False,
    ports: Mapping[str, int | None] | None = None,
) -> Launch:  # fmt: skip
    """Read the repository and its engines, and decide what to start. Raises ServerError for what cannot work.

    `world_size`: MPI ranks, as the engines were built for unless given. `all_interfaces` listens on 0.0.0.0: for a
    container whose ports are published on the host's 127.0.0.1 only.
    """
    repository, engines = Path(repository).expanduser().absolute(), {}
    require_plain_path(repository, "the model repository", "use another folder")
    for config in sorted(repository.glob("*/config.pbtxt")):
        if (found := read_plain_config(config.parent)).backend == "tensorrtllm":
            if not (folder := found.parameters["gpt_model_path"].string_value):
                raise ServerError(f"{config} has no gpt_model_path, the folder of the engine: build it again.")
            engines[config.parent.name] = Path(folder)
    if not engines:
        raise ServerError(f"{repository} has no TensorRT-LLM model: build one with course repo build.")
    here = {name: folder for name, folder in engines.items() if folder.exists()}
    sizes = {name: engine_sizes(folder)[0] for name, folder in here.items()}
    wanted = next(iter(sizes.values()), 1) if world_size is None else world_size
    for name, folder in here.items():
        if problem := engine_problem(folder):
            raise ServerError(f"The engine of {name}, {folder}, {problem}")
        if sizes[name] != wanted:
            raise ServerError(f"The engine of {name} was built for {sizes[name]} rank(s) (tp × pp), not {wanted}.")
    if not 1 <= wanted <= MOST_RANKS:
        raise ServerError(f"The world size must be from 1 to {MOST_RANKS}, not {wanted}.")
    chosen = PORTS | {service: port for service, port in (ports or {}).items() if port is not None}
    return Launch(repository, engines, wanted, chosen, all_interfaces)


class TrtllmServer(TritonServer):
    """A Triton with TensorRT-LLM on this machine: all its ranks. Use it as TritonServer is used.

    programs: where "mpirun" and "tritonserver" are.
    """

    def __init__(self, launch: Launch, programs: Mapping[str, str], *, timeout: float = 900.0) -> None:
        super().__init__(launch.repository, timeout=timeout, **{f"{name}_port": p for name, p in launch.ports.items()})
        self.launch, self._programs = launch, programs

    def _check_machine(self, names: list[str]) -> None:
        for name, folder in self.launch.engines.items():
            if not folder.exists():
                raise ServerError(f"The engine of {name}, {folder}, does not exist on this machine.")

    def _command(self, names: list[str], ports: dict[str, int]) -> tuple[list[str], dict[str, str]]:
        return self.launch.argv(**self._programs, shm_prefix="{shm_prefix}"), dict(os.environ)
