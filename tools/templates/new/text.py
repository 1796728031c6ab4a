# ---
# jupyter:
#   jupytext:
#     formats: ipynb,text//py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # {{ number }} · {{ title }}
#
# You throw two dice many times and see why one sum comes more often than the others.
#
# After this notebook you can
#
# - say in one sentence what it is about
# - predict what a cell will print, and see whether you were right
# - write a function that a check accepts
#
# **Time:** 15 minutes · **Lanes:** embedded · **Needs:** nothing
#
# read: 5 min, do: 10 min
#
# Previous: [{{ last.number }}]({{ previous }}) · Next: none yet

# %%
import numpy as np

from servinglab import notebook
from servinglab.checks import check

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
trials: int = 1000  # how often the dice are thrown
seed: int = 0  # seed of every random choice

# %% [markdown]
# `begin` starts the notebook's clock and sets the style of its figures. What is computed from parameters comes in a
# cell of its own, like this one.

# %%
lane = notebook.begin("{{ number }}", lane, seed=seed)
random = np.random.default_rng(seed)

# %% [markdown]
# ## 1 The first idea
#
# Say in 20 to 40 words what the next cell does and what to expect of it. Here: two dice are thrown many times.
#
# **Predict:** which sum comes most often?

# %%
sums = random.integers(1, 7, size=(trials, 2)).sum(axis=1)
favourite = int(np.bincount(sums).argmax())
print(f"{favourite} comes most often, in {np.mean(sums == favourite):.0%} of {trials} throws")

# %% [markdown]
# One sentence says what the output means. Of 36 pairs, six make 7, and no other sum has as many.
#
# **Exercise {{ number }}.1** How many of the 36 pairs make 5?

# %% tags=["exercise:{{ number }}.1"]
pairs_of_five = None  # a number

# %% tags=["check:{{ number }}.1", "nbval-check-output"]
check("{{ number }}.1", pairs_of_five)

# %% [markdown]
# ## 2 The second idea
#
# **Exercise {{ number }}.2** Write a function that returns the probability of a sum of two dice. It is asked for 7, 2
# and 13.


# %% tags=["exercise:{{ number }}.2"]
def probability(total): ...  # your code


# %% [markdown]
# A check names what an answer got wrong, if it can tell.

# %% tags=["check:{{ number }}.2", "nbval-check-output"]
check("{{ number }}.2", probability)

# %% [markdown]
# ## Recap
#
# - The sum that most pairs make comes most often.
#
# ## Break it
#
# **Predict:** what does a die without sides do?

# %% tags=["nbval-check-output"]
try:
    random.integers(1, 1)
except ValueError as error:
    print(error)

# %% [markdown]
# The last line says what produced the numbers on this page.

# %%
notebook.record(trials=trials, favourite=favourite)
