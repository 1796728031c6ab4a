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
# - do a beam search by hand, and say what it keeps and what it drops
# - ask a server for beams, and read what comes back
# - show with an example that beam search may miss the likeliest answer
# - say what a length penalty divides, and what it cannot mend
# - choose between beams and sampling by the task and by what they cost
#
# **Time:** 40 minutes (last run: 250 s) · **Lanes:** embedded, trtllm · **Needs:** the weights of SmolLM2-135M
#
# Previous: [08 · Log probabilities](08_log_probs.ipynb) · Next: [10 · Speculation](10_speculative_decoding.ipynb)

# %%
import json
import math
import os
import tempfile

import numpy as np
from tokenizers import Tokenizer

from servinglab import assets, decoding
from servinglab.checks import check
from servinglab.errors import CourseError
from servinglab.explore import explore
from servinglab.figures import beam_search as figures
from servinglab.figures import style
from servinglab.notebook import begin, record, resolve_lane
from servinglab.old_client import ClientError, TritonClient
from servinglab.repository import build_default
from servinglab.server import TritonServer

begin()
style.use()

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
precision: str = "fp32"  # weights of the model: "fp32" or "int4"
prompt: str = "Once upon a time, there was a fox who"  # the beginning of a story
question: str = "Tell me a short story about a fox."  # for which short answers exist, too
max_tokens: int = 40  # length of the stories, in tokens, at least 2
width: int = 3  # beams in the drawn search, 1 to 8
items: int = 40  # puzzles with one right answer, 1 to 60 (and up to 8 lines to copy)
seed: int = 0  # seed of the samples and of the random languages

# %% [markdown]
# ## 1 A server with room for beams
#
# Each beam takes a row of the running batch, so a server is told at its start how many beams a request may have. The
# default is 1. Here you build the repository with 8. (`normalize_log_probs` is for NVIDIA's backend. Notebook 08 has
# what it does without beams; here it only makes sure that nothing is divided.) The first lines refuse parameters with
# which there is nothing to compare.

# %%
if not (1 <= width <= 8 and max_tokens >= 2 and 1 <= items <= 60 and prompt and question):
    raise CourseError("give width 1 to 8, max_tokens at least 2, items 1 to 60, a prompt and a question")
lane = resolve_lane(lane)
scratch = tempfile.TemporaryDirectory(prefix="servinglab-09-")
repository = {"precision": precision, "max_beam_width": 8}
repository["parameters"] = {"normalize_log_probs": False}
server = TritonServer(build_default(scratch.name, **repository)).start()
client = TritonClient(server.grpc_url, server.http_url)
small_print = style.provenance(lane, seed, weights=precision)

# %% [markdown]
# ## 2 Greedy can miss
#
# Begin with a language of six words that you can search on paper. After *the* comes an animal, then what it did.

# %%
toy = {
    "the": {" fox": 0.5, " dog": 0.4, " owl": 0.1},
    "the fox": {" ran": 0.4, " sat": 0.35, " hid": 0.25},
    "the dog": {" ran": 0.9, " sat": 0.1},
    "the owl": {" sat": 0.8, " hid": 0.2},
}

# %% [markdown]
# **Predict:** greedy decoding takes the likeliest word, twice. Which sentence does it write? Which sentence is the
# likeliest of all? Multiply on paper.
#
# The search below adds logarithms, as notebook 08 taught. `next_log_probs` gets a list of paths and returns a row of
# log probabilities for each; a word that cannot come has -inf.

# %%
words = [" fox", " dog", " owl", " ran", " sat", " hid"]


def toy_log_probs(paths):
    rows = [toy.get("the" + "".join(words[token] for token in path), {}) for path in paths]
    with np.errstate(divide="ignore"):  # log 0 is meant
        return np.log([[row.get(word, 0) for word in words] for row in rows])


# %% [markdown]
# A **breadth-first search** keeps a queue of paths. In each step it extends every path by every token, so the queue
# grows by the factor of the vocabulary. **Beam search** is the same with one more line: after each step the queue is
# cut to the best `width`. That cut is a heuristic. Nothing proves that the best path is still in the queue.

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
# Greedy gets 0.5 · 0.4 = 0.20. *The dog ran* has 0.4 · 0.9 = 0.36, but begins with the second best word. A second beam
# keeps it alive.
#
# `decoding.beam_search` is the same search, and it remembers everything it looked at. Each box shows a word and the
# probability of the path so far. Filled boxes were kept, faint ones were looked at and pruned; the winner is black.

# %%
def draw(axes, width):
    result = decoding.beam_search(toy_log_probs, [], width=width, max_tokens=2)
    label = lambda node: f"{words[node.token].strip()} {math.exp(node.cum_log_prob):.3g}"  # noqa: E731
    figures.draw_tree(axes, result, label, root="the")


