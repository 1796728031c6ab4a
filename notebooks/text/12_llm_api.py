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
# You move a request from the engine lane to the LLM API and to OpenAI's names, and see on a real server what breaks
# when you only rename.
#
# After this notebook you can
#
# - say what TensorRT-LLM removed, since which version, and what does its job now
# - say for one request on which API it samples and on which it is greedy
# - ask a Triton with the `openai` client, and translate its requests between the APIs
# - write the program, the command and the model folder of the LLM API
# - name what gets lost on the way
#
# **Time:** 35 minutes (last run: 48 s) · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# Previous: [11 · Benchmarks](11_benchmarking.ipynb) · Next: [13 · Lab](../labs/vlm_clip/13_encoders_and_engines.ipynb)

# %%
import contextlib
import importlib.util
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
import openai
import tritonclient.grpc as grpcclient
from transformers import AutoTokenizer
from tritonclient.utils import InferenceServerException

from engines import llm_api
from servinglab import edge, notebook
from servinglab.checks import check
from servinglab.client import inputs, stream
from servinglab.figures import api_names
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

# %% [markdown]
# ## 1 Two ways to serve, and one of them ends
#
# Until now a checkpoint was converted, built into an engine and served by five Triton models. TensorRT-LLM has a second
# way: a Python class reads the Hugging Face checkpoint and runs it with PyTorch and TensorRT-LLM's kernels.
#
# ![With an engine: convert, build, fill, serve. With the LLM API: one class. Below: versions](pictures/12_apis.svg)

# %%
lane = notebook.begin("12", lane, seed=seed, weights=precision)

# %% [markdown]
# The last engines are those of 1.3.0rc20.
#
# <details><summary>Version by version</summary>
#
# | version | when | what changed |
# |---|---|---|
# | 0.15.0 | container 24.11 | `trtllm-serve` appears; `SamplingParams` says `n`, `best_of`, `use_beam_search` |
# | 0.20.0 | container 25.06 | engine lane: `min_length` becomes `min_tokens`, `random_seed` becomes `seed` |
# | 1.0.0 | September 2025 | PyTorch backend by default, LLM API declared stable; engines become legacy |
# | 1.3.0rc | February 2026 | `trtllm-build` and `convert_checkpoint.py` warn that they will go |
# | 1.3.0rc20 | 30 June 2026 | the last candidate that knows engines |
# | 1.3.0rc21 | July 2026 | engines, their tools and the five Triton models are gone |
#
# </details>
#
# The newest Triton container that we know, 26.07, still holds 1.2.1 with both. What you learned about engines works
# there. After 1.3.0rc20 it does not
# ([NVIDIA's guide](https://nvidia.github.io/TensorRT-LLM/legacy/tensorrt-backend-removal.html)).

# %% [markdown]
# Here is a script as many people have it. **Predict:** which of its lines still work in a new version?

# %%
script = """\
python3 convert_checkpoint.py --model_dir SmolLM2 --output_dir checkpoint
trtllm-build --checkpoint_dir checkpoint --output_dir engine
cp -r /app/all_models/inflight_batcher_llm repository
curl localhost:8000/v2/models/ensemble/generate -d '{"text_input": "Hi", "max_tokens": 9, "random_seed": 1}'
trtllm-serve HuggingFaceTB/SmolLM2-135M-Instruct
"""

# %% [markdown]
# `llm_api.DATA["removed"]` lists what newer versions lack, with a pattern that finds it in a text:

# %% tags=["nbval-check-output"]
for number, line in enumerate(script.splitlines(), 1):
    for row in llm_api.DATA["removed"]:
        if re.search(row["pattern"], line):
            print(f"line {number}: {row['thing']} is gone since {row['since']}; {row['instead']}")

# %% [markdown]
# Only the last line still works. The request in the fourth one needs more than a new name for its seed, for the model
# `ensemble` is gone too. That is what the rest of this notebook is about.

# %% [markdown]
# ## 2 What can run here?
#
# The LLM API needs TensorRT-LLM's package and an NVIDIA GPU. Are they on this machine?

# %%
installed = importlib.util.find_spec("tensorrt_llm") is not None
print("LLM API:", "can run here" if installed else "not run here, tensorrt_llm is not installed")

