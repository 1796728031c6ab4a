"""`text_encoder`: sentences to vectors of length 1; an empty or blank string stands for "no text".

A vector is the middle of two, the sentence's and that of the sentence with an explanation (`wordnet`).

`text_state` says of each row "given", "none", or what is wrong with the text (data and no error: see
`image_preprocessing`). The tokenizer's file says where it cuts; `tokens_left_out` counts the tokens behind that.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
from tokenizers import Tokenizer  # noqa: E402  (reads the variable above)
from wordnet import FILE, Dictionary  # noqa: E402  (a copy beside this file)

MAX_BYTES = 2**20  # of one text; tokenising takes a second for each megabyte, and everybody waits


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.size = config["output"][0]["dims"][0]
        folder = Path(args["model_repository"], args["model_version"])
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(config["parameters"]["threads"]["string_value"])
        self.dictionary = Dictionary(folder / FILE)
        path = str(folder / "model.onnx")
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        parts = [pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[:, 0] for request in requests]
        texts, states = zip(*(_read(row) for part in parts for row in part), strict=True)
        outputs = self._encode(texts)
        outputs["text_state"] = np.array([[state.encode()] for state in states], dtype=object)
        ends = np.cumsum([len(part) for part in parts])
        rows = [slice(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(name, array[row]) for name, array in outputs.items()])
            for row in rows
        ]

    def _encode(self, texts):
        """Vectors float32 [n, size] and tokens left out int32 [n, 1]; not a number where there is no text."""
        vectors = np.full((len(texts), self.size), np.nan, np.float32)
        left_out = np.zeros((len(texts), 1), np.int32)
        there = [row for row, text in enumerate(texts) if text]
        if there:
            try:
                read, some = [], [texts[row] for row in there]
                vectors[there] = self.dictionary.encode(some, lambda parts: self._run(parts, read))
                tokens, *_ = read  # of the texts; what explains them comes after
                behind = [sum(part.special_tokens_mask.count(0) for part in row.overflowing) for row in tokens]
                left_out[there, 0] = behind
            except Exception as error:  # an error here could hang the ensemble; `fusion` finds what is not a number
                pb_utils.Logger.log_error(f"text_encoder: {error}")
        return {"text_embedding": vectors, "tokens_left_out": left_out}

    def _run(self, texts, read):
        """Vectors of texts; `read` gets their tokens."""
        tokens = self.tokenizer.encode_batch(texts)
        read.append(tokens)
        feeds = {"input_ids": np.array([row.ids for row in tokens], np.int64),
                 "attention_mask": np.array([row.attention_mask for row in tokens], np.int64)}  # fmt: skip
        return self.session.run(["text_embedding"], feeds)[0]


def _read(row):
    """A text and its state; "" unless it is to be encoded."""
    if len(row) > MAX_BYTES:
        return "", f"The text has {len(row):,} bytes, and at most {MAX_BYTES:,} are read; shorten it."
    try:
        text = row.decode().strip()
    except UnicodeDecodeError as error:
        return "", f"The text is not valid UTF-8: {error.reason} at byte {error.start}."
    return text, "given" if text else "none"
