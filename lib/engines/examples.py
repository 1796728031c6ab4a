"""Do the converter, the installed TensorRT-LLM and the model go together? (notebook 02)

convert_checkpoint.py is an example script, not a part of the wheel: it calls functions inside the wheel, whose
parameters change from version to version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines import EngineError, compass

_CURE = 'take the examples of the tag "v{wheel}" of NVIDIA/TensorRT-LLM, or those in the container'


def version_of(examples: str | Path) -> str | None:
    """The version of TensorRT-LLM that an examples folder (or a converter in it) belongs to; None when it cannot tell.

    A clone of NVIDIA/TensorRT-LLM holds tensorrt_llm/version.py beside examples/. It is read, not run.
    """
    path = Path(examples).absolute()
    for folder in (path, *path.parents):
        try:
            text = (folder / "tensorrt_llm" / "version.py").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if found := re.search(r"""^__version__\s*=\s*["']([^"']+)["']""", text, re.MULTILINE):
            return found[1]
    return None


def check(examples: str, wheel: str, family: str | None = None) -> str | None:
    """One sentence when the scripts of one version (`examples`) meet the wheel of another (`wheel`), else None.

    family: "gemma" gets the explanation of the error that it ends with.
    """
    ours, theirs = compass.version(examples), compass.version(wheel)
    if ours.public == theirs.public:
        return None
    since = compass.version(compass.table("support")["gemma_signature"]["since"])
    cure = _CURE.format(wheel=wheel)
    if family == "gemma" and ours < since <= theirs:
        return (
            f"This Gemma converter is of TensorRT-LLM {examples} and the wheel is {wheel}, where the parameters of "
            f"GemmaConfig.from_hugging_face stand as mapping, quant_config: an older script passes quant_config where "
            f"mapping is expected and ends with a TypeError (multiple values for 'mapping'); {cure}."
        )
    return (
        f"The examples are of TensorRT-LLM {examples} and the wheel is {wheel}: the scripts call functions that other "
        f"versions have with other parameters; {cure}."
    )


def supports(config: Mapping[str, Any], trtllm: str) -> str | None:
    """One sentence when this version is too old for a model, or the model is not in the table, else None.

    config: the config.json of a Hugging Face checkpoint.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise EngineError("config.json has no model_type: this is no config.json of a Hugging Face checkpoint.")
    table = compass.table("support")
    row = table["models"].get(kind)
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if kind == "llama" and "llama3" in (scaling.get("rope_type"), scaling.get("type")):
        row = table["llama3"]["small"] if config.get("tie_word_embeddings") else table["llama3"]
    if row is None:
        return (
            f"Which TensorRT-LLM first builds an engine from a model of type {kind!r} is not known here: look for it "
            f"among the examples of {trtllm}."
        )
    if compass.version(trtllm) < compass.version(row["since"]):
        return f"{row['name']} needs TensorRT-LLM {row['since']} or newer, and this is {trtllm}."
    return None