# %% [markdown]
# Where it says *not run here*, you get the exact program and command, but no output of theirs. The other side of every
# translation is real: a Triton with the five models of notebook 03.

# %%
server = serve(precision=precision)
client = grpcclient.InferenceServerClient(server.grpc_url)

# %% [markdown]
# The server says where its tokenizer lies. You need it for the chat template.

# %%
settings = client.get_model_config("preprocessing", as_json=True)["config"]["parameters"]
tokenizer_dir = settings["tokenizer_dir"]["string_value"]
tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)


# %% [markdown]
# One helper: send a request, given as a dict of input names, and return the text.

# %%
def ask(request, model="tensorrt_llm_bls"):
    results = stream(client, model, inputs(**request))
    return "".join(result.as_numpy("text_output")[0].decode() for result in results)


# %% [markdown]
# ## 3 One parameter, five names
#
# The library holds a table with one row for each parameter. It says how an API calls it, and what counts when a request
# leaves it out. Six of its rows:

# %% tags=["nbval-check-output"]
def cell(parameter, api):
    found = llm_api.parameters(api)[parameter]
    default = "" if found.required else f"={found.default}"
    return f"{found.name}{default}" if found.name else "-"


for parameter in ("max tokens", "seed", "stop words", "n", "beams", "repeat the prompt"):
    print(parameter, *(cell(parameter, api) for api in ("engine", "llm_api", "completions", "llmapi")), sep=" | ")

# %% [markdown]
# `engine` is what you send to `ensemble` or `tensorrt_llm_bls`, `llm_api` are fields of `SamplingParams`, `completions`
# is the body of `/v1/completions` at `trtllm-serve`, `llmapi` Triton's model around `LLM`. Read the row of *max
# tokens*: a must, 32, no limit (None), 32.
#
# The last row says whether the answer begins with your prompt. By default it does on the first and the last API, and
# the names say it in opposite ways: *exclude* and *echo*.
#
# **Predict:** which API has names for the fewest parameters?

# %%
apis = list(llm_api.APIS)
tables = {api: llm_api.parameters(api) for api in apis}
known = {api: sum(each.name is not None for each in table.values()) for api, table in tables.items()}


def kind(parameter, api):  # a place in api_names.KINDS: the same name, another one, none
    name = tables[api][parameter].name
    return 2 if name is None else int(name != tables["llm_api"][parameter].name)


# %% tags=["nbval-check-output"]
kinds = {parameter: [kind(parameter, api) for api in apis] for parameter in tables["llm_api"]}
title = f"llmapi has names for {known['llmapi']} of {len(kinds)} parameters, the LLM API for {known['llm_api']}"
show(api_names.names(kinds, apis), title, " · ".join(f"{api} {count}" for api, count in known.items()), drawing=True)

# %% [markdown]
# `llmapi` has the fewest, and most of them are names of its own.

# %% [markdown]
# ## 4 Greedy or sampling?
#
# Three values choose the next token: temperature, top-k, top-p. They have nearly the same names on every API. What
# differs is who turns sampling on:
#
# - Behind an **engine**, a `top_k` or a `top_p` turns sampling on, except a `top_k` of 1, which leaves a single token.
#   Temperature only shapes what is sampled.
# - For **`SamplingParams`** any of the three does, unless one of them leaves a single token (temperature 0, `top_k` 1,
#   `top_p` 0).
# - **`trtllm-serve`** fills in temperature 1 and `top_p` 1, as OpenAI does, and makes `SamplingParams` of it.
#
# <details><summary>Versions</summary>
#
# These are the rules of 1.3.0rc3, read in its code; the
# [documentation](https://nvidia.github.io/TensorRT-LLM/features/sampling.html) says the same. Older versions looked at
# `top_k` and `top_p` only, as an engine does.
#
# </details>

# %% [markdown]
# **Exercise 12.1** (2 minutes) On which of `"engine"`, `"llm_api"` and `"completions"` does a request sample that says
# *nothing* of the three? And one that says *temperature 0.8* and no more? The check comes after the measurement.

# %% tags=["exercise:12.1"]
answer_1 = {"nothing": None, "temperature": None}  # two lists of APIs

