"""Start Triton with TensorRT-LLM in NVIDIA's container, one MPI process for each rank of the engine: lane `trtllm`.

The command is that of NVIDIA's launch_triton_server.py (tensorrtllm_backend v0.19.0, the same in TensorRT-LLM
1.3.0rc3): rank 0 loads the whole repository and answers clients, the others load the LLM only. Ours differs in that it
listens on 127.0.0.1, wants a key for administration, and gives `--allow-run-as-root` to root only.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from servinglab.repository.lint import MOST_RANKS, engine_facts, engine_problem
from servinglab.server.install import ServerError, on_path, require_plain_path
from servinglab.server.process import HOST
from servinglab.server.triton import LOCKS, TritonServer, read_plain_config, typed

TRITONSERVER = "/opt/tritonserver/bin/tritonserver"
PORTS = {"http_port": 8000, "grpc_port": 8001, "metrics_port": 8002}  # as NVIDIA's script has them


def mpirun_command(
    repository: Path | str, llms: Iterable[str], world_size: int, ports: Mapping[str, int | None], address: str = HOST,
    *, mpirun: str = "mpirun", tritonserver: str = TRITONSERVER, shm_prefix: str = "prefix",
) -> list[str]:  # fmt: skip
    """The command line, with "{key}" where the administrator's key goes. `llms`: the TensorRT-LLM models."""
    argv = [mpirun] + ["--allow-run-as-root"] * (os.geteuid() == 0)
    services = ("grpc", "http", "metrics")
    for rank in range(world_size):
        argv += [":"] * (rank > 0) + ["-n", "1", tritonserver, f"--model-repository={repository}"]
        argv += [f"--{service}-port={ports[service]}" for service in services]
        argv += [f"--{service}-address={address}" for service in services]
        if rank > 0:
            argv += ["--model-control-mode=explicit", *(f"--load-model={name}" for name in llms)]
        argv += ["--disable-auto-complete-config"]
        argv += [f"--backend-config=python,shm-region-prefix-name={shm_prefix}{rank}_", *LOCKS]
    return argv


class TrtllmServer(TritonServer):
    """A Triton with TensorRT-LLM on this machine: all its ranks. Use it as TritonServer is used.

    world_size: MPI ranks, as the engines were built for unless given. all_interfaces: listen on 0.0.0.0, for a
    container whose ports are published on the host's 127.0.0.1 only. Raises ServerError for what cannot work.
    """

    def __init__(
        self, repository: str | Path, *, world_size: int | None = None, all_interfaces: bool = False,
        timeout: float = 900.0, **ports: int,
    ) -> None:  # fmt: skip
        super().__init__(repository, timeout=timeout, **PORTS | ports)
        self._address = "0.0.0.0" if all_interfaces else HOST
        require_plain_path(self.repository, "the model repository", "use another folder")
        self._engines: dict[str, Path] = {}  # the folder of each TensorRT-LLM model's
        for config in sorted(self.repository.glob("*/config.pbtxt")):
            if (found := read_plain_config(config.parent)).backend == "tensorrtllm":
                if not (folder := found.parameters["gpt_model_path"].string_value):
                    raise ServerError(f"{config} has no gpt_model_path, the folder of the engine: build it again.")
                self._engines[config.parent.name] = Path(folder)
        if not self._engines:
            raise ServerError(f"{self.repository} has no TensorRT-LLM model: build one with course repo build.")
        here = {name: folder for name, folder in self._engines.items() if folder.exists()}
        sizes = {name: engine_facts(folder).ranks for name, folder in here.items()}
        if world_size is None and not here:
            name, folder = next(iter(self._engines.items()))
            cure = "give its number of ranks (tp × pp) with --world-size, or run this where the engine is"
            raise ServerError(f"The engine of {name}, {folder}, does not exist on this machine: {cure}.")
        self.world_size = next(iter(sizes.values())) if world_size is None else world_size
        for name, folder in here.items():
            if problem := engine_problem(folder):
                raise ServerError(f"The engine of {name}, {folder}, {problem}")
            if sizes[name] != self.world_size:
                what = f"was built for {sizes[name]} rank(s) (tp × pp), not {self.world_size}"
                raise ServerError(f"The engine of {name} {what}.")
        if not 1 <= self.world_size <= MOST_RANKS:
            raise ServerError(f"The world size must be from 1 to {MOST_RANKS}, not {self.world_size}.")

    def as_shell(self) -> str:
        """The command as one would type it, a line for each rank, after the line that makes the administrator's key."""
        argv = mpirun_command(self.repository, self._engines, self.world_size, self._fixed_ports, self._address)
        return "ADMIN_KEY=$(openssl rand -hex 24)\n" + typed(argv).replace(" -n 1 ", " \\\n  -n 1 ")

    def _check_machine(self, names: list[str]) -> None:
        for name, folder in self._engines.items():
            if not folder.exists():
                raise ServerError(f"The engine of {name}, {folder}, does not exist on this machine.")
        self._words = {**on_path("mpirun", "tritonserver"), "shm_prefix": "{shm_prefix}"}

    def _command(self, names: list[str], ports: dict[str, int]) -> tuple[list[str], dict[str, str]]:
        more = (self.world_size, ports, self._address)
        return mpirun_command(self.repository, self._engines, *more, **self._words), dict(os.environ)
