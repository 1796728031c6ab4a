"""What the executor refuses, and how it says so."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from executor_helpers import limits

from reference_backend.executor import Request, RequestError, SamplingParams

PROMPT = np.array([1, 2, 3], np.int32)


def test_defaults_are_those_of_tensorrt_llm():
    params = SamplingParams()
    assert params.greedy
    assert (params.temperature, params.top_k, params.top_p, params.seed, params.min_tokens) == (1.0, 0, 0.0, 0, 1)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("temperature", -1, "temperature is -1; it must be 0 (greedy) or more."),
        ("temperature", float("nan"), "temperature is nan; it must be a finite number, 0 (greedy) or more."),
        ("temperature", float("inf"), "temperature is inf; it must be a finite number, 0 (greedy) or more."),
        ("length_penalty", float("inf"), "length_penalty is inf; it must be a finite number, from 0 (off) to 50."),
        ("temperature", "hot", "temperature is 'hot'; it must be a number, 0 (greedy) or more."),
        ("top_k", -1, "top_k is -1; it must be from 0 (off) to 1024."),
        ("top_k", 1025, "top_k is 1025; it must be from 0 (off) to 1024."),
        ("top_k", 1.5, "top_k is 1.5; it must be a whole number, from 0 (off) to 1024."),
        ("top_p", 100, "top_p is 100; it must be from 0 (off) to 1."),
        ("top_p", -0.1, "top_p is -0.1; it must be from 0 (off) to 1."),
        ("seed", -1, "seed is -1; it must be from 0 to 2^64 - 1."),
        ("seed", 2**64, f"seed is {2**64}; it must be from 0 to 2^64 - 1."),
        ("repetition_penalty", 0, "repetition_penalty is 0; it must be more than 0 (1 is off)."),
        ("presence_penalty", float("inf"), "presence_penalty is inf; it must be a finite number, 0 is off."),
        ("frequency_penalty", float("nan"), "frequency_penalty is nan; it must be a finite number, 0 is off."),
        ("min_tokens", -1, "min_tokens is -1; it must be from 0 to 1000000."),
    ],
)
def test_sampling_out_of_range(name, value, says):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert str(caught.value) == says


def test_numbers_from_the_wire_are_taken():
    params = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int32(4), top_p=np.float32(1), seed=np.uint64(2**64 - 1)
    )
    assert params == SamplingParams(temperature=0.5, top_k=4, top_p=1.0, seed=2**64 - 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompt": np.array([], np.int32)}, "The prompt is empty; it must hold at least one token."),
        ({"prompt": []}, "The prompt is empty; it must hold at least one token."),
        (
            {"prompt": np.ones((1, 3), np.int32)},
            "The prompt is an array of int64 with 2 dimension(s); it must be one row",
        ),
        (
            {"prompt": np.ones(3, np.float32)},
            "The prompt is an array of float32 with 1 dimension(s); it must be one row",
        ),
        ({"prompt": ["a"]}, "The prompt is an array of <U1"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be from 1 to 1000000."),
        ({"max_tokens": -5}, "max_tokens is -5; it must be from 1 to 1000000."),
        ({"max_tokens": 2**31 - 1}, "max_tokens is 2147483647; it must be from 1 to 1000000."),
        ({"max_tokens": 2.5}, "max_tokens is 2.5; it must be a whole number, from 1 to 1000000."),
        ({"end_id": "</s>"}, "end_id is '</s>'; it must be a whole number, a token id."),
        ({"stop_words": [[]]}, "stop_words holds an empty word; each word must have at least one token."),
        ({"bad_words": ["no"]}, "bad_words must be a list of token id lists, such as [[10, 11], [12]]."),
    ],
)
def test_request_out_of_range(change, says):
    with pytest.raises(RequestError) as caught:
        Request(**{"id": "r", "prompt": PROMPT, "max_tokens": 4, **change})
    assert str(caught.value).startswith(says.replace("int64", str(np.asarray(change.get("prompt", 0)).dtype)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompt": [1, -1]}, "The prompt holds token id -1; ids must be from 0 to 99."),
        ({"prompt": [100]}, "The prompt holds token id 100; ids must be from 0 to 99, and"),
        ({"prompt": [2**32 + 5]}, "The prompt holds token id 4294967301; ids must be from 0 to 99, and"),
        ({"end_id": 100}, "end_id holds token id 100; ids must be from 0 to 99."),
        ({"stop_words": [[3], [4, 100]]}, "stop_words holds token id 100; ids must be from 0 to 99."),
        ({"bad_words": [[-1]]}, "bad_words holds token id -1; ids must be from 0 to 99."),
        ({"prompt": [1] * 32}, "Prompt length (32) exceeds maximum input length (31); shorten the prompt or use"),
        (
            {"prompt": [1] * 300_000},
            "Prompt length (300000) exceeds maximum input length (31); shorten the prompt or use",
        ),
    ],
)
def test_request_that_does_not_fit_the_engine(change, says):
    request = Request(**{"id": "r", "prompt": PROMPT, "max_tokens": 4, **change})
    with pytest.raises(RequestError) as caught:
        request.fit(limits(100, 32))
    assert str(caught.value).startswith(says)


def test_max_tokens_is_clamped_with_a_warning(caplog):
    request = Request("long", PROMPT, 1000)
    with caplog.at_level(logging.WARNING):
        assert request.fit(limits(100, 32)) == 29
    assert "Request long: prompt (3) + max_tokens (1000) exceeds max_seq_len (32)" in caplog.text
    caplog.clear()
    assert Request("fits", PROMPT, 29).fit(limits(100, 32)) == 29
    assert not caplog.records


def test_a_negative_end_id_is_none():
    assert Request("r", PROMPT, 4, end_id=-1).end_id is None
    assert Request("r", PROMPT, 4, end_id=0).end_id == 0


@pytest.mark.parametrize(
    ("bias", "says"),
    [
        ([[1.0, 2.0]], "embedding_bias must be one row of numbers"),
        ([np.nan, 0.0], "embedding_bias holds nan or +inf"),
        ([np.inf, 0.0], "embedding_bias holds nan or +inf"),
    ],
)
def test_an_embedding_bias_is_one_row_of_numbers(bias, says):
    with pytest.raises(RequestError) as caught:
        Request("r", np.array([1]), 2, embedding_bias=bias)
    assert str(caught.value).startswith(says)


def test_an_embedding_bias_may_forbid_and_be_short_but_not_long():
    request = Request("r", np.array([1]), 2, embedding_bias=[-np.inf, 1.0])
    assert request.fit(limits(5, 10)) == 2
    with pytest.raises(RequestError, match="embedding_bias holds 2 numbers, but the vocabulary has 1 tokens"):
        Request("r", np.array([0]), 2, embedding_bias=[0.0, 1.0]).fit(limits(1, 10))


@pytest.mark.parametrize(
    ("name", "value"),
    [("beam_width", 0), ("beam_width", 257), ("length_penalty", -0.5), ("early_stopping", -1),
     ("beam_search_diversity_rate", -1)],
)  # fmt: skip
def test_beam_settings_out_of_range_are_named(name, value):
    with pytest.raises(RequestError, match=f"{name} is {value}"):
        SamplingParams(**{name: value})
