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
# - translate a request between the engine lane, `SamplingParams`, OpenAI's paths and the `llmapi` model
# - write the program, the command and the model folder of the LLM API
# - name what gets lost on the way
#
# **Time:** 35 minutes (last run: 67 s) · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# Previous: [11 · Benchmarking](11_benchmarking.ipynb) · Next: none yet

# %%
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import httpx
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

from servinglab import assets, chat, llm_api
from servinglab.checks import check
from servinglab.figures import style
from servinglab.llm_api import decides, translate
from servinglab.notebook import begin, record, resolve_lane
from servinglab.old_client import ClientError, TritonClient
from servinglab.repository import build_default
from servinglab.repository.pbtxt import to_text
from servinglab.server import TritonServer

begin()

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
# | | engine | LLM API |
# |---|---|---|
# | before the first token | convert, build, fill five configurations | nothing |
# | in Python | – | `tensorrt_llm.LLM` with `SamplingParams` |
# | as a server | Triton with five models | `trtllm-serve` (OpenAI's paths), or Triton with the `llmapi` model |
#
# How did it come to this?

# %% tags=["nbval-check-output"]
for version, when, what in llm_api.TIMELINE:
    print(f"{version:10}  {when:15}  {what}")

# %% [markdown]
# The newest Triton container that we know, 26.07, still holds 1.2.1 with both. What you learned about engines
# works there. After 1.3.0rc20 it does not
# ([NVIDIA's guide](https://nvidia.github.io/TensorRT-LLM/legacy/tensorrt-backend-removal.html)).
#
# Here is a script as many people have it. **Predict:** which of its lines still work in a new version?

# %% tags=["nbval-check-output"]
script = """\
python3 convert_checkpoint.py --model_dir SmolLM2 --output_dir checkpoint
trtllm-build --checkpoint_dir checkpoint --output_dir engine
cp -r /app/all_models/inflight_batcher_llm repository
curl localhost:8000/v2/models/ensemble/generate -d '{"text_input": "Hi", "max_tokens": 9, "random_seed": 1}'
trtllm-serve HuggingFaceTB/SmolLM2-135M-Instruct
"""
for advice in llm_api.removed(script):
    print(advice)

# %% [markdown]
# Only the last line. The request in the fourth one needs more than a new name for its seed, for the model `ensemble` is
# gone too: that is what the rest of this notebook is about.
#
# ## 2 What can run here?
#
# The LLM API needs an NVIDIA GPU. Can it run on this machine?

# %%
lane = resolve_lane(lane)
why_not = llm_api.missing()
print("LLM API:", "not run here, " + why_not if why_not else "can run here")

# %% [markdown]
# Where it says *not run here*, you get the exact program and command, but no output of theirs. The other side of every
# translation is real: a Triton with the five models of notebook 03.

# %%
scratch = tempfile.TemporaryDirectory(prefix="servinglab-12-")
repository = build_default(scratch.name, precision=precision)
server = TritonServer(repository).start()
client = TritonClient(server.grpc_url, server.http_url)
web = httpx.Client(base_url=server.http_url, timeout=120, trust_env=False)
client.models()


# %% [markdown]
# One helper: send a request, given as a dict of input names, and return the text.

# %%
def ask(request, model="tensorrt_llm_bls"):
    return "".join(chunk.text for chunk in client.stream_inputs(model, request))


# %% [markdown]
# ## 3 One parameter, five names
#
# The lib holds a table with one row for each parameter. A cell says how an API calls it and, after `=`, what counts
# when a request leaves it out. `-` means that the API has no name for it. Some rows of it:

# %% tags=["nbval-check-output"]
def cell(parameter, api):
    found = llm_api.parameters(api)[parameter]
    default = "" if found.required else f"={found.default}"
    return f"{found.name}{default}" if found.name else "-"


def show(*parameters):
    for parameter in parameters:
        cells = (cell(parameter, api) for api in ("engine", "llm_api", "completions", "llmapi"))
        print(f"{parameter}: " + "  |  ".join(cells))


show("max tokens", "seed", "stop words", "n", "beams", "repeat the prompt")

# %% [markdown]
# `engine` is what you send to `ensemble` or `tensorrt_llm_bls`, `llm_api` are fields of `SamplingParams`, `completions`
# is the body of `/v1/completions` at `trtllm-serve`. Read the row of *max tokens*: a must, 32, no limit (None), 32. The
# last row says whether the answer begins with your prompt. By default it does on the first and the last API, and the
# names say it in opposite ways: *exclude* and *echo*.
#
# How many parameters does each API have a name for? **Predict** the API with the fewest.

