"""rank0.safetensors of a checkpoint and rank0.engine of an engine: where each tensor lies, and its numbers.

Both are in the safetensors format: the length of a header in 8 bytes, the header as JSON, the bytes of the tensors.
Here a file is only mapped: a tensor comes from the disk when it is used, and ONNX Runtime maps the same pages.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from reference_backend import BackendError

ENGINE_VERSION = 4  # of what `build` makes of the tensors: an executor runs engines of its own version only
DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16),
          "U8": np.dtype(np.uint8)}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """`length` bytes of `file` from byte `offset` on; dtype: one of DTYPES."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int

    def array(self) -> np.ndarray:
        """The numbers, read-only and mapped from the disk."""
        return np.memmap(self.file, DTYPES[self.dtype], "r", self.offset, self.shape)


def tensors(file: Path) -> dict[str, Tensor]:
    """{name: tensor}, and nothing but the header read. Raises BackendError when the file is another, or cut short."""
    try:
        with file.open("rb") as opened, safe_open(file, framework="np"):  # which checks the header and the length
            start = 8 + int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(start - 8))
        header.pop("__metadata__", None)
        if others := {entry["dtype"] for entry in header.values()} - DTYPES.keys():
            raise SafetensorError(f"it holds numbers of type {min(others)}")
    except OSError as error:
        raise BackendError(f"{file} cannot be read: {error.strerror or error}.") from None
    except SafetensorError as error:
        raise BackendError(f"{file} is damaged or of another kind ({error}).") from None
    return {
        name: Tensor(file, entry["dtype"], tuple(entry["shape"]), start + first, end - first)
        for name, entry in header.items()
        for first, end in [entry["data_offsets"]]
    }
