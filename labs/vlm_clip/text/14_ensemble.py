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
# - write the models and the wiring of an ensemble that takes pictures and sentences, and say what an ensemble cannot do
# - measure from statistics what an ensemble costs beside its steps, and what batching brings
# - read and prevent mistakes with the batch dimension, before a server sees them
# - make a service that answers each kind of broken picture with one sentence, and lives on
#
# **Time:** 45 minutes (last run: 121 s) · **Lanes:** embedded · **Needs:** Triton, MiniLM
#
# Previous: [13 · One space](13_encoders_and_engines.ipynb) · Next: [15 · Search and answer](15_search_and_answer.ipynb)

# %%
import io
import struct
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from cliplab import encoder_figures, ensemble_figures
from cliplab.client import ClipClient
from cliplab.deployment import model_config, write_repository
from cliplab.encoders import OnnxEncoders, prepare
from cliplab.measure import STEPS, Watch, at_once
from cliplab.pictures import catalogue
from cliplab.prepare import open_picture, to_array
from servinglab.checks import check
from servinglab.figures import style
from servinglab.notebook import begin, record, resolve_lane
from servinglab.old_client import ClientError
from servinglab.repository import lint, parse, to_text
from servinglab.server import ServerError, TritonServer

begin()
style.use()

# %% tags=["parameters"]
lane: str = "auto"  # "embedded" or "auto"
precision: str = "fp32"  # weights of the encoders: "fp32" or "int8"
shown: int = 12  # pictures that you look at
sentence: str = "a bird with red feathers"  # a text of your own
clients: int = 8  # how many ask at the same time
requests: int = 64  # how many requests they send
seed: int = 0  # which pictures

# %% [markdown]
# ## 1 Five models, one request
#
# Notebook 13 has given you two encoders that share a space. A client has none of them, and should not need to: it has
# the bytes of a picture file, or a sentence. So the server must also decode and resize, tokenise, and bring both
# together. That are four models, each with one job.
#
# **Predict:** which of the arrows below can be on their way at the same time?

# %%
drawn = "image_preprocessing feeds vision_encoder, text_encoder runs beside them, fusion joins both"
style.finish(ensemble_figures.pipeline(), "Four steps, and two of them side by side", "", drawn)

# %% [markdown]
# The fifth model is the frame. An **ensemble** has no code: it is a configuration that says which model gets which
# tensor. Triton starts a step as soon as all of its inputs are there, so the text is encoded while the picture is.
#
# `write_repository` writes all five. The labels are what a picture may be called: here the captions of the whole
# catalogue. `fusion` keeps their vectors and names the nearest ones.

# %%
lane = resolve_lane(lane)
everything = catalogue("subset")
order = np.random.default_rng(seed).permutation(len(everything))
pictures = [everything[n] for n in order[:shown]]
labels = sorted({picture.caption for picture in everything})
scratch = tempfile.TemporaryDirectory(prefix="servinglab-14-")
repository = write_repository(Path(scratch.name, "models"), prepare(precision), labels, top=3)
for path in sorted(repository.glob("*/1/*")):
    print(f"{path.stat().st_size / 1e6:6.1f} MB  {path.relative_to(repository)}")

# %% [markdown]
# Each folder holds all that its model needs, down to a copy of the module that prepares pictures. It is the one that
# the training used. A tower that gets its pixels in another way than it was trained still answers, only worse.
#
# Here is the wiring of one step:

# %% tags=["nbval-check-output"]
wiring = parse((repository / "clip" / "config.pbtxt").read_text())
print(wiring.ensemble_scheduling.step[1])

# %% [markdown]
# The keys are names of the *model's* tensors, the values names of the *ensemble's* tensors. Where two steps name the
# same value, there is an arrow. Our models were written for each other, so both sides have the same names.
#
# **Exercise 14.1** Somebody gives you a better vision encoder. It calls its input `images` and its output `features`.
# Write the maps of step 2 that put it in the place of ours. Nothing else may change.

