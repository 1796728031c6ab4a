"""Whatever a client sends: one clear sentence, and the next request is served."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from triton_client import ClientError

pytestmark = pytest.mark.integration

COUNT = "Count: one two three four five six"
TEXT_MODELS = ["ensemble", "tensorrt_llm_bls"]


def text(*rows):
    return np.array([[row.encode() if isinstance(row, str) else row] for row in rows], np.object_)


def fine(**changes):
    """A request for a text model, as arrays; None leaves an input out."""
    given = {"text_input": text(COUNT), "max_tokens": np.array([[3]], np.int32), "stream": np.array([[True]])}
    return {name: array for name, array in (given | changes).items() if array is not None}


def error_of(client, model, inputs, **options):
    """The one error of a request that must fail."""
    with pytest.raises(ClientError) as caught:
        list(client.stream_inputs(model, inputs, checked=False, deadline=60, **options))
    message = str(caught.value)
    assert message.count("\n") == 0 and len(message) < 400, message
    assert "Traceback" not in message and "Error:" not in message, message
    return message


@pytest.fixture(autouse=True)
def the_next_request_works(client):
    yield
    assert "".join(chunk.text for chunk in client.stream(COUNT, max_tokens=2)) == " seven eight"


def numbers(kind, *values):
    return np.array([[value] for value in values], kind)


BAD_VALUES = [
    ({"text_input": text("")}, "prompt is empty"),
    ({"text_input": text(b"\xff\xfe")}, "not valid UTF-8"),
    ({"max_tokens": numbers(np.int32, 0)}, "max_tokens is 0"),
    ({"max_tokens": numbers(np.int32, -7)}, "max_tokens is -7"),
    ({"max_tokens": numbers(np.int32, 2**31 - 1)}, "max_tokens is 2147483647"),
    ({"top_p": numbers(np.float32, 100)}, "top_p is 100"),
    ({"top_p": numbers(np.float32, np.nan)}, "top_p is nan"),
    ({"top_k": numbers(np.int32, -1)}, "top_k is -1"),
    ({"top_k": numbers(np.int32, 5000)}, "top_k is 5000"),
    ({"temperature": numbers(np.float32, -1)}, "temperature is -1"),
    ({"temperature": numbers(np.float32, np.inf)}, "temperature is inf"),
    ({"repetition_penalty": numbers(np.float32, 0)}, "repetition_penalty is 0"),
    ({"min_tokens": numbers(np.int32, -1)}, "min_tokens is -1"),
    ({"end_id": numbers(np.int32, 99999)}, "end_id holds token id 99999"),
    ({"beam_width": numbers(np.int32, 0)}, "beam_width is 0"),
    ({"beam_width": numbers(np.int32, 4)}, "max_beam_width 1"),
    ({"num_return_sequences": numbers(np.int32, 0)}, "num_return_sequences is 0"),
    ({"lora_task_id": numbers(np.uint64, 1)}, "lora_task_id"),
    ({"prompt_embedding_table": np.ones((1, 2, 3), np.float16)}, "prompt_embedding_table"),
    ({"guided_decoding_guide": text("{}"), "guided_decoding_guide_type": text("json")}, "guided_decoding_guide"),
    (
        {"embedding_bias_words": text(" Paris"), "embedding_bias_weights": np.full((1, 1), np.nan, np.float32)},
        "embedding_bias holds nan",
    ),
    ({"embedding_bias_words": text(" Paris")}, "belong together"),
]


@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize(("inputs", "said"), BAD_VALUES, ids=[said for _, said in BAD_VALUES])
def test_a_bad_value_or_missing_feature_is_named(client, model, inputs, said):
    assert said in error_of(client, model, fine(**inputs))


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"image_url_input": text("http://x/y.png")}, "image_url_input"),
        ({"image_bytes_input": np.zeros((1, 1, 2, 2, 3), np.uint8)}, "image_bytes_input"),
        ({"prompt_table_extra_id": numbers(np.uint64, 1)}, "PROMPT_TABLE_EXTRA_ID was given"),
        ({"video_bytes_input": np.zeros((1, 1, 2, 2, 3), np.uint8)}, "video_bytes_input"),
        ({"image_input": np.zeros((1, 1, 3, 2, 2), np.float16)}, "image_input"),
        ({"num_draft_tokens": numbers(np.int32, 4)}, "num_draft_tokens"),
    ],
)
def test_what_only_the_bls_model_declares(client, inputs, said):
    assert said in error_of(client, "tensorrt_llm_bls", fine(**inputs))


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_a_prompt_of_a_megabyte_is_refused_with_both_numbers(client, model):
    message = error_of(client, model, fine(text_input=text("word " * 200_000)))
    assert "Prompt length (" in message and "exceeds maximum input length (2047)" in message


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_unusual_but_good_input_is_served(client, model):
    for change in (
        {"text_input": text("NUL \0 in the middle")},
        {"temperature": numbers(np.float32, 0), "top_k": numbers(np.int32, 5)},
        {"top_p": numbers(np.float32, 0)},
        {"top_p": numbers(np.float32, -1)},
        {"stop_words": text(""), "bad_words": text("")},
        {"max_tokens": numbers(np.int32, 1), "min_tokens": numbers(np.int32, 9)},
        {"decoder_text_input": text("ignored by a decoder-only model")},
        {"prompt_table_extra_id": numbers(np.uint64, 0)},
        {"num_return_sequences": numbers(np.int32, 1), "return_log_probs": np.array([[False]])},
    ):
        chunks = list(client.stream_inputs(model, fine(**change), checked=False, deadline=60))
        assert chunks[-1].final and any("text_output" in chunk.outputs for chunk in chunks), change


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_wrong_datatype_shape_or_name(client, model):
    """npuichigo/openai_trtllm#58 and contract 4.6: Triton refuses these before our models see them."""
    flat = error_of(client, model, fine(text_input=np.array([COUNT.encode()], np.object_)))
    assert f"unexpected shape for input 'text_input' for model '{model}'. Expected [-1,1], got [1]" in flat
    assert "data-type is 'INT64', but model" in error_of(client, model, fine(max_tokens=numbers(np.int64, 3)))
    for old in ("random_seed", "runtime_top_k", "temprature"):
        assert f"unexpected inference input '{old}'" in error_of(client, model, fine(**{old: numbers(np.int32, 1)}))
    assert "expected number of inputs between" in error_of(client, model, fine(max_tokens=None, stream=None))
    many = {name: np.repeat(array, 9, axis=0) for name, array in fine().items()}
    assert "batch-size must be <= 8" in error_of(client, model, many)


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_a_plain_call_of_a_decoupled_model(client, model):
    """tensorrtllm_backend#177, #233."""
    with pytest.raises(ClientError, match="doesn't support models with decoupled transaction policy"):
        client.infer(COUNT, model=model)
    with pytest.raises(ClientError, match="generate expects model to produce exactly 1 response"):
        client.generate(COUNT, model=model, max_tokens=3, stream=True)


