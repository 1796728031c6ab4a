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
# # 01 · What is an engine?
#
# You build real TensorRT engines on this machine, open the files, and see what was compiled, where the weights are and
# why another card refuses them.
#
# After this notebook you can
#
# - build an engine from an ONNX network, with a profile for inputs of any size
# - read from the list of layers what was fused, in fp32 and in fp16
# - find weights in an engine file, and say when new weights need a new build
# - say from the first bytes of the file where it will run
# - tell a checkpoint from an engine
#
# **Time:** 45 minutes (last run: 143 s) · **Lanes:** embedded, trtllm · **Needs:** the weights of MiniLM and SmolLM2
#
# Previous: [00 · Start here](00_start_here.ipynb) · Next: [02 · Checkpoint to engine](02_checkpoint_to_engine.ipynb)

# %%
from servinglab.notebook import begin, record, resolve_lane, shorten

begin()

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
width: int = 64  # width of the small network; a multiple of 32
longest: int = 256  # most tokens in a sentence for the encoder, 32 to 512
seed: int = 0  # seed of the small networks' weights

# %% [markdown]
# The engines of this notebook are built by **TensorRT-RTX**, NVIDIA's TensorRT for the cards of a PC. It has the same
# interface as the TensorRT under TensorRT-LLM, comes as a plain Python package, and builds without a GPU. Where the two
# differ, the text says so.
#
# `tell` prints a long sentence in lines. All files go into one temporary folder.

# %%
import tempfile
import textwrap
from pathlib import Path

lane = resolve_lane(lane)
workshop = tempfile.TemporaryDirectory(prefix="servinglab-01-")
root = Path(workshop.name)


def tell(message):
    text = shorten(str(message).replace(f"{root}/", ""))
    print(textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False))


# %% [markdown]
# ## 1 A network is a list of operations
#
# TensorRT reads **ONNX**: a file with a graph of operations and the weights. Here is a small one, written as text. Four
# *nodes*: a matrix product, a bias, a ReLU, and a second product.

# %%
import numpy as np
import onnx.parser
from onnx import numpy_helper


def network(text, numbers):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in numbers.items())
    return model


MLP = """mlp (TYPE[4, WIDTH] x) => (TYPE[4, 10] y) {
    [dense_1] a = MatMul(x, w1)
    [bias_1]  b = Add(a, b1)
    [relu_1]  c = Relu(b)
    [dense_2] y = MatMul(c, w2)
}""".replace("WIDTH", str(width))

# %% [markdown]
# The weights are random numbers, drawn with a seed, so that you can draw others later. What does the network answer to
# a random input? ONNX Runtime computes it on the CPU; an engine must give the same.

# %%
import onnxruntime


