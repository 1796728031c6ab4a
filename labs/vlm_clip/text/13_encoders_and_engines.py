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
# You give a picture encoder and a text encoder a common space, measure how well sentences find their pictures in it,
# and turn both encoders into small files and engines that you can trust.
#
# After this notebook you can
#
# - show that two encoders which were not trained together do not share a space, whatever the lengths of their vectors
# - compare three cures by recall on the same captions, with intervals
# - export an encoder to ONNX with an open batch, and prove that it computes the same
# - say what int8 saves and what it costs, and refuse an engine that turned the vectors away
# - build a TensorRT engine with a dynamic batch, and write the configuration that serves it
#
# **Time:** 45 minutes (last run: 157 s) · **Lanes:** embedded · **Needs:** the weights of MiniLM; CLIP's only where the
# hub is reachable
#
# Previous: [12 · After engines](../../notebooks/12_llm_api.ipynb) · Next: [14 · The ensemble](14_ensemble.ipynb)

# %%
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from cliplab import encoder_figures as figures
from cliplab.encoders import Encoders, OnnxEncoders, calibration_pictures, prepare
from cliplab.pictures import catalogue
from servinglab.checks import check
from servinglab.errors import CourseError
from servinglab.figures import style
from servinglab.notebook import begin, record, resolve_lane

begin()
style.use()

# %% tags=["parameters"]
lane: str = "auto"  # "embedded" or "auto"
pictures: str = "subset"  # which pictures: "subset" comes with the course, "full" is fetched from Debian
most: int = 0  # use only so many pictures, at least 60; 0 means all
k: int = 10  # a caption has found its picture when that is among the k best
clip: str = "openai/clip-vit-base-patch32"  # a hub id or a folder; "" leaves CLIP out
question: str = "something to play music on"  # a search of your own
seed: int = 0  # of random maps and intervals

# %% [markdown]
# ## 1 Pictures with captions
#
# The pictures are stamps of the drawing program Tux Paint, mostly photos cut out of their background. Each has one
# English sentence. mini-CLIP was trained on none of them and on no drawing that looks like one; what the authors of
# CLIP or ImageNet collected, nobody here can check. Where several pictures share a caption, you keep the first:
# otherwise a search could not tell which of them it should find.

# %%
if not (most == 0 or most >= 60) or k < 1 or not question:
    raise CourseError("give most = 0 or at least 60, k at least 1, and a question")
