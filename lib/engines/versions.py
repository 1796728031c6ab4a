"""Which container holds which TensorRT-LLM, and what follows from the version (notebook 02).

Source: the tables in data/containers.toml, which name theirs.
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

from engines.errors import EngineError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDERS = {"gpt2": "gpt", "llama": "llama", "gemma": "gemma"}  # of the converters, by the family of a model
# GemmaConfig.from_hugging_face(…, dtype, mapping, quant_config): up to the development trees of 0.13 the last two stood
# the other way round, and the scripts passed quant_config by position.
_GEMMA_SIGNATURE = "0.13.0"


@functools.cache
def table(name: str) -> dict[str, Any]:
    """A table of the folder data by its name. Do not change what comes back."""
    return tomllib.loads(resources.files("engines").joinpath("data", f"{name}.toml").read_text("utf-8"))


EXAMPLES_ROOT = table("containers")["examples"]["root"]  # of TensorRT-LLM inside the containers
LAST_WORKFLOW = table("containers")["workflow"]["last"]  # TensorRT-LLM with convert_checkpoint.py and trtllm-build


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
    def image(self) -> str:
        return f"nvcr.io/nvidia/tritonserver:{self.tag}-trtllm-python-py3"

    @property
    def generation(self) -> str:
        """How its Triton models name their tensors: "old", "new" or "1.1"."""
        generations = table("containers")["generations"]
        return at({since: name for name, since in generations.items()}, self.trtllm)


@functools.cache
def containers() -> tuple[Container, ...]:
    """Every container of the table, newest first; so are their versions of TensorRT-LLM."""
    rows = (Container(tag, **row) for tag, row in table("containers")["containers"].items())
    return tuple(sorted(rows, key=lambda c: _numbers(c.tag), reverse=True))


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
    """The container of a tag ("25.06"), or the newest with a version of TensorRT-LLM. Raises EngineError."""
    known = containers()
    if found := next((c for c in known if text in (c.tag, c.trtllm)), None):
        return found
    if re.fullmatch(r"\d\d\.\d\d", text):
        raise EngineError(f"No container {text} is known: the table has {known[-1].tag} to {known[0].tag}.")
    wanted = version(text)
    below = [c for c in known if version(c.trtllm) < wanted][:1]
    above = [c for c in known if version(c.trtllm) > wanted][-1:]
    near = " and ".join(f"{c.tag} (TensorRT-LLM {c.trtllm})" for c in below + above)
    raise EngineError(f"No container with TensorRT-LLM {text} is known; nearest: {near}.")


def newest_for(driver: str) -> Container | None:
    """The newest container that this NVIDIA driver ("570.124.06") can run; None when it is older than all need."""
    if not re.fullmatch(r"\d+(\.\d+)*", str(driver)):
        raise EngineError(f"{driver!r} is no NVIDIA driver version such as {containers()[0].driver}.")
    return next((c for c in containers() if _numbers(c.driver) <= _numbers(driver)), None)


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
    where = {since: text for since, text in table("containers")["examples"].items() if since != "root"}
    return f"{at(where, trtllm)}{FOLDERS[family]}/convert_checkpoint.py"


def examples_problem(examples: str, wheel: str, family: str | None = None) -> str | None:
    """One sentence when the example scripts of one version meet the installed wheel of another, else None.

    convert_checkpoint.py is an example script, not a part of the wheel: it calls functions inside the wheel, whose
    parameters change from version to version. family: "gemma" gets the explanation of the error that it ends with.
    """
    ours, theirs = version(examples), version(wheel)
    if ours.public == theirs.public:
        return None
    cure = f'take the examples of the tag "v{wheel}" of NVIDIA/TensorRT-LLM, or those in the container'
    if family == "gemma" and ours < version(_GEMMA_SIGNATURE) <= theirs:
        return (
            f"This Gemma converter is of TensorRT-LLM {examples} and the wheel is {wheel}, where the parameters of "
            f"GemmaConfig.from_hugging_face stand as mapping, quant_config: an older script passes quant_config where "
            f"mapping is expected and ends with a TypeError (multiple values for 'mapping'); {cure}."
        )
    return (
        f"The examples are of TensorRT-LLM {examples} and the wheel is {wheel}: the scripts call functions that other "
        f"versions have with other parameters; {cure}."
    )


def at(changes: Mapping[str, Any], trtllm: str) -> Any:
    """The value that counts for a version, from {version it counts from: value}; None before the first."""
    now = version(trtllm)
    known = [(version(since), value) for since, value in changes.items() if version(since) <= now]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".")]
