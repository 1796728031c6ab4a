"""Which container holds which TensorRT-LLM, and what follows from the version (notebook 02): data/containers.toml."""

import functools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, resources
from typing import Any

from packaging.version import InvalidVersion, Version

from engines import EngineError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@functools.cache
def table(name: str) -> dict[str, Any]:
    """A table of the folder data by its name. Do not change what comes back."""
    return tomllib.loads(resources.files("engines").joinpath("data", f"{name}.toml").read_text("utf-8"))


EXAMPLES_ROOT = table("commands")["examples"]  # of TensorRT-LLM inside the containers
NEWEST = next(iter(table("containers")["containers"].values()))["trtllm"]
LAST_WORKFLOW = table("containers")["workflow"]["last"]  # TensorRT-LLM with convert_checkpoint.py and trtllm-build


@dataclass(frozen=True)
class Container:
    """One image. driver: the least that NVIDIA's table names. size_gb: the compressed image, in 10^9 bytes."""

    tag: str
    trtllm: str
    tensorrt: str
    cuda: str
    driver: str
    python: str
    size_gb: float

    @property
    def image(self) -> str:
        return f"nvcr.io/nvidia/tritonserver:{self.tag}-trtllm-python-py3"

    @property
    def generation(self) -> str:
        """How its Triton models name their tensors: "old", "new" or "1.1"; "before 0.19" for those without a template
        in this course."""
        return at(table("containers")["generations"], self.trtllm)


@functools.cache
def containers() -> tuple[Container, ...]:
    """Every container of the table, newest first; so are their versions of TensorRT-LLM."""
    return tuple(Container(tag, **row) for tag, row in table("containers")["containers"].items())


@functools.cache
def version(text: str) -> Version:
    """A version of TensorRT-LLM. Raises EngineError when it is none."""
    try:
        return Version(str(text))
    except InvalidVersion:
        raise EngineError(f"{text!r} is no version of TensorRT-LLM: give one such as {NEWEST}.") from None


def find(text: str) -> Container:
    """The container of a tag ("25.06"), or the newest with a version of TensorRT-LLM. Raises EngineError."""
    known = containers()
    if found := next((c for c in known if text in (c.tag, c.trtllm)), None):
        return found
    span = f"they go from {known[-1].tag} ({known[-1].trtllm}) to {known[0].tag} ({known[0].trtllm})"
    raise EngineError(f"{text!r} is no container and no TensorRT-LLM of one: {span}.")


def here() -> str:
    """The TensorRT-LLM that is installed, as in NVIDIA's containers; without one, that of the newest container."""
    try:
        return metadata.version("tensorrt_llm")
    except metadata.PackageNotFoundError:
        return NEWEST


def newest_for(driver: str) -> Container | None:
    """The newest container that this NVIDIA driver ("570.124.06") can run; None when it is older than all need."""
    if not re.fullmatch(r"\d+(\.\d+)*", str(driver)):
        raise EngineError(f"{driver!r} is no NVIDIA driver version such as {containers()[0].driver}.")
    return next((c for c in containers() if Version(c.driver) <= Version(driver)), None)


def require_workflow(trtllm: str) -> None:
    """Raise EngineError where this version has no convert_checkpoint.py and trtllm-build, or one that is not known."""
    oldest = version(containers()[-1].trtllm)
    if version(trtllm) > version(LAST_WORKFLOW):
        raise EngineError(
            f"TensorRT-LLM {trtllm} builds no engines: convert_checkpoint.py and trtllm-build were removed after "
            f"{LAST_WORKFLOW}; take the LLM API (notebook 12), or a container up to {containers()[0].tag}."
        )
    if version(trtllm) < oldest:
        raise EngineError(f"TensorRT-LLM {trtllm} is older than these tables, which begin with {oldest}.")


def converter(family: str, trtllm: str) -> str:
    """convert_checkpoint.py of a family ("gpt2", "llama", "gemma") as a path below EXAMPLES_ROOT."""
    require_workflow(trtllm)
    return f"{at(table('commands')[family]['folder'], trtllm)}/convert_checkpoint.py"


def at(changes: Mapping[str, Any], trtllm: str) -> Any:
    """The value that counts for a version, from {version it counts from: value}; None before the first."""
    now = version(trtllm)
    known = [(version(since), value) for since, value in changes.items() if version(since) <= now]
    return max(known, key=lambda pair: pair[0])[1] if known else None
