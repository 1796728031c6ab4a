"""decoding.distributions against its definitions, transformers' logits processors and the executor's own sampler."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from transformers import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from reference_backend.executor import sampler
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
    """A logits array of 1 to 3 dimensions; at least one finite value in each row along the last."""
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=6))
    largest = float(np.finfo(dtype).max) / 4
    values = st.one_of(
        st.floats(-30, 30, width=np.finfo(dtype).bits), st.sampled_from([0.0, 1.0, -largest, largest, -math.inf])
    )
    array = draw(hnp.arrays(dtype, shape, elements=values))
    array[..., 0][array[..., 0] == -np.inf] = 1.0
    return array


@few
@given(logits(), st.floats(0.01, 100))
def test_softmax_equals_the_definition(array, temperature):
    """With logaddexp, so without any softmax of scipy's."""
    with np.errstate(over="ignore"):
        z = array.astype(np.float64) / temperature
    assume(np.isfinite(z[array > -np.inf]).all())  # only the reference overflows
    expected = z - np.logaddexp.reduce(z, -1)[..., None]
    p = decoding.softmax(array, temperature)
    assert p.dtype == np.float64 and (p >= 0).all()
    scale = np.abs(z[z > -np.inf]).max()
    np.testing.assert_allclose(p, np.exp(expected), rtol=1e-9, atol=1e-12 + 1e-14 * scale)
    np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-12)


def test_huge_logits_do_not_overflow():
    np.testing.assert_allclose(decoding.softmax([1000.0, 1000.0]), [0.5, 0.5])
    np.testing.assert_allclose(decoding.softmax(np.float16([60000, 60000, -60000])), [0.5, 0.5, 0])
    np.testing.assert_allclose(decoding.softmax(PLAIN, 1e-300), [0, 0, 1, 0, 0])


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
    np.testing.assert_allclose(decoding.distribution(logits, 1e9, top_k=2), [0.5, 0.5, 0, 0])
    table = np.stack([logits, logits[::-1]])
    np.testing.assert_allclose(decoding.distribution(table, top_p=0.6), [[0.625, 0.375, 0, 0], [0, 0, 0.375, 0.625]])


# --- draws

LOGITS = np.array([2.0, 1.0, 0.0, -1.0, 1.5, -math.inf, 0.5, -math.inf])


# --- the repetition penalty


TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=8)
FULL_ROW = hnp.arrays(np.float32, VOCAB, elements=SPREAD)


@few
@given(FULL_ROW, TOKENS, st.floats(0.1, 10))
def test_repetition_penalty_equals_transformers(row, tokens, penalty):
    scores = torch.tensor(row, dtype=torch.float64)[None]
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([tokens], dtype=torch.int64), scores)
    np.testing.assert_allclose(decoding.repetition_penalty(row, tokens, penalty), expected[0].numpy(), rtol=1e-12)


def test_repetition_penalty_by_hand():
    np.testing.assert_allclose(decoding.repetition_penalty([4, -4, 4, 0], [0, 1, 0, 3], 2), [2, -8, 4, 0])
    np.testing.assert_array_equal(decoding.repetition_penalty([-np.inf, 1], [0], 3), [-np.inf, 1])


def test_inputs_are_left_alone():
    row = np.array([1.0, -2.0, 3.0])
    decoding.softmax(row, 2), decoding.distribution(row, top_k=1, top_p=0.1)
    decoding.repetition_penalty(row, [0, 1], 2)
    np.testing.assert_array_equal(row, [1, -2, 3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decoding.softmax([1, np.nan]), "nan or \\+inf"),
        (lambda: decoding.softmax([1, np.inf]), "nan or \\+inf"),
        (lambda: decoding.softmax([[1, 2], [-np.inf, -np.inf]]), "a row is -inf throughout"),
        (lambda: decoding.softmax(PLAIN, 0), "temperature is 0"),
        (lambda: decoding.softmax(PLAIN, math.nan), "temperature is nan"),
    ],
)
def test_errors_are_one_sentence(call, message):
    with pytest.raises(CourseError, match=message):
        call()
