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
# You turn the numbers that a served model really computes into probabilities, and learn what one knob does to them, and
# what it cannot do.
#
# After this notebook you can
#
# - turn logits into probabilities or log probabilities, for any temperature and without overflow
# - say what a temperature does to probabilities, ratios, ranks and entropy, and calculate the one you need
# - recognise the common wrong formulas by what they break
# - explain why `temperature` alone changes nothing on a TensorRT-LLM server, and make it work
# - test served samples against exact probabilities
#
# **Time:** 40 minutes (last run: 53 s) · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# Previous: [05 · Streaming tokens over gRPC](05_streaming_grpc.ipynb) · Next: [07 · Sampling](07_sampling.ipynb)

# %%
import math
from collections import Counter

import numpy as np
import tritonclient.grpc as grpcclient
from scipy.special import entr, log_softmax, softmax
from scipy.stats import binomtest
from tokenizers import Tokenizer
from tritonclient.utils import InferenceServerException

from servinglab import assets, notebook
from servinglab.checks import check
from servinglab.client import inputs, stream
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
# `begin` notes when this page started and what its figures say in small print. Parameters with which the page has
# nothing to show stop it here.

# %%
assert cold > 0 and hot > 0 and samples >= 1, "the formulas of this page hold for temperatures above 0"
lane = notebook.begin("06", lane, seed=seed, weights=precision)

# %% [markdown]
# ## 1 Three tokens on paper
#
# A language model gives one number for each token it could write next, a **logit**. Any number will do, positive or
# negative. Probabilities must be positive and sum to 1. The **softmax** gets there in two steps: `exp` makes each
# number positive, the division makes the sum 1.
#
#     P_i = exp(z_i) / Σ_j exp(z_j)
#
# Take three tokens with the logits 2, 1 and 0. A pocket calculator is enough to follow.

# %% tags=["nbval-check-output"]
paper = np.array([2.0, 1.0, 0.0])
weights = np.exp(paper)
print("weights       ", weights.round(3), "sum", weights.sum().round(3))
print("probabilities ", (weights / weights.sum()).round(3))

# %% [markdown]
# The **temperature** T divides every logit first, above and below the line:
#
#     P_i = exp(z_i / T) / Σ_j exp(z_j / T)
#
# **Predict:** at T = 2 the logits become 1, 0.5 and 0. Does the first token gain or lose? And at T = 0.5?

# %% tags=["nbval-check-output"]
for temperature in (0.5, 1.0, 2.0):
    weights = np.exp(paper / temperature)
    print(f"T = {temperature}: ", (weights / weights.sum()).round(3))

# %% [markdown]
# It loses at T = 2, where all come closer together, and gains at T = 0.5. What it gains the others lose, the last one
# the largest share of what it had. The order never changes. That is all there is to a temperature, and the rest of this
# page is about what follows from it for a real model.
#
# ## 2 The logits of a served model
#
# The next cell builds a repository and starts a Triton, as in notebook 05; both vanish when this kernel ends. The
# client is Triton's own.

# %%
server = serve(precision=precision)
client = grpcclient.InferenceServerClient(server.grpc_url)
tokenizer = Tokenizer.from_file(str(assets.tokenizer("smollm2") / "tokenizer.json"))


# %% [markdown]
# `return_generation_logits` asks for the model's own logits, before any processing, one row for each new token. One
# token is enough here. (TensorRT-LLM once gave them only with an engine that was built with
# `--gather_generation_logits`; since 0.19 the flag is deprecated, and newer versions decide it at run time.)
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
# One for every token of the vocabulary. Here are the highest, in the order of the logits; a token carries its space.

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
# Dividing by a small temperature makes logits large. The next cell is the formula of section 1, word for word.
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
# `nan` is infinity divided by infinity. Half precision, common on GPUs, fails at T = 1 once a logit exceeds 11.09, or
# earlier: when the sum of all `exp` exceeds the largest number.
#
# The cure costs nothing. Multiply numerator and denominator by the same `exp(-m)`. The fraction stays the same, and
# every exponent becomes smaller by `m`:
#
#     P_i = exp(z_i/T - m) / Σ_j exp(z_j/T - m)        with m = max_j z_j/T
#
# Now the largest exponent is 0 and its `exp` is 1. Nothing overflows, and the sum is at least 1, so nothing divides by
# zero either.

