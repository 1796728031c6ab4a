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
# You multiply the probabilities of a served answer until your computer says zero, then learn to work with their logs
# instead.
#
# After this notebook you can
#
# - say at which token a product of probabilities becomes zero in float16, float32 and float64, and why
# - read a log probability in base e, 10 or 2
# - get log probabilities and logits from the server, and say which softmax they come from
# - add probabilities whose logs you have, and score a text by its perplexity
# - let a service answer only when it is sure enough, with a threshold and its uncertainty
#
# **Time:** 45 minutes · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# read: 10 min, do: 35 min
#
# Previous: [07 · Sampling](07_sampling.ipynb) · Next: [09 · Beam search](09_beam_search.ipynb)

# %%
import json
import timeit

import matplotlib.pyplot as plt
import numpy as np
import tritonclient.grpc as grpcclient
from scipy.special import log_softmax, logsumexp, softmax
from scipy.stats import binomtest
from tokenizers import Tokenizer

from plots import log_probs as figures
from servinglab import notebook
from servinglab.checks import check
from servinglab.client import gather, inputs
from servinglab.explore import explore
from servinglab.figures.style import show
from servinglab.root import find_root
from servinglab.serving import serve

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
precision: str = "fp32"  # weights of the default model: "fp32" or "int4"
prompt: str = "Once upon a time, a fox"  # what the model continues
max_tokens: int = 320  # length of the two stories, in tokens
temperature: float = 1.0  # of the stories; the lower, the likelier each token
seed: int = 0  # of the stories, the scrambled sentence and the timed numbers

# %%
lane = notebook.begin("08", lane, seed=seed, weights=precision)

# %% [markdown]
# ## 1 Which base is it?
#
# A model gives the three tokens (pieces of words) of an answer the probabilities 1/2, 1/4 and 1/8, each given those
# before it. The answer's probability is their product, 1/64. A logarithm turns the product into a sum. In base 2:
# $-1-2-3=-6$, and $2^{-6}=1/64$. Any base does, if you return with the one you started with. Base 2 counts **bits**,
# base e **nats**.
#
# A report gives two answers the probabilities 0.00357 and 0.00326, and their logs as −2.447 and −2.486.
#
# **Predict:** which base did it use: 2, e or 10?

# %% tags=["nbval-check-output"]
number = {"2": 2.0, "e": np.e, "10": 10.0}
for base, value in number.items():
    print(f"base {base:2}: the log of 0.00357 is {np.log(0.00357) / np.log(value):6.3f}, "
          f"and -2.447 leads back to {value ** -2.447:.5f}")  # fmt: skip

# %% [markdown]
# It used base 10. Read as natural logs, these would be probabilities 24 times as large. PyTorch, NumPy's `log`,
# TensorRT-LLM and this course mean base e by "log prob".
#
# Less negative is more likely; 0 is certain. How much more likely? **A difference of logs is the log of a ratio**:
# $10^{-2.447+2.486}=1.094$, so the first answer is 9 % more likely than the second.
#
# ## 2 Which softmax are the server's log probs from?
#
# Start a server and ask for two more outputs. `return_log_probs` gives a number for each generated token,
# `return_generation_logits` the **logits**: the model's raw scores, one for each token of the vocabulary. **Softmax**
# turns logits into probabilities that sum to 1 (notebook 06).

# %%
server = serve(precision=precision, parameters={"normalize_log_probs": False})
client = grpcclient.InferenceServerClient(server.grpc_url)


# %% [markdown]
# `ask` sends several requests at once, with shared settings.

# %%
def ask(requests, **shared):
    """{key: settings} → {key: results}, in the order in which they arrived."""
    shared = {"return_log_probs": True, "exclude_input_in_output": True, **shared}
    return gather(client, "tensorrt_llm_bls", {key: inputs(**shared | each) for key, each in requests.items()})


def text(result):
    return result.as_numpy("text_output")[0].decode()


# %% [markdown]
# Generate eight tokens, each the likeliest: greedy decoding keeps one token of 49,152.
#
# **Predict:** do the log probs come from the softmax over the whole vocabulary, or over the tokens that decoding keeps?
# Then each would be log 1 = 0.

