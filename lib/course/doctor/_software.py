"""Checks of what is installed: numpy, the packages of each extra, the embedded Triton, the kernel, cached weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from course.doctor._line import FAIL, OK, WARN, Line, version
from servinglab.errors import CourseError

SHOWN = ("tritonclient", "nvidia-pytriton", "torch", "transformers", "onnxruntime", "jupyterlab", "papermill", "pytest")


def numpy() -> Iterator[Line]:
    found = version("numpy")
    if found is None:
        yield Line(FAIL, "numpy", "not installed", "make setup")
    elif int(found.split(".")[0]) >= 2:
        cure = 'pip install "numpy<2", then restart the kernel: numpy 2 ends Triton\'s Python backend on text'
        yield Line(FAIL, "numpy", found, cure)
    else:
        yield Line(OK, "numpy", found)


def packages() -> Iterator[Line]:
    """One line for each extra: what of it is installed, and whether the versions are the ones this course asks for."""
    from packaging.requirements import Requirement

    groups: dict[str, list[Requirement]] = {"base": []}
    for text in metadata.requires("servinglab") or []:
        requirement = Requirement(text)
        extra = re.search(r"extra == ['\"](\w+)['\"]", text)
        if requirement.name == "servinglab" or not _applies(requirement, extra.group(1) if extra else ""):
            continue
        groups.setdefault(extra.group(1) if extra else "base", []).append(requirement)
    for group, requirements in groups.items():
        missing = [r.name for r in requirements if version(r.name) is None]
        wrong = [
            f"{r.name} {v}" for r in requirements
            if (v := version(r.name)) is not None and not r.specifier.contains(v, prereleases=True)
        ]  # fmt: skip
        status = FAIL if group in ("base", "server") and (missing or wrong) else WARN
        if missing or wrong:
            what = {"missing": missing, "other version": wrong}
            detail = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in what.items() if names)
            yield Line(status, f"packages: {group}", detail, _cure(group, missing, wrong))
        else:
            shown = [f"{r.name} {version(r.name)}" for r in requirements if r.name in SHOWN]
            yield Line(OK, f"packages: {group}", ", ".join([f"{len(requirements)} installed", *shown]))


def _cure(group: str, missing: list[str], wrong: list[str]) -> str:
    """For packages; where the offline bundle was installed, make setup would find its work done."""
    from servinglab.root import find_root

    try:
        bundled = (find_root() / ".bundle").exists()
    except CourseError:  # the lib alone, without the course
        bundled = False
    if not bundled:
        return "make setup"
    if group == "test":
        return "nothing to do: the bundle has no tests' packages"
    if not missing and all(name.startswith("torch ") for name in wrong):
        return "nothing to do: PyTorch is this machine's own"
    return "run install.sh of the bundle again"


def triton() -> Iterator[Line]:
    from servinglab.server import install as triton_install

    def look() -> str:
        root = triton_install.locate()
        stub = triton_install.stub(root)
        library = triton_install.library_folder()
        triton_install.require_ascii()
        return f"{root / 'bin' / 'tritonserver'}, stub for Python {stub.parent.name}, libpython in {library}"

    try:
        yield Line(OK, "triton", look())
    except CourseError as error:
        what, _, cure = str(error).partition(": ")
        yield Line(FAIL, "triton", what, cure or "make setup")


def kernel() -> Iterator[Line]:
    found = version("ipykernel")
    if found is None:
        yield Line(WARN, "kernel", "no ipykernel in this Python, so notebooks cannot run here", "make setup")
    else:
        yield Line(OK, "kernel", f"python3 (ipykernel {found}), this Python")


def models() -> Iterator[Line]:
    from servinglab import assets

    found = assets.cached()
    if found:
        names = dict.fromkeys(model.name for model in found)
        yield Line(OK, "models", f"{', '.join(names)} in {assets.cache_dir()}")
    else:
        yield Line(WARN, "models", f"none in {assets.cache_dir()} yet", "make course brings them, or: course fetch")


def _applies(requirement: Any, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})
