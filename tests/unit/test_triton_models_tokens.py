"""`preprocessing` and `postprocessing` against transformers' tokenizer, and in every case the contract names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import triton_fakes
from triton_fakes import arguments, as_dict, request, strings

from reference_backend import BackendError
from reference_backend.models import postprocessing, preprocessing
from reference_backend.models.text import Tokenizer

PROMPTS = [
    "Hello world",
    "  two leading blanks, trailing tab\t",
    "<|im_start|>user\nIs 12345 prime? 😀 日本語<|im_end|>\n",
    "NUL \0 inside",
    "",
]


def model(module, folder, **parameters):
    made = module.TritonPythonModel()
    made.initialize(arguments(module.__name__.rpartition(".")[2], tokenizer_dir=folder, **parameters))
    return made


@pytest.fixture(scope="module")
def pre(smollm2_tokenizer_dir):
    return model(preprocessing, smollm2_tokenizer_dir)


@pytest.fixture(scope="module")
def post(smollm2_tokenizer_dir):
    return model(postprocessing, smollm2_tokenizer_dir)


def ask(model, **inputs):
    if "QUERY" in inputs:
        inputs.setdefault("REQUEST_OUTPUT_LEN", np.full((len(inputs["QUERY"]), 1), 5, np.int32))
    (response,) = model.execute([request(inputs)])
    return response


def refused(model, **inputs):
    response = ask(model, **inputs)
    assert response.has_error()
    assert response.error().code() == triton_fakes.TritonError.INVALID_ARG
    return response.error().message()


def test_prompts_become_the_ids_of_transformers(pre, hf_tokenizer):
    for prompt in PROMPTS:
        out = as_dict(ask(pre, QUERY=strings(prompt)))
        expected = hf_tokenizer.encode(prompt)
        assert out["INPUT_ID"].tolist() == [expected], prompt
        assert out["REQUEST_INPUT_LEN"].tolist() == [[len(expected)]]
        assert out["INPUT_ID"].dtype == out["REQUEST_INPUT_LEN"].dtype == np.int32


def test_rows_are_padded_on_the_right_with_the_pad_id(pre, hf_tokenizer):
    out = as_dict(ask(pre, QUERY=strings("a", "one two three")))
    lengths = [len(hf_tokenizer.encode(text)) for text in ("a", "one two three")]
    assert out["REQUEST_INPUT_LEN"].tolist() == [[length] for length in lengths]
    assert out["INPUT_ID"][0, lengths[0] :].tolist() == [hf_tokenizer.pad_token_id] * (lengths[1] - lengths[0])
    given = as_dict(ask(pre, QUERY=strings("a", "one two three"), PAD_ID=np.array([[9], [8]], np.int32)))
    assert given["INPUT_ID"][0, lengths[0] :].tolist() == [9] * (lengths[1] - lengths[0])


def test_defaults_that_every_request_carries(pre, hf_tokenizer):
    out = as_dict(ask(pre, QUERY=strings("a", "b"), REQUEST_OUTPUT_LEN=np.array([[3], [4]], np.int32)))
    pad, end = hf_tokenizer.pad_token_id, hf_tokenizer.eos_token_id
    assert out["OUT_PAD_ID"].tolist() == out["DECODER_INPUT_ID"].tolist() == [[pad], [pad]]
    assert out["OUT_END_ID"].tolist() == [[end], [end]]
    assert out["REQUEST_DECODER_INPUT_LEN"].tolist() == [[1], [1]]
    assert out["REQUEST_OUTPUT_LEN"].tolist() == [[3], [4]]
    assert out["BAD_WORDS_IDS"].shape == out["STOP_WORDS_IDS"].shape == (2, 2, 0)
    assert out["EMBEDDING_BIAS"].shape == (2, 0)
    assert out["EMBEDDING_BIAS"].dtype == np.float32
    assert "OUT_PROMPT_TABLE_EXTRA_IDS" not in out


def test_end_and_pad_id_of_the_request_win(pre):
    ids = {"END_ID": np.array([[17]], np.int32), "PAD_ID": np.array([[-1]], np.int32)}
    out = as_dict(ask(pre, QUERY=strings("a"), **ids))
    assert out["OUT_END_ID"].tolist() == [[17]]
    assert out["OUT_PAD_ID"].tolist() == [[-1]]


def test_word_lists(pre, hf_tokenizer):
    def ids(word):
        return hf_tokenizer.encode(word, add_special_tokens=False)

    given = {"STOP_WORDS_DICT": strings([" stop", "", "now!"]), "BAD_WORDS_DICT": strings("")}
    out = as_dict(ask(pre, QUERY=strings("a"), **given))
    first, second = ids(" stop"), ids("now!")
    length = len(first) + len(second)
    assert out["STOP_WORDS_IDS"].tolist() == [
        [first + second, [len(first), length] + [-1] * (length - 2)],
    ]
    assert out["BAD_WORDS_IDS"].tolist() == [[[0], [-1]]]
    assert ids(" stop") != ids("stop"), "the lesson's point: a blank makes another word"


def test_words_get_no_special_tokens(tmp_path):
    pre = model(preprocessing, triton_fakes.byte_fallback_tokenizer(tmp_path))
    out = as_dict(ask(pre, QUERY=strings("Hello"), STOP_WORDS_DICT=strings("Hello")))
    assert 1 in out["INPUT_ID"] and 1 not in out["STOP_WORDS_IDS"][:, 0]


def test_embedding_bias_adds_each_weight_to_each_id(pre, hf_tokenizer):
    words, weights = [" Paris", " Rome Rome"], [2.5, -1.0]
    given = {"EMBEDDING_BIAS_WORDS": strings(words), "EMBEDDING_BIAS_WEIGHTS": np.array([weights], np.float32)}
    bias = as_dict(ask(pre, QUERY=strings("a"), **given))["EMBEDDING_BIAS"]
    expected = np.zeros((1, len(hf_tokenizer)), np.float32)
    for word, weight in zip(words, weights, strict=True):
        for token in hf_tokenizer.encode(word, add_special_tokens=False):
            expected[0, token] += weight
    assert np.array_equal(bias, expected)
    empty = {"EMBEDDING_BIAS_WORDS": strings(""), "EMBEDDING_BIAS_WEIGHTS": np.zeros((1, 1), np.float32)}
    assert not as_dict(ask(pre, QUERY=strings("a"), **empty))["EMBEDDING_BIAS"].any()


def test_embedding_bias_that_does_not_fit_together(pre):
    words = {"EMBEDDING_BIAS_WORDS": strings([" a", " b"])}
    assert "both or neither" in refused(pre, QUERY=strings("a"), **words)
    words["EMBEDDING_BIAS_WEIGHTS"] = np.zeros((1, 3), np.float32)
    assert "one weight for each word" in refused(pre, QUERY=strings("a"), **words)
    words = {"EMBEDDING_BIAS_WORDS": strings([""]), "EMBEDDING_BIAS_WEIGHTS": np.zeros((1, 2), np.float32)}
    assert "one weight for each word" in refused(pre, QUERY=strings("a"), **words)


@pytest.mark.parametrize("name", ["IMAGE_BYTES", "IMAGE_URL", "VIDEO_BYTES", "PROMPT_TABLE_EXTRA_ID"])
def test_a_picture_is_refused_by_name(pre, name):
    value = strings("http://x/y.png") if name == "IMAGE_URL" else np.zeros((1, 1, 2, 2, 3), np.uint8)
    if name == "PROMPT_TABLE_EXTRA_ID":
        value = np.ones((1, 1), np.uint64)
        assert not ask(pre, QUERY=strings("a"), **{name: 0 * value}).has_error(), "0 says that there is no table"
    assert name in refused(pre, QUERY=strings("a"), **{name: value})


def test_broken_text_is_refused_and_the_rest_of_the_batch_is_served(pre):
    broken = request({"QUERY": np.array([[b"\xff\xfe"]], np.object_), "REQUEST_OUTPUT_LEN": np.ones((1, 1), np.int32)})
    fine = request({"QUERY": strings("a"), "REQUEST_OUTPUT_LEN": np.ones((1, 1), np.int32)})
    bad, good = pre.execute([broken, fine])
    assert "QUERY is not valid UTF-8" in bad.error().message()
    assert not good.has_error()


def test_one_bos_for_a_templated_prompt(tmp_path):
    """A chat template writes the BOS itself; adding special tokens again doubles it (vllm#16976, TGI#1594)."""
    folder = triton_fakes.byte_fallback_tokenizer(tmp_path)
    templated = strings("<s>Hello")
    models = [model(preprocessing, folder, add_special_tokens=value) for value in ("False", "True")]
    once, twice = (as_dict(ask(made, QUERY=templated))["INPUT_ID"][0].tolist() for made in models)
    assert (once.count(1), twice.count(1)) == (1, 2)
    assert once[0] == 1


def test_special_ids_from_the_file_that_has_them(tmp_path):
    folder = triton_fakes.byte_fallback_tokenizer(tmp_path)
    assert (Tokenizer(str(folder)).end_id, Tokenizer(str(folder)).pad_id) == (2, 2)
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(BackendError, match="names no end token"):
        Tokenizer(str(folder))
    (folder / "config.json").write_text('{"eos_token_id": [7, 8], "pad_token_id": 0}')
    found = Tokenizer(str(folder))
    assert (found.end_id, found.other_ends, found.pad_id) == (7, [8], 0)
    with pytest.raises(BackendError, match="no tokenizer.json"):
        Tokenizer(str(tmp_path / "elsewhere"))


def test_each_end_token_of_a_chat_model_ends_the_turn(tmp_path):
    """gemma-2b-it ends with <eos> or <end_of_turn>; the tokenizer names one, generation_config.json both."""
    folder = triton_fakes.byte_fallback_tokenizer(tmp_path)
    size = Tokenizer(str(folder)).size
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2, 8, size]}))
    (folder / "config.json").write_text('{"eos_token_id": 9}')  # what transformers does not read beside the other
    pre = model(preprocessing, folder)
    out = as_dict(ask(pre, QUERY=strings("Hello", "ld")))
    assert out["OUT_END_ID"].tolist() == [[2], [2]]
    assert out["STOP_WORDS_IDS"].tolist() == [[[7, 8], [1, 2]]] * 2
    both = as_dict(ask(pre, QUERY=strings("Hello"), STOP_WORDS_DICT=strings([" world"])))["STOP_WORDS_IDS"][0]
    word = pre.tokenizer.encode(" world", False)
    assert both.tolist()[0] == [*word, 7, 8] and both.tolist()[1][:3] == [len(word), len(word) + 1, len(word) + 2]
    own = as_dict(ask(pre, QUERY=strings("Hello"), END_ID=np.array([[5]], np.int32)))
    assert own["OUT_END_ID"].tolist() == [[5]] and own["STOP_WORDS_IDS"].shape == (1, 2, 0), "the client's alone"