# %%
eight = {"text_input": prompt, "max_tokens": 8, "return_generation_logits": True}
chunks = ask({"eight": eight}, stream=True)["eight"]
log_probs = chunks[-1].as_numpy("output_log_probs")[0, 0]  # of all tokens so far; the logits are of the new one alone
logits = np.concatenate([chunk.as_numpy("generation_logits")[0, 0] for chunk in chunks])
own = log_softmax(logits, axis=-1).max(axis=-1)
fig, axes = plt.subplots(figsize=(7.5, 2.6))
axes.bar(range(len(own)), log_probs[: len(own)], color="#9AD3F5", label="served")
axes.plot(own, "x", color="#222222", label="softmax over all of the row's logits")
axes.set_xticks(range(len(own)), [repr(text(chunk)) for chunk in chunks[: len(own)]])
axes.set(ylabel="log prob (nats)", ylim=(1.4 * own.min(), 0))
axes.legend(loc="lower left", ncols=2)
far = np.abs(own - log_probs[: len(own)]).max()
show(fig, f"Served and calculated differ by at most {far:.1g}", f"{own.round(3)}; sum {own.sum():.2f}")


# %% [markdown]
# From the whole vocabulary, in natural logs. (`cum_log_probs` is their sum.) Penalties, a bias or a sampling
# temperature change the logits before the softmax; `top_k` and `top_p` cut after it.
#
# <details><summary>What TensorRT-LLM does: why all log probs may be 0.0</summary>
#
# With `normalize_log_probs` true, its `output_log_probs` are relative to the tokens that survive top-k. Greedy keeps
# one, so each of its log probs is **0.0**, probability 1, and [users wonder
# why](https://github.com/triton-inference-server/tensorrtllm_backend/issues/276). True is the default up to 1.2; [pull
# request 12366](https://github.com/NVIDIA/TensorRT-LLM/pull/12366) of March 2026 (by its date 1.3) turns it off. The
# server above sets `False`. The embedded server has only this one kind of log prob and ignores the parameter.
#
# </details>

# %% [markdown]
# **Exercise 08.1** (●●○, 8 minutes) Write the log probability of a given text from its logits. `logits` is `[T,
# vocab]`, `ids` is `[T]`. Row `t` was computed when the model had read `ids[0]` to `ids[t]`. Return the natural log of
# p(ids[1], …, ids[T − 1] given ids[0]) as one number. Stay in the log form, which loses none (notebook 06, section 4).
#
# <details><summary>Hint 1</summary>
#
# Which token does row `t` predict? And which token of the text has nothing that predicts it?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# With three ids the sum has two terms. If yours has three, which row scores a token that is not in the text?
#
# </details>

# %% tags=["exercise:08.1"]
def sequence_log_prob(logits, ids): ...  # one number


# %% tags=["check:08.1", "nbval-check-output"]
check("08.1", sequence_log_prob)

# %% [markdown]
# <details><summary>Solution 08.1</summary>
#
# ```python
# def sequence_log_prob(logits, ids):
#     rows = log_softmax(logits, axis=-1)
#     return sum(rows[t, ids[t + 1]] for t in range(len(ids) - 1))
# ```
#
# </details>

# %% [markdown]
# ## 3 When is the product zero?
#
# Two stories of `max_tokens` tokens, sampled from the whole distribution (`top_p` 1). `min_tokens` holds the end token
# back. A product becomes 0 when it falls below half the smallest number of its dtype (number format).

# %% tags=["varies"]
tell = {"text_input": prompt, "max_tokens": max_tokens, "min_tokens": max_tokens, "top_p": 1.0}
both = ask({seed + i: tell | {"temperature": temperature, "seed": seed + i} for i in range(2)}, stream=False)
stories = [result for (result,) in both.values()]
story, other = (result.as_numpy("output_log_probs")[0, 0].astype(float) for result in stories)
mean = story.mean()
print(text(stories[0])[:200], "…")
print(f"{len(story)} tokens, mean log prob {mean:.2f} nats: a typical probability is {np.exp(mean):.2g}")
dtypes = [np.float16, np.float32, np.float64]
lowest = {each.__name__: np.log(float(np.finfo(each).smallest_subnormal)) - np.log(2) for each in dtypes}
print("0 below", ", ".join(f"{low:.1f} nats in {name}" for name, low in lowest.items()))

# %% [markdown]
# **Predict:** divide each limit by the mean. At which token does each dtype get there? Will float64 survive the story?

# %%
products = {each.__name__: np.multiply.accumulate(np.exp(story).astype(each)) for each in dtypes}
log_sum = np.cumsum(story)
zero_at = {name: int((product > 0).sum()) + 1 for name, product in products.items()}
for name, product in products.items():
    token = zero_at[name]
    gone = f"0 from token {token} on" if token <= len(story) else f"still {product[-1]:.0e} at the end"
    last = max(min(token, len(story) + 1) - 2, 0)
    off = np.expm1(np.log(float(product[last])) - log_sum[last])
    print(f"{name}: {gone} (expected {lowest[name] / mean:.0f}); the last product above 0 is off by {100 * off:+.2g} %")

