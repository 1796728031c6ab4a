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
# You turn weights from the Hugging Face hub into a TensorRT-LLM checkpoint, prove number by number that it is the same
# model, and write the commands that build its engine.
#
# After this notebook you can
#
# - say what a converter does to names, shapes and precision, for Llama, GPT-2 and Gemma
# - cut a model over several GPUs, and say what the GPUs must add up
# - write the build commands for a version of TensorRT-LLM, and name the flags that it lost
# - work out whether a model fits a card, before anything is built
# - read an engine's folder, and say why a machine refuses it
#
# **Time:** 50 minutes (last run: 103 s) · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# Previous: [01 · What is an engine?](01_what_is_an_engine.ipynb) · Next: [03 · Repository](03_model_repository.ipynb)

# %%
from servinglab.notebook import begin, record, resolve_lane, shorten

begin()

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
dtype: str = "float16"  # precision of the first checkpoint: "float16", "bfloat16" or "float32"
tp_size: int = 2  # GPUs that share the small random models: 2, 4 or 8
prompt: str = "The capital of France is"  # a few words that the model continues
seed: int = 0  # seed of the small random models

# %% [markdown]
# The way has three steps. `convert_checkpoint.py` renames, fuses and cuts weights; `trtllm-build` makes an engine of
# them; a server loads it. The last two need a GPU. The first one you do here, with a converter of this course that
# writes the layout of NVIDIA's.
#
# `tell` prints a long sentence in lines. All files go into one temporary folder.

# %%
import tempfile
import textwrap
from pathlib import Path

import torch

torch.set_num_threads(1)  # the sums are small; more threads would mostly wait for each other
lane = resolve_lane(lane)
assert tp_size in (2, 4, 8), "tp_size must be 2, 4 or 8"
workshop = tempfile.TemporaryDirectory(prefix="servinglab-02-")
root = Path(workshop.name)


def tell(message):
    text = shorten(str(message).replace(f"{root}/", ""))
    print(textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False))


# %% [markdown]
# ## 1 The same weights under other names
#
# SmolLM2 is a small Llama: 30 layers, 9 query heads, 3 heads for keys and values, 64 numbers a head. Three query heads
# share one key-value head; that is **grouped-query attention** (GQA). Here is what the hub's file holds for one layer.

# %% tags=["nbval-check-output"]
from safetensors import safe_open

from servinglab import assets

source = assets.resolve("smollm2")
with safe_open(source / "model.safetensors", "pt") as file:
    hub = {name: file.get_tensor(name) for name in file.keys() if "layers" not in name or ".layers.0." in name}
    print(len(file.keys()), "tensors")
for name, tensor in hub.items():
    print(f"{name:49} {tuple(tensor.shape)}")

# %% [markdown]
# A weight is stored as [outputs, inputs]. So `q_proj` makes 9 × 64 = 576 numbers of 576, `k_proj` makes 3 × 64 = 192.
#
# TensorRT-LLM computes query, key and value in one product, from one tensor `qkv`, laid below each other.
# **Predict:** how many rows has it? And with the other tensors kept as they are, how many of the 272 are left?

# %%
from engines.convert import convert
from engines.shards import load_checkpoint

folder = convert(source, root / dtype, dtype=dtype)
checkpoint = load_checkpoint(folder)
ours = checkpoint.ranks[0]
print(len(ours), "tensors")
for name, tensor in ours.items():
    if "layers" not in name or ".layers.0." in name:
        print(f"{name:49} {tuple(tensor.shape)}")

# %% [markdown]
# 576 + 2 · 192 = **960 rows**. Three tensors became one in each of 30 layers: 272 - 2 · 30 = 212. But there are 213,
# and `lm_head.weight` is new. Where does it come from, and are the three parts in the order you expect?

# %% tags=["nbval-check-output"]
q, k, v = (hub[f"model.layers.0.self_attn.{name}_proj.weight"] for name in "qkv")
layer = "transformer.layers.0"
number = getattr(torch, dtype)
fused = torch.cat([q, k, v]).to(number)
embedding = hub["model.embed_tokens.weight"].to(number)
print("qkv is q, k, v below each other:", torch.equal(ours[f"{layer}.attention.qkv.weight"], fused))
print("lm_head is the embedding:       ", torch.equal(ours["lm_head.weight"], embedding))

# %% [markdown]
# The hub stores the embedding once and uses it twice, at both ends (**tied** embeddings). TensorRT-LLM keeps two
# copies. For SmolLM2 that is 28 million numbers more, a fifth of the model.
#
# One trap is left. A Llama's MLP is $\mathrm{down}(\mathrm{silu}(\mathrm{gate}(x)) \cdot \mathrm{up}(x))$. **Predict:**
# which of them is called `mlp.gate` over here?

# %% tags=["nbval-check-output"]
for name in ("fc", "gate", "proj"):
    tensor = ours[f"{layer}.mlp.{name}.weight"]
    print(f"mlp.{name:4} was", *(there for there, other in hub.items() if torch.equal(other.to(number), tensor)))

# %% [markdown]
# `gate_proj` is `fc`, and `gate` is `up_proj`! Both have the same shape, so a converter that mixes them up gets no
# error. You will do exactly that at the end.
#
# ## 2 config.json, and a proof
#
# Beside the numbers lies the file that `trtllm-build` reads first. It must say everything that the shapes do not.

