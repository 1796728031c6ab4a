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
# You build real TensorRT engines with TensorRT's own Python API, open the files, and see what was compiled, where the
# weights are and why another GPU refuses them.
#
# After this notebook you can
#
# - drive `Builder`, `OnnxParser`, `IBuilderConfig` and `Runtime` yourself
# - read which nodes were fused, in fp32 and in fp16
# - find weights in an engine file, and say when new weights need a new build
# - build for the sizes and GPUs of your users, and say from a file's first bytes where it will run
# - tell a checkpoint from an engine
#
# **Time:** 45 minutes · **Lanes:** embedded, trtllm · **Needs:** the weights of MiniLM and SmolLM2
#
# read: 12 min, do: 33 min
#
# Previous: [00 · Start here](00_start_here.ipynb) · Next: [02 · Checkpoint to engine](02_checkpoint_to_engine.ipynb)

# %%
import json
import re
import struct
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnx.parser
import onnxruntime
import tensorrt_rtx_bindings as trt
import torch
from onnx import numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16
from safetensors.numpy import load_file
from transformers import AutoModel
from transformers.utils.logging import disable_progress_bar

import build_log
from engines.convert import convert
from servinglab import assets, notebook
from servinglab.checks import check
from servinglab.figures import engines as figures
from servinglab.figures.style import show, table
from servinglab.root import find_root

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
width: int = 64  # width of the small network; a multiple of 32
longest: int = 256  # most tokens in a sentence for the encoder, 32 to 512
seed: int = 0  # seed of the small networks' weights

# %% [markdown]
# `tensorrt_rtx` is **TensorRT-RTX**, NVIDIA's TensorRT for PC GPUs. It builds without a GPU, and has the interface of
# the TensorRT under TensorRT-LLM.

# %%
lane = notebook.begin("01", lane, seed=seed, tensorrt_rtx=trt.__version__)
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## 1 A network is a list of operations
#
# TensorRT reads **ONNX**: a file with a graph of operations and the weights. Write a small one as text, with four
# *nodes*: a matrix product, a bias, a ReLU, a second product.

# %%
MLP = """mlp (TYPE[4, WIDTH] x) => (TYPE[4, 10] y) {
    [dense_1] a = MatMul(x, w1)
    [bias_1]  b = Add(a, b1)
    [relu_1]  c = Relu(b)
    [dense_2] y = MatMul(c, w2)
}""".replace("WIDTH", str(width))


