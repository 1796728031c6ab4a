"""What scheduling, the KV cache and guessing bring, in one run: reuse of a shared prefix, in-flight against static
batching, prompt lookup.

    python benchmarks/scheduling.py [--rounds 5] [--json]

SmolLM2 in the in-process executor; weights are fp32, because only then are outputs exactly equal. The two ways of each
comparison run one after the other in every round, so that a busy machine slows both; figures are medians over rounds,
spreads the smallest and the largest ratio of a round.

Keys of --json
    prefix_ttft_speedup  time to first token of a prompt of 500 shared tokens and a question, without reuse of KV blocks
                         over with it
    prefix_reused_tokens how many of its tokens were not read again
    inflight_speedup     tokens/s of a ragged load (every eighth of 32 answers is ten times as long as the others; all
                         are asked for at once) with in-flight batching over static batching (batching_strategy "V1"),
                         batch size 8. It depends on the load: with answers of one length it would be 1
    lookup_speedup       tokens/s with prompt lookup over tokens/s without, greedy, one stream, on texts to copy
    lookup_identical     whether every token of every text was the same with and without
    …_spread             [lowest, highest] over the rounds
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "notebooks"))  # drafters
SHARED_TOKENS = 500
BATCH = 8
# Answers of a ragged load, as where most ask for a sentence and some for a letter.
LENGTHS = [12, 9, 160, 14, 20, 8, 16, 11] * 4
# Answers that repeat their prompt, as those of an editor or a proofreader do.
TEXTS = [
    "The lighthouse keeper found a letter in a green bottle on the morning of the third of March. It was written in "
    "blue ink, in a hand that he knew, and it asked him to leave the lamp dark for one night.",
    'def area(width, height):\n    """Area of a rectangle in square metres."""\n    if width < 0 or height < 0:\n'
    '        raise ValueError("a side cannot be negative")\n    return width * height\n',
    "Dear Mrs Alvarez,\n\nThank you for your letter of 12 May. We are sorry that the bicycle arrived with a bent "
    "wheel. A new wheel is on its way and will reach you on Friday.\n\nKind regards,\nThe Workshop\n",
]
COPY = "<|im_start|>user\nRepeat this text exactly, without comments:\n\n{}<|im_end|>\n<|im_start|>assistant\n"
END_ID = 2


def run(executor, prompts, lengths):
    """Submits all at once. Returns (seconds, seconds to the first token of each, the tokens of each)."""
    from reference_backend.executor import Request, SamplingParams

    outputs, tokens, firsts = queue.SimpleQueue(), {}, {}
    start = time.perf_counter()
    for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        sampling = SamplingParams(min_tokens=length)
        executor.submit(Request(str(number), np.asarray(prompt), length, sampling, end_id=2, on_output=outputs.put))
        tokens[str(number)] = []
    running = len(prompts)
    while running:
        output = outputs.get(timeout=300)
        firsts.setdefault(output.request_id, time.perf_counter() - start)
        tokens[output.request_id] += output.tokens
        if output.finish_reason:
            assert output.finish_reason == "length", output
            running -= 1
    return time.perf_counter() - start, list(firsts.values()), list(tokens.values())


def compared(ways, rounds):
    """{name: [figure of each round]} of functions, which run in turn."""
    figures = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            figures[name].append(way())
    return figures


def ratio(figures, above, below):
    """(median over median, [lowest, highest] ratio of a round)."""
    ratios = [a / b for a, b in zip(figures[above], figures[below], strict=True)]
    median = statistics.median(figures[above]) / statistics.median(figures[below])
    return round(median, 2), [round(min(ratios), 2), round(max(ratios), 2)]


def prefix(engine, tokenizer, rounds):
    """Time to first token of questions that share their first 500 tokens, with reuse of KV blocks and without."""
    from reference_backend.executor import Executor

    text = " ".join(f"Rule {number}: answer in plain words and name the source." for number in range(200))
    shared = tokenizer(text)["input_ids"][:SHARED_TOKENS]
    questions = [tokenizer(f" Question {number}: how do tides work?")["input_ids"] for number in range(rounds + 1)]
    with Executor(engine) as reusing, Executor(engine, enable_kv_cache_reuse=False) as reading:
        executors = {"reuse": reusing, "no_reuse": reading}
        answers = {name: run(executor, [shared + questions[-1]], [2])[2] for name, executor in executors.items()}
        numbers = {name: iter(range(rounds)) for name in executors}

        def first_token(name):
            _, firsts, answers[name] = run(executors[name], [shared + questions[next(numbers[name])]], [2])
            return firsts[0]

        figures = compared({name: lambda name=name: first_token(name) for name in executors}, rounds)
        reused = reusing.stats()["kv_reused_tokens"] // rounds
    assert answers["reuse"] == answers["no_reuse"], "reuse changed an answer"
    speedup, spread = ratio(figures, "no_reuse", "reuse")
    return {
        "prefix_ttft_speedup": speedup,
        "prefix_ttft_spread": spread,
        "prefix_reused_tokens": reused,
        "prefix_ttft_ms": {name: round(1e3 * statistics.median(values), 1) for name, values in figures.items()},
    }


def inflight(engine, tokenizer, rounds):
    """Tokens/s of a ragged load, with requests that join at any token and with batches that end together."""
    from reference_backend.executor import Executor

    prompts = [tokenizer(f"Story {number} of the old lighthouse:")["input_ids"] for number in range(len(LENGTHS))]
    options = {"max_batch_size": BATCH, "enable_kv_cache_reuse": False}
    with Executor(engine, **options) as inflight, Executor(engine, batching_strategy="V1", **options) as static:
        executors = {"inflight": inflight, "static": static}
        for executor in executors.values():  # pages of the weights, threads
            run(executor, prompts[:BATCH], [4] * BATCH)
        ways = {
            name: lambda executor=executor: sum(LENGTHS) / run(executor, prompts, LENGTHS)[0]
            for name, executor in executors.items()
        }
        figures = compared(ways, rounds)
    speedup, spread = ratio(figures, "inflight", "static")
    return {
        "inflight_speedup": speedup,
        "inflight_spread": spread,
        "inflight_tokens_per_second": {name: round(statistics.median(v), 1) for name, v in figures.items()},
    }


def lookup(executor, tokenizer, rounds):
    """Prompt lookup against plain greedy decoding: {lookup_speedup, lookup_identical, and what lies behind them}."""
    from drafters import PromptLookup, generate

    prompts = [tokenizer(COPY.format(text)).input_ids for text in TEXTS]

    def answers(drafter):
        start = time.perf_counter()
        found = [generate(executor, prompt, 96, end_id=END_ID, drafter=drafter) for prompt in prompts]
        return found, time.perf_counter() - start

    plain, drafted, ratios, identical = [], [], [], True
    answers(None)  # pages of the weights, threads
    for _ in range(rounds):
        (expected, without), (found, with_lookup) = answers(None), answers(PromptLookup())
        identical = identical and found == expected
        tokens = sum(map(len, expected))
        plain.append(tokens / without)
        drafted.append(tokens / with_lookup)
        ratios.append(without / with_lookup)
    return {
        "lookup_speedup": round(statistics.median(ratios), 2),
        "lookup_identical": identical,
        "lookup_tokens_per_second": {
            "without": round(statistics.median(plain), 1),
            "with": round(statistics.median(drafted), 1),
        },
        "lookup_spread": [round(min(ratios), 2), round(max(ratios), 2)],
        "lookup_tokens": tokens,
    }


def measure(rounds):
    from transformers import AutoTokenizer

    from reference_backend.executor import Executor
    from servinglab import assets
    from servinglab.notebook import device

    engine, tokenizer = assets.engine("smollm2", "fp32"), AutoTokenizer.from_pretrained(assets.tokenizer("smollm2"))
    result = prefix(engine, tokenizer, rounds) | inflight(engine, tokenizer, rounds)
    with Executor(engine) as executor:
        result |= lookup(executor, tokenizer, rounds)
    return result | {"rounds": rounds, "cpu": device("embedded").removeprefix("cpu, ")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    options = parser.parse_args()
    result = measure(options.rounds)
    if options.json:
        print(json.dumps(result))
        return
    for key, value in result.items():
        print(f"{key:28} {value}")


if __name__ == "__main__":
    main()
