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
# # 11 · Benchmarking
#
# You write a load generator, measure your deployment as its users feel it, meet seven mistakes that spoil such figures,
# and write the commands of two tools.
#
# After this notebook you can
#
# - compute the time to first token, the inter-token latency and the throughput of a request and of a run
# - choose between a closed and an open loop, and say what each hides
# - find the rate at which a deployment stops keeping its limits, and say how sure you are
# - turn tokens per second into a price, and power into energy per token
# - write the command lines of perf_analyzer and AIPerf
#
# **Time:** 45 minutes · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# read: 12 min, do: 33 min
#
# Previous: [10 · Speculation](10_speculative_decoding.ipynb) · Next: [12 · LLM API](12_llm_api.ipynb)

# %%
import asyncio
import json
import math
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import psutil
import tritonclient.grpc.aio as grpcaio
from tokenizers import Tokenizer

from plots import load as figures
from servinglab import loadtest, notebook
from servinglab.checks import check
from servinglab.client import inputs
from servinglab.explore import explore
from servinglab.figures.style import show
from servinglab.openai_frontend import OpenAIFrontend
from servinglab.root import find_root
from servinglab.serving import serve

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
precision: str = "fp32"  # weights of the model: "fp32" or "int4"
batch: int = 4  # requests that the server computes together
max_tokens: int = 12  # length of each answer, in tokens; at least 3
words: int = 24  # length of each prompt, in words
requests: int = 24  # requests of a load at the capacity; slower ones last as long; at least 4
slack: float = 3.0  # a limit is this many times what a single user gets
price: float = 1.0  # of the machine, an hour, in your currency
aiperf: bool = False  # install and run AIPerf as well: 1.2 GB, and minutes
seed: int = 0  # of the prompts and of the arrivals

# %%
lane = notebook.begin("11", lane, seed=seed, weights=precision, batch=batch)
assert requests >= 4 and max_tokens >= 3, "requests must be at least 4, max_tokens at least 3"

# %% [markdown]
# ## 1 One request, taken apart
#
# Set the server up as it will be used: here it computes `batch` requests at a time.

# %%
server = serve(precision=precision, max_batch_size=batch)
client = grpcaio.InferenceServerClient(server.grpc_url)

# %% [markdown]
# Benchmark prompts are words in random order: only their length changes the speed. Each is new; section 2 shows why.

# %%
vocabulary = "river stone lamp window garden letter winter engine bridge apple music silver road captain paper cloud "
vocabulary += "fox harbour clock bread island mirror forest teacher copper valley storm ladder candle ocean market"
rng = np.random.default_rng(seed)


def new_prompts(number, length=words):
    return [" ".join(rng.choice(vocabulary.split(), length)) for _ in range(number)]


# %% [markdown]
# The model's **tokenizer** cuts text into tokens, and so counts them. The model `preprocessing` knows its folder.

# %%
config = await client.get_model_config("preprocessing")
folder = config.config.parameters["tokenizer_dir"].string_value
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")


def count(text):
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


# %% [markdown]
# `ask` is the asyncio client of notebook 05: one request a stream, to the ensemble (notebook 03). It yields each
# response's text and the seconds since sending. `min_tokens` holds the end token back, so every answer has `max_tokens`
# tokens.

# %%
clock = time.perf_counter
fixed = {"max_tokens": max_tokens, "min_tokens": max_tokens, "exclude_input_in_output": True, "stream": True}


async def ask(prompt, **more):
    ended = asyncio.Event()

    async def requests():
        yield {"model_name": "ensemble", "inputs": inputs(text_input=prompt, **{**fixed, **more})}
        await ended.wait()

    sent = clock()
    async for result, error in client.stream_infer(requests(), stream_timeout=120):
        if error is not None:
            raise error
        if result.get_response().parameters["triton_final_response"].bool_param:
            ended.set()
        yield clock() - sent, result.as_numpy("text_output")[0].decode()


# %% [markdown]
# Look at the very first request to this server; this cell can show it only once.

# %%
log = [(seconds, text) async for seconds, text in ask(new_prompts(1)[0]) if text]
title = f"One request: the first text after {1000 * log[0][0]:.0f} ms, the last after {1000 * log[-1][0]:.0f} ms"
show(figures.request(log, lane=lane), title, f"{len(log)} responses with text, one mark each")

