"""decoding.beam against transformers' beam search, against exhaustive search, and by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax
from transformers import LlamaConfig, LlamaForCausalLM

from servinglab import decoding
from servinglab.errors import CourseError

END = 4


def table(probabilities: dict[tuple[int, ...], list[float]]):
    """A next_log_probs that looks its answer up."""

    def next_log_probs(sequences):
        with np.errstate(divide="ignore"):
            return np.log([probabilities[tuple(sequence)] for sequence in sequences])

    return next_log_probs


def random_model(seed: int, vocab: int):
    """A next_log_probs with probabilities of its own after each sequence."""

    def next_log_probs(sequences):
        logits = [np.random.default_rng([seed, *sequence]).normal(size=vocab) * 2 for sequence in sequences]
        return log_softmax(logits, axis=-1)

    return next_log_probs


def sequences(result) -> list[list[int]]:
    return [hypothesis.tokens for hypothesis in result.hypotheses]


# --- transformers

PROMPTS = torch.tensor([[5, 9, 1], [7, 7, 2], [19, 4, 11], [0, 13, 6]])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(5)  # found by trying: hypotheses of every kind, see test_the_settings_make_a_difference
    config = LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        initializer_range=0.35, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def next_log_probs(model):
    known: dict[tuple[int, ...], np.ndarray] = {}  # every setting searches much the same tree

    def function(batch):
        if missing := [row for row in dict.fromkeys(map(tuple, batch)) if row not in known]:
            with torch.no_grad():
                logits = model(torch.tensor(missing)).logits[:, -1]
            known.update(zip(missing, logits.log_softmax(-1).double().numpy(), strict=True))
        return np.stack([known[tuple(row)] for row in batch])

    return function


def generate(model, width, **options):
    """transformers' hypotheses, [prompt][beam] of (tokens, score)."""
    out = model.generate(
        PROMPTS, attention_mask=torch.ones_like(PROMPTS), num_beams=width, num_return_sequences=width, do_sample=False,
        max_new_tokens=6, eos_token_id=END, pad_token_id=END, return_dict_in_generate=True, output_scores=True,
        **options,
    )  # fmt: skip
    tokens = [row.tolist() for row in out.sequences[:, PROMPTS.shape[1] :]]
    tokens = [row[: row.index(END) + 1] if END in row else row for row in tokens]
    pairs = list(zip(tokens, out.sequences_scores.tolist(), strict=True))
    return [pairs[i : i + width] for i in range(0, len(pairs), width)]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("early_stopping", [0, 1, 2])
def test_equals_transformers(model, next_log_probs, early_stopping, length_penalty):
    theirs_early = {0: False, 1: True, 2: "never"}[early_stopping]
    finished = []
    for width in (2, 4, 8):
        expected = generate(model, width, length_penalty=length_penalty, early_stopping=theirs_early)
        for prompt, theirs in zip(PROMPTS.tolist(), expected, strict=True):
            ours = decoding.beam_search(
                next_log_probs, prompt, width=width, max_tokens=6, end_id=END,
                length_penalty=length_penalty, early_stopping=early_stopping,
            )  # fmt: skip
            assert sequences(ours) == [tokens for tokens, _ in theirs]
            np.testing.assert_allclose([h.score for h in ours.hypotheses], [score for _, score in theirs], atol=1e-4)
            finished += [h.finished for h in ours.hypotheses]
    assert any(finished), "the test must see hypotheses that end"
    if length_penalty > 0:
        assert not all(finished), "and some that do not"


def test_the_settings_make_a_difference(next_log_probs):
    """Otherwise equality with transformers would prove nothing about them."""

    def found(early, penalty):
        options = {"width": 2, "max_tokens": 6, "end_id": END, "early_stopping": early, "length_penalty": penalty}
        return [sequences(decoding.beam_search(next_log_probs, prompt, **options)) for prompt in PROMPTS.tolist()]

    never = {penalty: found(2, penalty) for penalty in (0.0, 1.0, 2.0)}
    assert never[0.0] != never[1.0] != never[2.0]
    assert found(0, 1.0) != found(1, 1.0) != never[1.0]
    assert found(0, 2.0) != never[2.0]


def test_width_1_is_greedy_as_in_transformers(model, next_log_probs):
    out = model.generate(
        PROMPTS, attention_mask=torch.ones_like(PROMPTS), do_sample=False, max_new_tokens=6, eos_token_id=END,
        pad_token_id=END,
    )[:, PROMPTS.shape[1] :]  # fmt: skip
    for prompt, row in zip(PROMPTS.tolist(), out.tolist(), strict=True):
        result = decoding.beam_search(next_log_probs, prompt, width=1, max_tokens=6, end_id=END)
        assert sequences(result) == [row[: row.index(END) + 1] if END in row else row]


