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
# # 03 · The model repository, file by file
#
# You write the folder that Triton serves from, file by file, and learn to read what it says when one file is wrong.
#
# After this notebook you can
#
# - write the smallest repository that Triton serves
# - read the `config.pbtxt` of each of the five models of an LLM deployment
# - fill templates, and tell from the error what kind of placeholder was left
# - find faults before the server does
# - host two deployments in one repository, and load, unload and reload their models
#
# **Time:** 40 minutes (last run: 51 s) · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# Previous: [02 · Checkpoint to engine](02_checkpoint_to_engine.ipynb) · Next: [04 · Serving](04_serving.ipynb)

# %%
from servinglab.notebook import begin, record, resolve_lane, shorten

begin()

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
precision: str = "fp32"  # weights of the default model: "fp32" or "int4"
prompt: str = "What is a model repository?"  # what the model continues
max_tokens: int = 24  # length of each answer, in tokens
seed: int = 0  # seed of every answer

# %% [markdown]
# Every file of this notebook goes into one temporary folder. The folder and every server are gone when the notebook
# ends, also when a cell fails. `tell` prints a sentence of the server with that folder's path left out.

# %%
import tempfile
import textwrap
from pathlib import Path

lane = resolve_lane(lane)
workshop = tempfile.TemporaryDirectory(prefix="servinglab-")
root = Path(workshop.name)


def tell(message):
    text = shorten(str(message).replace(f"{root}/", ""))
    print(textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False))


# %% [markdown]
# ## 1 One model, by hand
#
# A **model repository** is a folder, and each folder in it is one model. `config.pbtxt` says what goes in and what
# comes out. Six lines are enough for a model that turns text into capital letters.

# %%
config = """\
name: "shout"
backend: "python"
max_batch_size: 8
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "loud" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""

# %% [markdown]
# `backend: "python"` says that a Python file does the work. Triton looks in it for a class `TritonPythonModel`, hands
# its `execute` a list of requests, and wants one response for each. The file runs in a process of its own, so it
# cannot see the variables of this notebook.

# %%
code = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
            loud = np.array([[row[0].upper()] for row in rows], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("loud", loud)]))
        return responses
"""

# %% [markdown]
# Now the two files go where Triton expects them: `config.pbtxt` in the model's folder, `model.py` in a folder for
# version 1. Nothing else is needed.

# %% tags=["nbval-check-output"]
by_hand = root / "by_hand"
(by_hand / "shout" / "1").mkdir(parents=True, exist_ok=True)
(by_hand / "shout" / "config.pbtxt").write_text(config)
(by_hand / "shout" / "1" / "model.py").write_text(code)
for path in sorted(by_hand.rglob("*")):
    print(path.relative_to(root))

# %% [markdown]
# **Predict:** the config says `dims: [ 1 ]`. You send one text, `hello`. Does the answer have the shape `(1,)` or
# `(1, 1)`?

# %% tags=["nbval-check-output"]
from servinglab.old_client import ClientError, TritonClient
from servinglab.server import ServerError, TritonServer

hand = TritonServer(by_hand).start()
client = TritonClient(hand.grpc_url)
loud = client.infer_inputs("shout", {"text": "hello"}).outputs["loud"]
print(loud.tolist(), loud.shape)

# %% [markdown]
# `(1, 1)`. With `max_batch_size` above 0, Triton puts a batch dimension in front of every tensor. The config never
# writes it: `dims` describes **one** row, the message carries `[batch, …]`.
#
# So what happens to a client that sends what the config says, an array of shape `[1]`?

# %% tags=["nbval-check-output"]
import numpy as np

try:
    client.infer_inputs("shout", {"text": np.array([b"hello"], dtype=object)}, request_id="demo")
except ClientError as error:
    tell(error)

# %% [markdown]
# `Expected [-1,1], got [1]` is Triton's sentence, and the `-1` in it is the batch: any size up to 8. The second
# sentence is our client's. You will meet the first one again with every model that batches.
#
# Next, the name. **Predict:** the folder is copied as `whisper`, and the file in it still says `shout`. Whose name
# counts, the folder's or the file's?

