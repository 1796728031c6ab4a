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
# # 14 · The ensemble: a picture or a sentence in, a vector out
#
# You serve both encoders as models of one Triton, join them to an ensemble, and send it everything that goes wrong.
#
# After this notebook you can
#
# - write an ensemble that takes pictures and sentences, and say what it cannot do
# - measure from statistics what an ensemble costs beside its steps, and what batching brings
# - write a configuration that loads, and find mistakes with the batch dimension before a server does
# - answer each kind of broken picture with one sentence, and keep the service alive
#
# **Time:** 45 minutes · **Lanes:** embedded · **Needs:** Triton, MiniLM;
# mini-CLIP, which comes with the course
#
# read: 11 min, do: 34 min
#
# Previous: [13 · One space](13_encoders_and_engines.ipynb) · Next: [15 · Search and answer](15_search_and_answer.ipynb)

# %%
import difflib
import io
import shutil
import struct
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import tritonclient.grpc as grpcclient
from google.protobuf import text_format
from PIL import Image
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from cliplab import deployment, encoders, figures
from cliplab.pictures import catalogue
from servinglab import notebook
from servinglab.checks import check
from servinglab.figures.style import show, table
from servinglab.repository import lint
from servinglab.server import TritonServer

# %% tags=["parameters"]
lane: str = "auto"  # "embedded" or "auto"
precision: str = "fp32"  # weights of the encoders: "fp32" or "int8"
shown: int = 12  # pictures that you look at
sentence: str = "a bird with red feathers"  # a text of your own
clients: int = 8  # how many ask at the same time
requests: int = 32  # how many requests they send
seed: int = 0  # which pictures

# %% [markdown]
# ## 1 Five models, one request
#
# Notebook 13 gave you two encoders that share a space. A client has only the bytes of a picture file, or a sentence. So
# the server must also decode and resize, tokenise, and bring both together: four models with one job each.
#
# **Predict:** which of the arrows below can be on their way at the same time?

# %%
lane = notebook.begin("14", lane, seed=seed, weights=precision)
drawn = "client, image_preprocessing, vision_encoder, text_encoder and fusion, with the tensors on their arrows"
show(figures.pipeline(), "Four models, and the tensors that join them", drawn, drawing=True)

# %% [markdown]
# `fusion` finds the nearest *labels*: captions of the whole catalogue. `write_repository` writes the four models. Each
# folder has all it needs, down to the code that prepared the pictures in training: given other pixels an encoder still
# answers, only worse.

# %%
everything = catalogue("subset")
order = np.random.default_rng(seed).permutation(len(everything))
pictures = [everything[n] for n in order[:shown]]
labels = sorted({picture.caption for picture in everything})
print(len(labels), "labels, such as", labels[0])

# %% [markdown]
# Here are the folders. The fifth model you write yourself.

# %%
root = Path(tempfile.mkdtemp(prefix="ensemble-"))
repository = deployment.write_repository(root / "models", precision, labels, top=3)
shutil.rmtree(repository / "clip")
for path in sorted(repository.glob("*/1/*")):
    print(f"{path.stat().st_size / 1e6:6.1f} MB  {path.relative_to(repository)}")

# %% [markdown]
# It is an **ensemble**: no code, only a configuration that says which model gets which tensor. Which arrows? A step
# starts as soon as its inputs are there: the text's run beside the picture's. First what a client sees. `dims`
# describes one row; `max_batch_size` allows 16 rows in a request.

# %%
HEAD = """
name: "clip"
platform: "ensemble"
max_batch_size: 16
input [ { name: "image" data_type: TYPE_STRING dims: [ 1 ] }, { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [
  { name: "embedding" data_type: TYPE_FP32 dims: [ 384 ] },
  { name: "labels" data_type: TYPE_STRING dims: [ 3 ] },
  { name: "scores" data_type: TYPE_FP32 dims: [ 3 ] },
  { name: "tokens_left_out" data_type: TYPE_INT32 dims: [ 1 ] }
]
"""

# %% [markdown]
# Then the wiring. In a map the key is the *model's* name for a tensor, the value the *ensemble's*. Where two steps name
# the same value, there is an arrow. In our models both names are equal.

