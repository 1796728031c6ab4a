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
# # 09 · Beam search
#
# You search for the likeliest answer instead of drawing one, find out how a search can miss it, and measure when a
# likely answer is a good one.
#
# After this notebook you can
#
# - do a beam search by hand
# - ask a server for beams, and read what comes back
# - show that beam search may miss the likeliest answer
# - say what a length penalty divides, and what it cannot mend
# - choose between beams and sampling by the task and the cost
#
# **Time:** 40 minutes · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# read: 12 min, do: 28 min
#
# Previous: [08 · Log probabilities](08_log_probs.ipynb) · Next: [10 · Speculation](10_speculative_decoding.ipynb)

# %%
import json
import math
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpcclient
from scipy.special import log_softmax, logsumexp
from scipy.stats import binomtest
from tokenizers import Tokenizer
from tritonclient.utils import InferenceServerException

from plots import beam_search as figures
from servinglab import notebook
from servinglab.checks import check
from servinglab.client import gather, inputs
from servinglab.decoding import beam_search
from servinglab.explore import explore
from servinglab.figures.style import show
from servinglab.playground import playground
from servinglab.serving import serve

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
precision: str = "fp32"  # weights of the model: "fp32" or "int4"
prompt: str = "Once upon a time, there was a fox who"  # the beginning of a story
question: str = "Tell me a short story about a fox."  # for which short answers exist, too
max_tokens: int = 40  # length of the stories, in tokens, at least 2
width: int = 3  # beams in the drawn search, 1 to 8
items: int = 24  # puzzles with one right answer, 1 to 60 (and up to 8 lines to copy)
seed: int = 0  # seed of the samples and of the random languages

# %% [markdown]
# ## 1 A server with room for beams
#
# A search follows several candidate answers side by side: its **beams**. Each takes a row of the running batch, so a
# server is told at start-up how many a request may have. The default is 1; you ask for 8.

# %%
lane = notebook.begin("09", lane, seed=seed, weights=precision)
assert 1 <= width <= 8 and max_tokens >= 2 and 1 <= items <= 60, "width 1 to 8, max_tokens at least 2, items 1 to 60"
server = serve(precision=precision, max_beam_width=8, parameters={"normalize_log_probs": False})
client = grpcclient.InferenceServerClient(server.grpc_url)

# %% [markdown]
# ## 2 A language of six words
#
# After *the* comes an animal, then what it did.

# %%
toy = {
    "the": {" fox": 0.5, " dog": 0.4, " owl": 0.1},
    "the fox": {" ran": 0.4, " sat": 0.35, " hid": 0.25},
    "the dog": {" ran": 0.9, " sat": 0.1},
    "the owl": {" sat": 0.8, " hid": 0.2},
}

# %% [markdown]
# **Predict:** greedy decoding takes the likeliest word, twice. Which sentence does it write? Which is the likeliest of
# all?
#
# The search adds logarithms (notebook 08). `toy_log_probs` returns a row of log probabilities for each path of a list;
# an impossible word has $-\infty$.

# %%
words = [" fox", " dog", " owl", " ran", " sat", " hid"]


def toy_log_probs(paths):
    rows = [toy.get("the" + "".join(words[token] for token in path), {}) for path in paths]
    with np.errstate(divide="ignore"):  # log 0 is meant
        return np.log([[row.get(word, 0) for word in words] for row in rows])


# %% [markdown]
# A **breadth-first search** keeps a queue of paths and extends every path by every token. **Beam search** adds one
# line: after each step it cuts the queue to the best `width`. The cut is a heuristic: nothing proves that the best path
# survives.

# %%
def search(next_log_probs, width, steps):
    queue = [([], 0.0)]
    for _ in range(steps):
        rows = next_log_probs([path for path, _ in queue])
        grown = []
        for (path, total), row in zip(queue, rows, strict=True):
            grown += [([*path, token], total + row[token]) for token in range(len(row))]
        queue = sorted(grown, key=lambda beam: -beam[1])[:width]  # the whole heuristic
    return queue


# %% [markdown]
# A width of 1 is greedy decoding. A width of `None` cuts nothing.

# %% tags=["nbval-check-output"]
for w in (1, 2, None):
    path, total = search(toy_log_probs, w, steps=2)[0]
    print(f"width {w}: the{''.join(words[token] for token in path)}, probability {math.exp(total):.2f}")


# %% [markdown]
# Greedy writes *the fox ran*, $0.5\cdot0.4=0.20$. The likeliest is *the dog ran*, $0.4\cdot0.9=0.36$, but it begins
# with the second-best word. A second beam keeps it alive.
#
# Each box shows a word and the probability of the path so far. Filled boxes were kept, faint ones pruned; the winner is
# black.

