"""Why an engine will not run here, in one sentence, before a server is started with it (notebook 02)."""

import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from engines import EngineError
from engines.inspection import SAFETENSORS, TENSORRT_RTX, EngineFolder, read
from engines.versions import containers, find

_FOREIGN = {TENSORRT_RTX: "TensorRT-RTX", SAFETENSORS: "the course's own backend (lane embedded)"}


@dataclass(frozen=True)
class Machine:
    """Where an engine is to run. `gpus`: how many."""

    trtllm: str | None = None
    tensorrt: str | None = None
    gpus: int = 0

    @classmethod
    def here(cls, container: str | None = None) -> "Machine":
        """This machine, with the software of a container (a tag such as "26.07") or, without one, what is installed."""
        software = find(container) if container else None
        trtllm = software.trtllm if software else _installed("tensorrt_llm")
        tensorrt = software.tensorrt if software else _installed("tensorrt")
        return cls(trtllm, tensorrt, len(_nvidia_smi()))


def incompatibility(path: str | Path, machine: Machine | None = None) -> str | None:
    """Why the engine in `path` will not run on `machine` (this one when left out), in one sentence; None if it may.

    Nothing in a folder says for which kind of card an engine was built, so that is not compared.
    """
    try:
        folder = read(path)
    except EngineError as error:
        return str(error)
    machine = machine or Machine.here()
    return _damaged(folder) or _other_version(folder, machine) or _other_gpus(folder, machine)


def _damaged(folder: EngineFolder) -> str | None:
    if folder.kind == "checkpoint":
        return (
            f"{folder.path} is a TensorRT-LLM checkpoint, not an engine: build one from it with "
            f"trtllm-build --checkpoint_dir {folder.path} --output_dir ENGINE_DIR."
        )
    names, world = {file.name for file in folder.files}, folder.world_size
    if missing := next((name for n in range(world) if (name := f"rank{n}.engine") not in names), None):
        return f"{folder.path} lacks {missing} of {world} rank(s): copy every file that trtllm-build wrote."
    for file in folder.files:
        if file.problem:
            return f"{folder.path / file.name} {file.problem}."
        if whose := _FOREIGN.get(file.product):
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
    world, split = folder.world_size, f"tensor parallel {folder.tp_size} × pipeline parallel {folder.pp_size}"
    if machine.gpus < world:
        return f"{folder.path} needs {world} GPU(s) ({split}), and nvidia-smi shows {machine.gpus} here."
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
    """One line for each GPU."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
