"""Meet a limit at the lowest cost: tune a deployment, and let a load test score it. README.md has the task.

    python labs/capstone/capstone.py start | score [FILE] | board

`start` writes a deployment to tune, `score` serves it, sends the load and notes the result, `board` lists what passed.
Both draw all results, into scores.png.
"""

import argparse
import json
import queue
import sys
import tempfile
import threading
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from tokenizers import Tokenizer
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from course.manifest import tomllib
from reference_backend import executor
from servinglab import assets
from servinglab.client import inputs
from servinglab.errors import CourseError
from servinglab.figures import style
from servinglab.loadtest import percentile
from servinglab.repository import build_default
from servinglab.scratch import shorten
from servinglab.server import TritonServer

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[1] / "build" / "lab" / "capstone"  # where JupyterLab can open it
KNOBS = {"precision": str, "max_batch_size": int, "max_tokens_in_paged_kv_cache": int, "batching_strategy": str,
         "batch_scheduler_policy": str, "enable_kv_cache_reuse": bool, "bls_decodes": bool}  # fmt: skip

# The load: questions about one set of rules, at a rate that one request at a time cannot keep up with.
REQUESTS, RATE, LIMIT = 24, 2.0, 4.0  # of the rate and of the first token that one request gets alone
MAX_TOKENS = 32
RULES = " ".join(f"Rule {n}: answer in plain words, and name the shop's department number {n}." for n in range(1, 9))
THINGS = ("a lamp", "a red chair", "two cups", "a garden hose", "a clock", "an old map", "a blue coat", "some bread")
MB_OF_A_SLOT = 8  # what a running request needs beside its KV cache


def prompt(number: int) -> str:
    asked = f"{RULES}\n\nQuestion {number}: where do I find {THINGS[number % len(THINGS)]}?"
    return f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"


def read(file: Path) -> dict:
    """The knobs of a deployment. Raises CourseError for a file that is none."""
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CourseError(f"There is no {shorten(str(file))}: capstone.py start writes one.") from None
    except ValueError as error:
        raise CourseError(f"{shorten(str(file))} is not TOML: {error}.") from None
    for name in sorted(found.keys() ^ KNOBS.keys(), key=KNOBS.__contains__):  # what is no knob first
        raise CourseError(f"{shorten(str(file))}: {name} is {'no knob' if name in found else 'missing'}.")
    for name, value in found.items():
        if type(value) is not KNOBS[name]:
            raise CourseError(f"{shorten(str(file))}: {name} is {value!r}, and must be {KNOBS[name].__name__}.")
    return found


def cost(knobs: dict) -> dict[str, float]:
    """MB that the deployment holds, by what they are for."""
    engine = assets.engine("smollm2", knobs["precision"])
    weights = sum(path.stat().st_size for path in engine.iterdir() if path.is_file())
    shape = json.loads((engine / "config.json").read_text())["pretrained_config"]
    of_a_token = 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_size"] * 4
    cache = of_a_token * knobs["max_tokens_in_paged_kv_cache"]
    return {"weights": weights / 1e6, "KV cache": cache / 1e6, "slots": MB_OF_A_SLOT * knobs["max_batch_size"]}