# %% tags=["exercise:14.1"]
answer_1 = {"input_map": None, "output_map": None}  # each a dict: {"one name": "another name"}

# %% tags=["check:14.1", "nbval-check-output"]
check("14.1", answer_1)

# %% [markdown]
# Start the server and ask. What was trained for this lab has seen none of these pictures. **Predict:** of how many is
# the own caption the first of all labels?

# %%
server = TritonServer(repository).start()
clip = ClipClient(server.grpc_url)
answers = [clip.embed(picture.file.read_bytes()) for picture in pictures]
items = [(p.file, f"{a.labels[0]} {a.scores[0]:.2f}") for p, a in zip(pictures, answers, strict=True)]
own = sum(p.caption == a.labels[0] for p, a in zip(pictures, answers, strict=True))

# %% [markdown]
# Each with its best label and that label's score:

# %%
small_print = style.provenance(lane, seed, weights=precision)
summary = f"{len(items)} pictures, each with the nearest of {len(labels)} labels and its cosine"
title = f"{own} of {len(items)} pictures get their own caption out of {len(labels)}"
style.finish(encoder_figures.gallery(items), title, small_print, summary, photos=True)

# %% [markdown]
# Some wrong labels are near, the same kind of animal or thing; some are not. A label that comes again and again is a
# *hub*: its vector lies near to many that have no better place to go. Notebook 13 measured the other direction, from a
# sentence to its picture; the two need not agree. The score is a cosine, not a probability; it only ranks.
#
# The served vector must be the one that the encoders give without a server. That is worth a check in every deployment,
# because decoding, resizing and tokenising have moved into another process.

# %% tags=["nbval-check-output"]
files = [picture.file.read_bytes() for picture in pictures]
local = OnnxEncoders(prepare(precision))
served = np.stack([answer.vector for answer in answers])
print("same as in this process:", bool(np.abs(served - local.encode_images(files)).max() < 1e-4))

# %% [markdown]
# A text goes through the same ensemble. **Predict:** what are the nearest labels of `sentence`, and does the vector
# differ from MiniLM's own?

# %%
found = clip.embed(text=sentence)
for label, score in zip(found.labels, found.scores, strict=True):
    print(f"{score:.2f} {label}")
print("length", round(float(np.linalg.norm(found.vector)), 4))
assert np.abs(found.vector - local.encode_texts([sentence])[0]).max() < 1e-4


# %% [markdown]
# ### Both at once
#
# Send a picture *and* a text, and you get one vector between the two: "like this picture, but …". `fusion` computes it.
# In which way? The vectors that come out of a tower need not have one length, and a longer one pulls more.
#
# **Exercise 14.2** Write `fuse(image, text)`: two vectors of any length above 0, or None for one of them. Both have the
# same say, and the result has length 1.

# %% tags=["exercise:14.2"]
def fuse(image, text):
    ...  # your code


# %% tags=["check:14.2", "nbval-check-output"]
check("14.2", fuse)

# %% [markdown]
# **Predict:** the cosine of the joint vector with each of its parts, when the parts have a cosine of, say, 0.2?

# %%
both = clip.embed(files[0], sentence)
parts = {"picture": answers[0].vector, "text": found.vector}
between = parts["picture"] @ parts["text"]
print(f"picture and text {between:.2f}; joint and picture {both.vector @ parts['picture']:.2f},", end=" ")
print(f"joint and text {both.vector @ parts['text']:.2f}; half-way would be {np.sqrt((1 + between) / 2):.2f}")
assert np.isclose(both.vector @ parts["text"], np.sqrt((1 + between) / 2), atol=1e-3)

