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
# # 10 · Speculative decoding
#
# You let something cheap guess tokens and the model check them, show that the answer stays what it was, and predict how
# many guesses pay.
#
# After this notebook you can
#
# - derive the rule that accepts or replaces a guess, and test that it keeps the distribution
# - tell greedy and sampled speculation apart, and say what a server accepts
# - predict the best draft length, and measure whether it is
# - serve a target with a draft model through BLS
# - say what EAGLE, MEDUSA, lookahead and ReDrafter need, and their switches in TensorRT-LLM
#
# **Time:** 45 minutes · **Lanes:** embedded · **Needs:** the weights of SmolLM2-135M and of its draft
#
# read: 13 min, do: 32 min
#
# Previous: [09 · Beam search](09_beam_search.ipynb) · Next: [11 · Benchmarking](11_benchmarking.ipynb)

# %%
import queue
import time

import numpy as np
import torch
import tritonclient.grpc as grpcclient
from scipy.optimize import isotonic_regression
from scipy.special import softmax
from scipy.stats import chisquare, entropy
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar
from tritonclient.utils import InferenceServerException

import drafters
from plots import speculative as figures
from reference_backend import executor
from servinglab import assets, notebook
from servinglab import client as calls
from servinglab.checks import check
from servinglab.explore import explore
from servinglab.figures.style import show
from servinglab.serving import serve

# %% tags=["parameters"]
lane: str = "auto"  # "embedded" or "auto"
precision: str = "fp32"  # weights of the target: "fp32" or "int4"
question: str = "Tell me a short story about a fox."  # what the target answers
to_copy: str = "The lighthouse keeper found a letter in a green bottle on the third of March."  # a text to repeat
max_tokens: int = 32  # length of the answers, in tokens
longest: int = 5  # the longest draft that is tried, at least 3 tokens
temperature: float = 0.8  # of the sampled answers
trials: int = 2000  # draws of each statistical test, at least 1,000
seed: int = 0  # seed of the tests and of the sampled answers

# %% [markdown]
# ## 1 One step, several tokens
#
# To generate one token, the model reads all of its 135 million weights from memory. Reading *four* tokens takes the
# same weights, once, and multiplies them by four columns. So if somebody told you the next three tokens, one step could
# check them all. One **round**:
#
# ![The draft says ran, into, a; the target ran, into, the, dark; ran, into, the are accepted](pictures/10_round.svg)
#
# The guesses come from a small **draft** model, or from anything cheap; the model that checks is the **target**.

# %%
lane = notebook.begin("10", lane, seed=seed, weights=precision)

# %% [markdown]
# Start the executor, the program that runs the engine behind `tensorrt_llm`, inside this notebook.

# %%
assert trials >= 1000 and longest >= 3, "trials must be at least 1,000, longest at least 3"
target = executor.Executor(assets.engine("smollm2", precision), max_batch_size=4, max_seq_len=512)
tokenizer = Tokenizer.from_file(str(assets.tokenizer("smollm2") / "tokenizer.json"))
end_id = tokenizer.token_to_id("<|im_end|>")


def chat(text):
    return tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n").ids


prompt_ids = chat(question)


# %% [markdown]
# A **drafter** is anything with a method `propose(tokens, at_most)` that returns guesses. `run` gets an answer from the
# executor and keeps, for each step after the prompt, its seconds and guesses. First without a drafter, greedy:

# %%
def run(drafter=None, ids=prompt_ids, length=max_tokens, **sampling):
    return drafters.timed(target, ids, length, drafter, end_id, **sampling)


plain = run()
answer = plain.tokens
print(tokenizer.decode(answer))


# %% [markdown]
# Two drafters that cheat show the limits. Both know the answer: the oracle says it, the liar always says something
# else.

# %%
class Oracle:
    def __init__(self, length, lies=False):
        self.length, self.lies = length, lies

    def propose(self, tokens, at_most):
        begun = len(tokens) - len(prompt_ids)
        truth = answer[begun : begun + min(self.length, at_most)]
        return [(token + 1) % target.limits.vocab_size for token in truth] if self.lies else truth


# %% [markdown]
# **Predict:** three guesses a step. How many steps does the executor need after the prompt, with the oracle and with
# the liar? Does the liar change the text?

# %%
tried_out = {"no draft": plain, "oracle": run(Oracle(3)), "liar": run(Oracle(3, lies=True))}
for name, found in tried_out.items():
    same = "same" if found.tokens == answer else "another"
    print(f"{name:9}{len(found.steps):3} steps, {found.accepted} of {found.drafted} guesses accepted, {same} text")
    assert precision != "fp32" or found.tokens == answer

