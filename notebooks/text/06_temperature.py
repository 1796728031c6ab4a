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
# # 06 · Temperature: from logits to probabilities
#
# You turn the numbers that a served model really computes into probabilities, and learn what one knob can do to them,
# and what it cannot.
#
# After this notebook you can
#
# - turn logits into probabilities or log probabilities, without overflow
# - say what a temperature does to probabilities, ratios, ranks and entropy
# - recognise the common wrong formulas by what they break
# - say when a TensorRT-LLM server reads `temperature`, and set it to reach a probability
# - test served samples against exact probabilities
#
# **Time:** 40 minutes · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# read: 10 min, do: 30 min
#
# Previous: [05 · Streaming tokens over gRPC](05_streaming_grpc.ipynb) · Next: [07 · Sampling](07_sampling.ipynb)

# %%
import math
from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
import tritonclient.grpc as grpcclient
from scipy.special import entr, log_softmax, softmax
from scipy.stats import binomtest
from tokenizers import Tokenizer
from tritonclient.utils import InferenceServerException

from servinglab import assets, notebook
from servinglab.checks import check
from servinglab.client import gather, inputs, stream
from servinglab.explore import explore
from servinglab.figures import sampling as figures
from servinglab.figures.style import show
from servinglab.serving import serve

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
precision: str = "fp32"  # weights of the default model: "fp32" or "int4"
prompt: str = "The little boat sailed across the"  # its next token is what this page is about
cold: float = 0.5  # a temperature below 1
hot: float = 1.5  # a temperature above 1
samples: int = 200  # served tokens at each of the two, for the test at the end
seed: int = 0  # seed of every random choice

# %% [markdown]
# Unusable parameters stop the notebook here.

# %%
assert cold > 0 and hot > 0 and samples >= 1, "the formulas of this page hold for temperatures above 0"
lane = notebook.begin("06", lane, seed=seed, weights=precision)

# %% [markdown]
# ## 1 Three tokens on paper
#
# A language model gives one number, a **logit**, for each **token** (piece of text) it could write next. The
# **softmax** turns logits into probabilities: `exp` makes each number positive, the division makes the sum 1.
#
# $$P_i=\frac{\exp(z_i)}{\sum_j\exp(z_j)}$$
#
# Take three tokens with the logits 2, 1 and 0:

# %% tags=["nbval-check-output"]
paper = np.array([2.0, 1.0, 0.0])
weights = np.exp(paper)
print("weights       ", weights.round(3), "sum", weights.sum().round(3))
print("probabilities ", (weights / weights.sum()).round(3))

# %% [markdown]
# The **temperature** T divides every logit first, above and below the line:
#
# $$P_i=\frac{\exp(z_i/T)}{\sum_j\exp(z_j/T)}$$
#
# **Predict:** at T = 2 the logits become 1, 0.5 and 0. Does the first token gain or lose? And at T = 0.5?

# %%
fig, axes = plt.subplots(figsize=(7.5, 2.5))
found = {}
for place, (temperature, colour) in enumerate({0.5: "#8A5F00", 1.0: "#E69F00", 2.0: "#F5D999"}.items()):
    weights = np.exp(paper / temperature)
    found[temperature] = weights / weights.sum()
    at = np.arange(3) + 0.27 * (place - 1)
    axes.bar_label(axes.bar(at, found[temperature], 0.25, color=colour, label=f"T = {temperature:g}"), fmt="%.3f")
axes.set(xticks=range(3), xticklabels=["logit 2", "logit 1", "logit 0"], ylabel="probability")
axes.legend()
summary = "; ".join(f"T = {temperature}: {p.round(3)}" for temperature, p in found.items())
title = f"The first token has {found[0.5][0]:.2f} at T = 0.5, {found[2.0][0]:.2f} at T = 2"
show(fig, title, summary, drawing=True)

# %% [markdown]
# The first token loses at T = 2, where all come closer together, and gains at T = 0.5, at the cost of the others. The
# order never changes.
#
# ## 2 The logits of a served model
#
# Start a Triton, as in notebook 05.