def alone() -> tuple[float, float]:
    """Seconds to the first token and to the last of a lone request, on this machine now: what the load is made of."""
    ids = Tokenizer.from_file(str(assets.tokenizer("smollm2") / "tokenizer.json")).encode(prompt(0)).ids
    first, last = [], []
    with executor.Executor(assets.engine("smollm2", "int4"), max_batch_size=1, enable_kv_cache_reuse=False) as one:
        for number in range(4):  # the first warms up
            outputs = queue.SimpleQueue()
            one.submit(executor.Request(str(number), np.array(ids), MAX_TOKENS // 2, on_output=outputs.put))
            while not (output := outputs.get(timeout=120)).finish_reason:
                pass
            times = output.metrics
            first.append(times.first_token_time_ns - times.arrival_time_ns)
            last.append(times.last_token_time_ns - times.arrival_time_ns)
    return min(first[1:]) / 1e9, min(last[1:]) / 1e9


def send(server: TritonServer, due: np.ndarray, patience: float = 60) -> tuple[list[float], list[float]]:
    """Of each answered request: seconds from when it was due to its first text, and those in the executor's queue. What
    has not ended `patience` seconds after the last was due is given up."""
    first, waits, over = {}, [], threading.Semaphore(0)

    def arrived(result: object, error: object) -> None:
        if error is not None:
            return over.release()
        response = result.get_response()
        if response.outputs:
            first.setdefault(int(response.id), time.perf_counter())
        if (asked := result.as_numpy("first_scheduled_time_ns")) is not None:
            waits.append(float(asked.item() - result.as_numpy("arrival_time_ns").item()) / 1e9)
        if response.parameters["triton_final_response"].bool_param:
            over.release()

    with InferenceServerClient(server.grpc_url) as client:
        client.start_stream(arrived)
        asked = {"max_tokens": MAX_TOKENS, "stream": True, "exclude_input_in_output": True, "return_perf_metrics": True}
        began = time.perf_counter()
        for number, moment in enumerate(due):
            time.sleep(max(0.0, began + moment - time.perf_counter()))
            client.async_stream_infer("tensorrt_llm_bls", inputs(text_input=prompt(number), **asked),
                                      request_id=str(number), enable_empty_final_response=True)  # fmt: skip
        for _ in due:
            if not over.acquire(timeout=max(0.0, began + due[-1] + patience - time.perf_counter())):
                break
        client.stop_stream(cancel_requests=True)
    return [first[number] - began - due[number] for number in sorted(first)], waits


def score(knobs: dict, say=print) -> dict:
    """Serve a deployment and send the load: what it costs, its p95, the limit, and whether it passed."""
    fields, held = dict(knobs), cost(knobs)
    say("it holds " + " + ".join(f"{mb:.0f} MB of {part}" for part, mb in held.items()))
    reuse = {"enable_kv_cache_reuse": fields.pop("enable_kv_cache_reuse")}
    to_first, to_last = alone()
    gaps = np.random.default_rng(0).exponential(size=REQUESTS - 1)
    due = np.append(0.0, np.cumsum(gaps) / gaps.mean() * to_last / RATE)
    say(f"a lone request: first token after {1e3 * to_first:.0f} ms, last after {1e3 * to_last:.0f} ms")
    say(f"so the load has {RATE / to_last:.1f} requests a second")
    with tempfile.TemporaryDirectory(prefix="capstone-") as folder:
        repository = build_default(folder, parameters=reuse, generation="1.1", **fields)  # refuses what is no value
        with TritonServer(repository) as server:
            send(server, np.zeros(2))  # warm up
            ttft, waits = send(server, due, 4 * LIMIT * to_first)
    limit = LIMIT * max(to_first, alone()[0])  # before and after: something else may have begun to run meanwhile
    found = {"cost_mb": round(sum(held.values()), 1), "answered": len(ttft), "limit_ms": round(1e3 * limit)}
    ttft += [4 * limit] * (REQUESTS - len(ttft))  # at least
    found["p95_ms"] = round(1e3 * percentile(np.array(ttft), 95))
    found["in_queue_ms"] = round(1e3 * float(np.mean(waits))) if waits else None
    found["passed"] = found["answered"] == REQUESTS and found["p95_ms"] <= found["limit_ms"]
    return found


def scores(home: Path) -> list[dict]:
    """Every score so far."""
    file = home / "scores.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def board(home: Path) -> list[dict]:
    """What has passed, the cheapest first."""
    return sorted((row for row in scores(home) if row["passed"]), key=lambda row: (row["cost_mb"], row["p95_ms"]))


def draw(home: Path) -> Path:
    """Every score at its cost and its p95: a marker for each file, yours round, the last one in a ring."""
    style.use()
    fig, axes = plt.subplots(figsize=(style.WIDTH, 3.6), layout="constrained")
    rows = scores(home)
    named = [name for name in dict.fromkeys(row["name"] for row in rows) if name not in ("deployment", "another try")]
    marker = dict(zip(named, "sD^vP*X", strict=False))
    axes.axhline(1, color=style.INK, linewidth=1, linestyle=style.DASHES, label="the limit")
    for passed, colour in ((True, "#0072B2"), (False, "#D55E00")):
        axes.plot([], "o", color=colour, label="passed" if passed else "failed")
    for name in named:
        axes.plot([], marker.get(name, "o"), color=style.QUIET, label=name)
    for row in rows:
        place = row["cost_mb"], min(4.9, row["p95_ms"] / row["limit_ms"])
        colour = "#0072B2" if row["passed"] else "#D55E00"
        axes.plot(*place, marker.get(row["name"], "o"), color=colour, alpha=0.75)
    if rows and rows[-1]["name"] == "deployment":
        axes.plot(*place, "o", markersize=13, markerfacecolor="none", markeredgecolor=style.INK)
    axes.set(xlabel="cost (MB, logarithmic)", ylabel="p95 of the first token, in limits")
    axes.set(xscale="log", xlim=(120, 1500), ylim=(0, 5))
    axes.set_xticks((150, 200, 300, 500, 1000), ("150", "200", "300", "500", "1000"))
    axes.minorticks_off()
    good = sum(row["passed"] for row in rows)
    axes.set_title(f"{good} of {len(rows)} scores keep the limit", loc="left")
    fig.legend(loc="outside right upper")
    home.mkdir(parents=True, exist_ok=True)
    fig.savefig(home / "scores.png", dpi=160)
    plt.close(fig)
    return home / "scores.png"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("start", "score", "board"))
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--home", type=Path, default=HOME, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    file = options.file or options.home / "deployment.toml"
    try:
        if options.what == "start":
            options.home.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                file.write_text((HERE / "baseline.toml").read_text())
            print(f"Tune {shorten(str(file))}, then: python labs/capstone/capstone.py score")
        elif options.what == "score":
            knobs = read(file)
            found = score(knobs)
            print(", ".join(f"{name} {value}" for name, value in found.items()))
            options.home.mkdir(parents=True, exist_ok=True)
            with (options.home / "scores.jsonl").open("a") as rows:
                rows.write(json.dumps({"name": file.stem, **found, "knobs": knobs}) + "\n")
            print(f"All scores: {shorten(str(draw(options.home)))}")
            return not found["passed"]
        for place, row in enumerate(board(options.home), 1) if options.what == "board" else ():
            print(f"{place:2}  {row['cost_mb']:7.1f} MB  p95 {row['p95_ms']} of {row['limit_ms']} ms  {row['knobs']}")
        if options.what == "board":
            print(f"All scores: {shorten(str(draw(options.home)))}")
    except (CourseError, InferenceServerException) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
