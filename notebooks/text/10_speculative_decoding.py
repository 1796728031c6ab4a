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
# - find the rule that keeps or replaces a guess, and show that the model's probabilities stay
# - tell greedy and sampled speculation apart, and say what a server accepts
# - predict the best number of guesses, and measure whether it is
# - serve a target with a draft model through BLS, and choose its number of guesses
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
import tritonclient.grpc as grpcclient
from scipy.special import softmax
from scipy.stats import chisquare
from tokenizers import Tokenizer
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
longest: int = 5  # the most guesses that are tried, at least 3
temperature: float = 0.8  # of the sampled answers
trials: int = 2000  # draws of the statistical test, at least 1,000
seed: int = 0  # seed of the test and of the sampled answers

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
# The oracle needs a quarter of the steps, the liar all. It changes nothing: each step rejects its guesses and still
# brings the target's own token.
#
# <details><summary>With int4 weights the text may change</summary>
#
# A logit (a token's raw score) then depends on how many tokens are read together: by about 1, where the largest is some
# 40 above the smallest. So a text often parts from the plain one: 31 of 48 did within 48 tokens. In fp32 it must not.
#
# </details>

# %% [markdown]
# The **verify cost** is the time of a step that reads the last token and some guesses, in steps without guesses.
# **Predict** it for 1 guess and for 8.
#
# Other programs disturb a clock. So the numbers of guesses take turns in shuffled order, 12 times; each step is divided
# by the median step of its turn, and the median of the 12 counts. The liar, whose answers take most steps, guesses.

# %% tags=["varies"]
tried = sorted({*range(longest + 1), 8})
ratios = drafters.in_turn(run, Oracle(max(tried), lies=True), tried, turns=12, seed=seed)
verify_cost = dict(zip(tried, np.median(ratios, axis=1).tolist(), strict=True))
title = f"A step that reads {max(tried)} guesses takes {verify_cost[max(tried)]:.2f} plain steps, not {max(tried) + 1}"
summary = "; ".join(f"{k} guesses: {value:.2f}" for k, value in verify_cost.items())
show(figures.verify(verify_cost, ratios), title, summary)

# %% [markdown]
# For 8 it is far below 9, the dashed line's nine separate steps: speculative decoding depends on that gap. But the cost
# grows once the arithmetic takes longer than reading the weights. A GPU has more arithmetic for each byte, so there it
# stays near 1 for longer; a batch of many requests uses that arithmetic up.

# %% [markdown]
# ## 2 Which guesses may be kept?
#
# In greedy decoding, keep a guess as long as it is the token that the target would have chosen. When tokens are
# *drawn*, the target has a probability for each word, and so has the draft, which has drawn its guess:

# %%
words = ["ran", "sat", "hid", "slept"]
p = np.array([0.50, 0.30, 0.15, 0.05])  # the target's probabilities
q = np.array([0.20, 0.60, 0.10, 0.10])  # the draft's

# %% [markdown]
# What both have in common, the smaller of the two, is green:

# %%
shared = np.minimum(p, q).sum()
title = f"Target and draft have {shared:.2f} in common"
show(figures.overlap(words, p, q), title, f"the sum of min(p, q) over the words is {shared:.2f}", drawing=True)


# %% [markdown]
# The draft says *sat* twice as often as the target, and *ran* too rarely. So some guesses must be replaced: in the end
# each word has to come out as often as the target would draw it.
#
# **Exercise 10.1** (●●●, 8 minutes) Find the rule that keeps as many guesses as possible. `token` has been drawn by the
# draft. Return the probability of keeping it, and, as an array, the probabilities of each word that may replace it. `p`
# and `q` are arrays as above.
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
# So keep a guess with probability p/q, at most 1, and replace a rejected one from what p has more than q. Two other
# rules look as good. One replaces from all of p. The other, TensorRT-LLM's where a request sets
# `draft_acceptance_threshold`, keeps what is likely enough.
#
# A word comes out when it was drawn and kept, or as a replacement:

# %%
def missing(p, q):
    left = np.maximum(p - q, 0)
    return left / left.sum()


keep = np.minimum(1, p / q)
rules = {  # the probability of keeping each word, and what replaces it
    "keep p/q, replace what is missing": (keep, missing(p, q)),
    "keep p/q, replace from p": (keep, p),
    "keep where p/q is above 0.3": (p / q > 0.3, missing(p, q)),
}
comes_out = {name: q * kept + (1 - q @ kept) * instead for name, (kept, instead) in rules.items()}

# %% [markdown]
# **Predict:** which of the three give the target's probabilities? What does the third give?

