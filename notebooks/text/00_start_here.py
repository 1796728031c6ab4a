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
# - say which lane of the course runs on your machine, and why
# - find your way through the notebooks
# - start a Triton server, stream a sentence from it, and stop it again
# - read time to first token and time per token from a stream
#
# **Time:** 10 minutes (last run: 21 s) · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# Previous: none · Next: [01 · What is an engine?](01_what_is_an_engine.ipynb)

# %%
import json
import textwrap
import time
from pathlib import Path

import httpx
import numpy as np
import psutil
from transformers import AutoTokenizer

from course import doctor, manifest
from servinglab import notebook
from servinglab.checks import check
from servinglab.figures import request_path, streaming
from servinglab.figures.style import show
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
# Serving a model needs a processor, memory, a server program and weights. The next cell looks at each of them. `OK`
# means ready, `WARN` means that something is missing which you can do without.

# %%
lines = doctor.examine()
for line in lines:
    print(f"{line.status:4}  {line.name:20}  {textwrap.shorten(notebook.shorten(line.detail), 72)}")

# %% [markdown]
# The course has two *lanes*. Both serve the same five models with the same names and the same messages:
#
# | lane | server | what computes the tokens | needs |
# |---|---|---|---|
# | `embedded` | the Triton that came with this environment | a small executor on your CPU or CUDA GPU | nothing else |
# | `trtllm` | Triton in NVIDIA's container | a TensorRT-LLM engine on a GPU | an NVIDIA GPU and Docker |
#
# `auto` takes `trtllm` inside NVIDIA's container and `embedded` everywhere else. Which one is it here?

# %%
for name, reason in doctor.lanes(lines).items():
    print(f"{name:9} {'can run here' if not reason else notebook.shorten(f'cannot run here ({reason})')[:96]}")
print("this notebook uses:", lane)

# %% [markdown]
# ## 2 The map
#
# The course follows one request from weights on disk to words on a screen. These are its notebooks, in order.

# %% tags=["nbval-check-output"]
for entry in manifest.load().notebooks:
    print(f"{entry.id:24} {entry.minutes:3} min  {entry.title}")

# %% [markdown]
# One picture goes with all of them. A client sends text. Triton holds several *models*, and each does one job: text to
# token ids, ids to more ids, ids back to text. A fourth model, the BLS (business logic scripting), calls the three.

# %%
summary = "The client talks to tensorrt_llm_bls, which calls preprocessing, tensorrt_llm and postprocessing."
show(request_path.draw("bls"), "The way of one request", summary, drawing=True)

# %% [markdown]
# ## 3 Start a server
#
# **Predict:** three waits are ahead of you. Which is the longest, which the shortest? Fill in the order before you
# measure: `"start"` is the start of the server, `"first"` the wait for the first token of an answer, `"next"` the wait
# for each token after it.
#
# **Exercise 00.1** Replace `None` by a list of the three names, longest wait first. The check comes after the
# measurement, in section 6.

# %% tags=["exercise:00.1"]
longest_first = None  # a list of "start", "first" and "next"

# %% [markdown]
# `serve` writes the models into a temporary folder, starts Triton, and prints the command that it ran. It returns when
# the server and all five models are ready to answer. Notebook 03 writes the folder by hand, notebook 04 the command.

# %%
clock = time.perf_counter
began = clock()
server = serve(precision=precision)
start_seconds = clock() - began

# %% [markdown]
# It listens on this machine only, on ports that were free. Triton serves what it finds in a *model repository*: one
# folder for each model, with a `config.pbtxt` inside. Is each of them ready? Status 200 means yes.

# %% tags=["nbval-check-output"]
url = server.http_url
for folder in sorted(server.repository.iterdir()):
    print(f"{folder.name:18}", httpx.get(f"{url}/v2/models/{folder.name}/ready", trust_env=False).status_code)

# %% [markdown]
# ## 4 The weights
#
# The model is SmolLM2-135M-Instruct: 135 million numbers, small enough for a laptop. `make course` fetched it once.
# From then on it is read from a cache folder, also without a network. The configuration of `tensorrt_llm` says where.
#
# They come in a Python package, rounded to four bits each (GGUF's Q4_1; the embedding to eight), not from the hub,
# where they have sixteen. So this SmolLM2 may answer otherwise than the hub's; notebook 02 looks at the numbers.

# %%
config = httpx.get(f"{url}/v2/models/tensorrt_llm/config", trust_env=False).json()
engine = Path(config["parameters"]["gpt_model_path"]["string_value"])
print(notebook.shorten(engine))
for file in sorted(engine.iterdir()):
    print(f"{file.stat().st_size / 1e6:8.1f} MB  {file.name}")

