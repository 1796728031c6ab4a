"""`text_encoder`: sentences to vectors of length 1; an empty or blank string stands for "no text".

The tokenizer's file says where it cuts; `tokens_left_out` says how many tokens of a text were behind that.
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

MAX_BYTES = 2**20  # of one text; tokenising takes a second for each megabyte, and everybody waits


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.size = config["output"][0]["dims"][0]
        folder = Path(args["model_repository"], args["model_version"])
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(config["parameters"]["threads"]["string_value"])
        path = str(folder / "model.onnx")
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        read = [self._read(request) for request in requests]  # texts of each request, or what is wrong with it
        texts = [text for part in read if isinstance(part, list) for text in part]
        vectors, left_out = self._encode(texts)
        answers, start = [], 0
        for part in read:
            if isinstance(part, str):
                error = pb_utils.TritonError(part, pb_utils.TritonError.INVALID_ARG)
                answers.append(pb_utils.InferenceResponse(output_tensors=[], error=error))
                continue
            rows = slice(start, start := start + len(part))
            has_text = np.array([[bool(text)] for text in part])
            outputs = {"text_embedding": vectors[rows], "has_text": has_text, "tokens_left_out": left_out[rows]}
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor(*output) for output in outputs.items()]))
        return answers

    def _read(self, request):
        """The request's texts, or the sentence that refuses it; a bad one must not fail the others of its batch."""
        rows = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[:, 0]
        if (longest := max(map(len, rows))) > MAX_BYTES:
            return f"The text has {longest:,} bytes, and at most {MAX_BYTES:,} are read; shorten it."
        try:
            return [row.decode().strip() for row in rows]
        except UnicodeDecodeError as error:
            return f"The text is not valid UTF-8: {error.reason} at byte {error.start}."

    def _encode(self, texts):
        """Vectors float32 [n, size] and tokens left out int32 [n, 1]; not a number where there is no text."""
        vectors = np.full((len(texts), self.size), np.nan, np.float32)
        left_out = np.zeros((len(texts), 1), np.int32)
        there = [row for row, text in enumerate(texts) if text]
        if there:
            tokens = self.tokenizer.encode_batch([texts[row] for row in there])
            feeds = {
                "input_ids": np.array([row.ids for row in tokens], np.int64),
                "attention_mask": np.array([row.attention_mask for row in tokens], np.int64),
            }
            vectors[there] = self.session.run(["text_embedding"], feeds)[0]
            behind = [sum(part.special_tokens_mask.count(0) for part in row.overflowing) for row in tokens]
            left_out[there, 0] = behind
        return vectors, left_out
