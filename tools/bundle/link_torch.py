"""Give an environment the PyTorch of another one, by links: torch, and what it needs that is not there already.

A link to each package, not a .pth file: the Python inside Triton gets its packages by PYTHONPATH, where .pth files are
not read. numpy is never taken: numpy 2 kills Triton's Python backend on every string tensor.

Only the standard library is used, because the interpreter with torch runs `python link_torch.py` to list its packages.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from importlib import metadata
from pathlib import Path

from servinglab import errors
from servinglab.errors import CourseError

_NEVER = {"numpy"}


def packages_of_torch() -> dict[str, list[str]]:
    """{distribution: its files and folders in site-packages} of this interpreter's torch and all that it requires."""
    found: dict[str, list[str]] = {}
    todo = ["torch"]
    while todo:
        name = _canonical(todo.pop())
        if name in found or name in _NEVER:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # required on other systems only
        tops = {path.parts[0] for path in distribution.files or ()}
        tops = {top for top in tops if top not in ("..", "bin", "__pycache__")}
        found[name] = sorted(str(distribution.locate_file(top)) for top in tops)
        for text in distribution.requires or ():
            requirement, _, marker = text.partition(";")
            if "extra" not in marker:
                todo.append(re.match(r"[\w.-]+", requirement).group())
    return found


def ask(python: str) -> dict[str, list[str]]:
    """`packages_of_torch` of the interpreter `python`. Raises CourseError when it has no torch that can be linked."""
    package = str(Path(errors.__file__).resolve().parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), package]))}
    answer = subprocess.run(
        [python, __file__], capture_output=True, text=True, cwd="/", env=env, stdin=subprocess.DEVNULL
    )
    found = json.loads(answer.stdout.splitlines()[-1]) if answer.returncode == 0 else {}
    if not found.get("torch"):
        said = answer.stderr.strip().splitlines()
        raise CourseError(f"{python} has no torch that was installed as a package{': ' + said[-1] if said else ''}.")
    return found


def link(packages: dict[str, list[str]], site: Path) -> list[str]:
    """Link each distribution that is not in `site` yet into it; names of those linked. Raises CourseError."""
    there = {_canonical(d.metadata["Name"]) for d in metadata.distributions(path=[str(site)])}
    linked = [name for name in packages if name not in there]
    for name in linked:
        for path in packages[name]:
            _link(Path(path), site / Path(path).name)
    return linked


def _link(source: Path, target: Path) -> None:
    if target.is_dir() and source.is_dir() and not (target / "__init__.py").exists():
        if target.is_symlink():  # a folder that distributions share, such as nvidia/: make it ours, link what is in it
            first = target.resolve()
            if first == source.resolve():
                return
            target.unlink()
            target.mkdir()
            for entry in first.iterdir():
                _link(entry, target / entry.name)
        for entry in source.iterdir():
            _link(entry, target / entry.name)
    elif not target.exists():
        if not source.exists():
            return  # listed, but removed by hand
        target.symlink_to(source)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    print(json.dumps(packages_of_torch()))