# %%
server = serve(precision=precision)
client = grpcclient.InferenceServerClient(server.grpc_url)
tokenizer = Tokenizer.from_file(str(assets.tokenizer("smollm2") / "tokenizer.json"))


# %% [markdown]
# `return_generation_logits` asks for the model's own logits, one row for each new token.
#
# <details><summary>In older engines</summary>
#
# TensorRT-LLM once gave them only with an engine built with `--gather_generation_logits`. Since 0.19 the flag is
# deprecated, and newer versions decide it at run time.
#
# </details>
#
# **Predict:** how many logits come back for one token?

# %%
def answer(text, max_tokens, **settings):
    """The one response to a request that does not stream."""
    request = inputs(text_input=text, max_tokens=max_tokens, stream=False, exclude_input_in_output=True, **settings)
    (result,) = stream(client, "tensorrt_llm_bls", request)
    return result


def next_logits(text):
    result = answer(text, 1, return_generation_logits=True)
    return result.as_numpy("generation_logits").reshape(-1).astype(float)  # the server computed them in float32


# %%
z = next_logits(prompt)
print(f"{z.size:,} logits from {z.min():.2f} to {z.max():.2f}, mean {z.mean():.2f}")


# %% [markdown]
# One for every token of the vocabulary. Here are the highest; a token includes the space before it.

# %%
def name(token):
    return repr(tokenizer.decode([int(token)]))


order = np.argsort(-z, kind="stable")
for token in order[:6]:
    print(f"{name(token):12} {z[token]:6.2f}")

# %% [markdown]
# ## 3 When exp is too much
#
# `exp` grows fast, and a floating-point number has a largest value. What is the largest logit that survives `exp`?

# %% tags=["nbval-check-output"]
for dtype in (np.float16, np.float32, np.float64):
    largest = float(np.finfo(dtype).max)
    print(f"{dtype.__name__}: largest number {largest:.3g}, so exp(x) is infinite above x = {math.log(largest):.2f}")


# %% [markdown]
# Dividing by a small temperature makes logits large. Here is section 1's formula, word for word.
#
# **Predict:** look at your highest logit. In which of the three types does it fail at T = 1? At T = 0.1?

# %%
def naive_softmax(z, temperature):
    weights = np.exp(z / temperature)
    return weights / weights.sum()


with np.errstate(all="ignore"):  # numpy would warn of the overflow
    for temperature in (1.0, 0.1):
        for dtype in (np.float16, np.float32, np.float64):
            p = naive_softmax(z.astype(dtype), dtype(temperature))
            print(f"T = {temperature}, {dtype.__name__}: highest probability {p.max():.4f}")


# %% [markdown]
# It fails where it prints `nan`, infinity divided by infinity. Half precision, common on GPUs, does so at T = 1 once a
# logit exceeds 11.09, or earlier, when the sum overflows.
#
# The cure costs nothing. Divide numerator and denominator by the same $\exp(m)$:
#
# $$P_i=\frac{\exp(z_i/T-m)}{\sum_j\exp(z_j/T-m)}\qquad m=\max_jz_j/T$$
#
# Now the largest exponent is 0 and its `exp` is 1. Nothing overflows, and the sum is at least 1.

# %%
def stable_softmax(z, temperature):
    weights = np.exp(z / temperature - (z / temperature).max())
    return weights / weights.sum()


for temperature in (1.0, 0.1):
    for dtype in (np.float16, np.float32, np.float64):
        p = stable_softmax(z.astype(dtype), dtype(temperature))
        print(f"T = {temperature}, {dtype.__name__}: highest probability {p.max():.4f}")


# %% [markdown]
# Now no type overflows.
#
# <details><summary>Why float16 is a little off</summary>
#
# Above 128 its numbers lie 0.125 apart, and T = 0.1 brings a logit of 14 there. Subtract the maximum first, then
# divide, and this rounding is gone.
#
# </details>
#
# **Exercise 06.1** (●●○, 8 minutes) A server works on many requests at once. Write the softmax for `logits` of shape
# `[rows, vocabulary]` and one temperature: each row is a distribution of its own, for logits as large as 1000.
#
# <details><summary>Hint 1</summary>
#
# Which numbers must sum to 1, and which maximum belongs to which row? The temperature divides the logits, in the
# numerator and in the denominator.
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# For `[[0, 1000], [1000, 0]]` each row of the answer has one 1 and one 0. Do your maximum and your sum still fit the
# rows, or have they lost their axis?
#
# </details>

