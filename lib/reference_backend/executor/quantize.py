"""Quantize the weights of an executor graph: four bits in blocks of 32, eight bits for the vocabulary.

A block of 32 weights is stored as 16 levels between its smallest and its largest: w = scale * q + low. GGUF calls that
Q4_1 (and Q8_0 what the vocabulary gets), so a checkpoint that came from such a file keeps its weights; rounding it once
more to ONNX Runtime's usual grid, whose zero must fall on a level, changes a third of SmolLM2's greedy tokens.

MatMulNBits wants that zero on a level: w = scale * (q - zero) + rest, with a rest of at most half a step. Over a block,
the rest adds rest * 32 * mean(x) to a product. So the input gets one more column for each block, the mean of its 32
values, and the weights get the rests as further columns, in four bits like the others: one product, no second pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 32
_LEVELS = 15
# 4: the kernel rounds each block of 32 activations to int8, several times faster than float products on a CPU.
_ACCURACY = 4
_MICROSOFT = "com.microsoft"


def quantize_graph(source: Path, out: Path) -> None:
    """Write a four-bit copy of the float32 graph `source`/model.onnx as `out`/model.onnx and model.onnx.data."""
    import onnx_ir as ir

    model = ir.load(source / "model.onnx")  # its tensors stay on disk until they are read
    graph = model.graph
    means: dict[str, Any] = {}
    for node in list(graph):
        weight = node.inputs[1] if node.op_type == "MatMul" else None
        if weight is None or weight.const_value is None or weight.shape[0] % BLOCK:
            continue
        matrix = np.ascontiguousarray(weight.const_value.numpy().T)  # [N, K]
        if _is_head(node, graph):
            _quantize_head(graph, node, matrix)
        else:
            _quantize_body(graph, node, matrix, means)
        if not weight.uses():
            del graph.initializers[weight.name]
    graph.sort()  # a new node stands where it was made, the vocabulary's behind its first reader
    ir.save(model, out / "model.onnx", external_data="model.onnx.data")


def four_bits(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[N, K] float32 → codes uint8 [N, blocks, 32], scales float32 [N, blocks], zeros uint8 [N, blocks].

    blocks = K/32 of weights, then ceil(K/32/32) of rests: those times 32, for a column that holds a block's mean.
    """
    rows, columns = matrix.shape
    blocks = matrix.reshape(rows, columns // BLOCK, BLOCK)
    low = blocks.min(axis=-1)
    scales = (blocks.max(axis=-1) - low) / _LEVELS
    safe = np.where(scales > 0, scales, 1)
    codes = np.rint((blocks - low[..., None]) / safe[..., None]).clip(0, _LEVELS).astype(np.uint8)
    zeros = np.rint(-low / safe).clip(0, _LEVELS)
    rests = (low + scales * zeros) * BLOCK

    count = rests.shape[1]
    padded = np.zeros((rows, -(-count // BLOCK), BLOCK), np.float32)
    padded.reshape(rows, -1)[:, :count] = rests
    rest_scales = np.abs(padded).max(axis=-1) / (_LEVELS / 2)
    safe = np.where(rest_scales > 0, rest_scales, 1)
    rest_codes = np.rint(padded / safe[..., None] + 8).clip(0, _LEVELS).astype(np.uint8)
    return (
        np.concatenate([codes, rest_codes], axis=1),
        np.concatenate([scales, rest_scales], axis=1).astype(np.float32),
        np.concatenate([zeros, np.full_like(rest_scales, 8)], axis=1).astype(np.uint8),
    )


def _quantize_body(graph: Any, node: Any, matrix: np.ndarray, means: dict[str, Any]) -> None:
    rows, columns = matrix.shape
    name = node.inputs[1].name
    codes, scales, zeros = four_bits(matrix)
    weights = [
        _initializer(graph, f"{name}_Q4", _pairs(codes)),
        _initializer(graph, f"{name}_scales", scales),
        _initializer(graph, f"{name}_zeros", _pairs(np.pad(zeros, ((0, 0), (0, zeros.shape[1] % 2))))),
    ]
    x = node.inputs[0]
    if x.name not in means:  # shared by the products that read the same input
        shape = _initializer(graph, f"{x.name}/block_shape", np.array([0, 0, -1, BLOCK], np.int64))
        axis = _initializer(graph, f"{x.name}/block_axis", np.array([3], np.int64))
        blocks = _insert(graph, node, "Reshape", [x, shape], f"{x.name}/blocks")
        mean = _insert(graph, node, "ReduceMean", [blocks, axis], f"{x.name}/block_means", keepdims=0)
        means[x.name] = _insert(graph, node, "Concat", [x, mean], f"{x.name}/with_means", axis=-1)
    sizes = {"K": columns + columns // BLOCK, "N": rows, "bits": 4}
    _replace(graph, node, _product(graph, node, [means[x.name], *weights], **sizes))


def _quantize_head(graph: Any, node: Any, matrix: np.ndarray) -> None:
    """The vocabulary in eight bits; where the embedding shares its weights, it reads the same bytes."""
    rows, columns = matrix.shape
    weight = node.inputs[1]
    blocks = matrix.reshape(rows, columns // BLOCK, BLOCK)
    scales = np.abs(blocks).max(axis=-1) / 127
    codes = (np.rint(blocks / np.where(scales > 0, scales, 1)[..., None]) + 128).astype(np.uint8)
    bytes_ = _initializer(graph, f"{weight.name}_Q8", codes)
    scale = _initializer(graph, f"{weight.name}_scales", scales)
    for reader in [use.node for use in weight.uses()]:
        if reader.op_type == "Transpose":  # lm_head [H, V] turned for the embedding's Gather
            gather = next(use.node for use in reader.outputs[0].uses())
            shape = _initializer(graph, f"{weight.name}_shape", np.array([rows, columns], np.int64))
            table = _insert(graph, gather, "Reshape", [bytes_, shape], f"{weight.name}/table")
            sizes = {"bits": 8, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
            inputs = [table, gather.inputs[1], scale]
            row = _insert(graph, gather, "GatherBlockQuantized", inputs, f"{weight.name}/rows", _MICROSOFT, **sizes)
            _replace(graph, gather, row)
            graph.remove(reader, safe=True)
    _replace(graph, node, _product(graph, node, [node.inputs[0], bytes_, scale], K=columns, N=rows, bits=8))


def _is_head(node: Any, graph: Any) -> bool:
    return node.name.startswith("/lm_head/") or node.outputs[0] in graph.outputs


def _pairs(codes: np.ndarray) -> np.ndarray:
    """Two codes in a byte, the first in its lower half."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def _initializer(graph: Any, name: str, array: np.ndarray) -> Any:
    import onnx_ir as ir

    value = ir.val(name, const_value=ir.tensor(np.ascontiguousarray(array), name=name))
    graph.register_initializer(value)
    return value


def _product(graph: Any, node: Any, inputs: list[Any], **sizes: int) -> Any:
    settings = {**sizes, "block_size": BLOCK, "accuracy_level": _ACCURACY}
    return _insert(graph, node, "MatMulNBits", inputs, f"{node.name}/quantized", _MICROSOFT, **settings)


def _insert(
    graph: Any, before: Any, kind: str, inputs: list[Any], name: str, domain: str = "", **attributes: Any
) -> Any:
    import onnx_ir as ir

    node = ir.node(kind, inputs, attributes=attributes, domain=domain, name=f"{name}/{kind}")
    node.outputs[0].name = name
    graph.insert_before(before, node)
    return node.outputs[0]


def _replace(graph: Any, node: Any, value: Any) -> None:
    """Let `value` stand where `node`'s only output stood, under its name."""
    old = node.outputs[0]
    name = old.name
    value.type = old.type
    old.replace_all_uses_with(value, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    value.name = name
