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
# You build real TensorRT engines on this machine with TensorRT's own Python API, open the files, and see what was
# compiled, where the weights are and why another GPU refuses them.
#
# After this notebook you can
#
# - drive `Builder`, `OnnxParser`, `IBuilderConfig`, `Runtime` and `Refitter` yourself
# - read from the list of layers what was fused, in fp32 and in fp16
# - find weights in an engine file, and say when new weights need a new build
# - say from the first bytes of the file where it will run
# - tell a checkpoint from an engine
#
# **Time:** 45 minutes (last run: 31 s) · **Lanes:** embedded, trtllm · **Needs:** the weights of MiniLM and SmolLM2
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

from engines.convert import convert
from servinglab import assets, notebook
from servinglab.checks import check
from servinglab.figures import engines as figures
from servinglab.figures.style import show
from servinglab.root import find_root

# %% tags=["parameters"]
lane: str = "auto"  # "embedded", "trtllm" or "auto"
width: int = 64  # width of the small network; a multiple of 32
longest: int = 256  # most tokens in a sentence for the encoder, 32 to 512
seed: int = 0  # seed of the small networks' weights

# %% [markdown]
# `tensorrt_rtx` is **TensorRT-RTX**, NVIDIA's TensorRT for the GPUs of a PC. It has the same interface as the TensorRT
# under TensorRT-LLM (there you write `import tensorrt as trt`), comes as a plain Python package, and builds without a
# GPU. Where the two differ, the text says so.

# %%
lane = notebook.begin("01", lane, seed=seed, tensorrt_rtx=trt.__version__)
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## 1 A network is a list of operations
#
# TensorRT reads **ONNX**: a file with a graph of operations and the weights. Here is a small one, written as text. Four
# *nodes*: a matrix product, a bias, a ReLU, and a second product.

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


# %% [markdown]
# The weights are random numbers, drawn with a seed, so that you can draw others later.

