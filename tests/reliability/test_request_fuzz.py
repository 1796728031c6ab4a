"""Random tensors for every declared input of all five models: each request gets an answer or an error, nothing dies.

Left out because they kill Triton 24.10 itself, whatever the models do: the request parameter `classification` on BYTES
outputs, JSON nested 100,000 deep, and a form-encoded body above 4.19 MB (upstream; none is a tensor).
"""

from __future__ import annotations

import grpc
import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import serialize_byte_tensor, triton_to_np_dtype

from servinglab.client import channel_args
from servinglab.repository import contract
from servinglab.triton_24_10 import dead_processes

DEADLINE = 120.0
COUNT = "Count: one two three four five six"
SLOW_IS_FINE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
TYPES = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
         "BYTES"]  # fmt: skip
WORDS = [b"", b"a", COUNT.encode(), b"\xff\xfe", b"\0", b" Paris", "東京 😀".encode(), b"x" * 5000, b"<|im_end|>",
         b"json"]  # fmt: skip
INTEGERS = [0, 1, 2, 3, 5, 7, -1, -2, 49151, 49152, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**64 - 1]
REALS = [0.0, 1.0, 0.5, -1.0, 100.0, 1e-30, 1e30, 65504.0, float("nan"), float("inf"), -float("inf")]
# Lengths: what is right for one token or few, so that no example computes for minutes; and what must be refused.
SHORT = {"max_tokens", "request_output_len", "REQUEST_OUTPUT_LEN"}


def values(name: str, datatype: str, count: int) -> st.SearchStrategy:
    if datatype == "BYTES":
        one = st.sampled_from(WORDS) | st.binary(max_size=8)
    elif datatype == "BOOL":
        one = st.booleans()
    elif datatype.startswith("FP"):
        one = st.sampled_from(REALS) | st.floats(-2, 2)
    else:
        limits = np.iinfo(triton_to_np_dtype(datatype))
        fitting = [number for number in INTEGERS if limits.min <= number <= limits.max]
        one = st.sampled_from([n for n in fitting if n <= 3 or n > 10**6] if name in SHORT else fitting)
    return st.lists(one, min_size=count, max_size=count)


@st.composite
def tensor(draw, name: str, datatype: str, dims: tuple[int, ...], rows: int) -> tuple[str, list[int], list]:
    """(datatype, shape, values): mostly as declared, sometimes not."""
    if draw(st.integers(0, 9)) == 0:
        datatype = draw(st.sampled_from(TYPES))
    shape = [rows, *(draw(st.sampled_from([1, 1, 2, 3, 0])) if size < 0 else size for size in dims)]
    if draw(st.integers(0, 9)) == 0:
        shape = draw(st.lists(st.integers(0, 3), max_size=4))
    return datatype, shape, draw(values(name, datatype, int(np.prod(shape))))


def sound(model: str, rows: int) -> dict[str, tuple[str, list[int], list]]:
    """A request that each model answers; fuzzed tensors replace parts of it."""
    one = [rows, 1]
    texts = {"text_input": ("BYTES", one, [COUNT.encode()] * rows), "max_tokens": ("INT32", one, [2] * rows)}
    return {
        "preprocessing": {
            "QUERY": ("BYTES", one, [COUNT.encode()] * rows),
            "REQUEST_OUTPUT_LEN": ("INT32", one, [2] * rows),
        },
        "postprocessing": {
            "TOKENS_BATCH": ("INT32", [rows, 1, 3], [5, 6, 7] * rows),
            "SEQUENCE_LENGTH": ("INT32", one, [3] * rows),
        },
        "tensorrt_llm": {
            "input_ids": ("INT32", [rows, 3], [5, 6, 7] * rows),
            "input_lengths": ("INT32", one, [3] * rows),
            "request_output_len": ("INT32", one, [2] * rows),
        },
    }.get(model, texts)


