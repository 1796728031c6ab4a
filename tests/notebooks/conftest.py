"""The tools that make notebooks are scripts, not a package: put them on the path."""

from __future__ import annotations

import copy
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

sys.path.insert(0, str(Path(__file__).parent))

from running import EXAMPLE  # noqa: E402


@pytest.fixture(scope="session")
def example_entry():
    """What course.toml would say about the example, a tiny notebook that only these tests use."""
    from course.manifest import Notebook, ParameterSet

    return Notebook(
        id="99_example",
        title="Adding two numbers",
        minutes=5,
        lanes=("embedded",),
        needs=(),
        parameters={"lane": "auto", "first": 1, "seed": 0},
        sets=(ParameterSet("default", {}), ParameterSet("large", {"first": 1000})),
        timeout=120,
        path=EXAMPLE / "99_example.ipynb",
    )


@pytest.fixture
def fresh():
    """The example, not executed."""
    from notebook_files import read_source

    return read_source(EXAMPLE / "text" / "99_example.py")


@pytest.fixture(scope="session")
def made(tmp_path_factory, example_entry) -> tuple[Path, Path]:
    """The example made by the tool in a notebooks folder of its own: (text source, notebook)."""
    import execute_notebooks

    folder = tmp_path_factory.mktemp("made") / "notebooks"
    shutil.copytree(EXAMPLE / "text", folder / "text")
    source = folder / "text" / "99_example.py"
    execute_notebooks.make(source, example_entry)
    return source, folder / "99_example.ipynb"


@pytest.fixture
def executed(made):
    """The example with its outputs."""
    import nbformat

    return copy.deepcopy(nbformat.read(made[1], as_version=4))
