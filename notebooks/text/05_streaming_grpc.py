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
# read: 13 min, do: 32 min
#
# Previous: [04 · Serving](04_serving.ipynb) · Next: [06 · Temperature](06_temperature.ipynb)

# %%
import asyncio
import contextlib
import json
import queue
import struct
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import numpy as np
import psutil
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
from tokenizers import Tokenizer
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from plots import leaving
from servinglab import notebook
from servinglab.checks import check
from servinglab.client import gather, inputs, stream
from servinglab.explore import explore
from servinglab.figures import streaming
from servinglab.figures.style import show
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
# (calls with binary messages), and [adds two easier HTTP
# paths](https://github.com/triton-inference-server/server/blob/r24.10/docs/protocol/extension_generate.md):
#
# ![Two HTTP paths give one response; generate_stream and gRPC give many](pictures/05_ways.svg)
#
# Begin with (a) and the smallest model: `preprocessing` turns text into the ids of its **tokens**, pieces of text. A
# tensor has a name, a datatype and a shape: `[1, 1]` is one row with one string in it.

# %%
web = httpx.Client(base_url=server.http_url, timeout=120, trust_env=False)
query = {"name": "QUERY", "datatype": "BYTES", "shape": [1, 1], "data": [prompt]}
length = {"name": "REQUEST_OUTPUT_LEN", "datatype": "INT32", "shape": [1, 1], "data": [16]}
answer = web.post("/v2/models/preprocessing/infer", json={"inputs": [query, length]}).json()
token_ids = answer["outputs"][0]
token_ids

# %% [markdown]
# One request, one response: that is all `/infer` can do. **Predict:** you ask `tensorrt_llm_bls`, which may answer with
# many responses, the same way. Do you get one long answer, only the first token, or an error?

# %% tags=["nbval-check-output"]
text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [prompt]}
length = {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [16]}
answer = web.post("/v2/models/tensorrt_llm_bls/infer", json={"inputs": [text, length]})
print(answer.status_code, answer.json()["error"])

# %% [markdown]
# An error: the model's configuration says `decoupled`, so it *may* answer any number of times.
#
# Way (b), `/generate`, takes plain values; Triton makes the tensors. `exclude_input_in_output` leaves out the prompt.

# %%
few = min(max_tokens, 16)
request = {"text_input": prompt, "max_tokens": few, "exclude_input_in_output": True}
generated = web.post("/v2/models/tensorrt_llm_bls/generate", json=request).json()
generated

# %% [markdown]
# Way (c) takes the same object plus `"stream": true`. The body has a line `data: {…}` and an empty line for each
# response. **Predict:** the answers of b and c come from two runs of the model. Are they the same text?

# %%
answer = web.post("/v2/models/tensorrt_llm_bls/generate_stream", json={**request, "stream": True})
events = answer.text.strip().split("\n\n")
print(answer.headers["content-type"], "·", len(events), "events, the first two and the last:")
print(*events[:2], events[-1], sep="\n")
whole = generated["text_output"]
joined = "".join(json.loads(event.removeprefix("data: "))["text_output"] for event in events)
print("the same text:", joined == whole)

# %% [markdown]
# They are: without `top_k` or `top_p` the model takes the most likely token each time. Note what is *not* there: no
# `[DONE]`, no flag. The answer ends with the HTTP response.
#
# ## 3 The message, byte by byte
#
# A gRPC client sends a **protobuf** message. Fill one by hand: each input is declared by name, datatype and shape; its
# bytes go into `raw_input_contents`. Text gets a prefix of four bytes, its length.

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
# **Predict:** three inputs. Does the content of each stand right behind its declaration?

# %%
sent = message.SerializeToString()
fields = streaming.take_apart(message)
summary = f"{len(fields)} rows, {len(sent)} bytes: model_name, id, three inputs, then three raw contents"
show(streaming.wire_bytes(fields), "The contents of a request's inputs come last", summary, drawing=True)

# %% [markdown]
# No, all contents come last. Names of fields never travel, only their numbers (in brackets): without the schema, which
# `tritonclient` has, nobody can read a message.
#
# - A field starts with a **tag** byte: the lower three bits are the wire type, those above them the field number. Type
#   2 means: a length follows, then that many bytes.
# - A byte of a length holds seven bits; the eighth says that another byte follows. That is a **varint**.
#
# The prompt has 143 bytes, 147 with its prefix. **Predict:** seven bytes stand before its text, `3a 93 01 8f 00 00 00`.
# Which of them are protobuf's length, and which Triton's prefix?

