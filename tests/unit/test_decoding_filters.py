"""decoding.filters and decoding.penalties against transformers' logits processors and the executor's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from reference_backend.executor import SamplingParams, sampler
from reference_backend.executor.logits import penalise
from servinglab import decoding
from servinglab.errors import CourseError

few = settings(max_examples=50)
VOCAB = 12
HUGE = float(np.finfo(np.float32).max)
SPREAD = st.floats(-20, 20, width=32)
EDGY = st.one_of(SPREAD, st.sampled_from([0.0, 1.0, -HUGE, HUGE, -math.inf]))  # ties are likely
PROBABILITY = st.floats(0.001, 0.999)


def rows(elements=EDGY, dtype=np.float32, unique=False):
    """Logits [vocab] with at least one finite value."""
    arrays = hnp.arrays(dtype, st.integers(1, VOCAB), elements=elements, unique=unique)
    return arrays.filter(lambda row: (row > -np.inf).any())


def warped(warper, row) -> np.ndarray:
    return warper(None, torch.tensor(np.asarray(row), dtype=torch.float64)[None])[0].numpy()


def crosses_clearly(row, p) -> bool:
    """Whether no partial sum of the sorted probabilities is so near p that rounding decides."""
    partial = np.sort(scipy.special.softmax(row.astype(np.float64)))[::-1].cumsum()
    return np.abs(partial - p).min() > 1e-5


# --- top-k


@few
@given(rows(), st.integers(1, 2 * VOCAB))
def test_top_k_equals_transformers_but_for_ties(row, k):
    ours, theirs = decoding.top_k(row, k), warped(TopKLogitsWarper(k), row)
    kept = ours > -np.inf
    assert kept.sum() == min(k, (row > -np.inf).sum())
    np.testing.assert_array_equal(ours[kept], theirs[kept])
    # transformers also keeps whatever ties with the last one kept.
    extra = (theirs > -np.inf) & ~kept
    assert (theirs[extra] == ours[kept].min()).all()


@few
@given(rows(unique=True), st.integers(1, 2 * VOCAB))
def test_top_k_without_ties_equals_transformers(row, k):
    np.testing.assert_array_equal(decoding.top_k(row, k), warped(TopKLogitsWarper(k), row))


def test_top_k_ties_go_to_the_lower_ids_along_any_axis():
    np.testing.assert_array_equal(decoding.top_k([1, 3, 3, 3], 2), [-np.inf, 3, 3, -np.inf])
    table = np.array([[1, 5], [2, 4], [3, 9]])
    none = -np.inf
    np.testing.assert_array_equal(decoding.top_k(table, 1), [[none, 5], [none, 4], [none, 9]])
    np.testing.assert_array_equal(decoding.top_k(table, 1, axis=0), [[none, none], [none, none], [3, 9]])
    np.testing.assert_array_equal(decoding.top_k(table, 2, axis=0), [[none, 5], [2, none], [3, 9]])


# --- top-p


@few
@given(rows(st.one_of(SPREAD, st.just(-math.inf)), unique=True), PROBABILITY)
def test_top_p_equals_transformers(row, p):
    assume(crosses_clearly(row, p))
    np.testing.assert_array_equal(decoding.top_p(row, p), warped(TopPLogitsWarper(p), row))


@few
@given(rows(), PROBABILITY)
def test_top_p_is_the_smallest_set_that_reaches_p(row, p):
    probabilities = decoding.softmax(row)
    kept = decoding.top_p(row, p) > -np.inf
    mass = probabilities[kept].sum()
    assert mass >= p - 1e-9
    assert mass - probabilities[kept].min() < p + 1e-9, "without its last token it falls short"
    dropped = ~kept & (row > -np.inf)
    assert not dropped.any() or row[kept].min() >= row[dropped].max()


def test_the_token_that_crosses_p_is_kept():
    logits = np.log([0.05, 0.5, 0.15, 0.3])
    assert np.flatnonzero(decoding.top_p(logits, 0.6) > -np.inf).tolist() == [1, 3]
    assert np.flatnonzero(decoding.top_p(logits, 0.01) > -np.inf).tolist() == [1]
    # 0.5 is reached exactly by the first token, and 0.75 by two of the three ties (the lower ids).
    exact = np.log([0.25, 0.5, 0.25])
    assert np.flatnonzero(decoding.top_p(exact, 0.5) > -np.inf).tolist() == [1]
    assert np.flatnonzero(decoding.top_p(np.zeros(4), 0.75) > -np.inf).tolist() == [0, 1, 2]


def test_top_p_along_any_axis():
    table = np.random.default_rng(0).normal(size=(3, 7, 2)) * 3
    ours = decoding.top_p(table, 0.7, axis=1)
    for i in range(3):
        for j in range(2):
            np.testing.assert_array_equal(ours[i, :, j], decoding.top_p(table[i, :, j], 0.7))


# --- min-p


@few
@given(rows(st.one_of(SPREAD, st.just(-math.inf))), st.floats(0.001, 1))
def test_min_p_equals_transformers(row, p):
    distance = row.astype(np.float64) - row.max() - math.log(p)
    assume((np.abs(distance) > 1e-5).all() or p == 1)
    # With ties for the first place and p = 1 both keep all of them.
    np.testing.assert_array_equal(decoding.min_p(row, p), warped(MinPLogitsWarper(p), row))


def test_min_p_keeps_what_is_exactly_at_the_limit():
    np.testing.assert_array_equal(decoding.min_p([2, 1, 2], 1), [2, -np.inf, 2])
    table = np.log([[0.8, 0.15, 0.05], [0.4, 0.3, 0.3]])
    np.testing.assert_array_equal(decoding.min_p(table, 0.5) > -np.inf, [[True, False, False], [True, True, True]])


# --- all of them


@few
@given(rows(), st.sampled_from([np.float16, np.float32, np.float64]))
def test_switched_off_filters_change_nothing(row, dtype):
    with np.errstate(over="ignore"):
        row = row.astype(dtype)
    assume(not (row == np.inf).any())
    same = [decoding.top_k(row, k) for k in (0, row.size, row.size + 5)]
    same += [decoding.top_p(row, p) for p in (0, 1, 1.5)] + [decoding.min_p(row, 0)]
    for result in same:
        assert result.dtype == np.float64
        np.testing.assert_array_equal(result, row)


def test_inputs_are_left_alone():
    logits = np.array([1.0, -2.0, 3.0])
    decoding.top_k(logits, 1), decoding.top_p(logits, 0.1), decoding.min_p(logits, 0.9)
    decoding.repetition_penalty(logits, [0, 1], 2), decoding.presence_frequency_penalty(logits, [0], 1, 1)
    decoding.min_tokens_mask(logits, 2, 0, 1)
    np.testing.assert_array_equal(logits, [1, -2, 3])


@few
@given(
    rows(SPREAD),
    st.sampled_from([0.3, 1.0, 2.5]),
    st.integers(0, VOCAB),
    st.one_of(st.just(0.0), PROBABILITY, st.just(1.0)),
)
def test_distribution_equals_the_executors(row, temperature, top_k, top_p):
    """The executor keeps a faster sampler of its own: same tokens, same probabilities."""
    scaled = row / np.float32(temperature)
    assume(top_p in (0, 1) or crosses_clearly(decoding.top_k(scaled, top_k), top_p))
    ids, probabilities = sampler.distribution(scaled, top_k, top_p)
    full = np.zeros(row.size)
    full[ids] = probabilities
    ours = decoding.distribution(row, temperature, top_k, top_p)
    # Division in float32 may make or break a tie for the last place.
    assume(len(np.unique(scaled)) == len(np.unique(row)))
    np.testing.assert_allclose(ours, full, rtol=2e-5, atol=1e-12)


@few
@given(
    rows(SPREAD, unique=True),
    st.floats(0.2, 5),
    st.integers(0, VOCAB),
    st.one_of(st.just(0.0), PROBABILITY),
    st.one_of(st.just(0.0), PROBABILITY),
)
def test_distribution_equals_transformers_chain(row, temperature, top_k, top_p, min_p):
    scores = torch.tensor(row, dtype=torch.float64)[None]
    scores = TemperatureLogitsWarper(temperature)(None, scores)
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p:
        assume(crosses_clearly(scores[0].numpy(), top_p))
        scores = TopPLogitsWarper(top_p)(None, scores)
    if min_p:
        assume((np.abs(scores[0].numpy() - scores[0].numpy().max() - math.log(min_p)) > 1e-9).all())
        scores = MinPLogitsWarper(min_p)(None, scores)
    ours = decoding.distribution(row, temperature, top_k, top_p, min_p)
    np.testing.assert_allclose(ours, scores.softmax(-1)[0].numpy(), rtol=1e-9, atol=1e-15)


def test_top_p_measures_the_mass_that_top_k_left():
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    np.testing.assert_allclose(decoding.distribution(logits, top_k=2, top_p=0.6), [1, 0, 0, 0])  # 0.625 >= 0.6
    np.testing.assert_allclose(decoding.distribution(logits, top_p=0.6), [0.625, 0.375, 0, 0])
    np.testing.assert_allclose(decoding.distribution(logits, math.inf, top_k=2), [0.5, 0.5, 0, 0])
    np.testing.assert_allclose(decoding.distribution(logits, 0, top_k=2), [1, 0, 0, 0])
    np.testing.assert_allclose(decoding.distribution([0.0, 0.0, 1.0], math.inf, top_k=1), [0, 0, 1])


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
    assert np.isfinite(decoding.repetition_penalty([1e300, 1], [0], 1e-300)).all()


@pytest.mark.parametrize("presence", [-1e308, 0.0, 1e308])
@pytest.mark.parametrize("frequency", [-1e308, 0.0, 1e308])
def test_absurd_penalties_ban_nothing_and_make_no_infinity(presence, frequency):
    row = np.array([1e308, -1e308, 0.0, -np.inf, 5.0])
    ours = decoding.presence_frequency_penalty(row, [0, 0, 0, 1, 2, 2, 3], presence, frequency)
    assert np.isfinite(ours[:3]).all() and ours[3] == -np.inf and ours[4] == 5
    sign = np.sign(presence / 1e308 + 2 * frequency / 1e308)  # token 2 occurs twice
    assert np.sign(ours[2]) == -sign, "the largest number is still a penalty or a reward"
    for penalty in (1e-300, 1e300):
        ours = decoding.repetition_penalty(row, range(4), penalty)
        assert np.isfinite(ours[:3]).all() and ours[3] == -np.inf and ours[4] == 5
        assert (np.sign(ours[:3]) == np.sign(row[:3])).all()


def test_a_row_without_any_token_is_passed_on_unless_something_must_come_out_of_it():
    row = np.full(3, -np.inf)
    for result in (
        decoding.top_k(row, 2), decoding.min_p(row, 0.5), decoding.repetition_penalty(row, [0], 2),
        decoding.presence_frequency_penalty(row, [0], 1, 1), decoding.min_tokens_mask(row, 1, 0, 2),
    ):  # fmt: skip
        np.testing.assert_array_equal(result, row)
    assert decoding.logsumexp(row) == -np.inf
    for call in (decoding.softmax, decoding.log_softmax, decoding.greedy, decoding.distribution):
        with pytest.raises(CourseError, match="Every logit is -inf"):
            call(row)


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


def test_end_waits_for_min_tokens():
    for generated, expected in ((0, -np.inf), (1, -np.inf), (2, 3.0)):
        np.testing.assert_array_equal(decoding.min_tokens_mask([1, 2, 3], 2, generated, 2), [1, 2, expected])
    np.testing.assert_array_equal(decoding.min_tokens_mask([1, 2, 3], None, 0, 2), [1, 2, 3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decoding.top_k([1, 2], -1), "top_k must be a whole number"),
        (lambda: decoding.top_k([1, 2], 1.5), "top_k must be a whole number"),
        (lambda: decoding.top_k([1, math.nan], 1), "nan or"),
        (lambda: decoding.top_p([1, 2], -0.1), "top_p is -0.1"),
        (lambda: decoding.top_p([1, 2], math.nan), "top_p is nan"),
        (lambda: decoding.top_p([-math.inf], 0.5), "Every logit is -inf"),
        (lambda: decoding.min_p([1, 2], 1.1), "min_p is 1.1"),
        (lambda: decoding.distribution([-math.inf, -math.inf]), "Every logit is -inf"),
        (lambda: decoding.repetition_penalty([1, 2], [-1], 2), "Token id -1 is outside"),
        (lambda: decoding.repetition_penalty([1, 2], [0], 0), "above 0"),
        (lambda: decoding.repetition_penalty([[1, 2]], [0], 2), "one row"),
        (lambda: decoding.presence_frequency_penalty([1, 2], [2], 1), "from 0 to 1"),
        (lambda: decoding.presence_frequency_penalty([1, 2], ["a"], 1), "whole numbers"),
        (lambda: decoding.presence_frequency_penalty([1, 2], [0], math.inf), "finite"),
        (lambda: decoding.min_tokens_mask([1, 2], 5, 0, 1), "Token id 5"),
    ],
)
def test_errors_are_one_sentence(call, message):
    with pytest.raises(CourseError, match=message):
        call()
