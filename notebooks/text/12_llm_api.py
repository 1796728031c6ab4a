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
# # 12 · After engines: LLM API, trtllm-serve, llmapi
#
# You move a request from the engine lane to the LLM API and to OpenAI's names, and see what renaming alone breaks.
#
# After this notebook you can
#
# - say what TensorRT-LLM removed, when, and what does its job now
# - say on which API a request samples and on which it is greedy
# - call Triton with the `openai` client, and translate its requests
# - write the program, the command and the model folder of the LLM API
# - let an old client talk to a new model, and name what gets lost
#
# **Time:** 45 minutes · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# read: 10 min, do: 35 min
#
# Previous: [11 · Benchmarks](11_benchmarking.ipynb) · Next: [13 · Lab](../labs/vlm_clip/13_encoders_and_engines.ipynb)

# %%
import contextlib
import importlib.util
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import openai
import tritonclient.grpc as grpcclient
from IPython.display import Markdown, display
from transformers import AutoTokenizer
from tritonclient.utils import InferenceServerException

from engines import llm_api
from plots import api_names
from servinglab import notebook
from servinglab.checks import check
from servinglab.client import inputs, stream
from servinglab.figures.style import show
from servinglab.openai_frontend import OpenAIFrontend
from servinglab.serving import serve

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
precision: str = "fp32"  # weights of the default model: "fp32" or "int4"
question: str = "What is a model server? One sentence."  # what you ask the model
max_tokens: int = 24  # length of each answer, in tokens
temperature: float = 0.8  # of the requests that try to sample
seed: int = 1  # seed of the first sampled answer

# %% [markdown]
# ## 1 Two ways to serve, and one of them ends
#
# So far: convert a checkpoint, build an engine, serve it with five Triton models. TensorRT-LLM's second way is the
# **LLM API**: a Python class, `LLM`, runs the checkpoint itself, with PyTorch.
#
# ![With an engine: convert, build, fill, serve. With the LLM API: one class. Below: versions](pictures/12_apis.svg)

# %%
lane = notebook.begin("12", lane, seed=seed, weights=precision)

# %% [markdown]
# The first way has ended. TensorRT-LLM 1.3.0rc20 (30 June 2026) was the last candidate that knows engines. From
# 1.3.0rc21 engines, their tools and the five Triton models
# [are gone](https://nvidia.github.io/TensorRT-LLM/legacy/tensorrt-backend-removal.html). The newest Triton container
# that we know, 26.07, holds 1.2.1, which knows both.
#
# <details><summary>One road still ends in an engine: Edge-LLM, for small machines</summary>
#
# ![Hugging Face folder, exporter on a CPU, ONNX graph, llm_build on the device, engine](pictures/12_edge.svg)
#
# `make edge` brings the exporter of [TensorRT Edge-LLM](https://github.com/NVIDIA/TensorRT-Edge-LLM) 0.11.0;
# `.edge/bin/tensorrt-edgellm-export FOLDER onnx` exports a checkpoint in a minute or two. For the default model it
# wrote a graph with 30 nodes `AttentionPlugin`, one for each layer. They are no part of ONNX: notebook 01's TensorRT
# refused them, "Plugin not found". Edge-LLM's builder, `llm_build`, loads the plugin. We did not run that: it needs the
# full TensorRT and an NVIDIA GPU, such as Jetson Thor's
# ([guide](https://nvidia.github.io/TensorRT-Edge-LLM/0.11.1/developer_guide/software-design/engine-builder.html)).
#
# </details>

# %% [markdown]
# **Predict:** which lines of this old script still work in a new version? What is wrong with the fourth?

# %%
script = """\
python3 convert_checkpoint.py --model_dir SmolLM2 --output_dir checkpoint
trtllm-build --checkpoint_dir checkpoint --output_dir engine
cp -r /app/all_models/inflight_batcher_llm repository
curl localhost:8000/v2/models/ensemble/generate -d '{"text_input": "Hi", "max_tokens": 9, "random_seed": 1}'
trtllm-serve HuggingFaceTB/SmolLM2-135M-Instruct
"""

# %% [markdown]
# `llm_api.DATA["removed"]` lists what newer versions lack, each with a pattern to search for:

