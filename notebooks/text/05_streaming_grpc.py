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
# **Time:** 45 minutes (last run: 68 s) · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# Previous: [04 · Serving](04_serving.ipynb) · Next: [06 · Temperature](06_temperature.ipynb)

# %%
import asyncio
import base64
import contextlib
import json
import queue
import struct
import tempfile
import time
import warnings
from pathlib import Path

import grpc
import httpx
import numpy as np
import psutil
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
from google.protobuf import descriptor_pb2, descriptor_pool, json_format
from tokenizers import Tokenizer
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from servinglab import assets
from servinglab.checks import check
from servinglab.figures import streaming, style
from servinglab.notebook import begin, record, resolve_lane
from servinglab.old_client import ClientError, TritonClient
from servinglab.repository import build_default
from servinglab.root import find_root
from servinglab.server import TritonServer

begin()

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
precision: str = "fp32"  # weights of the default model: "fp32" or "int4"
prompt: str = "Tell me a short story about a fox."  # what the model continues
max_tokens: int = 48  # length of the timed answers, in tokens
seed: int = 0  # seed of every sampled answer
streams: int = 4  # how many requests run at once

# %% [markdown]
# ## 1 A server to talk to
#
# You need a Triton with the five models of notebook 03. The next cell builds the repository in a temporary folder and
# starts the server on free ports. Both vanish when this notebook's kernel ends, also after an error.

# %% tags=["nbval-check-output"]
lane = resolve_lane(lane)
scratch = tempfile.TemporaryDirectory(prefix="servinglab-05-")
root = Path(scratch.name, "decoupled")
server = TritonServer(build_default(root, precision=precision)).start()
client = TritonClient(server.grpc_url, server.http_url)
client.models()

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
# Way (d) needs a client, which you will write yourself in section 5. Until then `client.stream` does it: it gives you
# one chunk for each response.

# %%
chunks = list(client.stream(prompt, max_tokens=few, exclude_input_in_output=True))
print(chunks[0])
print(chunks[-1])

# %% [markdown]
# A chunk knows its text, the seconds since the request was sent, and whether it is the last one.
#
# **Predict:** the answers of b, c and d come from three separate runs of the model. Are they the same text?

# %%
answers = {
    "generate": generated["text_output"],
    "generate_stream": "".join(json.loads(event.removeprefix("data: "))["text_output"] for event in events),
    "gRPC stream": "".join(chunk.text for chunk in chunks),
}
for way, text in answers.items():
    print(f"{way:16}{text!r}")
assert len(set(answers.values())) == 1

# %% [markdown]
# They are. Without `top_k` or `top_p` the model takes the most likely token each time, so the way in changes nothing.
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
style.use()
fields = streaming.take_apart(message)
title = "A request is tags, lengths and values; the contents of the inputs come last"
summary = f"{len(fields)} rows, {len(sent)} bytes: model_name, id, three inputs, then three raw contents"
style.finish(streaming.wire_bytes(fields), title, "", summary)

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
# section 5 is about. Its shape is `[1]`, not `[1, 1]`: like NVIDIA's, this model puts all its texts into one flat list.
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
# You can paste these two commands into a terminal in the course's folder while this notebook runs. This page does not
# run [grpcurl](https://github.com/fullstorydev/grpcurl) itself, but it can do what grpcurl would do: find the method in
# the file, make a message of the JSON, send it.

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
# ## 4 Decoupled: who may answer how often
#
# Three switches on three levels decide whether you see a stream:
#
# 1. **decoupled**, in the model's configuration: it *may* send any number of responses;
# 2. **stream**, an input of the request: *this* request wants many;
# 3. the **transport**: can it carry many?
#
# To see all combinations you need a second server, whose models are not decoupled. First the five ways to ask; each
# gives a list of the responses that hold data.

# %%
ways = {
    "/infer": lambda who, **more: [who.http_infer(prompt, **more)],
    "ModelInfer": lambda who, **more: [who.infer(prompt, **more)],
    "/generate": lambda who, **more: [who.generate(prompt, **more)],
    "/generate_stream": lambda who, **more: list(who.generate_stream(prompt, **more)),
    "ModelStreamInfer": lambda who, **more: [chunk for chunk in who.stream(prompt, **more) if chunk.outputs],
}

# %% [markdown]
# One cell of the table is the number of responses to a request for two tokens, or the number of an error message.

# %%
said = {}


def outcome(way, who, stream):
    try:
        return len(way(who, max_tokens=2, min_tokens=2, stream=stream))
    except ClientError as error:
        sentence = str(error).split(". ")[0]
        return said.setdefault(sentence, f"error {len(said) + 1}")


# %% [markdown]
# **Predict:** 5 ways, decoupled or not, stream or not: 20 requests. How many of them fail? The `with` block starts the
# second server and stops it again, whatever happens inside.

# %%
table = {}
blocking_repository = build_default(Path(scratch.name, "blocking"), precision=precision, decoupled=False)
with TritonServer(blocking_repository) as other, TritonClient(other.grpc_url, other.http_url) as blocking:
    for stream in (False, True):
        for decoupled, who in (("no", blocking), ("yes", client)):
            table[decoupled, stream] = [outcome(way, who, stream) for way in ways.values()]
    whole = blocking.http_infer(prompt, max_tokens=few, exclude_input_in_output=True)

# %% [markdown]
# The columns are the ways, the rows the two other switches.

# %% tags=["nbval-check-output"]
print("decoupled stream", *(f"{way:>16}" for way in ways))
for (decoupled, stream), row in sorted(table.items()):
    print(f"{decoupled:9} {str(stream):6}", *(f"{cell:>16}" for cell in row))
for sentence, number in said.items():
    print(f"{number}: {sentence}")

# %% [markdown]
# Ten of the twenty. Read it row by row:
#
# - not decoupled: every way gives one response, and nobody can have a stream;
# - decoupled: the two one-response ways are closed, even for a request that wants one response;
# - `/generate` stays open as long as there is exactly one response;
# - **`ModelStreamInfer` works wherever anything works.** A streaming client is the universal client.
#
# The second server also completes section 2: way (a), `/infer`, on a model that may use it.

# %% tags=["nbval-check-output"]
print("same text as b, c and d:", whole.text == answers["gRPC stream"])


# %% [markdown]
# ## 5 A streaming client by hand
#
# Now do what `client.stream` does, with NVIDIA's `tritonclient`. First the tensors. `InferInput` wants name, shape and
# datatype; the array must already have its batch dimension.

# %%
def tensor(name, datatype, values):
    array = np.array(values, object if datatype == "BYTES" else None)
    made = grpcclient.InferInput(name, array.shape, datatype)
    made.set_data_from_numpy(array)
    return made


stream_on = tensor("stream", "BOOL", [[True]])
five = tensor("max_tokens", "INT32", np.array([[5]], np.int32))
inputs = [tensor("text_input", "BYTES", [[prompt.encode()]]), five, stream_on]

# %% [markdown]
# A stream has four steps: open it with a callback, send a request, let responses arrive, close it. The callback runs in
# another thread, so it only puts things into a queue. Its arguments must be called `result` and `error`.
#
# `stop_stream()` waits until every answer is complete, so afterwards the queue holds all of them.

# %%
arrived = queue.SimpleQueue()
plain = grpcclient.InferenceServerClient(server.grpc_url)
plain.start_stream(lambda result, error: arrived.put((result, error)))
plain.async_stream_infer("tensorrt_llm_bls", inputs, request_id="fox-2")
plain.stop_stream()
while not arrived.empty():
    result, _ = arrived.get()
    print(result.as_numpy("text_output"), result.get_response().id)

# %% [markdown]
# A client object has one stream. Forget to close it, run the cell again, and you meet this:

# %% tags=["nbval-check-output"]
plain.start_stream(lambda result, error: None)
try:
    plain.start_stream(lambda result, error: None)
except InferenceServerException as error:
    print(error)
plain.stop_stream()


# %% [markdown]
# ### The final flag
#
# You do not want to close the stream after each request. Then how do you know that an answer is complete? Every
# response carries the parameter `triton_final_response`. This function writes one letter for each response: `d` for
# data, `D` for data with the flag set, `F` for the flag alone. Its client lives for one stream; `with` closes it, also
# when you stop the cell.

# %%
def letters(model, inputs, **options):
    arrived, found = queue.SimpleQueue(), []
    with grpcclient.InferenceServerClient(server.grpc_url) as once:
        once.start_stream(lambda result, error: arrived.put(error or result.get_response()))
        once.async_stream_infer(model, inputs, **options)
        once.stop_stream()
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
llm_inputs = [
    tensor("input_ids", "INT32", ids),
    tensor("input_lengths", "INT32", np.array([[ids.shape[1]]], np.int32)),
    tensor("request_output_len", "INT32", np.array([[5]], np.int32)),
    tensor("streaming", "BOOL", [[True]]),
]

# %% [markdown]
# **Predict:** five tokens each. Where does the flag sit, on the last token or behind it? And what changes if the client
# does not ask for *empty final responses*?

# %%
for model, given in (("tensorrt_llm", llm_inputs), ("ensemble", inputs), ("tensorrt_llm_bls", inputs)):
    for asked in (True, False):
        print(f"{model:18} asked: {asked!s:5}  {letters(model, given, enable_empty_final_response=asked)}")


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
# With the flag you can write the loop that every streaming client has at its heart. An error arrives like a response;
# it ends this request, not the stream.

# %%
def receive(arrived):
    final = False
    while not final:
        result, error = arrived.get(timeout=60)
        if error is not None:
            raise error
        final = result.get_response().parameters["triton_final_response"].bool_param
        yield result


# %% [markdown]
# `finally` closes the stream also when the loop is left early. That is the whole client. `client.stream` adds what you
# would add next: a deadline, tensors from plain values, several streams at once, readable errors.

# %%
arrived = queue.SimpleQueue()
plain.start_stream(lambda result, error: arrived.put((result, error)))
try:
    plain.async_stream_infer("tensorrt_llm_bls", inputs, enable_empty_final_response=True)
    texts = [result.as_numpy("text_output") for result in receive(arrived)]
finally:
    plain.stop_stream()
texts


# %% [markdown]
# The `None` is the empty final response: `as_numpy` of an output that is not there.
#
# ## 6 The same with asyncio
#
# A web server would not spend threads on waiting. `tritonclient.grpc.aio` takes an iterator of requests and gives an
# iterator of answers. In a notebook you may write `async for` and `await` right away, because Jupyter runs an event
# loop for you.

# %%
async def requests():
    yield {"model_name": "tensorrt_llm_bls", "inputs": inputs}


async with grpcaio.InferenceServerClient(server.grpc_url) as waiting:
    async for result, error in waiting.stream_infer(requests()):
        print(error or result.as_numpy("text_output"), end=" ")


# %% [markdown]
# This client cannot ask for empty final responses. It knows the end in another way: `requests()` has ended, so the
# server closes the stream after the last answer. It works for one request a stream, not for a stream that stays open.
#
# `client.astream` asks, and takes plain values. Each of these stories has a seed of its own; `gather` runs them at
# once.

# %% tags=["varies"]
async def tell(story_seed):
    pieces = client.astream(prompt, max_tokens=few, exclude_input_in_output=True, top_k=50, seed=story_seed)
    return "".join([chunk.text async for chunk in pieces])


stories = await asyncio.gather(*(tell(seed + i) for i in range(streams)))
for i, story in enumerate(stories):
    print(f"seed {seed + i}: {story!r}")

# %% [markdown]
# In a script there is no event loop yet, and `asyncio.run(main())` makes one. In a notebook the same line fails:

# %% tags=["nbval-check-output"]
coroutine = tell(seed)
try:
    asyncio.run(coroutine)
except RuntimeError as error:
    print(error)
finally:
    coroutine.close()

# %% [markdown]
# So: `await` in a notebook, `asyncio.run` in a script. The functions are the same.
#
# ## 7 When do the tokens arrive?
#
# Two numbers describe a stream: the **time to first token** (TTFT), and the **gaps** after it. Each chunk has the
# second of its arrival. `min_tokens` keeps the model from ending early, so that all streams have the same length.

# %%
tokens = max(max_tokens, 8)
options = {"max_tokens": tokens, "min_tokens": tokens, "top_k": 50}


def arrivals(stream):
    return [chunk.seconds for chunk in stream if chunk.outputs]


alone = arrivals(client.stream(prompt, seed=seed, **options))
print(f"first token after {alone[0] * 1000:.0f} ms, median gap {np.median(np.diff(alone)) * 1000:.0f} ms")

# %% [markdown]
# Now several streams at once: `client.stream` sends its request right away, so a list of streams is enough.
#
# **Predict:** with `streams` requests at once, how much longer does each of them wait for its next token? As many times
# as there are streams? A little? Not at all?

# %%
together = [client.stream(prompt, seed=seed + i, **options) for i in range(streams)]
times = {f"{i + 1} of {streams}": arrivals(stream) for i, stream in enumerate(together)}

# %% [markdown]
# The figure answers: each mark is a token; each dot below is one wait.

# %%
gap_alone = float(np.median(np.diff(alone)))
gap_together = float(np.median(np.concatenate([np.diff(each) for each in times.values()])))
grown = gap_together / gap_alone
title = f"With {streams} at once, each stream waits {grown:.1f} times as long for a token"
summary = (
    f"alone: {1 / gap_alone:.0f} tokens/s; {streams} at once: {1 / gap_together:.0f} tokens/s each, "
    f"{streams / gap_together:.0f} tokens/s together"
)
small_print = style.provenance(lane, seed, weights=precision)
style.finish(streaming.token_timeline({"alone": alone, **times}, lane=lane), title, small_print, summary)

# %% [markdown]
# Not as many times as there are streams, unless something else kept this machine busy. The server does not finish one
# request before it begins the next: at every step it computes one token for *all* running requests. Reading the weights
# from memory is most of the work, and it is done once for all of them. That is **in-flight batching**.
#
# The first tokens tell another story: the bars grow from stream to stream. Here the prompts are read one after another,
# and a stream whose prompt has been read waits for the others: look for the hole near the start of the row *1 of …*.
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
# A token is a piece of bytes, and a character may need several. Take an emoji apart with the model's tokenizer and
# decode its tokens one by one, then together.

# %% tags=["nbval-check-output"]
tokenizer = Tokenizer.from_file(str(assets.tokenizer("smollm2") / "tokenizer.json"))
pieces = tokenizer.encode("🦊", add_special_tokens=False).ids
print(pieces, [tokenizer.decode([piece]) for piece in pieces], tokenizer.decode(pieces))

# %% [markdown]
# `�` stands for bytes that are no whole character. The ensemble hands each response to `postprocessing` on its own. The
# BLS model is a Python program and could do better.
#
# **Predict:** both continue a row of foxes. What does each of them send, chunk by chunk?

# %%
for model in ("ensemble", "tensorrt_llm_bls"):
    pieces = client.stream("🦊🦊🦊🦊", model=model, max_tokens=9)
    print(f"{model:18}", [chunk.text for chunk in pieces if chunk.outputs])

# %% [markdown]
# The ensemble has lost the text for good: joining `�` does not bring the bytes back. Our BLS model keeps the last
# tokens: it sends empty text while a character is incomplete, and what is still incomplete at the end stays a `�`. So
# an empty chunk is normal, and not the end.
#
# Spaces are a second trap. This tokenizer keeps the space inside the token (`' fox'`). Llama 2's tokenizer drops it
# when a token is decoded alone, so an ensemble would print `Afoxran`. (Gemma's keeps it.)
#
# NVIDIA's own BLS model keeps no tokens, so by default it sends `�` like the ensemble. Its cure is `accumulate_tokens`:
# each response holds the whole text so far. It is a parameter of the model. Write its configuration again and load that
# one model anew, while the server runs:

# %%
build_default(root, precision=precision, accumulate_tokens=True)
server.load("tensorrt_llm_bls")
for chunk in client.stream(prompt, max_tokens=6):
    if chunk.outputs:
        print(repr(chunk.text))

# %% [markdown]
# Now a client *replaces* the text instead of appending. It is simple, but every token sends the whole text again: the
# bytes grow with the square of the length. Put it back:

# %%
build_default(root, precision=precision)
server.load("tensorrt_llm_bls")

# %% [markdown]
# ## 9 Cancel, and prove it
#
# A reader closes the page after five tokens. Does the server notice, or does it go on computing for nobody? Watch its
# processes: how many cores do they use?

# %%
process = psutil.Process(server.pid)


def cpu_seconds():
    found = {}
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):  # the process of a model that was loaded anew
            found[each.pid] = sum(each.cpu_times()[:2])
    return found


def busy(seconds=0.4):
    before = cpu_seconds()
    time.sleep(seconds)
    return sum(now - before.get(pid, now) for pid, now in cpu_seconds().items()) / seconds


# %% [markdown]
# Ask for 800 tokens, read five, cancel. **Predict** the three numbers: before, during, after.

# %%
long = {"max_tokens": 800, "min_tokens": 800}
print(f"before  {busy():.1f} cores")
stream = client.stream(prompt, **long)
first_five = [next(stream).text for _ in range(5)]
print(f"during  {busy():.1f} cores")
stream.cancel()
time.sleep(0.3)
print(f"after   {busy():.1f} cores")

# %% [markdown]
# It stopped. The models look every 100 ms whether the client is still there. Leaving a `for` loop over `client.stream`
# cancels as well. (You asked the BLS model, which passes the news on. The ensemble of this Triton does not: the LLM
# behind it goes on to `max_tokens` for nobody.)
#
# **By HTTP:** drop the connection of `/generate_stream`. The server notices when it next writes, which is at the next
# token.

# %%
stream = client.generate_stream(prompt, **long)
first_five = [next(stream).text for _ in range(5)]
print(f"during  {busy():.1f} cores")
stream.close()
time.sleep(0.3)
print(f"after   {busy():.1f} cores")

# %% [markdown]
# **Predict:** and `/generate`, which writes only once, at the end? Ask for more tokens than fit into a second, and let
# the client give up after half of one.