# %%
columns = ["engine", "llm_api", "completions", "chat", "llmapi"]
tables = {api: llm_api.parameters(api) for api in columns}
known = {api: sum(each.name is not None for each in table.values()) for api, table in tables.items()}
known


# %% [markdown]
# The picture shows where the names differ. Dark: the same name as in the LLM API. Light: another name. White: none.

# %% tags=["nbval-check-output"]
def kind(parameter, api):
    name = tables[api][parameter].name
    return 0 if name is None else 2 if name == tables["llm_api"][parameter].name else 1


style.use()
fig, axes = plt.subplots(figsize=(style.WIDTH, 3.3), layout="constrained")
rows = list(tables["llm_api"])
kinds = [[kind(parameter, api) for parameter in rows] for api in columns]
axes.pcolormesh(kinds, cmap=ListedColormap(["white", "#A6CFEA", "#0072B2"]), edgecolor=style.FAINT, linewidth=0.5)
axes.set_xticks(np.arange(len(rows)) + 0.5, rows, rotation=90)
axes.set_yticks(np.arange(len(columns)) + 0.5, columns)
axes.invert_yaxis()
axes.tick_params(length=0)
title = f"llmapi has names for {known['llmapi']} of {len(rows)} parameters, the LLM API for {known['llm_api']}"
style.finish(fig, title, "", " · ".join(f"{api} {count}" for api, count in known.items()))

# %% [markdown]
# ## 4 Greedy or sampling?
#
# Three values choose the next token: temperature, top-k, top-p. They have nearly the same names on every API. What
# counts is who turns sampling on:

# %% tags=["nbval-check-output"]
show("temperature", "top k", "top p")

# %% [markdown]
# - Behind an **engine**, a `top_k` or a `top_p` turns sampling on, except a `top_k` of 1, which leaves a single token.
#   Temperature only shapes what is sampled.
# - For **`SamplingParams`** any of the three does, unless one of them leaves a single token (temperature 0, `top_k` 1,
#   `top_p` 0).
# - **`trtllm-serve`** fills in temperature 1 and `top_p` 1, as OpenAI does, and makes `SamplingParams` of it.
#
# These are the rules of 1.3.0rc3, read in its code; the
# [documentation](https://nvidia.github.io/TensorRT-LLM/features/sampling.html) says the same. Older versions looked at
# `top_k` and `top_p` only, as an engine does.
#
# **Exercise 12.1** On which of `"engine"`, `"llm_api"` and `"completions"` does a request sample that says *nothing* of
# the three? And one that says *temperature 0.8* and no more? The check comes after the measurement.

# %% tags=["exercise:12.1"]
answer_1 = {"nothing": None, "temperature": None}  # two lists of APIs

# %% [markdown]
# Measure the engine's rule. First the question, in the form this model was trained to see (notebook 00), then the same
# request with two seeds. If it samples, you get two answers.

# %%
tokenizer = assets.tokenizer("smollm2")
prompt = chat.render(tokenizer, question)
plain = {"text_input": prompt, "max_tokens": max_tokens, "exclude_input_in_output": True}


def texts(**more):
    return {ask({**plain, "seed": seed + i, **more}) for i in range(2)}


for more in ({"temperature": temperature}, {"temperature": temperature, "top_p": 1.0}):
    print(f"{len(texts(**more))} different texts with {more}")

# %% [markdown]
# Temperature alone did nothing. `top_p=1.0`, which leaves out no token, turned sampling on. Was your answer right?

# %% tags=["check:12.1", "nbval-check-output"]
check("12.1", answer_1)

# %% [markdown]
# The lib knows the rule of each API; it agrees with the measurement, and says what you cannot measure here.

# %% tags=["nbval-check-output"]
for said in ({}, {"temperature": 0.8}, {"temperature": 0.8, "top_p": 1.0}, {"top_k": 1}):
    print(f"{said!s:36}", {api: decides(said, api) for api in ("engine", "llm_api", "completions")})

# %% [markdown]
# ## 5 Rename, or translate
#
# An application talks to OpenAI's chat path. You want its requests answered by the engine lane.

# %%
body = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": question}],
    "max_completion_tokens": max_tokens,
    "temperature": temperature,
    "seed": seed,
    "stop": ["."],
}

# %% [markdown]
# **Only renamed**, the way it is often done: the names that exist are changed, the others stay. `/generate` takes it.
# **Predict** what goes wrong; it is three things. (The word list is left out: a list under an unknown name is refused,
# as you know from notebook 05.)

