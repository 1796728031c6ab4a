"""decoding.logspace against scipy, over inputs that break careless code: huge, tiny, tied, forbidden, float16."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from servinglab import decoding
from servinglab.errors import CourseError

few = settings(max_examples=50)
RTOL = 1e-12
FLOAT_TYPES = st.sampled_from([np.float16, np.float32, np.float64])
PLAIN = [0.5, -1.25, 3.0, 0.0, 2.75]


@st.composite
def logits(draw, axis=True):
    """A logits array of 1 to 3 dimensions and an axis of it; at least one finite value in each row along the axis."""
    dtype = draw(FLOAT_TYPES)
    width = np.finfo(dtype).bits
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=6))
    largest = float(np.finfo(dtype).max)
    values = st.one_of(
        st.floats(-30, 30, width=width),
        st.floats(-largest, largest, width=width),
        st.sampled_from([0.0, 1.0, -largest, largest, -math.inf]),
    )
    at = draw(st.integers(-len(shape), len(shape) - 1))
    array = draw(hnp.arrays(dtype, shape, elements=values))
    first = np.moveaxis(array, at, 0)[:1]  # a view
    first[first == -np.inf] = 1.0
    return array, at


@few
@given(logits())
def test_softmax_log_softmax_and_logsumexp_equal_scipy(case):
    array, axis = case
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):
        expected = scipy.special.softmax(wide, axis), scipy.special.log_softmax(wide, axis)
        total = scipy.special.logsumexp(wide, axis)
    results = decoding.softmax(array, axis=axis), decoding.log_softmax(array, axis=axis)
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.dtype == np.float64 and ours.shape == array.shape
        np.testing.assert_allclose(ours, theirs, rtol=RTOL, atol=1e-15)
    np.testing.assert_allclose(results[0].sum(axis), 1, rtol=RTOL)
    ours = decoding.logsumexp(array, axis)
    assert ours.dtype == np.float64 and ours.shape == total.shape
    np.testing.assert_allclose(ours, total, rtol=RTOL, atol=1e-15)


@few
@given(logits(), st.floats(0.01, 100))
def test_temperature_divides_before_the_exponential(case, temperature):
    array, axis = case
    with np.errstate(all="ignore"):
        scaled = array.astype(np.float64) / temperature
        if not np.isfinite(scaled[array > -np.inf]).all():
            return  # only the reference overflows
        expected = scipy.special.log_softmax(scaled, axis)
    np.testing.assert_allclose(decoding.log_softmax(array, temperature, axis), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(decoding.softmax(array, temperature, axis), np.exp(expected), rtol=1e-9, atol=1e-12)


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


def test_a_spread_wider_than_float64_is_divided_before_it_overflows():
    expected = [-math.log1p(math.exp(-3)), -3 - math.log1p(math.exp(-3))]
    np.testing.assert_allclose(decoding.log_softmax([1.5e308, -1.5e308], 1e308), expected)


def test_huge_logits_do_not_overflow_and_small_probabilities_survive_as_logs():
    np.testing.assert_allclose(decoding.softmax([1000.0, 1000.0]), [0.5, 0.5])
    np.testing.assert_allclose(decoding.softmax(np.float16([60000, 60000, -60000])), [0.5, 0.5, 0])
    assert decoding.log_softmax([0.0, -2000.0])[1] == -2000.0
    assert decoding.logsumexp([-1000.0, -1000.0]) == pytest.approx(-1000 + math.log(2), rel=1e-15)
    assert decoding.logsumexp([-np.inf, -np.inf]) == -np.inf


def test_inputs_are_left_alone():
    array = np.array(PLAIN)
    for function in (decoding.softmax, decoding.log_softmax, decoding.logsumexp):
        function(array)
    np.testing.assert_array_equal(array, PLAIN)


@few
@given(logits(), st.sampled_from([math.e, 2, 10, 0.5]))
def test_entropy_equals_scipy(case, base):
    array, axis = case
    p = decoding.softmax(array, axis=axis)
    ours = decoding.entropy(p, axis, base)
    np.testing.assert_allclose(ours, scipy.stats.entropy(p, base=base, axis=axis), rtol=1e-9, atol=1e-12)
    assert (ours * math.log(base) >= 0).all()


def test_entropy_by_hand():
    assert decoding.entropy([0.5, 0.25, 0.25], base=2) == pytest.approx(1.5)
    assert decoding.entropy(np.full(8, 1 / 8)) == pytest.approx(math.log(8))
    assert math.copysign(1, decoding.entropy([0, 1, 0])) == 1.0  # 0, not -0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decoding.softmax([1, np.nan]), "nan or \\+inf"),
        (lambda: decoding.log_softmax([1, np.inf]), "nan or \\+inf"),
        (lambda: decoding.logsumexp([1, np.inf]), "nan or \\+inf"),
        (lambda: decoding.softmax([[1, 2], [-np.inf, -np.inf]]), "Every logit is -inf"),
        (lambda: decoding.softmax(PLAIN, -1), "temperature is -1"),
        (lambda: decoding.softmax(PLAIN, math.nan), "temperature is nan"),
        (lambda: decoding.softmax(PLAIN, axis=1), "shape \\(5,\\); axis 1"),
        (lambda: decoding.softmax([]), "hold at least one value"),
        (lambda: decoding.softmax(3.0), "shape \\(\\)"),
        (lambda: decoding.softmax(["a"]), "real numbers"),
        (lambda: decoding.softmax([[1], [1, 2]]), "real numbers"),
        (lambda: decoding.softmax([1j]), "real numbers"),
        (lambda: decoding.entropy([0.5, 0.3]), "sum to 0.8"),
        (lambda: decoding.entropy([1.5, -0.5]), "negative"),
        (lambda: decoding.entropy([np.nan, 0.5]), "nan"),
        (lambda: decoding.entropy([0.5, 0.5], base=1), "base is 1"),
    ],
)
def test_errors_are_one_sentence(call, message):
    with pytest.raises(CourseError, match=message):
        call()