# %% [markdown]
# How many steps? The oracle needs a quarter, the liar all. It changes nothing: each step rejects its guesses and still
# brings the target's own token.
#
# <details><summary>With int4 weights the text may change</summary>
#
# A logit (a token's raw score) then depends on how many tokens are read together: by about 1, where the largest is some
# 40 above the smallest. So a text often parts from the plain one: 31 of 48 did within 48 tokens, with twelve questions,
# greedy and sampled, and two drafters. In fp32 it must not.
#
# </details>
#
# The **verify cost** $v(k)$ is the time of a step that reads the last token and $k$ guesses, divided by that of a step
# without guesses. **Predict** $v(1)$ and $v(8)$.
#
# Other programs disturb a clock. So the lengths take turns in shuffled order, 12 times, and each step is divided by the
# median step of its turn. Of the 12 the **median** counts. The liar, whose answers take most steps, guesses.

# %%
tried = sorted({0, 1, 2, 3, 4, longest, 8})
ratios = drafters.in_turn(run, Oracle(max(tried), lies=True), tried, turns=12, seed=seed)

# %% [markdown]
# More guesses are more work, so $v$ cannot fall. Where the medians do, neighbours are averaged (isotonic regression).

# %% tags=["varies"]
smooth = np.maximum(1, isotonic_regression(np.median(ratios, axis=1)).x)
verify_cost = {k: float(value) for k, value in zip(tried, smooth, strict=True)}
title = f"A step that reads {max(tried)} guesses takes {verify_cost[max(tried)]:.2f} plain steps, not {max(tried) + 1}"
summary = "; ".join(f"v({k}) = {value:.2f}" for k, value in verify_cost.items())
show(figures.verify(verify_cost, ratios), title, summary)

# %% [markdown]
# How much is $v(8)$? Far below 9, the dashed line's nine separate steps: speculative decoding depends on that gap. But
# $v(k)$ grows once the arithmetic takes longer than reading the weights. A GPU has more arithmetic for each byte, so
# $v$ stays near 1 for longer; a batch of many requests uses that arithmetic up.

# %% [markdown]
# ## 2 Which guesses may be kept
#
# In greedy decoding, keep a guess as long as it is the token that the target would have chosen. When tokens are
# *drawn*, the target has a distribution $p$, the draft a distribution $q$, and a token $x$ has been drawn from $q$.
# Four words:

# %%
words = ["ran", "sat", "hid", "slept"]
p = np.array([0.50, 0.30, 0.15, 0.05])
q = np.array([0.20, 0.60, 0.10, 0.10])

# %% [markdown]
# What both have in common, $\min(p,q)$, is green:

# %%
shared = np.minimum(p, q).sum()
title = f"Target and draft share {shared:.2f}: that part of the drafts is kept"
show(figures.overlap(words, p, q), title, f"the sum of min(p, q) over the words is {shared:.2f}", drawing=True)


# %% [markdown]
# The draft says *sat* 60 % of the time, twice as often as it should. So keep it every second time: with probability
# $p/q$. *ran* comes too rarely: keep it always, and let it replace rejected words. The rule:
#
# - keep $x$ with probability $\min(1,\ p(x)/q(x))$;
# - else draw a replacement from what is missing, $r(x)=\max(0,\ p(x)-q(x))\,/\,\sum_y\max(0,\ p(y)-q(y))$.

# %% [markdown]
# Why is that exact? A word $x$ is drawn and kept with probability $q(x)\min(1,p(x)/q(x))=\min(p(x),q(x))$. So a draft
# is kept with probability $\beta=\sum_x\min(p(x),q(x))$. What is missing, $p(x)-\min(p(x),q(x))$, sums to $1-\beta$,
# the probability of a rejection. So $x$ comes out with probability
#
# $$\min(p,q)+(1-\beta)\,\frac{p-\min(p,q)}{1-\beta}=p(x).$$
#
# This holds for any $q$: a bad draft costs time, never quality ([Leviathan et al.
# 2023](https://arxiv.org/abs/2211.17192), [Chen et al. 2023](https://arxiv.org/abs/2302.01318)).
#
# **Exercise 10.1** (●●●, 5 minutes) Write the rule for a drafted `token`: return the probability of keeping it, and the
# distribution of the replacement if it is not kept. `p` and `q` are arrays.
#
# <details><summary>Hint 1</summary>
#
# The token was drawn with probability q already. What must you multiply that by to get p? And of which words does the
# kept part still have too little?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Draw nothing: a *probability* is asked for, and none is above 1. Where the draft has too much, is anything missing?
#
# </details>

# %% tags=["exercise:10.1"]
def rule(p, q, token):
    ...  # your code


# %% tags=["check:10.1", "nbval-check-output"]
check("10.1", rule)


# %% [markdown]
# <details><summary>Solution 10.1</summary>
#
# ```python
# def rule(p, q, token):
#     missing = np.maximum(p - q, 0)
#     return min(1, p[token] / q[token]), missing / missing.sum()
# ```
#
# </details>

# %% [markdown]
# A proof may have a hole, so test it. In this language the next of four words depends on the last. The draft guesses
# two words, the target verifies, and the first two that come out are counted: 16 pairs.
#
# `verify_with` takes two functions: when to keep, what to replace from.

# %%
def draw(p, rng, size=None):
    return rng.choice(len(p), size, p=p / p.sum())


