"""From a Hugging Face checkpoint to a TensorRT-LLM one: what NVIDIA's convert_checkpoint.py does, without a GPU.

The names did not change from TensorRT-LLM 0.9 to 1.3.0rc3: tensorrt_llm/models/{llama,gpt,gemma} declare the tensors,
models/modeling_utils.py the keys of config.json. Only keys that all versions know are written (read: 0.12 to 1.3.0rc3).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from engines import EngineError, _gemma, _gpt2, _llama, compass
from engines import weight_only as weights
from engines.shards import fresh_folder, write_config, write_rank
from engines.source import Source
from engines.split import piece
from servinglab import assets
from servinglab.errors import did_you_mean

FAMILIES = {"llama": _llama, "gpt2": _gpt2, "gemma": _gemma}
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
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

    source: a folder with config.json and safetensors files, or a model name (assets.resolve). family: llama, gpt2 or
    gemma; None reads it from config.json. tp_size: ranks of tensor parallelism, 1, 2, 4, 8 or what else divides the
    model. dtype: of the shards. weight_only: "int8" or "int4"; the shards stay `dtype`, trtllm-build quantises.

    Memory: tensors are read slice by slice, so at most one rank's shard is held. Raises EngineError (or AssetError for
    the source) with one sentence, and then leaves nothing behind.
    """
    _choice("dtype", dtype, DTYPES)
    if weight_only is not None:
        _choice("weight_only", weight_only, weights.ALGORITHMS)
    if isinstance(tp_size, bool) or not isinstance(tp_size, int) or tp_size < 1:
        raise EngineError(f"tp_size must be a whole number of at least 1, not {tp_size!r}.")
    found = Source(assets.resolve(source))
    model = FAMILIES[_family(found, family)]
    config = _config(found, model, tp_size, dtype, weight_only)
    _check_split(config, tp_size)
    if weight_only:
        weights.check(config)
    if config["num_hidden_layers"] > len(found.names):
        layers = config["num_hidden_layers"]
        raise EngineError(f"{found.folder}/config.json says {layers} layers, but there are {len(found.names)} tensors.")
    layout = model.tensors(found, config)
    _check_all_used(found, layout)

    numbers = sum(torch.Size(part.piece_shape(tp_size)).numel() for parts in layout.values() for part in parts)
    with fresh_folder(Path(out), numbers * DTYPES[dtype].itemsize * tp_size) as folder:
        write_config(folder, config)
        for rank in range(tp_size):
            write_rank(folder, rank, {n: piece(found, p, rank, tp_size, DTYPES[dtype]) for n, p in layout.items()})
    return Path(out)


def oldest(config: dict[str, Any]) -> str:
    """The first TensorRT-LLM that builds this checkpoint, e.g. "0.12" (release notes)."""
    return "0.12" if (config.get("rotary_scaling") or {}).get("type") == "llama3" else "0.9"


def _choice(what: str, value: object, known: Any) -> None:
    if value not in known:
        raise EngineError(f"{what} must be one of {', '.join(known)}, not {value!r}.{did_you_mean(str(value), known)}")


def _family(source: Source, family: str | None) -> str:
    kind, architectures = source.get("model_type"), source.get("architectures", [])
    if family is not None:
        _choice("family", family, FAMILIES)
        if kind in FAMILIES and kind != family:
            raise EngineError(f"{source.folder} is a {kind!r} model: leave family {family!r} out.")
        return family
    if not isinstance(architectures, list):
        raise EngineError(f"{source.folder}/config.json: architectures must be a list, not {architectures!r}.")
    for name, model in FAMILIES.items():
        if kind == name and architectures in ([], [model.ARCHITECTURE]):
            return name
    what = f"{source.folder} is a {kind!r} model ({', '.join(map(str, architectures)) or 'no architecture named'})"
    if kind == "mistral":
        todo = "family='llama' converts it, right for prompts that are shorter than its sliding window"
    elif row := compass.table("support")["models"].get(kind):
        todo = f"use convert_checkpoint.py of TensorRT-LLM {row['since']} or newer"
    else:
        todo = "look for it among the examples of TensorRT-LLM"
    raise EngineError(f"{what}, and only {', '.join(FAMILIES)} are converted here; {todo}.")


def _config(source: Source, model: Any, tp_size: int, dtype: str, weight_only: str | None) -> dict[str, Any]:
    if source.get("quantization_config"):
        raise EngineError(f"{source.folder} is quantized already; convert the original model.")
    return {
        "architecture": model.ARCHITECTURE,
        "dtype": dtype,
        "logits_dtype": "float32",
        **model.config(source),
        "use_parallel_embedding": model.PARALLEL_EMBEDDING and tp_size > 1,
        "embedding_sharding_dim": 0,
        "qk_layernorm": False,
        "mapping": {"world_size": tp_size, "gpus_per_node": 8, "tp_size": tp_size, "pp_size": 1},
        "quantization": {
            "quant_algo": weights.ALGORITHMS.get(weight_only),
            "kv_cache_quant_algo": None,
            "group_size": 128,
            "smoothquant_val": 0.5,
            "has_zero_point": False,
            "pre_quant_scale": False,
            "exclude_modules": None,
        },
    }


def _check_split(config: dict[str, Any], tp_size: int) -> None:
    """Heads, KV heads and MLP must be cut evenly; with fewer KV heads than ranks, each is copied equally often."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    if heads % kv_heads or config["head_size"] * heads < 1:
        raise EngineError(f"{heads} attention heads cannot share {kv_heads} KV heads evenly: config.json is wrong.")
    even = {"attention heads": heads, "MLP width": config["intermediate_size"]}
    if kv_heads > tp_size or tp_size % kv_heads:
        even["KV heads"] = kv_heads
    for what, number in even.items():
        if number % tp_size:
            raise EngineError(f"tp_size {tp_size} does not divide the {what} of this model, {number}; take a divisor.")


def _check_all_used(source: Source, layout: dict[str, Any]) -> None:
    """A tensor that has no place in the layout means another model, whatever config.json says."""
    used = {part.name for parts in layout.values() for part in parts}
    extra = sorted(n for n in source.names - used - {"lm_head.weight"} if not _COMPUTED.search(n))
    if extra:
        raise EngineError(
            f"{source.folder} has {len(extra)} tensors that this layout has no place for, for example {extra[0]!r}: "
            "it is another kind of model than its config.json or `family` says."
        )
