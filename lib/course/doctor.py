"""What this machine can run: one line for each thing the course needs, OK, WARN or FAIL, with the cure. Notebook 00.

Everything here only looks; nothing is written, started or downloaded.
"""

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from servinglab import assets
from servinglab.errors import CourseError
from servinglab.lane import resolve_lane
from servinglab.notebook import cpu_name
from servinglab.root import find_root
from servinglab.server import install

OK, WARN, FAIL = "OK", "WARN", "FAIL"
PYTHONS = ((3, 10), (3, 11), (3, 12))
GIB = 2**30
RAM_NEEDED, DISK_NEEDED, SHM_NEEDED = 4 * GIB, 5 * GIB, 64 * 2**20
SHOWN = "tritonclient nvidia-pytriton torch transformers onnxruntime jupyterlab ipykernel papermill pytest".split()
# Lines that a lane cannot do without: it runs when none of them has a status of the second tuple.
LANES = {
    "embedded": ("python,system,disk,temporary folder,numpy,packages: base,packages: server,triton".split(","), [FAIL]),
    "trtllm": ("python,packages: base,gpu,docker".split(","), [FAIL, WARN]),
}


@dataclass(frozen=True)
class Line:
    """One finding. `cure` says what to do and is empty when all is well."""

    status: str
    name: str
    detail: str
    cure: str = ""


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


def require_trtllm() -> None:
    """Raise CourseError where the lane trtllm cannot run."""
    if resolve_lane() == "trtllm":  # inside NVIDIA's container, where there is no Docker
        return
    if reason := lanes(examine())["trtllm"]:
        raise CourseError(f"The lane trtllm cannot run here ({reason}); leave it out, or see Dockerfiles/README.md.")


def _line(name: str, detail: str, *troubles: tuple[Any, str, str, str]) -> Line:
    """The line of the first trouble that there is: (whether, status, detail or "" for the usual one, cure); else OK."""
    for there_is, status, other, cure in troubles:
        if there_is:
            return Line(status, name, other or detail, cure)
    return Line(OK, name, detail)


def python() -> Line:
    found, supported = platform.python_version(), ", ".join(f"{a}.{b}" for a, b in PYTHONS)
    cure = "make setup PYTHON=python3.12 (the embedded Triton has no stub for other versions)"
    wrong = sys.version_info[:2] not in PYTHONS, FAIL, f"{found}; supported are {supported}", cure
    return _line("python", f"{found} at {sys.executable}", wrong)


def system() -> Line:
    libc = " ".join(platform.libc_ver()).strip() or "unknown C library"
    detail, reason = f"{platform.system()} {platform.machine()}, {libc}", ""
    try:
        install.require_platform()
    except CourseError as error:
        reason = str(error)
    return _line("system", detail, (reason and "numpy" not in reason, FAIL, "", reason))  # numpy has a line of its own


def cpu() -> Line:
    cores, info = len(os.sched_getaffinity(0)), _read("/proc/cpuinfo")
    flags = set(match[1].split()) if (match := re.search(r"flags\s*: (.*)", info)) else set()
    known = " ".join(f for f in ("avx2", "avx512f", "avx512_vnni", "amx_tile") if f in flags)
    return _line(
        "cpu", f"{cores} core{'s' * (cores != 1)}, {cpu_name()}, {known or 'no AVX2'}",
        (flags and "avx2" not in flags, WARN, "", "expect a few tokens a second; every notebook still runs"),
        (cores < 2, WARN, "", "give it two cores: client and server share the only one"),
    )  # fmt: skip


def memory() -> Line:
    import psutil

    total, free = psutil.virtual_memory().total, psutil.virtual_memory().available
    for file in ("memory.max", "memory/memory.limit_in_bytes"):  # of a container: cgroup v2, v1
        if (limit := _read(f"/sys/fs/cgroup/{file}").strip()).isdigit():
            total, free = min(total, int(limit)), min(free, int(limit))
    cure = "close other programs" if total >= RAM_NEEDED else "give this machine or container more"
    little = free < RAM_NEEDED, WARN, "", f"converting the weights takes {_size(RAM_NEEDED)}; {cure}"
    return _line("memory", f"{_size(free)} free of {_size(total)}", little)


