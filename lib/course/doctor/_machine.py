"""Checks of the machine: interpreter, system, memory, disk, GPU, docker, ports. None of them changes anything."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePath

from course.doctor._line import FAIL, OK, WARN, Line, read, run, size
from servinglab.errors import CourseError

PYTHONS = ((3, 10), (3, 11), (3, 12))
RAM_NEEDED, DISK_NEEDED, SHM_NEEDED = 4 * 2**30, 5 * 2**30, 64 * 2**20
PORTS = (8000, 8001, 8002)
# Of version 2 and of version 1: where they are, and the files with the limit and with what is used.
CGROUPS = {
    "": ("/sys/fs/cgroup", ("memory.max", "memory.current")),
    "memory": ("/sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
}


def python() -> Iterator[Line]:
    found = platform.python_version()
    supported = ", ".join(f"{a}.{b}" for a, b in PYTHONS)
    if sys.version_info[:2] in PYTHONS:
        yield Line(OK, "python", f"{found} at {sys.executable}")
    else:
        cure = "make setup PYTHON=python3.12 (the embedded Triton has no stub for other versions)"
        yield Line(FAIL, "python", f"{found}; supported are {supported}", cure)


def system() -> Iterator[Line]:
    from servinglab.server import install as triton_install

    libc = " ".join(platform.libc_ver()).strip()
    detail = f"{platform.system()} {platform.machine()}, {libc or 'unknown C library'}"
    # require_platform() also speaks about numpy, which has a line of its own here.
    try:
        triton_install.require_platform()
    except CourseError as error:
        # It also speaks about numpy, which has a line of its own.
        if "numpy" not in str(error):
            yield Line(FAIL, "system", detail, str(error))
            return
    yield Line(OK, "system", detail)


def cpu() -> Iterator[Line]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    info = read("/proc/cpuinfo")
    name = re.search(r"model name\s*: (.*)", info)
    flags = set(match.group(1).split()) if (match := re.search(r"flags\s*: (.*)", info)) else set()
    known = [f for f in ("avx2", "avx512f", "avx512_vnni", "amx_tile") if f in flags]
    model = name.group(1) if name else platform.machine()
    detail = f"{cores} core{'s' * (cores != 1)}, {model}, {' '.join(known) or 'no AVX2'}"
    if flags and "avx2" not in flags:
        yield Line(WARN, "cpu", detail, "expect a few tokens a second; every notebook still runs")
    elif cores < 2:
        yield Line(WARN, "cpu", detail, "give it two cores: client and server share the only one")
    else:
        yield Line(OK, "cpu", detail)


def memory() -> Iterator[Line]:
    import psutil

    machine = psutil.virtual_memory()
    limits = [(machine.total, machine.available), *((limit, limit - used) for limit, used in _memory_limits())]
    total, free = (min(column) for column in zip(*limits, strict=True))
    detail = f"{size(max(free, 0))} free of {size(total)}"
    if free < RAM_NEEDED:
        cure = "close other programs" if total >= RAM_NEEDED else "give this machine or container more"
        yield Line(WARN, "memory", detail, f"converting the weights takes {size(RAM_NEEDED)}; {cure}")
    else:
        yield Line(OK, "memory", detail)


def _memory_limits() -> Iterator[tuple[int, int]]:
    """(limit, used) of each control group that this process is in, and of those around it. What the kernel would give
    back first is not counted as used. In a container, a path of the host's leads nowhere, and the root is its own."""
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in CGROUPS:
            continue
        root, names = CGROUPS[controllers]
        for group in (PurePath(path), *PurePath(path).parents):
            limit, used, kept = (read(f"{root}{group}/{name}") for name in (*names, "memory.stat"))
            if limit.strip().isdigit() and used.strip().isdigit():
                cache = re.findall(r"^(?:total_)?inactive_file (\d+)", kept, re.MULTILINE)  # version 1 has both
                yield int(limit), int(used) - max(map(int, cache), default=0)


