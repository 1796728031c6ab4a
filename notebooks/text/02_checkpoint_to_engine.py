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
# # 02 · From checkpoint to engine
#
# You turn weights into a checkpoint and the checkpoint into an engine, prove that it is still the same model, and set
# the limits that decide which requests a server accepts.
#
# After this notebook you can
#
# - say what a converter does to names, shapes and precision, and prove that nothing was lost
# - cut a model over several GPUs
# - build an engine with the flags of TensorRT-LLM
# - work out whether a model fits a GPU
# - choose limits with which a server accepts your requests
#
# **Time:** 50 minutes · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# read: 12 min, do: 38 min
#
# Previous: [01 · What is an engine?](01_what_is_an_engine.ipynb) · Next: [03 · Repository](03_model_repository.ipynb)

# %%
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import httpx
import matplotlib.pyplot as plt
import numpy as np
import torch
import tritonclient.grpc as grpcclient
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM, logging
from tritonclient.utils import InferenceServerException

from engines.memory import estimate
from engines.reference import logits
from engines.shards import load_checkpoint
from plots import checkpoints as figures
from servinglab import assets, notebook
from servinglab.checks import check
from servinglab.explore import explore
from servinglab.figures.style import show
from servinglab.serving import serve

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
dtype: str = "float16"  # precision of the first checkpoint: "float16" or "float32"
prompt: str = "The capital of France is"  # the last words of the text that the checkpoints read
seed: int = 0  # seed of the random numbers

# %% [markdown]
# A *converter* renames, fuses and cuts weights; `trtllm-build` turns them into an engine; a server loads it.
#
# ![convert makes a checkpoint of a Hugging Face folder, build an engine of the checkpoint](pictures/02_commands.svg)
#
# `course convert` and `course build` do both here, with the flags and files of NVIDIA's programs. (In the lane
# `trtllm`, the build is `trtllm-build` itself.) The function `course` runs such a command line.

# %%
lane = notebook.begin("02", lane, seed=seed, weights=dtype)
torch.set_num_threads(1)  # the sums are small; more threads would mostly wait for each other
root = Path(tempfile.mkdtemp())


def course(line, lines=99):
    program = [sys.executable, "-m", "course.cli"]
    if lane == "trtllm" and line.startswith("build "):
        line, program = line.removeprefix("build "), ["trtllm-build"]
    print("$ course" if len(program) > 1 else "$ trtllm-build", line)
    done = subprocess.run([*program, *shlex.split(line)], cwd=root, capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).replace(f"{root}/", "").splitlines()
    print(*said[:lines], sep="\n")


# %% [markdown]
# ## 1 What does the converter change?
#
# SmolLM2 is a small Llama: 30 layers, 9 query heads, 3 heads for keys and values, 64 numbers a head. Three query heads
# share one key-value head; that is **grouped-query attention** (GQA). Read one layer of its file.

# %% tags=["nbval-check-output"]
source = assets.resolve("smollm2")
with safe_open(source / "model.safetensors", "np") as file:
    print(len(file.keys()), "tensors")
    hub = {name: file.get_tensor(name) for name in file.keys() if ".layers." not in name or ".layers.0." in name}
for name in ("q_proj", "k_proj", "v_proj"):
    print(name, hub[f"model.layers.0.self_attn.{name}.weight"].shape)

# %% [markdown]
# A weight is stored as [outputs, inputs]: `q_proj` makes $9 \cdot 64 = 576$ numbers, `k_proj` $3 \cdot 64 = 192$.
# TensorRT-LLM stacks query, key and value into one tensor `qkv`. Convert:

# %%
course(f"convert --model_dir smollm2 --output_dir {dtype} --dtype {dtype}")

# %% [markdown]
# **Predict:** how many rows does `qkv` have? How many of the 272 tensors are left? And the MLP, the block after
# attention, is $\mathrm{down}(\mathrm{silu}(\mathrm{gate}(x)) \cdot \mathrm{up}(x))$: which of the three becomes
# `mlp.gate`? To find out, search each new tensor for the bytes of the old ones.