# %% tags=["nbval-check-output"]
import shutil


def try_load(server, name):
    try:
        server.load(name)
        print(name, "loaded")
    except ServerError as error:
        tell(error)


shutil.copytree(by_hand / "shout", by_hand / "whisper", dirs_exist_ok=True)
try_load(hand, "whisper")

# %% [markdown]
# Both must be the same. (A file without a `name` takes the folder's.)
#
# Last, the version folder. Of several, Triton serves the highest. **Predict:** the name in the file is right now, and
# the folder is called `v1`. Is that a version?

# %% tags=["nbval-check-output"]
shutil.rmtree(by_hand / "whisper", ignore_errors=True)
shutil.copytree(by_hand / "shout" / "1", by_hand / "whisper" / "v1")
(by_hand / "whisper" / "config.pbtxt").write_text(config.replace("shout", "whisper"))
try_load(hand, "whisper")

# %% [markdown]
# It is none: a version is a whole number. Triton does not say that it saw the folder. That is the whole format: a
# folder with the model's name, a config, a numbered version. The rest of this notebook is what an LLM writes into it.

# %%
shutil.rmtree(by_hand / "whisper", ignore_errors=True)
client.close()
hand.stop()

# %% [markdown]
# ## 2 Five models for one LLM
#
# TensorRT-LLM's layout for Triton, `inflight_batcher_llm`, splits an LLM into five models. Three do the work: text to
# ids, ids to more ids, ids to text. Two are front doors. How does a prompt get from the door to the last model?

# %%
from servinglab.figures import request_path, style

style.use()
fig = request_path.draw("ensemble")
title = "The ensemble hands tensors on by a table in its config"
style.finish(fig, title, "", "client → preprocessing → tensorrt_llm → postprocessing → client, by a table")

# %% [markdown]
# The second door, `tensorrt_llm_bls`, is a Python model that calls the same three. BLS stands for business logic
# scripting: what a table cannot express, a loop can.

# %%
fig = request_path.draw("bls")
title = "The BLS model calls the same three models from Python"
style.finish(fig, title, "", "tensorrt_llm_bls calls two models once and postprocessing for every token")

# %% [markdown]
# One call of `postprocessing` for every token is NVIDIA's way, and the costliest step of this road. With
# `bls_decodes=True` in the spec, our BLS model turns the ids into text itself.
#
# The tensors of these models are a **contract**: clients, tools and other models rely on the names. The course keeps
# it as data. **Predict:** how many inputs does `tensorrt_llm` declare, and how many of them must a request bring?

# %% tags=["nbval-check-output"]
from servinglab.repository import contract

for model in contract.MODELS:
    declared = contract.inputs(model)
    needed = [tensor.name for tensor in declared if not tensor.optional]
    print(f"{model:17} {len(declared):2} inputs, needs {', '.join(needed)}")

# %% [markdown]
# Sixty inputs, and two that the config insists on. (A request for our model needs `input_ids` too: it is marked
# optional only because the inputs of an encoder may take its place.) The rest is optional indeed: sampling, stop words,
# LoRA, speculation. The names at the two front doors are plain, the names inside are not.
#
# Names change at each border. The ensemble's step maps say how. `follow` prints who makes a tensor and who takes it.

# %% tags=["nbval-check-output"]
from servinglab.repository.wiring import ensemble_steps


def follow(name):
    steps = ensemble_steps()
    made = [f"{step.model}.{inner}" for step in steps for inner, outer in step.outputs.items() if outer == name]
    taken = [f"{step.model}.{inner}" for step in steps for inner, outer in step.inputs.items() if outer == name]
    print(" → ".join([*(made or ["client"]), name, *(taken or ["client"])]))


for name in ("text_input", "_INPUT_ID", "_TOKENS_BATCH", "text_output"):
    follow(name)

# %% [markdown]
# One prompt, five names: `text_input`, `QUERY`, `INPUT_ID`, `_INPUT_ID`, `input_ids`, and back. Names with an
# underscore exist inside the ensemble only.
#
# **Predict:** a client sends `top_k` to the ensemble. Under what name does `tensorrt_llm` get it?

