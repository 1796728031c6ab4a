"""The two towers as ONNX files, and both of them in this process: pictures and sentences to vectors of length 1.

Notebook 13 teaches it. The files are made once and kept in the cache under a key of the weights they come from, so that
new weights never meet an old graph. Tensors, all with an open batch:

    vision.onnx   pixel_values float32 [B, 3, 224, 224]               → image_embedding float32 [B, 384]
    text.onnx     input_ids int64 [B, T], attention_mask int64 [B, T] → text_embedding  float32 [B, 384]

A sentence's vector is the middle of two: of the sentence, and of the sentence with an explanation (`wordnet`).
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cliplab import wordnet
from cliplab.pictures import Picture, catalogue, pixels
from cliplab.prepare import open_picture, to_array
from servinglab import assets
from servinglab.assets.store import publish, read_stamp, say, stamp, workspace
from servinglab.errors import CourseError
from servinglab.root import find_root

VISION_INPUTS, VISION_OUTPUT = ("pixel_values",), "image_embedding"
TEXT_INPUTS, TEXT_OUTPUT = ("input_ids", "attention_mask"), "text_embedding"
LONGEST = 256  # tokens; MiniLM was trained for sentences up to this length, the rest of a longer text is cut off
PRECISIONS = ("fp32", "int8")
CALIBRATION_EVERY = 8  # one picture of so many shows the quantiser which values occur
OPSET = 17  # the newest that the exporter, ONNX Runtime's quantiser and TensorRT's parser all read
_RECIPE = "clip-onnx-7"  # a change makes cached files stale
_DISK = 300_000_000  # bytes; fp32 and int8 of both towers


class EncoderError(CourseError):
    """The towers cannot be exported, prepared or run."""


@dataclass(frozen=True)
class Encoders:
    """What serves the towers: the ONNX files ``vision`` and ``text``, the ``tokenizer``'s JSON file, and ``words``.

    The tokenizer file says itself how to cut and to pad, so that whoever loads it does the same. ``words`` explains
    what sentences name (`wordnet.Dictionary`).
    """

    vision: Path
    text: Path
    tokenizer: Path
    words: Path

    @property
    def dictionary(self) -> wordnet.Dictionary:
        return wordnet.Dictionary(self.words)


def export(tower: Any, path: str | Path, sample: Sequence[Any], inputs: Sequence[str], output: str) -> Path:
    """Write a torch module as one ONNX file, with an open batch, and open tokens where an input has two axes.

    sample: tensors for a run, batch 2 or more. inputs, output: the names of the tensors. Returns the path.
    Raises EncoderError when the result is not a valid model; an output that is called as a value inside the graph is
    one way to get there.
    """
    import onnx
    import torch

    names = dict(zip(inputs, sample, strict=True))
    axes = {name: {0: "batch"} | ({1: "tokens"} if tensor.ndim == 2 else {}) for name, tensor in names.items()}
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # the exporter warns of itself, and of shapes that it takes as constants
        width = tower.eval()(*sample).shape[1]
        torch.onnx.export(
            tower, tuple(sample), str(path), dynamo=False, opset_version=OPSET, input_names=list(inputs),
            output_names=[output], dynamic_axes=axes | {output: {0: "batch"}},
        )  # fmt: skip
    model = onnx.load(path)
    # The exporter does not see how long a vector is, where it was divided by its own length.
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = width
    onnx.save(model, path)
    try:
        found = session(path)
    except Exception as error:  # ONNX Runtime has an exception class for each kind of failure
        raise EncoderError(f"The exported {Path(path).name} is not valid: {str(error).splitlines()[0]}.") from None
    if (read := [each.name for each in found.get_inputs()]) != list(inputs):
        raise EncoderError(f"The exported {Path(path).name} reads {', '.join(read)}, not {', '.join(inputs)}.")
    return Path(path)


def prepare(precision: str = "fp32", folder: str | Path | None = None) -> Encoders:
    """The towers of mini-CLIP as ONNX files, made on the first call and then found in the cache.

    precision: "fp32", or "int8" (the picture tower quantised with calibration pictures, the text tower by itself, and
    computed row by row). In both a row's vector is the same in every batch.
    folder: the weights of the picture tower, by default data/mini_clip. Raises EncoderError or AssetError.
    """
    if precision not in PRECISIONS:
        raise EncoderError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}.")
    weights = Path(folder) if folder else find_root() / "data" / "mini_clip"
    minilm = assets.resolve("minilm")
    home = assets.cache_dir() / "clip" / _key(weights, minilm)
    if not _ready(home / precision):
        with workspace(home, _DISK) as scratch:
            for step in dict.fromkeys(("fp32", precision)):
                if _ready(home / step):  # another process may have made it while this one waited
                    continue
                (made := scratch / step).mkdir()
                say("mini-clip", f"writing the {step} encoders")
                _write_fp32(made, weights, minilm) if step == "fp32" else _write_int8(made, _found(home / "fp32"))
                stamp(made, _RECIPE)
                publish(made, home / step)
    return _found(home / precision)


def _write_fp32(made: Path, weights: Path, minilm: Path) -> None:
    import torch
    from tokenizers import Tokenizer

    from cliplab.mini_clip import TextTower, VisionTower

    ids = torch.ones((2, 16), dtype=torch.int64)
    export(VisionTower.load(weights), made / "vision.onnx", [torch.zeros(2, 3, 224, 224)], VISION_INPUTS, VISION_OUTPUT)
    export(TextTower.load(), made / "text.onnx", [ids, ids], TEXT_INPUTS, TEXT_OUTPUT)
    tokenizer = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id("[PAD]"), pad_token="[PAD]")
    tokenizer.save(str(made / "tokenizer.json"))
    shutil.copyfile(weights / wordnet.FILE, made / wordnet.FILE)


def calibration_pictures() -> list[Picture]:
    """The pictures of the catalogue that calibrate int8. Whoever measures it leaves them out."""
    return catalogue("subset")[::CALIBRATION_EVERY]


def _write_int8(made: Path, fp32: Encoders) -> None:
    from cliplab.quantise import SERVED, dynamic_int8, rows_alone, static_int8

    static_int8(fp32.vision, made / "vision.onnx", pixels(calibration_pictures()), **SERVED)
    rows_alone(dynamic_int8(fp32.text, made / "text.onnx"))
    for file in (fp32.tokenizer, fp32.words):
        shutil.copyfile(file, made / file.name)


def _key(weights: Path, minilm: Path) -> str:
    """What the files depend on, as a short word: the weights of both towers, and the dictionary."""
    digest = hashlib.sha256(_RECIPE.encode())
    for file in (*sorted(weights.glob("*.safetensors")), *weights.glob(wordnet.FILE), minilm / "model.safetensors"):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _ready(folder: Path) -> bool:
    return (read_stamp(folder) or {}).get("recipe") == _RECIPE


def _found(folder: Path) -> Encoders:
    return Encoders(folder / "vision.onnx", folder / "text.onnx", folder / "tokenizer.json", folder / wordnet.FILE)


class OnnxEncoders:
    """Both towers on ONNX Runtime, in this process.

    encoders: the files, by default ``prepare()``. threads: how many cores one call may use.
    """

    def __init__(self, encoders: Encoders | None = None, *, threads: int = 1, batch: int = 16) -> None:
        from tokenizers import Tokenizer

        self.files = encoders or prepare()
        self._threads, self._batch, self._sessions = threads, batch, {}
        self._tokenizer = Tokenizer.from_file(str(self.files.tokenizer))
        self._dictionary = wordnet.Dictionary(self.files.words)

    def encode_images(self, images: Sequence[bytes]) -> np.ndarray:
        """Picture files to vectors: float32 [n, 384], each of length 1. Raises PictureError for no picture."""

        def feeds(part: Sequence[bytes]) -> dict[str, np.ndarray]:
            return {VISION_INPUTS[0]: np.stack([to_array(open_picture(data)) for data in part])}

        return self._run(self.files.vision, images, feeds)

    def encode_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Prepared pictures [n, 3, 224, 224] to vectors: float32 [n, 384], each of length 1."""
        return self._run(self.files.vision, pixels, lambda part: {VISION_INPUTS[0]: part})

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Sentences to vectors: float32 [n, 384], each of length 1. What is behind token 256 is not read."""

        def encode(some: list[str]) -> np.ndarray:
            return self._run(self.files.text, some, lambda part: dict(zip(TEXT_INPUTS, self.tokens(part), strict=True)))

        _no_single(texts)
        return self._dictionary.encode(texts, encode)

    def tokens(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """What the text tower reads: token ids and attention mask, int64 [n, tokens of the longest]."""
        rows = self._tokenizer.encode_batch(list(texts))
        return np.array([row.ids for row in rows], np.int64), np.array([row.attention_mask for row in rows], np.int64)

    def _run(self, path: Path, items: Sequence[Any], feeds: Any) -> np.ndarray:
        _no_single(items)
        if path not in self._sessions:
            self._sessions[path] = session(path, self._threads)
        parts = [items[start : start + self._batch] for start in range(0, len(items), self._batch)]
        vectors = [self._sessions[path].run(None, feeds(part))[0] for part in parts]
        return np.concatenate(vectors) if vectors else np.zeros((0, 384), np.float32)


def _no_single(items: Sequence[Any]) -> None:
    if isinstance(items, (bytes, str)):
        raise EncoderError("Give a list of pictures or of sentences, not a single one.")


def session(path: str | Path, threads: int = 1) -> Any:
    """An ONNX Runtime session on the CPU that uses ``threads`` cores."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
