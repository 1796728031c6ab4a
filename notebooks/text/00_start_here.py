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
# # 00 · Start here: this machine, the map, the first streamed sentence
#
# You see what this machine can do, start a real Triton with a real language model, and read its first sentence word by
# word.
#
# After this notebook you can
#
# - say which lane runs on your machine, and why
# - find your way through the notebooks
# - start a Triton server, stream a sentence from it, and stop it
# - read time to first token and time per token from a stream
#
# **Time:** 10 minutes · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# read: 4 min, do: 6 min
#
# Previous: none · Next: [01 · What is an engine?](01_what_is_an_engine.ipynb)

# %%
import json
import time
from pathlib import Path

import httpx
import numpy as np
import psutil
from transformers import PreTrainedTokenizerFast

from course import doctor
from servinglab import notebook
from servinglab.checks import check
from servinglab.figures import request_path, streaming
from servinglab.figures.style import show
from servinglab.playground import playground
from servinglab.serving import serve

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
precision: str = "fp32"  # weights of the default model: "fp32" or "int4"
prompt: str = "Explain in one sentence what an inference server does."  # your question to the model
max_tokens: int = 48  # length of the answer, in tokens; 2 or more
seed: int = 0  # seed of every sampled answer

# %%
lane = notebook.begin("00", lane, seed=seed, weights=precision)

# %% [markdown]
# ## 1 What can this machine do?
#
# Print what is missing, and the cure; `WARN` means optional. (`course doctor` in a terminal shows all.)

# %%
lines = doctor.examine()
missing = [line for line in lines if line.status != doctor.OK]
print(f"{len(lines) - len(missing)} of {len(lines)} checks: {doctor.OK}")
for line in missing:
    print(notebook.shorten(f"{line.status}  {line.name}: {line.detail}; {line.cure}"))

# %% [markdown]
# The course runs in one of two *lanes*, with the same five models:
#
# - `embedded`: this environment's Triton, with a small *executor* (the program that computes tokens) on your CPU or
#   CUDA GPU
# - `trtllm`: Triton in NVIDIA's container, with TensorRT-LLM on an NVIDIA GPU
#
# A *token* is a piece of text, often a word or part of one. `auto` takes `trtllm` inside NVIDIA's container, else
# `embedded`. Which one do you get?

# %%
for name, reason in doctor.lanes(lines).items():
    print(f"{name:9} {'can run here' if not reason else notebook.shorten(f'cannot run here ({reason})')[:96]}")
print("this notebook uses:", lane)

# %% [markdown]
# ## 2 The map
#
# The course follows one request from weights on disk to words on a screen. The black numbers are its notebooks:
#
# ![The steps from weights to a server and of one request, each with the number of its notebook](pictures/00_map.svg)
#
# Titles and times are in the [README](../README.md), terms in the [glossary](../GLOSSARY.md).
#
# Inside Triton are several *models* with one job each: text to token ids, ids to more ids, ids to text. A fourth, the
# BLS (business logic scripting), calls the three; a fifth chains them without code.

# %%
summary = "The client talks to tensorrt_llm_bls, which calls preprocessing, tensorrt_llm and postprocessing."
show(request_path.draw("bls"), "The client asks one model, which asks three others", summary, drawing=True)

# %% [markdown]
# ## 3 Start a server
#
# **Predict:** three waits are ahead: `"start"` for the server, `"first"` for an answer's first token, `"next"` for each
# token after it. Which is the longest, which the shortest?
#
# **Exercise 00.1** (●○○, 1 minute) Replace `None` by a list of the three names, longest first. Section 6 checks it.
#
# <details><summary>Hint 1</summary>
#
# What happens only once, what once for each answer, and what once for each token?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Which of the three reads a file of half a gigabyte? How many tokens must the model read before the first token of an
# answer, and how many before the next?
#
# </details>

# %% tags=["exercise:00.1"]
longest_first = None  # a list of "start", "first" and "next"

# %% [markdown]
# `serve` writes the models into a temporary folder, starts Triton on it, and returns when all five can answer. It
# prints Triton's command: find the folder, the five models and the three ports, and leave the rest for later.