# %%
def draw(axes, width):
    result = beam_search(toy_log_probs, [], width=width, max_tokens=2)
    label = lambda node: f"{words[node.token].strip()} {math.exp(node.cum_log_prob):.3g}"  # noqa: E731
    figures.draw_tree(axes, result, label, root="the")


title = "One beam ends at 0.2; two beams find 0.36, and a third adds nothing"
explore(draw, title=title, summary="width 1: the fox ran, 0.2; widths 2 and 3: the dog ran, 0.36", width=[1, 2, 3])


# %% [markdown]
# A step looks at the best 2 × `width` continuations, so that enough remain when some have ended. The drawing shows only
# these. Your step need not: it returns `width`.
#
# **Exercise 09.1** (●●○, 5 minutes) Write one step. `totals` has the log probability of each of B beams, `log_probs` a
# row of V next-token log probabilities for each. Return the best `width` continuations as tuples (parent, token,
# total), best first; parent is the number of the beam.
#
# <details><summary>Hint 1</summary>
#
# Beams compete with each other. How many candidates are there in all, and what is the total of one of them?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# What has a continuation cost before its own log probability, and how do two of those go together? In a flat list of
# all B × V sums, how do you find the beam and the token of the best?
#
# </details>

# %% tags=["exercise:09.1"]
def step(totals, log_probs, width):
    ...  # your code


# %% tags=["check:09.1", "nbval-check-output"]
check("09.1", step)

# %% [markdown]
# <details><summary>Solution 09.1</summary>
#
# ```python
# def step(totals, log_probs, width):
#     sums = totals[:, None] + log_probs
#     best = np.argsort(-sums, axis=None)[:width]
#     return [(i // sums.shape[1], i % sums.shape[1], sums.flat[i]) for i in best]
# ```
#
# </details>

# %% [markdown]
# ## 3 The same search over the served model
#
# The model's language has 49,152 tokens. The server says where its tokenizer lies.

# %%
settings = client.get_model_config("preprocessing", as_json=True)["config"]["parameters"]
tokenizer = Tokenizer.from_file(settings["tokenizer_dir"]["string_value"] + "/tokenizer.json")
prompt_ids, end_id = tokenizer.encode(prompt).ids, tokenizer.token_to_id("<|im_end|>")


# %% [markdown]
# `tensorrt_llm` returns the **logits** (raw scores, notebook 08) of what it generates, so a request for one token gives
# one row of the search.

# %%
def next_log_probs(paths):
    sent.extend(paths)
    one = {"request_output_len": 1, "return_generation_logits": True}
    rows = {n: inputs(input_ids=path, input_lengths=len(path), **one) for n, path in enumerate(paths)}
    found = gather(client, "tensorrt_llm", rows)
    return log_softmax([found[n][0].as_numpy("generation_logits")[0, 0, 0] for n in rows], axis=-1)


# %% [markdown]
# **Predict:** four steps with `width` beams. Does the winner begin with the likeliest first token? How many requests
# does it take?

# %%
sent = []
found = beam_search(next_log_probs, prompt_ids, width=width, max_tokens=4, end_id=end_id)
best = found.hypotheses[0]
print(repr(tokenizer.decode(best.tokens)), f"log prob {best.log_prob:.3f}, after {len(sent)} requests")


# %% [markdown]
# Each box shows a token's probability after its parent; at the end stands the log probability of the path, in nats.

# %%
def token_label(node):
    text = f"{tokenizer.decode([node.token])!r} {math.exp(node.log_prob):.0%}".replace("%", " %")
    return text if node.depth < 4 else f"{text} → {node.cum_log_prob:.2f}"


rank = [node.token for node in found.tree if node.depth == 1].index(best.tokens[0]) + 1
summary = f"a tree of 4 steps with {width} beams; the winner begins with first token number {rank}"
show(figures.tree(found, token_label, root="prompt"), f"The winner's first token was number {rank}", summary)

# %% [markdown]
# The winner begins with the second-likeliest token. It took one request for the prompt, then `width` for each of three
# further steps: with three beams $1+3\cdot3=10$. Each brought a row of logits, about 200 kB, so the search belongs in
# the server. Ask it for `beam_width`, with `min_tokens` 0, as your own search may end at once:

# %%
whole = {"stream": False, "exclude_input_in_output": True, "return_log_probs": True}


def texts_of(results):
    """All texts of an answer. Samples are responses of their own that arrive as they end, so they are put in order."""
    ordered = sorted(results, key=lambda result: result.as_numpy("sequence_index").flat[0]) if results[1:] else results
    return [text.decode() for result in ordered for text in result.as_numpy("text_output")]