title = "One beam ends at 0.2; two beams find 0.36, and a third adds nothing"
summary = "width 1: the fox ran, 0.2; widths 2 and 3: the dog ran, 0.36"
explore(draw, title=title, summary=summary, small_print="probabilities of the toy language above", width=[1, 2, 3])


# %% [markdown]
# With `width` beams a step looks at the best 2 × `width` continuations, so that enough are left when some of them have
# ended. That is why the left panel has two boxes a column.
#
# **Exercise 09.1** Write one step. `totals` has the log probability of each of B beams, `log_probs` a row of V
# next-token log probabilities for each. Return the best `width` continuations as tuples (parent, token, total), best
# first; parent is the number of the beam.

# %% tags=["exercise:09.1"]
def step(totals, log_probs, width):
    ...  # your code


# %% tags=["check:09.1", "nbval-check-output"]
check("09.1", step)

# %% [markdown]
# ## 3 The same search over the served model
#
# The model's language has 49,152 words, and its rows come from the server. `tensorrt_llm` returns the logits of what it
# generates; one request for one token is one row. All rows of a step are sent at once.

# %%
tokenizer = Tokenizer.from_file(str(assets.tokenizer("smollm2") / "tokenizer.json"))
prompt_ids = tokenizer.encode(prompt).ids


def next_log_probs(paths):
    sent.extend(paths)
    one = {"request_output_len": [[1]], "return_generation_logits": [[True]]}
    rows = [{"input_ids": [path], "input_lengths": [[len(path)]], **one} for path in paths]
    streams = [client.stream_inputs("tensorrt_llm", row, deadline=300) for row in rows]
    found = [next(chunk.outputs for chunk in stream if chunk.outputs) for stream in streams]
    return decoding.log_softmax([outputs["generation_logits"][0, 0, 0] for outputs in found])


# %% [markdown]
# **Predict:** the search takes four steps with `width` beams. Does the winner begin with the likeliest first token? How
# many requests does it take?

# %%
end_id = tokenizer.token_to_id("<|im_end|>")
sent = []  # next_log_probs notes here what it asks for
found = decoding.beam_search(next_log_probs, prompt_ids, width=width, max_tokens=4, end_id=end_id)
best = found.hypotheses[0]
print(repr(tokenizer.decode(best.tokens)), f"log prob {best.log_prob:.3f}, after {len(sent)} requests")


# %% [markdown]
# The tree shows each token with the probability that it had after its parent. Behind the last tokens stands the log
# probability of the whole path, in nats.

# %%
def token_label(node):
    text = f"{tokenizer.decode([node.token])!r} {math.exp(node.log_prob):.0%}".replace("%", " %")
    return text if node.depth < 4 else f"{text} → {node.cum_log_prob:.2f}"


first_tokens = [node.token for node in found.tree if node.depth == 1]
rank = first_tokens.index(best.tokens[0]) + 1
kept = sum(node.kept for node in found.tree) - 1
title = f"The winner's first token was number {rank}; of {len(found.tree) - 1} looked at, {kept} were kept"
summary = f"a tree of 4 steps with {width} beams; the winner begins with first token number {rank}"
style.finish(figures.tree(found, token_label, root="prompt"), title, small_print, summary)

# %% [markdown]
# The requests: one for the prompt, then `width` for each of the three further steps; with three beams 1 + 3 · 3 = 10. A
# whole row of logits, about 200 kB, had to travel for every path that was extended. That is why the search belongs into
# the server, where the logits are. Ask it for `beam_width`, and for `min_tokens` 0, because your own search may end at
# once, too:

# %%
whole = {"stream": False, "exclude_input_in_output": True, "return_log_probs": True, "deadline": 300}


def read(stream):
    """Texts of all answers, and the tensors of the last. Samples arrive as they end, so they are put in order."""
    responses = [chunk.outputs for chunk in stream if chunk.outputs]
    responses.sort(key=lambda outputs: int(outputs.get("sequence_index", np.zeros(1)).flat[0]))
    return [text.decode() for outputs in responses for text in outputs["text_output"]], responses[-1]


texts, outputs = read(client.stream(prompt, max_tokens=4, beam_width=width, min_tokens=0, **whole))
for text, log_prob in zip(texts, outputs["cum_log_probs"][0], strict=True):
    print(f"{log_prob:7.3f}  {text!r}")

# %% [markdown]
# One response with all beams, the best first: `text_output` has `width` texts, `cum_log_probs` the shape `[1, width]`.
# If you come from transformers: its `generate(num_beams=4)` gives you one text unless you ask for more.
#
# **Predict:** are these the numbers of your own search?

# %%
yours = [hypothesis.log_prob for hypothesis in found.hypotheses]
served = outputs["cum_log_probs"][0]
print("yours :", *np.round(yours, 3))
print("served:", *np.round(served, 3))
assert precision != "fp32" or np.allclose(yours, served, atol=1e-3)
assert all(np.diff(served) <= 0)