# %% [markdown]
# Measure the engine's rule. First the question, in the form this model was trained to see (notebook 00).

# %%
prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
)
plain = {"text_input": prompt, "max_tokens": max_tokens, "exclude_input_in_output": True, "stream": False}

# %% [markdown]
# Then the same request with two seeds. If it samples, you get two answers.

# %%
for more in ({"temperature": temperature}, {"temperature": temperature, "top_p": 1.0}):
    texts = {ask({**plain, "seed": seed + i, **more}) for i in range(2)}
    print(f"{len(texts)} different texts with {more}")

# %% [markdown]
# Temperature alone did nothing. `top_p=1.0`, which leaves out no token, turned sampling on. Was your answer right?

# %% tags=["check:12.1", "nbval-check-output"]
check("12.1", answer_1)

# %% [markdown]
# `decides` knows the rule of each API. It agrees with the measurement, and says what you cannot measure here.

# %% tags=["nbval-check-output"]
for said in ({}, {"temperature": 0.8}, {"temperature": 0.8, "top_p": 1.0}, {"top_k": 1}):
    print(f"{said!s:36}", {api: llm_api.decides(said, api) for api in ("engine", "llm_api", "completions")})

# %% [markdown]
# ## 5 An application that speaks OpenAI's protocol
#
# Most applications call a model with the `openai` package. They need a server with OpenAI's paths. `trtllm-serve` is
# one; before a Triton with engines stands a front end that translates. Triton has
# [one of its own](https://github.com/triton-inference-server/server/tree/main/python/openai); ours is small, and serves
# `/v1/chat/completions`, `/v1/completions` and `/v1/models`. `trust_env=False` keeps a proxy of your network away from
# programs that talk within this machine.

# %%
frontend = OpenAIFrontend(server.grpc_url, tokenizer_dir).start()
http = openai.DefaultHttpxClient(trust_env=False)
application = openai.OpenAI(base_url=f"{frontend.url}/v1", api_key="any", max_retries=0, http_client=http)
print([model.id for model in application.models.list()])

# %% [markdown]
# You send messages and no prompt: the front end applies the chat template, as you did by hand in section 4.
# **Predict:** is this answer greedy?

# %%
message = {"role": "user", "content": question}
chat = {"model": "tensorrt_llm_bls", "messages": [message], "max_completion_tokens": max_tokens}
answer = application.chat.completions.create(**chat)
print(answer.choices[0].message.content)
print(answer.choices[0].finish_reason, answer.usage.completion_tokens)

# %% [markdown]
# Is it the engine's greedy answer?

# %%
print(answer.choices[0].message.content == ask(plain))

# %% [markdown]
# It is, token for token. `trtllm-serve` would have sampled here, as OpenAI does: the front end passes nothing on that
# was not said. So say the temperature always. With `stream=True` the pieces come as they are generated:

# %%
for event in application.chat.completions.create(**chat, stream=True, temperature=temperature, seed=seed):
    print(event.choices[0].delta.content or "", end="|")

# %% [markdown]
# Two more of OpenAI's fields: `stop`, and `n` for several answers. Triton's text ends *with* the stop word, OpenAI's
# *before* it. **Predict:** with `stop=[","]`, does a comma arrive?

# %% tags=["varies"]
answer = application.chat.completions.create(**chat, stop=[","], n=2, temperature=temperature, seed=seed)
for choice in answer.choices:
    print(repr(choice.message.content), choice.finish_reason)

# %% [markdown]
# No: the front end holds back what may be the beginning of a stop word, and cuts there. The `n` answers run side
# by side. With the int4 weights the rounding depends on what shares a step, so the same seed may give another text.
#
# And a field that it cannot honour? It refuses it, and the client raises the error that belongs to status 400. Triton's
# models tell the log probability of the token that they chose, but not which tokens came next:

# %%
try:
    application.chat.completions.create(**chat, logprobs=True, top_logprobs=3)
except openai.BadRequestError as error:
    print(error.status_code, error.body["message"])

# %% [markdown]
# ### Rename, or translate?
#
# Now do the work of a front end yourself. This is the body that an application sends:

# %%
body = {**chat, "temperature": temperature, "seed": seed, "stop": ["."]}