# %%
import json

config = checkpoint.config
for key, value in config.items():
    print(f"{key:32} {json.dumps(value)[:78]}")

# %% [markdown]
# | keys | what they decide |
# |---|---|
# | `architecture` | the class that builds the network; `hidden_act`, `norm_epsilon`, `attn_bias` fill it in |
# | `dtype`, `logits_dtype` | precision of weights and arithmetic; logits stay float32 |
# | `num_attention_heads`, `num_key_value_heads`, `head_size` | how 960 rows are cut into heads |
# | `position_embedding_type`, `rotary_base`, `rotary_scaling` | how a token knows where it stands |
# | `mapping` | how many ranks, and so how many `rankN.safetensors` |
# | `quantization` | what `trtllm-build` shall do to the weights (section 5) |
#
# The engine's own `config.json` holds these keys again, under `pretrained_config`.
#
# Is it still the same model? Let Hugging Face's code run the hub's file, and our `reference` run the converted one. It
# reads nothing but the converted folder, and computes in float32 with plain PyTorch. First what Hugging Face says:

# %%
import numpy as np
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM, logging

logging.set_verbosity_error()
logging.disable_progress_bar()
tokenizer = Tokenizer.from_file(str(assets.tokenizer("smollm2") / "tokenizer.json"))
ids = torch.tensor([tokenizer.encode(prompt).ids])
with torch.no_grad():
    expected = LlamaForCausalLM.from_pretrained(source, dtype=torch.float32)(ids).logits.numpy()
print("logits of shape", expected.shape, "between", expected.min().round(1), "and", expected.max().round(1))

# %% [markdown]
# One row of logits for each token of your prompt. **Predict:** the hub's weights are float32. Convert them to each of
# three precisions: how large is the largest difference of a logit? float16 keeps 11 binary digits of a number, bfloat16
# only 8.

# %%
from engines.reference import logits

checkpoints, answers, differences = {}, {}, {}
for name in ("float32", "float16", "bfloat16"):
    made = folder if name == dtype else convert(source, root / name, dtype=name)
    checkpoints[name] = load_checkpoint(made)
    answers[name] = logits(checkpoints[name], ids)
    differences[name] = float(np.abs(answers[name] - expected).max())
    size = (root / name / "rank0.safetensors").stat().st_size / 1e6
    print(f"{name:9} {size:4.0f} MB  largest difference {differences[name]:.6f}")

# %% [markdown]
# With float32 only the order of additions differs: nothing was lost or mixed up on the way. The other two differ by
# what rounding costs, bfloat16 by several times as much as float16, because its steps are 8 times as wide. An engine
# rounds between the layers too, so a little more is lost there.
#
# Does it matter? Greedy decoding asks only which logit is the largest.

# %% tags=["nbval-check-output"]
for name, got in answers.items():
    same = got.argmax(-1) == expected.argmax(-1)
    print(f"{name:9} same next token at every position:", bool(same.all()))
print(repr(prompt), "continues with", repr(tokenizer.decode([int(expected[0, -1].argmax())])))

# %% [markdown]
# The converted folder is the model. What does the converter say to a request that it cannot fulfil, and what does it
# leave behind? A download that was cut, a family that it does not know, a type that does not exist:

# %%
from engines import EngineError

text = (source / "config.json").read_text()
for name, family in (("cut", "Llama"), ("other", "Qwen2")):
    (root / name).mkdir(exist_ok=True)
    changed = text.replace("LlamaFor", f"{family}For").replace('"llama"', f'"{family.lower()}"')
    (root / name / "config.json").write_text(changed)
if not (uncut := root / "other" / "model.safetensors").exists():
    uncut.symlink_to(source / "model.safetensors")
with open(source / "model.safetensors", "rb") as file:
    (root / "cut" / "model.safetensors").write_bytes(file.read(100_000))
for wish in ({"source": root / "cut"}, {"source": root / "other"}, {"source": source, "dtype": "fp16"}):
    try:
        convert(out=root / "no", **wish)
    except EngineError as error:
        tell(error)
print("left behind:", (root / "no").exists())

# %% [markdown]
# ## 3 Several GPUs
#
# A model too large for one card is cut. With **tensor parallelism** (TP) every GPU, called a *rank*, holds a part of
# *every* layer. **Predict:** can you cut SmolLM2 over 2, 3 or 4 ranks?

# %% tags=["nbval-check-output"]
for ranks in (2, 3, 4):
    try:
        made = convert(source, root / f"tp{ranks}", tp_size=ranks)
        print(ranks, "ranks:", *sorted(path.name for path in made.iterdir()))
    except EngineError as error:
        print(ranks, "ranks:", error)

# %% [markdown]
# A head is never cut, and 9 heads go over 3 ranks only. So take a small Llama that divides well: 8 query heads, 4
# key-value heads of 8 numbers each, and *random* weights. Every norm and bias is random as well, or an error in them
# would not show.

# %%
from transformers import AutoModelForCausalLM, LlamaConfig


def tiny(config):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(root / config.model_type)
    return model