# %%
with safe_open(root / dtype / "rank0.safetensors", "np") as file:
    count = len(file.keys())
    ours = {name: file.get_tensor(name) for name in file.keys() if ".layers." not in name or ".layers.0." in name}
old, new = ({name: array.astype(dtype).tobytes() for name, array in each.items()} for each in (hub, ours))
found = [(name, place) for name, part in old.items() for place, whole in new.items() if part in whole]
layer, shapes = "transformer.layers.0", [{name: array.shape for name, array in each.items()} for each in (hub, ours)]
rows = shapes[1][f"{layer}.attention.qkv.weight"][0]
summary = "; ".join(f"{name.split('.')[-2]} → {place.split('.')[-2]}" for name, place in found)
show(figures.renamed(*shapes, found), f"{count} tensors are left; qkv has {rows} rows", summary, drawing=True)

# %% [markdown]
# - `qkv` has $576 + 2 \cdot 192 = 960$ rows.
# - Three tensors became one in each of 30 layers: $272 - 2 \cdot 30 = 212$. The 213th is `lm_head`: the model uses its
#   embedding at both ends (**tied**), and a checkpoint of TensorRT-LLM has two copies.
# - `up_proj` became `gate`, and `gate_proj` became `fc`! Both have the same shape, so a mix-up gives no error. You will
#   try that at the end.
#
# <details><summary>GPT-2 and Gemma; one copy in the engine?</summary>
#
# GPT-2's `c_attn` is q, k and v already, stored as [inputs, outputs]: the converter transposes every weight. Gemma's
# norms multiply by $1 + w$: the converter adds the 1. A build of GPT-2 with 0.20 reports the bytes of two tied tables;
# section 7 counts two.
#
# </details>

# %% [markdown]
# ## 2 How far off is a model with fewer bits?
#
# Beside the weights lies `config.json`, which the build reads first. It says what shapes do not:

# %%
config = json.loads((root / dtype / "config.json").read_text())
for key in ("architecture", "dtype", "num_attention_heads", "num_key_value_heads", "mapping", "quantization"):
    print(f"{key:20} {json.dumps(config[key])[:90]}")

# %% [markdown]
# Is it still the same model? Compare its **logits**, one score for each token of the vocabulary. First come those of
# Hugging Face's code on the original file.

# %%
logging.set_verbosity_error()
logging.disable_progress_bar()
tokenizer = Tokenizer.from_file(str(assets.tokenizer("smollm2") / "tokenizer.json"))
text = """Water boils at a hundred degrees, and ice melts at zero. Two and two make four, and a week has seven days.
She took her bag, opened the door and went out into the rain. A computer does what it is told, not what you meant.
The ships came home in the evening, and the children ran down to the harbour to count them. """
ids = torch.tensor([tokenizer.encode(text + prompt).ids])
with torch.no_grad():
    expected = LlamaForCausalLM.from_pretrained(source, dtype=torch.float32)(ids).logits.numpy()
print("logits of shape", expected.shape, "between", expected.min().round(1), "and", expected.max().round(1))

# %% [markdown]
# One row for each token of the text. Next, fewer bits. float16 keeps 11 binary digits of a number, bfloat16 only 8.
# **Weight-only quantisation** stores weights as integers of 8 or 4 bits and multiplies in float16. Each row of a weight
# has one scale, by which its largest number becomes the largest integer.
#
# **Predict:** who rounds to int8, the converter or `trtllm-build`? Look at the size of the file.

# %%
other = "float32" if dtype == "float16" else "float16"
course(f"convert --model_dir smollm2 --output_dir {other} --dtype {other}", lines=1)
int8 = "--use_weight_only --weight_only_precision int8"
course(f"convert --model_dir smollm2 --output_dir int8 --dtype float16 {int8}", lines=1)
full, half, w8 = (load_checkpoint(root / name) for name in ("float32", "float16", "int8"))
print(w8.config["quantization"]["quant_algo"], "· same numbers as in float16:",
      all(torch.equal(tensor, half.ranks[0][name]) for name, tensor in w8.ranks[0].items()))  # fmt: skip