# %%
STEPS = """
ensemble_scheduling { step [
  { model_name: "image_preprocessing" model_version: -1
    input_map { key: "image" value: "image" }
    output_map [ { key: "pixel_values" value: "pixel_values" }, { key: "image_state" value: "image_state" } ] },
  { model_name: "vision_encoder" model_version: -1
    input_map { key: "pixel_values" value: "pixel_values" }
    output_map { key: "image_embedding" value: "image_embedding" } },
  { model_name: "text_encoder" model_version: -1
    input_map { key: "text" value: "text" }
    output_map [ { key: "text_embedding" value: "text_embedding" }, { key: "text_state" value: "text_state" },
                 { key: "tokens_left_out" value: "tokens_left_out" } ] },
  { model_name: "fusion" model_version: -1
    input_map [ { key: "image_embedding" value: "image_embedding" }, { key: "image_state" value: "image_state" },
                { key: "text_embedding" value: "text_embedding" }, { key: "text_state" value: "text_state" } ]
    output_map [ { key: "embedding" value: "embedding" }, { key: "labels" value: "labels" },
                 { key: "scores" value: "scores" } ] }
] }
"""

# %% [markdown]
# The ensemble needs a version folder, though an empty one. Does your configuration say the same as the lab's?

# %% tags=["nbval-check-output"]
(repository / "clip" / "1").mkdir(parents=True)
(repository / "clip" / "config.pbtxt").write_text(HEAD + STEPS)
yours = text_format.Parse(HEAD + STEPS, model_config_pb2.ModelConfig())
print("the same as the lab's:", yours == deployment.model_config("clip", top=3))

# %% [markdown]
# **Exercise 14.1** (●○○, 3 minutes) Somebody gives you a better vision encoder. It calls its input `images` and its
# output `features`. Write the maps of step 2 that put it in the place of ours. Nothing else may change.
#
# <details><summary>Hint 1</summary>
#
# Look at step 2 above. Which side of a map belongs to the model, and which to the ensemble?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Follow one arrow of the drawing: what is its name on both ends? `image_preprocessing` and `fusion` may not change.
#
# </details>

# %% tags=["exercise:14.1"]
answer_1 = {"input_map": None, "output_map": None}  # each a dict: {"one name": "another name"}

# %% tags=["check:14.1", "nbval-check-output"]
check("14.1", answer_1)

# %% [markdown]
# <details><summary>Solution 14.1</summary>
#
# ```python
# answer_1 = {"input_map": {"images": "pixel_values"}, "output_map": {"features": "image_embedding"}}
# ```
#
# </details>

# %% [markdown]
# Start the server. It prints its command.

# %%
server = TritonServer(repository).start()
print(server.command_line)

# %% [markdown]
# A request has both tensors, `BYTES` of shape [rows, 1]:

# %%
client = grpcclient.InferenceServerClient(server.grpc_url)