# %% tags=["nbval-check-output"]
at = sent.index(b"A fox") - 7
tag, low, high = sent[at : at + 3]
print(f"tag {tag:08b}: field {tag >> 3}, wire type {tag & 7}")
print("varint:", (low & 0b0111_1111) + (high << 7))
print("prefix:", struct.unpack("<I", sent[at + 3 : at + 7])[0])

# %% [markdown]
# `93 01` is protobuf's length, 147; `8f 00 00 00` is Triton's prefix, 143, the lowest byte first. `max_tokens` is plain
# memory, too: `03 00 00 00`. Does the server like the message? Call the bare gRPC method:

# %%
assert service_pb2.ModelInferRequest.FromString(sent) == message
channel = grpc.insecure_channel(server.grpc_url)
stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
responses = list(stub.ModelStreamInfer(iter([message]), timeout=60))
print(f"{len(responses)} responses, the last one:\n{responses[-1].infer_response}")

# %% [markdown]
# It does: three tokens, three responses. Each has your id, tensors, and a parameter that section 4 is about.
#
# **Exercise 05.1** (●●○, 8 minutes) A client wants one output only. Field 6 of a request is `outputs`: a message, whose
# field 1 is the output's name. Write the bytes that ask for `text_output`. Fields may come in any order: the check puts
# yours behind a request and sends it to a Triton whose model has two outputs.
#
# <details><summary>Hint 1</summary>
#
# In the picture the tag `2a` stands for field 5. Write it in bits: what changes for field 6?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# One field stands inside another. What does each of the two lengths count: the text, its tag, itself?
#
# </details>

# %% tags=["exercise:05.1"]
answer_1 = None  # bytes, for example bytes.fromhex("2a 12 …")

# %% tags=["check:05.1", "nbval-check-output"]
check("05.1", answer_1)

# %% [markdown]
# <details><summary>Solution 05.1</summary>
#
# ```python
# name = b"text_output"
# inner = bytes([1 << 3 | 2, len(name)]) + name
# answer_1 = bytes([6 << 3 | 2, len(inner)]) + inner
# ```
#
# </details>

# %% [markdown]
# ## 4 A streaming client by hand
#
# `tritonclient` sends the same message for you. `InferInput` wants name, shape and datatype; an array of texts must be
# of type `object`. The server knows the datatypes: ask it for the model's configuration.

# %%
client = grpcclient.InferenceServerClient(server.grpc_url)


def tensor(name, array, datatype):
    return grpcclient.InferInput(name, array.shape, datatype).set_data_from_numpy(array)


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
# The callback's arguments must be called `result` and `error`. `stop_stream()` waits until every answer is complete, so
# never call it in the callback: a thread cannot wait for itself.

# %%
arrived = queue.SimpleQueue()
client.start_stream(lambda result, error: arrived.put((result, error)))
client.async_stream_infer("tensorrt_llm_bls", request, request_id="fox-2")
client.stop_stream()
while not arrived.empty():
    result, _ = arrived.get()
    print(result.as_numpy("text_output"), result.get_response().id)


# %% [markdown]
# A client has one stream: with one open, a second `start_stream` is an error, and a script stays alive after its last
# line. So put `client.stop_stream(cancel_requests=True)` into a `finally`.

# %% [markdown]
# ### The final flag
#
# How do you know that an answer is complete? Every response carries a flag,
# `result.get_response().parameters["triton_final_response"].bool_param`. This function writes a letter for each
# response: `d` for data, `D` for data with the flag set, `F` for the flag alone.

# %%
def letters(model, request, **options):
    client.stop_stream()  # one that a stopped cell left open
    arrived, found = queue.SimpleQueue(), []
    client.start_stream(lambda result, error: arrived.put(error or result.get_response()))
    client.async_stream_infer(model, request, **options)
    client.stop_stream()
    while not arrived.empty():
        response = arrived.get()
        final = response.parameters["triton_final_response"].bool_param
        found.append({(1, 0): "d", (1, 1): "D", (0, 1): "F"}[bool(response.outputs), final])
    return " ".join(found)


# %% [markdown]
# **Predict:** five tokens from each of three models. Is the flag on the last token or behind it? What changes if the
# client does not ask for *empty final responses*? (`tensorrt_llm` itself takes token ids.)

