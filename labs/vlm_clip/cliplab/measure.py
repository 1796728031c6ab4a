"""What a served model did, from Triton's own statistics: time a request, rows an execution (notebook 14)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from cliplab.deployment import MODELS

STEPS = MODELS[:-1]


@dataclass(frozen=True)
class Served:
    """What one model did between two looks: requests, executions, rows, and the milliseconds of a request by part."""

    requests: int
    executions: int
    rows: int
    total_ms: float
    queue_ms: float

    @property
    def mean_batch(self) -> float:
        """Rows in an execution."""
        return self.rows / max(self.executions, 1)


class Watch:
    """Counts from now on: `Watch(server.http_url)`, then requests, then `.served()`."""

    def __init__(self, http_url: str, models: Sequence[str] = MODELS) -> None:
        self._web, self._models = httpx.Client(base_url=http_url, trust_env=False), models
        self._before = self._counters()

    def served(self) -> dict[str, Served]:
        """By model. Means over the requests since this watch began; an unused model has zeros."""
        found = {}
        for model, after in self._settled().items():
            before = self._before[model]
            requests, executions, rows, total, queue = (b - a for a, b in zip(before, after, strict=True))
            count = max(requests, 1)
            found[model] = Served(requests, executions, rows, total / count / 1e6, queue / count / 1e6)
        return found

    def _settled(self) -> dict[str, tuple[int, ...]]:
        """Triton counts a request a moment after its answer has left: look until two looks agree, for half a second."""
        found = self._counters()
        for _ in range(16):
            time.sleep(0.03)
            before, found = found, self._counters()
            if found == before:
                break
        return found

    def _counters(self) -> dict[str, tuple[int, ...]]:
        return {model: _numbers(self._web.get(f"/v2/models/{model}/stats").json()) for model in self._models}


def _numbers(answer: dict[str, Any]) -> tuple[int, ...]:
    stats = answer["model_stats"][0]
    parts = stats["inference_stats"]
    total = parts["success"]
    counts = total.get("count", 0), stats.get("execution_count", 0), stats.get("inference_count", 0)
    return *map(int, counts), int(total.get("ns", 0)), int(parts["queue"].get("ns", 0))


def at_once(call: Callable[[Any], Any], items: Sequence[Any], concurrency: int) -> float:
    """Requests a second when `concurrency` clients send one item after the other."""
    with ThreadPoolExecutor(concurrency) as pool:
        began = time.perf_counter()
        list(pool.map(call, items))
        return len(items) / (time.perf_counter() - began)