def test_errors_of_the_llm_itself(client):
    def llm(**changes):
        given = {
            "input_ids": np.array([[5, 6, 7]], np.int32),
            "input_lengths": numbers(np.int32, 3),
            "request_output_len": numbers(np.int32, 2),
        }
        return {name: array for name, array in (given | changes).items() if array is not None}

    def said(**changes):
        return error_of(client, "tensorrt_llm", llm(**changes))

    assert "input_ids is missing" in said(input_ids=None)
    assert "input_lengths is 9" in said(input_lengths=numbers(np.int32, 9))
    assert "token id 49152" in said(input_ids=np.array([[5, 49152, 7]], np.int32))
    assert "token id -1" in said(input_ids=np.array([[5, -1, 7]], np.int32))
    assert "stop_words_list" in said(stop_words_list=np.array([[[5, 6], [3, -1]]], np.int32))
    assert "lookahead" in said(lookahead_window_size=numbers(np.int32, 3))
    assert "context_phase_params" in said(context_phase_params=np.ones((1, 4), np.uint8))
    assert "Trying to stop a request but request ID is not provided" in stop_without_id(client, llm())


def stop_without_id(client, inputs):
    """Our client gives every request an id, so this one is sent with tritonclient."""
    return raw_error(client, "tensorrt_llm", inputs | {"stop": np.array([[True]])})


