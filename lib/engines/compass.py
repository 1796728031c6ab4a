"""Which container holds which TensorRT-LLM, and what follows from the version (notebook 02).

Source: the tables in data/engine/containers.toml, which name theirs.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from packaging.version import InvalidVersion, Version

from engines import EngineError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDERS = {"gpt2": "gpt", "llama": "llama", "gemma": "gemma"}  # of the converters, by the family of a model
_TAG = re.compile(r"(?:^|:)(\d\d)\.(\d\d)(?!\d)(?!\.\d)")


@functools.cache
def table(name: str) -> dict[str, Any]:
    """A table of data/engine by its name. Do not change what comes back."""
    return tomllib.loads(resources.files("engines").joinpath("data", f"{name}.toml").read_text("utf-8"))


@dataclass(frozen=True)
class Container:
    """One image nvcr.io/nvidia/tritonserver:YY.MM-trtllm-python-py3.

    driver: the least NVIDIA driver that NVIDIA's table names. size_gb: the compressed image, in 10^9 bytes.
    """

    tag: str
    trtllm: str
    tensorrt: str
    cuda: str
    driver: str
    python: str
    size_gb: float

    @property
    def release(self) -> tuple[int, int]:
        """(year, month), such as (26, 7)."""
        year, month = self.tag.split(".")
        return int(year), int(month)

    @property
    def image(self) -> str:
        return f"nvcr.io/nvidia/tritonserver:{self.tag}-trtllm-python-py3"

    @property
    def generation(self) -> str:
        return generation(self.trtllm)


@functools.cache
def containers() -> tuple[Container, ...]:
    """Every container of the table, newest first."""
    rows = (Container(tag, **row) for tag, row in table("containers")["containers"].items())
    return tuple(sorted(rows, key=lambda c: c.release, reverse=True))


@functools.cache
def version(text: str) -> Version:
    """A version of TensorRT-LLM. Raises EngineError when it is none."""
    try:
        return Version(str(text))
    except InvalidVersion:
        raise EngineError(
            f"{text!r} is no version of TensorRT-LLM: give one such as {containers()[0].trtllm}."
        ) from None


def find(text: str) -> Container:
    """The container behind a tag ("25.06"), a whole image name, or a version of TensorRT-LLM (the newest that has it).

    Raises EngineError, which names the nearest ones.
    """
    known, text = containers(), re.sub(r"^(\d\d)\.(\d)$", r"\1.0\2", str(text))
    if tag := _TAG.search(text):
        release = (int(tag[1]), int(tag[2]))
        if found := next((c for c in known if c.release == release), None):
            return found
        near = sorted(known, key=lambda c: abs(_months(c.release) - _months(release)))[:2]
        outside = ", which is outside the table" if not known[-1].release < release < known[0].release else ""
        raise EngineError(f"Nothing is known of the container {tag[1]}.{tag[2]}{outside}; nearest: {_names(near)}.")
    try:
        wanted = Version(text)
    except InvalidVersion:
        raise EngineError(
            f"{text!r} is neither a container tag nor a version of TensorRT-LLM; the newest container known is "
            f"{_names(known[:1])}."
        ) from None
    if found := next((c for c in known if version(c.trtllm) == wanted), None):
        return found
    below = [c for c in known if version(c.trtllm) < wanted][:1]
    above = [c for c in known if version(c.trtllm) > wanted][-1:]
    raise EngineError(f"No container with TensorRT-LLM {text} is known; nearest: {_names(below + above)}.")


def newest_for(driver: str) -> Container | None:
    """The newest container that this NVIDIA driver ("570.124.06") can run; None when it is older than all need."""
    if not re.fullmatch(r"\d+(\.\d+)*", str(driver)):
        raise EngineError(f"{driver!r} is no NVIDIA driver version such as {containers()[0].driver}.")
    have = _numbers(str(driver))
    return next((c for c in containers() if _numbers(c.driver) <= have), None)


def generation(trtllm: str) -> str:
    """How the Triton models of this version name their tensors: "old", "new" or "1.1" (repository/versions.py)."""
    return at({since: name for name, since in table("containers")["generations"].items()}, trtllm)


def first_release(name: str) -> tuple[int, int]:
    """The first container, as (year, month), whose Triton models are of this generation."""
    first = Version(table("containers")["generations"][name])
    return min(c.release for c in containers() if version(c.trtllm) >= first) if first > Version("0") else (0, 0)


def last_workflow() -> str:
    """The last TensorRT-LLM that has convert_checkpoint.py and trtllm-build."""
    return table("containers")["workflow"]["last"]


def require_workflow(trtllm: str) -> None:
    """Raise EngineError where this version has no convert_checkpoint.py and trtllm-build, or one that is not known."""
    oldest, last = version(containers()[-1].trtllm), last_workflow()
    if version(trtllm) > version(last):
        raise EngineError(
            f"TensorRT-LLM {trtllm} builds no engines: convert_checkpoint.py and trtllm-build were removed after "
            f"{last}; take the LLM API (notebook 12), or a container up to {containers()[0].tag}."
        )
    if version(trtllm) < oldest:
        raise EngineError(f"TensorRT-LLM {trtllm} is older than these tables, which begin with {oldest}.")


def converter(family: str, trtllm: str) -> str:
    """convert_checkpoint.py of a family ("gpt2", "llama", "gemma") as a path below the examples folder of TensorRT-LLM.

    In the containers that folder is examples_root().
    """
    if family not in FOLDERS:
        raise EngineError(f"There is no converter for {family!r}: the families are {', '.join(FOLDERS)}.")
    require_workflow(trtllm)
    where = {since: text for since, text in table("containers")["examples"].items() if since != "root"}
    return f"{at(where, trtllm)}{FOLDERS[family]}/convert_checkpoint.py"


def examples_root() -> str:
    """The examples folder inside the containers."""
    return table("containers")["examples"]["root"]


def at(changes: Mapping[str, Any], trtllm: str) -> Any:
    """The value that counts for a version, from {version it counts from: value}; None before the first."""
    now = version(trtllm)
    known = [(version(since), value) for since, value in changes.items() if version(since) <= now]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".")]


def _months(release: tuple[int, int]) -> int:
    return 12 * release[0] + release[1]


def _names(found: list[Container] | tuple[Container, ...]) -> str:
    return " and ".join(f"{c.tag} (TensorRT-LLM {c.trtllm})" for c in found)