# %% tags=["nbval-check-output"]
for name in ("max_tokens", "_REQUEST_OUTPUT_LEN", "top_k", "stream"):
    follow(name)

# %% [markdown]
# The same knob has one name at the front door and another at the engine. Send `runtime_top_k` to the ensemble and it
# is an unknown input.
#
# ## 3 Read each config
#
# Now a real deployment. A `DeploymentSpec` holds everything that differs between deployments; `build` writes the five
# folders from it. The weights are prepared at first use and cached.

# %% tags=["nbval-check-output"]
from servinglab import assets
from servinglab.repository import DeploymentSpec, build

spec = DeploymentSpec(tokenizer_dir=assets.tokenizer("smollm2"), engine_dir=assets.engine("smollm2", precision))
repository = build(spec, root / "llm")
for path in sorted(repository.parent.glob("*/*")):
    print(path.relative_to(root))

# %% [markdown]
# Five model folders, and beside them `_assets` with the tokenizer and the engine. Section 8 shows why beside and not
# inside.
#
# `show` prints the lines of a config that match a pattern. First `preprocessing`: its head, and four of its inputs.

# %%
import re


def show(model, pattern):
    text = (repository / model / "config.pbtxt").read_text()
    for number, line in enumerate(text.splitlines(), start=1):
        if re.search(pattern, line):
            print(f"{number:3}  {shorten(line.replace(f'{root}/', ''))}")


show("preprocessing", r'^(name|backend|max_batch)|^input.*"(QUERY|REQUEST_OUTPUT_LEN|STOP_WORDS_DICT|END_ID)"')

# %% [markdown]
# Read a line aloud: `STOP_WORDS_DICT` is text, any number of them (`-1`), and may be missing (`optional`). `QUERY` is
# exactly one text and must come. Python calls it `str`, the config `TYPE_STRING`, the wire `BYTES`.
#
# Two more words appear in `tensorrt_llm`. What could `reshape` and `allow_ragged_batch` be for?

# %%
show("tensorrt_llm", r'"(input_ids|request_output_len|temperature)"')

# %% [markdown]
# `reshape { shape: [] }` takes the last dimension off before the model sees the tensor: the client still sends
# `[batch, 1]`, the model gets `[batch]`. `allow_ragged_batch` lets prompts of different lengths share a batch without
# padding.
#
# **Exercise 03.1** A client sends **one** prompt to `tensorrt_llm_bls`, whose config says `max_batch_size: 8`, and
# `dims: [1]` for the input `max_tokens`. Which shape does `max_tokens` have in the message?

# %% tags=["exercise:03.1"]
answer_1 = None  # a list of numbers

# %% tags=["check:03.1", "nbval-check-output"]
from servinglab.checks import check

check("03.1", answer_1)

# %% [markdown]
# Next, how many answers a model may send. A **decoupled** model may send any number for one request, which is what
# streaming needs. **Predict:** how many of the five are decoupled?

# %% tags=["nbval-check-output"]
from servinglab.repository import parse

for model in contract.MODELS:
    message = parse((repository / model / "config.pbtxt").read_text())
    print(f"{model:17} {message.model_transaction_policy.decoupled}")

# %% [markdown]
# Two say so. `preprocessing` and `postprocessing` answer once for each call. The `ensemble` has no line about it: does
# it answer once, or as often as its steps? Section 7 asks the server.
#
# The ensemble's config is a table of steps. These are the lines that move the prompt and the answer.

# %%
show("ensemble", r'model_name|"(text_input|_INPUT_ID|_TOKENS_BATCH|text_output)" }')

# %% [markdown]
# `key` is the name inside the step, `value` the name in the ensemble. You have seen this before: it is what `follow`
# reads.
#
# The third kind of content is `parameters`: what the model's own code reads when it starts.

# %%
show("tensorrt_llm", "^parameters|^instance")
show("tensorrt_llm_bls", "^parameters|^instance")