# %% [markdown]
# **Only renamed**, the way it is often done: the names that exist are changed, the others stay. `/generate` takes it.
# **Predict** what goes wrong; it is three things. (The list of stop words is left out: `/generate` refuses a list under
# a name that it does not know, notebook 05.)

# %%
web = httpx.Client(base_url=server.http_url, timeout=120, trust_env=False)
renamed = {"text_input": question, "max_tokens": max_tokens, "temperature": temperature, "n": 1, "echo": False}
answer = web.post("/v2/models/tensorrt_llm_bls/generate", json=renamed).json()
print(answer["text_output"])

# %% [markdown]
# What went wrong:
#
# 1. The answer begins with the question, for an engine repeats the prompt, and `echo` is a name that nobody reads.
# 2. The chat template is missing, so the model continues your text instead of answering.
# 3. It is greedy, whatever the temperature says.
#
# **Translated**: `translate` takes the request, with the prompt that the template makes of its messages, the API it
# comes from and the API it goes to. It returns the request and notes.

# %%
request, notes = llm_api.translate({**body, "messages": prompt}, "chat", "engine")
for note in notes:
    print(f"{note.kind:8} {note.text}")

# %% [markdown]
# A *renamed* note is a new name. *written* means that the APIs differ in what they do when nothing is said, so it has
# to be said. *differs* means: taken, but it acts differently. Here is the request, and its answer:

# %%
print({**request, "text_input": "…"})
print(repr(ask({**request, "stream": False})))

# %% [markdown]
# **Exercise 12.2** (5 minutes) Translate this body of `/v1/completions` by hand into a request for `ensemble`, so that
# it means the same: `{"prompt": "Name a fruit.", "max_tokens": 8, "n": 3, "temperature": 0.8}`.

# %% tags=["exercise:12.2"]
answer_2 = None  # a dict of tensors of the engine lane

# %% tags=["check:12.2", "nbval-check-output"]
check("12.2", answer_2)

# %% [markdown]
# Now the other way. One sampled request of the engine lane goes out to three other APIs and comes back. **Predict:**
# does the model give the same text for all of them?

# %%
original = {**plain, "temperature": temperature, "top_p": 0.9, "seed": seed}
expected = ask(original)
for api in ("llm_api", "completions", "llmapi"):
    there, _ = llm_api.translate(original, "engine", api)
    back, _ = llm_api.translate(there, api, "engine")
    assert ask({**back, "stream": False}) == expected
    print(f"{api:12} same text, through", *sorted(set(there) - {"text_input", "inputs", "prompt"}))

# %% [markdown]
# Three sets of names, one meaning. This is not luck: the seed made the round trip too, so all four runs drew the same
# random numbers.

# %% [markdown]
# ## 6 The LLM API
#
# What does a program for the LLM API look like? Translate the same request into fields of `SamplingParams`. Two of its
# names are none: `inputs` and `streaming` are arguments of the call.

# %%
there, notes = llm_api.translate({**original, "text_input": question}, "engine", "llm_api")
fields = ", ".join(f"{name}={value!r}" for name, value in there.items() if name not in ("inputs", "streaming"))
for note in notes:
    print(f"{note.kind:8} {note.text}")

# %% [markdown]
# And the program. `model` may be a folder with a Hugging Face checkpoint, or its name.

# %%
hub = "HuggingFaceTB/SmolLM2-135M-Instruct"
program = f"""from tensorrt_llm import LLM, SamplingParams


def main():
    llm = LLM(model={hub!r})
    params = SamplingParams({fields})
    for output in llm.generate({question!r}, params).outputs:
        print(output.text)


if __name__ == "__main__":  # the workers are new processes that import this file
    main()
"""
print(program)

# %% [markdown]
# Eight lines, no build. With `generate_async(…, streaming=True)` in place of `generate` it streams: each output then
# has a `text_diff`.
#
# Look at what the notes say about the seed: the field exists in every version, yet until August 2026 the PyTorch
# backend's sampler drew from one generator for all requests. Penalties and bad words were ignored in the same way,
# without an error ([issue 9442](https://github.com/NVIDIA/TensorRT-LLM/issues/9442)).
#
# Where `tensorrt_llm` is installed, the program runs now, from a file of its own. On this page's machine it did not
# run: it is shown as NVIDIA's container takes it.

