"""What this machine can run: one line for each thing the course needs, OK, WARN or FAIL, with the cure. Notebook 00.

Everything here only looks; nothing is written, started or downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from course.doctor import _machine, _software
from course.doctor._line import FAIL, OK, WARN, Line

__all__ = ["FAIL", "OK", "WARN", "Line", "as_dict", "examine", "lanes"]

CHECKS: tuple[Callable[[], Iterator[Line]], ...] = (
    _machine.python, _machine.system, _machine.cpu, _machine.memory, _machine.disk, _machine.temporary, _machine.shm,
    _machine.gpu, _machine.container, _machine.docker, _machine.ports, _software.numpy, _software.packages,
    _software.triton, _software.kernel, _software.models,
)  # fmt: skip
# Lines that a lane cannot do without: it runs when none of them has a status of the second tuple.
LANES = {
    "embedded": (
        ("python", "system", "disk", "temporary folder", "numpy", "packages: base", "packages: server", "triton"),
        (FAIL,),
    ),
    "trtllm": (("python", "packages: base", "gpu", "docker"), (FAIL, WARN)),
}


def examine() -> list[Line]:
    """Every line, in reading order; takes less than 3 s."""
    with ThreadPoolExecutor(len(CHECKS)) as pool:  # docker and nvidia-smi answer slowly or not at all
        return [line for found in pool.map(_safely, CHECKS) for line in found]


def lanes(lines: list[Line]) -> dict[str, str]:
    """For each lane the reason why it cannot run here; an empty text means that it can."""
    return {
        lane: "; ".join(f"{x.name}: {x.detail}" for x in lines if x.name in names and x.status in bad)
        for lane, (names, bad) in LANES.items()
    }


def as_dict(lines: list[Line]) -> dict[str, Any]:
    """The report as JSON-ready data: {"ok": bool, "lanes": {name: reason}, "lines": [{status, name, detail, cure}]}."""
    return {"ok": all(x.status != FAIL for x in lines), "lanes": lanes(lines), "lines": [asdict(x) for x in lines]}


def _safely(check: Callable[[], Iterator[Line]]) -> list[Line]:
    """A check that fails itself is a finding, not the end of the report."""
    try:
        return list(check())
    except Exception as error:
        detail = f"could not be looked at: {type(error).__name__}: {error}"
        return [Line(WARN, check.__name__, detail, "please report this")]