# %%
ids = np.array(token_ids["data"], np.int32)[None]
length = np.array([[ids.shape[1]]], np.int32)
asked = {"tensorrt_llm": inputs(input_ids=ids, input_lengths=length, request_output_len=5, streaming=True)}
asked |= {"ensemble": request, "tensorrt_llm_bls": request}
flags = {model: letters(model, given, enable_empty_final_response=True) for model, given in asked.items()}
behind = " and ".join(model for model, sent in flags.items() if "F" in sent) or "no model"
flags["tensorrt_llm_bls,\nnot asked"] = letters("tensorrt_llm_bls", request)
summary = "; ".join(f"{model}: {sent}".replace("\n", " ") for model, sent in flags.items())
show(streaming.sequence(flags), f"The flag comes alone from {behind}, and only when asked for", summary, drawing=True)


# %% [markdown]
# `tensorrt_llm` and the ensemble put the flag on the last token. The BLS model learns only afterwards that it has ended
# and sends the flag alone: a client that did not ask **never hears of the end**. Always ask.
#
# **Exercise 05.2** (●●○, 12 minutes) Write the loop of a client: open a stream, send `request` to `model`, take
# responses until the answer is complete, close the stream, return the whole text. Raise an error that comes. The check
# lets your loop read from a Triton whose model ends its answers in both ways.
#
# <details><summary>Hint 1</summary>
#
# A model may end before `max_tokens`, and a text may be empty. What says "the end", whatever the model?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Every response has the parameter: what does it hold? Can a response with the flag have data? Where must `stop_stream`
# stand, so that it runs after an error, too?
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
# This loop stamps each result with the seconds since sending. `finally` also runs when the reader leaves early; then
# `cancel_requests=True` tells the server to stop.

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
# It does. Misspell the flag's name, and you get False, not an error: reading a missing key of protobuf's map creates
# it. A loop with this slip gets every token and then waits, for ever or until `stream_timeout`.
#
# `servinglab.client` has both functions, as `inputs` and `stream`.
#
# <details><summary>Several prompts in one request</summary>
#
# The output `batch_index` says whose a response is. The final flag comes once, when the last row has ended.
#
# </details>

# %% [markdown]
# ## 5 Decoupled: who may answer how often
#
# Three switches decide whether you see a stream:
#
# 1. **decoupled**, in the model's configuration: it *may* send any number of responses;
# 2. **stream**, an input of the request: *this* request wants many;
# 3. the **transport**: can it carry many?
#
# The ensemble's file does not say `decoupled` (notebook 03), yet section 4 saw it stream: it is, as one of its steps
# is. To compare, start a second server, whose models are not.

# %%
with contextlib.redirect_stdout(None):
    blocking = serve(precision=precision, decoupled=False)


# %% [markdown]
# Two ways over HTTP and two over gRPC; each function counts the responses with data:

# %%
def post(server, verb, values):
    url = f"{server.http_url}/v2/models/tensorrt_llm_bls{verb}"
    answer = httpx.post(url, json=values, timeout=60, trust_env=False)
    if '"error"' in answer.text:
        raise ValueError(json.loads(answer.text.removeprefix("data: "))["error"])
    return answer.text.strip().count("\n\n") + 1


def call(server, verb, values):
    with grpcclient.InferenceServerClient(server.grpc_url) as once:
        if verb == "ModelStreamInfer":
            return len(list(stream(once, "tensorrt_llm_bls", inputs(**values))))
        return len([once.infer("tensorrt_llm_bls", inputs(**values))])


ways = {"ModelInfer": call, "/generate": post, "/generate_stream": post, "ModelStreamInfer": call}

# %% [markdown]
# **Predict:** four ways, decoupled or not, stream or not: 16 requests. How many of them fail?

# %%
two = {"text_input": prompt, "max_tokens": 2, "min_tokens": 2}
table, said = {}, {}
for decoupled, each in (("not decoupled", blocking), ("decoupled", server)):
    for wanted in (False, True):
        row = f"{decoupled}\nstream {wanted}"
        for way, send in ways.items():
            try:
                table[row, way] = f"{send(each, way, {**two, 'stream': wanted})} × data"
            except (ValueError, InferenceServerException) as error:
                sentence = str(error).split("] ")[-1].split(". ")[0].rstrip(".")
                table[row, way] = "error " + said.setdefault(sentence, str(len(said) + 1))

# %% [markdown]
# A cell is the number of responses with data, for two tokens, or the number of an error message:

# %% tags=["nbval-check-output"]
rows = list(dict.fromkeys(row for row, _ in table))
failed = sum(cell.startswith("error") for cell in table.values())
summary = "; ".join(f"{row}: {', '.join(table[row, way] for way in ways)}".replace("\n", ", ") for row in rows)
show(streaming.matrix(rows, list(ways), table), f"{failed} of the {len(table)} requests fail", summary, drawing=True)
for sentence, number in said.items():
    print(f"{number}: {sentence}")
blocking.stop()


# %% [markdown]
# Seven fail. Four ask a model that is not decoupled for a stream; two use `ModelInfer`, which a decoupled model closes
# even to a request for one response (as `/infer` in section 2); one wants several from `/generate`.
# **`ModelStreamInfer` works wherever anything works.**

# %% [markdown]
# ## 6 The same with asyncio
#
# `tritonclient.grpc.aio` takes an iterator of requests and gives an iterator of answers. Keep your side open until the
# answer is complete: ending it earlier can crash this Triton. This client cannot ask for empty final responses, so ask
# the ensemble, which puts the flag on the last token.

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
# In a script `asyncio.run(…)` makes the event loop. **Predict:** and in a notebook?

# %% tags=["nbval-check-output"]
coroutine = tell([])
try:
    asyncio.run(coroutine)
except RuntimeError as error:
    print(error)
finally:
    coroutine.close()

# %% [markdown]
# It fails, since Jupyter runs a loop already: `await` in a notebook, `asyncio.run` in a script.
#
# ## 7 When do the tokens arrive?
#
# Two numbers describe a stream: the **time to first token** (TTFT) and the **gaps** after it. Measure them for one
# request alone, then for several at once, over one stream: `gather` gives each an id and sorts the responses by it.
#
# **Predict:** how much longer does each of the `streams` requests wait for its next token than the one alone? As many
# times as there are requests? A little? Not at all?

# %%
tokens = max(max_tokens, 8)
options = {"max_tokens": tokens, "min_tokens": tokens, "top_k": 50, "stream": True}  # all equally long


def arrivals(results):
    return [result.seconds for result in results]


alone = arrivals(stream(client, "tensorrt_llm_bls", inputs(text_input=prompt, seed=seed, **options)))
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
# Each waits a little longer; the title has the factor. A mark is a token, a dot one wait. At every step the server
# computes a token for *all* running requests, and reads the weights, most of the work, once for all. That is
# **in-flight batching** (notebook 04). First tokens differ more: prompts are read one after another.
#
# **Predict:** eight streams in the place of one: how many times the tokens per second? (In JupyterLab a slider sets how
# many requests go out.)

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
# Less than eight times: a step for eight takes longer, and eight prompts are read first.
#
# ## 8 Tokens are not characters
#
# A character may need several tokens. Take an emoji apart with the tokenizer of `preprocessing`, and decode its tokens
# one by one, then together.

# %% tags=["nbval-check-output"]
parameters = client.get_model_config("preprocessing").config.parameters
tokenizer = Tokenizer.from_file(parameters["tokenizer_dir"].string_value + "/tokenizer.json")
pieces = tokenizer.encode("🦊", add_special_tokens=False).ids
print(pieces, [tokenizer.decode([piece]) for piece in pieces], tokenizer.decode(pieces))

# %% [markdown]
# `�` stands for bytes that are no whole character. The ensemble decodes each response on its own; the BLS model, a
# program, could do better. **Predict:** both continue a row of foxes, with 8 tokens. How many responses does each send,
# and what is in them?

# %%
foxes = {"text_input": "🦊🦊🦊🦊", "max_tokens": 8, "stream": True}
for model in ("ensemble", "tensorrt_llm_bls"):
    chunks = [text_of(result) for result in stream(client, model, inputs(**foxes))]
    print(f"{model:16} {len(chunks)} responses: {chunks}")

# %% [markdown]
# The ensemble sends one for each token, and the text is lost: joining `�` brings no bytes back. Our BLS model waits:
#
# ![The BLS model holds bytes until they make a character, and sends it with the third token](pictures/05_bytes.svg)
#
# What is incomplete at the end comes as one more response, a `�`. So an empty text is not the end, and **responses are
# not tokens**.
#
# NVIDIA's own BLS model keeps no tokens and sends `�` like the ensemble. Its cure is the parameter `accumulate_tokens`
# (notebook 03): each response holds the whole text so far, and the client *replaces* what it shows. So the bytes sent
# grow with the square of the length.
#
# <details><summary>Lost spaces: Llama 2, and a folder with only a tokenizer.model</summary>
#
# This tokenizer keeps the space inside the token (`' fox'`). Llama 2's, a
# [SentencePiece](https://github.com/google/sentencepiece) one, writes a space as `▁`, also before the first word, and
# takes one off the front of whatever it decodes. So decoded alone each token loses its space: `Afoxran`.
#
# Templates up to TensorRT-LLM 0.8 had a parameter `tokenizer_type` (`auto`, `llama`, `t5`, `sp`); since 0.9 NVIDIA's
# models load the folder with `AutoTokenizer`. Ours read `tokenizer.json`: to make it, load the folder once with
# `AutoTokenizer` and save it with `save_pretrained`.
#
# </details>

