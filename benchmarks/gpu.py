"""Speed on a CUDA device in one run: transformers' eager generate, the executor in-process, and one stream via Triton.

    python benchmarks/gpu.py [--rounds 3] [--tokens 256] [--no-triton] [--json]

SmolLM2-135M in bfloat16, greedy, the same weights and prompts for every way; the end token is switched off, so that
each answer has exactly --tokens tokens (generate: 64). Within a round the ways run one after the other; figures are
medians over rounds.

Keys of --json
    generate_tok_s        transformers, eager, batch 1
    executor_tok_s        the executor in this process, one request at a time; executor_64_tok_s: 64 at once, in total
    triton_tok_s          one gRPC stream through the BLS model of a Triton of its own (absent with --no-triton)
    over_generate         executor_tok_s / generate_tok_s
    step_us               one step of the model alone, one row with 300 tokens before it; step_64_us: 64 rows
    copy_gb_s             what a copy on the device moves, bytes read and written
    bound_tok_s           copy_gb_s over the bytes of the weights: a token cannot come faster at batch 1
    bound_share           executor_tok_s / bound_tok_s
    …_spread              [lowest, highest] over the rounds
    device, torch, transformers, triton_language, servinglab, date, tokens, rounds
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import queue
import statistics
import sys
import tempfile
import time

import numpy as np
import torch

PROMPTS = [
    "Explain in plain words why the sky looks blue at noon.",
    "Write a long story about a lighthouse keeper who found a letter.",
    "Describe a quiet morning in a small mountain village, hour by hour.",
    "Tell the history of the bicycle from its beginning to today.",
]
STREAMS, GENERATE_TOKENS = 64, 64


def run_generate(model, rows):
    """transformers, one prompt after another: tokens a second."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for row in rows:
        ids = torch.tensor([row], device="cuda")
        mask = torch.ones_like(ids)
        settings = {"do_sample": False, "max_new_tokens": GENERATE_TOKENS, "eos_token_id": None, "pad_token_id": 0}
        out = model.generate(ids, attention_mask=mask, **settings)
        assert out.shape[1] == len(row) + GENERATE_TOKENS
    torch.cuda.synchronize()
    return len(rows) * GENERATE_TOKENS / (time.perf_counter() - start)


def run_executor(executor, rows, tokens, at_once):
    """The executor in this process, `at_once` requests together: tokens a second, of all together."""
    from reference_backend.executor import Request

    outputs, start = queue.SimpleQueue(), time.perf_counter()
    total = 0
    for first in range(0, len(rows), at_once):
        some = rows[first : first + at_once]
        for number, row in enumerate(some):
            executor.submit(Request(f"{start}-{first}-{number}", np.array(row), tokens, on_output=outputs.put))
        left = len(some)
        while left:
            output = outputs.get(timeout=60)
            total += len(output.tokens)
            left -= output.finish_reason is not None
    assert total == len(rows) * tokens
    return total / (time.perf_counter() - start)


def run_triton(client, tokens):
    """One gRPC stream after another through the BLS model: tokens a second."""
    from servinglab.client import inputs, stream

    start = time.perf_counter()
    for prompt in PROMPTS:
        request = inputs(text_input=prompt, max_tokens=tokens, end_id=-1, stream=True)
        for _ in stream(client, "tensorrt_llm_bls", request):
            pass
    return len(PROMPTS) * tokens / (time.perf_counter() - start)


def step_microseconds(executor, rows):
    """One decoding step of the model alone."""
    model = executor._batch._model
    ids, lengths, none = np.full((rows, 1), 5), np.full(rows, 300), np.arange(0)
    times = []
    for _ in range(200):
        start = time.perf_counter()
        model.decode(ids, lengths, 0, none)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def copy_bandwidth():
    """GB/s of a copy of 1 GiB on the device, what is read and what is written."""
    source = torch.zeros(2**30, dtype=torch.uint8, device="cuda")
    target, times = torch.empty_like(source), []
    for _ in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return 2 * 2**30 / statistics.median(times) / 1e9


def measure(options):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from reference_backend.executor import Executor
    from servinglab import assets

    checkpoint, engine = assets.resolve("smollm2"), assets.engine("smollm2", "bf16")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    rows = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    copy = copy_bandwidth()
    generating = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).cuda().eval()
    weights = sum(parameter.numel() * parameter.element_size() for parameter in generating.parameters())
    speeds = {"generate": [], "executor": [], "executor_64": []}
    with Executor(engine, max_batch_size=STREAMS, max_seq_len=1024, device="cuda") as executor:
        run_generate(generating, rows[:1])
        run_executor(executor, rows * (STREAMS // len(rows)), 32, STREAMS)
        for _ in range(options.rounds):
            speeds["generate"].append(run_generate(generating, rows))
            speeds["executor"].append(run_executor(executor, rows, options.tokens, 1))
            many = rows * (STREAMS // len(rows))
            speeds["executor_64"].append(run_executor(executor, many, options.tokens, STREAMS))
        steps = {"step_us": step_microseconds(executor, 1), "step_64_us": step_microseconds(executor, STREAMS)}
    if options.triton:
        speeds["triton"] = through_triton(options)
    found = {f"{name}_tok_s": round(statistics.median(values), 1) for name, values in speeds.items()}
    bound = copy * 1e9 / weights
    return {
        **found,
        "over_generate": round(found["executor_tok_s"] / found["generate_tok_s"], 1),
        **{name: round(value) for name, value in steps.items()},
        "copy_gb_s": round(copy),
        "bound_tok_s": round(bound),
        "bound_share": round(found["executor_tok_s"] / bound, 3),
        **{f"{name}_spread": [round(min(v), 1), round(max(v), 1)] for name, v in speeds.items()},
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        **{name: importlib.metadata.version(name) for name in ("transformers", "servinglab")},
        "triton_language": importlib.metadata.version("triton"),
        "date": datetime.date.today().isoformat(),
        "tokens": options.tokens,
        "rounds": options.rounds,
    }


def through_triton(options):
    from tritonclient.grpc import InferenceServerClient

    from servinglab.repository import build_default
    from servinglab.server import TritonServer

    with (
        tempfile.TemporaryDirectory() as root,
        TritonServer(build_default(root, precision="bf16")) as server,
        InferenceServerClient(server.grpc_url) as client,
    ):
        run_triton(client, 32)
        return [run_triton(client, options.tokens) for _ in range(options.rounds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--no-triton", dest="triton", action="store_false")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu: there is no CUDA device here, so there is nothing to measure.")
    result = measure(options)
    print(json.dumps(result, indent=2) if options.json else "\n".join(f"{k}: {v}" for k, v in result.items()))


if __name__ == "__main__":
    main()
