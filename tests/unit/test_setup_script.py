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
if [ "$1 $2" = "-m pip" ]; then
  case "$*" in *torch-cpu*) [ ! -e "{pip_code}-torch" ] || exit 1;; esac
  exit "$(cat "{pip_code}" 2>/dev/null || echo 0)"
fi
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
        for tool in "bash cat cksum mkdir touch rm cp dirname flock sleep make id sed".split():
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
    venv, *steps = box.noted().splitlines()
    assert venv == "python -m venv .venv"
    pip = "python -m pip install -qq --no-compile --disable-pip-version-check --no-deps"
    checked = f"{pip} --require-hashes --requirement requirements"
    course = f"{pip} --no-build-isolation --editable ."
    assert steps == [f"{checked}/lock.txt", f"{checked}/torch-cpu.txt", course]


@pytest.mark.parametrize(
    ("torch", "gpu", "uv", "words"),
    [
        ("auto", False, False, "--require-hashes --requirement requirements/torch-cpu.txt"),
        ("auto", True, False, "--require-hashes --requirement requirements/torch-cuda.txt"),
        ("auto", False, True, "--require-hashes --requirement requirements/torch-cpu.txt --torch-backend cpu"),
        ("auto", True, True, "torch==2.13.0 --torch-backend auto"),  # only uv knows which build fits the driver
        ("cpu", True, False, "--require-hashes --requirement requirements/torch-cpu.txt"),
        ("cpu", True, True, "--require-hashes --requirement requirements/torch-cpu.txt --torch-backend cpu"),
        ("cuda", False, False, "--require-hashes --requirement requirements/torch-cuda.txt"),
        ("cuda", False, True, "--require-hashes --requirement requirements/torch-cuda.txt"),
        ("any", False, False, "torch==2.13.0"),
        ("any", False, True, "torch==2.13.0 --torch-backend auto"),
    ],
)
def test_the_build_of_torch(box, torch, gpu, uv, words):
    box.add("python3")
    if uv:
        box.add_uv()
    if gpu:
        box.add("nvidia-smi")
    done = box.setup(TORCH=torch)
    assert done.returncode == 0, done.stderr
    _, lock, step, course = box.noted().splitlines()
    assert step.endswith(words) and ("--no-deps" in step) == ("--require-hashes" in step)
    assert all("--require-hashes" in line or "--editable" in line for line in (lock, course))


def test_where_pip_finds_no_cpu_build_of_torch(box):
    """Which is in no index that pip asks by itself. Who wants that build and no other is told."""
    box.add("python3")
    Path(f"{box.pip_code}-torch").touch()
    done = box.setup()
    assert done.returncode == 0 and "taking the one with CUDA" in done.stdout
    assert box.noted().splitlines()[-2].endswith("--require-hashes --requirement requirements/torch-cuda.txt")
    assert box.setup(TORCH="cpu").returncode != 0 and "torch-cuda" not in box.noted()


def test_edge_is_an_environment_of_its_own_without_the_course(box):
    """The same script, another lock; PyTorch is of the same build."""
    box.add("python3")
    done = subprocess.run(["make", "edge"], cwd=box.root, env={"PATH": str(box.bin)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made, lock, torch = box.noted().splitlines()
    assert made.endswith("-m venv .edge") and torch.endswith("--requirement requirements/torch-cpu.txt")
    assert lock.endswith("--no-deps --require-hashes --requirement requirements/edge.txt")
    assert (box.root / ".edge" / ".course-stamp").exists() and not (box.root / ".venv").exists()
    command = ["bash", "requirements/setup.sh", "egde"]
    wrong = subprocess.run(command, cwd=box.root, env={"PATH": str(box.bin)}, capture_output=True, text=True)
    assert wrong.returncode == 1 and "there is no environment egde" in wrong.stderr


def test_a_second_run_does_nothing(box):
    box.add("python3")
    box.setup()
    again = box.setup()
    assert (again.returncode, again.stdout, box.noted()) == (0, "", "")


def test_it_installs_again_when_the_lock_or_the_project_changes(box):
    box.add("python3")
    for name in ("pyproject.toml", "requirements/lock.txt", "requirements/torch-cpu.txt"):
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
    box.add("python3.12", "3.12.1")
    done = box.setup(PYTHON="python3.12")
    assert done.returncode != 0 and ".venv is one of Python 3.11; move it away" in done.stderr
    assert box.setup(PYTHON="python3.13").returncode != 0 and box.setup(PYTHON="python3").returncode == 0


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_folder_that_triton_cannot_read_is_refused_before_anything_is_installed(box, locale):
    box.add("python3")
    box.root = box.root.rename(box.root.with_name("le cours d'été"))
    done = box.setup(LC_ALL=locale)
    assert done.returncode != 0 and "le cours d'été has letters beyond ASCII in its path" in done.stderr
    assert not (box.root / ".venv").exists() and not box.noted()


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


def test_uv_is_used_when_present_and_offered_what_lies_on_the_disk(box):
    box.add("python3")
    box.add_uv()
    done = box.setup(PIP_FIND_LINKS="/a /b")
    assert done.returncode == 0, done.stderr
    venv, *steps = box.noted().splitlines()
    assert venv == "uv venv --quiet --allow-existing --python python3 .venv"
    assert len(steps) == 3 and all("--find-links /a --find-links /b" in step for step in steps)
    assert "--torch-backend" not in box.noted()


def test_uv_brings_a_python_where_there_is_none(box):
    box.add_uv()
    box.add("python3", "3.13.0")
    assert box.setup().returncode == 0
    assert "--python 3.12" in box.noted()


def test_an_unknown_torch_is_refused(box):
    box.add("python3")
    done = box.setup(TORCH="tpu")
    assert done.returncode != 0 and "TORCH=tpu is unknown; use cpu, cuda, any or auto" in done.stderr


def test_two_setups_at_once_make_one_environment(box):
    box.add("python3")
    command = ["make", "--no-print-directory", "setup"]
    runs = [subprocess.Popen(command, cwd=box.root, env={"PATH": str(box.bin)}) for _ in range(3)]
    assert [r.wait(60) for r in runs] == [0, 0, 0]
    assert box.noted().count("pip install") == 3


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