def test_parameters_that_are_missing_unfilled_or_wrong(tmp_path):
    folder = triton_fakes.byte_fallback_tokenizer(tmp_path)
    values = {"${add_special_tokens}": True, "": True, "maybe": True, "No": False, "0": False, "T": True}
    assert {v: model(preprocessing, folder, add_special_tokens=v).add_special_tokens for v in values} == values
    with pytest.raises(BackendError, match="tokenizer_dir ''"):
        model(preprocessing, "${tokenizer_dir}")


# --- postprocessing


def decoded(model, tokens, lengths):
    out = as_dict(ask(model, TOKENS_BATCH=np.array(tokens, np.int32), SEQUENCE_LENGTH=np.array(lengths, np.int32)))
    return out["OUTPUT"].tolist()


def test_only_the_given_length_of_each_beam_is_decoded(post, hf_tokenizer):
    ids = hf_tokenizer.encode("The quick brown fox")
    rows = [[ids, ids[::-1]], [ids, ids]]
    assert decoded(post, rows, [[2, 1], [0, len(ids)]]) == [
        hf_tokenizer.decode(ids[:2]),
        hf_tokenizer.decode(ids[-1:]),
        "",
        "The quick brown fox",
    ]
    assert decoded(post, [[[*ids, -1, -1]]], [[len(ids)]]) == ["The quick brown fox"]
    assert decoded(post, np.zeros((1, 1, 0)), [[0]]) == [""]