# %% tags=["nbval-check-output"]
for number, line in enumerate(script.splitlines(), 1):
    for row in llm_api.DATA["removed"]:
        if re.search(row["pattern"], line):
            print(f"line {number}: {row['thing']} is gone since {row['since']}; {row['instead']}")

# %% [markdown]
# Only the last still works. The fourth has the seed's old name, and its model, `ensemble`, is gone.

# %% [markdown]
# ## 2 What can run here?
#
# The LLM API needs the package `tensorrt_llm` and an NVIDIA GPU. Is it installed here?

# %%
installed = importlib.util.find_spec("tensorrt_llm") is not None
standin = Path(llm_api.__file__).parents[2] / "tests" / "image"
environment = os.environ | ({} if installed else {"PYTHONPATH": os.pathsep.join([str(standin), *sys.path])})
runs_on = "NVIDIA's tensorrt_llm" if installed else "the stand-in, tensorrt_llm is not installed"
print("LLM API: runs on", runs_on)

# %% [markdown]
# If not, a **stand-in** takes its place: our package with NVIDIA's names, whose `LLM` our executor computes, on the
# same weights. It proves nothing about NVIDIA's release or its speed. The other side is a Triton with notebook 03's
# five models, and its tokenizer:

# %%
server = serve(precision=precision)
client = grpcclient.InferenceServerClient(server.grpc_url)
settings = client.get_model_config("preprocessing", as_json=True)["config"]["parameters"]
tokenizer_dir = settings["tokenizer_dir"]["string_value"]
tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
hub = "HuggingFaceTB/SmolLM2-135M-Instruct"  # the same model, where the LLM API fetches it


# %% [markdown]
# `ask` sends a dict of inputs and returns the text.

# %%
def ask(request, model="tensorrt_llm_bls"):
    results = stream(client, model, inputs(**request))
    return "".join(result.as_numpy("text_output")[0].decode() for result in results)


# %% [markdown]
# ## 3 One parameter, five names
#
# Four APIs, as this page calls them:
#
# - `engine`: what you send to `ensemble` or `tensorrt_llm_bls`
# - `llm_api`: a field of `SamplingParams`, the LLM API's settings
# - `completions`: the body of `/v1/completions` at `trtllm-serve` (in the figure, `chat` is `/v1/chat/completions`)
# - `llmapi`: Triton's model around `LLM`
#
# **Predict:** leave `max_tokens` out. How long may an answer be on each?

# %% tags=["nbval-check-output"]
def cell(parameter, api):
    found = llm_api.parameters(api)[parameter]
    default = "" if found.required else f"={found.default}"
    return f"`{found.name}{default}`" if found.name else "-"


columns = ["engine", "llm_api", "completions", "llmapi"]
rows = [["parameter", *columns], ["---"] * 5]
for parameter in ("max tokens", "seed", "stop words", "n", "beams", "repeat the prompt"):
    rows.append([parameter, *(cell(parameter, api) for api in columns)])
display(Markdown("\n".join(f"| {' | '.join(row)} |" for row in rows)))

# %% [markdown]
# An engine insists on a number, `completions` has no limit of its own, and the two others stop after 32 tokens. The
# last row: on the first and last API an answer repeats your prompt, unless you say no.
#
# **Predict:** which API has names for the fewest parameters?

# %% tags=["nbval-check-output"]
apis = list(llm_api.APIS)
tables = {api: llm_api.parameters(api) for api in apis}
known = {api: sum(each.name is not None for each in table.values()) for api, table in tables.items()}


def kind(parameter, api):  # a place in api_names.KINDS: the same name, another one, none
    name = tables[api][parameter].name
    return 2 if name is None else int(name != tables["llm_api"][parameter].name)


kinds = {parameter: [kind(parameter, api) for api in apis] for parameter in tables["llm_api"]}
fewest, most = min(known, key=known.get), max(known, key=known.get)
title = f"{fewest} has names for {known[fewest]} of {len(kinds)} parameters, {most} for {known[most]}"
words = "Parameters with a name: " + ", ".join(f"{count} on {api}" for api, count in known.items())
show(api_names.names(kinds, apis), title, words, drawing=True)

# %% [markdown]
# `llmapi` has the fewest, mostly under its own names.

# %% [markdown]
# ## 4 Greedy or sampling?
#
# *Greedy* takes the likeliest token, *sampling* draws one (notebooks 06, 07). Send the engine the question, in the chat
# template, with a temperature and two seeds. **Predict:** how many different texts come back?

