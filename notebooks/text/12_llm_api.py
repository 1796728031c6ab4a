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
# # 12 · After engines: LLM API, trtllm-serve, llmapi
#
# You move a request from the engine to the APIs that replace it, and measure what changes without an error.
#
# After this notebook you can
#
# - run a checkpoint with the LLM API, without an engine
# - read the bytes of a stream, and say how each protocol ends it
# - say which server tells a client about a mistake, and which stays silent
# - translate a request so that it keeps its meaning: limit, prompt and sampling
# - let an old client talk to a new model, and leave the client as it is
#
# **Time:** 45 minutes · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# read: 10 min, do: 35 min
#
# Previous: [11 · Benchmarks](11_benchmarking.ipynb) · Next: [13 · Lab](../labs/vlm_clip/13_encoders_and_engines.ipynb)

# %%
import json
import queue

import httpx
import numpy as np
import openai
import tritonclient.grpc as grpcclient
from transformers import AutoTokenizer
from tritonclient.utils import InferenceServerException

import standin
from engines import llm_api
from plots import protocols
from servinglab import client as triton
from servinglab import notebook
from servinglab.checks import check
from servinglab.figures.streaming import matrix
from servinglab.figures.style import show
from servinglab.openai_frontend import OpenAIFrontend
from servinglab.serving import serve

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
precision: str = "fp32"  # weights of the default model: "fp32" or "int4"
question: str = "What is a model server? One sentence."  # what you ask the model
max_tokens: int = 24  # length of each answer, in tokens
temperature: float = 0.8  # of the requests that try to sample
seed: int = 1  # seed of the first sampled answer

# %%
lane = notebook.begin("12", lane, seed=seed, weights=precision)

# %% [markdown]
# ## 1 What replaces the engine?
#
# So far: convert a checkpoint, build an engine, serve it with five Triton models. TensorRT-LLM's second way is the
# **LLM API**: a Python class, `LLM`, runs the checkpoint itself, with PyTorch.
#
# ![With an engine: convert, build, fill, serve. With the LLM API: one class](pictures/12_apis.svg)
#
# The first way ends: versions after 1.3.0rc20 [have no
# engines](https://nvidia.github.io/TensorRT-LLM/legacy/tensorrt-backend-removal.html). So requests must move. The new
# side needs the package `tensorrt_llm` and an NVIDIA GPU. Are they here?

# %%
hub = "HuggingFaceTB/SmolLM2-135M-Instruct"  # the same model, where the LLM API fetches it
print("LLM API: runs on", standin.RUNS_ON)

# %% [markdown]
# If not, a **stand-in** takes the package's place. We wrote it: it has NVIDIA's names and defaults, and our executor
# computes its answers. What it shows below is the protocol: names, defaults, events, what is refused. The words of its
# errors and its speed are not NVIDIA's.
#
# Start both sides. `trtllm-serve` puts `LLM` behind OpenAI's paths, and loads while you read on. The question goes into
# the model's chat template:

# %%
openai_server = standin.TrtllmServe(hub)
server = serve(precision=precision)
client = grpcclient.InferenceServerClient(server.grpc_url)
settings = client.get_model_config("preprocessing", as_json=True)["config"]["parameters"]
tokenizer_dir = settings["tokenizer_dir"]["string_value"]
message = {"role": "user", "content": question}
tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
prompt = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)

# %% [markdown]
# Here is a whole program of the LLM API. It asks the bare question and the one in the template:

# %%
program = f"""import json
from tensorrt_llm import LLM, SamplingParams

def main():
    llm = LLM(model={hub!r})
    for request in llm.generate({[question, prompt]!r}, SamplingParams()):
        answer = request.outputs[0]
        print(json.dumps([answer.text, len(answer.token_ids), answer.finish_reason]))

if __name__ == "__main__":  # the workers are new processes that import this file
    main()
"""

# %% [markdown]
# It says nothing about length, sampling or chat. **Predict:** does an answer end after 16 tokens, after 32, or when the
# model is done? Which text is answered: the bare question, the one in the template, both?

# %%
bare, templated = map(json.loads, standin.run(program)[-2:])
back = {f"{name}: {count} tokens, finish_reason {why!r}": [text]
        for name, (text, count, why) in {"bare": bare, "in the template": templated}.items()}  # fmt: skip