@st.composite
def request(draw, model: str, spec) -> service_pb2.ModelInferRequest:
    rows = draw(st.sampled_from([1, 1, 1, 2, 3]))
    given = sound(model, rows)
    for name in draw(st.lists(st.sampled_from(sorted(spec.inputs)), min_size=1, max_size=4, unique=True)):
        wanted = spec.inputs[name]
        given[name] = draw(tensor(name, wanted.datatype, wanted.dims, rows))
    if draw(st.integers(0, 14)) == 0:
        del given[draw(st.sampled_from(sorted(given)))]
    message = service_pb2.ModelInferRequest(model_name=model, id=draw(st.sampled_from(["", "1", "same", "é" * 50])))
    for name, (datatype, shape, flat) in given.items():
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        with np.errstate(over="ignore"):  # 1e30 as FP16 is infinite
            array = np.array(flat, object if datatype == "BYTES" else triton_to_np_dtype(datatype)).reshape(shape)
        raw = serialize_byte_tensor(array).item() if datatype == "BYTES" and array.size else array.tobytes()
        if datatype == "BYTES" and not array.size:
            raw = b""
        if draw(st.integers(0, 24)) == 0:  # bytes that are not what the header says
            raw = draw(st.sampled_from([raw[:-1], raw + b"\0", b"", b"\xff" * len(raw)]))
        message.raw_input_contents.append(raw)
    for name in draw(st.lists(st.sampled_from([*sorted(spec.outputs), "nothing"]), max_size=2, unique=True)):
        message.outputs.add(name=name)
    if draw(st.booleans()):
        message.parameters["triton_enable_empty_final_response"].bool_param = True
    if draw(st.integers(0, 9)) == 0:
        name = draw(st.sampled_from(["priority", "timeout", "sequence_id", "sequence_end", "x", "binary_data_output"]))
        kind = draw(st.sampled_from(["int64_param", "string_param", "bool_param"]))
        setattr(message.parameters[name], kind, {"i": 3, "s": "3", "b": True}[kind[0]])
    return message


def answers(stub, message) -> list[service_pb2.ModelStreamInferResponse]:
    """All that comes back until the server ends the call; a deadline that passes is a request that was lost."""
    return list(stub.ModelStreamInfer(iter([message]), timeout=DEADLINE))


@pytest.fixture(scope="module")
def stub(served):
    with grpc.insecure_channel(served.grpc_url, options=channel_args(served.grpc_url)) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.fixture(autouse=True)
def server_lives(served, asker):
    before = served.pid
    yield
    assert served.pid == before and not dead_processes(before)
    assert "".join(chunk.text for chunk in asker.stream(COUNT, max_tokens=2)) == " seven eight"


def fuzz(stub, spec, model, data) -> None:
    message = data.draw(request(model, spec))
    try:
        found = answers(stub, message)
    except grpc.RpcError as error:  # the call itself was refused, with a reason
        assert error.code() != grpc.StatusCode.DEADLINE_EXCEEDED, message
        assert error.code() != grpc.StatusCode.UNAVAILABLE, message
        found = []
        assert error.details()
    else:
        assert found, message
    for answer in found:
        said = answer.error_message
        assert "Traceback" not in said and "the server's log has the details" not in said, (said, message)


@pytest.mark.parametrize("model", contract.MODELS)
@settings(max_examples=40, suppress_health_check=SLOW_IS_FINE)
@given(data=st.data())
def test_random_tensors_over_grpc(stub, asker, model, data):
    fuzz(stub, asker.spec(model), model, data)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", contract.MODELS)
@settings(max_examples=1500, suppress_health_check=SLOW_IS_FINE, derandomize=False)
@given(data=st.data())
def test_random_tensors_over_grpc_for_long(stub, asker, model, data):
    fuzz(stub, asker.spec(model), model, data)


json_values = st.recursive(
    st.none() | st.booleans() | st.sampled_from([0, 1, 2, -1, 2**31, 2**64, 0.5, 1e300, "", "a", "é"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "id"]), inner, max_size=2),
    max_leaves=6,
)


@pytest.mark.parametrize("verb", ["generate", "generate_stream", "infer"])
@settings(max_examples=20, suppress_health_check=SLOW_IS_FINE)
@given(data=st.data())
def test_random_json_over_http(served, asker, verb, data):
    """A status, and a body that says more; which of JSON's shapes are refused is Triton's business."""
    spec = asker.spec("tensorrt_llm_bls")
    body = {"text_input": COUNT, "max_tokens": 2}
    names = [*sorted(spec.inputs), "id", "parameters"]
    body |= data.draw(st.dictionaries(st.sampled_from(names), json_values, max_size=3))
    if verb == "infer":
        tensors = [{"name": name, "shape": [1, 1], "datatype": "BYTES", "data": [body[name]]} for name in body]
        more = st.dictionaries(st.sampled_from(["id", "inputs", "outputs"]), json_values)
        body = {"inputs": tensors} | data.draw(more)
    if isinstance(body.get("max_tokens"), int) and 3 < body["max_tokens"] < 10**6:
        body["max_tokens"] = 2
    url = f"{served.http_url}/v2/models/tensorrt_llm_bls/{verb}"
    answer = httpx.post(url, json=body, timeout=DEADLINE, trust_env=False)
    assert answer.status_code in (200, 400, 500, 501) and answer.content, (answer.status_code, body)
    assert "Traceback" not in answer.text and "the server's log has the details" not in answer.text, body
    if answer.status_code != 200:  # 500: JSON of another kind than the input's; 501: infer of a decoupled model
        assert "error" in answer.json(), (answer.text, body)
