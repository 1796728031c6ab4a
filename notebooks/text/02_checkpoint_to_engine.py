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
# You run the two commands that turn weights into an engine, open every file they write, cut a model over three GPUs by
# hand, and prove that it is still the same model.
#
# After this notebook you can
#
# - say what a converter does to names, shapes and precision, for Llama, GPT-2 and Gemma
# - cut a model over several GPUs
# - build an engine, and compare what was built
# - write the commands for a version of TensorRT-LLM
# - work out whether a model fits a GPU
#
# **Time:** 50 minutes · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# read: 12 min, do: 38 min
#
# Previous: [01 · What is an engine?](01_what_is_an_engine.ipynb) · Next: [03 · Repository](03_model_repository.ipynb)

# %%
import difflib
import json
import shlex
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, GemmaConfig, GPT2Config, LlamaForCausalLM, logging

from engines.convert import convert
from engines.memory import estimate
from engines.reference import logits
from engines.shards import load_checkpoint
from servinglab import assets, notebook
from servinglab.checks import check
from servinglab.explore import explore
from servinglab.figures import engines as figures
from servinglab.figures.style import show

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
dtype: str = "float16"  # precision of the first checkpoint: "float16" or "float32"
prompt: str = "The capital of France is"  # a few words that the model continues
seed: int = 0  # seed of the small random models

# %% [markdown]
# A *converter* renames, fuses and cuts weights; `trtllm-build` turns them into an engine; a server loads it.
#
# ![convert makes a checkpoint of a Hugging Face folder, build an engine of the checkpoint](pictures/02_commands.svg)
#
# `course convert` and `course build` do both here, with the flags and files of NVIDIA's programs. (In the lane
# `trtllm`, the build is `trtllm-build` itself.) `course` runs such a command line.

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
    print(*(said[:lines] if lines > 0 else said[lines:]), sep="\n")


# %% [markdown]
# ## 1 The same weights under other names
#
# SmolLM2 is a small Llama: 30 layers, 9 query heads, 3 heads for keys and values, 64 numbers a head. Three query heads
# share one key-value head; that is **grouped-query attention** (GQA).
#
# Look at one layer of its file. Unlike the hub's, our weights were rounded to four bits, in blocks of 32 (GGUF's Q4_1;
# the embedding to eight). **Predict:** how many *different* numbers are there in the first 32 of a row?

# %% tags=["nbval-check-output"]
source = assets.resolve("smollm2")
with safe_open(source / "model.safetensors", "np") as file:
    print(len(file.keys()), "tensors")
    hub = {name: file.get_tensor(name) for name in file.keys() if ".layers." not in name or ".layers.0." in name}
for name, array in hub.items():
    print(f"{name:49} {array.shape}")
print("different numbers:", len(np.unique(hub["model.layers.0.self_attn.q_proj.weight"][0, :32])), "in 32")

# %% [markdown]
# At most $2^4 = 16$.
#
# A weight is stored as [outputs, inputs]: `q_proj` makes $9 \cdot 64 = 576$ numbers, `k_proj` $3 \cdot 64 = 192$.
# TensorRT-LLM stacks query, key and value into one tensor `qkv`. **Predict:** how many rows does it have? And how many
# of the 272 tensors are left? Convert and look.

# %%
course(f"convert --model_dir smollm2 --output_dir {dtype} --dtype {dtype}")

# %%
with safe_open(root / dtype / "rank0.safetensors", "np") as file:
    print(len(file.keys()), "tensors")
    ours = {name: file.get_tensor(name) for name in file.keys() if ".layers." not in name or ".layers.0." in name}
for name, array in ours.items():
    print(f"{name:49} {array.shape}")

# %% [markdown]
# It has $576 + 2 \cdot 192 = 960$ **rows**. Three tensors became one in each of 30 layers: $272 - 2 \cdot 30 = 212$.
# But there are 213: `lm_head.weight` is new. Where does it come from, and are the three parts in order?

# %% tags=["nbval-check-output"]
q, k, v = (hub[f"model.layers.0.self_attn.{name}_proj.weight"].astype(dtype) for name in "qkv")
layer = "transformer.layers.0"
embedding = hub["model.embed_tokens.weight"].astype(dtype)
print(
    "qkv is q, k, v below each other:", np.array_equal(ours[f"{layer}.attention.qkv.weight"], np.concatenate([q, k, v]))
)
print("lm_head is the embedding:       ", np.array_equal(ours["lm_head.weight"], embedding))