title = f"No limit was set, and the answers end after {bare[1]} and {templated[1]} tokens"
show(protocols.answers(back), title, "; ".join(f"{name}: {texts[0]!r}" for name, texts in back.items()))

# %% [markdown]
# `SamplingParams()` fills in `max_tokens=32`: the second answer stops in the middle of a sentence, and only
# `finish_reason` says why. The bare question is not answered but continued: `generate`, like an engine, takes text as
# it is. Without a word about sampling it takes the likeliest token each time.
#
# <details><summary>One road still ends in an engine: Edge-LLM, for small machines</summary>
#
# `make edge` brings the exporter of [TensorRT Edge-LLM](https://github.com/NVIDIA/TensorRT-Edge-LLM):
# `.edge/bin/tensorrt-edgellm-export FOLDER onnx` makes an ONNX graph of a checkpoint, on any CPU. Its builder,
# `llm_build`, makes an engine of the graph on the device; that we did not run.
#
# </details>

# %% [markdown]
# ## 2 What does a token cost on the wire?
#
# Three doors lead to the model now: gRPC and `/generate_stream` at Triton (notebook 05), `/v1/completions` at
# `trtllm-serve`. Ask each for the same six tokens, as a stream, and keep the size and the text of every event.
# gRPC first:

# %%
six = {"text_input": prompt, "max_tokens": 6, "exclude_input_in_output": True, "stream": True}
arrived, streams = queue.SimpleQueue(), {"gRPC": []}
client.start_stream(lambda result, error: arrived.put(error or result))
client.async_stream_infer("tensorrt_llm_bls", triton.inputs(**six), enable_empty_final_response=True)
client.stop_stream()
while not arrived.empty():
    text = (result := arrived.get()).as_numpy("text_output")
    streams["gRPC"].append((result.get_response().ByteSize(), "" if text is None else text[0].decode()))

# %% [markdown]
# Then the two HTTP doors, whose events are lines of JSON:

# %%
web = httpx.Client(timeout=120, trust_env=False)


def events(url, body):
    with web.stream("POST", url, json=body) as answer:
        return [line for line in answer.iter_lines() if line]


def text_of(event):
    found = {} if "[DONE]" in event else json.loads(event.removeprefix("data: "))
    return found.get("text_output") or found.get("choices", [{"text": ""}])[0]["text"]


# %% [markdown]
# `temperature` 0 makes OpenAI's path greedy, too. **Predict:** which stream has the most bytes, the binary one,
# Triton's JSON or OpenAI's JSON? For one byte of text, about how many travel: 2, 10 or 50?

# %%
greedy = {"model": hub, "prompt": prompt, "max_tokens": 6, "temperature": 0, "stream": True}
lines = {"/generate_stream": events(f"{server.http_url}/v2/models/tensorrt_llm_bls/generate_stream", six),
         "/v1/completions": events(f"{openai_server.url}/v1/completions", greedy)}  # fmt: skip
streams |= {door: [(len(f"{each}\n\n".encode()), text_of(each)) for each in found] for door, found in lines.items()}
sizes = {door: sum(size for size, _ in found) for door, found in streams.items()}
largest = max(sizes, key=sizes.get)
title = f"{largest} sends {sizes[largest] / min(sizes.values()):.1f} times the bytes of the smallest stream"
words = "; ".join(f"{door}: {size} bytes in {len(streams[door])} events" for door, size in sizes.items())
show(protocols.wire(streams), title, words)
print(lines["/v1/completions"][0], lines["/v1/completions"][-1], sep="\n")

# %% [markdown]
# OpenAI's JSON needs the most, about 60 bytes for each byte of text, the others about 20: each of its events repeats
# the id, the time, the model and the kind of object (NVIDIA's release sends more fields still). gRPC is no smaller than
# Triton's JSON here, because its messages also name the model and the tensor.
#
# The ends differ, too: a message without text, whose flag says so (gRPC); nothing, the HTTP response just ends
# (`/generate_stream`); a `finish_reason` in the last text's event, then `[DONE]` (`/v1/completions`). A client that
# waits for the wrong one waits for ever.

# %% [markdown]
# ## 3 Who tells you about a mistake?
#
# Send four requests with a mistake through each door. `openai`'s client raises an error for a bad status,
# `tritonclient` one for what gRPC reports:

# %%
http = openai.DefaultHttpxClient(trust_env=False)
application = openai.OpenAI(base_url=f"{openai_server.url}/v1", api_key="any", max_retries=0, http_client=http)


