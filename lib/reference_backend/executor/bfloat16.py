"""Round the weights of an executor graph to bfloat16: half the bytes, what a GPU multiplies fastest.

The graph itself stays float32: each weight is stored in 16 bits and cast where it is read. So the CPU computes with the
rounded weights at full precision (and its runtime casts them once, when it loads), while the CUDA flavour takes the
stored ones and computes in bfloat16.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np


def narrow_graph(source: Path, out: Path) -> None:
    """Write a bfloat16 copy of the float32 graph `source`/model.onnx as `out`/model.onnx and model.onnx.data."""
    import ml_dtypes
    import onnx_ir as ir

    model = ir.load(source / "model.onnx")  # its tensors stay on disk until they are read
    graph = model.graph
    for weight in list(graph.initializers.values()):
        if not weight.name.endswith("MatMul.weight") and weight.name != "model.embed_tokens.weight":
            continue  # norms and rotary tables are small and want their digits
        first = next(node for node in graph if weight in node.inputs)
        array = weight.const_value.numpy().astype(ml_dtypes.bfloat16)
        cast = ir.node("Cast", [weight], attributes={"to": ir.DataType.FLOAT.value}, name=f"{weight.name}/Cast")
        cast.outputs[0].name = f"{weight.name}/float32"
        for use in list(weight.uses()):
            if use.node is not cast:
                use.node.replace_input_with(use.idx, cast.outputs[0])
        graph.insert_before(first, cast)
        weight.const_value = ir.Tensor(np.ascontiguousarray(array), name=weight.name)
        weight.dtype = ir.DataType.BFLOAT16
    ir.save(model, out / "model.onnx", external_data="model.onnx.data")
