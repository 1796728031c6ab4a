"""The sampler against transformers' logits processors and torch's softmax, value by value and draw by draw."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import RepetitionPenaltyLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from reference_backend.executor import Request, RequestError, SamplingParams
from reference_backend.executor.sampler import Sampler, distribution, largest

VOCAB = 5000
PROMPT = [7, 11, 7, 400, 7]


def sampler(*, prompt=PROMPT, vocab=VOCAB, end_id=None, bad_words=(), **sampling) -> Sampler:
    request = Request("r", np.array(prompt), 10, SamplingParams(**sampling), end_id=end_id, bad_words=bad_words)
    return Sampler(request, vocab)


@pytest.fixture
def logits() -> np.ndarray:
    """Spread like a language model's: few tokens far above the rest."""
    return np.random.default_rng(5).standard_gamma(0.6, VOCAB).astype(np.float32) * 3 - 2


def exact(logits, *, temperature=1.0, top_k=0, top_p=0.0, repetition=1.0, presence=0.0, frequency=0.0, tokens=PROMPT):
    """Probabilities [vocab] worked out with other people's code, in TensorRT-LLM's order."""
    ids = torch.tensor([tokens])
    scores = torch.tensor(logits, dtype=torch.float64)[None] / temperature
    if repetition != 1:
        scores = RepetitionPenaltyLogitsProcessor(repetition)(ids, scores)
    counts = torch.bincount(ids[0], minlength=scores.shape[1])
    scores = scores - presence * (counts > 0) - frequency * counts
    if top_k:
        scores = TopKLogitsWarper(top_k)(ids, scores)
    if top_p:
        scores = TopPLogitsWarper(top_p)(ids, scores)
    return torch.softmax(scores, -1)[0].numpy()


# --- greedy


@pytest.mark.parametrize(
    "change", [{}, {"temperature": 5.0}, {"seed": 9}, {"temperature": 0, "top_k": 50}, {"top_k": 1}]
)
def test_greedy_takes_the_likeliest_token(logits, change):
    expected = int(torch.tensor(logits).argmax())
    assert {sampler(**change).choose(logits.copy(), PROMPT) for _ in range(5)} == {expected}


def test_greedy_feels_penalties(logits):
    best, second = np.argsort(-logits)[:2].tolist()
    assert sampler(prompt=[best], presence_penalty=50.0).choose(logits.copy(), [best]) == second


# --- which tokens survive, with which probability


@pytest.mark.parametrize("top_p", [0.0, 0.05, 0.5, 0.9, 0.9999, 1.0])
@pytest.mark.parametrize("top_k", [0, 1, 2, 40, 1024])
@pytest.mark.parametrize("sharpness", [0.01, 1.0, 20.0])
def test_distribution_equals_transformers(logits, top_k, top_p, sharpness):
    if not top_k and not top_p:
        pytest.skip("both off is greedy")
    scaled = logits * np.float32(sharpness)
    ids, probabilities = distribution(scaled, top_k, top_p)
    full = np.zeros(VOCAB)
    full[ids] = probabilities
    assert len(set(ids.tolist())) == len(ids)
    assert full.sum() == pytest.approx(1)
    np.testing.assert_allclose(full, exact(scaled, top_k=top_k, top_p=top_p), rtol=1e-4, atol=1e-9)


def test_the_token_that_crosses_top_p_is_kept():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    assert distribution(logits, 0, 0.6)[0].tolist() == [0, 1]
    # After top_k 2 the two are 0.625 and 0.375, so 0.6 is reached by the first alone.
    assert distribution(logits, 2, 0.6)[0].tolist() == [0]


