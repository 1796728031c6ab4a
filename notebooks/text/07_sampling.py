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
# # 07 · Sampling: what each setting does to one distribution
#
# You follow one next-token distribution through every setting of a request, and end with a table that says which
# setting to choose, each line with a measurement of your own behind it.
#
# After this notebook you can
#
# - calculate top-k and top-p by hand, in the right order, and say where a sum must become 1 again
# - prove with a test that the server samples from the distribution you calculated
# - explain why two requests give the same text, and how to get different ones
# - use penalties, `min_tokens` and stop words without breaking an answer
# - choose a strategy for a task by measuring, with error bars
#
# **Time:** 45 minutes (last run: 138 s) · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# Previous: [06 · Temperature](06_temperature.ipynb) · Next: [08 · Log probabilities](08_log_probs.ipynb)

# %%
import itertools
import re
import tempfile
from pathlib import Path

import numpy as np
from IPython.display import Markdown, display
from tokenizers import Tokenizer

from servinglab import assets, decoding
from servinglab.checks import check
from servinglab.errors import CourseError
from servinglab.explore import explore
from servinglab.figures import sampling as figures
from servinglab.figures import style
from servinglab.notebook import begin, record, resolve_lane
from servinglab.old_client import ClientError, TritonClient
from servinglab.repository import build_default
from servinglab.server import TritonServer

begin()

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
precision: str = "fp32"  # weights of the default model: "fp32" or "int4"
prompt: str = "She opened the door and saw a"  # its next token is looked at from all sides
max_tokens: int = 12  # length of the sampled texts, in tokens, at least 2
samples: int = 160  # served tokens for the test against exact probabilities
texts: int = 10  # sampled texts for each setting of the grid, at least 2
seed: int = 1  # seed of every random choice

# %% [markdown]
# ## 1 Five tokens on paper
#
# A model has five tokens and gives them these probabilities:
#
# | token | a | b | c | d | e |
# |---|---|---|---|---|---|
# | probability | 0.40 | 0.30 | 0.15 | 0.10 | 0.05 |
#
# - **Greedy** takes the likeliest token, always `a`.
# - **Pure sampling** draws: `a` four times in ten, `e` once in twenty.
# - **Top-k** keeps the k likeliest tokens and draws among those.
# - **Top-p** keeps the likeliest tokens until their sum reaches p, and draws among those.
#
# What is left after a cut no longer sums to 1. Divide it by its sum: this is to **renormalise**. With k = 3 the tokens
# a, b, c are left, 0.40 + 0.30 + 0.15 = 0.85, and `a` gets 0.40 / 0.85 = 0.471.
#
# **Predict:** you ask for top-k 3 *and* top-p 0.8. Top-p comes second. Does it see 0.40, 0.30, 0.15 or 0.471, 0.353,
# 0.176? How many tokens are left in each case?

# %% tags=["nbval-check-output"]
paper = np.array([0.40, 0.30, 0.15, 0.10, 0.05])
three = np.where(paper >= 0.15, paper, 0)
print("after top-k 3     ", (three / three.sum()).round(3))
print("sums, as they were", three.cumsum().round(3))
print("sums, renormalised", (three / three.sum()).cumsum().round(3))
print("both              ", decoding.distribution(np.log(paper), top_k=3, top_p=0.8).round(3))


# %% [markdown]
# With the numbers as they were, the sum reaches 0.8 at the third token: 0.85. Renormalised it does at the second:
# 0.824. So a forgotten division does not only give numbers that are too small, it keeps another set of tokens.
# TensorRT-LLM, and our server, go in this order: **temperature, penalties, top-k, renormalise, top-p**, then the draw.
# Note also that the token that *crosses* p stays. Without it a p of 0.3 would leave nothing at all.
#
# The draw differs. Our server and the library transformers keep the crossing token whole, and renormalise. NVIDIA's
# kernels
# ([for top-k](https://github.com/NVIDIA/TensorRT-LLM/blob/v1.0.0/cpp/tensorrt_llm/kernels/samplingTopKKernels.cu), and
# those for top-p) draw a number between 0 and p, add up from the likeliest token on, and take the token at which the
# sum reaches it. So the same tokens survive, but the crossing one keeps only the part of its probability that is needed
# to reach p.
#
# **Predict:** which of the two tokens gains by that? By much?

# %% tags=["nbval-check-output"]
def drawn_by_nvidia(p, top_p):
    """What NVIDIA's kernels draw with. p: probabilities after top-k, the likeliest first."""
    return np.diff(np.minimum(p.cumsum(), top_p), prepend=0) / top_p


print("both, by NVIDIA   ", drawn_by_nvidia(three / three.sum(), 0.8).round(3))

# %% [markdown]
# ## 2 A server, and one distribution
#
# The same questions again, for a model with 49,152 tokens. `normalize_log_probs` makes no difference to our server. It
# makes NVIDIA's report log probabilities over the whole vocabulary, as section 6 and notebook 08 calculate them. The
# first lines refuse parameters with which section 8 has nothing to measure.

# %%
if min(texts, max_tokens) < 2 or samples < 1:
    raise CourseError("texts and max_tokens must be at least 2, for pairs of them are compared, and samples at least 1")
