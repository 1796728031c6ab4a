# ---
# jupyter:
#   jupytext:
#     formats: ipynb,text//py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 05 · Streaming tokens over gRPC
#
# You send one prompt in four ways, watch its tokens arrive one by one, and learn what every byte and every flag on the
# way is for.
#
# After this notebook you can
#
# - send the same request as JSON, as a stream of events and over gRPC, and say which of them can stream
# - read a request byte by byte
# - write a streaming client, with threads or with asyncio, that knows when an answer ends
# - measure the time to the first token and the gaps, for one stream and for many
# - cancel a request for good, and read the errors you will meet
#
# **Time:** 45 minutes (last run: 42 s) · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# Previous: [04 · Serving](04_serving.ipynb) · Next: [06 · Temperature](06_temperature.ipynb)

# %%
import asyncio
import base64
import json
import queue
import re
import shutil
import struct
import subprocess
import time

import grpc
import httpx
import numpy as np
import psutil
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
from google.protobuf import descriptor_pb2, descriptor_pool, json_format
from tokenizers import Tokenizer, decoders, models
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from servinglab import notebook
from servinglab.checks import check
from servinglab.client import gather, inputs, stream
from servinglab.figures import streaming
from servinglab.figures.style import show
from servinglab.root import find_root
from servinglab.serving import serve

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
precision: str = "fp32"  # weights of the default model: "fp32" or "int4"
prompt: str = "Tell me a short story about a fox."  # what the model continues
max_tokens: int = 48  # length of the timed answers, in tokens
seed: int = 0  # seed of every sampled answer
streams: int = 4  # how many requests run at once

# %%
lane = notebook.begin("05", lane, seed=seed, weights=precision)

# %% [markdown]
# ## 1 A server to talk to
#
# You need a Triton with the five models of notebook 03. `serve` writes them into a temporary folder and starts
# `tritonserver` on free ports, with the command that it prints. Both vanish when this notebook's kernel ends, also
# after an error.

# %%
server = serve(precision=precision)

# %% [markdown]
# ## 2 One request, four ways
#
# Triton speaks the [KServe v2 protocol](https://github.com/kserve/open-inference-protocol), and adds two easier HTTP
# paths of its own, the
# [generate extension](https://github.com/triton-inference-server/server/blob/r24.10/docs/protocol/extension_generate.md):
#
# | way | where to | what travels | can it stream? |
# |---|---|---|---|
# | a | `POST /v2/models/M/infer` | tensors as JSON | no: one response |
# | b | `POST /v2/models/M/generate` | one flat JSON object | no: exactly one response |
# | c | `POST /v2/models/M/generate_stream` | the same object, answered by server-sent events | yes |
# | d | gRPC, method `ModelStreamInfer` | binary messages | yes, and many requests may share a stream |
#
# Begin with (a) and the smallest model, `preprocessing`, which turns text into token ids. Every tensor carries its
# name, datatype and shape. The shape is `[1, 1]`: a batch of one row, and one string in it.

# %%
web = httpx.Client(base_url=server.http_url, timeout=120, trust_env=False)
query = {"name": "QUERY", "datatype": "BYTES", "shape": [1, 1], "data": [prompt]}
length = {"name": "REQUEST_OUTPUT_LEN", "datatype": "INT32", "shape": [1, 1], "data": [16]}
answer = web.post("/v2/models/preprocessing/infer", json={"inputs": [query, length]}).json()
token_ids = answer["outputs"][0]
token_ids

# %% [markdown]
# Text went in, ids came out. One request, one response: that is all `/infer` can do.
#
# **Predict:** you send the same kind of request to `tensorrt_llm_bls`, the model that may answer with many responses.
# Do you get one long answer, only the first token, or an error?

# %% tags=["nbval-check-output"]
text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [prompt]}
length = {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [16]}
answer = web.post("/v2/models/tensorrt_llm_bls/infer", json={"inputs": [text, length]})
print(answer.status_code, answer.json()["error"])

# %% [markdown]
# An error, 501 *Not Implemented*, although this request would have had one response. What counts is the model's
# configuration: it says `decoupled`, so it *may* answer any number of times. Section 4 has the whole table.
#
# Way (b), `/generate`, takes plain values. Triton makes the tensors from the model's configuration.
# `exclude_input_in_output` leaves the prompt out of the answer.

# %%
few = min(max_tokens, 16)
request = {"text_input": prompt, "max_tokens": few, "exclude_input_in_output": True}
generated = web.post("/v2/models/tensorrt_llm_bls/generate", json=request).json()
generated

# %% [markdown]
# Way (c) takes the same object plus `"stream": true`. Look at the raw body: one line `data: {…}` and one empty line
# for each response.

# %%
answer = web.post("/v2/models/tensorrt_llm_bls/generate_stream", json={**request, "stream": True})
events = answer.text.strip().split("\n\n")
print(answer.status_code, answer.headers["content-type"], "·", len(events), "events, the first two and the last:")
print(*events[:2], events[-1], sep="\n")

# %% [markdown]
# These are server-sent events. Note what is *not* there: no `[DONE]`, no flag on the last event. The end of the answer
# is the end of the HTTP response.
#
# **Predict:** the answers of b and c come from two separate runs of the model. Are they the same text?

# %%
whole = generated["text_output"]
joined = "".join(json.loads(event.removeprefix("data: "))["text_output"] for event in events)
print(repr(whole), repr(joined), sep="\n")
assert whole == joined

# %% [markdown]
# They are. Without `top_k` or `top_p` the model takes the most likely token each time, so the way in changes nothing.
#
# Way (d) needs a client. You write one in section 4. First look at what it has to send.
#
# ## 3 The message, byte by byte
#
# What does a gRPC client send? A **protobuf** message. Its schema is compiled into `tritonclient`; here are the fields
# of a request.

# %% tags=["nbval-check-output"]
for field in service_pb2.ModelInferRequest.DESCRIPTOR.fields:
    print(field.number, field.name)

# %% [markdown]
# Fill one by hand. Each input is declared by name, datatype and shape. The contents go into `raw_input_contents`, in
# the same order, as the bytes that lie in memory. Text gets a prefix of four bytes that says how long it is.

# %%
text = ("A fox ran. " * 13).encode()
message = service_pb2.ModelInferRequest(model_name="tensorrt_llm_bls", id="fox-1")
for name, datatype, raw in [
    ("text_input", "BYTES", struct.pack("<I", len(text)) + text),
    ("max_tokens", "INT32", struct.pack("<i", 3)),
    ("stream", "BOOL", struct.pack("<?", True)),
]:
    message.inputs.add(name=name, datatype=datatype, shape=[1, 1])
    message.raw_input_contents.append(raw)

# %% [markdown]
# Serialise it and look at the beginning. A field starts with a **tag** byte: its upper five bits are the field number,
# its lower three the wire type. Wire type 2 means: a length follows, then so many bytes.

# %% tags=["nbval-check-output"]
sent = message.SerializeToString()
tag, length = sent[0], sent[1]
print(len(sent), "bytes:", sent[:18].hex(" "), "…")
print(f"tag {tag:08b} → field {tag >> 3}, wire type {tag & 7}; length {length}; value {sent[2 : 2 + length]}")

# %% [markdown]
# Field 1 is `model_name`. Field names never travel, only their numbers: without the schema you cannot tell what a
# message means. ([All wire types](https://protobuf.dev/programming-guides/encoding/).)
#
# The prompt is 143 bytes long, 147 with its prefix. One byte of a length holds seven bits, up to 127; the eighth bit
# says that another byte follows. That is a **varint**. So the two lengths in front of the prompt look quite different.

# %% tags=["nbval-check-output"]
at = sent.index(b"A fox") - 7  # seven bytes stand before the text
low, high = sent[at + 1 : at + 3]
print(sent[at : at + 7].hex(" "))
print("varint:", (low & 0b0111_1111) + (high << 7))
print("prefix:", struct.unpack("<I", sent[at + 3 : at + 7])[0])

# %% [markdown]
# `3a` is the tag of field 7. `93 01` is protobuf's length, 147. `8f 00 00 00` is Triton's own prefix, 143, always four
# bytes, the lowest first. Here is the whole message, one field a row; an inner message is indented.

# %% tags=["nbval-check-output"]
fields = streaming.take_apart(message)
summary = f"{len(fields)} rows, {len(sent)} bytes: model_name, id, three inputs, then three raw contents"
show(streaming.wire_bytes(fields), "The contents of a request's inputs come last", summary, drawing=True)

# %% [markdown]
# `shape` is a list of numbers, packed into one value: `01 01`. Numbers in `raw_input_contents` are not varints but
# plain memory: `max_tokens` is `03 00 00 00`. On its way gRPC puts five bytes before the message, a flag for
# compression and the length.
#
# Does the message survive the way back from bytes? And does the server like it? One call of the bare gRPC method tells.

# %%
assert service_pb2.ModelInferRequest.FromString(sent) == message
channel = grpc.insecure_channel(server.grpc_url)
stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
responses = list(stub.ModelStreamInfer(iter([message]), timeout=60))
print(len(responses), "responses, the last one:")
print(responses[-1])

# %% [markdown]
# Three tokens, three responses. The answer has your id, tensors laid out as in the request, and one parameter that
# section 4 is about. Its shape is `[1]`, not `[1, 1]`: like NVIDIA's, this model puts all its texts into one flat list.
#
# **Exercise 05.1** A client wants one output only. Between the inputs and the raw contents its message has these bytes:
#
# `32 0d 0a 0b 74 65 78 74 5f 6f 75 74 70 75 74`
#
# Read the field that begins at `32`: its number, wire type and length. It holds a message with one field of text; which
# text? `bytes.fromhex` helps.

# %% tags=["exercise:05.1"]
answer_1 = {"field": None, "wire_type": None, "length": None, "text": None}  # three numbers and a text

# %% tags=["check:05.1", "nbval-check-output"]
check("05.1", answer_1)

# %% [markdown]
# ### The same from grpcurl and Postman
#
# Such tools also need the schema. Some servers hand it out ("reflection"). **Predict:** does Triton?

# %% tags=["nbval-check-output"]
path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
ask = channel.stream_stream(path, request_serializer=bytes, response_deserializer=bytes)
try:
    print(list(ask(iter([b":\x00"]), timeout=5)))
except grpc.RpcError as error:
    print(error.code())

# %% [markdown]
# It does not. So write the schema that `tritonclient` carries into a file, a *protoset*. It needs both parts: the
# service, and the model configuration that the service imports.

# %% tags=["nbval-check-output"]
build = find_root() / "build"
build.mkdir(exist_ok=True)
both = [service_pb2.DESCRIPTOR.dependencies[0], service_pb2.DESCRIPTOR]
protoset = descriptor_pb2.FileDescriptorSet()
for part in both:
    protoset.file.add().ParseFromString(part.serialized_pb)
(build / "grpc_service.protoset").write_bytes(protoset.SerializeToString())
print(*(part.name for part in both))

# %% [markdown]
# These tools take the request as JSON. There each input has its own `contents`, by datatype, and bytes are base64. Text
# in this form has no four-byte prefix. A request uses one form or the other for all of its inputs.

# %%
content = base64.b64encode(b"A fox ran.").decode()
text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "contents": {"bytes_contents": [content]}}
length = {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "contents": {"int_contents": [8]}}
body = json.dumps({"model_name": "tensorrt_llm_bls", "inputs": [text, length]})
(build / "request.json").write_text(body)
service = "inference.GRPCInferenceService"
tool = "grpcurl -protoset build/grpc_service.protoset"
print(f"{tool} describe {service}")
print(f"{tool} -plaintext -d @ {server.grpc_url} {service}/ModelStreamInfer < build/request.json")

# %% [markdown]
# You can paste these two commands into a terminal in the course's folder while this notebook runs. Where
# [grpcurl](https://github.com/fullstorydev/grpcurl) is on your PATH, the second one runs now. **Predict:** how does it
# show the text of the answer?

# %%
if shutil.which("grpcurl"):
    parts = f"{tool} -plaintext -d @ {server.grpc_url} {service}/ModelStreamInfer".split()
    done = subprocess.run(parts, input=body, capture_output=True, text=True, cwd=find_root(), timeout=60)
    print(done.stdout or done.stderr)
else:
    print("not run here: grpcurl is not on the PATH")

# %% [markdown]
# As base64 again, with its four bytes in front. What grpcurl does is little: find the method in the file, make a
# message of the JSON, send it. This page can do that too.

# %%
pool = descriptor_pool.DescriptorPool()
for part in descriptor_pb2.FileDescriptorSet.FromString((build / "grpc_service.protoset").read_bytes()).file:
    pool.AddSerializedFile(part.SerializeToString())
method = pool.FindMethodByName(f"{service}.ModelStreamInfer")
typed = json_format.Parse((build / "request.json").read_text(), service_pb2.ModelInferRequest())
(response,) = stub.ModelStreamInfer(iter([typed]), timeout=60)
print(method.input_type.full_name, "→", method.output_type.full_name)
print(response.infer_response.raw_output_contents)

# %% [markdown]
# Postman wants the source of the schema: in a gRPC request open *Service definition* and import `grpc_service.proto`
# and `model_config.proto`, both from
# [triton-inference-server/common](https://github.com/triton-inference-server/common/tree/r24.10/protobuf). Then paste
# the JSON as the message.
#
# ## 4 A streaming client by hand
#
# `tritonclient` sends the same message for you. First the tensors. `InferInput` wants name, shape and datatype; the
# array must already have its batch dimension.

# %%
client = grpcclient.InferenceServerClient(server.grpc_url)


def tensor(name, array, datatype):
    return grpcclient.InferInput(name, array.shape, datatype).set_data_from_numpy(array)


text = tensor("text_input", np.array([[prompt.encode()]], object), "BYTES")
five = tensor("max_tokens", np.array([[5]], np.int32), "INT32")
request = [text, five, tensor("stream", np.array([[True]]), "BOOL")]

# %% [markdown]
# Three lines for each input are too many. The server knows every datatype: ask it for the model's configuration.

# %%
config = client.get_model_config("tensorrt_llm_bls", as_json=True)["config"]
datatypes = {each["name"]: each["data_type"].removeprefix("TYPE_") for each in config["input"]}
print({name: datatypes[name] for name in ("text_input", "max_tokens", "temperature", "stream", "seed")})


# %% [markdown]
# So a function can make the tensors of a request from plain values. The configuration writes `STRING` for what the
# protocol calls `BYTES`.

# %%
def own_inputs(**values):
    made = []
    for name, value in values.items():
        datatype = datatypes[name].replace("STRING", "BYTES")
        value = value.encode() if datatype == "BYTES" else value
        made.append(tensor(name, np.array([[value]], triton_to_np_dtype(datatype)), datatype))
    return made


request = own_inputs(text_input=prompt, max_tokens=5, stream=True)

# %% [markdown]
# A stream has four steps: open it with a callback, send a request, let responses arrive, close it. The callback runs in
# another thread, so it only puts things into a queue. Its arguments must be called `result` and `error`. Never call
# `stop_stream` in it: that waits for the thread, and a thread cannot wait for itself (*cannot join current thread*).
#
# `stop_stream()` waits until every answer is complete, so afterwards the queue holds all of them.

# %%
arrived = queue.SimpleQueue()
client.start_stream(lambda result, error: arrived.put((result, error)))
client.async_stream_infer("tensorrt_llm_bls", request, request_id="fox-2")
client.stop_stream()
while not arrived.empty():
    result, _ = arrived.get()
    print(result.as_numpy("text_output"), result.get_response().id)

# %% [markdown]
# Forget to close it, and the thread waits on. Then a script stays alive after its last line, also after an error, so
# put `client.stop_stream(cancel_requests=True)` into a `finally`. And a client object has one stream. In a notebook you
# run the cell again and meet this:

# %% tags=["nbval-check-output"]
client.start_stream(lambda result, error: None)
try:
    client.start_stream(lambda result, error: None)
except InferenceServerException as error:
    print(error)
client.stop_stream()


# %% [markdown]
# ### The final flag
#
# You do not want to close the stream after each request. Then how do you know that an answer is complete? Every
# response carries a flag: `result.get_response().parameters["triton_final_response"].bool_param`. This function writes
# one letter for each response: `d` for data, `D` for data with the flag set, `F` for the flag alone.

# %%
def letters(model, request, **options):
    arrived, found = queue.SimpleQueue(), []
    client.start_stream(lambda result, error: arrived.put(error or result.get_response()))
    client.async_stream_infer(model, request, **options)
    client.stop_stream()
    while not arrived.empty():
        response = arrived.get()
        if isinstance(response, Exception):
            return str(response)
        final = response.parameters["triton_final_response"].bool_param
        found.append({(1, 0): "d", (1, 1): "D", (0, 1): "F"}[bool(response.outputs), final])
    return " ".join(found)


# %% [markdown]
# Three models can stream. `tensorrt_llm` itself takes token ids instead of text, and has other names for the inputs.

# %%
ids = np.array(token_ids["data"], np.int32)[None]
size = {"input_lengths": np.array([[ids.shape[1]]], np.int32), "streaming": True}


def llm_inputs(request_output_len=5, **more):
    return inputs(input_ids=ids, request_output_len=request_output_len, **size, **more)


# %% [markdown]
# **Predict:** five tokens each. Where does the flag sit, on the last token or behind it? And what changes if the client
# does not ask for *empty final responses*?

# %%
asked = {"tensorrt_llm": llm_inputs(), "ensemble": request, "tensorrt_llm_bls": request}
flags = {model: letters(model, given, enable_empty_final_response=True) for model, given in asked.items()}
for model, given in asked.items():
    print(f"{model:18} asked: {flags[model]:10} not asked: {letters(model, given)}")

# %% [markdown]
# Time runs down the page; each arrow is a message.

# %%
summary = "; ".join(f"{model} {sent}" for model, sent in flags.items())
show(streaming.sequence(flags), "The BLS model sends the final flag alone, behind the data", summary, drawing=True)


# %% [markdown]
# `tensorrt_llm` and the ensemble put the flag on the last token. The BLS model learns only afterwards that it has
# ended, so it sends the flag alone, and a client that did not ask for it **never hears of the end**. Always ask.
#
# **Exercise 05.2** A loop receives `ModelInferResponse` messages of one request and stops when `is_last` says so.
# `received` counts the responses so far, `asked` is the `max_tokens` of the request. Not every argument is of use.

# %% tags=["exercise:05.2"]
def is_last(response, received, asked):
    ...  # your code


# %% tags=["check:05.2", "nbval-check-output"]
check("05.2", is_last)


# %% [markdown]
# ### The whole client
#
# With the flag you can write the loop that every streaming client has at its heart. It stamps each result with the
# seconds since the request was sent, and skips responses without data. `finally` also runs when the reader leaves
# early: then the answer is not complete, and `cancel_requests=True` tells the server to stop.

# %%
def own_stream(client, model, request, timeout=60):
    arrived, done = queue.SimpleQueue(), False
    client.start_stream(lambda result, error: arrived.put((time.perf_counter(), result, error)), stream_timeout=timeout)
    try:
        sent = time.perf_counter()
        client.async_stream_infer(model, request, enable_empty_final_response=True)
        while not done:
            when, result, error = arrived.get()
            if error is not None:
                raise error
            response = result.get_response()
            done = response.parameters["triton_final_response"].bool_param
            if response.outputs:
                result.seconds = when - sent
                yield result
    finally:
        client.stop_stream(cancel_requests=not done)


# %% [markdown]
# That is way (d). **Predict:** does it give the text of b and c?

# %%
def text_of(result):
    return result.as_numpy("text_output")[0].decode()


request = own_inputs(text_input=prompt, max_tokens=few, exclude_input_in_output=True, stream=True)
results = list(own_stream(client, "tensorrt_llm_bls", request))
print("".join(map(text_of, results)) == whole, f"{results[0].seconds:.3f} s to the first token")

# %% [markdown]
# The name of the flag is the one thing to copy with care. **Predict:** the last response of the ensemble has the flag.
# What does the same line say with a name that is not there: True, False, or an error?

# %% tags=["nbval-check-output"]
*_, last = own_stream(client, "ensemble", request)
for key in ("triton_final_response", "final_response"):
    print(key, last.get_response().parameters[key].bool_param)

# %% [markdown]
# False, and no error: `parameters` is a map of protobuf, and reading makes what is missing. A loop with this slip gets
# every token and then waits, for ever or until `stream_timeout`.
#
# The module `servinglab.client` holds just these two functions, and this notebook and those after it use them: `inputs`
# also makes batches and lists, and `gather` sends several requests over one stream. Are they the same?

# %% tags=["nbval-check-output"]
theirs = inputs(text_input=prompt, max_tokens=few, exclude_input_in_output=True, stream=True)
same = [(mine.name(), mine.datatype(), mine.shape()) for mine in request]
print(same == [(each.name(), each.datatype(), each.shape()) for each in theirs])
print([text_of(each) for each in stream(client, "tensorrt_llm_bls", theirs)] == [text_of(each) for each in results])

# %% [markdown]
# A batch is one request of several rows. **Predict:** two prompts in it, one stream, one id: how do you tell whose a
# response is?

# %% tags=["nbval-check-output"]
batch = inputs(text_input=["1, 2, 3,", "A, B, C,"], max_tokens=4, exclude_input_in_output=True, stream=True)
rows = {0: "", 1: ""}
for result in stream(client, "tensorrt_llm_bls", batch):
    rows[result.as_numpy("batch_index").item()] += text_of(result)
print(rows)

# %% [markdown]
# By its output `batch_index`. The final flag comes once, when the last row has ended. All rows of a request must have
# the same `beam_width`; the other settings may differ.
#
# ## 5 Decoupled: who may answer how often
#
# Three switches on three levels decide whether you see a stream:
#
# 1. **decoupled**, in the model's configuration: it *may* send any number of responses;
# 2. **stream**, an input of the request: *this* request wants many;
# 3. the **transport**: can it carry many?
#
# **Predict:** how many of the five say that they are decoupled, on the server that runs? Two of the *files* do
# (notebook 03).

# %% tags=["nbval-check-output"]
for model in ("preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls", "ensemble"):
    policy = client.get_model_config(model).config.model_transaction_policy
    print(f"{model:17} decoupled: {policy.decoupled}")

# %% [markdown]
# Three: Triton makes the ensemble decoupled, as one of its steps is. To see all combinations you need a second server,
# whose models are not.

# %%
blocking = serve(precision=precision, decoupled=False)

# %% [markdown]
# Five ways to ask. Each function sends `values` to a server and counts the responses that hold data.

# %%
two = {"text_input": prompt, "max_tokens": 2, "min_tokens": 2}


def post(server, verb, body):
    url = f"{server.http_url}/v2/models/tensorrt_llm_bls/{verb}"
    answer = httpx.post(url, json=body, timeout=60, trust_env=False)
    if '"error"' in answer.text:
        raise ValueError(json.loads(answer.text.removeprefix("data: "))["error"])
    return answer.text.strip().count("\n\n") + 1


def as_json(values):
    kinds = {each.name(): each.datatype() for each in inputs(**values)}
    return [{"name": name, "datatype": kinds[name], "shape": [1, 1], "data": [value]} for name, value in values.items()]


# %% [markdown]
# Over gRPC there are two methods, `ModelInfer` and `ModelStreamInfer`.

# %%
def call(server, values, streaming):
    with grpcclient.InferenceServerClient(server.grpc_url) as once:
        if streaming:
            return len(list(stream(once, "tensorrt_llm_bls", inputs(**values))))
        return len([once.infer("tensorrt_llm_bls", inputs(**values))])


ways = {
    "/infer": lambda server, values: post(server, "infer", {"inputs": as_json(values)}),
    "ModelInfer": lambda server, values: call(server, values, streaming=False),
    "/generate": lambda server, values: post(server, "generate", values),
    "/generate_stream": lambda server, values: post(server, "generate_stream", values),
    "ModelStreamInfer": lambda server, values: call(server, values, streaming=True),
}

# %% [markdown]
# **Predict:** 5 ways, decoupled or not, stream or not: 20 requests. How many of them fail?

# %%
table, said = {}, {}
for decoupled, each in (("not decoupled", blocking), ("decoupled", server)):
    for wanted in (False, True):
        row = f"{decoupled}\nstream {wanted}"
        for way, send in ways.items():
            try:
                table[row, way] = f"{send(each, {**two, 'stream': wanted})} × data"
            except (ValueError, InferenceServerException) as error:
                sentence = str(error).split("] ")[-1].split(". ")[0].rstrip(".")
                table[row, way] = "error " + said.setdefault(sentence, str(len(said) + 1))
blocking.stop()

# %% [markdown]
# A cell of the table is the number of responses to a request for two tokens, or the number of an error message.

# %%
rows = list(dict.fromkeys(row for row, _ in table))
failed = sum(cell.startswith("error") for cell in table.values())
summary = "; ".join(f"{row}: {', '.join(table[row, way] for way in ways)}".replace("\n", ", ") for row in rows)
show(streaming.matrix(rows, list(ways), table), f"{failed} of the 20 requests fail", summary, drawing=True)

# %% [markdown]
# The errors, by their numbers:

# %% tags=["nbval-check-output"]
for sentence, number in said.items():
    print(f"{number}: {sentence}")


# %% [markdown]
# Ten of the twenty. Read the picture row by row:
#
# - not decoupled: every way gives one response, and nobody can have a stream;
# - decoupled: the two one-response ways are closed, even for a request that wants one response;
# - `/generate` stays open as long as there is exactly one response;
# - **`ModelStreamInfer` works wherever anything works.** A streaming client is the universal client.

# %% [markdown]
# ## 6 The same with asyncio
#
# A web server would not spend threads on waiting. `tritonclient.grpc.aio` takes an iterator of requests and gives an
# iterator of answers. In a notebook you may write `await` right away, because Jupyter runs an event loop for you.
#
# Two things to know. Keep your side of the stream open until the answer is complete: to end it earlier can crash this
# Triton. And this client cannot ask for empty final responses, so it never hears the end of the BLS model. Ask the
# ensemble: it puts the flag on the last token.

# %%
async def tell(request):
    ended, texts = asyncio.Event(), []

    async def requests():
        yield {"model_name": "ensemble", "inputs": request}
        await ended.wait()

    async with grpcaio.InferenceServerClient(server.grpc_url) as waiting:
        async for result, error in waiting.stream_infer(requests(), stream_timeout=60):
            if error is not None:
                raise error
            texts.append(text_of(result))
            if result.get_response().parameters["triton_final_response"].bool_param:
                ended.set()
    return "".join(texts)


# %% [markdown]
# Each of these stories has a seed of its own; `asyncio.gather` runs them at once.

# %% tags=["varies"]
story = {"text_input": prompt, "max_tokens": few, "exclude_input_in_output": True, "stream": True, "top_k": 50}
for told in await asyncio.gather(*(tell(inputs(seed=seed + i, **story)) for i in range(streams))):
    print(repr(told))

# %% [markdown]
# In a script there is no event loop yet, and `asyncio.run(main())` makes one. In a notebook the same line fails:

# %% tags=["nbval-check-output"]
coroutine = tell([])
try:
    asyncio.run(coroutine)
except RuntimeError as error:
    print(error)
finally:
    coroutine.close()

# %% [markdown]
# So: `await` in a notebook, `asyncio.run` in a script. The functions are the same. (`servinglab.client.astream` is
# `stream` for an event loop: it lets the callback of the client with threads wake the loop, and so can ask for empty
# final responses.)
#
# ## 7 When do the tokens arrive?
#
# Two numbers describe a stream: the **time to first token** (TTFT), and the **gaps** after it. `min_tokens` keeps the
# model from ending early, so that all streams have the same length.

# %%
tokens = max(max_tokens, 8)
options = {"max_tokens": tokens, "min_tokens": tokens, "top_k": 50, "stream": True}


def arrivals(results):
    return [result.seconds for result in results]


alone = arrivals(stream(client, "tensorrt_llm_bls", inputs(text_input=prompt, seed=seed, **options)))
print(f"first token after {alone[0] * 1000:.0f} ms, median gap {np.median(np.diff(alone)) * 1000:.0f} ms")

# %% [markdown]
# Now several requests at once. One stream carries them all: `gather` sends them, each with an id of its own, and sorts
# the responses by these ids.
#
# **Predict:** with `streams` requests at once, how much longer does each of them wait for its next token? As many times
# as there are requests? A little? Not at all?

# %%
together = {f"{i + 1} of {streams}": inputs(text_input=prompt, seed=seed + i, **options) for i in range(streams)}
answers = gather(client, "tensorrt_llm_bls", together)
times = {name: arrivals(results) for name, results in answers.items()}

# %% [markdown]
# The figure answers: each mark is a token; each dot below is one wait.

# %%
gap_alone = float(np.median(np.diff(alone)))
gap_together = float(np.median(np.concatenate([np.diff(each) for each in times.values()])))
summary = f"tokens/s: alone {1 / gap_alone:.0f}; {streams} at once {1 / gap_together:.0f} each, "
summary += f"{streams / gap_together:.0f} together"
title = f"With {streams} at once, each waits {gap_together / gap_alone:.1f} times as long for a token"
show(streaming.token_timeline({"alone": alone, **times}, lane=lane), title, summary)

# %% [markdown]
# Not as many times as there are streams, unless something else kept this machine busy. The server does not finish one
# request before it begins the next: at every step it computes one token for *all* running requests. Reading the weights
# from memory is most of the work, and it is done once for all of them. That is **in-flight batching**.
#
# The first tokens tell another story: each bar has a length of its own. Here the prompts are read one after another,
# not always in the order of sending, and a request whose prompt has been read waits for the others: look for the hole
# near the start of the row with the shortest bar.
#
# **Exercise 05.3** A stream of five tokens, in seconds since the request: `0.30, 0.34, 0.40, 0.43, 0.51`. What are its
# time to first token and its mean gap, in milliseconds?

# %% tags=["exercise:05.3"]
answer_3 = {"ttft_ms": None, "mean_gap_ms": None}  # two numbers, in milliseconds

# %% tags=["check:05.3", "nbval-check-output"]
check("05.3", answer_3)

# %% [markdown]
# ## 8 Tokens are not characters
#
# A token is a piece of bytes, and a character may need several. The model `preprocessing` knows where its tokenizer is.
# Take an emoji apart with it and decode its tokens one by one, then together.

# %% tags=["nbval-check-output"]
parameters = client.get_model_config("preprocessing").config.parameters
tokenizer = Tokenizer.from_file(parameters["tokenizer_dir"].string_value + "/tokenizer.json")
pieces = tokenizer.encode("🦊", add_special_tokens=False).ids
print(pieces, [tokenizer.decode([piece]) for piece in pieces], tokenizer.decode(pieces))

# %% [markdown]
# `�` stands for bytes that are no whole character. The ensemble hands each response to `postprocessing` on its own. The
# BLS model is a Python program and could do better.
#
# **Predict:** both continue a row of foxes, with 8 tokens. How many responses does each send, and what is in them?

# %%
foxes = {"text_input": "🦊🦊🦊🦊", "max_tokens": 8, "stream": True}
for model in ("ensemble", "tensorrt_llm_bls"):
    chunks = [text_of(result) for result in stream(client, model, inputs(**foxes))]
    print(f"{model:16} {len(chunks)} responses: {chunks}")

# %% [markdown]
# The ensemble has lost the text for good: joining `�` does not bring the bytes back. Our BLS model keeps the last
# tokens: it sends empty text while a character is incomplete, and what is still incomplete at the end comes as one more
# response, a `�`. So an empty chunk is normal and not the end, and **responses are not tokens**: do not count them.
#
# Spaces are a second trap. This tokenizer keeps the space inside the token (`' fox'`). Llama 2's is one of
# [SentencePiece](https://github.com/google/sentencepiece): it writes a space as `▁`, also before the first word, and
# takes one space off the front of what it decodes. Three words are enough to see what that does to a stream:

# %% tags=["nbval-check-output"]
words = {"▁A": 0, "▁fox": 1, "▁ran": 2}
llama_like = Tokenizer(models.WordLevel(words, unk_token="▁A"))
llama_like.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
print(repr(llama_like.decode([0, 1, 2])), repr("".join(llama_like.decode([each]) for each in (0, 1, 2))))

# %% [markdown]
# Decoded alone, each token loses its space, so an ensemble prints `Afoxran`. (Gemma's tokenizer takes none off.)
#
# Such a tokenizer may come as a `tokenizer.model` only. Templates up to TensorRT-LLM 0.8 had a parameter
# `tokenizer_type` for it (`auto`, `llama`, `t5`, `sp`). Since 0.9 there is none: NVIDIA's models load the folder with
# `AutoTokenizer`, ours read `tokenizer.json`. To make that file, load the folder once with `AutoTokenizer` and save it
# with `save_pretrained`.
#
# NVIDIA's own BLS model keeps no tokens, so by default it sends `�` like the ensemble. Its cure is `accumulate_tokens`:
# each response holds the whole text so far. It is a parameter of the model. Change it in `config.pbtxt` and load that
# model anew, while the server runs:

# %%
config = server.repository / "tensorrt_llm_bls" / "config.pbtxt"
before = config.read_text()
config.write_text(re.sub(r'("accumulate_tokens"[^"]*)"false"', r'\1"true"', before))
server.load("tensorrt_llm_bls")
for result in stream(client, "tensorrt_llm_bls", inputs(text_input=prompt, max_tokens=6, stream=True)):
    print(repr(text_of(result)))

# %% [markdown]
# Now a client *replaces* the text instead of appending. It is simple, but every token sends the whole text again: the
# bytes grow with the square of the length. Put it back:

# %%
config.write_text(before)
server.load("tensorrt_llm_bls")

# %% [markdown]
# ## 9 Cancel, and prove it
#
# A reader closes the page after five tokens. Does the server notice, or does it go on computing for nobody? Watch its
# processes: how many cores do they use?

# %%
process = psutil.Process(server.pid)


def cpu_seconds():
    return sum(sum(each.cpu_times()[:4]) for each in [process, *process.children()])  # with those that have ended


def busy(seconds=0.4):
    before = cpu_seconds()
    time.sleep(seconds)
    return (cpu_seconds() - before) / seconds


# %% [markdown]
# Ask for 800 tokens, read five, cancel. **Predict** the three numbers: before, during, after.

# %%
long = {"text_input": prompt, "max_tokens": 800, "min_tokens": 800, "stream": True}
print(f"before  {busy():.1f} cores")
answer = stream(client, "tensorrt_llm_bls", inputs(**long))
first_five = [text_of(next(answer)) for _ in range(5)]
print(f"during  {busy():.1f} cores")
answer.close()
time.sleep(0.3)
print(f"after   {busy():.1f} cores")

# %% [markdown]
# It stopped. `close()` runs the `finally` of `stream`, which cancels; leaving a `for` loop over it does the same. The
# models look every 100 ms whether the client is still there. (You asked the BLS model, which passes the news on. The
# ensemble of this Triton does not: the LLM behind it goes on to `max_tokens` for nobody.)
#
# In a client of your own, `client.close()` and a plain `stop_stream()` cancel nothing: they wait for all 800 tokens.
# With `cancel_requests=True` the callback may get a last error, *Locally cancelled by application!* (`CANCELLED`). That
# is what you asked for, and no failure.
#
# **By HTTP:** drop the connection of `/generate_stream`. The server notices when it next writes, which is at the next
# token.

# %%
with web.stream("POST", "/v2/models/tensorrt_llm_bls/generate_stream", json=long) as response:
    lines = response.iter_lines()
    first_lines = [next(lines) for _ in range(10)]  # after each event an empty line
    print(f"during  {busy():.1f} cores")
time.sleep(0.3)
print(f"after   {busy():.1f} cores")

# %% [markdown]
# **Predict:** and `/generate`, which writes only once, at the end? Ask for more tokens than fit into a second, and let
# the client give up after half of one.

# %%
enough = max(round(2.5 / gap_alone), 20)  # without streaming tokens come faster
body = {"text_input": prompt, "max_tokens": enough, "min_tokens": enough}
try:
    web.post("/v2/models/tensorrt_llm_bls/generate", json=body, timeout=0.5)
except httpx.ReadTimeout as error:
    print(type(error).__name__)
print(f"after   {busy():.1f} cores")

# %% [markdown]
# The server goes on until the answer is complete, and then finds nobody to give it to
# ([server#7077](https://github.com/triton-inference-server/server/issues/7077)). If clients may leave, let them stream.
#
# **By request id:** `tensorrt_llm` takes a second request with the same id and `stop` set. The other inputs must be
# there, their values do not matter. The stream then ends by itself, with its final flag.

# %%
story = llm_inputs(request_output_len=800, min_tokens=800)
answer = stream(client, "tensorrt_llm", story, request_id="fox-3")
received = [next(answer) for _ in range(3)]
other = grpcclient.InferenceServerClient(server.grpc_url)  # the first one has a stream already
stopped = list(stream(other, "tensorrt_llm", llm_inputs(stop=True), request_id="fox-3"))
received += answer
print(f"{len(received)} responses of 800; the stop request: {stopped}")

