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
# # 99 · Adding two numbers
#
# You add two numbers and see what a notebook of this course is made of.
#
# After this notebook you can
#
# - add
# - subtract
# - tell one from the other
#
# **Time:** 5 minutes · **Lanes:** embedded · **Needs:** nothing
#
# read: 2 min, do: 3 min
#
# Previous: none · Next: none

# %%
import time

from servinglab import notebook
from servinglab.checks import check, exercise, right, wrong

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
first: int = 1  # the number to add to
seed: int = 0  # not used

# %% [markdown]
# What is computed from parameters comes in a cell of its own.

# %%
lane = notebook.begin("99", lane, seed=seed)
second = first + 1

# %% [markdown]
# The sum of two neighbours is odd.

# %% tags=["nbval-check-output"]
print("odd" if (first + second) % 2 else "even")

# %% [markdown]
# Here is their sum.

# %%
print(first + second)

# %% [markdown]
# How long that took differs from run to run; the sanitize file knows.

# %% tags=["nbval-check-output"]
print(f"measured at {time.perf_counter():.3f} s")


# %% [markdown]
# A real notebook's checks are in `servinglab.checks`; these live here because the notebook is only an example.


# %%
@exercise("99.1", expects="a number")
def total(answer):
    if answer == 3:
        return right("1 and 2 make 3")
    return wrong("you subtracted" if answer == -1 else "add the two")


@exercise("99.2", expects="a function of two numbers")
def function(answer):
    return right("it adds") if answer(2, 5) == 7 else wrong("it does not add")


# %% [markdown]
# **Exercise 99.1** What is 1 + 2?

# %% tags=["exercise:99.1"]
answer_1 = None  # a number

# %% tags=["check:99.1", "nbval-check-output"]
check("99.1", answer_1)

# %% [markdown]
# **Exercise 99.2** Write the function.


# %% tags=["exercise:99.2"]
def add(a, b): ...  # your code


# %% tags=["check:99.2", "nbval-check-output"]
check("99.2", add)

# %% [markdown]
# ## Recap
#
# - adding is commutative
#
# ## Break it
#
# Add text to a number.

# %%
try:
    first + "1"
except TypeError as error:
    print(error)

# %% [markdown]
# What produced this page:

# %%
notebook.record(total=first + second)