# %% [markdown]
# Every parameter is text, numbers and booleans too; each model parses its own. An empty one counts as not set.
# `gpt_model_path` holds the engine's folder, and the three `…_model_name` tell the BLS whom to call.
#
# `instance_group` says how many copies run. One BLS copy is enough here, because ours gives each request a thread.
# NVIDIA's handles one request at a time, so there `count` limits how many users are served at once. Not so for
# `postprocessing`: two copies would work on the pieces of one answer at once, and a later piece could overtake an
# earlier one. Where answers stream, its `count` is 1.
#
# Three of the five bring a `model.py`. **Predict:** `tensorrt_llm` computes the tokens. What lies in its folder `1`?

# %% tags=["nbval-check-output"]
from servinglab.repository import to_text

show("tensorrt_llm", "^backend")
for model in contract.MODELS:
    print(f"{model:17}", [path.name for path in (repository / model / "1").iterdir()])

# %% [markdown]
# Nothing. `backend: "tensorrtllm"` names a program that Triton has in its own backend folder: TensorRT-LLM in NVIDIA's
# container, and on a machine without it the course's executor under the same name. So the repository is the same in
# both lanes, byte for byte, but for the folder of the engine, and a client written for one works with the other.
#
# `config.pbtxt` itself is the text form of a protobuf message, `ModelConfig`. Nobody has to write it by hand.

# %% tags=["nbval-check-output"]
from tritonclient.grpc import model_config_pb2 as pb

message = pb.ModelConfig(name="shout", backend="python", max_batch_size=8)
message.input.add(name="text", data_type=pb.TYPE_STRING, dims=[1])
message.output.add(name="loud", data_type=pb.TYPE_STRING, dims=[1])
print(to_text(message))

# %% [markdown]
# A message cannot have a missing brace, and a misspelt field fails in your program rather than in the server.

# %% tags=["nbval-check-output"]
try:
    pb.ModelConfig(name="shout", max_batchsize=8)
except ValueError as error:
    tell(error)

# %% [markdown]
# ## 4 Fill the templates
#
# NVIDIA ships the five configs as templates with `${name}` where a deployment decides, and a script that fills them.
# `template` gives ours, with the same tensors and placeholders. How many holes has `tensorrt_llm`?

# %% tags=["nbval-check-output"]
from collections import Counter

from servinglab.repository import placeholders, template

holes = placeholders(template("tensorrt_llm"))
print(Counter(hole.kind for hole in holes))
for hole in holes:
    if hole.kind == "structural":
        print(f"{hole.line:4}  {hole.name}")

# %% [markdown]
# A **quoted** placeholder stands inside a string, as in `string_value: "${engine_dir}"`. A **structural** one stands
# where protobuf wants a number or a name, as in `max_batch_size: ${triton_max_batch_size}`. The difference decides
# how you find out that you forgot one.
#
# These six values look like enough for a model that only decodes text.

# %% tags=["nbval-check-output"]
from servinglab.repository import TemplateError, fill

values = dict(triton_backend="tensorrtllm", triton_max_batch_size=8, decoupled_mode=True, logits_datatype="TYPE_FP32")
values |= dict(engine_dir=spec.engine_dir, batching_strategy="inflight_fused_batching")
try:
    fill(template("tensorrt_llm"), values, file="tensorrt_llm/config.pbtxt")
except TemplateError as error:
    tell(error)

# %% [markdown]
# `encoder_input_features` is an input for encoder models. SmolLM2 has no encoder, and still the line must parse.
# People run into exactly this key: [TensorRT-LLM issue 2758](https://github.com/NVIDIA/TensorRT-LLM/issues/2758).
#
# NVIDIA's `fill_template.py` has no such check for missing keys: it is Python's `safe_substitute`, which leaves what
# it does not know. Do the same and give the result to Triton. **Predict:** will it name the line, the placeholder, or
# both?

# %% tags=["nbval-check-output"]
from string import Template

from servinglab.repository import write_templates

values |= dict(max_queue_size=0, max_queue_delay_microseconds=0)  # the script adds these two itself
templates = write_templates(root / "templates")
(templates / "tensorrt_llm" / "config.pbtxt").write_text(Template(template("tensorrt_llm")).safe_substitute(values))
filling = TritonServer(templates, models=[]).start()
try_load(filling, "tensorrt_llm")

