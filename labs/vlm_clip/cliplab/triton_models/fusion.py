"""`fusion`: the vector of a picture, of a text, or of both together; and the labels that lie nearest to it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

NOTHING = "Neither a picture nor a text was given: send one of them, or both."


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"], args["model_version"])
        self.labels = np.array(json.loads((folder / "labels.json").read_text("utf-8")), dtype=object)
        self.vectors = np.load(folder / "labels.npy", allow_pickle=False)  # [labels, size], each of length 1
        outputs = {output["name"]: output["dims"] for output in json.loads(args["model_config"])["output"]}
        self.top = outputs["labels"][0]

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        total = sum(_part(given[f"{kind}_embedding"], given[f"has_{kind}"]) for kind in ("image", "text"))
        length = np.linalg.norm(total, axis=1, keepdims=True)
        if not length.all():
            error = pb_utils.TritonError(NOTHING, pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(output_tensors=[], error=error)
        embedding = total / length
        scores = embedding @ self.vectors.T  # cosines, because all vectors have length 1
        best = np.argsort(-scores, axis=1, kind="stable")[:, : self.top]
        names = np.array([name.encode() for name in self.labels[best].reshape(-1)], dtype=object).reshape(best.shape)
        outputs = {"embedding": embedding, "labels": names, "scores": np.take_along_axis(scores, best, axis=1)}
        return pb_utils.InferenceResponse([pb_utils.Tensor(*output) for output in outputs.items()])


def _part(vectors, there):
    """Vectors of length 1, so that a longer one has no greater say; 0 where nothing was given. Both: [rows, size]."""
    vectors = np.where(there, vectors, 0)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
