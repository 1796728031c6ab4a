"""ONNX files of the towers against PyTorch, and the cache that keeps them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from cliplab import encoders
from cliplab.encoders import EncoderError, export, session


class Tiny(torch.nn.Module):
    """A picture tower in small: convolution, mean over the picture, length 1."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.Linear(8, 384)

    def forward(self, pixel_values):
        return torch.nn.functional.normalize(self.head(self.stem(pixel_values).relu().mean((2, 3))), dim=-1)


def write(tmp_path, output="image_embedding"):
    return export(Tiny(), tmp_path / "tiny.onnx", [torch.zeros(2, 3, 32, 32)], ["pixel_values"], output)


def test_an_export_computes_what_torch_does_for_any_batch(tmp_path):
    run = session(write(tmp_path)).run
    pixels = np.random.default_rng(0).normal(size=(5, 3, 32, 32)).astype(np.float32)
    together = run(["image_embedding"], {"pixel_values": pixels})[0]
    with torch.inference_mode():
        np.testing.assert_allclose(together, Tiny()(torch.from_numpy(pixels)).numpy(), atol=1e-5)
    for row, vector in zip(pixels, together, strict=True):
        np.testing.assert_allclose(run(None, {"pixel_values": row[None]})[0][0], vector, atol=1e-6)


def test_axes_with_a_name_are_the_open_ones(tmp_path):
    graph = onnx.load(write(tmp_path)).graph
    shape = [dim.dim_param or dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim]
    assert shape == ["batch", 3, 32, 32]
    assert [dim.dim_param or dim.dim_value for dim in graph.output[0].type.tensor_type.shape.dim] == ["batch", 384]


def test_an_output_may_not_have_the_name_of_an_input(tmp_path):
    with pytest.raises(EncoderError, match="tiny.onnx"):
        write(tmp_path, output="pixel_values")


def test_unknown_precision():
    with pytest.raises(EncoderError, match="fp32, int8, not 'fp8'"):
        encoders.prepare("fp8")
