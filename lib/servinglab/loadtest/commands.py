"""Command lines of NVIDIA's load generators, as lists of arguments.

perf_analyzer sends any tensors to Triton. GenAI-Perf sits on it and knows TensorRT-LLM's models; NVIDIA phases it out.
AIPerf, its successor, speaks only OpenAI's protocol, so a server of that kind must stand before Triton.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from servinglab.errors import CourseError

BLS = "tensorrt_llm_bls"


def perf_analyzer(
    data: Path | str, *, model: str = BLS, url: str = "localhost:8001", concurrency: tuple[int, int] | None = (1, 8),
    rates: tuple[float, float, float] | None = None, interval_ms: int = 10_000, export: str = "profile.json",
) -> list[str]:  # fmt: skip
    """perf_analyzer with the inputs of `data` (see `input_data`); a decoupled model needs gRPC and --streaming.

    A closed loop of `concurrency` (first, last), or with `rates` (first, last, step) an open one of Poisson arrivals.
    """
    if (concurrency is None) == (rates is None):
        raise CourseError("perf_analyzer takes a concurrency or rates: give one and set the other to None.")
    if rates:
        load = ["--request-rate-range", ":".join(f"{rate:g}" for rate in rates), "--request-distribution", "poisson"]
    else:
        load = ["--concurrency-range", f"{concurrency[0]}:{concurrency[1]}:1"]
    return ["perf_analyzer", "-m", model, "-i", "grpc", "-u", url, "--streaming", "--input-data", str(data), *load,
            "--measurement-interval", str(interval_ms), "--profile-export-file", export]  # fmt: skip


def input_data(prompts: Sequence[str], max_tokens: int) -> str:
    """The file for --input-data. Only named inputs are sent, and without this file *every* input gets random values."""
    rows = [{"text_input": [prompt], "max_tokens": [max_tokens], "stream": [True]} for prompt in prompts]
    return json.dumps({"data": rows}, indent=1, ensure_ascii=False)


def genai_perf(
    tokenizer: Path | str, *, model: str = "ensemble", url: str = "localhost:8001", concurrency: int = 1,
    requests: int = 100, input_tokens: int = 128, output_tokens: int = 64, warmup: int = 10,
) -> list[str]:  # fmt: skip
    """GenAI-Perf against Triton's own protocol. `--output-tokens-mean-deterministic` is left out on purpose.

    That flag sends the input `min_length`, which models of TensorRT-LLM 0.20 and later refuse: theirs is `min_tokens`.
    So answers may end early.
    """
    return ["genai-perf", "profile", "-m", model, "--service-kind", "triton", "--backend", "tensorrtllm", "--streaming",
            "-u", url, "--tokenizer", str(tokenizer), "--synthetic-input-tokens-mean", str(input_tokens),
            "--synthetic-input-tokens-stddev", "0", "--output-tokens-mean", str(output_tokens), "--request-count",
            str(requests), "--warmup-request-count", str(warmup), "--concurrency", str(concurrency)]  # fmt: skip


def aiperf(
    tokenizer: Path | str, *, url: str, model: str = BLS, concurrency: int | None = None, rate: float | None = None,
    requests: int = 100, warmup: int = 10, input_tokens: int = 128, output_tokens: int = 64, seed: int = 0,
    goodput: tuple[float, float] | None = None, folder: Path | str = "aiperf",
) -> list[str]:  # fmt: skip
    """AIPerf against /v1/chat/completions: a closed loop of `concurrency`, or an open one of `rate` requests a second.

    `goodput`: limits for TTFT and ITL in milliseconds. `tokenizer`: a folder; a name is looked up on the network.
    """
    if (concurrency is None) == (rate is None):
        raise CourseError("AIPerf takes a concurrency or a rate: give one of them.")
    if rate is None:
        load = ["--concurrency", str(concurrency)]
    else:
        load = ["--request-rate", f"{rate:g}", "--arrival-pattern", "poisson"]
    if goodput:
        load += ["--goodput", f"time_to_first_token:{goodput[0]:g} inter_token_latency:{goodput[1]:g}"]
    return ["aiperf", "profile", "-m", model, "--endpoint-type", "chat", "--streaming", "--url", url, "--tokenizer",
            str(tokenizer), "--synthetic-input-tokens-mean", str(input_tokens), "--synthetic-input-tokens-stddev", "0",
            "--output-tokens-mean", str(output_tokens), "--output-tokens-stddev", "0", "--extra-inputs",
            f"min_tokens:{output_tokens}", "--request-count", str(requests), "--warmup-request-count", str(warmup),
            "--random-seed", str(seed), *load, "--artifact-dir", str(folder)]  # fmt: skip


def triton_openai(repository: Path | str, tokenizer: Path | str, *, port: int = 9000) -> list[str]:
    """Triton's own server for OpenAI's protocol, run in /opt/tritonserver/python/openai of NVIDIA's container."""
    return ["python3", "openai_frontend/main.py", "--model-repository", str(repository), "--tokenizer", str(tokenizer),
            "--host", "127.0.0.1", "--openai-port", str(port)]  # fmt: skip


def as_shell(command: Sequence[str]) -> str:
    """For pasting into a shell: one flag with its value a line."""
    lines, line = [], []
    for word in command:
        if word.startswith("-") and line:
            lines.append(" ".join(line))
            line = []
        line.append(shlex.quote(word))
    return " \\\n  ".join([*lines, " ".join(line)])
