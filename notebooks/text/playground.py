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
# In JupyterLab, run all cells (*Run*, *Run All Cells*). On a page you see one answer as a picture.

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
# - **Bars** show the next token: outlined as the model has it, filled as your settings leave it. Each move of a control
#   asks the server again.
# - **Run** streams an answer. Its colours say how likely the model found each token, before all settings: dark ones
#   were surprises.
# - **Stop** cancels the request on the server.
#
# **Predict:** which settings make bars vanish? Which makes all bars more alike? Which changes the text, but no bar of
# the first token?

# %%
playground(server.grpc_url, prompt, top_k=top_k, max_tokens=max_tokens, seed=seed)

# %% [markdown]
# Top-k and top-p make bars vanish, and temperature 0 all but one. A high temperature makes them more alike. The seed
# changes the text and no bar: it only decides which token is drawn.
#
# **Predict** each of these, then try it:
#
# - temperature 0, 1, then 3, with top-k 0: when does the text fall apart?
# - repetition penalty 1.5, and a prompt that repeats itself. What does 0 do?
# - three beams, then five.
# - an empty prompt.
#
# <details><summary>What happens</summary>
#
# - At 0 the text is the same each time. Towards 3 it falls apart: thousands of unlikely tokens are likely together
#   ([06](06_temperature.ipynb), [07](07_sampling.ipynb)).
# - 1.5 lowers the bars of tokens that were there before; 0 is refused.
# - Three beams find one text, without a draw ([09](09_beam_search.ipynb)); for five the server has no room.
# - An empty prompt is refused.
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