# %% tags=["exercise:06.1"]
def batch_softmax(logits, temperature):
    ...  # your code


# %% tags=["check:06.1", "nbval-check-output"]
check("06.1", batch_softmax)

# %% [markdown]
# <details><summary>Solution 06.1</summary>
#
# ```python
# def batch_softmax(logits, temperature):
#     z = logits / temperature
#     weights = np.exp(z - z.max(axis=1, keepdims=True))
#     return weights / weights.sum(axis=1, keepdims=True)
# ```
#
# </details>

# %% [markdown]
# From here on use SciPy's `softmax`, which does this along any axis. The second prompt has one obvious end.

# %%
sure_prompt = "The capital of France is"
sure = next_logits(sure_prompt)
p = softmax(np.stack([z, sure]), axis=1)
print("sums", p.sum(axis=1), "· highest", p.max(axis=1).round(3), "·", *(name(row.argmax()) for row in p))

# %% [markdown]
# ## 4 The log form
#
# The log of a fraction is a difference, and `log` undoes `exp`:
#
# $$\log P_i=z_i/T-\operatorname{logsumexp}(z/T)$$
#
# $$\operatorname{logsumexp}(x)=m+\log\sum_j\exp(x_j-m)\qquad m=\max_jx_j$$
#
# The second term is one price for the whole row. On paper, at T = 1:

# %% tags=["nbval-check-output"]
price = 2 + math.log(1 + math.exp(-1) + math.exp(-2))
print("logsumexp", round(price, 3))
print("log P    ", (paper - price).round(3), "→ P", np.exp(paper - price).round(3))

# %% [markdown]
# The same probabilities. But a probability can be too small for its type.
#
# **Predict:** at T = 0.1, the log of how many probabilities is $-\infty$, in each type? And in the log form?

# %%
for dtype in (np.float16, np.float32, np.float64):
    logits = z.astype(dtype)
    with np.errstate(divide="ignore"):
        plain = np.log(stable_softmax(logits, dtype(0.1)))
    log_form = log_softmax(logits / dtype(0.1))
    print(f"{dtype.__name__}: of {z.size:,}, -inf are {np.isneginf(plain).sum():6,}", end="")
    print(f"; in the log form {np.isneginf(log_form).sum()}, the lowest is {log_form.min():.1f}")

# %% [markdown]
# In half and single precision nearly all are $-\infty$. The log form loses none in any type. A program that adds up log
# probabilities (notebook 08) loses everything to one `-inf`.
#
# The server's `return_log_probs` gives the log probability of the chosen token, at the temperature of the choice (at
# temperature 0, at T = 1). **Predict:** is it on your list of 49,152?

# %%
one = answer(prompt, 1, temperature=cold, top_p=1.0, seed=seed, return_log_probs=True)
served, chosen = one.as_numpy("output_log_probs").item(), one.as_numpy("text_output")[0].decode()
log_p = log_softmax(z / cold)
nearest = int(np.abs(log_p - served).argmin())
print(f"served {served:.4f} for {chosen!r} · yours {log_p[nearest]:.4f} for {name(nearest)}")
assert abs(log_p[nearest] - served) < 1e-3 and name(nearest) == repr(chosen)


# %% [markdown]
# It is on your list: the server uses this formula. (Notebook 08 tells how TensorRT-LLM up to 1.2 differs.)
#
# **Exercise 06.2** (●●○, 7 minutes) Write the log form for one row of logits. It must give -1000 for a token that lies
# 1000 below the first one, at T = 1.
#
# <details><summary>Hint 1</summary>
#
# A probability that has underflowed cannot be saved by its logarithm. Which formula above never forms the probability?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Subtracting something before `exp` makes the sum too small by a known factor. What becomes of that factor in the log?
#
# </details>

# %% tags=["exercise:06.2"]
def log_form(logits, temperature):
    ...  # your code


