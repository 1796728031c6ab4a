"""`preprocessing` and `postprocessing` on sizes that cannot be meant."""

from __future__ import annotations

import numpy as np
import pytest
from triton_fakes import arguments, as_dict, byte_fallback_tokenizer, request, strings

from reference_backend.models import postprocessing, preprocessing


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory):
    return byte_fallback_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def model_of(module, tokenizer_dir):
    model = module.TritonPythonModel()
    model.initialize(arguments(module.__name__.rsplit(".")[-1], tokenizer_dir=str(tokenizer_dir)))
    return model


def test_a_prompt_of_megabytes_is_refused_before_it_is_tokenised(tokenizer_dir):
    model = model_of(preprocessing, tokenizer_dir)
    text = "a" * (preprocessing.MAX_PROMPT_BYTES + 1)
    inputs = {"QUERY": strings([text]), "REQUEST_OUTPUT_LEN": np.array([[1]], np.int32)}
    inputs |= {name: np.array([[0]], np.int32) for name in ("END_ID", "PAD_ID")}

    class NoTokenizer:
        end_id = pad_id = 0

    model.tokenizer = NoTokenizer()
    (response,) = model.execute([request(inputs)])
    assert response.error().message() == "QUERY has 2,097,153 bytes, and at most 2,097,152 are read; shorten it."


@pytest.mark.parametrize("words", [["a" * 9000, "b" * 7385], ["a"] * 1025])
def test_words_beyond_all_sense_are_refused_before_they_are_tokenised(tokenizer_dir, words):
    model = model_of(preprocessing, tokenizer_dir)
    half = len(words) // 2
    inputs = {"QUERY": strings(["a"]), "REQUEST_OUTPUT_LEN": np.array([[1]], np.int32)}
    inputs |= {"STOP_WORDS_DICT": strings(words[:half]), "BAD_WORDS_DICT": strings(words[half:])}

    class NoTokenizer:
        end_id = pad_id = 0

    tokenizer, model.tokenizer = model.tokenizer, NoTokenizer()
    (response,) = model.execute([request(inputs)])
    said = response.error().message()
    assert f"hold {len(words):,} words of {sum(map(len, words)):,} bytes together, and at most 1,024 words of" in said
    model.tokenizer = tokenizer
    inputs["BAD_WORDS_DICT"] = strings([word[:7384] for word in words[half:-1]] or [words[-1][:-1]])
    (response,) = model.execute([request(inputs)])
    assert response.error() is None


@pytest.mark.parametrize("length", [-2, 4])
def test_a_length_that_the_ids_do_not_have_is_refused(tokenizer_dir, length):
    model = model_of(postprocessing, tokenizer_dir)

    def ask(length):
        tensors = {"TOKENS_BATCH": np.array([[[1, 2, 3]]], np.int32), "SEQUENCE_LENGTH": np.array([[length]], np.int32)}
        (response,) = model.execute([request(tensors)])
        return response

    assert ask(length).error().message() == f"SEQUENCE_LENGTH is {length}; it must be from 0 to 3, the ids of a row."
    assert ask(3).error() is None and as_dict(ask(3))["OUTPUT"].shape == (1,)