# --- exhaustive search


def every_sequence(next_log_probs, vocab, max_tokens, end_id, length_penalty):
    """All complete sequences and their scores, with nothing but loops."""
    scores = {}
    for raw in itertools.product(range(vocab), repeat=max_tokens):
        tokens = raw[: raw.index(end_id) + 1] if end_id in raw else raw
        total = sum(next_log_probs([list(tokens[:i])])[0, tokens[i]] for i in range(len(tokens)))
        scores[tokens] = total / len(tokens) ** length_penalty
    return sorted(scores.items(), key=lambda item: -item[1])


@settings(max_examples=30)
@given(
    st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 4), st.booleans(), st.sampled_from([0.0, 0.7, 1.0, 2.0])
)
def test_a_beam_as_wide_as_the_tree_finds_the_optimum(seed, vocab, max_tokens, ends, length_penalty):
    settings = {"max_tokens": max_tokens, "end_id": 0 if ends else None, "length_penalty": length_penalty}
    model = random_model(seed, vocab)
    after = lambda batch: model([[8, *tokens] for tokens in batch])  # noqa: E731
    tokens, points = every_sequence(after, vocab, max_tokens, settings["end_id"], length_penalty)[0]
    width = vocab ** (max_tokens - 1)
    found = decoding.beam_search(model, [8], width=width, early_stopping=2, **settings).hypotheses[0]
    assert tuple(found.tokens) == tokens
    assert found.score == pytest.approx(points, rel=1e-12)
    narrow = decoding.beam_search(model, [8], width=1, **settings).hypotheses[0]
    assert narrow.score <= points + 1e-12


# --- by hand

#: The likeliest sequence, 2 then 0, starts with the unlikeliest token.
TRAP = {(): [0.4, 0.35, 0.25], (0,): [0.4, 0.3, 0.3], (1,): [0.4, 0.3, 0.3], (2,): [1.0, 0.0, 0.0]}


@pytest.mark.parametrize(("width", "tokens", "probability"), [(1, [0, 0], 0.16), (2, [0, 0], 0.16), (3, [2, 0], 0.25)])
def test_narrow_beams_miss_the_optimum(width, tokens, probability):
    result = decoding.beam_search(table(TRAP), [], width=width, max_tokens=2)
    assert result.hypotheses[0].tokens == tokens
    assert math.exp(result.hypotheses[0].log_prob) == pytest.approx(probability)
    assert len(result.hypotheses) == width


def test_the_tree_by_hand():
    tree = decoding.beam_search(table(TRAP), [], width=1, max_tokens=2).tree
    facts = [(n.id, n.parent, n.depth, n.token, round(math.exp(n.cum_log_prob), 9), n.kept) for n in tree]
    assert facts == [
        (0, None, 0, None, 1.0, True),
        (1, 0, 1, 0, 0.4, True),
        (2, 0, 1, 1, 0.35, False),
        (3, 1, 2, 0, 0.16, True),
        (4, 1, 2, 1, 0.12, False),
    ]


#: Token 1 ends. Short is likelier as a whole, long is likelier per token.
ENDING = {(): [0.55, 0.45], (0,): [0.9, 0.1], (0, 0): [0.8, 0.2], (0, 0, 0): [0.1, 0.9]}


def test_length_penalty_by_hand():
    def best(length_penalty):
        options = {"width": 2, "max_tokens": 4, "end_id": 1, "length_penalty": length_penalty, "early_stopping": 2}
        return decoding.beam_search(table(ENDING), [], **options).hypotheses[0]

    short, long = best(0.0), best(1.0)
    assert (short.tokens, short.finished) == ([1], True)
    assert short.score == short.log_prob == pytest.approx(math.log(0.45))
    assert long.tokens == [0, 0, 0, 1], "the end token is part of the tokens"
    assert long.log_prob == pytest.approx(math.log(0.55 * 0.9 * 0.8 * 0.9))
    assert long.score == pytest.approx(long.log_prob / 4), "and of the length"


def test_with_a_negative_length_penalty_the_most_hopeful_length_is_the_present_one():
    rows = {(): [0.5, 0.2, 0.3], (0,): [0.65, 0, 0.35], (1,): [0.5, 0.5, 0], (0, 0): [0.01, 0, 0.99], (1, 0): [1, 0, 0]}
    result = decoding.beam_search(
        table(rows), [], width=2, max_tokens=4, end_id=2, length_penalty=-1.0, early_stopping=2
    )
    # After two steps [2] and [0, 2] are complete (-1.20 and -3.49). Live [0, 0] scores -2.25, at length 4 only -4.50.
    assert sequences(result) == [[2], [0, 0, 2]]
    assert result.hypotheses[1].score == pytest.approx(math.log(0.5 * 0.65 * 0.99) * 3)


