"""decoding.scores and decoding.texts, by hand and against published values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from servinglab import decoding
from servinglab.errors import CourseError

# --- scores


def test_scores_by_hand():
    log_probs = np.log([0.5, 0.25, 0.125])
    assert decoding.perplexity(log_probs) == pytest.approx(4), "the geometric mean of 2, 4 and 8"
    assert decoding.perplexity(np.full(7, -math.log(10))) == pytest.approx(10)
    assert decoding.perplexity([-math.inf, -1]) == decoding.perplexity([-2000.0]) == math.inf
    assert [decoding.score(-6.0, 4, penalty) for penalty in (0, 0.5, 1, 2)] == [-6, -3, -1.5, -0.375]


def test_a_long_sequence_does_not_underflow():
    assert decoding.perplexity([-1.0] * 100_000) == pytest.approx(math.e)


# --- diversity


def test_distinct_n_by_hand():
    assert decoding.distinct_n("a b a b", 1) == 0.5
    assert decoding.distinct_n("a b a b", 2) == pytest.approx(2 / 3)
    assert decoding.distinct_n(["a b", "a b", "c"], 1) == pytest.approx(3 / 5), "over all texts together"
    assert decoding.distinct_n(["a b", "b a"], 2) == 1, "no n-gram spans two texts"
    assert decoding.distinct_n([1, 2, 1], 1) == decoding.distinct_n(np.array([1, 2, 1]), 1) == pytest.approx(2 / 3)
    assert decoding.distinct_n([[1, 2], np.array([1, 3])], 1) == pytest.approx(3 / 4)


def test_repetition_rate_by_hand():
    assert decoding.repetition_rate([1, 2, 3, 4, 5, 6]) == 0
    assert decoding.repetition_rate([1, 2] * 4, n=2) == pytest.approx(5 / 7), "12 21 | 12 21 12 21 12"
    assert decoding.repetition_rate([7] * 103) == pytest.approx(0.99)
    assert decoding.repetition_rate("the cat the cat", n=1) == 0.5
    assert decoding.repetition_rate([1, 2, 3]) == 0, "shorter than n"


def test_self_bleu_by_hand():
    # "a b c d" against "a b c e" and back: precisions 3/4, 2/3, 1/2 and 0.1/1 (no match counts 0.1), equal length.
    expected = (3 / 4 * 2 / 3 * 1 / 2 * 0.1) ** (1 / 4)
    assert decoding.self_bleu(["a b c d", "a b c e"]) == pytest.approx(expected)
    # Unigrams only. "a a": one `a` of two matches (clipped), and brevity costs exp(1 - 3/2). "a b c": 1/3.
    expected = (math.exp(-0.5) * 1 / 2 + 1 / 3) / 2
    assert decoding.self_bleu(["a a", "a b c"], max_n=1) == pytest.approx(expected)
    # The references of "a a" hold `a` once each; that does not add up to two.
    assert decoding.self_bleu(["a a", "a b", "a c"], max_n=1) == pytest.approx(0.5)
    # "a b" finds `a` in one text and `b` in another: both match. The others match one word of two.
    assert decoding.self_bleu(["a b", "a c", "b d"], max_n=1) == pytest.approx((1 + 0.5 + 0.5) / 3)
    # The nearest reference counts for brevity: 3 rather than 9 words.
    near_and_far = ["a b c d", "a b c", "a b c d e f g h i"]
    assert decoding.self_bleu(near_and_far, max_n=1) == pytest.approx((1 + math.exp(1 - 4 / 3) + 4 / 9) / 3)
    assert decoding.self_bleu(["a b c d e"] * 3) == pytest.approx(1)
    assert decoding.self_bleu([[1, 2, 3, 4]] * 2) == pytest.approx(1)
    assert decoding.self_bleu(["a", "a"]) == pytest.approx(1), "shorter than four tokens"
    assert decoding.self_bleu(["", "a b"]) == pytest.approx(0.5 * (0.1 / 2 * 0.1) ** 0.5)


# --- calibration


def test_reliability_by_hand():
    bins = decoding.reliability([0.05, 0.15, 0.95, 1.0, 0.5], [0, 1, 1, 1, 0], n_bins=2)
    np.testing.assert_allclose(bins.confidence, [0.1, (0.95 + 1 + 0.5) / 3])
    np.testing.assert_allclose(bins.accuracy, [0.5, 2 / 3])
    np.testing.assert_array_equal(bins.count, [2, 3])
    error = decoding.expected_calibration_error([0.05, 0.15, 0.95, 1.0, 0.5], [0, 1, 1, 1, 0], n_bins=2)
    assert error == pytest.approx(2 / 5 * 0.4 + 3 / 5 * (2.45 / 3 - 2 / 3))


def test_reliability_leaves_empty_bins_out():
    bins = decoding.reliability([0.05, 0.95], [False, True], n_bins=10)
    np.testing.assert_array_equal(bins.count, [1, 1])
    np.testing.assert_allclose(bins.confidence, [0.05, 0.95])


def test_a_calibrated_forecast_has_a_small_error():
    rng = np.random.default_rng(0)
    confidence = rng.random(20_000)
    right = rng.random(20_000) < confidence
    assert decoding.expected_calibration_error(confidence, right) < 0.015
    assert decoding.expected_calibration_error(confidence, ~right) > 0.4


@pytest.mark.parametrize(
    ("counts", "expected"),
    [((81, 263), (0.2553, 0.3662)), ((15, 148), (0.0624, 0.1605)), ((0, 20), (0, 0.1611)), ((1, 29), (0.0061, 0.1718))],
)
def test_wilson_as_newcombe_tabulates_it(counts, expected):
    """Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I, method 3."""
    np.testing.assert_allclose(decoding.wilson_interval(*counts), expected, atol=6e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decoding.perplexity([]), "one log prob or more"),
        (lambda: decoding.perplexity([0.5]), "did you pass probabilities"),
        (lambda: decoding.perplexity([math.nan]), "none above 0"),
        (lambda: decoding.score(-1, 2, math.nan), "length_penalty is nan"),
        (lambda: decoding.score(-1, 2, 1e6), r"length_penalty is 1e\+06: "),
        (lambda: decoding.score(-1, 2, -1e6), r"length_penalty is -1e\+06: "),
        (lambda: decoding.distinct_n("a b", 3), "No text has 3 tokens"),
        (lambda: decoding.distinct_n([], 1), "No text has 1"),
        (lambda: decoding.self_bleu(["a"]), "at least two"),
        (lambda: decoding.self_bleu("a b"), "at least two"),
        (lambda: decoding.reliability([-0.5], [1]), "np.exp"),
    ],
)
def test_errors_are_one_sentence(call, message):
    with pytest.raises(CourseError, match=message):
        call()
