"""`preprocessing`: text to token ids, in the shape that `tensorrt_llm` takes (taught in notebook 03).

Its tensors are those of NVIDIA's `inflight_batcher_llm/preprocessing`. Rows are padded on the right with the pad id;
the real lengths are in REQUEST_INPUT_LEN. DECODER_QUERY is for models that are not served here, and has no effect.

OUT_END_ID has room for one id, and many chat models end a turn with any of several: the others become stop words, as
in TensorRT-LLM's LLM API. NVIDIA's model takes the tokenizer's one. A client that gives END_ID ends with that alone.
"""

import json
from collections.abc import Sequence

import numpy as np

from reference_backend.models import common
from reference_backend.models.common import InputError, Tensors
from reference_backend.models.text import Tokenizer

# Tokenising takes a second for each megabyte, and everybody waits. No engine here reads that much.
MAX_PROMPT_BYTES = 2 * 2**20
# Of one request, all rows together. Every token that is generated is compared with the stop words in the text, too.
WORDS = ("STOP_WORDS_DICT", "BAD_WORDS_DICT", "EMBEDDING_BIAS_WORDS")
MAX_WORDS, MAX_WORD_BYTES = 1024, 2**14


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.name = config["name"]
        self.tokenizer = Tokenizer(common.parameter(config, "tokenizer_dir"))
        self.add_special_tokens = common.flag(config, "add_special_tokens", True)
        self.ends = [[token] for token in self.tokenizer.other_ends]

    def execute(self, requests):
        return common.respond(requests, self._encode, self.name)

    def _encode(self, inputs: Tensors) -> Tensors:
        common.text_only(inputs, self.name)
        common.require(inputs, "QUERY", "REQUEST_OUTPUT_LEN")
        words = [word for name in WORDS if name in inputs for word in inputs[name].reshape(-1)]
        if len(words) > MAX_WORDS or sum(map(len, words)) > MAX_WORD_BYTES:
            raise InputError(
                f"{', '.join(WORDS)} hold {len(words):,} words of {sum(map(len, words)):,} bytes together, and at most "
                f"{MAX_WORDS:,} words of {MAX_WORD_BYTES:,} bytes are read; give fewer or shorter ones."
            )
        rows = len(inputs["QUERY"])
        end_id = inputs.get("END_ID", np.full((rows, 1), self.tokenizer.end_id, np.int32))
        pad_id = inputs.get("PAD_ID", np.full((rows, 1), self.tokenizer.pad_id, np.int32))
        ids, lengths = self._ids(inputs["QUERY"], pad_id)
        return {
            "INPUT_ID": ids,
            "REQUEST_INPUT_LEN": lengths,
            "DECODER_INPUT_ID": pad_id.reshape(rows, 1),
            "REQUEST_DECODER_INPUT_LEN": np.ones((rows, 1), np.int32),
            "BAD_WORDS_IDS": self._words(inputs, "BAD_WORDS_DICT", rows),
            "STOP_WORDS_IDS": self._words(inputs, "STOP_WORDS_DICT", rows, [] if "END_ID" in inputs else self.ends),
            "EMBEDDING_BIAS": self._bias(inputs, rows),
            "REQUEST_OUTPUT_LEN": inputs["REQUEST_OUTPUT_LEN"],
            "OUT_END_ID": end_id,
            "OUT_PAD_ID": pad_id,
        }

    def _ids(self, query: np.ndarray, pad_id: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids `[rows, longest]` and lengths `[rows, 1]`."""
        if (longest := max(map(len, query.reshape(-1)), default=0)) > MAX_PROMPT_BYTES:
            raise InputError(f"QUERY has {longest:,} bytes, and at most {MAX_PROMPT_BYTES:,} are read; shorten it.")
        rows = [self.tokenizer.encode(text, self.add_special_tokens) for text in common.texts(query, "QUERY")]
        ids = np.repeat(pad_id.reshape(-1, 1).astype(np.int32), max(map(len, rows)), axis=1)
        for target, row in zip(ids, rows, strict=True):
            target[: len(row)] = row
        return ids, np.array([[len(row)] for row in rows], np.int32)

    def _word_ids(self, inputs: Tensors, name: str) -> list[list[list[int]]]:
        """Ids of each word of each row, without special tokens."""
        return [[self.tokenizer.encode(word, False) for word in common.texts(row, name)] for row in inputs[name]]

    def _words(self, inputs: Tensors, name: str, rows: int, more: Sequence[list[int]] = ()) -> np.ndarray:
        """The client's words, and `more`."""
        if name not in inputs and not more:
            return np.zeros((rows, 2, 0), np.int32)
        given = self._word_ids(inputs, name) if name in inputs else [[]] * rows
        return common.encode_words([[*words, *more] for words in given])

    def _bias(self, inputs: Tensors, rows: int) -> np.ndarray:
        """FP32 `[rows, vocabulary]`: each word's weight added to each of its ids; `[rows, 0]` when unused."""
        given = [name for name in ("EMBEDDING_BIAS_WORDS", "EMBEDDING_BIAS_WEIGHTS") if name in inputs]
        if not given:
            return np.zeros((rows, 0), np.float32)
        if len(given) == 1:
            raise InputError("EMBEDDING_BIAS_WORDS and EMBEDDING_BIAS_WEIGHTS belong together: give both or neither.")
        words, weights = self._word_ids(inputs, "EMBEDDING_BIAS_WORDS"), inputs["EMBEDDING_BIAS_WEIGHTS"]
        if inputs["EMBEDDING_BIAS_WORDS"].shape != weights.shape:
            raise InputError(
                f"EMBEDDING_BIAS_WEIGHTS needs one weight for each word: shape {list(weights.shape)} does not match "
                f"{list(inputs['EMBEDDING_BIAS_WORDS'].shape)}."
            )
        bias = np.zeros((rows, self.tokenizer.size), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # `tensorrt_llm` refuses what is not finite
            for target, row, row_weights in zip(bias, words, weights, strict=True):
                for word, weight in zip(row, row_weights, strict=True):
                    np.add.at(target, word, weight)
        return bias