# %% [markdown]
# ## 9 Cancel, and prove it
#
# A reader closes the page after five tokens. Does the server go on computing for nobody? Measure how many cores it
# keeps busy, before and after a client leaves:

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
# One client closes its gRPC stream, one drops the connection of `/generate_stream`, one loses patience with
# `/generate`, which writes only once, at the end. **Predict:** in which of the three cases does the server stop?

# %%
long = {"text_input": prompt, "max_tokens": 800, "min_tokens": 800, "stream": True}
answer = stream(client, "tensorrt_llm_bls", inputs(**long))
first_five = [text_of(next(answer)) for _ in range(5)]
leave("gRPC stream", answer.close)
with web.stream("POST", "/v2/models/tensorrt_llm_bls/generate_stream", json=long) as response:
    lines = response.iter_lines()
    first_lines = [next(lines) for _ in range(10)]  # behind each event an empty line
    leave("/generate_stream", response.close)

# %% [markdown]
# The third asks for over a second of tokens, and gives up after half a second:

# %%
enough = max(round(2.5 / gap_alone), 20)  # without streaming tokens come faster
body = {"text_input": prompt, "max_tokens": enough, "min_tokens": enough}
with ThreadPoolExecutor() as threads:
    waiting = threads.submit(web.post, "/v2/models/tensorrt_llm_bls/generate", json=body, timeout=0.5)
    leave("/generate", waiting.exception)
print(type(waiting.exception()).__name__)

# %% [markdown]
# Before and after, in one picture:

# %%
on = " and ".join(way for way, (_, after) in cores.items() if after > 0.3) or "nothing"
summary = "; ".join(f"{way}: {before:.1f}, then {after:.1f} cores" for way, (before, after) in cores.items())
show(leaving.cores(cores, lane=lane), f"The server goes on for a client that left {on}", summary)


# %% [markdown]
# The server stops where the client streamed: it notices at the next token. It completes an answer of `/generate` for
# nobody ([server#7077](https://github.com/triton-inference-server/server/issues/7077)). If clients may leave, let them
# stream.
#
# <details><summary>With tritonclient alone, and by request id</summary>
#
# A client's `close()` and a plain `stop_stream()` cancel nothing: they wait for all 800 tokens. With
# `cancel_requests=True` the callback may get *Locally cancelled by application!* That is no failure. The ensemble of
# this Triton passes no cancellation on: the LLM behind it goes on to `max_tokens`.
#
# `tensorrt_llm` also ends an answer when a second request has its id and `stop` set (with the needed inputs, of any
# value). Both end with a final flag; a stop for an id that has ended does no harm.
#
# </details>
#
# **Exercise 05.3** (●●○, 6 minutes) A reader wants the first `n` responses and leaves. Write the function: it returns
# their text, and the server stops. The check calls it twice, on a Triton whose model counts what it sends.
#
# <details><summary>Hint 1</summary>
#
# You stop reading. Who tells the server? What would a plain `stop_stream()` wait for?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# `stream` gives one result at a time. How do you take `n` of them, and what made the first client above leave?
#
# </details>

# %% tags=["exercise:05.3"]
def first_text(client, model, request, n):
    ...  # your code


# %% tags=["check:05.3", "nbval-check-output"]
check("05.3", first_text)

# %% [markdown]
# <details><summary>Solution 05.3</summary>
#
# ```python
# def first_text(client, model, request, n):
#     answer = stream(client, model, request)
#     pieces = [text_of(next(answer)) for _ in range(n)]
#     answer.close()
#     return "".join(pieces)
# ```
#
# </details>

# %% [markdown]
# ## 10 Errors you will meet
#
# Triton compares a request with `config.pbtxt`: names, datatypes, shapes. Only the model can judge values. Each line
# spoils a good request, which goes out over gRPC and to `/generate`:

# %%
mistakes = {
    "unknown input": {"runtime_top_k": 5},
    "wrong datatype": {"max_tokens": 3.5},
    "empty prompt": {"text_input": ""},
    "prompt too long": {"text_input": "fox " * 3000},
    "top_p in percent": {"top_p": 100.0},
    "temperature below 0": {"temperature": -1.0},
    "stream": {"stream": True},
}


# %% [markdown]
# Each road returns what came back:

# %%
def by_grpc(values):
    kinds = {str: np.object_, int: np.int32, float: np.float32, bool: np.bool_}
    arrays = {name: np.array([[value]], kinds[type(value)]) for name, value in values.items()}
    try:
        return f"{len(list(stream(client, 'tensorrt_llm_bls', inputs(**arrays))))} responses"
    except InferenceServerException as error:
        return f"error: {error.message().split('] ')[-1]}"


def by_generate(values):
    answer = web.post("/v2/models/tensorrt_llm_bls/generate", json=values)
    said = answer.json().get("error")
    return f"error {answer.status_code}: {said}" if said else f"{answer.status_code}, no error"


# %% [markdown]
# **Predict:** which mistake gives no error at all, and where? Which gives one with status 200?

# %%
good, roads = {"text_input": prompt, "max_tokens": 3}, {"gRPC": by_grpc, "/generate": by_generate}
said = {(name, road): send({**good, **mistakes[name]}) for name in mistakes for road, send in roads.items()}
summary = "; ".join(f"{name}, {road}: {words}" for (name, road), words in said.items())
short = {at: textwrap.fill(textwrap.shorten(words, 72, placeholder=" …"), 38) for at, words in said.items()}
passed = [name for name in mistakes if said[name, "/generate"].endswith("no error")]
title = f"/generate lets a mistake pass: {', '.join(passed)}"
show(streaming.matrix(list(mistakes), list(roads), short), title, summary, drawing=True)

# %% [markdown]
# - No error: for `/generate` an unknown key with a plain value is a parameter that nobody reads. A typo in `top_k`, and
#   you sample with other settings than you think.
# - Status 200: `stream` on `/generate`. The first response had fixed the status when the second one came.
#
# <details><summary>The same request from grpcurl and Postman</summary>
#
# They need the schema, which Triton does not hand out. Write what `tritonclient` carries of it to a file, a *protoset*:
#
# ```python
# from google.protobuf import descriptor_pb2
# protoset = descriptor_pb2.FileDescriptorSet()
# for part in (service_pb2.DESCRIPTOR.dependencies[0], service_pb2.DESCRIPTOR):
#     protoset.file.add().ParseFromString(part.serialized_pb)
# open("triton.protoset", "wb").write(protoset.SerializeToString())
# ```
#
# `grpcurl -protoset triton.protoset -plaintext -d @ 127.0.0.1:PORT inference.GRPCInferenceService/ModelStreamInfer`
# then reads a request as JSON. Each input has its own `contents`, such as `{"int_contents": [8]}` or
# `{"bytes_contents": ["QSBmb3g="]}`: base64, without the prefix. Postman wants `grpc_service.proto` and
# `model_config.proto` [from Triton](https://github.com/triton-inference-server/common/tree/r24.10/protobuf).
#
# </details>

# %% [markdown]
# ## Recap
#
# The errors and their cures, on one page: the [cheat sheet](../docs/cheatsheet.md).
#
# - `ModelStreamInfer` and `/generate_stream` carry any number of responses, `ModelInfer` and `/infer` one.
# - A message is tags, lengths and values; raw strings have a prefix of four bytes.
# - An answer ends with `triton_final_response`, on the last data or alone. Ask for the empty final response.
# - Many streams at once cost each of them little.
# - An empty text may be half a character: decode with memory.
# - Leaving a stream stops the work; leaving `/generate` does not.

# %% [markdown]
# ## Break it
#
# Stop the server in the middle of an answer. **Predict:** does the loop hang, just end, or say what happened?

# %% tags=["varies"]
answer = stream(client, "tensorrt_llm_bls", inputs(**long))
try:
    next(answer)
    server.stop()
    print(sum(1 for _ in answer), "more responses")
except InferenceServerException as error:
    print(error)

# %% [markdown]
# The loop says what happened: a text that was cut off must never look complete. Close the clients.

# %%
for each in (client, web, channel):
    each.close()
gaps = {"gap_alone_ms": round(gap_alone * 1000, 1), "gap_together_ms": round(gap_together * 1000, 1)}
notebook.record(streams=streams, first_token_ms=round(alone[0] * 1000, 1), **gaps)