def draw(seed):
    rng = np.random.default_rng(seed)
    shapes = {"w1": (width, width), "b1": (width,), "w2": (width, 10)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


numbers = draw(seed)
mlp_onnx = network(MLP.replace("TYPE", "float"), numbers)
x = np.random.default_rng(99).standard_normal((4, width)).astype(np.float32)
session = onnxruntime.InferenceSession(mlp_onnx.SerializeToString(), providers=["CPUExecutionProvider"])
expected = session.run(None, {"x": x})[0]
print("answer of shape", expected.shape, "· the ONNX file has", mlp_onnx.ByteSize(), "bytes")

# %% [markdown]
# Nearly all of those bytes are weights: four bytes for each number. The graph itself needs a few hundred.
#
# ## 2 Build it
#
# An **engine** is this network, prepared for a card. Its file is called a **plan**. **Predict:** how long does a build
# take, and is the plan smaller than the ONNX file, as large, or larger?

# %%
from engines import EngineError
from engines.plan import build, read_header, refusals, run

mlp = build(mlp_onnx)
print(f"built in {mlp.seconds:.2f} s: {len(mlp.data)} bytes, {len(mlp.data) - mlp_onnx.ByteSize()} more than the ONNX")

# %% [markdown]
# The plan is larger. It holds everything that the ONNX file holds, and something else. Section 3 looks for it.
#
# First the layers. A layer of an engine is one piece of work for the card: it reads its inputs from memory, computes,
# and writes its output back. TensorRT may put several nodes into one layer. That is a **fusion**.
#
# **Exercise 01.1** Which of the four nodes share a layer? Replace `None` by a list of lists of their names. With no
# fusion at all it would be `[["dense_1"], ["bias_1"], ["relu_1"], ["dense_2"]]`.

# %% tags=["exercise:01.1"]
my_layers = None  # a list of lists of "dense_1", "bias_1", "relu_1", "dense_2"

# %% [markdown]
# Now ask the engine.

# %% tags=["nbval-check-output"]
for layer in mlp.layers:
    print(f"{layer.kind:15} {layer.name:26} {', '.join(layer.nodes)}")

# %% tags=["check:01.1", "nbval-check-output"]
from servinglab.checks import check

check("01.1", my_layers)

# %% [markdown]
# Four nodes became two layers. The bias and the ReLU work on numbers that the product has just computed, so they are
# done before those numbers leave the chip. Two trips to memory and back are saved.
#
# The list comes from the build log. TensorRT's *engine inspector* gives the same text for a loaded engine, but loading
# needs a card. On a card that this engine supports, the next cell also runs it.

# %%
said = refusals(mlp.data)
if said:
    tell(f"Not run here. The runtime says: {said[0]}")
else:
    got = run(mlp.data, {"x": x})["y"]
    print("largest difference from ONNX Runtime:", np.abs(got - expected).max())

# %% [markdown]
# Building needs no card, running does. "CUDA driver version is insufficient" is what the library says on a machine that
# has no driver at all.
#
# ## 3 Open the file
#
# A plan begins with a header. NVIDIA documents none of it, so what follows was found by looking, and holds for this
# version. (`trtexec --getPlanVersionOnly` reads the version from the same four bytes.)

# %% tags=["nbval-check-output"]
header = mlp.header
print("first bytes ", mlp.data[:4], "=", int.from_bytes(mlp.data[:4], "little"))
print("version     ", header.version, "from the bytes", list(mlp.data[24:28]))
print("runs on     ", *header.targets)
for name, (offset, length) in header.sections.items():
    print(f"section {name}  {length} bytes from byte {offset}")

# %% [markdown]
# Two sections. `WGHT` sounds like weights. **Predict:** are they in there as you gave them, compressed, or already
# turned into something else? Search the file for the bytes of each array.

# %% tags=["nbval-check-output"]
for name, array in numbers.items():
    print(f"{name} {str(array.shape):10} {array.nbytes:6} bytes, found at byte {mlp.find(array)}")

# %% [markdown]
# All three, float by float, in `WGHT`. So **weights are inside the engine**. And the other section?

# %% tags=["nbval-check-output"]
program = mlp.section("ENGN").decode("latin-1")
for line in program.splitlines():
    if line.strip().startswith(("runtime_fusion=", "fully_connected=", "add=", "relu=")):
        print(line.strip()[:100])

# %% [markdown]
# A program in plain text: which operation comes next, on which tensors. The first two lines are the two layers; the
# other three say what happens inside the fused one. No machine code yet, as the next cell confirms: compiled code for
# Linux or for a GPU would begin with the letters `ELF`.

# %% tags=["nbval-check-output"]
print("pieces of machine code:", mlp.data.count(b"\x7fELF"))

# %% [markdown]
# **Predict:** take both products away. Only `Add` and `Relu` stay, with one bias as the only weights. Is that plan
# smaller?

# %% tags=["nbval-check-output"]
TINY = "tiny (float[4, WIDTH] x) => (float[4, WIDTH] y) { b = Add(x, b1) y = Relu(b) }".replace("WIDTH", str(width))
tiny_onnx = network(TINY, {"b1": numbers["b1"]})
tiny = build(tiny_onnx)
print("with products:", len(mlp.data), "bytes · without:", len(tiny.data), "bytes")

# %% [markdown]
# Several times larger! A **kernel** is a function that runs on the card. For a product the plan names the operation,
# and the library brings the kernel. For everything else it writes one, in CUDA C++, and puts the source into the plan
# together with the helper functions it needs. This is how it begins:

# %% tags=["nbval-check-output"]
program = tiny.section("ENGN").decode("latin-1")
kernel = 'extern "C" __global__'
print("kernels written:", program.count(kernel), "· layers:", *(layer.name for layer in tiny.layers))
print(program[program.index(kernel) :].partition("{")[0])

# %% [markdown]
# So **this is what is compiled**: the graph becomes a list of layers, and layers become kernels. TensorRT-RTX does it
# in two steps. The build writes source; the card's own machine compiles that when it loads the plan.
#
# The TensorRT under TensorRT-LLM does both steps at build time. It runs candidate kernels on the card, keeps the
# fastest and stores machine code. So it needs the card to build, and its plans are tied to that card more closely.
#
# ## 4 New weights
#
# Suppose the network is trained further: same shapes, other numbers. **Predict:** must you build again?
#
# The official way is **refit**. A plan built with `refit=True` takes new weights when it is loaded, and with
# `strip=True` the weights are left out of the file altogether, to be filled in later. Can this machine build such
# plans?

# %%
for wish in ({"refit": True}, {"strip": True}):
    try:
        print(wish, len(build(mlp_onnx, **wish).data), "bytes")
    except EngineError as error:
        tell(f"{wish} {error}")

# %% [markdown]
# For that, this library compiles already during the build, and so it needs a card it supports. The size of such a plan
# you can guess: of the bytes above, about those of `ENGN` stay.
#
# But you know where the weights are. Draw others, write them over the old ones, byte for byte. **Predict:** how many
# bytes will differ from a plan that is *built* from the new weights?

# %% tags=["nbval-check-output"]
others = draw(seed + 1)
patched = mlp.data
for name, array in numbers.items():
    patched = patched.replace(array.tobytes(), others[name].tobytes())
rebuilt = build(network(MLP.replace("TYPE", "float"), others)).data
different = sum(ours != theirs for ours, theirs in zip(patched, rebuilt, strict=True))
print(f"patched: {len(patched)} bytes, {different} of them different from a new build")

# %% [markdown]
# None. The program does not depend on the numbers at all; new weights of the same shapes need no compiler.
#
# Do not make a habit of it. A builder may rearrange weights, and often does. Here is a network with a convolution and a
# batch normalisation behind it. **Predict:** which of its five arrays will you find?

# %% tags=["nbval-check-output"]
CONV = """conv (float[1, 8, 32, 32] x) => (float[1, 16, 32, 32] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w)
    b = BatchNormalization(a, scale, beta, mean, var)
    y = Relu(b)
}"""
rng = np.random.default_rng(seed)
parts = {"w": rng.standard_normal((16, 8, 3, 3)), "scale": rng.uniform(0.5, 1.5, 16), "beta": rng.standard_normal(16),
         "mean": rng.standard_normal(16), "var": rng.uniform(0.5, 1.5, 16)}  # fmt: skip
parts = {name: array.astype(np.float32) for name, array in parts.items()}
conv = build(network(CONV, parts))
print({name: conv.find(array) is not None for name, array in parts.items()})

# %% [markdown]
# Not one. Two guesses. The card may want the channels last, so the kernel's axes were moved. And a batch normalisation
# is a multiplication and an addition, once its constants are worked out:
#
# $$b = s \cdot a + (\beta - s \cdot \mu) \quad\text{with}\quad s = \mathrm{scale} / \sqrt{\mathrm{var} + 10^{-5}}$$

# %% tags=["nbval-check-output"]
print("kernel with its channels last:", conv.find(parts["w"].transpose(0, 2, 3, 1)) is not None)
s = parts["scale"] / np.sqrt(parts["var"] + np.float32(1e-5))
wanted = parts["beta"] - s * parts["mean"]
stored = np.frombuffer(conv.section("WGHT"), np.float32)
near = np.abs(stored[:, None] - wanted).min(axis=0).max()
print("every beta - s * mean is stored:", bool(near < 1e-5))

# %% [markdown]
# Both guesses hold. Five arrays became three, and one of those is turned around. Refit knows all this; a hex editor
# does not.
#
# ## 5 fp16
#
# Half precision stores a number in two bytes. Old guides switch it on with a builder flag. **Predict:** is there one?

# %% tags=["nbval-check-output"]
import tensorrt_rtx_bindings as trt

print([flag for flag in trt.BuilderFlag.__members__ if "16" in flag or flag.startswith("REFIT")])

# %% [markdown]
# The refit flags are there, none for fp16. Networks are *strongly typed*: the types in the ONNX file decide. (In
# TensorRT-LLM the converter's `--dtype` does.) So write the network with `float16`. **Predict:** which of the two
# sections shrinks, and by how much?

# %% tags=["nbval-check-output"]
halves = {name: array.astype(np.float16) for name, array in numbers.items()}
mlp16 = build(network(MLP.replace("TYPE", "float16"), halves))
for name in ("ENGN", "WGHT"):
    print(f"{name}: fp32 {len(mlp.section(name)):6} bytes, fp16 {len(mlp16.section(name)):6} bytes")
print("same layers:", [layer.nodes for layer in mlp.layers] == [layer.nodes for layer in mlp16.layers])

# %% [markdown]
# The weights shrink to half (and a little padding), the program stays. Here even the fusions are the same. That changes
# with the next network.
#
# ## 6 A real encoder
#
# MiniLM turns a sentence into numbers. It has six encoder layers like those of larger models. First PyTorch writes its
# graph as ONNX, with two open sizes: how many sentences, how many tokens.

# %%
import torch
from transformers import AutoModel
from transformers.utils.logging import disable_progress_bar

from servinglab import assets

disable_progress_bar()


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = AutoModel.from_pretrained(assets.resolve("minilm"), attn_implementation="eager")

    def forward(self, input_ids, attention_mask):
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


# %% [markdown]
# The exporter runs the model once and writes down every operation it sees.

# %%
import warnings

encoder = Encoder().eval()
path, inputs = root / "minilm.onnx", ["input_ids", "attention_mask"]
ones = torch.ones((2, 16), dtype=torch.int64)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.onnx.export(encoder, (ones, ones), path, dynamo=False, input_names=inputs, output_names=["hidden"],
                      dynamic_axes={name: {0: "batch", 1: "tokens"} for name in [*inputs, "hidden"]})  # fmt: skip
minilm_onnx = onnx.load(path)
operators = {node.name: node.op_type for node in minilm_onnx.graph.node}
print(len(operators), "nodes,", path.stat().st_size // 1_000_000, "MB")

# %% [markdown]
# Hundreds of nodes. Is the graph right? Compare it with PyTorch on a batch it has not seen, with padding.

# %%
rng = np.random.default_rng(seed)
feeds = {"input_ids": rng.integers(1000, 30000, (3, 21)), "attention_mask": np.ones((3, 21), np.int64)}
feeds["attention_mask"][1, 9:] = 0
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
hidden = session.run(None, feeds)[0]
with torch.inference_mode():
    difference = encoder(*map(torch.from_numpy, feeds.values())).numpy() - hidden
print(f"largest difference {np.abs(difference).max():.1e}, largest value {np.abs(hidden).max():.1f}")

# %% [markdown]
# The same up to rounding. Now build it, as the small one before.

# %% tags=["nbval-check-output"]
try:
    build(path)
except EngineError as error:
    tell(error)

# %% [markdown]
# Its inputs have open sizes, and TensorRT wants to know the range. An **optimisation profile** gives three shapes for
# each input: the smallest (*min*), the one for which it shall be fast (*opt*), and the largest (*max*).
#
# Three builds, two at a time. **Predict:** one profile ends at 16 sentences of `longest` tokens, one at a quarter of
# the tokens, and one is like the first with its opt raised to the max. Which of them need the same memory for what
# lies between the layers?

# %%
from concurrent.futures import ThreadPoolExecutor


def profile(opt, largest):
    return {name: ((1, 1), opt, largest) for name in inputs}


wishes = {"as given": ((8, 32), (16, longest)), "a quarter of the tokens": ((8, 8), (16, longest // 4)),
          "opt = max": ((16, longest), (16, longest))}  # fmt: skip
with ThreadPoolExecutor(2) as pool:  # each build is a process of its own
    plans = dict(zip(wishes, pool.map(lambda wish: build(path, profiles=profile(*wish)), wishes.values()), strict=True))
for name, (opt, largest) in wishes.items():
    print(f"{name:24} opt {str(opt):9} max {str(largest):9} {plans[name].activation_bytes / 1e6:6.1f} MB")

# %% [markdown]
# The max decides, and opt costs no memory. A quarter of the tokens needs less than a quarter, because attention keeps
# a number for every *pair* of tokens. Larger limits cost memory from the first request on, used or not: remember that
# when `trtllm-build` asks for `--max_batch_size`, `--max_input_len` and `--max_num_tokens`.
#
# Next, the layers. **Predict:** the graph has hundreds of nodes. How many layers has the engine?

# %% tags=["nbval-check-output"]
from collections import Counter

minilm = plans["as given"]
print("ONNX nodes ", len(operators), "· most of them:", Counter(operators.values()).most_common(4))
print("parser     ", len(minilm.network_layers), "layers before any fusion")
print("engine     ", len(minilm.layers), "layers:", dict(Counter(layer.kind for layer in minilm.layers)))

# %% [markdown]
# The parser's count is larger than the graph's, because it writes down what a node only implies: each weight is a layer
# of its own, and so is each stretching of a small tensor to the size of a large one, and each size that is worked out.
# In the engine constants and most of the arithmetic on shapes are gone; the rest was fused. `gemm` is a matrix product,
# `kgen` a generated kernel, `runtime_fusion` a product with something fused behind it.
#
# Then fp16. A converter rewrites every weight and type in the ONNX file. **Predict:** the same layers, as with the
# small network?

# %%
from onnxruntime.transformers.float16 import convert_float_to_float16

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    half_onnx = convert_float_to_float16(minilm_onnx)
onnx.save(half_onnx, root / "minilm16.onnx")
minilm16 = build(root / "minilm16.onnx", profiles=profile(*wishes["as given"]))
print(f"layers: fp32 {len(minilm.layers)} · fp16 {len(minilm16.layers)} (built in {minilm16.seconds:.1f} s)")
between = [f"{name} {made.activation_bytes / 1e6:.1f} MB" for name, made in (("fp32", minilm), ("fp16", minilm16))]
print("between the layers:", " · ".join(between))

# %% [markdown]
# A third fewer layers, and a quarter of the memory in between. What happened? Look at one of the six encoder layers.
# Each row of the figure is one layer of the engine.

# %%
from servinglab.figures import style
from servinglab.figures.plans import fusions, sizes

style.use()
one = {name: operator for name, operator in operators.items() if "/layer.1/" in name}
rows = {name: [layer for layer in made.layers if set(layer.nodes) & one.keys()]
        for name, made in (("fp32", minilm), ("fp16", minilm16))}  # fmt: skip
counts = f"{len(rows['fp32'])} engine layers in fp32, {len(rows['fp16'])} in fp16"
small_print = style.provenance(lane, tensorrt_rtx=header.version)
style.finish(fusions(rows, one), f"One encoder layer: {len(one)} ONNX nodes, {counts}", small_print,
             f"{len(one)} nodes of an encoder layer became {counts}; fp16 has attention in one")  # fmt: skip

# %% [markdown]
# Not every node has a box: constants and arithmetic on shapes leave no work for the card. And a node that several
# layers work for has several boxes.
#
# Row 5 of fp16 is the whole attention: both products and the softmax between them, in one kernel. The table of all
# pairs of tokens never goes to memory. In fp32 the builder used no such kernel: there, grey boxes copy and cut tensors
# *for* a product. So fp16 saves more than the bytes of the weights.
#
# What does it cost? ONNX Runtime can compute the fp16 graph on the CPU, slowly; the numbers tell how far half precision
# is off.

# %%
session = onnxruntime.InferenceSession(root / "minilm16.onnx", providers=["CPUExecutionProvider"])
hidden16 = session.run(None, feeds)[0].astype(np.float32)
cosine = (hidden * hidden16).sum(-1) / np.linalg.norm(hidden, axis=-1) / np.linalg.norm(hidden16, axis=-1)
print(f"largest difference {np.abs(hidden - hidden16).max():.1e}, smallest cosine {cosine.min():.6f}")

# %% [markdown]
# Harmless for this model; a cosine of 1 means the same direction.
#
# Row 1 fuses *three* products: query, key and value read the same input. **Predict:** a search for their three weights,
# turned around as ONNX wants them, finds all, or none?

# %% tags=["nbval-check-output"]
from safetensors.numpy import load_file

checkpoint = assets.resolve("minilm") / "model.safetensors"
tensors = load_file(checkpoint)
attention = "encoder.layer.1.attention.self."
query, key, value = (tensors[f"{attention}{name}.weight"].T for name in ("query", "key", "value"))
together = np.concatenate([value, key, query], axis=1)
print("alone:", [minilm.find(array) is not None for array in (query, key, value)])
print("side by side:", together.shape, "found:", minilm.find(together) is not None)

# %% [markdown]
# They were laid side by side, as one matrix of three times the width, in the order value, key, query. The layer's name
# says so, if you know how to read it:

# %% tags=["nbval-check-output"]
print(*rows["fp32"][0].name.replace("/m/", "/").split("+"), sep="\n")

# %% [markdown]
# TensorRT-LLM does the same by hand: its converter writes one tensor `qkv`. Notebook 02 makes it.
#
# ## 7 An operation that TensorRT does not know
#
# Suppose a model uses an operator of its own, say `Swiglu`.

# %% tags=["nbval-check-output"]
try:
    build(network("odd (float[4, 64] x) => (float[4, 64] y) { [gate] y = Swiglu(x) }", {}))
except EngineError as error:
    tell(error)

# %% [markdown]
# A **plugin** is the way out: a class in C++ or Python that tells TensorRT the shape of its output and launches a
# kernel of its own. The parser looks for one by the operator's name, and found none.
#
# TensorRT-LLM is full of them. `--gpt_attention_plugin` brings attention with a paged KV cache, which no ONNX operator
# describes; `--gemm_plugin` brings products from cuBLAS; `--nccl_plugin` talks to other cards. A plan with plugins
# needs the same plugin library wherever it is loaded.
#
# ## 8 What is a CUDA graph?
#
# A layer runs when the CPU tells the card so: a *launch*. It takes some microseconds of the CPU each time, whatever the
# layer does. One pass of our encoder has about as many launches as layers. When the layers are small, the card waits
# for the CPU.
#
# A **CUDA graph** records all launches of a pass once and repeats them with a single call. The shapes and the addresses
# must stay the same. The next cells measure it with plain PyTorch, where a CUDA device exists: as many small products
# as the engine has layers. **Predict:** how many times faster is the graph?

# %%
import time

launches = len(minilm.layers)


def chain(y, w):
    for _ in range(launches):
        y = y @ w
    return y


def microseconds(call, repeats=100):
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeats * 1e6


# %% [markdown]
# `torch.cuda.graph` records what runs inside of it; `replay` repeats the record. Without a CUDA device you read what
# `benchmarks/engine_on_gpu.py` measured on another machine.

# %%
import json

from servinglab.root import find_root

if torch.cuda.is_available():
    y, w = torch.ones(8, 384, device="cuda"), torch.eye(384, device="cuda")
    chain(y, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain(y, w)
    one_by_one, replayed = microseconds(lambda: chain(y, w)), microseconds(graph.replay)
    print(f"{launches} launches: one by one {one_by_one:.0f} µs, as a graph {replayed:.0f} µs")
else:
    print(f"Not measured here: there is no CUDA device. One pass of the encoder would be {launches} launches.")

# %%
there = json.loads((find_root() / "data" / "results" / "h100" / "engine.json").read_text())
print(f"on a {there['device']}: {there['launches']} launches one by one {there['one_by_one_us']} µs,",
      f"as a graph {there['graph_us']} µs")  # fmt: skip

# %% [markdown]
# The card did the same products both times. What the graph saved was the CPU's work for each launch.
#
# The program of our engine has a line about it. The graph itself is made by whoever runs the engine: a setting
# `cuda_graph_strategy` here, `cuda_graph_mode` in TensorRT-LLM.

# %% tags=["nbval-check-output"]
program = minilm.section("ENGN").decode("latin-1")
print(sorted(set(line.strip() for line in program.splitlines() if "stream_capturable" in line)))

# %% [markdown]
# ## 9 Why an engine does not travel
#
# Show the runtime five files. **Predict:** which one will it accept, and which will it notice without reading all of
# it?

# %%
data = mlp.data
files = {"as built": data, "half of it": data[: len(data) // 2], "the ONNX file": mlp_onnx.SerializeToString(),
         "version 1.8": data[:25] + b"\x08" + data[26:], "version 1.6": data[:25] + b"\x06" + data[26:]}  # fmt: skip
for name, content in files.items():
    said = refusals(content) or ["accepted"]
    print(f"--- {name}")
    tell(said[-1] if "version" in name else said[0])

# %% [markdown]
# On a machine without a card none is accepted, but the reasons differ. A cut file does not have the size that its
# header names. A foreign file lacks the first four bytes: `1953657974` is the number you saw in section 3. And a plan
# of another version is refused both ways, older *and* newer; the runtime reads that from the header alone.
#
# With TensorRT-LLM the same refusal reads `Serialization assertion stdVersionRead == kSERIALIZATION_VERSION failed`. It
# always means: build and run with the same version.
#
# The third reason is the card. A **compute capability** is the version of a card's instructions: 8.6 is an RTX 3090,
# 8.9 an RTX 4090, 12.0 an RTX 5090, 9.0 an H100. `targets` builds for chosen ones.

# %% tags=["nbval-check-output"]
for targets in ((), ("sm80",), ("sm120",), ("sm80", "sm120")):
    made = build(tiny_onnx, targets=targets)
    print(f"{'+'.join(targets) or 'none given':11} {len(made.data)} bytes, made for", *made.header.targets)

# %% [markdown]
# The header lists what the plan is made for, and even a plan of two lines of arithmetic differs between two cards. An
# H100 (9.0) is in no list. What does the runtime say there? This is what it told `benchmarks/engine_on_gpu.py` about a
# plan that was built with no `targets` given:

# %%
tell(f"{there['device']}: {there['runtime_says']}")


# %% [markdown]
# **Exercise 01.2** Write a function that says whether a plan runs. It gets the plan's version and targets, and the
# runtime's version and the card, like `runs_here("1.7.1", ("sm80", "sm86"), "1.7.1", "sm86")`.

# %% tags=["exercise:01.2"]
def runs_here(plan_version, plan_targets, runtime_version, card):
    """Returns True or False."""


# %% tags=["check:01.2", "nbval-check-output"]
check("01.2", runs_here)

# %% [markdown]
# ## 10 Floats or code?
#
# Three questions that people write down when they meet TensorRT-LLM. You have the evidence for two: weights *are*
# inside the engine (section 3), and what is compiled is the graph (sections 2, 3 and 6).
#
# The third: **is the output of `convert_checkpoint.py` floats or code?** Our own converter writes the same files, for
# SmolLM2, in half precision. Notebook 02 explains it.

# %%
from engines.convert import convert

folder = convert(assets.resolve("smollm2"), root / "converted")
for file in sorted(folder.iterdir()):
    print(f"{file.name:18} {file.stat().st_size:10} bytes")


# %% [markdown]
# A `safetensors` file is: eight bytes that say how long the header is, the header in JSON, then the tensors. So count.
# **Predict:** how many bytes are left when you take header and tensors away?

# %% tags=["nbval-check-output"]
def count(path):
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entries = {name: entry for name, entry in json.loads(file.read(length)).items() if name != "__metadata__"}
    return entries, sum(end - start for start, end in (entry["data_offsets"] for entry in entries.values())), 8 + length


shard = folder / "rank0.safetensors"
entries, floats, head = count(shard)
print(f"{len(entries)} tensors, {floats} bytes; header {head} bytes; left over {shard.stat().st_size - floats - head}")
print(json.dumps(entries["transformer.layers.0.attention.qkv.weight"]))

# %% [markdown]
# Nothing is left. **It is floats**, with names and shapes. No program, no kernel, nothing for a certain card. The code
# comes with `trtllm-build`, which reads this folder and writes an engine. The figure puts the files side by side.

# %%
rest = {"MiniLM checkpoint": count(checkpoint)[1:], "MiniLM plan, fp32": None, "MiniLM plan, fp16": None}
for name, made in (("MiniLM plan, fp32", minilm), ("MiniLM plan, fp16", minilm16)):
    weights = len(made.section("WGHT"))
    rest[name] = (weights, len(made.data) - weights)
rest["SmolLM2 converted"] = (floats, head)
title = f"A plan holds {rest['MiniLM plan, fp32'][1] / 1e6:.1f} MB of program beside its numbers, a checkpoint none"
summary = "checkpoints are numbers and a few kB of names; plans hold megabytes of program too"
style.finish(sizes(rest), title, small_print, summary)

# %% [markdown]
# MiniLM's checkpoint holds a little more than its fp32 plan: a last layer for whole sentences, the *pooler*, that our
# graph does not use.

# %% [markdown]
# **Exercise 01.3** An engine of the encoder is in service. Which of these changes need a new build? Put their names
# into a set.
#
# - `"weights"`: other numbers, same shapes, into a plan that was built with `refit`
# - `"batch"`: 12 sentences at once, where the profile goes from 1 to 16
# - `"tokens"`: sentences of 400 tokens, where the profile ends at 256
# - `"precision"`: fp16 instead of fp32
# - `"library"`: the server gets a newer TensorRT
# - `"card"`: from an RTX 4090 to an RTX 5090, the plan built with `targets=("sm89",)`
# - `"tokenizer"`: another file that turns text into the same kind of token ids

# %% tags=["exercise:01.3"]
new_build = None  # a set of names, for example {"batch", "card"}

# %% tags=["check:01.3", "nbval-check-output"]
check("01.3", new_build)

# %% [markdown]
# ## Recap
#
# - A checkpoint is numbers with names. An engine is numbers, a program of fused layers, and a header.
# - Fusions save trips to memory. Which ones there are depends on the types: fp16 has attention in one kernel.
# - A profile's upper end decides the memory; its opt decides where it is fast.
# - Weights are in the plan. New ones of the same shape need no compiler, only a refit.
# - Version and card are in the header, and the runtime refuses any other.
#
# ## Break it
#
# Turn one bit of one weight around, as a bad disk may. **Predict:** can anybody who reads only this file notice it?

# %% tags=["nbval-check-output"]
damaged = numbers["w1"].copy()
damaged.view(np.uint32)[0, 0] ^= 1 << 30  # the highest bit of the exponent
broken = data.replace(numbers["w1"].tobytes(), damaged.tobytes())
print(f"{numbers['w1'][0, 0]:.3f} became {damaged[0, 0]:.1e}")
print("still a plan of the right size:", read_header(broken).size == len(broken))
wanted = build(network(MLP.replace("TYPE", "float"), numbers | {"w1": damaged}))
print("a build from the damaged weights gives the same file:", broken == wanted.data)

# %% [markdown]
# Nobody can. The damaged file is, byte for byte, the plan of another network that somebody may have wanted, so there is
# no checksum of the weights in it. What a damaged *program* does is not shown here. Keep a checksum beside each plan
# that you ship.
#
# The last cell deletes the temporary folder and says what produced the numbers on this page.

# %%
workshop.cleanup()
layer_counts = {"nodes": len(operators), "layers_fp32": len(minilm.layers), "layers_fp16": len(minilm16.layers)}
record("01", lane=lane, seed=seed, tensorrt_rtx=header.version, build_s=round(minilm16.seconds, 1), **layer_counts)
