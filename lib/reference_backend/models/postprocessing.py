"""`postprocessing`: token ids to text (taught in notebook 03).

It decodes exactly the ids it is given: a chunk that ends inside a multi-byte character ends in U+FFFD. Streaming
through the ensemble shows that; `tensorrt_llm_bls` avoids it by sending each chunk with the ids before it.
"""

from __future__ import annotations

import json

import numpy as np
import triton_python_backend_utils as pb_utils

from reference_backend.models.common import InputError, error_response, flag, inputs_of, parameter, require
from reference_backend.models.text import Tokenizer


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.name = config["name"]
        self.tokenizer = Tokenizer(parameter(config, "tokenizer_dir"))
        self.skip_special_tokens = flag(config, "skip_special_tokens", True)

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        try:
            inputs = inputs_of(request)
            require(inputs, "TOKENS_BATCH", "SEQUENCE_LENGTH")
            decoded = self._decode(inputs["TOKENS_BATCH"], inputs["SEQUENCE_LENGTH"])
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array(decoded, np.object_))])
        except Exception as error:
            return error_response(error, self.name)

    def _decode(self, tokens: np.ndarray, lengths: np.ndarray) -> list[str]:
        """`tokens` INT32 `[rows, beams, longest]`, `lengths` `[rows, beams]` -> `rows * beams` strings."""
        if tokens.ndim != 3 or lengths.shape != tokens.shape[:2]:
            raise InputError(
                f"TOKENS_BATCH must be [rows, beams, tokens] and SEQUENCE_LENGTH [rows, beams]; "
                f"got {list(tokens.shape)} and {list(lengths.shape)}."
            )
        if (lengths < 0).any() or (lengths > tokens.shape[2]).any():
            wrong = lengths[(lengths < 0) | (lengths > tokens.shape[2])][0]
            raise InputError(f"SEQUENCE_LENGTH is {wrong}; it must be from 0 to {tokens.shape[2]}, the ids of a row.")
        beams = tokens.reshape(lengths.size, tokens.shape[2])
        return [
            self.tokenizer.decode(ids[:length].tolist(), self.skip_special_tokens)
            for ids, length in zip(beams, lengths.reshape(-1), strict=True)
        ]