# %%
prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
)
plain = {"text_input": prompt, "max_tokens": max_tokens, "exclude_input_in_output": True, "stream": False}
texts = {ask({**plain, "temperature": temperature, "seed": seed + i}) for i in range(2)}
print(f"different texts with temperature {temperature}: {len(texts)}")

# %% [markdown]
# One: it was greedy. `temperature`, `top_k` and `top_p` have nearly the same names everywhere, but what turns sampling
# on differs:
#
# - Behind an **engine**, `top_k` or `top_p` does, unless `top_k` is 1, which leaves a single token. Temperature only
#   shapes what is sampled.
# - For **`SamplingParams`** any of the three does, unless one leaves a single token (temperature 0, `top_k` 1, `top_p`
#   0).
# - **`trtllm-serve`** first fills in temperature 1 and `top_p` 1, as OpenAI does.
#
# <details><summary>Versions</summary>
#
# These are the rules of 1.3.0rc3, in its code and its
# [documentation](https://nvidia.github.io/TensorRT-LLM/features/sampling.html). Before, an engine's rule held
# everywhere.
#
# </details>

# %% [markdown]
# **Exercise 12.1** (●●○, 4 minutes) An application sends temperature 0.8 to whichever API runs. Make two requests of
# it; each keeps that temperature. `everywhere` must sample on all three APIs, `nowhere` must be greedy on all three.
# The check sends both to the running engine, with three seeds, and applies the other two rules.
#
# <details><summary>Hint 1</summary>
#
# What does a request hold after each API has filled in its defaults? Which value does the engine wait for?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Which of the three values can make a draw certain, even with a high temperature? Which leaves out no token at all?
#
# </details>

# %% tags=["exercise:12.1"]
answer_1 = {"everywhere": None, "nowhere": None}  # two dicts of temperature, top_k and top_p

# %% tags=["check:12.1", "nbval-check-output"]
check("12.1", (answer_1, client))

# %% [markdown]
# <details><summary>Solution 12.1</summary>
#
# ```python
# answer_1 = {"everywhere": {"temperature": 0.8, "top_p": 1.0}, "nowhere": {"temperature": 0.8, "top_k": 1}}
# ```
#
# </details>

# %% [markdown]
# `decides` knows the rule of each API. **Predict:** on which does an empty request sample?

# %% tags=["nbval-check-output"]
said = ({}, {"temperature": 0.8}, {"temperature": 0.8, "top_p": 1.0}, {"top_k": 1})
rule = {(str(one), api): llm_api.decides(one, api) for one in said for api in ("engine", "llm_api", "completions")}
same = sum(len({how for (each, _), how in rule.items() if each == str(one)}) == 1 for one in said)
title = f"{same} of {len(said)} requests choose in the same way everywhere"
words = "; ".join(f"{one} on {api}: {how}" for (one, api), how in rule.items())
show(api_names.choices(rule), title, words, drawing=True)

# %% [markdown]
# It samples only at `trtllm-serve`. Temperature *and* `top_p` sample everywhere, `top_k` 1 is greedy everywhere.

# %% [markdown]
# ## 5 An application that speaks OpenAI's protocol
#
# Applications with the `openai` package need OpenAI's paths. `trtllm-serve` has them; a Triton with engines needs a
# front end that translates. [Triton has
# one](https://github.com/triton-inference-server/server/tree/main/python/openai); ours is small.
#
# ![The front end gives a chat request the engine's names, and its text becomes a chat answer](pictures/12_front.svg)

# %%
frontend = OpenAIFrontend(server.grpc_url, tokenizer_dir).start()
http = openai.DefaultHttpxClient(trust_env=False)
application = openai.OpenAI(base_url=f"{frontend.url}/v1", api_key="any", max_retries=0, http_client=http)
print([model.id for model in application.models.list()])

# %% [markdown]
# You send messages; the front end applies the chat template. **Predict:** is this answer greedy?

# %%
message = {"role": "user", "content": question}
chat = {"model": "tensorrt_llm_bls", "messages": [message], "max_completion_tokens": max_tokens}
answer = application.chat.completions.create(**chat)
print(answer.choices[0].message.content)
print(answer.choices[0].finish_reason, answer.usage.completion_tokens)
print("the engine's greedy answer:", answer.choices[0].message.content == ask(plain))