# %% [markdown]
# They are, and the server did it with one request. (With int4 weights the logits depend on how many rows are computed
# together, and your requests read each path as a prompt: expect differences of 0.1 to 0.3.)
#
# `num_return_sequences` returns fewer than were searched for, the best ones. More beams than the server was started
# with are an error. A stream of beams is odd: the best path may change from its first word on, so each response holds
# *whole* texts, and you show the last one only.

# %% tags=["nbval-check-output"]
texts, _ = read(client.stream(prompt, max_tokens=4, beam_width=8, num_return_sequences=2, **whole))
print(len(texts), "texts of 8 beams")
try:
    read(client.stream(prompt, beam_width=9, **whole))
except ClientError as error:
    print(error)

# %%
for chunk in client.stream(prompt, max_tokens=6, beam_width=4, exclude_input_in_output=True, deadline=300):
    if chunk.outputs:
        print(repr(chunk.text))


# %% [markdown]
# How does a server get a path out of such a search? It does not copy paths. Each step notes, for each row, the token
# that was chosen and the row of the step before that it continues. At the end it walks back.
#
# **Exercise 09.2** `tokens[t][row]` is the token that row `row` got in step t, and `parents[t][row]` the row in step
# t − 1 that it continued; in step 0 every parent is the prompt. Recover the tokens of the beam that ends in `row`, in
# reading order.

# %% tags=["exercise:09.2"]
def recover(parents, tokens, row):
    ...  # your code


# %% tags=["check:09.2", "nbval-check-output"]
check("09.2", recover)

# %% [markdown]
# ## 4 Beam search can miss, too
#
# Two beams solved the toy. Are two always enough? Do not search for a counter-example by thinking; let random languages
# find one. Each has four words and sentences of four, 256 in all, so that trying all of them is easy.

# %%
rng = np.random.default_rng(seed)


def random_language():
    tables = [decoding.log_softmax(rng.normal(size=(4,) * (depth + 1))) for depth in range(4)]
    return lambda paths: np.array([tables[len(path)][tuple(path)] for path in paths])


languages = [random_language() for _ in range(200)]
truth = [decoding.exhaustive_search(language, [], max_tokens=4) for language in languages]

# %% [markdown]
# **Predict:** in how many of 200 languages does the search miss the likeliest sentence, with 1, 2, 3 and 4 beams?

# %%
results = {w: [decoding.beam_search(each, [], width=w, max_tokens=4) for each in languages] for w in (1, 2, 3, 4)}
top = {w: np.array([result.hypotheses[0].log_prob for result in found]) for w, found in results.items()}
optimum = np.array([result.hypotheses[0].log_prob for result in truth])
missed = {w: int(np.sum(top[w] < optimum - 1e-9)) for w in top}
for w, count in missed.items():
    print(f"width {w} misses {count:2} of {len(languages)}")
worse = {w: int(np.sum(top[w] < top[w - 1] - 1e-9)) for w in (2, 3, 4)}
print("languages in which one beam more finds less:", sum(worse.values()))

# %% [markdown]
# More beams miss less. Only 64 beams are sure to miss nothing here: as many as there are paths of three words. A wider
# search can even find *less*, because a better beginning may push out the path that would have won; but that is rare.
#
# Look at the first language in which two beams fail. Black boxes belong to the likeliest sentence, as far as the search
# has seen it.

# %%
number = int(np.flatnonzero(top[2] < optimum - 1e-9)[0])
result, winner = results[2][number], truth[number].hypotheses[0]
alive = {tuple(result.path(node.id)) for node in result.tree if node.kept}
cut = next(depth for depth in (1, 2, 3, 4) if tuple(winner.tokens[:depth]) not in alive)
letters = lambda node: f"{'ABCD'[node.token]} {math.exp(node.cum_log_prob):.3f}"  # noqa: E731
name = "".join("ABCD"[token] for token in winner.tokens)
best_two = math.exp(result.hypotheses[0].log_prob)
title = f"Two beams end at {best_two:.3f}; {name} has {math.exp(winner.log_prob):.3f}, but was cut after step {cut}"
summary = f"{name} is the likeliest of 256 sentences; a search with two beams loses it after step {cut}"
drawing = figures.tree(result, letters, root="start", best=winner.tokens)
style.finish(drawing, title, style.provenance(lane, seed), summary)

