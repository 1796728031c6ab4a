"""The doctor: the report's shape, each kind of trouble with its cure, no trace left, and quick."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from importlib import metadata

import httpx
import psutil
import pytest

from course import doctor
from course.doctor import FAIL, OK, WARN
from servinglab.server import install

NAMES = ["python", "system", "cpu", "memory", "disk", "temporary folder", "shared memory", "gpu", "docker", "numpy"]
EXTRAS = ("base", "server", "models", "weights", "engines", "notebooks", "labs", "test")
NAMES += [f"packages: {extra}" for extra in EXTRAS]
NAMES += ["triton", "models"]


def test_the_report_is_complete():
    lines = doctor.examine()
    assert [line.name for line in lines if line.name != "container"] == NAMES
    assert {name for wanted, _ in doctor.LANES.values() for name in wanted} <= set(NAMES)
    for line in lines:
        assert line.status in (OK, WARN, FAIL)
        assert line.detail and "could not be looked at" not in line.detail, line
        assert bool(line.cure) == (line.status != OK), "a cure for every finding that is not OK, and only for those"


def test_it_takes_less_than_three_seconds_and_writes_nothing(tmp_path):
    cache = tmp_path / "cache"
    started = time.monotonic()
    code = "from course import doctor; print(len(doctor.examine()))"
    subprocess.run([sys.executable, "-c", code], env={"SERVINGLAB_CACHE": str(cache), "PATH": "/usr/bin:/bin",
                                                      "HOME": str(tmp_path)}, check=True, cwd=tmp_path)  # fmt: skip
    assert time.monotonic() - started < 3 * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", [(3, 9, 1), (3, 13, 0)])
def test_another_python_fails_with_the_command_that_helps(monkeypatch, version):
    monkeypatch.setattr(doctor.sys, "version_info", version)
    line = doctor.python()
    assert line.status == FAIL and "3.10, 3.11, 3.12" in line.detail and "PYTHON=python3.12" in line.cure


def test_numpy_two_fails(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: "2.1.0")
    assert doctor.numpy().status == FAIL and 'pip install "numpy<2"' in doctor.numpy().cure
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    assert (doctor.numpy().status, doctor.numpy().detail) == (FAIL, "not installed")


def test_a_small_dev_shm_names_docker_s_flag(monkeypatch):
    """user problem 10: containers have 64 MB there."""
    monkeypatch.setattr(install, "shm_free", lambda: 20 * 2**20)
    line = doctor.shm()
    assert (line.status, line.detail) == (WARN, "20 MiB free in /dev/shm") and "--shm-size" in line.cure
    monkeypatch.setattr(install, "shm_free", lambda: None)
    assert doctor.shm().detail == "/dev/shm cannot be read"


def test_a_system_that_cannot_run_triton_fails_but_numpy_is_left_to_its_own_line(monkeypatch):
    def refuse(sentence):
        def require():
            raise doctor.CourseError(sentence)

        monkeypatch.setattr(install, "require_platform", require)

    refuse("The embedded Triton runs on Linux x86-64 only.")
    assert doctor.system().status == FAIL
    refuse("This Python has numpy 2.0.")
    assert doctor.system().status == OK


def test_a_missing_wheel_is_named_with_its_cure(monkeypatch):
    def missing():
        raise doctor.CourseError("The embedded Triton is not installed: pip install nvidia-pytriton==0.7.0")

    monkeypatch.setattr(install, "locate", missing)
    cure = "pip install nvidia-pytriton==0.7.0"
    assert doctor.triton() == doctor.Line(FAIL, "triton", "The embedded Triton is not installed", cure)


@pytest.mark.parametrize(
    ("found", "cures"),
    [
        ({"torch": "2.11.0"}, {"models": "PyTorch is this machine's own"}),
        ({"torch": "2.11.0", "numpy": None}, dict.fromkeys(["models", "base"], "install.sh of the bundle")),
        ({"pytest": None}, {"test": "the bundle has no tests' packages"}),
    ],
)
def test_where_the_bundle_was_installed_no_cure_is_make_setup(found, cures, monkeypatch, tmp_path):
    (tmp_path / "course.toml").touch()
    monkeypatch.chdir(tmp_path)
    requires = ["numpy<2", "torch==2.13.0; extra == 'models'", "numpy; extra == 'models'", "pytest; extra == 'test'"]
    versions = {"numpy": "1.26.4", "torch": "2.13.0", "pytest": "9.2.0", **found}
    monkeypatch.setattr(metadata, "requires", lambda name: requires)
    monkeypatch.setattr(doctor, "_version", versions.get)

    def seen():
        return {line.name.removeprefix("packages: "): line.cure for line in doctor.packages() if line.cure}

    assert seen() == dict.fromkeys(cures, "make setup")
    (tmp_path / ".bundle").touch()
    assert {group: cures[group] in cure for group, cure in seen().items()} == dict.fromkeys(cures, True)


def test_missing_and_wrong_packages_are_listed_by_extra(monkeypatch):
    needs = ["httpx>=0.28", 'nvidia-pytriton==0.7.0; extra == "server"', 'torch==2.13.0; extra == "models"',
             'tomli>=2; python_version < "3"', 'servinglab[server]; extra == "all"']  # fmt: skip
    installed = {"httpx": "0.30", "nvidia-pytriton": "0.5.7", "torch": "2.13.0+cpu"}
    monkeypatch.setattr(metadata, "requires", lambda name: needs)
    monkeypatch.setattr(doctor, "_version", installed.get)
    lines = {line.name: (line.status, line.detail) for line in doctor.packages()}
    assert lines == {
        "packages: base": (OK, "1 installed"),
        "packages: server": (FAIL, "other version: nvidia-pytriton 0.5.7"),
        "packages: models": (OK, "1 installed, torch 2.13.0+cpu"),  # a CPU build of torch is the same version
    }
    del installed["httpx"], installed["torch"]
    lines = {line.name: (line.status, line.detail) for line in doctor.packages()}
    assert lines["packages: base"] == (FAIL, "missing: httpx")
    assert lines["packages: models"] == (WARN, "missing: torch"), "the server runs without them"


def test_a_cache_that_cannot_be_written_fails_unless_it_is_there_to_be_read(monkeypatch, tmp_path):
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path / "a" / "b"))
    assert doctor.disk().status == OK
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert doctor.disk().status == FAIL and "SERVINGLAB_CACHE" in doctor.disk().cure
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path))
    assert doctor.disk().status == WARN and "what is in it can be used" in doctor.disk().detail
    (tmp_path / "a").touch()
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path / "a" / "b"))
    assert (doctor.disk().status, doctor.disk().detail) == (FAIL, f"{tmp_path}/a is a file")


@pytest.mark.parametrize(("name", "odd"), [("with space", "' '"), ("Übung", "'Ü'")])
def test_a_cache_that_triton_cannot_start_from_fails(monkeypatch, tmp_path, name, odd):
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path / name))
    line = doctor.disk()
    assert line.status == FAIL and line.detail.endswith(f"{name} holds {odd}") and "SERVINGLAB_CACHE" in line.cure


def test_a_temporary_folder_that_triton_cannot_start_from_fails(monkeypatch, tmp_path):
    assert doctor.temporary().status == OK
    monkeypatch.setattr(doctor.tempfile, "tempdir", str(tmp_path / "a b"))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=1))
    line = doctor.temporary()
    assert line.status == FAIL and line.detail.endswith("a b holds ' '") and "TMPDIR" in line.cure
    assert "temporary folder" in doctor.lanes([line])["embedded"]


def test_a_python_whose_paths_triton_cannot_read_fails(monkeypatch):
    monkeypatch.setattr(sys, "prefix", "/home/jürgen/course/.venv")
    line = doctor.triton()
    assert (line.status, line.detail.split()[0]) == (FAIL, "/home/jürgen/course/.venv") and "move the" in line.cure


GIB = 2**30
LIMIT = "/sys/fs/cgroup/memory.max"
OLD_LIMIT = "/sys/fs/cgroup/memory/memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("files", "detail", "cure"),
    [
        ({}, "20.0 GiB free of 32.0 GiB", ""),
        ({LIMIT: "max\n"}, "20.0 GiB free of 32.0 GiB", ""),
        ({LIMIT: f"{6 * GIB}\n"}, "6.0 GiB free of 6.0 GiB", ""),
        ({LIMIT: f"{2 * GIB}\n"}, "2.0 GiB free of 2.0 GiB", "give this machine or container more"),
        ({OLD_LIMIT: f"{6 * GIB}\n"}, "6.0 GiB free of 6.0 GiB", ""),
        ({OLD_LIMIT: "9223372036854771712\n"}, "20.0 GiB free of 32.0 GiB", ""),  # of no limit, version 1
        ({LIMIT: "max\n", OLD_LIMIT: f"{2 * GIB}\n"}, "2.0 GiB free of 2.0 GiB", "give this machine"),
    ],
)
def test_memory_is_what_is_free_within_a_container_s_limit(monkeypatch, files, detail, cure):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(total=32 * GIB, available=20 * GIB))
    monkeypatch.setattr(doctor, "_read", lambda path: files.get(path, ""))
    line = doctor.memory()
    assert (line.status, line.detail) == (WARN if cure else OK, detail) and cure in line.cure


PROXIES = [f"{kind}_proxy" for kind in ("all", "https", "http")]


@pytest.mark.parametrize("name", ["", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"])
def test_a_socks_proxy_that_httpx_has_no_package_for_is_a_line(monkeypatch, name):
    for other in PROXIES + [proxy.upper() for proxy in PROXIES]:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv("no_proxy", "localhost")
    assert doctor.proxy() == []
    if name:
        monkeypatch.setenv(name, "socks5://127.0.0.1:9")
        monkeypatch.setattr(doctor, "_version", lambda package: None)
        (line,) = doctor.proxy()
        assert (line.status, line.detail.split()[0]) == (WARN, name) and "httpx[socks]" in line.cure
        with pytest.raises(ImportError, match="socksio"):  # what it warns of
            httpx.Client()
        monkeypatch.setattr(doctor, "_version", lambda package: "1.0.0")
        assert doctor.proxy() == []
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        httpx.Client().close()


def test_no_weights_yet_says_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path))
    assert doctor.models().status == WARN and "course fetch" in doctor.models().cure


def test_a_silent_gpu_driver_and_a_silent_docker_do_not_hold_the_report_up(monkeypatch, tmp_path):
    for name in ("nvidia-smi", "docker"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\nexec sleep 30\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    started = time.monotonic()
    lines = {line.name: line for line in doctor.examine()}
    assert time.monotonic() - started < 20  # each is given two seconds
    assert lines["gpu"].detail == "nvidia-smi does not answer"
    assert lines["docker"].detail == "the client is there, no engine answers"


@pytest.mark.parametrize(
    ("driver", "status", "words"),
    [("570.124.06", OK, "25.05 (TensorRT-LLM 0.19.0) is the newest for driver 570.124.06"),
     ("470.256.02", WARN, "driver 470.256.02 is older than all containers need")],
)  # fmt: skip
def test_a_gpu_is_reported_with_the_newest_container_for_its_driver(monkeypatch, driver, status, words):
    """https://docs.nvidia.com/deeplearning/frameworks/support-matrix: the container's driver requirement."""
    card = f"NVIDIA H100, 81559 MiB, {driver}, 9.0"
    monkeypatch.setattr(doctor, "_run", lambda *command: f"{card}\n{card}")
    first, second = doctor.gpu()
    assert first == doctor.Line(OK, "gpu", f"{card}; {card}")
    assert (second.name, second.status, second.detail) == ("container", status, words)
    assert status == OK or "545.23.08 runs container 24.04" in second.cure
    monkeypatch.setattr(doctor, "_run", lambda *command: "NVIDIA H100, 81559 MiB, [N/A], 9.0")
    assert [line.name for line in doctor.gpu()] == ["gpu"]


def test_lanes_follow_from_the_lines():
    fine = [doctor.Line(OK, n, "x") for names, _ in doctor.LANES.values() for n in names]
    assert doctor.lanes(fine) == {"embedded": "", "trtllm": ""}
    no_gpu = [doctor.Line(WARN, "gpu", "none found", "c") if line.name == "gpu" else line for line in fine]
    assert doctor.lanes(no_gpu) == {"embedded": "", "trtllm": "gpu: none found"}
    old = [doctor.Line(FAIL, "numpy", "2.1", "c") if line.name == "numpy" else line for line in fine]
    assert doctor.lanes(old) == {"embedded": "numpy: 2.1", "trtllm": ""}


def test_a_check_that_breaks_is_a_line(monkeypatch):
    def broken():
        raise RuntimeError("boom")

    monkeypatch.setattr(doctor, "CHECKS", (broken, doctor.python))
    lines = doctor.examine()
    assert (lines[0].status, lines[0].detail) == (WARN, "could not be looked at: RuntimeError: boom")
    assert lines[1].status == OK