lane = resolve_lane(lane)
scratch = tempfile.TemporaryDirectory(prefix="servinglab-13-")
root = Path(scratch.name)
shown = list({picture.caption: picture for picture in reversed(catalogue(pictures))}.values())[::-1]
step = max(1, len(shown) // most) if most else 1
shown = shown[::step][: most or None]
captions, files = [picture.caption for picture in shown], [picture.file for picture in shown]
categories = sorted({picture.category for picture in shown})
print(len(shown), "pictures:", ", ".join(categories))

# %%
small_print = style.provenance(lane, seed, pictures=len(shown))
few = shown[:: max(1, len(shown) // 12)][:12]
summary = "twelve pictures, each with its caption"
style.finish(figures.gallery([(each.file, each.caption) for each in few]), "What is searched, and what is asked",
             "pictures: Tux Paint stamps, GPL-2, see data/stamps", summary, photos=True)  # fmt: skip

# %% [markdown]
# ## 2 Two encoders, two spaces
#
# An **encoder**, or *tower*, turns its input into a vector. The picture tower is EfficientNet-Lite0, trained to tell
# 1,000 kinds of things apart; before its last layer a picture is 1,280 numbers. The text tower is MiniLM from notebook
# 01, trained so that sentences of like meaning get like vectors: 384 numbers.
#
# Every picture is prepared in the same way: on white, padded to a square of 224 pixels, numbers from about -1 to 1.

# %%
from cliplab.mini_clip import VisionTower
from cliplab.quantise import pixels

fp32 = prepare()
tower, towers = VisionTower.load(), OnnxEncoders(fp32, threads=2)
tower.trunk.to(memory_format=torch.channels_last)  # colours innermost: the same numbers, quicker on a CPU
torch.set_num_threads(1)  # a core for each of two parts; sharing one part would cost more than it brings
seen = pixels(file.read_bytes() for file in files)
with ThreadPoolExecutor(2) as pool:
    features = torch.cat(list(pool.map(tower.trunk, torch.from_numpy(seen).split(4))))
sentences = towers.encode_texts(captions)
print("pixels", seen.shape, "· picture features", tuple(features.shape), "· sentences", sentences.shape)

# %% [markdown]
# Can you compare them? **Predict:** what does numpy say to a product of the two?

# %% tags=["nbval-check-output"]
try:
    sentences[:2] @ features.numpy()[:2].T
except ValueError as error:
    print(str(error).rpartition("(")[2].rstrip(")"))


# %% [markdown]
# 384 numbers against 1,280. So many people reach for the next best thing: bring both to one length. Drop the surplus,
# take principal components, multiply with a random matrix. Then the product has a result. Does it *mean* anything?
#
# To find out you need two tools. The first compares directions: vectors of length 1, then a dot product. It is called
# **cosine similarity**.
#
# **Exercise 13.1** Write `similarity(texts, pictures)`: both have vectors as rows, of any length above 0. Return the
# cosines, an array [texts, pictures].

# %% tags=["exercise:13.1"]
def similarity(texts, pictures):
    ...  # your code


# %% tags=["check:13.1", "nbval-check-output"]
check("13.1", similarity)


# %% [markdown]
# The second tool counts. Sentence 0 belongs to picture 0, sentence 1 to picture 1. Let each sentence rank all pictures.
# **Recall at k** is the share of sentences whose own picture is among the best k.
#
# **Exercise 13.2** Write `recall(scores, k)`: `scores` is [n, n], a row a sentence, a column a picture; the own picture
# of a sentence has its number.

# %% tags=["exercise:13.2"]
def recall(scores, k):
    ...  # your code


# %% tags=["check:13.2", "nbval-check-output"]
check("13.2", recall)


# %% [markdown]
# The notebook goes on with its own versions. `rank` says how many other pictures are as good as the own one, or better:
# 0 is the best place. Whoever is as good counts against it; otherwise one vector for all pictures would find
# everything.

# %%
def cosines(texts, pictures):
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (texts, np.asarray(pictures))]
    return unit[0] @ unit[1].T


def rank(scores):
    return (scores >= np.diag(scores)[:, None] - 1e-6).sum(axis=1) - 1  # less the own one


# %% [markdown]
# `measure` adds an interval. It draws the captions again and again with replacement, as if other captions of the same
# kind had been asked for, and looks how much the recall moves (a *bootstrap*). The pictures searched stay the same.

# %%
def measure(ranks):
    draws = np.random.default_rng(seed).integers(len(ranks), size=(2000, len(ranks)))
    found = {"1": ranks < 1, "k": ranks < k}
    return {name: (hit.mean(), *np.quantile(hit[draws].mean(axis=1), (0.025, 0.975))) for name, hit in found.items()}


# %% [markdown]
# **Predict:** there are as many pictures as the first output says. What recall at `k` does pure guessing give? And the
# three fixed maps from 1,280 to 384 numbers?

# %%
plain = features.numpy()
components = np.zeros((384, 1280))  # as many as there are pictures; the others stay 0
axes = np.linalg.svd(plain - plain.mean(axis=0), full_matrices=False)[2][:384]
components[: len(axes)] = axes
random_map = np.random.default_rng(seed).normal(size=(1280, 384))
maps = {"the first 384 numbers": plain[:, :384], "principal components": (plain - plain.mean(axis=0)) @ components.T,
        "a random matrix": plain @ random_map}  # fmt: skip
chance = min(1, k / len(shown))
print(f"guessing: {chance:.3f}")
for name, made in maps.items():
    mean, low, high = measure(rank(cosines(sentences, made)))["k"]
    print(f"{name:22} {mean:.3f}  (95 % interval {low:.3f} to {high:.3f})")

# %% [markdown]
# Guessing. Each of these maps gives you a cosine, and no map says an error, but number 17 of a picture's vector has
# nothing to do with number 17 of a sentence's. A common *length* is no common *space*.
#
# ## 3 Cure one: towers that were trained together
#
# **CLIP** (Radford et al. 2021) has a picture tower and a text tower, trained together on 400 million pictures with
# captions, and both end in 512 numbers of one space. With CLIP's own text tower there is nothing to repair. Its weights
# come from the Hugging Face hub, as safetensors, and no code comes with them.

# %%
from cliplab.hub_clip import HubClip, HubError, write_tiny

methods, hub = {}, None
try:
    hub = HubClip(clip) if clip else None
    print("CLIP left out by the parameter." if hub is None else f"{clip}: {hub.size} numbers a vector")
except HubError as error:
    print(f"Not measured here: {error}")
if hub:
    data = [file.read_bytes() for file in files]
    methods["CLIP's own text tower"] = cosines(hub.encode_texts(captions), hub.encode_images(data))

# %% [markdown]
# Whether or not it could be fetched, the loading code is the same for a CLIP in a folder. Here is one with random
# weights, made on the spot: same classes, same files, and 512 numbers. It knows nothing, so it only shows shapes.
# **Predict:** can MiniLM's 384 numbers be compared with these?

# %% tags=["nbval-check-output"]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    tiny = HubClip(write_tiny(root / "tiny-clip"))
two = tiny.encode_images([file.read_bytes() for file in files[:2]])
own = tiny.encode_texts(captions[:2])
print("pictures", two.shape, "· its own text tower", own.shape, "· MiniLM", sentences[:2].shape)
try:
    sentences[:2] @ two.T
except ValueError:
    print("512 numbers and 384: MiniLM is not CLIP's text tower")

# %% [markdown]
# This is the mistake that this lab begins with: *CLIP for pictures and MiniLM for text* does not work as it stands.
# Pictures and sentences need towers that share a space, or a bridge between them. The other two cures are bridges.
#
# ## 4 Cure two: a bridge of words
#
# The picture tower has a last layer that says how probable each of 1,000 classes is. Every class has a name, and MiniLM
# can read names. So describe a picture by the mean of the class names' vectors, weighted with the probabilities. That
# is **ConSE** (Norouzi et al. 2013); nothing is trained. First the probabilities and the names' vectors, then a look at
# one picture.

# %%
from cliplab.conse import class_names, class_texts

with torch.inference_mode():
    classes = tower.head.classifier(features).softmax(dim=-1).numpy()
names = class_names()
named = class_texts(towers.encode_texts, names)

# %%
example = int(classes.max(axis=1).argsort()[len(shown) // 2])
print("caption:", captions[example])
for number in classes[example].argsort()[::-1][:4]:
    print(f"  {classes[example, number]:4.0%} {names[number]}".replace("%", " %"))

# %% [markdown]
# The picture's vector is one line of numpy. **Predict:** far above guessing, or a little?

# %%
conse = classes @ named
methods["ConSE, no training"] = cosines(sentences, conse)
mean, low, high = measure(rank(methods["ConSE, no training"]))["k"]
print(f"recall at {k}: {mean:.3f} (95 % interval {low:.3f} to {high:.3f}), guessing {chance:.3f}")


# %% [markdown]
# Without any training, the words carry a picture a long way. What is not among the 1,000 names, such as a moon or a
# smile, has no word to travel on.
#
# ## 5 Cure three: a learned bridge
#
# **mini-CLIP** learns what the words miss. Its text tower is MiniLM and stays as it is. Its picture tower begins with a
# ConSE vector, whose class names carry WordNet's explanation as well, and adds a matrix times the 1,280 features. That
# matrix was trained on pictures with captions: emoji and clip art, none of the stamps. So two things are new against
# the ConSE of section 4, the richer class texts and the matrix. You can take the matrix away and measure each.
#
# Training shows it a batch of pictures and captions, and asks: which caption belongs to which picture? The answer is a
# softmax over cosines, divided by a small temperature, and the loss is how improbable the right ones were. The same
# softmax answers another question: *what is this, of these labels?*
#
# **Exercise 13.3** Write `probabilities(scores, temperature)`: `scores` are cosines [labels, pictures]. Return, for
# each picture, how probable each label is, in the same shape.

# %% tags=["exercise:13.3"]
def probabilities(scores, temperature):
    ...  # your code


# %% tags=["check:13.3", "nbval-check-output"]
check("13.3", probabilities)

# %% [markdown]
# Labels that nobody trained for are called *zero-shot*. Take the categories of our pictures as labels.
# **Predict:** for what share of the pictures is the likeliest of the labels the right category?

# %%
with torch.inference_mode():
    mini, unlearned = tower.head(features).numpy(), tower.head.conse(features).numpy()  # with and without the matrix
scores = cosines(towers.encode_texts([f"a picture of {category}" for category in categories]), mini)
guess = [categories[number] for number in scores.argmax(axis=0)]
hits = np.array([picture.category == name for picture, name in zip(shown, guess, strict=True)])
print(f"right: {hits.mean():.0%} of {len(shown)}; the largest category has".replace("%", " %"),
      f"{max(np.mean([p.category == c for p in shown]) for c in categories):.0%}".replace("%", " %"))  # fmt: skip

# %% [markdown]
# Training took place once, by `labs/vlm_clip/train.py`. What you see is the record that it wrote, not a measurement of
# this run. **Predict:** the training shows drawings only. What becomes of photos?

# %%
import json

from cliplab.encoders import DATA

card = json.loads((DATA / "mini_clip" / "mini-clip.json").read_text())
curve, sets = card["training"]["curve"], ("drawings", "photos")
series = {name: ([point["step"] for point in curve], [point[name] for point in curve]) for name in sets}
first, last = curve[0], curve[-1]
title = f"Held out: {', '.join(f'{name} from {first[name]:.2f} to {last[name]:.2f}' for name in sets)}"
origin = f"from mini-clip.json: {card['device']}, {card['date']}, seed {card['training']['seed']}"
summary = "recall at 10 on held-out photos and drawings while training"
style.finish(figures.curves(series, "training step", "recall at 10"), title, origin, summary)

# %% [markdown]
# Neither set holds a stamp, and settings are chosen on them. (The figures of the stamps were seen while the method was
# worked out; the card says so.) The matrix learns what it is shown, drawings, and may spoil what the words knew about
# photos. So the script tries it at several strengths. It keeps the best sum of recall at 1 and at 10, where photos
# count twice; the list shows recall at 10.

# %%
chosen = card["chosen_on"]
for scale, found in chosen["scales"].items():
    print(f"strength {float(scale):4.2f}: drawings {found['drawings_at_10']:.2f}, photos {found['photos_at_10']:.2f}")
print("kept:", chosen["scale"])

# %% [markdown]
# ## 6 Which cure is best?
#
# All ways on the same captions and pictures. **Predict:** how much do the richer class texts add to ConSE, and how much
# the learned matrix to them?

# %%
methods["mini-CLIP without matrix"] = cosines(sentences, unlearned)
methods["mini-CLIP"] = cosines(sentences, mini)
ranks = {"a random matrix": rank(cosines(sentences, maps["a random matrix"]))}
ranks |= {name: rank(scores) for name, scores in methods.items()}
table = {name: measure(each) for name, each in ranks.items()}
for name, row in table.items():
    cells = (f"{row[which][0]:.3f} ({row[which][1]:.3f} to {row[which][2]:.3f})" for which in ("1", "k"))
    print(f"{name:24} at 1: {next(cells)}   at {k}: {next(cells)}")

# %%
ways = ["ConSE, no training", "mini-CLIP without matrix", "mini-CLIP"]
plain_names, rich_texts, learned = (table[name]["k"][0] for name in ways)
title = f"At {k}: ConSE {plain_names:.2f}, richer class texts {rich_texts - plain_names:+.2f}, "
title += f"the learned matrix {learned - rich_texts:+.2f}"
summary = "recall at 1 and at k of each way with its interval, and the recall of guessing"
style.finish(figures.recalls(table, chance, k), title, small_print, summary)


# %% [markdown]
# The intervals of two ways may overlap although one is surely better: both were asked the same captions, so most of the
# luck is shared. Compare pair by pair: for each caption, did it find its picture in one way and not in the other?

# %%
def paired(better, base):
    draws = np.random.default_rng(seed).integers(len(base), size=(2000, len(base)))
    parts = []
    for at in (1, k):
        gain = np.asarray(better < at, float) - (base < at)
        low, high = np.quantile(gain[draws].mean(axis=1), (0.025, 0.975))
        parts.append(f"at {at}: {gain.mean():+.3f} ({low:+.3f} to {high:+.3f})")
    return "   ".join(parts)


# %%
for base, better in (ways[:2], ways[1:], ways[::2]):
    print(f"{better} minus {base}\n    {paired(ranks[better], ranks[base])}")
mine, theirs = ranks["mini-CLIP"] < k, ranks["ConSE, no training"] < k
print(f"found at {k} by mini-CLIP only: {(mine & ~theirs).sum()}, by ConSE only: {(theirs & ~mine).sum()}")

# %% [markdown]
# An interval that reaches 0 means that these captions do not decide it. The first two differences add up to the third:
# only the second one is what training has brought.
#
# What does it get wrong? Here are the captions whose own picture came last. The first column is the sentence, the
# second its picture, then the three best answers.

# %%
scores = methods["mini-CLIP"]
worst = ranks["mini-CLIP"].argsort()[::-1][:5]
rows = [(captions[n], files[n], [files[m] for m in scores[n].argsort()[::-1][:3]]) for n in worst]
title = f"The worst five of {len(shown)}: places {', '.join(str(ranks['mini-CLIP'][n] + 1) for n in worst)}"
style.finish(figures.searches(rows), title, small_print, "five sentences that miss their own picture", photos=True)

# %% [markdown]
# Look for the kinds of failure: a sentence that could be said of many pictures; a thing that the classes do not name; a
# picture that shows something else than the sentence says. An empty place is no error: a stamp that is white on
# transparency leaves nothing on white, and yet it is near to many sentences. Notebook 15 counts how often.
#
# And here is a search of your own, with the best that ConSE and mini-CLIP find.

# %%
asked = towers.encode_texts([question])
best = {name: cosines(asked, space)[0].argsort()[::-1][:5] for name, space in (("ConSE", conse), ("mini-CLIP", mini))}
items = [(files[n], f"{name}: {captions[n]}") for name, found in best.items() for n in found]
title = f"“{question}” finds these"
summary = "five answers of ConSE, then five of mini-CLIP"
style.finish(figures.gallery(items, columns=5), title, small_print, summary, photos=True)

# %% [markdown]
# mini-CLIP is a small stand-in: five million numbers look at a picture, in CLIP's ViT-B/32 there are 88 million, and
# CLIP was shown tens of thousands of times as many captions. Expect CLIP to be far better. The more pictures are
# searched, the harder it gets, so here is also what mini-CLIP's card says of all of them. The aim was a recall at 10 of
# 0.60.

# %%
full = card["evaluation"]
low, high = full["intervals"]["gain_at_10"]
print(f"{full['n']} pictures, at 10: mini-CLIP {full['recall_at_10']:.2f}, ConSE {full['conse_recall_at_10']:.2f},",
      f"difference {full['gain_at_10']:+.2f} ({low:+.2f} to {high:+.2f})")  # fmt: skip

# %% [markdown]
# The first number says how far that aim was reached. What comes now is done with mini-CLIP's picture tower and MiniLM;
# none of it depends on the cure that you prefer.
#
# ## 7 ONNX, and the proof that it is the same
#
# You have used the exported towers already, for the sentences. `cliplab.encoders.export` writes one with an open batch.
# Three checks belong to each export: the same numbers as PyTorch, the same for a batch as for one, and the tensors have
# the names that the next notebook expects. Every fourth picture will do. **Predict:** how large are the differences?

# %%
from cliplab.mini_clip import TextTower

onnx_mini = towers.encode_pixels(seen[::4])
alone = np.concatenate([towers.encode_pixels(row[None]) for row in seen[::4][:16]])
print(f"pictures: ONNX against PyTorch {np.abs(onnx_mini - mini[::4]).max():.0e},",
      f"one by one against batch {np.abs(alone - onnx_mini[:16]).max():.0e}")  # fmt: skip
assert max(np.abs(onnx_mini - mini[::4]).max(), np.abs(alone - onnx_mini[:16]).max()) < 1e-4

# %% [markdown]
# The same for sentences, which come in different lengths: in a batch the shorter ones are padded.

# %%
with torch.inference_mode():
    original = TextTower.load()(*map(torch.from_numpy, towers.tokens(captions[:16]))).numpy()
alone = np.concatenate([towers.encode_texts([caption]) for caption in captions[:16]])
print(f"sentences: ONNX against PyTorch {np.abs(sentences[:16] - original).max():.0e},",
      f"one by one against batch {np.abs(alone - sentences[:16]).max():.0e}")  # fmt: skip
assert max(np.abs(sentences[:16] - original).max(), np.abs(alone - sentences[:16]).max()) < 1e-4

# %% [markdown]
# Rounding, and no more. A sentence alone has no padding, and in the batch it had: that its vector is the same proves
# that the attention mask works.
#
# ## 8 Smaller: fp16 and int8
#
# **int8** stores a number as a whole number and a scale. For weights the scales are read off the weights. For what
# flows *between* the layers there are two ways: **dynamic**, worked out anew in each run, or **static**, fixed
# beforehand with calibration pictures. The first layers have few weights, but their errors pass through all others; so
# there are two static ones here, one with every layer in int8 and one whose first three convolutions stay in float.
# **Predict:** which row of the table loses most?
#
# Calibration must not peek at the test: every eighth picture calibrates, and recall is measured on others. Fewer
# pictures are searched than before, which is easier; compare inside the table.

# %%
from cliplab.quantise import accept, drift, dynamic_int8, half, static_int8

shown_before = {picture.id for picture in calibration_pictures()}
test = np.flatnonzero([picture.id not in shown_before for picture in shown])[::2]  # every second saves time
small = prepare("int8")  # pictures: static, sentences: dynamic
halves = half(fp32.vision, root / "vision.fp16.onnx"), half(fp32.text, root / "text.fp16.onnx")
calibration = pixels(picture.file.read_bytes() for picture in calibration_pictures())
every = static_int8(fp32.vision, root / "vision.every.onnx", calibration, keep=0)
dynamic = dynamic_int8(fp32.vision, root / "vision.dynamic.onnx")
vision_files = {"fp32": fp32.vision, "fp16": halves[0], "int8 dynamic": dynamic, "int8 every layer": every,
                "int8 static": small.vision}  # fmt: skip
text_files = {"fp32": fp32.text, "fp16": halves[1], "int8 dynamic": small.text}
print("calibrated with", len(shown_before), "pictures, measured on", len(test))


# %% [markdown]
# The reference is the vector of section 7: for a picture PyTorch's, for a sentence that of the fp32 file, which you
# have just found equal. `drift` is the largest 1 - cosine to it: 0 is the same direction, 1 a right angle.

# %%
def served(vision=fp32.vision, text=fp32.text):
    return OnnxEncoders(Encoders(vision, text, fp32.tokenizer), threads=2)


asked = [captions[number] for number in test]
made = {name: served(vision=path).encode_pixels(seen[test]) for name, path in vision_files.items()}
told = {name: sentences[test] if name == "fp32" else served(text=path).encode_texts(asked)
        for name, path in text_files.items()}  # fmt: skip
turned = {("pictures", name): drift(vectors, mini[test]) for name, vectors in made.items()}
turned |= {("sentences", name): drift(vectors, sentences[test]) for name, vectors in told.items()}

# %%
kept = {("pictures", name): cosines(sentences[test], vectors) for name, vectors in made.items()}
kept |= {("sentences", name): cosines(vectors, mini[test]) for name, vectors in told.items()}
megabytes = {("pictures", name): path.stat().st_size / 1e6 for name, path in vision_files.items()}
megabytes |= {("sentences", name): path.stat().st_size / 1e6 for name, path in text_files.items()}
for key, scores in kept.items():
    mean, low, high = measure(rank(scores))["k"]
    size = f"{key[0]:9} {key[1]:16} {megabytes[key]:5.1f} MB  1 - cosine {turned[key]:.1e}"
    print(f"{size}  at {k}: {mean:.3f} ({low:.3f} to {high:.3f})")

# %% [markdown]
# `1 - cosine` in the table is the worst vector of all. Read it together with the recall: a vector may turn a little and
# still be nearest to the right caption. **Predict:** compared pair by pair, does any int8 file lose captions for
# certain?

# %%
for what, name in kept:
    if name.startswith("int8"):
        lost = paired(rank(kept[what, name]), rank(kept[what, "fp32"]))
        print(f"{what:9} {name:16} minus fp32   {lost}")

# %% [markdown]
# An interval that reaches 0 does not say that nothing is lost; it says that these captions do not show it. The figure
# puts the sizes beside the worst vectors.

# %%
share = {key: megabytes[key] / megabytes[key[0], "fp32"] for key in kept}
fixed, anew = share["pictures", "int8 static"], share["pictures", "int8 dynamic"]
title = f"int8 of fp32's size: pictures {fixed:.0%} static, {anew:.0%} dynamic; "
title = (title + f"sentences {share['sentences', 'int8 dynamic']:.0%}").replace("%", " %")
rows = {" ".join(key): (megabytes[key], turned[key]) for key in kept}
summary = "size of each file, and how far it turns a vector away from the reference"
style.finish(figures.sizes_and_drift(rows), title, small_print, summary)

# %% [markdown]
# Two warnings before you read fp16's row. This CPU has no fp16 arithmetic: ONNX Runtime reads the halves and computes
# in float. And the weights of the picture tower come from an fp16 file. So the row shows the size, and what rounding
# MiniLM's weights does; for the arithmetic you need the card.
#
# For pictures, dynamic int8 shrinks only the last products, because it leaves convolutions alone. Static int8 shrinks
# both. Compare its two rows by their worst vector: what do three small layers in float bring? For sentences half of the
# weights are the table of words, which is looked up, and nearly all others are products; dynamic int8 takes both, and
# needs no calibration. Recall over so few captions is a blunt tool; this is why the direction is checked, too.
#
# One more trap is built in. A CPU without VNNI instructions adds two int8 products in 16 bits, which can overflow, and
# cuts them off without a word. So these files use 7 bits for a weight (`reduce_range`), which is safe on any CPU. Both
# were tried with the dynamic files, on a CPU without VNNI: the worst sentence turned a little further with 7 bits, and
# recall moved by a caption or two, up on one set of captions and down on another.
#
# ## 9 Refuse a bad engine
#
# People have built CLIP engines that were wrong without a word: vectors whose difference from the framework's had the
# length 0.77 (as 1 − cosine: 0.3), or that were the same for every input. Nothing crashed; the search became bad. So
# put an **acceptance test** between the build and the service: numbers that are finite, that differ between inputs, and
# that keep the direction.
#
# **Predict:** which of these five does it refuse? The reference is PyTorch. fp16 must stay within 0.01, int8 within
# 0.1.

# %%
from cliplab.encoders import EncoderError

few = seen[test]
candidates = {"fp16": (made["fp16"], 0.01), "int8 static": (made["int8 static"], 0.1),
              "int8 every layer": (made["int8 every layer"], 0.1),
              "the same to everybody": (np.repeat(mini[:1], len(few), axis=0), 0.01),
              "pixels from 0 to 255": (towers.encode_pixels(few[:12] * 128 + 127), 0.01)}  # fmt: skip
for name, (vectors, threshold) in candidates.items():
    try:
        print(f"{name}: {accept(vectors, mini[test][: len(vectors)], threshold=threshold)}")
    except EncoderError as error:
        print(f"{name}: REFUSED. {error}")

# %% [markdown]
# The error is loud on purpose: in a build script it stops the deployment. The threshold is a decision of yours, and
# recall over so few captions does not make it for you. 0.1 is an angle of 26 degrees. Decide before you see the files.
#
# ## 10 An engine with a dynamic batch
#
# TensorRT-RTX builds for a card that is not here, as in notebook 01. The open batch needs a profile: from 1 to 32
# pictures, fast for 8. The types in the ONNX file decide the precision; an int8 file for TensorRT keeps its biases in
# float, which ONNX Runtime would not want. Eight pictures calibrate it here, for a look at the plan. For service give
# it all of them, and put it through the acceptance test on your card. **Predict:** which plan is the smallest?

# %%
from cliplab.engines import build_plan, config_pbtxt, keep, profile, trtexec

sources = {"vision.fp32": fp32.vision, "vision.fp16": vision_files["fp16"], "vision.int8": root / "vision.int8.onnx"}
with ThreadPoolExecutor(2) as pool:  # two builders, while this process quantises
    building = {name: pool.submit(build_plan, sources[name], "vision") for name in ("vision.fp32", "vision.fp16")}
    static_int8(fp32.vision, sources["vision.int8"], calibration[::4], for_tensorrt=True)
    building["vision.int8"] = pool.submit(build_plan, sources["vision.int8"], "vision")
plans = {name: each.result() for name, each in building.items()}

# %% [markdown]
# Nothing of it ran: building needs no card, running does.

# %%
for name, plan in plans.items():
    between = f"{plan.activation_bytes / 1e6:5.1f} MB between them"
    print(f"{name} {len(plan.data) / 1e6:5.1f} MB, {len(plan.layers):3} layers, {between}")
print(profile("vision"))

# %% [markdown]
# A plan holds weights and program. Going from fp32 to fp16 halves the weights. int8 has a quarter of them, but more
# layers: each place where a number is rounded is one. So a small network gains little in size; whether it gains time is
# for the card to say. And what lies between the layers is planned for the largest batch, 32 pictures.
#
# Keep what you have built. `keep` puts the files into a folder of the course's cache, each under its tower and
# precision: the plans of TensorRT-RTX, ending in `.rtx.plan`, and the ONNX files that they come from.

# %%
from servinglab.assets import cache_dir

kept_files = {f"{name}.rtx.plan": plan.data for name, plan in plans.items()}
kept_files |= {f"{name}.onnx": path for name, path in {**sources, "text.fp16": text_files["fp16"]}.items()}
engines = keep(kept_files, fp32.vision.parents[1] / "engines")
print("in the cache (SERVINGLAB_CACHE, else ~/.cache/servinglab):", engines.relative_to(cache_dir()))
print(", ".join(sorted(path.name for path in engines.iterdir())))

# %% [markdown]
# Triton's TensorRT backend does not read plans of TensorRT-RTX. In NVIDIA's container the program is `trtexec`: run it
# in a copy of that folder. It builds for the card of that machine, from the same ONNX files, with the same profile, and
# names the plan after tower and precision. `--stronglyTyped` says that the file's types are the plan's; TensorRT 11
# knows no other way.

# %% tags=["nbval-check-output"]
for tower_name, precision in (("vision", "fp16"), ("vision", "int8"), ("text", "fp16")):
    print(trtexec(tower_name, precision).replace(" --", " \\\n    --"))

# %% [markdown]
# And for the TensorRT that made CLIP's vectors constant:

# %% tags=["nbval-check-output"]
try:
    trtexec("vision", version="8.6.1")
except EncoderError as error:
    print(error)

# %% [markdown]
# And this is how Triton serves a tower, in outline: through ONNX Runtime inside a Python model, or on a GPU box as a
# plan. **Predict:** which lines differ?

# %% tags=["nbval-check-output"]
import difflib

flavours = [config_pbtxt("vision", flavour).splitlines() for flavour in ("onnx", "tensorrt_plan")]
print("\n".join(line for line in difflib.ndiff(*flavours) if not line.startswith("?")))

# %% [markdown]
# Who computes, and where: nothing else. Names, types and shapes are the same, so a client does not notice which one it
# is. The next notebook writes its own files: smaller batches, no delay, and a parameter `threads` that its Python model
# reads and without which it would not load. `backend: "tensorrt"` there and `platform: "tensorrt_plan"` here name the
# same backend.
#
# The text encoder as a plan reads token ids, two tensors of open length, so somebody must tokenise before it.
# **Predict:** what stands in its `dims`?

# %% tags=["nbval-check-output"]
print(config_pbtxt("text", "tensorrt_plan"))

# %% [markdown]
# -1 is the open number of tokens; the batch stands in no `dims`. In the next notebook the text encoder stays in Python,
# where its tokenizer is.
#
# ## Recap
#
# - Vectors of one length are no common space. Without a bridge, recall is that of guessing.
# - CLIP's towers were trained together. ConSE builds a bridge of class names without training, mini-CLIP learns one.
# - Compare ways on the same captions, pair by pair, and show intervals.
# - An export is right when numbers, batch and names are checked. Static int8 suits convolutions, dynamic int8 text.
# - An acceptance test stands between build and service.
#
# ## Break it
#
# The tower wants red, green, blue. OpenCV reads blue, green, red. **Predict:** does anything fail? How much recall is
# lost? And which check of this page would notice it?

# %%
swapped = towers.encode_pixels(seen[test][:, ::-1].copy())
for name, vectors in (("as trained", mini[test]), ("blue first", swapped)):
    mean, low, high = measure(rank(cosines(sentences[test], vectors)))["k"]
    print(f"{name}: recall at {k} {mean:.3f} ({low:.3f} to {high:.3f})")
try:
    print(accept(swapped, mini[test], threshold=0.1))
except EncoderError as error:
    print(error)

# %% [markdown]
# Nothing crashes, and recall may not even show it: on so few pictures its interval is wide, and many things are known
# by their shape. The vectors have turned, though, and the acceptance test notices it. Feed it picture *files*, prepared
# by the code that the server uses; on ready-made numbers it would see nothing.
#
# The last cell deletes the temporary folder and says what produced the numbers on this page.

# %%
scratch.cleanup()
at_1, at_k = (round(float(table["mini-CLIP"][which][0]), 3) for which in ("1", "k"))
record("13", lane=lane, seed=seed, pictures=len(shown), k=k, recall_at_1=at_1, recall_at_k=at_k)