# %% tags=["check:06.2", "nbval-check-output"]
check("06.2", log_form)

# %% [markdown]
# <details><summary>Solution 06.2</summary>
#
# ```python
# def log_form(logits, temperature):
#     z = logits / temperature
#     highest = z.max()
#     return z - (highest + np.log(np.exp(z - highest).sum()))
# ```
#
# </details>

# %% [markdown]
# ## 5 One distribution, many temperatures
#
# **Predict:** from T = 1 to T = 2, does the likeliest token lose a little, half, or nearly all of its probability? And
# who gets it? (A live notebook has a finer slider.)

# %%
top = order[:6]


def draw(axes, T):
    figures.token_bars(axes, [name(token) for token in top], softmax(z / T)[top])


# %%
finer = {"T": [round(0.05 * step, 2) for step in range(2, 101)]}
shares = " and ".join(f"{100 * softmax(z / T)[top].sum():.0f} % at T = {T}" for T in (1, 2))
first = [100 * softmax(z / T)[top[0]] for T in (1, 2)]
title = f"{name(top[0])} has {first[0]:.2g} % at T = 1, {first[1]:.2g} % at T = 2"
summary = f"the six likeliest tokens share {shares}"
explore(draw, title=title, summary=summary, live=finer, T=[0.25, 0.5, 0.75, 1.0, 1.5, 2.0])

# %% [markdown]
# It loses nearly all, and no token that you would notice gets it: thousands rise a little. So a text at T = 2 falls
# apart: each of them is improbable, the crowd is likely.
#
# What happens at the ends? Divide the fraction by its own numerator; for the likeliest token:
#
# $$P_1=\frac{1}{\sum_j\exp(-(z_1-z_j)/T)}$$
#
# Only *differences* of logits count. **Predict:** what becomes of $\exp(-d/T)$ for $d>0$ when $T\to0$? When
# $T\to\infty$?

# %%
ends = [softmax(z / T).max() for T in (1e-3, 1e9)]
curves = figures.probability_curves(np.geomspace(0.1, 20, 200), z, ranks=[1, 10, 100, 1000, 40000])
title = f"The first token: probability {ends[0]:.2g} at T → 0, one of {1 / ends[1]:,.0f} at T → ∞"
show(curves, title, "five ranks, from 1 to 40,000, against the temperature")

# %% [markdown]
# - $T\to0$: every $\exp(-d/T)$ goes to 0 except the winner's own, which is 1. So $P_1\to1$: **greedy** is the
#   limit.
# - $T\to\infty$: every term goes to 1, so all tokens get 1/49,152.
# - In between, tokens above the plain mean of all logits have a peak and fall again (the first only falls). Tokens
#   below it only rise, as rank 40,000 does.
#
# A program cannot divide by 0, so for temperature 0 a server takes the limit, the token of highest logit. For the
# three tokens:

# %% tags=["nbval-check-output"]
for temperature in (0.01, 0.1, 1, 100, 1e9):
    print(f"T = {temperature:<12}", softmax(paper / temperature).round(3))


# %% [markdown]
# ### How undecided is the model?
#
# One number says it, the **entropy** $H=-\sum_iP_i\log P_i$, in **nats**, or in **bits** with the logarithm in
# base 2: 1 bit = ln 2 = 0.693 nats. It is 0 when one token has everything, and $\log n$ when n tokens are equal.
#
# **Predict:** which prompt has the higher entropy at T = 1? And at T = 5?

# %%
def entropy(logits, temperature):
    return entr(softmax(logits / temperature)).sum()  # entr(p) is -p log p, and 0 for p = 0


grid = np.linspace(0.05, 5, 100)
curves = {label: [entropy(row, T) for T in grid] for label, row in (("your prompt", z), (sure_prompt, sure))}
assert all((np.diff(curve) > 0).all() for curve in curves.values())