@pytest.mark.parametrize("size", [1, 15, 16, 33, 500, 49152])
def test_largest_equals_a_full_sort(size):
    random = np.random.default_rng(size)
    for values in (random.standard_normal(size), random.integers(0, 4, size).astype(float), np.zeros(size)):
        order = np.lexsort((np.arange(size), -values))
        for count in {1, 2, 7, size // 3, size - 1, size} - {0}:
            np.testing.assert_array_equal(largest(values, count), order[:count])


# --- penalties and bans, seen through the probabilities


def chosen_scores(monkeypatch, chooser: Sampler, logits, tokens):
    """The logits as they stand when the token is drawn."""
    seen = []
    real = distribution
    monkeypatch.setattr(
        "reference_backend.executor.sampler.distribution", lambda row, k, p: seen.append(row.copy()) or real(row, k, p)
    )
    chooser.choose(logits.copy(), tokens)
    return seen[0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("repetition", "presence", "frequency"), [(1.7, 0, 0), (0.6, 0, 0), (1, 1.5, 0), (1, 0, 0.7), (1.3, -2.0, 0.4)]
)
def test_penalties_count_the_prompt(monkeypatch, logits, temperature, repetition, presence, frequency):
    logits[11], logits[7] = -3.0, 4.0  # a repetition penalty treats signs differently
    chooser = sampler(
        temperature=temperature, top_p=1.0, repetition_penalty=repetition, presence_penalty=presence,
        frequency_penalty=frequency,
    )  # fmt: skip
    for tokens in (PROMPT, PROMPT + [9], PROMPT + [9, 9, 7]):  # the request's tokens as it goes on
        scores = chosen_scores(monkeypatch, chooser, logits, tokens)
        expected = exact(
            logits,
            temperature=temperature,
            repetition=repetition,
            presence=presence,
            frequency=frequency,
            tokens=tokens,
        )
        np.testing.assert_allclose(torch.softmax(torch.tensor(scores).double(), -1), expected, rtol=1e-4, atol=1e-9)


def test_end_id_waits_for_min_tokens(logits):
    best, second = np.argsort(-logits)[:2].tolist()
    chooser = sampler(end_id=best, min_tokens=2)
    assert chooser.choose(logits.copy(), PROMPT) == second
    assert chooser.choose(logits.copy(), PROMPT + [1]) == second
    assert chooser.choose(logits.copy(), PROMPT + [1, 2]) == best
    assert sampler(end_id=best, min_tokens=0).choose(logits.copy(), PROMPT) == best


def test_bad_words_are_never_completed(logits):
    best, second = np.argsort(-logits)[:2].tolist()
    assert sampler(bad_words=[[best]]).choose(logits.copy(), PROMPT) == second
    chooser = sampler(bad_words=[[400, 7, best]])
    assert chooser.choose(logits.copy(), PROMPT) == second, "the start of a bad word may lie in the prompt"
    assert chooser.choose(logits.copy(), PROMPT + [8]) == best
    assert sampler(prompt=[7], bad_words=[[9, 7, best]]).choose(logits.copy(), [7]) == best


def test_no_token_left_is_one_sentence():
    with pytest.raises(RequestError, match="bad_words forbids the whole vocabulary"):
        sampler(prompt=[0], vocab=2, bad_words=[[0], [1]]).choose(np.zeros(2, np.float32), [0])
    with pytest.raises(RequestError, match="not finite"):
        sampler(prompt=[0], vocab=2).choose(np.array([0, np.nan], np.float32), [0])


def test_a_bias_that_overflows_is_named():
    params = SamplingParams(temperature=0.5, top_k=2)

    def choose(logits, bias):
        request = Request("r", np.array([0]), 1, params, embedding_bias=np.array(bias, np.float32))
        return Sampler(request, 2).choose(np.array(logits, np.float32), [0])

    with pytest.raises(RequestError, match="logits with embedding_bias are not finite"):
        choose([0, 0], [3.4e38, 0])
    for fault in (np.inf, np.nan):
        with pytest.raises(RequestError, match="The model's logits with embedding_bias are not finite"):
            choose([0, fault], [50, 0])
    assert choose([0, 0], [1e38, 0]) == 0


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e30])
def test_extreme_temperatures_stay_finite(logits, temperature):
    with np.errstate(all="raise", under="ignore"):
        token = sampler(temperature=temperature, top_k=50, repetition_penalty=1.2).choose(logits.copy(), PROMPT)
    assert 0 <= token < VOCAB


@pytest.mark.parametrize("repetition", [1e-300, 1e300])
@pytest.mark.parametrize("presence", [-1e308, 1e308])
def test_absurd_penalties_stay_finite(logits, repetition, presence):
    with np.errstate(all="raise", under="ignore"):
        chooser = sampler(top_p=0.9, repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=1e300)
        assert 0 <= chooser.choose(logits.copy(), PROMPT) < VOCAB


