"""The executor's figures in Triton's /metrics, under the names of TensorRT-LLM's Triton backend (notebook 04).

Left out: what this executor does not have or count (micro batches, paused requests, memory other than that of the
process, the family for V1). A sequence of several is a request of its own here, and is counted as one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import triton_python_backend_utils as pb_utils

from reference_backend import table

BUCKETS = [10, 50, 100, 500, 1000]


class Metrics:
    """A slow thread of its own keeps them up to date, for each change is a round trip to the server process.
    stats: gives the executor's figures; period: seconds from one look to the next."""

    def __init__(self, model: str, version: str, stats: Callable[[], dict[str, int]], period: float) -> None:
        self._stats, self._period, self._labels = stats, period, {"model": model, "version": version}
        self._ended: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def ended(self, read: int, generated: int) -> None:
        """A sequence has ended, after so many tokens. Called in any thread; returns at once."""
        if self._thread.is_alive():
            self._ended.put((read, generated))

    def shutdown(self, timeout: float) -> None:
        """A last look, then the thread ends and the figures go."""
        self._ending.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        families, metrics, known, ending = [], {}, {}, False
        try:
            for name, ((label, values),) in {n: f.items() for n, f in table("triton")["metrics"].items()}.items():
                self._add(families, metrics, name, "GAUGE", label, values)
            for what in ("input", "output"):
                values = {f"total_{what}_tokens": what}
                self._add(families, metrics, f"nv_llm_{what}_token_len", "HISTOGRAM", "response_metric_type", values)
            while not ending:
                ending = self._ending.wait(self._period)
                self._update(metrics, known)
        except Exception as error:  # such as metrics that the server was told not to have
            pb_utils.Logger.log_warn(f"{self._labels['model']}: no figures in /metrics: {error}")
        metrics.clear()  # before their families, as Triton wants it
        families.clear()

    def _add(
        self, families: list, metrics: dict[str, Any], name: str, kind: str, label: str, values: dict[str, str]
    ) -> None:
        kinds, about = pb_utils.MetricFamily, "as TensorRT-LLM's backend names it"
        families.append(kinds(name=name, description=about, kind=getattr(kinds, kind)))
        for value, figure in values.items():
            more = {"buckets": BUCKETS} if kind == "HISTOGRAM" else {}
            metrics[figure] = families[-1].Metric(labels={label: value, **self._labels}, **more)

    def _update(self, metrics: dict[str, Any], known: dict[str, float]) -> None:
        for _ in range(self._ended.qsize()):
            read, generated = self._ended.get()
            metrics["input"].observe(read)
            metrics["output"].observe(generated)
        figures = self._stats()
        used, total = figures["kv_blocks_used"], figures["kv_blocks_total"]
        figures |= {"kv_blocks_free": total - used, "kv_fraction_used": used / total, "timestamp": int(time.time())}
        figures |= {"cpu_bytes": psutil.Process().memory_info().rss}
        for name in metrics.keys() & figures.keys():
            if figures[name] != known.get(name):
                metrics[name].set(figures[name])
        known |= figures