def test_special_tokens_are_left_out_unless_asked_for(post, hf_tokenizer, smollm2_tokenizer_dir):
    ids = hf_tokenizer.encode("a<|im_end|>b")
    assert decoded(post, [[ids]], [[len(ids)]]) == ["ab"]
    keeping = model(postprocessing, smollm2_tokenizer_dir, skip_special_tokens="false")
    assert decoded(keeping, [[ids]], [[len(ids)]]) == ["a<|im_end|>b"]


def test_an_id_below_the_vocabulary_is_named_and_one_behind_it_has_no_text(post, hf_tokenizer):
    said = refused(post, TOKENS_BATCH=np.array([[[5, -1]]], np.int32), SEQUENCE_LENGTH=np.array([[2]], np.int32))
    assert said == "Token id -1 is outside the tokenizer's vocabulary of 49152 tokens."
    ids = [49152, *hf_tokenizer.encode("a cat"), 2**31 - 1]
    assert decoded(post, [[ids]], [[len(ids)]]) == ["a cat"] == [hf_tokenizer.decode(ids)]


def test_shapes_that_do_not_fit(post):
    assert "TOKENS_BATCH must be" in refused(
        post, TOKENS_BATCH=np.zeros((1, 2, 3), np.int32), SEQUENCE_LENGTH=np.zeros((1, 1), np.int32)
    )


@pytest.mark.parametrize("name", ["preprocessing", "postprocessing", "tensorrt_llm_bls"])
def test_no_model_but_the_llm_imports_anything_heavy(name):
    code = (
        "import sys, triton_fakes, importlib; importlib.import_module('reference_backend.models." + name + "');"
        "print([m for m in ('torch', 'transformers', 'onnxruntime', 'tritonclient') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr
