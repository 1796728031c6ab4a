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
# You send one prompt in four ways, watch its tokens arrive one by one, and learn what every byte and flag is for.
#
# After this notebook you can
#
# - send a request in four ways, and say which of them can stream
# - read a request byte by byte
# - write a streaming client, with threads or with asyncio, that knows when an answer ends
# - measure the time to the first token and the gaps after it
# - cancel a request for good, and read the errors you will meet
#
# **Time:** 45 minutes · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# read: 15 min, do: 30 min
#
# Previous: [04 · Serving](04_serving.ipynb) · Next: [06 · Temperature](06_temperature.ipynb)

# %%
import asyncio
import base64
import json
import queue
import re
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import matplotlib.pyplot as plt
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
from servinglab.explore import explore
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
# `serve` writes the five models of notebook 03 into a temporary folder and starts `tritonserver` on free ports.

# %%
server = serve(precision=precision)

# %% [markdown]
# ## 2 One request, four ways
#
# Triton speaks the [KServe v2 protocol](https://github.com/kserve/open-inference-protocol) over HTTP and **gRPC**
# (calls with binary messages), and adds two easier HTTP paths, the [generate
# extension](https://github.com/triton-inference-server/server/blob/r24.10/docs/protocol/extension_generate.md):
#
# ![Two HTTP paths give one response; generate_stream and gRPC give many](pictures/05_ways.svg)
#
# Begin with (a) and the smallest model: `preprocessing` turns text into the ids of its **tokens**, pieces of text.
# Every tensor has a name, a datatype and a shape. `[1, 1]` is a batch of one row, with one string in it.

# %%
web = httpx.Client(base_url=server.http_url, timeout=120, trust_env=False)
query = {"name": "QUERY", "datatype": "BYTES", "shape": [1, 1], "data": [prompt]}
length = {"name": "REQUEST_OUTPUT_LEN", "datatype": "INT32", "shape": [1, 1], "data": [16]}
answer = web.post("/v2/models/preprocessing/infer", json={"inputs": [query, length]}).json()
token_ids = answer["outputs"][0]
token_ids

# %% [markdown]
# One request, one response: that is all `/infer` can do.
#
# **Predict:** you ask `tensorrt_llm_bls`, the model that may answer with many responses, the same way. Do you get one
# long answer, only the first token, or an error?

# %% tags=["nbval-check-output"]
text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [prompt]}
length = {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [16]}
answer = web.post("/v2/models/tensorrt_llm_bls/infer", json={"inputs": [text, length]})
print(answer.status_code, answer.json()["error"])

# %% [markdown]
# You get an error, 501 *Not Implemented*. The model's configuration says `decoupled`: it *may* answer any number of
# times.
#
# Way (b), `/generate`, takes plain values. Triton makes the tensors. `exclude_input_in_output` leaves the prompt out
# of the answer.

# %%
few = min(max_tokens, 16)
request = {"text_input": prompt, "max_tokens": few, "exclude_input_in_output": True}
generated = web.post("/v2/models/tensorrt_llm_bls/generate", json=request).json()
generated

# %% [markdown]
# Way (c) takes the same object plus `"stream": true`. The raw body has one line `data: {…}` and one empty line for
# each response.

# %%
answer = web.post("/v2/models/tensorrt_llm_bls/generate_stream", json={**request, "stream": True})
events = answer.text.strip().split("\n\n")
print(answer.status_code, answer.headers["content-type"], "·", len(events), "events, the first two and the last:")
print(*events[:2], events[-1], sep="\n")

# %% [markdown]
# Note what is *not* there: no `[DONE]`, no flag on the last event. The answer ends with the HTTP response.
#
# **Predict:** the answers of b and c come from two separate runs of the model. Are they the same text?

# %%
whole = generated["text_output"]
joined = "".join(json.loads(event.removeprefix("data: "))["text_output"] for event in events)
print(repr(whole), repr(joined), sep="\n")
assert whole == joined

# %% [markdown]
# They are the same. Without `top_k` or `top_p` the model takes the most likely token each time, whatever the way in.
#
# ## 3 The message, byte by byte
#
# A gRPC client sends a **protobuf** message. Its schema is compiled into `tritonclient`; here are the fields of a
# request.

# %% tags=["nbval-check-output"]
for field in service_pb2.ModelInferRequest.DESCRIPTOR.fields:
    print(field.number, field.name)

# %% [markdown]
# Fill one by hand. Each input is declared by name, datatype and shape. Its bytes go into `raw_input_contents`, in the
# same order. Text gets a prefix of four bytes, its length.

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
# Serialise it. A field starts with a **tag** byte: the lower three bits are the wire type, those above them the field
# number. Type 2 means: a length follows, then that many bytes.

# %% tags=["nbval-check-output"]
sent = message.SerializeToString()
tag, length = sent[0], sent[1]
print(len(sent), "bytes:", sent[:18].hex(" "), "…")
print(f"tag {tag:08b} → field {tag >> 3}, wire type {tag & 7}; length {length}; value {sent[2 : 2 + length]}")

# %% [markdown]
# Field 1 is `model_name`. Field names never travel, only their numbers: without the schema you cannot read a message.
#
# The prompt has 143 bytes, 147 with its prefix. One byte of a length holds seven bits, up to 127; the eighth bit says
# that another byte follows. That is a **varint**. So the prompt's two lengths look quite different.

# %% tags=["nbval-check-output"]
at = sent.index(b"A fox") - 7  # seven bytes stand before the text
low, high = sent[at + 1 : at + 3]
print(sent[at : at + 7].hex(" "))
print("varint:", (low & 0b0111_1111) + (high << 7))
print("prefix:", struct.unpack("<I", sent[at + 3 : at + 7])[0])

# %% [markdown]
# `3a` is the tag of field 7. `93 01` is protobuf's length, 147. `8f 00 00 00` is Triton's prefix, 143, the lowest byte
# first. Here is the whole message, a field in each row.

# %% tags=["nbval-check-output"]
fields = streaming.take_apart(message)
summary = f"{len(fields)} rows, {len(sent)} bytes: model_name, id, three inputs, then three raw contents"
show(streaming.wire_bytes(fields), "The contents of a request's inputs come last", summary, drawing=True)

# %% [markdown]
# `shape` is a list of numbers packed into one value: `01 01`. Numbers in `raw_input_contents` are plain memory, no
# varints: `max_tokens` is `03 00 00 00`.
#
# Does the server like the message? Call the bare gRPC method:

# %%
assert service_pb2.ModelInferRequest.FromString(sent) == message
channel = grpc.insecure_channel(server.grpc_url)
stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
responses = list(stub.ModelStreamInfer(iter([message]), timeout=60))
print(len(responses), "responses, the last one:")
print(responses[-1])

# %% [markdown]
# It does: three tokens, three responses. Each has your id, tensors, and a parameter that section 4 is about.
#
# **Exercise 05.1** (●●○, 6 minutes) A client wants one output only. Between the inputs and the raw contents its
# message has these bytes:
#
# `32 0d 0a 0b 74 65 78 74 5f 6f 75 74 70 75 74`
#
# Read the field that begins at `32`: its number, wire type and length. It holds a message with one field of text;
# which text? `bytes.fromhex` helps.
#
# <details><summary>Hint 1</summary>
#
# `32` is hexadecimal, and it is the whole tag. Write it in bits, then cut it where the text above says.
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# The digits `3` and `2` are no parts of a tag: cut its bits, three from the right. Does a length count itself? Where
# does the inner field begin?
#
# </details>

# %% tags=["exercise:05.1"]
answer_1 = {"field": None, "wire_type": None, "length": None, "text": None}  # three numbers and a text

# %% tags=["check:05.1", "nbval-check-output"]
check("05.1", answer_1)

# %% [markdown]
# <details><summary>Solution 05.1</summary>
#
# ```python
# tail = bytes.fromhex("32 0d 0a 0b 74 65 78 74 5f 6f 75 74 70 75 74")
# answer_1 = {"field": tail[0] >> 3, "wire_type": tail[0] & 7, "length": tail[1], "text": tail[4:].decode()}
# ```
#
# </details>

# %% [markdown]
# ## 4 A streaming client by hand
#
# `tritonclient` sends the same message for you. `InferInput` wants name, shape and datatype; the array must have its
# batch dimension.

# %%
client = grpcclient.InferenceServerClient(server.grpc_url)


def tensor(name, array, datatype):
    return grpcclient.InferInput(name, array.shape, datatype).set_data_from_numpy(array)


text = tensor("text_input", np.array([[prompt.encode()]], object), "BYTES")
five = tensor("max_tokens", np.array([[5]], np.int32), "INT32")
request = [text, five, tensor("stream", np.array([[True]]), "BOOL")]

# %% [markdown]
# The server knows every datatype: ask it for the model's configuration.

# %%
config = client.get_model_config("tensorrt_llm_bls", as_json=True)["config"]
datatypes = {each["name"]: each["data_type"].removeprefix("TYPE_") for each in config["input"]}
print({name: datatypes[name] for name in ("text_input", "max_tokens", "temperature", "stream", "seed")})


# %% [markdown]
# So a function can make the tensors from plain values. The configuration writes `STRING` for the protocol's `BYTES`.

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
# A stream has four steps. The callback runs in another thread, so it only puts things into a queue:
#
# ![Your thread opens, sends, takes from a queue, closes; the client's thread fills the queue](pictures/05_threads.svg)
#
# The callback's arguments must be called `result` and `error`. Never call `stop_stream` in it: a thread cannot wait for
# itself.
#
# `stop_stream()` waits until every answer is complete:

# %%
arrived = queue.SimpleQueue()
client.start_stream(lambda result, error: arrived.put((result, error)))
client.async_stream_infer("tensorrt_llm_bls", request, request_id="fox-2")
client.stop_stream()
while not arrived.empty():
    result, _ = arrived.get()
    print(result.as_numpy("text_output"), result.get_response().id)

# %% [markdown]
# Forget to close it, and a script stays alive after its last line. So put `client.stop_stream(cancel_requests=True)`
# into a `finally`. A client object has one stream; open a second, and you meet this:

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
# How do you know that an answer is complete, without closing the stream? Every response carries a flag,
# `result.get_response().parameters["triton_final_response"].bool_param`. This function writes one letter for each
# response: `d` for data, `D` for data with the flag set, `F` for the flag alone.

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
# `tensorrt_llm` itself takes token ids:

# %%
ids = np.array(token_ids["data"], np.int32)[None]
size = {"input_lengths": np.array([[ids.shape[1]]], np.int32), "streaming": True}


def llm_inputs(request_output_len=5, **more):
    return inputs(input_ids=ids, request_output_len=request_output_len, **size, **more)


# %% [markdown]
# **Predict:** five tokens from each of three models. Is the flag on the last token or behind it? What changes if the
# client does not ask for *empty final responses*?

# %%
asked = {"tensorrt_llm": llm_inputs(), "ensemble": request, "tensorrt_llm_bls": request}
flags = {model: letters(model, given, enable_empty_final_response=True) for model, given in asked.items()}
for model, given in asked.items():
    print(f"{model:18} asked: {flags[model]:10} not asked: {letters(model, given)}")

# %% [markdown]
# Time runs down the page; each arrow is a message.

# %%
summary = "; ".join(f"{model} {sent}" for model, sent in flags.items())
behind = [model for model, sent in flags.items() if "F" in sent]
who = "Only " + " and ".join(behind) if behind else "No model"
show(streaming.sequence(flags), f"{who} sends the final flag alone, after the data", summary, drawing=True)


# %% [markdown]
# `tensorrt_llm` and the ensemble put the flag on the last token. The BLS model learns only afterwards that it has ended
# and sends the flag alone. A client that did not ask **never hears of the end**. Always ask.
#
# **Exercise 05.2** (●●○, 12 minutes) Write the loop of a client: open a stream, send `request` to `model`, take
# responses until the answer is complete, close the stream, return the whole text. Raise an error that comes. The check
# starts a Triton whose model ends its answers in both ways, and lets your loop read them.
#
# <details><summary>Hint 1</summary>
#
# A model may end before `max_tokens`, and an empty text may be half a character. What says "the end", whatever the
# model and its text?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# The name is in every response, so its presence tells nothing. What does it hold? A response with the flag may have
# data or none. Where must `stop_stream` stand, so that it runs after an error, too?
#
# </details>

# %% tags=["exercise:05.2"]
def read_answer(client, model, request):
    ...  # your code


# %% tags=["check:05.2", "nbval-check-output"]
check("05.2", read_answer)


# %% [markdown]
# <details><summary>Solution 05.2</summary>
#
# ```python
# def read_answer(client, model, request):
#     arrived, pieces, done = queue.SimpleQueue(), [], False
#     client.start_stream(lambda result, error: arrived.put((result, error)))
#     try:
#         client.async_stream_infer(model, request, enable_empty_final_response=True)
#         while not done:
#             result, error = arrived.get()
#             if error is not None:
#                 raise error
#             response = result.get_response()
#             if response.outputs:
#                 pieces.append(result.as_numpy("text_output")[0].decode())
#             done = response.parameters["triton_final_response"].bool_param
#     finally:
#         client.stop_stream(cancel_requests=not done)
#     return "".join(pieces)
# ```
#
# </details>

