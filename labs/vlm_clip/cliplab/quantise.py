"""The towers in int8, with and without calibration, as notebook 13 does it by hand.

Sources: ONNX Runtime documentation, "Quantize ONNX Models"; Jacob et al. 2018,
https://arxiv.org/abs/1712.05877 (integer arithmetic with a scale and a zero point).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cliplab.encoders import TEXT_INPUTS, TEXT_OUTPUT, VISION_INPUTS, EncoderError

KEEP = 3
# What is served: the head behind the trunk stays in float. In int8 it turned the worst of 224 pictures to a cosine of
# 0.79 with what it had been; without, 0.99.
SERVED: dict[str, Any] = {"keep": 8, "kinds": ("Conv", "Add", "Clip")}
_DYNAMIC = ["MatMul", "Gemm", "Gather"]
_STATIC = ["Conv", "Gemm", "MatMul", "Add", "Clip"]


def dynamic_int8(source: Path, out: Path) -> Path:
    """Weights in int8; the scale of what flows between the layers is worked out anew in each run. Needs no data.

    Changed are matrix products (one scale for each column) and tables that are looked up, such as MiniLM's vocabulary.
    A weight has 7 bits, see ``static_int8``; 8 made no difference to recall beyond a caption or two.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(
            source, out, op_types_to_quantize=_DYNAMIC, per_channel=True, weight_type=QuantType.QInt8, reduce_range=True
        )
    return out


def rows_alone(path: Path) -> Path:
    """Change the text tower's file so that it computes each row by itself, cut to its own tokens, whatever the batch.

    A dynamic scale is that of the largest number in the whole batch, padding too: a sentence would get another vector
    beside other sentences, and those may be another user's.
    """
    import onnx
    from onnx import TensorProto, helper

    model = onnx.load(path)
    graph, inner = model.graph, {name: f"row.{name}" for name in (*TEXT_INPUTS, TEXT_OUTPUT)}
    for node in graph.node:
        node.input[:] = [inner.get(name, name) for name in node.input]
        node.output[:] = [inner.get(name, name) for name in node.output]
    first = [helper.make_node("ReduceSum", ["row.mask"], ["row.end"], keepdims=1)]
    for name, source in zip(TEXT_INPUTS, ("row.ids", "row.mask"), strict=True):
        first.append(helper.make_node("Slice", [source, "row.zero", "row.end"], [f"{source}.cut"]))
        first.append(helper.make_node("Unsqueeze", [f"{source}.cut", "row.zero"], [inner[name]]))
    last = helper.make_node("Squeeze", [inner[TEXT_OUTPUT], "row.zero"], ["row.vector"])
    body = helper.make_graph(
        [*first, *graph.node, last], "row",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["tokens"]) for name in ("row.ids", "row.mask")],
        [helper.make_tensor_value_info("row.vector", TensorProto.FLOAT, [384])],
    )  # fmt: skip
    graph.initializer.append(helper.make_tensor("row.zero", TensorProto.INT64, [1], [0]))
    del graph.node[:], graph.value_info[:]
    graph.node.append(helper.make_node("Scan", TEXT_INPUTS, [TEXT_OUTPUT], body=body, num_scan_inputs=2))
    onnx.save(model, path)
    return path


def static_int8(
    source: Path, out: Path, calibration: np.ndarray, *, keep: int = KEEP, kinds: Sequence[str] = _STATIC
) -> Path:
    """Weights and what flows between the layers in int8, with scales fixed by a run over ``calibration``.

    calibration: float32 [n, 3, 224, 224], or n times what the model takes; the pictures decide the scales, so take such
    as will be asked for. keep: the first so many convolutions stay in float: they have few weights, and their errors
    pass through all other layers.
    kinds: operations that are changed.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    if len(calibration) == 0:
        raise EncoderError("Static quantisation needs at least one calibration picture.")

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._rows = iter(calibration)

        def get_next(self) -> dict[str, np.ndarray] | None:
            row = next(self._rows, None)
            return None if row is None else {VISION_INPUTS[0]: row[None]}

    plain = out.with_suffix(".plain.onnx")
    with _quiet():
        quant_pre_process(source, plain)  # shapes, and constants folded
        convolutions = [node.name for node in onnx.load(plain).graph.node if node.op_type == "Conv"]
        quantize_static(
            plain, out, Reader(), quant_format=QuantFormat.QDQ, per_channel=True, nodes_to_exclude=convolutions[:keep],
            op_types_to_quantize=list(kinds), activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
            # Without VNNI, a CPU adds two products of 8 bits in 16 and saturates: 7 bits for a weight are safe.
            reduce_range=True, extra_options={"WeightSymmetric": True, "ActivationSymmetric": False},
        )  # fmt: skip
    plain.unlink()
    return out


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the quantiser's advice to do what is done here already."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
