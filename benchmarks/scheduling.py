"""What the scheduler's tricks bring, in one run on one engine.

    python benchmarks/scheduling.py [--rounds 5] [--json]

Keys of --json
    lookup_speedup    tokens/s with prompt lookup over tokens/s without, greedy, one stream, on texts to copy
    lookup_identical  whether every token of every text was the same with and without

Weights are fp32, because only then are outputs exactly equal. Within a round the two ways run one after the other, and
a figure is the median over rounds, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

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


def lookup(executor, tokenizer, rounds):
    """Prompt lookup against plain greedy decoding: {lookup_speedup, lookup_identical, and what lies behind them}."""
    from servinglab.executor.drafters import PromptLookup

    prompts = [tokenizer(COPY.format(text)).input_ids for text in TEXTS]

    def answers(drafter):
        start = time.perf_counter()
        found = [executor.generate(prompt, 96, end_id=END_ID, drafter=drafter) for prompt in prompts]
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
        "lookup_rounds": [round(ratio, 2) for ratio in ratios],
        "lookup_tokens": tokens,
    }


def measure(rounds):
    from transformers import AutoTokenizer

    from servinglab import assets
    from servinglab.executor import Executor

    tokenizer = AutoTokenizer.from_pretrained(assets.tokenizer("smollm2"))
    with Executor(assets.engine("smollm2", "fp32")) as executor:
        return lookup(executor, tokenizer, rounds)


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
        print(f"{key:26} {value}")


if __name__ == "__main__":
    main()
