"""What an engine folder says about itself (notebook 02).

trtllm-build writes config.json (version, pretrained_config, build_config) and one rankN.engine for each rank. It writes
neither the TensorRT version nor the compute capability: the first is in the engine file (module `plan_file`), the
second is known only where `record` noted it after the build.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engines import EngineError
from engines.machine import Machine
from engines.plan_file import PlanFile, look
from engines.shapes import read_config
from servinglab.repository.assets_check import exists

NOTE = "built_on.json"
LIMITS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width")


@dataclass(frozen=True)
class EngineFolder:
    """What a folder says about itself. kind: "engine", "checkpoint" (of TensorRT-LLM) or "onnx" (the embedded lane).

    files: rankN.engine, or rankN.safetensors of a checkpoint. built_on: what `record` noted, or {}. note: what a
    config.json that was written by hand says about itself.
    """

    path: Path
    kind: str
    version: str | None
    architecture: str
    dtype: str
    quant_algo: str | None
    kv_cache_quant_algo: str | None
    tp_size: int
    pp_size: int
    world_size: int
    pretrained: Mapping[str, Any] = field(repr=False)
    build: Mapping[str, Any] = field(repr=False)
    files: tuple[PlanFile, ...] = ()
    built_on: Mapping[str, Any] = field(default_factory=dict)
    note: object = None

    @property
    def limits(self) -> dict[str, Any]:
        return {name: self.build[name] for name in LIMITS if name in self.build}

    @property
    def plugins(self) -> Mapping[str, Any]:
        return _mapping(self.build, "plugin_config", self.path)

    @property
    def tensorrt(self) -> str | None:
        """The TensorRT that built it: from the file, from the note, or from the container of this TensorRT-LLM."""
        said = [file.version for file in self.files if file.version] or [self.built_on.get("tensorrt")]
        if said[0]:
            return str(said[0])
        versions = {container.tensorrt for container in containers(self.version)}
        return versions.pop() if len(versions) == 1 else None

    @property
    def compute_capability(self) -> str | None:
        return self.built_on.get("compute_capability")


def read(path: str | Path) -> EngineFolder:
    """Read a folder's config.json and the heads of its engine files. Raises EngineError with one sentence."""
    path = Path(path)
    if not exists(path):
        raise EngineError(f"There is no folder {path}; give the folder of an engine or of a checkpoint.")
    config = read_config(path)
    if "pretrained_config" in config:
        kind, pretrained = "engine", _mapping(config, "pretrained_config", path)
    elif "architecture" in config and "mapping" in config:
        kind, pretrained = "checkpoint", config
    elif "model_type" in config or "architectures" in config:
        raise EngineError(
            f"{path} is a Hugging Face checkpoint, not an engine: convert it (course engine convert), then build it "
            f"(course engine build)."
        )
    else:
        raise EngineError(f"{path / 'config.json'} has no pretrained_config: it is not from trtllm-build.")
    if config.get("format") == "onnx":
        kind = "onnx"
    mapping, quantization = _mapping(pretrained, "mapping", path), _mapping(pretrained, "quantization", path)
    tp, pp, cp = (_size(mapping, key, path) for key in ("tp_size", "pp_size", "cp_size"))
    world = _size(mapping, "world_size", path, tp * pp * cp)
    if world != tp * pp * cp:
        raise EngineError(f"{path}: config.json says world_size {world}, but tp_size × pp_size is {tp * pp * cp}.")
    ending = {"engine": "engine", "checkpoint": "safetensors"}.get(kind, "")
    files = [path / f"rank{rank}.{ending}" for rank in range(world)]
    found = [look(f) if kind == "engine" else PlanFile(f.name, f.stat().st_size) for f in files if f.exists()]
    version = config.get("version")
    return EngineFolder(
        path=path,
        kind=kind,
        version=None if version is None else str(version),
        architecture=str(pretrained.get("architecture", "unknown")),
        dtype=str(pretrained.get("dtype", "unknown")),
        quant_algo=_text(quantization.get("quant_algo")),
        kv_cache_quant_algo=_text(quantization.get("kv_cache_quant_algo")),
        tp_size=tp,
        pp_size=pp,
        world_size=world,
        pretrained=pretrained,
        build=_mapping(config, "build_config", path),
        files=tuple(found),
        built_on=_note(path),
        note=config.get("note"),
    )


def record(path: Path, machine: Machine) -> None:
    """Note after a build on `machine` what trtllm-build leaves out, so that `refusal` can compare it later."""
    note = {"trtllm": machine.trtllm, "tensorrt": machine.tensorrt, "gpus": [asdict(gpu) for gpu in machine.gpus[:1]]}
    if machine.gpus:
        note["compute_capability"] = machine.gpus[0].compute_capability
    scratch = path / f".{NOTE}"
    scratch.write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")
    scratch.replace(path / NOTE)


def containers(version: str | None) -> list[Any]:
    """The containers that ship this TensorRT-LLM; [] for an unknown version."""
    from engines import compass

    if version is None:
        return []
    return [container for container in compass.containers() if same_version(container.trtllm, version, whole=True)]


def same_version(one: str | None, other: str | None, *, whole: bool = False) -> bool:
    """Equal versions. A short one stands for all that begin with it ("10.7.0" for "10.7.0.23") unless `whole`; an
    unknown one equals every other."""
    if one is None or other is None:
        return True
    if whole:
        return one == other
    first, second = (re.findall(r"\d+", text.partition(".post")[0])[:4] for text in (one, other))
    length = min(len(first), len(second))
    return first[:length] == second[:length]


def _mapping(config: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    found = config.get(key)
    if found is not None and not isinstance(found, Mapping):
        raise EngineError(f"{path}: {key} in config.json is no JSON object: copy the folder again.")
    return found or {}


def _size(mapping: Mapping[str, Any], key: str, path: Path, default: int = 1) -> int:
    value = mapping.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
        raise EngineError(f"{path}: mapping.{key} in config.json must be a number of GPUs, not {value!r}.")
    return value


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _note(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((path / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