# %% [markdown]
# ### The whole client
#
# This loop stamps each result with the seconds since sending, and skips responses without data. `finally` also runs
# when the reader leaves early; then `cancel_requests=True` tells the server to stop.

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
# It does. **Predict:** what does a name that is not there give for the ensemble's last response: True, False, or an
# error?

# %% tags=["nbval-check-output"]
*_, last = own_stream(client, "ensemble", request)
for key in ("triton_final_response", "final_response"):
    print(key, last.get_response().parameters[key].bool_param)

# %% [markdown]
# A wrong name gives False, and no error: reading a missing key of protobuf's map `parameters` creates it. A loop with
# this slip gets every token and then waits, for ever or until `stream_timeout`.
#
# `servinglab.client` holds these two functions, too. Are they the same?

# %% tags=["nbval-check-output"]
theirs = inputs(text_input=prompt, max_tokens=few, exclude_input_in_output=True, stream=True)
same = [(mine.name(), mine.datatype(), mine.shape()) for mine in request]
print(same == [(each.name(), each.datatype(), each.shape()) for each in theirs])
print([text_of(each) for each in stream(client, "tensorrt_llm_bls", theirs)] == [text_of(each) for each in results])

# %% [markdown]
# A batch is one request of several rows. **Predict:** with two prompts, one stream and one id, how do you tell whose a
# response is?

# %% tags=["nbval-check-output"]
batch = inputs(text_input=["1, 2, 3,", "A, B, C,"], max_tokens=4, exclude_input_in_output=True, stream=True)
rows = {0: "", 1: ""}
for result in stream(client, "tensorrt_llm_bls", batch):
    rows[result.as_numpy("batch_index").item()] += text_of(result)
print(rows)

# %% [markdown]
# By the output `batch_index`. The final flag comes once, when the last row has ended.
#
# ## 5 Decoupled: who may answer how often
#
# Three switches decide whether you see a stream:
#
# 1. **decoupled**, in the model's configuration: it *may* send any number of responses;
# 2. **stream**, an input of the request: *this* request wants many;
# 3. the **transport**: can it carry many?
#
# **Predict:** two of the five *files* say decoupled (notebook 03). How many models do, on the server that runs?

# %% tags=["nbval-check-output"]
for model in ("preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls", "ensemble"):
    policy = client.get_model_config(model).config.model_transaction_policy
    print(f"{model:17} decoupled: {policy.decoupled}")

# %% [markdown]
# Three: Triton makes the ensemble decoupled, as one of its steps is. To compare, start a second server, whose models
# are not.

# %%
blocking = serve(precision=precision, decoupled=False)

# %% [markdown]
# Each function sends `values` and counts the responses with data:

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
# gRPC has two methods, `ModelInfer` and `ModelStreamInfer`.

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
# A cell is the number of responses to a request for two tokens, or the number of an error message.

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
# Ten fail. Five ask a model that is not decoupled for a stream; four use `/infer` or `ModelInfer`, which a decoupled
# model closes even to a request for one response; one wants several from `/generate`. **`ModelStreamInfer` works
# wherever anything works.**

# %% [markdown]
# ## 6 The same with asyncio
#
# `tritonclient.grpc.aio` takes an iterator of requests and gives an iterator of answers.
#
# Keep your side of the stream open until the answer is complete: ending it earlier can crash this Triton. And this
# client cannot ask for empty final responses. So ask the ensemble, which puts the flag on the last token.

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
# Each story has a seed of its own; `asyncio.gather` runs them at once.

# %% tags=["varies"]
story = {"text_input": prompt, "max_tokens": few, "exclude_input_in_output": True, "stream": True, "top_k": 50}
for told in await asyncio.gather(*(tell(inputs(seed=seed + i, **story)) for i in range(streams))):
    print(repr(told))

# %% [markdown]
# In a script `asyncio.run(main())` makes the event loop. In a notebook it fails:

# %% tags=["nbval-check-output"]
coroutine = tell([])
try:
    asyncio.run(coroutine)
except RuntimeError as error:
    print(error)