# %%
def draw(seed):
    rng = np.random.default_rng(seed)
    shapes = {"w1": (width, width), "b1": (width,), "w2": (width, 10)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


weights = draw(seed)
mlp_onnx = as_onnx(MLP.replace("TYPE", "float"), weights)
print("the ONNX file has", mlp_onnx.ByteSize(), "bytes")

# %% [markdown]
# Nearly all of those bytes are weights: four bytes for each number. The graph itself needs a few hundred.
#
# What does the network answer to a random input? ONNX Runtime computes it on the CPU. An engine must give the same.

# %%
x = np.random.default_rng(99).standard_normal((4, width)).astype(np.float32)
session = onnxruntime.InferenceSession(mlp_onnx.SerializeToString(), providers=["CPUExecutionProvider"])
expected = session.run(None, {"x": x})[0]
print("answer of shape", expected.shape)


# %% [markdown]
# ## 2 Build it
#
# An **engine** is this network, prepared for a GPU. Its file is called a **plan**. First a logger. TensorRT keeps one
# for the whole process and tells it everything, so ours keeps the lines.

# %%
class Log(trt.ILogger):
    def __init__(self):
        super().__init__()
        self.lines = []

    def log(self, severity, text):
        self.lines.append(f"{severity.name} {text}")


log = Log()

# %% [markdown]
# The rest is the same in every TensorRT program: a *builder* makes an empty *network*, a *parser* fills it from ONNX,
# a *config* says how to build, and the builder writes the plan. **Predict:** is the plan smaller than the ONNX file,
# as large, or larger?

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
# The plan is larger. It holds everything that the ONNX file holds, and something else. Section 3 looks for it.
#
# Now the layers. A layer of an engine is one piece of work for the GPU: it reads its inputs from memory, computes,
# and writes its output back. TensorRT may put several nodes into one layer. That is a **fusion**.
#
# **Exercise 01.1** (easy, 3 minutes) Which of the four nodes share a layer? Replace `None` by a list of lists of their
# names. With no fusion at all it would be `[["dense_1"], ["bias_1"], ["relu_1"], ["dense_2"]]`.
#
# <details><summary>Hint</summary>A result that is still on the chip can be changed before it is written to
# memory. Which operations need only the number that they change?</details>

# %% tags=["exercise:01.1"]
my_layers = None  # a list of lists of "dense_1", "bias_1", "relu_1", "dense_2"


# %% [markdown]
# The log ends with the list of layers: a name, a type, and the ONNX nodes that the layer computes.

# %% tags=["nbval-check-output"]
def layers():
    """The layers of the last build, one line each."""
    listed = next(line for line in log.lines if line.startswith("VERBOSE Layers:"))
    return re.findall("^Name: .*, LayerType: .*$", listed, re.MULTILINE)


for layer in layers():
    print(layer.partition(", Inputs")[0], "|", *re.findall(r"ONNX Layer: (\w+)", layer))

# %% tags=["check:01.1", "nbval-check-output"]
check("01.1", my_layers)

# %% [markdown]
# Four nodes became two layers. The bias and the ReLU work on numbers that the product has just computed, so they are
# done before those numbers leave the chip. That saves two trips to memory and back.
#
# The usual way to this list is the *engine inspector* of a loaded engine. A `Runtime` loads it, and for that there must
# be a GPU.

# %%
log.lines.clear()
engine = trt.Runtime(log).deserialize_cuda_engine(mlp)
if engine:
    inspector = engine.create_engine_inspector()
    print(inspector.get_engine_information(trt.LayerInformationFormat.ONELINE))
else:
    print(*(line for line in log.lines if line.startswith("ERROR")), sep="\n")

# %% [markdown]
# Building needs no GPU, running does. "CUDA driver version is insufficient" is what the library says on a machine that
# has no driver at all. Where the engine loads, this cell runs it: an *execution context*, the addresses of input and
# output, one call. The call puts the work into a *stream*, a queue of the GPU: one does its work in order, two may
# overlap. In Triton each instance of a model has [a stream of its
# own](https://github.com/triton-inference-server/backend/blob/main/include/triton/backend/backend_model_instance.h).

# %%
if engine:
    buffers = {"x": torch.from_numpy(x).cuda(), "y": torch.empty(4, 10, device="cuda")}
    context = engine.create_execution_context()
    for name, tensor in buffers.items():
        context.set_tensor_address(name, tensor.data_ptr())
    context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
    print("largest difference from ONNX Runtime:", np.abs(buffers["y"].cpu().numpy() - expected).max())
else:
    print("Not run: no GPU here loads this engine.")


# %% [markdown]
# More builds follow, so the lines above become a function. `options` will change the config. A build that fails
# returns `None`; the reason is in the log.

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


def problem():
    return next(line for line in log.lines if line.split()[0].endswith("ERROR"))


# %% [markdown]
# ## 3 Open the file
#
# A plan begins with a header. NVIDIA documents none of it, so what follows was found by looking, and holds for this
# version. (`trtexec --getPlanVersionOnly` reads the version from the same four bytes.)

# %% tags=["nbval-check-output"]
tag, _, count, size, *version = struct.unpack_from("<4sIQQ4B", mlp)
print("tag        ", tag, "=", int.from_bytes(tag, "little"))
print("size       ", size, "bytes, as the file:", size == len(mlp))
print("version    ", ".".join(map(str, version)), "from the bytes", version)


# %% [markdown]
# Eight bytes further on, one bit for each kind of GPU. And behind the header comes a table of sections: a name, written
# backwards, and where it begins and how long it is.

# %% tags=["nbval-check-output"]
def targets(plan):
    kinds = [name for name in trt.ComputeCapability.__members__ if name.startswith("SM")]
    return [kind for bit, kind in enumerate(kinds) if plan[32] >> bit & 1]


def sections(plan):
    rows = [struct.unpack_from("<8sQQ", plan, 64 + 24 * row) for row in range(plan[8])]
    return {name.rstrip(b"\0")[::-1].decode(): plan[start : start + length] for name, start, length in rows}


print("runs on", *targets(mlp))
print({name: f"{len(part)} bytes" for name, part in sections(mlp).items()})

# %% [markdown]
# `WGHT` sounds like weights. **Predict:** are they in there as you gave them, compressed, or already turned into
# something else? Search the file for the bytes of each array.

# %% tags=["nbval-check-output"]
for name, array in weights.items():
    print(f"{name} {str(array.shape):10} {array.nbytes:6} bytes, found at byte {mlp.find(array.tobytes())}")

# %% [markdown]
# All three, float by float, in `WGHT`. So **weights are inside the engine**. And the other section?

# %% tags=["nbval-check-output"]
program = sections(mlp)["ENGN"].decode("latin-1")
for line in program.splitlines():
    if line.strip().startswith(("runtime_fusion=", "fully_connected=", "add=", "relu=")):
        print(line.strip()[:100])

# %% [markdown]
# A program in plain text: which operation comes next, on which tensors. The first two lines are the two layers. The
# other three say what happens inside the fused one. Is there machine code too? Compiled code for Linux or for a GPU
# would begin with the letters `ELF`.

# %% tags=["nbval-check-output"]
print("pieces of machine code:", mlp.count(b"\x7fELF"))

# %% [markdown]
# None. **Predict:** take both products away. Only `Add` and `Relu` stay, with one bias as the only weights. Is that
# plan smaller?

# %% tags=["nbval-check-output"]
TINY = "tiny (float[4, WIDTH] x) => (float[4, WIDTH] y) { b = Add(x, b1) y = Relu(b) }".replace("WIDTH", str(width))
tiny_onnx = as_onnx(TINY, {"b1": weights["b1"]})
tiny = build(tiny_onnx)
print("with products:", len(mlp), "bytes · without:", len(tiny), "bytes")

# %% [markdown]
# Several times larger! A **kernel** is a function that runs on the GPU. For a product the plan names the operation,
# and the library brings the kernel. For everything else it writes one, in CUDA C++, and puts the source into the plan
# together with the helper functions it needs. This is how it begins:

# %% tags=["nbval-check-output"]
program, kernel = sections(tiny)["ENGN"].decode("latin-1"), 'extern "C" __global__'
print("kernels written:", program.count(kernel))
print(program[program.index(kernel) :].partition("{")[0])

# %% [markdown]
# So **this is what is compiled**: the graph becomes a list of layers, and layers become kernels. TensorRT-RTX does it
# in two steps. The build writes source; the machine with the GPU compiles that when it loads the plan.
#
# The TensorRT under TensorRT-LLM does both steps at build time. It runs candidate kernels on the GPU, keeps the
# fastest and stores machine code. So it needs the GPU to build, and its plans are tied to that GPU more closely.
#
# ## 4 New weights
#
# Suppose the network is trained further: same shapes, other numbers. **Predict:** must you build again?
#
# You know where the weights are. Draw others, write them over the old ones, byte for byte. How many bytes will differ
# from a plan that is *built* from the new weights?

# %% tags=["nbval-check-output"]
others, patched = draw(seed + 1), mlp
for name, array in weights.items():
    patched = patched.replace(array.tobytes(), others[name].tobytes())
rebuilt = build(as_onnx(MLP.replace("TYPE", "float"), others))
different = sum(mine != theirs for mine, theirs in zip(patched, rebuilt, strict=True))
print(f"patched: {len(patched)} bytes, {different} of them different from a new build")

# %% [markdown]
# None. The program does not depend on the numbers at all. New weights of the same shapes need no compiler.
#
# Do not make a habit of it: a builder may rearrange weights. Here is a convolution with a batch normalisation behind
# it. **Predict:** which of its five arrays will you find?

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

# %% [markdown]
# Not one. Two guesses. The GPU may want the channels last, so the kernel's axes were moved. And a batch normalisation
# is a multiplication and an addition, once its constants are worked out:
#
# $$b = s \cdot a + (\beta - s \cdot \mu) \quad\text{with}\quad s = \mathrm{scale} / \sqrt{\mathrm{var} + 10^{-5}}$$

# %% tags=["nbval-check-output"]
print("kernel with its channels last:", parts["w"].transpose(0, 2, 3, 1).tobytes() in conv)
s = parts["scale"] / np.sqrt(parts["var"] + np.float32(1e-5))
wanted = parts["beta"] - s * parts["mean"]
stored = np.frombuffer(sections(conv)["WGHT"], np.float32)
print("every beta - s * mean is stored:", bool(np.abs(stored[:, None] - wanted).min(axis=0).max() < 1e-5))

# %% [markdown]
# Both guesses hold. Five arrays became three, and one of those has its axes in another order. TensorRT knows where each
# number went, so the official way is its **refitter**: build with the flag `REFIT`, load the engine, give it new
# weights by name.

# %%
refittable = build(mlp_onnx, lambda builder, config: config.set_flag(trt.BuilderFlag.REFIT))
if refittable:
    engine = trt.Runtime(log).deserialize_cuda_engine(refittable)
    refitter = trt.Refitter(engine, log)
    for name, array in others.items():
        refitter.set_named_weights(name, array)
    print(refitter.get_all_weights(), "refitted:", refitter.refit_cuda_engine())
else:
    print(problem())

# %% [markdown]
# Without a GPU that it supports, the build fails: to find out where each weight goes, this library must compile during
# the build. So the lines of the refitter ran on no machine of ours. A second flag, `STRIP_PLAN`, leaves the weights out
# of the file altogether, to be filled in later by the same refitter.
#
# ## 5 fp16
#
# Half precision stores a number in two bytes. Old guides switch it on with a builder flag. **Predict:** is there one?

# %% tags=["nbval-check-output"]
print([flag for flag in trt.BuilderFlag.__members__ if "16" in flag or flag.startswith(("REFIT", "STRIP"))])

# %% [markdown]
# The refit flags are there, none for fp16. Networks are *strongly typed*: the types in the ONNX file decide. (In
# TensorRT-LLM the converter's `--dtype` does.) So write the network with `float16`. **Predict:** which of the two
# sections shrinks, and by how much?

# %% tags=["nbval-check-output"]
halves = {name: array.astype(np.float16) for name, array in weights.items()}
mlp16 = build(as_onnx(MLP.replace("TYPE", "float16"), halves))
for name in ("ENGN", "WGHT"):
    print(f"{name}: fp32 {len(sections(mlp)[name]):6} bytes, fp16 {len(sections(mlp16)[name]):6} bytes")
print("layers:", *(re.findall(r"ONNX Layer: (\w+)", layer) for layer in layers()))

# %% [markdown]
# The weights shrink to half (and a little padding), the program stays. Here even the fusions are the same. That changes
# in section 7.
#
# ## 6 Sizes that are not known yet
#
# A batch may have one sentence or sixteen, short or long. In ONNX such a size is a letter. Here is a small attention:
# every token is compared with every other.

# %% tags=["nbval-check-output"]
ATTENTION = """attention (float[B, T, 64] x) => (float[B, T, 64] y) {
    t = Transpose<perm = [0, 2, 1]>(x)
    s = MatMul(x, t)
    p = Softmax(s)
    y = MatMul(p, x)
}"""
attention = as_onnx(ATTENTION, {})
print(build(attention))
print(problem())


# %% [markdown]
# TensorRT wants to know the range. An **optimisation profile** gives three shapes for each input: the smallest (*min*),
# the one to optimise for (*opt*), and the largest (*max*).
#
# **Predict:** one profile ends at 64 sentences of `longest` tokens, one at a quarter of the tokens, and one is like the
# first with its opt raised to the max. Which of them needs far less memory for what lies between the layers?

# %%
def profile(opt, largest, names=("x",), rest=(64,)):
    def options(builder, config):
        made = builder.create_optimization_profile()
        for name in names:
            made.set_shape(name, (1, 1, *rest), (*opt, *rest), (*largest, *rest))
        config.add_optimization_profile(made)

    return options


def activations():
    """Megabytes between the layers of the last build."""
    return int(re.findall(r"Total Activation Memory: (\d+) bytes", "\n".join(log.lines))[-1]) / 1e6


for opt, largest in (((8, 32), (64, longest)), ((8, 8), (64, longest // 4)), ((64, longest), (64, longest))):
    build(attention, profile(opt, largest))
    print(f"opt {str(opt):9} max {str(largest):9} {activations():6.1f} MB")

# %% [markdown]
# The max decides; a larger opt costs little. About 8 MB are always there. Above that, a quarter of the tokens
# needs far less than a quarter, because attention keeps a number for every *pair* of tokens. Larger limits cost memory
# from the first request on, used or not: remember that when `trtllm-build` asks for `--max_batch_size`,
# `--max_input_len` and `--max_num_tokens`.
#
# ## 7 A real encoder
#
# MiniLM turns a sentence into numbers. It has six encoder layers like those of larger models. First PyTorch writes its
# graph as ONNX, with two open sizes: how many sentences, how many tokens.

# %%
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
# The same up to rounding. **Predict:** the graph has hundreds of nodes. How many layers has the engine?

# %% tags=["nbval-check-output"]
sizes = profile((8, 32), (16, longest), inputs, ())
minilm = build(minilm_onnx, sizes)
minilm_layers, minilm_memory = layers(), activations()
print("ONNX nodes ", len(operators), "· most of them:", Counter(operators.values()).most_common(4))
kinds = Counter(re.search(r"LayerType: (\w+)", layer)[1] for layer in minilm_layers)
print("engine     ", len(minilm_layers), "layers:", dict(kinds))

# %% [markdown]
# Constants and most of the arithmetic on shapes are gone; the rest was fused. `gemm` is a matrix product, `kgen` a
# generated kernel, `runtime_fusion` a product with something fused behind it.
#
# Then fp16. A converter rewrites every weight and type in the ONNX file. **Predict:** the same layers, as with the
# small network?

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    half_onnx = convert_float_to_float16(minilm_onnx)
minilm16 = build(half_onnx, sizes)
minilm16_layers = layers()
print(f"layers: fp32 {len(minilm_layers)} · fp16 {len(minilm16_layers)}")
print(f"between the layers: fp32 {minilm_memory:.1f} MB · fp16 {activations():.1f} MB")

# %% [markdown]
# A third fewer layers, and a quarter of the memory in between. What happened? Look at one of the six encoder layers.
# Each row of the figure is one layer of the engine.

# %%
one = {name: operator for name, operator in operators.items() if "/layer.1/" in name}
rows = {name: [layer for layer in found if one.keys() & set(re.findall(r"ONNX Layer: ([^\]]+)", layer))]
        for name, found in (("fp32", minilm_layers), ("fp16", minilm16_layers))}  # fmt: skip
counts = f"{len(rows['fp32'])} engine layers in fp32, {len(rows['fp16'])} in fp16"
show(figures.fusions(rows, one), f"One encoder layer: {len(one)} ONNX nodes, {counts}",
     f"{len(one)} nodes of an encoder layer became {counts}; fp16 has attention in one")  # fmt: skip

# %% [markdown]
# Not every node has a box: constants and arithmetic on shapes leave no work for the GPU. And a node that several
# layers work for has several boxes.
#
# Row 5 of fp16 is the whole attention: both products and the softmax between them, in one kernel. The table of all
# pairs of tokens never goes to memory, which is the idea of [FlashAttention](https://arxiv.org/abs/2205.14135). In fp32
# the builder used no such kernel: there, grey boxes copy and cut tensors *for* a product. So fp16 saves more than the
# bytes of the weights. (TensorRT-LLM brings such kernels of its own for reading a prompt: `--context_fmha` of
# `trtllm-build`, on by default. [Its page](https://nvidia.github.io/TensorRT-LLM/advanced/gpt-attention.html).)
#
# What does it cost? ONNX Runtime can compute the fp16 graph on the CPU, slowly. The numbers tell how far half precision
# is off.

# %%
session = onnxruntime.InferenceSession(half_onnx.SerializeToString(), providers=["CPUExecutionProvider"])
hidden16 = session.run(None, feeds)[0].astype(np.float32)
cosine = (hidden * hidden16).sum(-1) / np.linalg.norm(hidden, axis=-1) / np.linalg.norm(hidden16, axis=-1)
print(f"largest difference {np.abs(hidden - hidden16).max():.1e}, smallest cosine {cosine.min():.6f}")

# %% [markdown]
# Harmless for this model: a cosine of 1 means the same direction.
#
# Row 1 fuses *three* products: query, key and value read the same input. **Predict:** a search for their three weights,
# transposed as ONNX wants them, finds all, or none?

# %% tags=["nbval-check-output"]
checkpoint = assets.resolve("minilm") / "model.safetensors"
tensors = load_file(checkpoint)
attention = "encoder.layer.1.attention.self."
query, key, value = (tensors[f"{attention}{name}.weight"].T for name in ("query", "key", "value"))
print("alone:", [array.tobytes() in minilm for array in (query, key, value)])
together = np.concatenate([value, key, query], axis=1)
print("side by side:", together.shape, "found:", together.tobytes() in minilm)

# %% [markdown]
# They were laid side by side, as one matrix of three times the width, in the order value, key, query. The layer's name
# says so, if you know how to read it:

# %% tags=["nbval-check-output"]
name = re.search("Name: (.*?), LayerType", rows["fp32"][0])[1]
print(*name.replace("/m/", "/").split("+"), sep="\n")

# %% [markdown]
# TensorRT-LLM does the same by hand: its converter writes one tensor `qkv`. You make it in notebook 02.
#
# ## 8 An operation that TensorRT does not know
#
# Suppose a model uses an operator of its own, say `Swiglu`. What does the parser say?

# %% tags=["nbval-check-output"]
odd = as_onnx("odd (float[4, 64] x) => (float[4, 64] y) { [gate] y = Swiglu(x) }", {})
network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
parser = trt.OnnxParser(network, log)
print("parsed:", parser.parse(odd.SerializeToString()))
error = parser.get_error(0)
print(error.node_name(), error.node_operator(), error.desc())

# %% [markdown]
# A **plugin** is the way out: a class in C++ or Python that tells TensorRT the shape of its output and launches a
# kernel of its own. The parser looks for one by the operator's name, and found none.
#
# TensorRT-LLM is full of them. `--gpt_attention_plugin` brings attention with a paged KV cache, which no ONNX operator
# describes; `--gemm_plugin` brings products from cuBLAS; `--nccl_plugin` sends numbers to other GPUs. A plan with
# plugins needs the same plugin library wherever it is loaded.

# %% [markdown]
# ## 9 What is a CUDA graph?
#
# A layer runs when the CPU tells the GPU so: a *launch*. It takes some microseconds of the CPU each time, whatever the
# layer does. When the layers are small, the GPU waits for the CPU. A **CUDA graph** records all launches of a pass once
# and repeats them with a single call. The shapes and the addresses must stay the same.
#
# The next cell measures it with plain PyTorch, where a CUDA device exists: as many small products as the engine has
# layers. **Predict:** how many times faster is the graph?

# %%
launches = len(minilm_layers)


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
# `torch.cuda.graph` records what runs inside of it; `replay` repeats the record. The last two lines show what
# `benchmarks/engine_on_gpu.py` measured on another machine.

# %%
if torch.cuda.is_available():
    y, w = torch.ones(8, 384, device="cuda"), torch.eye(384, device="cuda")
    chain(y, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain(y, w)
    print(f"one by one {microseconds(lambda: chain(y, w)):.0f} µs, as a graph {microseconds(graph.replay):.0f} µs")
else:
    print(f"Not measured here: there is no CUDA device. One pass of the encoder would be {launches} launches.")
there = json.loads((find_root() / "data" / "results" / "h100" / "engine.json").read_text())
print(f"{there['device']}: {there['launches']} launches one by one {there['one_by_one_us']} µs,",
      f"as a graph {there['graph_us']} µs")  # fmt: skip

# %% [markdown]
# The GPU did the same products both times. What the graph saved was the CPU's work for each launch.
#
# The graph is made by whoever runs the engine: a setting `cuda_graph_strategy` here, `cuda_graph_mode` in TensorRT-LLM.
#
# ## 10 Why an engine does not travel
#
# Show the runtime five files. **Predict:** which one will it accept, and which will it notice without reading all of
# it?

# %%
files = {"as built": mlp, "half of it": mlp[: len(mlp) // 2], "the ONNX file": mlp_onnx.SerializeToString()}
for name, content in files.items():
    log.lines.clear()
    accepted = trt.Runtime(log).deserialize_cuda_engine(content)
    print(f"--- {name}\n{'accepted' if accepted else problem()}")

# %% [markdown]
# On a machine without a GPU none is accepted, but the reasons differ. A cut file does not have the size that its
# header names. A foreign file lacks the first four bytes: `1953657974` is the number you saw in section 3.
#
# The other two are plans of another version: change one byte of the header. `get_engine_validity` reads only that
# header.

# %%
for name, minor in (("version 1.8", 8), ("version 1.6", 6)):
    runtime, other = trt.Runtime(log), mlp[:25] + bytes([minor]) + mlp[26:]
    log.lines.clear()
    print(name, runtime.get_engine_validity(other[: runtime.engine_header_size])[0])
    print(next(line for line in log.lines if "version" in line).encode("unicode_escape").decode())


# %% [markdown]
# Refused both ways, older *and* newer. (The library prints the version as raw bytes.) With TensorRT-LLM the same
# refusal reads `Serialization assertion stdVersionRead == kSERIALIZATION_VERSION failed`. It always means: build and
# run with the same version.
#
# The third reason is the GPU. A **compute capability** is the version of a GPU's instructions: 8.6 is an RTX 3090,
# 8.9 an RTX 4090, 12.0 an RTX 5090, 9.0 an H100. The config takes those to build for.

# %% tags=["nbval-check-output"]
def compute(*kinds):
    def options(builder, config):
        config.num_compute_capabilities = len(kinds)
        for index, kind in enumerate(kinds):
            config.set_compute_capability(kind, index)

    return options


CC = trt.ComputeCapability
for kinds in ((), (CC.SM80,), (CC.SM120,), (CC.SM80, CC.SM120)):
    plan = build(tiny_onnx, compute(*kinds))
    print(f"{'+'.join(kind.name for kind in kinds) or 'none given':11} {len(plan)} bytes, made for", *targets(plan))

# %% [markdown]
# The header lists what the plan is made for, and even a plan of two lines of arithmetic differs between two GPUs. An
# H100 (9.0) is in no list. What does the runtime say there? This is what it told `benchmarks/engine_on_gpu.py` about a
# plan that was built with no targets given:

# %%
print(there["runtime_says"])


# %% [markdown]
# **Exercise 01.2** (easy, 5 minutes) Write a function that says whether a plan runs. It gets the plan's version and
# targets, and the runtime's version and the GPU, like `runs_here("1.7.1", ("sm80", "sm86"), "1.7.1", "sm86")`.
#
# <details><summary>Hint</summary>Two conditions, and both must hold. Is a newer version the same version?</details>

# %% tags=["exercise:01.2"]
def runs_here(plan_version, plan_targets, runtime_version, gpu):
    """Returns True or False."""


# %% tags=["check:01.2", "nbval-check-output"]
check("01.2", runs_here)

# %% [markdown]
# ## 11 Floats or code?
#
# Three questions that people write down when they meet TensorRT-LLM. You have the evidence for two: weights *are*
# inside the engine (section 3), and what is compiled is the graph (sections 2, 3 and 7).
#
# The third: **is the output of `convert_checkpoint.py` floats or code?** Our own converter writes the same files, for
# SmolLM2, in half precision. Notebook 02 explains it.

# %%
made = convert(assets.resolve("smollm2"), folder / "converted")
for file in sorted(made.iterdir()):
    print(f"{file.name:18} {file.stat().st_size:10} bytes")


# %% [markdown]
# A `safetensors` file is: eight bytes that say how long the header is, the header in JSON, then the tensors. So count.
# **Predict:** how many bytes are left when you take header and tensors away?

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
# Nothing is left. **It is floats**, with names and shapes. No program, no kernel, nothing for a certain GPU. The code
# comes with `trtllm-build`, which reads this folder and writes an engine. The figure puts the files side by side.

# %%
held = {"MiniLM checkpoint": held_by(checkpoint)}
for name, plan in (("MiniLM plan, fp32", minilm), ("MiniLM plan, fp16", minilm16)):
    numbers = len(sections(plan)["WGHT"])
    held[name] = (numbers, len(plan) - numbers)
held["SmolLM2 converted"] = (floats, head)
title = f"A plan holds {held['MiniLM plan, fp32'][1] / 1e6:.1f} MB of program beside its numbers, a checkpoint none"
show(figures.sizes(held), title, "checkpoints are numbers and a few kB of names; plans hold megabytes of program too")

# %% [markdown]
# MiniLM's checkpoint holds a little more than its fp32 plan: a last layer for whole sentences, the *pooler*, that our
# graph does not use.

# %% [markdown]
# **Exercise 01.3** (medium, 5 minutes) An engine of the encoder is in service. Which of these changes need a new build?
# Put their names into a set.
#
# - `"weights"`: other numbers, same shapes, into a plan that was built with the flag `REFIT`
# - `"batch"`: 12 sentences at once, where the profile goes from 1 to 16
# - `"tokens"`: sentences of 400 tokens, where the profile ends at 256
# - `"precision"`: fp16 instead of fp32
# - `"library"`: the server gets a newer TensorRT
# - `"gpu"`: from an RTX 4090 to an RTX 5090, the plan built for `SM89`
# - `"tokenizer"`: another file that turns text into the same kind of token ids
#
# <details><summary>Hint</summary>What stands in the header, what did the profile fix, and what does an engine never
# see?</details>

# %% tags=["exercise:01.3"]
new_build = None  # a set of names, for example {"batch", "gpu"}

# %% tags=["check:01.3", "nbval-check-output"]
check("01.3", new_build)

# %% [markdown]
# ## Recap
#
# - A checkpoint is numbers with names. An engine is numbers, a program of fused layers, and a header.
# - Fusions save trips to memory. Which ones there are depends on the types: fp16 has attention in one kernel.
# - A profile's upper end decides the memory; its opt decides where it is fast.
# - Weights are in the plan. New ones of the same shape need no compiler, only a refit.
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
# Nobody can. The damaged file is, byte for byte, the plan of another network that somebody may have wanted, so there is
# no checksum of the weights in it. What a damaged *program* does is not shown here. Keep a checksum beside each plan
# that you ship.

# %%
notebook.record(nodes=len(operators), layers_fp32=len(minilm_layers), layers_fp16=len(minilm16_layers))