# %%
enough = max(round(2.5 / gap_alone), 20)  # without streaming tokens come faster
try:
    client.generate(prompt, max_tokens=enough, min_tokens=enough, deadline=0.5)
except ClientError as error:
    print(error)
print(f"after   {busy():.1f} cores")

# %% [markdown]
# The server goes on until the answer is complete, and then finds nobody to give it to
# ([server#7077](https://github.com/triton-inference-server/server/issues/7077)). If clients may leave, let them stream.
#
# **By request id:** `tensorrt_llm` takes a second request with the same id and `stop` set. The other inputs must be
# there, their values do not matter. The stream then ends by itself, with its final flag.

# %%
story = {"input_ids": ids, "input_lengths": [[ids.shape[1]]], "request_output_len": [[800]], "streaming": [[True]]}
story = {**story, "min_tokens": [[800]]}
stream = client.stream_inputs("tensorrt_llm", story, request_id="fox-3")
received = [next(stream) for _ in range(3)]
(stopped,) = client.stream_inputs("tensorrt_llm", {**story, "stop": [[True]]}, request_id="fox-3")
received += stream
print(f"{len(received)} responses of 800, final: {received[-1].final}; the stop request: {stopped}")

# %% [markdown]
# A stop for an id that has ended is no error: it gets its empty response, the `F`. A stop without an id is one, and a
# tool that fills every optional input with something, `stop` too, runs into it.

# %% tags=["nbval-check-output"]
stop = [*llm_inputs, tensor("stop", "BOOL", [[True]])]
print("ended:", letters("tensorrt_llm", stop, request_id="fox-3"))
print("no id:", letters("tensorrt_llm", stop))

# %% [markdown]
# ## 10 Errors you will meet
#
# Make the common mistakes on purpose. Each line below changes one input of a good request and sends it unchecked, so
# that you read the server's own words.

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
        chunks = list(client.stream_inputs("tensorrt_llm_bls", {**good, **change}, checked=False))
        print(f"{name}: no error, {len(chunks)} chunks")
    except ClientError as error:
        print(f"{name}: {error}")

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
#
# The course's client asks the server what the model declares, and tells you before it sends:

# %% tags=["nbval-check-output"]
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    client.generate(prompt, max_tokens=3, runtime_top_k=5)
print(heard[0].message)
for mistake in ({"runtime_top_k": 5}, {"top_k": 0.5}, {"model": "tensorrtllm"}):
    try:
        list(client.stream(prompt, max_tokens=3, **mistake))
    except ClientError as error:
        print(error)

# %% [markdown]
# ## Recap
#
# - `/infer` and `ModelInfer` carry one response and refuse decoupled models; `/generate` carries exactly one;
#   `/generate_stream` and `ModelStreamInfer` carry any number.
# - A message is tags, lengths and values; strings in raw contents have a prefix of four bytes.
# - An answer ends with `triton_final_response`, on the last data or alone. Ask for the empty final response.
# - Streams share every step of the server, so many at once cost each of them little.
# - An empty chunk may be half a character. Decode with memory, as our BLS model does.
# - Leaving a stream stops the work; leaving `/generate` does not.
# - gRPC refuses unknown inputs. `/generate` takes an unknown text, number or truth value for a parameter, and ignores
#   it.
#
# ## Break it
#
# Stop the server in the middle of an answer. **Predict:** does the loop hang, end as if all were well, or say what
# happened?

# %% tags=["varies"]
try:
    stream = client.stream(prompt, **long)
    next(stream)
    server.stop()
    print(sum(1 for _ in stream), "more chunks")
except ClientError as error:
    print(error)

# %% [markdown]
# A text that was cut off must never look complete. Who notices first depends on the moment: a model that can no longer
# call another one, or the client, whose connection ends. (Triton gives requests under way two seconds. A GPU may be
# done with this answer by then: all chunks come, and nothing was cut off.)
#
# Try more: send `stream` as False over `ModelStreamInfer`, leave out `enable_empty_final_response` in section 5's last
# loop, or ask for `streams = 9` with a batch size of 8 and look at the time to the first token.
#
# The server is gone; the clients and the folder follow. The last line says what produced the numbers on this page.

# %%
for each in (client, web, plain, channel):
    each.close()
scratch.cleanup()
gaps = {"gap_alone_ms": round(gap_alone * 1000, 1), "gap_together_ms": round(gap_together * 1000, 1)}
first = round(alone[0] * 1000, 1)
record("05", lane=lane, seed=seed, precision=precision, streams=streams, first_token_ms=first, **gaps)