# %%
clock = time.perf_counter
began = clock()
server = serve(precision=precision)
start_seconds = clock() - began

# %% [markdown]
# Each model has a folder in the *model repository*. Status 200 means that it is ready.

# %% tags=["nbval-check-output"]
url = server.http_url
for folder in sorted(server.repository.iterdir()):
    print(f"{folder.name:18}", httpx.get(f"{url}/v2/models/{folder.name}/ready", trust_env=False).status_code)

# %% [markdown]
# ## 4 The weights
#
# SmolLM2-135M-Instruct has 135 million weights. Ours come from a Python package, rounded to four bits. On the Hugging
# Face hub they have sixteen, so this SmolLM2 may answer differently.
#
# Where are they? The configuration of `tensorrt_llm` says.

# %%
config = httpx.get(f"{url}/v2/models/tensorrt_llm/config", trust_env=False).json()
engine = Path(config["parameters"]["gpt_model_path"]["string_value"])
print(notebook.shorten(engine))
for file in sorted(engine.iterdir()):
    print(f"{file.stat().st_size / 1e6:8.1f} MB  {file.name}")

# %% [markdown]
# This folder is an *engine*: the weights in the form that the executor runs. In fp32 each takes four bytes, rounded or
# not, about 540 MB in all; in int4 most take half a byte.

# %% [markdown]
# ## 5 The first sentence
#
# An *instruct* model was trained on conversations. So a *chat template* first marks who speaks and where a turn ends.
# It comes with the tokenizer, which turns text into ids.

# %%
config = httpx.get(f"{url}/v2/models/preprocessing/config", trust_env=False).json()
tokenizer = PreTrainedTokenizerFast.from_pretrained(config["parameters"]["tokenizer_dir"]["string_value"])
conversation = [{"role": "user", "content": prompt}]
question = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
print(question)


# %% [markdown]
# The answer comes over HTTP as *server-sent events*: one line `data: {…}` for each piece. `ask` yields each piece with
# the seconds since the request.

# %%
def ask(max_tokens):
    body = {"text_input": question, "max_tokens": max_tokens, "stream": True}
    began = clock()
    path = f"{url}/v2/models/tensorrt_llm_bls/generate_stream"
    with httpx.stream("POST", path, json=body, timeout=60, trust_env=False) as answer:
        for line in answer.iter_lines():
            if line.startswith("data:"):
                yield clock() - began, json.loads(line.removeprefix("data:"))["text_output"]


# %% [markdown]
# Print each piece the moment it arrives, after a short answer that warms the server up. By default the model takes its
# likeliest next token (*greedy* decoding), so the sentence is always the same.

# %%
warm_up = list(ask(2))
pieces = []
for seconds, text in ask(max_tokens):
    print(text, end="", flush=True)
    pieces.append((seconds, text))

# %% [markdown]
# A model so small gets facts wrong, but is served like a large one.

# %% [markdown]
# ## 6 How long did it take?
#
# Count each piece with text as one token.

# %%
arrivals = np.array([seconds for seconds, text in pieces if text])
gaps = np.diff(arrivals)
first_seconds, next_seconds = arrivals[0], float(np.median(gaps))
print(f"server start {start_seconds:6.2f} s")
print(f"first token  {first_seconds * 1000:6.0f} ms")
print(f"each next    {next_seconds * 1000:6.0f} ms (median of {len(gaps)})")

# %% [markdown]
# Was your order right?

# %% tags=["check:00.1", "nbval-check-output"]
check("00.1", longest_first)

# %% [markdown]
# <details><summary>Solution 00.1</summary>
#
# ```python
# longest_first = ["start", "first", "next"]
# ```
#
# </details>

# %% [markdown]
# Before the first token the server reads your whole prompt; each later token costs one step of the model.

# %%
title = f"The first token took {first_seconds * 1000:.0f} ms, each next about {next_seconds * 1000:.0f} ms"
summary = f"one stream of {len(arrivals)} tokens: a wait for the first token, then shorter waits for the others"
show(streaming.token_timeline({"answer": arrivals}, lane=lane), title, summary)