def ask(model="clip", **tensors):
    made = []
    for name, array in tensors.items():
        made.append(grpcclient.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
        made[-1].set_data_from_numpy(array)
    return client.infer(model, made, client_timeout=60)


# %% [markdown]
# And for the ensemble, one row with a picture, a text or both:

# %%
def embed(image=b"", text=""):
    row = {"image": image, "text": text.encode()}
    return ask(**{name: np.array([[value]], dtype=object) for name, value in row.items()})


# %% [markdown]
# mini-CLIP was trained on none of these pictures. **Predict:** for how many is their own caption the first of all
# labels?

# %%
files = [picture.file.read_bytes() for picture in pictures]
answers = [embed(data) for data in files]
names = [answer.as_numpy("labels")[0, 0].decode() for answer in answers]
scores = [answer.as_numpy("scores")[0, 0] for answer in answers]

# %% [markdown]
# Each with its best label and that label's score:

# %%
items = [(p.file, f"{name} {score:.2f}") for p, name, score in zip(pictures, names, scores, strict=True)]
own = sum(picture.caption == name for picture, name in zip(pictures, names, strict=True))
title = f"{own} of {len(items)} pictures get their own caption out of {len(labels)}"
show(figures.gallery(items), title, f"{len(items)} pictures, each with the nearest label and its cosine", photos=True)

# %% [markdown]
# For how many? The title counts exact captions: *A pig.* for a Tamworth pig is a miss, though near. The score is a
# cosine, not a probability.
#
# Is the served vector the encoders' own? Check this in every deployment, because decoding, resizing and tokenising have
# moved to another process.

# %% tags=["nbval-check-output"]
local = encoders.OnnxEncoders(encoders.prepare(precision))
served = np.concatenate([answer.as_numpy("embedding") for answer in answers])
print("same as in this process:", bool(np.abs(served - local.encode_images(files)).max() < 1e-4))

# %% [markdown]
# A text goes through the same ensemble; `text_encoder` explains its rare words, as notebook 13 did. **Predict:** which
# labels are nearest to `sentence`, and does its vector differ from the one made in this process?

# %%
found = embed(text=sentence)
for label, score in zip(found.as_numpy("labels")[0], found.as_numpy("scores")[0], strict=True):
    print(f"{score:.2f} {label.decode()}")
assert np.abs(found.as_numpy("embedding") - local.encode_texts([sentence])).max() < 1e-4


# %% [markdown]
# Does it differ? No: the last line checks that.
#
# ### Both at once
#
# Send a picture *and* a text, and `fusion` makes one vector of the two: "like this picture, but …".

# %% [markdown]
# **Exercise 14.2** (●●○, 5 minutes) Write `fuse(image, text)`: two vectors of any length above 0, or None for one of
# them. Both have the same weight, and the result has length 1.
#
# <details><summary>Hint 1</summary>
#
# What must happen to each vector before you add them? And how long is a sum of two vectors of length 1?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# For (3, 4, 0) and (0, 0, 2) the answer is (0.42, 0.57, 0.71): the picture is longer, and yet has no more to say. And
# are the caller's vectors still the same afterwards?
#
# </details>

# %% tags=["exercise:14.2"]
def fuse(image, text):
    ...  # your code


# %% tags=["check:14.2", "nbval-check-output"]
check("14.2", fuse)

# %% [markdown]
# <details><summary>Solution 14.2</summary>
#
# ```python
# def fuse(image, text):
#     total = sum(vector / np.linalg.norm(vector) for vector in (image, text) if vector is not None)
#     return total / np.linalg.norm(total)
# ```
#
# </details>

# %% [markdown]
# **Predict:** the parts have a cosine of, say, 0.2. What is the joint vector's cosine with each of them?

# %%
parts = {"picture": served[0], "text": found.as_numpy("embedding")[0]}
both = embed(files[0], sentence).as_numpy("embedding")[0]
between = parts["picture"] @ parts["text"]
print(f"picture and text {between:.2f}; joint and picture {both @ parts['picture']:.2f},", end=" ")
print(f"joint and text {both @ parts['text']:.2f}; half-way would be {np.sqrt((1 + between) / 2):.2f}")
assert np.isclose(both @ parts["text"], np.sqrt((1 + between) / 2), atol=1e-3)


# %% [markdown]
# What is the cosine? The joint vector halves the angle. For parts with cosine $c$ it is $\sqrt{(1 + c)/2}$ on both
# sides; for 0.2 that is $\sqrt{0.6} \approx 0.77$.
#
# ### With only a text
#
# Did the picture's steps run? Yes: an ensemble has no branch, and each step needs its tensors. So both inputs are
# required, and an empty string stands for "none".
#
# <details><summary>And optional inputs?</summary>
#
# Triton 24.10 does know inputs that are `optional`. But a step that is left without any input makes an error of its
# own, and a request with none at all never gets an answer (seen here).
#
# </details>
#
# For an empty picture `image_preprocessing` sends pixels that are *not a number*, and `vision_encoder` skips such rows.
# **Predict:** what does a picture cost beside a text: less, about the same, or more?

# %%
def timed(*pair):
    began = time.perf_counter()
    embed(*pair)
    return 1e3 * (time.perf_counter() - began)


asked = {"text only": (b"", sentence), "picture only": (files[0], ""), "both": (files[0], sentence)}
costs = {name: float(np.median([timed(*pair) for _ in range(6)])) for name, pair in asked.items()}
fig, axes = plt.subplots(figsize=(7.5, 1.9))
axes.barh(list(costs), costs.values(), color=figures.COLOURS["clip"])
axes.bar_label(axes.containers[0], fmt="%.1f ms", padding=4)
axes.invert_yaxis()
axes.set(xlabel="milliseconds, median", xlim=(0, 1.15 * max(costs.values())))
title = f"A picture costs {costs['picture only'] / costs['text only']:.1f} times as much as a text"
show(fig, title, f"milliseconds of a text, a picture and both; {title}")


# %% [markdown]
# What does it cost? Here about as much: the text's encoder runs twice, for the sentence and its explanation. *Both*
# cost little more than one: the text runs beside the picture.
#
# ## 2 What the ensemble costs
#
# Do the hops between four models cost much? Triton's statistics count requests and nanoseconds for each model. So look
# before and after.

# %%
def counters(model):
    time.sleep(0.1)  # Triton counts a request a moment after its answer has left
    stats = client.get_inference_statistics(model).model_stats[0]
    done, queue = stats.inference_stats.success, stats.inference_stats.queue
    return np.array([done.count, done.ns / 1e6, queue.ns / 1e6, stats.execution_count, stats.inference_count])


# %% [markdown]
# **Predict:** the ensemble's time over the sum of its steps: 2, 1.5, 1.1, or less than 1?

# %%
steps = ("image_preprocessing", "vision_encoder", "text_encoder", "fusion")
before = {model: counters(model) for model in (*steps, "clip")}
for picture, data in zip(pictures, files, strict=True):
    embed(data, picture.caption)
ms = {model: float((counters(model) - before[model])[1] / len(pictures)) for model in before}
ensemble_ms, sum_ms = ms["clip"], sum(ms[step] for step in steps)
path_ms = sum_ms - ms["text_encoder"]

# %% [markdown]
# As a timetable, from the request to the response:

# %%
title = f"The ensemble takes {ensemble_ms / sum_ms:.2f} of its steps' time, one after another"
summary = f"the ensemble beside its four steps, mean of {len(pictures)} requests, one at a time"
show(figures.step_bars(ms, ensemble_ms), title, summary)

# %% [markdown]
# Is it less than 1? If so, the text's step ran beside the picture's. The **longest path** is the three steps that must
# wait for each other. What the ensemble takes above it is its own cost: a few milliseconds at most, as tensors stay in
# memory.
#
# <details><summary>When the ensemble ends before its last step</summary>
#
# Then a step's time probably ends a little after its answer has gone on, so two steps overlap, and the ensemble costs
# too little to be seen in this way. `benchmarks/clip_ensemble.py` measures it in rounds, for
# `data/results/cpu/clip_ensemble.json`.
#
# </details>
#
# You could call the four models yourself. But then the pixels travel twice, 602,112 bytes each way. If a request
# decides which way it goes, write a BLS model (notebook 03): it is code, and has an "if".

# %% [markdown]
# ## 3 Dynamic batching
#
# Both encoders have `dynamic_batching { }`: waiting requests go through the model together.
#
# Several clients help in two ways: they use all parts at the same time, and they can share an execution. So you need a
# control: the same clients, and no batching. `load` changes a configuration and makes Triton load the model again.

# %%
configs = {model: (repository / model / "config.pbtxt").read_text() for model in (*steps, "clip")}


def load(model, text):
    (repository / model / "config.pbtxt").write_text(text)
    client.load_model(model, headers=server.admin_headers)


# %% [markdown]
# Each encoder gets its own input: a picture's pixels, from `image_preprocessing`, or a caption.

# %%
pixels = [ask("image_preprocessing", image=np.array([[data]], object)).as_numpy("pixel_values") for data in files]
words_of = [np.array([[picture.caption.encode()]], dtype=object) for picture in pictures]
speed = {}


# %% [markdown]
# `measure` returns requests per second, rows per execution, and the mean milliseconds in the queue.

# %%
def measure(model, name, tensors, count):
    ask(model, **{name: tensors[0]})  # a model that was just loaded is slow once
    before, began = counters(model), time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda n: ask(model, **{name: tensors[n % len(tensors)]}), range(requests)))
    seconds = time.perf_counter() - began
    done, _, queue, executions, rows = counters(model) - before
    return requests / seconds, rows / executions, queue / done


