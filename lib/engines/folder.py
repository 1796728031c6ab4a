"""What the folder of an engine or of a checkpoint says about itself, and what the heads of its files say (notebook 02).

trtllm-build writes config.json (version, pretrained_config, build_config) and one rankN.engine for each rank. It writes
neither the TensorRT version nor the compute capability: the first is in the engine file, the second is known only where
`compatibility.record_machine` noted it after the build.

TensorRT has no API for the head of a file. Its `trtexec --getPlanVersionOnly` (samples/common/sampleEngines.cpp,
printPlanVersion) reads the tag "ftrt", a zero and, at byte 24, four numbers; plans of TensorRT-RTX are laid out alike
(module plan). The engines of the course's own backend are safetensors files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.config import Config, read_json
from engines.errors import EngineError
from engines.plan import MAGIC
from engines.versions import containers

NOTE = "built_on.json"
LIMITS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width")
TENSORRT, TENSORRT_RTX, SAFETENSORS = "TensorRT", "TensorRT-RTX", "safetensors"


@dataclass(frozen=True)
class EngineFile:
    """product and version: None where the first bytes are of no known kind. problem: why it is no whole engine (the end
    of a sentence), or None.
    """

    name: str
    size: int
    product: str | None = None
    version: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class EngineFolder:
    """kind: "engine" or "checkpoint" (of TensorRT-LLM). version: of TensorRT-LLM. pretrained, build: the two parts of
    config.json. files: rankN.engine, or rankN.safetensors of a checkpoint. built_on: what was noted, or {}.
    """

    path: Path
    kind: str
    version: str | None
    note: object
    pretrained: Config = field(repr=False)
    build: Config = field(repr=False)
    tp_size: int
    pp_size: int
    world_size: int
    files: tuple[EngineFile, ...]
    built_on: Mapping[str, Any]

    @property
    def limits(self) -> dict[str, Any]:
        return {name: self.build.values[name] for name in LIMITS if name in self.build.values}

    @property
    def tensorrt(self) -> str | None:
        """The TensorRT that built it: from the file, from the note, or from the container of this TensorRT-LLM."""
        said = next((file.version for file in self.files if file.version), self.built_on.get("tensorrt"))
        if said:
            return str(said)
        versions = {container.tensorrt for container in containers() if container.trtllm == self.version}
        return versions.pop() if len(versions) == 1 else None

    @property
    def missing(self) -> str | None:
        """The first of the files that the ranks need and that is not there."""
        ending = "engine" if self.kind == "engine" else "safetensors"
        names = (f"rank{rank}.{ending}" for rank in range(self.world_size))
        return next((name for name in names if not (self.path / name).exists()), None)


def read(path: str | Path) -> EngineFolder:
    """Read a folder's config.json and the heads of its engine files. Raises EngineError with one sentence."""
    path = Path(path)
    if not path.is_dir():
        raise EngineError(f"There is no folder {path}; give the folder of an engine or of a checkpoint.")
    config = Config(read_json(path / "config.json"), f"{path}/config.json")
    if "model_type" in config.values or "architectures" in config.values:
        raise EngineError(
            f"{path} is a Hugging Face checkpoint, not an engine: convert it (course convert), then build it."
        )
    inner = config.part("pretrained_config")
    if not inner and not ("architecture" in config.values and "mapping" in config.values):
        raise EngineError(f"{path / 'config.json'} has no pretrained_config: it is not from trtllm-build.")
    pretrained = Config(inner or config.values, config.where)
    build, mapping = Config(config.part("build_config"), config.where), Config(pretrained.part("mapping"), config.where)
    pretrained.part("quantization"), build.part("plugin_config")  # refused here, if they are no objects
    tp, pp, cp = (mapping.whole(key, default=1) for key in ("tp_size", "pp_size", "cp_size"))
    world = mapping.whole("world_size", default=tp * pp * cp)
    if world != tp * pp * cp:
        raise EngineError(f"{path}: config.json says world_size {world}, but tp_size × pp_size is {tp * pp * cp}.")
    built_on: Mapping[str, Any] = {}
    with contextlib.suppress(EngineError):  # a broken note is no note
        built_on = read_json(path / NOTE)
    version = config.get("version")
    return EngineFolder(
        path=path,
        kind="engine" if inner else "checkpoint",
        version=None if version is None else str(version),
        note=config.get("note"),
        pretrained=pretrained,
        build=build,
        tp_size=tp,
        pp_size=pp,
        world_size=world,
        files=tuple(look(file) for file in sorted(path.glob("rank*.engine" if inner else "rank*.safetensors"))),
        built_on=built_on,
    )


def look(path: Path) -> EngineFile:
    """Read the first bytes of an engine file. A file that cannot be read is an EngineFile with a problem."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(28)
    except OSError as error:
        return EngineFile(path.name, 0, problem=f"cannot be read ({error.strerror})")
    if size == 0:
        return EngineFile(path.name, 0, problem="is empty: the build did not finish, or the copy broke off")
    if head[:4] == b"ftrt":
        if len(head) < 28:
            return EngineFile(path.name, size, TENSORRT, problem=f"is cut: it has {size} bytes")
        known = head[4:8] == b"\0\0\0\0"  # the only layout that trtexec knows
        return EngineFile(path.name, size, TENSORRT, ".".join(map(str, head[24:28])) if known else None)
    if head[:4] == MAGIC:
        return EngineFile(path.name, size, TENSORRT_RTX)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < size:
        return EngineFile(path.name, size, SAFETENSORS)
    if head.startswith(b"version https://git-lfs"):
        return EngineFile(path.name, size, problem="is a Git LFS pointer: fetch the file itself with git lfs pull")
    return EngineFile(path.name, size, problem=f"is no engine: it begins with {head[:4]!r}, an engine with b'ftrt'")