finally:
    coroutine.close()

# %% [markdown]
# So: `await` in a notebook, where Jupyter runs a loop for you, and `asyncio.run` in a script.
#
# ## 7 When do the tokens arrive?
#
# Two numbers describe a stream: the **time to first token** (TTFT), and the **gaps** after it. `min_tokens` keeps all
# streams equally long.

# %%
tokens = max(max_tokens, 8)
options = {"max_tokens": tokens, "min_tokens": tokens, "top_k": 50, "stream": True}


def arrivals(results):
    return [result.seconds for result in results]


alone = arrivals(stream(client, "tensorrt_llm_bls", inputs(text_input=prompt, seed=seed, **options)))
print(f"first token after {alone[0] * 1000:.0f} ms, median gap {np.median(np.diff(alone)) * 1000:.0f} ms")

# %% [markdown]
# Now several requests at once, over one stream: `gather` gives each an id and sorts the responses by it. Each mark is a
# token; each dot below is one wait.
#
# **Predict:** with `streams` requests at once, how much longer does each wait for its next token? As many times as
# there are requests? A little? Not at all?

# %%
together = {f"{i + 1} of {streams}": inputs(text_input=prompt, seed=seed + i, **options) for i in range(streams)}
answers = gather(client, "tensorrt_llm_bls", together)
times = {name: arrivals(results) for name, results in answers.items()}
gap_alone = float(np.median(np.diff(alone)))
gap_together = float(np.median(np.concatenate([np.diff(each) for each in times.values()])))
summary = f"tokens/s: alone {1 / gap_alone:.0f}; {streams} at once {1 / gap_together:.0f} each, "
summary += f"{streams / gap_together:.0f} together"
title = f"With {streams} at once, each waits {gap_together / gap_alone:.1f} times as long for a token"
show(streaming.token_timeline({"alone": alone, **times}, lane=lane), title, summary)

# %% [markdown]
# A little longer; the title has the factor. At every step the server computes one token for *all* running requests.
# Reading the weights is most of the work, and it is done once for all. That is **in-flight batching** (notebook 04).
#
# First tokens differ more: prompts are read one after another, and streams that already run stand still meanwhile.
#
# **Exercise 05.3** (●○○, 4 minutes) A stream of five tokens, in seconds since the request: `0.30, 0.34, 0.40, 0.43,
# 0.51`. What are its time to first token and its mean gap, in milliseconds?
#
# <details><summary>Hint 1</summary>
#
# The first wait is not a gap. How many gaps are there between five tokens?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Between which tokens lies a gap? Compare the number of gaps with the number of tokens, and mind the unit.
#
# </details>

# %% tags=["exercise:05.3"]
answer_3 = {"ttft_ms": None, "mean_gap_ms": None}  # two numbers, in milliseconds

# %% tags=["check:05.3", "nbval-check-output"]
check("05.3", answer_3)


# %% [markdown]
# <details><summary>Solution 05.3</summary>
#
# ```python
# seconds = np.array([0.30, 0.34, 0.40, 0.43, 0.51])
# answer_3 = {"ttft_ms": 1000 * seconds[0], "mean_gap_ms": 1000 * np.diff(seconds).mean()}
# ```
#
# </details>

# %% [markdown]
# How many streams pay? In JupyterLab the slider sets how many requests go out.
#
# **Predict:** eight streams in the place of one: how many times the tokens per second?

# %%
def at_once(axes, streams):
    short = {**options, "max_tokens": 16, "min_tokens": 16}
    asked = {n: inputs(text_input=prompt, seed=seed + n, **short) for n in range(streams)}
    found = [arrivals(each) for each in gather(client, "tensorrt_llm_bls", asked).values()]
    axes.plot(np.ravel(found), np.repeat(range(streams), 16), "|", markersize=9)
    rate = 16 * streams / np.max(found)
    axes.set(xlabel=f"time (s); {rate:.0f} tokens/s", yticks=[])
    return rate


summary = "when the tokens of 1 and of 8 streams arrive"
title = lambda rates: f"Eight streams give {rates[-1] / rates[0]:.1f} times the tokens/s of one"  # noqa: E731
explore(at_once, title=title, summary=summary, live={"streams": range(1, 17)}, streams=[1, 8])

# %% [markdown]
# Fewer than eight times: a step for eight takes longer, and eight prompts are read first, one after another.

