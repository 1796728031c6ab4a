"""Beam search of the executor without a model: against the readable one of `servinglab.decoding`, and by hand.

`drive` keeps the memory of each row as the executor does, so a wrong copy shows in the tokens.
"""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import fields

import numpy as np
import pytest
import scipy.special

from reference_backend.executor import Request, RequestError, SamplingParams, beams
from reference_backend.executor.beams import BeamSearch
from reference_backend.executor.params import MAX_TOKENS_LIMIT
from reference_backend.executor.sampler import largest
from servinglab import decoding
from servinglab.errors import CourseError

PROMPT = [1, 2]
A, B, END, STOP = range(4)


def request_of(max_tokens, *, sampling, **fields):
    return Request("r", np.array(PROMPT), max_tokens, SamplingParams(min_tokens=0, **sampling), **fields)


def drive(request, logits_after, vocab):
    """All outputs of a search; logits_after(tokens) -> [vocab]."""
    search = BeamSearch(request, vocab, request.max_tokens)
    memory, outputs, added = [list(PROMPT)] + [[] for _ in range(search.width - 1)], [], []
    rows = 1
    while not outputs or not outputs[-1].finish_reason:
        step = np.array([logits_after(tuple(tokens)) for tokens in memory[:rows]], np.float32)
        outputs.append(search.step(step))
        added.append(search.added)
        for copy in search.copies:
            memory[copy.target] = memory[copy.target][: copy.first] + memory[copy.source][copy.first :]
        for tokens, token in zip(memory, search.last_tokens, strict=False):
            tokens.append(token)
        rows = search.width
    return outputs, added


def by_table(table):
    """Logits of a model with these probabilities after the prompt and each of these tokens."""

    def logits_after(tokens):
        with np.errstate(divide="ignore"):
            return np.log(table.get(tokens[len(PROMPT) :], [0.25] * 4))

    return logits_after


@pytest.mark.parametrize("early_stopping", [0, 1, 2])
def test_equals_the_readable_search_dead_ends_included(early_stopping):
    """Random models of six words, of which random words and pairs are forbidden; many paths have no way on."""
    dead_ends = without_any = few = 0
    for seed in range(150):
        random = np.random.default_rng([early_stopping, seed])
        vocab, max_tokens, width = 6, int(random.integers(1, 6)), int(random.integers(2, 5))
        bias = np.where(random.random(vocab) < 0.4, -np.inf, 0).astype(np.float32)
        pairs = [[a, b] for a in range(vocab) for b in range(vocab) if random.random() < 0.5]
        end_id = int(random.integers(vocab)) if random.random() < 0.6 else None
        penalty = float(random.choice([0.0, 1.0, 2.0]))

        def logits_after(tokens, seed=seed):
            return np.random.default_rng([seed, len(tokens), *tokens]).normal(size=6).astype(np.float32) * 2

        def next_log_probs(sequences, bias=bias, pairs=pairs, logits_after=logits_after):
            nonlocal dead_ends
            found = np.full((len(sequences), 6), -np.inf)
            for row, tokens in zip(found, sequences, strict=True):
                logits = logits_after(tuple(tokens)) + bias
                logits[[second for first, second in pairs if tokens[-1] == first]] = -np.inf
                if np.isneginf(logits).all():
                    dead_ends += 1
                else:
                    row[:] = scipy.special.log_softmax(logits.astype(float))
            return found

        options = {"length_penalty": penalty, "early_stopping": early_stopping}
        request = request_of(
            max_tokens, sampling={"beam_width": width, **options}, end_id=end_id, bad_words=pairs, embedding_bias=bias
        )
        try:
            theirs = decoding.beam_search(
                next_log_probs, PROMPT, width=width, max_tokens=max_tokens, end_id=end_id, **options
            )
        except CourseError as error:
            assert "Every continuation became forbidden" in str(error)
            without_any += 1
            with pytest.raises(RequestError, match="forbids the whole vocabulary"):
                drive(request, logits_after, vocab)
            continue
        beams = drive(request, logits_after, vocab)[0][-1].beams
        expected = [[t for t in hypothesis.tokens if t != end_id] for hypothesis in theirs.hypotheses]
        assert [beam.tokens for beam in beams] == expected, seed
        assert [beam.score for beam in beams] == pytest.approx([h.score for h in theirs.hypotheses], abs=1e-5)
        assert [beam.finish_reason == "end_id" for beam in beams] == [h.finished for h in theirs.hypotheses]
        few += len(beams) < width
    assert dead_ends > 20 and without_any > 5 and few > 5, "else the test would not see them"


def test_a_path_without_a_way_on_is_dropped_and_the_others_go_on():
    """Nothing may follow A, which is the likelier first word."""
    request = request_of(3, sampling={"beam_width": 2}, bad_words=[[A, token] for token in range(4)])
    outputs, _ = drive(request, by_table({(): [0.6, 0.4, 0, 0], (B,): [0, 1, 0, 0], (B, B): [0, 0.5, 0.5, 0]}), 4)
    assert [[beam.tokens for beam in output.beams] for output in outputs[:2]] == [[[A], [B]], [[B, B]]]
    assert sorted(beam.tokens for beam in outputs[-1].beams) == [[B, B, B], [B, B, END]]