def ask(text, **more):
    return gather(client, "tensorrt_llm_bls", {"": inputs(text_input=text, **{**whole, **more})})[""]


# %%
(result,) = ask(prompt, max_tokens=4, beam_width=width, min_tokens=0)
for text, log_prob in zip(texts_of([result]), result.as_numpy("cum_log_probs")[0], strict=True):
    print(f"{log_prob:7.3f}  {text!r}")

# %% [markdown]
# One response holds all beams, the best first: `text_output` has `width` texts, `cum_log_probs` the shape `[1, width]`.
#
# **Predict:** are these the numbers of your own search?

# %%
yours, served = [each.log_prob for each in found.hypotheses], result.as_numpy("cum_log_probs")[0]
print("yours :", *np.round(yours, 3))
print("served:", *np.round(served, 3))
assert precision != "fp32" or np.allclose(yours, served, atol=1e-3)

# %% [markdown]
# They are your own numbers, from one request.
#
# <details><summary>With int4 weights</summary>
#
# There the logits depend on how many rows are computed together: expect differences of 0.1 to 0.3.
#
# </details>
#
# `num_return_sequences` returns only the best few. More beams than the server has room for are an error:

# %% tags=["nbval-check-output"]
print(len(texts_of(ask(prompt, max_tokens=4, beam_width=8, num_return_sequences=2))), "texts of 8 beams")
try:
    ask(prompt, max_tokens=4, beam_width=9)
except InferenceServerException as error:
    print(error.message())

# %% [markdown]
# In a stream of beams the best path may change from its first word on. So each response holds *whole* texts; show only
# the latest.

# %%
for response in ask(prompt, max_tokens=6, beam_width=4, stream=True):
    print(repr(response.as_numpy("text_output")[0].decode()))


# %% [markdown]
# A server does not copy paths. Each step notes, for each row, the chosen token and the row of the step before that it
# continues.
#
# ![Rows over steps; each cell has a token and an arrow back to the cell that it continues](pictures/09_rows.svg)
#
# **Exercise 09.2** (●●○, 5 minutes) `tokens[t][row]` is the token that row `row` got in step t, and `parents[t][row]`
# the row in step t − 1 that it continued; in step 0 every parent is the prompt. Recover the tokens of the beam that
# ends in `row`, in reading order.
#
# <details><summary>Hint 1</summary>
#
# A row knows its parent, not its children. At which end must you begin?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# You stand in a row of step t. Which number names the row of step t − 1, and does step 0 hold a token, too? In which
# order do you meet the tokens?
#
# </details>

# %% tags=["exercise:09.2"]
def recover(parents, tokens, row):
    ...  # your code


# %% tags=["check:09.2", "nbval-check-output"]
check("09.2", recover)

# %% [markdown]
# <details><summary>Solution 09.2</summary>
#
# ```python
# def recover(parents, tokens, row):
#     path = []
#     for step in reversed(range(len(tokens))):
#         path.append(tokens[step][row])
#         row = parents[step][row]
#     return path[::-1]
# ```
#
# </details>

# %% [markdown]
# ## 4 How many beams are enough?
#
# Try random languages of four words with sentences of four: your own search can go through all 256.

# %%
rng = np.random.default_rng(seed)


def random_language():
    tables = [log_softmax(rng.normal(size=(4,) * (depth + 1)), axis=-1) for depth in range(4)]
    return lambda paths: np.array([tables[len(path)][tuple(path)] for path in paths])


languages = [random_language() for _ in range(200)]
truth = [search(language, None, steps=4)[0] for language in languages]

# %% [markdown]
# **Predict:** in how many of 200 languages does the search fail, with 1, 2, 3 and 4 beams?

# %%
optimum = np.array([log_prob for _, log_prob in truth])
top = {w: np.array([search(each, w, steps=4)[0][1] for each in languages]) for w in (1, 2, 3, 4)}
missed = {w: int(np.sum(top[w] < optimum - 1e-9)) for w in top}
for w, count in missed.items():
    print(f"width {w} misses {count:2} of {len(languages)}")
print("languages in which one beam more finds less:", sum(np.sum(top[w] < top[w - 1] - 1e-9) for w in (2, 3, 4)))

# %% [markdown]
# It fails in 72 with one beam, in 9 with four. Only 64 beams, one for each path of three words, are sure to miss
# nothing here. A wider search can even find *less*: a better beginning pushes out the path that would have won.
#
# In the language below two beams fail. Black boxes belong to the likeliest sentence.