# %%
if installed:
    file = Path(tempfile.mkdtemp(), "ask.py")
    file.write_text(program)
    done = subprocess.run([sys.executable, file], capture_output=True, text=True)
    print(done.stdout if done.returncode == 0 else done.stderr[-1000:])
else:
    print("not run here: tensorrt_llm is not installed")

# %% [markdown]
# ### trtllm-serve
#
# The same class behind OpenAI's paths is one command, in the container or where the package is installed. Give it the
# loopback address, or everyone on your network may use it:
#
# `trtllm-serve HuggingFaceTB/SmolLM2-135M-Instruct --host 127.0.0.1 --port 8000 --max_batch_size 8`
#
# The `openai` client of section 5 then needs another `base_url`, and nothing else. Here is our request in the form of
# `client.completions.create(**…)`.

# %%
there, notes = llm_api.translate({**original, "text_input": question, "stream": True}, "engine", "completions")
print(json.dumps({"model": hub, **there}, indent=1))


# %% [markdown]
# To run it from here, start the command on a free port, and end it after the last answer. It answers at `/health` as
# soon as the model is loaded.

# %%
@contextlib.contextmanager
def trtllm_serve(model, host="127.0.0.1"):
    with socket.create_server((host, 0)) as free:
        port = free.getsockname()[1]
    words = ["trtllm-serve", model, "--host", host, "--port", str(port), "--max_batch_size", "8"]
    with tempfile.TemporaryFile() as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        try:
            while not is_up(f"http://{host}:{port}/health"):
                assert process.poll() is None, "trtllm-serve ended before it could answer"
                time.sleep(0.5)
            yield f"http://{host}:{port}/v1"
        finally:
            process.terminate()


def is_up(url):
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, trust_env=False).status_code == 200


# %% [markdown]
# And ask. This command and this request were not run on this page's machine either.

# %%
if installed:
    with trtllm_serve(hub) as url:
        asker = application.with_options(base_url=url)
        for event in asker.completions.create(model=hub, **there):
            print(event.choices[0].text, end="|")
else:
    print("not run here: tensorrt_llm is not installed")

# %% [markdown]
# A last difference is a good one: `trtllm-serve` refuses a name that it does not know, where Triton's `/generate` takes
# it for a parameter that nobody reads.

# %% [markdown]
# ## 7 The llmapi model
#
# You can have the LLM API inside Triton: NVIDIA ships a Python model, `llmapi`, that calls `LLM`. It is one folder with
# two text files of yours, `1/model.yaml` and `config.pbtxt`. Its program lies in the container, under
# `/app/all_models/llmapi`.

# %%
model_yaml = f"""model: {hub}
backend: pytorch
triton_config:
  max_batch_size: 0
  decoupled: false
"""
folder = server.repository / "llmapi"
(folder / "1").mkdir(parents=True, exist_ok=True)
for name, text in {"1/model.yaml": model_yaml, "config.pbtxt": llm_api.DATA["llmapi_config"]}.items():
    (folder / name).write_text(text)

# %% [markdown]
# `model.yaml` holds the arguments of `LLM`, and `triton_config` what Triton must know. With `decoupled: false` it
# cannot stream. Which inputs does `config.pbtxt` declare?

# %% tags=["nbval-check-output"]
for line in llm_api.DATA["llmapi_config"].splitlines():
    if line.startswith("input"):
        print(line)

# %% [markdown]
# Two things to see. Every field of `SamplingParams` has a prefix, so there is no input `max_tokens`. And with
# `max_batch_size` 0, as `model.yaml` says, shapes have no batch dimension: `[1]` and not `[1, 1]`.
#
# What does a real Triton do with requests for such a model? Its program needs a GPU, so we put a listener in its place:
# the same configuration, and a model that answers with what it received. It computes no token.

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
(folder / "1" / "model.py").write_text(listener)
server.load("llmapi")


# %% [markdown]
# Tensors for it are made by hand, as in notebook 05. A request with the right names arrives whole:

# %% tags=["nbval-check-output"]
def tensor(name, datatype, values):
    array = np.array(values, {"BYTES": object, "INT32": np.int32}[datatype])
    return grpcclient.InferInput(name, array.shape, datatype).set_data_from_numpy(array)


