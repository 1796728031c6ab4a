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
# # 04 · Serving: queues, batches, memory
#
# You follow requests through every queue of a server, and measure what each setting of its schedulers brings.
#
# After this notebook you can
#
# - say where a request waits, and read it from statistics, metrics and the request's own times
# - choose batch sizes, queue delays and instance counts, and say why an LLM needs other means
# - explain in-flight batching, the KV cache, prefix reuse and both scheduler policies
# - load, unload and update models while clients keep asking
#
# **Time:** 45 minutes · **Lanes:** embedded, trtllm · **Needs:** SmolLM2-135M and MiniLM
#
# read: 14 min, do: 31 min
#
# Previous: [03 · The model repository](03_model_repository.ipynb) · Next: [05 · Streaming](05_streaming_grpc.ipynb)

# %%
import json
import re
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
import psutil
import tritonclient.grpc as grpcclient
from tokenizers import Tokenizer
from tritonclient.utils import InferenceServerException

import minilm
import traffic
from plots import slots as slot_figures
from reference_backend import executor
from servinglab import notebook
from servinglab.checks import check
from servinglab.client import gather, inputs
from servinglab.figures.style import show
from servinglab.serving import serve

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
precision: str = "fp32"  # weights of the LLM: "fp32" or "int4"
burst_size: int = 24  # requests that arrive at once at a small model
requests: int = 16  # requests to the LLM in a ragged load
slots: int = 4  # how many of them run at the same time; rounded up to an even number
tokens: int = 9  # their mean length, in tokens
seed: int = 0  # seed of their lengths

# %%
lane = notebook.begin("04", lane, seed=seed, weights=precision)
slots = max(2, slots + slots % 2)
root = Path(tempfile.mkdtemp())
repository = root / "model_repository"
encoder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## 1 What happens to a request
#
# ![A request goes through front end, queue and scheduler to an instance; the response goes back](pictures/04_path.svg)
#
# Each model has its own queue and its own **scheduler**, which decides what runs next. It hands each free **instance**
# a batch: requests that are computed together. (gRPC: notebook 05.)
#
# Queues show best with a model quicker than an LLM: MiniLM, a [sentence encoder](https://arxiv.org/abs/2002.10957). It
# turns a text into 384 numbers. [minilm.py](minilm.py) writes it as ONNX and has its `model.py`, of which this part
# computes a batch. Note `self.session.run`: **all** requests go through together.

# %% tags=["nbval-check-output"]
minilm.export(encoder)
print(minilm.CODE[minilm.CODE.index("    def execute") :])

# %% [markdown]
# This notebook varies the end of its `config.pbtxt`: the number of instances, and the scheduling.

# %%
CONFIG = """\
backend: "python"
max_batch_size: 8
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "vector" data_type: TYPE_FP32 dims: [ 384 ] } ]
parameters { key: "folder" value { string_value: "FOLDER" } }
instance_group [ { count: COUNT kind: KIND_CPU } ]
"""


def write_minilm(name, scheduling="", count=1):
    folder = repository / name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "model.py").write_text(minilm.CODE)
    filled = CONFIG.replace("FOLDER", str(encoder)).replace("COUNT", str(count))
    (folder / "config.pbtxt").write_text(filled + scheduling)


# %% [markdown]
# Four variants go into one repository. `serve` adds the five models of the LLM and starts the server:

# %%
write_minilm("minilm")
write_minilm("minilm_batch", "dynamic_batching { }\n")
write_minilm("minilm_delay", "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 20000 }\n")
write_minilm("minilm_two", count=2)
server = serve(root, precision=precision, generation="1.1")
client = grpcclient.InferenceServerClient(server.grpc_url)
web = httpx.Client(base_url=server.http_url, timeout=60, trust_env=False)

# %% [markdown]
# A load balancer asks: is the process alive, is it ready, is this model ready? A status code answers.
#
# **Predict:** `maxilm` does not exist. Is it 200, 400, 404 or 503?

# %% tags=["nbval-check-output"]
for path in ("health/live", "health/ready", "models/tensorrt_llm/ready", "models/minilm/ready", "models/maxilm/ready"):
    print(web.get(f"/v2/{path}").status_code, path)


# %% [markdown]
# `maxilm` gets 400, like every model that is not loaded. `live` means "do not restart me", `ready` means "send me
# requests".
#
# ## 2 Dynamic batching
#
# Triton counts its work for each model. Ask three times, then ask the statistics API:

# %%
def ask(model, text):
    return client.infer(model, inputs(text=text)).as_numpy("vector")


