"""Why an engine will not run here, in one sentence, before a server is started with it (notebook 02)."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from engines.errors import EngineError
from engines.folder import NOTE, SAFETENSORS, TENSORRT_RTX, EngineFolder, read
from engines.versions import containers, find


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
        software = find(container) if container else None
        trtllm, tensorrt = (
            getattr(software, name) if software else _installed(package)
            for name, package in (("trtllm", "tensorrt_llm"), ("tensorrt", "tensorrt"))
        )
        gpus = tuple(Gpu(*(part.strip() for part in row.rsplit(",", 1))) for row in _nvidia_smi() if "," in row)
        size = os.environ.get("OMPI_COMM_WORLD_SIZE", "")
        return cls(trtllm, tensorrt, gpus, int(size) if size.isdigit() else None)


def incompatibility(path: str | Path, machine: Machine | None = None) -> str | None:
    """Why the engine in `path` will not run on `machine` (this one when left out), in one sentence; None if it may."""
    try:
        folder = read(path)
    except EngineError as error:
        return str(error)
    machine = machine or Machine.here()
    return _damaged(folder) or _other_version(folder, machine) or _other_gpus(folder, machine)


def record_machine(path: Path, machine: Machine) -> None:
    """Note after a build on `machine` what trtllm-build leaves out, so that `incompatibility` can compare it later."""
    note = {"trtllm": machine.trtllm, "tensorrt": machine.tensorrt, "gpus": [asdict(gpu) for gpu in machine.gpus[:1]]}
    if machine.gpus:
        note["compute_capability"] = machine.gpus[0].compute_capability
    (path / NOTE).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")


def _damaged(folder: EngineFolder) -> str | None:
    if folder.kind == "checkpoint":
        return (
            f"{folder.path} is a TensorRT-LLM checkpoint, not an engine: build one from it with "
            f"trtllm-build --checkpoint_dir {folder.path} --output_dir ENGINE_DIR."
        )
    if missing := folder.missing:
        return f"{folder.path} lacks {missing} of {folder.world_size} rank(s): copy every file that trtllm-build wrote."
    for file in folder.files:
        if file.problem:
            return f"{folder.path / file.name} {file.problem}."
        whose = {TENSORRT_RTX: "TensorRT-RTX", SAFETENSORS: "the course's own backend (lane embedded)"}.get(
            file.product
        )
        if whose:
            return (
                f"{folder.path / file.name} is an engine of {whose}, which TensorRT-LLM cannot run: build it with "
                f"trtllm-build."
            )
    return None


def _other_version(folder: EngineFolder, machine: Machine) -> str | None:
    built = _versions(folder.version or "of an unknown version", folder.tensorrt)
    fitting = [c for c in containers() if c.trtllm == folder.version and _same(c.tensorrt, folder.tensorrt)]
    home = f"serve it in container {fitting[0].tag}" if fitting else "serve it there"
    if machine.trtllm is None:
        return f"{folder.path} was built with {built}, and no TensorRT-LLM is installed here: {home}."
    if folder.version in (None, machine.trtllm) and _same(folder.tensorrt, machine.tensorrt):
        return None
    here = _versions(machine.trtllm, machine.tensorrt)
    return f"{folder.path} was built with {built}, here is {here}: {home}, or build it again here."


def _other_gpus(folder: EngineFolder, machine: Machine) -> str | None:
    world, have, capability = folder.world_size, len(machine.gpus), folder.built_on.get("compute_capability")
    split = f"tensor parallel {folder.tp_size} × pipeline parallel {folder.pp_size}"
    if machine.ranks is not None and machine.ranks != world:
        return (
            f"{folder.path} was split for {world} rank(s) ({split}), but {machine.ranks} were started: start the "
            f"server with --world-size {world}."
        )
    if have < world:
        return f"{folder.path} needs {world} GPU(s) ({split}), and nvidia-smi shows {have} here."
    other = [gpu for gpu in machine.gpus[:world] if gpu.compute_capability != capability]
    if capability and other:
        return (
            f"{folder.path} was built for compute capability {capability}, and {other[0].name} has "
            f"{other[0].compute_capability}: build it again on this card."
        )
    return None


def _versions(trtllm: str, tensorrt: str | None) -> str:
    return f"TensorRT-LLM {trtllm}" + (f" and TensorRT {tensorrt}" if tensorrt else "")


def _same(one: str | None, other: str | None) -> bool:
    """Equal versions of TensorRT; a short one stands for all that begin with it ("10.7.0" for "10.7.0.23"), an unknown
    one equals every other."""
    if one is None or other is None:
        return True
    pairs = zip(*(text.partition(".post")[0].split(".") for text in (one, other)), strict=False)
    return all(a == b for a, b in pairs)


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _nvidia_smi() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
