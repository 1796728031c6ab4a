"""`vision_encoder`: prepared pictures to vectors of length 1, all requests of a batch in one run of ONNX Runtime."""

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
        pixels = np.concatenate(parts)
        there = ~np.isnan(pixels[:, 0, 0, 0])  # rows without a picture are not worth the computation
        vectors = np.full((len(pixels), self.size), np.nan, np.float32)
        if there.any():
            vectors[there] = self.session.run(["image_embedding"], {"pixel_values": pixels[there]})[0]
        answers = np.split(vectors, np.cumsum([len(part) for part in parts])[:-1])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("image_embedding", answer)]) for answer in answers]