# %% [markdown]
# They are in order, and `lm_head` is the embedding: the model uses one table at both ends (**tied** embeddings). A
# TensorRT-LLM checkpoint has two copies, a fifth more numbers for SmolLM2.
#
# <details><summary>One copy or two in the engine?</summary>
#
# Sources disagree. The converters dropped `--use_embedding_sharing` in 0.16, because one table is shared wherever it
# can be. Yet a build of GPT-2 with 0.20 reports as many bytes as two take. The estimate of section 8 counts two.
#
# </details>
#
# One trap is left. A Llama's MLP, the block after attention, is $\mathrm{down}(\mathrm{silu}(\mathrm{gate}(x)) \cdot
# \mathrm{up}(x))$. **Predict:** which of the three becomes `mlp.gate`?

# %% tags=["nbval-check-output"]
for name in ("fc", "gate", "proj"):
    array = ours[f"{layer}.mlp.{name}.weight"]
    print(f"mlp.{name:4} was", *(there for there, other in hub.items() if np.array_equal(other.astype(dtype), array)))

# %% [markdown]
# `up_proj` does; `gate_proj` becomes `fc`! Both have the same shape, so a mix-up gives no error. You will try that at
# the end.

# %% [markdown]
# ## 2 config.json, and a proof
#
# `trtllm-build` reads this file first. It says what the shapes do not.

# %%
config = json.loads((root / dtype / "config.json").read_text())
for key, value in config.items():
    print(f"{key:32} {json.dumps(value)[:78]}")

# %% [markdown]
# <details><summary>What the keys mean</summary>
#
# - `architecture`, `hidden_act`, `norm_epsilon`, `attn_bias`: how the network is built
# - `dtype`, `logits_dtype`: precision of weights and arithmetic; logits stay float32
# - `num_attention_heads`, `num_key_value_heads`, `head_size`: how 960 rows are cut into heads
# - `position_embedding_type` and the `rotary` keys: how a token knows its position
# - `mapping`: how many ranks (GPUs), and so how many `rankN.safetensors`
# - `quantization`: fewer bits for the weights (section 5)
#
# </details>
#
# Is it still the same model? Compare its **logits**, one score for each token of the vocabulary. First come those of
# Hugging Face's code on the original file.

# %%
logging.set_verbosity_error()
logging.disable_progress_bar()
tokenizer = Tokenizer.from_file(str(assets.tokenizer("smollm2") / "tokenizer.json"))
ids = torch.tensor([tokenizer.encode(prompt).ids])
with torch.no_grad():
    expected = LlamaForCausalLM.from_pretrained(source, dtype=torch.float32)(ids).logits.numpy()
print("logits of shape", expected.shape, "between", expected.min().round(1), "and", expected.max().round(1))

# %% [markdown]
# That is one row for each token of your prompt. Now our `logits` runs the converted folder in plain PyTorch.
# **Predict:** how large is the largest difference for each of three precisions? float16 keeps 11 binary digits of a
# number, bfloat16 only 8.

# %%
differences = {}
for name in ("float32", "float16", "bfloat16"):
    if name != dtype:
        course(f"convert --model_dir smollm2 --output_dir {name} --dtype {name}", lines=1)
    got = logits(load_checkpoint(root / name), ids)
    differences[name] = float(np.abs(got - expected).max())
    same = (got.argmax(-1) == expected.argmax(-1)).all()
    print(f"{name:9} largest difference {differences[name]:.6f}, same next token at every position: {same}")

# %% [markdown]
# As bars, each tenfold a step of the axis:

# %%
fig, axes = plt.subplots(figsize=(7.5, 2.1))
axes.plot(list(differences.values()), list(differences), "o")
digits = lambda value, n: np.format_float_positional(value, n, fractional=False, trim="-")  # noqa: E731
for name, value in differences.items():
    axes.annotate(digits(value, 2), (value, name), (8, 0), textcoords="offset points", va="center")
