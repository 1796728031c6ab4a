"""The executor with real weights against transformers: greedy tokens, sampled distributions, memory."""

from __future__ import annotations

import gc

import numpy as np
import psutil
import pytest
import torch
from executor_helpers import Collector, request
from scipy import stats
from transformers import TopKLogitsWarper

from servinglab.executor import Executor

END_ID = 2
NEW_TOKENS = 20

# Along these texts the likeliest token always leads the second by more than 0.004, and the two implementations differ
# by less than 1e-4. So equality is exact, with no allowance for near-ties.
PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "Water boils at",
    "The quick brown fox",
    "In 1969, the first",
    "Dear Sir or Madam,",
    "1, 2, 3, 4,",
    "The three primary colours are",
    "A recipe for bread:",
    "SELECT name FROM",
    "import numpy as np\n",
    "The opposite of hot is",
    "Bonjour, je",
    "Roses are red,",
    "Photosynthesis is the process",
    "The mitochondria",
    '"Hello", she said,',
    "E = mc",
    "To be or not to be",
    "Machine learning is",
    "My favourite animal",
    "In the year 2050",
    "x",
    "你好",
    "<|im_start|>user\nName three fruits.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n",
]


@pytest.fixture(scope="module")
def fp32(smollm2_engine_fp32):
    with Executor(smollm2_engine_fp32) as executor:
        yield executor


@pytest.fixture(scope="module")
def prompts(hf_tokenizer) -> list[list[int]]:
    return [hf_tokenizer(text).input_ids for text in PROMPTS]


def hf_greedy(hf_model, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
    """transformers' generate, cut before the end token."""
    width = max(map(len, prompts))
    ids = torch.tensor([[END_ID] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    out = hf_model.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=new_tokens, min_new_tokens=1,
        eos_token_id=END_ID, pad_token_id=END_ID,
    )  # fmt: skip
    rows = [row[width:].tolist() for row in out]
    return [row[: row.index(END_ID)] if END_ID in row else row for row in rows]


@pytest.fixture(scope="module")
def greedy(hf_model, prompts) -> list[list[int]]:
    by_length = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))
    found = {}
    for part in (by_length[:14], by_length[14:]):
        found.update(zip(part, hf_greedy(hf_model, [prompts[at] for at in part], NEW_TOKENS), strict=True))
    return [found[at] for at in range(len(prompts))]


def test_greedy_alone_equals_transformers(fp32, prompts, greedy):
    assert [fp32.generate(prompt, NEW_TOKENS, end_id=END_ID) for prompt in prompts] == greedy
    assert {len(tokens) for tokens in greedy} > {NEW_TOKENS}, "some of them end by themselves"


def test_greedy_in_a_mixed_batch_equals_transformers(fp32, prompts, greedy):
    """All together, eight at a time, with different lengths and arrivals."""
    collector = Collector()
    lengths = [max(1, NEW_TOKENS - 5 * (at % 5)) for at in range(len(prompts))]
    for at, prompt in enumerate(prompts):
        fp32.submit(request(str(at), prompt, lengths[at], collector, end_id=END_ID, temperature=3.0, seed=at))
        if at % 4 == 3:
            collector.wait_for_tokens(str(at - 3), min(3, len(greedy[at - 3][: lengths[at - 3]])), seconds=120)
    collector.wait(*map(str, range(len(prompts))), seconds=240)
    for at, tokens in enumerate(greedy):
        assert collector.tokens(str(at)) == tokens[: lengths[at]], PROMPTS[at]
        assert collector.reason(str(at)) == ("length" if len(tokens) >= lengths[at] else "end_id")


def test_a_long_prompt_equals_transformers(fp32, hf_model, hf_tokenizer):
    """Read in several pieces while another request runs."""
    long = hf_tokenizer("The list of the first numbers: " + ", ".join(map(str, range(120))) + ",").input_ids
    assert len(long) > 300
    collector = Collector()
    fp32.submit(request("other", [28, 29, 30], 60, collector))
    assert fp32.generate(long, 12, end_id=END_ID) == hf_greedy(hf_model, [long], 12)[0]
    collector.wait("other", seconds=60)


def test_sampled_first_tokens_follow_the_exact_probabilities(fp32, hf_model, prompts):
    """Through the whole executor: one request for each seed, many in the batch at once."""
    prompt = prompts[1]
    with torch.no_grad():
        logits = hf_model(torch.tensor([prompt])).logits[0, -1:]
    exact = torch.softmax(TopKLogitsWarper(4)(None, logits / 2.0), -1)[0].double().numpy()
    collector = Collector()
    names = [str(seed) for seed in range(250)]
    for seed, name in enumerate(names):
        fp32.submit(request(name, prompt, 1, collector, seed=seed, top_k=4, temperature=2.0))
    collector.wait(*names, seconds=240)
    drawn = np.bincount([collector.tokens(name)[0] for name in names], minlength=len(exact))
    kept = exact > 0
    assert kept.sum() == 4 and drawn[kept].sum() == 250
    assert stats.chisquare(drawn[kept], exact[kept] / exact[kept].sum() * 250).pvalue > 1e-3


def test_sampled_tokens_do_not_depend_on_the_batch(fp32, prompts):
    settings = {"top_p": 0.9, "temperature": 1.3, "seed": 11}
    alone = fp32.generate(prompts[0], 16, **settings)
    collector = Collector()
    for at, prompt in enumerate(prompts[1:7]):
        fp32.submit(request(str(at), prompt, 30, collector, top_k=20, seed=at))
    assert fp32.generate(prompts[0], 16, **settings) == alone
    collector.wait(*map(str, range(6)), seconds=120)
    assert fp32.generate(prompts[0], 16, **{**settings, "seed": 12}) != alone


def test_small_numbers_of_the_caller_stay(smollm2_engine_int4):
    """ONNX Runtime can make the thread that loads a model round subnormal numbers to zero: those of all its sums."""
    tiny = np.array([1e-310])
    with Executor(smollm2_engine_int4, max_batch_size=1):
        assert (tiny * 1.0)[0] == 1e-310


def test_memory_is_level_after_many_requests(smollm2_engine_int4):
    """200 short requests, a third of them cancelled: none lost, none doubled, no memory kept."""
    random = np.random.default_rng(0)

    def resident() -> float:
        gc.collect()
        return psutil.Process().memory_info().rss / 2**20

    with Executor(smollm2_engine_int4, max_batch_size=8) as executor:

        def serve(count: int, first: int) -> Collector:
            collector = Collector()
            names = [str(first + n) for n in range(count)]
            for name in names:
                prompt = random.integers(3, 9000, random.integers(1, 20))
                executor.submit(request(name, prompt, int(random.integers(1, 8)), collector, top_k=20, seed=int(name)))
                if random.random() < 0.33:
                    executor.cancel(str(random.integers(first, int(name) + 1)))
            collector.wait(*names, seconds=240)
            return collector

        serve(40, 0)
        before = resident()
        collector = serve(200, 1000)
        assert resident() - before < 25
        reasons = [collector.reason(name) for name in collector.outputs]
        assert len(reasons) == 200 and set(reasons) == {"length", "cancelled"}
        assert executor.stats()["kv_blocks_used"] == 0