# %%
number = int(np.flatnonzero(top[2] < optimum - 1e-9)[0])
result, (winner, log_prob) = beam_search(languages[number], [], width=2, max_tokens=4), truth[number]
letters = lambda node: f"{'ABCD'[node.token]} {math.exp(node.cum_log_prob):.3f}"  # noqa: E731
name, ended = "".join("ABCD"[token] for token in winner), math.exp(top[2][number])

# %%
title = f"Two beams end at {ended:.3f}; {name} has {math.exp(log_prob):.3f}, but was cut"
summary = f"{name} is the likeliest of 256 sentences; a search with two beams loses it on the way"
show(figures.tree(result, letters, root="start", best=winner), title, summary)

# %% [markdown]
# Beam search is fast because it never comes back to what it has dropped. For the real model nobody knows the optimum.

# %% [markdown]
# ## 5 The length bias
#
# Every further token lowers the probability, so a search for the likeliest answer likes short ones. TensorRT-LLM ranks
# complete answers by
#
# $$\text{score}=\frac{\log P}{\text{length}^{\,p}}$$
#
# with the length penalty $p$. Length counts the generated tokens and the end token, as the sum of log probabilities
# does. TensorRT-LLM's default is $p=0$; transformers' is 1, the mean per token. The larger $p$, the *longer* the
# winners, because $\log P$ is negative.
#
# Ask `tensorrt_llm`, the model inside, which returns ids.

# %%
room = 24
question_ids = tokenizer.encode(question).ids
asked = {"input_ids": question_ids, "input_lengths": len(question_ids), "request_output_len": room, "end_id": end_id}
asked |= {"exclude_input_in_output": True, "return_log_probs": True}


# %% [markdown]
# An answer shorter than `room` has ended; its end token is not among the ids, but counts.

# %%
def answers(beams, penalty, **more):
    request = inputs(**asked, beam_width=beams, len_penalty=penalty, **more)
    result = gather(client, "tensorrt_llm", {"": request})[""][0]
    columns = (result.as_numpy(name)[0] for name in ("output_ids", "sequence_length", "cum_log_probs"))
    found = []
    for ids, size, log_prob in zip(*columns, strict=True):
        text = repr(tokenizer.decode(ids[:size])[:48]) + ("" if size < room else " (cut off)")
        found.append((float(log_prob), min(int(size) + 1, room), text))
    return found


# %% [markdown]
# **Predict:** four beams, `room` for 24 tokens. How long is the winner with $p$ = 0, 1 and 2?

# %%
ranked = {p: answers(4, p) for p in (0.0, 1.0, 2.0)}
for p, found in ranked.items():
    log_prob, length, text = found[0]
    print(f"p = {p:.0f}: {length:2} tokens, log prob {log_prob:6.2f}, score {log_prob / length**p:7.3f}: {text}")

# %% [markdown]
# With $p=0$ nothing favours a long answer, so a short one tends to win. When `room` runs out, unfinished answers are
# ranked as they are, and one of them may win.
#
# At which penalty do the shortest and the longest of the four answers change places?

# %%
by_length = sorted((length, log_prob) for log_prob, length, _ in ranked[0.0])
(length, likely), (longer, unlikely) = by_length[0], by_length[-1]
if longer > length:
    crossing = math.log(unlikely / likely) / math.log(longer / length)
    title = f"The answer of {length} tokens leads until the penalty passes {crossing:.2f}"
    summary = f"the ratio of the two scores passes 1 at a penalty of {crossing:.2f}"
    show(figures.penalty((likely, length), (unlikely, longer)), title, summary)
else:
    print("All four answers have one length, so no penalty changes their order")

# %% [markdown]
# A penalty can only rank what is there. `early_stopping`, an input of `tensorrt_llm`, decides when the search ends:
#
# - **True**, TensorRT-LLM's default: as soon as `beam_width` answers are complete, however short.
# - **False**, transformers' default: when no running beam scores better than the worst complete answer.
#
# **Predict:** eight beams, $p=2$. Does a long answer win now?

# %%
for stopping in (True, False):
    log_prob, length, text = answers(8, 2.0, early_stopping=stopping)[0]
    print(f"early_stopping {stopping!s:5}: {length:2} tokens, {text}")

# %% [markdown]
# Does a long answer win? With True, hardly: compare both lengths. Short answers can fill a wide beam first, and no
# penalty brings back what never finished. With False a longer one may finish.