# %% [markdown]
# That is the price of the cut: beam search is fast because it never comes back to what it has dropped. For the real
# model, 49,152 to the power of `max_tokens` sentences, nobody knows the optimum. All you can say is: wider searches
# usually find something likelier.
#
# ## 5 The length bias
#
# Every further token multiplies the probability by a number below 1. So a search for the likeliest answer likes short
# ones. TensorRT-LLM ranks complete answers by
#
# $$\text{score} = \frac{\log P}{\text{length}^{\,p}}$$
#
# with the length penalty p. Length counts the generated tokens, the end token too, because its log probability is part
# of the sum. p = 0 is TensorRT-LLM's default; transformers' is 1, the mean per token. The name misleads: the larger p,
# the *longer* the winners, because log P is negative.
#
# A text does not say how many tokens it has, nor whether it ended or was cut off. So ask `tensorrt_llm`, the model
# inside, which takes and returns token ids and says how many. An answer of fewer ids than there was `room` for has
# ended; its end token is not among the ids, but it counts.

# %%
room = 24
question_ids = tokenizer.encode(question).ids
asked = {"input_ids": [question_ids], "input_lengths": [[len(question_ids)]], "request_output_len": [[room]]}
asked |= {"end_id": [[end_id]], "exclude_input_in_output": [[True]], "return_log_probs": [[True]]}


def ask(width, penalty, **more):
    given = {**asked, "beam_width": [[width]], "len_penalty": [[penalty]], **more}
    return client.stream_inputs("tensorrt_llm", given, deadline=300)


# %% [markdown]
# Each answer becomes a log probability, a length, and its text, with a note if it was cut off.

# %%
def answers(stream):
    outputs, found = next(chunk.outputs for chunk in stream if chunk.outputs), []
    columns = (outputs[name][0] for name in ("output_ids", "sequence_length", "cum_log_probs"))
    for ids, size, log_prob in zip(*columns, strict=True):
        text = repr(tokenizer.decode(ids[:size])[:48]) + ("" if size < room else " (cut off)")
        found.append((float(log_prob), min(int(size) + 1, room), text))
    return found


# %% [markdown]
# **Predict:** four beams, `room` for 24 tokens. How long is the winner with p = 0, 1 and 2?

# %%
streams = {p: ask(4, p) for p in (0.0, 1.0, 2.0)}
ranked = {p: answers(stream) for p, stream in streams.items()}
for p, found in ranked.items():
    log_prob, length, text = found[0]
    print(f"p = {p:.0f}: {length:2} tokens, log prob {log_prob:6.2f}, score {log_prob / length**p:7.3f}: {text}")

# %% [markdown]
# With p = 0 nothing speaks for a long answer, whatever was asked for, and a short way out tends to win. At the limit,
# paths that still run are ranked as they are: an answer may win that is none yet. The figure compares two of the four
# answers over all penalties.

# %%
by_length = sorted((length, log_prob) for log_prob, length, _ in ranked[0.0])
(short, likely), (long, unlikely) = by_length[0], by_length[-1]
pair = {f"{length} tokens": (log_prob, length) for length, log_prob in (by_length[0], by_length[-1])}
crossing = math.log(unlikely / likely) / math.log(long / short) if long > short else None

# %%
if crossing is None:
    title = summary = "All four answers have one length, so no penalty changes their order"
else:
    title = f"The answer of {short} tokens leads until the penalty passes {crossing:.2f}"
    summary = f"the lines cross where (length ratio)^penalty equals the ratio of the log probs: {crossing:.2f}"
lines = figures.penalty_lines(np.linspace(0, 2, 21), pair, crossing)
style.finish(lines, title, style.provenance(lane, weights=precision), summary)


# %% [markdown]
# **Exercise 09.3** Write the score of an answer. Not every argument is of use.

# %% tags=["exercise:09.3"]
def score(log_prob, length, prompt_length, length_penalty):
    ...  # your code


# %% tags=["check:09.3", "nbval-check-output"]
check("09.3", score)

# %% [markdown]
# A penalty can only rank what is there. `early_stopping` decides when the search ends: with True, TensorRT-LLM's
# default, as soon as `beam_width` answers are complete, even if all of them are short. With False, transformers'
# default, it goes on while the best running beam has a better score than the worst complete answer. `tensorrt_llm` has
# this input; the BLS model has none, like NVIDIA's before
# [pull request 13692](https://github.com/NVIDIA/TensorRT-LLM/pull/13692) of 2026.
#
# **Predict:** eight beams, p = 2. Does a long answer win now?

# %%
for stopping in (True, False):
    log_prob, length, text = answers(ask(8, 2.0, early_stopping=[[stopping]]))[0]
    print(f"early_stopping {stopping!s:5}: {length:2} tokens, {text}")