# %% [markdown]
# Three numbers describe it, as [AIPerf](https://docs.nvidia.com/aiperf/reference/ai-perf-metrics-reference) defines
# them:
#
# | name | what it is | who feels it |
# |---|---|---|
# | TTFT, time to first token | from sending¹ to the first response with text | a user waiting for a beginning |
# | ITL, inter-token latency | (last − first response) / (tokens − 1) | a user reading along |
# | end-to-end latency | from sending¹ to the last response with text | a program |
#
# ¹ In an open loop (section 4): from when the request was due.
#
# A response is not a token: it can be empty (half a character) or hold several.
#
# **Predict:** you ask without streaming, for as many tokens. How many responses come, and how many tokens?

# %% tags=["nbval-check-output"]
whole = [text async for _, text in ask(new_prompts(1)[0], stream=False) if text]
tokens = count("".join(whole))
print(len(whole), "response with text;", "as many tokens as asked for:", abs(tokens - max_tokens) <= 1)


# %% [markdown]
# One response came, with all the tokens. **Mistake 1: responses counted as tokens.** That would report one token here;
# with speculative decoding the error is smaller, and harder to see. So count the tokens of the whole text, as AIPerf
# does. (A text can be cut in several ways, so the count can be off by one.)
#
# **Exercise 11.1** (●●○, 8 minutes) A request was `sent` at a time; its responses came at `arrivals`, and response `i`
# holds `tokens[i]` tokens. A response with 0 tokens is none. All times are in seconds on one clock. Return three
# numbers: TTFT, ITL, and this user's tokens per second: all tokens, divided by the time from sending to the last
# response.
#
# <details><summary>Hint 1</summary>
#
# Which responses does the user see? And how many waits lie between a number of tokens?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Does an empty response end a wait? Does the user's rate begin at the first token, or when the request was sent?
#
# </details>

# %% tags=["exercise:11.1"]
def measure(sent, arrivals, tokens):
    ...  # your code


# %% tags=["check:11.1", "nbval-check-output"]
check("11.1", measure)


# %% [markdown]
# <details><summary>Solution 11.1</summary>
#
# ```python
# def measure(sent, arrivals, tokens):
#     arrived = [time for time, count in zip(arrivals, tokens, strict=True) if count]
#     first, last = arrived[0], arrived[-1]
#     return first - sent, (last - first) / (sum(tokens) - 1), sum(tokens) / (last - sent)
# ```
#
# </details>

# %% [markdown]
# ## 2 Three more mistakes before you measure
#
# **Mistake 2: no warm-up.** The request above was the server's first: memory was touched for the first time, threads
# and connections were made. A load generator shows how much that costs. `measured` sends one request when it is due and
# keeps its times; `Trace` computes what the table defines.

# %%
async def measured(prompt, due, began, **more):
    await asyncio.sleep(max(0.0, began + due - clock()))
    sent = clock() - began
    answer = [(sent + seconds, text) async for seconds, text in ask(prompt, **more) if text]
    times, texts = zip(*answer, strict=True)
    return loadtest.Trace(due, sent, times, count("".join(texts)))


# %% [markdown]
# In a **closed loop** each of a fixed number of users sends the next prompt as soon as the last one is answered.

# %%
async def closed_loop(prompts, users, **more):
    began, left, traces = clock(), list(prompts), []

    async def user():
        while left:
            traces.append(await measured(left.pop(0), clock() - began, began, **more))

    await asyncio.gather(*(user() for _ in range(users)))
    return loadtest.Run(tuple(traces), clock() - began, {"users": users})


# %% [markdown]
# **Predict:** by what factor was the first TTFT longer than later ones?

# %%
first = log[0][0]
warm = await closed_loop(new_prompts(5), users=1)
later = loadtest.percentile(warm.values("ttft"), 50)
print(f"first request {1000 * first:.0f} ms, median of the next five {1000 * later:.0f} ms: {first / later:.1f} ×")

# %% [markdown]
# By the factor printed. Leave the first requests out of every figure.
#
# **Mistake 3: the same prompt again and again.** The server keeps the KV cache of prompts it has read, and reads only
# what is new (notebook 04). Send the same long prompt four times, then four different ones; the first of each is left
# out.
#
# **Predict:** how do the two TTFTs compare?

# %%
prompt = new_prompts(1, 120)[0]
same = await closed_loop([prompt] * 4, users=1, max_tokens=2, min_tokens=2)
new = await closed_loop(new_prompts(4, 120), users=1, max_tokens=2, min_tokens=2)
again, fresh = (loadtest.percentile(run.values("ttft")[1:], 50) for run in (same, new))
print(f"TTFT: same prompt {1000 * again:.0f} ms, new prompts {1000 * fresh:.0f} ms")

