"""How much GPU memory an engine takes, and whether it fits a card, before anything is built (notebook 02)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines import EngineError, did_you_mean, footprint, one_of
from engines.config import Config, read_json
from engines.families import check_split
from engines.footprint import DTYPES, KV_DTYPES, WEIGHT_ONLY, Shape, from_config
from engines.versions import table

FREE_FRACTION = 0.9  # the runtime's own kv_cache_free_gpu_mem_fraction
_ALGORITHMS = {None: None, "W8A16": "int8", "W4A16": "int4"}
_DEFAULTS = {"tp_size": 1, "max_batch_size": 8, "max_seq_len": None, "max_num_tokens": 8192,
             "max_beam_width": 1, "tokens_per_block": 32, "dtype": "float16", "kv_dtype": None, "weight_only": None,
             "gather_context_logits": False}  # fmt: skip
_COUNTS = tuple(_DEFAULTS)[:6]


def gigabytes(count: float) -> str:
    """Bytes in GB (10^9 bytes), in MB (10^6 bytes) below one."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The memory of one engine on its fullest GPU, in bytes, and how it goes with a card.

    kv_bytes is what max_batch_size sequences of max_seq_len tokens need. The runtime does not allocate that: it takes
    kv_pool_bytes, a share (kv_cache_free_gpu_mem_fraction) of what is free once all the rest is there (None without a
    card), and lets requests wait. So a cache of kv_bytes leaves left_free_bytes unused, which are part of total_bytes;
    fits and the largest_ ones say what goes into that pool at once. parameters counts a tied output matrix once,
    weights_bytes twice and with rotations_bytes, which no checkpoint holds.
    """

    model: str
    parameters: int
    tied: bool
    dtype: str
    weight_only: str | None
    kv_dtype: str
    tp_size: int
    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int
    max_beam_width: int
    tokens_per_block: int
    weights_bytes: int
    rotations_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_token_per_gpu: int
    kv_bytes: int
    left_free_bytes: int
    activation_bytes: int
    logits_bytes: int
    margin_bytes: int
    total_bytes: int
    kv_cache_free_gpu_mem_fraction: float
    note: str | None = None
    gpu: str | None = None
    gpu_bytes: int | None = None
    fits: bool | None = None
    largest_batch_size: int | None = None
    largest_seq_len: int | None = None
    kv_pool_tokens: int | None = None
    kv_pool_bytes: int | None = None

    def parts(self) -> list[tuple[str, int, str]]:
        """(name, bytes, in words) of each part, and their total."""
        stored = f"{self.dtype}, linear layers {self.weight_only}" if self.weight_only else self.dtype
        stored += "; the embedding is there twice, once as output matrix" if self.tied else ""
        stored += f"; {gigabytes(self.rotations_bytes)} are a table of rotations" if self.rotations_bytes else ""
        load = f"{self.max_batch_size} × {self.max_seq_len} tokens, {self.kv_bytes_per_token_per_gpu:,} bytes a token"
        share = f"{self.kv_cache_free_gpu_mem_fraction:.0%}"
        return [
            ("weights", self.weights_bytes, f"{self.parameters:,} parameters, {stored}"),
            ("KV cache", self.kv_bytes, load),
            ("left free", self.left_free_bytes, f"the server takes {share} of what is free for its KV cache, not all"),
            ("activations", self.activation_bytes, f"at most, for {self.max_num_tokens} tokens in one step"),
            ("logits", self.logits_bytes, "at most, runtime and decoder"),
            ("margin", self.margin_bytes, "CUDA context, libraries, allocator: a round number"),
            ("total", self.total_bytes, ""),
        ]

    def sentence(self) -> str:
        """The answer in words: what it needs, whether it fits, and what the server would take for its KV cache."""
        where = f" on each of {self.tp_size} GPUs" if self.tp_size > 1 else ""
        what = f"{self.model} with {_many(self.max_batch_size)} of {self.max_seq_len} tokens"
        said = f"{what} needs {gigabytes(self.total_bytes)}{where}"
        if self.gpu is not None:
            if self.largest_batch_size:
                most = f"the most at once is {_many(self.largest_batch_size)} of that length"
            elif self.largest_seq_len:
                most = f"{_many(self.max_batch_size)} fit with {self.largest_seq_len} tokens each"
            else:
                most = "quantise the weights, or split the model over more GPUs"
            said += f" and fits {self.gpu}; {most}" if self.fits else f", more than {self.gpu} has; {most}"
            room = f"{self.kv_pool_tokens:,} tokens, {gigabytes(self.kv_pool_bytes)}"
            said += f". Of what is then free the server takes {self.kv_cache_free_gpu_mem_fraction:.0%} for {room}"
        return f"{said}. {self.note or ''}".strip()


def estimate(
    model: str | Path | Mapping[str, Any],
    *,
    gpu: str | int | None = None,
    kv_cache_free_gpu_mem_fraction: float = FREE_FRACTION,
    **options: Any,
) -> Estimate:
    """What an engine of `model` needs, part by part (module footprint), and whether a card has it.

    model: a recipe's name ("gpt2-medium"), a folder with config.json (Hugging Face, TensorRT-LLM checkpoint or engine),
    or such a config. gpu: a name of data/cards.toml ("24gb", "h100") or bytes. options: those of _DEFAULTS, each from
    the engine's own config.json where it says so; kv_dtype is that of dtype, and max_seq_len 2,048 or what the model
    can, unless given. Raises EngineError.
    See https://nvidia.github.io/TensorRT-LLM/reference/memory.html.
    """
    for name in options:
        if name not in _DEFAULTS:
            raise EngineError(f"estimate has no option {name!r}.{did_you_mean(name, _DEFAULTS)}")
    shape, said = _shape(model)
    of = {**_DEFAULTS, **said, **{k: v for k, v in options.items() if v is not None}}
    if of["max_seq_len"] is None:
        of["max_seq_len"] = min(2048, shape["max_position_embeddings"])
    _check(of, kv_cache_free_gpu_mem_fraction)
    tp, block = of["tp_size"], of["tokens_per_block"]
    check_split(shape, tp, shape.name)
    per_gpu = footprint.kv_per_token(shape, of["kv_dtype"], tp)

    def parts(batch: int, seq_len: int) -> dict[str, int]:
        rows = batch * of["max_beam_width"]
        kv = rows * math.ceil(seq_len / block) * block * per_gpu  # every sequence begins a block of its own
        found = {
            "weights_bytes": footprint.weights(shape, of["dtype"], of["weight_only"], tp),
            "kv_bytes": kv,
            # The pool is that fraction of the bytes that are free before it.
            "left_free_bytes": math.ceil(kv / kv_cache_free_gpu_mem_fraction) - kv,
            "activation_bytes": footprint.activations(shape, of["dtype"], tp, of["max_num_tokens"], rows),
            "logits_bytes": footprint.logits(shape, tp, rows, of["max_num_tokens"] * bool(of["gather_context_logits"])),
            "margin_bytes": footprint.MARGIN,
        }
        return found | {"total_bytes": sum(found.values())}

    batch, seq_len = of["max_batch_size"], of["max_seq_len"]
    found: dict[str, Any] = parts(batch, seq_len)
    if gpu is not None:
        label, size = _card(gpu)

        def fits(batch: int, seq_len: int) -> bool:
            return parts(batch, seq_len)["total_bytes"] <= size

        free = size - found["total_bytes"] + found["kv_bytes"] + found["left_free_bytes"]
        pool = footprint.pool(free, per_gpu, block, kv_cache_free_gpu_mem_fraction)
        found |= {
            "gpu": label,
            "gpu_bytes": size,
            "fits": fits(batch, seq_len),
            "largest_batch_size": footprint.largest(lambda n: fits(n, seq_len)),
            "largest_seq_len": footprint.largest(lambda n: fits(batch, n)),
            "kv_pool_tokens": pool[0],
            "kv_pool_bytes": pool[1],
        }
    return Estimate(
        model=shape.name,
        parameters=shape.parameters(),
        tied=shape.tied,
        rotations_bytes=footprint.rotations(shape),
        kv_bytes_per_token=footprint.kv_per_token(shape, of["kv_dtype"]),
        kv_bytes_per_token_per_gpu=per_gpu,
        kv_cache_free_gpu_mem_fraction=kv_cache_free_gpu_mem_fraction,
        note=shape.beyond(seq_len),
        **{key: of[key] for key in (*_COUNTS, "dtype", "kv_dtype", "weight_only")},
        **found,
    )


def recipe_model(name: str) -> dict[str, Any] | None:
    """The row of a name in data/recipes.toml, with what it has from another; None where the name is not one."""
    row = table("recipes").get(name)
    return row and {"tp_size": 1, **table("recipes").get(row.get("same_as"), {}), **row}


def _shape(model: str | Path | Mapping[str, Any]) -> tuple[Shape, dict[str, Any]]:
    """The model's Shape, and what its own config.json says about the engine."""
    if isinstance(model, Mapping):
        name, values = "the model", model
    elif known := recipe_model(str(model)):
        return from_config(known["config"], str(model)), {"tp_size": known["tp_size"]}
    else:
        folder, names = Path(model), table("recipes")
        if not folder.is_dir():
            raise EngineError(
                f"{model} is neither a folder nor one of the models {', '.join(names)}.{did_you_mean(model, names)}"
            )
        name, values = folder.resolve().name, read_json(folder / "config.json")
    shape, config = from_config(values, name), Config(values, f"config.json of {name}")
    pretrained = Config(config.part("pretrained_config") or values, config.where)
    if theirs := config.part("quantization_config"):
        what = f"{name} is quantised already ({theirs.get('quant_method', 'by an unnamed method')})"
        raise EngineError(f"{what}; the estimate knows float weights and their weight_only: take the original model.")
    if pretrained.get("architecture") is None:  # Hugging Face says nothing about engines
        return shape, {}
    quantization, mapping = pretrained.part("quantization"), pretrained.part("mapping")
    built = Config(config.part("build_config"), config.where)
    if mapping.get("pp_size", 1) != 1:
        raise EngineError(f"{name} is split into pipeline stages; the estimate knows tensor parallelism only.")
    algorithm, kv = quantization.get("quant_algo"), quantization.get("kv_cache_quant_algo")
    if not isinstance(algorithm, (str, type(None))) or algorithm not in _ALGORITHMS:
        raise EngineError(f"{name} is quantised with {algorithm}; the estimate knows W8A16, W4A16 and none.")
    said = {key: built.get(key) for key in _DEFAULTS} | {
        "dtype": pretrained.get("dtype"),
        "kv_dtype": str(kv).lower() if kv else None,
        "weight_only": _ALGORITHMS[algorithm],
        "tp_size": mapping.get("tp_size"),
        "tokens_per_block": built.part("plugin_config").get("tokens_per_block"),
    }
    return shape, {key: value for key, value in said.items() if value is not None}