# %% [markdown]
# With True, a wide beam can fill up with short answers before any long one is complete. No penalty brings back what was
# never finished. With False the search goes on, and may find a longer one.
#
# On NVIDIA's server neither may do anything. TensorRT-LLM 1.2.0, which is in container 26.03, ignores both in Triton:
# an argument was added before them, and each took the place of another one
# ([pull request 13633](https://github.com/NVIDIA/TensorRT-LLM/pull/13633) has the cure). If a penalty changes nothing
# there, that is why.
#
# Two libraries, two details. transformers, and newer TensorRT-LLM in beam search
# ([penaltyLayer.cpp](https://github.com/NVIDIA/TensorRT-LLM/blob/main/cpp/tensorrt_llm/layers/penaltyLayer.cpp)), take
# the log softmax *before* penalties and bans; older TensorRT-LLM and this server after them. So with a penalty their
# scores differ. And with False, TensorRT-LLM compares with the best continuation of the step even if it has just ended;
# transformers and this server with the best that goes on.
#
# ## 6 Likely, repetitive, expensive
#
# Now the question that matters: is the likeliest story the best one? Ten strategies continue three beginnings. You
# measure
#
# - the mean log probability per token of an answer, as the model sees it;
# - the share of word pairs that occurred before in the same answer (`decoding.repetition_rate`);
# - how different *two* answers to one prompt are: the share of distinct word pairs in both together, distinct-2
#   (`decoding.distinct_n`); the same text twice has 50 % at most;
# - what an answer costs: tokens per second, and memory.

# %%
beginnings = [prompt, "The best thing about the sea is", "My grandmother always told me that"]
ways = {"greedy": {}} | {f"beam {w}": {"beam_width": w} for w in (2, 4, 8)}
for t in (0.7, 1.0, 1.3):
    settings = {"temperature": t, "return_generation_logits": t != 1}  # a use for them follows
    ways |= {f"top-k 50, T {t}": {"top_k": 50, **settings}, f"top-p 0.9, T {t}": {"top_p": 0.9, **settings}}

# %% [markdown]
# **Predict:** which strategy repeats itself most? Which has the highest log probability? Send everything at once;
# `min_tokens` makes all answers equally long.

# %%
fixed = {"max_tokens": max_tokens, "min_tokens": max_tokens, "seed": seed, **whole}
streams = {(name, at): client.stream(at, **way, **fixed) for name, way in ways.items() for at in beginnings}
stories = {key: read(stream) for key, stream in streams.items()}

# %% [markdown]
# The second answer: of a beam search its second beam, of a sampling another seed. Greedy has only one.

# %%
again = {**fixed, "seed": seed + 1, "return_generation_logits": False}
streams = {(n, at): client.stream(at, **{**ways[n], **again}) for n, at in stories if n.startswith("top")}
second = {key: read(stream)[0][0] for key, stream in streams.items()}
pairs = {key: [texts[0], second.get(key, texts[min(1, len(texts) - 1)])] for key, (texts, _) in stories.items()}


# %% [markdown]
# A trap: a served log probability is that of the choice, *with* its temperature. A log probability at T = 0.7 and one
# at 1.3 do not compare. With the logits you can undo it. From notebook 06, log P = z/T − logsumexp(z/T). Solve for the
# logit z of the chosen token, then write the same formula with T = 1.

# %%
def mean_log_prob(outputs, temperature=1.0):
    log_probs = outputs["output_log_probs"][0, 0]
    if "generation_logits" in outputs:
        logits = outputs["generation_logits"][0, 0].astype(np.float64)
        chosen = temperature * (log_probs + decoding.logsumexp(logits / temperature))
        log_probs = chosen - decoding.logsumexp(logits)
    return float(np.mean(log_probs))


# %% [markdown]
# Next the cost. Ask each kind of strategy alone and divide the tokens of *one* answer by the seconds: seven of eight
# beams are thrown away. The kinds take turns, because something else may be busy on this machine. Of sampling one
# setting is timed; another one changes numbers, not the work.

# %%
alone = {"max_tokens": 12, "min_tokens": 12, "stream": False, "deadline": 300}
timed = {name: [] for name in ("greedy", "beam 2", "beam 4", "beam 8", "top-k 50, T 1.0")}
for name in list(timed) * 3:
    way = {**ways[name], "return_generation_logits": False}
    answer, *_ = client.stream(prompt, **way, **alone)  # to its end: one that is dropped is cancelled
    timed[name].append(12 / answer.seconds)
speed = {name: float(np.mean(rates)) for name, rates in timed.items()}
for name, rates in timed.items():
    print(f"{name:16}{speed[name]:5.0f} tokens/s (three runs: {min(rates):.0f} to {max(rates):.0f})")

# %% [markdown]
# Sampling and a second beam do a little more than greedy decoding. If one of them looks faster here, that is noise:
# read the ranges. (On a GPU this executor chooses the greedy token there. For the others the logits, 200 kB a row, go
# to the processor first: beside a step of under a millisecond that is no little more.)
#
# And the memory, which is not measured but calculated. For each token of each beam every layer keeps a key and a value
# for each of its KV heads. The engine's configuration has the numbers; this server keeps them in float32, 4 bytes (in
# bf16 on a GPU half of that).
#
# **Predict:** how many megabytes does the longest of these stories need with 8 beams, how many with one?

