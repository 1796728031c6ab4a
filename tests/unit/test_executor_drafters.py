"""Drafters: what prompt lookup finds, a draft model whose cache follows every turn of the text, and real weights."""

from __future__ import annotations

import numpy as np
import pytest
from executor_helpers import MAX_SEQ_LEN, VOCAB, FakeModel, expected_tokens, write_fake_engine
from hypothesis import given
from hypothesis import strategies as st

from drafters import DraftModel, PromptLookup, Run, expected, generate, in_turn
from reference_backend.executor import Executor, ExecutorError, RequestError


@pytest.mark.parametrize(
    ("tokens", "guesses"),
    [
        ([1, 2, 3, 4, 9, 1, 2, 3], [4, 9, 1]),  # three tokens agree, so three guesses
        ([1, 2, 3, 4, 5, 8, 1, 2], [3, 4]),  # two
        ([2, 3, 4, 5, 8, 1, 2], [3]),  # one
        ([1, 2, 3], []),
        ([1, 2, 7, 1, 2, 8, 1, 2], [8, 1]),  # the latest of two
        ([3, 1, 2, 7, 9, 1, 2, 8, 3, 1, 2], [7, 9, 1]),  # the earlier one agrees for longer
        ([4, 5, 4, 5, 4, 5], [4, 5, 4, 5]),  # a loop goes on past the end of the text
        ([7, 7], [7]),
        ([7], []),
    ],
)
def test_lookup_finds_what_followed_the_same_tokens(tokens, guesses):
    assert PromptLookup(max_draft=4).propose(tokens, 10) == guesses


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9))
def test_lookup_against_the_plain_search(tokens, ngram, max_draft, at_most):
    """The longest n-gram first, from the latest place; a guess for each token that agrees."""
    expected = []
    for n in range(min(ngram, len(tokens) - 1), 0, -1):
        places = [at for at in range(n, len(tokens)) if tokens[at - n : at] == tokens[len(tokens) - n :]]
        if places:
            agree = 0
            while agree < places[-1] and tokens[places[-1] - 1 - agree] == tokens[-1 - agree]:
                agree += 1
            text = list(tokens)
            for step in range(min(agree, max_draft, at_most)):
                text.append(text[places[-1] + step])
            expected = text[len(tokens) :]
            break
    before = list(tokens)
    assert PromptLookup(ngram, max_draft).propose(tokens, at_most) == expected
    assert tokens == before


@pytest.fixture
def draft(tmp_path, monkeypatch):
    """draft(...) -> DraftModel over the fake model, which continues as `expected_tokens` says."""
    monkeypatch.setattr("reference_backend.executor.device.Model", FakeModel)
    write_fake_engine(tmp_path)
    return lambda **options: DraftModel(tmp_path, **options)


def reads(drafter):
    """New tokens of each model step so far."""
    return [new for _, _, new in drafter.executor._batch._model.calls]


def test_the_draft_reads_only_what_is_new(draft):
    drafter = draft(max_draft=3)
    text = [5, 6, 7]
    assert drafter.propose(text, 9) == expected_tokens(text, 3)
    assert reads(drafter) == [3, 1, 1]
    text += [*expected_tokens(text, 2), 50]  # two accepted, one replaced
    assert drafter.propose(text, 9) == expected_tokens(text, 3)
    assert reads(drafter)[3:] == [1, 1, 1]
    text += [51]  # nothing accepted
    assert drafter.propose(text, 2) == expected_tokens(text, 2)
    assert reads(drafter)[6:] == [1, 1]
    assert drafter.propose(text, 1) == expected_tokens(text, 1), "the last token is read again, for its logits"


def test_texts_with_the_same_beginning_keep_their_rows(draft):
    drafter = draft(max_draft=2)
    begin = list(range(20))
    texts = [[*begin, 30, 31, 32], [*begin, 40, 41, 42]]
    for text in texts * 3:
        assert drafter.propose(text, 2) == expected_tokens(text, 2)
    assert reads(drafter)[:4] == [23, 1, 3, 1], "the beginning of the second is copied"
    assert set(reads(drafter)[4:]) == {1}


