"""Distributions and penalties of decoding: against scipy, transformers' logits processors and the executor's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from reference_backend.executor import SamplingParams, sampler
from reference_backend.executor.sampler import penalise
from servinglab import decoding
from servinglab.errors import CourseError

few = settings(max_examples=50)
VOCAB = 12
PLAIN = [0.5, -1.25, 3.0, 0.0, 2.75]
SPREAD = st.floats(-20, 20, width=32)
PROBABILITY = st.floats(0.001, 0.999)


# --- softmax in log space


@st.composite
def logits(draw):
    """A logits array of 1 to 3 dimensions and an axis of it; at least one finite value in each row along the axis."""
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=6))
    largest = float(np.finfo(dtype).max) / 4
    values = st.one_of(
        st.floats(-30, 30, width=np.finfo(dtype).bits), st.sampled_from([0.0, 1.0, -largest, largest, -math.inf])
    )
    at = draw(st.integers(-len(shape), len(shape) - 1))
    array = draw(hnp.arrays(dtype, shape, elements=values))
    first = np.moveaxis(array, at, 0)[:1]  # a view
    first[first == -np.inf] = 1.0
    return array, at


@few
@given(logits(), st.floats(0.01, 100))
def test_log_softmax_and_its_kin_equal_the_definition(case, temperature):
    """With logaddexp, so without any softmax of scipy's."""
    array, axis = case
    with np.errstate(over="ignore"):
        z = array.astype(np.float64) / temperature
    assume(np.isfinite(z[array > -np.inf]).all())  # only the reference overflows
    total = np.logaddexp.reduce(z, axis)
    expected = z - np.expand_dims(total, axis)
    logs, p = decoding.log_softmax(array, temperature, axis), decoding.softmax(array, temperature, axis)
    assert logs.dtype == p.dtype == np.float64
    scale = np.abs(z[z > -np.inf]).max()
    np.testing.assert_allclose(logs, expected, rtol=1e-9, atol=1e-12 + 1e-14 * scale)
    np.testing.assert_allclose(p, np.exp(logs), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(p.sum(axis), 1, rtol=1e-12)
    assert (logs <= 0).all()
    total = np.logaddexp.reduce(array.astype(np.float64), axis)
    np.testing.assert_allclose(decoding.logsumexp(array, axis), total, rtol=1e-12, atol=1e-12)


@few
@given(logits())
def test_the_limits_of_temperature(case):
    array, axis = case
    cold, hot = decoding.softmax(array, 0, axis), decoding.softmax(array, math.inf, axis)
    highest = array == array.max(axis, keepdims=True)
    np.testing.assert_allclose(cold, highest / highest.sum(axis, keepdims=True))
    finite = array > -np.inf
    np.testing.assert_allclose(hot, finite / finite.sum(axis, keepdims=True))
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(decoding.log_softmax(array, 0, axis), np.log(cold))
        np.testing.assert_allclose(decoding.log_softmax(array, math.inf, axis), np.log(hot))


def test_temperatures_near_the_limits_come_near_them():
    for temperature, limit in ((1e-300, 0), (1e-3, 0), (1e6, math.inf), (1e300, math.inf)):
        near, at = decoding.softmax(PLAIN, temperature), decoding.softmax(PLAIN, limit)
        np.testing.assert_allclose(near, at, atol=1e-5)


def test_huge_logits_do_not_overflow_and_small_probabilities_survive_as_logs():
    np.testing.assert_allclose(decoding.softmax([1000.0, 1000.0]), [0.5, 0.5])
    np.testing.assert_allclose(decoding.softmax(np.float16([60000, 60000, -60000])), [0.5, 0.5, 0])
    assert decoding.log_softmax([0.0, -2000.0])[1] == -2000.0
    assert decoding.logsumexp([-1000.0, -1000.0]) == pytest.approx(-1000 + math.log(2), rel=1e-15)
    assert decoding.logsumexp([-np.inf, -np.inf]) == -np.inf


def test_entropy_by_hand_and_against_scipy():
    assert decoding.entropy([0.5, 0.25, 0.25], base=2) == pytest.approx(1.5)
    assert decoding.entropy(np.full(8, 1 / 8)) == pytest.approx(math.log(8))
    assert decoding.entropy([0, 1, 0]) == 0
    p = np.random.default_rng(0).dirichlet(np.ones(5), 3)
    np.testing.assert_allclose(decoding.entropy(p), scipy.stats.entropy(p, axis=1))


# --- top-k and top-p


def rows(elements=SPREAD, **options):
    return hnp.arrays(np.float32, st.integers(1, VOCAB), elements=elements, **options)


def crosses_clearly(row, p) -> bool:
    """Whether no partial sum of the sorted probabilities is so near p that rounding decides."""
    partial = np.sort(scipy.special.softmax(row.astype(np.float64)))[::-1].cumsum()
    return np.abs(partial - p).min() > 1e-5


@few
@given(rows(unique=True), st.floats(0.2, 5), st.integers(0, 2 * VOCAB), st.one_of(st.just(0.0), PROBABILITY))
def test_distribution_equals_transformers_chain(row, temperature, top_k, top_p):
    scores = torch.tensor(row, dtype=torch.float64)[None]
    scores = TemperatureLogitsWarper(temperature)(None, scores)
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p:
        assume(crosses_clearly(scores[0].numpy(), top_p))
        scores = TopPLogitsWarper(top_p)(None, scores)
    ours = decoding.distribution(row, temperature, top_k, top_p)
    np.testing.assert_allclose(ours, scores.softmax(-1)[0].numpy(), rtol=1e-9, atol=1e-15)


@few
@given(
    rows(st.one_of(SPREAD, st.sampled_from([0.0, 1.0]))),  # ties are likely
    st.sampled_from([0.3, 1.0, 2.5]),
    st.integers(0, VOCAB),
    st.one_of(st.just(0.0), PROBABILITY, st.just(1.0)),
)
def test_distribution_equals_the_executors(row, temperature, top_k, top_p):
    """The executor keeps a faster sampler of its own: same tokens, same probabilities."""
    scaled = row / np.float32(temperature)
    kept = np.sort(scaled)[-top_k:] if top_k else scaled
    assume(top_p in (0, 1) or crosses_clearly(kept, top_p))
    assume(len(np.unique(scaled)) == len(np.unique(row)))  # a division in float32 may make or break a tie
    ids, probabilities = sampler.distribution(scaled, top_k, top_p)
    full = np.zeros(row.size)
    full[ids] = probabilities
    np.testing.assert_allclose(decoding.distribution(row, temperature, top_k, top_p), full, rtol=2e-5, atol=1e-12)


def test_ties_go_to_the_lower_ids_and_the_token_that_crosses_top_p_stays():
    def kept(row, **filters):
        return np.flatnonzero(decoding.distribution(row, **filters)).tolist()

    assert kept([1, 3, 3, 3], top_k=2) == [1, 2]
    logits = np.log([0.05, 0.5, 0.15, 0.3])
    assert kept(logits, top_p=0.6) == [1, 3] and kept(logits, top_p=0.01) == [1]
    # 0.5 is reached exactly by the first token, and 0.75 by three of the four ties.
    assert kept(np.log([0.25, 0.5, 0.25]), top_p=0.5) == [1]
    assert kept(np.zeros(4), top_p=0.75) == [0, 1, 2]


def test_top_p_measures_the_mass_that_top_k_left():
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    np.testing.assert_allclose(decoding.distribution(logits, top_k=2, top_p=0.6), [1, 0, 0, 0])  # 0.625 >= 0.6
    np.testing.assert_allclose(decoding.distribution(logits, top_p=0.6), [0.625, 0.375, 0, 0])
    np.testing.assert_allclose(decoding.distribution(logits, math.inf, top_k=2), [0.5, 0.5, 0, 0])
    np.testing.assert_allclose(decoding.distribution(logits, 0, top_k=2), [1, 0, 0, 0])
    table = np.stack([logits, logits[::-1]])
    np.testing.assert_allclose(decoding.distribution(table, top_p=0.6), [[0.625, 0.375, 0, 0], [0, 0, 0.375, 0.625]])


# --- draws

LOGITS = np.array([2.0, 1.0, 0.0, -1.0, 1.5, -math.inf, 0.5, -math.inf])


@pytest.mark.parametrize("seed", range(3))
def test_draws_have_the_probabilities_of_softmax(seed):
    draws = decoding.categorical(decoding.softmax(LOGITS), np.random.default_rng(seed), 20_000)
    observed = np.bincount(draws, minlength=LOGITS.size)
    expected = decoding.softmax(LOGITS) * draws.size
    allowed = expected > 0
    assert observed[~allowed].sum() == 0
    assert scipy.stats.chisquare(observed[allowed], expected[allowed]).pvalue > 1e-3
    # The test has the power to tell a temperature of 1.1 from 1.
    other = decoding.softmax(LOGITS, 1.1) * draws.size
    assert scipy.stats.chisquare(observed[allowed], other[allowed]).pvalue < 1e-3


def test_a_seed_fixes_the_draws_and_single_draws_are_ints():
    p, rng = decoding.softmax(LOGITS), np.random.default_rng(7)
    singles = [decoding.categorical(p, rng) for _ in range(50)]
    assert all(type(token) is int for token in singles)
    np.testing.assert_array_equal(decoding.categorical(p, np.random.default_rng(7), 50), singles)


class Fixed:
    """A generator whose uniform number is the one that was asked for."""

    def __init__(self, value):
        self.random = lambda size=None: value


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.4999, 1), (0.5, 3), (0.75, 4), (math.nextafter(1, 0), 4)])
def test_categorical_inverts_the_cumulative_sum_and_never_draws_zero(uniform, token):
    assert decoding.categorical([0, 0.5, 0, 0.25, 0.25, 0], Fixed(uniform)) == token