# %% [markdown]
# The stop request has no data, only its final flag, the `F`; a stop for an id that has ended gets the same. A stop
# without an id is an error, and a tool that fills every optional input with something, `stop` too, runs into it.

# %% tags=["nbval-check-output"]
print("ended:", letters("tensorrt_llm", llm_inputs(stop=True), request_id="fox-3"))
print("no id:", letters("tensorrt_llm", llm_inputs(stop=True)))

# %% [markdown]
# ## 10 Errors you will meet
#
# Make the common mistakes on purpose. The first does not even reach the server: text in an array of numpy's own type
# for text, without `object`. **Predict:** what datatype does the client take it for?

# %% tags=["nbval-check-output"]
try:
    tensor("text_input", np.array([[prompt]]), "BYTES")
except InferenceServerException as error:
    print(error)

# %% [markdown]
# `None`: Triton has no name for numpy's text. With `dtype=object`, as in section 4, it becomes BYTES.
#
# Each line below changes one input of a good request. `inputs` sends arrays as they are, so you read the server's own
# words.

# %%
good = {"text_input": np.array([[prompt.encode()]], object), "max_tokens": np.array([[3]], np.int32)}
mistakes = {
    "unknown input": {"runtime_top_k": np.array([[5]], np.int32)},
    "wrong datatype": {"max_tokens": np.array([[3]], np.int64)},
    "no batch dimension": {"max_tokens": np.array([3], np.int32)},
    "batch too large": {name: np.repeat(array, 9, axis=0) for name, array in good.items()},
    "empty prompt": {"text_input": np.array([[b""]], object)},
    "prompt too long": {"text_input": np.array([[b"fox " * 3000]], object)},
    "top_p in percent": {"top_p": np.array([[100]], np.float32)},
    "temperature below 0": {"temperature": np.array([[-1]], np.float32)},
}

# %% [markdown]
# **Predict:** which of them does Triton itself refuse, and which can only the model refuse?

# %% tags=["nbval-check-output"]
for name, change in mistakes.items():
    try:
        results = list(stream(client, "tensorrt_llm_bls", inputs(**{**good, **change})))
        print(f"{name}: no error, {len(results)} responses")
    except InferenceServerException as error:
        print(f"{name}: {error.message()}")

# %% [markdown]
# The first four are Triton's: it compares the request with `config.pbtxt`. The rest passes that test and comes back
# from the model.
#
# Now over HTTP. **Predict:** one of these four mistakes gives no error at all, and another one an error with status
# 200. Which?

# %% tags=["nbval-check-output"]
slips = {
    "unknown input": {"runtime_top_k": 5},
    "unknown list": {"stop_word": ["."]},
    "text for a number": {"max_tokens": "three"},
    "stream on generate": {"stream": True},
}
for name, change in slips.items():
    answer = web.post("/v2/models/tensorrt_llm_bls/generate", json={"text_input": prompt, "max_tokens": 3, **change})
    print(f"{name}: {answer.status_code} {answer.json().get('error', 'no error')}")

# %% [markdown]
# - An unknown key with a text, a number or a truth value is taken for a parameter that nobody reads; only a list is
#   refused (400). With a typo in `top_k` you sample with other settings than you think. Over gRPC the same mistake is
#   an error.
# - Status 200 does not mean success: the first response had fixed the status when the second one came. Look at the
#   body.

# %% [markdown]
# ## Recap
#
# The errors and their cures, on one page: the [cheat sheet](../docs/cheatsheet.md).
#
# - `/infer` and `ModelInfer` carry one response and refuse decoupled models; `/generate` carries exactly one;
#   `/generate_stream` and `ModelStreamInfer` carry any number.
# - A message is tags, lengths and values; strings in raw contents have a prefix of four bytes.
# - An answer ends with `triton_final_response`, on the last data or alone. Ask for the empty final response.
# - Streams share every step of the server, so many at once cost each of them little.
# - An empty text may be half a character. Decode with memory, as our BLS model does.
# - Leaving a stream stops the work; leaving `/generate` does not.
# - gRPC refuses unknown inputs. `/generate` takes an unknown text, number or truth value for a parameter, and ignores
#   it.

# %% [markdown]
# ## Break it
#
# Stop the server in the middle of an answer. **Predict:** does the loop hang, end as if all were well, or say what
# happened?

# %% tags=["varies"]
answer = stream(client, "tensorrt_llm_bls", inputs(**long))
next(answer)
server.stop()
try:
    print(sum(1 for _ in answer), "more responses")
except InferenceServerException as error:
    print(error)

# %% [markdown]
# A text that was cut off must never look complete. Who notices first depends on the moment: a model that can no longer
# call another one, or the client, whose connection ends. (Triton gives requests under way two seconds. A GPU may be
# done with this answer by then: all responses come, and nothing was cut off.)
#
# Try more: send `stream` as False over `ModelStreamInfer`, leave out `enable_empty_final_response` in `own_stream`,
# or ask for `streams = 9` with a batch size of 8 and look at the time to the first token.
#
# The server is gone; the clients follow. The last line says what produced the numbers on this page.

# %%
for each in (client, other, web, channel):
    each.close()
gaps = {"gap_alone_ms": round(gap_alone * 1000, 1), "gap_together_ms": round(gap_together * 1000, 1)}
notebook.record(streams=streams, first_token_ms=round(alone[0] * 1000, 1), **gaps)