# %% [markdown]
# The joint vector halves the angle, exactly. For a cosine of 0.2 that gives √0.6 ≈ 0.77 on both sides.
#
# ### An ensemble has no "if"
#
# What happened to the picture's steps when there was only a text? They ran. An ensemble has no branch, each step gets
# its tensors or the request fails. Triton 24.10 does know inputs that are `optional`, but a step that is left without
# any input makes an error of its own, and a request with none at all never gets an answer (seen while this notebook was
# written). So both inputs are required here, and an empty string stands for "none".
#
# `image_preprocessing` then sends pixels that are *not a number*, and `vision_encoder` skips such rows. **Predict:**
# what does a picture cost beside a text, in milliseconds?

# %%
asked = {"text only": (None, sentence), "picture only": (files[0], None), "both": (files[0], sentence)}
costs = {}
for name, pair in asked.items():
    times = [clip.embed(*pair).seconds for _ in range(8)]
    costs[name] = 1e3 * float(np.median(times))
    print(f"{name:13} {costs[name]:5.1f} ms")

# %% [markdown]
# Both can cost no less than the picture alone; where it seems so, you see how much eight requests scatter. That the
# text adds little is what you may read.
#
# ## 2 What the ensemble costs
#
# Four models instead of one: is the way between them expensive? Triton's statistics know. For the same requests they
# hold the time of each step and the time of the ensemble. `Watch` takes them before and after.
#
# **Predict:** the ensemble's time over the sum of its steps: 2, 1.5, 1.1, or less than 1?

# %%
watch = Watch(server.http_url)
for picture in pictures:
    clip.embed(picture.file.read_bytes(), picture.caption)
did = watch.served()
step_ms = {step: did[step].total_ms for step in STEPS}
ensemble_ms, sum_ms = did["clip"].total_ms, sum(step_ms.values())
path_ms = sum_ms - step_ms["text_encoder"]
print(f"ensemble {ensemble_ms:.1f} ms, sum of its steps {sum_ms:.1f} ms: {ensemble_ms / sum_ms:.2f} times as long")
print(f"the longest path alone {path_ms:.1f} ms: {ensemble_ms / path_ms:.2f} times as long")

# %% [markdown]
# Drawn as a timetable, from the request to the response:

# %%
title = f"A request takes {ensemble_ms / path_ms:.2f} times its longest path, {ensemble_ms / sum_ms:.2f} times the sum"
summary = f"the ensemble beside its four steps, mean of {len(pictures)} requests, one at a time"
style.finish(ensemble_figures.step_bars(step_ms, ensemble_ms), title, small_print, summary)


# %% [markdown]
# Below 1 time the sum, the text's step ran beside the picture's. What is above 1 time the path of those that must wait
# for each other, timed during the same requests, is the frame's own: tensors go from step to step in memory, without a
# client. Slightly below 1 time the path is no miracle: a step's time probably ends a little after its answer has gone
# on, so the times of two steps overlap. Read it as: the frame costs too little to be seen in this way. Both branches
# share this machine's cores, so each is slower here than it would be alone.
# `benchmarks/clip_ensemble.py` measures all of that in rounds; `data/results/cpu/clip_ensemble.json` has the figures.
#
# You could call the four models yourself. Then the pixels travel twice, 602,112 bytes each way, and every client has to
# know the wiring. An ensemble is the better choice when the wiring is fixed. When a request decides which way it goes,
# write a BLS model (notebook 03): that is code, and has an "if".
#
# ## 3 Dynamic batching
#
# Both encoders have `dynamic_batching { }`: requests that wait go through the model together. `image_preprocessing` has
# none, for it reads one file after the other in any case.
#
# Several clients at once help in two ways: client, transport and model work at the same time, and requests can share an
# execution. To tell them apart you need a control: the same model, the same clients, and no batching. `batching` takes
# the block out of the configuration, or puts it back, and Triton loads the model again.

# %%
def batching(model, on):
    config = model_config(model, top=3)
    if not on:
        config.ClearField("dynamic_batching")
    (repository / model / "config.pbtxt").write_text(to_text(config))
    server.load(model)