# %%
def ask(request, model="tensorrt_llm_bls"):
    results = triton.stream(client, model, triton.inputs(**request))
    return "".join(result.as_numpy("text_output")[0].decode() for result in results)


def by_grpc(model="tensorrt_llm_bls", **request):
    try:
        return "answers", ask(request, model)
    except InferenceServerException as error:
        return "error", error.message()


# %% [markdown]
# The same over HTTP, at Triton and at `trtllm-serve`:

# %%
def by_generate(model="tensorrt_llm_bls", **request):
    answer = web.post(f"{server.http_url}/v2/models/{model}/generate", json=request)
    return f"error {answer.status_code}" if answer.is_error else "answers", answer.text


def by_openai(text_input, model=hub, **request):
    try:
        answer = application.completions.create(model=model, prompt=text_input, extra_body=request)
        return "answers", answer.choices[0].text
    except openai.APIStatusError as error:
        return f"error {error.status_code}", error.message


# %% [markdown]
# A misspelt name, an impossible value, no limit, a model that does not exist. **Predict:** which door takes
# `temprature` without a word: gRPC, `/generate`, `/v1/completions`, none?

# %%
endless = {"text_input": prompt, "temperature": 0.0}  # greedy on both servers
right = endless | {"max_tokens": 6}
mistakes = {"temprature: misspelt": right | {"temprature": 0.8}, "temperature: -1": right | {"temperature": -1.0},
            "max_tokens: missing": endless, "gpt: no such model": right | {"model": "gpt"}}  # fmt: skip
doors, cells = {"gRPC": by_grpc, "/generate": by_generate, "/v1/completions": by_openai}, {}
for mistake, request in mistakes.items():
    for door, send in doors.items():
        status, said = send(**request)
        named = status != "answers" and mistake.partition(":")[0] in said
        cells[mistake, door] = status + ", names it" * named
silent = sum(said == "answers" for said in cells.values())
title = f"{silent} of {len(cells)} mistakes bring an answer instead of an error"
words = "; ".join(f"{mistake} at {door}: {said}" for (mistake, door), said in cells.items())
show(matrix(list(mistakes), list(doors), cells), title, words)

# %% [markdown]
# Triton's `/generate` takes the misspelt name, drops it, and answers with status 200. gRPC compares names with the
# model's configuration, `trtllm-serve` with its schema; both refuse it and say which. `trtllm-serve` is the lax one
# elsewhere: without `max_tokens` it goes on until the model is done or the sequence is full, and it serves its one
# model under any name. (Other front ends check the name.)

# %% [markdown]
# ## 4 Which settings change silently?
#
# `temperature` and `top_p` have the same names everywhere. Do they do the same? Four requests ask for one token after a
# sentence's beginning, with eight seeds, at `trtllm-serve` and at the engine. *Greedy* brings the likeliest word every
# time, *sampling* draws one (notebooks 06, 07).

# %%
start, seeds, drawn = "On Sunday we went to the", range(seed, seed + 8), {}
plain = {"text_input": start, "exclude_input_in_output": True}
for one in ({}, {"temperature": 0.8}, {"temperature": 0.8, "top_p": 1.0}, {"top_k": 1}):
    sent = [{"max_tokens": 1, "seed": each, **one} for each in seeds]
    drawn[str(one), "engine"] = [ask({**plain, **each}).strip() for each in sent]
    drawn[str(one), "trtllm-serve"] = [by_openai(start, **each)[1].strip() for each in sent]

# %% [markdown]
# **Predict** for each: greedy on both, sampling on both, or one of each? (A word here is a token, perhaps a piece.)

# %%
several = {at: len(set(texts)) > 1 for at, texts in drawn.items()}
alike = sum(several[one, "engine"] == several[one, "trtllm-serve"] for one, api in drawn if api == "engine")
title = f"{alike} of {len(drawn) // 2} requests act alike on both servers"
words = "; ".join(f"{len(set(texts))} for {one} on {api}" for (one, api), texts in drawn.items())
show(protocols.next_words(drawn, drawn["{}", "engine"][0]), title, f"Different words of {len(seeds)}: {words}")