# %%
def stable_softmax(z, temperature):
    weights = np.exp(z / temperature - (z / temperature).max())
    return weights / weights.sum()


for temperature in (1.0, 0.1):
    for dtype in (np.float16, np.float32, np.float64):
        p = stable_softmax(z.astype(dtype), dtype(temperature))
        print(f"T = {temperature}, {dtype.__name__}: highest probability {p.max():.4f}")


# %% [markdown]
# None overflows. float16 has lost digits all the same: above 128 its numbers lie 0.125 apart, and a logit of 14 gets
# there when T = 0.1 divides it. Subtract the maximum first and divide then, and this rounding is gone. What remains is
# the rounding of the logits themselves, which 1/T magnifies.
#
# **Exercise 06.1** A server works on many requests at once. Write the softmax for `logits` of shape
# `[rows, vocabulary]` and one temperature: each row is a distribution of its own, for logits as large as 1000.

# %% tags=["exercise:06.1"]
def batch_softmax(logits, temperature):
    ...  # your code


# %% tags=["check:06.1", "nbval-check-output"]
check("06.1", batch_softmax)

# %% [markdown]
# From here on the page uses SciPy's `softmax`, which does this along any axis. Two prompts, one call. The second is the
# beginning of a sentence that has one good end.

# %%
sure_prompt = "The capital of France is"
sure = next_logits(sure_prompt)
p = softmax(np.stack([z, sure]), axis=1)
print("sums", p.sum(axis=1), "· highest", p.max(axis=1).round(3), "·", *(name(row.argmax()) for row in p))

# %% [markdown]
# ## 4 The log form
#
# Take the logarithm of the formula. The log of a fraction is a difference, and `log` undoes `exp`:
#
#     log P_i = log exp(z_i/T) - log Σ_j exp(z_j/T)
#             = z_i/T - logsumexp(z/T)
#
#     logsumexp(x) = m + log Σ_j exp(x_j - m)        with m = max_j x_j
#
# The second term is one number for the whole row: every token pays the same price. On paper, at T = 1:

# %% tags=["nbval-check-output"]
price = 2 + math.log(1 + math.exp(-1) + math.exp(-2))
print("logsumexp", round(price, 3))
print("log P    ", (paper - price).round(3), "→ P", np.exp(paper - price).round(3))

# %% [markdown]
# The same probabilities as before. So why bother? Because a probability can be too small for its type, and its
# logarithm cannot.
#
# **Predict:** at T = 0.1, the log of how many of the probabilities is -∞, in each type? And in the log form?

# %%
for dtype in (np.float16, np.float32, np.float64):
    p = stable_softmax(z.astype(dtype), dtype(0.1))
    with np.errstate(divide="ignore"):
        print(f"{dtype.__name__}: {np.isneginf(np.log(p)).sum():6,} of {z.size:,} are -inf")
print(f"log form: {np.isneginf(log_softmax(z / 0.1)).sum()}, lowest {log_softmax(z / 0.1).min():.1f}")

# %% [markdown]
# Most tokens have vanished in single precision, and none in the log form. You may not want tokens of that kind; but a
# program that adds up log probabilities (notebook 08) loses everything to one `-inf`. A tiny number, added before `log`
# to prevent that, only hides it: each lost token then has the same invented value.
#
# The server computes log probabilities as well. `return_log_probs` gives that of the chosen token, at the temperature
# of the choice (at temperature 0, which is greedy, at T = 1). **Predict:** is it on your list of 49,152? The cell looks
# for the nearest, and compares the names.

# %%
one = answer(prompt, 1, temperature=cold, top_p=1.0, seed=seed, return_log_probs=True)
served, chosen = one.as_numpy("output_log_probs").item(), one.as_numpy("text_output")[0].decode()
log_p = log_softmax(z / cold)
nearest = int(np.abs(log_p - served).argmin())
print(f"served {served:.4f} for {chosen!r} · yours {log_p[nearest]:.4f} for {name(nearest)}")
assert abs(log_p[nearest] - served) < 1e-3 and name(nearest) == repr(chosen)


# %% [markdown]
# The formula is what the server does. (Up to 1.2 TensorRT-LLM normalises in another way by default; notebook 08 has the
# details.)
#
# **Exercise 06.2** Write the log form for one row of logits. It must give -1000 for a token that lies 1000 below the
# first one, at T = 1.

# %% tags=["exercise:06.2"]
def log_form(logits, temperature):
    ...  # your code