def verify_with(keep, replacement):
    def verify(p, q, draft, rng):
        for at, x in enumerate(draft):
            if not keep(p[at, x], q[at, x], rng):
                return [*draft[:at], draw(replacement(p[at], q[at]), rng)]
        return [*draft, draw(p[-1], rng)]  # all kept: one more from the target

    return verify


# %% [markdown]
# Three candidates. The third is what TensorRT-LLM does when a request sets `draft_acceptance_threshold`: a constant in
# place of the random number.

# %%
def fair(p, q, rng):
    return rng.random(np.shape(p)) * q < p


def missing(p, q):
    return np.maximum(p - q, 0)


rules = {
    "keep p/q, replace the missing": verify_with(fair, missing),
    "keep p/q, replace from p": verify_with(fair, lambda p, q: p),
    "keep if p/q is above 0.5": verify_with(lambda p, q, rng: p > 0.5 * q, missing),
}

# %% [markdown]
# Target and draft each have a row of probabilities after each word, and one at the start. A text is written in rounds:

# %%
tables = np.random.default_rng(seed)
P, Q = tables.dirichlet(np.ones(4), 5), tables.dirichlet(np.ones(4), 5)  # after each word, and after the start (4)


def two_words(verify, rng):
    text = [4]
    while len(text) < 3:
        context = [text[-1]]
        for _ in range(2):
            context.append(draw(Q[context[-1]], rng))
        text += verify(P[context], Q[context[:-1]], context[1:], rng)
    return text[1:3]


# %% [markdown]
# **Chi-squared** adds up $(\text{counted}-\text{expected})^2/\text{expected}$ over the 16 pairs. Its p-value is the
# probability that a *right* sampler is at least as far off by chance. **Predict:** which of the three rules survive?

# %%
truth = (P[4][:, None] * P[:4]).ravel()  # P(first) · P(second | first)
survives = {}
for name, verify in rules.items():
    rng = np.random.default_rng(seed)
    pairs = np.array([two_words(verify, rng) for _ in range(trials)])
    counts = np.bincount(pairs @ [4, 1], minlength=16)
    survives[name] = float(chisquare(counts, truth * trials).pvalue)
    print(f"{name:31} off by at most {np.abs(counts / trials - truth).max():.3f}; p-value {survives[name]:.2g}")

# %% [markdown]
# The test must agree with the proof:

# %%
right, from_p, threshold = survives.values()
assert right > 1e-4 and from_p < 1e-4 and threshold < 1e-4

# %% [markdown]
# Which survive? Only the first. Replacing from $p$ is the most common mistake: what was kept comes out too often. The
# threshold buys speed, but changes the distribution.

# %% [markdown]
# ## 3 The same on real distributions
#
# The draft has two layers and shares embedding, output head and tokenizer with SmolLM2, on whose texts it was trained
# ([data/draft](../data/draft/README.md)). A shared tokenizer is a must: the target checks token ids.
#
# Both models read the answer once and return their logits (raw scores) at every place (`return_context_logits`,
# notebook 08).

# %%
draft_precision = "int4" if target.device == "cpu" else "fp32"
draft_engine = assets.engine("smollm2-draft", draft_precision)


def logits_of(model, ids):
    outputs = queue.SimpleQueue()
    model.submit(executor.Request("logits", ids, 1, return_context_logits=True, on_output=outputs.put))
    rows = slice(len(prompt_ids) - 1, len(ids) - 1)  # what is expected before each token of the answer
    return outputs.get(timeout=300).context_logits[rows].astype(np.float64)


# %% [markdown]
# **Predict:** is the drafted token kept more often where the target is certain, or where it is not? At what share of
# the places do both have the same likeliest token?

# %%
with executor.Executor(draft_engine, max_batch_size=1, max_seq_len=512) as drafting:
    target_logits, draft_logits = (logits_of(model, prompt_ids + answer) for model in (target, drafting))
target_p, draft_q = (softmax(logits / temperature, axis=-1) for logits in (target_logits, draft_logits))
beta = np.minimum(target_p, draft_q).sum(-1)
agree = target_logits.argmax(-1) == draft_logits.argmax(-1)
hit_rate = float(agree.mean())

# %% [markdown]
# One bar for each token of the answer:

# %%
labels = [repr(tokenizer.decode([token]))[1:-1] for token in answer]
title = f"Kept at {beta.mean():.0%} of the places on average; same likeliest token at {hit_rate:.0%}"
summary = f"at temperature {temperature} the probability of being kept goes from {beta.min():.2f} to {beta.max():.2f}"
show(figures.kept(labels, beta, agree), title, summary)

# %% [markdown]
# Entropy says how unsure the target is. Compare the half of the places with the lower entropy to the other half:

# %%
sure, unsure = np.array_split(np.argsort(entropy(target_p, axis=-1)), 2)
print(f"the target is more certain: kept {beta[sure].mean():.2f}; less certain: kept {beta[unsure].mean():.2f}")

# %% [markdown]
# Where the target is certain, more is kept. Now the rule with 49,152 tokens, at a place where little is certain.

