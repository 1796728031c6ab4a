"""From a TensorRT-LLM checkpoint to an engine that this backend runs: trtllm-build and its flags, without a GPU.

    python -m reference_backend.build --checkpoint_dir tllm_checkpoint --output_dir engine --max_batch_size 8

Flags that change speed or memory on a GPU are taken and said to have no effect; those that would change what the engine
can do, and cannot be honoured, are refused by name. `--weights q4_1` is ours.

An engine folder holds config.json in NVIDIA's schema and one rank{r}.engine for each rank: its tensors, with the names
they have in the checkpoint, as the executor wants them. An unquantised one lies as it lay there, [out, in]. A quantised
`NAME.weight` becomes codes uint8 [out, blocks, bytes of 32 codes], beside them either NAME.per_channel_scale [out] or
NAME.weights_scaling_factor [out, blocks], and where zero is not in the middle NAME.zero (`executor/quantize.py`). A
head that is the embedding is left out.
"""

import argparse
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from reference_backend import BackendError, table
from reference_backend.executor import quantize
from reference_backend.executor.rank_files import ENGINE_VERSION, Tensor, tensors

ARCHITECTURES = ("LlamaForCausalLM", "GemmaForCausalLM", "GPT2LMHeadModel")
WEIGHTS = ("checkpoint", "q4_1")
MAX_SEQ_LEN = 2048
MAX_RANKS = 1024
_BITS = {"W8A16": 8, "W4A16": 4}
_QUANTISED = re.compile(r"layers\.\d+\.(attention\.(qkv|dense)|mlp\.(fc|gate|proj))\.weight")
_EMBEDDING, _HEAD = "transformer.vocab_embedding", "lm_head"
_NEVER_QUANTISED = {_HEAD, "router", "vocab_embedding", "position_embedding", "block_embedding"}
_POSITIONS = "transformer.position_embedding.weight"
_ENGINE_FILES = re.compile(r"config\.json|rank\d+\.engine")


class BuildError(BackendError):
    """The checkpoint cannot become an engine of this backend."""


def build(
    checkpoint_dir: Path | str,
    output_dir: Path | str,
    *,
    max_batch_size: int = 8,
    max_seq_len: int | None = None,
    max_input_len: int | None = None,
    max_num_tokens: int = 8192,
    max_beam_width: int = 1,
    gather_context_logits: bool = False,
    gather_generation_logits: bool = False,
    weights: str = "checkpoint",
    plugins: dict[str, Any] | None = None,
) -> Path:
    """Write config.json and a rank{r}.engine for each rank of the checkpoint into `output_dir`, and return it.

    The limits are what requests may ask for; max_seq_len is in tokens, prompt and answer together: by default 2048, or
    less where the model has fewer positions. weights: "checkpoint" follows its quant_algo (none, W8A16, W4A16); "q4_1"
    stores four bits in blocks of 32 and the vocabulary in eight, from any unquantised checkpoint. plugins: noted in
    config.json and nothing else.

    An earlier engine in `output_dir` is replaced when the new one is whole. Memory: one rank. Raises BuildError.
    """
    source, out = Path(checkpoint_dir), Path(output_dir).absolute()
    config = _checkpoint(source)
    if weights not in WEIGHTS:
        raise BuildError(f"weights must be one of {', '.join(WEIGHTS)}, not {weights!r}.")
    quantization = config["quantization"]
    if weights == "q4_1":
        if quantization["quant_algo"]:
            raise BuildError(f"{source} asks for {quantization['quant_algo']} already; convert it without, for q4_1.")
        # What TensorRT-LLM calls weights in groups with a scale and a zero. These are rounded, not calibrated.
        quantization |= {"quant_algo": "W4A16_GPTQ", "group_size": quantize.BLOCK, "has_zero_point": True}
    if said := next(_unfit(config, tensors(source / "rank0.safetensors")), None):
        raise BuildError(f"{source}/config.json says {said}.")
    window = config.get("sliding_window") or math.inf  # where it does not slide yet, attention sees all
    if max_seq_len is None:
        max_seq_len = min(MAX_SEQ_LEN, config["max_position_embeddings"], window)
    limits = {
        "max_input_len": max_seq_len - 1 if max_input_len is None else min(max_input_len, max_seq_len - 1),
        "max_seq_len": max_seq_len,
        "max_batch_size": max_batch_size,
        "max_beam_width": max_beam_width,
        "max_num_tokens": max_num_tokens,
    }
    for name, value in limits.items():
        if value < 1:
            raise BuildError(f"{name} is {value}; it must be 1 or more (and max_seq_len 2 or more).")
    if config["position_embedding_type"] == "learned_absolute" and max_seq_len > config["max_position_embeddings"]:
        raise BuildError(
            f"max_seq_len is {max_seq_len}, and the model has {config['max_position_embeddings']} positions."
        )
    if max_seq_len > window:
        raise BuildError(f"max_seq_len is {max_seq_len}; here it may not exceed the model's sliding window, {window}.")
    if foreign := _foreign(out):
        raise BuildError(f"{out} holds something else ({foreign}); name a new folder.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{out.name}.partial-", dir=out.parent, ignore_cleanup_errors=True) as scratch:
        made = Path(scratch) / "engine"
        made.mkdir()
        engine = {
            "version": f"{version('servinglab')}+reference.{ENGINE_VERSION}",
            "pretrained_config": config,
            "build_config": {
                **limits,
                "kv_cache_type": "paged",
                "gather_context_logits": gather_context_logits,
                "gather_generation_logits": gather_generation_logits,
                "strongly_typed": True,
                "weights": weights,
                "plugin_config": {"dtype": config["dtype"], **(plugins or {})},
            },
        }
        (made / "config.json").write_text(json.dumps(engine, indent=4) + "\n", encoding="utf-8")
        for rank in range(config["mapping"]["tp_size"]):
            path = made / f"rank{rank}.engine"
            save_file(_layout(source / f"rank{rank}.safetensors", config, weights), path)
            path.chmod((made / "config.json").stat().st_mode)  # safetensors makes it private
        if out.exists():
            out.rename(Path(scratch) / "earlier")
        made.rename(out)
    return out


