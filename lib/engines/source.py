"""A Hugging Face checkpoint folder, read lazily: its config.json and slices of its safetensors files."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engines import EngineError
from servinglab.errors import did_you_mean

_INDEX = "model.safetensors.index.json"
_BESIDE = re.compile(r"[^/]+\.safetensors")
_FLOATS = ("F32", "F16", "BF16")
# TensorRT-LLM knows these by the names of Hugging Face, but computes every gelu, exact or not, with the tanh formula.
ACTIVATIONS = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu")


class Source:
    """`config` is config.json; `names` are the tensors of all safetensors files. Only headers are read at first.

    Raises EngineError for a folder without usable safetensors files, and for a damaged one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_json(folder / "config.json")
        self._file_of = {name: file for path in _files(folder) for file in [_open(path)] for name in file.keys()}

    @property
    def names(self) -> set[str]:
        return set(self._file_of)

    def get(self, key: str, default: Any = None) -> Any:
        """A value of config.json; the default also where it says null."""
        value = self.config.get(key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None) -> int:
        """A size in config.json: a whole number of at least 1."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            said = "has no" if value is None else f"says {value!r} for"
            raise EngineError(f"{self.folder}/config.json {said} {key}: it must be a whole number of at least 1.")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
            said = repr(value)[:40]
            raise EngineError(f"{self.folder}/config.json says {said} for {key}: it must be a finite number above 0.")
        return float(value)

    def activation(self, key: str, default: str) -> str:
        value = self.get(key, default)
        if value not in ACTIVATIONS:
            raise EngineError(
                f"{self.folder}/config.json says {value!r} for {key}, which is not converted; known: "
                f"{', '.join(ACTIVATIONS)}."
            )
        return value

    def read(self, name: str, shape: tuple[int, ...], cut: tuple[slice, ...]) -> torch.Tensor:
        """`cut` of tensor `name`, which must have `shape` and a float type; nothing else leaves the disk.

        Raises EngineError for a tensor that is missing, of another shape or of another type.
        """
        if name not in self._file_of:
            raise EngineError(
                f"{self.folder} has no tensor {name!r}, which its config.json asks for.{did_you_mean(name, self.names)}"
            )
        stored = self._file_of[name].get_slice(name)
        if tuple(stored.get_shape()) != shape:
            raise EngineError(
                f"{self.folder}: tensor {name!r} has shape {list(stored.get_shape())}, but its config.json makes it "
                f"{list(shape)}; the two files do not belong together."
            )
        if stored.get_dtype() not in _FLOATS:
            raise EngineError(
                f"{self.folder}: tensor {name!r} is of type {stored.get_dtype()}; convert takes the unquantized model, "
                f"with types {', '.join(_FLOATS)}."
            )
        return stored[cut]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises EngineError when there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EngineError(f"{path.parent} has no {path.name}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(f"{path} cannot be read ({error}).") from None
    if not isinstance(value, dict):
        raise EngineError(f"{path} holds {type(value).__name__}, not an object.")
    return value


def _files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint: those of its index, or the only one."""
    if (folder / _INDEX).exists():
        named = read_json(folder / _INDEX).get("weight_map")
        files = list(named.values()) if isinstance(named, dict) else []
        if not files or not all(isinstance(name, str) and _BESIDE.fullmatch(name) for name in files):
            raise EngineError(f"{folder / _INDEX} has no weight_map from tensors to safetensors files beside it.")
        return [folder / name for name in sorted(set(files))]
    found = sorted(folder.glob("*.safetensors"))
    if len(found) > 1:  # e.g. an adapter beside the model
        found = [path for path in found if path.name == "model.safetensors"]
    if found:
        return found
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise EngineError(
            f"{folder} has its weights as a pickle (*.bin), which may run code when opened; save them as safetensors: "
            f"transformers.AutoModelForCausalLM.from_pretrained({str(folder)!r}).save_pretrained(NEW_FOLDER)."
        )
    raise EngineError(f"{folder} has no model.safetensors and no {_INDEX}: there are no weights to convert.")


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise EngineError(f"{path} is missing, though {_INDEX} names it; fetch the checkpoint again.") from None
    except (SafetensorError, OSError) as error:
        start = b""
        with contextlib.suppress(OSError), path.open("rb") as file:
            start = file.read(20)
        if start.startswith(b"version https://git"):
            raise EngineError(f"{path} is a pointer of Git LFS, not weights; run `git lfs pull` there.") from None
        raise EngineError(f"{path} is damaged or cut short ({error}); fetch it again.") from None