# %%
at = int((beta * (1 - beta) * entropy(target_p, axis=-1))[:-1].argmax())
rng = np.random.default_rng(seed)
drafts = draw(draft_q[at], rng, size=trials)
keep = fair(target_p[at][drafts], draft_q[at][drafts], rng)
drawn = np.where(keep, drafts, draw(missing(target_p[at], draft_q[at]), rng, size=trials))

# %% [markdown]
# **Predict:** which of two bars will the third follow, the target's or the draft's?

# %%
top = np.argsort(-target_p[at])[:8]
shares = {"draft q": draft_q[at][top], "target p": target_p[at][top], "came out": [np.mean(drawn == t) for t in top]}
from_draft, from_target, _ = (np.abs(np.subtract(shares["came out"], each)).max() for each in shares.values())
title = f"Off the target's probability by at most {from_target:.3f}, off the draft's by up to {from_draft:.3f}"
summary = f"three bars for each of the target's eight likeliest tokens, {trials:,} draws"
show(figures.bars([repr(tokenizer.decode([token])) for token in top], shares, "probability"), title, summary)

# %% [markdown]
# Chi-squared again, over these eight tokens and all others together:

# %%
counts = np.array([*(np.sum(drawn == token) for token in top), np.sum(~np.isin(drawn, top))])
cells = trials * np.array([*target_p[at][top], 1 - target_p[at][top].sum()])
enough = cells >= 1  # chi-squared needs expected counts that are not tiny
real_p = float(chisquare(counts[enough], cells[enough] * counts[enough].sum() / cells[enough].sum()).pvalue)
print(f"drafts kept: {keep.mean():.2f}, expected {beta[at]:.2f}; p-value {real_p:.2g}")
assert real_p > 1e-4

# %% [markdown]
# Which does it follow? The target's.

# %% [markdown]
# ## 4 What a server accepts
#
# The rule needs the draft's probabilities. The executor here, and TensorRT-LLM without `draft_logits`, does something
# simpler: the target chooses its own token as ever, and a guess is kept if it is that token.
#
# That is the same rule for a draft that is *certain*, $q=1$ on its guess.
#
# **Predict:** two drafters, greedy and sampled. In how many of the four cases does the text stay the same? Which
# accepts more?

# %%
sampled = {"temperature": temperature, "top_p": 0.95, "seed": seed}
draft, lookup = drafters.DraftModel(draft_engine, max_draft=3), drafters.PromptLookup(max_draft=longest)
guessers, in_notebook = {"draft model": draft, "prompt lookup": lookup}, {"greedy": {}, "sampled": {}}
for label, sampling in (("greedy", {}), ("sampled", sampled)):
    expected = run(**sampling).tokens if sampling else answer
    for name, drafter in guessers.items():
        found = run(drafter, **sampling)
        same = found.tokens == expected
        in_notebook[label][name] = found  # for sections 5 and 7
        print(f"{label}, {name:14} identical: {same}, {found.accepted:2} of {found.drafted:2} guesses accepted")
        assert precision != "fp32" or same

# %% [markdown]
# With fp32 weights the text is the same in all four: each token uses one random number, as without a draft. Which
# accepts more, one short text cannot say; averages over the places above can:

# %%
certain = np.take_along_axis(target_p, draft_logits.argmax(-1)[:, None], 1)[:, 0]
print(f"greedy, the draft's likeliest token: kept {hit_rate:.2f}")
print(f"tokens drawn, the draft's likeliest token, no probabilities: kept {certain.mean():.2f}")
print(f"tokens drawn, draft drawn from q, with its probabilities: kept {beta.mean():.2f}")

# %% [markdown]
# Greedy, a guess is kept where it is the target's likeliest token. Drawn, it is kept with its probability $p$. With the
# rule of section 2, the draft draws, too.
#
# <details><summary>What the rule costs a server</summary>
#
# With `use_draft_logits` of NVIDIA's BLS model a row of 49,152 logits travels for every guess.
# `speculative_decoding_fast_logits` sends it directly from engine to engine.
#
# </details>

# %% [markdown]
# ## 5 Where guesses come from
#
# **Prompt lookup** has no model. It looks for the last few tokens earlier in the text and proposes what came next
# ([Saxena 2023](https://github.com/apoorvumang/prompt-lookup-decoding)). An answer that repeats its prompt (an edited
# text, code) is full of such places.
#
# **Predict:** tokens a step for both drafters, copying and answering freely.

# %%
copy_ids = chat(f"Repeat this text exactly, without comments:\n\n{to_copy}")
answering = {"no draft": plain, **in_notebook["greedy"]}
copying = {name: run(drafter, copy_ids) for name, drafter in {"no draft": None, **guessers}.items()}
brought = {name: [copying[name].per_step, answering[name].per_step] for name in copying}
summary = "; ".join(f"{name} {copied:.2f} and {free:.2f} tokens a step" for name, (copied, free) in brought.items())
title = "Prompt lookup brings {:.1f} tokens a step in a copy, {:.1f} in an answer".format(*brought["prompt lookup"])
show(figures.bars(["copying", "answering freely"], brought, "tokens a step", "{:.2f}"), title, summary)

