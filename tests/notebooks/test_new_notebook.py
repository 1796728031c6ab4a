"""`course new`: in a copy of the course, a new notebook runs, passes the tests that every notebook must, and goes again
without a trace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import new_notebook
import pytest

from course import manifest
from servinglab.errors import CourseError

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("notebooks", "labs", "lib", "tools", "Dockerfiles", "tests/notebooks", "course.toml", "pyproject.toml",
          "README.md", "environment.yml", "tests/conftest.py", "tests/live_page.py", "data/draft/README.md",
          "data/mini_clip/README.md")  # fmt: skip
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Copies of all that a new notebook is made from or changes; links to the rest, which is only read."""
    root = tmp_path_factory.mktemp("checkout")
    for name in COPIED:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", ".ours.json"))
        else:
            shutil.copy(ROOT / name, root / name)
    for folder in ("", "data", "data/draft", "data/mini_clip"):
        for path in (ROOT / folder).iterdir():
            if not path.name.startswith(".") and path.name != "build" and not (root / folder / path.name).exists():
                (root / folder / path.name).symlink_to(path)
    return root


def run(checkout: Path, *command: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(checkout / "lib")}
    return subprocess.run([sys.executable, "-m", *command], cwd=checkout, env=env, capture_output=True, text=True)


def texts(checkout: Path) -> dict[str, str]:
    """What git would see: all that was copied, but for what it ignores."""
    names = {path for name in COPIED for path in [checkout / name, *(checkout / name).rglob("*")]}
    files = [path for path in names if path.is_file() and "__pycache__" not in path.parts and path.name != ".ours.json"]
    return {path.relative_to(checkout).as_posix(): path.read_text(errors="replace") for path in files}


def test_a_new_notebook_runs_is_in_style_at_once_and_goes_without_a_trace(checkout):
    before = texts(checkout)
    done = run(checkout, "course.cli", "new", "Dice sums")
    assert done.returncode == 0, done.stderr
    after = texts(checkout)
    number = max(Path(name).name[:2] for name in after.keys() - before.keys() if name.endswith(".ipynb"))
    made = {f"notebooks/{name}" for name in (f"{number}_dice_sums.ipynb", f"text/{number}_dice_sums.py",
                                             f"checks/nb{number}.py", f"solutions/{number}.py")}  # fmt: skip
    assert after.keys() - before.keys() == made and int(number) >= 16
    assert {Path(line).relative_to(checkout).as_posix() for line in done.stdout.splitlines()} == {*made, "course.toml"}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"course.toml", "README.md", "Dockerfiles/README.md"}

    asked = ["tests/notebooks/test_course_notebooks.py", "tests/notebooks/test_pairs.py", "-p", "no:cacheprovider"]
    tests = run(checkout, "pytest", "-q", *asked, "-k", f"{number}_ or names_the_same or own_client")
    assert tests.returncode == 0 and " passed" in tests.stdout, tests.stdout
    assert int(tests.stdout.split(" passed")[0].split()[-1]) >= 13, "they were found"
    assert run(checkout, "ruff", "check", *sorted(made - {f"notebooks/{number}_dice_sums.ipynb"})).returncode == 0

    for name in made:
        (checkout / name).unlink()
    (checkout / "course.toml").write_text(before["course.toml"])
    subprocess.run([sys.executable, "tools/pages.py"], cwd=checkout, check=True, capture_output=True,
                   env={**os.environ, "PYTHONPATH": str(checkout / "lib")})  # fmt: skip
    assert texts(checkout) == before


@pytest.fixture
def small(tmp_path):
    """A course of one notebook, of which only the manifest is there."""
    for folder in ("text", "checks", "solutions"):
        (tmp_path / "notebooks" / folder).mkdir(parents=True)
    (tmp_path / "course.toml").write_text(
        '[[notebook]]\nid = "06_temperature"\ntitle = "T"\nminutes = 1\nlanes = ["embedded"]\nneeds = []\n'
        'parameters = { seed = 0 }\nsets = [{ name = "a" }, { name = "b", seed = 1 }]\n'
    )
    return manifest.load(tmp_path)


def files(course: manifest.Course) -> dict[Path, str]:
    return {path: path.read_text() for path in course.root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name, said",
    [
        ("temperature", "There is 06_temperature already; choose another name."),
        ("../x", "'../x' is no name for a notebook"),
        ("9 lives", "'9 lives' is no name"),
    ],
)
def test_a_name_that_cannot_be_is_refused(small, name, said):
    before = files(small)
    with pytest.raises(CourseError, match=said):
        new_notebook.add(small, name)
    assert files(small) == before


def test_no_file_is_overwritten(small):
    (small.root / "notebooks" / "checks" / "nb07.py").write_text("MINE")
    before = files(small)
    with pytest.raises(CourseError, match=r"nb07\.py is there already; move it away first"):
        new_notebook.add(small, "dice")
    assert files(small) == before


@pytest.mark.parametrize("error", [new_notebook.NotebookError("07_dice, cell 5: no"), KeyboardInterrupt()])
def test_where_it_does_not_run_nothing_is_left_behind(small, monkeypatch, error):
    def make(source, entry):
        assert source.exists() and entry.id == "07_dice"
        raise error

    monkeypatch.setattr(new_notebook.execute_notebooks, "make", make)
    before = files(small)
    with pytest.raises(CourseError if isinstance(error, Exception) else KeyboardInterrupt):
        new_notebook.add(small, "dice")
    assert files(small) == before