sizes = {"vocab_size": 301, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
llama = tiny(LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=4))

# %% [markdown]
# Convert it for one rank and for several, and compare the shapes. **Predict:** which tensors are cut, and which has
# every rank in full?

# %% tags=["nbval-check-output"]
whole = load_checkpoint(convert(root / "llama", root / "llama-1", dtype="float32"))
split = load_checkpoint(convert(root / "llama", root / "llama-n", dtype="float32", tp_size=tp_size))
for name, tensor in whole.ranks[0].items():
    if ".layers.1." not in name:
        print(f"{name:49} {str(tuple(tensor.shape)):10} each rank {tuple(split.ranks[0][name].shape)}")

# %% [markdown]
# Three kinds of tensors:
#
# - `qkv`, `fc`, `gate`, `lm_head` are cut by rows, that is by *outputs*: **column parallel**. Each rank makes other
#   numbers. (301 words do not divide, so the last rank's piece ends with zeros.)
# - `dense` and `proj` are cut by *inputs*: **row parallel**. Each rank has a share of every number.
# - Norms and the embedding stay whole.
#
# Which heads went where? Look for each block of 8 rows of the ranks' `qkv` among the heads of the model.

# %% tags=["nbval-check-output"]
attention = llama.model.layers[0].self_attn
heads = {
    f"{name}{n}": rows
    for name in "qkv"
    for n, rows in enumerate(getattr(attention, f"{name}_proj").weight.split(8))
}
for rank, tensors in enumerate(split.ranks):
    blocks = tensors["transformer.layers.0.attention.qkv.weight"].split(8)
    print(f"rank {rank}:", *(name for block in blocks for name, rows in heads.items() if torch.equal(block, rows)))

# %% [markdown]
# A query head lies on the same rank as the key-value head that it uses: q0 and q1 use k0. So attention needs no talk
# between the GPUs.
#
# The MLP does. With its inputs cut, the last product becomes a sum over the ranks $r$:
#
# $$y = \sum_r x_r W_r^\top \quad\text{with}\quad x_r = \mathrm{silu}(x F_r^\top) \cdot (x G_r^\top)$$
#
# Here it is, spelled out. Each turn of the loop is one GPU; the sum is what NCCL, NVIDIA's library for talk between
# GPUs, does in an **all-reduce**.

# %%
x = torch.randn(5, 64)
shares = []
for tensors in split.ranks:
    fc, gate, proj = (tensors[f"transformer.layers.0.mlp.{name}.weight"] for name in ("fc", "gate", "proj"))
    shares.append(torch.nn.functional.silu(x @ fc.T) * (x @ gate.T) @ proj.T)
with torch.no_grad():
    there = llama.model.layers[0].mlp(x)
one, all_reduced = ((found - there).abs().max() for found in (shares[0], sum(shares)))
print(f"numbers up to {there.abs().max():.0f}: one share is off by {one:.0f}, the sum by {all_reduced:.0e}")

# %% [markdown]
# One share is nothing like the answer, the sum is. `reference` does this twice in every layer, after `dense` and after
# `proj`. What does the whole model say, and what if the last rank's shares never arrive?

# %%
from dataclasses import replace

words = torch.randint(0, 301, (2, 16))
with torch.no_grad():
    judge = llama(words).logits.numpy()
silent = {name: 0 * w if name.endswith(("dense.weight", "proj.weight")) else w for name, w in split.ranks[-1].items()}
for name, last in {"all ranks": split.ranks[-1], "last one silent": silent}.items():
    got = logits(replace(split, ranks=[*split.ranks[:-1], last]), words)
    same = np.mean(got.argmax(-1) == judge.argmax(-1))
    print(f"{name:16} off by {np.abs(got - judge).max():.0e}, same next tokens {same:.0%}")


# %% [markdown]
# Nothing in the numbers says that a share is missing; they are just other numbers. On real GPUs the all-reduce waits
# for every rank, so one that died shows as a server that hangs.
#
# **Exercise 02.1** How many rows has `qkv` on *each* rank? When there are fewer key-value heads than ranks, a head is
# not cut: neighbours hold the same one. `qkv_rows(9, 3, 64, 1)` is 960.

# %% tags=["exercise:02.1"]
def qkv_rows(heads, kv_heads, head_size, tp_size):
    """Returns the rows of the fused tensor on one rank."""


# %% tags=["check:02.1", "nbval-check-output"]
from servinglab.checks import check

check("02.1", qkv_rows)

# %% [markdown]
# ## 4 Other families
#
# GPT-2 and Gemma end in the same layout, but start from another one. Make one small model of each. This Gemma has a
# single key-value head, like gemma-2b: **multi-query attention** (MQA).

# %%
from transformers import GemmaConfig, GPT2Config

