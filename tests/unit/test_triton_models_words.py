"""Word lists on the wire: the contract's examples, the way back, and clear errors."""

from __future__ import annotations

import numpy as np
import pytest
import triton_fakes  # noqa: F401  (first: it stands in for Triton's module)
from hypothesis import given
from hypothesis import strategies as st

from reference_backend.models import common
from reference_backend.models.common import InputError

rows = st.lists(st.lists(st.lists(st.integers(0, 49151), max_size=4), max_size=4), min_size=1, max_size=3)


def test_example_of_the_contract():
    encoded = common.encode_words([[[10, 11], [12]]])
    assert encoded.dtype == np.int32
    assert encoded.tolist() == [[[10, 11, 12], [2, 3, -1]]]


def test_no_words_is_one_zero_above_minus_one():
    assert common.encode_words([[[]]]).tolist() == [[[0], [-1]]]
    assert common.decode_words(np.array([[0], [-1]]), "stop_words_list") == []
    assert common.decode_words(np.zeros((2, 0), np.int32), "stop_words_list") == []


def test_rows_of_a_batch_are_padded_to_the_longest():
    assert common.encode_words([[[7]], [[1, 2, 3], [], [4]]]).tolist() == [
        [[7, 0, 0, 0], [1, -1, -1, -1]],
        [[1, 2, 3, 4], [3, 4, -1, -1]],
    ]


@given(rows)
def test_decoding_gives_the_words_back(given_rows):
    encoded = common.encode_words(given_rows)
    assert [common.decode_words(row, "w") for row in encoded] == [[word for word in row if word] for row in given_rows]


def test_a_list_beyond_all_sense_is_refused_before_it_is_read():
    with pytest.raises(InputError, match="^stop_words_list holds 32,769 ids a row, and at most 32,768 are read; give"):
        common.decode_words(np.ones((2, common.MAX_IDS + 1), np.int32), "stop_words_list")


@pytest.mark.parametrize(
    ("encoded", "said"),
    [
        ([[10, 11, 12], [2, -1, 3]], "must grow"),
        ([[10, 11, 12], [2, 2, -1]], "must grow"),
        ([[10, 11, 12], [3, 2, -1]], "must grow"),
        ([[10, 11, 12], [2, 4, -1]], "within the 3 ids"),
        ([[10, 11, 12], [0, -1, -1]], "must grow"),
        ([[10, 11, 12], [-2, -1, -1]], "must grow"),
        ([[10, 11, 12]], "shape [batch, 2, L]"),
        ([10, 11, 12], "shape [batch, 2, L]"),
    ],
)
def test_a_malformed_list_is_refused_by_name(encoded, said):
    with pytest.raises(InputError, match="stop_words_list") as error:
        common.decode_words(np.array(encoded), "stop_words_list")
    assert said in str(error.value)
