"""What the ensemble of the CLIP service costs beside its steps, and what dynamic batching brings.

    python benchmarks/clip_ensemble.py [--rounds 7] [--requests 20] [--json]

Every request carries a picture and a sentence, in one row. Times are Triton's own statistics, from request to response
inside the server, of the ensemble and of its four steps during the same requests; figures are medians over rounds,
spreads the smallest and the largest of a round.

Keys of --json
    ensemble_ms       a request to the ensemble
    steps_ms          its four steps, added up
    ensemble_ratio    the first over the second; below 1 when steps run at the same time
    longest_path_ms   image_preprocessing, vision_encoder and fusion, which must wait for each other
    path_ratio        ensemble_ms over longest_path_ms
    step_ms           each step
    by_hand_ms        the client's time for the same four calls one after the other, its pixels on the wire twice
    one_call_ms       the client's time for one call of the ensemble
    load              mean number of processes that wanted a core in the minute before; on an idle machine below 1
    throughput        encoder -> concurrency -> requests/s and rows in an execution (statistics), with dynamic batching
    …_spread          [lowest, highest] over the rounds
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from servinglab.client import inputs

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "labs" / "vlm_clip"))


STEPS = ("image_preprocessing", "vision_encoder", "text_encoder", "fusion")


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

    def __init__(self, http_url: str, models: Sequence[str] = (*STEPS, "clip")) -> None:
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


def infer(clip, model, **tensors):
    """All outputs of one model by name."""
    result = clip.client.infer(model, inputs(**tensors))
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def steps_by_hand(clip, data, text):
    """The four steps as a client would call them; returns the vector."""
    prepared = infer(clip, "image_preprocessing", image=np.array([[data]], object))
    image = infer(clip, "vision_encoder", pixel_values=prepared["pixel_values"])
    words = infer(clip, "text_encoder", text=np.array([[text.encode()]], object))
    given = {"image_state": prepared["image_state"], "text_state": words["text_state"], **image}
    return infer(clip, "fusion", **given, text_embedding=words["text_embedding"])["embedding"][0]


def overhead(server, clip, pairs, rounds):
    """The ensemble beside its steps."""
    figures = {"ensemble_ms": [], "steps_ms": [], "longest_path_ms": [], "by_hand_ms": [], "one_call_ms": []}
    steps = {step: [] for step in STEPS}
    for _ in range(rounds):
        watch, began = Watch(server.http_url), time.perf_counter()
        for pair in pairs:
            clip.embed(*pair)
        figures["one_call_ms"].append(1e3 * (time.perf_counter() - began) / len(pairs))
        served = watch.served()
        began = time.perf_counter()
        for pair in pairs:
            steps_by_hand(clip, *pair)
        figures["by_hand_ms"].append(1e3 * (time.perf_counter() - began) / len(pairs))
        figures["ensemble_ms"].append(served["clip"].total_ms)
        figures["steps_ms"].append(sum(served[step].total_ms for step in STEPS))
        figures["longest_path_ms"].append(sum(served[s].total_ms for s in STEPS if s != "text_encoder"))
        for step in STEPS:
            steps[step].append(served[step].total_ms)
    found = {name: round(statistics.median(values), 2) for name, values in figures.items()}
    for name, below in (("ensemble_ratio", "steps_ms"), ("path_ratio", "longest_path_ms")):
        ratios = [a / b for a, b in zip(figures["ensemble_ms"], figures[below], strict=True)]
        found[name] = round(statistics.median(ratios), 3)
        found[f"{name}_spread"] = [round(min(ratios), 3), round(max(ratios), 3)]
    return found | {"step_ms": {step: round(statistics.median(values), 2) for step, values in steps.items()}}


def throughput(server, clip, pairs, count):
    """Requests of one row to each encoder, from one client and from eight."""
    from cliplab.prepare import open_picture, to_array

    pixels = [to_array(open_picture(data))[None] for data, _ in pairs]
    inputs = {
        "vision_encoder": [{"pixel_values": array} for array in pixels],
        "text_encoder": [{"text": np.array([[text.encode()]], dtype=object)} for _, text in pairs],
    }
    found = {}
    for model, requests in inputs.items():
        many = (requests * (count // len(requests) + 1))[:count]
        for concurrency in (1, 8):
            watch = Watch(server.http_url, [model])
            speed = at_once(lambda values, model=model: infer(clip, model, **values), many, concurrency)
            row = {"requests_per_second": round(speed, 1), "rows": round(watch.served()[model].mean_batch, 2)}
            found.setdefault(model, {})[str(concurrency)] = row
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--requests", type=int, default=20, help="of each round; ten times as many for throughput")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()

    from cliplab.client import ClipClient
    from cliplab.deployment import write_repository
    from cliplab.encoders import prepare
    from cliplab.pictures import catalogue
    from servinglab.notebook import device, versions
    from servinglab.server import TritonServer

    shown = catalogue("subset")
    load = round(os.getloadavg()[0], 1)
    step = max(1, len(shown) // chosen.requests)
    pairs = [(picture.file.read_bytes(), picture.caption) for picture in shown[::step][: chosen.requests]]
    with tempfile.TemporaryDirectory() as folder:
        repository = write_repository(folder, prepare(), sorted({picture.category for picture in shown}))
        with TritonServer(repository) as server, ClipClient(server.grpc_url) as clip:
            for pair in pairs[:5]:  # pages of the weights
                clip.embed(*pair)
                steps_by_hand(clip, *pair)
            found = overhead(server, clip, pairs, chosen.rounds)
            found["throughput"] = throughput(server, clip, pairs, 10 * chosen.requests)
    found |= {"device": device(), "versions": versions(), "load": load}
    found |= {"rounds": chosen.rounds, "requests": len(pairs)}
    if chosen.json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        print(f"{name:22} {value}")


if __name__ == "__main__":
    main()
