"""Words are found by their last token as a search through all of them finds them, and much faster."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_backend.executor import Request, SamplingParams
from reference_backend.executor.beams import BeamSearch
from reference_backend.executor.sampler import Words
from reference_backend.executor.sequence_decoder import SequenceDecoder

tokens = st.integers(0, 3)
words = st.lists(st.lists(tokens, min_size=1, max_size=4), max_size=12)


@given(words, st.lists(tokens, max_size=6))
def test_what_completes_a_word(given_words, before):
    found = Words(given_words).completed_by(before)
    assert bool(Words(given_words)) == bool(given_words)
    assert set(found) == {t for t in range(4) if any([*before, t][-len(word) :] == word for word in given_words)}


def seconds_of_a_step(words: int, width: int) -> float:
    """Of greedy decoding (width 1) or a beam search with this many stop words and bad words of two tokens."""
    vocab = 64
    stop = [[1 + at % 50, 51 + at // 50 % 10] + [52] * (at // 500) for at in range(words)]
    request = Request("r", np.array([1]), 200, SamplingParams(beam_width=width), stop_words=stop, bad_words=stop)
    search = (BeamSearch if width > 1 else SequenceDecoder)(request, vocab, 200)
    logits = np.zeros((width, vocab), np.float32)
    logits[:, :51] = 9 - np.arange(51) / 9  # no word is completed
    taken = []
    for step in range(40):
        given_logits = logits[: 1 if step == 0 else width].copy()
        began = time.perf_counter()
        output = search.step(given_logits)
        taken.append(time.perf_counter() - began)
        assert not output.finish_reason
    return sorted(taken)[len(taken) // 2]


@pytest.mark.parametrize("width", [1, 4])
def test_a_step_with_many_words_costs_what_it_costs_with_few(width):
    """A search through 5,000 words takes 100 times as long as one through 5."""
    few, many = (min(seconds_of_a_step(count, width) for _ in range(3)) for count in (5, 5000))
    assert many < 12 * few