# %% [markdown]
# **Predict:** what do more clients bring to each encoder, and how much of it is the batching?

# %%
kinds = {"vision_encoder": ("pixel_values", pixels), "text_encoder": ("text", words_of)}
control, batched = f"{clients} clients, no batching", f"{clients} clients, batching"
for model, kind in kinds.items():
    load(model, configs[model].replace("dynamic_batching {\n}", ""))
    for way, count in (("1 client", 1), (control, clients), (batched, clients)):
        if way == batched:
            load(model, configs[model])
        speed[model, way], rows, queue = measure(model, *kind, count)
        print(f"{model:15}{way:24}{speed[model, way]:5.0f} requests/s,", end=" ")
        print(f"{rows:.1f} rows an execution, {queue:5.1f} ms in the queue")

# %%
gain = {model: speed[model, batched] / speed[model, control] for model in kinds}
fig, axes = plt.subplots(figsize=(7.5, 2.8))
rows = [f"{model.removesuffix('_encoder')}: {way}" for model, way in speed]
axes.barh(rows, speed.values(), color=[figures.COLOURS[model] for model, _ in speed], alpha=0.7)
axes.bar_label(axes.containers[0], fmt="%.0f", padding=4)
axes.invert_yaxis()
axes.set(xlabel="requests a second", xlim=(0, 1.12 * max(speed.values())))
words = " and ".join(f"{factor:.2f} for {model.removesuffix('_encoder')}" for model, factor in gain.items())
show(fig, f"Batching, as many clients: times {words}", f"requests a second of both encoders; batching: times {words}")