small = {"n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 256, "bos_token_id": 1, "eos_token_id": 2}
gpt2 = tiny(GPT2Config(vocab_size=301, **small))
gemma = tiny(GemmaConfig(**sizes, num_attention_heads=8, num_key_value_heads=1, head_dim=16))
families = {"llama": llama, "gpt2": gpt2, "gemma": gemma}
converted = {}
for name in families:
    made = convert(root / name, root / f"{name}-n", dtype="float32", tp_size=tp_size)
    converted[name] = load_checkpoint(made)

# %% [markdown]
# For each of them, the weights of the first attention as Hugging Face has them, and `qkv` on one rank. **Predict:**
# where are the `q`, `k` and `v` of GPT-2?

# %% tags=["nbval-check-output"]
for name, model in families.items():
    print(name)
    for key, weight in model.state_dict().items():
        if ".0." in key and "attn." in key and key.endswith("weight"):
            print(f"    {key:39} {tuple(weight.shape)}")
    qkv = converted[name].ranks[0]["transformer.layers.0.attention.qkv.weight"]
    print(f"    {'→ qkv on each rank':39} {tuple(qkv.shape)}")

# %% [markdown]
# GPT-2's are fused already, in `c_attn`, and that lies on its side: (64, 192) is [inputs, outputs]. Its layers are of
# an old class named `Conv1D`, so the converter turns every weight around. (GPT-2 also has a bias everywhere, no
# `mlp.gate`, and a table of positions.)
#
# Turned, `c_attn` has 192 rows: 64 of q, 64 of k, 64 of v. **Predict:** does rank 0 get the first rows of those 192?

# %% tags=["nbval-check-output"]
turned = gpt2.transformer.h[0].attn.c_attn.weight.T
got = converted["gpt2"].ranks[0]["transformer.layers.0.attention.qkv.weight"]
step = 64 // tp_size
print("the first rows:         ", torch.equal(got, turned[: 3 * step]))
print("the first of q, k and v:", torch.equal(got, torch.cat([turned[i * 64 : i * 64 + step] for i in range(3)])))

# %% [markdown]
# The first rows alone would be queries, and at best some keys. All shapes would fit; the text would be garbage. Each
# of the three is cut for itself.
#
# Gemma has three habits of its own. Its norms multiply by $1 + w$, its embedding is multiplied by the square root of
# the width, and its single key-value head must serve every rank.

# %% tags=["nbval-check-output"]
norm = gemma.model.layers[0].input_layernorm.weight
ranks = converted["gemma"].ranks
table = ranks[0]["transformer.vocab_embedding.weight"]
kv = [tensors["transformer.layers.0.attention.qkv.weight"][-2 * 16 :] for tensors in ranks]
print("norm is 1 + w:           ", torch.equal(ranks[0]["transformer.layers.0.input_layernorm.weight"], 1 + norm))
print("embedding is as it was:  ", torch.equal(table, gemma.model.embed_tokens.weight[: len(table)]))
print("rows of it on each rank: ", len(table), "of 301")
print("same k and v on all ranks:", all(torch.equal(part, kv[0]) for part in kv))

# %% [markdown]
# The converter adds the 1. The embedding is stored as it was, and the engine multiplies; it is also cut, 301 words over
# the ranks. And the key-value head is copied: each rank keeps the *whole* KV cache. Section 7 comes back to that.
#
# Are all three right? Every family, cut over the ranks, against Hugging Face:

# %%
for name, made in converted.items():
    with torch.no_grad():
        judge = families[name](words).logits.numpy()
    print(f"{name:6} {len(made.ranks)} ranks, largest difference {np.abs(logits(made, words) - judge).max():.0e}")

# %% [markdown]
# Millionths: float32 and another order of additions. The tests of this course do the same for 1, 2 and 4 ranks.
#
# ## 5 Eight bits, four bits
#
# **Weight-only quantisation** stores weights in $b = 8$ or 4 bits and multiplies in float16. Each row gets one scale,
# its largest weight (whatever the sign) over 128, or over 8:
#
# $$s = \max_j |w_j| / 2^{b-1}, \qquad q_j = \min(\mathrm{round}(w_j / s),\; 2^{b-1} - 1)$$
#
# The minimum is there because 8 bits hold -128 to 127, and 4 bits -8 to 7: a largest weight that is positive would
# become 128, is cut to 127, and loses one step.
#
# **Predict:** who rounds, the converter or `trtllm-build`? Convert with int8 and see how small the shard got.

# %% tags=["nbval-check-output"]
w8 = load_checkpoint(convert(source, root / "int8", dtype="float16", weight_only="int8"))
print(w8.config["quantization"]["quant_algo"], "·", {str(tensor.dtype) for tensor in w8.ranks[0].values()})
other = checkpoints["float16"].ranks[0]
print("same numbers as in float16:", all(torch.equal(tensor, other[name]) for name, tensor in w8.ranks[0].items()))

# %% [markdown]
# Nothing was rounded. `W8A16` (weights 8 bits, activations 16) is an order, and `trtllm-build` carries it out when it
# reads the shards. Two bytes for each weight travel all the way to the build.
#
# What will it cost? `quantize` follows the rule of TensorRT-LLM. **Predict:** int4 has 4 bits fewer than int8. How many
# times as large is its error?

# %% tags=["nbval-check-output"]
from engines.weight_only import dequantize, errors, is_quantised, quantize

lost = {bits: errors(w8, bits) for bits in (8, 4)}
for kind in ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj"):
    found = [np.median([e.relative for e in lost[bits] if f"{kind}." in e.name]) for bits in (8, 4)]
    print(f"{kind:16} int8 {found[0]:.2%}  int4 {found[1]:.1%}  ratio {found[1] / found[0]:.0f}")


# %% [markdown]
# About $2^4 = 16$: each missing bit makes the steps twice as wide. All other tensors stay float: embedding, norms and
# `lm_head`. Now the answer, which is what counts:

# %%
def told(got):
    same, last = np.mean(got.argmax(-1) == expected.argmax(-1)), int(got[0, -1].argmax())
    return f"off by {np.abs(got - expected).max():5.2f}, same next tokens {same:.0%}, then {tokenizer.decode([last])!r}"


for algorithm in ("W8A16", "W4A16"):
    order = {**w8.config["quantization"], "quant_algo": algorithm}
    print(algorithm, told(logits(replace(w8, config={**w8.config, "quantization": order}), ids)))

# %% [markdown]
# int8 changes no next token here. int4 with one scale a row ruins a model of this size; for four bits one takes finer
# scales (groups of 128 weights, as AWQ does).
#
# **Predict:** are there layers that matter more? Quantise one layer at a time to int4 and measure how far the logits
# move. 30 times the model, a few seconds.

# %%
half, moved = checkpoints["float16"], []
for n in range(config["num_hidden_layers"]):
    changed = dict(half.ranks[0])
    for name in filter(is_quantised, half.ranks[0]):
        if f".layers.{n}." in name:
            changed[name] = dequantize(*quantize(changed[name], 4))
    got = logits(replace(half, ranks=[changed]), ids)
    moved.append(float(np.abs(got - answers["float16"]).max()))
print("layer that moves the logits most:", int(np.argmax(moved)), "· least:", int(np.argmin(moved)))

# %% [markdown]
# The upper picture shows the error of each weight tensor, the lower one what it does to the logits of our one prompt.

# %%
import matplotlib.pyplot as plt

from servinglab.figures import style

style.use()
fig, (upper, lower) = plt.subplots(2, 1, figsize=(style.WIDTH, 4.6), sharex=True)
for bits, colour in ((8, "#0072B2"), (4, "#D55E00")):
    numbers = [100 * e.relative for e in lost[bits]]
    upper.semilogy([int(e.name.split(".")[2]) for e in lost[bits]], numbers, "o", color=colour, alpha=0.5, markersize=4)
    upper.text(30.2, numbers[-1], f"int{bits}", va="center", color=colour)
upper.yaxis.set_major_formatter("{x:g}")
upper.set_ylabel("weight error (%)")
lower.bar(range(len(moved)), moved, color="#D55E00")
lower.set(xlabel="layer that is int4, all others float16", ylabel="largest move of a logit", xticks=range(0, 30, 5))
times = max(moved) / min(moved)
harm = f"layer {np.argmax(moved)} does {times:.0f} times the harm of layer {np.argmin(moved)}"
title = f"Weight errors are alike, but {harm}"
summary = "weight errors are alike in all layers, what they do to the logits is not"
style.finish(fig, title, style.provenance(lane, prompts=1, prompt_tokens=ids.shape[1]), summary)

# %% [markdown]
# A layer's error in its weights says little about the harm it does. Which layers stand out may change with the prompt:
# the bars rest on a handful of tokens. That is why finer methods measure with much real text (*calibration*) instead of
# looking at the weights.
#
# ## 6 Recipes
#
# Now the commands. `recipe` writes them for a model, a version and a split: download, convert, build. The folder
# `/app/tensorrt_llm/examples` is inside NVIDIA's container.

# %% tags=["nbval-check-output"]
from engines.recipes import recipe

made = recipe("gpt2-medium")
print(made.text())
for note in made.notes:
    tell(f"# {note}")

# %% [markdown]
# Three programs, in the flags of TensorRT-LLM 1.2.1, and a note: the recipe follows NVIDIA's guide, which leaves the
# batch size to the default. The other models differ in few places. This is Llama over four
# cards, the second and the third command:

# %% tags=["nbval-check-output"]
print(*(command.text() for command in recipe("llama-7b-tp4").commands[1:]), sep="\n\n")

# %% [markdown]
# `--tp_size 4` goes to the converter only: `trtllm-build` reads it from `config.json`. `--workers` makes the ranks at
# the same time. Gemma's converter has a language of its own:

# %% tags=["nbval-check-output"]
made = recipe("gemma-2b-it")
print(made.commands[1].text())
for note in made.notes:
    tell(f"# {note}")

# %% [markdown]
# Dashes instead of underscores, and `--world-size` where the others say `--tp_size`. SmolLM2 and all other names of the
# course: `course engine recipe NAME`.
#
# What does each flag do? `explain` says it, with the default that counts in this version.

# %% tags=["nbval-check-output"]
for row in recipe("llama-7b").explain():
    if row["program"] == "trtllm-build" and not row["flag"].endswith("_dir"):
        tell(f"{row['flag']} {row['value']}: {row['explain']}")

# %% [markdown]
# ### The same recipe, two versions
#
# Most guides on the web are for an older TensorRT-LLM. **Predict:** what differs between 0.9.0 and 1.2.1, with prompts
# of up to 1,000 tokens and answers of up to 200?

# %% tags=["nbval-check-output"]
import difflib

wish = {"max_input_len": 1000, "max_seq_len": 1200, "max_batch_size": 8}
old, new = (recipe("smollm2", trtllm=each, **wish).text() for each in ("0.9.0", "1.2.1"))
for line in difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""):
    if line.startswith(("-", "+")) and not line.startswith(("---", "+++")):
        print(line)