# %% [markdown]
# Not the converter: the file is as large as before. `W8A16` (weights 8 bits, activations 16) is an order, which
# `trtllm-build` carries out.
#
# Now our `logits` runs five checkpoints in plain PyTorch, and rounds as the build would. (The cell rounds to bfloat16
# itself.)
#
# **Predict:** how many times as far off is bfloat16 as float16? And int4 as int8? Which choose the same next tokens?

# %%
def told(checkpoint):
    """The largest difference of a logit, and the share of positions where the same token is next."""
    got = logits(checkpoint, ids)
    return float(np.abs(got - expected).max()), float(np.mean(got.argmax(-1) == expected.argmax(-1)))


order = {**w8.config["quantization"], "quant_algo": "W4A16"}
w4 = replace(w8, config={**w8.config, "quantization": order})
bf16 = replace(full, ranks=[{name: weight.bfloat16() for name, weight in full.ranks[0].items()}])
kinds = {"float32": full, "float16": half, "bfloat16": bf16, "int8": w8, "int4": w4}
off = {name: told(checkpoint) for name, checkpoint in kinds.items()}
times = [off[more][0] / off[less][0] for less, more in (("float16", "bfloat16"), ("int8", "int4"))]
title = "bfloat16 is {:.0f} times as far off as float16, int4 {:.0f} times as far as int8".format(*times)
show(figures.differences(off), title, "; ".join(f"{name} off by {far:.2g}" for name, (far, _) in off.items()))


# %% [markdown]
# With float32 only the order of additions differs: nothing was lost or mixed up. Each missing bit makes the steps twice
# as wide: $2^3 = 8$ times from float16 to bfloat16, $2^4 = 16$ times from int8 to int4. The largest of many differences
# follows that roughly. In this text float16 and bfloat16 choose the same tokens everywhere, int8 at all but a few
# places; int4 with one scale per row ruins this model. Four bits need finer scales: AWQ has one for 128 weights.
# (GGUF's Q4_1, from which our weights come, has one for 32.)

# %% [markdown]
# ## 3 How do several GPUs share a model?
#
# A model too large for one GPU is cut. With **tensor parallelism** (TP) every GPU, called a *rank*, holds a part of
# *every* layer. A weight [outputs, inputs] can be cut in two ways:
#
# ![Three ranks: fc and gate are cut by outputs, proj by inputs; an all-reduce adds the shares](pictures/02_split.svg)
#
# Cut by *outputs*, each rank makes different numbers: **column parallel**. Cut by *inputs*, each rank has a share of
# every number: **row parallel**. Do the MLP by hand: each rank takes a third of the rows of `fc` and `gate`, and the
# matching third of the columns of `proj`.
#
# **Predict:** the sum of three shares is the whole answer. How close is one share alone?

# %%
def silu(x):
    return x / (1 + np.exp(-x))


