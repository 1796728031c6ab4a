"""What is in an engine, and what two builds do differently (notebook 02)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from engines import flags
from engines.errors import EngineError, one_of
from engines.folder import EngineFile, EngineFolder, read
from engines.footprint import from_config
from engines.memory import gigabytes
from engines.versions import containers, table

EXAMPLES = ("plain", "tuned")
_OFF = (None, False, "", "disable", [])
_NO_SPECULATION = ("speculative_decoding_mode", 1)  # SpeculativeDecodingMode.NONE
_OWN = ("trtllm", "tensorrt", "compute_capability", "architecture", "dtype", "quant_algo", "kv_cache_quant_algo",
        "tp_size", "pp_size", "size_bytes")  # fmt: skip
_SHAPE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_size",
          "intermediate_size", "vocab_size", "max_position_embeddings", "logits_dtype")  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """One setting with two values, None where a build does not have it. ``meaning``: what it is, or ""."""

    setting: str
    a: Any
    b: Any
    meaning: str = ""


def inspect(path: str | Path) -> dict[str, Any]:
    """What the folder of an engine or of a TensorRT-LLM checkpoint holds, ready for JSON: kind, versions, precision,
    split, shape, limits, plugins that are on, build options, files with sizes. Raises EngineError with one sentence.
    """
    folder = read(path)
    pretrained, quantization = folder.pretrained.values, folder.pretrained.part("quantization")
    return {
        "kind": folder.kind,
        "path": str(path),
        "note": str(folder.note) if folder.note else None,
        "trtllm": folder.version,
        "tensorrt": folder.tensorrt,
        "compute_capability": folder.built_on.get("compute_capability"),
        "architecture": str(pretrained.get("architecture", "unknown")),
        "parameters": _parameters(folder),
        "dtype": str(pretrained.get("dtype", "unknown")),
        "quant_algo": quantization.get("quant_algo"),
        "kv_cache_quant_algo": quantization.get("kv_cache_quant_algo"),
        "tp_size": folder.tp_size,
        "pp_size": folder.pp_size,
        "world_size": folder.world_size,
        "shape": {key: pretrained[key] for key in _SHAPE if key in pretrained},
        "limits": folder.limits,
        "plugins": {key: value for key, value in _plugins(folder).items() if value not in _OFF},
        "options": {key: value for key, value in _options(folder).items() if value not in _OFF},
        "files": [_file(file) for file in folder.files],
        "size_bytes": sum(file.size for file in folder.files),
    }


def diff(a: str | Path, b: str | Path) -> list[Difference]:
    """What two builds differ in, the most important first; sizes are left out where a folder holds no engine file."""
    one, two = _settings(a), _settings(b)
    first = table("settings")["order"]
    return [
        Difference(key, one.get(key), two.get(key), _meaning(key))
        for key in [*first, *sorted({*one, *two} - set(first))]
        if one.get(key) != two.get(key) and not (one.get(key) in _OFF and two.get(key) in _OFF)
    ]


def example(folder: str | Path, which: str = "plain") -> Path:
    """Write a config.json for practice, "plain" or "tuned", and return its folder. Not from a build; the file says so.

    Two builds of a Llama of 7 billion parameters: "tuned" has int8 weights, smaller limits and beams. There is no
    engine file beside it. Raises EngineError for another name, and where the folder already holds another config.json.
    """
    one_of("The example", which, EXAMPLES)
    config = json.loads(resources.files("engines").joinpath("data", "example_builds.json").read_text())[which]
    target, text = Path(folder), json.dumps(config, indent=4) + "\n"
    path = target / "config.json"
    if path.exists() and path.read_bytes() != text.encode():
        raise EngineError(f"{target} already holds another config.json; give another folder.")
    target.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return target


def shown(setting: str, value: Any) -> str:
    """A value for a table: sizes in GB, nothing as "off"."""
    if value is None or value is False:
        return "off"
    if value is True:
        return "on"
    return gigabytes(value) if setting.endswith("_bytes") else str(value)


def _meaning(setting: str) -> str:
    """Our own words for it, else those for the flag of trtllm-build that sets it."""
    flag = flags.known("trtllm-build", containers()[0].trtllm).get(f"--{setting}")
    return table("settings")["meaning"].get(setting) or (flag.explain if flag else "")


def _settings(path: str | Path) -> dict[str, Any]:
    folder, found = read(path), inspect(path)
    own = {key: found[key] for key in _OWN if found[key]}
    return {**_plugins(folder), **_options(folder), **found["limits"], **found["shape"], **own}


def _plugins(folder: EngineFolder) -> dict[str, Any]:
    return {key: value for key, value in folder.build.part("plugin_config").items() if key != "dtype"}


def _options(folder: EngineFolder) -> dict[str, Any]:
    """Single values of build_config that are neither limits nor plugins."""
    return {
        key: value.lower() if key == "kv_cache_type" and isinstance(value, str) else value  # PAGED in older versions
        for key, value in folder.build.values.items()
        if key not in folder.limits and not isinstance(value, (Mapping, list)) and (key, value) != _NO_SPECULATION
    }


def _file(file: EngineFile) -> dict[str, Any]:
    found = {"name": file.name, "size_bytes": file.size, **asdict(file)}
    return {key: value for key, value in found.items() if value is not None and key != "size"}


def _parameters(folder: EngineFolder) -> int | None:
    try:
        return from_config(folder.pretrained.values, str(folder.path)).parameters()
    except EngineError:
        return None  # an architecture that the estimate does not know