def _card(gpu: str | int) -> tuple[str, int]:
    """(label, bytes as CUDA shows them, which is less than the name says). Raises EngineError for an unknown name."""
    if isinstance(gpu, int):
        return f"a GPU of {gigabytes(gpu)}", gpu
    known = {alias: entry for name, entry in table("cards").items() for alias in (name, *entry.get("aliases", ()))}
    entry = known[one_of("a card", gpu.lower(), known)]
    return entry["label"], round(entry["gib"] * 2**30)


def _check(of: dict[str, Any], fraction: float) -> None:
    """Raise EngineError for a value that cannot be; the cache has the precision of the weights unless it is given."""
    one_of("dtype", of["dtype"], DTYPES)
    of["kv_dtype"] = one_of("kv_dtype", of["kv_dtype"] or of["dtype"], KV_DTYPES)
    if of["weight_only"] is not None:
        one_of("weight_only", of["weight_only"], WEIGHT_ONLY)
    for key in _COUNTS:
        value = of[key]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise EngineError(f"{key} must be a whole number above 0 and below 2^31, not {value!r}.")
    if of["tokens_per_block"] > 8192:
        raise EngineError(f"tokens_per_block must be at most 8192, not {of['tokens_per_block']}.")
    if not 0 < fraction < 1:
        raise EngineError(f"kv_cache_free_gpu_mem_fraction must lie between 0 and 1, not {fraction!r}.")


def _many(count: int | None) -> str:
    return "1 sequence" if count == 1 else f"{count} sequences"