# %%
pixels = [{"pixel_values": to_array(open_picture(data))[None]} for data in files]
words = [{"text": np.array([[picture.caption.encode()]], dtype=object)} for picture in pictures]
speed = {}


def ask(model, inputs, count, name):
    clip.triton.infer_inputs(model, inputs[0])  # a model that was just loaded is slow once
    watch, many = Watch(server.http_url, [model]), (inputs * requests)[:requests]
    speed[model, name] = at_once(lambda values: clip.triton.infer_inputs(model, values), many, count)
    did = watch.served()[model]
    print(f"{model:14} {name:27} {speed[model, name]:5.0f} requests/s,", end=" ")
    print(f"{did.mean_batch:.1f} rows an execution, {did.queue_ms:5.1f} ms in the queue")


# %% [markdown]
# **Predict:** what does company bring to each encoder, the quick one (text) and the slow one (pictures), and how much
# of it is the batching?

# %%
alone, control, batched = "1 client", f"{clients} clients, no batching", f"{clients} clients, batching"
for model, inputs in (("vision_encoder", pixels), ("text_encoder", words)):
    batching(model, on=False)
    ask(model, inputs, 1, alone)
    ask(model, inputs, clients, control)
    batching(model, on=True)
    ask(model, inputs, clients, batched)
server.load("clip")

# %%
for model in ("vision_encoder", "text_encoder"):
    company, together = speed[model, control] / speed[model, alone], speed[model, batched] / speed[model, control]
    print(f"{model:14} company alone x {company:.2f}, batching on top x {together:.2f}")

# %% [markdown]
# Look at the rows of an execution first: the control has 1, so nothing there is batching's. Whether larger batches are
# also *faster* depends on what one row leaves idle. On a GPU that is nearly everything. Here a picture keeps a core
# busy by itself, and a batch saves it little more than the way between processes, of which a short text, being quick,
# has more to save. But a batch of texts is padded to its longest. Each line is one short measurement: believe a factor
# near 1 only when it comes again.
#
# And through the ensemble, pictures and sentences mixed. There is no control here: company and batching come together.

# %%
mixed = [(files[n % shown], None) if n % 2 else (None, pictures[n % shown].caption) for n in range(requests)]
for count, name in ((1, alone), (clients, batched)):
    speed["clip", name] = at_once(lambda pair: clip.embed(*pair), mixed, count)
    print(f"{name}: {speed['clip', name]:5.1f} requests/s")

# %% [markdown]
# ## 4 The batch dimension
#
# Most mistakes with a vision model are mistakes of shape. Send two of them straight to `vision_encoder`: one picture
# without a batch dimension, and one of another size.
#
# **Predict:** the first is [3, 224, 224], which is exactly what `dims` says. Does Triton take it?

# %% tags=["nbval-check-output"]
for shape in ((3, 224, 224), (1, 3, 336, 336)):
    try:
        clip.triton.infer_inputs("vision_encoder", {"pixel_values": np.zeros(shape, np.float32)})
    except ClientError as error:
        print(f"{list(shape)}:", str(error)[str(error).find("Expected") :])

# %% [markdown]
# The client has added the right shape, from the model's metadata: -1 is the batch. Whether a tensor has a batch
# dimension is decided by one number in the configuration, `max_batch_size`. Above 0, Triton puts the number of rows in
# front of `dims`, in requests, in responses and on every arrow of an ensemble. With 0, `dims` is the whole shape.
#
# **Exercise 14.3** The ONNX graph takes `[batch, 3, 224, 224]`. The configuration says `max_batch_size: 16`. What goes
# into `dims`, and what shape has a request with two pictures?

# %% tags=["exercise:14.3"]
answer_3 = {"dims": None, "shape": None}  # two lists of numbers

# %% tags=["check:14.3", "nbval-check-output"]
check("14.3", answer_3)


# %% [markdown]
# An ensemble makes such mistakes harder to see, because two models must agree. Here are five ways to get it wrong.
# `change` rewrites one configuration; the linter of notebook 03 reads the repository, and then Triton gets it.