# %% [markdown]
# Prompt lookup is made for copying; in a free answer it finds little. Which drafter is better depends on your traffic.
#
# Can you get a draft model for free? **Layer skipping** computes only the first $n$ layers of the target, then the
# output head. transformers returns what every layer hands on (`output_hidden_states`).

# %%
disable_progress_bar()
whole = AutoModelForCausalLM.from_pretrained(assets.resolve("smollm2"), dtype=torch.float32).eval()
layers, text_ids = whole.model.layers, torch.tensor([prompt_ids + answer])
places = slice(len(prompt_ids) - 1, -1)


def hits(state):
    """The share of the answer guessed right from what the last norm makes of a layer's output."""
    return float(np.mean(whole.lm_head(state[0, places]).argmax(-1).numpy() == answer))


# %% [markdown]
# **Predict:** how many of the 30 layers are needed to guess every second token?

# %%
with torch.inference_mode():
    _, *states, last = whole.model(text_ids, output_hidden_states=True).hidden_states  # the last one is normed already
    depths = [*range(5, len(layers) - 4, 5), *range(len(layers) - 4, len(layers))]
    by_layer = {n: hits(whole.model.norm(states[n - 1])) for n in depths} | {len(layers): hits(last)}
    whole.model.layers = layers[:1] + layers[-1:]  # the first and the last alone
    untrained = hits(whole.model(text_ids, use_cache=False).last_hidden_state)
    whole.model.layers = layers

# %%
short = len(layers) - 1
title = f"{short} of {len(layers)} layers guess {by_layer[short]:.0%}; two, trained for it, {hit_rate:.0%}"
summary = f"of the answer's tokens; the same two layers untrained: {untrained:.0%}"
show(figures.layers(by_layer, hit_rate), title, summary)

# %% [markdown]
# How many? Here not even 29 reach half: a layer is made for the next layer, not for the output head. Two layers
# *trained* for it do better: on the 40 unseen prompts of [data/draft](../data/draft/README.md) the draft agrees at 55 %
# of the places, untrained at none.

# %% [markdown]
# ## 6 How many guesses pay
#
# Three numbers decide. $v(k)$ you have. The **acceptance** $a$ is the probability that a guess is right. The **draft
# cost** $c$ is the time of one guess, in steps of the target.

# %%
proposing, plain_steps = [], []
for _ in range(2):
    plain_steps += run().steps.tolist()
    for begun in range(1, len(answer)):
        started = time.perf_counter()
        draft.propose(prompt_ids + answer[:begun], 1)
        proposing.append(time.perf_counter() - started)
draft_cost = float(np.median(proposing) / np.median(plain_steps))
print(f"one guess takes {1e3 * np.median(proposing):.1f} ms, c = {draft_cost:.2f}; on this answer a = {hit_rate:.2f}")


# %% [markdown]
# The draft has 2 of 30 layers, but the whole output head: 0.26 of the target's weights. On a CPU it is int4, an eighth
# of the bytes of fp32.
#
# If each guess is right with probability $a$, independently, the $i$-th guess counts only if all before it were right:
# $a^i$. With the target's own token a step brings $1+a+a^2+\dots+a^k$ tokens on average.
#
# A round takes $k$ drafts and one verifying step, $k\,c+v(k)$ plain steps. So the speed-up is
#
# $$S(k)=\frac{1+a+a^2+\dots+a^k}{k\,c+v(k)}.$$
#
# **Exercise 10.2** (●●○, 5 minutes) Choose the `k` with the largest speed-up. `v` is a list: `v[0]` is 1, `v[1]` the
# verify cost of one guess, and so on to the longest draft.
#
# <details><summary>Hint 1</summary>
#
# Which lengths are candidates? Think of a draft that is hardly ever right, and of the longest one in the list.
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Try it on a draft that costs more than it brings: is 0 among your candidates? And may the speed-up fall before it
# rises?
#
# </details>

# %% tags=["exercise:10.2"]
def best_length(a, c, v):
    ...  # your code


# %% tags=["check:10.2", "nbval-check-output"]
right = check("10.2", best_length)

# %% [markdown]
# <details><summary>Solution 10.2</summary>
#
# ```python
# def best_length(a, c, v):
#     speedups = [sum(a**i for i in range(k + 1)) / (k * c + v[k]) for k in range(len(v))]
#     return int(np.argmax(speedups))
# ```
#
# </details>

# %% [markdown]
# Now with the numbers of this machine; $v$ is interpolated between measured lengths. **Predict** the best $k$. Your
# function answers, once it is right.

# %%
lengths = list(range(longest + 1))
v = np.interp(lengths, list(verify_cost), list(verify_cost.values())).tolist()
expected, predicted = drafters.expected(hit_rate, draft_cost, v)
best = best_length(hit_rate, draft_cost, v) if right else int(predicted.argmax())  # 0: not to draft
print(f"predicted best: k = {best}, {predicted[best]:.2f} times as fast")

# %% [markdown]
# Now measure. Each length writes the answer once, which counts the tokens a step. For the clock they take turns again.