# %%
same = [bool(np.allclose(each, p)) for each in comes_out.values()]
title = f"{sum(same)} of {len(same)} rules gives the target's probabilities"
summary = "; ".join(f"{name}: {each.round(2).tolist()}" for name, each in comes_out.items())
show(figures.bars(words, {"target p": p, **comes_out}, "probability"), title, summary, drawing=True)
assert same == [True, False, False]

# %% [markdown]
# Only the first does. Drawn and kept is just the green part, and the replacements add exactly what green lacks to p. So
# it holds for *any* draft: a bad one costs time, never quality ([Leviathan et al.
# 2023](https://arxiv.org/abs/2211.17192), [Chen et al. 2023](https://arxiv.org/abs/2302.01318)). Replacing from p, the
# most common mistake, adds to what was kept already. This threshold keeps every guess: fast, but the draft speaks.

# %% [markdown]
# ## 3 The same with 49,152 tokens
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


# %%
with executor.Executor(draft_engine, max_batch_size=1, max_seq_len=512) as drafting:
    target_logits, draft_logits = (logits_of(model, prompt_ids + answer) for model in (target, drafting))
target_p, draft_q = (softmax(logits / temperature, axis=-1) for logits in (target_logits, draft_logits))
kept = np.minimum(target_p, draft_q).sum(-1)  # the green part, at each place
agree = target_logits.argmax(-1) == draft_logits.argmax(-1)
hit_rate = float(agree.mean())

# %% [markdown]
# **Predict:** at which words is a guess kept most often? At what share of the places do both models have the same
# likeliest token?

# %%
labels = [repr(tokenizer.decode([token]))[1:-1] for token in answer]
title = f"Kept at {kept.mean():.0%} of the places on average; same likeliest token at {hit_rate:.0%}"
summary = f"at temperature {temperature} the probability of being kept goes from {kept.min():.2f} to {kept.max():.2f}"
show(figures.kept(labels, kept, agree), title, summary)

# %% [markdown]
# Guesses are kept mostly at small words and in phrases that hardly have a choice; seldom where the content begins. The
# likeliest token is the same at more than half. Now draw with the rule, at the place where the target is least certain:

# %%
at = int(target_p.max(-1).argmin())
rng = np.random.default_rng(seed)
guesses = rng.choice(draft_q[at].size, trials, p=draft_q[at])
accepted = rng.random(trials) < (target_p[at] / draft_q[at])[guesses]
drawn = np.where(accepted, guesses, rng.choice(target_p[at].size, trials, p=missing(target_p[at], draft_q[at])))

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
# It follows the target's. Is the rest chance? Chi-squared (notebook 06), over these eight tokens and all others
# together:

# %%
counts = np.array([*(np.sum(drawn == token) for token in top), np.sum(~np.isin(drawn, top))])
cells = trials * np.array([*target_p[at][top], 1 - target_p[at][top].sum()])
enough = cells >= 1  # chi-squared needs expected counts that are not tiny
real_p = float(chisquare(counts[enough], cells[enough] * counts[enough].sum() / cells[enough].sum()).pvalue)
print(f"guesses kept: {accepted.mean():.2f}, expected {kept[at]:.2f}; p-value {real_p:.2g}")
assert real_p > 1e-4

# %% [markdown]
# ## 4 What a server accepts
#
# The rule needs the draft's probabilities. The executor here, and TensorRT-LLM without `draft_logits`, does something
# simpler: the target chooses its own token as ever, and a guess is kept if it is that token.
#
# **Predict:** greedy and sampled, is the text the one without a draft? Which accepts more?

# %%
sampled = {"temperature": temperature, "top_p": 0.95, "seed": seed}
draft = drafters.DraftModel(draft_engine, max_draft=3)
in_notebook = {}
for label, sampling in (("greedy", {}), ("sampled", sampled)):
    found = in_notebook[label] = run(draft, **sampling)
    same = found.tokens == run(**sampling).tokens
    print(f"{label}: same text: {same}; {found.accepted} of {found.drafted} guesses accepted")
    assert precision != "fp32" or same

# %% [markdown]
# With fp32 weights it is, both times: each token uses one random number, as without a draft. Which accepts more, one
# short text cannot say; averages over the places of section 3 can:

# %%
certain = np.take_along_axis(target_p, draft_logits.argmax(-1)[:, None], 1)[:, 0]
ways = {"greedy": hit_rate, "sampled, as here": certain.mean(), "sampled, with\nsection 2's rule": kept.mean()}
title = "Kept: {:.0%} greedy, {:.0%} sampled, {:.0%} with the rule".format(*ways.values())
drawing = figures.bars([*ways], {"draft model": [*ways.values()]}, "share of the\nguesses kept", "{:.2f}")
show(drawing, title, "; ".join(f"{name}: {share:.2f}" for name, share in ways.items()).replace("\n", " "))

# %% [markdown]
# Greedy accepts more: there the target takes its likeliest token; when it samples, only sometimes. With the rule the
# draft draws, too, and more is kept.
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
# **Predict:** how many tokens does a step bring with each drafter, copying and answering freely?

# %%
lookup = drafters.PromptLookup(max_draft=longest)
copy_ids = chat(f"Repeat this text exactly, without comments:\n\n{to_copy}")
copying = {"no draft": run(ids=copy_ids), "draft model": run(draft, copy_ids), "prompt lookup": run(lookup, copy_ids)}
answering = {"no draft": plain, "draft model": in_notebook["greedy"], "prompt lookup": run(lookup)}
brought = {name: [copying[name].per_step, answering[name].per_step] for name in copying}

# %%
summary = "; ".join(f"{name} {copied:.2f} and {free:.2f} tokens a step" for name, (copied, free) in brought.items())
title = "Prompt lookup brings {:.1f} tokens a step in a copy, {:.1f} in an answer".format(*brought["prompt lookup"])
show(figures.bars(["copying", "answering freely"], brought, "tokens a step", "{:.2f}"), title, summary)

# %% [markdown]
# Prompt lookup is made for copying; in a free answer it finds little. Which drafter is better depends on your traffic.

# %% [markdown]
# ## 6 How many guesses pay?
#
# Three numbers decide. The verify cost you have. The **acceptance** is the probability that a guess is right: here, how
# often both models had the same likeliest token. The **draft cost** is the time of one guess, in plain steps.
# **Predict** it: the draft has 2 layers, the target 30.

# %%
proposing, plain_steps = [], []
for _ in range(2):
    plain_steps += run().steps.tolist()
    for begun in range(1, len(answer)):
        started = time.perf_counter()
        draft.propose(prompt_ids + answer[:begun], 1)
        proposing.append(time.perf_counter() - started)
draft_cost = float(np.median(proposing) / np.median(plain_steps))
print(f"one guess takes {1e3 * np.median(proposing):.1f} ms: draft cost {draft_cost:.2f}, acceptance {hit_rate:.2f}")


# %% [markdown]
# It is more than 2/30: the draft has the whole output head, too. (On a CPU its weights are int4, which reads fewer
# bytes.)

# %% [markdown]
# **Exercise 10.2** (●●●, 8 minutes) Choose the number of guesses with the largest speed-up: the tokens that a round
# brings on average, over its time in plain steps. `a` is the acceptance, the same for each guess whatever came before;
# `c` is the draft cost; `v[k]` is the verify cost of `k` guesses, from `v[0] = 1` to the most that you may take. A
# guess counts only if all before it in its round were right.
#
# <details><summary>Hint 1</summary>
#
# How likely is it that the second guess counts? What does a round bring when no guess is right? Which parts of a round
# come one after the other?
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
# Now with the numbers of this machine. **Predict** the best number of guesses. Your function answers, once it is right.

# %%
lengths = list(range(longest + 1))
v = [verify_cost[k] for k in lengths]
expected, predicted = drafters.expected(hit_rate, draft_cost, v)
best = best_length(hit_rate, draft_cost, v) if right else int(predicted.argmax())  # 0: not to draft
print(f"predicted best: {best} guesses, {predicted[best]:.2f} times as fast")

# %% [markdown]
# Now measure. Each number of guesses writes the answer once, which counts the tokens a step. For the clock they take
# turns again.

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
title = f"Best: {best} guesses predicted ({predicted[best]:.2f} ×), {fastest} measured ({gained[fastest]:.2f} ×)"
summary = f"measured speed-ups differ from the predicted ones by {error:.0%} on average"
show(figures.cost_model(lengths, (expected, per_step), (predicted, gained)), title, summary)

# %% [markdown]
# The left panel has no clock in it. Its dots leave the line because right guesses come in runs, and each number guesses
# at other places. The right panel adds the clock and its noise. How much hangs on the choice?

# %%
close = [k for k in lengths if gained[k] >= 0.9 * gained[fastest]]
print(f"measured within 10 % of the best: {', '.join(map(str, close))} guesses")
print(f"{longest} guesses: predicted {predicted[-1]:.2f} times as fast as no draft, measured {gained[-1]:.2f}")

