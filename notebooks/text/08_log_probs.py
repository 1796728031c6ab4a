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
# # 08 · Log probabilities
#
# You multiply the probabilities of a served answer until your computer says zero, and learn to add, compare and judge
# with their logs instead.
#
# After this notebook you can
#
# - say where a product of probabilities becomes zero in float16, float32 and float64, and why
# - read a log probability in base e, 10 or 2, and go back
# - get log probabilities and logits from the server, and say which softmax they come from
# - add probabilities whose logs are all you have, and score a text by its perplexity
# - use the probability of an answer as a signal, with a threshold and its uncertainty
#
# **Time:** 45 minutes (last run: 78 s) · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# Previous: [07 · Sampling](07_sampling.ipynb) · Next: [09 · Beam search](09_beam_search.ipynb)

# %%
import json
import timeit

import numpy as np
import tritonclient.grpc as grpcclient
from scipy.special import log_softmax, logsumexp, softmax
from scipy.stats import binomtest
from tokenizers import Tokenizer

from servinglab import notebook
from servinglab.checks import check
from servinglab.client import gather, inputs
from servinglab.explore import explore
from servinglab.figures import log_probs as figures
from servinglab.figures.style import show
from servinglab.root import find_root
from servinglab.serving import serve

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
precision: str = "fp32"  # weights of the default model: "fp32" or "int4"
prompt: str = "Once upon a time, a fox"  # what the model continues
max_tokens: int = 320  # length of the two stories, in tokens, at least 21
temperature: float = 1.0  # of the stories; the lower, the likelier each token
seed: int = 0  # of the stories, the scrambled sentence and the timed numbers

# %% [markdown]
# `begin` notes when this page started. Stories that are too short for section 6 stop it here.

# %%
assert max_tokens >= 21, "section 6 looks at the last 20 tokens of the stories"
lane = notebook.begin("08", lane, seed=seed, weights=precision)

# %% [markdown]
# ## 1 Three tokens by hand
#
# A model gives the three tokens of an answer the probabilities 1/2, 1/4 and 1/8, each given the tokens before it. The
# answer's probability is their product, 1/64.
#
# A logarithm turns the product into a sum. In base 2 you can do it in your head: −1 − 2 − 3 = −6, and 2⁻⁶ = 1/64.
#
# **Predict:** in base e or 10 the logs are other numbers. Does the way back still lead to 1/64?

# %% tags=["nbval-check-output"]
bases = {"2": np.log2, "e": np.log, "10": np.log10}
number = {"2": 2.0, "e": np.e, "10": 10.0}
p = np.array([1 / 2, 1 / 4, 1 / 8])
for base, log in bases.items():
    total = log(p).sum()
    print(f"base {base:3} logs {log(p).round(3)}  sum {total:.3f}  back {number[base] ** total:.6f}  1/64 {1 / 64:.6f}")

# %% [markdown]
# It does, if you go back with the base that you came with. One quantity, three units: base 2 counts **bits**, base e
# counts **nats**. PyTorch, NumPy's `log`, TensorRT-LLM and this course mean base e when they say "log prob".
#
# ## 2 Which base is it?
#
# A report compares two answers. It says: probabilities 0.00357 and 0.00326, logs −2.447 and −2.486.
#
# **Predict:** which base did it use?

# %% tags=["nbval-check-output"]
first, second = 0.00357, 0.00326
for base, log in bases.items():
    logs = f"{log(first):7.3f} {log(second):7.3f}"
    print(f"base {base:3} {logs}   {number[base]:.3f} ** -2.447 = {number[base] ** -2.447:.5f}")

# %% [markdown]
# Base 10. (−2.4868 would round to −2.487; the report cut it off.) Take the numbers for natural logs, and you believe in
# a probability 24 times as large. A log without its base is half a number: divide a natural log by ln 10 = 2.303 to get
# base 10, by ln 2 = 0.693 to get base 2.
#
# Less negative is more likely, and 0 is certain. How much more likely? **A difference of logs is the log of a ratio.**

# %% tags=["nbval-check-output"]
print(f"ratio       {first / second:.3f}")
print(f"from base e {np.exp(np.log(first) - np.log(second)):.3f}")
print(f"from base 10 {10 ** (-2.447 - -2.486):.3f} (with the report's digits)")

