"""Smaller towers: int8 with and without calibration, half precision, and what that does to the vectors.

Notebook 13 teaches it. Sources: ONNX Runtime documentation, "Quantize ONNX Models"; Jacob et al. 2018,
https://arxiv.org/abs/1712.05877 (integer arithmetic with a scale and a zero point).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cliplab.encoder_tensors import VISION_INPUTS, EncoderError
from cliplab.prepare import open_picture, to_array

KEEP = 3
_DYNAMIC = ["MatMul", "Gemm", "Gather"]
_PRODUCTS = ["Conv", "Gemm", "MatMul"]


def pixels(pictures: Iterable[bytes]) -> np.ndarray:
    """Picture files as the vision tower reads them: float32 [n, 3, 224, 224]. Raises PictureError for no picture."""
    return np.stack([to_array(open_picture(data)) for data in pictures])


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


def static_int8(
    source: Path, out: Path, calibration: np.ndarray, *, keep: int = KEEP, for_tensorrt: bool = False
) -> Path:
    """Weights and what flows between the layers in int8, with scales fixed by a run over ``calibration``.

    calibration: float32 [n, 3, 224, 224]; the pictures decide the scales, so take such as will be asked for. keep: the
    first so many convolutions stay in float: they have few weights, and their errors pass through all other layers.
    for_tensorrt: as TensorRT wants it: symmetric, biases in float, no rounding between a convolution and its
    activation; else as ONNX Runtime computes it in integers. Both as QuantizeLinear and DequantizeLinear (QDQ).
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
    options: dict[str, Any] = {"WeightSymmetric": True, "ActivationSymmetric": for_tensorrt}
    if for_tensorrt:
        options |= {"QuantizeBias": False, "OpTypesToExcludeOutputQuantization": _PRODUCTS}
    with _quiet():
        quant_pre_process(source, plain)  # fuses batch normalisations into the convolutions before them
        convolutions = [node.name for node in onnx.load(plain).graph.node if node.op_type == "Conv"]
        quantize_static(
            plain, out, Reader(), quant_format=QuantFormat.QDQ, per_channel=True, nodes_to_exclude=convolutions[:keep],
            op_types_to_quantize=_PRODUCTS if for_tensorrt else [*_PRODUCTS, "Add", "Clip"],
            activation_type=QuantType.QInt8 if for_tensorrt else QuantType.QUInt8, weight_type=QuantType.QInt8,
            # Without VNNI, a CPU adds two products of 8 bits in 16 and saturates: 7 bits for a weight are safe.
            reduce_range=not for_tensorrt, extra_options=options,
        )  # fmt: skip
    plain.unlink()
    return out


def half(source: Path, out: Path) -> Path:
    """Weights and arithmetic in fp16; inputs and outputs keep their types."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _quiet():
        onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), out)
    return out


def drift(vectors: np.ndarray, reference: np.ndarray) -> float:
    """The largest 1 - cosine between vectors and their references, both [n, d] (any length but 0)."""
    vectors, reference = np.asarray(vectors, np.float64), np.asarray(reference, np.float64)
    if vectors.shape != reference.shape or vectors.ndim != 2:
        raise EncoderError(f"Compare two arrays [n, d] of one shape, not {vectors.shape} and {reference.shape}.")
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
    return float(1 - ((vectors * reference).sum(axis=1) / lengths).min())


def accept(vectors: np.ndarray, reference: np.ndarray, *, threshold: float) -> str:
    """Let an engine's vectors through, or raise EncoderError with the one reason why not.

    Refuses numbers that are none, vectors that are the same for every input, and those that turned away from the
    reference (of the framework that the weights come from) by more than ``threshold`` in 1 - cosine.
    """
    vectors = np.asarray(vectors)
    if not np.isfinite(vectors).all():
        raise EncoderError(f"{np.sum(~np.isfinite(vectors))} numbers of the engine's vectors are not finite.")
    if len(vectors) > 1 and vectors.std(axis=0).max() < 1e-6:
        raise EncoderError(f"The engine gives the same vector for {len(vectors)} different inputs; it is broken.")
    if (found := drift(vectors, reference)) > threshold:
        raise EncoderError(f"The engine's vectors are off the reference by {found:.2g} in cosine, above {threshold:g}.")
    return f"accepted: the largest difference in cosine is {found:.1e}, the threshold {threshold:g}"


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
