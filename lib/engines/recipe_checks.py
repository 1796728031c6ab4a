"""What a recipe refuses before it prints a command: values, splits and limits that the source would not take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines import EngineError, compass, flags, shapes
from servinglab.errors import did_you_mean

DTYPES = ("float16", "bfloat16", "float32")
WEIGHT_ONLY = ("int8", "int4")
KV_CACHE_TYPES = ("paged", "continuous", "disabled")
COUNTS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width", "workers")
GATHER = ("gather_context_logits", "gather_generation_logits")
LIMITS = (*COUNTS, *GATHER, "kv_cache_type")
# The most beams that the runtime of a version serves: cpp/tensorrt_llm/kernels/beamSearchKernels.h.
_MOST_BEAMS = {"0.9.0": 64, "0.15.0": 256, "0.16.0": 1024}
# The first version that was seen to deal out layers unevenly; Mapping.pp_layers up to 0.16 leaves the rest out.
_UNEVEN_STAGES = "1.3.0rc3"


def one_of(what: str, value: object, known: tuple[str, ...] | tuple[int, ...]) -> str:
    """`value` as a text. Raises EngineError where it is not among `known`."""
    if value not in known:
        names = [str(each) for each in known]
        raise EngineError(f"{what} must be one of {', '.join(names)}, not {value!r}.{did_you_mean(str(value), names)}")
    return str(value)


def check_split(model: str, family: str, trtllm: str, tp_size: object, pp_size: object) -> None:
    """Raise EngineError where a model of the recipes cannot be cut like this."""
    tp, pp = _count("tp_size", tp_size), _count("pp_size", pp_size)
    if family == "gemma" and pp > 1:
        raise EngineError("Gemma has no pipeline parallelism in TensorRT-LLM: leave pp_size at 1 and use tp_size.")
    config, _ = shapes.recipe_model(model)
    shape = shapes.from_config(config, model)
    shape.check(tp, pp)
    if shape.num_layers % pp and compass.version(trtllm) < compass.version(_UNEVEN_STAGES):
        raise EngineError(
            f"pp_size {pp} does not divide the {shape.num_layers} layers of {model}, and TensorRT-LLM up to 0.16 drops "
            f"the layers that are left over (when that ended is not known); choose one that does."
        )


def check_limits(limits: Mapping[str, Any], trtllm: str) -> None:
    """Raise EngineError for limits that do not exist, are no numbers, or contradict each other."""
    for key, value in limits.items():
        check_limit_name(key)
        if key in COUNTS:
            _count(key, value)
        elif key in GATHER and not isinstance(value, bool):
            raise EngineError(f"{key} must be True or False, not {value!r}.")
    one_of("kv_cache_type", limits.get("kv_cache_type", "paged"), KV_CACHE_TYPES)
    most, beams = compass.at(_MOST_BEAMS, trtllm), limits.get("max_beam_width", 1)
    if beams > most:
        raise EngineError(
            f"max_beam_width {beams} is more than the {most} beams that the runtime of TensorRT-LLM {trtllm} serves."
        )
    prompt, both = limits.get("max_input_len", 0), limits.get("max_seq_len", 2**31)
    if prompt >= both:
        raise EngineError(
            f"max_input_len {prompt} leaves no room for an answer within max_seq_len {both}, which counts prompt and "
            f"answer together."
        )


def cautions(model: str, limits: Mapping[str, Any], trtllm: str) -> list[str]:
    """A sentence for each thing that trtllm-build takes, and that a reader may not expect."""
    config, _ = shapes.recipe_model(model)
    shape, found = shapes.from_config(config, model), []
    prompt, both = limits.get("max_input_len", 0), limits.get("max_seq_len", 0)
    known = flags.known("trtllm-build", trtllm)
    if warning := shape.beyond(both):
        found.append(warning)
    elif not both and prompt > shape.max_positions:
        does = "cuts it to those" if "--max_seq_len" in known else "takes it, but what lies beyond is not to be trusted"
        found.append(
            f"{model} has {shape.max_positions} positions, and max_input_len is {prompt}: trtllm-build {does}."
        )
    if "max_batch_size" not in limits:
        default = known["--max_batch_size"].default_for(trtllm)
        found.append(
            f"max_batch_size is not set, so trtllm-build {trtllm} takes its default, {default}; set what you need, for "
            f"the server keeps memory for the logits of as many requests."
        )
    return found


def check_limit_name(name: str) -> None:
    """Raise EngineError for a limit that does not exist."""
    if name not in LIMITS:
        raise EngineError(f"There is no limit {name!r}: there are {', '.join(LIMITS)}.{did_you_mean(name, LIMITS)}")


def _count(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise EngineError(f"{what} must be a whole number of at least 1, not {value!r}.")
    return value