# %%
def change(model, rows=None, **dims):
    config = model_config(model, top=3)
    config.max_batch_size = config.max_batch_size if rows is None else rows
    for tensor in (*config.input, *config.output):
        if tensor.name in dims:
            del tensor.dims[:]
            tensor.dims.extend(dims[tensor.name])
    (repository / model / "config.pbtxt").write_text(to_text(config))


# %% [markdown]
# The mistakes: the batch written into `dims` of one model, or of both sides; a batch dimension missing in the ensemble;
# more rows than a step takes; another size of picture.

# %%
five = {
    "-1 in the encoder's dims": [("vision_encoder", {"pixel_values": [-1, 3, 224, 224]})],
    "-1 in both models' dims": [(model, {"pixel_values": [-1, 3, 224, 224]}) for model in STEPS[:2]],
    "no batch in the ensemble": [("clip", {"rows": 0})],
    "32 rows, steps take 16": [("clip", {"rows": 32})],
    "an encoder for 336 pixels": [("vision_encoder", {"pixel_values": [3, 336, 336]})],
}


# %% [markdown]
# For each: what does the linter say, does Triton load it, and does a request get an answer? **Predict:** are there any
# that load and then fail?

# %%
def try_out(changes):
    for model, what in changes:
        change(model, **what)
    lines = [f"linter {finding.code}: {finding.message}" for finding in lint(repository)[:1]]
    try:
        for model in dict.fromkeys([*(model for model, _ in changes), "clip"]):
            server.load(model)
        lines.append(f"Triton loads it; a request: {ask_once()}")
    except ServerError as error:
        lines.append(str(error).partition(": ")[2])
    finally:  # also when you stop the cell: no mistake may stay
        for model in {model for model, _ in changes}:
            change(model)
            server.load(model)
    return lines


def ask_once():
    try:
        with ClipClient(server.grpc_url) as fresh:
            return fresh.embed(text="a bird").labels[0]
    except ClientError as error:
        return str(error).partition("] ")[2] or str(error)


# %%
for name, changes in five.items():
    print(name, *try_out(changes), sep="\n    ")
server.load("clip")
assert lint(repository) == []

# %% [markdown]
# Three are refused when they load, with a message that shows both shapes. Two load without a word, and every request
# fails: the server cannot know what the models *really* return. The linter knows all five, from the text alone.
#
# ## 5 Whatever people send
#
# The bytes come from people, their cameras and their programs. First those that are pictures and look unlike what your
# code expects. All of them show the same thing.

# %%
photo = open_picture(files[0])
photo.thumbnail((120, 120))


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
# Seven files: a plain one, the same as JPEG, CMYK as from a print shop, turned by its EXIF data, 16 bits a pixel as
# from a scanner, a transparent background, and an animation.

# %%
unusual = {
    "plain": save(photo), "JPEG": save(photo, "JPEG", quality=95),
    "CMYK, JPEG": save(photo.convert("CMYK"), "JPEG", quality=95),
    "turned, JPEG": save(photo.transpose(Image.Transpose.ROTATE_90), "JPEG", exif=turned, quality=95),
    "16 bits, grey": save(Image.fromarray(grey)), "transparent": save(layer),
    "animated": save(photo, "GIF", save_all=True, append_images=[Image.new("RGB", photo.size, "navy")] * 2),
}  # fmt: skip
plain = clip.embed(unusual["plain"]).vector
likeness = {name: float(clip.embed(data).vector @ plain) for name, data in unusual.items()}
previews = []
for number, (name, data) in enumerate(unusual.items()):
    path = Path(scratch.name, f"{number}.png")
    path.write_bytes(save(open_picture(data)))
    previews.append((path, f"{name}: {likeness[name]:.3f}"))