# %% [markdown]
# The first answer is 1.09 or 1.10 times as likely as the second, about 9 % more. Rounding costs little here: an error
# of 0.001 in a base-10 log is an error of 0.2 % in the probability, however small that is.
#
# ## 3 Log probabilities from the server
#
# Start a server, and ask for two more outputs: `return_log_probs` gives a number for each generated token,
# `return_generation_logits` the model's raw scores for all tokens of the vocabulary. The parameter
# `normalize_log_probs` is meant for NVIDIA's backend; what it does follows below.

# %%
server = serve(precision=precision, parameters={"normalize_log_probs": False})
client = grpcclient.InferenceServerClient(server.grpc_url)


# %% [markdown]
# `ask` sends requests all at once, each with the settings that they share.

# %%
def ask(requests, **shared):
    """{key: settings} → {key: results}, in the order in which they arrived."""
    shared = {"return_log_probs": True, "exclude_input_in_output": True, **shared}
    return gather(client, "tensorrt_llm_bls", {key: inputs(**shared | each) for key, each in requests.items()})


def text(result):
    return result.as_numpy("text_output")[0].decode()


# %% [markdown]
# Eight tokens, the likeliest one each time. While streaming, each response holds the log probs of *all* tokens so far,
# so the last one has them all; the logits are those of the new token alone.

# %%
eight = {"text_input": prompt, "max_tokens": 8, "return_generation_logits": True}
chunks = ask({"eight": eight}, stream=True)["eight"]
log_probs = chunks[-1].as_numpy("output_log_probs")[0, 0]
logits = np.concatenate([chunk.as_numpy("generation_logits")[0, 0] for chunk in chunks])
print("log probs", log_probs.shape, " logits", logits.shape)
for chunk, log_prob in zip(chunks, log_probs, strict=False):
    print(f"{text(chunk)!r:12} log prob {log_prob:7.3f}  probability {np.exp(log_prob):.3f}")

# %% [markdown]
# **Predict:** from which softmax do these numbers come? Of the logits as they are, or of something else? Take the
# softmax yourself. Greedy took the highest logit of each row.

# %% tags=["nbval-check-output"]
own = log_softmax(logits, axis=-1).max(axis=-1)
print("as in the response:", np.allclose(own, log_probs[: len(own)], atol=1e-3))
print("sum is cum_log_probs:", np.allclose(log_probs.sum(), chunks[-1].as_numpy("cum_log_probs"), atol=1e-3))

# %% [markdown]
# The natural log of a softmax over the whole vocabulary. With penalties, a bias, or a temperature in sampling, it is
# the softmax of what those made of the logits: of the distribution that the token was drawn from, before `top_k` and
# `top_p` cut it.
#
# <details><summary>What TensorRT-LLM does</summary>
#
# TensorRT-LLM differs in one point: with `normalize_log_probs` true its `output_log_probs` are relative to the tokens
# that survive top-k. Greedy keeps one, so each of its log probs is **0.0**, probability 1, and
# [users wonder why](https://github.com/triton-inference-server/tensorrtllm_backend/issues/276). That is the default up
# to 1.2; [pull request 12366](https://github.com/NVIDIA/TensorRT-LLM/pull/12366) of March 2026, so by its date 1.3,
# turns the executor's default off. The repository above says `False`, so that it does not depend on the version. The
# embedded server has only this one kind of log prob and ignores the parameter.
#
# </details>

# %% [markdown]
# Log softmax is `z − logsumexp(z)`. Is `log(softmax(z))` not the same? On paper it is. Take the logits of the first
# token, and keep the results in half precision, as is common on a GPU. **Predict:** for how many tokens of the
# vocabulary does each way give no usable answer?

# %%
with np.errstate(divide="ignore"):
    detour = np.log(softmax(logits[0]).astype(np.float16))
direct = log_softmax(logits[0]).astype(np.float16)
print(f"log(softmax): {np.isneginf(detour).sum():,} of {detour.size:,} are -inf")
print(f"log_softmax:  {np.isneginf(direct).sum():,}, and the lowest is {direct.min():.1f}")


# %% [markdown]
# A small probability became 0 on the way, and the log of 0 is −∞. Log softmax subtracts and never leaves log space. So
# do not take the log of a softmax.
#
# **Exercise 08.1** Write the log probability of a given text from its logits. `logits` is `[T, vocab]`, `ids` is `[T]`.
# Row `t` was computed when the model had read `ids[0]` to `ids[t]`. Return log p(ids[1], …, ids[T − 1] given ids[0]),
# natural, as one number.