def disk() -> Line:
    cache = assets.cache_dir()
    folder = next(f for f in (cache, *cache.parents) if os.path.exists(f))
    free, odd = shutil.disk_usage(folder).free, install.odd_characters(str(cache))
    locked, cure = not os.access(folder, os.W_OK), "set SERVINGLAB_CACHE to a folder of yours"
    return _line(
        "disk", f"{_size(free)} free for the cache {cache}",
        (odd, FAIL, f"the path of the cache {cache} holds {odd}", "set SERVINGLAB_CACHE to a plain path"),
        (not folder.is_dir(), FAIL, f"{folder} is a file", cure),
        (locked and folder != cache, FAIL, f"{folder} cannot be written", cure),
        (locked, WARN, f"{folder} cannot be written, what is in it can be used", cure),
        (free < DISK_NEEDED and folder != cache, WARN, "", f"the course needs {_size(DISK_NEEDED)}; {cure}"),
    )  # fmt: skip


def temporary() -> Line:
    """Notebooks and `course ask` write the repositories that they serve there."""
    odd = install.odd_characters(folder := tempfile.gettempdir())
    bad = odd, FAIL, f"the path {folder} holds {odd}", "set TMPDIR to a plain path such as /tmp"
    return _line("temporary folder", f"{_size(shutil.disk_usage(folder).free)} free in {folder}", bad)


def shm() -> Line:
    free = install.shm_free()
    cure = "in Docker start the container with --shm-size=1g; otherwise delete old files in /dev/shm"
    return _line(
        "shared memory", f"{_size(free or 0)} free in /dev/shm",
        (free is None, WARN, "/dev/shm cannot be read", "Triton's Python backend needs it; mount a tmpfs"),
        ((free or 0) < SHM_NEEDED, WARN, "", cure),
    )  # fmt: skip


def gpu() -> list[Line]:
    """The GPUs, and the newest container of the trtllm lane for their driver."""
    from engines import versions

    found = _run("nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader")
    silent = shutil.which("nvidia-smi")
    line = _line(
        "gpu", "; ".join(found.splitlines()),
        (not found and silent, WARN, "nvidia-smi does not answer", "check the driver; the embedded lane needs no GPU"),
        (not found, WARN, "none found", "nothing to do: only the trtllm lane needs one"),
    )  # fmt: skip
    if not (version := re.search(r", (\d+(?:\.\d+)+), \d", found)):
        return [line]
    driver, best, oldest = version[1], versions.newest_for(version[1]), versions.containers()[-1]
    cure = f"update the driver for the trtllm lane: {oldest.driver} runs container {oldest.tag}"
    detail = best and f"{best.tag} (TensorRT-LLM {best.trtllm}) is the newest for driver {driver}"
    old = not best, WARN, f"driver {driver} is older than all containers need", cure
    return [line, _line("container", detail or "", old)]


def docker() -> Line:
    version = _run("docker", "version", "--format", "{{.Server.Version}}")
    what = "the client is there, no engine answers" if shutil.which("docker") else "not installed"
    none = not version, WARN, what, "nothing to do: only the trtllm lane needs it"
    return _line("docker", f"engine {version}", none)


def numpy() -> Line:
    found = _version("numpy")
    cure = 'pip install "numpy<2", then restart the kernel: numpy 2 ends Triton\'s Python backend on text'
    new = found and int(found.split(".")[0]) >= 2
    return _line("numpy", found or "", (not found, FAIL, "not installed", "make setup"), (new, FAIL, "", cure))


