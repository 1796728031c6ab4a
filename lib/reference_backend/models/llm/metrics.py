"""The executor's figures in Triton's /metrics, under the names of TensorRT-LLM's Triton backend (notebook 04).

Left out: what this executor does not have or count (micro batches, paused requests, memory other than that of the
process, the family for V1). A sequence of several is a request of its own here, and is counted as one.
"""

import queue
import threading
import time
from collections.abc import Callable
from ctypes import py_object, pythonapi
from typing import Any

import psutil
import triton_python_backend_utils as pb_utils

from reference_backend import table

HISTOGRAMS = ("input", "output")  # figures with one value for each sequence: its tokens
BUCKETS = [10, 50, 100, 500, 1000]


class Metrics:
    """A slow thread of its own keeps them up to date, for each is a round trip to the server process.
    stats: gives the executor's figures; period: seconds from one look to the next.

    When a model is loaded again, its new instance has the same figures as the old one, which goes later. Triton 24.10
    counts owners for each family object alone (core, metric_family.cc): the old one's end would free what the new one
    writes to. So nothing is ever given back. An unloaded model's figures stay as they were at its end.
    """

    def __init__(self, model: str, version: str, stats: Callable[[], dict[str, int]], period: float) -> None:
        self._stats, self._period, self._labels = stats, period, {"model": model, "version": version}
        self._ended: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def ended(self, *tokens: int) -> None:
        """A sequence has ended that has read and generated so many. Called in any thread; returns at once."""
        if self._thread.is_alive():
            self._ended.put(tokens)

    def shutdown(self, timeout: float) -> None:
        """A last look, then the thread ends."""
        self._ending.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        metrics, kind, ending = {}, pb_utils.MetricFamily, False
        try:
            for name, label, value, figure in table("triton")["metrics"]:
                about, more = (kind.HISTOGRAM, {"buckets": BUCKETS}) if figure in HISTOGRAMS else (kind.GAUGE, {})
                family = kind(name=name, description="as TensorRT-LLM's backend names it", kind=about)
                pythonapi.Py_IncRef(py_object(family))  # for ever, and with it its metrics
                metrics[figure] = family.Metric(labels={label: value, **self._labels}, **more)
            while not ending:
                ending = self._ending.wait(self._period)
                self._update(metrics)
        except Exception as error:  # such as metrics that the server was told not to have
            pb_utils.Logger.log_warn(f"{self._labels['model']}: no figures in /metrics: {error}")

    def _update(self, metrics: dict[str, Any]) -> None:
        for _ in range(self._ended.qsize()):
            for name, tokens in zip(HISTOGRAMS, self._ended.get(), strict=True):
                metrics[name].observe(tokens)
        now = self._stats()
        used, total = now["kv_blocks_used"], now["kv_blocks_total"]
        now |= {"kv_blocks_free": total - used, "kv_fraction_used": used / total, "timestamp": int(time.time())}
        now |= {"cpu_bytes": psutil.Process().memory_info().rss}
        for name in metrics.keys() & now.keys():  # also what has not changed: the old instance may have been the last
            metrics[name].set(now[name])