axes.set(xscale="log", xlim=(1e-5, 3), ylim=(2.6, -0.6), xlabel="largest difference of a logit (logarithmic)")
axes.xaxis.set_major_formatter(lambda value, _: digits(value, 1))
wider = differences["bfloat16"] / differences["float16"]
summary = "; ".join(f"{name} {value:.2g}" for name, value in differences.items())
show(fig, f"bfloat16 is {wider:.0f} times as far off as float16", f"largest difference of a logit: {summary}")

# %% [markdown]
# With float32 only the order of additions differs, so nothing was lost or mixed up. The other two differ by rounding:
# bfloat16's steps are 8 times as wide. All three choose the same tokens.
#
# What does the converter do with a download that was cut short?

# %%
(root / "cut").mkdir(exist_ok=True)
(root / "cut" / "config.json").write_text((source / "config.json").read_text())
with open(source / "model.safetensors", "rb") as file:
    (root / "cut" / "model.safetensors").write_bytes(file.read(100_000))
course("convert --model_dir ./cut --output_dir no")
print("left behind:", (root / "no").exists())


# %% [markdown]
# It refuses, and leaves nothing behind.

# %% [markdown]
# ## 3 Several GPUs
#
# A model too large for one GPU is cut. With **tensor parallelism** (TP) every GPU, called a *rank*, holds a part of
# *every* layer. A weight [outputs, inputs] can be cut in two ways:
#
# ![Three ranks: fc and gate are cut by outputs, proj by inputs; an all-reduce adds the shares](pictures/02_split.svg)
#
# Cut by *outputs*, each rank makes different numbers: **column parallel**. Cut by *inputs*, each rank has a share of
# every number: **row parallel**. Do the MLP by hand, with ranks $r$, and $F$, $G$, $W$ for `fc`, `gate`, `proj`:
#
# $$y = \sum_r x_r W_r^\top \quad\text{with}\quad x_r = \mathrm{silu}(x F_r^\top) \cdot (x G_r^\top)$$
#
# **Predict:** the sum of three shares is the whole answer. How far off is one share alone?

# %%
def silu(x):
    return x / (1 + np.exp(-x))