# %%
config = json.loads((assets.engine("smollm2", precision) / "config.json").read_text())["pretrained_config"]
token_bytes = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_size"] * 4
longest = len(prompt_ids) + max_tokens
memory = {name: way.get("beam_width", 1) * longest * token_bytes / 1e6 for name, way in ways.items()}
print(f"{token_bytes:,} bytes a token; {longest} tokens: {memory['greedy']:.1f} MB, 8 beams {memory['beam 8']:.1f} MB")

# %% [markdown]
# Here each beam keeps the prompt as well. TensorRT-LLM lets beams share the full blocks of the prompt; only the last,
# which is still written to, each has for itself
# ([kvCacheManager.cpp](https://github.com/NVIDIA/TensorRT-LLM/blob/main/cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp)).
# So there the factor 8 holds for the generated tokens.
#
# The figure puts quality beside cost. A coloured dot is one of the three beginnings (of the speed, one run), the black
# mark their mean.

# %%
rows = {}
for name, way in ways.items():
    told = [stories[name, at] for at in beginnings]
    rows[name] = {
        "log prob\n(nats/token)": [mean_log_prob(outputs, way.get("temperature", 1.0)) for _, outputs in told],
        "repeated\npairs (%)": [100 * decoding.repetition_rate(texts[0], 2) for texts, _ in told],
        "two answers:\ndistinct pairs (%)": [100 * decoding.distinct_n(pairs[name, at], 2) for at in beginnings],
        "speed alone\n(tokens/s)": timed.get(name, []),
        "KV memory (MB,\ncalculated)": [memory[name]],
    }

# %%
groups = {"greedy": "greedy", "beam": "beam", "top-k": "top_k", "samples": "top_k", "top-p": "top_p"}
colour_of = lambda name: style.STRATEGIES[next(groups[word] for word in groups if word in name)]  # noqa: E731
likely, repeated, distinct = (
    {name: float(np.mean(list(row.values())[column])) for name, row in rows.items()} for column in range(3)
)
likeliest, share = max(likely, key=likely.get), 100 * speed["beam 8"] / speed["greedy"]
most = max(distinct, key=distinct.get)
title = f"Likeliest: {likeliest}. Eight beams have {share:.0f} % of greedy's speed.\nDistinct pairs in two answers: "
title += f"beam 8 {distinct['beam 8']:.0f} %, {most} {distinct[most]:.0f} %"
summary = f"{likeliest}: {likely[likeliest]:.2f} nats per token, {repeated[likeliest]:.0f} % repeated pairs on average"
style.finish(figures.strategies(rows, {name: colour_of(name) for name in rows}), title, small_print, summary)

# %% [markdown]
# Read it with care: three beginnings, one or two answers each. The dots of one row lie far apart, so a small difference
# between two rows means nothing. Two things stand out: the log probability, highest for wide beams, lowest for hot
# samples, and how alike two beams are. The first is what each strategy aims at; it does not say whether a story is
# worth reading. Read two of them:

# %%
for name in ("beam 8", "top-p 0.9, T 1.0"):
    print(f"{name}: {stories[name, prompt][0][0]}\n")

# %% [markdown]
# With the default parameters the likely text reads better: at T = 1 the tail of this small model leads it astray. So
# likely is not bad. If beams have a price, it shows in the beginning with the most repeated pairs:

# %%
loops = {at: 100 * decoding.repetition_rate(stories["beam 8", at][0][0], 2) for at in beginnings}
worst = max(loops, key=loops.get)
print("eight beams repeat", ", ".join(f"{rate:.0f} %" for rate in loops.values()), "of their pairs; the most here:")
print(worst + stories["beam 8", worst][0][0])


# %% [markdown]
# One story of three that loops, or none, is an anecdote. With large models and many texts it is a finding: the
# likeliest text repeats itself and is bland, while people surprise each other all the time
# ([Holtzman et al. 2020](https://arxiv.org/abs/1904.09751)).
#
# Now all four texts of a beam search, and four samples. **Predict:** how different are four beams from each other, and
# where do they part?

# %%
def shared(texts):
    """The longest beginning that a text has in common with another one, as a share of it; the mean over the texts."""
    shares = []
    for i, text in enumerate(texts):
        others = texts[:i] + texts[i + 1 :]
        shares.append(max(len(os.path.commonprefix([text, other])) for other in others) / len(text))
    return float(np.mean(shares))


# %%
samples = read(client.stream(prompt, top_k=50, num_return_sequences=4, **fixed))[0]
for name, texts in {"beam 4": stories["beam 4", prompt][0], "top-k 50": samples}.items():
    print(f"{name}: {decoding.distinct_n(texts, 2):.0%} distinct pairs, self-BLEU {decoding.self_bleu(texts):.2f};")
    print(f"a text shares its first {shared(texts):.0%} with another one")
    print(*(f"  …{text[-60:]!r}" for text in texts), sep="\n")