# %% [markdown]
# **Exercise 09.3** (●●○, 6 minutes) Get a long answer that has ended. The check asks this server *Do you like tea?*,
# with `room` for 24 tokens and your settings of `tensorrt_llm`. The winner must have at least 13 tokens, its end token
# included. Try settings with `answers`, or with the check.
#
# <details><summary>Hint 1</summary>
#
# Which setting ranks answers, and which ones decide what there is to rank?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Does your winner end too early, or not at all? Which answers are ranked when a search goes on until `room` runs out?
#
# </details>

# %% tags=["exercise:09.3"]
answer_3 = {"beam_width": None, "len_penalty": None, "early_stopping": None}

# %% tags=["check:09.3", "nbval-check-output"]
check("09.3", (answer_3, client))

# %% [markdown]
# <details><summary>Solution 09.3</summary>
#
# ```python
# answer_3 = {"beam_width": 8, "len_penalty": 2.0, "early_stopping": True}
# ```
#
# </details>

# %% [markdown]
# <details><summary>On NVIDIA's server: versions in which these settings do nothing or something else</summary>
#
# - NVIDIA's BLS model has no input `early_stopping` before [pull request
#   13692](https://github.com/NVIDIA/TensorRT-LLM/pull/13692) of May 2026, nor has the one here. Until then
#   `tensorrt_llm` declares a BOOL of one byte and reads an int32 of four, so 0 and 1 arrive only by luck.
# - TensorRT-LLM 1.2.0, in container 26.03, ignores penalty and `early_stopping` in Triton ([pull request
#   13633](https://github.com/NVIDIA/TensorRT-LLM/pull/13633), opened on 30 April 2026, has the cure). By its date
#   1.2.1, in the containers 26.04 to 26.07, has the fault as well. Not tried here.
# - In TensorRT-LLM 0.6 to 0.9 each request must have exactly `max_beam_width` beams ([issue
#   1282](https://github.com/NVIDIA/TensorRT-LLM/issues/1282)); in the PyTorch backend, seen in 1.1.0rc1, again ([issue
#   7368](https://github.com/NVIDIA/TensorRT-LLM/issues/7368)).
#
# </details>

# %% [markdown]
# ## 6 Is the likeliest story the best?
#
# Seven strategies continue three beginnings: too few to prove anything, enough to see how to compare.

# %%
beginnings = [prompt, "The best thing about the sea is", "My grandmother always told me that"]
ways = {"greedy": {}, "beam 4": {"beam_width": 4}, "beam 8": {"beam_width": 8}, "top-k 50, T 1.0": {"top_k": 50}}
for t in (0.7, 1.0, 1.3):
    more = {"temperature": t, "return_generation_logits": t != 1}  # a use for them follows
    ways[f"top-p 0.9, T {t}"] = {"top_p": 0.9, **more}

# %% [markdown]
# **Predict:** which strategy has the highest log probability? Which repeats itself most? `min_tokens` makes all answers
# equally long.

# %%
fixed = {**whole, "max_tokens": max_tokens, "min_tokens": max_tokens}
requests = {(name, at): inputs(text_input=at, **fixed, **ways[name], seed=seed) for name in ways for at in beginnings}
stories = gather(client, "tensorrt_llm_bls", requests)
written = {key: texts_of(results)[0] for key, results in stories.items()}


# %% [markdown]
# A trap: a served log probability belongs to the choice *with* its temperature, so $T=0.7$ and $T=1.3$ do not compare.
# From notebook 06, $\log P=z/T-\text{logsumexp}(z/T)$: solve for the chosen token's logit $z$, then set $T=1$.

# %%
def mean_log_prob(result, temperature=1.0):
    log_probs, logits = result.as_numpy("output_log_probs")[0, 0], result.as_numpy("generation_logits")
    if temperature != 1:
        logits = logits[0, 0].astype(np.float64)
        chosen = temperature * (log_probs + logsumexp(logits / temperature, axis=-1))
        log_probs = chosen - logsumexp(logits, axis=-1)
    return float(np.mean(log_probs))


# %% [markdown]
# A second number counts word pairs: the share that occurred before in the same text.

# %%
def distinct(texts):
    counted = [pair for text in texts for pair in zip(text.split(), text.split()[1:], strict=False)]
    return 100 * len(set(counted)) / max(len(counted), 1)


repeated = {key: 100 - distinct([text]) for key, text in written.items()}
measured = {"log prob (nats/token)": {}, "repeated pairs (%)": {}}
for name, way in ways.items():
    likelihoods = [mean_log_prob(stories[name, at][0], way.get("temperature", 1.0)) for at in beginnings]
    for panel, values in zip(measured.values(), (likelihoods, [repeated[name, at] for at in beginnings]), strict=True):
        panel[name] = values

# %% [markdown]
# A coloured dot is one of the three beginnings, the black mark their mean.