# %% tags=["check:06.2", "nbval-check-output"]
check("06.2", log_form)

# %% [markdown]
# ## 5 One distribution, many temperatures
#
# Now the real distribution. **Predict:** from T = 1 to T = 2, does the likeliest token lose a little, half, or nearly
# all of its probability? And who gets it? (In a live notebook a slider with finer steps appears below the figure.)

# %%
top = order[:6]


def draw(axes, T):
    figures.token_bars(axes, [name(token) for token in top], softmax(z / T)[top])


# %%
finer = {"T": [round(0.05 * step, 2) for step in range(2, 101)]}
shares = " and ".join(f"{softmax(z / T)[top].sum():.0%} at T = {T}" for T in (1, 2))
title = "A low temperature feeds the winner, a high one feeds the crowd"
summary = f"the six likeliest tokens share {shares}"
explore(draw, title=title, summary=summary, live=finer, T=[0.25, 0.5, 0.75, 1.0, 1.5, 2.0])

# %% [markdown]
# Nearly all, and it goes to no token that you would notice: thousands of them rise a little. That is why a text at
# T = 2 falls apart although every single token of it is improbable. The crowd is likely.
#
# What happens at the ends? Divide the fraction by its own numerator; for the likeliest token:
#
#     P_1 = 1 / Σ_j exp(-(z_1 - z_j)/T)
#
# Only *differences* of logits count. **Predict:** what becomes of `exp(-d/T)` for a difference d > 0 when T → 0? When
# T → ∞?

# %%
ends = softmax(z / 0.01).max(), softmax(z / 1000).max() * z.size
summary = f"rank 1: probability {ends[0]:.3f} at T = 0.01, and {ends[1]:.2f} times 1/vocabulary at T = 1000"
curves = figures.probability_curves(np.geomspace(0.1, 20, 200), z, ranks=[1, 10, 100, 1000, 40000])
show(curves, "Towards 0 one token takes all; towards infinity all become equal", summary)

# %% [markdown]
# - T → 0: every `exp(-d/T)` goes to 0 except the winner's own, which is 1. So P_1 → 1: **greedy** is the limit.
#   (Tokens with equal logits would share.)
# - T → ∞: every term goes to 1, so all of them get 1/49,152.
# - In between a token rises with T as long as its logit is below the mean logit, weighted with the probabilities. This
#   mean sinks as T grows, towards the plain mean of all logits. So tokens above the plain mean, all but the first, have
#   a peak and fall again. Tokens below it only rise, as rank 40,000 does.
#
# A program cannot divide by 0. A server that is asked for temperature 0 takes the limit: the token of highest logit.
# For the three tokens:

# %% tags=["nbval-check-output"]
for temperature in (0.01, 0.1, 1, 100, 1e9):
    print(f"T = {temperature:<12}", softmax(paper / temperature).round(3))


# %% [markdown]
# ### How undecided is the model?
#
# One number says it, the **entropy** H = -Σ P_i log P_i. With the natural logarithm its unit is the **nat**, with the
# logarithm in base 2 the **bit**: 1 bit = ln 2 = 0.693 nats. It is 0 when one token has everything, and `log n` when n
# tokens are equal.
#
# **Predict:** which prompt has the higher entropy at T = 1? And at T = 5?

# %%
def entropy(logits, temperature):
    return entr(softmax(logits / temperature)).sum()  # entr(p) is -p log p, and 0 for p = 0


grid = np.linspace(0.05, 5, 100)
curves = {label: [entropy(row, T) for T in grid] for label, row in (("your prompt", z), (sure_prompt, sure))}
assert all((np.diff(curve) > 0).all() for curve in curves.values())

# %%
summary = f"at T = 1: {entropy(z, 1):.2f} nats for your prompt, {entropy(sure, 1):.2f} nats for {sure_prompt!r}"
fig = figures.entropy_curves(grid, curves, z.size)
show(fig, "Entropy grows with temperature, from 0 to the log of the vocabulary", summary)

# %% [markdown]
# Where do they cross?

# %%
yours, france = map(np.array, curves.values())
crossing = grid[1:][np.diff(np.sign(yours - france)) != 0]
print(f"at T = 5: {yours[-1]:.2f} and {france[-1]:.2f} nats; the curves cross", end=" ")
print("near T = " + ", ".join(f"{T:.1f}" for T in crossing) if crossing.size else "nowhere")