def test_scores_by_hand():
    assert [decoding.score(-6.0, 4, penalty) for penalty in (0, 0.5, 1, 2)] == [-6, -3, -1.5, -0.375]


def test_an_end_outside_the_first_width_is_dropped():
    result = decoding.beam_search(table(ENDING), [], width=1, max_tokens=4, end_id=1)
    assert sequences(result) == [[0, 0, 0, 1]]
    dropped = [node for node in result.tree if node.finished and not node.kept]
    assert [node.depth for node in dropped] == [1, 2, 3]


def test_without_end_id_nothing_finishes():
    result = decoding.beam_search(random_model(1, 4), [], width=3, max_tokens=5)
    assert all(not h.finished and len(h.tokens) == 5 for h in result.hypotheses)
    assert len(result.hypotheses) == 3


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 5), st.integers(1, 5), st.integers(0, 2))
def test_the_tree_and_the_hypotheses_keep_their_books(seed, vocab, width, max_tokens, early_stopping):
    model = random_model(seed, vocab)
    result = decoding.beam_search(
        model, [4, 2], width=width, max_tokens=max_tokens, end_id=0, length_penalty=1.0, early_stopping=early_stopping
    )
    tree = result.tree
    assert [node.id for node in tree] == list(range(len(tree)))
    for node in tree[1:]:
        parent = tree[node.parent]
        assert parent.kept and not parent.finished and parent.depth == node.depth - 1
        assert node.cum_log_prob == pytest.approx(parent.cum_log_prob + node.log_prob)
        assert node.log_prob == pytest.approx(model([[4, 2] + result.path(parent.id)])[0, node.token])
        assert node.finished == (node.token == 0)
    for depth in range(1, max_tokens + 1):
        step = [node for node in tree if node.depth == depth]
        assert len(step) <= 2 * width and sum(node.kept and not node.finished for node in step) <= width
        assert [node.cum_log_prob for node in step] == sorted((node.cum_log_prob for node in step), reverse=True)
    scores = [h.score for h in result.hypotheses]
    assert scores == sorted(scores, reverse=True) and 1 <= len(scores) <= width
    assert len({tuple(h.tokens) for h in result.hypotheses}) == len(scores)
    for h in result.hypotheses:
        node = tree[h.node]
        assert node.kept and h.tokens == result.path(h.node) and h.log_prob == node.cum_log_prob
        assert h.finished == (h.tokens[-1] == 0) and (h.finished or len(h.tokens) == max_tokens)
        assert h.score == pytest.approx(decoding.score(h.log_prob, len(h.tokens), 1.0))


def test_forbidden_tokens_are_never_taken():
    forced = {(): [0.0, 1.0], (1,): [1.0, 0.0], (1, 0): [0.5, 0.5]}
    assert sequences(decoding.beam_search(table(forced), [], width=4, max_tokens=3)) == [[1, 0, 0], [1, 0, 1]]
    # Nothing goes on after [1], but [0], the end, is there already.
    stuck = {(): [0.5, 0.5], (1,): [0.0, 0.0]}
    assert sequences(decoding.beam_search(table(stuck), [], width=2, max_tokens=3, end_id=0)) == [[0]]


def test_a_large_vocabulary_is_searched_without_sorting_it_whole():
    logits = np.random.default_rng(0).normal(size=(4, 50_000))
    result = decoding.beam_search(lambda batch: log_softmax(logits[: len(batch)], axis=-1), [], width=4, max_tokens=2)
    first = np.argsort(-logits[0], kind="stable")[:8]
    assert [node.token for node in result.tree[1:9]] == first.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width is 0"),
        ({"max_tokens": 0}, "max_tokens 0"),
        ({"length_penalty": math.inf}, "length_penalty is inf"),
        ({"length_penalty": math.nan}, "length_penalty is nan"),
        ({"length_penalty": -1e6}, r"length_penalty is -1e\+06: "),
        ({"next_log_probs": lambda batch: np.ones((len(batch), 3))}, "log_softmax first"),
        ({"next_log_probs": lambda batch: np.full((len(batch), 3), math.nan)}, "log_softmax first"),
        ({"next_log_probs": lambda batch: np.full((len(batch), 3), -math.inf)}, "Every continuation"),
    ],
)
def test_errors_are_one_sentence(options, message):
    options = {"next_log_probs": random_model(0, 3), "start": [], "width": 2, "max_tokens": 2, **options}
    with pytest.raises(CourseError, match=message):
        decoding.beam_search(options.pop("next_log_probs"), options.pop("start"), **options)
