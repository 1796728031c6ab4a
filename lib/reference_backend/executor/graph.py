"""The decoder as an ONNX graph, written from an engine's config.json and the names of its tensors when it is loaded.

The graph says where in rank0.engine each weight lies; ONNX Runtime maps it from there. GroupQueryAttention rotates and
updates the caller's key and value buffers in place. Logits are computed only where somebody wants them.

Inputs:  input_ids int64 [B, S], attention_mask int64 [B, T], logit_rows int64 [N],
         prompt_places int64 [M, 2], prompt_rows float32 [M, hidden]: embeddings that replace those of ids at (b, s),
         past_key_values.L.key|value float32 [B, kv_heads, P, head_size]
Outputs: logits float32 [N, vocab], present.L.key|value float32 [B, kv_heads, P', head_size]
`logit_rows` holds flat positions b * S + s. A row shorter than the others is padded on the right of its mask.

Several ranks (tensor parallelism) run as one graph: the pieces of column-parallel layers are put side by side, the
partial sums of row-parallel ones are added, as all-gather and all-reduce do between GPUs.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from reference_backend.executor.quantize import BLOCK
from reference_backend.executor.rank_files import Tensor

# 4: the kernel rounds each block of 32 activations to int8, several times faster than float products on a CPU. One row
# alone it adds up otherwise than several: SmolLM2's logits, which span 40, then differ by about 1 (test_graph: <= 1.5).
ACCURACY = 4
_MICROSOFT = "com.microsoft"
_TYPES = {"F32": TensorProto.FLOAT, "F16": TensorProto.FLOAT16, "BF16": TensorProto.BFLOAT16, "U8": TensorProto.UINT8}
_EMBEDDING, _HEAD = "transformer.vocab_embedding", "lm_head"


class Decoder:
    """model: pretrained_config of the engine. ranks: for each, {name: tensor}, all files in one folder."""

    def __init__(self, model: Mapping[str, Any], ranks: Sequence[Mapping[str, Tensor]], max_seq_len: int) -> None:
        self._model, self._ranks, self._max_seq_len = model, ranks, max_seq_len
        self._tp = len(ranks)
        self._heads, self._kv_heads = model["num_attention_heads"], model["num_key_value_heads"]
        self._size, self._rotary = model["head_size"], model["position_embedding_type"] == "rope_gpt_neox"
        self._nodes: list[Any] = []
        self._weights: dict[str, Any] = {}
        self._cast: dict[str, str] = {}  # a weight of 16 bits: the same in float32
        self._means: dict[str, str] = {}  # an input of four-bit products: the same with the means of its blocks

    def graph(self) -> ModelProto:
        """What ONNX Runtime loads."""
        model, layers = self._model, self._model["num_hidden_layers"]
        self._lengths()
        x, delta, bias = self._embed(), "", ""
        for n in range(layers):
            layer = f"transformer.layers.{n}"
            normed, x = self._norm(x, delta, bias, f"{layer}.input_layernorm")
            delta, bias = self._row(self._attend(normed, n), f"{layer}.attention.dense")
            normed, x = self._norm(x, delta, bias, f"{layer}.post_layernorm")
            delta, bias = self._row(self._mlp(normed, f"{layer}.mlp"), f"{layer}.mlp.proj")
        normed, _ = self._norm(x, delta, bias, "transformer.ln_f")
        self._logits(normed)

        def info(name: str, *shape: Any, kind: int = TensorProto.FLOAT) -> Any:
            return helper.make_tensor_value_info(name, kind, shape)

        caches = [f"{n}.{kind}" for n in range(layers) for kind in ("key", "value")]
        cache = "batch", self._kv_heads, "cache_positions", self._size
        inputs = [
            info("input_ids", "batch", "tokens", kind=TensorProto.INT64),
            info("attention_mask", "batch", "total_tokens", kind=TensorProto.INT64),
            info("logit_rows", "logit_count", kind=TensorProto.INT64),
            info("prompt_places", "prompt_count", 2, kind=TensorProto.INT64),
            info("prompt_rows", "prompt_count", model["hidden_size"]),
            *(info(f"past_key_values.{name}", *cache) for name in caches),
        ]
        outputs = [
            info("logits", "logit_count", model["vocab_size"]),
            *(info(f"present.{name}", *cache) for name in caches),
        ]
        graph = helper.make_graph(self._nodes, "decoder", inputs, outputs, list(self._weights.values()))
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    # --- pieces of a transformer

    def _lengths(self) -> None:
        """What GroupQueryAttention asks for: the last position of each row, and the length of the longest."""
        tokens = self._add("ReduceSum", ["attention_mask", self._constant("one", np.array([1]))], "tokens", keepdims=0)
        last = self._add("Sub", [tokens, self._constant("one", np.array([1]))], "last")
        self._add("Cast", [last], "last_position", to=TensorProto.INT32)
        total = self._add("Gather", [self._add("Shape", ["attention_mask"]), self._constant("second", np.array(1))])
        self._add("Cast", [total], "total_length", to=TensorProto.INT32)
        if self._rotary:
            cos, sin = rotary_tables(self._model, self._max_seq_len)
            self._constant("cos", cos), self._constant("sin", sin)

    def _embed(self) -> str:
        """[B, S, hidden]: of a table that every rank has whole, or a part each."""
        name = f"{_EMBEDDING}.weight"
        parts = self._ranks if self._model.get("use_parallel_embedding") else self._ranks[:1]
        table = [self._weight(name, rank, to_float=False) for rank in range(len(parts))]
        if (scales := f"{_EMBEDDING}.weights_scaling_factor") in self._ranks[0]:
            flat = self._constant("table_shape", np.array([0, -1]))
            codes = self._add("Reshape", [table[0], flat], "table")
            x = self._add(
                "GatherBlockQuantized", [codes, "input_ids", self._weight(scales)],
                domain=_MICROSOFT, bits=8, block_size=BLOCK, gather_axis=0, quantize_axis=1,
            )  # fmt: skip
        else:
            x = self._add("Gather", [self._concat(table, axis=0), "input_ids"])
            if self._ranks[0][name].dtype != "F32":
                x = self._add("Cast", [x], to=TensorProto.FLOAT)
        x = self._add("ScatterND", [x, "prompt_places", "prompt_rows"])
        if self._model["architecture"].startswith("Gemma"):
            scale = np.float32(math.sqrt(self._model["hidden_size"]))
            x = self._add("Mul", [x, self._constant("embedding_scale", scale)])
        if self._model["position_embedding_type"] == "learned_absolute":
            x = self._add("Add", [x, self._positions()])
        return x

    def _positions(self) -> str:
        """[B, S, hidden] of the learned positions: the last S of each row."""
        zero, one = self._constant("zero", np.array(0)), self._constant("second", np.array(1))
        new = self._add("Gather", [self._add("Shape", ["input_ids"]), one])
        steps = self._add("Sub", [self._add("Range", [zero, new, one]), new])  # -S … -1
        ends = self._add("Unsqueeze", ["tokens", self._constant("one", np.array([1]))])
        at = self._add("Add", [ends, steps])
        return self._add("Gather", [self._weight("transformer.position_embedding.weight"), at])

    def _norm(self, x: str, delta: str, bias: str, name: str) -> tuple[str, str]:
        """The normalised x + delta + bias, and that sum. LayerNorm where the norm has a bias, else RMSNorm."""
        gains = [self._weight(f"{name}.{kind}") for kind in ("weight", "bias") if f"{name}.{kind}" in self._ranks[0]]
        kind = "LayerNormalization" if len(gains) > 1 else "SimplifiedLayerNormalization"
        epsilon = float(self._model["norm_epsilon"])
        if not delta:
            return self._add(kind, [x, *gains], name, axis=-1, epsilon=epsilon), x
        inputs, total = [x, delta, *gains, *([bias] if bias else [])], f"{name}.sum"
        return self._add(f"Skip{kind}", inputs, name, "", "", total, domain=_MICROSOFT, epsilon=epsilon), total

    def _attend(self, x: str, n: int) -> list[str]:
        """The attended heads [B, S, heads * head_size], cut into the pieces of the ranks."""
        name = f"transformer.layers.{n}.attention"
        qkv = [self._column(x, f"{name}.qkv", rank) for rank in range(self._tp)]
        if self._tp == 1:
            query, key, value = qkv[0], "", ""
        else:
            query, key, value = self._whole_heads(qkv)
        past = [f"past_key_values.{n}.{kind}" for kind in ("key", "value")]
        inputs = [query, key, value, *past, "last_position", "total_length", *(["cos", "sin"] if self._rotary else [])]
        present = [f"present.{n}.{kind}" for kind in ("key", "value")]
        heads = {"num_heads": self._heads, "kv_num_heads": self._kv_heads, "do_rotary": int(self._rotary)}
        scale = self._size**-0.5
        self._add("GroupQueryAttention", inputs, name, *present, domain=_MICROSOFT, scale=scale, **heads)
        return self._split(name, [self._heads * self._size // self._tp] * self._tp)

    def _whole_heads(self, qkv: list[str]) -> tuple[str, str, str]:
        """Query, key and value heads of all ranks. Neighbours that share a KV head both have it: it counts once."""
        ranks, shared = self._tp, max(1, self._tp // self._kv_heads)
        kv = self._kv_heads * shared // ranks * self._size
        pieces = [self._split(piece, [self._heads // ranks * self._size, kv, kv]) for piece in qkv]
        query = self._concat([piece[0] for piece in pieces])
        return query, *(self._concat([piece[at] for piece in pieces[::shared]]) for at in (1, 2))

    def _mlp(self, x: str, name: str) -> list[str]:
        """Of each rank, its piece [B, S, intermediate_size / ranks]."""
        found = []
        for rank in range(self._tp):
            inner = self._activate(self._column(x, f"{name}.fc", rank))
            if f"{name}.gate.weight" in self._ranks[0]:
                inner = self._add("Mul", [inner, self._column(x, f"{name}.gate", rank)])
            found.append(inner)
        return found

    def _activate(self, x: str) -> str:
        kind = self._model["hidden_act"]
        if kind == "relu":
            return self._add("Relu", [x])
        if kind in ("silu", "quick_gelu"):
            return self._add("QuickGelu", [x], domain=_MICROSOFT, alpha=1.0 if kind == "silu" else 1.702)
        return self._add("FastGelu", [x], domain=_MICROSOFT)  # TensorRT-LLM takes the tanh formula for every gelu

    def _logits(self, x: str) -> None:
        flat = self._add("Flatten", [x], axis=2)
        rows = self._add("Gather", [flat, "logit_rows"])
        name = _HEAD if f"{_HEAD}.weight" in self._ranks[0] else _EMBEDDING
        if self._tp == 1:
            self._product(rows, name, 0, "logits")
            return
        pieces = self._concat([self._product(rows, name, rank) for rank in range(self._tp)])
        ends = [np.array([number]) for number in (0, self._model["vocab_size"], 1)]  # without the padding
        self._add("Slice", [pieces, *(self._constant(f"end{at}", end) for at, end in enumerate(ends))], "logits")

    # --- linear layers

    def _column(self, x: str, name: str, rank: int) -> str:
        """This rank's outputs of a column-parallel layer, with its piece of the bias."""
        found = self._product(x, name, rank)
        if f"{name}.bias" in self._ranks[rank]:
            found = self._add("Add", [found, self._weight(f"{name}.bias", rank)])
        return found

    def _row(self, pieces: list[str], name: str) -> tuple[str, str]:
        """The added products of a row-parallel layer, and its bias, which is added once; "" without."""
        found = self._product(pieces[0], name, 0)
        for rank in range(1, self._tp):
            found = self._add("Add", [found, self._product(pieces[rank], name, rank)])
        return found, self._weight(f"{name}.bias") if f"{name}.bias" in self._ranks[0] else ""

    def _product(self, x: str, name: str, rank: int, output: str = "") -> str:
        """x [..., in] times the weight [out, in] of one rank."""
        weight = self._ranks[rank][f"{name}.weight"]
        if weight.dtype != "U8":
            inputs = [x, self._weight(f"{name}.weight", rank)]
            return self._add("FusedMatMul", inputs, output, domain=_MICROSOFT, transB=1)
        out, blocks, width = weight.shape
        bits, inner = 8 * width // BLOCK, self._inner(name)
        inputs = [x, self._weight(f"{name}.weight", rank)]
        if f"{name}.per_channel_scale" in self._ranks[rank]:
            column = self._add("Reshape", [self._weight(f"{name}.per_channel_scale", rank),
                                           self._constant("column", np.array([-1, 1]))])  # fmt: skip
            shape = self._constant(f"{out}x{blocks}", np.array([out, blocks]))
            inputs.append(self._add("Expand", [column, shape]))
        else:
            inputs.append(self._weight(f"{name}.weights_scaling_factor", rank))
        if f"{name}.zero" in self._ranks[rank]:
            inputs[0], inner = self._with_means(x), inner + inner // BLOCK
            inputs.append(self._weight(f"{name}.zero", rank))
        sizes = {"K": inner, "N": out, "bits": bits, "block_size": BLOCK, "accuracy_level": ACCURACY}
        return self._add("MatMulNBits", inputs, output, domain=_MICROSOFT, **sizes)

    def _inner(self, name: str) -> int:
        """How many inputs one rank's part of a layer has."""
        if name.endswith("attention.dense"):
            return self._heads * self._size // self._tp
        return self._model["intermediate_size"] // self._tp if name.endswith("mlp.proj") else self._model["hidden_size"]

    def _with_means(self, x: str) -> str:
        """x and behind it the mean of each of its blocks of 32 (`quantize.four_bits`)."""
        if x not in self._means:  # shared by the products that read the same input
            shape = self._constant("block_shape", np.array([0, 0, -1, BLOCK]))
            blocks = self._add("Reshape", [x, shape])
            means = self._add("ReduceMean", [blocks, self._constant("block_axis", np.array([3]))], keepdims=0)
            self._means[x] = self._concat([x, means])
        return self._means[x]

    # --- nodes and weights

    def _add(self, kind: str, inputs: list[str], output: str = "", *more: str, domain: str = "", **given: Any) -> str:
        """Appends a node and returns the name of its first output."""
        output = output or f"{kind}.{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [output, *more], output, domain=domain, **given))
        return output

    def _concat(self, parts: list[str], axis: int = -1) -> str:
        return parts[0] if len(parts) == 1 else self._add("Concat", parts, axis=axis)

    def _split(self, whole: str, sizes: list[int]) -> list[str]:
        if len(sizes) == 1:
            return [whole]
        outputs = [f"{whole}.{at}" for at in range(len(sizes))]
        self._add("Split", [whole, self._constant(f"sizes {sizes}", np.array(sizes))], *outputs, axis=-1)
        return outputs

    def _constant(self, name: str, array: Any) -> str:
        self._weights.setdefault(name, numpy_helper.from_array(np.asarray(array), name))
        return name

    def _weight(self, name: str, rank: int = 0, *, to_float: bool = True) -> str:
        """A tensor of a rank's file, in float32 if it is one of 16 bits (cast once, when the graph is loaded)."""
        tensor, here = self._ranks[rank][name], f"{rank}.{name}"
        if here not in self._weights:
            self._weights[here] = TensorProto(
                name=here, dims=tensor.shape, data_type=_TYPES[tensor.dtype], data_location=TensorProto.EXTERNAL
            )
            place = {"location": tensor.file.name, "offset": tensor.offset, "length": tensor.length}
            for key, value in place.items():
                self._weights[here].external_data.add(key=key, value=str(value))
        if tensor.dtype not in ("F16", "BF16") or not to_float:
            return here
        if here not in self._cast:
            self._cast[here] = self._add("Cast", [here], to=TensorProto.FLOAT)
        return self._cast[here]


def rotary_tables(model: Mapping[str, Any], positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine, float32 [positions, head_size / 2], of a pretrained_config, as transformers computes them: the
    first half of a head turns with the second (Su et al., 2021)."""
    size = model["head_size"]
    powers = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    frequencies = 1 / np.power(np.float32(model["rotary_base"]), powers)
    frequencies = _scaled(frequencies, model.get("rotary_scaling")).astype(np.float32)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
    return np.cos(angles), np.sin(angles)


def _scaled(frequencies: np.ndarray, scaling: Mapping[str, Any] | None) -> np.ndarray:
    """linear: all waves get longer by `factor`. llama3: the long ones do, the short ones stay, those between blend."""
    if not scaling:
        return frequencies
    if (scaling.get("type") or scaling["rope_type"]) == "linear":
        return frequencies / scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)  # in the original context
    keep = ((turns - low) / (high - low)).clip(0, 1)
    return keep * frequencies + (1 - keep) * frequencies / scaling["factor"]