# %%
palette = {"greedy": "#222222", "beam": "#CC79A7", "top-k": "#56B4E9", "top-p": "#009E73"}
colours = {name: next(colour for word, colour in palette.items() if name.startswith(word)) for name in ways}
likely, repeats = ({name: float(np.mean(v)) for name, v in panel.items()} for panel in measured.values())
likeliest = max(likely, key=likely.get)
summary = f"{likeliest}: {likely[likeliest]:.2f} nats per token, {repeats[likeliest]:.0f} % repeated pairs on average"
title = f"{likeliest} writes the likeliest texts; {repeats[likeliest]:.0f} % of their pairs repeat"
show(figures.strategies(measured, colours), title, summary)

# %% [markdown]
# The wide beams are likeliest, hot samples the least likely. Beams repeat themselves most, if any do, but the spread
# within a row is large.
#
# Is a likely story worth reading? Read two, and the one of eight beams that repeats itself most:

# %%
worst = max(beginnings, key=lambda at: repeated["beam 8", at])
for name, at in (("beam 8", prompt), ("top-p 0.9, T 1.0", prompt), ("beam 8", worst)):
    print(f"{name}, {repeated[name, at]:.0f} % repeated: {at}{written[name, at]}\n")

# %% [markdown]
# The likely story reads better: at $T=1$ the tail of this small model leads it astray. The price of beams shows, if
# anywhere, in the last one. With large models and many texts it is a finding: the likeliest text is bland and repeats
# itself ([Holtzman et al. 2020](https://arxiv.org/abs/1904.09751)).
#
# What does an answer cost? Divide the tokens of *one* answer by the seconds: the other beams are thrown away.
#
# **Predict:** the speed of eight beams, as a percentage of greedy's.

# %%
timed = {name: [] for name in ("greedy", "beam 4", "beam 8", "top-k 50, T 1.0")}
for name in list(timed) * 3:
    (result,) = ask(prompt, max_tokens=12, min_tokens=12, **ways[name])
    timed[name].append(12 / result.seconds)
speed = {name: float(np.mean(rates)) for name, rates in timed.items()}
for name, rates in timed.items():
    print(f"{name:16}{speed[name]:5.0f} tokens/s (three runs: {min(rates):.0f} to {max(rates):.0f})")

# %% [markdown]
# Eight beams keep more than half of greedy's speed: each is a row in every step, and the rows share one reading of the
# weights. A difference smaller than the ranges is noise.
#
# Memory you can calculate. The **KV cache** (notebook 02) holds a key and a value for each token of each beam, in every
# KV head of every layer, here in float32.
#
# **Predict:** how many megabytes does the longest story need with 8 beams, how many with one?

# %%
settings = client.get_model_config("tensorrt_llm", as_json=True)["config"]["parameters"]
engine = Path(settings["gpt_model_path"]["string_value"])
config = json.loads((engine / "config.json").read_text())["pretrained_config"]
token_bytes = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_size"] * 4
one = (len(prompt_ids) + max_tokens) * token_bytes / 1e6
print(f"{token_bytes:,} bytes a token; {len(prompt_ids) + max_tokens} tokens: {one:.1f} MB, 8 beams {8 * one:.1f} MB")

# %% [markdown]
# Here each beam keeps the prompt as well. TensorRT-LLM's beams share the prompt's full blocks
# ([kvCacheManager.cpp](https://github.com/NVIDIA/TensorRT-LLM/blob/main/cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp)),
# so there the factor 8 holds for the generated tokens.
#
# **Predict:** which share of word pairs is different in the four texts of a beam search, which in four samples? (Four
# equal texts have at most 25 %.)

# %%
samples = texts_of(ask(prompt, **fixed, top_k=50, num_return_sequences=4, seed=seed))
for name, texts in {"beam 4": texts_of(stories["beam 4", prompt]), "top-k 50": samples}.items():
    print(f"{name}: {distinct(texts):.0f} % different pairs", *(f"  …{text[-60:]!r}" for text in texts), sep="\n")

# %% [markdown]
# The beams are branches of one tree: nearly the same text. If you want four different answers, sample four.

# %% [markdown]
# ## 7 One right answer
#
# Some tasks have one right answer. Copying a line is the plainest.

