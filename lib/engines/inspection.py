"""What the folder of an engine or of a checkpoint says about itself, and what two builds do differently (notebook 02).

trtllm-build writes config.json (version, pretrained_config, build_config) and one rankN.engine for each rank; the
TensorRT version stands in the engine file only. TensorRT has no API for the head of a file: its `trtexec
--getPlanVersionOnly` (samples/common/sampleEngines.cpp, printPlanVersion) reads the tag "ftrt", a zero and, at byte 24,
four numbers; plans of TensorRT-RTX begin with "vtrt". Engines of the course's own backend are safetensors files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines import EngineError, flags
from engines.config import Config, read_json
from engines.footprint import from_config
from engines.memory import gigabytes
from engines.versions import containers, table

TENSORRT, TENSORRT_RTX, SAFETENSORS = "TensorRT", "TensorRT-RTX", "safetensors"
_UNSAID = "not set"
_OFF = (None, False, "", "disable", [], _UNSAID)
_NO_SPECULATION = ("speculative_decoding_mode", 1)  # SpeculativeDecodingMode.NONE


@dataclass(frozen=True)
class EngineFile:
    """product and version: None where the first bytes are of no known kind. problem: the end of a sentence, or None."""

    name: str
    size_bytes: int
    product: str | None = None
    version: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class EngineFolder:
    """kind: "engine" or "checkpoint" (of TensorRT-LLM). pretrained, build: the two parts of config.json."""

    path: Path
    kind: str
    version: str | None
    pretrained: Config = field(repr=False)
    build: Config = field(repr=False)
    tp_size: int
    pp_size: int
    world_size: int
    files: tuple[EngineFile, ...]

    @property
    def tensorrt(self) -> str | None:
        """The TensorRT that built it: from the file, or from the container of this TensorRT-LLM."""
        if said := next((file.version for file in self.files if file.version), None):
            return said
        versions = {container.tensorrt for container in containers() if container.trtllm == self.version}
        return versions.pop() if len(versions) == 1 else None


@dataclass(frozen=True)
class Difference:
    """One setting with two values, "not set" where a build does not name it. ``meaning``: our words for it, or those
    for the flag of trtllm-build that sets it, or ""."""

    setting: str
    a: Any
    b: Any
    meaning: str = ""


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
    kind, version = "engine" if inner else "checkpoint", config.get("version")
    files = sorted(path.glob("rank*.engine" if inner else "rank*.safetensors"))
    return EngineFolder(path, kind, None if version is None else str(version), pretrained, build, tp, pp, world,
                        tuple(map(look, files)))  # fmt: skip


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
    if head[:4] == b"vtrt":
        return EngineFile(path.name, size, TENSORRT_RTX)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < size:
        return EngineFile(path.name, size, SAFETENSORS)
    if head.startswith(b"version https://git-lfs"):
        return EngineFile(path.name, size, problem="is a Git LFS pointer: fetch the file itself with git lfs pull")
    return EngineFile(path.name, size, problem=f"is no engine: it begins with {head[:4]!r}, an engine with b'ftrt'")


def inspect(path: str | Path) -> dict[str, Any]:
    """What the folder of an engine or of a TensorRT-LLM checkpoint holds, ready for JSON: kind, versions, precision,
    split, shape, limits, plugins that are on, build options, files with sizes. Raises EngineError with one sentence.
    """
    folder = read(path)
    pretrained, quantization = folder.pretrained.values, folder.pretrained.part("quantization")
    try:
        parameters = from_config(pretrained, str(path)).parameters()
    except EngineError:
        parameters = None  # an architecture that the estimate does not know
    limits, plugins, options = _parts(folder)
    return {
        "kind": folder.kind,
        "path": str(path),
        "trtllm": folder.version,
        "tensorrt": folder.tensorrt,
        "architecture": str(pretrained.get("architecture", "unknown")),
        "parameters": parameters,
        "dtype": str(pretrained.get("dtype", "unknown")),
        "quant_algo": quantization.get("quant_algo"),
        "kv_cache_quant_algo": quantization.get("kv_cache_quant_algo"),
        "tp_size": folder.tp_size,
        "pp_size": folder.pp_size,
        "world_size": folder.world_size,
        "shape": {key: pretrained[key] for key in table("settings")["shape"] if key in pretrained},
        "limits": limits,
        "plugins": {key: value for key, value in plugins.items() if value not in _OFF},
        "options": {key: value for key, value in options.items() if value not in _OFF},
        "files": [{key: value for key, value in vars(file).items() if value is not None} for file in folder.files],
        "size_bytes": sum(file.size_bytes for file in folder.files),
    }


def diff(a: str | Path, b: str | Path) -> list[Difference]:
    """What two builds differ in, the most important first; sizes are left out where a folder holds no engine file."""
    one, two = _settings(a), _settings(b)
    first = table("settings")["order"]
    known = flags.known("trtllm-build", containers()[0].trtllm)
    meanings = {name[2:]: flag.explain for name, flag in known.items()} | table("settings")["meaning"]
    return [
        Difference(key, a, b, meanings.get(key, ""))
        for key in [*first, *sorted({*one, *two} - set(first))]
        for a, b in [(one.get(key, _UNSAID), two.get(key, _UNSAID))]
        if a != b and not (a in _OFF and b in _OFF)
    ]


def shown(setting: str, value: Any) -> str:
    """A value for a table: sizes in GB, nothing as "off"."""
    if value is None or isinstance(value, bool):
        return "on" if value else "off"
    return gigabytes(value) if setting.endswith("_bytes") else str(value)


def _settings(path: str | Path) -> dict[str, Any]:
    found, (limits, plugins, options) = inspect(path), _parts(read(path))
    folder = {key: found[key] for key in table("settings")["folder"] if found[key] or key.endswith("quant_algo")}
    return {**plugins, **options, **limits, **found["shape"], **folder}


def _parts(folder: EngineFolder) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(limits, plugins, options): the options are single values of build_config that are neither."""
    build, limits = folder.build.values, table("settings")["limits"]
    plugins = {key: value for key, value in folder.build.part("plugin_config").items() if key != "dtype"}
    options = {
        key: value.lower() if key == "kv_cache_type" and isinstance(value, str) else value  # PAGED in older versions
        for key, value in build.items()
        if key not in limits and not isinstance(value, (Mapping, list)) and (key, value) != _NO_SPECULATION
    }
    return {key: build[key] for key in limits if key in build}, plugins, options
