"""ONNX files of the towers against PyTorch, and the cache that keeps them."""

from __future__ import annotations

import gzip
import json

import numpy as np
import onnx
import pytest
import torch

from cliplab import encoders
from cliplab.encoders import EncoderError, OnnxEncoders, export, session
from cliplab.mini_clip import TextTower, VisionTower
from cliplab.pictures import catalogue, pixels


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


def test_other_weights_have_another_key(tmp_path):
    for name, weights in (("a", b"one"), ("b", b"two"), ("minilm", b"text")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(weights)
    first, second = (encoders._key(tmp_path / name, tmp_path / "minilm") for name in "ab")
    assert first == encoders._key(tmp_path / "a", tmp_path / "minilm") != second
    (tmp_path / "a" / "words.json.gz").write_bytes(b"words")
    third = encoders._key(tmp_path / "a", tmp_path / "minilm")
    (tmp_path / "minilm" / "model.safetensors").write_bytes(b"other")
    assert len({first, third, encoders._key(tmp_path / "a", tmp_path / "minilm")}) == 3


@pytest.fixture(scope="module")
def ours():
    return OnnxEncoders()


class TestPrepared:
    """The files that the lab serves."""

    def test_sentences_are_those_of_minilm_explained(self, ours):
        """Against PyTorch, each sentence alone and so without padding."""
        texts = ["A red apple.", "x", "a moon over the sea, seen from a small boat with a lamp"]
        known = {"A red apple.": "apple", "x": "", texts[2]: "moon"}
        tower, words = TextTower.load(), json.loads(gzip.decompress(ours.files.words.read_bytes()))

        def alone(text: str) -> np.ndarray:
            with torch.inference_mode():
                return tower(*map(torch.from_numpy, ours.tokens([text])))[0].numpy()

        meant = {text: f"{text} {name}: {words['meanings'][words['words'][name]]}" if name else text
                 for text, name in known.items()}  # fmt: skip
        middle = np.stack([alone(text) + alone(meant[text]) for text in texts])
        reference = middle / np.linalg.norm(middle, axis=1, keepdims=True)
        np.testing.assert_allclose(ours.encode_texts(texts), reference, atol=1e-5)
        np.testing.assert_allclose(ours.encode_texts(texts[:1]), reference[:1], atol=1e-5)

    def test_a_long_text_is_cut_and_an_empty_list_is_none(self, ours):
        ids, mask = ours.tokens(["word " * 10_000, "word"])
        assert ids.shape == mask.shape == (2, encoders.LONGEST) and mask[1].sum() == 3
        assert ours.encode_texts([]).shape == (0, 384)

    def test_a_single_sentence_is_no_list(self, ours):
        with pytest.raises(EncoderError, match="Give a list"):
            ours.encode_texts("A red apple.")

    def test_pictures_are_those_of_the_tower(self, ours):
        shown = catalogue("subset")[1:4]
        data = [picture.file.read_bytes() for picture in shown]
        with torch.inference_mode():
            reference = VisionTower.load()(torch.from_numpy(pixels(shown))).numpy()
        np.testing.assert_allclose(ours.encode_images(data), reference, atol=1e-4)
        np.testing.assert_allclose(ours.encode_images(data[1:2]), reference[1:2], atol=1e-4)

    def test_int8_is_near_and_smaller(self, ours):
        small = encoders.prepare("int8")
        for name, share in (("vision", 0.6), ("text", 0.3)):
            assert getattr(small, name).stat().st_size < share * getattr(ours.files, name).stat().st_size
        shown = {picture.id for picture in encoders.calibration_pictures()}
        others = [picture for picture in catalogue("subset") if picture.id not in shown][:6]
        data, captions = [p.file.read_bytes() for p in others], [p.caption for p in others]
        quantised = OnnxEncoders(small)
        assert (quantised.encode_images(data) * ours.encode_images(data)).sum(axis=1).min() > 0.97
        assert (quantised.encode_texts(captions) * ours.encode_texts(captions)).sum(axis=1).min() > 0.95

    @pytest.mark.parametrize("precision", encoders.PRECISIONS)
    def test_a_row_has_the_same_vector_in_every_batch(self, precision):
        """Whoever else asks at the same time."""
        towers = OnnxEncoders(encoders.prepare(precision))
        texts = ["a red apple", "a moon over the sea, seen from a boat with a lamp", "x", "word " * 300, "!!! 7 ?"]
        pictures = [picture.file.read_bytes() for picture in catalogue("subset")[1:6]]
        for encode, rows in ((towers.encode_texts, texts), (towers.encode_images, pictures)):
            alone = np.concatenate([encode([row]) for row in rows])
            assert np.unique(alone.round(3), axis=0).shape == (5, 384)
            for order in ([0, 1, 2, 3, 4], [4, 2, 0], [1, 3], [2, 2, 2]):
                np.testing.assert_allclose(encode([rows[n] for n in order]), alone[order], atol=2e-6)