# %% [markdown]
# **Exercise 00.2** (●●○, 3 minutes) Write a function of an answer's arrival times that returns how many tokens a second
# the model generates *once it has started*.
#
# <details><summary>Hint 1</summary>
#
# How many waits lie between three arrivals?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# For arrivals at 1.0, 1.25 and 1.5 s the answer is 4. When does your clock start, and what do you count?
#
# </details>

# %% tags=["exercise:00.2"]
def tokens_per_second(arrivals):
    """arrivals: seconds since the request, one for each token. Returns tokens/s after the first token."""


# %% tags=["check:00.2", "nbval-check-output"]
check("00.2", tokens_per_second)

# %% [markdown]
# <details><summary>Solution 00.2</summary>
#
# ```python
# def tokens_per_second(arrivals):
#     return (len(arrivals) - 1) / (arrivals[-1] - arrivals[0])
# ```
#
# </details>

# %% [markdown]
# ## 7 What does max_tokens bound?
#
# **Predict:** ask again with `max_tokens=5`. The question alone is longer. Do you get an error, nothing, or five
# tokens?

# %%
short = [text for _, text in ask(5) if text]
print(len(short), "pieces:", short)

# %% [markdown]
# You get five tokens: `max_tokens` counts the answer, not the question.
#
# **Exercise 00.3** (●●○, 2 minutes) Now ask by yourself. `/generate` sends a whole answer at once, not piece by piece.
# Write the body of a request, a dict as in `ask`, for the first 12 tokens of the answer to `question`. The check sends
# it to your server.
#
# <details><summary>Hint 1</summary>
#
# Which text must the model read, `prompt` or the one that marks who speaks?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# `ask` reads many responses, one a token. How many can come at once? Which key of its body asks for many?
#
# </details>

# %% tags=["exercise:00.3"]
body = None  # a dict

# %% tags=["check:00.3", "nbval-check-output"]
check("00.3", (body, question, server))

# %% [markdown]
# <details><summary>Solution 00.3</summary>
#
# ```python
# body = {"text_input": question, "max_tokens": 12}
# ```
#
# </details>

# %% [markdown]
# ## Playground
#
# The same question, with controls for the settings of 06 to 09. The answer is sampled, so it may differ from section
# 5's. A token's colour says how likely the model found it; the bars show what else could have come.
#
# **Predict:** is the model equally sure of every token? If not, where does it doubt?

# %%
playground(server.grpc_url, question, top_k=50, max_tokens=max_tokens, seed=seed)

# %% [markdown]
# No: light tokens finish a word or a common phrase; dark ones start something new, where many could follow.

# %% [markdown]
# ## Recap
#
# - Both lanes understand the same requests.
# - Three models turn text into ids, into more ids, and into text; two more call them.
# - Time to first token and time per token are two different numbers; a good report gives both.

# %% [markdown]
# ## Break it
#
# Kill the server in the middle of an answer. **Predict:** does the loop hang, end quietly, or say what happened?

# %% tags=["varies"]
try:
    for number, _ in enumerate(ask(max_tokens)):
        if number == 2:
            psutil.Process(server.pid).kill()
except httpx.TransportError as error:
    print(type(error).__name__, "-", error)

# %% [markdown]
# It says what happened, at once. Now stop the server, twice: a second `stop()` must do no harm.

# %% tags=["nbval-check-output"]
server.stop()
server.stop()
print("process:", server.pid)

# %% [markdown]
# Is anything left?

# %% tags=["nbval-check-output"]
try:
    httpx.get(f"{url}/v2/health/live", timeout=2, trust_env=False)
    print("still answering")
except httpx.ConnectError:
    print("nobody answers at the old port")

# %% [markdown]
# The last cell records what produced this page's numbers.

# %%
waits = {"start_s": round(start_seconds, 2), "first_token_ms": round(first_seconds * 1000, 1)}
notebook.record(**waits, next_token_ms=round(next_seconds * 1000, 1))
