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
# - write the smallest repository that Triton serves, and start `tritonserver` on it
# - read the `config.pbtxt` of an LLM's five models
# - fill templates, and tell from the error what was left
# - find faults before the server does
# - host two deployments in one repository, and load, unload and reload their models
#
# **Time:** 50 minutes · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# read: 11 min, do: 39 min
#
# Previous: [02 · Checkpoint to engine](02_checkpoint_to_engine.ipynb) · Next: [04 · Serving](04_serving.ipynb)

# %%
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import textwrap
import time
from pathlib import Path
from string import Template

import httpx
import numpy as np
import tritonclient.grpc as grpcclient
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.utils import InferenceServerException

from plots import repository as repository_figures
from servinglab import notebook
from servinglab.checks import check
from servinglab.figures import request_path
from servinglab.figures.style import show
from servinglab.repository import build_default, lint, write_templates
from servinglab.server import TritonServer
from servinglab.serving import tritonserver

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
precision: str = "fp32"  # weights of the default model: "fp32" or "int4"
prompt: str = "What is a model repository?"  # what the model continues
max_tokens: int = 24  # length of each answer, in tokens
seed: int = 0  # seed of every answer

# %% [markdown]
# All files go into a temporary folder; `tell` prints messages without its path.

# %%
lane = notebook.begin("03", lane, seed=seed, weights=precision)
root = Path(tempfile.mkdtemp())


def tell(text):
    text = str(text).replace(f"{root}/", "")
    print(textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False))


# %% [markdown]
# ## 1 One model, by hand
#
# A **model repository** is a folder, and each folder in it is one model. `config.pbtxt` says what goes in and what
# comes out; a numbered folder, a version, holds what runs. You write a model that turns text into capitals.
#
# ![by_hand holds shout, with config.pbtxt and the version 1, which holds model.py](pictures/03_tree.svg)

# %%
by_hand = root / "by_hand"
(by_hand / "shout" / "1").mkdir(parents=True, exist_ok=True)
config = """\
name: "shout"
backend: "python"
max_batch_size: 8
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "loud" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
written = (by_hand / "shout" / "config.pbtxt").write_text(config)

# %% [markdown]
# `backend: "python"` says that a Python file does the work. Triton hands `execute` a list of requests, and wants one
# response for each. The file runs in a process of its own, so it cannot see this notebook's variables.

# %%
written = (by_hand / "shout" / "1" / "model.py").write_text("""\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
            loud = np.vectorize(bytes.upper, otypes=[object])(text)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("loud", loud)]))
        return responses