# %% [markdown]
# Both curves only ever rise: a temperature above 1 makes even a sure model undecided. At T = 5 both lie close to the
# ceiling, and the prompt that was the surer one at T = 1 may now be the less sure. At a high T the favourite's lead no
# longer matters; how far apart the thousands behind it lie does.
#
# `exp(H)` makes the number tangible: the model is as undecided as between so many equal tokens.

# %%
print("   T   nats   bits   exp(H)")
for temperature in (0.25, cold, 1.0, hot, 5.0):
    nats = entropy(z, temperature)
    print(f"{temperature:4.2f}  {nats:5.2f}  {nats / math.log(2):5.2f}  {math.exp(nats):7,.0f}")

# %% [markdown]
# ## 6 What stays and what changes
#
# Compare two tokens. In the ratio of their probabilities the denominator cancels:
#
#     P_a / P_b = exp((z_a - z_b)/T)        log(P_a / P_b) = (z_a - z_b)/T
#
# The log of the ratio, the **log-odds**, is the difference of the logits divided by T, in nats. So at half the
# temperature the log-odds double, and the ratio itself is squared.
#
# **Predict:** the first row below is your model's first against its tenth token at T = 1. What ratio do you expect at
# T = 0.5, and at T = 2? And how many of the 49,152 tokens change their rank?

# %%
first, tenth = order[0], order[9]
print("   T   ratio  log-odds  log-odds × T  tokens with another rank")
for temperature in (1.0, 0.5, 2.0, 10.0):
    log_p = log_softmax(z / temperature)
    odds = log_p[first] - log_p[tenth]
    moved = (np.argsort(-log_p, kind="stable") != order).sum()
    print(f"{temperature:4}  {math.exp(odds):6.2f}  {odds:8.3f}  {odds * temperature:12.3f}  {moved:24}")

# %% [markdown]
# The ratio goes to its square and to its root, the fourth column does not move, and no token overtakes another:
# dividing by a positive number keeps the order. A temperature cannot make a wrong favourite right.
#
# **Exercise 06.3** Calculate, with paper or with numpy.
#
# - Two tokens have the logits 3 and 1. At which temperature is the first exactly 10 times as likely as the second?
# - A vocabulary has 1024 tokens. What does the entropy approach when T → ∞, in nats?

# %% tags=["exercise:06.3"]
answer_3 = {"temperature": None, "nats": None}  # two numbers

# %% tags=["check:06.3", "nbval-check-output"]
check("06.3", answer_3)

# %% [markdown]
# ## 7 Wrong formulas, and what they break
#
# Seven formulas, each with the temperature in another place. They run without an error, all of them.
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
# Here `p` is the softmax at T = 1, and T is the parameter `hot`.

# %%
print(f"{'T = ' + str(T):30} {'sum':>8}  {'highest':>8}")
for formula, p in tries.items():
    same = np.allclose(p, tries["exp(z/T) / Σ exp(z/T)"], rtol=1e-9)
    print(f"{formula:30} {p.sum():8.4f}  {p.max():8.5f}  {'right' if same else ''}")


# %% [markdown]
# - **T missing in the denominator**: the sum is not 1. `numpy`'s `choice` refuses such a row, `torch.multinomial`
#   rescales it without a word, and a log probability read from it is wrong.
# - **p / T**: the sum is 1/T. Divide by it, and you are back at T = 1: no effect at all.
# - **p ** (1/T)** has the right ratios, so dividing by the sum makes it right. The temperature may come after the
#   softmax, but only as a power, and never without a new sum.
# - **softmax of probabilities**: all probabilities lie between 0 and 1, so as logits they hardly differ. Nearly
#   uniform.
#
# A sum of 1 proves nothing: four of them have it, and only two are right.

# %% [markdown]
# ## 8 "Temperature has no effect"
#
# So said users of the real backend ([issue 221](https://github.com/triton-inference-server/tensorrtllm_backend/issues/221)).
# Ask your server for the same text at three temperatures, and give no other option.
#
# **Predict:** how many different texts?

# %%
def continued(**settings):
    return answer(prompt, 10, seed=seed, **settings).as_numpy("text_output")[0].decode()


greedy = [continued(temperature=temperature) for temperature in (0.1, 1.0, 2.0)]
print(*map(repr, greedy), sep="\n")
assert len(set(greedy)) == 1