def raw_error(client, model, inputs):
    import queue

    answers: queue.SimpleQueue = queue.SimpleQueue()
    with grpcclient.InferenceServerClient(client.grpc_url) as raw:
        raw.start_stream(lambda result, error: answers.put(error))
        raw.async_stream_infer(model, [_tensor(name, array) for name, array in inputs.items()])
        error = answers.get(timeout=30)
    assert isinstance(error, InferenceServerException)
    return error.message()


def _tensor(name, array):
    tensor = grpcclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return tensor


def test_a_load_tool_that_fills_every_input_is_told_about_stop(client):
    """server#7168: perf_analyzer without input data sends random values for all inputs, `stop` among them."""
    generator = np.random.default_rng(0)
    inputs = {}
    for name, spec in client.spec("tensorrt_llm").inputs.items():
        shape = [1, *(4 if size < 0 else size for size in spec.dims)]
        if spec.datatype == "BYTES":
            inputs[name] = np.full(shape, b"x", np.object_)
        elif spec.datatype == "BOOL":
            inputs[name] = np.ones(shape, bool)
        else:
            kind = {"FP16": np.float16, "FP32": np.float32}.get(spec.datatype) or np.dtype(spec.datatype.lower())
            inputs[name] = generator.integers(0, 50, shape).astype(kind)
    assert len(inputs) == 60
    assert raw_error(client, "tensorrt_llm", inputs) == "Trying to stop a request but request ID is not provided"


def test_a_token_id_that_no_tokenizer_has(client):
    given = {"TOKENS_BATCH": np.array([[[5, -1]]], np.int32), "SEQUENCE_LENGTH": np.array([[2]], np.int32)}
    assert "Token id -1 is outside" in error_of(client, "postprocessing", given)


def test_pictures_for_preprocessing(client):
    given = {"QUERY": text("a"), "REQUEST_OUTPUT_LEN": numbers(np.int32, 1), "IMAGE_URL": text("http://x/y.png")}
    assert "IMAGE_URL" in error_of(client, "preprocessing", given)


# --- not decoupled


@pytest.mark.parametrize("model", [*TEXT_MODELS, "tensorrt_llm"])
def test_streaming_needs_a_decoupled_model(client_blocking, model):
    model_that_says_it = model if model != "ensemble" else "tensorrt_llm"
    said = f"Streaming is only supported if model is deployed using decoupled mode; '{model_that_says_it}' is not"
    if model == "tensorrt_llm":
        ids = {"input_ids": [[5, 6]], "input_lengths": 2, "request_output_len": 2, "streaming": True}
        with pytest.raises(ClientError, match=said):
            client_blocking.infer_inputs(model, ids)
    else:
        with pytest.raises(ClientError, match=said):
            client_blocking.infer(COUNT, model=model, stream=True)
        with pytest.raises(ClientError, match=said):
            list(client_blocking.stream(COUNT, model=model))


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_a_batch_needs_a_decoupled_model(client_blocking, model):
    with pytest.raises(ClientError, match="requires the decoupled transaction policy"):
        client_blocking.infer(["one", "two"], model=model)
    with pytest.raises(ClientError, match="num_return_sequences 2 gives as many responses, which needs the decoupled"):
        client_blocking.infer(COUNT, model=model, num_return_sequences=2)
    assert client_blocking.infer(COUNT, model=model, max_tokens=2).text == COUNT + " seven eight"
