"""From a Hugging Face checkpoint to a TensorRT-LLM one: what NVIDIA's convert_checkpoint.py does, without a GPU."""

import json
import math
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from engines import EngineError, one_of
from engines.config import Config, read_json
from engines.families import FAMILIES, Family, check_split, layout, settings, sizes
from engines.shards import fresh_folder, write_rank
from engines.source import Source
from engines.split import Part, fused_shape, piece
from engines.versions import table

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32)}
ALGORITHMS = {"int8": "W8A16", "int4": "W4A16"}
# Stored by old versions of transformers, computed by the engine.
_COMPUTED = re.compile(r"\.rotary_emb\.inv_freq|\.attn\.(masked_)?bias")


def convert(
    source: str | Path,
    out: str | Path,
    *,
    family: str | None = None,
    tp_size: int = 1,
    dtype: str = "float16",
    weight_only: str | None = None,
) -> Path:
    """Write config.json and rank0.safetensors … into `out` and return it; an earlier checkpoint there is replaced.

    source: a folder with config.json and safetensors files. family: llama, gpt2 or gemma; None reads it from
    config.json. tp_size: ranks of tensor parallelism, 1, 2, 4, 8 or what else divides the model. dtype: of the shards.
    weight_only: "int8" or "int4"; the shards stay `dtype`, trtllm-build quantises.

    Memory: tensors are read slice by slice, so at most one rank's shard is held. Raises EngineError with one sentence,
    and then leaves nothing behind.
    """
    one_of("dtype", dtype, DTYPES)
    if weight_only is not None:
        one_of("weight_only", weight_only, ALGORITHMS)
    if isinstance(tp_size, bool) or not isinstance(tp_size, int) or tp_size < 1:
        raise EngineError(f"tp_size must be a whole number of at least 1, not {tp_size!r}.")
    given = Source(Path(source))
    model = _family(given, family)
    config = _config(given, model, tp_size, dtype, weight_only)
    check_split(config, tp_size, "this model")
    if weight_only:
        _check_weight_only(config)
    if config["num_hidden_layers"] > len(given.names):
        count = f"{config['num_hidden_layers']} layers, but there are {len(given.names)} tensors"
        raise EngineError(f"{given.folder}/config.json says {count}.")
    tied = given.config.get("tie_word_embeddings", model.tied)
    parts_of = layout(model, config, tied=tied, names=given.names)
    _check_all_used(given, {part.name for parts in parts_of.values() for part in parts})
    if tied:
        _check_tied(given, *parts_of["lm_head.weight"])

    numbers = sum(math.prod(fused_shape(parts, tp_size)) for parts in parts_of.values())
    with fresh_folder(Path(out), numbers * DTYPES[dtype].itemsize * tp_size) as folder:
        (folder / "config.json").write_text(json.dumps(config, indent=4) + "\n", encoding="utf-8")
        for rank in range(tp_size):
            write_rank(folder, rank, {n: piece(given, p, rank, tp_size, DTYPES[dtype]) for n, p in parts_of.items()})
    return Path(out)


def native_dtype(source: Path) -> str:
    """What `--dtype auto` means to NVIDIA's converters: the type in config.json, float16 in place of float32."""
    config = Config(read_json(source / "config.json"), f"{source}/config.json")
    named = config.get("torch_dtype", config.get("dtype"))
    return named if named in ("float16", "bfloat16") else "float16"


def _family(source: Source, family: str | None) -> Family:
    kind, architectures = source.config.get("model_type"), source.config.get("architectures", [])
    if family is not None:
        one_of("family", family, FAMILIES)
        if kind in FAMILIES and kind != family:
            raise EngineError(f"{source.folder} is a {kind!r} model: leave family {family!r} out.")
        return FAMILIES[family]
    if not isinstance(architectures, list):
        raise EngineError(f"{source.folder}/config.json: architectures must be a list, not {architectures!r}.")
    for name, model in FAMILIES.items():
        if kind == name and architectures in ([], [model.architecture]):
            return model
    what = f"{source.folder} is a {kind!r} model ({', '.join(map(str, architectures)) or 'no architecture named'})"
    if kind == "mistral":
        todo = "family='llama' converts it, for sequences that are no longer than its sliding window"
    elif row := table("support")["models"].get(str(kind)):
        todo = f"use convert_checkpoint.py of TensorRT-LLM {row['since']} or newer"
    else:
        todo = "look for it among the examples of TensorRT-LLM"
    raise EngineError(f"{what}, and only {', '.join(FAMILIES)} are converted here; {todo}.")


def _config(source: Source, family: Family, tp_size: int, dtype: str, weight_only: str | None) -> dict[str, Any]:
    if source.config.get("quantization_config"):
        raise EngineError(f"{source.folder} is quantized already; convert the original model.")
    return {
        "architecture": family.architecture,
        "dtype": dtype,
        "logits_dtype": "float32",
        **sizes(source.config, family),
        **settings(source.config, family),
        "use_parallel_embedding": family.parallel_embedding and tp_size > 1,
        "embedding_sharding_dim": 0,
        "qk_layernorm": False,
        "mapping": {"world_size": tp_size, "gpus_per_node": 8, "tp_size": tp_size, "pp_size": 1},
        "quantization": {
            "quant_algo": ALGORITHMS.get(weight_only),
            "kv_cache_quant_algo": None,
            "group_size": 128,
            "smoothquant_val": 0.5,
            "has_zero_point": False,
            "pre_quant_scale": False,
            "exclude_modules": None,
        },
    }


def _check_weight_only(config: dict[str, Any]) -> None:
    """Raise EngineError where `trtllm-build` cannot quantise these shards.

    Since 0.13 its layers round each width up to a multiple of 64 x tp_size; NVIDIA's converter pads the weights, but
    float shards would no longer fit. The matrix product knows float16 and bfloat16 inputs only.
    """
    tp_size, heads, size = config["mapping"]["tp_size"], config["num_attention_heads"], config["head_size"]
    if config["dtype"] == "float32":
        raise EngineError("Weight-only quantisation works with dtype float16 or bfloat16, not float32.")
    widths = {
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "the width of all heads": heads * size,
        "the width of q, k and v": (heads + 2 * max(config["num_key_value_heads"], tp_size)) * size,
    }
    for what, width in widths.items():
        if width % (64 * tp_size):
            raise EngineError(
                f"Weight-only quantisation needs multiples of 64 x tp_size = {64 * tp_size}, and {what} is {width}; "
                "take a smaller tp_size, or leave weight_only out."
            )


def _check_tied(source: Source, embedding: Part) -> None:
    """A head that is stored all the same must be the embedding: transformers 5 would compute with it."""
    rows, columns = embedding.shape
    for start in range(0, rows if "lm_head.weight" in source.names else 0, 4096):
        cut = (slice(start, min(start + 4096, rows)), slice(0, columns))
        both = (source.read(name, embedding.shape, cut) for name in (embedding.name, "lm_head.weight"))
        if not np.array_equal(*both):
            what = "ties the output matrix to the embedding, but lm_head.weight is another matrix"
            raise EngineError(f"{source.folder}/config.json {what}: say tie_word_embeddings false if that one counts.")


def _check_all_used(source: Source, used: set[str]) -> None:
    """A tensor that has no place in the layout means another model, whatever config.json says."""
    extra = sorted(n for n in source.names - used - {"lm_head.weight"} if not _COMPUTED.search(n))
    if extra:
        raise EngineError(
            f"{source.folder} has {len(extra)} tensors that this layout has no place for, for example {extra[0]!r}: "
            "it is another kind of model than its config.json or `family` says."
        )