# %% [markdown]
# The right line, and not a word about which placeholder. The sentence sums up two lines of Triton's log. In the log
# of your own server they read like this (times and source files left out):

# %% tags=["nbval-check-output"]
for line in filling.log_path.read_text().splitlines():
    if "text-format" in line or "text proto" in line:
        tell(line.partition("] ")[2])

# %% [markdown]
# Line and column come first, without a file; the file comes in the next line. *Integer or identifier* is what an enum
# such as `data_type` takes, so the wording tells you what kind of value is missing.
#
# `postprocessing` has not been filled at all. **Predict:** two of its placeholders are structural. Will Triton list
# both?

# %% tags=["nbval-check-output"]
try_load(filling, "postprocessing")

# %% [markdown]
# Only the first: the parser stops there. Three forgotten keys cost you three starts. And *integer* alone means a
# number: here `max_batch_size`.
#
# **Predict:** you filled `tensorrt_llm` only. In how many files does `${triton_max_batch_size}` still stand?

# %% tags=["nbval-check-output"]
for model in contract.MODELS:
    text = (templates / model / "config.pbtxt").read_text()
    print(f"{model:17} lines", [hole.line for hole in placeholders(text) if hole.name == "triton_max_batch_size"])

# %% [markdown]
# In four of five, and in `preprocessing` twice. Each of the five files wants it.
#
# Now the quoted kind. `postprocessing` gets everything but `skip_special_tokens`. **Predict:** does it load?

# %% tags=["nbval-check-output"]
values = dict(triton_max_batch_size=8, postprocessing_instance_count=1, tokenizer_dir=spec.tokenizer_dir)
half_filled = Template(template("postprocessing")).safe_substitute(values)
(templates / "postprocessing" / "config.pbtxt").write_text(half_filled)
try_load(filling, "postprocessing")

# %% [markdown]
# It loads, and nobody warned you. What does the server believe the value is?

# %% tags=["nbval-check-output"]
import httpx

answer = httpx.get(f"{filling.http_url}/v2/models/postprocessing/config", trust_env=False).json()
print(answer["parameters"]["skip_special_tokens"])

# %% [markdown]
# The literal text. The model's code has a rule for it: a value that begins with `${` counts as not set, and the
# default applies, here `true`. For an optional parameter that is fine. **Predict:** what if the missing one is
# `tokenizer_dir`?

# %%
values.pop("tokenizer_dir", None)
half_filled = Template(template("postprocessing")).safe_substitute(values)
(templates / "postprocessing" / "config.pbtxt").write_text(half_filled)
try_load(filling, "postprocessing")

# %% [markdown]
# The file parses, the process starts, and then the model's own code fails, in its own words. Nothing mentions a
# template. So: *got: $* means a structural hole, a complaint about an empty or odd value means a quoted one.
#
# The last trap is age. Templates of TensorRT-LLM before 0.20 (containers before 25.06) use two other names.

# %% tags=["nbval-check-output"]
from servinglab.repository import version_warning

old, new = ({tensor.name for tensor in contract.inputs("tensorrt_llm", age)} for age in ("old", "new"))
print(sorted(old - new), "became", sorted(new - old))
tell(version_warning(template("tensorrt_llm", "old"), "25.06"))

# %% [markdown]
# Such a template parses and loads. What fails is the client that sends `seed`. Take the templates from the container
# that you serve with.

# %%
filling.stop()

# %% [markdown]
# ## 5 Lint before you serve
#
# Each fault so far took a server to find, one at a time, and the message was seldom about the cause. `lint` reads the
# whole repository at once. Ours should be clean.

# %% tags=["nbval-check-output"]
from servinglab.repository import lint

lint(repository)

# %% [markdown]
# Now break it, one fault at a time. Each is a replacement in one file: model, what stands there, what shall stand
# there.

