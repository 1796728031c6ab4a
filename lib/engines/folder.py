"""Why an engine will not run here, in one sentence, before a server is started with it (notebook 02)."""

from __future__ import annotations

from pathlib import Path

from engines import EngineError
from engines.engine_folder import EngineFolder, containers, read, record, same_version
from engines.machine import Gpu, Machine
from engines.plan_file import TENSORRT_RTX
from servinglab.repository.assets_check import engine_problem

__all__ = ["EngineFolder", "Gpu", "Machine", "read", "record", "refusal"]


def refusal(path: str | Path, machine: Machine | None = None) -> str | None:
    """Why the engine in `path` will not run on `machine` (this one when left out), in one sentence; None if it may."""
    try:
        folder = read(path)
    except EngineError as error:
        return str(error)
    machine = machine or Machine.here()
    return _wrong_kind(folder) or _damaged(folder) or _other_version(folder, machine) or _other_gpus(folder, machine)


def _wrong_kind(folder: EngineFolder) -> str | None:
    if folder.kind == "checkpoint":
        return (
            f"{folder.path} is a TensorRT-LLM checkpoint, not an engine: build one from it with "
            f"trtllm-build --checkpoint_dir {folder.path} --output_dir ENGINE_DIR."
        )
    if folder.kind == "onnx":
        return (
            f"{folder.path} is an engine of the embedded lane (ONNX), which TensorRT-LLM cannot run: serve it with "
            f"--lane embedded, or build an engine with course engine build."
        )
    return None


def _damaged(folder: EngineFolder) -> str | None:
    if problem := engine_problem(folder.path, "trtllm"):
        return f"{folder.path} {problem}"
    for file in folder.files:
        if file.problem:
            return f"{folder.path / file.name} {file.problem}."
        if file.product == TENSORRT_RTX:
            return (
                f"{folder.path / file.name} is an engine of TensorRT-RTX, which TensorRT-LLM cannot run: build it "
                f"with trtllm-build."
            )
    return None


def _other_version(folder: EngineFolder, machine: Machine) -> str | None:
    built = _versions(folder.version or "of an unknown version", folder.tensorrt)
    fitting = [c for c in containers(folder.version) if same_version(c.tensorrt, folder.tensorrt)]
    home = f"serve it in container {max(fitting, key=lambda c: c.release).tag}" if fitting else "serve it there"
    if machine.trtllm is None:
        return f"{folder.path} was built with {built}, and no TensorRT-LLM is installed here: {home}."
    same = same_version(folder.version, machine.trtllm, whole=True)
    if same and same_version(folder.tensorrt, machine.tensorrt):
        return None
    here = _versions(machine.trtllm, machine.tensorrt)
    return f"{folder.path} was built with {built}, here is {here}: {home}, or build it again here."


def _other_gpus(folder: EngineFolder, machine: Machine) -> str | None:
    world, have = folder.world_size, len(machine.gpus)
    split = f"tensor parallel {folder.tp_size} × pipeline parallel {folder.pp_size}"
    if machine.ranks is not None and machine.ranks != world:
        return (
            f"{folder.path} was split for {world} rank(s) ({split}), but {machine.ranks} were started: start the "
            f"server with --world-size {world}."
        )
    if have < world:
        return f"{folder.path} needs {world} GPU(s) ({split}), and nvidia-smi shows {have} here."
    other = [gpu for gpu in machine.gpus[:world] if gpu.compute_capability != folder.compute_capability]
    if folder.compute_capability and other:
        return (
            f"{folder.path} was built for compute capability {folder.compute_capability}, and {other[0].name} has "
            f"{other[0].compute_capability}: build it again on this card."
        )
    return None


def _versions(trtllm: str, tensorrt: str | None) -> str:
    return f"TensorRT-LLM {trtllm}" + (f" and TensorRT {tensorrt}" if tensorrt else "")