fox, dog, tax = (ask("minilm", text)[0] for text in ("a red fox", "a brown dog", "an income tax"))
print(f"fox and dog {fox @ dog:.2f}, fox and tax {fox @ tax:.2f}")
stats = client.get_inference_statistics("minilm").model_stats[0]
print(f"{stats.inference_count} inferences, {stats.execution_count} executions,", end=" ")
print(f"{stats.inference_stats.queue.ns / 1e6:.1f} ms in the queue")

# %% [markdown]
# The model works: a fox is closer to a dog than to a tax. An **inference** is one computed row, an **execution** is
# one call of the instance.
#
# Now a burst: `burst_size` clients ask at the same moment. `measured` reads these counters before and after, and the
# length of the queue meanwhile. `minilm` has no batching, `minilm_batch` has `dynamic_batching { }`, `minilm_delay`
# prefers batches of 8 and may wait 20 ms for them.
#
# **Predict:** at most 8 fit in a batch. Which variant needs an execution for each request, which one for each full
# batch, and which a little more?

# %%
variants = ("minilm", "minilm_batch", "minilm_delay")
rows = {name: traffic.measured(server, client, ask, name, burst_size) for name in variants}
expected = (burst_size, 1 + -(-(burst_size - 1) // 8), -(-burst_size // 8))  # - of // of - rounds up
for (name, (row, _)), least in zip(rows.items(), expected, strict=True):
    print(f"{name:12}", " · ".join(f"{key} {value:.1f}" for key, value in row.items()), f"· expected {least}")

# %% [markdown]
# Without batching, each request is an execution. With it, the first goes alone, because the instance is free; the rest
# go 8 at a time: a little more than full batches need. With a delay even the first waits for seven others. Requests
# that did not arrive all at once make more.
#
# **Predict:** with batches, does the queue shrink one by one, or in jumps?

# %%
curves = {name: points for name, (_, points) in rows.items()}
pairs = {name: zip(points, points[1:], strict=False) for name, points in curves.items()}
empty = [max((after for (_, n), (after, _) in steps if n), default=0) for steps in pairs.values()]
title = "The queue is empty after {:.2f} s without batches, {:.2f} s with, {:.2f} s with a delay".format(*empty)
alt = "; ".join(f"{name}: at most {max(n for _, n in points)} in the queue" for name, points in curves.items())
show(slot_figures.pending_curves(curves), title, alt)

# %% [markdown]
# In jumps: a batch leaves the queue as a whole, so the line is flat while one is computed, then drops by up to 8.
# Without batches it goes down one by one.
#
# Is it faster, too? Before you believe `requests/s`, see section 3, which times `minilm` again. A batch pays when calls
# share a fixed cost (reading weights, starting kernels): nearly always on a GPU, less on a busy CPU.

# %% [markdown]
# ### A queue delay
#
# `preprocessing` prefers batches of 8, too, with a queue delay of 0. Make that 50 ms, and ask alone.
#
# **Predict:** does a lone request wait 50 ms more, or does the scheduler see that nobody else is there?

# %%
file, delays = repository / "preprocessing" / "config.pbtxt", {}
for delay in (50_000, 0):
    line = f"queue_delay_microseconds: {delay}"
    file.write_text(re.sub(r"queue_delay_microseconds: \d+", line, file.read_text()))
    client.load_model("preprocessing", headers=server.admin_headers)
    took = []
    for _ in range(3):
        began = time.perf_counter()
        client.infer("preprocessing", inputs(QUERY="A fox", REQUEST_OUTPUT_LEN=4))
        took.append(time.perf_counter() - began)
    delays[delay] = min(took)
    print(f"delay {delay / 1000:2.0f} ms: alone {1000 * delays[delay]:.0f} ms")
assert delays[50_000] > 0.05

# %% [markdown]
# A lone request waits the whole delay: the scheduler cannot know who will come. A full preferred batch leaves at once.
#
# So [tune in this order](https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md):
# `dynamic_batching { }` alone; then a delay, if larger batches pay; preferred sizes only where some are really faster.
#
# Leave the delay of `tensorrt_llm` at 0. The batch that counts is formed behind it, in the **executor**, the part of
# TensorRT-LLM that runs the LLM.

# %% [markdown]
# ### A limit
#
# With more callers than a model can serve, soon every answer comes too late. With this line a request that has waited
# 2 s is refused:
#
# `dynamic_batching { default_queue_policy { default_timeout_microseconds: 2000000 } }`
#
# **Exercise 04.1** (●●○, 8 minutes) The model `steady` has one instance, which takes 200 ms for a batch of 1 to 8 rows.
# Callers arrive 100 a second and hang up after 1 s. Write the scheduling lines of its config, so that *no* answer comes
# too late and at least 30 of 120 callers get one. The check loads them into a Triton and calls.
#
# <details><summary>Hint 1</summary>
#
# How many callers a second can the model serve with batches, and what must become of the others?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# A caller waits in the queue *and* for the execution. Which of the two does the timeout end, and in which unit?
#
# </details>

# %% tags=["exercise:04.1"]
answer_1 = None  # a text: "dynamic_batching { … }"

# %% tags=["check:04.1", "nbval-check-output", "varies"]
check("04.1", answer_1)

# %% [markdown]
# <details><summary>Solution 04.1</summary>
#
# ```python
# answer_1 = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 600000 } }"
# ```
#
# </details>

# %% [markdown]
# ## 3 Instances
#
# `instance_group { count: 2 }` starts the model twice: two batches at the same time, and twice the memory, weights
# too.
#
# **Predict:** two instances, without batching: fewer requests per second, as many, or up to twice as many?

# %%
best = {"minilm": 0.0, "minilm_two": 0.0}
for name in [*best] * 2:  # in turn, so that other work on this machine meets both
    best[name] = max(best[name], burst_size / traffic.burst(ask, name, burst_size)[0])
for name, speed in best.items():
    processes, megabytes = traffic.memory(server, name)
    print(f"{name:11} {processes} process(es) with {megabytes:.0f} MB of their own, {speed:.0f} requests/s")
cores = len(psutil.Process().cpu_affinity())
print(f"two instances: {best['minilm_two'] / best['minilm']:.1f} × the requests/s of one, on {cores} core(s)")

# %% [markdown]
# Two instances double the requests per second only if a core is idle. With few cores the clients and Triton want them
# as well, so there may be no gain, or a loss. The memory is always paid.
#
# ### One instance of the LLM, or two?
#
# Test it on the executor itself. One with `slots` **slots**, places of a running request, gets two stories for each
# slot; then two of half the size share them.
#
# **Predict:** which one makes more tokens per second, and which one needs more memory for weights?

# %%
engine = next(root.glob("_assets/*/engines"))
tokenizer = Tokenizer.from_file(str(next(root.glob("_assets/*/tokenizer")) / "tokenizer.json"))
prompts = [f"Story {number + 1} of the old lighthouse:" for number in range(max(requests, 2 * slots))]
load, options = prompts[: 2 * slots], {"enable_kv_cache_reuse": False}
inflight = executor.Executor(engine, max_batch_size=slots, **options)
speeds = {"one instance": traffic.rate([inflight], tokenizer, load, tokens)}

# %% [markdown]
# Then the two halves:

# %%
half = {"max_batch_size": slots // 2, "threads": max(1, psutil.cpu_count() // 2), **options}
with executor.Executor(engine, **half) as first, executor.Executor(engine, **half) as second:
    speeds["two instances"] = traffic.rate([first, second], tokenizer, load, tokens)
weights = sum(path.stat().st_size for path in engine.iterdir() if path.is_file()) / 1e6
for count, (name, speed) in enumerate(speeds.items(), start=1):
    print(f"{name:13} {speed:4.0f} tokens/s, {count * weights:4.0f} MB of weights, on {inflight.device}")

# %% [markdown]
# The single instance makes more tokens per second if reading the weights is the limit: each step reads them once,
# however many rows it computes; two half-full instances read them twice. Where arithmetic is the limit, as with int4 on
# a CPU, they may be equally fast. They also split the memory of the KV cache (section 5). So: **one instance, a large
# batch**. More make sense on *other* GPUs.
#
# Keep one `postprocessing`, too, if you stream, or [pieces may come in the wrong
# order](https://github.com/triton-inference-server/tensorrtllm_backend/issues/614).

# %% [markdown]
# <details><summary>One LLM on several GPUs or nodes</summary>
#
# An engine for several GPUs is built in pieces, one for each **rank**: `tp_size` (tensor parallel: every layer is cut)
# times `pp_size` (pipeline parallel: the layers are shared out). Tensor parallel ranks exchange data in every layer, so
# keep them on one node. MPI starts a process for each; rank 0 answers clients, the others load `tensorrt_llm` alone:
#
# - **One node**: NVIDIA's `launch_triton_server.py --world_size=2 --model_repo=…`. `course serve --lane trtllm
#   --world-size 2 --dry-run FOLDER` prints what it would run.
# - **Several nodes**: `srun --mpi=pmix` under Slurm, one task for each GPU, or `mpirun --hostfile hosts`.
# - **Copies on other GPUs**: `instance_group` count 2 and `gpu_device_ids` `0,1;2,3`.
# - **Without Triton**: `trtllm-serve MODEL --tp_size 4 --pp_size 2`.
#
# None of these has been run here. See the [backend's
# guide](https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/README-engine-backend-archive.md#model-deployment).
#
# </details>

# %% [markdown]
# ## 4 In-flight batching
#
# Dynamic batching runs a batch to its end: an answer that ends early leaves its slot empty until the longest one ends.
# **In-flight batching** (or *continuous*; [Orca](https://www.usenix.org/conference/osdi22/presentation/yu), 2022)
# decides anew at every token: a finished request leaves, a waiting one joins.
#
# TensorRT-LLM's `batching_strategy` is `inflight_fused_batching` or `V1`, the static kind. Take answers of very
# different lengths:

# %%
lengths = np.random.default_rng(seed).geometric(1 / tokens, requests).clip(2, 4 * tokens).tolist()
print(lengths, "together", sum(lengths), "tokens")

# %% [markdown]
# **Predict:** with `slots` slots, does static batching take the same number of steps, half as many again, or three
# times as many?

# %%
runs, steps = {}, {}
with executor.Executor(engine, max_batch_size=slots, batching_strategy="V1", **options) as static:
    traffic.run_all(static, tokenizer, load[:1], [2])  # warm up
    for name, each in {"in-flight": inflight, "static": static}.items():
        found = traffic.run_all(each, tokenizer, prompts[:requests], lengths)
        runs[name], steps[name] = found.metrics, found.counts["steps"]
print("steps of the model:", steps)

# %% [markdown]
# Which request sat in which slot? Numbers are requests in order of arrival; the pale part of a bar is the reading of
# the prompt; grey is an empty slot.

# %%
idle = {name: slot_figures.idle_share(metrics) for name, metrics in runs.items()}
ends = [slot_figures.seconds(metrics) for metrics in runs.values()]
more = steps["static"] / steps["in-flight"]
title = f"Static batching takes {more:.1f} times the steps and {ends[1] / ends[0]:.1f} times the time"
alt = f"empty: in-flight {idle['in-flight']:.0%}, static {idle['static']:.0%} of slots × time"
show(slot_figures.timeline(runs), title, alt)
inflight.shutdown()

# %% [markdown]
# With these lengths static batching takes more than half as many steps again. Below, no bar begins until the whole
# batch before it has ended. Above, a free slot is taken at the next token. Time gains less than steps: a full step
# costs more than one with empty slots, and both ways read every prompt.

# %% [markdown]
# **Exercise 04.2** (●●○, 6 minutes) Find a load that static batching handles badly. Four requests arrive together, for
# two slots, in your order, with 2 to 12 tokens each. Choose their lengths so that static batching takes at least 1.6
# times the steps of in-flight batching. The check runs them on two executors and counts. (The first token comes with
# the prompt: n tokens take n − 1 steps.)
#
# <details><summary>Hint 1</summary>
#
# Which requests share a static batch? Draw both slots: which one is empty, and for how long?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Does an empty slot cost anything if nobody waits for it? How long must the answer be that could have used it?
#
# </details>

# %% tags=["exercise:04.2"]
answer_2 = None  # a list of four lengths, in order of arrival

# %% tags=["check:04.2", "nbval-check-output"]
check("04.2", (answer_2, engine))


# %% [markdown]
# <details><summary>Solution 04.2</summary>
#
# ```python
# answer_2 = [12, 2, 12, 2]
# ```
#
# </details>

# %% [markdown]
# ### The same times over the wire
#
# `return_perf_metrics` sends a client these times, in nanoseconds of a clock without a date: only differences mean
# something. `return_num_input_tokens` tells the prompt's length. One request alone:

# %%
def perf(prompts, max_tokens=4):
    wanted = {"max_tokens": max_tokens, "stream": True, "return_perf_metrics": True, "return_num_input_tokens": True}
    asked = {n: inputs(text_input=text, **wanted) for n, text in enumerate(prompts)}
    return [traffic.numbers(results[-1]) for results in gather(client, "tensorrt_llm_bls", asked).values()]


(one,) = perf(["The lighthouse"], max_tokens=tokens)
print("tokens of the prompt:", one.get("num_input_tokens", "unknown"))
times = {name: at for name, at in one.items() if name.endswith("_time_ns")}
for name, at in sorted(times.items(), key=lambda pair: pair[1]):
    print(f"{name.removesuffix('_time_ns'):16} {(at - times['arrival_time_ns']) / 1e6:7.1f} ms")

# %% [markdown]
# Now send two requests more than the served LLM has places, all long enough for the first to be busy when the last
# arrives.
#
# **Predict:** which queue sees the two that wait: Triton's, or the executor's?

# %%
places = client.get_model_config("tensorrt_llm").config.max_batch_size
per_token = max((times["last_token_time_ns"] - times["first_token_time_ns"]) / max(tokens - 1, 1), 0.25e6)
length = max(tokens, places + 4, round(0.25e9 / per_token))
before = traffic.settled(client, "tensorrt_llm")
asked = perf([f"Lighthouse {n}" for n in range(places + 2)], max_tokens=length)
in_triton = (traffic.settled(client, "tensorrt_llm") - before)[2] / len(asked) / 1e6

# %% [markdown]
# Grey is the wait in the executor's queue:

# %%
in_executor = sorted((one["first_scheduled_time_ns"] - one["arrival_time_ns"]) / 1e6 for one in asked)
title = f"In Triton's queue {in_triton:.1f} ms on average, in the executor's up to {in_executor[-1]:.0f} ms"
alt = "waits in the executor's queue, in ms: " + ", ".join(f"{wait:.0f}" for wait in in_executor)
run = sorted(asked, key=lambda one: one["first_scheduled_time_ns"])
show(slot_figures.timeline({f"{places + 2} requests for {places} places": run}, by="request"), title, alt)

# %% [markdown]
# The executor's queue saw them. The last two waited for a place, the others only for the prompts before theirs to be
# read. Triton's queue is nearly always empty, because the instance of `tensorrt_llm` hands every request on at once.
# **The LLM's waiting line is behind Triton's statistics**:
#
# ![Triton's queue is empty; behind it, requests wait in the executor's queue for a slot](pictures/04_queues.svg)
#
# ## 5 The KV cache
#
# For each token it has read, a model keeps a **key** and a **value** in every layer, so that no token is read twice.
# Bytes for each token:
#
# $$2 \cdot \text{layers} \cdot \text{key-value heads} \cdot \text{head size} \cdot \text{bytes per number}$$

# %% tags=["nbval-check-output"]
config = json.loads((engine / "config.json").read_text())["pretrained_config"]
shapes = {
    "SmolLM2-135M, fp32": (config["num_hidden_layers"], config["num_key_value_heads"], config["head_size"], 4),
    "Llama 2 7B, fp16": (32, 32, 128, 2),
    "Llama 3.1 8B, fp16": (32, 8, 128, 2),
}
for name, (layers, heads, size, width) in shapes.items():
    print(f"{name:19} {2 * layers * heads * size * width / 1024:4.0f} KiB for each token")

# %% [markdown]
# With Llama 2 7B, one request of 4,096 tokens takes 2 GiB. So memory usually decides how many requests run at once.
#
# The cache is **paged**: cut into **blocks** of some tokens ([PagedAttention](https://arxiv.org/abs/2309.06180)). A
# request owns a list of blocks, and any free block fits:
#
# ![Three caches of 8 blocks: one request fills some, two share some, one gives its blocks up](pictures/04_blocks.svg)
#
# Two parameters of `tensorrt_llm` limit their number; the smaller result counts:
#
# - `kv_cache_free_gpu_mem_fraction`: a share of the memory still *free* once the engine is loaded, 0.9 by default. So
#   a server "takes the whole GPU" whatever the model's size;
# - `max_tokens_in_paged_kv_cache`: a number of tokens.

# %% [markdown]
# ### A tiny cache
#
# 128 tokens, in 8 blocks of 16. A request for 30 tokens behind a prompt of about 8 needs 3 blocks.
#
# **Predict:** four slots are free and four requests come. How many run at the same time?

# %%
tiny = {"max_batch_size": 4, "tokens_per_block": 16, "max_tokens_in_paged_kv_cache": 128, **options}
no_evict = executor.Executor(engine, **tiny)
four = [f"Chapter {number} of the old lighthouse:" for number in range(1, 5)]
traffic.run_all(no_evict, tokenizer, four[:1], [2])  # warm up
cramped = traffic.run_all(no_evict, tokenizer, four, [30] * 4)

# %% [markdown]
# Grey again is the wait in the queue:

# %%
waits = [(m.first_scheduled_time_ns - m.arrival_time_ns) / 1e6 for m in cramped.metrics]
blocks = -(-(len(tokenizer.encode(four[0]).ids) + 30) // 16)  # rounded up
title = f"Four slots, four requests of {blocks} blocks each, a cache of 8 blocks"
alt = f"waits: {', '.join(f'{wait:.0f}' for wait in waits)} ms; {blocks} blocks each, 8 in all"
show(slot_figures.timeline({"tiny cache": cramped.metrics}, by="request"), title, alt)

# %% [markdown]
# Two ran at the same time: they take 6 blocks, and the 2 left are too few for a third. The others waited, although
# slots were free. A request that could *never* fit is refused at once:

# %% tags=["nbval-check-output"]
try:
    traffic.run_all(no_evict, tokenizer, four[:1], [200])
except executor.RequestError as error:
    print(error)

# %% [markdown]
# ### Two policies
#
# The parameter `batch_scheduler_policy` is `guaranteed_no_evict` so far: it reserves blocks for `max_tokens`, so it
# never stops a request. `max_utilization` takes blocks as they are needed. When they run out, it **preempts** the
# youngest request: it frees its blocks and computes them again later.
#
# Two loads: *full* answers use all of their 30 tokens, as above; *short* ones end by themselves, long before the 60
# allowed.
#
# **Predict:** which policy takes fewer steps for which load? Does preemption change a text?

# %%
END = tokenizer.token_to_id("<|im_end|>")
CHAT = "<|im_start|>user\nWhat is the capital of {}?<|im_end|>\n<|im_start|>assistant\n"
short = [CHAT.format(land) for land in ("France", "Italy", "Spain", "Japan")]

# %%
careful, bold = "guaranteed_no_evict", "max_utilization"
ran = {("full", careful): cramped}
with executor.Executor(engine, **tiny, batch_scheduler_policy=bold) as eager:
    for each in (no_evict, eager):  # warm up: on a GPU the first prompt of each size has a step to prepare
        traffic.run_all(each, tokenizer, [four[0], four[0] * 5, short[0]], [2] * 3)
    ran["full", bold] = traffic.run_all(eager, tokenizer, four, [30] * 4)
    for policy, each in ((careful, no_evict), (bold, eager)):
        ran["short", policy] = traffic.run_all(each, tokenizer, short, [60] * 4, END)
for (name, policy), each in ran.items():
    numbers = "{steps:3} steps, {prompt_tokens:3} tokens read, {preempted} preempted".format(**each.counts)
    print(f"{name:6} {policy:20} {numbers}")

# %% [markdown]
# The short answers in time, and all texts compared:

# %% tags=["varies"]
few = {policy: ran["short", policy] for policy in (careful, bold)}
took = [f"{each.counts['steps']} steps, {slot_figures.seconds(each.metrics):.2f} s" for each in few.values()]
title = f"Short answers: {took[0]}, against {took[1]}"
alt = "; ".join(f"{policy}: done after {slot_figures.seconds(each.metrics):.1f} s" for policy, each in few.items())
show(slot_figures.timeline({policy: each.metrics for policy, each in few.items()}, by="request"), title, alt)
same = {name: ran[name, careful].texts == ran[name, bold].texts for name in ("full", "short")}
print("same texts:", same, "·", few[bold].texts[0])
assert ran["full", careful].counts["preempted"] == 0
if precision == "fp32":
    assert all(same.values())
no_evict.shutdown()

# %% [markdown]
# `max_utilization` takes fewer steps for both loads. With short answers `guaranteed_no_evict` reserves memory that
# nobody uses. With full answers `max_utilization` starts more than fit, preempts the youngest, and reads their texts
# again. That is cheap here. With long prompts and many requests `guaranteed_no_evict` can win, and a preempted stream
# stands still.
#
# Preemption changes no text in fp32. In int4, and on a GPU, the last bits of a **logit**, the score of a possible next
# token, depend on how many tokens are read together, and a close decision with them.

# %% [markdown]
# **Exercise 04.3** (●●○, 8 minutes) Four callers come at once. Each sends a prompt of about 16 tokens, asks for up to
# 60 and gets about 25. Deploy the smallest cache in which all four run at the same time; its blocks hold 64 tokens. The
# check puts your values into the `config.pbtxt` of `tensorrt_llm`, loads it into a Triton and calls.
#
# <details><summary>Hint 1</summary>
#
# How many whole blocks does a caller hold at its start, and how many at its end? Which policy takes which number?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Can two callers share a block that both fill by half? And what does a cache of 100 tokens do with its last 36?
#
# </details>

# %% tags=["exercise:04.3"]
answer_3 = {"batch_scheduler_policy": None, "max_tokens_in_paged_kv_cache": None}  # a text, a number of tokens

# %% tags=["check:04.3", "nbval-check-output"]
check("04.3", (answer_3, engine))

# %% [markdown]
# <details><summary>Solution 04.3</summary>
#
# ```python
# answer_3 = {"batch_scheduler_policy": "max_utilization", "max_tokens_in_paged_kv_cache": 4 * 64}
# ```
#
# </details>

# %% [markdown]
# ### A shared prefix
#
# Many requests begin alike: a system prompt, a document, a conversation so far. A token's key and value depend only on
# it and on what came *before*, so the blocks of an equal beginning can be used again. `enable_kv_cache_reuse` keeps
# them.
#
# Ask three questions about one document, then one about a document with another first word. Two others warm up.
#
# **Predict:** the time to first token of each, relative to the first.

# %%
rules = " ".join(f"Rule {number}: answer in plain words and name the source." for number in range(1, 21))
topics = ("tides", "clocks", "kites")
for things in topics[:2]:  # warm up
    perf([f"School {rules} Question: how do {things} work?"])
document = f"House {time.time_ns()}: {rules}"  # a number, so that it is new each time you run this cell
questions = [f"{document} Question: how do {things} work?" for things in topics]
questions.append(questions[-1].replace("House", "Office", 1))

# %% [markdown]
# Ask one after another. Only *whole* blocks are reused, and the served LLM's have 64 tokens:

# %%
firsts, bars = [], {}
for asked in questions:
    (found,) = perf([asked])
    firsts.append((found["first_token_time_ns"] - found["arrival_time_ns"]) / 1e6)
    bars[f"{asked.split()[0]} … {asked.split()[-2]}"] = (firsts[-1], found["kv_cache_reused_blocks"])
shared = len(tokenizer.encode(document).ids)
title = f"First token: {shared} tokens in common are {shared // 64} whole blocks"
alt = "; ".join(f"{name}: {ms:.0f} ms, {reused} blocks reused" for name, (ms, reused) in bars.items())
show(slot_figures.first_tokens(bars), title, alt)

# %% [markdown]
# The second and third found their blocks and came several times as fast as the first. The last shares nearly all of its
# *text* and none of its *beginning*: no block, so it is read whole, like the first; what differs between those two bars
# is noise. So put what is the same for everybody first, the question last.
#
# <details><summary>On a TensorRT engine</summary>
#
# Reuse needs an engine built with `--use_paged_context_fmha enable`, the default of recent versions of
# [trtllm-build](https://nvidia.github.io/TensorRT-LLM/1.0.0/advanced/kv-cache-reuse.html).
#
# </details>
#
# ## 6 Metrics
#
# **Prometheus** metrics are for a monitoring system, which reads a page like this every few seconds:

# %% tags=["varies"]
page = httpx.get(server.metrics_url, trust_env=False).text
print(len(page.splitlines()), "lines")
print(*[line for line in page.splitlines() if line.startswith("nv_inference") and '"preprocessing"' in line], sep="\n")

# %% [markdown]
# Counters never go back, so a monitoring system takes differences. Take them over four answers of the LLM, asked at the
# same time: how many milliseconds of each answer did each model work?
#
# **Predict:** does Triton's time of `tensorrt_llm` come near that of an answer, or is it a half, or a hundredth?

# %%
chain = ("preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls")
before = traffic.clocks(server)
more_of = {"max_tokens": tokens, "min_tokens": tokens, "stream": True}
found = gather(client, "tensorrt_llm_bls", {text: inputs(text_input=text, **more_of) for text in prompts[:4]})
for model in chain:
    traffic.settled(client, model)
after = traffic.clocks(server)
sums = {model: (after[model] - before[model]) / 4 for model in chain}
sums["the answer"] = 1e3 * np.mean([results[-1].seconds for results in found.values()])

# %% [markdown]
# Each model by Triton's clocks, the answer by the client's. Mind the scale: each mark is ten times the one before.

# %%
title = f"Triton sees {sums['tensorrt_llm']:.0f} ms of the LLM, and an answer took {sums['the answer']:.0f} ms"
alt = "; ".join(f"{model} {ms:.1f} ms" for model, ms in sums.items())
show(slot_figures.clocks(sums), title, alt)

# %% [markdown]
# The LLM's time is nowhere near, a few hundredths at most: Triton's clock stops when `execute` returns, which is when
# the executor has the request. The `execute` of `tensorrt_llm_bls` only starts a thread. A dashboard of
# `nv_inference_*` alone shows a quick LLM however slow the answers are.
#
# For the LLM look at the executor's figures,
# [`nv_trt_llm_*`](https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/README-engine-backend-archive.md#triton-metrics)
# and `nv_llm_*`: requests that run and wait, KV blocks, tokens read and generated.
#
# **Predict:** nobody asks at the moment. Which of the requests and blocks are 0: all, or are some blocks in use?

# %% tags=["varies"]
time.sleep(1.5)  # the executor's figures are renewed each second
page = web.get(server.metrics_url).text
lines = [line for line in page.splitlines() if re.match(r"nv_(trt_)?llm_(?!.*_bucket)", line)]
print(*[re.sub(r',?(model|version)="\w+",?', "", line) for line in lines], sep="\n")

# %% [markdown]
# No request runs or waits, and every block is free, even those kept for reuse (`reused` counts since the start). The
# two histograms give the mean length of prompts and answers, as sum over count.
#
# Watch pending and rejected requests for small models, waiting requests and free KV blocks for the LLM, and the time
# to first token for everything.

# %% [markdown]
# ## 7 Load, unload, update
#
# In `--model-control-mode=explicit` the server loads what it is told to. (`none` loads all once; `poll` watches the
# folder, and may catch a half-written model.) Unload one, then ask it:

# %% tags=["nbval-check-output"]
client.unload_model("minilm_two", headers=server.admin_headers)
while client.is_model_ready("minilm_two"):  # the call returns before the model is gone
    time.sleep(0.05)
try:
    ask("minilm_two", "a fox")
except InferenceServerException as error:
    print(error.message())

# %% [markdown]
# ### A new version
#
# A model folder holds numbered versions; by default the highest is served. To update, put the new folder beside the
# old one and load again. Four clients ask meanwhile.
#
# **Predict:** do none of their requests fail, a few between the two versions, or all while it loads?

# %%
body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["a red fox"]}]}


def keep_asking(until):
    found, last = [], False
    while not last:
        last = until.is_set()  # so that one request is sent after it
        answer = web.post("/v2/models/minilm/infer", json=body)
        found.append((answer.status_code, answer.json().get("model_version")))
    return found


# %%
if (repository / "minilm" / "2").exists():  # back to version 1, if you run this cell again
    shutil.rmtree(repository / "minilm" / "2")
    client.load_model("minilm", headers=server.admin_headers)
with traffic.meanwhile(keep_asking, threads=4) as clients:
    shutil.copytree(repository / "minilm" / "1", repository / "minilm" / "2")
    client.load_model("minilm", headers=server.admin_headers)
seen = Counter(answer for each in clients for answer in each.result())
print({f"status {status}, version {version}": count for (status, version), count in sorted(seen.items())})
assert {status for status, _ in seen} == {200} and seen[200, "2"] > 0


# %% [markdown]
# No request failed. Triton loads the new version, sends new requests to it, lets the old one finish, and unloads it
# last. For a moment **both are in memory**. An LLM that fills its GPU cannot be updated this way: start a second server
# and move the load balancer. (A `version_policy` keeps several versions; a client names one at
# `models/minilm/versions/1`.)

# %% [markdown]
# ## Recap
#
# - `inference_count` over `execution_count` is the mean batch.
# - `dynamic_batching { }` waits for nobody. A queue delay costs a lone request all of it.
# - Instances cost memory, and help only where something is idle. An LLM wants one, with a large batch.
# - In-flight batching fills a slot at the next token; a static batch waits for its longest answer.
# - When KV blocks run out, requests wait; `max_utilization` starts more and preempts some.
# - An equal beginning is read once. Put what is shared first.
# - Triton's metrics miss the LLM's queue and generation: use `return_perf_metrics` and `nv_trt_llm_*`.
# - Loading again swaps versions without a failed request, if both fit.

# %% [markdown]
# ## Break it
#
# Limit the queue of `minilm_batch` to two requests, and send the burst.
#
# **Predict:** do the others wait, or are they refused at once?

# %%
def ask_or_fail(model, text):
    try:
        return f"answered: vector of {ask(model, text).size}"
    except InferenceServerException as error:
        return re.sub(r"\d+ inference", "N inference", error.message())


write_minilm("minilm_batch", "dynamic_batching { default_queue_policy { max_queue_size: 2 } }\n")
client.load_model("minilm_batch", headers=server.admin_headers)
_, outcomes = traffic.burst(ask_or_fail, "minilm_batch", burst_size)
for outcome, count in sorted(Counter(outcomes).items()):
    print(count, "×", outcome)

# %% [markdown]
# The others are refused at once, so a client can go elsewhere or try later. Count them in
# `nv_inference_request_failure{reason="REJECTED"}`.
#
# The LLM's `max_queue_size` limits both of its queues. Running requests do not count.
#
# Try more: a delay of 20 ms for a burst of 3; `slots = 8` in section 4; the question *before* the rules in the shared
# prefix.
#
# More to repair: [labs/incidents](../labs/incidents/README.md) has eight broken deployments.

# %%
server.stop()
client.close()
web.close()
speedups = {"inflight_speedup": ends[1] / ends[0], "inflight_steps": more}
speedups = {name: round(value, 2) for name, value in speedups.items()}
speedups["prefix_speedup"] = round(firsts[0] / np.mean(firsts[1:3]), 1)
counts = {"mean_batch": round(rows["minilm_batch"][0]["mean batch"], 1)}
counts["preempted"] = ran["full", bold].counts["preempted"]
notebook.record(executor=inflight.device, **speedups, **counts)