lane = resolve_lane(lane)
scratch = tempfile.TemporaryDirectory(prefix="servinglab-07-")
options = {"precision": precision, "parameters": {"normalize_log_probs": False}}
server = TritonServer(build_default(Path(scratch.name, "models"), **options)).start()
client = TritonClient(server.grpc_url, server.http_url)
tokenizer = Tokenizer.from_file(str(assets.tokenizer("smollm2") / "tokenizer.json"))


# %% [markdown]
# Three small helpers. `send` puts a request on its way and does not wait, so that many can run at once. `answers` waits
# for it: one chunk for each sequence that was asked for. `logits_after` asks for the model's own numbers, before any
# setting has touched them.

# %%
def send(text, max_tokens=max_tokens, **settings):
    common = {"stream": False, "exclude_input_in_output": True, "deadline": 300}
    return client.stream(text, max_tokens=max_tokens, **common, **settings)


def answers(stream):
    chunks = [chunk for chunk in stream if chunk.outputs]
    return sorted(chunks, key=lambda chunk: int(chunk.outputs.get("sequence_index", np.zeros(1)).item()))


def logits_after(text):
    (chunk,) = answers(send(text, max_tokens=1, return_generation_logits=True))
    return chunk.outputs["generation_logits"].reshape(-1)


# %% [markdown]
# **Predict:** the prompt is `She opened the door and saw a`. How likely is the likeliest token? And how many of the
# 49,152 tokens do you need to cover 90 % of the probability?

# %%
z = logits_after(prompt)
p = decoding.softmax(z)
order = np.argsort(-p)
label = {int(i): repr(tokenizer.decode([i])) for i in order[:12]}
print(f"likeliest: {label[order[0]]} with {p[order[0]]:.1%}")
print(f"90 % need {np.searchsorted(p[order].cumsum(), 0.9) + 1} tokens")
print(f"the tokens behind the 50 likeliest share {p[order[50:]].sum():.1%}")

# %% [markdown]
# A few likely tokens, and a long tail of thousands, each nearly impossible, together not. Sampling strategies differ in
# what they do with this tail.
#
# ## 3 The microscope
#
# One request with all three settings: temperature 1.5, top-k 8, top-p 0.8. Calculate the distribution after each step.
# (`style.use` only sets fonts and colours.)

# %%
style.use()
hot = {"temperature": 1.5, "top_k": 8, "top_p": 0.8}
steps = [
    ("the model", "model", p),
    ("temperature 1.5", "temperature", decoding.distribution(z, temperature=1.5)),
    ("top-k 8", "top_k", decoding.distribution(z, temperature=1.5, top_k=8)),
    ("top-p 0.8", "top_p", decoding.distribution(z, **hot)),
]

# %% [markdown]
# **Predict:** which steps change the *ratio* of two tokens that both survive?

# %%
for name, _, after in steps:
    print(f"{name:16} ratio of the first two tokens: {after[order[0]] / after[order[1]]:.2f}")

# %% [markdown]
# Now look. Bars are the probabilities after the step, outlines those before it, hatched is what the step cut.

# %%
exact = steps[-1][2]
survivors = np.flatnonzero(exact)
tail = steps[1][2][order[8:]].sum()
title = f"A high temperature fills the tail, top-k and top-p cut it off: {len(survivors)} tokens are left"
summary = f"At temperature 1.5 all tokens but 8 hold {tail:.0%}; top-k cuts them, top-p leaves {len(survivors)} tokens."
small_print = style.provenance(lane, weights=precision)
style.finish(figures.microscope(steps, label), title, small_print, summary)


# %% [markdown]
# Only the temperature changes ratios. A cut and the division after it scale all survivors alike.
#
# Top-k keeps a fixed number of tokens. Top-p keeps as many as are needed, so the number depends on what the temperature
# has done before. **Predict:** with p = 0.9, at which temperature are most tokens left: 0.5, 1 or 1.5?

# %%
def nucleus(axes, temperature, top_p):
    before = decoding.distribution(z, temperature)
    after = decoding.distribution(z, temperature, top_p=top_p)
    figures.zoom(axes, dict(itertools.islice(label.items(), 7)), before, after, "top_p", 0.9)


kept = {t: np.count_nonzero(decoding.distribution(z, t, top_p=0.9)) for t in (0.5, 1.0, 1.5)}
title = f"Heat widens the nucleus: top-p 0.9 keeps {kept[0.5]:,}, {kept[1.0]:,} or {kept[1.5]:,} tokens"
summary = f"Tokens that top-p 0.9 keeps at temperature 0.5, 1 and 1.5: {', '.join(f'{n:,}' for n in kept.values())}."
grid = {"top_p": [0.5, 0.9], "temperature": [0.5, 1.0, 1.5]}
explore(nucleus, title=title, small_print=small_print, summary=summary, **grid)


# %% [markdown]
# So a high temperature undoes much of what top-p is for, and top-k sets a limit that heat cannot move. Many services
# use both.
#
# **Exercise 07.1** Write top-k: from logits to probabilities, one for each token, in their old places. `k` 0 is off, as
# in a request; a `k` above the number of tokens changes nothing.

# %% tags=["exercise:07.1"]
def top_k(logits, k):
    return None  # an array of probabilities, as long as logits


# %% tags=["check:07.1", "nbval-check-output"]
check("07.1", top_k)


# %% [markdown]
# **Exercise 07.2** Write top-p: from probabilities to probabilities, again all in their old places. They are those that
# our server draws with, so the crossing token stays whole. `np.argsort` and `np.cumsum` help.