@given(st.data())
def test_guesses_are_right_whatever_came_before(tmp_path_factory, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reference_backend.executor.device.Model", FakeModel)
        folder = tmp_path_factory.mktemp("draft")
        write_fake_engine(folder, max_seq_len=24)
        drafter = DraftModel(folder, max_draft=3)
        texts = [data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=6)) for _ in range(3)]
        for _ in range(data.draw(st.integers(1, 12))):
            text, at_most = data.draw(st.sampled_from(texts)), data.draw(st.integers(1, 4))
            count = max(0, min(3, at_most, 24 - len(text)))
            guesses = drafter.propose(text, at_most)
            assert guesses == expected_tokens(text, count)
            kept = data.draw(st.integers(0, len(guesses)))
            text += [*guesses[:kept], data.draw(st.integers(0, 1))]
        drafter.executor.shutdown()


def test_a_text_that_the_draft_cannot_read_gets_no_guesses(draft):
    drafter = draft()
    assert drafter.propose([1] * MAX_SEQ_LEN, 3) == []
    assert drafter.propose([VOCAB], 3) == []
    assert len(drafter.propose([1] * (MAX_SEQ_LEN - 1), 3)) == 1


@pytest.mark.parametrize("make", [lambda: PromptLookup(0), lambda: PromptLookup(3, 0), lambda: PromptLookup(2.5)])
def test_bad_sizes(make):
    with pytest.raises(RequestError, match="1 or more"):
        make()


def test_an_engine_folder_is_needed(tmp_path):
    with pytest.raises(ExecutorError, match=r"config\.json"):
        DraftModel(tmp_path)


class Nines:
    def propose(self, tokens, at_most):
        return [9] * at_most


def test_lengths_take_turns_and_each_step_is_counted_once():
    def run(drafter):
        guesses = np.array([len(drafter.propose([1], 9)) for _ in range(4)])
        return Run([], 10.0 + guesses, guesses, 0, 0, 0)

    np.testing.assert_allclose(in_turn(run, Nines(), [0, 2, 5], 3, seed=1), [[1] * 3, [1.2] * 3, [1.5] * 3])
    with pytest.raises(ValueError, match="ask for a longer one"):
        in_turn(run, Nines(), [0, 11], 1, seed=1)


def test_expected_speed_up_against_drawn_rounds():
    a, c, v = 0.6, 0.1, [1.0, 1.2, 1.5]
    kept = np.random.default_rng(1).random((100_000, 2)) < a
    tokens, speedups = expected(a, c, v)
    assert tokens[2] == pytest.approx(1 + np.cumprod(kept, axis=1).sum(1).mean(), rel=0.01)
    assert speedups == pytest.approx([1, 1.6 / 1.3, 1.96 / 1.7])


PROMPTS = [
    "<|im_start|>user\nRepeat: the quick brown fox jumps over the lazy dog.<|im_end|>\n<|im_start|>assistant\n",
    "1, 2, 3, 4,",
]


def test_real_weights_write_the_same_in_fewer_steps(smollm2_engine_fp32, smollm2_engine_int4, hf_tokenizer):
    prompts = [hf_tokenizer(text).input_ids for text in PROMPTS]
    sampled = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 5}
    drafters = [PromptLookup(), DraftModel(smollm2_engine_int4, max_draft=3)]
    steps = {}
    with Executor(smollm2_engine_fp32, max_batch_size=1) as executor:

        def texts(drafter, **sampling):
            before = executor.stats()["steps"]
            found = [generate(executor, prompt, 12, end_id=2, drafter=drafter, **sampling) for prompt in prompts]
            steps[drafter, bool(sampling)] = executor.stats()["steps"] - before
            return found

        for sampling in ({}, sampled):
            plain = texts(None, **sampling)
            for drafter in drafters:
                assert texts(drafter, **sampling) == plain
                assert steps[drafter, bool(sampling)] < steps[None, bool(sampling)]
    assert steps[drafters[1], False] < 0.5 * steps[None, False], "the int4 model guesses most of what fp32 says"
    assert np.all([len(text) for text in plain])
