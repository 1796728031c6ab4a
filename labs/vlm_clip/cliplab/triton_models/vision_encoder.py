"""`vision_encoder`: prepared pictures to vectors of length 1, all requests of a batch in one run of ONNX Runtime.

Not a number in, not a number out: rows without a picture are not worth a computation.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.size = config["output"][0]["dims"][0]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(config["parameters"]["threads"]["string_value"])
        path = Path(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        parts = [pb_utils.get_input_tensor_by_name(request, "pixel_values").as_numpy() for request in requests]
        vectors = self._encode(np.concatenate(parts))
        answers = np.split(vectors, np.cumsum([len(part) for part in parts])[:-1])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("image_embedding", answer)]) for answer in answers]

    def _encode(self, pixels):
        there = ~np.isnan(pixels[:, 0, 0, 0])
        vectors = np.full((len(pixels), self.size), np.nan, np.float32)
        if there.any():
            try:
                vectors[there] = self.session.run(["image_embedding"], {"pixel_values": pixels[there]})[0]
            except Exception as error:  # an error here could hang the ensemble; `fusion` finds what is not a number
                pb_utils.Logger.log_error(f"vision_encoder: {error}")
        return vectors