# %% tags=["exercise:07.2"]
def top_p(probabilities, p):
    return None  # an array of probabilities, as long as the first argument


# %% tags=["check:07.2", "nbval-check-output"]
check("07.2", top_p)

# %% [markdown]
# ## 4 Does the server do the same?
#
# You have calculated probabilities. The server draws tokens. `num_return_sequences` asks for many answers at once, each
# drawn with a seed of its own: seed, seed + 1, … This needs ids, for two different tokens can look alike as text. So
# ask `tensorrt_llm` itself, the model inside, where top-k and top-p have longer names.

# %%
prompt_ids = np.array([tokenizer.encode(prompt, add_special_tokens=False).ids], np.int32)


def sequences(length, number, temperature, top_k, top_p, **more):
    """The outputs of `number` sampled continuations of the prompt, each of `length` tokens."""
    values = {"input_ids": prompt_ids, "input_lengths": [[prompt_ids.size]], "request_output_len": [[length]]}
    values |= {"temperature": [[temperature]], "runtime_top_k": [[top_k]], "runtime_top_p": [[top_p]]}
    values |= {"seed": [[seed]], "num_return_sequences": [[number]], "exclude_input_in_output": [[True]], **more}
    return [chunk.outputs for chunk in client.stream_inputs("tensorrt_llm", values, deadline=300) if chunk.outputs]


# %%
drawn = [outputs["output_ids"].item() for outputs in sequences(1, samples, **hot)]
names = [tokenizer.decode([i]) for i in order[:8]]
counts = np.array([drawn.count(int(i)) for i in order[:8]])
print(*(f"{count} {name!r}," for name, count in zip(names, counts, strict=True)), samples - counts.sum(), "others")

# %% [markdown]
# Three hypotheses: the order of section 1, the same without the division between top-k and top-p, and the order of
# section 1 with NVIDIA's draw.
#
# **Predict:** which of them can so few samples tell apart?
#
# The **G-test** measures how far counts lie from probabilities: G = 2 Σ n_i · log(n_i / (n · p_i)), with the natural
# logarithm. Chance alone gives some G, too. How much? Draw from the hypothesis itself, 2000 times, and look: the
# *p-value* is the share of those draws that lie as far off as the server did. A true hypothesis gets below 0.001 once
# in a thousand notebooks.

# %%
eight = order[:8]
after_top_k = steps[2][2][eight]
undivided = np.where(decoding.distribution(z, 1.5, top_p=0.8)[eight] > 0, after_top_k, 0)
hypotheses = {
    "renormalised between top-k and top-p": exact[eight],
    "not renormalised": undivided / undivided.sum(),
    "renormalised, and drawn as NVIDIA does": drawn_by_nvidia(after_top_k, 0.8),
}
rng = np.random.default_rng(seed)


def g_statistic(counts, p):
    n, expected = counts.sum(), np.where(p > 0, p, 1e-300)
    return 2 * np.sum(counts * np.log(np.where(counts > 0, counts, 1) / (n * expected)), where=counts > 0)


def p_value(counts, p):
    by_chance = [g_statistic(draw, p) for draw in rng.multinomial(counts.sum(), p, size=2000)]
    return np.mean(np.array(by_chance) >= g_statistic(counts, p))


# %% [markdown]
# A token that the hypothesis forbids must give an enormous G; that is what the tiny number is for.

# %%
chances = {name: p_value(counts, q / q.sum()) for name, q in hypotheses.items()}
for name, chance in chances.items():
    print(f"{name}: p-value", f"{chance:.4f}" if chance else "below 1/2000")
crossing = np.flatnonzero(exact[eight])[-1]
print(f"{names[crossing]!r} crosses p:", *(f"{q[crossing]:.1%}" for q in hypotheses.values()), "by the three")

# %% [markdown]
# A p-value says how often a *true* hypothesis looks as bad as this. Seven true ones of a hundred get 0.07 or less, so
# such a number is no reason to reject. This page rejects below 0.001.

# %%
verdicts = ["ruled out" if chance < 0.001 else "possible" for chance in chances.values()]
title = f"Renormalised between the two cuts: {verdicts[0]}; not renormalised: {verdicts[1]}"
summary = f"{np.count_nonzero(counts)} different tokens came; renormalised, {len(survivors)} are possible, otherwise "
summary += f"{np.count_nonzero(undivided)}."
small_print = style.provenance(lane, seed, weights=precision)
bars = dict(itertools.islice(hypotheses.items(), 2))
style.finish(figures.served_against_exact(list(label.values())[:8], counts, bars), title, small_print, summary)

# %% [markdown]
# Where the title says "ruled out", the order is no detail of a manual: you can see it in the answers. Where it says
# "possible", both orders keep nearly the same tokens for your prompt. The two ways of drawing lie closer together.
# While both p-values are above 0.001, the samples are too few to choose between them, and that proves neither. But now
# you know what a sampled answer is: a draw from a distribution that you can calculate.
#
# ## 5 Greedy, pure, and the seed that everybody shares
#
# With `top_k` 0 and `top_p` 0, which is what a request without settings has, TensorRT-LLM and our server decode
# **greedily**. To draw from the whole vocabulary you must ask: `top_p=1.0`. (The library transformers is different: as
# soon as it samples, it uses top-k 50.)
#
# **Predict:** how many different texts will three requests with `top_k=50` and no seed give? And three with the seeds
# 1, 2 and 3?

