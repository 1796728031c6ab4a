"""Where the wheel's tritonserver is, what it needs, and whether this machine has it. No lesson is about it.

The standard library only: the installer of the offline bundle uses this before there is an environment.
"""

from __future__ import annotations

import filecmp
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import site
import sys
import sysconfig
import tempfile
from pathlib import Path

from servinglab.errors import CourseError

GLIBC_NEEDED = (2, 35)
LIB = Path(__file__).resolve().parents[2]
PLAIN = "with which Triton's Python backend starts no model (letters a to z, digits and . _ - + = @ % , : / are safe)"


class ServerError(CourseError):
    """Triton cannot be started, reached or told what to do."""


def require_platform() -> None:
    """Refuse a machine on which the wheel's server cannot run, with one sentence."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        where = f"{platform.system()} {platform.machine()}"
        cure = "use Linux, WSL 2 or a container, or attach to a server elsewhere with TritonServer.attach(url)"
        raise ServerError(f"The embedded Triton runs on Linux x86-64 only and this is {where}: {cure}.")
    libc, version = platform.libc_ver()
    if libc != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < GLIBC_NEEDED:
        found = f"this system has {version or 'another C library'}: use Ubuntu 22.04, Debian 12 or newer"
        raise ServerError(f"The embedded Triton needs glibc 2.35 or newer and {found}.")


def require_install() -> None:
    """Refuse a Python without the server's wheel, its stub, a libpython or the right numpy, with one sentence."""
    stub(locate())
    library_folder()
    require_ascii()
    numpy_version = importlib.metadata.version("numpy")  # which tritonclient has brought along
    if int(numpy_version.split(".")[0]) >= 2:
        why = 'which breaks every string tensor of the Python backend: pip install "numpy<2", then restart the kernel'
        raise ServerError(f"This Python has numpy {numpy_version}, {why}.")


def program(lane: str, cache: Path) -> tuple[list[str], dict[str, str]]:
    """The first words of a command that starts a lane's Triton, and the environment that it needs."""
    if lane == "trtllm":
        return ["tritonserver"], dict(os.environ)
    return [str(locate() / "bin" / "tritonserver"), f"--backend-directory={backend_directory(cache)}"], environment()


def on_path(*names: str) -> dict[str, str]:
    """{name: path} of programs that NVIDIA's container has on its PATH."""
    found = {name: path for name in names if (path := shutil.which(name))}
    if missing := " and ".join(name for name in names if name not in found):
        cure = "work in it (Dockerfiles/README.md), or in the lane embedded"
        raise ServerError(f"The lane trtllm runs in NVIDIA's container, and {missing} cannot be found here: {cure}.")
    return found


def locate() -> Path:
    """The wheel's `pytriton/tritonserver` folder."""
    spec = importlib.util.find_spec("pytriton")
    root = Path(spec.origin).parent / "tritonserver" if spec and spec.origin else None
    if root is None or not (root / "bin" / "tritonserver").is_file():
        cure = "pip install nvidia-pytriton==0.7.0, or run `make setup`"
        raise ServerError(f"The embedded Triton is not installed in this Python ({sys.executable}): {cure}.")
    return root


def stub(root: Path) -> Path:
    """The Python-backend stub that matches this interpreter."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    path = root / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not path.is_file() or sys.version_info >= (3, 13):
        cure = "use Python 3.10, 3.11 or 3.12"
        raise ServerError(f"The embedded Triton has no tested stub for Python {version}: {cure}.")
    return path


def library_folder() -> Path:
    """Folder of this interpreter's libpython, which the stub loads.

    A foreign libpython of the same minor version is the trap: it loads, and then fails on this interpreter's standard
    library ("'_thread.RLock' object has no attribute '_recursion_count'").
    """
    package = f"libpython{sys.version_info[0]}.{sys.version_info[1]}"
    name = f"{package}.so.1.0"
    libdir = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    multiarch = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    for folder in (libdir, libdir / multiarch, Path(sys.base_prefix) / "lib", Path(sys.base_prefix) / "lib64"):
        if (folder / name).exists():
            return folder
    cure = f"install the package {package}, or use a Python from uv or conda"
    raise ServerError(f"Triton's Python backend needs {name} and this Python ({sys.base_prefix}) lacks it: {cure}.")


def environment() -> dict[str, str]:
    """Environment of tritonserver: this interpreter's libraries, packages and `bin` come first."""
    env = dict(os.environ)
    env.pop("PYTHONHOME", None)
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    site_packages = locate().parents[1]
    libraries = [str(library_folder()), str(site_packages / "nvidia_pytriton.libs"), env.get("LD_LIBRARY_PATH", "")]
    env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    packages = [sysconfig.get_path("purelib"), *site.getsitepackages(), site.getusersitepackages()]
    folders = [str(site_packages), *(p for p in packages if p in sys.path)]
    folders.append(str(LIB))  # models import reference_backend, also from a checkout
    folders += env.get("PYTHONPATH", "").split(os.pathsep)
    env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, folders)))
    env["PYTHONDONTWRITEBYTECODE"] = "1"  # a __pycache__ in a repository counts as a change of its model
    return env