# %% [markdown]
# Colour: the product; black: the sum of the logs; band: **subnormals**, numbers with fewer and fewer digits.

# %%
gone = [str(token) for token in zero_at.values() if token <= len(story)]
power = log_sum[-1] / np.log(10)
summary = f"after {len(story)} tokens the sum is {log_sum[-1]:.0f} nats: 10 to the power {power:.0f}"
title = f"The product is lost at token {', '.join(gone) or '(none)'}; the sum of logs goes on"
show(figures.underflow(products, log_sum), title, summary)

# %% [markdown]
# Not even float64 survives 320 tokens; the sum of the logs goes on. Nothing warns you that a product in the band has
# lost digits.
#
# ## 4 How likely is one answer *or* the other?
#
# For a product you add logs. For a sum of probabilities you need $\log(e^a+e^b)$: notebook 06's log-sum-exp, which
# takes the larger log out first, so that nothing becomes 0.
#
# Suppose you heard one of the two stories. It was the first with probability $p_a/(p_a+p_b)$, in logs a difference.
#
# **Predict:** both have some −1,000 nats, and differ by some 2 %. Is the likelier one at 55 %, 90 %, or practically
# certain?

# %%
a, b = story.sum(), other.sum()
either = logsumexp([a, b])
print(f"log probs {a:.1f} and {b:.1f}; of one or the other {either:.1f}")
print(f"directly p is {np.exp(a)} and {np.exp(b)}")
print(f"given one of the two, the first has {np.exp(a - either):.2g}, the second {np.exp(b - either):.2g}")


# %% [markdown]
# Practically certain: 5 nats are a factor of 148, so the sum of the two is nearly the larger one.
#
# **Exercise 08.2** (●●○, 5 minutes) Write `log_add(a, b)`: two natural logs in, the natural log of the sum of the two
# probabilities out. It must work for −1000 and −3000 in either order, and when one is $-\infty$.
#
# <details><summary>Hint 1</summary>
#
# Which of the two may you take out of the sum without any exponential becoming too large? And what must happen to it at
# the end?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# −1000 and −1000 give −999.307. Which difference of the two can `exp` take without overflow? And what is −∞ minus −∞?
#
# </details>

# %% tags=["exercise:08.2"]
def log_add(a, b): ...  # one number


# %% tags=["check:08.2", "nbval-check-output"]
check("08.2", log_add)

# %% [markdown]
# <details><summary>Solution 08.2</summary>
#
# ```python
# def log_add(a, b):
#     high, low = max(a, b), min(a, b)
#     return high + np.log1p(np.exp(low - high))
# ```
#
# </details>

# %% [markdown]
# ## 5 Is log space faster?
#
# Logs are said to be faster, because adding is cheaper than multiplying. Compare for one token: a product, a sum of
# kept logs, taking logs and summing, a softmax over the vocabulary, a model step.
#
# **Predict:** which is the fastest, and is the slowest ten, a thousand or a million times as slow?

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
fig, axes = plt.subplots(figsize=(7.5, 2.6))
axes.scatter(list(ns.values()), list(ns), color=["#0072B2"] * 4 + ["#D55E00"], zorder=3)
words = [f"{value:.1f} ns" if value < 1000 else f"{value / 1e6:.2g} ms" for value in ns.values()]
for way, value, word in zip(ns, ns.values(), words, strict=True):
    axes.annotate(word, (value, way), xytext=(8, 0), textcoords="offset points", va="center")
axes.invert_yaxis()
axes.set(xscale="log", xlim=(0.1, 1e10), xlabel="time for one token (logarithmic)")
axes.set_xticks([1, 1e3, 1e6, 1e9], ["1 ns", "1 µs", "1 ms", "1 s"])
times = ns["a step of the model"] / ns["product"]
show(fig, f"A step of the model takes {times / 1e6:.0f} million times as long as a product", "five ways, from ns to ms")


# %% [markdown]
# Adding logs is the fastest, by about a nanosecond; taking the logs costs more. The model's step is millions of times
# as slow, so log space saves no time. You use logs for their range.