# %% tags=["nbval-check-output", "varies"]
unseeded = [answers(send(prompt, top_k=50))[0].text for _ in range(3)]
at_once = [send(prompt, top_k=50, seed=s) for s in (1, 2, 3)]
seeded = [answers(stream)[0].text for stream in at_once]
several = [chunk.text for chunk in answers(send(prompt, top_k=50, seed=1, num_return_sequences=3))]
print("three requests without a seed:", len(set(unseeded)), "text")
print("seeds 1, 2, 3:", len(set(seeded)), "texts; the same as one request for three:", several == seeded)

# %% [markdown]
# The default seed is a fixed 0, in TensorRT-LLM as here. Users are surprised
# ([TensorRT-LLM#2411](https://github.com/NVIDIA/TensorRT-LLM/issues/2411)), but it is meant so
# ([TensorRT-LLM#1000](https://github.com/NVIDIA/TensorRT-LLM/issues/1000)). Who wants different answers sends a
# different seed with each request. (The last digits of the logits depend on what else the server computes at the
# moment, so that even equal seeds can part: sometimes with int4 weights, with fp32 rarely and in long texts.)
#
# **Predict:** and these two requests, with different seeds and a high temperature, but nothing else?

# %% tags=["nbval-check-output"]
plain = answers(send(prompt))[0].text
warm = [answers(send(prompt, temperature=1.9, seed=s))[0].text for s in (1, 2)]
print("greedy, whatever temperature and seed:", warm == [plain, plain])

# %% [markdown]
# Without `top_k` or `top_p` there is nothing to draw, so temperature and seed have no effect. Now read what the
# strategies write.

# %% tags=["varies"]
settings = {
    "greedy": {},
    "top-k 50": {"top_k": 50},
    "top-p 0.9": {"top_p": 0.9},
    "pure": {"top_p": 1.0},
    "pure, T 1.5": {"top_p": 1.0, "temperature": 1.5},
}
running = {name: send(prompt, 20, seed=seed, **each) for name, each in settings.items()}
for name, stream in running.items():
    print(f"{name:12} {answers(stream)[0].text!r}")

# %% [markdown]
# Pure sampling is honest: it draws from what the model believes. But a text is many draws, and one token from the tail
# leads the rest astray.
#
# **Predict:** if each step had a tail as heavy as the first one, how likely is it that a text of `max_tokens` tokens
# contains at least one token from behind the 50 likeliest?

# %%
behind = p[order[50:]].sum()
print(f"per token {behind:.0%}, per text of {max_tokens} tokens {1 - (1 - behind) ** max_tokens:.1%}")

# %% [markdown]
# ## 6 Penalties
#
# Three settings make tokens less likely that were there before. z is the logit, n how often the token has occurred:
#
# | setting | what happens to a token with n ≥ 1 | off |
# |---|---|---|
# | `repetition_penalty` r | z / r where z is positive, z · r where it is negative | 1 |
# | `presence_penalty` a | z − a, once | 0 |
# | `frequency_penalty` b | z − b · n | 0 |
#
# Why the two cases for r? −2 divided by 2 is −1, and that is *more* likely. Multiplied it is −4.
#
# In TensorRT-LLM, and here, the prompt's tokens count as well. (Since
# [pull request 8127](https://github.com/NVIDIA/TensorRT-LLM/pull/8127) its own API can leave them out of the last two.)
#
# **Predict:** how much of the probability in section 2 does each of the three move, before anything is written?

# %%
seen = tokenizer.encode(prompt, add_special_tokens=False).ids
touched = {
    "repetition 1.3": decoding.repetition_penalty(z, seen, 1.3),
    "presence 1": decoding.presence_frequency_penalty(z, seen, presence=1),
    "frequency 1": decoding.presence_frequency_penalty(z, seen, frequency=1),
}
for name, row in touched.items():
    print(f"{name:15} moves {np.abs(decoding.softmax(row) - p).sum() / 2:.2%} of the probability")

# %% [markdown]
# The microscope on that same distribution, with a fourth setting, `min_tokens`, which section 7 explains: it forbids
# the token that ends an answer. (One occurrence: presence and frequency are the same.)

# %%
end_id = tokenizer.token_to_id("<|im_end|>")
touched["min_tokens 1"] = decoding.min_tokens_mask(z, end_id, generated=0, min_tokens=1)
after = {name: decoding.softmax(row) for name, row in touched.items()}
largest = max(np.abs(q - p).sum() / 2 for q in after.values())
title = f"Penalties and min_tokens move at most {largest:.2%} here: what they touch was unlikely"
panels = [("the model", "model", p), *((name, "penalty", q) for name, q in after.items() if name[0] != "p")]
summary = f"probability moved: {', '.join(f'{name} {np.abs(q - p).sum() / 2:.1g}' for name, q in after.items())}"
fig = figures.microscope(panels, label, previous=p)
style.finish(fig, title, style.provenance(lane, weights=precision), summary)

# %% [markdown]
# A penalty moves only what has occurred, and with the prompt of this page the likely words have not. (With another
# prompt your title may have a large number.) It shows where there is something to repeat, so take a prompt that repeats
# itself. There it can change the very first token, when the model has not repeated anything yet.