# %% tags=["exercise:08.1"]
def sequence_log_prob(logits, ids): ...  # one number


# %% tags=["check:08.1", "nbval-check-output"]
check("08.1", sequence_log_prob)


# %% [markdown]
# ## 4 Multiply until it is gone
#
# How small can a number be? Start at 1 and halve it. **Predict:** after how many steps is it 0, in float16, float32 and
# float64?

# %%
def halvings(dtype, flush=False):
    x, steps = dtype(1), 0
    while x > 0:
        x, steps = x / dtype(2), steps + 1
        if flush and x < np.finfo(dtype).tiny:
            x = dtype(0)
    return steps


# %% [markdown]
# The last column does the same on a machine that *flushes to zero*; what that is comes after the table.

# %% tags=["nbval-check-output"]
dtypes = [np.float16, np.float32, np.float64]
print("dtype    zero after  smallest normal  smallest subnormal  zero after, flushed")
for dtype in dtypes:
    limits = np.finfo(dtype)
    small = f"{limits.tiny:15.1e}  {limits.smallest_subnormal:18.1e}"
    print(f"{dtype.__name__:8} {halvings(dtype):10}  {small}  {halvings(dtype, flush=True):19}")

# %% [markdown]
# 25, 150 and 1075. A **normal** number has all its digits. Below the smallest normal one come the **subnormals**, which
# buy 10, 23 or 52 more halvings with fewer and fewer digits; the smallest has one bit. Half of that rounds to 0. Some
# chips and compilers trade subnormals for speed and *flush* them *to zero*; then it ends earlier.
#
# (bfloat16, common on GPUs, has the range of float32 and fewer digits: 0 after 134 halvings.)
#
# Now something real: two stories of `max_tokens` tokens, sampled from the whole distribution (`top_p` 1), both at once.
# `min_tokens` keeps the end token away.

# %% tags=["varies"]
tell = {"text_input": prompt, "max_tokens": max_tokens, "min_tokens": max_tokens, "top_p": 1.0}
both = ask({seed + i: tell | {"temperature": temperature, "seed": seed + i} for i in range(2)}, stream=False)
stories = [result for (result,) in both.values()]
story, other = (result.as_numpy("output_log_probs")[0, 0].astype(float) for result in stories)
mean = story.mean()
print(text(stories[0])[:200], "…")
print(f"{len(story)} tokens, mean log prob {mean:.2f} nats: a typical probability is {np.exp(mean):.2g}")

# %% [markdown]
# **Predict:** a product is 0 when its log is below that of half the smallest subnormal. Divide that by the mean log
# prob: at which token does each dtype arrive there? Will float64 survive the story?

# %%
expected = {}
for dtype in dtypes:
    lowest = np.log(float(np.finfo(dtype).smallest_subnormal)) - np.log(2)
    expected[dtype.__name__] = lowest / mean
    print(f"{dtype.__name__}: below {lowest:.1f} nats, about token {lowest / mean:.0f}")

# %% [markdown]
# Multiply, token by token, and round after each step as the dtype does.

# %%
products = {each.__name__: np.multiply.accumulate(np.exp(story).astype(each)) for each in dtypes}
log_sum = np.cumsum(story)
zero_at = {name: int((product > 0).sum()) + 1 for name, product in products.items()}
for name, product in products.items():
    token = zero_at[name]
    gone = f"0 from token {token} on" if token <= len(story) else f"still {product[-1]:.0e} at the end"
    print(f"{name}: {gone} (expected {expected[name]:.0f})")

# %% [markdown]
# The figure has a panel for each dtype. The coloured line is the product, the band is the range of the subnormals, the
# thin black line is the sum of the logs.

# %%
gone = [str(token) for token in zero_at.values() if token <= len(story)]
power = log_sum[-1] / np.log(10)
summary = f"after {len(story)} tokens the sum is {log_sum[-1]:.0f} nats: 10 to the power {power:.0f}"
title = f"The product is lost at token {', '.join(gone) or '(none)'}; the sum of logs goes on"
show(figures.underflow(products, log_sum), title, summary)

# %% [markdown]
# A product that is lost went through the band or jumped over it. In the band it is a whole multiple of the smallest
# subnormal, so it has lost digits before it became 0, and nothing warned you. The last product of each dtype:

# %%
for dtype in dtypes:
    name = dtype.__name__
    t = max(min(zero_at[name], len(story) + 1) - 2, 0)
    product, limits = float(products[name][t]), np.finfo(dtype)
    kind = "subnormal" if product < limits.tiny else "normal"
    off = 100 * np.expm1(np.log(product) - log_sum[t])
    steps = product / float(limits.smallest_subnormal)
    print(f"{name}: {product:.2e}, {kind}, {steps:.2g} times the smallest, off by {off:+.2g} %")

# %% [markdown]
# The sum does not vanish. Its digits are finite, too: added up in float32 it errs by a small fraction of a nat here,
# and by whole nats after a story a thousand times longer. So add in float64 (section 6 measures it).
#
# ## 5 Adding probabilities: log-sum-exp
#
# Logs make products easy. What about sums: the probability of this answer *or* that one? You need log(eᵃ + eᵇ).
#
# By hand, for three logs −1000, −1001 and −1002. Every exponential is 0 in float64. So take the largest out first:
#
# log(e⁻¹⁰⁰⁰ + e⁻¹⁰⁰¹ + e⁻¹⁰⁰²) = −1000 + log(1 + 0.368 + 0.135) = −1000 + log 1.503 = −1000 + 0.408
#
# **Predict:** what does the direct way give?

# %% tags=["nbval-check-output"]
logs = np.array([-1000.0, -1001.0, -1002.0])
with np.errstate(divide="ignore"):
    print("direct:", np.log(np.exp(logs).sum()))
print("largest taken out:", round(logs.max() + np.log(np.exp(logs - logs.max()).sum()), 3))
print("scipy's logsumexp:", logsumexp(logs).round(3))

# %% [markdown]
# −∞, the log of zero. Subtracting the largest makes one exponential e⁰ = 1, so the sum can be neither 0 nor too large.
# The same trick keeps a softmax of large logits from overflowing.
#
# Now the two stories. One of them was told: which is likelier, given that it was one of the two? That is
# pₐ / (pₐ + p_b), in logs a difference.

# %%
a, b = story.sum(), other.sum()
either = logsumexp([a, b])
print(f"log probs {a:.1f} and {b:.1f}; of one or the other {either:.1f}")
print(f"directly p is {np.exp(a)} and {np.exp(b)}")
print(f"given one of the two, the first has {np.exp(a - either):.2g}, the second {np.exp(b - either):.2g}")


# %% [markdown]
# The sum of two such numbers is practically equal to the larger one. Their ratio is no small matter: a few nats decide
# it.
#
# **Exercise 08.2** Write `log_add(a, b)`: two natural logs in, the natural log of the sum of the two probabilities out.
# It must work for −1000 and −3000 in either order, and when one is −∞.

# %% tags=["exercise:08.2"]
def log_add(a, b): ...  # one number


# %% tags=["check:08.2", "nbval-check-output"]
check("08.2", log_add)

# %% [markdown]
# ## 6 Is log space cheaper?
#
# One reads that logs are faster, because adding is cheaper than multiplying. Compare like with like: 5,000 answers of
# 64 tokens, short enough for a product that is still right. And ask where the numbers come from: from a softmax over
# the vocabulary, in a step of the model. **Predict** the order of the four, and by what factors they differ.

# %%
kept = np.random.default_rng(seed).choice(story, (5000, 64))  # log probs that the server sent
p, row = np.exp(kept), logits[0].astype(float)
ways = {
    "product": (lambda: p.prod(axis=1), p.size),
    "sum of kept logs": (lambda: kept.sum(axis=1), p.size),
    "take logs, then sum": (lambda: np.log(p).sum(axis=1), p.size),
    "softmax of the logits": (lambda: softmax(row), 1),
}

# %%
plain = gather(client, "tensorrt_llm_bls", {0: inputs(text_input=prompt, max_tokens=24, min_tokens=24, stream=True)})[0]
ns = {way: 1e9 * np.median(timeit.repeat(work, number=1, repeat=21)) / n for way, (work, n) in ways.items()}
ns["a step of the model"] = 1e9 * np.median(np.diff([chunk.seconds for chunk in plain]))
for way, value in ns.items():
    print(f"{way:22} {value:14,.1f} ns for one token")

# %% [markdown]
# Do not choose logs for speed. A processor adds about as fast as it multiplies; logs cost time when you take them again
# and again, so keep those you have. And all of it is small beside the softmax, which both ways need, and smaller still
# beside the model.
#
# Where logs do save work is with **parts** of a sequence. Keep the running sum, and the log prob of any span is one
# subtraction. **Predict:** the last 20 tokens of the story, from running products?

