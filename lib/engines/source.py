"""A Hugging Face checkpoint folder, read lazily: its config.json and slices of its safetensors files."""

import contextlib
import re
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  numpy learns bfloat16
import numpy as np
from safetensors import SafetensorError, safe_open

from engines import EngineError, did_you_mean
from engines.config import Config, read_json

_INDEX = "model.safetensors.index.json"
_BESIDE = re.compile(r"[^/]+\.safetensors")
_FLOATS = ("F32", "F16", "BF16")


class Source:
    """`config` is config.json; `names` are the tensors of all safetensors files. Only headers are read at first.

    Raises EngineError for a folder without usable safetensors files, and for a damaged one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = Config(read_json(folder / "config.json"), f"{folder}/config.json")
        self._file_of = {name: file for path in _files(folder) for file in [_open(path)] for name in file.keys()}
        self.names = set(self._file_of)

    def read(self, name: str, shape: tuple[int, ...], cut: tuple[slice, ...]) -> np.ndarray:
        """`cut` of tensor `name`, which must have `shape` and a float type; nothing else leaves the disk.

        Raises EngineError for a tensor that is missing, of another shape or of another type.
        """
        if name not in self.names:
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
        if any(part.start >= part.stop for part in cut):  # a rank behind the end of the vocabulary
            return np.zeros([max(part.stop - part.start, 0) for part in cut], np.float32)
        return stored[cut]


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
        return safe_open(path, framework="np")
    except FileNotFoundError:
        raise EngineError(f"{path} is missing, though {_INDEX} names it; fetch the checkpoint again.") from None
    except (SafetensorError, OSError) as error:
        start = b""
        with contextlib.suppress(OSError), path.open("rb") as file:
            start = file.read(20)
        if start.startswith(b"version https://git"):
            raise EngineError(f"{path} is a pointer of Git LFS, not weights; run `git lfs pull` there.") from None
        raise EngineError(f"{path} is damaged or cut short ({error}); fetch it again.") from None