# %% [markdown]
# ## 6 Which text does the model expect?
#
# How well does the model predict a text that it did not write? The sum of the log probs falls with every token, so take
# the mean. That is the **perplexity**:
#
# $$\text{perplexity}=\exp\Bigl(-\tfrac{1}{T}\sum_t\log p_t\Bigr)$$
#
# For 1/2, 1/4, 1/8 the mean is −2 bits: $2^2=4$. The model was as unsure as among 4 equally likely tokens.
#
# `return_context_logits` sends the logits of every token of the prompt, so one request scores a whole text. Row `t`
# predicts token `t + 1`. (TensorRT-LLM needs an engine built with `--gather_context_logits`.)
#
# ![Row t has read tokens 0 to t and scores token t + 1; token 0 gets no score](pictures/08_rows.svg)

# %%
def score(words):
    """The ids of a text, and the log prob of each but the first."""
    ids = client.infer("preprocessing", inputs(QUERY=words, REQUEST_OUTPUT_LEN=1)).as_numpy("INPUT_ID")[0]
    (result,) = ask({0: {"text_input": words}}, max_tokens=1, stream=False, return_context_logits=True)[0]
    rows = log_softmax(result.as_numpy("context_logits")[0].astype(float), axis=-1)
    return ids, rows[np.arange(len(ids) - 1), ids[1:]]


# %% [markdown]
# Score a sentence, its words shuffled, and the first four shuffled words.
#
# **Predict:** which has the highest probability, which the lowest perplexity?

# %%
sentence = "The dog ran across the street and chased the ball into the garden."
words = list(np.random.default_rng(seed).permutation(sentence.rstrip(".").split()))
texts = {"sentence": sentence, "scrambled": " ".join(words) + ".", "four words": " ".join(words[:4])}
scored = {name: score(words) for name, words in texts.items()}
for name, (_, logs) in scored.items():
    perplexed = np.exp(-logs.mean())
    print(f"{name:10} {len(logs):2} tokens, log prob {logs.sum():7.1f}, perplexity {perplexed:9.1f}")

# %% [markdown]
# Four words of nonsense can be "more probable" than a good long sentence, because every factor below 1 lowers a
# product. That is **length bias**. Perplexity compares texts of different lengths, if the same tokenizer cut them.
#
# Where does disorder surprise the model? The server's tokenizer names the tokens.

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
# Disorder surprises the model at most words. The good sentence surprises most at *dog* and *garden*.

# %% [markdown]
# ## 7 May you trust an answer's probability?
#
# A log prob comes free with each answer. Does it tell which answers to believe? Ask 60 short questions whose answers
# you know.

# %%
labelled = json.loads((find_root() / "data/decoding/questions.json").read_text())
example, questions = labelled["example"], labelled["questions"]
print(len(questions), "questions, such as", questions[0])
print(repr(example))


# %% [markdown]
# One example shows the model the form. A line break ends an answer, so it is the stop word.

# %%
def answer(entries, **settings):
    """One result for each question."""
    requests = {n: {"text_input": f"{example}Q: {entry['question']}\nA:"} for n, entry in enumerate(entries)}
    found = ask(requests, max_tokens=8, stop_words=["\n"], stream=False, **settings)
    return [result for (result,) in found.values()]


# %% [markdown]
# An answer's probability is that of its tokens *and* of ending there; `cum_log_probs` sums both. An answer cut off at 8
# tokens did not end, so its number is too high. Each question has one or more accepted answers.

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
# **Predict:** of the answers with a probability near 0.8, are 80 % right? How many of all are right?
#
# A **reliability plot** sorts answers into bins by confidence and shows each bin's share of right answers. On the
# dashed line, confidence equals that share. Bars are 95 % intervals (Wilson's, notebook 06), numbers count answers. The
# right panel uses the mean per token, $\exp(\text{mean}\log p)$.

# %%
signals = {"probability of the answer": probability, "per token (geometric mean)": np.exp(sums / tokens)}
title = f"{100 * right.mean():.0f} % are right; the answers' probabilities say {100 * probability.mean():.0f} %"
summary = f"of {len(right)} answers {right.sum()} are right; the mean probability is {probability.mean():.2f}"
show(figures.reliability(signals, right), title, summary)

# %% [markdown]
# With the default parameters the bins around 0.7 and 0.9 fit, as far as 18 answers can tell. Lower down more are
# right, near 0.3 three quarters. Per token every interval reaches the line. And likelier answers *are* right more
# often.
#
# The probability of a *text* is not that of being *right*. A right answer can be worded in several ways, and the model
# may believe in a wrong one.

# %% [markdown]
# Use it as a signal: answer above a threshold, pass the rest on. Each dot is an answer. (Live, move the slider.)