# %% [markdown]
# What do more clients bring? Little, or less: an encoder has one thread, and clients take cores, too. And the batching?
# The control has 1 row per execution, so nothing there is batching's. Whether larger batches are also *faster* depends
# on what one row leaves idle: on a GPU nearly everything. Here a picture keeps a core busy by itself. The queue got
# shorter, but no client waits less. Repeat before you believe a factor.

# %% [markdown]
# ## 4 The batch dimension
#
# Send two pictures to `vision_encoder`: one of [3, 224, 224], exactly what `dims` says, and one of another size.
#
# **Predict:** does Triton take the first?

# %% tags=["nbval-check-output"]
for shape in ((3, 224, 224), (1, 3, 336, 336)):
    try:
        ask("vision_encoder", pixel_values=np.zeros(shape, np.float32))
    except InferenceServerException as error:
        print(f"{list(shape)}:", error.message())

# %% [markdown]
# Does Triton take it? No: it expects -1, the batch, in front. `max_batch_size` decides that. Above 0, Triton puts the
# number of rows in front of `dims`, in requests, in responses and on every arrow of an ensemble. With 0, `dims` is the
# whole shape.
#
# ![Two pictures travel as shapes that begin with 2; dims in the configurations have one row](pictures/14_rows.svg)

# %% [markdown]
# **Exercise 14.3** (●●○, 6 minutes) Deploy the picture encoder a second time, as `small`: at most 4 pictures go through
# it together, and none waits longer than 2 milliseconds for company. The ONNX graph takes `pixel_values`, `[batch, 3,
# 224, 224]`, and gives `image_embedding`, `[batch, 384]`, both float32. Write name, `max_batch_size`, input, output and
# `dynamic_batching` of its `config.pbtxt`; `REST` adds who computes.
#
# <details><summary>Hint 1</summary>
#
# `HEAD` in section 1 has the form. `dims` is one row. Which number of the graph's shape does Triton add by itself?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# The name says the unit: `max_queue_delay_microseconds`. It stands inside `dynamic_batching { }`.
#
# </details>

# %% tags=["exercise:14.3"]
my_config = None  # the text of a config.pbtxt

# %% tags=["check:14.3", "nbval-check-output"]
check("14.3", my_config)

# %% [markdown]
# <details><summary>Solution 14.3</summary>
#
# ```python
# my_config = '''
# name: "small"
# max_batch_size: 4
# input { name: "pixel_values" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }
# output { name: "image_embedding" data_type: TYPE_FP32 dims: [ 384 ] }
# dynamic_batching { max_queue_delay_microseconds: 2000 }
# '''
# ```
#
# </details>