# %%
animals = "the cat and the dog and the cat and the"
ids = tokenizer.encode(animals, add_special_tokens=False).ids
z_animals = logits_after(animals)
first = {f"penalty {r}": answers(send(animals, 1, repetition_penalty=r))[0].text for r in (1.0, 1.3)}
first

# %% [markdown]
# **Predict:** `' dog'` occurs once in this prompt, `' cat'` twice (the first word, `'the'`, has no space before it and
# is another token than `' the'`). What will `frequency_penalty=1` do to them that `presence_penalty=1` does not?

# %%
before = decoding.softmax(z_animals)
penalised = {
    "repetition 1.3": decoding.repetition_penalty(z_animals, ids, 1.3),
    "presence 1": decoding.presence_frequency_penalty(z_animals, ids, presence=1),
    "frequency 1": decoding.presence_frequency_penalty(z_animals, ids, frequency=1),
}
likely = {int(i): repr(tokenizer.decode([i])) for i in np.argsort(-before)[:10]}

# %% [markdown]
# The microscope again, now with three alternatives beside each other:

# %%
after = {name: decoding.softmax(row) for name, row in penalised.items()}
dog, cat = (tokenizer.encode(word, add_special_tokens=False).ids[0] for word in (" dog", " cat"))
changed = {name: f"dog {q[dog]:.0%}, cat {q[cat]:.0%}" for name, q in after.items()}
falls = [before[dog] / q[dog] for q in after.values()]
title = f"Repetition 1.3 divides the probability of 'dog' by {falls[0]:.0f}, presence 1 by {falls[1]:.1f}"
panels = [("the model", "model", before), *((name, "penalty", q) for name, q in after.items())]
fig = figures.microscope(panels, likely, previous=before)
style.finish(fig, title, style.provenance(lane, weights=precision), f"model: dog {before[dog]:.0%}; {changed}")

# %% [markdown]
# The frequency penalty weighs each occurrence, so `' cat'` falls twice as far, in its logit. The factor 1.3 looks
# small. What did it do to the logit of `' dog'`?

# %%
high, lower = z_animals[dog], penalised["repetition 1.3"][dog]
sums = np.exp(decoding.logsumexp(z_animals) - decoding.logsumexp(penalised["repetition 1.3"]))
weight = np.exp(high - lower)
print(f"logit {high:.1f} → {lower:.1f}, {high - lower:.2f} nats lower: exp(z) is divided by {weight:.0f},")
print(f"the sum of all exp(z) by {sums:.1f}, and so the probability by {weight / sums:.0f}")

# %% [markdown]
# The sum shrinks, too, since every token that occurred lost. What a factor does depends on where a model's logits
# happen to lie, and the probabilities do not tell you. So copy no penalty from another model.
#
# Does the server agree? `return_log_probs` reports the natural log of the chosen token's probability, after penalties.

# %% tags=["nbval-check-output"]
(chunk,) = answers(send(animals, 1, repetition_penalty=1.3, return_log_probs=True))
served = chunk.outputs["output_log_probs"].item()
expected = decoding.log_softmax(penalised["repetition 1.3"]).max()
print("served and calculated agree:", bool(abs(served - expected) < 1e-3))

# %% [markdown]
# (Until early 2026 NVIDIA's server normalised log probabilities over the tokens that top-k has left unless told not to,
# and said 0 for any greedy token. Section 2 has switched that off; notebook 08 has the details.)
#
# Penalties are there against loops. Here is one, and four cures. The **repetition rate** is the share of 4-grams, runs
# of four tokens, that have occurred before.
#
# **Predict:** which cure is too weak?

# %%
park = "The children played in the park. The children"
cures = {
    "none": {},
    "repetition 1.1": {"repetition_penalty": 1.1},
    "presence 0.5": {"presence_penalty": 0.5},
    "frequency 0.5": {"frequency_penalty": 0.5},
    "top-p 0.9": {"top_p": 0.9, "seed": seed},
}
running = {name: send(park, 40, return_log_probs=True, **cure) for name, cure in cures.items()}
told = {name: answers(stream)[0] for name, stream in running.items()}

# %%
rates = {}
for name, chunk in told.items():
    rates[name] = decoding.repetition_rate(tokenizer.encode(chunk.text, add_special_tokens=False).ids)
    print(f"{name:15} {rates[name]:4.0%}  {chunk.text[:88]!r}")
weak = ", ".join(name for name, rate in rates.items() if name != "none" and rate > 0.1)
print("too weak (more than a tenth repeated):", weak or "none")

# %% [markdown]
# A presence penalty of 0.5 takes half a nat from each token that has occurred, a frequency penalty half a nat for each
# time; a favourite in a loop may lead by more. The factor 1.1 takes about a tenth of a large logit. Sampling breaks a
# loop as well: a loop needs the same choice every time.
#
# **Predict:** does the model find its loop less and less likely as it goes round?

# %%
scores = told["none"].outputs["output_log_probs"].reshape(-1)
print(f"log probability in nats, mean of the first ten tokens {scores[:10].mean():.2f}, of the last ten", end=" ")
print(f"{scores[-10:].mean():.2f}")


# %% [markdown]
# More and more likely: what has come before makes it so. Keep these two numbers in mind for section 8.
#
# **Exercise 07.3** Write the repetition penalty. `prompt` and `generated` are lists of token ids.