# %% [markdown]
# It was greedy, where `trtllm-serve` would have sampled: this front end adds no defaults, only `top_p` 1 to a
# temperature. So always set one. With `n` you get several answers. **Predict:** with `stop=[","]`, does a comma arrive?

# %% tags=["varies"]
answer = application.chat.completions.create(**chat, stop=[","], n=2, temperature=temperature, seed=seed)
for choice in answer.choices:
    print(repr(choice.message.content), choice.finish_reason)

# %% [markdown]
# No comma arrives: Triton's text ends *after* the stop word, OpenAI's *before* it, so the front end cuts.
#
# ### Rename, or translate?
#
# Now do its work yourself, with three seeds. **Only renamed**, as is often done: known names change, others stay. (The
# stop list is left out: `/generate` refuses it.) **Translated**: the meaning stays. **Predict:** which three things go
# wrong with the first?

# %%
body = {**chat, "temperature": temperature, "seed": seed, "stop": ["."]}
renamed = {"text_input": question, "max_tokens": max_tokens, "temperature": temperature, "n": 1, "echo": False}
translated, notes = llm_api.translate({**body, "messages": prompt}, "chat", "engine")
web = httpx.Client(base_url=server.http_url, timeout=120, trust_env=False)
back = {"only renamed": [], "translated": []}
for each in range(seed, seed + 3):
    answer = web.post("/v2/models/tensorrt_llm_bls/generate", json={**renamed, "seed": each}).json()
    back["only renamed"].append(answer["text_output"])
    back["translated"].append(ask({**translated, "seed": each, "stream": False}))
title = "Different texts: " + ", ".join(f"{name} {len(set(texts))} of {len(texts)}" for name, texts in back.items())
words = "; ".join(f"{name}, first seed: {texts[0]!r}" for name, texts in back.items())
show(api_names.answers(back, question), title, words)

# %% [markdown]
# What went wrong?
#
# 1. The answer begins with the question: an engine repeats the prompt, and nobody reads `echo`.
# 2. The chat template is missing, so the model continues your text.
# 3. It is greedy, whatever the temperature says: one text for all seeds.
#
# `translate` took the request, with the templated prompt as its messages, and both APIs. It returned the new request
# and notes: *renamed* is a new name, *written* a value set because the defaults differ, *differs* accepted but not the
# same.

# %%
for note in notes:
    print(f"{note.kind:8} {note.text}")
print({**translated, "text_input": "…"})

# %% [markdown]
# **Exercise 12.2** (●●○, 5 minutes) Translate this body of `/v1/completions` by hand into a request for `ensemble` that
# means the same: `{"prompt": "Name a fruit.", "max_tokens": 8, "n": 3, "temperature": 0.8}`. The check sends it to the
# running server.
#
# <details><summary>Hint 1</summary>
#
# Which names would the engine not know? What does each API do, unasked, about sampling and about the prompt?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# What did a temperature alone do to the engine in section 4? With what did the answer of the renamed request begin? Are
# three samples the three best beams?
#
# </details>

# %% tags=["exercise:12.2"]
answer_2 = None  # a dict of tensors of the engine lane

# %% tags=["check:12.2", "nbval-check-output"]
check("12.2", (answer_2, client))

# %% [markdown]
# <details><summary>Solution 12.2</summary>
#
# ```python
# answer_2 = {
#     "text_input": "Name a fruit.",
#     "max_tokens": 8,
#     "num_return_sequences": 3,
#     "temperature": 0.8,
#     "top_p": 1.0,
#     "exclude_input_in_output": True,
# }
# ```
#
# </details>

# %% [markdown]
# ## 6 The LLM API
#
# Translate a sampled request of the engine lane for the LLM API and for `trtllm-serve`. **Predict:** how many of its
# seven names change on each?

# %% tags=["nbval-check-output"]
original = {**plain, "temperature": temperature, "top_p": 0.9, "seed": seed}
there = {api: llm_api.translate(original, "engine", api)[0] for api in ("llm_api", "completions")}
for api, names in there.items():
    print(f"{api:12} new: {', '.join(name for name in names if name not in original)}")

# %% [markdown]
# Three and two. On the LLM API all but the prompt and `streaming` are fields of `SamplingParams`. Here is a program for
# a greedy request; `model` is a checkpoint's name, here that of the model above, or its folder:

# %%
greedy, _ = llm_api.translate({**plain, "seed": seed, "text_input": question}, "engine", "llm_api")
fields = ", ".join(f"{name}={value!r}" for name, value in greedy.items() if name not in ("inputs", "streaming"))
program = f"""from tensorrt_llm import LLM, SamplingParams


def main():
    llm = LLM(model={hub!r})
    params = SamplingParams({fields})
    for output in llm.generate({question!r}, params).outputs:
        print(output.text)


if __name__ == "__main__":  # the workers are new processes that import this file
    main()
"""
print(program)

# %% [markdown]
# <details><summary>Accepted is not obeyed; and how to stream</summary>
#
# Every version accepts a seed, yet until August 2026 the PyTorch backend ignored it without an error, and penalties and
# bad words too ([issue 9442](https://github.com/NVIDIA/TensorRT-LLM/issues/9442)). To stream, use `generate_async(…,
# streaming=True)`; each output then has a `text_diff`.
#
# </details>
#
# Run it. **Predict:** the engine lane has answered this question greedily, too, but *in* the chat template. Is the
# answer to the bare question the same?

# %%
file = Path(tempfile.mkdtemp(), "ask.py")
file.write_text(program)
done = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True)
print(f"# on {runs_on}")
print(done.stdout if done.returncode == 0 else done.stderr[-1000:])
print("# the engine lane, templated:", repr(ask(plain)))


# %% [markdown]
# It is not: like an engine, `LLM.generate` takes text as it is. Without the template the model goes on with your text.
# Next, send the templated prompt.
#
# ### trtllm-serve
#
# One command puts the same class behind OpenAI's paths:
#
# `trtllm-serve HuggingFaceTB/SmolLM2-135M-Instruct --host 127.0.0.1 --port 8000 --max_batch_size 8`
#
# For the `openai` client only the `base_url` changes. Start it on a free port; `/health` answers once the model is
# loaded.

# %%
@contextlib.contextmanager
def trtllm_serve(model, host="127.0.0.1"):
    with socket.create_server((host, 0)) as free:
        port = free.getsockname()[1]
    started = "from tensorrt_llm.commands.serve import main; main()"  # what the stand-in's command does
    words = ["trtllm-serve"] if installed else [sys.executable, "-c", started]
    words += [model, "--host", host, "--port", str(port), "--max_batch_size", "8"]
    with tempfile.TemporaryFile() as log, subprocess.Popen(words, env=environment, stdout=log, stderr=log) as process:
        try:
            while not is_up(f"http://{host}:{port}/health"):
                assert process.poll() is None, "trtllm-serve ended before it could answer"
                time.sleep(0.5)
            yield f"http://{host}:{port}/v1"
        finally:
            process.terminate()


def is_up(url):
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, trust_env=False).status_code == 200


# %% [markdown]
# **Predict:** is the answer to the translated request the engine lane's, word for word? (The loop also sends the
# four requests of section 4 as they are, with twelve seeds each.)

# %%
start, seeds, served = "On Sunday we went to the", range(seed, seed + 12), {}
with trtllm_serve(hub) as url:
    asker = application.with_options(base_url=url)
    print(f"# on {runs_on}")
    streamed = asker.completions.create(model=hub, **there["completions"] | {"stream": True})
    pieces = [event.choices[0].text for event in streamed]
    print(*pieces, sep="|", end="|\n")
    for one in said:
        sent = [{"prompt": start, "max_tokens": 1, "seed": each, "extra_body": one} for each in seeds]
        served[str(one)] = [asker.completions.create(model=hub, **each).choices[0].text for each in sent]
print("# the engine lane's text:", "".join(pieces) == ask(original))

# %% [markdown]
# Here it is: template, settings and seed all arrived. Now the engine gets the four requests. **Predict:** which bring
# one word (here a token, so perhaps a piece of one) for all seeds on one server, and several on the other?

# %%
drawn = {}
for one in said:
    sent = [{**plain, "text_input": start, "max_tokens": 1, "seed": each, **one} for each in seeds]
    drawn[str(one), "engine"] = [ask(each).strip() for each in sent]
    drawn[str(one), "trtllm-serve"] = [text.strip() for text in served[str(one)]]