ranks = 3
fc, gate, proj = (hub[f"model.layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
x = np.random.default_rng(seed).standard_normal((5, 576)).astype(np.float32)
whole = silu(x @ fc.T) * (x @ gate.T) @ proj.T
cut = zip(np.split(fc, ranks), np.split(gate, ranks), np.split(proj, ranks, axis=1), strict=True)
shares = [silu(x @ f.T) * (x @ g.T) @ w.T for f, g, w in cut]

# %% [markdown]
# A dot on the diagonal is a right number:

# %%
fig, axes = plt.subplots(figsize=(7.5, 3.2))
for name, found in {"one share": shares[0], "sum of three": sum(shares)}.items():
    axes.plot(whole.ravel(), found.ravel(), ".", alpha=0.6, label=name)
axes.set(xlabel="number of the whole answer", ylabel="found")
axes.legend()
one, all_reduced = (np.abs(found - whole).max() for found in (shares[0], sum(shares)))
title = f"One share is off by up to {one:.0f}, the sum of three by {all_reduced:.4f}"
show(fig, title, "the sums lie on the diagonal; one rank's shares spread wide about a flatter line")

# %% [markdown]
# One share alone is nowhere near, only the sum is right. On GPUs the sum is an **all-reduce**, done by NCCL, NVIDIA's
# communication library.
#
# Attention is cut by heads. A rank needs its query heads and the key-value heads that they use. **Predict:** `qkv` has
# 960 rows. Does rank 0 get the first 320? And can the tool cut SmolLM2 over 2 ranks? Over 3?

# %%
for number in (2, 3):
    course(f"convert --model_dir smollm2 --output_dir tp{number} --dtype {dtype} --tp_size {number}", lines=3)
split = load_checkpoint(root / "tp3")
theirs = split.ranks[0][f"{layer}.attention.qkv.weight"].numpy()
q, k, v = (hub[f"model.layers.0.self_attn.{name}_proj.weight"].astype(dtype) for name in "qkv")
for name, rows in {"first rows": q[:320], "a third of each": np.concatenate([q[:192], k[:64], v[:64]])}.items():
    print(f"{name:15} {np.array_equal(theirs, rows)}")

# %% [markdown]
# Over 3 only: a head is never cut, and 2 does not divide 9. Rank 0 gets a third of each, since the first 320 rows are
# queries only. (Each file also has the whole input embedding.)
#
# ![qkv has 9 query heads, 3 key heads and 3 value heads; each rank gets 3, 1 and 1 of them](pictures/02_heads.svg)
#
# Attention then needs no communication inside. Its output product `dense` is row parallel, like `proj`, and takes the
# layer's second all-reduce.
#
# **Predict:** run every rank and add the shares. What does the model say if the last rank's share never comes?

# %%
silent = {name: 0 * w if name.endswith(("dense.weight", "proj.weight")) else w for name, w in split.ranks[-1].items()}
for name, last in {"all ranks": split.ranks[-1], "last one silent": silent}.items():
    far, same = told(replace(split, ranks=[*split.ranks[:-1], last]))
    print(f"{name:16} off by {far:6.3f}, same next tokens {same:.0%}")


# %% [markdown]
# Without the last share the model says something else, and there is no error. (On real GPUs the all-reduce would wait
# for the dead rank.)

# %% [markdown]
# **Exercise 02.1** (●●○, 8 minutes) How many rows does `qkv` have on *each* rank? When there are fewer key-value heads
# than ranks, a head is not cut: neighbours hold the same one. `qkv_rows(9, 3, 64, 1)` is 960.
#
# <details><summary>Hint 1</summary>
#
# How many heads of queries, of keys and of values has one rank? Can a rank without a key-value head compute anything?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Try 8 query heads and 1 key-value head on 4 ranks: what does each rank hold? And how many tensors does a key-value
# head bring?
#
# </details>

# %% tags=["exercise:02.1"]
def qkv_rows(heads, kv_heads, head_size, tp_size):
    """Returns the rows of the fused tensor on one rank."""


# %% tags=["check:02.1", "nbval-check-output"]
check("02.1", qkv_rows)

# %% [markdown]
# <details><summary>Solution 02.1</summary>
#
# ```python
# def qkv_rows(heads, kv_heads, head_size, tp_size):
#     return (heads // tp_size + 2 * max(1, kv_heads // tp_size)) * head_size
# ```
#
# </details>

# %% [markdown]
# ## 4 What does a build fix?
#
# In NVIDIA's container you type three commands: download, convert, build. Print them:

# %% tags=["nbval-check-output"]
course("engine recipe smollm2 --trtllm 1.2.1")

# %% [markdown]
# `--tp_size` goes to the converter only: `trtllm-build` reads it from `config.json`. The build's own flags are mostly
# **limits**: how many requests at once, how many tokens each. Build with small ones, and read them:

# %%
course(f"build --checkpoint_dir {dtype} --output_dir plain --max_batch_size 2 --max_seq_len 128", lines=2)
built = json.loads((root / "plain" / "config.json").read_text())
for key in ("max_batch_size", "max_seq_len", "max_input_len", "max_beam_width", "max_num_tokens"):
    print(f"{key:15} {built['build_config'][key]}")

# %% [markdown]
# `max_num_tokens` bounds one step over all requests together. Here the engine is the weights as our own server loads
# them; `trtllm-build` takes minutes, and writes a plan as in notebook 01.
#
# Most guides are for an older TensorRT-LLM. **Predict:** what becomes of a line that allows answers of 200 tokens with
# `--max_output_len`?

# %%
course(f"build --checkpoint_dir {dtype} --output_dir old --max_output_len 200", lines=3)

# %% [markdown]
# It is refused: `--max_seq_len` counts prompt *and* answer.
#
# <details><summary>When versions do not fit</summary>
#
# - A flag is gone: `course engine recipe gemma-2b --trtllm 0.9.0 --explain` says what it did.
# - An engine does not load: `course engine check A --container 26.07` says why, `course engine diff A B` compares two.
# - `unexpected keyword argument 'moe_tp_size'` ([issue 1890](https://github.com/NVIDIA/TensorRT-LLM/issues/1890)): take
#   `convert_checkpoint.py` from `/app/examples` of the container that has your wheel.
# - Which container? `course engine versions --driver 570.124.06` knows.
# - A weights file holds three lines of text: clone the hub's page with `git lfs`.
#
# The sources: [`trtllm-build`](https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/commands/build.py), the
# [backend](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/tensorrtllm_backend/docs/build.html),
# the [runtime in C++](https://nvidia.github.io/TensorRT-LLM/advanced/gpt-runtime.html) and [in
# Python](https://nvidia.github.io/TensorRT-LLM/python-api/tensorrt_llm.runtime.html).
#
# </details>

# %% [markdown]
# ## 5 What does a token cost?
#
# For every token a model keeps a key and a value in every layer: the **KV cache**. One token takes
#
# $$2 \cdot \text{layers} \cdot \text{KV heads} \cdot \text{head size} \cdot \text{bytes of a number}$$
#
# **Predict:** gemma-2b is over seven times as large as gpt2-medium. Is its cache larger?

# %% tags=["nbval-check-output"]
for name, (layers, kv_heads, head_size) in {"gpt2-medium": (24, 16, 64), "gemma-2b": (18, 1, 256)}.items():
    known = estimate(name, dtype="float16")
    by_hand = 2 * layers * kv_heads * head_size * 2
    print(f"{name:12} weights {known.weights_bytes / 1e9:5.2f} GB, cache {by_hand:6,} bytes a token by hand,",
          f"{known.kv_bytes_per_token:6,} by the estimator")  # fmt: skip

# %% [markdown]
# No: its cache is less than a fifth as large, because all its query heads share a single KV head.
#
# ![Eight query heads with eight key-value heads, nine with three, eight with one](pictures/02_shared.svg)
#
# ## 6 Does a server take what the formula says?
#
# Start Triton on `plain`, the engine of section 4, with room for 640 tokens in its cache. It keeps the blocks of
# requests that have ended, for others that begin alike (notebook 04). On a CPU each number has 4 bytes.

# %%
settings = {"max_tokens_in_paged_kv_cache": 640, "parameters": {"stats_check_period_ms": 100}}
server = serve(root / "served", engine_dir=root / "plain", max_batch_size=2, decoupled=False, **settings)
client = grpcclient.InferenceServerClient(server.grpc_url)


# %% [markdown]
# `send` asks with ids and returns how many tokens came back (*beams* are answers followed side by side, notebook 09);
# `held` reads the memory of the model's process from Triton's metrics.

# %%
def send(ids, wanted=1, beams=1):
    tokens = ids.shape[1]
    values = {"input_ids": ids, "input_lengths": [[tokens]], "request_output_len": [[wanted]], "beam_width": [[beams]]}
    tensors = [grpcclient.InferInput(name, np.shape(value), "INT32") for name, value in values.items()]
    for tensor, value in zip(tensors, values.values(), strict=True):
        tensor.set_data_from_numpy(np.array(value, np.int32))
    return int(client.infer("tensorrt_llm", tensors).as_numpy("sequence_length").min()) - tokens


def held():
    time.sleep(0.3)  # the metrics are renewed ten times a second
    page = httpx.get(server.metrics_url, trust_env=False).text
    return float(re.search(r'runtime_memory_metrics\{memory_type="cpu".*\} (\S+)', page)[1]) / 1e6


# %% [markdown]
# The first request brings working memory, too, so count from there. A prompt of 120 tokens takes two blocks of 64.
#
# **Predict:** send seven more, all different. With how many of them does the process grow: all, none, four?

# %%
rng, sizes = np.random.default_rng(seed), []
for _ in range(8):
    send(rng.integers(100, 40_000, (1, 120)))
    sizes.append(held())
grown, more = np.array(sizes) - sizes[0], np.arange(8)
per_token = estimate(root / "plain", kv_dtype="float32").kv_bytes_per_token
expected_mb = per_token * np.minimum(128 * more, 640 - 128) / 1e6
fig, axes = plt.subplots(figsize=(7.5, 2.8))
axes.plot(more, expected_mb, "k--", linewidth=1, label=f"estimate: {per_token:,} bytes a token, 640 tokens at most")
axes.plot(more, grown, "o", label="measured")
axes.set(xlabel="requests after the first", ylabel="MB more than after it", ylim=(-2, 1.3 * expected_mb[-1]))
axes.legend(loc="lower right")
summary = "; ".join(f"{n}: {mb:.1f} MB" for n, mb in zip(more, grown, strict=True))
show(fig, f"Grown by {grown[-1]:.1f} MB; the estimate says {expected_mb[-1]:.1f} MB", summary)


# %% [markdown]
# With four: then the cache is full, and the server drops old blocks. The formula is right within a few percent.
# (TensorRT-LLM takes the whole cache at the start: on a GPU the line is flat.)
#
# ## 7 Will it fit?
#
# A GPU needs room for `max_batch_size` times `max_seq_len` tokens, for weights, activations, logits, and a margin for
# CUDA. Of what is left for the cache, a server takes 90 %; the rest is "left free".
#
# **Predict:** llama-7b with 16 sequences of 2,048 tokens is too large for a GPU of 24 GB. Which of these saves it: half
# the tokens, an int8 cache, int8 weights, two GPUs? (A live notebook has sliders.)

# %%
def plan(axes, sequences, tokens, gpu):
    asked = {"gpu": gpu, "max_batch_size": sequences, "max_seq_len": tokens}
    shorter, weights = {"max_seq_len": tokens // 2}, {"weight_only": "int8"}
    changes = {"as asked": {}, "half the tokens": shorter, "int8 cache": {"kv_dtype": "int8"}, "int8 weights": weights,
               "half of both": shorter | weights, "2 GPUs (one shown)": {"tp_size": 2}}  # fmt: skip
    known = {name: estimate("llama-7b", **asked | change) for name, change in changes.items()}
    figures.memory_bars(known, axes)
    return [name for name, each in known.items() if each.fits]


sliders = {"sequences": range(1, 33), "tokens": range(256, 2049, 256), "gpu": ["24gb", "rtx-4090", "h100"]}
title = lambda fit: f"What fits: {', '.join(fit[0]) or 'nothing'}"  # noqa: E731
summary = "memory as asked, with half the tokens, an int8 cache, int8 weights, both, and on each of two GPUs"
explore(plan, title=title, summary=summary, live=sliders, sequences=[16], tokens=[2048], gpu=["24gb"])

# %% [markdown]
# Two GPUs do. Of the others, none is enough alone: it takes int8 weights *and* half the tokens ("half of both"). A
# server may accept more requests than fit: they wait while the cache is full.
#
# <details><summary>How exact is that, and which 24 GB?</summary>
#
# Weights and cache are exact, activations and logits upper bounds. "24gb" is the smallest GPU of that name, an L4: it
# takes 6 of llama-7b's sequences. An RTX 4090, which shows a little more of its 24 GiB, takes 7.
#
# </details>

# %% [markdown]
# ## 8 What does the server then allow?
#
# Four requests, each with the tokens of its prompt, the tokens that it wants, and its beams:

# %%
jobs = {"short question": (5, 40, 1), "long prompt": (150, 20, 1), "long answer": (100, 80, 1), "3 beams": (5, 40, 3)}

# %% [markdown]
# Your server's engine has `max_seq_len` 128 and `max_beam_width` 1. **Predict:** which of the four is refused? And
# which gets less than it wants, without an error?

# %%
got = {}
for name, (tokens, wanted, beams) in jobs.items():
    try:
        got[name] = send(np.resize(ids.numpy(), (1, tokens)), wanted, beams)
    except InferenceServerException as error:
        got[name] = error.message()
refused = [name for name, each in got.items() if isinstance(each, str)]
short = [name for name, each in got.items() if name not in refused and each < jobs[name][1]]
summary = "; ".join(f"{name}: {each if name in refused else f'{each} tokens'}" for name, each in got.items())
title = f"Refused: {', '.join(refused)}; cut without an error: {', '.join(short)}"
show(figures.served(jobs, got, built["build_config"]["max_seq_len"]), title, summary)

# %% [markdown]
# Two are refused, in a sentence that names the limit. The third is worse: its answer is cut, and only the server's log
# says so. TensorRT-LLM does the same.
#
# **Exercise 02.2** (●●○, 10 minutes) Set the limits of a build so that all four are served: whole, and at the same
# time. Neither requests, nor tokens of a sequence, nor beams may be allowed more than these four need, since limits
# cost memory. The check builds your engine, starts a Triton with it and sends the four together.
#
# <details><summary>Hint 1</summary>
#
# What does `max_seq_len` count? Which of the four is the longest by that count?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Is a beam a request? Which limit counts requests, and which beams?
#
# </details>

# %% tags=["exercise:02.2"]
flags = None  # a text such as "--max_batch_size 2 --max_seq_len 128"

# %% tags=["check:02.2", "nbval-check-output"]
check("02.2", (flags, root / dtype))

# %% [markdown]
# <details><summary>Solution 02.2</summary>
#
# ```python
# flags = "--max_batch_size 4 --max_seq_len 180 --max_beam_width 3"
# ```
#
# </details>

# %% [markdown]
# ## Recap
#
# - A converter renames, fuses, transposes and cuts. The numbers stay, up to rounding.
# - Weight-only quantisation is an order in `config.json`; `trtllm-build` carries it out.
# - Tensor parallelism cuts heads and the MLP; two sums in each layer bring the shares together.
# - Script, wheel, engine and server must be of one version. The last TensorRT-LLM that builds engines is 1.3.0rc20.
# - Limits are fixed by the build. They cost KV cache, and a server refuses or cuts what exceeds them.

# %% [markdown]
# ## Break it
#
# Swap `fc` and `gate` in every layer of SmolLM2. All names, shapes and types are right. **Predict:** an error, a
# slightly worse answer, or garbage?

# %%
swapped = dict(half.ranks[0])
for name in half.ranks[0]:
    if ".mlp.fc." in name:
        other = name.replace(".fc.", ".gate.")
        swapped[name], swapped[other] = half.ranks[0][other], half.ranks[0][name]
far, same = told(replace(half, ranks=[swapped]))
print(f"off by {far:.1f}, same next tokens {same:.0%}")

# %% [markdown]
# Garbage, and no error anywhere. So compare the logits of a few tokens before you build.

# %%
notebook.record(**{f"difference_{name}": float(f"{far:.2g}") for name, (far, _) in off.items()})