# %% tags=["exercise:07.3"]
def penalise(logits, prompt, generated, penalty):
    return None  # an array of logits, as long as logits


# %% tags=["check:07.3", "nbval-check-output"]
check("07.3", penalise)

# %% [markdown]
# ## 7 Where an answer ends
#
# The model ends an answer with a token of its own, here `<|im_end|>`. `min_tokens` sets its logit to −∞ until enough
# tokens exist. A stop word is something else: the *server* ends the answer when the text has it.
#
# **Predict:** three requests, (a) plain, (b) at least 25 tokens, (c) at least 25 tokens and the stop word `.`. How long
# are the answers?

# %% tags=["nbval-check-output"]
chat = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
ends = {"a": {}, "b": {"min_tokens": 25}, "c": {"min_tokens": 25, "stop_words": ["."]}}
ended = {name: answers(send(chat, 30, **each))[0].text for name, each in ends.items()}
lengths = {name: len(tokenizer.encode(text, add_special_tokens=False).ids) for name, text in ended.items()}
print(lengths)

# %% [markdown]
# Read them, and look at the end token where (a) ended.

# %%
for name, text in ended.items():
    print(name, repr(text))
z_end = logits_after(chat + ended["a"])
masked = decoding.min_tokens_mask(z_end, end_id, generated=lengths["a"], min_tokens=25)
print(f"end token: {decoding.softmax(z_end)[end_id]:.0%}, masked {decoding.softmax(masked)[end_id]:.0%}")
print("then likeliest:", repr(tokenizer.decode([decoding.greedy(masked)])))
print(f"end token after the prompt of section 2: {p[end_id]:.0e}, so the mask moved that much there")


# %% [markdown]
# `min_tokens` does not delay stop words: (c) is as short as (a). And (b) shows the price. The end was the
# model's own first choice; forced to go on, it makes something up.
#
# ## 8 Diversity against quality
#
# You want texts that differ, and texts that are good. Measure both for a grid of temperature and top-k:
#
# - **diversity**: distinct-2, the number of different token pairs over all token pairs of the texts;
# - **quality**, as far as numbers go: the mean log probability that the model gives the tokens *at temperature 1*. It
#   says how usual a text is, not how good.
#
# This needs ids and logits, which the helper of section 4 brings.

# %%
def continuations(temperature, k):
    """`texts` sampled texts as (ids [max_tokens], log probs at temperature 1 [max_tokens])."""
    found = []
    for outputs in sequences(max_tokens, texts, temperature, k, 1.0, return_generation_logits=[[True]]):
        written, rows = outputs["output_ids"].reshape(-1), outputs["generation_logits"][0, 0]
        found.append((written, rows[np.arange(len(written)), written] - decoding.logsumexp(rows)))
    return found


# %% [markdown]
# **Predict:** draw the two axes on paper and mark where (T 0.5, k 5) and (T 1.5, no k) will lie. `top_k=0` with
# `top_p=1.0` is no limit at all.

# %%
settings = list(itertools.product([5, 50, 0], [0.5, 1.0, 1.5]))
written = {(k, t): continuations(t, k) for k, t in settings}


# %% [markdown]
# How sure are the numbers? The usual **bootstrap** draws the texts again with replacement. For diversity that is wrong:
# it draws some texts twice, and copies are what diversity counts. The **jackknife** leaves out one text at a time and
# so gets n results. The sum of their squared distances from their mean, times (n − 1)/n, is the squared standard error.

# %%
def jackknife(items, measure):
    """(measure of all items, twice its standard error)."""
    n = len(items)
    without = np.array([measure(items[:i] + items[i + 1 :]) for i in range(n)])
    return measure(items), 2 * np.sqrt((n - 1) / n * np.sum((without - without.mean()) ** 2))


def diversity(items):
    return decoding.distinct_n([ids.tolist() for ids, _ in items], 2)


def usualness(items):
    return np.mean([scores.mean() for _, scores in items])


# %%
measured = {each: (jackknife(found, diversity), jackknife(found, usualness)) for each, found in written.items()}
for (k, t), ((d, dd), (q, dq)) in measured.items():
    print(f"top-k {k or 'off':>3}  T {t}   distinct-2 {d:.2f} ± {dd:.2f}   {q:6.2f} ± {dq:.2f} nats per token")

# %% [markdown]
# To compare with, the greedy text of the same prompt and length.

# %%
usual = float(answers(send(prompt, return_log_probs=True))[0].outputs["output_log_probs"].mean())
above = sum(quality > usual for _, (quality, _) in measured.values())
print(f"greedy: {usual:.2f} nats per token; {above} of {len(measured)} settings have a higher mean")

# %%
named = {(f"top-k {k or 'off'}", f"T {t}"): both for (k, t), both in measured.items()}
fall = measured[50, 1.5][1][0] - measured[0, 1.5][1][0]
title = f"T 1.5 without top-k: {fall:.1f} nats per token less usual than with top-k 50"
summary = f"T 1.5: top-k 50 has {measured[50, 1.5][1][0]:.1f} nats per token, no top-k {measured[0, 1.5][1][0]:.1f}."
small_print = style.provenance(lane, seed, weights=precision, texts=texts)
style.finish(figures.diversity_quality(named, ("greedy", usual)), title, small_print, summary)