# %%
yours, france = map(np.array, curves.values())
crossing = ", ".join(f"{T:.1f}" for T in grid[1:][np.diff(np.sign(yours - france)) != 0])
higher = max(curves, key=lambda label: curves[label][-1])
title = f"The curves cross near T = {crossing}" if crossing else "The curves do not cross"
summary = "; ".join(f"at T = {T}: {entropy(z, T):.2f} nats for your prompt, {entropy(sure, T):.2f} for {sure_prompt!r}"
                    for T in (1, 5))  # fmt: skip
show(figures.entropy_curves(grid, curves, z.size), f"{title}: at T = 5 {higher!r} is higher", summary)

# %% [markdown]
# At T = 1 the sure prompt is far lower. But both curves only rise: heat makes even a sure model undecided. At a high T
# the favourite's lead no longer matters, only how far apart the thousands behind it lie.
#
# $\exp(H)$ makes the number tangible: the model is as undecided as between that many equally likely tokens.

# %%
print("   T   nats   bits   exp(H)")
for temperature in (0.25, cold, 1.0, hot, 5.0):
    nats = entropy(z, temperature)
    print(f"{temperature:4.2f}  {nats:5.2f}  {nats / math.log(2):5.2f}  {math.exp(nats):7,.0f}")

# %% [markdown]
# ## 6 What stays and what changes
#
# In the ratio of two probabilities the denominator cancels:
#
# $$\frac{P_a}{P_b}=\exp\frac{z_a-z_b}{T}\qquad\log\frac{P_a}{P_b}=\frac{z_a-z_b}{T}$$
#
# The log of the ratio is called the **log-odds**. At half the temperature it doubles, and the ratio is squared.
#
# **Predict:** the first row below is your model's first against its tenth token at T = 1. What ratio do you expect at
# T = 0.5, and at T = 2? How many of the 49,152 tokens change their rank?

# %%
first, tenth = order[0], order[9]
print("   T   ratio  log-odds  log-odds × T  tokens with another rank")
for temperature in (1.0, 0.5, 2.0, 10.0):
    log_p = log_softmax(z / temperature)
    odds = log_p[first] - log_p[tenth]
    moved = (np.argsort(-log_p, kind="stable") != order).sum()
    print(f"{temperature:4}  {math.exp(odds):6.2f}  {odds:8.3f}  {odds * temperature:12.3f}  {moved:24}")

# %% [markdown]
# The ratio goes to its square and to its root, the fourth column does not move, and no token changes its rank:
# dividing by a positive number keeps the order. A temperature cannot make a wrong favourite right.

# %% [markdown]
# ## 7 Wrong formulas, and what they break
#
# Seven formulas, each with the temperature in another place, all run without an error.
#
# **Predict:** which of the seven sum to 1? Which are the right distribution?

# %%
T = hot
plain = softmax(z)
power = plain ** (1 / T)
tries = {
    "exp(z/T) / Σ exp(z/T)": softmax(z / T),
    "exp(z/T) / Σ exp(z)": np.exp(z / T) / np.exp(z).sum(),
    "p / T": plain / T,
    "p / T, divided by its sum": plain / T / (plain / T).sum(),
    "p ** (1/T)": power,
    "p ** (1/T), divided by its sum": power / power.sum(),
    "softmax(p / T)": softmax(plain / T),
}

# %% [markdown]
# In the names, `p` is the softmax at T = 1 and T is `hot`.

# %%
print(f"{'T = ' + str(T):30} {'sum':>8}  {'highest':>8}")
for formula, p in tries.items():
    same = np.allclose(p, tries["exp(z/T) / Σ exp(z/T)"], rtol=1e-9)
    print(f"{formula:30} {p.sum():8.4f}  {p.max():8.5f}  {'right' if same else ''}")


# %% [markdown]
# Four sum to 1, and only two are right:
#
# - **T missing in the denominator**: the sum is not 1. `numpy`'s `choice` refuses such a row, `torch.multinomial`
#   rescales it without a word.
# - **p / T**: the sum is 1/T. Divide by it, and you are back at T = 1.
# - **$p^{1/T}$** has the right ratios, so dividing by the sum makes it right.
# - **softmax of probabilities**: as logits, numbers between 0 and 1 hardly differ. Nearly uniform.

# %% [markdown]
# ## 8 Temperature on the server
#
# Ask your server for the same text at three temperatures, with no other option.
#
# **Predict:** how many different texts, and why?