# %% [markdown]
# ## 8 Tokens are not characters
#
# A token is a piece of bytes, and a character may need several. Take an emoji apart with the tokenizer of
# `preprocessing`, and decode its tokens one by one, then together.

# %% tags=["nbval-check-output"]
parameters = client.get_model_config("preprocessing").config.parameters
tokenizer = Tokenizer.from_file(parameters["tokenizer_dir"].string_value + "/tokenizer.json")
pieces = tokenizer.encode("🦊", add_special_tokens=False).ids
print(pieces, [tokenizer.decode([piece]) for piece in pieces], tokenizer.decode(pieces))

# %% [markdown]
# `�` stands for bytes that are no whole character. The ensemble decodes each response on its own; the BLS model, a
# program, could do better.
#
# **Predict:** both continue a row of foxes, with 8 tokens. How many responses does each send, and what is in them?

# %%
foxes = {"text_input": "🦊🦊🦊🦊", "max_tokens": 8, "stream": True}
for model in ("ensemble", "tensorrt_llm_bls"):
    chunks = [text_of(result) for result in stream(client, model, inputs(**foxes))]
    print(f"{model:16} {len(chunks)} responses: {chunks}")

# %% [markdown]
# The ensemble sends one for each token, and has lost the text for good: joining `�` does not bring the bytes back. Our
# BLS model keeps the last tokens:
#
# ![Three tokens hold four bytes of one character; the BLS model sends it with the third](pictures/05_bytes.svg)
#
# What is incomplete at the end comes as one more response, a `�`. So an empty chunk is not the end, and **responses are
# not tokens**.
#
# Spaces are a second trap. This tokenizer keeps the space inside the token (`' fox'`). Llama 2's, a
# [SentencePiece](https://github.com/google/sentencepiece) one, writes a space as `▁`, also before the first word, and
# takes one off the front of what it decodes:

# %% tags=["nbval-check-output"]
words = {"▁A": 0, "▁fox": 1, "▁ran": 2}
llama_like = Tokenizer(models.WordLevel(words, unk_token="▁A"))
llama_like.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
print(repr(llama_like.decode([0, 1, 2])), repr("".join(llama_like.decode([each]) for each in (0, 1, 2))))

# %% [markdown]
# Decoded alone, each token loses its space: an ensemble prints `Afoxran`.
#
# <details><summary>If the folder has only a tokenizer.model</summary>
#
# Templates up to TensorRT-LLM 0.8 had a parameter `tokenizer_type` for such a tokenizer (`auto`, `llama`, `t5`, `sp`).
# Since 0.9 there is none: NVIDIA's models load the folder with `AutoTokenizer`, ours read `tokenizer.json`. To make
# that file, load the folder once with `AutoTokenizer` and save it with `save_pretrained`.
#
# </details>
#
# NVIDIA's own BLS model keeps no tokens, so by default it sends `�` like the ensemble. Its cure is the parameter
# `accumulate_tokens`: each response holds the whole text so far. Set it in `config.pbtxt` and load the model anew:

# %%
config = server.repository / "tensorrt_llm_bls" / "config.pbtxt"
before = config.read_text()
config.write_text(re.sub(r'("accumulate_tokens"[^"]*)"false"', r'\1"true"', before))
server.load("tensorrt_llm_bls")
for result in stream(client, "tensorrt_llm_bls", inputs(text_input=prompt, max_tokens=6, stream=True)):
    print(repr(text_of(result)))

# %% [markdown]
# Now a client *replaces* the text instead of appending. But every token sends the whole text again: the bytes grow
# with the square of the length. Put it back:

# %%
config.write_text(before)
server.load("tensorrt_llm_bls")

# %% [markdown]
# ## 9 Cancel, and prove it
#
# A reader closes the page after five tokens. Does the server go on computing for nobody? Watch how many cores its
# processes use, before and after a client leaves:

# %%
process, cores = psutil.Process(server.pid), {}


def cpu_seconds():
    return sum(sum(each.cpu_times()[:4]) for each in [process, *process.children()])  # with those that have ended


def busy(seconds=0.4):
    before = cpu_seconds()
    time.sleep(seconds)
    return (cpu_seconds() - before) / seconds


def leave(way, action):
    before = busy()
    action()
    time.sleep(0.3)
    cores[way] = before, busy()


# %% [markdown]
# Three clients leave: one closes its gRPC stream, one drops the connection of `/generate_stream`, one loses patience
# with `/generate`, which writes only once, at the end. **Predict:** in which of the three cases does the server stop?