# %%
faults = {
    "renamed in the file only": ("tensorrt_llm", 'name: "tensorrt_llm"', 'name: "llm"'),
    "a placeholder left": ("preprocessing", "max_batch_size: 8", "max_batch_size: ${triton_max_batch_size}"),
    "batch sizes differ": ("postprocessing", "max_batch_size: 8", "max_batch_size: 4"),
    "batch dimension in dims": ("preprocessing", '"QUERY" data_type: TYPE_STRING dims: [1]',
                                '"QUERY" data_type: TYPE_STRING dims: [-1, 1]'),
    "one door does not stream": ("tensorrt_llm_bls", "decoupled: true", "decoupled: false"),
    "BLS calls nobody": ("tensorrt_llm_bls", 'string_value: "tensorrt_llm"', 'string_value: "llm"'),
    "a misspelt name in a step map": ("ensemble", '"TOKENS_BATCH" value: "_TOKENS_BATCH"',
                                     '"TOKENS_BATCH" value: "_TOKEN_BATCH"'),
    "a backend that is not there": ("tensorrt_llm", 'backend: "tensorrtllm"', 'backend: "onnxruntime"'),
}  # fmt: skip


# %% [markdown]
# `lint_with` copies the repository, puts the fault in and lints the copy. **Predict:** one fault can break several
# rules. Which of these eight gives more than one finding?

# %% tags=["nbval-check-output"]
def lint_with(model, old, new):
    copy = root / "copy" / "model_repository"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(repository, copy, symlinks=True)
    file = copy / model / "config.pbtxt"
    file.write_text(file.read_text().replace(old, new, 1))
    return lint(copy)


for fault, change in faults.items():
    print(fault)
    for found in lint_with(*change):
        print(f"   {found.code}  {Path(found.file).parent.name}:{found.line}  {found.cure}")

# %% [markdown]
# The batch dimension: `preprocessing` no longer keeps the contract, and the ensemble that feeds it no longer fits.
# The code in front is stable, so a script can look for it. Each finding also has a sentence about what is wrong:

# %% tags=["nbval-check-output"]
tell(lint_with(*faults["one door does not stream"])[0].message)

# %% [markdown]
# From a terminal the same is `course repo lint FOLDER`.
#
# **Exercise 03.2** The config below is for the folder `postprocessing` of a deployment that streams, with eight rows
# a batch. It has five faults. Repair them.

# %% tags=["nbval-check-output"]
from servinglab.checks import module

BROKEN = module("03").BROKEN
print(BROKEN)

# %% tags=["exercise:03.2"]
answer_2 = None  # the repaired text, for example BROKEN.replace("…", "…")

# %% tags=["check:03.2", "nbval-check-output"]
check("03.2", answer_2)

# %% [markdown]
# ## 6 Two deployments in one repository
#
# Suppose a second LLM shall be served beside the first, say a Gemma of your own. Gemma's weights come only after you
# accept a licence, so here **the same SmolLM2 stands in for it**. All that matters is the names: every one gets the
# prefix `gemma-gly-`.

# %% tags=["nbval-check-output"]
gemma = spec.replace(name="gemma-gly", prefix="gemma-gly-")
build(gemma, root / "llm")
print(*sorted(path.name for path in repository.iterdir()), sep="\n")

# %% [markdown]
# Ten models. A folder's name is a model's name, so two deployments can share a repository only if no name is the
# same. Inside the second, who calls whom?

# %%
fig = request_path.draw("bls", prefix="gemma-gly-")
title = "Every call inside the second deployment carries its prefix"
style.finish(fig, title, "", "gemma-gly-tensorrt_llm_bls calls the three gemma-gly- models and no other")

# %% [markdown]
# The ensemble finds its steps by the names in its config, so a prefix there is enough. A BLS model finds them by
# whatever its code does. NVIDIA's reads the name of the LLM from a parameter, but `preprocessing` and
# `postprocessing` are written into its `model.py`. Copy it under a new name, and **it tokenises with the other
# deployment's tokenizer**: no error, only wrong text where the two tokenizers differ. Our BLS takes all three names
# from parameters.
#
# **Exercise 03.3** A third deployment has the prefix `judge-`. Which parameters must its BLS hold so that it calls
# its own models only? Give names and values.

