"""decoding.sampling: do draws have the probabilities they should? Chi-squared tests with fixed seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from servinglab import decoding
from servinglab.errors import CourseError

LOGITS = np.array([2.0, 1.0, 0.0, -1.0, 1.5, -math.inf, 0.5, -math.inf])
SAMPLERS = {
    "categorical": lambda logits, rng, size: decoding.categorical(decoding.softmax(logits), rng, size),
    "gumbel_max": decoding.gumbel_max,
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("seed", range(3))
def test_draws_have_the_probabilities_of_softmax(name, seed):
    draws = SAMPLERS[name](LOGITS, np.random.default_rng(seed), 20_000)
    assert draws.shape == (20_000,) and draws.dtype.kind == "i"
    observed = np.bincount(draws, minlength=LOGITS.size)
    expected = decoding.softmax(LOGITS) * draws.size
    allowed = expected > 0
    assert observed[~allowed].sum() == 0
    assert stats.chisquare(observed[allowed], expected[allowed]).pvalue > 1e-3
    # The test has the power to tell a temperature of 1.1 from 1.
    other = decoding.softmax(LOGITS, 1.1) * draws.size
    assert stats.chisquare(observed[allowed], other[allowed]).pvalue < 1e-3


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_seed_fixes_the_draws_and_single_draws_are_ints(name):
    sample = SAMPLERS[name]
    first, again = (sample(LOGITS, np.random.default_rng(7), 50) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (first != sample(LOGITS, np.random.default_rng(8), 50)).any()
    rng = np.random.default_rng(7)
    singles = [sample(LOGITS, rng, None) for _ in range(50)]
    assert all(type(token) is int for token in singles)
    np.testing.assert_array_equal(singles, first)
    assert sample(LOGITS, rng, 0).shape == (0,)


@pytest.mark.parametrize("name", SAMPLERS)
def test_one_possible_token_is_always_drawn(name):
    only = np.array([-math.inf, -math.inf, -5000.0, -math.inf])
    assert set(SAMPLERS[name](only, np.random.default_rng(0), 100).tolist()) == {2}


class Fixed(np.random.Generator):
    """Its uniform number is the one that was asked for."""

    def __new__(cls, value):
        return super().__new__(cls)

    def __init__(self, value):
        super().__init__(np.random.PCG64(0))
        self.value = value

    def random(self, size=None):
        return self.value


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.4999, 1), (0.5, 3), (0.75, 4), (math.nextafter(1, 0), 4)])
def test_categorical_inverts_the_cumulative_sum_and_never_draws_zero(uniform, token):
    assert decoding.categorical([0, 0.5, 0, 0.25, 0.25, 0], Fixed(uniform)) == token


def test_gumbel_max_draws_in_parts_when_there_is_much_to_draw(monkeypatch):
    whole = decoding.gumbel_max(LOGITS, np.random.default_rng(0), 50)
    monkeypatch.setattr("servinglab.decoding.sampling._NOISE", 20)  # three rows of six
    np.testing.assert_array_equal(decoding.gumbel_max(LOGITS, np.random.default_rng(0), 50), whole)


@given(st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 2.5, 1e308]), min_size=1, max_size=9))
def test_greedy_takes_the_first_of_the_highest(values):
    if max(values) == -math.inf:
        with pytest.raises(CourseError, match="Every logit is -inf"):
            decoding.greedy(values)
    else:
        assert decoding.greedy(values) == values.index(max(values))


def test_greedy_of_a_batch():
    np.testing.assert_array_equal(decoding.greedy([[1, 2], [3, 3]]), [1, 0])
    assert type(decoding.greedy([1, 2])) is int


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rng: decoding.categorical([0.5, 0.3], rng), "sum to 0.8"),
        (lambda rng: decoding.categorical([[0.5, 0.5]], rng), "one row"),
        (lambda rng: decoding.categorical([-1.0, 2.0], rng), "negative"),
        (lambda rng: decoding.categorical([1.0], 0), "default_rng"),
        (lambda rng: decoding.gumbel_max([1.0], None), "default_rng"),
        (lambda rng: decoding.gumbel_max([-math.inf], rng), "Every logit is -inf"),
        (lambda rng: decoding.greedy([math.nan]), "nan"),
    ],
)
def test_errors_are_one_sentence(call, message):
    with pytest.raises(CourseError, match=message):
        call(np.random.default_rng(0))
