"""The five models: their templates, and what those declare (taught in notebook 03).

The templates are files, data/templates. Source: the model templates of TensorRT-LLM's Triton backend
(triton-inference-server/tensorrtllm_backend, v0.19.0 and c2e65b8; NVIDIA/TensorRT-LLM, 0c8de69), with one tensor or
parameter a line. The Python backend of Triton 24.10 accepts ragged inputs: requests of different lengths then share one
execute() call.

Left out: the second `kv_cache_alloc_total_blocks` of the shipped ensemble, a duplicate. Added: parameters of the BLS
model, `preprocessing_model_name` and `postprocessing_model_name`; NVIDIA's model.py has the two names written into it.
"""

import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from servinglab.errors import CourseError
from servinglab.root import data

MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls", "ensemble")
PYTHON_MODELS = ("preprocessing", "postprocessing", "tensorrt_llm_bls")  # the other two have an empty version folder
# A second `tensorrt_llm`, of a smaller engine, for the speculative decoding of `tensorrt_llm_bls`; any name will do.
DRAFT = "tensorrt_llm_draft"

# "old": TensorRT-LLM 0.19 (container 25.05), in which two names differ; those before it lack more, see
# engines/data/containers.toml. "new": 0.20 to 1.0. "1.1": from there on; a client may ask for the numbers of tokens,
# images come with their sizes, and the datatype of prompt_embedding_table is a choice. Templates mark such lines.
GENERATIONS = ("old", "new", "1.1")
_KINDS = data("repository.toml")["kinds"]
OLD_NAMES = {"min_tokens": "min_length", "seed": "random_seed"}


class RepositoryError(CourseError):
    """A repository, a template or a spec that cannot be used. The message says what, where and what to do."""


class Tensor(NamedTuple):
    """One declared tensor, and the `line` of the template that declares it. `datatype` is "INT32"-like or a
    `${variable}` that the deployment chooses; `dims` are without the batch dimension."""

    line: str
    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool


def template(model: str, generation: str = "new", *, name: str = "", prefix: str = "") -> str:
    """The config.pbtxt of one of the five models with `${…}` placeholders: the whole contract.

    `name`: the model's, if it is another; `prefix` goes before the names of an ensemble's steps.
    """
    if model not in MODELS or generation not in GENERATIONS:
        raise RepositoryError(f"No template {model!r} ({generation!r}): there are {MODELS}, {', '.join(GENERATIONS)}.")
    text = (resources.files("servinglab") / "data" / "templates" / f"{model}.pbtxt").read_text("utf-8")
    ours, others = ("since", "before") if generation == "1.1" else ("before", "since")
    text = re.sub(rf".*  # {others} 1\.1\n", "", text).replace(f"  # {ours} 1.1\n", "\n")
    for new, old in OLD_NAMES.items() if generation == "old" else ():
        text = text.replace(f'"{new}"', f'"{old}"')
    text = text.replace('    model_name: "', f'    model_name: "{prefix}')
    return text.replace(f'name: "{model}"', f'name: "{name or prefix + model}"', 1)


@cache
def tensors(kind: str, model: str, generation: str = "new") -> tuple[Tensor, ...]:
    """Every "input" or "output" of one of the five MODELS; generation: one of GENERATIONS."""
    declared = rf'^({kind} {{ name: "(\w+)" data_type: (?:TYPE_)?(\S+) dims: \[(.*?)\].*)'
    return tuple(
        Tensor(line, name, datatype, tuple(map(int, dims.split(","))), "optional: true" in line)
        for line, name, datatype, dims in re.findall(declared, template(model, generation), re.M)
    )


def parameters(model: str) -> dict[str, str]:
    """{key in config.pbtxt: the template's variable that fills it} of one of the five models, in NVIDIA's order."""
    return dict(re.findall(r'key: "(\w+)" value { string_value: "\$\{(\w+)}"', template(model)))


def check_value(variable: str, value: object) -> None:
    """Raises RepositoryError for a value that does not fit the template's variable."""
    for kind in _KINDS:
        if variable in kind["variables"].split() and not re.fullmatch(kind["pattern"], text_of(value), re.ASCII):
            raise RepositoryError(f"{variable} must be {kind['wanted']}, not {value!r}.")
    if not isinstance(value, (str, int, float, Path)):
        raise RepositoryError(f"{variable} must be text or a number, not {value!r}.")


def text_of(value: object) -> str:
    """A value as config.pbtxt and templates spell it: true, not True."""
    return {"True": "true", "False": "false"}.get(str(value), str(value))