def _foreign(out: Path) -> str:
    """What a build would destroy at this place: whatever is no engine, and a config.json that was edited since."""
    if not os.path.lexists(out):
        return ""
    if out.is_symlink() or not out.is_dir():
        return "a file or a link"
    written = {path.name: path.stat().st_mtime for path in out.iterdir()}
    if others := sorted(name for name in written if not _ENGINE_FILES.fullmatch(name)):
        return others[0]
    if "config.json" in written and written["config.json"] > written.get("rank0.engine", 0) + 1:
        return "a config.json of yours"
    return ""


def _checkpoint(source: Path) -> dict[str, Any]:
    """The config.json of a checkpoint that can be built here. Raises BuildError."""
    try:
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        mapping, quantization = config["mapping"], config.setdefault("quantization", {})
        architecture, algorithm = config["architecture"], quantization.setdefault("quant_algo", None)
        world = mapping["world_size"]
        if not 1 <= world <= MAX_RANKS:
            raise ValueError(world)
        ranks = [source / f"rank{rank}.safetensors" for rank in range(world)]
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise BuildError(
            f"{source} is no TensorRT-LLM checkpoint (config.json with a mapping, rank0.safetensors); convert it first."
        ) from None
    if architecture not in ARCHITECTURES:
        raise BuildError(f"{source} is a {architecture}, and only {', '.join(ARCHITECTURES)} are built here.")
    if mapping["world_size"] != mapping["tp_size"]:
        raise BuildError(f"{source} is split into pipeline stages too; only tensor parallelism is built here.")
    if algorithm not in (None, *_BITS):
        raise BuildError(f"{source} asks for {algorithm}; only {' and '.join(_BITS)} are built here.")
    if algorithm and (more := set(quantization.get("exclude_modules") or ()) - _NEVER_QUANTISED):
        raise BuildError(f"{source} asks for {algorithm} without {min(more)}, which is quantised here.")
    if quantization.get("kv_cache_quant_algo"):
        raise BuildError(f"{source} asks for a KV cache in {quantization['kv_cache_quant_algo']}; it is float here.")
    if missing := [path for path in ranks if not path.is_file()]:
        raise BuildError(f"{missing[0]} is missing, though config.json speaks of {len(ranks)} ranks; convert again.")
    return config


