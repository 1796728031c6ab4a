"""decoding.speculative: does what comes out have the target's distribution, and do the cost formulas hold?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from servinglab.decoding import categorical, speculative
from servinglab.errors import CourseError

P = np.array([[0.5, 0.3, 0.2, 0.0], [0.1, 0.1, 0.1, 0.7], [0.25, 0.25, 0.25, 0.25]])
Q = np.array([[0.2, 0.2, 0.2, 0.4], [0.3, 0.4, 0.2, 0.1]])


def drafted(rng, q=Q):
    return [int(rng.choice(q.shape[1], p=row)) for row in q]


def by_hand(draft, q):
    """{tokens that come out: probability} of `verify`, from the rule with exact sums over every branch."""
    out, reached = {}, 1.0
    for at, token in enumerate(draft):
        keep = min(1.0, P[at, token] / q[at, token])
        rest = np.clip(P[at] - q[at], 0, None)
        for other in range(4):
            if rest[other]:
                key = (*draft[:at], other)
                out[key] = out.get(key, 0.0) + reached * (1 - keep) * rest[other] / rest.sum()
        reached *= keep
    for other in range(4):
        key = (*draft, other)
        out[key] = out.get(key, 0.0) + reached * P[len(draft), other]
    return out


@pytest.mark.parametrize("certain", [False, True])
def test_tokens_have_the_targets_distribution_however_bad_the_draft(certain):
    """Chi-squared. The draft proposes a token 3, which the target never says, in four of ten cases."""
    rng = np.random.default_rng(0)
    drafts = [[1, 3]] * 5000 if certain else np.stack([categorical(row, rng, 5000) for row in Q], axis=1)
    outs = [speculative.verify(P, None if certain else Q, draft, rng) for draft in drafts]
    firsts = np.bincount([out[0] for out in outs], minlength=4)
    assert firsts[3] == 0
    assert stats.chisquare(firsts[:3], P[0, :3] * len(outs)).pvalue > 1e-3
    # Given the first was kept, the second has the target's distribution too, and so has the third.
    for place in (1, 2):
        later = np.bincount([out[place] for out in outs if len(out) > place], minlength=4)
        assert stats.chisquare(later, P[place] * later.sum()).pvalue > 1e-3
    kept = np.mean([len(out) > 1 for out in outs])
    assert kept == pytest.approx(0.3 if certain else speculative.acceptance(P[0], Q[0]), abs=0.03)


@pytest.mark.parametrize("draft", [(0, 1), (3, 0), (1, 3)])
def test_every_branch_against_the_rule_worked_out(draft):
    rng = np.random.default_rng(5)
    outs = [tuple(speculative.verify(P, Q, draft, rng)) for _ in range(3000)]
    expected = by_hand(draft, Q)
    assert abs(sum(expected.values()) - 1) < 1e-12
    assert set(outs) <= {key for key, value in expected.items() if value}
    keys = [key for key, value in expected.items() if value]
    counts = np.array([outs.count(key) for key in keys])
    assert stats.chisquare(counts, np.array([expected[key] for key in keys]) * len(outs)).pvalue > 1e-3


def test_worked_by_hand():
    np.testing.assert_allclose(speculative.residual(P[0], Q[0]), [0.75, 0.25, 0, 0])
    np.testing.assert_allclose(speculative.residual(P[0], P[0]), P[0])
    assert speculative.acceptance(P[0], Q[0]) == pytest.approx(0.6)  # 0.2 + 0.2 + 0.2 + 0
    assert speculative.verify(np.eye(4)[[2, 0]], None, [2], np.random.default_rng(0)) == [2, 0]
    assert speculative.verify(np.eye(4)[[2, 0]], None, [1], np.random.default_rng(0)) == [2]
    assert speculative.verify(np.eye(4)[[2]], None, [], np.random.default_rng(0)) == [2]
    assert speculative.expected_tokens(0.5, 3) == 1.875  # 1 + 1/2 + 1/4 + 1/8
    assert speculative.expected_tokens(1, 3) == 4
    assert speculative.expected_tokens(0, 3) == 1
    # 1.875 tokens for three drafts of 0.1 steps and a verification of 1.2 steps.
    assert speculative.speedup(0.5, 3, 0.1, lambda k: 1 + k / 15) == pytest.approx(1.875 / 1.5)
    # A free draft and a free verification: the longest is the best. One as dear as the target: none is.
    assert speculative.best_k(0.8, 0.0, lambda k: 1.0, longest=9)[0] == 9
    assert speculative.best_k(0.8, 1.0, lambda k: 1.0) == (0, 1.0)


@given(st.data())
def test_properties_of_any_pair(data):
    vocab, k = data.draw(st.integers(2, 6)), data.draw(st.integers(0, 4))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    p, q = random.dirichlet(np.full(vocab, 0.5), k + 1), random.dirichlet(np.full(vocab, 0.5), k + 1)
    # Kept or replaced, every token has the target's probability: min(p, q) + P(rejected) * residual = p.
    rejected = 1 - speculative.acceptance(p, q)[:, None]
    np.testing.assert_allclose(np.minimum(p, q) + rejected * speculative.residual(p, q), p, atol=1e-12)
    draft = drafted(random, q[:k])
    out = speculative.verify(p, q[:k], draft, random)
    assert 1 <= len(out) <= k + 1 and out[:-1] == draft[: len(out) - 1]
    choices = p.argmax(1).tolist()  # a target that always takes its likeliest keeps the draft as far as it agrees
    kept = next((at for at, token in enumerate(draft) if token != choices[at]), k)
    assert speculative.verify(np.eye(vocab)[choices], None, draft, random) == choices[: kept + 1]
    # A draft that knows the target is never rejected.
    own = drafted(random, p[:k])
    assert speculative.verify(p, p[:k], own, random)[:k] == own


def test_expected_tokens_against_a_simulation():
    rng = np.random.default_rng(0)
    kept = (rng.random((50_000, 5)) < 0.7).cumprod(axis=1).sum(axis=1) + 1
    assert speculative.expected_tokens(0.7, 5) == pytest.approx(kept.mean(), abs=0.03)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r: speculative.verify(P[:2], Q, [0, 1], r), "3 rows"),
        (lambda r: speculative.acceptance([[2, 3, 1, 0]], P[:1]), "sum to 6"),
        (lambda r: speculative.expected_tokens(1.1, 2), "from 0 to 1"),
    ],
)
def test_bad_values_say_what_is_needed(call, words):
    with pytest.raises(CourseError, match=words):
        call(np.random.default_rng(0))