# %% [markdown]
# Near the best, little. But every guess is paid for, and each counts more rarely than the one before: a longer draft
# gains less and less.

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
    (without, found), here = turns[0], in_notebook[label]
    plain_seconds, seconds = (min(one.seconds for one in way) for way in zip(*turns, strict=True))
    drafted, accepted = (found.as_numpy(f"total_{name}draft_tokens").item() for name in ("", "accepted_"))
    print(f"{label}: same text: {text(found) == text(without)}; {accepted} of {drafted} accepted,", end=" ")
    print(f"in the notebook {here.accepted} of {here.drafted};", end=" ")
    print(f"acceptance_rate {found.as_numpy('acceptance_rate').item():.2f}; {plain_seconds / seconds:.2f} × as fast")
    assert precision != "fp32" or text(found) == text(without)


# %% [markdown]
# Greedy and in fp32 the served draft accepts as much. Sampled it does not: the BLS model hands seed, temperature and
# top_p to the draft, which then draws its guesses; `DraftModel` takes its likeliest token. It is not faster where the
# last number is below 1.00: there the rounds, two requests each, cost more than the guesses saved.
#
# `acceptance_rate` divides by *all* guesses, also those after a miss, so expect it below the acceptance.
#
# The number of guesses is a setting of the request. In JupyterLab the slider sends one request a value. **Predict:** do
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
# More are accepted, as long as the draft is often right. But far more are in vain, and each was paid for.

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
# Which number saves most? Ask the server; its answers count both.
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
# Is the best acceptance rate the largest saving? Or the most accepted guesses? And why should a copy and a poem have
# the same answer?
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
# ## 8 The relatives
#
# All keep the verifying step and change where guesses come from. The last four did not run here; the table is read from
# papers and sources.
#
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
# token see only its own branch. That pays where the verify cost hardly grows.

# %% [markdown]
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
# - A step that reads k guesses costs far less than k + 1 steps while memory, not arithmetic, is the limit.
# - Keep a drawn guess with probability p/q, at most 1; else replace it from what p has more than q. The target's
#   probabilities come out.
# - A round with $k$ guesses brings $1+a+\dots+a^k$ tokens in the time of $k\,c+v_k$ plain steps: acceptance $a$, draft
#   cost $c$, verify cost $v_k$. Then measure; 0 is a number, too.
# - Prompt lookup is for answers that repeat; a draft model shares the target's tokenizer.
# - Through BLS each round is two more requests; `acceptance_rate` says whether they pay.

# %% [markdown]
# ## Break it
#
# Everything above was one stream. Send four at once: their plain steps share one reading of the weights, and
# speculation wants the same spare arithmetic. **Predict:** does the draft still help?

# %%
rates = {"no draft": [], "draft model": []}
for streams in (1, 4):
    for name, k in zip(rates, (None, 3), strict=True):
        short = {**asked, "max_tokens": 16, "min_tokens": 16, "num_draft_tokens": k}
        texts = [f"{asked['text_input']}Number {n}:" for n in range(streams)]
        sent = {each: calls.inputs(**{**short, "text_input": each}) for each in texts}
        found = calls.gather(client, "tensorrt_llm_bls", sent)
        rates[name].append(streams * 16 / max(result.seconds for (result,) in found.values()))
title = "Four streams: {:.0f} tokens/s without a draft, {:.0f} with it".format(*(rate[1] for rate in rates.values()))
summary = "; ".join(f"{name}: {one:.1f} with one stream, {four:.1f} with four" for name, (one, four) in rates.items())
show(figures.bars(["one stream", "four streams"], rates, "tokens/s, together", "{:.0f}"), title, summary)

# %% [markdown]
# Where its bar is lower, the draft does not help. Even one stream may lose, when fewer guesses are right than in
# section 7. Four lose more: each request verifies in a step of its own and shares no reading of the weights.
# TensorRT-LLM verifies a batch together; even so, NVIDIA's documentation (section 8) recommends speculation for low
# batch sizes.
#
# Speculation has limits, most of them NVIDIA's: one prompt, one beam, no streaming, no logits. **Predict:** does the
# server ignore such a setting, or refuse it?

# %% tags=["nbval-check-output"]
for more in ({"stream": True}, {"beam_width": 2}, {"use_draft_logits": True}, {"num_draft_tokens": -1}):
    try:
        served(**{"max_tokens": 4, "num_draft_tokens": 2, **more})
    except InferenceServerException as error:
        print(error.message())

# %% [markdown]
# It refuses each, and says what to leave out.

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
