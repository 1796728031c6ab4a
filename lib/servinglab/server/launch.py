"""Start Triton with TensorRT-LLM in NVIDIA's container, one MPI process for each rank of the engine: lane `trtllm`.

The command is that of NVIDIA's launch_triton_server.py (tensorrtllm_backend v0.19.0, the same in TensorRT-LLM
1.3.0rc3): rank 0 loads the whole repository and answers clients; the other ranks load the LLM only, and
wait in it for their share of the work. Ours differs in that it listens on 127.0.0.1, wants a key for administration
(mpirun hands it on in the command line, so whoever sees the container's processes sees it), gives `--allow-run-as-root`
to root only, waits until every model is ready, and takes all ranks with it when it ends (supervisor.py).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from servinglab.repository.assets_check import engine_config, engine_problem, exists, world_size
from servinglab.repository.lint_read import MAX_BYTES
from servinglab.repository.pbtxt import parse
from servinglab.repository.shell_words import require_plain_model
from servinglab.repository.templates import is_llm, placeholders
from servinglab.server.admin import new_key, restricted
from servinglab.server.install import ServerError
from servinglab.server.process import HOST, PortTaken, TritonProcess, choose_ports, port_error
from servinglab.server.triton import TritonServer

TRITONSERVER = "/opt/tritonserver/bin/tritonserver"
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}  # as NVIDIA's script has them
ORCHESTRATOR = {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
IN_THE_CONTAINER = "docker compose up serve"


@dataclass(frozen=True)
class LlmModel:
    """A model that TensorRT-LLM runs. `ranks` is tp × pp of its engine, None when the engine is not on this machine."""

    name: str
    engine_dir: str
    ranks: int | None


def llm_models(repository: Path) -> list[LlmModel]:
    """The TensorRT-LLM models of a repository, by name. Raises ServerError for one that cannot load."""
    found = []
    for config in sorted(repository.glob("*/config.pbtxt")):
        require_plain_model(config.parent)
        if config.stat().st_size > MAX_BYTES:
            continue
        text = config.read_text(encoding="utf-8", errors="replace")
        missing = [p for p in placeholders(text) if p.mandatory]
        if missing:
            raise ServerError(
                f"{config}:{missing[0].line}: ${{{missing[0].name}}} is not filled, so Triton cannot load the model: "
                f"course repo fill {repository} {missing[0].name}=…"
            )
        if not is_llm(text):
            continue
        name, folder = config.parent.name, parse(text, str(config)).parameters["gpt_model_path"].string_value
        if not folder:
            raise ServerError(f"{config} has no gpt_model_path, the folder of the engine: build the repository again.")
        if not exists(Path(folder)):
            found.append(LlmModel(name, folder, None))
            continue
        problem = engine_problem(Path(folder), "trtllm")
        if problem:
            raise ServerError(f"The engine of {name}, {folder}, {problem}")
        found.append(LlmModel(name, folder, world_size(engine_config(Path(folder)) or {})))
    if not found:
        raise ServerError(f"{repository} has no TensorRT-LLM model: build one with course repo build --lane trtllm.")
    return found


def check_world_size(models: Sequence[LlmModel], asked: int | None, *, multi_model: bool) -> int:
    """The number of MPI ranks: as asked, else what the engines were built for. Raises ServerError where they differ.

    With `multi_model` one process orchestrates and starts the ranks of each model itself.
    """
    if multi_model:
        if asked not in (None, 1):
            raise ServerError(
                f"--multi-model starts one process, which starts the ranks of each model itself: leave out "
                f"--world-size {asked}."
            )
        return 1
    wrong = [m for m in models if m.ranks is not None and m.ranks != (asked or models[0].ranks)]
    if wrong and asked is None:
        raise ServerError(
            f"The engines of {models[0].name} and {wrong[0].name} have {models[0].ranks} and {wrong[0].ranks} ranks: "
            f"serve models of several sizes with --multi-model."
        )
    if wrong:
        raise ServerError(
            f"The engine of {wrong[0].name} was built for {wrong[0].ranks} rank(s) (tp × pp), and --world-size is "
            f"{asked}: give {wrong[0].ranks}, or build the engine again."
        )
    return asked or models[0].ranks or 1


def command(
    repository: str | Path,
    world_size: int = 1,
    *,
    llms: Sequence[str] = ("tensorrt_llm",),
    ports: Mapping[str, int] = PORTS,
    address: str = HOST,
    multi_model_gpus: int | None = None,
    as_root: bool = False,
    mpirun: str = "mpirun",
    tritonserver: str = TRITONSERVER,
    shm_prefix: str = "prefix",
) -> list[str]:
    """The mpirun command line, with "{key}" where the administrator's key goes.

    `multi_model_gpus` is the number of GPUs in orchestrator mode, None in leader mode.
    """
    argv = [mpirun] + ["--allow-run-as-root"] * as_root
    for rank in range(world_size):
        argv += [":"] * (rank > 0) + ["-n", "1", tritonserver, f"--model-repository={repository}"]
        argv += [f"--{service}-port={ports[service]}" for service in ("grpc", "http", "metrics")]
        argv += [f"--{service}-address={address}" for service in ("grpc", "http", "metrics")]
        if rank > 0:
            argv += ["--model-control-mode=explicit", *(f"--load-model={name}" for name in llms)]
        if multi_model_gpus is not None:  # the workers, not this process, need the memory
            argv += ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]
            argv += [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(multi_model_gpus)]
        argv += ["--disable-auto-complete-config"]
        argv += [f"--backend-config=python,shm-region-prefix-name={shm_prefix}{rank}_", *restricted("{key}")]
    return argv


def as_shell(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """The command as one would type it, a line for each rank, after the line that makes the administrator's key."""
    words = [f"{name}={value}" for name, value in env.items()]
    words += [shlex.quote(word.replace("{key}", "ADMIN_KEY")).replace("=ADMIN_KEY", "=$ADMIN_KEY") for word in argv]
    return "ADMIN_KEY=$(openssl rand -hex 24)\n" + " ".join(words).replace(" -n 1 ", " \\\n  -n 1 ")


