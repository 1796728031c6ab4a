"""A machine or Python that cannot run the embedded Triton is told so in one sentence, before anything is started."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from servinglab.server import install as triton_install
from servinglab.server.install import ServerError


def refuse(words: str, call=triton_install.require_platform) -> None:
    with pytest.raises(ServerError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_this_machine_is_accepted():
    triton_install.require_platform()
    triton_install.require_install()
    assert (triton_install.locate() / "bin" / "tritonserver").is_file()
    assert triton_install.stub(triton_install.locate()).is_file()


@pytest.mark.parametrize("system, machine", [("darwin", "arm64"), ("linux", "aarch64"), ("win32", "AMD64")])
def test_other_systems(monkeypatch, system, machine):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    refuse(f"Linux x86-64 only and this is .* {machine}.*attach")


@pytest.mark.parametrize(
    "libc, words",
    [(("glibc", "2.31"), "has 2.31"), (("musl", "1.2"), "has 1.2"), (("", ""), "has another C library")],
)
def test_old_or_other_c_library(monkeypatch, libc, words):
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    refuse(f"needs glibc 2.35 or newer and this system {words}")


def test_numpy_2(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.1.3")
    refuse("has numpy 2.1.3.*numpy<2", triton_install.require_install)


def test_python_without_a_stub(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 13, 1, "final", 0))
    refuse("no tested stub for Python 3.13: use Python 3.10, 3.11 or 3.12", triton_install.require_install)


def test_wheel_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refuse("not installed in this Python.*nvidia-pytriton==0.7.0", triton_install.locate)


def test_python_without_a_shared_library(monkeypatch, tmp_path):
    """A pyenv Python is built static by default; the stub would then load the distribution's library of that name."""
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: str(tmp_path) if name == "LIBDIR" else "x")
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    refuse(r"needs libpython3\.\d+\.so\.1\.0", triton_install.library_folder)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / f"libpython{sys.version_info[0]}.{sys.version_info[1]}.so.1.0").touch()
    assert triton_install.library_folder() == tmp_path / "lib"  # uv's Pythons state a LIBDIR that does not exist


def test_environment_puts_this_python_first(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/theirs")
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    monkeypatch.setenv("PYTHONHOME", "/theirs")
    env = triton_install.environment()
    assert "PYTHONHOME" not in env
    assert env["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    libraries, packages = env["LD_LIBRARY_PATH"].split(":"), env["PYTHONPATH"].split(":")
    assert libraries[-1] == packages[-1] == "/theirs" and libraries[1].endswith("nvidia_pytriton.libs")
    assert sysconfig.get_path("purelib") in packages
    assert any((Path(folder) / "servinglab" / "__init__.py").is_file() for folder in packages)


def test_backend_folder_is_whole_private_and_made_once(tmp_path):
    before = sorted(triton_install.locate().rglob("*"))
    folder = triton_install.backend_directory(tmp_path)
    names = {path.name for path in (folder / "python").iterdir()}
    assert names == {"libtriton_python.so", "triton_python_backend_utils.py", "triton_python_backend_stub"}
    assert [path.name for path in (folder / "tensorrtllm").iterdir()] == ["model.py"]
    assert os.access(folder / "python" / "triton_python_backend_stub", os.X_OK)
    stamp = folder.stat().st_mtime_ns
    assert triton_install.backend_directory(tmp_path) == folder and folder.stat().st_mtime_ns == stamp
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert sorted(triton_install.locate().rglob("*")) == before


@pytest.mark.parametrize(
    "name", ["python/triton_python_backend_stub", "python/libtriton_python.so", "tensorrtllm/model.py"]
)
def test_a_damaged_copy_of_the_backend_is_made_again(tmp_path, name):
    copy = triton_install.backend_directory(tmp_path) / name
    whole, files = copy.read_bytes(), sorted(copy.parent.iterdir())
    for damaged in (whole[:1000], whole[:-1] + b"?", None):
        copy.unlink() if damaged is None else copy.write_bytes(damaged)
        assert triton_install.backend_directory(tmp_path) == copy.parents[1]
        assert copy.read_bytes() == whole and sorted(copy.parent.iterdir()) == files


def test_two_processes_make_the_backend_folder_at_once(tmp_path):
    code = f"import pathlib, servinglab.server.install as t; t.backend_directory(pathlib.Path({str(tmp_path)!r}))"
    both = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert len(list((tmp_path / "triton").iterdir())) == 1


def test_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    refuse("set SERVINGLAB_CACHE", lambda: triton_install.backend_directory(tmp_path / "file"))


def test_shared_memory_too_small(monkeypatch):
    monkeypatch.setattr(triton_install, "shm_free", lambda: 3 * 2**20)
    refuse("/dev/shm has 3 MiB free and 5 models need about 12 MiB.*--shm-size", lambda: triton_install.require_shm(5))
    for free in (64 * 2**20, None):
        monkeypatch.setattr(triton_install, "shm_free", lambda free=free: free)
        triton_install.require_shm(5)


@pytest.mark.parametrize("what", ["prefix", "pyvenv.cfg", "module.pth"])
def test_a_python_or_a_checkout_in_a_folder_with_letters_beyond_ascii(monkeypatch, tmp_path, what):
    """The stub died, which read as "perhaps out of memory"."""
    (tmp_path / "site").mkdir()
    monkeypatch.setattr(triton_install, "locate", lambda: tmp_path / "site" / "pytriton" / "tritonserver")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ("Übung" if what == "prefix" else "plain")))
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "pyvenv.cfg").write_text(f"home = {'/é' if what == 'pyvenv.cfg' else '/e'}\n")
    (tmp_path / "site" / "module.pth").write_text(f"{'/ж' if what == 'module.pth' else '/z'}\n")
    refuse(
        f"{'Übung' if what == 'prefix' else what + ' names a folder that'} has letters beyond ASCII in its path, .*"
        ": move the course, or the Python that it runs on, to a folder without them",
        triton_install.require_ascii,
    )