# %%
def continued(**settings):
    return answer(prompt, 10, seed=seed, **settings).as_numpy("text_output")[0].decode()


greedy = [continued(temperature=temperature) for temperature in (0.1, 1.0, 2.0)]
print(*map(repr, greedy), sep="\n")
assert len(set(greedy)) == 1

# %% [markdown]
# One text, which users of the real backend [took for a
# fault](https://github.com/triton-inference-server/tensorrtllm_backend/issues/221). TensorRT-LLM samples only if you
# set `top_k` or `top_p`, and so does our server. Without them it is **greedy**:
#
# ![With top_k or top_p the logits are divided by T and drawn from; without, the highest wins](pictures/06_place.svg)
#
# `top_p=1.0` keeps the whole vocabulary and turns sampling on. `top_k=1` sets an option, too.
#
# **Predict:** which of these two rows has more than one text?

# %%
for option in ({"top_k": 1}, {"top_p": 1.0}):
    texts = [continued(temperature=temperature, **option) for temperature in (0.1, 1.0, 2.0)]
    print(option, "·", len(set(texts)), "different texts")
    print(*(f"   {text!r}" for text in texts), sep="\n")


# %% [markdown]
# `top_p=1.0`: at T = 2 you see the crowd of section 5. With `top_k=1` only one token is left to sample from.
#
# ## 9 Do the samples follow the formula?
#
# Now draw tokens from the server. `num_return_sequences` asks for many answers at once, each with the next seed. Ask
# `tensorrt_llm` itself, the model inside, for ids: two tokens can look alike as text.

# %%
def draws(temperature, first_seed):
    """How many of `samples` drawn tokens are each of the `top` ones, and, last, any other."""
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    request = inputs(
        input_ids=ids, input_lengths=len(ids), request_output_len=1, exclude_input_in_output=True,
        temperature=temperature, runtime_top_p=1.0, seed=first_seed, num_return_sequences=samples,
    )  # fmt: skip
    results = stream(client, "tensorrt_llm", request, timeout=300)
    drawn = Counter(result.as_numpy("output_ids").item() for result in results)
    assert drawn.total() == samples
    counts = [drawn[token] for token in top]
    return np.array([*counts, samples - sum(counts)])


# %%
counts = [(cold, draws(cold, seed)), (hot, draws(hot, seed + samples))]
for temperature, row in counts:
    print(f"T = {temperature}:", *(f"{n} {label}," for label, n in zip(map(name, top), row, strict=False)), end=" ")
    print(row[-1], "others")


# %% [markdown]
# **Predict:** a 95 % interval misses the truth once in twenty times. The figure has two panels of seven. How many
# misses would you allow before you doubt the server?

# %%
def exact(temperature):
    p = softmax(z / temperature)[top]
    return np.array([*p, max(0, 1 - p.sum())])


inside = 0
for temperature, row in counts:
    for n, p in zip(row, exact(temperature), strict=True):
        low, high = binomtest(int(n), samples).proportion_ci(method="wilson")
        inside += low <= p <= high
print(f"{inside} of {2 * len(row)} exact probabilities lie inside their interval")

# %%
panels = {f"T = {t}": ({"exact": exact(t)}, row) for t, row in counts}
fig = figures.samples_against_exact([*map(name, top), "all others"], panels)
summary = f"{inside} of {2 * len(row)} exact probabilities lie inside the 95 % interval of {samples} samples each"
show(fig, f"The softmax of z/T lies inside {inside} of {2 * len(row)} intervals of served samples", summary)


# %% [markdown]
# One or two misses are normal. One number for all: **chi-squared** sums the squared distances between counted and
# expected, each divided by the expected count. Let the exact probabilities play the same game 10,000 times: the share
# of games in which chance alone gives as much is the **p-value**.

# %%
def chi_squared(counts, p):
    expected = np.maximum(samples * p, 1e-300)  # so that 0 counted where 0 is expected adds 0
    return ((counts - expected) ** 2 / expected).sum(axis=-1)