# %% [markdown]
# **Predict:** does it load, and what becomes of five pictures at once? Put it into the running server, and send it
# four, then five.

# %%
REST = 'backend: "python" parameters { key: "threads" value { string_value: "1" } }'
if my_config:
    shutil.copytree(repository / "vision_encoder", repository / "small", dirs_exist_ok=True)
    try:
        load("small", my_config + REST)
        told = client.get_model_config("small").config
        print("Triton says: at most", told.max_batch_size, "pictures, which wait",
              told.dynamic_batching.max_queue_delay_microseconds, "µs")  # fmt: skip
        for rows in (4, 5):
            found = ask("small", pixel_values=np.repeat(pixels[0], rows, axis=0))
            print(f"{rows} pictures:", found.as_numpy("image_embedding").shape)
    except InferenceServerException as error:
        print("Triton:", error.message())
    client.unload_model("small", headers=server.admin_headers)
    shutil.rmtree(repository / "small")

# %% [markdown]
# In an ensemble two models must agree, so such mistakes are harder to see. Here are five: the batch written into `dims`
# of one model, or of both; no batch dimension in the ensemble; more rows than a step takes; another size of picture.

# %%
five = {
    "-1 in the encoder's dims": {"vision_encoder": ("[3, 224, 224]", "[-1, 3, 224, 224]")},
    "-1 in both models' dims": dict.fromkeys(steps[:2], ("[3, 224, 224]", "[-1, 3, 224, 224]")),
    "no batch in the ensemble": {"clip": ("max_batch_size: 16", "max_batch_size: 0")},
    "32 rows, steps take 16": {"clip": ("max_batch_size: 16", "max_batch_size: 32")},
    "an encoder for 336 pixels": {"vision_encoder": ("[3, 224, 224]", "[3, 336, 336]")},
}


# %% [markdown]
# For each: does notebook 03's linter find it, does Triton load it, and does a request get an answer? (The right
# configurations come back in any case.) **Predict:** do any load and then fail?

# %%
def try_out(changes):
    for model, (right, wrong) in changes.items():
        (repository / model / "config.pbtxt").write_text(configs[model].replace(right, wrong))
    outcome = {"linter": "finds it" if lint(repository) else "silent", "loading": "refused", "a request": "not sent"}
    try:
        for model in dict.fromkeys([*changes, "clip"]):
            client.load_model(model, headers=server.admin_headers)
        outcome |= {"loading": "accepted", "a request": "fails"}
        embed(text="a bird")
        outcome["a request"] = "answered"
    except InferenceServerException as error:
        print(f"    {error.message().strip():.200}")
    finally:  # also when you stop the cell: no mistake may stay
        for model in (*changes, "clip"):
            load(model, configs[model])
    return outcome


# %%
outcomes = {}
for name, changes in five.items():
    print(name)
    outcomes[name] = try_out(changes)
assert lint(repository) == []

# %% [markdown]
# Green stops a mistake early, orange lets it through:

# %%
shades = {"finds it": "#B3E2D1", "refused": "#B3E2D1", "accepted": "#F7CFAE", "fails": "#F7CFAE"}
cells = {(name, where): (said, shades.get(said, "#E4E4E4"))
         for name, outcome in outcomes.items() for where, said in outcome.items()}  # fmt: skip
fig, axes = plt.subplots(figsize=(7.5, 2.9))
table(axes, list(outcomes), list(outcomes["no batch in the ensemble"]), cells)
late = sum(outcome["a request"] == "fails" for outcome in outcomes.values())
found = sum(outcome["linter"] == "finds it" for outcome in outcomes.values())
words = f"{late} of {len(five)} mistakes load and then fail; the linter finds {found}"
show(fig, words, words)

# %% [markdown]
# Do any load and then fail? Two do, and every request fails: Triton compares configurations with each other, not with
# what is sent. The linter reads the text alone.
#
# ## 5 Whatever people send
#
# First files that are pictures, but look unlike what your code expects.

# %%
stamp = Image.open(pictures[0].file).convert("RGBA")
photo = Image.alpha_composite(Image.new("RGBA", stamp.size, "white"), stamp).convert("RGB")
photo.thumbnail((120, 120))


