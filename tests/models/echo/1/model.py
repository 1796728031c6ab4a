"""Test model: sends the text back, and a JSON account of every input that arrived (datatype, shape, values)."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            seen, text = {}, None
            for tensor in request.inputs():
                values = tensor.as_numpy()
                if tensor.name() == "text_input":
                    text = values
                listed = [v.decode() if isinstance(v, bytes) else v.item() for v in values.reshape(-1)]
                seen[tensor.name()] = [str(values.dtype), list(values.shape), listed]
            if b"fail" in text.reshape(-1):
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("echo refuses the word fail")))
                continue
            account = np.full(text.shape, json.dumps(seen).encode(), dtype=object)
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text), pb_utils.Tensor("seen", account)])
            )
        return responses