several = {at: len(set(texts)) > 1 for at, texts in drawn.items()}
alike = sum(several[str(one), "engine"] == several[str(one), "trtllm-serve"] for one in said)
title = f"{alike} of {len(said)} requests act alike on both servers"
words = "; ".join(f"{len(set(texts))} for {one} on {api}" for (one, api), texts in drawn.items())
show(api_names.next_words(drawn, drawn["{}", "engine"][0]), title, f"Different words of {len(seeds)}: {words}")

# %% [markdown]
# The first two: `trtllm-serve` filled in temperature 1 and `top_p` 1, and the engine stayed greedy, like section 5's
# front end. The last two leave nothing open: even the words agree. `trtllm-serve` also refuses an unknown name, which
# Triton's `/generate` silently accepts.

# %% [markdown]
# ## 7 The llmapi model
#
# NVIDIA's Python model `llmapi` calls `LLM` inside Triton. Its program is in the container, under
# `/app/all_models/llmapi`. You write two text files:

# %% tags=["nbval-check-output"]
model_yaml = f"""model: {hub}
backend: pytorch
triton_config:
  max_batch_size: 0
  decoupled: false
"""
folder = server.repository / "llmapi"
(folder / "1").mkdir(parents=True, exist_ok=True)
for name, text in {"1/model.yaml": model_yaml, "config.pbtxt": llm_api.DATA["llmapi_config"]}.items():
    (folder / name).write_text(text)
print(*re.findall("^input .*", llm_api.DATA["llmapi_config"], re.MULTILINE), sep="\n")

# %% [markdown]
# `model.yaml` holds the arguments of `LLM`; with `decoupled: false` the model cannot stream. The lines above are the
# inputs of `config.pbtxt`: fields of `SamplingParams` have a prefix, so there is no `max_tokens`, and `stop` is no list
# of words but cancels a request. Shapes have no batch dimension (`max_batch_size: 0`): `[1]`, not `[1, 1]`.
#
# How does a real Triton treat such requests? The program needs a GPU, so a listener takes its place and echoes what it
# receives:

# %%
listener = '''import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            heard = {tensor.name(): tensor.as_numpy().tolist() for tensor in request.inputs()}
            text = np.array([json.dumps(heard, default=bytes.decode)], dtype=object)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
        return answers
'''
(folder / "1" / "model.py").write_text(listener)
server.load("llmapi")


# %% [markdown]
# With the right names a request arrives whole:

# %% tags=["nbval-check-output"]
def tensor(name, datatype, values):
    array = np.array(values, {"BYTES": object, "INT32": np.int32}[datatype])
    return grpcclient.InferInput(name, array.shape, datatype).set_data_from_numpy(array)


hello, dot = tensor("text_input", "BYTES", [b"Hi"]), tensor("sampling_param_stop", "BYTES", [b"."])
limit = tensor("sampling_param_max_tokens", "INT32", [100])
print(client.infer("llmapi", [hello, dot, limit]).as_numpy("text_output")[0].decode())

# %% [markdown]
# An old client, written for the ensemble, sends `text_input` and `max_tokens=100`. **Predict:** how many tokens can its
# answer have at most, over gRPC (Triton's binary protocol, notebook 05) and over HTTP? The second try over gRPC keeps
# the batch dimension.

# %% tags=["nbval-check-output"]
for sent in ([hello, tensor("max_tokens", "INT32", [100])], [tensor("text_input", "BYTES", [[b"Hi"]])]):
    try:
        print(client.infer("llmapi", sent).as_numpy("text_output")[0].decode())
    except InferenceServerException as error:
        print("gRPC:", error.message())
answer = web.post("/v2/models/llmapi/generate", json={"text_input": "Hi", "max_tokens": 100})
print("HTTP:", answer.status_code, answer.json()["text_output"])

# %% [markdown]
# Over gRPC it has none: the name is refused, and so is the shape. Over HTTP the status is 200, but nobody reads the
# limit: `SamplingParams` fills in 32, and the answer ends early without an error.
#
# What if you cannot change the client? Put a model between: an ensemble of one step (notebook 03), without a program.
#
# ![gRPC refuses the old name, HTTP drops it; the model old_names gives it the new name](pictures/12_old_client.svg)

