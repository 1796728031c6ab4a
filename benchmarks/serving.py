"""Serving speed in one run: transformers' generate, the executor in-process, and the executor behind Triton.

    python benchmarks/serving.py [--precision int4] [--decoder bls] [--rounds 3] [--tokens 128] [--json]

Every way answers the same eight prompts greedily with exactly `--tokens` new tokens (the end token is held back), on
the same checkpoint and machine. Within a round the ways run one after another; each figure is the median over rounds.

Keys of --json
    stream1_ratio   tokens/s through Triton (BLS, gRPC stream), one stream at a time, over generate's tokens/s
    stream8_ratio   total tokens/s through Triton with eight streams at once, over generate run one prompt after another
    triton_share    tokens/s through Triton over the in-process executor's, one stream at a time
    triton_share_8  the same with eight streams at once, when both cores are busy with the model already
    ttft_extra_ms   median time to first token through Triton minus the same in-process, one stream
    precision       precision of the executor's graph (generate always runs float32)
    decoder         who turns ids into text for the BLS model: "bls" itself (`bls_decodes` of DeploymentSpec), or the
                    model "postprocessing", as deployed by default
"""

from __future__ import annotations

import argparse
import json
import platform
import queue
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

PROMPTS = [
    "The capital of France is a city that",
    "A short story about a lighthouse keeper who found a letter.",
    "Explain in plain words why the sky looks blue at noon.",
    "Write three tips for someone who learns to cook.",
    "The history of the bicycle began when",
    "Describe a quiet morning in a small mountain village.",
    "What should a beginner know about growing tomatoes?",
    "The main difference between a river and a canal is",
]


def run_generate(model, rows, tokens):
    """transformers' generate, one prompt after another. Returns seconds."""
    import torch

    start = time.perf_counter()
    for row in rows:
        ids = torch.tensor([row])
        with torch.no_grad():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                pad_token_id=2,
            )
        assert out.shape[1] == len(row) + tokens
    return time.perf_counter() - start


def run_executor(executor, rows, tokens, concurrency):
    """The executor in this process. Returns (seconds, [time to first token])."""
    from reference_backend.executor import Request, SamplingParams

    def one(index):
        done, first, count = threading.Event(), [], [0]
        start = time.perf_counter()

        def on_output(output):
            if not first and output.tokens:
                first.append(time.perf_counter() - start)
            count[0] += len(output.tokens)
            if output.finish_reason:
                done.set()

        executor.submit(
            Request(
                id=f"bench-{time.perf_counter_ns()}-{index}",
                prompt=np.asarray(rows[index], np.int32),
                max_tokens=tokens,
                sampling=SamplingParams(min_tokens=tokens),
                end_id=2,
                stop_words=[],
                bad_words=[],
                on_output=on_output,
            )
        )
        done.wait(120)
        assert count[0] == tokens, (count[0], tokens)
        return first[0]

    return timed(one, len(rows), concurrency)


def run_triton(clients, prompts, tokens, concurrency):
    """The same through BLS over gRPC, one stream a client. Returns (seconds, [time to first token])."""
    from servinglab.client import inputs, stream

    free = queue.SimpleQueue()
    for client in clients:
        free.put(client)

    def one(index):
        client, first = free.get(), None
        request = inputs(text_input=prompts[index], max_tokens=tokens, min_tokens=tokens, stream=True)
        for result in stream(client, "tensorrt_llm_bls", request, timeout=120):
            if first is None and result.as_numpy("text_output")[0]:
                first = result.seconds
        free.put(client)
        return first

    return timed(one, len(prompts), concurrency)


def timed(one, count, concurrency):
    start = time.perf_counter()
    if concurrency == 1:
        firsts = [one(index) for index in range(count)]
    else:
        with ThreadPoolExecutor(concurrency) as pool:
            firsts = list(pool.map(one, range(count)))
    return time.perf_counter() - start, firsts


def measure(precision, rounds, tokens, decoder):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from tritonclient.grpc import InferenceServerClient

    from reference_backend.executor import Executor
    from servinglab import assets
    from servinglab.repository import build_default
    from servinglab.server import TritonServer

    checkpoint = assets.resolve("smollm2")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    rows = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    work = len(PROMPTS) * tokens
    speeds = {name: [] for name in ("generate", "executor1", "executor8", "triton1", "triton8")}
    first_tokens = {"executor1": [], "triton1": []}
    with tempfile.TemporaryDirectory() as root:
        repository = build_default(root, precision=precision, bls_decodes=decoder == "bls")
        executor = Executor(assets.engine("smollm2", precision), max_batch_size=8)
        try:
            with TritonServer(repository) as server:
                clients = [InferenceServerClient(server.grpc_url) for _ in range(8)]
                for concurrency in (1, 8):  # warm up: pages of the weights, threads, channels
                    run_executor(executor, rows, tokens, concurrency)
                    run_triton(clients, PROMPTS, tokens, concurrency)
                run_generate(model, rows[:1], tokens)
                for _ in range(rounds):
                    speeds["generate"].append(work / run_generate(model, rows, tokens))
                    for concurrency in (1, 8):
                        seconds, firsts = run_executor(executor, rows, tokens, concurrency)
                        speeds[f"executor{concurrency}"].append(work / seconds)
                        if concurrency == 1:
                            first_tokens["executor1"] += firsts
                        seconds, firsts = run_triton(clients, PROMPTS, tokens, concurrency)
                        speeds[f"triton{concurrency}"].append(work / seconds)
                        if concurrency == 1:
                            first_tokens["triton1"] += firsts
        finally:
            executor.shutdown()
    median = {name: statistics.median(values) for name, values in speeds.items()}
    extra = statistics.median(first_tokens["triton1"]) - statistics.median(first_tokens["executor1"])
    share1, share8 = median["triton1"] / median["executor1"], median["triton8"] / median["executor8"]
    return {
        "stream1_ratio": round(median["triton1"] / median["generate"], 2),
        "stream8_ratio": round(median["triton8"] / median["generate"], 2),
        "triton_share": round(share1, 3),
        "triton_share_8": round(share8, 3),
        "ttft_extra_ms": round(extra * 1e3, 1),
        "precision": precision,
        "decoder": decoder,
        "tokens_per_second": {name: round(value, 1) for name, value in median.items()},
        "rounds": {name: [round(v, 1) for v in values] for name, values in speeds.items()},
        "tokens": tokens,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", default="int4", choices=["int4", "fp32"])
    parser.add_argument("--decoder", default="bls", choices=["postprocessing", "bls"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    options = parser.parse_args()
    result = measure(options.precision, options.rounds, options.tokens, options.decoder)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result["tokens_per_second"].items():
        print(f"{name:10} {value:8.1f} tokens/s")
    for key in ("stream1_ratio", "stream8_ratio", "triton_share", "triton_share_8", "ttft_extra_ms"):
        print(f"{key:15} {result[key]}")


if __name__ == "__main__":
    main()
