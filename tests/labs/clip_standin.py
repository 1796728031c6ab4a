"""Two tiny encoders with the interface of the real ones, whose results a test can compute by itself.

Picture: mean colour [3] @ COLOURS [3, 384]. Text: mean over the tokens of WORDS [vocabulary, 384]. Both of length 1. A
leaf is explained as a sea.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "green", "blue", "apple", "leaf", "sea"]
LONGEST = 16  # tokens, with [CLS] and [SEP]
_RNG = np.random.default_rng(0)
COLOURS = _RNG.normal(size=(3, 384)).astype(np.float32)
WORDS = _RNG.normal(size=(len(VOCABULARY), 384)).astype(np.float32)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def write(folder: Path) -> SimpleNamespace:
    """The files; what cliplab.encoders.prepare returns has the same names."""
    folder.mkdir(parents=True, exist_ok=True)
    found = SimpleNamespace(
        vision=folder / "vision.onnx", text=folder / "text.onnx", tokenizer=folder / "tokenizer.json",
        words=folder / "words.json.gz",
    )  # fmt: skip
    onnx.save(_vision(), found.vision)
    onnx.save(_text(), found.text)
    tokenizer().save(str(found.tokenizer))
    found.words.write_bytes(gzip.compress(b'{"words": {"leaf": 0}, "meanings": ["sea"]}'))
    return found


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.enable_truncation(LONGEST)
    made.enable_padding(pad_id=0, pad_token="[PAD]")
    return made


def _vision() -> onnx.ModelProto:
    nodes = [
        helper.make_node("ReduceMean", ["pixel_values"], ["colour"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["colour", "weights"], ["raw"]),
        helper.make_node("LpNormalization", ["raw"], ["image_embedding"], axis=1, p=2),
    ]
    pixels = helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, ["batch", 3, 224, 224])
    return _model(nodes, [pixels], "image_embedding", [numpy_helper.from_array(COLOURS, "weights")])


def _text() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Gather", ["weights", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
        helper.make_node("Mul", ["rows", "wide"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "tokens_axis"], ["raw"], keepdims=0),
        helper.make_node("LpNormalization", ["raw"], ["text_embedding"], axis=1, p=2),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    constants = [
        numpy_helper.from_array(WORDS, "weights"),
        numpy_helper.from_array(np.array([2], np.int64), "last"),
        numpy_helper.from_array(np.array([1], np.int64), "tokens_axis"),
    ]
    return _model(nodes, inputs, "text_embedding", constants)


def _model(nodes, inputs, output, constants) -> onnx.ModelProto:
    made = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", 384])
    graph = helper.make_graph(nodes, "standin", inputs, [made], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model