# %%
long = {"text_input": prompt, "max_tokens": 800, "min_tokens": 800, "stream": True}
answer = stream(client, "tensorrt_llm_bls", inputs(**long))
first_five = [text_of(next(answer)) for _ in range(5)]
leave("gRPC stream", answer.close)

# %% [markdown]
# An event is followed by an empty line:

# %%
with web.stream("POST", "/v2/models/tensorrt_llm_bls/generate_stream", json=long) as response:
    lines = response.iter_lines()
    first_lines = [next(lines) for _ in range(10)]
    leave("/generate_stream", response.close)

# %% [markdown]
# The third asks for over a second of tokens, and gives up after half of one:

# %%
enough = max(round(2.5 / gap_alone), 20)  # without streaming tokens come faster
body = {"text_input": prompt, "max_tokens": enough, "min_tokens": enough}
with ThreadPoolExecutor() as threads:
    waiting = threads.submit(web.post, "/v2/models/tensorrt_llm_bls/generate", json=body, timeout=0.5)
    leave("/generate", waiting.exception)
print(type(waiting.exception()).__name__)

# %% [markdown]
# How busy was the server, with the client there and without?

# %%
fig, axes = plt.subplots(figsize=(7.5, 2.3))
for at, (shift, label, colour) in enumerate(((-0.2, "before it left", "#C6DAE9"), (0.2, "after", "#0072B2"))):
    axes.barh(np.arange(3) + shift, [pair[at] for pair in cores.values()], 0.36, color=colour, label=label)
axes.set(yticks=range(3), yticklabels=list(cores), ylim=(2.6, -0.6), xlabel="busy cores of the server")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
on = [way for way, (_, after) in cores.items() if after > 0.3]
summary = "; ".join(f"{way}: {before:.1f}, then {after:.1f} cores" for way, (before, after) in cores.items())
show(fig, f"The server goes on for a client that left {' and '.join(on) or 'nothing'}", summary)

# %% [markdown]
# It stops where the client streamed: the server notices at the next token. An answer of `/generate` it completes, then
# finds nobody to give it to ([server#7077](https://github.com/triton-inference-server/server/issues/7077)). If clients
# may leave, let them stream.
#
# <details><summary>In a client of your own</summary>
#
# `close()` runs the `finally` of `stream`, which cancels; so does leaving a `for` loop over it. A client's `close()`
# and a plain `stop_stream()` cancel nothing: they wait for all 800 tokens. With `cancel_requests=True` the callback may
# get *Locally cancelled by application!* That is no failure. The ensemble of this Triton does not pass the cancellation
# on: the LLM behind it goes on to `max_tokens`.
#
# </details>
#
# **By request id:** send `tensorrt_llm` a second request with the same id and `stop` set. Its other inputs must be
# there, whatever their values. The stream then ends with its final flag.

# %%
story = llm_inputs(request_output_len=800, min_tokens=800)
answer = stream(client, "tensorrt_llm", story, request_id="fox-3")
received = [next(answer) for _ in range(3)]
other = grpcclient.InferenceServerClient(server.grpc_url)  # the first one has a stream already
stopped = list(stream(other, "tensorrt_llm", llm_inputs(stop=True), request_id="fox-3"))
received += answer
print(f"{len(received)} responses of 800; the stop request: {stopped}")

# %% [markdown]
# The stop request gets only its final flag, the `F`, as does a stop for an id that has ended. A stop without an id is
# an error.

# %% tags=["nbval-check-output"]
print("ended:", letters("tensorrt_llm", llm_inputs(stop=True), request_id="fox-3"))
print("no id:", letters("tensorrt_llm", llm_inputs(stop=True)))

# %% [markdown]
# ## 10 Errors you will meet
#
# The first mistake, text in numpy's own type for text, does not even reach the server. **Predict:** what datatype does
# the client take it for?

# %% tags=["nbval-check-output"]
try:
    tensor("text_input", np.array([[prompt]]), "BYTES")
except InferenceServerException as error:
    print(error)

# %% [markdown]
# The datatype is `None`: Triton has no name for numpy's text. With `dtype=object`, as in section 4, it becomes BYTES.
#
# Each line below changes one input of a good request.

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
# **Predict:** which of them does Triton refuse, and which can only the model refuse?