# %%
renamed = {"text_input": question, "max_tokens": max_tokens, "temperature": temperature, "n": 1, "echo": False}
answer = web.post("/v2/models/tensorrt_llm_bls/generate", json=renamed).json()
print(answer["text_output"])


# %% [markdown]
# The answer begins with the question, for an engine repeats the prompt, and `echo` is a name that nobody reads. The
# chat template is missing, so the model continues your text instead of answering. And it is greedy, whatever the
# temperature says.
#
# **Translated**: `translate` takes the request, the API it comes from and the API it goes to. It returns the request
# and notes.

# %%
def render(messages):
    return chat.render(tokenizer, messages)


request, notes = translate(body, "chat", "engine", template=render)
print(*notes, sep="\n")

# %% [markdown]
# A *renamed* note is a new name. *written* means that the APIs differ in what they do when nothing is said, so it has
# to be said. *differs* means: taken, but it acts differently. Here is the request, and its answer:

# %%
print({**request, "text_input": "…"})
print(repr(ask(request)))

# %% [markdown]
# **Exercise 12.2** Translate this body of `/v1/completions` by hand into a request for `ensemble`, so that it means the
# same: `{"prompt": "Name a fruit.", "max_tokens": 8, "n": 3, "temperature": 0.8}`.

# %% tags=["exercise:12.2"]
answer_2 = None  # a dict of tensors of the engine lane

# %% tags=["check:12.2", "nbval-check-output"]
check("12.2", answer_2)

# %% [markdown]
# Now turn it round. One sampled request of the engine lane goes out to every other API and comes back. **Predict:**
# does the model give the same text for all of them?

# %%
original = {**plain, "temperature": temperature, "top_p": 0.9, "seed": seed}
expected = ask(original)
for api in ("engine_old", "llm_api", "completions", "llmapi"):
    there, _ = translate(original, "engine", api)
    back, _ = translate(there, api, "engine")
    assert ask(back) == expected
    print(f"{api:12} same text, through", *sorted(set(there) - {"text_input", "inputs", "prompt"}))

# %% [markdown]
# Four sets of names, one meaning. It is not equal by luck: the seed made the round trip too, so all five runs drew the
# same random numbers.
#
# ## 6 The LLM API
#
# What does a program for the LLM API look like? The same request, translated and written out. `model` may be a
# folder with a Hugging Face checkpoint, or its name.

# %%
there, notes = translate({**original, "text_input": question}, "engine", "llm_api")
hub = "HuggingFaceTB/SmolLM2-135M-Instruct"
program = llm_api.script(there, hub)
print(program)
print(*notes, sep="\n")

# %% [markdown]
# Eight lines, no build. Look at what the notes say about the seed: the field exists in every version, yet until August
# 2026 the PyTorch backend's sampler drew from one generator for all requests. Penalties and bad words were ignored in
# the same way, without an error ([issue 9442](https://github.com/NVIDIA/TensorRT-LLM/issues/9442)).
#
# Where the machine can, the program runs now, in a process of its own.

# %%
if why_not:
    print(f"not run here: {why_not}")
else:
    (path := Path(scratch.name) / "ask.py").write_text(program.replace(hub, str(assets.resolve("smollm2"))))
    print(subprocess.run([sys.executable, path], check=True, capture_output=True, text=True).stdout)

# %% [markdown]
# ### trtllm-serve
#
# The same class behind OpenAI's paths is one command, in the container or where the package is installed. Give it the
# loopback address, or everyone on your network may use it:
#
# `trtllm-serve HuggingFaceTB/SmolLM2-135M-Instruct --host 127.0.0.1 --port 8000 --max_batch_size 8`
#
# And this is our request as a client sends it. This command and this request were not run here.

# %% tags=["nbval-check-output"]
there, notes = translate({**original, "text_input": question, "stream": True}, "engine", "completions")
print("POST /v1/completions", json.dumps({"model": "smollm2", **there}, indent=1))

# %% [markdown]
# A last difference is a good one: `trtllm-serve` refuses a name that it does not know, where Triton's `/generate` takes
# it for a parameter that nobody reads.
#
# Triton has an [OpenAI front end](https://github.com/triton-inference-server/server/tree/main/python/openai) of its
# own. With an engine behind it, it translates as you did, for about ten parameters: the limit, stop words, sampling,
# penalties, the seed.
#
# ## 7 The llmapi model
#
# You can have the LLM API inside Triton: NVIDIA ships a Python model, `llmapi`, that calls `LLM`. It is one folder.
# We write its two text files; its program lies in the container, under `/app/all_models/llmapi`.