def as_onnx(text, weights):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def draw(seed):
    rng = np.random.default_rng(seed)
    shapes = {"w1": (width, width), "b1": (width,), "w2": (width, 10)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


# %% [markdown]
# Draw random weights and add them to the graph. As a reference, compute ONNX Runtime's answer to a random input.

# %%
weights = draw(seed)
mlp_onnx = as_onnx(MLP.replace("TYPE", "float"), weights)
x = np.random.default_rng(99).standard_normal((4, width)).astype(np.float32)
session = onnxruntime.InferenceSession(mlp_onnx.SerializeToString(), providers=["CPUExecutionProvider"])
expected = session.run(None, {"x": x})[0]
print("the ONNX file has", mlp_onnx.ByteSize(), "bytes; the answer has the shape", expected.shape)


# %% [markdown]
# ## 2 Build it
#
# An **engine** is this network, prepared for a GPU; its file is a **plan**. First comes a logger that keeps what
# TensorRT says.

# %%
class Log(trt.ILogger):
    def __init__(self):
        super().__init__()
        self.lines = []

    def log(self, severity, text):
        self.lines.append(f"{severity.name} {text}")


log = Log()

# %% [markdown]
# Every TensorRT program goes on like this: a *builder* makes an empty *network*, a *parser* fills it from ONNX, a
# *config* says how to build, and the builder writes the plan.
#
# ![OnnxParser makes a network, Builder and config a plan, Runtime an engine with contexts](pictures/01_life.svg)
#
# **Predict:** is the plan smaller than the ONNX file, as large, or larger?

# %%
began = time.perf_counter()
builder = trt.Builder(log)
network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
parser = trt.OnnxParser(network, log)
parser.parse(mlp_onnx.SerializeToString())
config = builder.create_builder_config()
config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # say what each layer does
mlp = bytes(builder.build_serialized_network(network, config))
print(f"built in {time.perf_counter() - began:.2f} s: {len(mlp)} bytes, {len(mlp) - mlp_onnx.ByteSize()} more")

# %% [markdown]
# It is larger: it holds something that the ONNX file does not (section 3).
#
# A *layer* of an engine is one piece of work: the GPU reads inputs from memory, computes, and writes the output back. A
# layer may compute several nodes; that is a **fusion**.
#
# **Exercise 01.1** (●○○, 3 minutes) Which of the four nodes share a layer? Replace `None` by a list of lists of their
# names. With no fusion it would be `[["dense_1"], ["bias_1"], ["relu_1"], ["dense_2"]]`.
#
# <details><summary>Hint 1</summary>
#
# A number that is still on the chip can be changed before it goes to memory. Which operations need only that number?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Which of the four needs whole rows of what comes before? And where are a bias's numbers when the product has just made
# them?
#
# </details>

# %% tags=["exercise:01.1"]
my_layers = None  # a list of lists of "dense_1", "bias_1", "relu_1", "dense_2"

# %% [markdown]
# The log ends with the layers. `build_log`, ours, cuts them out; it also finds the first error (`problem`) and the
# memory (`activations`).

# %% tags=["nbval-check-output"]
for layer in build_log.layers(log.lines):
    print(layer.partition(", Inputs")[0], "|", *build_log.nodes(layer))

# %% tags=["check:01.1", "nbval-check-output"]
check("01.1", my_layers)

# %% [markdown]
# <details><summary>Solution 01.1</summary>
#
# ```python
# my_layers = [["dense_1", "bias_1", "relu_1"], ["dense_2"]]
# ```
#
# </details>

# %% [markdown]
# Each row is a layer of the engine, each box a node of the file:

# %%
operations = {node.name: node.op_type for node in mlp_onnx.graph.node}
title = f"{len(operations)} ONNX nodes, {len(build_log.layers(log.lines))} engine layers"
drawn = figures.fusions({"engine": build_log.layers(log.lines)}, operations)
show(drawn, title, f"{title}: the first product, bias and ReLU share one")

# %% [markdown]
# Bias and ReLU are applied before the product's numbers leave the chip, which saves two trips to memory and back.
#
# **Predict:** the build needed no GPU. Does loading need one? Where it loads, the cell also runs it.

# %%
log.lines.clear()
engine = trt.Runtime(log).deserialize_cuda_engine(mlp)
if engine:
    buffers = {"x": torch.from_numpy(x).cuda(), "y": torch.empty(4, 10, device="cuda")}
    context = engine.create_execution_context()
    for name, tensor in buffers.items():
        context.set_tensor_address(name, tensor.data_ptr())
    context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
    print("largest difference from ONNX Runtime:", np.abs(buffers["y"].cpu().numpy() - expected).max())
else:
    print("not loaded:", build_log.problem(log.lines))


# %% [markdown]
# It does. ("CUDA driver version is insufficient" can also mean that there is no driver.)
#
# <details><summary>The stream in that call</summary>
#
# An *execution context* gets the addresses of input and output. The call puts the work into a *stream*, a queue of the
# GPU. One stream does its work in order; two may overlap. In Triton each instance of a model has [a stream of its
# own](https://github.com/triton-inference-server/backend/blob/main/include/triton/backend/backend_model_instance.h).
#
# </details>
#
# More builds follow, so write a function. `options` changes the config.

# %%
def build(model, options=lambda builder, config: None):
    log.lines.clear()
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse(model.SerializeToString()):
        return None
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    options(builder, config)
    plan = builder.build_serialized_network(network, config)
    return plan and bytes(plan)


# %% [markdown]
# ## 3 Open the file
#
# NVIDIA does not document the bytes of a plan. So look at the first 112 yourself, in hexadecimal and as letters:

# %% tags=["nbval-check-output"]
for start, end in [(0, 16), (16, 32), (32, 64), (64, 88), (88, 112)]:
    print(f"{start:3}: {mlp[start:end].hex(' ', -8)}  {mlp[start:end].decode('latin-1')!r}".replace("\\x00", "·"))


# %% [markdown]
# The header has 64 bytes: first its tag, at 8 the number of sections, at 16 the size of the file, at 24 the version, at
# 32 one bit for each kind of GPU. Then comes a row of 24 bytes for each section: name (backwards), start, length.
# `struct` reads such rows: `8s` is eight letters, `Q` a whole number of eight bytes.

# %% tags=["nbval-check-output"]
def targets(plan):
    kinds = [name for name in trt.ComputeCapability.__members__ if name.startswith("SM")]
    return [kind for bit, kind in enumerate(kinds) if plan[32] >> bit & 1]


def sections(plan):
    rows = [struct.unpack_from("<8sQQ", plan, 64 + 24 * row) for row in range(plan[8])]
    return {name.rstrip(b"\0")[::-1].decode(): plan[start : start + length] for name, start, length in rows}


size = struct.unpack_from("<Q", mlp, 16)[0]
print("size", size, "· version", *mlp[24:28], "· runs on", *targets(mlp))
print({name: len(part) for name, part in sections(mlp).items()})

# %% [markdown]
# `WGHT` sounds like weights. **Predict:** are they in there as you gave them, compressed, or turned into something
# else? Search the file for the bytes of each array, and draw what you find to scale.

# %%
parts = {name: (mlp.find(part), len(part)) for name, part in sections(mlp).items()}
arrays = {name: (mlp.find(array.tobytes()), array.nbytes) for name, array in weights.items()}
fig, axes = plt.subplots(figsize=(7.5, 1.9))
for row, (named, colour) in enumerate(((parts, "#F0C3A0"), (arrays, "#9AD3F5"))):
    for name, (start, length) in named.items():
        axes.barh(row, length if start >= 0 else 0, left=start, color=colour, edgecolor="white", height=0.7)
        axes.text(start + length / 2, row, name, ha="center", va="center")
axes.set(ylim=(1.5, -0.5), xlim=(0, 1.02 * size), xlabel="byte of the plan", yticks=(0, 1))
axes.set_yticklabels(["sections", "your arrays"])
there_are = sum(start >= 0 for start, _ in arrays.values())
summary = "; ".join(f"{name}: {length} bytes from {start}" for name, (start, length) in (parts | arrays).items())
show(fig, f"{there_are} of your {len(arrays)} arrays are in the plan, byte for byte", summary)

# %% [markdown]
# All three are there, float by float (`b1` is the sliver at the end): **weights are inside the engine**. And the other
# section? Machine code would begin with `ELF`.

# %% tags=["nbval-check-output"]
program = sections(mlp)["ENGN"].decode("latin-1")
for line in program.splitlines():
    if line.strip().startswith(("runtime_fusion=", "fully_connected=", "add=", "relu=")):
        print(line.strip()[:60], "…")
print("pieces of machine code:", mlp.count(b"\x7fELF"))

# %% [markdown]
# A program in plain text: two lines for the layers, three for what happens inside the fused one. **Predict:** take both
# products away, so that `Add`, `Relu` and one bias stay. Is that plan smaller?

# %% tags=["nbval-check-output"]
TINY = "tiny (float[4, WIDTH] x) => (float[4, WIDTH] y) { b = Add(x, b1) y = Relu(b) }".replace("WIDTH", str(width))
tiny_onnx = as_onnx(TINY, {"b1": weights["b1"]})
tiny = build(tiny_onnx)
print("with products:", len(mlp), "bytes · without:", len(tiny), "bytes")
program, kernel = sections(tiny)["ENGN"].decode("latin-1"), 'extern "C" __global__'
print("kernels written:", program.count(kernel))
print(program[program.index(kernel) :].partition("{")[0])

# %% [markdown]
# No: it is several times larger! A **kernel** is a function that runs on the GPU. For a product, the library brings the
# kernel. For everything else the builder writes one in CUDA C++ and stores its source in the plan.
#
# So **what is compiled is the graph**: it becomes layers, and layers become kernels. During the build TensorRT-RTX
# writes only source; the machine with the GPU compiles it when it loads the plan.
#
# The TensorRT under TensorRT-LLM does both at build time: it times candidate kernels on the GPU, keeps the fastest and
# stores machine code. So it needs the GPU to build, and its plans are tied to that GPU more closely.

# %% [markdown]
# ## 4 New weights
#
# Train the network further: same shapes, other numbers. **Predict:** must you build again? Write new weights over the
# old ones. How many bytes differ from a plan *built* from them?

# %% tags=["nbval-check-output"]
others, patched = draw(seed + 1), mlp
for name, array in weights.items():
    patched = patched.replace(array.tobytes(), others[name].tobytes())
rebuilt = build(as_onnx(MLP.replace("TYPE", "float"), others))
different = sum(mine != theirs for mine, theirs in zip(patched, rebuilt, strict=True))
print(f"patched: {len(patched)} bytes, {different} of them different from a new build")

# %% [markdown]
# No byte differs: new weights of the same shapes need no compiler. Is it always that simple? Build a convolution
# followed by a batch normalisation. **Predict:** which of its five arrays will you find?

# %% tags=["nbval-check-output"]
CONV = """conv (float[1, 8, 32, 32] x) => (float[1, 16, 32, 32] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w)
    y = BatchNormalization(a, scale, beta, mean, var)
}"""
rng = np.random.default_rng(seed)
parts = {"w": rng.standard_normal((16, 8, 3, 3)).astype(np.float32)}
parts |= {name: rng.uniform(0.5, 1.5, 16).astype(np.float32) for name in ("scale", "beta", "mean", "var")}
conv = build(as_onnx(CONV, parts))
print({name: array.tobytes() in conv for name, array in parts.items()})
shift = parts["beta"] - parts["scale"] / np.sqrt(parts["var"] + np.float32(1e-5)) * parts["mean"]
stored = np.frombuffer(sections(conv)["WGHT"], np.float32)
print("w with its channels last:", parts["w"].transpose(0, 2, 3, 1).tobytes() in conv, "· one shift for each channel:",
      bool(np.abs(stored[:, None] - shift).min(axis=0).max() < 1e-5))  # fmt: skip

# %% [markdown]
# None of the five: the channels were moved last, and the batch normalisation became one factor and one shift for each
# channel. TensorRT knows where each number went: with the flag `REFIT` at the build, its `Refitter` gives a loaded
# engine new weights by name, also fused ones. That needs a supported GPU; we have not run it.

# %% [markdown]
# ## 5 fp16
#
# Half precision takes two bytes per number. Old guides switch it on with a builder flag, which is gone: networks are
# *strongly typed*, and the types in the ONNX file decide (for TensorRT-LLM, the converter's `--dtype`). So write the
# network with `float16`. **Predict:** which of the two sections shrinks, and by how much?

# %% tags=["nbval-check-output"]
halves = {name: array.astype(np.float16) for name, array in weights.items()}
mlp16 = build(as_onnx(MLP.replace("TYPE", "float16"), halves))
for name in ("ENGN", "WGHT"):
    print(f"{name}: fp32 {len(sections(mlp)[name]):6} bytes, fp16 {len(sections(mlp16)[name]):6} bytes")
print("layers:", *(build_log.nodes(layer) for layer in build_log.layers(log.lines)))

# %% [markdown]
# The weights shrink to about half; the program keeps its size. Here even the fusions are the same.

# %% [markdown]
# ## 6 Sizes that are not known yet
#
# A batch may have one sentence or sixteen, short or long. In ONNX such a size is a letter. Build an attention, which
# compares every token with every other.

# %% tags=["nbval-check-output"]
ATTENTION = """attention (float[B, T, 64] x) => (float[B, T, 64] y) {
    t = Transpose<perm = [0, 2, 1]>(x)
    s = MatMul(x, t)
    p = Softmax(s)
    y = MatMul(p, x)
}"""
attention = as_onnx(ATTENTION, {})
print(build(attention))
print(build_log.problem(log.lines))


# %% [markdown]
# TensorRT wants a range. An **optimisation profile** gives three shapes for each input: the smallest (*min*), the one
# to optimise for (*opt*), and the largest (*max*).

# %%
def profile(opt, largest, names=("x",), rest=(64,)):
    def options(builder, config):
        made = builder.create_optimization_profile()
        for name in names:
            made.set_shape(name, (1, 1, *rest), (*opt, *rest), (*largest, *rest))
        config.add_optimization_profile(made)

    return options


# %% [markdown]
# **Predict:** from one profile to the next the max has twice the tokens. Does the memory between the layers stay,
# double, or grow fourfold? And what does a larger opt cost?

# %%
lengths = [longest // 4, longest // 2, longest, 2 * longest]
needed = []
for opt, most in [*(((8, 8), tokens) for tokens in lengths), ((64, longest), longest)]:
    build(attention, profile(opt, (64, most)))
    needed.append(build_log.activations(log.lines))
*by_length, raised = needed

# %%
fig, axes = plt.subplots(figsize=(7.5, 3))
pairs, fixed = np.polyfit(np.square(lengths), by_length, 1)
x = np.linspace(0, lengths[-1])
axes.plot(x, fixed + pairs * x**2, color="#5F5F5F", linestyle="--", label=f"{fixed:.0f} MB + pairs of tokens")
axes.plot(x, by_length[0] * x / lengths[0], color="#5F5F5F", linestyle=":", label="in proportion to the tokens")
axes.plot(lengths, by_length, "o", label="opt (8, 8)")
axes.plot(longest, raised, "D", label=f"opt (64, {longest})")
for tokens, size in zip(lengths, by_length, strict=True):
    axes.annotate(f"{size:.1f} MB", (tokens, size), (-6, 6), textcoords="offset points", ha="right")
axes.set(xlabel="most tokens, with 64 sentences", ylabel="MB between the layers", xticks=[0, *lengths])
axes.set(xlim=(0, 1.05 * lengths[-1]), ylim=(0, 1.15 * by_length[-1]))
axes.legend(loc="upper left")
title = f"From {lengths[-2]} to {lengths[-1]} tokens: {by_length[-1] / by_length[-2]:.1f} times the memory"
summary = "; ".join(f"{tokens} tokens {size:.1f} MB" for tokens, size in zip(lengths, by_length, strict=True))
show(fig, title, f"{summary}; the opt raised to the max {raised:.1f} MB")

# %% [markdown]
# It grows by half at first, nearly fourfold in the end: beside a fixed part, memory grows with *pairs* of tokens. A
# larger opt costs little. Limits cost memory from the first request on, used or not; so do `trtllm-build`'s
# `--max_batch_size`, `--max_input_len` and `--max_num_tokens`.

# %% [markdown]
# ## 7 A real encoder
#
# MiniLM turns a sentence into numbers, with six encoder layers. Wrap it for the export.

# %%
disable_progress_bar()


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = AutoModel.from_pretrained(assets.resolve("minilm"), attn_implementation="eager")

    def forward(self, input_ids, attention_mask):
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


# %% [markdown]
# The exporter runs the model once and writes every operation down, with two open sizes: sentences and tokens.

# %%
encoder, path, inputs = Encoder().eval(), folder / "minilm.onnx", ["input_ids", "attention_mask"]
ones = torch.ones((2, 16), dtype=torch.int64)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.onnx.export(encoder, (ones, ones), path, dynamo=False, input_names=inputs, output_names=["hidden"],
                      dynamic_axes={name: {0: "batch", 1: "tokens"} for name in [*inputs, "hidden"]})  # fmt: skip
minilm_onnx = onnx.load(path)
operators = {node.name: node.op_type for node in minilm_onnx.graph.node}
print(len(operators), "nodes,", path.stat().st_size // 1_000_000, "MB")

# %% [markdown]
# Is the graph right? Compare it with PyTorch on a new batch, with padding.

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
# It is, up to rounding. **Predict:** the graph has hundreds of nodes. How many layers does the engine have?

# %% tags=["nbval-check-output"]
sizes = profile((8, 32), (16, longest), inputs, ())
minilm = build(minilm_onnx, sizes)
minilm_layers, minilm_memory = build_log.layers(log.lines), build_log.activations(log.lines)
print("ONNX nodes ", len(operators), "· most of them:", Counter(operators.values()).most_common(4))
kinds = Counter(re.search(r"LayerType: (\w+)", layer)[1] for layer in minilm_layers)
print("engine     ", len(minilm_layers), "layers:", dict(kinds))

# %% [markdown]
# Far fewer: constants and most arithmetic on shapes are gone; the rest was fused. (`gemm` is a matrix product, `kgen` a
# generated kernel.)
#
# Convert to fp16. **Predict:** will the layers be the same, as with the small network?

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    half_onnx = convert_float_to_float16(minilm_onnx)
minilm16 = build(half_onnx, sizes)
minilm16_layers = build_log.layers(log.lines)
print(f"layers: fp32 {len(minilm_layers)} · fp16 {len(minilm16_layers)}")
print(f"between the layers: fp32 {minilm_memory:.1f} MB · fp16 {build_log.activations(log.lines):.1f} MB")

# %% [markdown]
# No: a third fewer layers, and a quarter of the memory between them. What happened? Draw one of the six encoder layers;
# each row is one layer of the engine.

# %%
one = {name: operator for name, operator in operators.items() if "/layer.1/" in name}
rows = {name: [layer for layer in found if one.keys() & set(build_log.nodes(layer))]
        for name, found in (("fp32", minilm_layers), ("fp16", minilm16_layers))}  # fmt: skip
counts = f"{len(rows['fp32'])} engine layers in fp32, {len(rows['fp16'])} in fp16"
show(figures.fusions(rows, one), f"One encoder layer: {len(one)} ONNX nodes, {counts}",
     f"{len(one)} nodes of an encoder layer became {counts}; fp16 has attention in one")  # fmt: skip

# %% [markdown]
# Row 5 of fp16 is the whole attention: both products and the softmax between them (scores turned into shares), in one
# kernel. The table of all pairs of tokens never goes to memory. That is the idea of
# [FlashAttention](https://arxiv.org/abs/2205.14135), and of TensorRT-LLM's
# [`--context_fmha`](https://nvidia.github.io/TensorRT-LLM/advanced/gpt-attention.html). In fp32 the builder used no
# such kernel, so fp16 saves more than bytes.
# (Notebook 02 measures what fewer bits cost in accuracy.)
#
# Row 1 fuses *three* products: query, key and value read the same input. **Predict:** search the plan for their
# weights. Do you find all three, or none?

# %% tags=["nbval-check-output"]
checkpoint = assets.resolve("minilm") / "model.safetensors"
tensors = load_file(checkpoint)
prefix = "encoder.layer.1.attention.self."
query, key, value = (tensors[f"{prefix}{name}.weight"].T for name in ("query", "key", "value"))
print("alone:", [array.tobytes() in minilm for array in (query, key, value)])
together = np.concatenate([value, key, query], axis=1)
print("side by side:", together.shape, "found:", together.tobytes() in minilm)

# %% [markdown]
# None: they lie side by side, in the order value, key, query. TensorRT-LLM's converter stacks them as q, k, v (notebook
# 02).
#
# <details><summary>An operation that TensorRT does not know</summary>
#
# A model may use an operator of its own, say `Swiglu`. Then the parser says `Plugin not found`. A **plugin** is a class
# in C++ or Python that tells TensorRT the shape of its output and launches its own kernel. TensorRT-LLM's
# `--gpt_attention_plugin` brings attention with a paged KV cache (the stored keys and values of earlier tokens), which
# no ONNX operator describes. A plan with plugins needs the same plugin library wherever it is loaded.
#
# </details>

# %% [markdown]
# ## 8 What is a CUDA graph?
#
# The CPU *launches* each layer on the GPU. Each launch takes some microseconds, so when layers are small, the GPU
# waits. A **CUDA graph** records all launches of a pass once and repeats them with one call, always with the same
# shapes and addresses:
#
# ![One by one, the GPU is idle between kernels; as a graph, one launch starts all of them](pictures/01_launches.svg)
#
# `benchmarks/engine_on_gpu.py` measured as many small products as the encoder has layers, on an H100. **Predict:** how
# many times faster was the graph?

# %%
there = json.loads((find_root() / "data" / "results" / "h100" / "engine.json").read_text())
times = {"one by one": there["one_by_one_us"], "as a graph": there["graph_us"]}
fig, axes = plt.subplots(figsize=(7.5, 1.6))
axes.bar_label(axes.barh(list(times), list(times.values()), height=0.6), fmt="%.0f µs", padding=4)
axes.set(xlim=(0, 1.15 * max(times.values())), ylim=(1.5, -0.5), xlabel=f"time of {there['launches']} kernels (µs)")
title = f"A graph is {times['one by one'] / times['as a graph']:.1f} times as fast on one {there['device']}"
show(fig, title, "; ".join(f"{name} {each} µs" for name, each in times.items()), drawing=True)

# %% [markdown]
# About three times: the GPU did the same products, and the graph saved the CPU's work for each launch. The setting is
# `cuda_graph_strategy` here, `cuda_graph_mode` in TensorRT-LLM.

# %% [markdown]
# ## 9 Where does a plan run?
#
# Show the runtime three files. **Predict:** which will it accept?

# %%
files = {"as built": mlp, "half of it": mlp[: len(mlp) // 2], "the ONNX file": mlp_onnx.SerializeToString()}
for name, content in files.items():
    log.lines.clear()
    accepted = trt.Runtime(log).deserialize_cuda_engine(content)
    print(f"--- {name}\n{'accepted' if accepted else build_log.problem(log.lines)}")

# %% [markdown]
# Without a GPU it accepts none, but the reasons differ. A cut file is shorter than its header says. A foreign file does
# not begin with `vtrt` (read as a number, 1953657974).
#
# Next, change one byte of the header to make plans of another version. **Predict:** does an older plan pass? A newer?

# %%
for name, minor in (("version 1.8", 8), ("version 1.6", 6)):
    runtime, other = trt.Runtime(log), mlp[:25] + bytes([minor]) + mlp[26:]
    log.lines.clear()
    print(name, runtime.get_engine_validity(other[: runtime.engine_header_size])[0])
    said = next(line for line in log.lines if "version" in line).partition(". ")[0]
    print(re.sub(r"[\x00-\x1f]", lambda byte: str(ord(byte[0])), said))  # the message has the other version's raw bytes


# %% [markdown]
# Both are refused. (TensorRT-LLM says `Serialization assertion stdVersionRead ==
# kSERIALIZATION_VERSION failed`.) So build and run with the same version.
#
# The last reason is the GPU. A **compute capability** is the version of a GPU's instructions: 8.9 is an RTX 4090, 12.0
# an RTX 5090, 9.0 an H100. Build for some:

# %% tags=["nbval-check-output"]
def compute(*kinds):
    def options(builder, config):
        config.num_compute_capabilities = len(kinds)
        for index, kind in enumerate(kinds):
            config.set_compute_capability(kind, index)

    return options


CC = trt.ComputeCapability
made_for = {}
for kinds in ((), (CC.SM80,), (CC.SM120,), (CC.SM80, CC.SM120)):
    plan = build(tiny_onnx, compute(*kinds))
    made_for[" + ".join(kind.name for kind in kinds) or "none given"] = targets(plan)
    print(f"{len(plan)} bytes, made for", *targets(plan))

# %% [markdown]
# The same as a table, with one GPU of each kind:

# %%
cards = {"SM80": "A100", "SM86": "RTX 3090", "SM89": "RTX 4090", "SM120": "RTX 5090", "SM121": "DGX Spark",
         "SM90": "H100"}  # fmt: skip
assert not any("SM90" in kinds for kinds in made_for.values())
cells = {(asked, f"{kind}\n{card}"): ("runs", "#B3E2D1") if kind in kinds else ("", "#E4E4E4")
         for asked, kinds in made_for.items() for kind, card in cards.items()}  # fmt: skip
summary = "; ".join(f"{asked}: {', '.join(kinds)}" for asked, kinds in made_for.items())
fig, axes = plt.subplots(figsize=(7.5, 2.5))
table(axes, list(made_for), [f"{kind}\n{card}" for kind, card in cards.items()], cells)
show(fig, "A plan runs on the GPUs it was built for; none runs on an H100 (SM90)", summary)

# %% [markdown]
# An H100 (9.0) is in no list. Its runtime said, about a plan built without targets:

# %%
print(there["runtime_says"])


# %% [markdown]
# **Exercise 01.2** (●●○, 8 minutes) Your users have an RTX 4090 or an RTX 5090. They send 1 to 32 sentences of 1 to 128
# tokens, mostly 4 of 16. Write the options for a build of section 6's attention, whose input `x` is `[B, T, 64]`.
#
# <details><summary>Hint 1</summary>
#
# Sections 6 and 9 have the calls; put your own numbers there. Which compute capabilities are those GPUs?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Does making a profile add it to the config? Is an older GPU's plan good enough for a newer one?
#
# </details>

# %% tags=["exercise:01.2"]
def for_users(builder, config):
    """Adds a profile and two targets to the config."""


# %% tags=["check:01.2", "nbval-check-output"]
check("01.2", for_users)

# %% [markdown]
# <details><summary>Solution 01.2</summary>
#
# ```python
# def for_users(builder, config):
#     profile = builder.create_optimization_profile()
#     profile.set_shape("x", (1, 1, 64), (4, 16, 64), (32, 128, 64))
#     config.add_optimization_profile(profile)
#     kinds = [trt.ComputeCapability.SM89, trt.ComputeCapability.SM120]
#     config.num_compute_capabilities = len(kinds)
#     for index, kind in enumerate(kinds):
#         config.set_compute_capability(kind, index)
# ```
#
# </details>

# %% [markdown]
# Build with it:

# %%
plan = build(attention, for_users)
print(*(["made for", *targets(plan)] if plan else [build_log.problem(log.lines)]))

# %% [markdown]
# ## 10 Floats or code?
#
# Weights are inside the engine, and the graph is what is compiled. One question is left: **is the output of
# `convert_checkpoint.py` floats or code?** Our converter writes the same files. Run it on SmolLM2.

# %%
made = convert(assets.resolve("smollm2"), folder / "converted")
for file in sorted(made.iterdir()):
    print(f"{file.name:18} {file.stat().st_size:10} bytes")


# %% [markdown]
# A `safetensors` file begins with eight bytes, the length of a header in JSON; the header places every tensor.
# **Predict:** how many bytes belong to none of these?

# %% tags=["nbval-check-output"]
def held_by(path):
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    return sum(end - start for start, end in (entry["data_offsets"] for entry in entries.values())), 8 + length


shard = made / "rank0.safetensors"
floats, head = held_by(shard)
print(f"{floats} bytes of tensors; header {head} bytes; left over {shard.stat().st_size - floats - head}")

# %% [markdown]
# Nothing is left. **The output is floats**, with names and shapes: no program, nothing tied to a GPU. The code comes
# with `trtllm-build`, which turns this folder into an engine.
#
# ![A checkpoint: header and tensors. A plan: header, table of sections, program and weights](pictures/01_files.svg)
#
# How large are these parts?

# %%
held = {"MiniLM checkpoint": held_by(checkpoint)}
for name, plan in (("MiniLM plan, fp32", minilm), ("MiniLM plan, fp16", minilm16)):
    numbers = len(sections(plan)["WGHT"])
    held[name] = (numbers, len(plan) - numbers)
held["SmolLM2 converted"] = (floats, head)
title = f"A plan holds {held['MiniLM plan, fp32'][1] / 1e6:.1f} MB of program beside its numbers, a checkpoint none"
show(figures.sizes(held), title, "checkpoints are numbers and a few kB of names; plans hold megabytes of program too")

# %% [markdown]
# **Exercise 01.3** (●●○, 5 minutes) Which of these changes to a running encoder need a new build? Put their names into
# a set.
#
# - `"weights"`: other numbers, same shapes, into a plan built with the flag `REFIT`
# - `"batch"`: 12 sentences at once; the profile goes from 1 to 16
# - `"tokens"`: sentences of 400 tokens; the profile ends at 256
# - `"precision"`: fp16 instead of fp32
# - `"library"`: the server gets a newer TensorRT
# - `"gpu"`: from an RTX 4090 to an RTX 5090, the plan built for `SM89`
# - `"tokenizer"`: another file that turns text into token ids
#
# <details><summary>Hint 1</summary>
#
# What is in the header, what did the profile fix, and what does an engine never see?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Is the size within the profile's min and max? Are types or header affected?
#
# </details>

# %% tags=["exercise:01.3"]
new_build = None  # a set of names, for example {"batch", "gpu"}

# %% tags=["check:01.3", "nbval-check-output"]
check("01.3", new_build)

# %% [markdown]
# <details><summary>Solution 01.3</summary>
#
# ```python
# new_build = {"tokens", "precision", "library", "gpu"}
# ```
#
# </details>

# %% [markdown]
# ## Recap
#
# - A checkpoint is numbers with names; an engine adds a program of fused layers and a header.
# - Fusions save trips to memory and depend on the types: fp16 has attention in one kernel.
# - A profile's max decides the memory; its opt decides where it is fast.
# - New weights of the same shapes need no compiler, only a refit.
# - Version and GPU are in the header, and the runtime refuses any other.

# %% [markdown]
# ## Break it
#
# Flip one bit of one weight, as a bad disk may. **Predict:** can anybody who reads only this file notice it?

# %% tags=["nbval-check-output"]
damaged = weights["w1"].copy()
damaged.view(np.uint32)[0, 0] ^= 1 << 30  # the highest bit of the exponent
broken = mlp.replace(weights["w1"].tobytes(), damaged.tobytes())
print(f"{weights['w1'][0, 0]:.3f} became {damaged[0, 0]:.1e}")
wanted = build(as_onnx(MLP.replace("TYPE", "float"), weights | {"w1": damaged}))
print("a build from the damaged weights gives the same file:", broken == wanted)

# %% [markdown]
# No: byte for byte, the damaged file is the plan of another network. So a plan holds no checksum of its weights. Keep
# one beside each plan you ship.

# %%
notebook.record(nodes=len(operators), layers_fp32=len(minilm_layers), layers_fp16=len(minilm16_layers))
