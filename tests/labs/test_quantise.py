"""Towers in int8 and fp16: smaller, close to fp32, and refused where they are not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from cliplab.encoders import EncoderError, export, session
from cliplab.quantise import accept, drift, dynamic_int8, half, static_int8


class Tower(torch.nn.Module):
    """Convolutions as in EfficientNet-Lite: a stem, one per channel, one across channels, with batch normalisation."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layers = [torch.nn.Conv2d(3, 32, 3, stride=2, bias=False), torch.nn.BatchNorm2d(32), torch.nn.ReLU6()]
        layers += [torch.nn.Conv2d(32, 32, 3, groups=32), torch.nn.ReLU6(), torch.nn.Conv2d(32, 64, 1)]
        self.trunk, self.head = torch.nn.Sequential(*layers), torch.nn.Linear(64, 384)

    def forward(self, pixel_values):
        return torch.nn.functional.normalize(self.head(self.trunk(pixel_values).mean((2, 3))), dim=-1)


PIXELS = np.random.default_rng(0).normal(size=(8, 3, 32, 32)).astype(np.float32)
PIXELS *= np.linspace(0.2, 1.5, 8, dtype=np.float32)[:, None, None, None]  # so that the vectors differ


@pytest.fixture(scope="module")
def fp32(tmp_path_factory):
    path = tmp_path_factory.mktemp("quantise") / "tower.onnx"
    return export(Tower(), path, [torch.zeros(2, 3, 32, 32)], ["pixel_values"], "image_embedding")


def run(path):
    return session(path).run(["image_embedding"], {"pixel_values": PIXELS})[0]


@pytest.mark.parametrize("for_tensorrt", [False, True])
def test_static_int8_is_smaller_and_close(fp32, tmp_path, for_tensorrt):
    small = static_int8(fp32, tmp_path / "int8.onnx", PIXELS, keep=0, for_tensorrt=for_tensorrt)
    assert small.stat().st_size < 0.55 * fp32.stat().st_size
    assert drift(run(small), run(fp32)) < 6e-3
    kinds = {tensor.data_type for tensor in onnx.load(small).graph.initializer if tensor.name.endswith("_quantized")}
    assert kinds == {onnx.TensorProto.INT8} | (set() if for_tensorrt else {onnx.TensorProto.INT32})
    assert not list(tmp_path.glob("*.plain.onnx"))


def test_calibration_decides_the_scales(fp32, tmp_path):
    """Shown only faint pictures, the quantiser cuts off what bright ones need."""
    good = static_int8(fp32, tmp_path / "good.onnx", PIXELS, keep=0)
    faint = static_int8(fp32, tmp_path / "faint.onnx", PIXELS * 0.02, keep=0)
    assert drift(run(faint), run(fp32)) > 5 * drift(run(good), run(fp32))


def test_the_first_convolutions_can_stay_in_float(fp32, tmp_path):
    graph = onnx.load(static_int8(fp32, tmp_path / "int8.onnx", PIXELS, keep=2)).graph
    rounded = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    weights = [node.input[1] in rounded for node in graph.node if node.op_type == "Conv"]
    assert weights == [False, False, True]


def test_without_calibration_pictures_there_is_no_static_int8(fp32, tmp_path):
    with pytest.raises(EncoderError, match="at least one calibration picture"):
        static_int8(fp32, tmp_path / "int8.onnx", PIXELS[:0])


def test_dynamic_int8_needs_none(fp32, tmp_path):
    small = dynamic_int8(fp32, tmp_path / "int8.onnx")
    kinds = {node.op_type for node in onnx.load(small).graph.node}
    assert "MatMulInteger" in kinds and "Conv" in kinds and "ConvInteger" not in kinds
    assert 0 < drift(run(small), run(fp32)) < 6e-3
    weights = [numpy_helper.to_array(w) for w in onnx.load(small).graph.initializer if w.name.endswith("_quantized")]
    assert 40 < max(int(np.abs(weight.astype(int)).max()) for weight in weights) <= 64, "7 bits are safe without VNNI"


def test_half_precision_keeps_its_inputs(fp32, tmp_path):
    small = half(fp32, tmp_path / "fp16.onnx")
    assert small.stat().st_size < 0.65 * fp32.stat().st_size
    assert drift(run(small), run(fp32)) < 1e-5


def test_drift_is_one_minus_the_smallest_cosine():
    """By hand: (1, 0) against (0, 2) has cosine 0, against (3, 4) it has 0.6."""
    assert drift([[1, 0], [1, 0]], [[3, 4], [5, 0]]) == pytest.approx(0.4)
    assert drift([[1, 0], [1, 0]], [[0, 2], [5, 0]]) == pytest.approx(1.0)
    with pytest.raises(EncoderError, match=r"\(1, 2\) and \(2, 2\)"):
        drift([[1, 0]], [[1, 0], [0, 1]])


def test_acceptance_lets_rounding_through_and_nothing_else():
    rng = np.random.default_rng(1)
    reference = rng.normal(size=(6, 384))
    assert accept(reference + 1e-4, reference, threshold=1e-2).startswith("accepted")
    turned = reference + 0.3 * rng.normal(size=reference.shape)
    for vectors, reason in (
        (turned, "off the reference by 0.0"),
        (np.full_like(reference, 1e-6), "the same vector for 6 different inputs"),
        (np.where(reference > 2, np.nan, reference), "not finite"),
    ):
        with pytest.raises(EncoderError, match=reason):
            accept(vectors, reference, threshold=1e-2)