# %% [markdown]
# The first is smaller: it measures the cache. Only *whole* blocks are reused, of 64 tokens here: one for each repeat.
# Repeat a beginning only if your users share one, such as a system prompt.
#
# **Mistake 4: other work on the server's cores.** The client is the first suspect: it takes processor time from the
# server, and if it comes too late it reads times that are too long. How much does it take here?

# %%
me, programs = [psutil.Process()], []
if server.pid:
    programs = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]


def cpu_seconds(processes):
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


before = cpu_seconds(me), cpu_seconds(programs)
await closed_loop(new_prompts(2 * batch), users=batch)
used = cpu_seconds(me) - before[0], cpu_seconds(programs) - before[1]
client_share = used[0] / max(sum(used), 1e-9)
print(f"processor time: client {used[0]:.2f} s, server {used[1]:.2f} s; the client took {client_share:.0%}")

# %% [markdown]
# A few per cent do no harm. A fast model sends too many responses for one Python process: run several, or use another
# machine.
#
# ## 3 A closed loop: latency against throughput
#
# **Throughput** counts the tokens per second of all users together. They share each step of the model.
#
# **Predict:** twice as many users: does throughput double? What becomes of TTFT beyond the `batch` that the server
# computes together?

# %%
sweep = sorted({*(2**n for n in range(batch.bit_length())), batch, 2 * batch})
closed = {n: await closed_loop(new_prompts(max(requests // 3, 2 * n)), users=n) for n in sweep}

# %% [markdown]
# A good point lies right and low. The bars are 95 % intervals of the medians (section 5).

# %%
gain = closed[batch].tokens_per_second / closed[1].tokens_per_second
beyond = closed[sweep[-1]].tokens_per_second / closed[batch].tokens_per_second
title = f"{batch} users get {gain:.1f} times the tokens/s of one; {sweep[-1]} get {beyond:.1f} times that"
summary = ", ".join(f"{n} users {run.tokens_per_second:.0f} tokens/s" for n, run in closed.items())
show(figures.curves(closed, lane=lane), title, summary)


# %% [markdown]
# Throughput did not double where the ITL, on the right, grew: there a step with twice the rows took longer. On a GPU,
# where most of a step is reading the weights, it can come close.
#
# Beyond `batch` users requests queue, and TTFT grows by the wait.

# %% [markdown]
# ## 4 An open loop: arrivals that wait for nobody
#
# Real users do not wait for each other. In an **open loop** requests arrive at a rate, however many are on their way.
# If arrivals are independent, the gaps between them are exponential: a Poisson process.
#
# ![Two timelines around one stall: two users who wait for their answers, and arrivals at a rate](pictures/11_loops.svg)
#
# The rates below are shares of the capacity, the most requests per second answered in the closed loop. The gaps are
# scaled to give exactly that rate.

# %%
async def open_loop(prompts, rate, rng):
    gaps = rng.exponential(size=len(prompts) - 1)
    due = np.append(0.0, np.cumsum(gaps) / gaps.sum() * (len(prompts) - 1) / rate)
    began = clock()
    sent = (measured(prompt, moment, began) for prompt, moment in zip(prompts, due, strict=True))
    traces = await asyncio.gather(*sent)
    return loadtest.Run(tuple(traces), max(len(prompts) / rate, clock() - began), {"rate": rate})


# %% [markdown]
# **Predict:** at three times that capacity, what does TTFT look like over time?

# %%
capacity = max(run.requests_per_second for run in closed.values())
shares = (0.3, 0.55, 0.8, 3.0)
opened = {}
for number, share in enumerate(shares):
    prompts = new_prompts(max(4, round(requests * min(1, share))))  # slower loads last as long
    opened[share] = await open_loop(prompts, share * capacity, np.random.default_rng(seed + number))

# %% [markdown]
# The table shows the rate really sent, too: a late load generator sends less. **p95** is the value that 95 % of the
# requests did not exceed.

# %%
print("capacity   asked    sent  answered   TTFT p95")
for share, run in opened.items():
    rates = (run.load["rate"], run.sent_per_second, run.requests_per_second)
    p95 = loadtest.percentile(run.values("ttft"), 95)
    print(f"{share:8.0%}", *(f"{rate:5.2f}/s" for rate in rates), f" {1000 * p95:8.0f} ms")

# %% [markdown]
# Each request, when it was due:

# %%
early, late = (np.median(half) for half in np.array_split(opened[3.0].values("ttft"), 2))
title = f"Median TTFT at 300 %: first half {1000 * early:.0f} ms, second half {1000 * late:.0f} ms"
longest = ", ".join(f"{share:.0%} {1000 * max(run.values('ttft')):.0f} ms" for share, run in opened.items())
panels = {f"{share:.0%} of capacity" if share == shares[0] else f"{share:.0%}": run for share, run in opened.items()}
show(figures.open_loops(panels, lane=lane), title, f"the longest TTFT at each share of the capacity: {longest}")

# %% [markdown]
# At 300 % TTFT climbs: above the capacity a queue grows for as long as you measure, and no number describes that.
# Below, waits come and go.
#
# A closed loop never shows it: its users stop asking while they wait. It answers "what do n users get?", not "what
# happens at n requests a second?".

# %% [markdown]
# The same error hides in tools that *try* to hold a rate with too few connections. A sender with one connection wants
# to send every 20 ms. The server takes 10 ms, but once it stalls for a second.
#
# **Predict:** how many of the 500 users feel that stall?

# %% tags=["nbval-check-output"]
due = np.arange(500) * 0.020
busy = np.full(500, 0.010)
busy[100] = 1.0
print("p50", np.percentile(busy, 50), "s, p95", np.percentile(busy, 95), "s, slowest", busy.max(), "s")


# %% [markdown]
# By the sender's clock, 499 of 500 requests were fast. But many were sent late, and their users waited. **Mistake 5:
# coordinated omission**, named by [Gil
# Tene](https://chariotsolutions.com/screencast/philly-ete-21-understanding-latency-pitfalls-lessons-tools-gil-tene):
# the sender fell silent with the server. So count from when a request was *due*, as `Trace` does.
#
# **Exercise 11.2** (●●○, 8 minutes) A sender has one connection. Request i is due at `due[i]` and keeps the connection
# busy for `busy[i]` seconds. It is sent when it is due, or when the request before it is done, if that is later. Return
# for each request the seconds from when it was due to when it is done.
#
# <details><summary>Hint 1</summary>
#
# A queue hands its delay on. What must you remember from one request to the next?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# From which of its three times, due, sent and done, does a user count? And is the next request sent when it is due?
#
# </details>

# %% tags=["exercise:11.2"]
def felt(due, busy):
    ...  # your code


# %% tags=["check:11.2", "nbval-check-output"]
check("11.2", felt)

# %% [markdown]
# <details><summary>Solution 11.2</summary>
#
# ```python
# def felt(due, busy):
#     done, waits = 0.0, []
#     for moment, seconds in zip(due, busy, strict=True):
#         done = max(moment, done) + seconds
#         waits.append(done - moment)
#     return waits
# ```
#
# </details>

# %% [markdown]
# The stall by both clocks:

# %%
waits = loadtest.one_connection(due, busy)
p95 = [np.percentile(each, 95) for each in (busy, waits)]
title = f"p95: {p95[0]:.2f} s by the sender's clock, {p95[1]:.2f} s for the users"
show(figures.stall(due, busy, waits, lane=lane), title, f"{np.sum(waits > 0.0101)} of 500 users felt the stall")


# %% [markdown]
# Ninety-nine felt it. Ten of every twenty milliseconds were free, so the queue shrank by 10 ms with each request.
#
# Be the load. In JupyterLab the slider sets the number of users of a closed loop, over HTTP this time.
#
# **Predict:** from how many users on does latency grow in proportion to their number?

# %%
def load(axes, users):
    def one(prompt):
        body = {**fixed, "text_input": prompt, "stream": False}
        return httpx.post(url, json=body, timeout=120, trust_env=False).raise_for_status().elapsed.total_seconds()

    with ThreadPoolExecutor(users) as pool:
        seconds = list(pool.map(one, new_prompts(2 * users)))
    axes.bar(range(len(seconds)), seconds)
    axes.set(xlabel="request", ylabel="latency (s)")
    return np.median(seconds)


url = f"{server.http_url}/v2/models/tensorrt_llm_bls/generate"
title = lambda middle: f"{2 * batch} users wait {middle[2] / middle[0]:.1f} times as long as one (medians)"  # noqa: E731
explore(load, title=title, summary="latency of each request", live={"users": range(1, 17)}, users=[1, batch, 2 * batch])

# %% [markdown]
# Beyond `batch`: then some wait for a place.
#
# ## 5 How sure is that?
#
# **Mistake 6: averages.** Latencies often have a long tail: a few wait far longer than the rest, as in the stall of
# section 4.
#
# **Predict:** which share of its 500 users waited less than their mean?

# %% tags=["nbval-check-output"]
print(f"mean {1000 * waits.mean():.0f} ms; {np.mean(waits < waits.mean()):.0%} of the users waited less")
print("p50, p90, p95, p99:", *(f"{1000 * value:.0f} ms" for value in np.percentile(waits, (50, 90, 95, 99))))

# %% [markdown]
# Four in five: the tail lifts the mean to eleven times what most of them felt. Report percentiles.
#
# **Mistake 7: too few requests.** **Predict:** how many do you need to have at least one beyond p99 (one in a hundred),
# with a probability of 95 %?

# %% tags=["nbval-check-output"]
needed = math.ceil(math.log(0.05) / math.log(0.99))
print(needed, "requests: 0.99 to that power is", round(0.99**needed, 3))

# %% [markdown]
# How far off is a percentile of few requests? The **bootstrap** draws from your values, with repetition, as many as
# there are, and computes the percentile again; a thousand times. The middle 95 % of the results are the interval.
# Compare a quarter, a half and all of the requests at 80 % of capacity, picked at random.
#
# **Predict:** which interval is the wider, that of p50 or of p95?

# %%
waits = opened[0.8].values("ttft")
picked = np.random.default_rng(seed).permutation(waits)
for size in sorted({max(2, len(waits) // 4), len(waits) // 2, len(waits)}):
    print(f"{size:3} requests:", end="")
    for percent in (50, 95):
        low, high = loadtest.interval(picked[:size], percent)
        print(f"  p{percent} from {1000 * low:.0f} to {1000 * high:.0f} ms", end="")
    print()

# %% [markdown]
# If that of p95 is narrow, do not believe it: a bootstrap cannot draw what you never saw, and the p95 of few requests
# is nearly their maximum. And requests of one run share a queue, so they are not independent. Repeat the whole run, on
# another day too, and show all results.
#
# ## 6 Goodput: what is fast enough
#
# **Goodput** counts requests per second that kept *every* limit, of TTFT and of ITL. Your users set the limits, say 0.5
# s and 50 ms for a chat. Here they are `slack` times what a single user got.

# %%
limits = tuple(slack * loadtest.percentile(closed[1].values(name), 50) for name in ("ttft", "itl"))
print(f"limits: TTFT {1000 * limits[0]:.0f} ms, ITL {1000 * limits[1]:.0f} ms")

# %% [markdown]
# **Predict:** throughput levels off at the capacity. And goodput?

# %%
good = [run.goodput(*limits) for run in opened.values()]
best = shares[int(np.argmax(good))]
title = f"Of these loads, {best:.0%} of capacity had the highest goodput: {max(good):.2f} requests/s"
title = title if max(good) else "In none of these loads was any request within both limits"
summary = "goodput at each rate: " + ", ".join(f"{value:.2f}/s" for value in good)
show(figures.knee(list(opened.values()), limits, lane=lane), title, summary)


# %% [markdown]
# Goodput rises with the rate while the limits are kept, and falls beyond the point where waits eat them up, although
# throughput still rises. Far above the capacity, in a long run, no answer keeps them.
#
# Where the curve of TTFT turns up is the **knee**. Operate a deployment to the left of it. Four rates only tell between
# which two it lies. So search.
#
# **Exercise 11.3** (●●○, 8 minutes) Find the highest good rate of a deployment. `share(rate)` loads a model in a Triton
# with an open loop of a second and returns which share of its requests took at most 50 ms. At `low` requests a second
# nearly all do, at `high` few. Return a rate whose share, tested, is at least 0.95, and that is no more than a fifth
# below a rate that failed its test. Load tests cost: you have eight.
#
# <details><summary>Hint 1</summary>
#
# One rate passed its test, a higher one failed. What do you know about rates below the first, and above the second?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Which end of the gap does a test in its middle replace? When is the gap small enough, and which end is an answer?
#
# </details>

# %% tags=["exercise:11.3"]
def highest(share, low, high):
    ...  # your code


# %% tags=["check:11.3", "nbval-check-output", "varies"]
check("11.3", highest)

# %% [markdown]
# <details><summary>Solution 11.3</summary>
#
# ```python
# def highest(share, low, high):
#     while high > 1.2 * low:
#         middle = (low + high) / 2
#         if share(middle) >= 0.95:
#             low = middle
#         else:
#             high = middle
#     return low
# ```
#
# </details>

# %% [markdown]
# ## 7 What a million tokens cost
#
# A machine costs `price` an hour, busy or not; divide by throughput for the cost per token. **Predict:** which load of
# section 3 is the cheapest, and would you want to use it?

# %%
for n, run in closed.items():
    cost = price / (3600 * run.tokens_per_second) * 1e6
    print(f"{n:2} users: {cost:7.2f} per million output tokens, {run.kept(*limits).mean():4.0%} within the limits")

# %% [markdown]
# The cheapest load is the one with the highest throughput, whatever its users feel. You want it only if enough requests
# keep the limits (the last column).
#
# Only good requests are worth paying for, so divide by goodput times tokens. And a machine that is idle half of the day
# costs twice as much per token.

# %%
good_cost = price / (3600 * max(good) * max_tokens) * 1e6 if max(good) else math.inf
print(f"within the limits: {good_cost:.2f} per million output tokens; busy half of the day: {2 * good_cost:.2f}")

# %% [markdown]
# Energy: `nvidia-smi` reads a GPU's power.

# %%
meter = ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits", "--loop-ms=500"]
energy = "no GPU here whose power nvidia-smi reads"
if shutil.which("nvidia-smi"):
    with subprocess.Popen(meter, stdout=subprocess.PIPE, text=True) as reading:
        metered = await closed_loop(new_prompts(4 * batch), users=batch)
        reading.terminate()
        watts = np.mean([float(line) for line in reading.stdout])
    energy = f"{watts / metered.tokens_per_second:.3f} J per token, {watts:.0f} W"
print(energy)

# %% [markdown]
# ## 8 The tools that people use
#
# [perf_analyzer](https://github.com/triton-inference-server/perf_analyzer), in NVIDIA's SDK container, is Triton's load
# generator. It sends tensors and knows nothing about tokens. Streaming needs `--streaming`. Give it the inputs in a
# file: without one it sends random values for *every* input, `stop` and `seed` as well.

# %%
rows = [{"text_input": [text], "max_tokens": [max_tokens], "stream": [True]} for text in new_prompts(2)]
print(json.dumps({"data": rows}, indent=1)[:160], "…  # data.json\n")
print(loadtest.as_shell(loadtest.perf_analyzer("data.json", concurrency=(1, sweep[-1]))))
print(loadtest.as_shell(loadtest.perf_analyzer("data.json", rates=(1, 9, 2))))

# %% [markdown]
# The first is a closed loop, the second an open one. **GenAI-Perf** added tokens and is [being phased
# out](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/perf_analyzer/genai-perf/README.html)
# for **AIPerf**, which speaks OpenAI's protocol only.
#
# <details><summary>A server for that protocol, and a tokenizer for AIPerf</summary>
#
# NVIDIA's container has a front end in `/opt/tritonserver/python/openai`: `python3 openai_frontend/main.py
# --model-repository … --tokenizer …`. The embedded lane's server has none, so the course has a small one, which sits
# before Triton and renders the chat template.
#
# Give AIPerf's `--tokenizer` a local folder, here `SmolLM2`; a name is looked up on the network.
#
# </details>
#
# One answer of such a front end, and AIPerf's command against it.

# %%
frontend = OpenAIFrontend(server.grpc_url, folder).start()
question = {"messages": [{"role": "user", "content": "Name a fruit."}], "max_completion_tokens": max_tokens}
answer = httpx.post(f"{frontend.url}/v1/chat/completions", json=question, timeout=120, trust_env=False).json()
print(answer["choices"][0]["message"]["content"], answer["usage"], sep="\n")
target = {"concurrency": batch, "requests": requests, "warmup": batch, "input_tokens": 64, "output_tokens": max_tokens}
print(loadtest.as_shell(loadtest.aiperf("SmolLM2", url="http://127.0.0.1:9000", seed=seed, **target)))

# %% [markdown]
# Without `min_tokens` an answer ends when the model likes, and no two runs do the same work.
#
# AIPerf needs 1.2 GB, so it runs only with `aiperf = True`. Otherwise you see kept runs of `benchmarks/aiperf_run.py`.
# Each is a pair: AIPerf, and a closed loop of as many requests through the same front end. Compare only within a pair.

# %%
runs = json.loads((find_root() / "data" / "results" / "cpu" / "aiperf.json").read_text())
if aiperf:
    program = [sys.executable, find_root() / "benchmarks" / "aiperf_run.py", "--install", "--json"]
    program += ["--precision", precision, "--concurrency", str(batch), "--requests", str(requests)]
    done = subprocess.run([*program, "--output-tokens", str(max_tokens)], check=True, capture_output=True)
    runs = [json.loads(done.stdout)]

# %% [markdown]
# **Predict:** two programs share nothing but the definitions: how close are they? Two checks: tokens an answer, and
# requests on their way (rate × latency).

# %%
for run in runs:
    print(run["date"], run["device"], run["precision"], f"load average before: {run.get('load_average')}", sep=" · ")
    theirs, ours = {name: value["avg"] for name, value in run["aiperf"].items()}, run["closed_loop"]
    for side in (theirs, ours):
        side["tokens an answer"] = side["tokens_per_second"] / side["requests_per_second"]
        latency = side["ttft_ms"] + side["itl_ms"] * (side["tokens an answer"] - 1)
        side["on their way"] = side["requests_per_second"] * latency / 1000
    for name in ("ttft_ms", "itl_ms", "tokens_per_second", "tokens an answer", "on their way"):
        one, other = theirs[name], ours[name]
        print(f"  {name:18} AIPerf {one:7.1f}, closed loop {other:7.1f}: {one / other:.2f} ×")

# %% [markdown]
# In the kept runs they are not: 0.71 × the tokens/s in both pairs, hardly by chance. Yet the work was the same: prompts
# of about 64 tokens, 24 tokens an answer, four requests on their way. So it took longer. Suspect mistake 4: AIPerf's
# processes share the server's two cores. A client on a machine of its own would tell.

# %% [markdown]
# ## Recap
#
# - TTFT is felt by a waiting user and counts from when a request was due; ITL is felt by a reader.
# - The seven mistakes: (1) responses counted as tokens, (2) no warm-up, (3) the same prompt again, (4) other work on
#   the server's cores, (5) coordinated omission, (6) averages, (7) too few requests.
# - A closed loop gives latency against throughput; its queue is never longer than its users.
# - An open loop shows the knee. Above the capacity, latency says only how long you measured.
# - Report percentiles with intervals, and repeat whole runs.
# - Goodput counts what is fast enough. Cost per token is price over throughput.

# %% [markdown]
# ## Break it
#
# Mistake 4, on purpose: for each of the server's cores, start one process that does nothing but loop. **Predict:** what
# happens to tokens/s and to p95 of TTFT?

# %%
alone = await closed_loop(new_prompts(2 * batch), users=batch)
burn = [sys.executable, "-c", "while True: pass"]
neighbours = [subprocess.Popen(burn) for _ in range(len(os.sched_getaffinity(0)))]
try:
    disturbed = await closed_loop(new_prompts(2 * batch), users=batch)
finally:
    for neighbour in neighbours:
        neighbour.kill()
        neighbour.wait()

# %%
for name, run in (("alone", alone), ("disturbed", disturbed)):
    p95 = loadtest.percentile(run.values("ttft"), 95)
    print(f"{name:10} {run.tokens_per_second:6.1f} tokens/s, p95 of TTFT {1000 * p95:5.0f} ms")

# %% [markdown]
# Tokens/s fell and p95 rose, and nothing in the result says why. So write down what else ran, and measure again. Try
# more: `slack = 1.5`, `batch = 2`, or prompts of 200 `words`: which figure moves most?
#
# Then the capstone, [labs/capstone](../labs/capstone/README.md): tune a deployment until its p95 keeps a limit, at the
# lowest cost.

# %%
frontend.stop()
await client.close()
server.stop()
measured_values = {"tokens_per_second": {str(n): round(run.tokens_per_second, 1) for n, run in closed.items()}}
measured_values |= {"ttft_p50_ms": {str(n): round(1e3 * np.median(run.values("ttft")), 1) for n, run in closed.items()}}
measured_values |= {"capacity_requests_per_second": round(capacity, 2), "best_goodput": round(max(good), 2)}
notebook.record(client_share=round(client_share, 3), energy=energy, **measured_values)