# %% [markdown]
# This is what `open_picture` makes of each, before it becomes 224 pixels wide, and how near its vector is to that of
# the plain file. One picture, so the cosines are an example and no rule.

# %%
lowest = min(likeness, key=likeness.get)
title = f"One picture in seven files: the furthest from the plain one is {lowest}, cosine {likeness[lowest]:.2f}"
summary = "the same picture as plain, JPEG, CMYK, turned, 16-bit, transparent and animated file, decoded"
style.finish(encoder_figures.gallery(previews, columns=7), title, small_print, summary, photos=True)


# %% [markdown]
# A grey picture has lost its colours, and a transparent one shows white where the background was. CMYK and the turn
# should cost no more than JPEG does, and the animation next to nothing. **Predict:** what would each of them have given
# without care? The turned one would lie on its side. The 16-bit one would be white: its values go to 65,535, and Pillow
# cuts them off at 255.
#
# ### And what is no picture
#
# A picture file can be small and its picture huge: here is a header that promises 20,000 by 20,000 pixels, in 68 bytes.
# Decoded that would be 1.2 GB. Or file and picture are small and the work is huge: a JPEG may come in scans, each of
# which visits all pixels, and a scan need not have more than a dozen bytes. Five thousand of them take a decoder
# seconds.

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


whole = save(photo.resize((300, 400)), "JPEG")
bad = {
    "cut off": (whole[: len(whole) // 2], None), "damaged": (whole[:2] + bytes(300), None),
    "no pixels": (png_header(0, 0), None), "a bomb": (png_header(20_000, 20_000), None),
    "a slow one": (many_scans(5_000), None),
    "a letter": (b"Dear server, here is my picture.", None), "nothing": (None, None), "blanks": (None, "  \n "),
    "two million letters": (None, "word " * 400_000),
}  # fmt: skip

# %% [markdown]
# **Predict:** for each, the place where it should be refused, and the sentence that would help the sender.

# %%
for name, pair in bad.items():
    try:
        clip.embed(*pair)
    except ClientError as error:
        print(f"{name:20} {error}")
print("and then:", clip.embed(files[0]).vector.shape)

# %% [markdown]
# Both bombs were refused before anything was decoded, by the header and by the number of scans. Between the good and
# the bad lies what is *partly* used: MiniLM reads 256 tokens. A longer text is cut, and the answer says how much was
# left out. Being silent about it would be a lie, an error would be unkind.

# %% tags=["nbval-check-output"]
long = clip.embed(text="a small red bird on a branch " * 1430)  # 10,010 words
print(long.tokens_left_out, "tokens left out, vector", long.vector.shape)

# %% [markdown]
# Many good and bad ones at the same time: each must get its own answer, and no answer may be missing.

# %%
storm = [(files[n % shown], None) if n % 3 else (b"broken", "a bird") for n in range(requests)]


def outcome(pair):
    try:
        return clip.embed(*pair).vector.shape == (384,)
    except ClientError as error:
        return "no picture" in str(error)


with ThreadPoolExecutor(clients) as pool:
    right = list(pool.map(outcome, storm))
print(f"{sum(right)} of {len(right)} as they should be")
assert all(right)

# %% [markdown]
# ## 6 The same on a GPU box
#
# With a plan that `trtexec` has made of notebook 13's files, `vision.fp16.plan` say, only one folder changes:
# `vision_encoder` has no `model.py` any more, and its configuration names another backend. Tensors and wiring stay.
# `write_repository(…, flavour="tensorrt", plan="vision.fp16.plan")` writes it.

# %% tags=["nbval-check-output"]
print(to_text(model_config("vision_encoder", flavour="tensorrt")))

# %% [markdown]
# This machine's server has no such backend, so nothing of it is shown running here. It needs NVIDIA's plain
# `tritonserver` image, and there `pip install onnxruntime tokenizers pillow` for the other models. The text encoder
# stays as it is: its tokenizer is Python, and it is the quicker one of the two, though its file is four times as large.
#
# ## Recap
#
# - An ensemble is wiring: keys are the model's names, values the ensemble's. What is ready starts, so branches overlap.
# - It has no "if". An empty string stands for "none", and a step may skip what it does not need.
# - What it adds to its longest path, the statistics of steps and ensemble show for your own requests.
# - Batching needs a control, the same clients without it: company alone can bring something, too.
# - `max_batch_size` above 0 puts the rows in front of `dims`, everywhere. Lint before you load: some mistakes load.
# - Bound pixels, bytes and work before you decode, turn by EXIF, put transparency on white, say what was cut off.
#
# ## Break it
#
# Why does a broken picture travel through the ensemble as *data* (`image_state`), and only the last step makes an error
# of it? Because of what can happen otherwise. Here are two steps side by side, of which one fails, and an ensemble that
# joins them. Nothing else.

# %%
FRAGILE = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])
            if x.min() >= 0
            else pb_utils.InferenceResponse([], error=pb_utils.TritonError("negative"))
            for x in tensors
        ]
