"""Which lines of requirements/*.txt a bundle needs, for a Python and a machine that are not this one's."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from servinglab.errors import CourseError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYTHONS = ("3.10", "3.11", "3.12")
TORCH = ("none", "cpu", "cuda")
_ALWAYS = ("pip", "setuptools")  # install on the box, and build the course's own editable install there
_PROJECT = "servinglab (pyproject.toml)"  # how the lock names it in "via"


def extras(project: dict, names: Collection[str], python: str) -> set[str]:
    """Direct dependencies under `python` (canonical names): of the base install and the named extras of [project]."""
    known = project["optional-dependencies"]
    for name in names:
        if name not in known:
            raise CourseError(f"There is no extra {name!r} in pyproject.toml; it has: {', '.join(known)}.")
    found: set[str] = set()
    for requirement in map(Requirement, [*project["dependencies"], *(text for name in names for text in known[name])]):
        if requirement.name == project["name"]:
            found |= extras(project, requirement.extras, python)
        elif _applies(requirement, python):
            found.add(canonicalize_name(requirement.name))
    return found


def locks(root: Path, torch: str) -> str:
    """The locks of a bundle with that build of torch. torch: one of TORCH."""
    names = ["lock.txt", *([f"torch-{torch}.txt"] if torch != "none" else [])]
    return "".join((root / "requirements" / name).read_text(encoding="utf-8") for name in names)


def select(lock: str, wanted: Collection[str], python: str) -> dict[str, str]:
    """{name: requirement with hashes} of what the direct dependencies `wanted` need under `python`, as in the lock.

    python: "3.12" or "3.12.3"; a bundle for 3.12 serves every 3.12. A lock without torch gives all that is needed
    otherwise. The lock's own "via" notes say who needs what. Raises CourseError when it does not hold what is wanted.
    """
    pins, parents = _read(lock, python)
    if missing := sorted(set(wanted) - pins.keys() - {"torch"}):
        raise CourseError(f"requirements/lock.txt has no {', '.join(missing)} for Python {python}; run make lock.")
    taken = pins.keys() & {*wanted, *_ALWAYS}
    while more := {name for name in pins.keys() - taken if parents[name] & taken}:
        taken |= more
    return {name: pin for name, pin in pins.items() if name in taken}


def platforms(newest: str) -> list[str]:
    """pip's names of all platforms whose wheels run on `newest`, such as manylinux_2_35_x86_64."""
    found = re.fullmatch(r"manylinux_2_(\d+)_x86_64", newest)
    if not found or int(found[1]) < 35:
        raise CourseError(
            f"{newest!r} is no platform that the embedded Triton runs on; it needs manylinux_2_35_x86_64 or newer."
        )
    older = [f"manylinux_2_{minor}_x86_64" for minor in range(int(found[1]), 4, -1)]
    return [*older, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]


def require_python(text: str) -> str:
    """`text` when it is a version of Python that the course runs on. Raises CourseError."""
    if not re.fullmatch(rf"({'|'.join(map(re.escape, PYTHONS))})(\.\d+)?", text):
        raise CourseError(f"The course runs on Python {', '.join(PYTHONS)} (as the embedded Triton), not on {text!r}.")
    return text


def project(root: Path) -> dict:
    """The [project] table of the course's pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _read(lock: str, python: str) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Pins with hashes that apply under `python`, and for each the names of the packages that need it."""
    pins, parents = {}, {}
    for line in lock.replace("\\\n", "").splitlines():
        text, _, note = line.partition("#")
        if not text.strip():
            continue
        text, *hashes = text.split("--hash=")
        requirement = Requirement(text.strip())
        if _applies(requirement, python):
            name = canonicalize_name(requirement.name)
            pins[name] = " --hash=".join([f"{name}{requirement.specifier}", *map(str.strip, hashes)])
            needed_by = note.strip().removeprefix("via ").replace(_PROJECT, "").split(",")
            parents[name] = {canonicalize_name(one.strip()) for one in needed_by if one.strip()}
    return pins, parents


def _applies(requirement: Requirement, python: str) -> bool:
    environment = {
        "python_version": ".".join(python.split(".")[:2]),
        "python_full_version": python if python.count(".") == 2 else f"{python}.0",
        "implementation_name": "cpython", "platform_python_implementation": "CPython",
        "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64",
    }  # fmt: skip
    return requirement.marker is None or requirement.marker.evaluate(environment)
