"""Command lines of NVIDIA's load generators, as lists of arguments.

perf_analyzer sends any tensors to Triton. GenAI-Perf sits on it and knows TensorRT-LLM's models; NVIDIA phases it out.
AIPerf, its successor, speaks only OpenAI's protocol, so a server of that kind must stand before Triton.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

BLS = "tensorrt_llm_bls"


def perf_analyzer(
    data: Path | str, *, url: str = "localhost:8001", concurrency: tuple[int, int] = (1, 8),
    rates: tuple[float, float, float] | None = None,
) -> list[str]:  # fmt: skip
    """perf_analyzer with the inputs of `data` (see `input_data`); a decoupled model needs gRPC and --streaming.

    A closed loop of `concurrency` (first, last), or with `rates` (first, last, step) an open one of Poisson arrivals.
    """
    if rates:
        load = ["--request-rate-range", ":".join(f"{rate:g}" for rate in rates), "--request-distribution", "poisson"]
    else:
        load = ["--concurrency-range", f"{concurrency[0]}:{concurrency[1]}:1"]
    return ["perf_analyzer", "-m", BLS, "-i", "grpc", "-u", url, "--streaming", "--input-data", str(data), *load,
            "--measurement-interval", "10000", "--profile-export-file", "profile.json"]  # fmt: skip


def input_data(prompts: Sequence[str], max_tokens: int) -> str:
    """The file for --input-data. Only named inputs are sent, and without this file *every* input gets random values."""
    rows = [{"text_input": [prompt], "max_tokens": [max_tokens], "stream": [True]} for prompt in prompts]
    return json.dumps({"data": rows}, indent=1, ensure_ascii=False)


def genai_perf(tokenizer: str, *, url: str = "localhost:8001", concurrency: int, requests: int) -> list[str]:
    """GenAI-Perf against Triton's own protocol. `--output-tokens-mean-deterministic` is left out on purpose.

    That flag sends the input `min_length`, which models of TensorRT-LLM 0.20 and later refuse: theirs is `min_tokens`.
    So answers may end early.
    """
    return ["genai-perf", "profile", "-m", "ensemble", "--service-kind", "triton", "--backend", "tensorrtllm",
            "--streaming", "-u", url, "--tokenizer", tokenizer, "--synthetic-input-tokens-mean", "128",
            "--synthetic-input-tokens-stddev", "0", "--output-tokens-mean", "64", "--request-count", str(requests),
            "--warmup-request-count", "10", "--concurrency", str(concurrency)]  # fmt: skip


def aiperf(
    tokenizer: Path | str, *, url: str, concurrency: int, requests: int, warmup: int, input_tokens: int,
    output_tokens: int, seed: int = 0, folder: Path | str = "aiperf",
) -> list[str]:  # fmt: skip
    """AIPerf against /v1/chat/completions, a closed loop. `tokenizer`: a folder; a name is looked up on the network."""
    return ["aiperf", "profile", "-m", BLS, "--endpoint-type", "chat", "--streaming", "--url", url, "--tokenizer",
            str(tokenizer), "--synthetic-input-tokens-mean", str(input_tokens), "--synthetic-input-tokens-stddev", "0",
            "--output-tokens-mean", str(output_tokens), "--output-tokens-stddev", "0", "--extra-inputs",
            f"min_tokens:{output_tokens}", "--request-count", str(requests), "--warmup-request-count", str(warmup),
            "--random-seed", str(seed), "--concurrency", str(concurrency), "--artifact-dir", str(folder)]  # fmt: skip


def triton_openai(repository: str, tokenizer: str) -> list[str]:
    """Triton's own server for OpenAI's protocol, run in /opt/tritonserver/python/openai of NVIDIA's container."""
    return ["python3", "openai_frontend/main.py", "--model-repository", repository, "--tokenizer", tokenizer,
            "--host", "127.0.0.1", "--openai-port", "9000"]  # fmt: skip


def as_shell(command: Sequence[str]) -> str:
    """For pasting into a shell: one flag with its value a line."""
    lines: list[str] = []
    for word in map(shlex.quote, command):
        if word.startswith("-") or not lines:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return " \\\n  ".join(lines)
