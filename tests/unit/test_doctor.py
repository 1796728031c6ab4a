"""The doctor: the report's shape, each kind of trouble with its cure, no trace left, and quick."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import types
from importlib import metadata

import psutil
import pytest

from course import doctor
from course.doctor import FAIL, OK, WARN, _machine, _software
from servinglab import assets
from servinglab.server import install as triton_install


def only(found) -> doctor.Line:
    lines = list(found)
    assert len(lines) == 1
    return lines[0]


def test_every_line_is_complete():
    lines = doctor.examine()
    names = [line.name for line in lines]
    assert len(names) == len(set(names))
    for wanted in (
        "python",
        "system",
        "cpu",
        "memory",
        "disk",
        "shared memory",
        "gpu",
        "docker",
        "ports",
        "numpy",
        "packages: base",
        "packages: server",
        "packages: models",
        "triton",
        "kernel",
        "models",
    ):
        assert wanted in names
    for line in lines:
        assert line.status in (OK, WARN, FAIL)
        assert line.detail and "could not be looked at" not in line.detail, line
        assert bool(line.cure) == (line.status != OK), "a cure for every finding that is not OK, and only for those"


def test_the_report_is_json():
    report = json.loads(json.dumps(doctor.as_dict(doctor.examine())))
    assert set(report) == {"ok", "lanes", "lines"}
    assert set(report["lanes"]) == {"embedded", "trtllm"}
    assert set(report["lines"][0]) == {"status", "name", "detail", "cure"}


def test_it_takes_less_than_three_seconds_and_writes_nothing(tmp_path):
    cache = tmp_path / "cache"
    started = time.monotonic()
    code = "from course import doctor; print(len(doctor.examine()))"
    subprocess.run([sys.executable, "-c", code], env={"SERVINGLAB_CACHE": str(cache), "PATH": "/usr/bin:/bin",
                                                      "HOME": str(tmp_path)}, check=True, cwd=tmp_path)  # fmt: skip
    assert time.monotonic() - started < 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", [(3, 9, 1), (3, 13, 0), (3, 14, 2)])
def test_another_python_fails_with_the_command_that_helps(monkeypatch, version):
    monkeypatch.setattr(_machine.sys, "version_info", version)
    line = only(_machine.python())
    assert line.status == FAIL and "3.10, 3.11, 3.12" in line.detail and "PYTHON=python3.12" in line.cure


def test_numpy_two_fails(monkeypatch):
    monkeypatch.setattr(_software, "version", lambda name: "2.1.0")
    line = only(_software.numpy())
    assert line.status == FAIL and 'pip install "numpy<2"' in line.cure


def test_a_small_dev_shm_names_docker_s_flag(monkeypatch):
    """user problem 10: containers have 64 MB there."""
    monkeypatch.setattr(triton_install, "shm_free", lambda: 20 * 2**20)
    line = only(_machine.shm())
    assert (line.status, line.detail) == (WARN, "20 MiB free in /dev/shm") and "--shm-size" in line.cure


def test_a_system_that_cannot_run_triton_fails_but_numpy_is_left_to_its_own_line(monkeypatch):
    def refuse(sentence):
        def require():
            raise triton_install.ServerError(sentence)

        monkeypatch.setattr(triton_install, "require_platform", require)

    refuse("The embedded Triton runs on Linux x86-64 only.")
    assert only(_machine.system()).status == FAIL
    refuse("This Python has numpy 2.0.")
    assert only(_machine.system()).status == OK


def test_a_missing_wheel_and_a_missing_libpython_are_named(monkeypatch):
    def missing():
        raise triton_install.ServerError("The embedded Triton is not installed: pip install nvidia-pytriton==0.7.0")

    monkeypatch.setattr(triton_install, "locate", missing)
    line = only(_software.triton())
    assert (line.status, line.detail) == (FAIL, "The embedded Triton is not installed")
    assert line.cure == "pip install nvidia-pytriton==0.7.0"


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
    monkeypatch.setattr(_software, "version", versions.get)

    def seen():
        return {line.name.removeprefix("packages: "): line.cure for line in _software.packages() if line.cure}

    assert seen() == dict.fromkeys(cures, "make setup")
    (tmp_path / ".bundle").touch()
    assert {group: cures[group] in cure for group, cure in seen().items()} == dict.fromkeys(cures, True)


def test_missing_and_wrong_packages_are_listed_by_extra(monkeypatch):
    needs = [
        "httpx>=0.28",
        'nvidia-pytriton==0.7.0; extra == "server"',
        'torch==2.13.0; extra == "models"',
        'tomli>=2; python_version < "3"',
        'servinglab[server]; extra == "all"',
    ]
    installed = {"httpx": "0.30", "nvidia-pytriton": "0.5.7", "torch": "2.13.0+cpu"}
    monkeypatch.setattr(metadata, "requires", lambda name: needs)
    monkeypatch.setattr(_software, "version", installed.get)
    lines = {line.name: line for line in _software.packages()}
    assert set(lines) == {"packages: base", "packages: server", "packages: models"}
    assert lines["packages: base"].status == OK
    assert lines["packages: models"].status == OK, "a CPU build of torch is the same version"
    assert (lines["packages: server"].status, lines["packages: server"].detail) == (
        FAIL,
        "other version: nvidia-pytriton 0.5.7",
    )
    del installed["httpx"], installed["torch"]
    lines = {line.name: line for line in _software.packages()}
    assert lines["packages: base"].status == FAIL and lines["packages: base"].detail == "missing: httpx"
    assert lines["packages: models"].status == WARN, "the server runs without them"


def test_a_taken_port_is_only_a_warning(monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setattr(_machine, "PORTS", (listener.getsockname()[1],))
        line = only(_machine.ports())
    assert line.status == WARN and str(_machine.PORTS[0]) in line.detail


def test_a_cache_that_cannot_be_written_fails(monkeypatch, tmp_path):
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path / "a" / "b"))
    assert only(_machine.disk()).status == OK
    (tmp_path / "a").touch()
    assert only(_machine.disk()).status == FAIL
    monkeypatch.setattr(_machine.os, "access", lambda *_: False)
    line = only(_machine.disk())
    assert line.status == FAIL and "SERVINGLAB_CACHE" in line.cure


def test_a_read_only_cache_that_has_what_a_server_needs_is_no_failure(monkeypatch, tmp_path, smollm2_engine_fp32):
    cache = tmp_path / "cache"
    cache.mkdir()
    for entry in assets.cache_dir().iterdir():
        (cache / entry.name).symlink_to(entry)
    monkeypatch.setenv("SERVINGLAB_CACHE", str(cache))
    triton_install.backend_directory(cache)
    monkeypatch.setattr(_machine.os, "access", lambda *_: False)
    line = only(_machine.disk())
    assert line.status == WARN and "what is in it can be used" in line.detail and "SERVINGLAB_CACHE" in line.cure
    (cache / "models").unlink()
    assert only(_machine.disk()).status == FAIL, "without weights nothing can be served from it"


@pytest.mark.parametrize(("name", "odd"), [("with space", "' '"), ("Übung", "'Ü'")])
def test_a_cache_that_triton_cannot_start_from_fails(monkeypatch, tmp_path, name, odd):
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path / name))
    line = only(_machine.disk())
    assert line.status == FAIL and line.detail.endswith(f"{name} holds {odd}") and "SERVINGLAB_CACHE" in line.cure


def test_a_temporary_folder_that_triton_cannot_start_from_fails(monkeypatch, tmp_path):
    assert only(_machine.temporary()).status == OK
    monkeypatch.setattr(_machine.tempfile, "tempdir", str(tmp_path / "a b"))
    line = only(_machine.temporary())
    assert line.status == FAIL and line.detail.endswith("a b holds ' '") and "TMPDIR" in line.cure
    assert "temporary folder" in doctor.lanes([line])["embedded"]


def test_a_python_whose_paths_triton_cannot_read_fails(monkeypatch):
    monkeypatch.setattr(sys, "prefix", "/home/jürgen/course/.venv")
    line = only(_software.triton())
    assert (line.status, line.detail.split()[0]) == (FAIL, "/home/jürgen/course/.venv") and "move the" in line.cure


GIB = 2**30
V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
NO_LIMIT = "9223372036854771712\n"


@pytest.mark.parametrize(
    ("files", "detail", "cure"),
    [
        ({}, "20.0 GiB free of 32.0 GiB", ""),
        ({"/proc/self/cgroup": "0::/\n", f"{V2}//memory.max": "max\n", f"{V2}//memory.current": "5\n"},
         "20.0 GiB free of 32.0 GiB", ""),
        # A group around ours has the limit; a gibibyte of what is used are pages of files.
        ({"/proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/memory.max": "max\n", f"{V2}/a/b/memory.current": f"{GIB}\n",
          f"{V2}/a/memory.max": f"{6 * GIB}\n", f"{V2}/a/memory.current": f"{2 * GIB}\n",
          f"{V2}/a/memory.stat": f"anon 1\ninactive_file {GIB}\n"}, "5.0 GiB free of 6.0 GiB", ""),
        ({"/proc/self/cgroup": "9:name=systemd:/\n4:memory:/a\n0::/\n", f"{V1}/a/memory.limit_in_bytes": NO_LIMIT,
          f"{V1}/a/memory.usage_in_bytes": "4096\n"}, "20.0 GiB free of 32.0 GiB", ""),
        # In a container: our path is the host's. What is used by groups inside counts in the totals only.
        ({"/proc/self/cgroup": "4:memory:/docker/1a2b\n", f"{V1}//memory.limit_in_bytes": f"{8 * GIB}\n",
          f"{V1}//memory.usage_in_bytes": f"{7 * GIB}\n",
          f"{V1}//memory.stat": f"inactive_file 0\ntotal_inactive_file {2 * GIB}\n"}, "3.0 GiB free of 8.0 GiB",
         "takes 4.0 GiB; close other programs"),
        ({"/proc/self/cgroup": "4:memory:/\n", f"{V1}//memory.limit_in_bytes": f"{2 * GIB}\n",
          f"{V1}//memory.usage_in_bytes": "0\n"}, "2.0 GiB free of 2.0 GiB", "give this machine or container more"),
    ],
)  # fmt: skip
def test_memory_is_what_is_free_within_the_control_groups_of_either_version(monkeypatch, files, detail, cure):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(total=32 * GIB, available=20 * GIB))
    monkeypatch.setattr(_machine, "read", lambda path: files.get(path, ""))
    line = only(_machine.memory())
    assert (line.status, line.detail) == (WARN if cure else OK, detail) and cure in line.cure


def test_little_free_memory_is_told_where_there_is_much_in_all(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(total=64 * GIB, available=3 * GIB))
    line = only(_machine.memory())
    assert line.status == WARN and line.detail.startswith("3.0 GiB free") and "close other programs" in line.cure


def test_no_weights_yet_says_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path))
    line = only(_software.models())
    assert line.status == WARN and "course fetch" in line.cure


def test_a_silent_gpu_driver_and_a_silent_docker_do_not_hold_the_report_up(monkeypatch, tmp_path):
    for name in ("nvidia-smi", "docker"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\nexec sleep 30\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    started = time.monotonic()
    lines = {line.name: line for line in doctor.examine()}
    assert time.monotonic() - started < 5.5  # each is given two seconds; one after another they would take six
    assert lines["gpu"].detail == "nvidia-smi does not answer"
    assert lines["docker"].detail == "the client is there, no engine answers"


def test_a_gpu_is_reported(monkeypatch):
    monkeypatch.setattr(_machine, "run", lambda command: "NVIDIA H100, 81559 MiB, 570.1, 9.0")
    assert only(_machine.gpu()) == doctor.Line(OK, "gpu", "NVIDIA H100, 81559 MiB, 570.1, 9.0")


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
        yield

    monkeypatch.setattr(doctor, "CHECKS", (broken, _machine.python))
    lines = doctor.examine()
    assert (lines[0].status, lines[0].detail) == (WARN, "could not be looked at: RuntimeError: boom")
    assert lines[1].status == OK


def test_every_lane_line_exists():
    names = {line.name for line in doctor.examine()}
    assert {n for wanted, _ in doctor.LANES.values() for n in wanted} <= names