# %% tags=["exercise:03.3"]
answer_3 = None  # {"name of the parameter": "value", …}

# %% tags=["check:03.3", "nbval-check-output"]
check("03.3", answer_3)

# %% [markdown]
# ## 7 Load, unload, reload
#
# The server starts on all ten folders and loads the five of the first deployment only. This is *explicit model
# control*: Triton loads what it is told to, and nothing by itself.

# %%
server = TritonServer(repository, models=spec.model_names).start()
client = TritonClient(server.grpc_url, server.http_url)


def states(prefix):
    for entry in server.repository_index():
        if entry["name"].startswith(prefix):
            print(f"{entry['name']:28} {entry['state'] or 'not loaded'}")


# %% [markdown]
# The server sees ten models. What does it say about the second five, and to somebody who asks one of them?

# %% tags=["nbval-check-output"]
def ask(model):
    return "".join(chunk.text for chunk in client.stream(prompt, model=model, max_tokens=max_tokens, seed=seed))


states("gemma-gly-")
try:
    ask("gemma-gly-ensemble")
except ClientError as error:
    tell(error)

# %% [markdown]
# Listed, but not loaded, and who asks hears *unknown model*: Triton says the same about a misspelt name. Now a single
# call loads `gemma-gly-ensemble`. **Predict:** how many of the five are ready then?

# %% tags=["nbval-check-output"]
server.load("gemma-gly-ensemble")
states("gemma-gly-")

# %% [markdown]
# Four. Triton reads the steps in the ensemble's config and loads those models first. Whom the BLS calls is known only
# to its Python code, so nothing pulls it in, and it pulls in nothing. Load it by name, then ask both deployments.

# %%
server.load("gemma-gly-tensorrt_llm_bls")
answers = {model: ask(model) for model in ("tensorrt_llm_bls", "gemma-gly-tensorrt_llm_bls")}
tell(answers["tensorrt_llm_bls"].strip())
print("the same from both:", len(set(answers.values())) == 1)

# %% [markdown]
# The text is what 135 million parameters can do; it shows that both paths work. Equal answers are no surprise with
# equal weights.
#
# Section 3 left a question open: the ensemble's config says nothing about decoupled. What does the server say?

# %% tags=["nbval-check-output"]
print("decoupled:", client.spec("ensemble").decoupled)

# %% [markdown]
# Triton makes an ensemble decoupled as soon as one of its steps is.
#
# Now take a model away. **Predict:** `gemma-gly-postprocessing` is unloaded. Which of the two front doors notices?

# %% tags=["nbval-check-output"]
server.unload("gemma-gly-postprocessing")
states("gemma-gly-")

# %% [markdown]
# The ensemble is gone with it. The BLS still says `READY`: Triton does not know that it needs the model. Who asks now
# finds out in the middle of a request.

# %% tags=["nbval-check-output"]
try:
    ask("gemma-gly-tensorrt_llm_bls")
except ClientError as error:
    tell(error)

# %% [markdown]
# So `READY` of a BLS model promises nothing about the models behind it. Check those too.
#
# **Predict:** `gemma-gly-postprocessing` is loaded again. Must the ensemble be loaded again as well?

# %% tags=["nbval-check-output"]
server.load("gemma-gly-postprocessing")
states("gemma-gly-")

# %% [markdown]
# No: Triton brings it back.
#
# Who may load models? The request can bring a `model.py` along, so whoever may send it runs code as you. **Predict:**
# the request of `server.load`, sent by another program on this machine, or by a web page in your browser. What does
# Triton answer?

# %% tags=["nbval-check-output"]
load = f"{server.http_url}/v2/repository/models/gemma-gly-postprocessing/load"
for headers in ({}, server.admin_headers):
    answer = httpx.post(load, headers=headers, timeout=60, trust_env=False)
    print(answer.status_code, answer.text)


# %% [markdown]
# It refuses, unless the request has a key. `TritonServer` makes one at each start and gives it to tritonserver with
# `--http-restricted-api` and `--grpc-restricted-protocol`; `server.load` sends it. Without these two flags, everybody
# who reaches the port loads models.
#
# Last, a change of configuration while the server runs. With `accumulate_tokens` each chunk holds the whole text so
# far. **Predict:** the new config is written. Does the running server notice?