# %% [markdown]
# One. TensorRT-LLM, and this course's executor with it, samples only if you set `top_k` or `top_p`. Without them it is
# **greedy**: it takes the token of the highest logit, and section 6 says that no temperature changes which one that is.
# (Hugging Face is no guide here: its `generate` has defaults of its own.)
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
# With `top_k=1` only one token is left to sample from: greedy again. With `top_p=1.0` the temperature works, and at 2
# you see the crowd of section 5. Two more traps: over HTTP a misspelt option is ignored without a word (notebook 05),
# and a seed that you do not give is 0, so the same request gives the same text again at any temperature (notebook 07).
#
# ## 9 Do the samples follow the formula?
#
# You know the exact probabilities. Now draw tokens from the server. `num_return_sequences` asks for many answers at
# once, each with the next seed; every answer is one token long. Ask `tensorrt_llm` itself, the model inside, which
# takes and returns ids: two different tokens can look alike as text.

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
# intervals would you allow to miss their bar's end before you doubt the server?

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
# One or two misses are normal. A single number says more: **chi-squared** sums the squared distances between counted
# and expected, each divided by the expected count. Is yours large? Let the exact probabilities play the same game
# 10,000 times. The share of games in which chance alone gives as much is the **p-value**.

# %%
def chi_squared(counts, p):
    expected = np.maximum(samples * p, 1e-300)  # so that 0 counted where 0 is expected adds 0
    return ((counts - expected) ** 2 / expected).sum(axis=-1)


def p_value(counts, p):
    games = np.random.default_rng(seed).multinomial(samples, p, size=10_000)
    return float((chi_squared(games, p) >= chi_squared(counts, p)).mean())


# %% [markdown]
# **Predict:** a test that never fails proves nothing. What will it say when you hold the samples of one temperature
# against the probabilities of T = 1?

# %%
for temperature, row in counts:
    for claimed in dict.fromkeys((temperature, 1.0)):
        share = p_value(row, exact(claimed))
        print(f"drawn at T = {temperature}, held against T = {claimed}: ", end="")
        print(f"chi-squared {chi_squared(row, exact(claimed)):6.1f}, p-value", f"{share:.4f}" if share else "< 0.0001")
        assert share or claimed != temperature, "chance never strays so far: the server draws from something else"

# %% [markdown]
# Against its own temperature the distance should be of a size that chance brings. A p-value below 0.001 against another
# one says that chance alone would not have strayed so far: a reason to doubt that temperature. With a larger p-value
# against T = 1 you could not have seen the difference, whatever the server does: a temperature close to 1, or a sure
# model, needs more draws. For the same reason these draws do not prove the formula. They give no reason to doubt it,
# and a small error would need more of them to show.

# %% [markdown]
# ## Recap
#
# - P_i = exp(z_i/T) / Σ_j exp(z_j/T): T divides the logits, above and below the line, before the softmax.
# - Subtract the row's maximum before `exp`. Logs: z_i/T - logsumexp(z/T), never the log of a finished probability.
# - T → 0 is greedy, T → ∞ is uniform. In between entropy only grows; say whether you mean nats or bits.
# - Ranks stay. Log-odds scale with 1/T, so ratios are taken to the power of 1/T.
# - A sum other than 1 gives a wrong formula away; a sum of 1 does not prove it right.
# - Without `top_k` or `top_p` this server is greedy, and then `temperature` does nothing.

# %% [markdown]
# ## Break it
#
# What would a *negative* temperature do? **Predict** it from the formula: which token has the highest probability at
# T = -1? And will the server let you?

# %%
print("by the formula:", stable_softmax(paper, -1.0).round(3))
try:
    print(continued(temperature=-1.0, top_p=1.0))
except InferenceServerException as error:
    print("the server:", error.message())

# %% [markdown]
# Dividing by a negative number turns the order around: the least likely token wins. Nobody wants that from a language
# model, so the server refuses.
#
# Try more: ask for `temperature=50.0` with `top_p=1.0` and read what uniform sampling from a vocabulary looks like. Or
# hold the samples of `cold` against the probabilities of `hot`, and the reverse.
#
# The server and its folder go. The last line says what produced the numbers on this page.

# %%
client.close()
server.stop()
notebook.record(
    samples=samples, intervals_inside=int(inside), highest_probability=softmax(z).max(), entropy_nats=entropy(z, 1)
)