# %% [markdown]
# **Exercise 12.3** (●●●, 8 minutes) Write the `config.pbtxt` of `old_names`: the step is `llmapi`. The old client sends
# `text_input`, `max_tokens` and, sometimes, `stop_words`, over gRPC, in shapes `[1, 1]` and `[1, n]`; it reads
# `text_output`. The check loads your text into the running server and sends the old requests. A frame:
#
# ```
# name: "old_names"
# platform: "ensemble"
# input { name: "text_input" data_type: TYPE_STRING dims: [ -1 ] }
# ensemble_scheduling { step {
#   model_name: "llmapi"
#   model_version: -1
#   input_map { key: "text_input" value: "text_input" }
# } }
# ```
#
# <details><summary>Hint 1</summary>
#
# Which tensors does the frame lack? In a map, whose name is the key: the step's or the ensemble's?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Who takes a batch dimension off, and where do you say that there is one? How many rows can `llmapi` take at once? What
# does Triton do when a declared input is missing?
#
# </details>

# %% tags=["exercise:12.3"]
old_names = None  # the text of a config.pbtxt

# %% tags=["check:12.3", "nbval-check-output"]
check("12.3", (old_names, server))

# %% [markdown]
# <details><summary>Solution 12.3</summary>
#
# ```python
# old_names = '''
# name: "old_names"
# platform: "ensemble"
# max_batch_size: 1
# input { name: "text_input" data_type: TYPE_STRING dims: [ -1 ] }
# input { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] }
# input { name: "stop_words" data_type: TYPE_STRING dims: [ -1 ] optional: true }
# output { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }
# ensemble_scheduling { step {
#   model_name: "llmapi"
#   model_version: -1
#   input_map { key: "text_input" value: "text_input" }
#   input_map { key: "sampling_param_max_tokens" value: "max_tokens" }
#   input_map { key: "sampling_param_stop" value: "stop_words" }
#   output_map { key: "text_output" value: "text_output" }
# } }
# '''
# ```
#
# </details>

# %% [markdown]
# ## 8 What gets lost
#
# A configuration renames; it adds nothing. **Predict** for each field of this request: is it renamed, kept or lost on
# the way to `llmapi`?

# %% tags=["nbval-check-output"]
rich = {"text_input": "Hi", "max_tokens": 50, "num_return_sequences": 2, "top_p": 0.9, "min_tokens": 5}
rich |= {"repetition_penalty": 1.2, "return_log_probs": True, "bad_words": ["no"]}
targets, notes, lost = ("llm_api", "completions", "llmapi"), {}, {}
for api in targets:
    _, notes[api] = llm_api.translate(rich, "engine", api)
    lost[api] = [note.parameter for note in notes[api] if note.kind == "lost"]
title = "Lost: " + "; ".join(f"{len(names)} on {api}" for api, names in lost.items())
show(api_names.losses(rich, tables, targets), title, f"Lost on each API: {lost}", drawing=True)

# %% [markdown]
# With the LLM API nothing is lost, behind OpenAI's path the bad words, in `llmapi` most fields. If you need those, use
# `trtllm-serve`, or your own Triton model around `LLM`.

# %% [markdown]
# ## Recap
#
# - Engines end with 1.3.0rc20. After that `LLM`, `trtllm-serve` or `llmapi` serves the checkpoint itself.
# - The same three values are greedy on one API and sample on another. Set them all.
# - Renaming keeps names right and meanings wrong: limit, prompt, stop word and sampling.
# - The `openai` client talks to `trtllm-serve` and, through a front end, to Triton.
# - `llmapi` has 17 inputs and no batch dimension. Over HTTP an old client gets 32 tokens and no error; an ensemble of
#   one step gives it the new names.

# %% [markdown]
# ## Break it
#
# Send a request through all the APIs in turn. **Predict:** which of its fields survive the whole trip?

# %% tags=["nbval-check-output"]
here, now = "engine", rich
for target in ("completions", "llm_api", "llmapi", "engine"):
    now, notes = llm_api.translate(now, here, target)
    here = target
    print(f"{target:12} loses {[note.parameter for note in notes if note.kind == 'lost'] or 'nothing'}")
print(now)

# %% [markdown]
# Only those that every API knows survive. Try more: stop the server, then ask with the `openai` client.

# %%
for each in (application, frontend, web, client):
    each.stop() if each is frontend else each.close()
server.stop()
notebook.record(llm_api_ran=installed, names=known, lost_on_llmapi=len(lost["llmapi"]))