def number_of_gpus() -> int:
    """GPUs that nvidia-smi lists; 0 where there is none or no nvidia-smi."""
    try:
        done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def programs() -> dict[str, str]:
    """Where mpirun and tritonserver are. Raises ServerError, with the command for the container, for a missing one."""
    found = {"mpirun": shutil.which("mpirun"), "tritonserver": shutil.which("tritonserver")}
    if found["tritonserver"] is None and os.access(TRITONSERVER, os.X_OK):
        found["tritonserver"] = TRITONSERVER
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise ServerError(
            f"The trtllm lane runs in NVIDIA's container, and {' and '.join(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} not on the PATH here: run `{IN_THE_CONTAINER}` at the root of the "
            f"course, or see the command with --dry-run."
        )
    return found


@dataclass(frozen=True)
class Launch:
    """What will be started, checked: the repository, its TensorRT-LLM models, the number of MPI ranks."""

    repository: Path
    models: tuple[LlmModel, ...]
    world_size: int
    ports: Mapping[str, int]
    multi_model: bool = False
    all_interfaces: bool = False

    @property
    def env(self) -> dict[str, str]:
        """What the environment has in addition."""
        return dict(ORCHESTRATOR) if self.multi_model else {}

    def argv(self, **found: str) -> list[str]:
        """The command line; `found` are the last three arguments of `command`."""
        return command(
            self.repository,
            self.world_size,
            llms=[model.name for model in self.models],
            ports=self.ports,
            address="0.0.0.0" if self.all_interfaces else HOST,
            multi_model_gpus=number_of_gpus() if self.multi_model else None,
            as_root=os.geteuid() == 0,
            **found,
        )


def plan_launch(
    repository: str | Path, *, world_size: int | None = None, multi_model: bool = False, all_interfaces: bool = False,
    ports: Mapping[str, int | None] | None = None,
) -> Launch:  # fmt: skip
    """Read the repository and its engines, and decide what to start. Raises ServerError for what cannot work.

    `all_interfaces` listens on 0.0.0.0: for a container whose ports are published on the host's 127.0.0.1 only.
    """
    repository = Path(repository).expanduser().absolute()
    if world_size is not None and not 1 <= world_size <= 1024:
        raise ServerError(f"--world-size {world_size} is no number of MPI ranks: give tp × pp of the engine.")
    models = llm_models(repository)
    ranks = check_world_size(models, world_size, multi_model=multi_model)
    chosen = PORTS | {service: port for service, port in (ports or {}).items() if port is not None}
    if len(set(chosen.values())) < len(chosen) or not all(0 < port < 2**16 for port in chosen.values()):
        shown = ", ".join(f"{service} {port}" for service, port in chosen.items())
        raise ServerError(f"The ports must be three different numbers from 1 to 65535, not {shown}.")
    return Launch(repository, tuple(models), ranks, chosen, multi_model, all_interfaces)


class TrtllmServer(TritonServer):
    """A Triton with TensorRT-LLM on this machine: all its ranks. Use it as TritonServer is used."""

    def __init__(self, launch: Launch, *, log_path: str | Path | None = None, timeout: float = 900.0) -> None:
        ports = {f"{service}_port": port for service, port in launch.ports.items()}
        super().__init__(launch.repository, log_path=log_path, timeout=timeout, **ports)
        self.launch = launch

    def start(self) -> TrtllmServer:
        """Start every rank and wait until all models are ready. On a started server: no effect."""
        if self.pid is not None:
            return self
        self.stop()
        found, names = programs(), self._model_names()
        for model in self.launch.models:
            if model.ranks is None:
                raise ServerError(f"The engine of {model.name}, {model.engine_dir}, does not exist on this machine.")
        ports = choose_ports(self._fixed_ports)
        launch = replace(self.launch, ports=ports)
        argv = launch.argv(**found, shm_prefix="{shm_prefix}")  # the supervisor's, to find what is left over
        self.admin_key = new_key()
        self._process = TritonProcess(argv, {**os.environ, **launch.env}, self._new_log(), self.admin_key)
        try:
            self._process.wait_ready(names, ports, self.timeout)
        except PortTaken as taken:
            self._process.stop(at_once=True)
            service = next((name for name, port in ports.items() if port == taken.port), "http")
            raise port_error(taken.port, service, "another program took it") from None
        except BaseException:  # also Ctrl-C: no rank may stay behind
            self._process.stop(at_once=True)
            raise
        self.http_url = f"http://{HOST}:{ports['http']}"
        self.grpc_url = f"{HOST}:{ports['grpc']}"
        self.metrics_url = f"http://{HOST}:{ports['metrics']}/metrics"
        return self