# %% [markdown]
# The first two are greedy at the engine and sampled at `trtllm-serve`; nobody reports it. The last two leave nothing
# open: even the drawn words agree. What turns sampling on:
#
# - Behind an **engine**, `top_k` or `top_p` does, unless `top_k` is 1, which leaves a single token. Temperature only
#   shapes what is sampled.
# - For **`SamplingParams`** any of the three does, unless one leaves a single token (temperature 0, `top_k` 1, `top_p`
#   0). So it [is documented](https://nvidia.github.io/TensorRT-LLM/features/sampling.html) since 1.3.0rc3; before, the
#   engine's rule held.
# - **`trtllm-serve`** first fills in temperature 1 and `top_p` 1, as OpenAI does.

# %% [markdown]
# **Exercise 12.1** (●●○, 4 minutes) An application sends temperature 0.8 to whichever API runs. Make two requests of
# it; each keeps that temperature. `everywhere` must sample on all three APIs, `nowhere` must be greedy on all three.
# The check sends both to the running engine, with three seeds, and applies the other two rules.
#
# <details><summary>Hint 1</summary>
#
# What does a request hold after each API has filled in its defaults? Which value does the engine wait for?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Which of the three values can make a draw certain, even with a high temperature? Which leaves out no token at all?
#
# </details>

# %% tags=["exercise:12.1"]
answer_1 = {"everywhere": None, "nowhere": None}  # two dicts of temperature, top_k and top_p

# %% tags=["check:12.1", "nbval-check-output"]
check("12.1", (answer_1, client))

# %% [markdown]
# <details><summary>Solution 12.1</summary>
#
# ```python
# answer_1 = {"everywhere": {"temperature": 0.8, "top_p": 1.0}, "nowhere": {"temperature": 0.8, "top_k": 1}}
# ```
#
# </details>

# %% [markdown]
# ## 5 Is renaming enough?
#
# An application speaks OpenAI's protocol, and its model sits behind an engine. Translate a request in two ways. **Only
# renamed**, as is often done: known names change, others (OpenAI's `n` and `echo`) stay. **Translated**, by the
# course's `translate`: the meaning stays.

# %%
body = {"messages": [message], "max_completion_tokens": max_tokens, "temperature": temperature, "seed": seed}
renamed = {"text_input": question, "max_tokens": max_tokens, "temperature": temperature, "n": 1, "echo": False}
translated, _ = llm_api.translate({**body, "messages": prompt}, "chat", "engine")

# %% [markdown]
# **Predict:** three seeds each. What goes wrong with the renamed request: its length, its prompt, its sampling, what
# comes back? More than one may.

# %%
back = {"only renamed": [], "translated": []}
for each in range(seed, seed + 3):
    back["only renamed"].append(json.loads(by_generate(**renamed, seed=each)[1])["text_output"])
    back["translated"].append(ask({**translated, "seed": each, "stream": False}))
title = "Different texts: " + ", ".join(f"{name} {len(set(texts))} of {len(texts)}" for name, texts in back.items())
words = "; ".join(f"{name}, first seed: {texts[0]!r}" for name, texts in back.items())
show(protocols.answers(back, question), title, words)
print({**translated, "text_input": "…"})

# %% [markdown]
# The length arrived; three things went wrong:
#
# 1. The answer begins with the question: an engine repeats the prompt, and nobody reads `echo`. The translation sets
#    `exclude_input_in_output`.
# 2. The chat template is missing, so the model continues your text.
# 3. It is greedy, whatever the temperature says: one text for all seeds. The translation adds `top_p` 1.

# %% [markdown]
# **Exercise 12.2** (●●○, 5 minutes) Translate this body of `/v1/completions` by hand into a request for `ensemble` that
# means the same: `{"prompt": "Name a fruit.", "max_tokens": 8, "n": 3, "temperature": 0.8}`. The check sends it to the
# running server.
#
# <details><summary>Hint 1</summary>
#
# Which names would the engine not know? What does each API do, unasked, about sampling and about the prompt?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# What did a temperature alone do to the engine in section 4? With what did the answer of the renamed request begin? Are
# three samples the three best beams?
#
# </details>

# %% tags=["exercise:12.2"]
answer_2 = None  # a dict of tensors of the engine lane

# %% tags=["check:12.2", "nbval-check-output"]
check("12.2", (answer_2, client))

# %% [markdown]
# <details><summary>Solution 12.2</summary>
#
# ```python
# answer_2 = {
#     "text_input": "Name a fruit.",
#     "max_tokens": 8,
#     "num_return_sequences": 3,
#     "temperature": 0.8,
#     "top_p": 1.0,
#     "exclude_input_in_output": True,
# }
# ```
#
# </details>