# %% [markdown]
# The download program was renamed, the converter moved, and two flags changed. `--max_output_len` counted the answer
# alone; `--max_seq_len` counts prompt *and* answer. What happens to a guide's old flag in a new version?

# %% tags=["nbval-check-output"]
for flag, value in {"--max_output_len": "200", "--paged_kv_cache": "enable", "--max_sequence_len": "1200"}.items():
    try:
        tell("taken. " + " ".join(recipe("smollm2", extra={flag: value}).notes))
    except EngineError as error:
        tell(error)

# %% [markdown]
# The first is refused, the second still works with a warning, the third never existed. Each sentence says what to write
# instead.
#
# **Exercise 02.2** This line is from a guide for 0.9.0. Write it for 1.2.1, with no refusal and no warning, so that the
# engine can do the same.
#
# `trtllm-build --checkpoint_dir ck --output_dir engine --max_batch_size 8 --max_input_len 1000 --max_output_len 200
# --paged_kv_cache enable`

# %% tags=["exercise:02.2"]
command = None  # a text that begins with "trtllm-build"

# %% tags=["check:02.2", "nbval-check-output"]
check("02.2", command)

# %% [markdown]
# ### The Gemma trap
#
# `convert_checkpoint.py` is an example script, not a part of the installed package. Whoever clones the examples gets
# the newest, and whoever installs the wheel gets another. For Gemma that ends in a `TypeError` which names neither
# version:

# %% tags=["nbval-check-output"]
from engines import versions

tell(versions.examples_problem("0.12.0", "0.13.0", "gemma"))

# %% [markdown]
# So take script and wheel from one place. In the container they lie together.
#
# ## 7 Will it fit?
#
# While a model answers, it keeps a key and a value for every token, in every layer: the **KV cache**. For one token
# that is
#
# $$2 \cdot \text{layers} \cdot \text{KV heads} \cdot \text{head size} \cdot \text{bytes of a number}$$
#
# **Predict:** gpt2-medium has 24 layers and 16 heads of 64. How many bytes in float16?

# %% tags=["nbval-check-output"]
from engines.memory import card, estimate, gigabytes

print(2 * 24 * 16 * 64 * 2, "bytes by hand")
print(estimate("gpt2-medium", dtype="float16").kv_bytes_per_token, "bytes by the estimator")

# %% [markdown]
# 98,304 bytes: a thousand tokens take 100 MB. Now the other models. **Predict:** gemma-2b is seven times as large as
# gpt2-medium. Is its cache larger?

# %% tags=["nbval-check-output"]
models = {name: name for name in ("gpt2-medium", "llama-7b", "gemma-2b")}
shared = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 11008}
models["llama, 8 KV heads"] = {"model_type": "llama", "vocab_size": 32000, "num_hidden_layers": 32, **shared}
print(f"{'':18} {'weights':>8}  KV bytes a token  on each of 4 GPUs")
for name, model in models.items():
    one, four = (estimate(model, tp_size=ranks) for ranks in (1, 4))
    per_gpu = four.kv_bytes_per_token_per_gpu
    print(f"{name:18} {gigabytes(one.weights_bytes):>8}  {one.kv_bytes_per_token:16,}  {per_gpu:17,}")


# %% [markdown]
# Smaller, by more than five times: 18 layers · 1 KV head · 256 numbers are 4,608, where gpt2-medium has 24 · 16 · 64 =
# 24,576; each counts twice, in two bytes. A Llama with 8 KV heads instead of 32 needs a quarter of the
# cache. Four GPUs divide all of them by four, except Gemma's: its one head cannot be divided, only copied.
#
# **Exercise 02.3** `free_bytes` are left for the cache. How many whole sequences of `tokens` tokens go into it?

# %% tags=["exercise:02.3"]
def sequences(free_bytes, layers, heads, kv_heads, head_size, tokens, number_bytes):
    """Returns how many sequences fit, a whole number."""


# %% tags=["check:02.3", "nbval-check-output"]
check("02.3", sequences)

# %% [markdown]
# Weights and cache are not all. Between the layers lie activations, at most for `max_num_tokens` tokens at once; then
# logits, and a margin for CUDA itself. And of what all that leaves free, the server takes only 90 % for its cache
# (`kv_cache_free_gpu_mem_fraction`). So a model *fits* when its sequences go into these 90 %, all at once; the rest is
# "left free" in the figure. **Predict:** 16 sequences of 2,048 tokens. Which of these fit a card of 24 GB,
# which an H100?

# %%
from servinglab.figures.engines import memory_bars