# %%
draft.max_draft = longest
runs = [run(drafters.Turns(draft, [k])) for k in lengths]
assert precision != "fp32" or all(each.tokens == answer for each in runs)
clock = np.median(drafters.in_turn(run, draft, lengths, turns=12, seed=seed), axis=1)  # in plain steps
speeds = np.array([each.made / clock[each.guesses].sum() for each in runs])
gained, per_step = speeds / speeds[0], [each.per_step for each in runs]

# %% [markdown]
# Predicted and measured in one figure:

# %%
fastest = int(gained.argmax())  # 0: not to draft
error = float(np.mean(np.abs(gained / predicted - 1)[1:]))
title = f"Predicted best k = {best} ({predicted[best]:.2f} ×), measured k = {fastest} ({gained[fastest]:.2f} ×)"
summary = f"measured speed-ups differ from the predicted ones by {error:.0%} on average"
show(figures.cost_model(lengths, (expected, per_step), (predicted, gained)), title, summary)

# %% [markdown]
# The left panel has no clock in it. The dots leave the line because hits come in runs, and each length guesses at other
# places. The right panel adds the clock and its noise. How much hangs on the choice of $k$?

# %%
close = [k for k in lengths if gained[k] >= 0.9 * gained[fastest]]
print(f"measured within 10 % of the best: k = {', '.join(map(str, close))}")
print(f"k = {longest} instead: predicted {predicted[-1]:.2f} times as fast as no draft, measured {gained[-1]:.2f}")

# %% [markdown]
# Every guess is paid for, but the last one counts only with probability $a^k$: a longer draft gains less and less.

# %% [markdown]
# ## 7 Served
#
# Now through Triton. `draft_engine_dir` adds a second LLM, `tensorrt_llm_draft`, and tells the BLS model (notebook 03)
# its name. In each round the BLS model asks the draft for `num_draft_tokens` ids and sends them to `tensorrt_llm` as
# `draft_input_ids`. It gets back those that were right and one more.

# %%
target.shutdown()
server = serve(precision=precision, draft_engine_dir=draft_engine)
client = grpcclient.InferenceServerClient(server.grpc_url)

# %% [markdown]
# A request names the number of guesses; without it there is no draft.

