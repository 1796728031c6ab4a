"""When a request arrived, ran and spoke, and what it took of the KV cache: the figures of `return_perf_metrics`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace


@dataclass
class RequestMetrics:
    """What the last output of a request says about it; the figures grow until then.

    Times are of the monotonic clock, in nanoseconds (no date: only differences mean something); 0 is "never".
    kv_cache_alloc_total_blocks: blocks allocated for the tokens to read (of each beam its own), beyond the generated
    ones; kv_cache_alloc_new_blocks: those of them for which nothing kept had to be evicted; kv_cache_reused_blocks:
    blocks whose content, or its start, was there already. A block reused in part is a copy, so it counts as allocated
    too. TensorRT-LLM counts the same (WindowBlockManager::getFreeBlock in kvCacheManager.cpp). What a preempted request
    takes when it goes on is added.
    """

    arrival_time_ns: int = field(default_factory=time.monotonic_ns)
    first_scheduled_time_ns: int = 0
    first_token_time_ns: int = 0
    last_token_time_ns: int = 0
    kv_cache_alloc_new_blocks: int = 0
    kv_cache_reused_blocks: int = 0
    kv_cache_alloc_total_blocks: int = 0
    total_draft_tokens: int = 0
    total_accepted_draft_tokens: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens over all draft tokens, 0 without any."""
        return self.total_accepted_draft_tokens / self.total_draft_tokens if self.total_draft_tokens else 0.0

    def scheduled(self, needed: int, whole: int, in_part: int, evicted: int) -> None:
        """The request runs: it needs so many blocks, of which some are reused; for others, kept ones were evicted."""
        self.first_scheduled_time_ns = self.first_scheduled_time_ns or time.monotonic_ns()
        allocated = needed - whole
        self.kv_cache_reused_blocks += whole + in_part
        self.kv_cache_alloc_total_blocks += allocated
        self.kv_cache_alloc_new_blocks += max(0, allocated - evicted)

    def token(self) -> None:
        """A choice was made."""
        self.last_token_time_ns = time.monotonic_ns()
        self.first_token_time_ns = self.first_token_time_ns or self.last_token_time_ns

    def draft(self, drafted: int, accepted: int) -> None:
        """A step verified so many draft tokens, and so many of them became tokens of the answer."""
        self.total_draft_tokens += drafted
        self.total_accepted_draft_tokens += accepted

    def read(self) -> RequestMetrics:
        """The figures as they stand."""
        return replace(self)