load = {"max_batch_size": 16, "max_seq_len": 2048, "max_num_tokens": 8192}
plans = {
    "gpt2-medium": estimate("gpt2-medium", gpu="24gb", **load | {"max_seq_len": 1024}),
    "gemma-2b-it": estimate("gemma-2b-it", gpu="24gb", dtype="bfloat16", **load),
    "llama-7b": estimate("llama-7b", gpu="24gb", **load),
    "llama-7b int8": estimate("llama-7b", gpu="24gb", weight_only="int8", **load),
    "llama-7b tp4": estimate("llama-7b-tp4", gpu="24gb", **load),
}
fig, title = memory_bars(plans, [card("24gb"), card("h100")])
style.finish(fig, title, "computed, not measured; bytes on the fullest GPU", title)

# %% [markdown]
# A card's name counts in GiB ($2^{30}$ bytes), and CUDA shows a little less of them; the axis counts in GB ($10^9$).
# "24gb" is the smallest card of that name, an L4. gpt2-medium has a table of 1,024 positions, so its bar is for those;
# ask for more, and `estimate` and `recipe` warn as `trtllm-build` does.
#
# Weights and cache are exact; activations and logits are upper bounds. The weights count what a build adds to the
# converted files: a table of rotations (2.1 MB for SmolLM2, none for GPT-2), and the second copy of a tied embedding
# where the files hold one.
#
# Now change the load instead of the model. **Predict:** 7 sequences of 2,048 tokens are a little too much for llama-7b.
# Which of these saves it: shorter sequences, an int8 cache, or fewer tokens in one step?

# %% tags=["nbval-check-output"]
seven = {"max_batch_size": 7, "max_seq_len": 2048, "max_num_tokens": 8192}
loads = {"7 x 2,048": {}, "7 x 1,024": {"max_seq_len": 1024}, "int8 cache": {"kv_dtype": "int8"},
         "smaller step": {"max_num_tokens": 2048}}  # fmt: skip
for name, change in loads.items():
    found = estimate("llama-7b", gpu="24gb", **seven | change)
    most = f"at most {found.largest_batch_size} sequences"
    print(f"{name:12}  {gigabytes(found.total_bytes)}  fits: {found.fits!s:5}  {most}")
tell(estimate("llama-7b", gpu="24gb", **seven).sentence())

# %% [markdown]
# All three. The weights alone would fit well; cache and step decide.
#
# The server does not reserve the cache by `max_batch_size`. It takes its 90 % of what is free, and lets requests wait
# when those are full:

# %% tags=["nbval-check-output"]
for gpu in ("24gb", "h100"):
    found = estimate("llama-7b", gpu=gpu, max_batch_size=64, max_seq_len=4096, max_num_tokens=8192)
    print(f"{gpu:5} room for {found.kv_pool_tokens:7,} tokens in {gigabytes(found.kv_pool_bytes)}")

# %% [markdown]
# 64 sequences of 4,096 tokens, 262,144 in all, never fit at once; the engine serves them nevertheless, fewer at a time.
# The same from a terminal: `course engine estimate llama-7b --gpu 24gb --max-batch-size 7`.
#
# ## 8 Which version, which container?
#
# An engine runs only under the version that built it (notebook 01). NVIDIA ships TensorRT-LLM, TensorRT, CUDA and
# Triton together in a container, and each needs a driver of its age. This is the map, one line for each TensorRT-LLM.

# %% tags=["nbval-check-output"]
seen = {}
for box in versions.containers():
    seen.setdefault(box.trtllm, box)
print("container  TensorRT-LLM  TensorRT           CUDA        driver      names")
for box in seen.values():
    print(f"{box.tag:9}  {box.trtllm:12}  {box.tensorrt:17}  {box.cuda:10}  {box.driver:10}  {box.generation}")

# %% [markdown]
# The last column is how the Triton models name their tensors: "old" until 0.19, "new" from 0.20, and changed once more
# in 1.1. The newest version is not always yours: the driver decides. **Predict:** a machine has driver 570.124.06.
# Which container is the newest for it, and where is Gemma's converter in there?

# %% tags=["nbval-check-output"]
box = versions.newest_for("570.124.06")
print(box.image)
print(versions.converter("gemma", box.trtllm), "in", box.trtllm, "·", versions.converter("gemma", "1.2.1"), "in 1.2.1")

# %% [markdown]
# And this machine? `course doctor` looks at the driver.

# %%
from course import doctor

for line in doctor.examine():
    if line.name in ("gpu", "container", "docker"):
        print(f"{line.status:4}  {line.name:9}  {shorten(line.detail)}")

# %% [markdown]
# How long will engines be built? Ask for a version that is not out yet.

# %% tags=["nbval-check-output"]
try:
    recipe("llama-7b", trtllm="1.4.0")
except EngineError as error:
    tell(error)

# %% [markdown]
# Notebook 12 shows what comes after engines.
#
# ## 9 What is in an engine?
#
# An engine's folder holds `config.json` and one `rankN.engine` for each rank. No engine can be built without a GPU, so
# these two `config.json` were **written by hand**, with the keys that `trtllm-build` writes. They say so themselves.

# %% tags=["nbval-check-output"]
from engines.inspection import diff, example, inspect, shown

plain, tuned = example(root / "plain", "plain"), example(root / "tuned", "tuned")
found = inspect(plain)
for key in ("note", "trtllm", "architecture", "parameters", "dtype", "quant_algo", "world_size", "limits", "plugins"):
    print(textwrap.fill(f"{key:12}  {found[key]}", 110, subsequent_indent=" " * 14))