def backend_directory(cache: Path) -> Path:
    """A private backend folder (not in site-packages): the wheel's Python backend with this interpreter's stub, and
    beside it the backend `tensorrtllm` of the package reference_backend, which runs in it. Copies: Triton refuses a
    link that leads out of the folder."""
    root, version = locate(), importlib.metadata.version("nvidia-pytriton")
    backend = root / "backends" / "python"
    files = [backend / "libtriton_python.so", backend / "triton_python_backend_utils.py", stub(root)]
    stamp = max(int(path.stat().st_mtime) for path in files)
    target = cache / "triton" / f"backends-{version}-py{sys.version_info[0]}.{sys.version_info[1]}-{stamp}"
    copies = {target / "python" / path.name: path for path in files}
    copies[target / "tensorrtllm" / "model.py"] = LIB / "reference_backend" / "backend" / "model.py"
    try:
        for copy, path in copies.items():  # each whole or not at all, whatever another process does meanwhile
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not copy.is_file() or not filecmp.cmp(path, copy, shallow=False):
                draft = copy.with_name(f".{path.name}.{os.getpid()}")
                try:
                    shutil.copy2(path, draft)
                    draft.replace(copy)
                finally:
                    draft.unlink(missing_ok=True)
    except OSError as error:
        raise ServerError(f"Cannot write to the cache {cache} ({error.strerror}): set SERVINGLAB_CACHE.") from None
    return target


def odd_characters(text: str) -> str:
    """Those that must not reach the unquoted shell command line, in an ASCII locale, by which Triton 24.10 starts its
    Python models: a space breaks it, and `$(…)` would be run. Empty where all are safe."""
    return " ".join(map(repr, sorted(set(re.findall(r"[^A-Za-z0-9_./+=@%,:-]", text)))[:5]))


def require_plain(text: str, what: str, cure: str) -> None:
    """The rule for everything that reaches that command line."""
    if odd := odd_characters(text):
        raise ServerError(f"{what}, {text!r}, holds {odd}, {PLAIN}: {cure}.")


def require_plain_path(path: Path, what: str, cure: str) -> None:
    temporary = tempfile.gettempdir()
    if path.is_relative_to(temporary) and odd_characters(temporary):  # who wrote it there chose no folder
        cure = "set TMPDIR to another folder, such as /tmp"
    require_plain(str(path), f"The path of {what}", cure)


def require_ascii() -> None:
    """Refuse a Python whose own paths the stub cannot read: it takes them for ASCII, whatever the locale is, and ends
    before it can say so. Two kinds of files hold such paths, too."""
    site_packages = locate().parents[1]
    for path in (Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[3], Path(sys.prefix, "pyvenv.cfg"),
                 *site_packages.glob("*.pth")):  # fmt: skip
        if not str(path).isascii() or (path.is_file() and not path.read_bytes().isascii()):
            where = path if not str(path).isascii() else f"{path} names a folder that"
            cure = "move the course, or the Python that it runs on, to a folder without them; run `make setup` there"
            raise ServerError(f"{where} has letters beyond ASCII in its path, which Triton cannot read: {cure}.")


def shm_free() -> int | None:
    """Free bytes of /dev/shm, None where it cannot be read. Each Python model instance takes at least 1 MiB of it."""
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return None


def require_shm(model_count: int) -> None:
    free = shm_free()
    needed = 2 * (model_count + 1) * 2**20
    if free is not None and free < needed:
        cure = "in Docker start the container with --shm-size=1g; otherwise delete old files in /dev/shm"
        what = f"{free / 2**20:.0f} MiB free and {model_count} models need about {needed / 2**20:.0f} MiB"
        raise ServerError(f"/dev/shm has {what}: {cure}.")