def test_greedy_takes_the_first_of_the_highest():
    assert decoding.greedy([1, 3, 3, -math.inf]) == 1 and type(decoding.greedy([1, 2])) is int
    np.testing.assert_array_equal(decoding.greedy([[1, 2], [3, 3]]), [1, 0])


# --- penalties


TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=8)
FULL_ROW = hnp.arrays(np.float32, VOCAB, elements=SPREAD)


@few
@given(FULL_ROW, TOKENS, st.floats(0.1, 10))
def test_repetition_penalty_equals_transformers(row, tokens, penalty):
    scores = torch.tensor(row, dtype=torch.float64)[None]
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([tokens], dtype=torch.int64), scores)
    np.testing.assert_allclose(decoding.repetition_penalty(row, tokens, penalty), expected[0].numpy(), rtol=1e-12)


@few
@given(FULL_ROW, TOKENS, st.floats(0.1, 10), st.floats(-5, 5), st.floats(-5, 5))
def test_penalties_equal_the_executors(row, tokens, repetition, presence, frequency):
    params = SamplingParams(repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency)
    expected = row.copy()
    penalise(expected, np.bincount(np.array(tokens, int), minlength=VOCAB), params)
    ours = decoding.repetition_penalty(row, tokens, repetition)
    ours = decoding.presence_frequency_penalty(ours, tokens, presence, frequency)
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-5)