hello, dot = tensor("text_input", "BYTES", [b"Hi"]), tensor("sampling_param_stop", "BYTES", [b"."])
limit = tensor("sampling_param_max_tokens", "INT32", [100])
print(client.infer("llmapi", [hello, dot, limit]).as_numpy("text_output")[0].decode())

# %% [markdown]
# Now an old client, written for the ensemble: `text_input` and `max_tokens=100`.
#
# **Exercise 12.3** (3 minutes) How many tokens can its answer have at most, over gRPC and over `/generate`? Give a
# number, or `"error"`.

# %% tags=["exercise:12.3"]
answer_3 = {"grpc": None, "http": None}  # a number of tokens or "error", for each

# %% [markdown]
# Over gRPC the server answers in its own words. The second try keeps the batch dimension.

# %% tags=["nbval-check-output"]
for sent in ([hello, tensor("max_tokens", "INT32", [100])], [tensor("text_input", "BYTES", [[b"Hi"]])]):
    try:
        print(client.infer("llmapi", sent).as_numpy("text_output")[0].decode())
    except InferenceServerException as error:
        print(error.message())

# %% [markdown]
# And over HTTP:

# %% tags=["nbval-check-output"]
answer = web.post("/v2/models/llmapi/generate", json={"text_input": "Hi", "max_tokens": 100})
print(answer.status_code, answer.json()["text_output"])

# %% [markdown]
# Status 200, and the limit never reached the model. `LLM` would take the default of `SamplingParams`.

# %% tags=["check:12.3", "nbval-check-output"]
check("12.3", answer_3)

# %% [markdown]
# One name is worse than missing: OpenAI's `stop` holds words. **Predict:** what is `stop` here? Look into the inputs
# above.

# %% tags=["nbval-check-output"]
answer = web.post("/v2/models/llmapi/generate", json={"text_input": "Hi", "stop": ["."]})
print(answer.status_code, answer.json()["error"])

# %% [markdown]
# Here, as on the inner `tensorrt_llm`, `stop` is a truth value that cancels a running request. The words go into
# `sampling_param_stop`.

# %% [markdown]
# ## 8 What gets lost
#
# A request of the engine lane that uses more of it. **Predict** for each of its wishes: renamed, kept or lost on the
# way to `llmapi`?

# %% tags=["nbval-check-output"]
rich = {"text_input": "Hi", "max_tokens": 50, "num_return_sequences": 2, "top_p": 0.9, "min_tokens": 5}
rich |= {"repetition_penalty": 1.2, "return_log_probs": True, "bad_words": ["no"]}
lost = {}
for api in ("llm_api", "completions", "llmapi"):
    _, notes = llm_api.translate(rich, "engine", api)
    lost[api] = [note.parameter for note in notes if note.kind == "lost"]
    print(f"{api:12} {dict(Counter(note.kind for note in notes))}, lost: {', '.join(lost[api]) or 'nothing'}")

# %% [markdown]
# The LLM API has a place for all of it. Behind OpenAI's path the bad words are gone, and in `llmapi` most wishes. If
# your clients need those, serve with `trtllm-serve`, or write a Triton model of your own around `LLM`. The reasons:

# %% tags=["nbval-check-output"]
for note in notes:
    if note.kind != "renamed":
        print(f"{note.kind:8} {note.text}")

# %% [markdown]
# ## 9 A third road: Edge-LLM
#
# One road still ends in an engine: [TensorRT Edge-LLM](https://github.com/NVIDIA/TensorRT-Edge-LLM), NVIDIA's runtime
# for small machines. Its exporter makes an ONNX graph of a Hugging Face folder, on a CPU. Its builder makes an engine
# of the graph. The exporter wants numpy 2, so `make edge` gives it an environment of its own. This takes a minute or
# two:

# %%
import tempfile
from pathlib import Path

exported = Path(tempfile.mkdtemp())
if command := edge.export_command(exported):
    done = subprocess.run(command, capture_output=True, text=True)
    print("exported" if done.returncode == 0 else f"failed with code {done.returncode}: {done.stderr[-200:]}")
else:
    print("not run here: `make edge` brings the exporter (0.11.0); then run this section again")