# %% [markdown]
# This folder is an *engine*: the weights in the form that the executor runs. Four bytes a weight give about 540 MB; the
# int4 engine stores most weights in half a byte.
#
# ## 5 The first sentence
#
# An *instruct* model was trained on conversations, so your question is first wrapped in the marks of one: who speaks,
# and where a turn ends. That wrapping is the model's *chat template*. It comes with the tokenizer, whose folder the
# model `preprocessing` knows.

# %%
config = httpx.get(f"{url}/v2/models/preprocessing/config", trust_env=False).json()
tokenizer = AutoTokenizer.from_pretrained(config["parameters"]["tokenizer_dir"]["string_value"])
conversation = [{"role": "user", "content": prompt}]
question = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
print(question)


# %% [markdown]
# The answer comes over HTTP, as *server-sent events*: one line `data: {…}` for each piece. This function yields each
# piece of text with the seconds since the request was sent. (Notebook 05 does the same over gRPC.)

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
# Here it comes. Every piece of text below was printed the moment it arrived. With no sampling parameter the model
# always takes its likeliest next token (*greedy* decoding), so you will read the same sentence every time.

# %%
pieces = []
for seconds, text in ask(max_tokens):
    print(text, end="", flush=True)
    pieces.append((seconds, text))

# %% [markdown]
# A fluent answer, streamed through a real server. A model of this size often gets facts wrong; serving it works exactly
# like serving a large one.
#
# ## 6 How long did it take?
#
# A piece with text is one token (or more, where several make one character).

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
# Before the first token the server has to read your whole prompt; after that, each token costs one step of the model.
# The figure shows every wait.

# %%
title = f"The first token took {first_seconds * 1000:.0f} ms, each next about {next_seconds * 1000:.0f} ms"
summary = f"one stream of {len(arrivals)} tokens: a wait for the first token, then shorter waits for the others"
show(streaming.token_timeline({"answer": arrivals}, lane=lane), title, summary)


# %% [markdown]
# **Exercise 00.2** Write a function that takes the arrival times of an answer and returns how many tokens a second the
# model generates *once it has started*. Mind what lies between the arrivals: with three tokens you waited twice.

# %% tags=["exercise:00.2"]
def tokens_per_second(arrivals):
    """arrivals: seconds since the request, one for each token. Returns tokens/s after the first token."""


# %% tags=["check:00.2", "nbval-check-output"]
check("00.2", tokens_per_second)

# %% [markdown]
# ## 7 What does max_tokens bound?
#
# **Predict:** ask the same question with `max_tokens=5`. The question itself is longer than five tokens. Do you get an
# error, nothing, or five tokens?

# %%
short = [text for _, text in ask(5) if text]
print(len(short), "pieces:", short)

# %% [markdown]
# **Exercise 00.3** A prompt has 30 tokens and you send `max_tokens=12`. The model does not stop by itself. How many
# tokens are there at the end, prompt included?

# %% tags=["exercise:00.3"]
total_tokens = None  # a number

# %% tags=["check:00.3", "nbval-check-output"]
check("00.3", total_tokens)

# %% [markdown]
# ## Recap
#
# - A lane is a server and something that computes tokens. Both lanes speak the same language.
# - A repository of five models turns text into ids, ids into more ids, and those into text.
# - Time to first token and time per token are two different numbers; a good report gives both.

# %% [markdown]
# ## Break it
#
# Break the server as roughly as you can: kill its process from outside, in the middle of an answer. **Predict:** does
# the loop hang, end quietly, or say what happened?

# %% tags=["varies"]
try:
    for number, _ in enumerate(ask(max_tokens)):
        if number == 2:
            psutil.Process(server.pid).kill()
except httpx.TransportError as error:
    print(type(error).__name__, "-", error)

# %% [markdown]
# One sentence, at once. Start the server again whenever you like: `server.start()`. We stop instead, twice, because a
# second `stop()` must do no harm.

# %% tags=["nbval-check-output"]
server.stop()
server.stop()
print("process:", server.pid)

# %% [markdown]
# Is anything left? Ask the port that it used.

# %% tags=["nbval-check-output"]
try:
    httpx.get(f"{url}/v2/health/live", timeout=2, trust_env=False)
    print("still answering")
except httpx.ConnectError:
    print("nobody answers at the old port")

# %% [markdown]
# Nobody is left, and the temporary folder goes with this notebook's kernel. Run the notebook again from the top
# whenever you like, and break what you like.
#
# The last line says what produced the numbers on this page.

# %%
waits = {"start_s": round(start_seconds, 2), "first_token_ms": round(first_seconds * 1000, 1)}
notebook.record(**waits, next_token_ms=round(next_seconds * 1000, 1))
