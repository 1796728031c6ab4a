"""The executor with real weights against transformers: greedy tokens, sampled distributions, log probabilities, beams,
memory."""

from __future__ import annotations

import gc

import numpy as np
import psutil
import pytest
import torch
from executor_helpers import Collector, request
from scipy import stats
from transformers import TopKLogitsWarper

from drafters import generate
from reference_backend.executor import Executor

END_ID = COMMA = 28  # so that some texts, and some beams, end by themselves
NEW_TOKENS = 12

# Along these texts the likeliest token always leads the second by more than 0.004, and the two implementations differ
# by less than 1e-4. So equality is exact, with no allowance for near-ties.
PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "1, 2, 3, 4,",
    "SELECT name FROM",
    "Bonjour, je",
    "Roses are red,",
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
    for part in (by_length[:6], by_length[6:]):
        found.update(zip(part, hf_greedy(hf_model, [prompts[at] for at in part], NEW_TOKENS), strict=True))
    return [found[at] for at in range(len(prompts))]


def test_greedy_alone_equals_transformers(fp32, prompts, greedy):
    """Every second prompt; the others have their whole length in the mixed batch below."""
    assert [generate(fp32, prompt, NEW_TOKENS, end_id=END_ID) for prompt in prompts[::2]] == greedy[::2]
    assert {len(tokens) for tokens in greedy} > {NEW_TOKENS}, "some of them end by themselves"