"""
STEP = 'step { model_name: "%s" model_version: -1 input_map { key: "x" value: "%s" }'
STEP += ' output_map { key: "y" value: "%s" } }'
TENSOR = '{ name: "%s" data_type: TYPE_FP32 dims: [ 1 ] }'


# %% [markdown]
# `left` and `right` get this code, `pair` is the ensemble of both.

# %%
def write(name, config, code=None):
    version = Path(scratch.name, "fragile", name, "1")
    version.mkdir(parents=True, exist_ok=True)
    (version.parent / "config.pbtxt").write_text("max_batch_size: 8\n" + config)
    if code:
        (version / "model.py").write_text(code)


for name in ("left", "right"):
    write(name, f'backend: "python"\ninput {TENSOR % "x"}\noutput {TENSOR % "y"}\n', FRAGILE)
steps = STEP % ("left", "a", "c") + STEP % ("right", "b", "d")
names = "".join(f"input {TENSOR % n}\n" for n in "ab") + "".join(f"output {TENSOR % n}\n" for n in "cd")
write("pair", f'platform: "ensemble"\n{names}ensemble_scheduling {{ {steps} }}\n')

# %% [markdown]
# Ask it six times with a number that `left` refuses, then once with good ones, two seconds each. **Predict:** seven
# answers?

# %% tags=["varies"]
with TritonServer(Path(scratch.name, "fragile")) as fragile, ClipClient(fragile.grpc_url) as client:
    for number in (-1.0, -1.0, -1.0, -1.0, -1.0, -1.0, 1.0):
        values = {"a": np.array([[number]], np.float32), "b": np.ones((1, 1), np.float32)}
        began = time.perf_counter()
        try:
            said = client.triton.infer_inputs("pair", values, deadline=2).outputs["c"].ravel().tolist()
        except ClientError as error:
            said = error
        print(f"{number:4.0f} after {time.perf_counter() - began:.1f} s: {said}")
        if "No answer" in str(said):
            break

# %% [markdown]
# If your run ends with *No answer*, you have seen a server that hangs for good, also for other requests: Triton 24.10
# can stop answering when a step fails while a parallel one is still running. If it does not, you were lucky: it is a
# race. A few broken files from a single client can be enough. In a chain without branches the same error is harmless.
# What you cannot mend, you go round.
#
# Stop the server, and leave the record.

# %%
clip.close()
server.stop()
scratch.cleanup()

# %%
rates = {f"{model}, {name}": round(value, 1) for (model, name), value in speed.items()}
record(
    "14", lane=lane, seed=seed, precision=precision, requests_per_second=rates,
    ensemble_over_longest_path=round(ensemble_ms / path_ms, 3), ensemble_over_sum=round(ensemble_ms / sum_ms, 3),
    text_only_ms=round(costs["text only"], 1), picture_only_ms=round(costs["picture only"], 1),
)  # fmt: skip
