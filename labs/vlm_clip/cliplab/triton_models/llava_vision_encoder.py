"""`vision_encoder`: prepared pictures to rows in the embedding space of the language model: its prompt_embedding_table.

Tensors are those of NVIDIA's `multimodal_encoders`: pixel_values (of `preprocessing`) or IMAGE (of the client).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime

from reference_backend.models import common


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.name = config["name"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = common.number(config, "threads", 1, int)
        path = Path(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.shape = self.session.get_inputs()[0].shape[2:]

    def execute(self, requests):
        return common.respond(requests, self._encode, self.name)

    def _encode(self, inputs):
        """pixel_values or IMAGE float16 [texts, pictures, 3, size, size] -> float16 [texts, rows, hidden] and rows."""
        pixels = inputs.get("pixel_values", inputs.get("IMAGE"))
        if pixels is None or list(pixels.shape[2:]) != self.shape or not pixels.size or not np.isfinite(pixels).all():
            given = "nothing" if pixels is None else list(pixels.shape)
            raise common.InputError(
                f"The encoder takes pixel_values [texts, pictures, {', '.join(map(str, self.shape))}] of finite "
                f"numbers; {given} was given, or numbers that are not finite."
            )
        # A picture alone: what others come with it must not change its rows.
        tables = [self.session.run(None, {"pixel_values": one[None, None]})[0][0] for row in pixels for one in row]
        table = np.concatenate(tables).reshape(len(pixels), -1, tables[0].shape[-1])
        return {
            "OUT_PROMPT_EMBEDDING_TABLE": table,
            "OUT_PROMPT_VOCAB_SIZE": np.full((len(pixels), 1), table.shape[1], np.int32),
        }