# %%
for dtype, product in products.items():
    with np.errstate(invalid="ignore", divide="ignore"):
        print(f"{dtype}: ratio of running products {float(product[-1] / product[-21])}")
print(f"running logs: {log_sum[-1] - log_sum[-21]:.4f}, and added again {story[-20:].sum():.4f} nats")

# %% [markdown]
# Where a product has vanished, 0 divided by 0 is no number. And **memory**: a log takes as many bytes as a probability
# of the same dtype, but a smaller dtype will do. **Predict:** how far off is a sum of a thousand such stories, added
# one by one in float32?

# %%
long = np.random.default_rng(seed).choice(story, 1000 * len(story))  # its log probs, as if it went on like this
narrow = np.add.accumulate(long.astype(np.float32))[-1]
wide = long.astype(np.float32).sum(dtype=float)
print(f"{len(long):,} tokens, {long.sum():.0f} nats; added one by one in float32: {narrow - long.sum():+.1f} nats off,")
print(f"kept in float32 and added in float64: {wide - long.sum():+.5f} nats off")

# %% [markdown]
# A nat is a factor of 2.7. Keep logs in float32, add them in float64. (NumPy's own `sum` errs less than the first line,
# because it adds in blocks; a loop, or a running sum on a server, adds one by one. In float16 keep single logs if you
# must: beyond −512 its numbers are 0.5 apart.)

# %% [markdown]
# ## 7 Perplexity
#
# How well does the model predict a text that it did not write? The sum of the log probs falls with every token, so take
# the mean: **perplexity** is exp(−mean log p). By hand, for 1/2, 1/4, 1/8: the mean is −2 bits, so 2² = 4. The model
# was as unsure as among 4 equally likely tokens.

# %% tags=["nbval-check-output"]
logs = np.log([1 / 2, 1 / 4, 1 / 8])
print(f"base e: exp({-logs.mean():.3f}) = {np.exp(-logs.mean()):.3f}")
print(f"base 2: 2 ** {-np.log2(np.exp(logs)).mean():.3f} = {2 ** -np.log2(np.exp(logs)).mean():.3f}")


# %% [markdown]
# `return_context_logits` sends the logits of every token of the prompt, so one request scores a whole text. Row `t`
# predicts token `t + 1`; the first token has nothing before it and gets no score. (An engine of TensorRT-LLM must be
# built with `--gather_context_logits` for this.)

# %%
def score(words):
    """The ids of a text, and the log prob of each but the first."""
    ids = client.infer("preprocessing", inputs(QUERY=words, REQUEST_OUTPUT_LEN=1)).as_numpy("INPUT_ID")[0]
    (result,) = ask({0: {"text_input": words}}, max_tokens=1, stream=False, return_context_logits=True)[0]
    rows = log_softmax(result.as_numpy("context_logits")[0].astype(float), axis=-1)
    return ids, rows[np.arange(len(ids) - 1), ids[1:]]


# %% [markdown]
# Three texts: a sentence, the same words in another order, and only the first four words of that disorder.
#
# **Predict:** which has the highest probability, and which the lowest perplexity?

# %%
sentence = "The dog ran across the street and chased the ball into the garden."
words = list(np.random.default_rng(seed).permutation(sentence.rstrip(".").split()))
texts = {"sentence": sentence, "scrambled": " ".join(words) + ".", "four words": " ".join(words[:4])}
scored = {name: score(words) for name, words in texts.items()}
for name, (_, logs) in scored.items():
    perplexed = np.exp(-logs.mean())
    print(f"{name:10} {len(logs):2} tokens, log prob {logs.sum():7.1f}, perplexity {perplexed:9.1f}")

# %% [markdown]
# Four words without sense can be "more probable" than a good long sentence, simply because they are few: every factor
# below 1 lowers a product. That is **length bias**. The mean, and so the perplexity, compares texts of different
# lengths. (Only with the same tokenizer: it decides what a token is.)
#
# Where does the disorder surprise the model? The names of the tokens come from the tokenizer that the server uses.

# %%
configuration = client.get_model_config("preprocessing").config.parameters
tokenizer = Tokenizer.from_file(configuration["tokenizer_dir"].string_value + "/tokenizer.json")
bars = {
    texts[name]: ([tokenizer.decode([int(i)]) for i in scored[name][0]], scored[name][1])
    for name in ("sentence", "scrambled")
}