# %% [markdown]
# `save` makes a file. Its EXIF data can say how the camera was held.

# %%
def save(image, kind="PNG", **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


turned = Image.Exif()
turned[0x0112] = 6  # "turn me by 90 degrees": the camera was held upright
grey = np.asarray(photo.convert("L")).astype(np.uint16) * 257
layer = photo.convert("RGBA")
layer.putalpha(photo.convert("L").point(lambda value: 255 * (value < 250)))

# %% [markdown]
# Seven files: plain, JPEG, CMYK as from a print shop, turned by EXIF, 16 bits a pixel as from a scanner, a transparent
# background, an animation.

# %%
unusual = {
    "plain": save(photo), "JPEG": save(photo, "JPEG", quality=95),
    "CMYK, JPEG": save(photo.convert("CMYK"), "JPEG", quality=95),
    "turned, JPEG": save(photo.transpose(Image.Transpose.ROTATE_90), "JPEG", exif=turned, quality=95),
    "16 bits, grey": save(Image.fromarray(grey)), "transparent": save(layer),
    "animated": save(photo, "GIF", save_all=True, append_images=[Image.new("RGB", photo.size, "navy")] * 2),
}  # fmt: skip

# %% [markdown]
# What does the server see of each, and how near is its vector to that of the plain file?

# %%
made = {name: embed(data).as_numpy("embedding")[0] for name, data in unusual.items()}
likeness = {name: float(vector @ made["plain"]) for name, vector in made.items()}
for name, data in unusual.items():
    (root / name).write_bytes(data)
previews = [(root / name, f"{name}: {score:.3f}") for name, score in likeness.items()]

# %% [markdown]
# One picture, so the cosines are an example and no rule.

# %%
lowest = min(likeness, key=likeness.get)
title = f"One picture in seven files: the furthest is {lowest}, cosine {likeness[lowest]:.2f}"
summary = "the same picture as plain, JPEG, CMYK, turned, 16-bit, transparent and animated file, decoded"
show(figures.gallery(previews, columns=7), title, summary, photos=True)


# %% [markdown]
# The grey picture lost its colours, and the transparent one shows white. CMYK and the turn cost about as much as JPEG,
# the animation nothing. **Predict:** what would they give without care?
#
# <details><summary>What would they give?</summary>
#
# The turned one would be on its side, and the 16-bit one white: its values go to 65,535, and Pillow cuts them off at
# 255.
#
# </details>
#
# ### And what is no picture
#
# A small file can hold a huge picture: 68 bytes promise 20,000 by 20,000 pixels, 1.2 GB when decoded. Or huge work: a
# JPEG may come in scans, each of which visits all pixels. Five thousand keep a decoder busy for seconds.

# %%
def png_header(width, height):
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(9))), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def many_scans(count):
    data = save(Image.new("RGB", (1000, 1000)), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]  # FF DA begins a scan, FF D9 ends the file
    return data[:-2] + count * last + data[-2:]