# %% [markdown]
# Beams are branches of one tree: you get nearly the same text, with another ending or a few other words. If you want
# four different answers, sample four.
#
# ## 7 When the likely answer is right
#
# Some tasks have one right answer, and there a likely answer is a good one. First, copying a line.

# %%
lines = "crimson lantern; quiet river stones; seven green bottles; violet paper kite; nine tiny drums; "
lines += "the ticket office opens; zebra under umbrella; he paid for the bread"
lines = lines.split("; ")[: max(1, items // 3)]
copying = "Copy each line.\nbird on wire -> bird on wire\nold clay jug -> old clay jug\n{} ->"


def answers_to(template, questions, **way):
    one_line = {"max_tokens": 8, "stop_words": ["\n"], "seed": seed, **whole, **way}
    streams = [client.stream(template.format(each), **one_line) for each in questions]
    return [[text.strip() for text in read(stream)[0]] for stream in streams]


# %% [markdown]
# **Predict:** how many lines are copied right by greedy decoding, by four beams, and by sampling at temperature 1?

# %%
copied = {}
for name, way in {"greedy": {}, "beam 4": {"beam_width": 4}, "top-p 1, T 1": {"top_p": 1.0}}.items():
    got = answers_to(copying, lines, **way)
    copied[name] = (sum(texts[0] == line for texts, line in zip(got, lines, strict=True)), len(lines))
    print(name, copied[name], got[0][:2])

# %% [markdown]
# Here beams do not beat greedy decoding: in a copy nearly every step is certain, so the greedy path *is* the likeliest.
# Both beat sampling, which leaves the right path sooner or later.
#
# For beams to win, the right answer must be likely without being the first choice, and something must be able to tell.
# Such a task: put back the spaces. You can check an answer without knowing the solution, by taking the spaces out
# again.

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


def first_valid(texts, puzzle):
    return next((text for text in texts if text.replace(" ", "") == puzzle), texts[0])


# %% [markdown]
# Four beams against four samples at temperature 0.7: the same number of rows in the server. Once take the first text,
# once the first that passes the check.
#
# **Predict:** which of the five rows has most right answers? How many of four samples are different texts?

# %%
four = {
    "greedy": {},
    "beam 4": {"beam_width": 4, "length_penalty": 1.0},
    "4 samples": {"top_k": 50, "temperature": 0.7, "num_return_sequences": 4},
}
solved = {}
for name, way in four.items():
    got = answers_to(spacing, puzzles, max_tokens=6, **way)
    solved[name] = np.array([texts[0] == phrase for texts, phrase in zip(got, phrases, strict=True)])
    if len(got[0]) > 1:
        checked = [first_valid(texts, puzzle) for texts, puzzle in zip(got, puzzles, strict=True)]
        solved[f"{name}, checked"] = np.array([a == b for a, b in zip(checked, phrases, strict=True)])
        print(f"{name}: {np.mean([len(set(texts)) for texts in got]):.1f} different texts a puzzle")


# %% [markdown]
# All had the same puzzles, so compare two of them puzzle by puzzle: only those that one alone has solved tell them
# apart. The **sign test** asks how often a fair coin, tossed once for each of those, would be as one-sided. Call it p.

# %%
def sign_test(one, other):
    only, only_other = int(np.sum(one & ~other)), int(np.sum(other & ~one))
    tosses = only + only_other
    tail = sum(math.comb(tosses, k) for k in range(min(only, only_other) + 1)) / 2**tosses
    return only, only_other, min(1.0, 2 * tail)


p_values = []
for one, other in (("beam 4", "4 samples"), ("beam 4", "greedy"), ("4 samples", "greedy")):
    names = [f"{name}, checked" if name != "greedy" else name for name in (one, other)]
    only, only_other, p_value = sign_test(*(solved[name] for name in names))
    p_values.append(p_value)
    print(f"{names[0]}: {only} puzzles alone; {names[1]}: {only_other}; p = {p_value:.4f}")

# %%
spaced = {name: (int(np.sum(each)), len(phrases)) for name, each in solved.items()}
panels = {"copy a line": copied, "put the spaces back": spaced}
greedy, beam, sampled = (good for good, _ in copied.values())
beams, drawn = (spaced[f"{name}, checked"][0] for name in ("beam 4", "4 samples"))
title = f"Copying: greedy {greedy}, beams {beam}, sampling {sampled} of {len(lines)}\nSpaces, the first that passes a "
title += f"check: beams {beams}, samples {drawn}; greedy {spaced['greedy'][0]} of {len(phrases)}"
summary = "; ".join(f"{name} {good}/{asked_for}" for name, (good, asked_for) in spaced.items())
summary += f"; beams against samples p = {p_values[0]:.3f}, against greedy {p_values[1]:.4f}"
task_colours = {name: colour_of(name) for panel in panels.values() for name in panel}
style.finish(figures.right_answers(panels, task_colours), title, small_print, summary)

# %% [markdown]
# The bars are 95 % intervals. With the default parameters the gap between sampling and the rest is real in copying. In
# the right panel the bars overlap, but all rows had the same puzzles, so look at the p. Beams with a check solved
# twelve puzzles that greedy decoding did not, and lost none: p = 0.0005. Against checked samples they lead by seven to
# none, p = 0.016. Whoever asks three questions finds a p below 0.05 more easily, so multiply by 3: 0.0015 and 0.047.
# The first is shown, the second just so. `items = 60` asks all puzzles there are. (Those counts are of this page's run
# on a CPU. Another device has other last digits, so a close choice, and a count with it, may come out differently.)
#
# Without the check beams hardly lead, and that tells where they win. They are the *likeliest* candidates that the
# search found, none twice in the same tokens; samples repeat the likely ones and waste others. So the right answer is
# among four beams more often, and the check finds it. Give beams to tasks with few right answers and something that
# recognises one, and measure. Translation is said to be such a task; this model knows too little of other languages to
# show it. For copying, greedy decoding is enough. Sample where many answers are good.
#
# ## Recap
#
# - Beam search is a breadth-first search whose queue is cut to the best `width` after each step. Width 1 is greedy.
# - The cut is a heuristic: the likeliest answer can be lost, and a wider search can even find less.
# - A server returns all beams in one response, best score first. A streamed response holds whole texts.
# - score = log P / length^p. With p = 0, TensorRT-LLM's default, short answers win. A penalty ranks only what
#   `early_stopping` has let be finished.
# - Beams cost rows and KV memory, `width` times as much, and speed, for texts that are nearly the same.
# - Likely is good where one answer is right. With the default parameters, four beams and a check solve more puzzles
#   than greedy decoding; in copying both do the same. So compare on the same questions. Open-ended text can become
#   bland.
#
# ## Break it
#
# This server keeps the model from ending before its first token (`min_tokens` is 1 unless you say otherwise; in
# TensorRT-LLM the same default has no effect as long as all requests of a batch have it, says
# [pull request 1935](https://github.com/NVIDIA/TensorRT-LLM/pull/1935)). Take that away. **Predict:** which of all
# answers is the likeliest? And does a length penalty of 1 help?

# %%
early = {"max_tokens": 12, "beam_width": 8, "min_tokens": 0, **whole}
for p in (0.0, 1.0):
    texts, outputs = read(client.stream(question, length_penalty=p, **early))
    for text, log_prob in list(zip(texts, outputs["cum_log_probs"][0], strict=True))[:3]:
        print(f"p = {p:.0f}: {log_prob:6.2f}  {text!r}")
    print(f"p = {p:.0f}: the {'empty' if not texts[0] else 'longer'} answer wins")

# %% [markdown]
# To this model, which has learnt to chat, the question is a complete message, and its end a likely continuation. A
# penalty of 1 divides that log probability by a length of 1, so it still wins unless a longer answer has a better mean
# per token. An exact search makes it worse, not better: translation models, searched to the true optimum, give the
# empty sentence for more than half of their inputs ([Stahlberg and Byrne 2019](https://arxiv.org/abs/1908.10090)). The
# errors of the search had hidden an error of the model.
#
# A second one. `accumulate_tokens` of notebook 05 makes each streamed response the whole text so far. Does it go
# together with beams?

# %% tags=["nbval-check-output"]
build_default(scratch.name, **repository, accumulate_tokens=True)
server.load("tensorrt_llm_bls")
try:
    print(list(client.stream(prompt, max_tokens=4, beam_width=2)))
except ClientError as error:
    print(error)

# %% [markdown]
# It does not, and the model says so. Try more: `width = 8` in section 3, a temperature in the languages of section 4
# (multiply `rng.normal` by 3: do beams miss more or less?), or `beam_search_diversity_rate`, an input of
# `tensorrt_llm`, where four beams were too alike.
#
# Stop the server. The last line says what produced the numbers on this page.

# %%
server.stop()
client.close()
scratch.cleanup()
measured = {"repeated_pairs_percent": {name: round(value, 1) for name, value in repeated.items()}}
measured |= {"nats_per_token": {name: round(value, 2) for name, value in likely.items()}, "missed_of_200": missed}
measured |= {"tokens_per_second": {name: round(rate, 1) for name, rate in speed.items()}}
measured |= {"copied": copied, "spaced": spaced, "sign_tests": [round(p, 5) for p in p_values]}
record("09", lane=lane, seed=seed, precision=precision, **measured)