# %%
worse = np.exp(scored["sentence"][1].mean() - scored["scrambled"][1].mean())
summary = ", ".join(f"{name}: {-scored[name][1].mean():.1f} nats a token" for name in ("sentence", "scrambled"))
show(figures.surprise(bars), f"In disorder a token is {worse:.0f} times less likely (geometric mean)", summary)


# %% [markdown]
# **Exercise 08.3** Write `perplexity(log_probs)` for a list of natural log probs, also for a text of 2000 tokens.

# %% tags=["exercise:08.3"]
def perplexity(log_probs): ...  # one number


# %% tags=["check:08.3", "nbval-check-output"]
check("08.3", perplexity)

# %% [markdown]
# ## 8 May you trust an answer's probability?
#
# A log prob comes free with each answer. Could it tell you which answers to believe? You need questions whose answers
# you know. Here are 60 short ones: capitals, opposites, sums, what comes next, facts.

# %%
labelled = json.loads((find_root() / "data/decoding/questions.json").read_text())
example, questions = labelled["example"], labelled["questions"]
print(len(questions), "questions, such as", questions[0])
print(repr(example))


# %% [markdown]
# One example shows the model the form. An answer ends with its line, so the stop word is a line break. All questions go
# out at once; the server takes as many together as it has room for.

# %%
def answer(entries, **settings):
    """One result for each question."""
    requests = {n: {"text_input": f"{example}Q: {entry['question']}\nA:"} for n, entry in enumerate(entries)}
    found = ask(requests, max_tokens=8, stop_words=["\n"], stream=False, **settings)
    return [result for (result,) in found.values()]


# %% [markdown]
# The probability of an answer is that of its tokens *and* of ending there: the line break counts. `cum_log_probs` is
# the sum over both. An answer that is cut off at 8 tokens did not end; that factor is missing, so its number is too
# high. An answer is right if it is one of the accepted ones.

# %%
answers = answer(questions)
given = [text(each).strip() for each in answers]
accepted = [list(map(str.lower, entry["answers"])) for entry in questions]
right = np.array([words.rstrip(".").lower() in known for words, known in zip(given, accepted, strict=True)])
sums = np.array([each.as_numpy("cum_log_probs")[0, 0] for each in answers], float)
tokens = np.array([each.as_numpy("output_log_probs").shape[-1] for each in answers])
probability = np.minimum(np.exp(sums), 1)

# %% tags=["varies"]
cut = sum("\n" not in text(each) and n == 8 for each, n in zip(answers, tokens, strict=True))
print(f"{cut} of {len(answers)} answers were cut off; the three likeliest and the three least likely:")
for i in np.argsort(-probability)[[0, 1, 2, -3, -2, -1]]:
    print(f"{probability[i]:.3f} {'right' if right[i] else 'wrong'}  {questions[i]['question']} {given[i]}")

# %% [markdown]
# **Predict:** of the answers with a probability near 0.8, are 80 % right? And how many are right of all?
#
# A **reliability plot** sorts answers into bins by confidence and compares each bin with its share of right answers. On
# the dashed line, confidence is what it says. The bars are Wilson's 95 % intervals (notebook 06), the numbers how many
# answers a bin has: with so few, the bars are long. Beside it stands the mean per token, exp(mean log p).

# %%
signals = {"probability of the answer": probability, "per token (geometric mean)": np.exp(sums / tokens)}
title = f"{100 * right.mean():.0f} % are right; the answers' probabilities say {100 * probability.mean():.0f} %"
summary = f"of {len(right)} answers {right.sum()} are right; the mean probability is {probability.mean():.2f}"
show(figures.reliability(signals, right), title, summary)

# %% [markdown]
# The left panel in numbers:

# %%
bin_of = np.minimum((probability * 5).astype(int), 4)
for rights, said in ((right[bin_of == b], probability[bin_of == b]) for b in np.unique(bin_of)):
    low, high = binomtest(int(rights.sum()), len(rights)).proportion_ci(method="wilson")
    print(f"said {said.mean():.2f}: {rights.mean():.2f} of {len(rights):2} are right, 95 % interval", end=" ")
    print(f"{low:.2f} to {high:.2f}")

