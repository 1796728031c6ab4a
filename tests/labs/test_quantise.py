"""Towers in int8: smaller, and close to fp32."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from cliplab.encoders import EncoderError, export, session
from cliplab.quantise import dynamic_int8, static_int8


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


def drift(vectors, reference):
    """The largest 1 - cosine; all vectors have length 1."""
    return float(1 - (vectors * reference).sum(axis=1).min())


def run(path):
    return session(path).run(["image_embedding"], {"pixel_values": PIXELS})[0]


def test_static_int8_is_smaller_and_close(fp32, tmp_path):
    small = static_int8(fp32, tmp_path / "int8.onnx", PIXELS, keep=0)
    assert small.stat().st_size < 0.55 * fp32.stat().st_size
    assert drift(run(small), run(fp32)) < 6e-3
    kinds = {tensor.data_type for tensor in onnx.load(small).graph.initializer if tensor.name.endswith("_quantized")}
    assert kinds == {onnx.TensorProto.INT8, onnx.TensorProto.INT32}
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