# %% tags=["nbval-check-output"]
def pieces():
    return [chunk.text for chunk in client.stream(prompt, max_tokens=6, seed=seed)]


build(spec, root / "llm")
server.load("tensorrt_llm_bls")  # as it was, if you run this cell again
build(spec.replace(accumulate_tokens=True), root / "llm")
print(pieces())
server.load("tensorrt_llm_bls")
print(pieces())

# %% [markdown]
# Not before it is told to load. Nobody had to stop the server, and the other nine models stayed as they were.
#
# **Predict:** somebody saves a broken config and loads it. Is the model down now?

# %% tags=["nbval-check-output"]
file = repository / "tensorrt_llm_bls" / "config.pbtxt"
file.write_text(file.read_text().replace("max_batch_size: 8", "max_batch_size: eight"))
try_load(server, "tensorrt_llm_bls")
states("tensorrt_llm_bls")
print(pieces())

# %% [markdown]
# Still up, with the old configuration, until the next start of the server. Until then a failed load is easy to miss.
#
# One more sentence to know: what Triton says to a client that still uses a name from before 0.20. (The question at
# the end is our client's.)

# %% tags=["nbval-check-output"]
arrays = {"text_input": np.array([[b"hi"]], dtype=object), "random_seed": np.array([[7]], dtype=np.uint64)}
arrays["max_tokens"] = np.array([[4]], dtype=np.int32)
try:
    list(client.stream_inputs("tensorrt_llm_bls", arrays, checked=False))
except ClientError as error:
    tell(error)

# %% [markdown]
# `build` writes the config again as the spec says, so that nothing broken is left for the sections below.

# %%
client.close()
server.stop()
repository = build(spec, root / "llm")

# %% [markdown]
# ## 8 Keep the assets outside
#
# Some guides put tokenizer and engine into the repository itself. With explicit control that works. In Triton's
# default mode every folder is a model. Try it on the small repository of section 1. **Predict:** does `shout` at
# least load?

# %%
(by_hand / "_assets" / "tokenizer").mkdir(parents=True, exist_ok=True)
try:
    TritonServer(by_hand, models=[], extra_args=["--model-control-mode=none"]).start()
except ServerError as error:
    tell(error)

# %% [markdown]
# One folder that is no model, and the whole server does not start. JupyterLab's `.ipynb_checkpoints` does the same.
# `lint` knows both.

# %% tags=["nbval-check-output"]
for found in lint(by_hand):
    print(found.code, found.severity)
    tell(found.message)
    tell(found.cure)

# %% [markdown]
# ## Recap
#
# - A model is a folder: its name, a `config.pbtxt`, a numbered version.
# - `dims` leaves out the batch; the wire has `[batch, …]`.
# - A structural hole stops the parser (`got: $`), a quoted one reaches the model as text.
# - Ensembles find models by their config, a BLS by its code: only the first is visible to Triton.
# - Explicit control loads on request, and a failed load leaves the old model running.
#
# ## Break it
#
# The ensemble has no code in the repository, nor has `tensorrt_llm`: their folders `1` are empty, and git does not keep
# empty folders. See what your colleague gets who cloned your repository.

# %% tags=["nbval-check-output"]
version = repository / "ensemble" / "1"
version.rmdir()
for found in lint(repository):
    print(f"{found.code}  {Path(found.file).name}  {found.cure}")
version.mkdir()

# %% [markdown]
# A larger one, before the last cell: start the server of section 7 again with all ten models, delete the parameter
# `preprocessing_model_name` from the config of `gemma-gly-tensorrt_llm_bls`, load that model again, unload
# `preprocessing` and ask. That is what a hard-coded name does. `lint` cannot see it: the name it falls back to exists.
#
# The last cell deletes the temporary folder and says what produced the numbers on this page.

# %%
workshop.cleanup()
record("03", lane=lane, seed=seed, precision=precision, models=10)