def test_penalties_by_hand():
    np.testing.assert_allclose(decoding.repetition_penalty([4, -4, 4, 0], [0, 1, 0, 3], 2), [2, -8, 4, 0])
    np.testing.assert_allclose(decoding.presence_frequency_penalty([1, 1, 1], [0, 0, 2], 0.5, 0.25), [0, 1, 0.25])
    np.testing.assert_array_equal(decoding.repetition_penalty([-np.inf, 1], [0], 3), [-np.inf, 1])


@pytest.mark.parametrize("end_id", [0, 3])
def test_min_tokens_equal_transformers(end_id):
    prompt, row = [5, 1, 2], np.random.default_rng(0).normal(size=VOCAB)
    processor = MinNewTokensLengthLogitsProcessor(len(prompt), 3, end_id)
    banned = []
    for generated in range(5):
        scores = torch.tensor(row)[None]
        expected = processor(torch.tensor([prompt + [7] * generated]), scores)[0].numpy()
        np.testing.assert_array_equal(decoding.min_tokens_mask(row, end_id, generated, 3), expected)
        banned.append(bool(np.isneginf(expected[end_id])))
    assert banned == [True, True, True, False, False]


def test_inputs_are_left_alone():
    row = np.array([1.0, -2.0, 3.0])
    decoding.softmax(row, 2), decoding.logsumexp(row), decoding.distribution(row, top_k=1, top_p=0.1)
    decoding.repetition_penalty(row, [0, 1], 2), decoding.presence_frequency_penalty(row, [0], 1, 1)
    decoding.min_tokens_mask(row, 2, 0, 1)
    np.testing.assert_array_equal(row, [1, -2, 3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decoding.softmax([1, np.nan]), "nan or \\+inf"),
        (lambda: decoding.logsumexp([1, np.inf]), "nan or \\+inf"),
        (lambda: decoding.softmax([[1, 2], [-np.inf, -np.inf]]), "Every logit is -inf"),
        (lambda: decoding.greedy([-np.inf]), "Every logit is -inf"),
        (lambda: decoding.softmax(PLAIN, -1), "temperature is -1"),
        (lambda: decoding.softmax(PLAIN, math.nan), "temperature is nan"),
        (lambda: decoding.entropy([0.5, 0.3]), "sum to 0.8"),
        (lambda: decoding.entropy([1.5, -0.5]), "lowest is -0.5"),
        (lambda: decoding.categorical([np.nan, 0.5], np.random.default_rng(0)), "nan"),
        (lambda: decoding.distribution(PLAIN, top_k=1.5), "top_k is 1.5"),
        (lambda: decoding.distribution(PLAIN, top_p=-0.1), "top_p is -0.1"),
        (lambda: decoding.repetition_penalty([1, 2], [-1], 2), "from 0 to 1"),
        (lambda: decoding.presence_frequency_penalty([1, 2], [2], 1), "from 0 to 1"),
        (lambda: decoding.repetition_penalty([1, 2], [0], 0), "above 0"),
    ],
)
def test_errors_are_one_sentence(call, message):
    with pytest.raises(CourseError, match=message):
        call()