ranks = 3
fc, gate, proj = (hub[f"model.layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
x = np.random.default_rng(seed).standard_normal((5, 576)).astype(np.float32)
whole = silu(x @ fc.T) * (x @ gate.T) @ proj.T
cut = zip(np.split(fc, ranks), np.split(gate, ranks), np.split(proj, ranks, axis=1), strict=True)
shares = [silu(x @ f.T) * (x @ g.T) @ w.T for f, g, w in cut]
one, all_reduced = (np.abs(found - whole).max() for found in (shares[0], sum(shares)))
print(f"numbers up to {np.abs(whole).max():.1f}: one share is off by {one:.1f}, the sum by {all_reduced:.0e}")

# %% [markdown]
# One share is far off; the sum is right. On GPUs this sum is an **all-reduce**, done by NCCL, NVIDIA's communication
# library.
#
# Attention is cut by heads. A rank needs its query heads and the key-value heads that they use. **Predict:** `qkv` has
# 960 rows. Does rank 0 get the first 320?

# %%
mine = [np.concatenate([np.split(part, ranks)[rank] for part in (q, k, v)]) for rank in range(ranks)]
fused = np.concatenate([q, k, v])
print("rows on each rank:", [len(part) for part in mine])
print("rank 0 has the first rows of qkv:", np.array_equal(mine[0], fused[: len(mine[0])]))

# %% [markdown]
# No: those would be queries only. Each of the three is cut by itself:
#
# ![qkv has 9 query heads, 3 key heads and 3 value heads; each rank gets 3, 1 and 1 of them](pictures/02_heads.svg)
#
# Attention then needs no communication inside. Its output product `dense` is row parallel, like `proj`, and takes
# the layer's second all-reduce.
#
# Now the tool. **Predict:** can it cut SmolLM2 over 2 ranks? Over 3?

# %%
for number in (2, 3):
    course(f"convert --model_dir smollm2 --output_dir tp{number} --dtype {dtype} --tp_size {number}", lines=3)

# %% [markdown]
# Over 3 only: a head is never cut, and 2 does not divide 9 heads. Did the tool cut as you did?

# %%
by_hand = {"attention.qkv": mine, "mlp.fc": np.split(fc.astype(dtype), ranks),
           "mlp.proj": np.split(proj.astype(dtype), ranks, axis=1)}  # fmt: skip
for rank in range(ranks):
    with safe_open(root / "tp3" / f"rank{rank}.safetensors", "np") as file:
        theirs = {name: file.get_tensor(f"{layer}.{name}.weight") for name in by_hand}
    print(f"rank {rank} as by hand:", {name: np.array_equal(theirs[name], by_hand[name][rank]) for name in by_hand})

# %% [markdown]
# It did. Norms and the embedding stay whole on every rank; `lm_head` is column parallel.
#
# Now run every rank and add the shares. What does the model say if the last rank's share never arrives?

# %%
split = load_checkpoint(root / "tp3")
silent = {name: 0 * w if name.endswith(("dense.weight", "proj.weight")) else w for name, w in split.ranks[-1].items()}
for name, last in {"all ranks": split.ranks[-1], "last one silent": silent}.items():
    got = logits(replace(split, ranks=[*split.ranks[:-1], last]), ids)
    same = np.mean(got.argmax(-1) == expected.argmax(-1))
    print(f"{name:16} off by {np.abs(got - expected).max():6.3f}, same next tokens {same:.0%}")


# %% [markdown]
# Something else entirely, without an error. (On real GPUs the all-reduce would wait for the dead rank.)

# %% [markdown]
# **Exercise 02.1** (●●○, 8 minutes) How many rows does `qkv` have on *each* rank? When there are fewer key-value heads
# than ranks, a head is not cut: neighbours hold the same one. `qkv_rows(9, 3, 64, 1)` is 960.
#
# <details><summary>Hint 1</summary>
#
# Count heads first: the rank's queries, its keys, its values. A rank without a key-value head could not compute
# anything.
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
# ## 4 Other families
#
# GPT-2 and Gemma end in the same layout. Make a small random model of each, and convert it for two ranks. This Gemma
# has a single key-value head: **multi-query attention** (MQA).

# %%
torch.manual_seed(seed)
sizes = {"vocab_size": 301, "bos_token_id": 1, "eos_token_id": 2}
wide = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8}
configs = {"gpt2": GPT2Config(**sizes, n_embd=64, n_layer=2, n_head=8, n_positions=256),
           "gemma": GemmaConfig(**sizes, **wide, num_key_value_heads=1, head_dim=16)}  # fmt: skip
models = {name: AutoModelForCausalLM.from_config(each).eval() for name, each in configs.items()}
for name, model in models.items():
    for parameter in model.parameters():  # norms and biases too, or an error in them would not show
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(root / name)
    course(f"convert --model_dir ./{name} --output_dir {name}-tp2 --dtype float32 --tp_size 2", lines=2)

# %% [markdown]
# Look at GPT-2's first attention. **Predict:** where are its `q`, `k` and `v`?

# %% tags=["nbval-check-output"]
converted = {name: load_checkpoint(root / f"{name}-tp2") for name in models}
c_attn = models["gpt2"].transformer.h[0].attn.c_attn.weight
got = converted["gpt2"].ranks[0]["transformer.layers.0.attention.qkv.weight"]
print("c_attn", tuple(c_attn.shape), "· qkv on each rank", tuple(got.shape))
first = [part[:32] for part in c_attn.T.split(64)]
print("the first half of q, k and v, transposed:", torch.equal(got, torch.cat(first)))

# %% [markdown]
# They are fused already, in `c_attn`, and transposed: (64, 192) is [inputs, outputs]. So the converter transposes every
# weight.
#
# Gemma's norms multiply by $1 + w$, its embedding is multiplied by the square root of the width, and its one key-value
# head must serve every rank. **Predict:** which of the three does the converter take care of?

# %% tags=["nbval-check-output"]
gemma, ranks_of = models["gemma"].model, converted["gemma"].ranks
norm = gemma.layers[0].input_layernorm.weight
table = ranks_of[0]["transformer.vocab_embedding.weight"]
kv = [tensors["transformer.layers.0.attention.qkv.weight"][-2 * 16 :] for tensors in ranks_of]
print("norm is 1 + w:           ", torch.equal(ranks_of[0]["transformer.layers.0.input_layernorm.weight"], 1 + norm))
print("embedding is as it was:  ", torch.equal(table, gemma.embed_tokens.weight[: len(table)]))
print("rows of it on each rank: ", len(table), "of 301")
print("same k and v on all ranks:", torch.equal(kv[0], kv[1]))

# %% [markdown]
# Two of the three: it adds the 1 and copies the key-value head, so each rank keeps the *whole* KV cache (the keys and
# values of earlier tokens). The engine multiplies the embedding.
#
# Are both models right? Compare with Hugging Face. These weights were drawn as float32, so rounding has its full
# effect.

# %%
words, judges = torch.randint(0, 301, (2, 16)), {}
for name, made in converted.items():
    with torch.no_grad():
        judges[name] = models[name](words).logits.numpy()
    print(f"{name:6} {len(made.ranks)} ranks, logits span {np.ptp(judges[name]):.0f}; largest difference:")
    for kind in ("float32", "float16", "bfloat16"):
        other = load_checkpoint(convert(root / name, root / f"{name}-{kind}", dtype=kind, tp_size=2))
        print(f"       {kind:9} {np.abs(logits(other, words) - judges[name]).max():.0e}")

# %% [markdown]
# Both are right: float32 differs by millionths. bfloat16 is off about ten times as far as float16.

# %% [markdown]
# ## 5 Eight bits, four bits
#
# **Weight-only quantisation** stores weights in $b = 8$ or 4 bits and multiplies in float16. Each row gets one scale:
#
# $$s = \max_j |w_j| / 2^{b-1}, \qquad q_j = \min(\mathrm{round}(w_j / s),\; 2^{b-1} - 1)$$
#
# (8 bits hold -128 to 127.) **Predict:** which rounds, the converter or `trtllm-build`? Convert with int8 and look at
# the shard's size.

# %%
course("convert --model_dir smollm2 --output_dir int8 --dtype float16 --use_weight_only --weight_only_precision int8")
half, w8 = load_checkpoint(root / "float16"), load_checkpoint(root / "int8")
print(w8.config["quantization"]["quant_algo"], "· same numbers as in float16:",
      all(torch.equal(tensor, half.ranks[0][name]) for name, tensor in w8.ranks[0].items()))  # fmt: skip


# %% [markdown]
# Not the converter: the shard is as large as before. `W8A16` (weights 8 bits, activations 16) is an order, which
# `trtllm-build` carries out.
#
# What will it cost? Apply the rule to a weight of SmolLM2 and to a random one. **Predict:** with 4 bits fewer, how many
# times as large is the error?

# %%
def rounded(w, bits):
    """`w` [out, in] after the way through integers of so many bits."""
    w, most = w.float(), 2 ** (bits - 1)
    s = w.abs().amax(dim=1, keepdim=True) / most
    return (w / s).round().clamp(-most, most - 1) * s


smollm2 = half.ranks[0]["transformer.layers.0.attention.qkv.weight"]
for name, w in {"SmolLM2": smollm2, "drawn": torch.randn(smollm2.shape)}.items():
    lost = {bits: float((rounded(w, bits) - w).norm() / w.float().norm()) for bits in (8, 4)}
    print(f"{name:7} int8 {lost[8]:.2%}, int4 {lost[4]:.1%}, ratio {lost[4] / lost[8]:.0f}")


# %% [markdown]
# About $2^4 = 16$ times: each missing bit makes the steps twice as wide. And the answers? `logits` rounds as the build
# would, for SmolLM2 and section 4's Gemma; embedding, norms and `lm_head` stay float.

# %%
def told(got, right=expected):
    same = np.mean(got.argmax(-1) == right.argmax(-1))
    return f"off by {np.abs(got - right).max():5.2f} of {np.ptp(right):.0f}, same next tokens {same:.0%}"


gemma16 = load_checkpoint(root / "gemma-float16")
for name, made, tokens, right in (("SmolLM2", w8, ids, expected), ("Gemma", gemma16, words, judges["gemma"])):
    for algorithm in ("W8A16", "W4A16"):
        order = {**made.config["quantization"], "quant_algo": algorithm}
        got = logits(replace(made, config={**made.config, "quantization": order}), tokens)
        print(f"{name:7} {algorithm} {told(got, right)}")

# %% [markdown]
# int8 hardly changes a next token. int4 with one scale per row ruins models of this size; four bits need finer scales
# (AWQ: groups of 128 weights).

# %% [markdown]
# ## 6 The build
#
# The build's flags are limits: how many requests at once, how many tokens each. Build SmolLM2, and GPT-2 for two ranks.

# %%
course(f"build --checkpoint_dir {dtype} --output_dir plain --max_batch_size 8 --max_seq_len 1024")
if lane == "embedded":  # its heads have 8 numbers; a GPU's kernels may want more
    course("build --checkpoint_dir gpt2-tp2 --output_dir gpt2-engine")

# %% [markdown]
# Here the engine is the weights as the course's own executor wants them. `trtllm-build` takes minutes, and writes a
# plan as in notebook 01. Read the limits:

# %%
built = json.loads((root / "plain" / "config.json").read_text())
print(sorted(path.name for path in (root / "plain").iterdir()), *built)
for key, value in built["build_config"].items():
    print(f"{key:26} {value}")

# %% [markdown]
# **Predict:** the next two lines use one old flag each. Which is accepted?

# %%
course(f"build --checkpoint_dir {dtype} --output_dir tuned --max_output_len 200", lines=3)
limits = "--max_batch_size 2 --max_seq_len 2048 --max_beam_width 4 --paged_kv_cache enable"
course(f"build --checkpoint_dir {dtype} --output_dir tuned {limits}")

# %% [markdown]
# `--paged_kv_cache` is, with a warning; `--max_output_len` was removed in 0.12. **Predict:** for whom is "tuned" better
# than "plain"?

# %%
course("engine diff plain tuned")

# %% [markdown]
# For few users who want several long answers: beam search, longer sequences, a quarter of the requests.
#
# Will an engine run in a given container? Ask before you start a server.

# %%
course("engine check plain --container 26.07")

# %% [markdown]
# <details><summary>What runs an engine?</summary>
#
# TensorRT-LLM has a [runtime in C++](https://nvidia.github.io/TensorRT-LLM/advanced/gpt-runtime.html), which Triton's
# backend uses, and [classes for Python](https://nvidia.github.io/TensorRT-LLM/python-api/tensorrt_llm.runtime.html):
# `ModelRunner` takes the steps itself, `ModelRunnerCpp` hands the work to the C++ runtime.
#
# </details>

# %% [markdown]
# ## 7 NVIDIA's commands, version by version
#
# In NVIDIA's container you type three commands: download, convert, build. Print them:

# %% tags=["nbval-check-output"]
course("engine recipe smollm2 --trtllm 1.2.1")


# %% [markdown]
# With several ranks, `--tp_size` goes to the converter only: `trtllm-build` reads it from `config.json`.
#
# Most guides are for an older TensorRT-LLM. **Predict:** what differs between 0.9.0 and 1.2.1? Compare two recipes for
# Gemma, with prompts of up to 3,000 tokens and answers of up to 100.

# %% tags=["nbval-check-output"]
def recipe(version):
    words = [sys.executable, "-m", "course.cli", "engine", "recipe", "gemma-2b", "--trtllm", version]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


for line in difflib.unified_diff(recipe("0.9.0"), recipe("1.2.1"), n=0, lineterm=""):
    if not line.startswith(("---", "+++", "@@")) and "#" not in line:
        print(line)

# %% [markdown]
# A program, a path and two plugin flags changed, and one limit replaced another: `--max_output_len` counted the answer
# alone, `--max_seq_len` counts prompt *and* answer.
#
# <details><summary>Other recipes; script and wheel; git lfs</summary>
#
# `course engine recipe … --explain` says what each flag does. Other names are `gpt2-medium`, `llama-7b`, `llama-7b-tp4`
# and `gemma-2b`.
#
# `convert_checkpoint.py` is an example script, not a part of the installed package. Take script and wheel from one
# place: if they differ in age, you get errors such as `TypeError: Mapping.__init__() got an unexpected keyword argument
# 'moe_tp_size'` ([issue 1890](https://github.com/NVIDIA/TensorRT-LLM/issues/1890)). In the container both are there,
# the script below `/app/examples`.
#
# `trtllm-build` is a part of the package, a name for the function `main` in
# [`tensorrt_llm/commands/build.py`](https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/commands/build.py).
# The backend that loads what it builds can be [built from
# source](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/tensorrtllm_backend/docs/build.html),
# against the same TensorRT-LLM; NVIDIA recommends its container instead.
#
# `git clone` of a hub page needs `git lfs`: without it, you get a line of text in place of each large file. The hub's
# own command needs no git.
#
# </details>

# %% [markdown]
# **Exercise 02.2** (●●○, 8 minutes) This line is from a guide for 0.9.0. Write it for 1.2.1, with no refusal and no
# warning, so that the engine can do the same. The cell after the check builds it.
#
# `trtllm-build --checkpoint_dir float16 --output_dir mine --max_batch_size 8 --max_input_len 1000 --max_output_len 200
# --paged_kv_cache enable`
#
# <details><summary>Hint 1</summary>
#
# Two flags change. One of them now counts something else.
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Section 6 printed the new name of both. What is the longest sequence that this guide allows?
#
# </details>

# %% tags=["exercise:02.2"]
command = None  # a text that begins with "trtllm-build"

# %% tags=["check:02.2", "nbval-check-output"]
check("02.2", command)

# %% [markdown]
# <details><summary>Solution 02.2</summary>
#
# ```python
# command = "trtllm-build --checkpoint_dir float16 --output_dir mine --max_batch_size 8 --max_input_len 1000 "
# command += "--max_seq_len 1200 --kv_cache_type paged"
# ```
#
# </details>

# %%
if command:
    course(command.replace("\\\n", " ").replace("trtllm-build", "build", 1))
    course("engine diff plain mine")

# %% [markdown]
# Each of NVIDIA's containers holds matching versions of TensorRT-LLM, TensorRT, CUDA and Triton, and needs a driver of
# its age. **Predict:** which is the newest for driver 570.124.06?

# %% tags=["nbval-check-output"]
course("engine versions --driver 570.124.06", lines=-1)

# %% [markdown]
# 25.05: the later ones need a newer driver. In a terminal the command lists all, with what each holds.

# %% [markdown]
# ## 8 Will it fit?
#
# For every token a model keeps a key and a value in every layer: the **KV cache**. One token takes
#
# $$2 \cdot \text{layers} \cdot \text{KV heads} \cdot \text{head size} \cdot \text{bytes of a number}$$
#
# **Predict:** gemma-2b is seven times as large as gpt2-medium. Is its cache larger?

# %% tags=["nbval-check-output"]
shapes = {"gpt2-medium": (24, 16, 64), "llama-7b": (32, 32, 128), "gemma-2b": (18, 1, 256)}
for name, (layers, kv_heads, head_size) in shapes.items():
    found = estimate(name, dtype="float16")
    by_hand = 2 * layers * kv_heads * head_size * 2
    print(f"{name:12} weights {found.weights_bytes / 1e9:5.2f} GB, cache {by_hand:7,} bytes a token by hand,",
          f"{found.kv_bytes_per_token:7,} by the estimator")  # fmt: skip


# %% [markdown]
# No: its cache is less than a fifth as large, because all its query heads share a single KV head.
#
# ![Eight query heads with eight key-value heads, nine with three, eight with one](pictures/02_shared.svg)
#
# **Exercise 02.3** (●●○, 8 minutes) `free_bytes` are left for the cache. How many whole sequences of `tokens` tokens go
# into it?
#
# <details><summary>Hint 1</summary>
#
# Work out the bytes of one sequence first. Which of the two numbers of heads counts?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# The formula gives the bytes of one token. For 10 GB, 32 layers, 32 heads, 8 KV heads of 128 numbers of two bytes and
# 2,048 tokens the answer is 37.
#
# </details>

# %% tags=["exercise:02.3"]
def sequences(free_bytes, layers, heads, kv_heads, head_size, tokens, number_bytes):
    """Returns how many sequences fit, a whole number."""


# %% tags=["check:02.3", "nbval-check-output"]
check("02.3", sequences)

# %% [markdown]
# <details><summary>Solution 02.3</summary>
#
# ```python
# def sequences(free_bytes, layers, heads, kv_heads, head_size, tokens, number_bytes):
#     return free_bytes // (2 * layers * kv_heads * head_size * tokens * number_bytes)
# ```
#
# </details>

# %% [markdown]
# Activations (for `max_num_tokens` tokens at once), logits and a margin for CUDA need memory too. Of what they leave,
# the server takes 90 % for its cache (the figure shows the rest as "left free"). A model *fits* when all its sequences
# go into that. **Predict:** 16 sequences of 2,048 tokens: which of these models fit a GPU of 24 GB?

# %%
load = {"gpu": "24gb", "max_batch_size": 16, "max_seq_len": 2048, "max_num_tokens": 8192}
plans = {
    "gpt2-medium": estimate("gpt2-medium", **load | {"max_seq_len": 1024}),
    "gemma-2b-it": estimate("gemma-2b-it", **load, dtype="bfloat16"),
    "llama-7b": estimate("llama-7b", **load),
    "llama-7b int8": estimate("llama-7b", **load, weight_only="int8"),
    "llama-7b tp4": estimate("llama-7b-tp4", **load),
}
large = [name for name, plan in plans.items() if not plan.fits]
show(figures.memory_bars(plans), f"Too large for 24 GB: {', '.join(large)}; the others fit",
     f"{' and '.join(large)} need more than the GPU has; computed, not measured", drawing=True)  # fmt: skip


# %% [markdown]
# All but llama-7b on one GPU, which int8 weights do not save either.
#
# <details><summary>How exact is that, and which 24 GB?</summary>
#
# Weights and cache are exact, activations and logits upper bounds. gpt2-medium has only 1,024 positions; tp4 shows one
# of four GPUs.
#
# A GPU's name counts in GiB ($2^{30}$ bytes), and CUDA shows a little less of them; the axis counts in GB ($10^9$).
# "24gb" is the smallest GPU of that name, an L4: it takes 6 of llama-7b's sequences. An RTX 4090, which shows 25.4 GB,
# takes 7. All five fit an H100, which has 84.9 GB.
#
# </details>
#
# **Predict:** 7 sequences of 2,048 tokens are a little too much for llama-7b. What helps: shorter sequences, an int8
# cache, or fewer tokens in one step? (A live notebook has sliders.)

# %%
def plan(axes, sequences, tokens, gpu):
    asked = load | {"gpu": gpu, "max_batch_size": sequences, "max_seq_len": tokens}
    changes = {"as asked": {}, "half the tokens": {"max_seq_len": tokens // 2}, "int8 cache": {"kv_dtype": "int8"},
               "smaller step": {"max_num_tokens": load["max_num_tokens"] // 4}}  # fmt: skip
    found = {name: estimate("llama-7b", **asked | change) for name, change in changes.items()}
    figures.memory_bars(found, axes)
    return [name for name, each in found.items() if each.fits]


sliders = {"sequences": range(1, 33), "tokens": range(256, 2049, 256), "gpu": ["24gb", "rtx-4090", "h100"]}
title = lambda fit: f"What fits 24 GB: {', '.join(fit[0]) or 'nothing'}"  # noqa: E731
summary = "memory as asked, with half the tokens, an int8 cache, a smaller step"
explore(plan, title=title, summary=summary, live=sliders, sequences=[7], tokens=[2048], gpu=["24gb"])

# %% [markdown]
# All three help. A server accepts more requests than fit: they wait while the cache is full.

# %% [markdown]
# ## Recap
#
# - A converter renames, fuses, transposes and cuts. The numbers stay, up to rounding.
# - Tensor parallelism cuts heads and the MLP; two sums in each layer bring the shares together.
# - Weight-only quantisation is an order in `config.json`; `trtllm-build` carries it out.
# - Script, wheel, engine and server must be of one version. The last TensorRT-LLM that builds engines is 1.3.0rc20.
# - The KV cache grows with tokens, layers and KV heads, and decides how many requests a GPU serves.

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
print(told(logits(replace(half, ranks=[swapped]), ids)))

# %% [markdown]
# Garbage, and no error anywhere. So compare the logits of a few tokens before you build.

# %%
notebook.record(**{f"difference_{name}": float(f"{value:.2g}") for name, value in differences.items()})
