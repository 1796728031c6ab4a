"""rank0.safetensors of a checkpoint and rank0.engine of an engine: where each tensor lies, and its numbers.

Both are in the safetensors format: the length of a header in 8 bytes, the header as JSON, the bytes of the tensors.
Here a file is only mapped: a tensor comes from the disk when it is used, and ONNX Runtime maps the same pages.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from reference_backend.errors import BackendError

ENGINE_VERSION = 4  # of what `build` makes of the tensors: an executor runs engines of its own version only
DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16),
          "U8": np.dtype(np.uint8)}  # fmt: skip
_LONGEST_HEADER = 100_000_000  # of safetensors itself


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
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > _LONGEST_HEADER:
                raise ValueError("it is no file of tensors in the safetensors format")
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        found = {name: _tensor(file, 8 + length, entry) for name, entry in header.items()}
        end = max((tensor.offset + tensor.length for tensor in found.values()), default=0)
        if (size := file.stat().st_size) != end:
            raise ValueError(f"it has {size} bytes and its header speaks of {end}")
    except OSError as error:
        raise BackendError(f"{file} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackendError(f"{file} is damaged or of another kind ({error}).") from None
    return found


def _tensor(file: Path, start: int, entry: dict) -> Tensor:
    (first, end), shape = entry["data_offsets"], tuple(entry["shape"])
    if end - first != math.prod(shape) * DTYPES[entry["dtype"]].itemsize:
        raise ValueError("the length of a tensor does not fit its shape")
    return Tensor(file, entry["dtype"], shape, start + first, end - first)