# %% [markdown]
# Model, precision, limits, plugins: all that was decided at build time. (The keys were read in the source of 1.3.0rc3;
# the version, 1.2.1, is that of the newest container, whose own keys were not compared.)
#
# Somebody says that the "tuned" one is better. For whom? Compare them.

# %% tags=["nbval-check-output"]
differing = {d.setting: d for d in diff(plain, tuned)}
for d in differing.values():
    print(f"{d.setting:31}  {shown(d.setting, d.a):>7} → {shown(d.setting, d.b)}")
tell(f"multiple_profiles: {differing['multiple_profiles'].meaning}")

# %% [markdown]
# About half the bytes of weights, and beam search; paid with shorter sequences and an eighth of the requests. And it
# keeps the logits of all prompt tokens, which costs memory. It is better for few users who want several answers.
#
# Will it run? `incompatibility` answers in one sentence before a server is started. The examples have no engine file,
# so write a stand-in: only the first bytes, which name TensorRT 10.14.1.48.

# %% tags=["nbval-check-output"]
from engines.compatibility import Gpu, Machine, incompatibility, record_machine

(plain / "rank0.engine").write_bytes(b"ftrt" + bytes(20) + bytes([10, 14, 1, 48]))
gpu = Gpu("NVIDIA L4", "8.9")
machines = {
    "container 25.10": Machine("1.0.0", "10.11.0.33", (gpu,)),
    "container 26.07, no card": Machine("1.2.1", "10.14.1.48"),
    "container 26.07, two ranks": Machine("1.2.1", "10.14.1.48", (gpu, gpu), ranks=2),
    "container 26.07, one L4": Machine("1.2.1", "10.14.1.48", (gpu,)),
}
for name, machine in machines.items():
    tell(f"{name}: {incompatibility(plain, machine) or 'no reason is known.'}")

# %% [markdown]
# The first case is the one that ends in `Serialization assertion stdVersionRead == kSERIALIZATION_VERSION failed`
# (notebook 01). That message names no container.
#
# The last answer is careful: it does not say that the engine runs. Nothing in the folder tells which card it was built
# *for*. `record_machine`, called right after a build, notes it beside the engine. With a note:

# %% tags=["nbval-check-output"]
record_machine(plain, Machine("1.2.1", "10.14.1.48", (Gpu("NVIDIA H100", "9.0"),)))
tell(incompatibility(plain, machines["container 26.07, one L4"]))

# %% [markdown]
# ## 10 The build
#
# `course engine recipe smollm2` prints the three commands, and in the container `course engine recipe smollm2 | sh -e`
# runs them. From outside of it, the last command would be:

# %% tags=["nbval-check-output"]
smol = recipe("smollm2")
docker = "docker run --rm --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 -v $PWD:/work -w /work"
print(docker, versions.find(smol.trtllm).image, "\\\n" + smol.commands[-1].text())

# %% [markdown]
# `--ipc=host` and the two limits let the ranks share memory; `-v` shows the folder to the container. On a GPU the next
# cell builds it, from the weights that you have already.

# %%
import subprocess

if lane == "trtllm":
    download, convert_there, build_there = smol.commands
    (weights := root / download.writes).parent.mkdir(parents=True, exist_ok=True)
    if not weights.exists():
        weights.symlink_to(source)
    for command in (convert_there, build_there):
        subprocess.run(command.words(), cwd=root, check=True)
    built = root / build_there.writes
    tell(f"{gigabytes(inspect(built)['size_bytes'])}; {incompatibility(built) or 'it may run here'}")
else:
    print("Not built here: trtllm-build needs NVIDIA's container and a GPU (lane trtllm).")

# %% [markdown]
# ## Recap
#
# - A converter renames, fuses, turns and cuts. The numbers stay, up to rounding, and you can prove it without a GPU.
# - Tensor parallelism cuts heads and MLP columns; two sums in each layer bring the shares together.
# - Weight-only quantisation is an order in `config.json`; `trtllm-build` carries it out.
# - Flags belong to a version. Script, wheel, engine and server must be of the same one.
# - The KV cache grows with tokens, layers and KV heads, and decides how many requests a card serves.
#
# ## Break it
#
# Exchange `fc` and `gate` in every layer of SmolLM2, and read it again. All names, shapes and types are right.
# **Predict:** an error, a slightly worse answer, or garbage?

# %%
swapped = dict(half.ranks[0])
for name in half.ranks[0]:
    if ".mlp.fc." in name:
        other = name.replace(".fc.", ".gate.")
        swapped[name], swapped[other] = half.ranks[0][other], half.ranks[0][name]
print(told(logits(replace(half, ranks=[swapped]), ids)))

# %% [markdown]
# No error anywhere. A build would succeed and a server would start. Only a comparison of numbers finds it, so make one
# before you build: a few tokens are enough.
#
# The last cell deletes the temporary folder and says what produced the numbers on this page.

# %%
workshop.cleanup()
worst = {f"difference_{name}": float(f"{value:.2g}") for name, value in differences.items()}
record("02", lane=lane, seed=seed, dtype=dtype, tp_size=tp_size, **worst, kv_bytes_per_token_gpt2_medium=98304)