# %% tags=["nbval-check-output"]
shutil.rmtree(repository / "llmapi", ignore_errors=True)  # if you run this cell again
folder = llm_api.write_llmapi(repository, hub, name="llmapi")
for path in sorted(folder.rglob("*.*")):
    print(path.relative_to(repository))
print()
print((folder / "1" / "model.yaml").read_text())

# %% [markdown]
# `model.yaml` holds the arguments of `LLM`, and `triton_config` what Triton must know. With `decoupled: false` it
# cannot stream. And the inputs? They come from the table of section 3:

# %% tags=["nbval-check-output"]
config = llm_api.llmapi_config("llmapi")
print(*[line for line in to_text(config).splitlines() if line.startswith("input")], sep="\n")

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
# A request with the right names arrives whole:

# %% tags=["nbval-check-output"]
there, _ = translate({"text_input": "Hi", "max_tokens": 100, "stop_words": ["."]}, "engine", "llmapi")
print(client.infer_inputs("llmapi", there).text)

# %% [markdown]
# Now an old client, written for the ensemble: `text_input` and `max_tokens=100`.
#
# **Exercise 12.3** How many tokens can its answer have at most, over gRPC and over `/generate`? Give a number, or
# `"error"`.

# %% tags=["exercise:12.3"]
answer_3 = {"grpc": None, "http": None}  # a number of tokens or "error", for each

# %% [markdown]
# Over gRPC, sent unchecked so that you read the server's own words. The second try keeps the batch dimension.

# %% tags=["nbval-check-output"]
text, limit = np.array([b"Hi"], object), np.array([100], np.int32)
for inputs in ({"text_input": text, "max_tokens": limit}, {"text_input": text[None]}):
    try:
        print(client.infer_inputs("llmapi", inputs, checked=False).text)
    except ClientError as error:
        print(error)

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
#
# ## 8 What gets lost
#
# A request of the engine lane that uses more of it. **Predict** for each of its wishes: renamed, kept or lost on the
# way to `llmapi`?

# %% tags=["nbval-check-output"]
rich = {
    "text_input": "Hi",
    "max_tokens": 50,
    "num_return_sequences": 2,
    "top_p": 0.9,
    "min_tokens": 5,
    "repetition_penalty": 1.2,
    "return_log_probs": True,
    "bad_words": ["no"],
}
lost = {}
for api in ("llm_api", "completions", "llmapi"):
    _, notes = translate(rich, "engine", api)
    lost[api] = [note.parameter for note in notes if note.kind == "lost"]
    print(f"{api:12} {dict(Counter(note.kind for note in notes))}, lost: {', '.join(lost[api]) or 'nothing'}")

# %% [markdown]
# The LLM API has a place for all of it. Behind OpenAI's path the bad words are gone, and in `llmapi` most wishes. If
# your clients need those, serve with `trtllm-serve`, or write a Triton model of your own around `LLM`. The reasons, in
# full:

# %% tags=["nbval-check-output"]
for note in notes:
    if note.kind != "renamed":
        print(note)

# %% [markdown]
# ## Recap
#
# - Engines end with 1.3.0rc20. After it a checkpoint is served as it is, by `LLM`, `trtllm-serve` or `llmapi`.
# - The same three values are greedy on one API and sample on another. Say what you want.
# - A renaming keeps names right and meanings wrong: defaults differ for the limit, the prompt, the stop word, sampling.
# - `llmapi` (1.3.0rc3) has 17 inputs, prefixes, and no batch dimension. Over HTTP an old client gets 32 tokens and no
#   error.
# - A field that is accepted may still be ignored. Test on your version with a value that must show.
#
# ## Break it
#
# Send a request round all the APIs, one after another, and see what is left of it. **Predict:** which wish survives
# the whole trip?

# %% tags=["nbval-check-output"]
here, now = "engine", rich
for target in ("completions", "llm_api", "llmapi", "engine"):
    now, notes = translate(now, here, target)
    here = target
    print(f"{target:12} loses {[note.parameter for note in notes if note.kind == 'lost'] or 'nothing'}")
print(now)

# %% [markdown]
# Only what every API can say comes home. Try more: give `rich` a `beam_width` of 4, misspell a name, or send it to
# `chat`.
#
# The last line says what produced the numbers on this page.

# %%
for each in (client, web):
    each.close()
server.stop()
scratch.cleanup()
numbers = {"llm_api_ran": not why_not, "names": known, "lost_on_llmapi": len(lost["llmapi"])}
record("12", lane=lane, seed=seed, precision=precision, **numbers)
