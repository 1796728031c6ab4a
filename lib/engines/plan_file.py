"""What the first bytes of an engine file say: whose it is, which version built it (notebooks 01 and 02).

TensorRT has no API for this. Its `trtexec --getPlanVersionOnly` (samples/common/sampleEngines.cpp, printPlanVersion)
reads the tag "ftrt", a zero and, at byte 24, four numbers; plans of TensorRT-RTX are laid out alike (module `plan`).
Nothing public says where a plan of TensorRT keeps the compute capability it was built for.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

from engines import EngineError, plan

TENSORRT, TENSORRT_RTX = "TensorRT", "TensorRT-RTX"


@dataclass(frozen=True)
class PlanFile:
    """An engine file. ``product`` and ``version`` are None where the first bytes are of no known kind.

    ``targets``: the compute capabilities that a plan of TensorRT-RTX names, such as "8.6"; () where unknown.
    ``problem``: why the file cannot be a whole engine (the end of a sentence), or None.
    """

    name: str
    size: int
    product: str | None = None
    version: str | None = None
    targets: tuple[str, ...] = ()
    problem: str | None = None


def look(path: Path) -> PlanFile:
    """Read the first bytes of an engine file. A file that cannot be read is a PlanFile with a problem."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(28)
            if head[:4] == plan.MAGIC:
                return _rtx(path.name, size, file)
    except OSError as error:
        return PlanFile(path.name, 0, problem=f"cannot be read ({error.strerror})")
    if size == 0:
        return PlanFile(path.name, 0, problem="is empty: the build did not finish, or the copy broke off")
    if head[:4] == b"ftrt":
        if len(head) < 28:
            return PlanFile(path.name, size, TENSORRT, problem=f"is cut: it has {size} bytes")
        known = head[4:8] == b"\0\0\0\0"  # the only layout that trtexec knows
        return PlanFile(path.name, size, TENSORRT, ".".join(map(str, head[24:28])) if known else None)
    if head.startswith(b"version https://git-lfs"):
        return PlanFile(path.name, size, problem="is a Git LFS pointer: fetch the file itself with git lfs pull")
    return PlanFile(path.name, size, problem=f"is no engine: it begins with {head[:4]!r}, an engine with b'ftrt'")


def _rtx(name: str, size: int, file) -> PlanFile:
    try:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            header = plan.read_header(data)
    except EngineError as error:
        return PlanFile(name, size, TENSORRT_RTX, problem=f"is damaged ({str(error).rstrip('.')})")
    targets = tuple(f"{target[2:-1]}.{target[-1]}" for target in header.targets)
    return PlanFile(name, size, TENSORRT_RTX, header.version, targets)