def packages() -> list[Line]:
    """One line for each extra: what of it is installed, and whether the versions are the ones this course asks for."""
    from packaging.requirements import Requirement

    groups: dict[str, list[Requirement]] = {"base": []}
    for requirement in map(Requirement, metadata.requires("servinglab") or []):
        extra = match[1] if (match := re.search(r"extra == ['\"](\w+)['\"]", str(requirement))) else ""
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if wanted and requirement.name != "servinglab" and extra not in ("container", "trtllm"):  # for other machines
            groups.setdefault(extra or "base", []).append(requirement)
    lines, bundled = [], False
    with contextlib.suppress(CourseError):  # of the lib alone, without the course
        bundled = (find_root() / ".bundle").exists()
    for group, requirements in groups.items():
        found = {r.name: _version(r.name) for r in requirements}
        missing = [name for name, version in found.items() if version is None]
        other = [r.name for r in requirements if (v := found[r.name]) and not r.specifier.contains(v, prereleases=True)]
        what = {"missing": missing, "other version": [f"{name} {found[name]}" for name in other]}
        trouble = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in what.items() if names)
        shown = [f"{name} {version}" for name, version in found.items() if name in SHOWN]
        status, cure = FAIL if group in ("base", "server") else WARN, "make setup"
        if bundled:  # by the offline bundle: make setup would find its work done
            own = "the bundle has no tests' packages" if group == "test" else "PyTorch is this machine's own"
            fine = group == "test" or {*missing, *other} == {"torch"}
            cure = f"nothing to do: {own}" if fine else "run install.sh of the bundle again"
        bad = trouble, status, trouble, cure
        lines.append(_line(f"packages: {group}", ", ".join([f"{len(requirements)} installed", *shown]), bad))
    return lines


def proxy() -> list[Line]:
    """Only where there is one that httpx cannot use, by which weights are fetched."""
    names = [f"{kind}_proxy" for kind in ("all", "https")]
    socks = [name for name in (*names, *map(str.upper, names)) if os.environ.get(name, "").startswith("socks")]
    cure = "pip install httpx[socks], or set HTTPS_PROXY to an http:// proxy and unset this; servers here need neither"
    missing = socks and _version("socksio") is None
    return [Line(WARN, "proxy", f"{socks[0]} is a SOCKS proxy, and downloads cannot use it", cure)] if missing else []


def triton() -> Line:
    try:
        root = install.locate()
        stub, library = install.stub(root), install.library_folder()
        install.require_ascii()
    except CourseError as error:
        what, _, cure = str(error).partition(": ")
        return Line(FAIL, "triton", what, cure or "make setup")
    program = root / "bin" / "tritonserver"
    return Line(OK, "triton", f"{program}, stub for Python {stub.parent.name}, libpython in {library}")


def models() -> Line:
    names, cache = dict.fromkeys(model.name for model in assets.cached()), assets.cache_dir()
    none = not names, WARN, f"none in {cache} yet", "make course brings them, or: course fetch"
    return _line("models", f"{', '.join(names)} in {cache}", none)


CHECKS: tuple[Callable[[], Line | list[Line]], ...] = (
    python, system, cpu, memory, disk, temporary, shm, gpu, docker, numpy, packages, proxy, triton, models,
)  # fmt: skip


def _safely(check: Callable[[], Line | list[Line]]) -> list[Line]:
    """A check that fails itself is a finding, not the end of the report."""
    try:
        found = check()
    except Exception as error:
        detail = f"could not be looked at: {type(error).__name__}: {error}"
        found = Line(WARN, check.__name__, detail, "please report this")
    return found if isinstance(found, list) else [found]


def _run(*command: str) -> str:
    """What a command prints, or nothing when it is missing, fails or takes longer than 2 s."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=2, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _read(path: str) -> str:
    """A file of /proc or /sys, or nothing where it does not exist."""
    return Path(path).read_text(encoding="utf-8") if os.access(path, os.R_OK) else ""


def _version(package: str) -> str | None:
    return next((found.version for found in metadata.distributions(name=package)), None)


def _size(count: float) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"