# %% [markdown]
# On the whole, likelier answers are right more often: the order carries information. And the level? With the default
# parameters it fits around 0.7 and 0.9, as far as 18 answers can tell. Lower down it does not: of those with about 0.3,
# three quarters are right, and the interval lies above 0.3. So the number is no share of right answers until you have
# measured it.
#
# The probability of a *text* is not the probability of being *right*: a right answer can be worded in several ways
# ("kitten", "A kitten"), each with its share, and the model may believe in a wrong one. (The mean per token is the
# probability of nothing at all. If its dots lie nearer to the line, that is a property of this set of questions.)

# %% [markdown]
# Use it as a signal: answer above a threshold, pass the rest on. What does a threshold buy? A dot is an answer. (In a
# live notebook, move the slider.)

# %%
explore(
    lambda axes, threshold: figures.kept(axes, probability, right, threshold),
    title=f"Wrong answers reach up to {probability[~right].max():.2f}, right ones go down to "
    f"{probability[right].min():.2f}",
    summary=f"{right.sum()} right and {(~right).sum()} wrong answers by probability",
    threshold=[0.2, 0.5, 0.7], live={"threshold": [n / 20 for n in range(20)]},
)  # fmt: skip

# %% [markdown]
# You buy **precision**, the share of right ones among those kept, with **coverage**, the share kept. A threshold chosen
# on the same answers that judge it looks too good, so choose on one half: the lowest threshold with 80 % right on the
# even questions. **Predict:** will the odd ones reach 80 %?

# %%
even = np.arange(len(right)) % 2 == 0
good = [t for t in np.sort(probability[even]) if right[even & (probability >= t)].mean() >= 0.8]
threshold = float(good[0]) if good else 1.0
chosen, judged = (right[half & (probability >= threshold)] for half in (even, ~even))
low, high = binomtest(int(judged.sum()), len(judged)).proportion_ci(method="wilson") if len(judged) else (0, 1)
print(f"even, chosen here: from {threshold:.2f} on, {chosen.sum()} of {len(chosen)} right")
print(f"odd, judged here: {judged.sum()} of {len(judged)} right; 95 % interval {100 * low:.0f} to {100 * high:.0f} %")

# %% [markdown]
# Only the odd half gets an interval: on the even one the threshold was picked because it looks good. The interval says
# how little 30 questions can promise. A real threshold needs hundreds of labelled answers from your own task.
#
# The most confident wrong answers show what no useful threshold can catch:

# %% tags=["varies"]
mistaken = [i for i in np.argsort(-probability) if not right[i]][:4]
for i in mistaken:
    print(f"{probability[i]:.2f}  {questions[i]['question']} {given[i]} (not {questions[i]['answers'][0]})")

# %% [markdown]
# ## Recap
#
# - A log prob here is natural, from a softmax over the whole vocabulary; another base is another unit.
# - Products become sums, ratios become differences; sums of probabilities need log-sum-exp, with the largest taken out.
# - Halving reaches 0 after 25, 150 and 1075 steps in float16, float32 and float64; subnormals lose digits before that.
# - Log space is not about speed. It is about range, and about parts that you can subtract.
# - Perplexity is exp(−mean log p); without the mean, short texts win.
# - An answer's probability ranks answers. What it promises must be measured on labelled ones, with an interval.

# %% [markdown]
# ## Break it
#
# Ask ten questions again with `top_k` 1, which always takes the likeliest token, and a temperature of 0.3. **Predict:**
# do the answers change? Do their probabilities?

# %% tags=["varies"]
cold = answer(questions[:10], top_k=1, temperature=0.3)
same = sum(text(each).strip() == words for each, words in zip(cold, given, strict=False))
print(f"same answers: {same} of {len(cold)}")
for i in range(3):
    print(f"{given[i]:10} {probability[i]:.3f} → {np.exp(cold[i].as_numpy('cum_log_probs')[0, 0]):.3f}")

# %% [markdown]
# The same texts, and suddenly the model seems sure. The log probs belong to the distribution after the temperature,
# before `top_k`, and a low temperature sharpened it. A threshold is only good for the settings it was measured with.
#
# Try more: set `temperature = 2` for the stories and see how much sooner the products end, or score a text in another
# language.
#
# The last line says what produced the numbers on this page.

# %%
client.close()
server.stop()
zeros = {f"zero_at_{name}": token if token <= len(story) else None for name, token in zero_at.items()}
notebook.record(tokens=len(story), **zeros, right=int(right.sum()), asked=len(right), threshold=round(threshold, 3))