# %% [markdown]
# A cross is two standard errors long in each direction. (It may pass 1.0: the jackknife does not know that distinct-2
# ends there. And ± 0.00 means that no left-out text changed the result, not that you know it exactly.) Where one mark
# lies inside the other's cross, you have not measured a difference.
#
# From T 0.5 to 1.5 you pay usual words for different ones, as far as the crosses show it: for the prompt of this page
# and k = 5 they do not, for there are only five tokens to choose from. At high temperature the lines part: with top-k
# 50 the texts stay far more usual than without. Whether they also differ less, distinct-2 cannot say: near 0.99 hardly
# any pair occurs twice, and the measure is full.
#
# And look at the dashed line. Greedy decoding asks for nothing but a high log probability, and section 6 showed where
# that leads: into a loop that the model finds the more likely, the longer it lasts, and that nobody wants. A high log
# probability is no proof of quality. For that you need a task with right answers.
#
# ## 9 A regression grid
#
# Tools like promptfoo run a table of prompts through a table of configurations, and test each answer with a small
# function. You need very little for it. Three kinds of test:

# %%
def equals(word):
    return lambda text: text.strip() == word


def contains(word):
    return lambda text: word in text


def matches(pattern):
    return lambda text: re.match(pattern, text.strip()) is not None


# %% [markdown]
# Eight tasks, chosen because greedy decoding with fp32 weights passes them. So its 100 % is no finding; what the other
# strategies lose is one. The examples in a prompt show the format; the answer ends at the end of the line.

# %%
tasks = {
    "copy a word": ("say cat -> cat\nsay house -> house\nsay river ->", equals("river")),
    "opposite": ("hot -> cold\nbig -> small\nup ->", equals("down")),
    "add": ("1 + 1 = 2\n2 + 2 = 4\n2 + 3 =", equals("5")),
    "first letter": ("apple: a\nbanana: b\nhouse: h\nriver:", equals("r")),
    "even numbers": ("2, 4, 6, 8,", matches("10\\b")),
    "count": ("one, two, three, four,", matches("five\\b")),
    "France": ("The capital of France is", contains("Paris")),
    "Japan": ("The capital of Japan is", contains("Tokyo")),
}

# %% [markdown]
# Five strategies. Each sampling strategy answers five times, with five seeds; greedy would say the same five times.
#
# **Predict:** which strategy loses most? And what does a repetition penalty do to a task whose right answer is in the
# prompt, or whose format repeats?

# %%
strategies = {
    "greedy": {},
    "greedy,\npenalty 1.5": {"repetition_penalty": 1.5},
    "T 0.7, k 40,\np 0.9": {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "num_return_sequences": 5},
    "pure": {"top_p": 1.0, "num_return_sequences": 5},
    "pure, T 1.5": {"top_p": 1.0, "temperature": 1.5, "num_return_sequences": 5},
}
line = {"max_tokens": 4, "stop_words": ["\n"], "seed": seed}
running = {
    (task, name): send(text, **line, **each) for task, (text, _) in tasks.items() for name, each in strategies.items()
}
replies = {cell: [chunk.text for chunk in answers(stream)] for cell, stream in running.items()}

# %%
shares = {
    task: {name: float(np.mean([test(text) for text in replies[task, name]])) for name in strategies}
    for task, (_, test) in tasks.items()
}
mean = {name: float(np.mean([row[name] for row in shares.values()])) for name in strategies}

# %%
title = f"Heat costs right answers: pure sampling passes {mean['pure']:.0%}, and {mean['pure, T 1.5']:.0%} at T 1.5"
summary = "mean share passed: " + "; ".join(f"{name} {share:.0%}".replace("\n", " ") for name, share in mean.items())
small_print = style.provenance(lane, seed, weights=precision, answers="1 (greedy) or 5")
style.finish(figures.pass_grid(shares), title, small_print, summary)

# %% [markdown]
# Eight or forty answers a strategy are few. How sure is a share? Wilson's interval says, with 95 % confidence. It
# counts the five answers to one task as if they were five tasks. They are not: they tend to pass or fail together. So
# the intervals of 40 are narrower than they should be.

# %%
passed = {}
for name, share in mean.items():
    n = sum(len(replies[task, name]) for task in tasks)
    passed[name] = round(share * n), n
    lower, upper = decoding.wilson_interval(*passed[name])
    print(name.replace("\n", " ").ljust(20), f"{share:4.0%} of {n:2}, so {lower:.0%} to {upper:.0%}")

# %% [markdown]
# **Predict:** is greedy measurably better than T 0.7? Put the answers of both into one pot, and let chance deal eight
# of them to greedy. How often does it get as many right ones? (This is Fisher's exact test, one-sided.)

# %%
(own, n), (other, m) = passed["greedy"], passed["T 0.7, k 40,\np 0.9"]
dealt = rng.hypergeometric(own + other, n + m - own - other, n, size=10_000)
print(f"greedy {own} of {n}, T 0.7 {other} of {m}: by chance in {np.mean(dealt >= own):.0%}")

# %% [markdown]
# What chance does in one of twenty deals or more is no measured difference. And look at answers that failed before you
# believe a grid. This is what the penalty did, and how the row of even numbers is cut into tokens:

# %%
even = tokenizer.encode(tasks["even numbers"][0], add_special_tokens=False).ids
print("tokens of the even numbers:", *(repr(tokenizer.decode([i])) for i in even))
for task in tasks:
    if not shares[task]["greedy,\npenalty 1.5"]:
        print(f"{task:13} {replies[task, 'greedy'][0]!r} became {replies[task, list(strategies)[1]][0]!r}")

# %% [markdown]
# Compare with the prompts. `' river'` had just been read, so the penalty pushed the copy away. Where the examples stand
# on lines of their own, it pushed away the line end, too: look which answers still have their `\n`. In the row of even
# numbers, before each number stands a token that is only a space. It was in the prompt, so it was pushed away, and with
# it every number. Save a grid like this with your prompts and run it whenever a setting, a model or a quantisation
# changes.
#
# ## 10 Which strategy?
#
# No line of this table is advice from elsewhere. Each has the number that you measured on this page. For the second,
# only right answers count, and only the tasks that more than one text passes.

# %%
low, mid, wild = measured[5, 0.5], measured[50, 1.0], measured[0, 1.5]
greedy, penalty, careful, pure, heat = mean.values()
free = {task: tasks[task][1] for task in ("even numbers", "count", "France", "Japan")}
worded = np.mean([len(set(filter(test, replies[task, list(strategies)[2]]))) for task, test in free.items()])
rows = [
    ("one right answer", "greedy", f"on tasks that it passes, pure sampling passes {pure:.0%} (section 9)"),
    ("a right answer in changing words", "T 0.7, top-k 40, top-p 0.9", f"passes {careful:.0%}; where words are free, "
     f"{worded:.1f} different right ones out of 5 (section 9)"),
    ("several different texts", "T 1, top-k 50", f"distinct-2 {mid[0][0]:.2f} at {mid[1][0]:.1f} nats (section 8)"),
    ("few surprises", "low T, small k", f"distinct-2 {low[0][0]:.2f} at {low[1][0]:.1f} nats (section 8)"),
    ("as different as can be", "high T *with* top-k", f"without it {fall:.1f} nats lower, {heat:.0%} pass (8, 9)"),
]  # fmt: skip

# %%
more = [
    ("long greedy text", "small repetition penalty", f"4-grams repeated: {rates['none']:.0%} → "
     f"{rates['repetition 1.1']:.0%} (section 6)"),
    ("copying, a fixed format", "no penalty", f"with one {penalty:.0%} pass, without {greedy:.0%} (section 9)"),
    ("what the model believes", "`top_p=1.0`, nothing else", f"tail of {behind:.0%} included (section 5)"),
    ("the same text again", "any fixed seed", f"{len(set(unseeded))} text from 3 requests (section 5)"),
    ("another text each time", "another seed each time", f"{len(set(seeded))} texts from 3 seeds (section 5)"),
    ("an answer that is long enough", "`min_tokens`, no stop words", f"{lengths['b']} tokens, with a stop word "
     f"{lengths['c']} (section 7)"),
]  # fmt: skip
table = "\n".join(f"| {want} | {choose} | {why} |" for want, choose, why in rows + more)
display(Markdown(f"| you want | choose | because |\n|---|---|---|\n{table}"))

# %% [markdown]
# The numbers belong to a small model and one prompt. Measure again with yours: the cells are there.
#
# ## Recap
#
# - The order is temperature, penalties, top-k, renormalise, top-p. The token that crosses p stays: whole on our server
#   and in transformers, with the part that reaches p in NVIDIA's kernels.
# - Cuts keep ratios, temperature and penalties change them.
# - Without `top_k` or `top_p` a request is greedy; `top_p=1.0` samples from everything.
# - The default seed is fixed, so equal requests give equal texts.
# - Penalties count the prompt's tokens, and break formats that repeat.
# - `min_tokens` holds back the end token, not the stop words.
# - A high log probability is not quality. Test answers where answers can be right or wrong.
#
# ## Break it
#
# Settings outside their range are refused by name. **Predict** which of these are: a k larger than the limit, a
# percentage for p, a penalty of 0, a negative penalty, two settings that make a third one useless.

# %% tags=["nbval-check-output"]
attempts = [{"top_k": 2000}, {"top_p": 90.0}, {"repetition_penalty": 0.0}, {"frequency_penalty": -1.0}]
attempts.append({"temperature": 0.0, "top_k": 50, "num_return_sequences": 3})
for attempt in attempts:
    try:
        found = {chunk.text for chunk in answers(send(prompt, 8, **attempt))}
        print(attempt, "→", len(found), "different text")
    except ClientError as error:
        print(attempt, "→", error)

# %% [markdown]
# A negative penalty rewards repetition, and that is allowed. Temperature 0 is greedy, whatever top-k says, so three
# sequences are three copies.
#
# Try more: `frequency_penalty=-2` with 40 tokens, `repetition_penalty=1.5` on a prompt in your own language, a stop
# word that is in the prompt, or 2000 samples in section 4 against a hypothesis that is off by a little.
#
# The server stops; the last line says what produced the numbers on this page.

# %%
client.close()
server.stop()
scratch.cleanup()
numbers = {"p_values": {name: round(float(chance), 4) for name, chance in chances.items()}}
numbers["share_passed"] = {name.replace("\n", " "): round(share, 3) for name, share in mean.items()}
record("07", lane=lane, seed=seed, precision=precision, nats_lost=round(fall, 2), **numbers)