# %%
explore(
    lambda axes, threshold: figures.kept(axes, probability, right, threshold),
    title=f"Wrong answers reach up to {probability[~right].max():.2f}, right ones go down to "
    f"{probability[right].min():.2f}",
    summary=f"{right.sum()} right and {(~right).sum()} wrong answers by probability",
    threshold=[0.2, 0.5, 0.7], live={"threshold": [n / 20 for n in range(20)]},
)  # fmt: skip


# %% [markdown]
# You buy **precision**, the share of right answers among those kept, with **coverage**, the share kept. `lowest` finds
# the lowest threshold that gives the precision you want.
#
# Judged by the answers that chose it, a threshold looks too good. So choose it on the even questions. **Predict:** of
# the odd ones that it keeps, are more or fewer right?

# %%
def lowest(probability, right, wanted):
    good = [t for t in np.sort(probability) if right[probability >= t].mean() >= wanted]
    return float(good[0]) if good else 2.0  # 2 keeps nothing


even = np.arange(len(right)) % 2 == 0
threshold = lowest(probability[even], right[even], 0.8)
chosen, judged = (right[half & (probability >= threshold)] for half in (even, ~even))
low, high = binomtest(int(judged.sum()), len(judged)).proportion_ci(method="wilson") if len(judged) else (0, 1)
print(f"even, chosen here: from {threshold:.2f} on, {chosen.sum()} of {len(chosen)} right")
print(f"odd, judged here: {judged.sum()} of {len(judged)} right; 95 % interval {100 * low:.0f} to {100 * high:.0f} %")


# %% [markdown]
# Fewer, as a rule: luck helped to choose. The interval says how little 30 questions promise. A real threshold needs
# hundreds from your task.
#
# **Exercise 08.3** (●●○, 8 minutes) Make it a service. `reply` asks the server with `answer` and returns the answer's
# text, or `I do not know.` where the answer's probability is below the threshold. The check asks your server questions
# that nobody has labelled.
#
# <details><summary>Hint 1</summary>
#
# Which output covers every token of an answer, its end too? In which form does it come, and in which is the threshold?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Let the threshold lie a little below an answer's probability, then a little above. What must `reply` return? Would the
# mean per token, or the first token alone, tell the two apart?
#
# </details>

# %% tags=["exercise:08.3"]
def reply(question, threshold): ...  # a text; question is one, too


# %% tags=["check:08.3", "nbval-check-output"]
check("08.3", (reply, answer))

# %% [markdown]
# <details><summary>Solution 08.3</summary>
#
# ```python
# def reply(question, threshold):
#     (said,) = answer([{"question": question}])
#     sure = np.exp(said.as_numpy("cum_log_probs")[0, 0])
#     return text(said).strip() if sure >= threshold else "I do not know."
# ```
#
# </details>

# %% [markdown]
# No useful threshold catches the most confident wrong answers:

# %% tags=["varies"]
mistaken = [i for i in np.argsort(-probability) if not right[i]][:4]
for i in mistaken:
    print(f"{probability[i]:.2f}  {questions[i]['question']} {given[i]} (not {questions[i]['answers'][0]})")

# %% [markdown]
# ## Recap
#
# - A log prob here is natural, from a softmax over the whole vocabulary.
# - Products become sums, ratios differences; sums need log-sum-exp, with the largest taken out.
# - A product of a few hundred tokens is 0 even in float64, and loses digits earlier.
# - Log space is about range, not about speed.
# - Perplexity is $\exp(-\text{mean}\log p)$; without the mean, short texts win.
# - An answer's probability ranks answers. What it promises must be measured, with an interval.

# %% [markdown]
# ## Break it
#
# Ask ten questions again with `top_k` 1, which always takes the likeliest token, and temperature 0.3. **Predict:** do
# the answers change? Their probabilities?

# %% tags=["varies"]
cold = answer(questions[:10], top_k=1, temperature=0.3)
same = sum(text(each).strip() == words for each, words in zip(cold, given, strict=False))
print(f"same answers: {same} of {len(cold)}")
for i in range(3):
    print(f"{given[i]:10} {probability[i]:.3f} → {np.exp(cold[i].as_numpy('cum_log_probs')[0, 0]):.3f}")

# %% [markdown]
# The texts stay, and suddenly the model seems sure: log probs are taken after the temperature, before `top_k`. A
# threshold holds only for the settings it was measured with.
#
# Try more: `temperature = 2` for the stories, or another language.

# %%
client.close()
server.stop()
zeros = {f"zero_at_{name}": token if token <= len(story) else None for name, token in zero_at.items()}
notebook.record(tokens=len(story), **zeros, right=int(right.sum()), asked=len(right), threshold=round(threshold, 3))
