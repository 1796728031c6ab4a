"""Begin and end of every notebook: what runs here, and a machine-readable record of what was produced.
``begin(...)`` follows the parameters, ``record(...)`` is the last cell.
"""

import functools
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from servinglab import scratch
from servinglab.errors import CourseError
from servinglab.lane import choose, resolve_lane, server_elsewhere, spare_the_proxy
from servinglab.root import module
from servinglab.scratch import shorten as shorten  # the name by which notebooks import it

# The wheel ships a server binary that cannot be asked for its version without starting it.
_TRITON_IN_WHEEL = {"0.7.0": "2.51.0"}
# Notebooks whose lesson is the server itself: its files, its process, a model beside the five, a second server.
OWN_SERVER = ("00", "02", "03", "04", "05", "09", "10", "12", "14", "15", "16")

_page: dict[str, Any] = {}  # of this kernel's notebook: id, start, lane and seed, and what else its figures shall say


def device(lane: str = "auto") -> str:
    """What computes the tokens: in the embedded lane the CPU ("cpu, AMD EPYC, 2 cores") or a CUDA device, on which fp32
    and bf16 engines run then; in the other a GPU."""
    if resolve_lane(lane) == "trtllm":
        ask = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(ask, capture_output=True, text=True, timeout=20) if shutil.which(ask[0]) else None
        names = done.stdout.strip().splitlines() if done and done.returncode == 0 else []
        return f"{len(names)} × {names[0]}" if names else "no GPU found"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpu = f"cpu, {cpu_name()}, {cores} core{'s' * (cores != 1)}"
    found = _cuda(os.environ.get("SERVINGLAB_DEVICE", "auto"))
    return f"cuda, {found} (int4: {cpu})" if found else cpu


@functools.cache
def _cuda(wanted: str) -> str:
    """The CUDA device on which the backend of the embedded lane runs engines, asked in a process of its own; or ""."""
    if wanted == "cpu" or not any(Path(driver).exists() for driver in ("/dev/nvidiactl", "/dev/dxg")):
        return ""
    ask = module("reference_backend.executor.device")
    return subprocess.run(ask, capture_output=True, text=True, timeout=120, check=False).stdout.strip()


def versions() -> dict[str, str]:
    """Versions of what can change a result: {"python": "3.11.7", "triton": "2.51.0", …}; "-" for what is not here."""
    wheel = _version("nvidia-pytriton")
    triton = "-" if wheel == "-" else f"{_TRITON_IN_WHEEL.get(wheel, 'unknown')} (nvidia-pytriton {wheel})"
    triton = "-" if server_elsewhere() else os.environ.get("TRITON_SERVER_VERSION") or triton
    found = {"python": platform.python_version(), "triton": triton}
    return found | {package: _version(package) for package in ("tritonclient", "numpy", "onnxruntime")}


def begin(notebook: str, lane: str = "auto", *, seed: int | None = None, **facts: object) -> str:
    """Start the notebook's clock, give it a temporary folder of its own, set matplotlib's style; the lane by its name.
    `facts`, such as `weights="int4"`, stand in the small print of its figures, beside lane, device and seed."""
    from servinglab.figures import style  # not at the top: not every program that asks for the device draws

    scratch.adopt()
    spare_the_proxy()
    lane = choose(lane)
    if notebook in OWN_SERVER and (there := server_elsewhere()):
        print(f"# The server at {there[0]} is not used: this notebook changes its server, and starts one of its own.")
        del os.environ["SERVINGLAB_SERVER"]
    _page.clear()
    _page.update(notebook=notebook, started=time.perf_counter(), lane=lane, seed=seed, facts=facts)
    style.use(provenance())
    return lane


def provenance() -> str:
    """What made the numbers of this notebook, for the small print of its figures."""
    lane, seed = _page.get("lane", resolve_lane()), _page.get("seed")
    parts = [f"{lane} lane"] * (server_elsewhere() is None) + [_computed_by(lane)]
    parts += [f"seed {seed}"] * (seed is not None)
    return " · ".join(parts + [f"{name} {value}" for name, value in _page.get("facts", {}).items()])


def _computed_by(lane: str) -> str:
    """This machine's device, or the address of an attached server: what that one runs on is not known here."""
    there = server_elsewhere()
    return f"server at {there[0]}" if there else device(lane)


def record(**values: Any) -> None:
    """Print one line: which lane, device and versions produced this notebook's numbers, in how many seconds.

    ``values`` are the numbers worth keeping, named with their unit ("first_token_ms"). With COURSE_RECORD_DIR set they
    are written to ``<that folder>/<notebook>.json`` with the rest. Raises CourseError for what JSON cannot hold.
    """
    line: dict[str, Any] = {"notebook": _page["notebook"], "lane": _page["lane"], "device": _computed_by(_page["lane"])}
    line |= {"versions": versions(), "seed": _page["seed"], "seconds": round(time.perf_counter() - _page["started"], 1)}
    values = {**_page["facts"], **values}
    if taken := sorted(set(values) & set(line)):
        raise CourseError(f"record: {', '.join(taken)} is filled in already; choose another name")
    try:
        text = json.dumps({**line, **values}, default=lambda array: array.tolist(), allow_nan=False)
    except (AttributeError, TypeError, ValueError) as error:
        raise CourseError(f"record: pass plain numbers, text, lists or dicts ({error})") from None
    made_by = " · ".join(f"{name} {version}" for name, version in line["versions"].items())
    print(f"{provenance()} · {made_by} · {line['seconds']:.0f} s")
    if folder := os.environ.get("COURSE_RECORD_DIR"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, f"{line['notebook']}.json").write_text(text + "\n", encoding="utf-8")


def _version(package: str) -> str:
    return next((found.version for found in importlib.metadata.distributions(name=package)), "-")


def cpu_name() -> str:
    """The processor's name in the kernel's words, or else its architecture."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)$", info.read_text(encoding="utf-8") if info.exists() else "", re.MULTILINE)
    return found[1] if found else platform.machine()