# %%
asked = {"text_input": f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", "max_tokens": max_tokens}
asked |= {"stream": False, "exclude_input_in_output": True, "return_perf_metrics": True}


def served(**more):
    return calls.gather(client, "tensorrt_llm_bls", {"": calls.inputs(**{**asked, **more})})[""][0]


def text(result):
    return result.as_numpy("text_output")[0].decode()


# %% [markdown]
# **Predict:** does the served draft accept as much as the one in the notebook? Is the answer faster? After a warm-up
# each way is asked twice, in turns; its faster answer counts.

# %%
served(max_tokens=6, num_draft_tokens=3)
for label, sampling in (("greedy", {}), ("sampled", sampled)):
    turns = [(served(**sampling), served(num_draft_tokens=3, **sampling)) for _ in range(2)]
    (without, found), here = turns[0], in_notebook[label]["draft model"]
    plain_seconds, seconds = (min(one.seconds for one in way) for way in zip(*turns, strict=True))
    drafted, accepted = (found.as_numpy(f"total_{name}draft_tokens").item() for name in ("", "accepted_"))
    print(f"{label}: same text: {text(found) == text(without)}; {accepted} of {drafted} accepted,", end=" ")
    print(f"in the notebook {here.accepted} of {here.drafted};", end=" ")
    print(f"acceptance_rate {found.as_numpy('acceptance_rate').item():.2f}; {plain_seconds / seconds:.2f} × as fast")
    assert precision != "fp32" or text(found) == text(without)

# %% [markdown]
# Does the served draft accept as much? Greedy and in fp32, yes. Sampled, no: the BLS model hands seed, temperature and
# top_p to the draft, which then draws its guesses; `DraftModel` takes its likeliest token. Faster? Not where the last
# number is below 1.00: there the rounds, two requests each, cost more than the guesses saved.
#
# `acceptance_rate` divides by *all* guesses, also those behind a miss, so expect it below $a$.

# %% [markdown]
# Two kinds of requests come to this server:

# %%
chat_template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
to_repeat = "The keeper found a letter in a green bottle on the third of March."
asked_for = {"copy": f"Repeat this text exactly: {to_repeat}", "poem": "Write a poem about rain."}
traffic = {kind: chat_template.format(words) for kind, words in asked_for.items()}

# %% [markdown]
# **Exercise 10.3** (●●○, 10 minutes) Choose `num_draft_tokens`, from 0 to 4, for answers of 24 tokens (`min_tokens`,
# too) to each of them. An accepted guess saves a step of the target; every guess costs 0.3 steps, to make and to check.
# Which length saves most? Ask the server; its answers count both.
#
# <details><summary>Hint 1</summary>
#
# `total_draft_tokens` and `total_accepted_draft_tokens` are outputs of the answer, as in the cell that `served` is used
# in above. What is the saving of one answer?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Neither the best acceptance rate nor the most accepted guesses is the largest saving. Measure every length for both,
# and do not expect the same one.
#
# </details>

# %% tags=["exercise:10.3"]
answer_3 = {"copy": None, "poem": None}  # two numbers of guesses

# %% tags=["check:10.3", "nbval-check-output", "varies"]
check("10.3", (answer_3, client))


# %% [markdown]
# <details><summary>Solution 10.3</summary>
#
# ```python
# def saved(kind, k):
#     if k == 0:
#         return 0.0
#     found = served(text_input=traffic[kind], max_tokens=24, min_tokens=24, num_draft_tokens=k)
#     guesses, kept = (found.as_numpy(f"total_{name}draft_tokens").item() for name in ("", "accepted_"))
#     return kept - 0.3 * guesses
#
#
# answer_3 = {kind: max(range(5), key=lambda k: saved(kind, k)) for kind in traffic}
# ```
#
# </details>

# %% [markdown]
# A client may draft, too: `draft_input_ids` takes guesses from anywhere, here from prompt lookup in your process.
# **Predict:** how many requests does the copy take?

# %%
def continued(ids, guesses, room):
    given = {"input_ids": ids, "input_lengths": len(ids), "request_output_len": room, "end_id": end_id}
    given |= {"exclude_input_in_output": True, "draft_input_ids": guesses}
    given |= {"min_tokens": 0}  # the default, 1, would forbid the end at the first token of every request
    if not guesses:  # nothing to verify: one token
        given |= {"request_output_len": 1, "draft_input_ids": None}
    result = calls.gather(client, "tensorrt_llm", {"": calls.inputs(**given)})[""][0]
    return result.as_numpy("output_ids")[0, 0, : result.as_numpy("sequence_length").item()].tolist()


# %% [markdown]
# The loop that the BLS model runs in the server, here in the client:

# %%
copied, requests = [], 0
while len(copied) < max_tokens:
    room = max_tokens - len(copied)
    guesses = lookup.propose(copy_ids + copied, room - 1) if room > 1 else []
    new = continued(copy_ids + copied, guesses, room)
    requests, copied = requests + 1, copied + new
    if new == guesses[: len(new)]:  # no token of the target's own behind them: the end
        break
print(f"{requests} requests for {len(copied)} tokens: {tokenizer.decode(copied)!r}")
assert precision != "fp32" or copied == copying["no draft"].tokens, "the text of section 5"

# %% [markdown]
# How many requests? Section 5's steps and one for the prompt. Speculation has limits, most of them NVIDIA's: one
# prompt, one beam, no streaming, no logits.

# %% tags=["nbval-check-output"]
for more in ({"stream": True}, {"beam_width": 2}, {"use_draft_logits": True}, {"num_draft_tokens": -1}):
    try:
        served(**{"max_tokens": 4, "num_draft_tokens": 2, **more})
    except InferenceServerException as error:
        print(error.message())


# %% [markdown]
# The draft's length is a setting of the request. In JupyterLab the slider sends one request a value. **Predict:** do
# more guesses mean more accepted ones? Fewer in vain?

# %%
def guesses(axes, k):
    found = served(max_tokens=16, num_draft_tokens=k or None)
    counts = [found.as_numpy(f"total_{name}draft_tokens") for name in ("", "accepted_")]
    drafted, accepted = (0 if count is None else count.item() for count in counts)
    axes.barh(["guessed", "accepted"], [drafted, accepted])
    axes.set(xlabel=f"tokens; answer in {found.seconds:.2f} s", ylim=(1.6, -0.6))
    return drafted, accepted


def title(counts):
    return "{1} of {0} accepted with 1 guess, {3} of {2} with 2, {5} of {4} with 5".format(*sum(counts, ()))


explore(guesses, title=title, summary="1, 2 and 5 guesses a round", live={"k": range(9)}, k=[1, 2, 5])

# %% [markdown]
# More, as long as the draft is often right. But far more are in vain, and each was paid for. Which answer is faster,
# three single times cannot tell; the pairs above can.

# %% [markdown]
# ## 8 The relatives
#
# All keep the verifying step and change where guesses come from. The last four did not run here; the table is read from
# papers and sources.

# %% [markdown]
# | method | a guess comes from | needs |
# |---|---|---|
# | draft model | a small model | the same tokenizer |
# | prompt lookup | an earlier place in the text | answers that repeat their prompt |
# | MEDUSA | extra heads on the last hidden state | training of the heads |
# | EAGLE | a layer that continues the hidden features | training of that layer |
# | lookahead | the target itself, many places at once | spare arithmetic |
# | ReDrafter | a small recurrent network | training by distillation |

# %% [markdown]
# MEDUSA, EAGLE and ReDrafter verify **trees**: several guesses for one place, in one step. An attention mask lets a
# token see only its own branch. That pays where $v(k)$ is nearly flat.
#
# <details><summary>Speed-ups that the papers report: one stream, their models, their machines</summary>
#
# | method | times as fast | paper |
# |---|---|---|
# | draft model | 2 to 3, with T5-XXL | [Leviathan et al. 2023](https://arxiv.org/abs/2211.17192) |
# | draft model | 2 to 2.5, with Chinchilla 70B | [Chen et al. 2023](https://arxiv.org/abs/2302.01318) |
# | prompt lookup | 2 to 4, where answers repeat | [2023](https://github.com/apoorvumang/prompt-lookup-decoding) |
# | MEDUSA | over 2.2; 2.3 to 3.6 with the model trained too | [Cai et al. 2024](https://arxiv.org/abs/2401.10774) |
# | EAGLE | 2.7 to 3.5, with LLaMA2-Chat 70B | [Li et al. 2024](https://arxiv.org/abs/2401.15077) |
# | EAGLE-2 | 3.05 to 4.26; its tree grows where the draft is sure | [2024](https://arxiv.org/abs/2406.16858) |
# | EAGLE-3 | up to 6.5; hidden states of several depths | [2025](https://arxiv.org/abs/2503.01840) |
# | lookahead | up to 1.8; 4 on several GPUs, for code | [Fu et al. 2024](https://arxiv.org/abs/2402.02057) |
# | ReDrafter | up to 2.5, in TensorRT-LLM on an H100 | [Cheng et al. 2024](https://arxiv.org/abs/2403.09919) |
#
# </details>

# %% [markdown]
# <details><summary>Switches in TensorRT-LLM, Triton and the LLM API</summary>
#
# An engine of TensorRT is built for one method, with `trtllm-build --speculative_decoding_mode`. *Since* is the first
# of the versions 0.10 to 0.17 that takes the mode. `decoding_mode` and what follows it are parameters of
# `tensorrt_llm`.
#
# | method | mode of the build, since | `decoding_mode` and more |
# |---|---|---|
# | draft, lookup | `draft_tokens_external`, 0.10 | none; `--max_draft_len N` of the build as well |
# | MEDUSA | `medusa`, 0.10 | `medusa`; `medusa_choices`, the tree |
# | EAGLE | `eagle`, 0.15 | `eagle`; `eagle_choices`, the tree |
# | lookahead | `lookahead_decoding`, 0.12 | `lookahead`; the three parameters below |
# | ReDrafter | `explicit_draft_tokens`, 0.12 | `redrafter` |
#
# Lookahead needs `lookahead_window_size`, `lookahead_ngram_size` and `lookahead_verification_set_size`. The BLS model
# finds a draft by its parameter `tensorrt_llm_draft_model_name`.
#
# The LLM API (notebook 12) takes a `speculative_config`
# ([documentation](https://nvidia.github.io/TensorRT-LLM/features/speculative-decoding.html)):
# `DraftTargetDecodingConfig`, `NGramDecodingConfig` (prompt lookup), `EagleDecodingConfig` (EAGLE-3), each with
# `max_draft_len`, or `MTPDecodingConfig` (multi-token prediction). In `model.yaml` of Triton's `llmapi` model,
# `decoding_type` takes the place of the class. MEDUSA and lookahead stay behind.
#
# </details>

# %% [markdown]
# ## Recap
#
# - A step that reads $k$ guesses costs $v(k)$, less than $k+1$ steps while memory, not arithmetic, is the limit.
# - Keep a drafted $x$ with probability $\min(1,p/q)$, else replace it from $\max(0,p-q)$, normalised: $p$ comes out. A
#   guess is kept with probability $\sum\min(p,q)$.
# - $S(k)=(1+a+\dots+a^k)/(k\,c+v(k))$ narrows down $k$; then measure. 0 is a length, too.
# - Lookup is for answers that repeat; a draft model must be trained for its target.
# - Through BLS each round is two more requests; `acceptance_rate` says whether they pay.

# %% [markdown]
# ## Break it
#
# Everything above was one stream. Send four at once: their plain steps share one reading of the weights, and
# speculation wants the same spare arithmetic. **Predict:** does the draft still help?

# %%
for k in (0, 3):
    short = {**asked, "max_tokens": 16, "min_tokens": 16, "num_draft_tokens": k or None}
    four = {n: calls.inputs(**{**short, "text_input": f"{asked['text_input']}Number {n}:"}) for n in range(4)}
    found = calls.gather(client, "tensorrt_llm_bls", four)
    rate = 4 * 16 / max(result.seconds for (result,) in found.values())
    print(f"{k} guesses: {rate:.1f} tokens/s for four streams together")

# %% [markdown]
# Does the draft still help? If its rate is lower, no: here each request verifies in a step of its own and shares no
# reading of the weights. TensorRT-LLM verifies a batch together; even so, NVIDIA's documentation (section 8) recommends
# speculation for low batch sizes.

# %%
client.close()
server.stop()
notebook.record(
    verify_cost={str(k): round(value, 3) for k, value in verify_cost.items()},
    draft_cost=round(draft_cost, 3),
    agreement=round(hit_rate, 3),
    predicted_best=best,
    measured_best=fastest,
    speedups={str(k): round(float(gained[k]), 3) for k in lengths[1:]},
)
