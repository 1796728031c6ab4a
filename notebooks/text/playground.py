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
# # Playground: one prompt, every setting, live
#
# A server, a prompt, and a control for every setting of a request. Use it while you read 05 to 10, or show it to
# somebody who has read nothing.
#
# **Time:** 10 minutes · **Lanes:** embedded · **Needs:** the weights of SmolLM2-135M
#
# In JupyterLab run all cells. The web page shows pictures of answers.

# %%
from servinglab import notebook
from servinglab.playground import playground
from servinglab.serving import serve

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "auto", or a running server: "grpc://127.0.0.1:8001"
precision: str = "fp32"  # weights of the default model: "fp32" or "int4"
prompt: str = "She opened the door and saw a"  # what the model goes on from; change it in the box below, too
top_k: int = 50  # what the controls begin with; 0 is off
max_tokens: int = 40  # length of an answer, in tokens
seed: int = 1  # seed of a sampled answer

# %% [markdown]
# The server has room for four beams. It lives as long as this notebook's kernel.

# %%
lane = notebook.begin("playground", lane, seed=seed, weights=precision)
server = serve(precision=precision, max_beam_width=4)

# %% [markdown]
# ## One answer
#
# - **Bars** show the next token: outlined as the model has it, filled as your settings leave it. Each move of a control
#   asks the server again.
# - **Run** streams an answer. Dark tokens surprised the model, before all settings.
# - **Stop** cancels the request on the server.
#
# **Predict:** which settings make bars vanish? Which makes all bars more alike? Which changes the text, but no bar of
# the first token?

# %%
playground(server.grpc_url, prompt, top_k=top_k, max_tokens=max_tokens, seed=seed)

# %% [markdown]
# Top-k and top-p make bars vanish. A high temperature makes them more alike. The seed changes only the draw.
#
# ![From prompt to token: the model's bars, four settings, your bars, the draw](pictures/playground_controls.svg)
#
# ## Heat
#
# **Predict:** at temperature 3, without top-k, which bar is the longest? Can you read the text?

# %%
playground(server.grpc_url, prompt, temperature=3.0, max_tokens=max_tokens, seed=seed)

# %% [markdown]
# *All others* has the longest: thousands of unlikely tokens are likely together, so the text falls apart
# ([06](06_temperature.ipynb), [07](07_sampling.ipynb)).
#
# ## Repetition
#
# **Predict:** a prompt repeats itself. Which bars does a repetition penalty of 1.1 shorten?

# %%
playground(server.grpc_url, "One, two, one, two, one, two, one,", top_k=50, repetition_penalty=1.1, seed=seed)

# %% [markdown]
# The bars of tokens that the prompt has. At 1.5, top-k cuts them.
#
# ## Your turn
#
# **Predict**, then try: temperature 0, with two seeds.
#
# <details><summary>What you should have seen</summary>
#
# One bar, and the same text twice.
#
# </details>
#
# Three beams, then five.
#
# <details><summary>What you should have seen</summary>
#
# Three texts at once, the likeliest first ([09](09_beam_search.ipynb)). For five the server has no room.
#
# </details>
#
# An empty prompt; then a penalty of 0.
#
# <details><summary>What you should have seen</summary>
#
# Both are refused in a sentence.
#
# </details>
#
# <details><summary>To show it as a page of its own</summary>
#
# Put `/doc` in the place of `/lab` in JupyterLab's address, run all cells, then choose *View*, *Collapse All Code*.
#
# </details>

# %%
notebook.record()
