"""`postprocessing`: token ids to text (taught in notebook 03).

It decodes exactly the ids it is given: a chunk that ends inside a multi-byte character ends in U+FFFD. Streaming
through the ensemble shows that; `tensorrt_llm_bls` avoids it by sending each chunk with the ids before it.
"""

import json

import numpy as np

from reference_backend.models.common import InputError, Tensors, flag, parameter, require, respond
from reference_backend.models.text import Tokenizer


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.name = config["name"]
        self.tokenizer = Tokenizer(parameter(config, "tokenizer_dir"))
        self.skip_special_tokens = flag(config, "skip_special_tokens", True)

    def execute(self, requests):
        return respond(requests, self._decode, self.name)

    def _decode(self, inputs: Tensors) -> Tensors:
        """TOKENS_BATCH INT32 `[rows, beams, longest]`, SEQUENCE_LENGTH `[rows, beams]` -> `rows * beams` strings."""
        require(inputs, "TOKENS_BATCH", "SEQUENCE_LENGTH")
        tokens, lengths = inputs["TOKENS_BATCH"], inputs["SEQUENCE_LENGTH"]
        if tokens.ndim != 3 or lengths.shape != tokens.shape[:2]:
            raise InputError(
                f"TOKENS_BATCH must be [rows, beams, tokens] and SEQUENCE_LENGTH [rows, beams]; "
                f"got {list(tokens.shape)} and {list(lengths.shape)}."
            )
        if (lengths < 0).any() or (lengths > tokens.shape[2]).any():
            wrong = lengths[(lengths < 0) | (lengths > tokens.shape[2])][0]
            raise InputError(f"SEQUENCE_LENGTH is {wrong}; it must be from 0 to {tokens.shape[2]}, the ids of a row.")
        beams = tokens.reshape(lengths.size, tokens.shape[2])
        decoded = [
            self.tokenizer.decode(ids[:length].tolist(), self.skip_special_tokens)
            for ids, length in zip(beams, lengths.reshape(-1), strict=True)
        ]
        return {"OUTPUT": np.array(decoded, np.object_)}
