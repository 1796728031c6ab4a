"""The machine that an engine is to run on: its GPUs, its TensorRT and TensorRT-LLM (notebook 02)."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True)
class Gpu:
    name: str
    compute_capability: str  # "9.0"


@dataclass(frozen=True)
class Machine:
    """Where an engine is to run. `ranks`: MPI processes that were started, None where that is not known."""

    trtllm: str | None = None
    tensorrt: str | None = None
    gpus: tuple[Gpu, ...] = ()
    ranks: int | None = None

    @classmethod
    def here(cls, container: str | None = None) -> Machine:
        """This machine, with the software of a container (a tag such as "26.07") or, without one, what is installed."""
        trtllm, tensorrt = _installed("tensorrt_llm"), _installed("tensorrt")
        if container is not None:
            from engines import compass

            found = compass.find(container)
            trtllm, tensorrt = found.trtllm, found.tensorrt
        rows = run(["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]).splitlines()
        gpus = tuple(Gpu(*(part.strip() for part in row.rsplit(",", 1))) for row in rows if row.count(",") >= 1)
        size = os.environ.get("OMPI_COMM_WORLD_SIZE", "")
        return cls(trtllm, tensorrt, gpus, int(size) if size.isdigit() else None)


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def run(command: list[str]) -> str:
    """What a command prints, or nothing when it is missing, fails or takes longer than 2 s."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=2, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