""")

# %% [markdown]
# ### Start the server yourself
#
# The flags say, line by line:
#
# - where the models are, and that the server loads only what it is told to (*explicit* control);
# - where three services listen: HTTP, gRPC (a binary protocol over HTTP/2) and metrics. The default is ports 8000 to
#   8002 on **all** network interfaces; keep them on this machine;
# - who may load models. A client can bring its own `model.py`, and so run code as you: such requests need a key.

# %%
by_hand_server = None
program, environment = tritonserver()  # the program, and where its backends are; its environment
models = [f"--model-repository={by_hand}", "--model-control-mode=explicit", "--load-model=shout"]
services = ("http", "grpc", "metrics")
sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in services}
port = {name: free.getsockname()[1] for name, free in sockets.items()}
for free in sockets.values():
    free.close()
addresses = [f"--{name}-address=127.0.0.1" for name in services] + [f"--{name}-port={port[name]}" for name in services]
key = secrets.token_hex(16)
closed = f"model-repository,shared-memory,trace,logging:admin={key}"
locks = [f"--http-restricted-api={closed}", f"--grpc-restricted-protocol={closed}"]

# %% [markdown]
# Start it. (`setpriv` ends it with this notebook's kernel; the print hides the key.)

# %%
command = ["setpriv", "--pdeathsig", "TERM", *program, *models, *addresses, *locks]
log = root / "triton.log"
if by_hand_server:  # if you run this cell again
    by_hand_server.terminate()
    by_hand_server.wait()
with log.open("w") as sink:  # a session of its own: stopping a cell does not stop it
    by_hand_server = subprocess.Popen(command, env=environment, stdout=sink, stderr=sink, start_new_session=True)
shown = [re.sub(r"/\S+/", "…/", word).replace(key, "$KEY") for word in command]
print(" \\\n  ".join(shown), "\nlog: …/triton.log")

# %% [markdown]
# Do what a load balancer does: ask `/v2/health/ready` until the answer is 200.

# %% tags=["nbval-check-output"]
http = f"http://127.0.0.1:{port['http']}"


def is_ready():
    try:
        return httpx.get(f"{http}/v2/health/ready", trust_env=False).status_code == 200
    except httpx.TransportError:  # nobody listens there yet
        return False


while by_hand_server.poll() is None and not is_ready():
    time.sleep(0.1)
print("ready:", is_ready())

# %% [markdown]
# **Predict:** the config says `dims: [ 1 ]`. You send one text, `hello`. Does the answer have the shape `(1,)` or `(1,
# 1)`?

# %% tags=["nbval-check-output"]
client = grpcclient.InferenceServerClient(f"127.0.0.1:{port['grpc']}")


def shout(array):
    text = grpcclient.InferInput("text", array.shape, "BYTES")
    text.set_data_from_numpy(array)
    return client.infer("shout", [text], request_id="demo").as_numpy("loud")


loud = shout(np.array([[b"hello"]], dtype=object))
print(loud.tolist(), loud.shape)

# %% [markdown]
# It is `(1, 1)`: with `max_batch_size` above 0, Triton puts a batch dimension in front of every tensor. `dims`
# describes **one** row; the message carries `[batch, …]`.
#
# **Predict:** a client sends exactly what the config says, an array of shape `[1]`. Does it get an answer?

# %% tags=["nbval-check-output"]
try:
    shout(np.array([b"hello"], dtype=object))
except InferenceServerException as error:
    tell(error.message().split(" NOTE:")[0])


# %% [markdown]
# No. The `-1` is the batch: any size up to 8.
#
# ### A name and a version
#
# If a load fails, the log often says more than the answer, so `try_load` shows both.

# %%
def try_load(client, name, log, headers):
    seen = log.stat().st_size
    try:
        client.load_model(name, headers=headers)
        print(name, "loaded")
    except InferenceServerException as error:
        tell(error.message().split("\n\nAt:")[0])
    for line in log.read_text()[seen:].splitlines():
        if re.match(r"[EW]\d|\[libprotobuf", line) and "At:" not in line:
            tell("  log: " + line.partition("] ")[2])


# %% [markdown]
# **Predict:** copy the folder as `whisper` while the file in it still says `shout`. Whose name counts, the folder's or
# the file's?

# %% tags=["nbval-check-output"]
admin = {"triton-grpc-protocol-admin": key}  # over gRPC the header's name begins like this
shutil.copytree(by_hand / "shout", by_hand / "whisper", dirs_exist_ok=True)
try_load(client, "whisper", log, admin)

# %% [markdown]
# Neither alone: both must be the same, and only the log says so. Of several version folders, Triton serves the highest.
# **Predict:** now the name is right, but the version's folder is called `v1`. Does Triton take it?

# %% tags=["nbval-check-output"]
shutil.rmtree(by_hand / "whisper", ignore_errors=True)
shutil.copytree(by_hand / "shout" / "1", by_hand / "whisper" / "v1")
(by_hand / "whisper" / "config.pbtxt").write_text(config.replace("shout", "whisper"))
try_load(client, "whisper", log, admin)

# %% [markdown]
# No: a version is a whole number. **Predict:** another program, or a web page in your browser, asks to load a model.
# What does Triton answer?

# %% tags=["nbval-check-output"]
load = f"{http}/v2/repository/models/shout/load"
for headers in ({}, {"admin": key}):
    answer = httpx.post(load, headers=headers, timeout=60, trust_env=False)
    print(answer.status_code, answer.text)

# %% [markdown]
# It answers 403, unless the key is there. Without those two flags, anybody who reaches the port can run code here.
#
# **Exercise 03.1** (●●○, 6 minutes) A client sends pairs: arrays of shape `[rows, 2]`, at most four rows each. Write
# the config with which `shout` answers them, and refuses what is longer or wider. The check loads your text into a
# Triton and sends it four requests. Your own server still runs: write the file, `try_load`, and call `shout` first.
#
# <details><summary>Hint 1</summary>
#
# `hello` had the shape `(1, 1)`. Which of the two numbers did `dims` describe, and which line limits the other?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# What would a -1 let through? Which tensors of this model have two texts a row?
#
# </details>

# %% tags=["exercise:03.1"]
answer_1 = None  # the text of the config, for example config.replace("…", "…")

# %% tags=["check:03.1", "nbval-check-output"]
check("03.1", answer_1)

# %% [markdown]
# <details><summary>Solution 03.1</summary>
#
# ```python
# answer_1 = config.replace("[ 1 ]", "[ 2 ]").replace("max_batch_size: 8", "max_batch_size: 4")
# ```
#
# </details>

# %% [markdown]
# That is the whole format. End the server.

# %%
shutil.rmtree(by_hand / "whisper", ignore_errors=True)
client.close()
by_hand_server.terminate()
print("exit status", by_hand_server.wait())

# %% [markdown]
# ## 2 Five models for one LLM
#
# TensorRT-LLM's layout for Triton, `inflight_batcher_llm`, splits an LLM into five models. Three do the work: text to
# ids, ids to more ids, ids to text. Two are front doors. The first is an **ensemble**, a model without code: its config
# passes tensors from step to step.

# %%
path = "client → preprocessing → tensorrt_llm → postprocessing → client, by a table"
show(request_path.draw("ensemble"), "The ensemble hands tensors on by a table in its config", path, drawing=True)

# %% [markdown]
# The second, `tensorrt_llm_bls` (business logic scripting), is a Python model that calls the same three.

# %%
path = "tensorrt_llm_bls calls two models once and postprocessing for every token"
show(request_path.draw("bls"), "The BLS model calls the same three models from Python", path, drawing=True)

# %% [markdown]
# `build_default` writes the five configs. Each is the text form of a protobuf message, so protobuf can read it. The
# tensors are a **contract**: clients and other models rely on their names. **Predict:** how many inputs does
# `tensorrt_llm` declare, and how many must a request bring?

# %%
repository = build_default(root / "llm", precision=precision)
names = ("preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls", "ensemble")
texts = {name: (repository / name / "config.pbtxt").read_text() for name in names}
configs = {name: text_format.Parse(text, pb.ModelConfig()) for name, text in texts.items()}
needed = {name: [tensor.name for tensor in each.input if not tensor.optional] for name, each in configs.items()}
total = {name: len(each.input) for name, each in configs.items()}
words = "; ".join(f"{name}: {total[name]} inputs, needs {', '.join(needed[name])}" for name in names)
title = f"tensorrt_llm declares {total['tensorrt_llm']} inputs and insists on {len(needed['tensorrt_llm'])}"
show(repository_figures.inputs(total, needed), title, words, drawing=True)

# %% [markdown]
# The picture has both numbers. (`input_ids` is optional only because an encoder's inputs may replace it.) The rest are
# sampling, stop words, and extras such as LoRA, small sets of added weights.
#
# The ensemble changes names at each border. Those with an underscore in front exist inside it only:
#
# ![text_input becomes QUERY, INPUT_ID, _INPUT_ID, input_ids on its way into tensorrt_llm](pictures/03_names.svg)
#
# **Predict:** a client sends `top_k` to the ensemble. Under what name does `tensorrt_llm` get it? `follow` prints which
# model makes a tensor and which takes it.

# %% tags=["nbval-check-output"]
steps = configs["ensemble"].ensemble_scheduling.step


def follow(name):
    made = [f"{step.model_name}.{inner}" for step in steps for inner, outer in step.output_map.items() if outer == name]
    taken = [f"{step.model_name}.{inner}" for step in steps for inner, outer in step.input_map.items() if outer == name]
    print(" → ".join([*(made or ["client"]), name, *(taken or ["client"])]))


for name in ("max_tokens", "_REQUEST_OUTPUT_LEN", "top_k"):
    follow(name)


# %% [markdown]
# It gets `runtime_top_k`, which for the ensemble is an unknown input.
#
# ## 3 Read each config
#
# `lines` prints the lines of a config that match a pattern. Begin with `preprocessing`.

# %%
def lines(model, pattern):
    for number, line in enumerate(texts[model].splitlines(), start=1):
        if re.search(pattern, line):
            print(f"{number:3}  {line.replace(f'{root}/', '')}")


lines("preprocessing", r'^(name|backend|max_batch)|^input.*"(QUERY|REQUEST_OUTPUT_LEN|STOP_WORDS_DICT|END_ID)"')

# %% [markdown]
# `STOP_WORDS_DICT` is any number of texts (`-1`), and may be missing (`optional`). `QUERY` is exactly one text and must
# come. Text is `str` in Python, `TYPE_STRING` in the config, `BYTES` on the wire. **Predict:** what are `reshape` and
# `allow_ragged_batch` for?

# %%
lines("tensorrt_llm", r'"(input_ids|request_output_len|temperature)"')

# %% [markdown]
# `reshape` changes the shape between the client and the model. `allow_ragged_batch` lets prompts of different lengths
# share a batch without padding.
#
# ![A config's dims, what a client with three rows sends, and what the model sees](pictures/03_shape.svg)
#
# A **decoupled** model may send any number of answers to one request, which is what streaming needs. **Predict:** how
# many of the five are decoupled? And `tensorrt_llm` computes the tokens: what lies in its folder `1`?

# %%
about = {}
for name, each in configs.items():
    about[name, "backend"] = each.backend or each.platform
    about[name, "decoupled"] = "yes" if each.model_transaction_policy.decoupled else "no"
    about[name, "in its folder 1"] = ", ".join(file.name for file in (repository / name / "1").iterdir()) or "nothing"
words = "; ".join(f"{name}, {column}: {said}" for (name, column), said in about.items())
said = list(about.values())
title = f"{said.count('yes')} configs say decoupled, {said.count('model.py')} models bring a model.py"
show(repository_figures.facts(about), title, words, drawing=True)

# %% [markdown]
# Two say so (the ensemble follows its steps: notebook 05). And nothing is in that folder: `backend: "tensorrtllm"`
# names a program in Triton's own backend folder, TensorRT-LLM in NVIDIA's container, elsewhere the course's executor.
# So both lanes use the same repository, but for the engine's path.
#
# Next come the `parameters`, which the model's own code reads when it starts.

# %%
lines("tensorrt_llm", "gpt_model_path|batch_scheduler|^instance")
lines("tensorrt_llm_bls", "_model_name")

# %% [markdown]
# Every parameter is text, even a number; an empty one counts as not set. `gpt_model_path` is the engine's folder,
# outside the repository (section 7 says why); the three `…_model_name` tell the BLS which models to call.
#
# `instance_group` says how many copies run. NVIDIA's BLS handles one request at a time, so there `count` limits the
# users served at once; ours gives each request a thread. With two copies of `postprocessing`, a later piece of a stream
# could overtake an earlier one.
#
# <details><summary>Names from guides that are no parameters today</summary>
#
# | name | what it is |
# |---|---|
# | `max_attention_window_size` | a parameter since 0.7: how many tokens back attention looks |
# | `max_num_sequences` | a parameter up to 0.7; today the engine's batch size says how many run |
# | `enable_trt_overlap` | a parameter up to 0.9 |
# | `bad_words` | an input of a request: texts that must not be generated |
# | `pad_id` | an input: the token that fills up shorter rows; without it the tokenizer's |
#
# </details>

# %% [markdown]
# ## 4 Fill the templates
#
# NVIDIA ships the five configs as templates, with `${name}` where a deployment decides; `write_templates` writes ours,
# with the same placeholders. A **quoted** one is inside a string: `string_value: "${engine_dir}"`. A **structural** one
# is where protobuf wants a number or a name: `max_batch_size: ${triton_max_batch_size}`. **Predict:** which kind is the
# rarer one?

# %%
templates = write_templates(root / "templates")
template = {name: (templates / name / "config.pbtxt").read_text() for name in names}


def holes(text):
    for number, line in enumerate(text.splitlines(), start=1):
        for hole in re.findall(r"\$\{\w+\}", line):
            yield number, "quoted" if f'"{hole}"' in line else "structural"


found = {name: list(holes(text)) for name, text in template.items()}
kinds = [kind for each in found.values() for _, kind in each]
title = f"{kinds.count('quoted')} placeholders are quoted, {kinds.count('structural')} structural"
words = "; ".join(f"{name}: {len(each)} placeholders" for name, each in found.items())
length = {name: len(text.splitlines()) for name, text in template.items()}
show(repository_figures.placeholders(found, length), title, words, drawing=True)

# %% [markdown]
# Structural ones are rarer. Fill in what looks like enough, as NVIDIA's `fill_template.py` does: with Python's
# `safe_substitute`, which leaves what it does not know. From here on a class starts the server. **Predict:** will
# Triton name the line, the placeholder, or both?

# %% tags=["nbval-check-output"]
values = dict(triton_backend="tensorrtllm", triton_max_batch_size=8, decoupled_mode=True, logits_datatype="TYPE_FP32")
values |= dict(engine_dir=configs["tensorrt_llm"].parameters["gpt_model_path"].string_value)
values |= dict(batching_strategy="inflight_fused_batching", max_queue_size=0, max_queue_delay_microseconds=0)
half_filled = Template(template["tensorrt_llm"]).safe_substitute(values)
written = (templates / "tensorrt_llm" / "config.pbtxt").write_text(half_filled)
filling = TritonServer(templates, models=[]).start()
client = grpcclient.InferenceServerClient(filling.grpc_url)
try_load(client, "tensorrt_llm", filling.log_path, filling.admin_headers)
number = int(re.findall(r"ModelConfig: (\d+):", filling.log_path.read_text())[-1])
tell(f"line {number}: {half_filled.splitlines()[number - 1]}")

# %% [markdown]
# Triton names the line, but not the placeholder. *Integer or identifier* means an enum such as `data_type`. SmolLM2 has
# no encoder, and still the line must parse ([issue 2758](https://github.com/NVIDIA/TensorRT-LLM/issues/2758)).
#
# `postprocessing` has not been filled at all, and two of its placeholders are structural. **Predict:** will Triton list
# both?

# %% tags=["nbval-check-output"]
try_load(client, "postprocessing", filling.log_path, filling.admin_headers)

# %% [markdown]
# Only the first: the parser stops there. (*Integer* alone means a number, here `max_batch_size`, which each of the five
# files wants.)
#
# Now the quoted kind. `postprocessing` gets everything but `skip_special_tokens`. **Predict:** does it load?

# %% tags=["nbval-check-output"]
tokenizer = configs["preprocessing"].parameters["tokenizer_dir"].string_value
values = dict(triton_max_batch_size=8, postprocessing_instance_count=1, tokenizer_dir=tokenizer)
file = templates / "postprocessing" / "config.pbtxt"
file.write_text(Template(template["postprocessing"]).safe_substitute(values))
try_load(client, "postprocessing", filling.log_path, filling.admin_headers)
print("the value:", client.get_model_config("postprocessing").config.parameters["skip_special_tokens"].string_value)

# %% [markdown]
# It loads without a warning, and the value is the literal text. For the model's code a value that begins with `${` is
# not set, and the default applies. **Predict:** what if `tokenizer_dir` is missing?

# %%
values.pop("tokenizer_dir", None)
file.write_text(Template(template["postprocessing"]).safe_substitute(values))
try_load(client, "postprocessing", filling.log_path, filling.admin_headers)

# %% [markdown]
# The file parses, the process starts, then the model's code fails. So the message tells you what you forgot:
#
# ![Structural placeholders stop the parser; quoted ones load, unless the code needs them](pictures/03_holes.svg)
#
# `course repo fill FOLDER KEY=VALUE …` fills all five files or none, and names what is left.
#
# The last trap is age: templates from before TensorRT-LLM 0.20 (containers before 25.06).

# %% tags=["nbval-check-output"]
old = (write_templates(root / "old", "old") / "tensorrt_llm" / "config.pbtxt").read_text()
was, now = (set(re.findall(r'input { name: "(\w+)"', text)) for text in (old, template["tensorrt_llm"]))
print(sorted(was - now), "became", sorted(now - was))
client.close()
filling.stop()

# %% [markdown]
# An old template loads; what fails is the client that sends `seed`. So take templates from the container that you serve
# with.

# %% [markdown]
# ## 5 Lint before you serve
#
# Each fault so far took a server to find. `lint` reads the whole repository at once. Here are nine faults: model, old
# text, new text.

# %%
faults = {
    "renamed in the file only": ("tensorrt_llm", 'name: "tensorrt_llm"', 'name: "llm"'),
    "a placeholder left": ("preprocessing", "max_batch_size: 8", "max_batch_size: ${triton_max_batch_size}"),
    "batch sizes differ": ("tensorrt_llm_bls", "max_batch_size: 8", "max_batch_size: 4"),
    "batch dimension in dims": ("preprocessing", '"QUERY" data_type: TYPE_STRING dims: [1]',
                                '"QUERY" data_type: TYPE_STRING dims: [-1, 1]'),
    "one door does not stream": ("tensorrt_llm_bls", "decoupled: true", "decoupled: false"),
    "BLS calls nobody": ("tensorrt_llm_bls", 'string_value: "tensorrt_llm"', 'string_value: "llm"'),
    "a misspelt name in a step map": ("ensemble", '"TOKENS_BATCH" value: "_TOKENS_BATCH"',
                                     '"TOKENS_BATCH" value: "_TOKEN_BATCH"'),
    "a step fed from both sides": ("ensemble", '"SEQUENCE_LENGTH" value: "_SEQUENCE_LENGTH"',
                                  '"SEQUENCE_LENGTH" value: "_REQUEST_OUTPUT_LEN"'),
    "a backend that is not there": ("tensorrt_llm", 'backend: "tensorrtllm"', 'backend: "onnxruntime"'),
}  # fmt: skip


# %% [markdown]
# `lint_with` lints a copy with one fault. **Predict:** one fault can break several rules. Which of the nine gives more
# than one finding?

# %% tags=["nbval-check-output"]
def lint_with(model, old, new):
    copy = root / "copy" / "model_repository"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(repository, copy, symlinks=True)
    file = copy / model / "config.pbtxt"
    file.write_text(file.read_text().replace(old, new, 1))
    return lint(copy)


found = {"as written": lint(repository)} | {fault: lint_with(*change) for fault, change in faults.items()}
rules = sorted({each.code for findings in found.values() for each in findings})
title = "More than one finding: " + ", ".join(fault for fault, findings in found.items() if len(findings) > 1)
words = "; ".join(f"{fault}: {', '.join(each.code for each in findings) or 0}" for fault, findings in found.items())
show(repository_figures.faults(found, rules), title, words, drawing=True)

# %% [markdown]
# The batch dimension in `dims`: `preprocessing` breaks the contract, and the ensemble that feeds it no longer fits. A
# cell tells file and line; a finding also has a sentence and a cure. From a terminal: `course repo lint FOLDER`.
#
# <details><summary>A step fed from both sides</summary>
#
# The decoupled `tensorrt_llm` answers many times, but `_REQUEST_OUTPUT_LEN` comes from before it, once. A step's inputs
# must all come from the same side of a decoupled step, or Triton does not load the ensemble.
#
# </details>

# %% [markdown]
# **Exercise 03.2** (●●○, 8 minutes) This config is for the folder `postprocessing` of a deployment that streams, with
# eight rows a batch. It has five faults. Repair them: the check starts a Triton, loads your text into it and lets it
# decode a sentence. A wrong answer gets the server's own message; run the check as often as you like.
#
# <details><summary>Hint 1</summary>
#
# Which name does Triton want in the file? Which line stops the parser? What else would Triton accept, though the stream
# or a client suffers?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Which input's `dims` repeat the batch dimension? What does a config call text, which is `BYTES` on the wire? What can
# two instances do to a stream?
#
# </details>

# %%
BROKEN = """\
name: "postprocess"
backend: "python"
max_batch_size: ${triton_max_batch_size}
instance_group { count: 2 kind: KIND_CPU }