def test_many_stop_words_do_not_widen_the_look(monkeypatch):
    """Only `width` tokens of each path are ever sorted, however many may end one."""
    asked = []
    monkeypatch.setattr(beams, "largest", lambda logits, count: asked.append(count) or largest(logits, count))
    words = [[token] for token in range(1, 90)] + [[5, token] for token in range(90, 99)]
    request = request_of(3, sampling={"beam_width": 2}, stop_words=words)
    outputs, _ = drive(request, lambda tokens: -np.arange(100.0) / 9, 100)
    assert set(asked) == {2} and len(outputs[-1].beams) == 2
    assert [beam.tokens for beam in outputs[-1].beams] == [[1], [0, 1]]


def test_fewer_continuations_than_beams_give_fewer_beams():
    bias = np.array([0, 0, -np.inf, -np.inf], np.float32)
    (output,), _ = drive(request_of(1, sampling={"beam_width": 4}, embedding_bias=bias), by_table({}), 4)
    assert sorted(beam.tokens for beam in output.beams) == [[A], [B]]


def test_logits_that_are_no_numbers_still_end_the_search():
    logits = by_table({(): [0.6, 0.4, 0, 0], (A,): [math.nan] * 4, (B,): [0, 1, 0, 0]})
    with pytest.raises(RequestError, match="not finite numbers"):
        drive(request_of(3, sampling={"beam_width": 2}), logits, 4)


@pytest.mark.parametrize(("early_stopping", "penalty"), [(0, 0.0), (2, 0.0), (2, 1.0)])
def test_with_a_diversity_rate_the_search_waits_for_the_likeliest_path_not_for_the_first(early_stopping, penalty):
    """The rate lifts B's children: two end (0.24 and 0.12), one goes on (0.04), and so does A A (0.45). The search must
    not end by the look of the former."""
    table = {
        (): [0.5, 0.4, 0.1, 0], (A,): [0.9, 0.1, 0, 0], (B,): [0.1, 0, 0.6, 0.3], (A, A): [0, 0, 1, 0],
        (B, A): [0.5, 0.5, 0, 0],
    }  # fmt: skip
    sampling = {
        "beam_width": 2, "early_stopping": early_stopping, "beam_search_diversity_rate": 10, "length_penalty": penalty,
    }  # fmt: skip
    outputs, added = drive(request_of(4, sampling=sampling, end_id=END, stop_words=[[STOP]]), by_table(table), 4)
    best = outputs[-1].beams[0]
    assert (best.tokens, best.finish_reason) == ([A, A], "end_id")
    assert best.cum_log_prob == pytest.approx(math.log(0.45), abs=1e-6)
    # A and B; B STOP, B A and A A (the end of B END is no token); B A's two children.
    assert added[:3] == [2, 3, 2]


def test_many_stop_words_leave_room_for_paths_that_go_on():
    """Six of seven words end a beam, and the seventh comes behind them. Still one path must go on."""
    likely = [0.1, 0.16, 0.15, 0.15, 0.15, 0.15, 0.14]
    request = request_of(
        3, sampling={"beam_width": 2, "early_stopping": 2, "length_penalty": 3}, stop_words=[[n] for n in range(1, 7)]
    )
    outputs, _ = drive(request, lambda tokens: np.log(likely), 7)
    assert [beam.tokens for beam in outputs[-1].beams] == [[0, 0, 1], [0, 0, 2]]


def test_the_largest_length_penalty_is_a_number_for_the_longest_answer():
    most = next(setting for setting in fields(SamplingParams) if setting.name == "length_penalty").metadata["high"]
    assert 0 < MAX_TOKENS_LIMIT**-most < float(MAX_TOKENS_LIMIT) ** most < np.inf


def test_logits_of_dropped_paths_are_dropped_too():
    """The likeliest word leads less at every step, so that all paths have left the best one only lately, and a beam
    ends at every step. What must be kept then is hardly more than one row for each step."""
    vocab, steps, width = 5000, 40, 8

    def logits(step):
        row = np.linspace(0, 1, vocab, dtype=np.float32)
        row[:2] = 60 - step, 20  # 1 ends
        return row

    request = request_of(
        steps, sampling={"beam_width": width, "early_stopping": 2}, end_id=1, return_generation_logits=True
    )
    search = BeamSearch(request, vocab, steps)
    tracemalloc.start()
    for step in range(steps):
        held = tracemalloc.get_traced_memory()[0] / (vocab * 4)  # in rows
        output = search.step(np.tile(logits(step), (1 if step == 0 else width, 1)))
        assert output.finish_reason or all(beam.logits is None for beam in output.beams)
    tracemalloc.stop()
    assert len(output.beams) == width and output.finish_reason and step == steps - 1
    for beam in output.beams:
        np.testing.assert_array_equal(beam.logits, [logits(step) for step in range(len(beam.log_probs))])
    assert held < steps + 5 * width, held