# %%
lines = "crimson lantern; quiet river stones; seven green bottles; violet paper kite; nine tiny drums; "
lines += "the ticket office opens; zebra under umbrella; he paid for the bread"
lines = lines.split("; ")[: max(1, items // 3)]
copying = "Copy each line.\nbird on wire -> bird on wire\nold clay jug -> old clay jug\n{} ->"


def answers_to(template, questions, **way):
    one_line = {**whole, "max_tokens": 8, "stop_words": ["\n"], "seed": seed, **way}
    asked_for = {each: inputs(text_input=template.format(each), **one_line) for each in questions}
    found = gather(client, "tensorrt_llm_bls", asked_for)
    return [[text.strip() for text in texts_of(found[each])] for each in questions]


# %% [markdown]
# **Predict:** how many lines do greedy decoding, four beams, and sampling at temperature 1 copy right?

# %%
copied = {}
for name, way in {"greedy": {}, "beam 4": {"beam_width": 4}, "top-p 1, T 1": {"top_p": 1.0}}.items():
    got = answers_to(copying, lines, **way)
    copied[name] = sum(texts[0] == line for texts, line in zip(got, lines, strict=True))
    print(f"{name}: {copied[name]} of {len(lines)}", got[0][:2])

# %% [markdown]
# Beams do not beat greedy decoding: in a copy nearly every step is certain, so the greedy path *is* the likeliest.
# Sampling sooner or later leaves it.
#
# Beams win where the right answer is likely without being the first choice, and something recognises it. So put back
# missing spaces: to check an answer, take them out again.

# %%
phrases = "cold water; my brother is ill; open the door; rainy day; close your eyes; it was late; she loves tea; "
phrases += "the boy is sad; blue sky; he can swim; we are home; a long road; my left hand; take a seat; good morning; "
phrases += "they went away; red wine; i like music; a small bird; turn it off; her new hat; wait for me; "
phrases += "the old bridge; the end is near; fresh bread; time to go; my best friend; a warm bath; we had fun; "
phrases += "look at this; green tea; the sun is out; stay with us; hard work; he was right; one more time; "
phrases += "black coffee; the cat sleeps; come back soon; a deep lake; i am tired; read this book; white snow; "
phrases += "the train left; you were late; a quiet room; sit down; the milk is cold; next week; she can sing; "
phrases += "big city; the door was shut; do it now; hot soup; our first house; a broken cup; they are here; "
phrases = (phrases + "let me see; dark night; the fire went out").split("; ")[:items]
puzzles = [phrase.replace(" ", "") for phrase in phrases]
spacing = "Put the spaces back.\nthedogran -> the dog ran\nredcar -> red car\nwecansing -> we can sing\n{} ->"


# %% [markdown]
# Four beams compete with four samples at temperature 0.7, and with greedy. Take the first text, or the first that
# passes the check.
#
# **Predict:** which of the five has the most right answers? How many of four samples are different texts?

# %%
def first_valid(texts, puzzle):
    return next((text for text in texts if text.replace(" ", "") == puzzle), texts[0])


samples4 = {"top_k": 50, "temperature": 0.7, "num_return_sequences": 4}
four = {"greedy": {}, "beam 4": {"beam_width": 4, "length_penalty": 1.0}, "top-k 50, four": samples4}
solved = {}
for name, way in four.items():
    got = answers_to(spacing, puzzles, **{"max_tokens": 6, **way})
    solved[name] = np.array([texts[0] == phrase for texts, phrase in zip(got, phrases, strict=True)])
    if len(got[0]) > 1:
        checked = [first_valid(texts, puzzle) for texts, puzzle in zip(got, puzzles, strict=True)]
        solved[f"{name}, checked"] = np.array([a == b for a, b in zip(checked, phrases, strict=True)])
        print(f"{name}: {np.mean([len(set(texts)) for texts in got]):.1f} different texts a puzzle")

# %% [markdown]
# The right answers in both tasks:

# %%
right = {name: int(np.sum(each)) for name, each in solved.items()}
panels = {"copy a line": (len(lines), copied), "put the spaces back": (len(phrases), right)}
names = [*copied, *right]
colours = {name: next(colour for word, colour in palette.items() if name.startswith(word)) for name in names}
checked = [right[name] for name in right if name.endswith("checked")]
title = f"Spaces: with a check four beams solve {checked[0]} of {len(phrases)}, four samples {checked[1]}"
show(figures.counts(panels, colours), title, "; ".join(f"{name} {good}" for name, good in right.items()))

# %% [markdown]
# Beams with a check have the most. They are the *likeliest* candidates found, no two with the same tokens; samples
# repeat the likely ones. So the right answer is among four beams more often here.
#
# Is that more than chance? Only the puzzles that one strategy alone has solved tell two strategies apart. The **sign
# test** asks how often a fair coin, tossed once for each of those, would be as one-sided. That share is p.
#
# **Predict:** beams meet greedy, which has one try, and the fair rival: four samples with the same check. Which p is
# below 0.05?

# %%
beams, p_values = solved["beam 4, checked"], {}
for name in ("greedy", "top-k 50, four, checked"):
    only, only_other = int(np.sum(beams & ~solved[name])), int(np.sum(solved[name] & ~beams))
    p_values[name] = binomtest(only, only + only_other).pvalue if only + only_other else 1.0
    print(f"beams with a check: {only} puzzles alone; {name}: {only_other}; p = {p_values[name]:.4f}")

# %% [markdown]
# With the default parameters only greedy's is, by a little: the lead over checked samples may be chance. More puzzles
# tell: with `items = 60` that p was 0.002.
#
# Copy with greedy decoding. Sample where many answers are good.
#
# ## Playground
#
# The greedy text of this prompt, with controls. The colour of a token says how likely the model found it.
#
# **Predict:** a second beam can win only where greedy decoding was unsure. Is that at a word, or at a full stop?

# %%
playground(server.grpc_url, prompt, top_p=0.0, max_tokens=24)

# %% [markdown]
# Mostly at words: full stops are lighter. Now set `beam_width` to 3 and run again: which words do all beams share?

# %% [markdown]
# ## Recap
#
# - Beam search is a breadth-first search whose queue is cut to the best `width` after each step. Width 1 is greedy.
# - The cut can lose the likeliest answer, and a wider search can find even less.
# - A server returns all beams in one response, best score first. A streamed response holds whole texts.
# - $\text{score}=\log P/\text{length}^p$. With $p=0$, TensorRT-LLM's default, short answers win. A penalty ranks
#   what is there when the search ends: `early_stopping` says when. If `room` runs out, cut-off answers count, too.
# - Beams cost memory and some speed, for nearly the same texts.
# - Four beams and a check win where one answer is right. Likely open-ended text can be bland.

# %% [markdown]
# ## Break it
#
# This server keeps the model from ending before its first token (`min_tokens` is 1 by default). Take that away.
# **Predict:** which of all answers is the likeliest? Does a length penalty of 1 help?
#
# <details><summary>TensorRT-LLM's min_tokens</summary>
#
# The default is 1 there, too, but has no effect as long as all requests of a batch have it, says [pull request
# 1935](https://github.com/NVIDIA/TensorRT-LLM/pull/1935).
#
# </details>

# %%
for p in (0.0, 1.0):
    (result,) = ask(question, max_tokens=12, beam_width=8, min_tokens=0, length_penalty=p)
    texts = texts_of([result])
    for text, log_prob in list(zip(texts, result.as_numpy("cum_log_probs")[0], strict=True))[:3]:
        print(f"p = {p:.0f}: {log_prob:6.2f}  {text!r}")
    print(f"p = {p:.0f}: the {'empty' if not texts[0] else 'longer'} answer wins")

# %% [markdown]
# To this chat model the question is a complete message, so its likeliest continuation is to end. A penalty of 1 divides
# by a length of 1, so the empty answer wins unless a longer one has a better mean per token.
#
# <details><summary>What an exact search would find</summary>
#
# It makes this worse: translation models, searched to the true optimum, give the empty sentence for more than half of
# their inputs ([Stahlberg and Byrne 2019](https://arxiv.org/abs/1908.10090)).
#
# </details>
#
# A second one. `accumulate_tokens` (notebook 05) makes each streamed response the whole text so far. Does it work with
# beams? Change it in `config.pbtxt`, and load the model again.

# %% tags=["nbval-check-output"]
file = server.repository / "tensorrt_llm_bls" / "config.pbtxt"
before = 'key: "accumulate_tokens" value { string_value: "false" }'
file.write_text(file.read_text().replace(before, before.replace("false", "true")))
server.load("tensorrt_llm_bls")
try:
    ask(prompt, max_tokens=4, beam_width=2, stream=True)
except InferenceServerException as error:
    print(error.message())

# %% [markdown]
# It does not, and the model says so. Try more: `width = 8` in section 3, `items = 60`, colder languages in section 4
# (multiply `rng.normal` by 3), or `beam_search_diversity_rate`, an input of `tensorrt_llm`, against beams that are too
# alike.

# %%
client.close()
server.stop()
numbers = {"nats_per_token": {name: round(value, 2) for name, value in likely.items()}, "missed_of_200": missed}
numbers |= {"repeated_pairs_percent": {name: round(value, 1) for name, value in repeats.items()}}
numbers |= {"tokens_per_second": {name: round(rate, 1) for name, rate in speed.items()}, "copied": copied}
notebook.record(**numbers, spaced=right, sign_test=round(p_values["greedy"], 5))