def disk() -> Iterator[Line]:
    from servinglab import assets
    from servinglab.server import install as triton_install

    cache = assets.cache_dir()
    folder = next(f for f in (cache, *cache.parents) if os.path.exists(f))
    free = shutil.disk_usage(folder).free
    detail = f"{size(free)} free for the cache {cache}"
    if odd := triton_install.odd_characters(str(cache)):
        yield Line(FAIL, "disk", f"the path of the cache {cache} holds {odd}", "set SERVINGLAB_CACHE to a plain path")
    elif not folder.is_dir():
        yield Line(FAIL, "disk", f"{folder} is a file", "set SERVINGLAB_CACHE to a folder of yours")
    elif not os.access(folder, os.W_OK):
        works = _serves(cache)
        detail = f"{folder} cannot be written" + (", what is in it can be used" if works else "")
        yield Line(WARN if works else FAIL, "disk", detail, "set SERVINGLAB_CACHE to a folder of yours")
    elif free < DISK_NEEDED and not cache.exists():
        yield Line(WARN, "disk", detail, f"the course needs {size(DISK_NEEDED)}; set SERVINGLAB_CACHE to another disk")
    else:
        yield Line(OK, "disk", detail)


def temporary() -> Iterator[Line]:
    """Notebooks and `course ask` write the repositories that they serve there."""
    from servinglab.server import install as triton_install

    folder = tempfile.gettempdir()
    if odd := triton_install.odd_characters(folder):
        yield Line(
            FAIL, "temporary folder", f"the path {folder} holds {odd}", "set TMPDIR to a plain path such as /tmp"
        )
    else:
        yield Line(OK, "temporary folder", f"{size(shutil.disk_usage(folder).free)} free in {folder}")


def _serves(cache: Path) -> bool:
    """Whether all that a server needs is in a cache that cannot be written."""
    from servinglab import assets
    from servinglab.server import install as triton_install

    try:
        return triton_install.backend_directory(cache).is_dir() and any("engine" in m.kind for m in assets.cached())
    except CourseError:  # it would have to be made
        return False


def shm() -> Iterator[Line]:
    from servinglab.server import install as triton_install

    free = triton_install.shm_free()
    if free is None:
        yield Line(WARN, "shared memory", "/dev/shm cannot be read", "Triton's Python backend needs it; mount a tmpfs")
    elif free < SHM_NEEDED:
        cure = "in Docker start the container with --shm-size=1g; otherwise delete old files in /dev/shm"
        yield Line(WARN, "shared memory", f"{size(free)} free in /dev/shm", cure)
    else:
        yield Line(OK, "shared memory", f"{size(free)} free in /dev/shm")


def gpu() -> Iterator[Line]:
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader"]
    found = run(query)
    if found:
        yield Line(OK, "gpu", "; ".join(found.splitlines()))
    elif shutil.which("nvidia-smi"):
        yield Line(WARN, "gpu", "nvidia-smi does not answer", "check the driver; the embedded lane needs no GPU")
    else:
        yield Line(WARN, "gpu", "none found", "nothing to do: only the trtllm lane needs one")


def container() -> Iterator[Line]:
    """The newest container of the trtllm lane for this driver; no line without a GPU."""
    from engines import compass

    driver = run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]).partition("\n")[0].strip()
    if not re.fullmatch(r"\d+(\.\d+)*", driver):
        return
    best, oldest = compass.newest_for(driver), compass.containers()[-1]
    if best:
        yield Line(OK, "container", f"{best.tag} (TensorRT-LLM {best.trtllm}) is the newest for driver {driver}")
    else:
        cure = f"update the driver for the trtllm lane: {oldest.driver} runs container {oldest.tag}"
        yield Line(WARN, "container", f"driver {driver} is older than all containers need", cure)


def docker() -> Iterator[Line]:
    version = run(["docker", "version", "--format", "{{.Server.Version}}"])
    if version:
        yield Line(OK, "docker", f"engine {version}")
    else:
        what = "the client is there, no engine answers" if shutil.which("docker") else "not installed"
        yield Line(WARN, "docker", what, "nothing to do: only the trtllm lane needs it")


def ports() -> Iterator[Line]:
    taken = [str(port) for port in PORTS if not _port_is_free(port)]
    if taken:
        cure = "nothing to do: the course takes free ports and reports them; typed examples use 8000 to 8002"
        yield Line(WARN, "ports", f"in use: {', '.join(taken)}", cure)
    else:
        yield Line(OK, "ports", "8000 (HTTP), 8001 (gRPC) and 8002 (metrics) are free")


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