# %%
whole = save(photo.resize((300, 400)), "JPEG")
bad = {
    "cut off": (whole[: len(whole) // 2], ""), "damaged": (whole[:2] + bytes(300), ""),
    "no pixels": (png_header(0, 0), ""), "a bomb": (png_header(20_000, 20_000), ""),
    "a slow one": (many_scans(5_000), ""), "a letter": (b"Dear server, here is my picture.", ""),
    "nothing": (b"", ""), "blanks": (b"", "  \n "), "two million letters": (b"", "word " * 400_000),
}  # fmt: skip

# %% [markdown]
# **Predict:** where should each be refused, and with which sentence to the sender?

# %%
for name, pair in bad.items():
    try:
        embed(*pair)
    except InferenceServerException as error:
        print(f"{name:20} {error.message()}")
print("and then:", embed(files[0]).as_numpy("embedding").shape)

# %% [markdown]
# Where were they refused? Both bombs before any decoding, by the header and by the number of scans. A broken picture
# travels on as *data* (`image_state`); the last step makes the error of it.
#
# MiniLM reads only 256 tokens. A longer text is cut, and the answer says how much was left out. Cutting silently would
# mislead; refusing would be too strict.

# %% tags=["nbval-check-output"]
long = embed(text="a small red bird on a branch " * 1430)  # 10,010 words
print(long.as_numpy("tokens_left_out")[0, 0], "tokens left out, vector", long.as_numpy("embedding").shape)

# %% [markdown]
# Many good and bad ones at once: does each get its own answer?

# %%
storm = [(files[n % shown], "") if n % 3 else (b"broken", "a bird") for n in range(requests)]


def outcome(pair):
    try:
        return embed(*pair).as_numpy("embedding").shape == (1, 384)
    except InferenceServerException as error:
        return "no picture" in error.message()


with ThreadPoolExecutor(clients) as pool:
    right = list(pool.map(outcome, storm))
print(f"{sum(right)} of {len(right)} as they should be")
assert all(right)

# %% [markdown]
# ## 6 The same on a GPU box
#
# With a plan that `trtexec` made from notebook 13's files, only the folder `vision_encoder` changes: it holds
# `model.plan` instead of `model.py`, and its configuration names another backend.
# `write_repository(…, flavour="tensorrt", plan="vision.fp16.plan")` writes it. **Predict:** which lines of the
# configuration differ?

# %% tags=["nbval-check-output"]
on_gpu = text_format.MessageToString(
    deployment.model_config("vision_encoder", flavour="tensorrt"), use_short_repeated_primitives=True
)
lines = difflib.ndiff(configs["vision_encoder"].splitlines(), on_gpu.splitlines())
print("\n".join(line for line in lines if not line.startswith("?")))


# %% [markdown]
# Which lines differ? Only those that say who computes, and where. Names, types and shapes stay, so
# ensemble and client do not notice. The text encoder stays in Python, with its tokenizer.
#
# None of this was run here: this server has no such backend. It needs NVIDIA's plain `tritonserver` image, with
# `pip install onnxruntime tokenizers pillow` for the other models.

# %% [markdown]
# ## Recap
#
# - An ensemble is wiring: keys are the model's names, values the ensemble's. What is ready starts, so branches overlap.
# - It has no "if". An empty string stands for "none", and a step may skip rows.
# - The statistics compare it with its longest path.
# - Batching needs a control: the same clients without it.
# - `max_batch_size` above 0 puts the rows in front of `dims`, everywhere. Lint before you load: some mistakes load.
# - Bound pixels, bytes and work before you decode, turn by EXIF, put transparency on white, say what was cut off.

# %% [markdown]
# ## Break it
#
# Take `vision_encoder` out of the running server, as a failed deployment would. **Predict:** does a sentence, which
# needs no picture, still get its vector?

# %% tags=["nbval-check-output"]
def try_both():
    for name, given in (("a sentence", (b"", sentence)), ("a picture", (files[0], ""))):
        try:
            print(f"{name}: a vector {embed(*given).as_numpy('embedding').shape}")
        except InferenceServerException as error:
            print(f"{name}: {error.message()}")


client.unload_model("vision_encoder", headers=server.admin_headers)
while client.is_model_ready("clip"):
    time.sleep(0.05)
try_both()
print("text_encoder alone:", ask("text_encoder", text=words_of[0]).as_numpy("text_embedding").shape)
print("the server is ready:", client.is_server_ready())

# %% [markdown]
# Does it? No. An ensemble is there only while all its steps are. `text_encoder` still answers, but the server is not
# *ready*: a load balancer would leave it out. Now put the encoder back. **Predict:** must you restart anything?

# %% tags=["nbval-check-output"]
client.load_model("vision_encoder", headers=server.admin_headers)
try_both()

# %% [markdown]
# No: the ensemble came back with its step. So where texts must go on without pictures, give them a model of their own.

# %%
client.close()
server.stop()
shutil.rmtree(root)
notebook.record(
    requests_per_second={f"{model}, {way}": round(rate, 1) for (model, way), rate in speed.items()},
    ensemble_over_longest_path=round(ensemble_ms / path_ms, 3), ensemble_over_sum=round(ensemble_ms / sum_ms, 3),
    text_only_ms=round(costs["text only"], 1), picture_only_ms=round(costs["picture only"], 1),
)  # fmt: skip