# %% [markdown]
# In production a **front end** translates. [Triton has
# one](https://github.com/triton-inference-server/server/tree/main/python/openai); ours is small.
#
# ![The front end gives a chat request the engine's names, and its text becomes a chat answer](pictures/12_front.svg)
#
# The `openai` client only gets another `base_url`. An engine's text ends *behind* a stop word. **Predict:** with
# `stop=[","]`, does a comma arrive?

# %% tags=["varies"]
frontend = OpenAIFrontend(server.grpc_url, tokenizer_dir).start()
old = application.with_options(base_url=f"{frontend.url}/v1")
answer = old.chat.completions.create(model="tensorrt_llm_bls", **body, stop=[","], n=2)
for choice in answer.choices:
    print(repr(choice.message.content), choice.finish_reason)

# %% [markdown]
# No comma arrives: OpenAI's text ends *before* the stop word, so the front end cuts: it translates what
# comes back, too.

# %% [markdown]
# ## 6 How does an old client reach a new model?
#
# Inside Triton NVIDIA's Python model `llmapi` calls `LLM`. Its program is in the container, under
# `/app/all_models/llmapi`; you write two text files. The program needs a GPU, so here a listener takes its place, and
# answers with what it received:

# %%
listener = '''import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            heard = {tensor.name(): tensor.as_numpy().tolist() for tensor in request.inputs()}
            text = np.array([json.dumps(heard, default=bytes.decode)], dtype=object)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
        return answers
'''

# %% [markdown]
# The two files, `model.yaml` with the arguments of `LLM`, and `config.pbtxt`:

# %%
model_yaml = f"""model: {hub}
backend: pytorch
triton_config:
  max_batch_size: 0
  decoupled: false
"""
folder = server.repository / "llmapi"
(folder / "1").mkdir(parents=True, exist_ok=True)
files = {"1/model.yaml": model_yaml, "config.pbtxt": llm_api.DATA["llmapi_config"], "1/model.py": listener}
for name, text in files.items():
    (folder / name).write_text(text)
server.load("llmapi")


# %% [markdown]
# In `config.pbtxt` the fields of `SamplingParams` have a prefix, and `max_batch_size: 0` means that shapes have no
# batch dimension: `[1]`, not `[1, 1]`. With these names and shapes a request arrives whole:

# %% tags=["nbval-check-output"]
def tensor(name, datatype, values):
    array = np.array(values, {"BYTES": object, "INT32": np.int32}[datatype])
    return grpcclient.InferInput(name, array.shape, datatype).set_data_from_numpy(array)


def heard(*sent):
    try:
        return client.infer("llmapi", sent).as_numpy("text_output")[0].decode()
    except InferenceServerException as error:
        return error.message()


hello, dot = tensor("text_input", "BYTES", [b"Hi"]), tensor("sampling_param_stop", "BYTES", [b"."])
print(heard(hello, dot, tensor("sampling_param_max_tokens", "INT32", [100])))

# %% [markdown]
# An old client, written for the ensemble, sends `text_input` and `max_tokens=100`. **Predict:** how many tokens can its
# answer have, 100, 32, or is there an error? Over gRPC, and over HTTP? The second line over gRPC keeps the batch
# dimension.

# %% tags=["nbval-check-output"]
print("gRPC:", heard(hello, tensor("max_tokens", "INT32", [100])))
print("gRPC:", heard(tensor("text_input", "BYTES", [[b"Hi"]])))
answer = json.loads(by_generate("llmapi", text_input="Hi", max_tokens=100)[1])
print("HTTP:", answer["text_output"])

# %% [markdown]
# Over gRPC the name is an error, and so is the shape. Over HTTP it is the misspelt name of section 3 again: dropped, so
# `SamplingParams` fills in 32, and the answer ends early without an error.
#
# What if you cannot change the client? Put a model between: an ensemble of one step (notebook 03), without a program.
#
# ![gRPC refuses the old name, HTTP drops it; the model old_names gives it the new name](pictures/12_old_client.svg)

