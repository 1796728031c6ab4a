"""requirements/setup.sh with stand-ins for python, uv and pip: choices, refusals, interruption, paths with spaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYTHON = """#!/bin/bash
# A stand-in: Python {version}; `-m venv DIR` makes a folder with itself in it, everything else is noted.
here="$(cd "$(dirname "$0")" && pwd)"
case "$1" in
  -c) case "$2" in *"not (3, 10)"*) exit {unsupported};; *) exit 0;; esac;;
  -V) echo "Python {version}"; exit 0;;
esac
echo "python $*" >> "{log}"
if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; fi
if [ "$1 $2" = "-m pip" ]; then exit "$(cat "{pip_code}" 2>/dev/null || echo 0)"; fi
"""
UV = """#!/bin/bash
echo "uv $*" >> "{log}"
if [ "$1" = venv ]; then mkdir -p "${{@: -1}}/bin" && cp "{python}" "${{@: -1}}/bin/python"; fi
"""


class Sandbox:
    """A checkout in a folder with a space, and a PATH that holds only the programs a test wants."""

    def __init__(self, folder: Path):
        self.root = folder / "my course"
        self.bin = folder / "bin"
        self.log = folder / "log"
        self.pip_code = folder / "pip-code"
        self.bin.mkdir()
        for name in ("pyproject.toml", "requirements", "Makefile"):
            source = ROOT / name
            target = self.root / name
            target.parent.mkdir(exist_ok=True)
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        for tool in ("bash", "cat", "cksum", "mkdir", "touch", "rm", "cp", "dirname", "flock", "sleep", "make", "id"):
            (self.bin / tool).symlink_to(shutil.which(tool))

    def add(self, name: str, version: str = "3.11.7") -> Path:
        path = self.bin / name
        minor = int(version.split(".")[1])
        fields = {"version": version, "unsupported": int(not 10 <= minor <= 12), "log": self.log}
        path.write_text(PYTHON.format(**fields, pip_code=self.pip_code))
        path.chmod(0o755)
        return path

    def add_uv(self) -> None:
        python = self.add("hidden-python")
        (self.bin / "uv").write_text(UV.format(log=self.log, python=python))
        (self.bin / "uv").chmod(0o755)

    def setup(self, **env: str) -> subprocess.CompletedProcess:
        self.log.unlink(missing_ok=True)
        command = ["make", "--no-print-directory", "setup"]
        env = {"PATH": str(self.bin), **env}
        return subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True)

    def noted(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


@pytest.fixture
def box(tmp_path) -> Sandbox:
    return Sandbox(tmp_path)


def test_it_takes_python3_and_installs_with_pip_under_the_lock(box):
    box.add("python3")
    done = box.setup()
    assert done.returncode == 0, done.stderr
    assert "environment ready" in done.stdout
    venv, pip = box.noted().splitlines()
    assert venv == "python -m venv .venv"
    assert pip.startswith("python -m pip install -qq ")
    assert pip.endswith("--constraint requirements/lock.txt --editable .[all]")


def test_a_second_run_does_nothing(box):
    box.add("python3")
    box.setup()
    again = box.setup()
    assert (again.returncode, again.stdout, box.noted()) == (0, "", "")


def test_it_installs_again_when_the_lock_or_the_project_changes(box):
    box.add("python3")
    for name in ("pyproject.toml", "requirements/lock.txt"):
        box.setup()
        path = box.root / name
        path.write_text(path.read_text() + "# more\n")
        box.setup()
        assert "pip install" in box.noted() and "venv" not in box.noted(), "into the environment that is there"


def test_it_looks_past_an_unsupported_python3(box):
    box.add("python3", "3.13.0")
    box.add("python3.12", "3.12.1")
    done = box.setup()
    assert done.returncode == 0, done.stderr
    assert "making .venv with python3.12" in done.stdout


def test_without_a_supported_python_it_says_which_there_must_be(box):
    box.add("python3", "3.13.0")
    done = box.setup()
    assert done.returncode != 0
    assert "found no Python 3.10, 3.11 and 3.12 (python3 is Python 3.13.0)" in done.stderr
    assert not (box.root / ".venv").exists()


def test_an_explicit_python_is_not_replaced_by_another(box):
    box.add("python3")
    box.add("python3.13", "3.13.0")
    done = box.setup(PYTHON="python3.13")
    assert done.returncode != 0 and "python3.13 is not a Python that the course runs on" in done.stderr
    assert box.setup(PYTHON="python3").returncode == 0


def test_an_interrupted_setup_is_made_anew(box):
    box.add("python3")
    box.pip_code.write_text("1")
    assert box.setup().returncode != 0
    assert (box.root / ".venv" / ".course-unfinished").exists()
    leftover = box.root / ".venv" / "half-installed"
    leftover.touch()
    box.pip_code.write_text("0")
    done = box.setup()
    assert done.returncode == 0 and "interrupted" in done.stdout
    assert not leftover.exists() and not (box.root / ".venv" / ".course-unfinished").exists()


def test_an_environment_of_another_python_is_not_deleted(box):
    box.add("python3")
    (box.root / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(box.add("old", "3.9.1"), box.root / ".venv" / "bin" / "python")
    done = box.setup()
    assert done.returncode != 0 and "move it away" in done.stderr
    assert (box.root / ".venv" / "bin" / "python").exists()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, "--torch-backend auto"),
        ({"TORCH": "cpu"}, "--torch-backend cpu"),
        ({"TORCH": "cuda"}, "python --constraint"),
        ({"PIP_FIND_LINKS": "/a /b"}, "--find-links /a --find-links /b"),
    ],
)
def test_uv_is_used_when_present(box, env, words):
    box.add("python3")
    box.add_uv()
    done = box.setup(**env)
    assert done.returncode == 0, done.stderr
    venv, install = box.noted().splitlines()
    assert venv == "uv venv --quiet --allow-existing --seed --python python3 .venv"
    assert "--constraint requirements/lock.txt" in install and words in install
    assert ("--torch-backend" in install) == (env.get("TORCH") != "cuda" and "PIP_FIND_LINKS" not in env)


def test_uv_brings_a_python_where_there_is_none(box):
    box.add_uv()
    box.add("python3", "3.13.0")
    assert box.setup().returncode == 0
    assert "--python 3.12" in box.noted()


def test_an_unknown_torch_is_refused(box):
    box.add("python3")
    done = box.setup(TORCH="tpu")
    assert done.returncode != 0 and "TORCH=tpu is unknown; use cpu, cuda or auto" in done.stderr


def test_two_setups_at_once_make_one_environment(box):
    box.add("python3")
    command = ["make", "--no-print-directory", "setup"]
    runs = [subprocess.Popen(command, cwd=box.root, env={"PATH": str(box.bin)}) for _ in range(3)]
    assert [r.wait(60) for r in runs] == [0, 0, 0]
    assert box.noted().count("pip install") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="already an ordinary user: the other tests show it")
def test_an_ordinary_user_can_do_it(request):
    """Run as nobody, who has no home folder and may write nothing outside the checkout."""
    folder = Path(tempfile.mkdtemp(prefix="course-setup-"))  # pytest's own folders are closed to other users
    request.addfinalizer(lambda: shutil.rmtree(folder))
    folder.chmod(0o755)
    box = Sandbox(folder)
    box.add("python3")
    for path in [box.root, *box.root.rglob("*")]:
        os.chown(path, 65534, 65534)
    box.log.touch()
    box.log.chmod(0o666)
    command = ["make", "--no-print-directory", "setup"]
    done = subprocess.run(command, cwd=box.root, env={"PATH": str(box.bin)}, user=65534, group=65534, extra_groups=[],
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