parameters { key: "skip_special_tokens" value { string_value: "true" } }
parameters { key: "tokenizer_dir" value { string_value: "/models/tokenizer" } }

input { name: "TOKENS_BATCH" data_type: TYPE_INT32 dims: [-1, -1, -1] }
input { name: "SEQUENCE_LENGTH" data_type: TYPE_INT32 dims: [-1] }

output { name: "OUTPUT" data_type: TYPE_BYTES dims: [-1] }
"""

# %% tags=["exercise:03.2"]
answer_2 = None  # the repaired text, for example BROKEN.replace("…", "…")

# %% tags=["check:03.2", "nbval-check-output"]
check("03.2", answer_2)

# %% [markdown]
# <details><summary>Solution 03.2</summary>
#
# ```python
# answer_2 = (BROKEN
#     .replace("postprocess\"", "postprocessing\"")
#     .replace("${triton_max_batch_size}", "8")
#     .replace("count: 2", "count: 1")
#     .replace("[-1, -1, -1]", "[-1, -1]")
#     .replace("TYPE_BYTES", "TYPE_STRING"))
# ```
#
# </details>

# %% [markdown]
# ## 6 Two deployments in one repository
#
# Add a second LLM, say a Gemma. Its weights need a licence, so **the same SmolLM2 stands in for it**. A folder's name
# is a model's name, so each gets the prefix `gemma-gly-`, and so must every call between them.

# %% tags=["nbval-check-output"]
second = build_default(root / "llm", precision=precision, name="gemma-gly", prefix="gemma-gly-")
assert second == repository and len(list(repository.iterdir())) == 10
print(re.findall(r'"(gemma-gly-\w+)"', (repository / "gemma-gly-tensorrt_llm_bls" / "config.pbtxt").read_text()))


# %% [markdown]
# The ensemble finds its steps by its config, a BLS model by its code. NVIDIA's has `preprocessing` and `postprocessing`
# written into its `model.py`. Copy it under a new name, and **it tokenises with the other deployment's tokenizer**: no
# error, only wrong text. (Ours takes all three names from parameters.) So users patch NVIDIA's file. Patch it if it is
# here, else only its line.

# %%
def with_prefix(code, prefix):
    return re.subn(r'((?:pre|post)proc_model_name=")(?=\w)', rf"\g<1>{prefix}", code)


theirs = Path(os.environ.get("NVIDIA_MODEL_REPOSITORY", "/app/all_models/inflight_batcher_llm"))
theirs = theirs / "tensorrt_llm_bls" / "1" / "model.py"
line = 'TritonDecoder(preproc_model_name="preprocessing", postproc_model_name="postprocessing")'
patched, places = with_prefix(theirs.read_text() if theirs.exists() else line, "gemma-gly-")
print(theirs if theirs.exists() else "no file of NVIDIA's here; its line:")
print(f"{places} names changed:", *re.findall(r'\w+_model_name="gemma-gly-\w+"', patched))

# %% [markdown]
# **Exercise 03.3** (●●○, 5 minutes) A third deployment has the prefix `judge-`. Make its BLS model's config out of
# `texts["tensorrt_llm_bls"]`. The check loads it into a Triton that runs both deployments, sends a text and asks the
# server which models answered.
#
# <details><summary>Hint 1</summary>
#
# Which models does a BLS call, and which not? Where does this config name them?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Which models would a BLS that lacks a name borrow from the first deployment? And whose folder is this config for?
#
# </details>

# %% tags=["exercise:03.3"]
answer_3 = None  # the text of the config

# %% tags=["check:03.3", "nbval-check-output"]
check("03.3", answer_3)

# %% [markdown]
# <details><summary>Solution 03.3</summary>
#
# ```python
# answer_3 = re.sub(
#     r'"(tensorrt_llm_bls|preprocessing|tensorrt_llm|postprocessing)"', r'"judge-\1"', texts["tensorrt_llm_bls"]
# )
# ```
#
# </details>

# %% [markdown]
# ### Load them one by one
#
# Start a server on all ten folders that loads only the first five. `look` keeps what it says of the second five.

# %%
server = TritonServer(repository, models=names).start()
client = grpcclient.InferenceServerClient(server.grpc_url)
admin = server.admin_headers
second_five, moments = [f"gemma-gly-{name}" for name in names], {}


def look(moment):
    index = client.get_model_repository_index(headers=admin).models
    states = {entry.name: entry.state or "not loaded" for entry in index}
    moments[moment] = {name: states[name] for name in second_five}


# %% [markdown]
# **Predict:** what happens to a client that asks one of them now? (Triton's `generate` takes plain JSON.)

# %% tags=["nbval-check-output"]
def ask(model):
    request = {"text_input": prompt, "max_tokens": max_tokens, "seed": seed, "exclude_input_in_output": True}
    url = f"{server.http_url}/v2/models/{model}/generate"
    answer = httpx.post(url, json=request, timeout=120, trust_env=False).json()
    return answer.get("text_output", answer.get("error"))


tell(ask("gemma-gly-ensemble"))

# %% [markdown]
# It gets *unknown model*, as for a misspelt name.
#
# **Predict:** four commands follow: load the ensemble, load the BLS model, unload `gemma-gly-postprocessing`, load it
# again. After each, which of the five are ready?

# %% tags=["nbval-check-output"]
look("start")
client.load_model("gemma-gly-ensemble", headers=admin)
look("load ensemble")
client.load_model("gemma-gly-tensorrt_llm_bls", headers=admin)
look("load BLS")
print("the same answer from both:", ask("gemma-gly-tensorrt_llm_bls") == ask("tensorrt_llm_bls"))
client.unload_model("gemma-gly-postprocessing", headers=admin)
look("unload post")
while "UNLOADING" in moments["unload post"].values():  # the call returns before the model is gone
    look("unload post")
tell(ask("gemma-gly-tensorrt_llm_bls"))
client.load_model("gemma-gly-postprocessing", headers=admin)
look("load post")

# %%
words = "; ".join(f"{moment}: {list(each.values()).count('READY')} of 5 READY" for moment, each in moments.items())
show(request_path.states(moments), "The ensemble follows its models, the BLS model does not", words)


# %% [markdown]
# - Loading the ensemble loads its three steps first: Triton reads them in its config. Nothing pulls in the BLS.
# - Without `postprocessing` the ensemble goes, and it comes back with it. The BLS still says `READY`, since only its
#   Python code knows that it needs the model: a client fails in the middle of its request. So check the models behind
#   a BLS, too.
#
# ### Change a configuration while it runs
#
# With `accumulate_tokens` each piece of a streamed answer holds the whole text so far. `pieces` collects them.
# **Predict:** the new config is written. Does the running server notice?

# %% tags=["nbval-check-output"]
def pieces():
    request = {"text_input": prompt, "max_tokens": 6, "stream": True, "seed": seed}
    url = f"{server.http_url}/v2/models/tensorrt_llm_bls/generate_stream"
    with httpx.stream("POST", url, json=request, timeout=120, trust_env=False) as answer:
        found = [json.loads(line[5:]) for line in answer.iter_lines() if line.startswith("data:")]
    return [piece["text_output"] for piece in found]


build_default(root / "llm", precision=precision)
client.load_model("tensorrt_llm_bls", headers=admin)  # as it was, if you run this cell again
build_default(root / "llm", precision=precision, accumulate_tokens=True)
print(pieces())
client.load_model("tensorrt_llm_bls", headers=admin)
print(pieces())

# %% [markdown]
# No, only when it is told to load. **Predict:** somebody saves a broken config and loads it. Is the model down now?

# %% tags=["nbval-check-output"]
file = repository / "tensorrt_llm_bls" / "config.pbtxt"
file.write_text(file.read_text().replace("max_batch_size: 8", "max_batch_size: eight"))
try_load(client, "tensorrt_llm_bls", server.log_path, admin)
print("ready:", client.is_model_ready("tensorrt_llm_bls"), pieces())

# %% [markdown]
# No: it serves with the old configuration until the server's next start, so a failed load is easy to miss. Stop the
# server and restore the config.

# %%
client.close()
server.stop()
repository = build_default(root / "llm", precision=precision)

# %% [markdown]
# ## 7 Where the assets go
#
# Some guides put tokenizer and engine into the repository. With explicit control that works; in Triton's default mode
# every folder is a model. **Predict:** with such a folder in section 1's repository, does `shout` load at least?

# %% tags=["nbval-check-output"]
(by_hand / "_assets" / "tokenizer").mkdir(parents=True, exist_ok=True)
default = ["timeout", "60", *program, models[0], *addresses]
ended = subprocess.run(default, env=environment, capture_output=True, text=True, errors="replace")
print("still running" if ended.returncode == 124 else "ended by itself")  # 124: the word of timeout
for line in ended.stderr.splitlines():
    if re.match(r"E\d", line) and "poll" in line.lower():
        tell(line.partition("] ")[2])
for finding in lint(by_hand):
    tell(f"lint: {finding.code} {finding.severity}: {finding.message} {finding.cure}")

# %% [markdown]
# No: one folder that is not a model keeps the whole server from starting. JupyterLab's `.ipynb_checkpoints` does the
# same. `lint` knows both.
#
# <details><summary>Two repositories</summary>
#
# `--model-repository` may be given more than once. A name must be unique across all of them: of a model that is in two,
# the server offers neither, and in its default mode it does not start.
#
# </details>

# %% [markdown]
# ## Recap
#
# - A model is a folder: its name, a `config.pbtxt`, a numbered version.
# - Unless its flags say otherwise, `tritonserver` listens everywhere and, with explicit control, lets anybody load
#   models.
# - `dims` leaves out the batch; the wire has `[batch, …]`.
# - A structural placeholder stops the parser (`got: $`); a quoted one reaches the model as text.
# - Ensembles find models by their config, a BLS by its code: Triton sees only the first.
# - A failed load leaves the old model running.

# %% [markdown]
# ## Break it
#
# You commit this repository to git. **Predict:** a colleague's clone has every file, and still does not load. What is
# missing?

# %% tags=["nbval-check-output"]
version = repository / "ensemble" / "1"
version.mkdir(exist_ok=True)  # if you run this cell again
version.rmdir()
for finding in lint(repository):
    print(f"{finding.code}  {Path(finding.file).name}  {finding.cure}")
version.mkdir()

# %% [markdown]
# The folders `1` of `ensemble` and `tensorrt_llm`: they are empty, and git keeps no empty folders.
#
# More to repair: [labs/incidents](../labs/incidents/README.md) has eight broken deployments.

# %%
notebook.record(models=10)