# %% [markdown]
# **Exercise 12.3** (●●●, 8 minutes) Write the `config.pbtxt` of `old_names`: the step is `llmapi`. The old client sends
# `text_input`, `max_tokens` and, sometimes, `stop_words`, over gRPC, in shapes `[1, 1]` and `[1, n]`; it reads
# `text_output`. The check loads your text into the running server and sends the old requests. A frame:
#
# ```
# name: "old_names"
# platform: "ensemble"
# input { name: "text_input" data_type: TYPE_STRING dims: [ -1 ] }
# ensemble_scheduling { step {
#   model_name: "llmapi"
#   model_version: -1
#   input_map { key: "text_input" value: "text_input" }
# } }
# ```
#
# <details><summary>Hint 1</summary>
#
# Which tensors does the frame lack? In a map, whose name is the key: the step's or the ensemble's?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Who takes a batch dimension off, and where do you say that there is one? How many rows can `llmapi` take at once? What
# does Triton do when a declared input is missing?
#
# </details>

# %% tags=["exercise:12.3"]
old_names = None  # the text of a config.pbtxt

# %% tags=["check:12.3", "nbval-check-output"]
check("12.3", (old_names, server))

# %% [markdown]
# <details><summary>Solution 12.3</summary>
#
# ```python
# old_names = '''
# name: "old_names"
# platform: "ensemble"
# max_batch_size: 1
# input { name: "text_input" data_type: TYPE_STRING dims: [ -1 ] }
# input { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] }
# input { name: "stop_words" data_type: TYPE_STRING dims: [ -1 ] optional: true }
# output { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }
# ensemble_scheduling { step {
#   model_name: "llmapi"
#   model_version: -1
#   input_map { key: "text_input" value: "text_input" }
#   input_map { key: "sampling_param_max_tokens" value: "max_tokens" }
#   input_map { key: "sampling_param_stop" value: "stop_words" }
#   output_map { key: "text_output" value: "text_output" }
# } }
# '''
# ```
#
# </details>

# %% [markdown]
# ## Recap
#
# - After 1.3.0rc20 `LLM`, `trtllm-serve` or `llmapi` serves the checkpoint itself. Unasked, `LLM` stops after 32
#   tokens.
# - A stream ends with a flag, with the response, or with `[DONE]`: look at the bytes.
# - `/generate` drops a name that it does not know; gRPC and `trtllm-serve` refuse it.
# - The same settings are greedy on one API and sample on another. Set temperature *and* `top_p`, or `top_k` 1.
# - Renaming keeps names right and meanings wrong: prompt, echo, sampling.
# - An ensemble of one step gives an old client's tensors their new names.

# %% [markdown]
# ## Break it
#
# `translate` knows which API has which field. Send a request through all of them in turn. **Predict:** which of the
# eight fields arrive: nearly all, half, nearly none? Which API loses the most?

# %%
rich = {"text_input": "Hi", "max_tokens": 50, "top_p": 0.9, "num_return_sequences": 2, "min_tokens": 5}
rich |= {"repetition_penalty": 1.2, "return_log_probs": True, "bad_words": ["no"]}
fields = {each.name: parameter for parameter, each in llm_api.parameters("engine").items()}
here, now, stations, lost = "engine", rich, ["completions", "llm_api", "llmapi", "engine"], {}
for target in stations:
    now, notes = llm_api.translate(now, here, target)
    here, lost[target] = target, [note.parameter for note in notes if note.kind == "lost"]
ends = {name: next((n for n, api in enumerate(stations, 1) if fields[name] in lost[api]), 5) for name in rich}
title = f"{sum(end == 5 for end in ends.values())} of {len(rich)} fields survive the whole trip"
words = "; ".join(f"lost on the way to {api}: {', '.join(names) or 'nothing'}" for api, names in lost.items())
show(protocols.trip(ends, ["engine", *stations]), title, words, drawing=True)

# %% [markdown]
# Three arrive, those that every API knows. `llmapi` loses four: Triton's model has the fewest inputs. If you need the
# others, use `trtllm-serve`, or your own Triton model around `LLM`.
#
# Try more: end `trtllm-serve` in the middle of a stream (`openai_server.stop()`). What does the `openai` client say?

# %%
for each in (application, web, client):
    each.close()
for each in (frontend, openai_server, server):
    each.stop()
_, notes = llm_api.translate(rich, "engine", "llmapi")
known = {api: sum(each.name is not None for each in llm_api.parameters(api).values()) for api in llm_api.APIS}
notebook.record(llm_api_ran=standin.INSTALLED, names=known, lost_on_llmapi=sum(note.kind == "lost" for note in notes))