# %% tags=["nbval-check-output"]
for name, change in mistakes.items():
    try:
        results = list(stream(client, "tensorrt_llm_bls", inputs(**{**good, **change})))
        print(f"{name}: no error, {len(results)} responses")
    except InferenceServerException as error:
        print(f"{name}: {error.message()}")

# %% [markdown]
# Triton refuses the first four: it compares the request with `config.pbtxt`. The rest pass, and the model refuses them.
#
# **Predict:** over HTTP one of these four mistakes gives no error at all, and another one an error with status 200.
# Which?

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
# - No error: an unknown key with a text, number or truth value is taken for a parameter that nobody reads. A typo in
#   `top_k`, and you sample with other settings than you think. Over gRPC it is an error.
# - Status 200: the first response had fixed the status when the second one came.

# %% [markdown]
# ## 11 Aside: the same request from grpcurl and Postman
#
# Such tools need the schema, and Triton does not hand it out ("reflection"). Write what `tritonclient` carries of it
# into a file, a *protoset*. The request is JSON: each input has its own `contents`, with bytes in base64 and no
# four-byte prefix.

# %%
build = find_root() / "build"
build.mkdir(exist_ok=True)
both = [service_pb2.DESCRIPTOR.dependencies[0], service_pb2.DESCRIPTOR]
protoset = descriptor_pb2.FileDescriptorSet()
for part in both:
    protoset.file.add().ParseFromString(part.serialized_pb)
(build / "grpc_service.protoset").write_bytes(protoset.SerializeToString())
content = base64.b64encode(b"A fox ran.").decode()
text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "contents": {"bytes_contents": [content]}}
length = {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "contents": {"int_contents": [8]}}
(build / "request.json").write_text(json.dumps({"model_name": "tensorrt_llm_bls", "inputs": [text, length]}))

# %% [markdown]
# The tools find the method in the first file and make its message of the second. So does this cell:

# %%
pool = descriptor_pool.DescriptorPool()
for part in descriptor_pb2.FileDescriptorSet.FromString((build / "grpc_service.protoset").read_bytes()).file:
    pool.AddSerializedFile(part.SerializeToString())
method = pool.FindMethodByName("inference.GRPCInferenceService.ModelStreamInfer")
typed = json_format.Parse((build / "request.json").read_text(), service_pb2.ModelInferRequest())
(response,) = stub.ModelStreamInfer(iter([typed]), timeout=60)
print(method.input_type.full_name, "→", method.output_type.full_name)
print(response.infer_response.raw_output_contents)

# %% [markdown]
# <details><summary>The commands of grpcurl, and Postman</summary>
#
# In the course's folder, while this notebook runs, with the port of `server.grpc_url`:
#
# ```
# grpcurl -protoset build/grpc_service.protoset -plaintext -d @ 127.0.0.1:PORT \
#     inference.GRPCInferenceService/ModelStreamInfer < build/request.json
# ```
#
# [grpcurl](https://github.com/fullstorydev/grpcurl) shows the text as base64, with its four bytes in front.
#
# Postman wants the source of the schema: in a gRPC request open *Service definition* and import `grpc_service.proto`
# and `model_config.proto`, both from
# [triton-inference-server/common](https://github.com/triton-inference-server/common/tree/r24.10/protobuf). Then paste
# the JSON as the message.
#
# </details>

# %% [markdown]
# ## Recap
#
# The errors and their cures, on one page: the [cheat sheet](../docs/cheatsheet.md).
#
# - `/infer` and `ModelInfer` refuse decoupled models; `/generate_stream` and `ModelStreamInfer` carry any number of
#   responses.
# - A message is tags, lengths and values; raw strings have a prefix of four bytes.
# - An answer ends with `triton_final_response`, on the last data or alone. Ask for the empty final response.
# - Streams share every step of the server, so many at once cost each of them little.
# - An empty text may be half a character. Decode with memory.
# - Leaving a stream stops the work; leaving `/generate` does not.
# - gRPC refuses unknown inputs; `/generate` ignores most.

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
# The loop says what happened: a text that was cut off must never look complete.
#
# The last cell closes the clients and records this page's numbers.

# %%
for each in (client, other, web, channel):
    each.close()
gaps = {"gap_alone_ms": round(gap_alone * 1000, 1), "gap_together_ms": round(gap_together * 1000, 1)}
notebook.record(streams=streams, first_token_ms=round(alone[0] * 1000, 1), **gaps)