# --- random numbers


def draw(count, logits, **sampling):
    chooser = sampler(vocab=len(logits), **sampling)
    return [chooser.choose(logits.copy(), PROMPT) for _ in range(count)]


def test_seed_decides_and_neighbours_do_not(logits):
    alone = draw(40, logits, top_p=0.9)
    assert alone == draw(40, logits, top_p=0.9, seed=0), "the default seed is 0"
    assert alone != draw(40, logits, top_p=0.9, seed=1)
    assert draw(3, logits, top_p=0.9, seed=2**64 - 1) == draw(3, logits, top_p=0.9, seed=2**64 - 1)
    first, neighbour = sampler(top_p=0.9), sampler(top_p=1.0, seed=4)
    mixed = []
    for _ in range(40):
        mixed.append(first.choose(logits.copy(), PROMPT))
        neighbour.choose(logits.copy(), PROMPT)
    assert mixed == alone


@pytest.fixture(scope="module")
def real_logits(hf_model, hf_tokenizer):
    """The model's own logits at two places: one where it is very unsure, one where it is less so."""
    rows = []
    for text in ("The best thing about", "She opened the"):
        with torch.no_grad():
            rows.append(hf_model(hf_tokenizer(text, return_tensors="pt").input_ids).logits[0, -1].float().numpy())
    return rows


def p_value(draws: list[int], expected: np.ndarray) -> float:
    """Chi-squared test; tokens expected less than 8 times share one bin, as the test demands."""
    counts = np.bincount(draws, minlength=len(expected)).astype(float)
    assert not counts[expected == 0].any(), "drew a token that cannot come"
    wanted = expected * len(draws)
    rare = wanted < 8
    bins = [(counts[~rare], wanted[~rare])]
    if wanted[rare].sum() >= 1:
        bins.append((counts[rare].sum(keepdims=True), wanted[rare].sum(keepdims=True)))
    observed, hoped = (np.concatenate(column) for column in zip(*bins, strict=True))
    assert len(observed) > 1
    return stats.chisquare(observed, hoped * observed.sum() / hoped.sum()).pvalue


SETTINGS = {
    "temperature 0.5": {"temperature": 0.5, "top_p": 1.0},
    "temperature 1": {"top_p": 1.0},
    "temperature 2": {"temperature": 2.0, "top_p": 1.0},
    "top_k": {"top_k": 10},
    "top_p": {"top_p": 0.7},
    "top_p, wide": {"temperature": 2.0, "top_p": 0.98},
    "top_k and top_p": {"top_k": 20, "top_p": 0.8, "temperature": 1.5},
    "repetition": {"top_k": 30, "repetition": 1.5},
    "presence": {"top_k": 30, "presence": 1.0, "temperature": 0.7},
    "frequency": {"top_k": 30, "frequency": 0.4, "temperature": 1.5},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_draws_follow_the_exact_probabilities(real_logits, name):
    """At one of the two places, each second setting at the other."""
    setting, seed = SETTINGS[name], list(SETTINGS).index(name) % 2
    logits = real_logits[seed]
    likely = np.argsort(-logits)[:12].tolist()
    prompt = likely[:3] * 2 + likely[4:9:2]  # so that penalties touch what is likely
    arguments = {key + "_penalty" if key in ("repetition", "presence", "frequency") else key: value
                 for key, value in setting.items()}  # fmt: skip
    chooser = sampler(prompt=prompt, vocab=len(logits), seed=seed, **arguments)
    draws = [chooser.choose(logits.copy(), prompt) for _ in range(2500)]
    assert p_value(draws, exact(logits, tokens=prompt, **setting)) > 1e-3


def test_the_chi_squared_test_has_teeth(real_logits):
    draws = draw(3000, real_logits[0], top_k=30)
    assert p_value(draws, exact(real_logits[0], top_k=30)) > 1e-3
    assert p_value(draws, exact(real_logits[0], top_k=30, temperature=1.1)) < 1e-3