def p_value(counts, p):
    games = np.random.default_rng(seed).multinomial(samples, p, size=10_000)
    return float((chi_squared(games, p) >= chi_squared(counts, p)).mean())


# %% [markdown]
# **Predict:** what will this test say when you hold the samples of one temperature against the probabilities of T = 1?

# %%
for temperature, row in counts:
    for claimed in dict.fromkeys((temperature, 1.0)):
        share = p_value(row, exact(claimed))
        print(f"drawn at T = {temperature}, held against T = {claimed}: ", end="")
        print(f"chi-squared {chi_squared(row, exact(claimed)):6.1f}, p-value", f"{share:.4f}" if share else "< 0.0001")
        assert share or claimed != temperature, "chance never strays so far: the server draws from something else"


# %% [markdown]
# Against its own temperature chance often brings such a distance. Against T = 1 a p-value below 0.001 is a reason to
# doubt that temperature; with a larger one these samples cannot tell the two apart.

# %% [markdown]
# **Exercise 06.3** (●●○, 8 minutes) Turn the knob until the server does what you want. `logits` is the row of a prompt.
# Return the options of a request, a dict, with which the likeliest token is drawn with probability `share`. All tokens
# stay in the game.
#
# <details><summary>Hint 1</summary>
#
# Which option must stand beside `temperature` (section 8)? And which way does the first token's share go when T rises?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# The share only falls with T, so halve an interval until it fits; `scipy.optimize.brentq` does that. How small and how
# large may T have to be?
#
# </details>

# %% tags=["exercise:06.3"]
def knob(logits, share):
    ...  # return {"temperature": …, …}


# %% tags=["check:06.3", "nbval-check-output"]
check("06.3", knob)

# %% [markdown]
# <details><summary>Solution 06.3</summary>
#
# ```python
# def knob(logits, share):
#     from scipy.optimize import brentq
#
#     temperature = brentq(lambda T: softmax(logits / T).max() - share, 0.01, 1000)
#     return {"temperature": temperature, "top_p": 1.0}
# ```
#
# </details>

# %% [markdown]
# Does the server agree? Ask for a half, a hundred times.

# %%
if settings := knob(z, 0.5):
    one_token = {"text_input": prompt, "max_tokens": 1, "stream": False, "exclude_input_in_output": True}
    asked = {n: inputs(**one_token, seed=seed + n, **settings) for n in range(100)}
    results = [result for (result,) in gather(client, "tensorrt_llm_bls", asked).values()]
    hits = sum(repr(result.as_numpy("text_output")[0].decode()) == name(order[0]) for result in results)
    low, high = binomtest(hits, 100).proportion_ci(method="wilson")
    print(f"{settings}: {hits} of 100 are {name(order[0])}, 95 % interval {low:.2f} to {high:.2f}")

# %% [markdown]
# ## Recap
#
# - $P_i=\exp(z_i/T)/\sum_j\exp(z_j/T)$: T divides the logits before the softmax, above and below the line.
# - Subtract the row's maximum before `exp`. Logs: $z_i/T-\operatorname{logsumexp}(z/T)$, never the log of a finished
#   probability.
# - $T\to0$ is greedy, $T\to\infty$ is uniform. In between entropy only grows.
# - Ranks stay. Log-odds scale with 1/T, so ratios are taken to the power of 1/T.
# - A sum other than 1 gives a wrong formula away; a sum of 1 does not prove it right.
# - Without `top_k` or `top_p` this server is greedy, and then `temperature` does nothing.

# %% [markdown]
# ## Break it
#
# What would a *negative* temperature do? **Predict:** which token has the highest probability at T = -1, by the
# formula? And will the server let you?

# %%
print("by the formula:", stable_softmax(paper, -1.0).round(3))
try:
    print(continued(temperature=-1.0, top_p=1.0))
except InferenceServerException as error:
    print("the server:", error.message())

# %% [markdown]
# A negative number reverses the order: the least likely token wins. The server refuses.
#
# The last cell stops the server and records this page's numbers.

# %%
client.close()
server.stop()
notebook.record(
    samples=samples, intervals_inside=int(inside), highest_probability=softmax(z).max(), entropy_nats=entropy(z, 1)
)
