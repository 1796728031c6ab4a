"""install.sh of the offline bundle, run on a tiny one: a working environment, a second run, every refusal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bundle_helpers import pack_course, pack_parts, tiny_bundle, torch_python, wheel, write_sums

pytestmark = pytest.mark.timeout(280)


class Box:
    """A machine of its own: home, cache, an unreachable index, and pip settings that would break an install."""

    def __init__(self, folder: Path, bundle: Path):
        self.bundle, self.dest, self.cache = bundle, folder / "servinglab", folder / "cache"
        folder.mkdir(exist_ok=True)
        self.env = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8",
            "SERVINGLAB_CACHE": str(self.cache), "PYTHONPATH": str(folder / "nowhere"),
            "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_REQUIRE_HASHES": "1",
        }  # fmt: skip

    def install(self, *arguments: str, **env: str) -> subprocess.CompletedProcess:
        command = ["bash", str(self.bundle / "install.sh"), "--dest", str(self.dest), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env={**self.env, **env}, cwd="/", timeout=200)

    def python(self, code: str) -> str:
        command = [str(self.dest / ".venv" / "bin" / "python"), "-c", code]
        answer = subprocess.run(command, capture_output=True, text=True, cwd="/", env={"PATH": self.env["PATH"]})
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.strip()

    def calls(self) -> list[str]:
        return (self.dest / "calls").read_text().splitlines()


def refused(answer: subprocess.CompletedProcess) -> str:
    """The one line of an expected failure."""
    assert answer.returncode == 1, (answer.stdout, answer.stderr)
    assert answer.stderr.startswith("install: ") and answer.stderr.count("\n") == 1, answer.stderr
    return answer.stderr


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("none"), torch="none")


@pytest.fixture(scope="module")
def cuda_python(tmp_path_factory) -> Path:
    return torch_python(tmp_path_factory.mktemp("cuda") / "env")


@pytest.fixture(scope="module")
def box(tmp_path_factory, bundle, cuda_python) -> Box:
    """Installed, after a first try that stopped half-way because torch could not be imported."""
    made = Box(tmp_path_factory.mktemp("box"), bundle)
    (torch,) = cuda_python.parents[1].glob("lib/python3.*/site-packages/torch/__init__.py")
    good = torch.read_text()
    torch.write_text("raise ImportError('libcudart.so.13: cannot open')")
    made.first = made.install("--torch-from", str(cuda_python))
    made.half_made = made.dest / ".venv" / "half-made"
    made.half_made.touch()
    torch.write_text(good)
    answer = made.install("--torch-from", str(cuda_python))
    assert answer.returncode == 0, (answer.stdout, answer.stderr)
    made.said = answer.stdout
    return made


def test_a_torch_that_cannot_be_imported_stops_the_install_and_what_is_half_made_is_made_anew(box):
    assert "libcudart.so.13" in refused(box.first)
    assert "there already" not in box.said and not box.half_made.exists()


def test_torch_is_of_the_other_environment_and_numpy_of_the_bundle(box, cuda_python):
    code = "import torch, torchgen, numpy, filelock; print(torch.__version__, numpy.__version__, filelock.__version__)"
    assert box.python(code) == "2.9.1 1.26.4 4.3"
    where = box.python("import torch, os; print(os.path.realpath(torch.__file__))")
    assert where.startswith(str(cuda_python.parents[1]))
    code = "import nvidia.cublas.lib as a, nvidia.cudnn.lib as b, nvidia.nvjitlink.lib as c"
    assert box.python(f"{code}; print(a.one, b.two, c.three)") == "1 2 3"
    assert "torch 2.9.1 cuda True" in box.said


def test_nothing_else_of_the_other_environment_is_there(box):
    code = "from importlib import metadata; print(*sorted(d.name for d in metadata.distributions()))"
    expected = "filelock numpy nvidia-cublas nvidia-cudnn nvidia-nvjitlink pip servinglab setuptools torch"
    assert box.python(code) == expected
    code = "from importlib.util import find_spec as f; print(f('pandas'), f('optree'))"
    assert box.python(code) == "None None"


def test_weights_are_in_the_cache_and_prepared_offline(box):
    assert (box.cache / "wheels" / "model.whl").read_bytes() == b"weights" * 1000
    assert (box.dest / "data" / "draft" / "layers.bin").exists()  # a large file of the course, from its own archive
    assert box.calls()[:2] == ["fetch offline=1", "doctor offline=1"]
    assert "export SERVINGLAB_CACHE" in box.said and "course run 00" in box.said


def test_make_takes_the_environment_as_it_is(box):
    command = ["bash", "requirements/setup.sh"]
    answer = subprocess.run(command, cwd=box.dest, env=box.env, capture_output=True, text=True)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_a_second_run_keeps_what_is_done(box, cuda_python):
    mark = box.dest / ".venv" / "kept"
    mark.touch()
    notebook = box.dest / "notebooks" / "00.ipynb"
    notebook.write_text("with my answers")
    answer = box.install("--torch-from", str(cuda_python))
    assert answer.returncode == 0 and "there already" in answer.stdout, answer.stderr
    assert mark.exists() and notebook.read_text() == "with my answers"
    assert not list(box.dest.glob(".new")) and not list(box.dest.glob(".wheels"))


def test_two_changed_courses_replace_the_course_only_and_every_answer_is_found(box, bundle, cuda_python, tmp_path):
    course = Path(shutil.copytree(bundle.parent / "course", tmp_path / "course"))
    notebook = Path("notebooks", "00.ipynb")
    (box.dest / "build").mkdir(exist_ok=True)
    mark = box.dest / ".venv" / "kept"
    mark.touch()
    for number, edition in enumerate(("second", "third"), 1):
        newer = Path(shutil.copytree(bundle, tmp_path / edition))
        (course / notebook).write_text(f"{edition} edition")
        (course / "lib" / "servinglab" / "added.py").write_text(f"here = {number}\n")
        pack_course(course, newer)
        (box.dest / notebook).write_text(f"with my answers before the {edition}")
        answer = Box(box.dest.parent, newer).install("--torch-from", str(cuda_python))
        assert answer.returncode == 0, answer.stderr
        assert f"you had changed {notebook}: yours is now {box.dest}/yours/{number}/{notebook}" in answer.stdout
        assert (box.dest / notebook).read_text() == f"{edition} edition"
        assert mark.exists() and (box.dest / "build").is_dir()
        assert box.python("import servinglab.added as a; print(a.here)") == str(number)
    yours = [path.read_text() for path in sorted((box.dest / "yours").rglob("*.*"))]
    assert yours == ["with my answers before the second", "with my answers before the third"]


def test_weights_that_cannot_be_prepared_fail_the_install(box, cuda_python):
    text = refused(box.install("--torch-from", str(cuda_python), FAKE_COURSE_FAILS="fetch"))
    assert "weights could not be prepared" in text
    text = refused(box.install("--torch-from", str(cuda_python), FAKE_COURSE_FAILS="doctor"))
    assert "cannot run the course" in text


def test_torch_of_the_bundle_without_another_interpreter(tmp_path):
    made = Box(tmp_path / "box", tiny_bundle(tmp_path / "made", torch="cpu"))
    answer = made.install("--python", sys.executable)
    assert answer.returncode == 0, answer.stderr
    assert made.python("import torch; print(torch.__version__, torch.__file__)").startswith(f"2.13.0+cpu {made.dest}")


@pytest.fixture
def fresh(bundle, tmp_path) -> Box:
    """A copy of the bundle, to be damaged."""
    return Box(tmp_path / "box", Path(shutil.copytree(bundle, tmp_path / "bundle")))


def test_a_missing_part_is_named(fresh):
    (fresh.bundle / "wheels.tar.xz.002").unlink()
    assert "wheels.tar.xz.002 is missing" in refused(fresh.install())
    (fresh.bundle / "SHA256SUMS").unlink()
    assert "SHA256SUMS is missing" in refused(fresh.install())
    assert not fresh.dest.exists()


def test_a_damaged_part_is_named(fresh):
    part = fresh.bundle / "weights.tar.001"
    content = bytearray(part.read_bytes())
    content[5000] ^= 1
    part.write_bytes(content)
    text = refused(fresh.install())
    assert "weights.tar.001" in text and "checksum" in text and "wheels" not in text
    assert not fresh.dest.exists()


def test_a_package_that_was_exchanged_is_not_installed(fresh, bundle, cuda_python, tmp_path):
    """Its parts have the right checksums: only requirements.txt knows which wheel it was."""
    wheels = Path(shutil.copytree(bundle.parent / "wheels", tmp_path / "wheels"))
    wheel(wheels, "filelock", "4.3", {"filelock/__init__.py": "__version__ = 'not ours'"})
    for part in fresh.bundle.glob("wheels.tar.xz.*"):
        part.unlink()
    files = [(path.name, path) for path in wheels.iterdir()]
    pack_parts.pack(files, fresh.bundle / "wheels.tar.xz", part_size=500_000, level=0)
    write_sums(fresh.bundle)
    text = refused(fresh.install("--torch-from", str(cuda_python)))
    assert "HASH" in text.upper() and not list(fresh.dest.glob(".venv/lib/*/site-packages/filelock"))


def test_another_python_is_refused(fresh):
    facts = fresh.bundle / "bundle.txt"
    facts.write_text(facts.read_text().replace("python=3.", "python=3.9"))
    write_sums(fresh.bundle)
    text = refused(fresh.install("--python", sys.executable))
    assert "is for Python 3.9" in text and f"is Python 3.{sys.version_info.minor}" in text
    assert f"is Python 3.{sys.version_info.minor}" in refused(fresh.install("--torch-from", sys.executable))
    assert "none is on PATH" in refused(fresh.install())
    assert not fresh.dest.exists()


def test_no_torch_anywhere(fresh, tmp_path):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    text = refused(fresh.install("--python", str(bare / "bin" / "python")))
    assert "--torch-from" in text and "--torch cpu" in text
    text = refused(fresh.install("--torch-from", str(bare / "bin" / "python")))
    assert "has no torch" in text


def test_no_room(tmp_path, cuda_python):
    made = Box(tmp_path / "box", tiny_bundle(tmp_path / "made", torch="none", packages=10**15))
    text = refused(made.install("--torch-from", str(cuda_python)))
    assert "2000000.0 GB" in text and "--dest" in text
    assert not (made.dest / ".venv").exists()


def test_a_folder_of_somebody_else_is_left_alone(fresh):
    fresh.dest.mkdir(parents=True)
    (fresh.dest / "thesis.txt").write_text("mine")
    assert "was not made by install.sh" in refused(fresh.install("--python", sys.executable))
    assert os.listdir(fresh.dest) == ["thesis.txt"]


def test_a_path_that_triton_cannot_use_is_refused_before_any_work(fresh, cuda_python):
    fresh.dest = fresh.dest.with_name("my course")
    assert "my course" in refused(fresh.install("--torch-from", str(cuda_python)))
    assert not (fresh.dest / ".venv").exists()


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--python"], ["now"]])
def test_wrong_options_are_refused(fresh, arguments):
    assert "--help" in refused(fresh.install(*arguments))


def test_help_needs_nothing(fresh):
    (fresh.bundle / "SHA256SUMS").unlink()
    answer = fresh.install("--help")
    assert answer.returncode == 0 and "--torch-from" in answer.stdout