for path in sorted(exported.glob("llm/*")):
    print(f"{path.name:22} {path.stat().st_size / 1e6:8.2f} MB")

# %% [markdown]
# The weights lie beside the graph, in float16. **Predict:** the model has 30 layers. Which kinds of node are there 30
# times?

# %%
import onnx

path = exported / "llm" / "model.onnx"
graph = onnx.load(path, load_external_data=False).graph if path.exists() else onnx.GraphProto()
for (domain, kind), count in Counter((node.domain or "onnx", node.op_type) for node in graph.node).most_common(11):
    print(f"{count:5} {domain}.{kind}")

# %% [markdown]
# One `Sigmoid` for each MLP, and one `AttentionPlugin` for each attention, in a domain that is not ONNX's. **Predict:**
# what does such a node have to know?

# %%
attention = [node for node in graph.node if node.op_type == "AttentionPlugin"]
for node in attention[:1]:
    print("inputs:", ", ".join(node.input))
    told = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    print("attributes:", {name: value for name, value in told.items() if value})

# %% [markdown]
# Queries, keys and values in one tensor (`view`), the cache of this layer, a table of its pages, the numbers of heads.
# **Predict:** can notebook 01's TensorRT read this graph?

# %%
if graph.node:
    import tensorrt_rtx_bindings as trt

    log = trt.Logger(trt.Logger.INTERNAL_ERROR)
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    parser.parse_from_file(str(path))
    errors = [parser.get_error(number) for number in range(parser.num_errors)]
    for (kind, text), count in Counter((error.node_operator(), error.desc()) for error in errors).items():
        print(f"{count} x {kind}: {text}")

# %% [markdown]
# It knows every kind of node but this one, whose plugin it lacks. Edge-LLM's builder, `llm_build`, loads the plugin
# first. Then it parses the graph, sets one profile for the prompt and one for generating, and writes `llm.engine`
# ([guide](https://nvidia.github.io/TensorRT-Edge-LLM/0.11.1/developer_guide/software-design/engine-builder.html)). That
# was not run here: it needs the full TensorRT and an NVIDIA GPU. Jetson Thor and Orin, IGX Thor, DRIVE Thor and DGX
# Spark are supported, GPUs of a PC for development only
# ([matrix](https://nvidia.github.io/TensorRT-Edge-LLM/0.11.1/user_guide/getting_started/support-matrix.html)). For a
# PC, the package holds the plugin for compute capability 8.0, 8.6, 10.0 and 12.0.

# %% [markdown]
# ## Recap
#
# - Engines end with 1.3.0rc20. After it a checkpoint is served as it is, by `LLM`, `trtllm-serve` or `llmapi`.
# - The same three values are greedy on one API and sample on another. Say what you want.
# - A renaming keeps names right and meanings wrong: defaults differ for the limit, the prompt, the stop word, sampling.
# - The `openai` client speaks to `trtllm-serve` and, through a front end, to a Triton with engines.
# - `llmapi` (1.3.0rc3) has 17 inputs, prefixes, and no batch dimension. Over HTTP an old client gets 32 tokens and no
#   error.
# - A field that is accepted may still be ignored. Test on your version with a value that must show.
# - Edge-LLM still builds engines, for small machines. The export runs on a CPU, the build needs the GPU.

# %% [markdown]
# ## Break it
#
# Send a request round all the APIs, one after another, and see what is left of it. **Predict:** which wish survives
# the whole trip?

# %% tags=["nbval-check-output"]
here, now = "engine", rich
for target in ("completions", "llm_api", "llmapi", "engine"):
    now, notes = llm_api.translate(now, here, target)
    here = target
    print(f"{target:12} loses {[note.parameter for note in notes if note.kind == 'lost'] or 'nothing'}")
print(now)

# %% [markdown]
# Only what every API can say comes home. Try more: give `rich` a `beam_width` of 4, misspell a name, or send it to
# `chat`. Or stop the server first, and ask with the `openai` client: which status does it get?

# %%
for each in (application, frontend, web, client):
    each.stop() if each is frontend else each.close()
server.stop()
notebook.record(llm_api_ran=installed, names=known, lost_on_llmapi=len(lost["llmapi"]))
