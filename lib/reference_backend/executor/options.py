"""Options of an executor that have the names and the values of TensorRT-LLM's."""

from __future__ import annotations

from .model import ExecutorError
from .scheduler import POLICIES

# For the first two, this executor does the same.
BATCHING = ("inflight_fused_batching", "inflight_batching", "V1")
KV_SHARE_OF_FREE_MEMORY = 0.9  # TensorRT-LLM's default for its kv_cache_free_gpu_mem_fraction


def check_choices(policy: str, batching: str, fraction: float | None) -> None:
    """Raises ExecutorError for a value that is none of those allowed."""
    allowed = {"batch_scheduler_policy": (policy, POLICIES), "batching_strategy": (batching, BATCHING)}
    for name, (value, values) in allowed.items():
        if value not in values:
            raise ExecutorError(f"{name} is {value!r}; it must be one of {', '.join(values)}.")
    if fraction is not None and not 0 < fraction < 1:
        raise ExecutorError(f"kv_cache_free_gpu_mem_fraction is {fraction}; it must be between 0 and 1.")


def kv_budget(asked: int | None, fraction: float | None, free: int, least: int, most: int) -> int:
    """Tokens that the KV cache may hold: as many as were asked for, or `most`, within the fraction of the `free` ones
    (0.9 when neither was given, no such bound when only a number was); but not fewer than `least`."""
    if asked is None:
        asked, fraction = most, fraction or KV_SHARE_OF_FREE_MEMORY
    if fraction is None:
        return asked
    return min(asked, max(least, int(fraction * free)))
