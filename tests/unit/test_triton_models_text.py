"""Streamed text equals the text of all tokens, however they arrive; stop words are found wherever a chunk ends."""

from __future__ import annotations

import pytest
import triton_fakes
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_backend.models.text import IncrementalText, StopText, Tokenizer

TEXTS = [
    'The café is "naïve" 😀 日本語 and so on.\n\tTabs  and   spaces ',
    "👩‍👩‍👧‍👦🏳️‍🌈 한국어 عربى 👍🏽",
    "def f(x):\n    return x  # ½ ≠ ¼",
]


@pytest.fixture(scope="module")
def byte_level(smollm2_tokenizer_dir):
    return Tokenizer(str(smollm2_tokenizer_dir))


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory):
    return Tokenizer(str(triton_fakes.byte_fallback_tokenizer(tmp_path_factory.mktemp("tokenizer"))))


def stream(tokenizer, ids, sizes):
    """Pieces of text when `ids` arrive in chunks of `sizes` (the last size repeats)."""
    detokenizer, pieces, start = IncrementalText(), [], 0
    while start < len(ids):
        size = sizes[min(len(pieces), len(sizes) - 1)]
        before, now = detokenizer.windows(ids[start : start + size])
        pieces.append(detokenizer.advance(tokenizer.decode(before, True), tokenizer.decode(now, True)))
        start += size
    return [*pieces, detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_pieces_are_whole_characters_and_sum_to_the_text(request, kind, text, size):
    tokenizer = request.getfixturevalue(kind)
    ids = tokenizer.encode(text, False)
    pieces = stream(tokenizer, ids, [size])
    assert "".join(pieces) == tokenizer.decode(ids, True)
    assert not any("\ufffd" in piece for piece in pieces)
    assert pieces[-1] == ""


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=40), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_any_byte_level_tokens_in_any_chunks(byte_level, ids, sizes):
    """Random tokens hold many broken characters; all but the endless ones come out as the whole decoding has them."""
    assert "".join(stream(byte_level, ids, sizes)) == byte_level.decode(ids, True)


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet="ab é日😀<", max_size=12), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_any_byte_fallback_text_in_any_chunks(byte_fallback, text, sizes):
    ids = byte_fallback.encode(text, False)
    assert "".join(stream(byte_fallback, ids, sizes)) == byte_fallback.decode(ids, True)


def test_a_space_survives_a_special_token_between_two_words(byte_fallback):
    hello, end, world = (byte_fallback._fast.token_to_id(piece) for piece in ("▁Hello", "</s>", "▁world"))
    assert stream(byte_fallback, [hello, end, end, world], [1]) == ["Hello", "", "", " world", ""]


def test_text_before_an_incomplete_character_is_not_held_back(byte_fallback):
    a, *euro = (byte_fallback._fast.token_to_id(piece) for piece in ("a", "<0xE2>", "<0x82>", "<0xAC>"))
    assert stream(byte_fallback, [a, *euro, *euro], [2, 1]) == ["a", "", "€", "", "", "€", ""]


def test_bytes_that_never_become_a_character_are_given_out_in_the_end(byte_fallback):
    broken = byte_fallback._fast.token_to_id("<0xE2>")
    pieces = stream(byte_fallback, [broken] * 3, [1])
    assert pieces == ["", "", "", "\ufffd\ufffd\ufffd"]
    assert any(stream(byte_fallback, [broken] * 80, [1])[:-1]), "invalid bytes must not be held back for ever"


words = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=150, deadline=None)
@given(words=words, pieces=st.lists(st.text(alphabet="abc", max_size=4), max_size=8))
def test_stop_words_cut_at_the_earliest_end_whatever_the_chunks(words, pieces):
    text = "".join(pieces)
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(word) for word in words)]
    expected = text[: ends[0]] if ends else text
    stop, shown = StopText(words), ""
    for piece in pieces:
        shown += stop.feed(piece)
        assert expected.startswith(shown), "text that belongs behind the stop word was shown"
        if stop.stopped:
            break
    if not stop.stopped:
        shown += stop.flush()
    assert shown == expected
    assert stop.stopped == bool(ends)


def test_only_a_possible_beginning_of_a_stop_word_is_held_back():
    stop = StopText(["branch", ""])
    assert [stop.feed(piece) for piece in (" the", " br", "ush", " bran")] == [" the", " ", "brush", " "]
    assert (stop.feed("ches"), stop.stopped) == ("branch", True)