def test_greedy_in_a_mixed_batch_equals_transformers(fp32, prompts, greedy):
    """All together, eight at a time, with different lengths and arrivals."""
    collector = Collector()
    lengths = [NEW_TOKENS if at % 2 else max(1, NEW_TOKENS - 5 * (at // 2 % 5)) for at in range(len(prompts))]
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
    long = hf_tokenizer("The list of the first numbers: " + ", ".join(map(str, range(60))) + ",").input_ids
    assert len(long) > 2 * 64, "three pieces"
    collector = Collector()
    fp32.submit(request("other", [28, 29, 30], 20, collector))
    assert generate(fp32, long, 4, end_id=END_ID) == hf_greedy(hf_model, [long], 4)[0]
    collector.wait("other", seconds=60)


def test_sampled_first_tokens_follow_the_exact_probabilities(fp32, hf_model, prompts):
    """Through the whole executor: one request for each seed, many in the batch at once."""
    prompt = prompts[1]
    with torch.no_grad():
        logits = hf_model(torch.tensor([prompt])).logits[0, -1:]
    exact = torch.softmax(TopKLogitsWarper(4)(None, logits / 2.0), -1)[0].double().numpy()
    collector = Collector()
    names = [str(seed) for seed in range(120)]
    for seed, name in enumerate(names):
        fp32.submit(request(name, prompt, 1, collector, seed=seed, top_k=4, temperature=2.0))
    collector.wait(*names, seconds=240)
    drawn = np.bincount([collector.tokens(name)[0] for name in names], minlength=len(exact))
    kept = exact > 0
    assert kept.sum() == 4 and drawn[kept].sum() == 120
    assert stats.chisquare(drawn[kept], exact[kept] / exact[kept].sum() * 120).pvalue > 1e-3


def test_sampled_tokens_do_not_depend_on_the_batch(fp32, prompts):
    settings = {"top_p": 0.9, "temperature": 1.3, "seed": 11}
    alone = generate(fp32, prompts[0], 8, **settings)
    collector = Collector()
    for at, prompt in enumerate(prompts[1:7]):
        fp32.submit(request(str(at), prompt, 12, collector, top_k=20, seed=at))
    assert generate(fp32, prompts[0], 8, **settings) == alone
    collector.wait(*map(str, range(6)), seconds=120)
    assert generate(fp32, prompts[0], 8, **{**settings, "seed": 12}) != alone


# --- log probabilities and logits: the definition is in executor/request.py


def forward(hf_model, tokens: list[int]) -> torch.Tensor:
    """transformers' logits [tokens, vocab] in float64."""
    with torch.no_grad():
        return hf_model(torch.tensor([tokens])).logits[0].double()


def last_of(executor, prompt, max_tokens, *, bias=None, **options):
    """Tokens, log probabilities, context logits and generation logits of one request."""
    collector = Collector()
    made = request("x", prompt, max_tokens, collector, **options)
    made.embedding_bias = bias
    made.return_log_probs = made.return_context_logits = made.return_generation_logits = True
    executor.submit(made)
    collector.wait("x", seconds=120)
    outputs = collector.outputs["x"]
    assert all(output.context_logits is None for output in outputs[1:])
    log_probs = [value for output in outputs for value in output.log_probs]
    return (
        collector.tokens("x"), log_probs, outputs[0].context_logits,
        np.concatenate([output.generation_logits for output in outputs]),
    )  # fmt: skip


def test_greedy_log_probs_and_logits_are_those_of_transformers(fp32, hf_model, prompts):
    """TensorRT-LLM reports 0 for each token here (tensorrtllm_backend#276); this executor does not."""
    tokens, log_probs, context, generation = last_of(fp32, prompts[0], 8, temperature=0.3)
    logits = forward(hf_model, prompts[0] + tokens)
    first = len(prompts[0]) - 1
    np.testing.assert_allclose(context, logits[: first + 1], atol=1e-3)
    np.testing.assert_allclose(generation, logits[first:-1], atol=1e-3)
    exact = torch.log_softmax(logits, -1)[range(first, first + 8), tokens]
    np.testing.assert_allclose(log_probs, exact, atol=1e-4)
    assert max(log_probs) < -1e-3


def test_log_probs_of_a_long_prompt_read_in_pieces(fp32, hf_model, hf_tokenizer):
    long = hf_tokenizer("Numbers: " + ", ".join(map(str, range(40))) + ",").input_ids
    assert len(long) > 64, "more than one piece"
    _, _, context, _ = last_of(fp32, long, 1)
    np.testing.assert_allclose(context, forward(hf_model, long), atol=1e-3)


def test_sampled_log_probs_are_over_the_whole_vocabulary(fp32, hf_model, prompts):
    """After bias, temperature and penalties, before top-k: the probability the token had, not its share of the k."""
    bias = np.zeros(fp32.limits.vocab_size, np.float32)
    bias[:500] = 1.5
    options = {"temperature": 1.7, "top_k": 5, "seed": 4, "presence_penalty": 0.8}
    tokens, log_probs, _, generation = last_of(fp32, prompts[1], 6, bias=bias, **options)
    logits = forward(hf_model, prompts[1] + tokens)[len(prompts[1]) - 1 : -1]
    np.testing.assert_allclose(generation, logits, atol=1e-3, err_msg="the model's own, before any processing")
    for step, row in enumerate(logits):
        seen = sorted({*prompts[1], *tokens[:step]})
        scores = (row + torch.from_numpy(bias)) / 1.7
        scores[seen] -= 0.8
        assert log_probs[step] == pytest.approx(torch.log_softmax(scores, -1)[tokens[step]].item(), abs=1e-4)


def test_the_end_token_has_a_log_prob_and_is_no_token(fp32, hf_model, prompts):
    free, before, _, _ = last_of(fp32, prompts[0], 8)
    at = next(n for n in range(2, 8) if free[n] not in free[:n])
    # min_tokens 1, the default, would forbid end_id for the first token, and its share would go to the others.
    tokens, log_probs, _, generation = last_of(fp32, prompts[0], 8, end_id=free[at], min_tokens=0)
    assert tokens == free[:at] and len(log_probs) == len(generation) == at + 1
    np.testing.assert_allclose(log_probs, before[: at + 1], atol=1e-5)


# --- beam search with real weights; every combination of the settings is in test_executor_beams.py

BEAM_TOKENS = 6  # a comma ends a beam, so that length_penalty has something to compare


def test_beams_equal_transformers(smollm2_engine_fp32, hf_model, prompts):
    """Tokens and scores of all beams; two beams whose scores nearly tie may be swapped, but seldom."""
    width, chosen, penalties = 4, prompts[2:5], (0.0, 2.0)
    collector, names = Collector(), {}
    with Executor(smollm2_engine_fp32, max_batch_size=8, max_beam_width=width) as executor:
        for penalty in penalties:
            for at, prompt in enumerate(chosen):
                names[penalty, at] = name = f"{penalty}-{at}"
                options = {"beam_width": width, "length_penalty": penalty, "min_tokens": 0}
                executor.submit(request(name, prompt, BEAM_TOKENS, collector, end_id=COMMA, **options))
        collector.wait(*names.values(), seconds=240)
    ended = near_ties = 0
    for (penalty, at), name in names.items():
        out = hf_model.generate(
            torch.tensor([chosen[at]]), do_sample=False, num_beams=width, num_return_sequences=width,
            max_new_tokens=BEAM_TOKENS, length_penalty=penalty, early_stopping=True, eos_token_id=COMMA,
            pad_token_id=COMMA, return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        rows = out.sequences[:, len(chosen[at]) :].tolist()
        theirs = [row[: row.index(COMMA)] if COMMA in row else row for row in rows]
        beams = collector.outputs[name][-1].beams
        assert [beam.score for beam in beams] == pytest.approx(out.sequences_scores.tolist(), abs=5e-4)
        near_ties += [beam.tokens for beam in beams] != theirs
        ended += sum(beam.finish_reason == "end_id" for beam in beams)
    assert near_ties <= 1 and ended >= 3


def test_int4_beams_are_its_own_best_paths(smollm2_engine_int4, prompts):
    """No reference has these weights, so each path is scored again, greedily forced, by the same engine."""
    collector = Collector()
    with Executor(smollm2_engine_int4, max_batch_size=4, max_beam_width=4) as executor:
        executor.submit(request("beams", prompts[0], 6, collector, beam_width=4))
        collector.wait("beams", seconds=120)
        beams = collector.outputs["beams"][-1].beams
        greedy = last_of(executor, prompts[0], 6)
        for beam in beams:
            _, _, context, _ = last_of(executor, prompts[0] + beam.tokens, 1)
            rows = torch.log_softmax(torch.from_numpy(context).double(), -1)[len(prompts[0]) - 1 : -1]
            again = rows[range(6), beam.tokens]
            np.testing.assert_allclose(beam.log_probs, again, atol=0.15)  # int4 logits depend on the batch's shape
    assert beams[0].cum_log_prob >= sum(greedy[1]) - 0.3
    assert [beam.cum_log_prob for beam in beams] == sorted((b.cum_log_prob for b in beams), reverse=True)


def test_small_numbers_of_the_caller_stay(smollm2_engine_int4):
    """ONNX Runtime can make the thread that loads a model round subnormal numbers to zero: those of all its sums."""
    tiny = np.array([1e-310])
    with Executor(smollm2_engine_int4, max_batch_size=1):
        assert (tiny * 1.0)[0] == 1e-310


def test_memory_is_level_after_many_requests(smollm2_engine_int4):
    """100 short requests, a third of them cancelled: none lost, none doubled, no memory kept but that of 8 blocks."""
    random = np.random.default_rng(0)

    def resident() -> float:
        gc.collect()
        return psutil.Process().memory_info().rss / 2**20

    with Executor(smollm2_engine_int4, max_batch_size=8, max_tokens_in_paged_kv_cache=8 * 64) as executor:

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

        serve(30, 0)
        before = resident()
        collector = serve(100, 1000)
        assert resident() - before < 16
        reasons = [collector.reason(name) for name in collector.outputs]
        assert len(reasons) == 100 and set(reasons) == {"length", "cancelled"}
        assert executor.stats()["kv_blocks_used"] == 0 and executor.stats()["kv_cached_blocks"] <= 8