def _unfit(config: dict[str, Any], found: dict[str, Tensor]) -> Iterator[str]:
    """What the file says and the executor would not compute, or would compute otherwise (data/trtllm_build.toml)."""
    rules = table("trtllm_build")["model"]
    for key in rules["numbers"]:
        if isinstance(value := config.get(key), bool) or not isinstance(value, (int, float)) or not value > 0:
            yield f"{value!r:.40} for {key}; it must be a number above 0"
    moe = config.get("moe") or {}
    inner = {"cp_size": config["mapping"].get("cp_size", 1), "num_experts": moe.get("num_experts", 0)}
    for key, value in ({"position_embedding_type": None, "hidden_act": None} | config | inner).items():
        only = [config.get(one, one) if isinstance(one, str) else one for one in rules["only"].get(key, ())]
        unknown = value and key not in (*rules["numbers"], *rules["others"])
        if value not in only if only else unknown:
            yield f"{value!r:.60} for {key}; here that is {' or '.join(map(str, only)) or 'not computed'}"
    scaling, known = config.get("rotary_scaling") or {}, rules["rotary_scaling"]
    wanted = known.get(scaling.get("type") or scaling.get("rope_type"), ("type",))
    if scaling and not all(isinstance(scaling.get(key), (int, float)) and scaling[key] > 0 for key in wanted):
        yield f"{scaling!r:.80} for rotary_scaling; here that is {' or '.join(known)}, with all their numbers above 0"
    for key, tensor in rules["tensors"].items():
        if key in config and (config[key] in (True, "learned_absolute")) != (tensor in found):
            yield f"{config[key]} for {key}, and the tensor {tensor} is {'' if tensor in found else 'not '}there"
    hidden, size, ranks = config["hidden_size"], config["head_size"], config["mapping"]["tp_size"]
    heads, kv_heads = (config[f"num_{which}_heads"] for which in ("attention", "key_value"))
    layer = f"transformer.layers.{config['num_hidden_layers'] - 1}"
    table_of_positions = {_POSITIONS: (config["max_position_embeddings"], hidden)} if _POSITIONS in found else {}
    for tensor, shape in {
        **table_of_positions,
        f"{_HEAD}.weight": (-(-config["vocab_size"] // ranks), hidden),
        f"{layer}.attention.qkv.weight": ((heads // ranks + 2 * max(1, kv_heads // ranks)) * size, hidden),
        f"{layer}.mlp.proj.weight": (hidden, config["intermediate_size"] // ranks),
    }.items():
        if tensor not in found or found[tensor].shape != shape:
            is_ = list(found[tensor].shape) if tensor in found else "not there"
            yield f"that {tensor} is {list(shape)}, and in rank0.safetensors it is {is_}"


def _layout(path: Path, config: dict[str, Any], weights: str) -> dict[str, np.ndarray]:
    """The tensors of one rank's engine, those that stay as they are mapped from the checkpoint."""
    found = {name: tensor.array() for name, tensor in tensors(path).items()}
    embedding, head = found[f"{_EMBEDDING}.weight"], found[f"{_HEAD}.weight"]
    if embedding.shape == head.shape and np.array_equal(embedding.view(np.uint8), head.view(np.uint8)):
        del found[f"{_HEAD}.weight"]
    vocabulary = _HEAD if f"{_HEAD}.weight" in found else _EMBEDDING
    bits = _BITS.get(config["quantization"]["quant_algo"])
    for name in list(found):
        stem, body = name.removesuffix(".weight"), bool(_QUANTISED.search(name))
        if body and bits:
            codes, found[f"{stem}.per_channel_scale"] = quantize.per_channel(found[name], bits)
            found[name] = codes if bits == 8 else quantize.pairs(codes)
        elif weights == "q4_1" and (body or stem == vocabulary) and found[name].shape[1] % quantize.BLOCK == 0:
            matrix = found[name].astype(np.float32)
            if body:
                codes, scales, zeros = quantize.four_bits(matrix)
                found[name], found[f"{stem}.zero"] = quantize.pairs(codes), quantize.pairs(zeros)
            else:
                found[name], scales = quantize.eight_bits(matrix)
            found[f"{stem}.weights_scaling_factor"] = scales
    return found


def main(args: list[str] | None = None) -> int:
    """0, or 1 with one sentence on standard error when a flag or the checkpoint cannot be honoured."""
    parser = argparse.ArgumentParser(prog="course build", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--checkpoint_dir", required=True)
    parser.add_argument("--output_dir", default="engine_outputs")
    flags = table("trtllm_build")
    limits, gather, speed, switches, only = (flags[key] for key in ("limits", "gather", "speed", "switches", "only"))
    for name in limits:
        parser.add_argument(f"--{name}", type=int)
    for name in (*gather, "gather_all_token_logits", *switches):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--weights", choices=WEIGHTS, default="checkpoint", help="not a flag of trtllm-build")
    for name in (*speed, *only):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    given, unknown = parser.parse_known_args(args)
    try:
        if unknown:
            raise BackendError(f"{unknown[0]} cannot be honoured: the reference backend has nothing like it.")
        for name, value in only.items():
            if (asked := getattr(given, name)) not in (None, value):
                raise BackendError(f"--{name} {asked} cannot be honoured by the reference backend, only {value}.")
        if given.gemm_plugin in ("fp8", "nvfp4"):
            raise BackendError(f"--gemm_plugin {given.gemm_plugin} cannot be honoured: there is no FP8 here.")
        idle = {name: getattr(given, name) for name in (*speed, *switches) if getattr(given, name)}
        if idle:
            print(f"Without effect here: {', '.join('--' + name for name in idle)}.", file=sys.stderr)
        start = time.perf_counter()
        out = build(
            given.checkpoint_dir,
            given.output_dir,
            **{name: getattr(given, name) for name in limits if getattr(given, name) is not None},
            **{name: getattr(given, name) or given.gather_all_token_logits for name in gather},
            weights=given.weights,
            plugins={name: value for name, value in idle.items() if name not in switches},
        )
    except (BackendError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for path in sorted(out.glob("rank*.engine")):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    print(f"built in {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
