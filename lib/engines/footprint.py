"""The parts of GPU memory, one function each; `memory` adds them up (notebook 02). All results are bytes on one GPU.

Weights and KV cache follow from the shapes and are exact. What TensorRT needs between the layers and what the runtime
needs for logits are bounds; the comments name the public logs that they were compared with.
"""

import bisect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engines import EngineError
from engines.config import Config
from engines.families import FAMILIES, GEMMA, GPT2, LLAMA, Family, biases, is_quantised, layout, sizes
from engines.split import fused_shape

DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}
KV_DTYPES = DTYPES | {"int8": 1, "fp8": 1}
WEIGHT_ONLY = {"int8": 1.0, "int4": 0.5}  # bytes of one weight

# Logits of a sequence are copied, penalised, sorted: float32 rows of the vocabulary in the runtime and its decoder.
# Public logs show 7.3 (TensorRT-LLM issue 1188: 2,048 sequences, 151,936 entries) and 11.2 (benchmarking page of the
# 0.12 documentation: 4,096 sequences, 32,000 entries).
LOGIT_ROWS = 12
WORKSPACE = 64 * 2**20  # of matrix products; issue 1188 shows 43 MiB where hardly any tokens are to be held
# CUDA context, libraries, allocator. The example log of TensorRT-LLM's memory page leaves 0.76 GiB after all it names.
MARGIN = 2**30

# How families are called in a config.json of Hugging Face (model_type) or of TensorRT-LLM (architecture).
_KNOWN = FAMILIES | {family.architecture: family for family in FAMILIES.values()}
_QWEN = ("qwen2", "Qwen2ForCausalLM")
_KNOWN |= {"GPTForCausalLM": GPT2} | dict.fromkeys(("mistral", "MistralForCausalLM", *_QWEN), LLAMA)


@dataclass(frozen=True)
class Shape:
    """The numbers of one model. config: the sizes as TensorRT-LLM names them, and which layers have a bias. stretched:
    rotations go on beyond the positions that the model was trained for (rope_scaling).
    """

    name: str
    family: Family
    config: Mapping[str, Any]
    tied: bool
    stretched: bool = False

    def __getitem__(self, key: str) -> Any:
        return self.config[key]

    def beyond(self, seq_len: int) -> str | None:
        """A warning where sequences are longer than the positions of the model; trtllm-build only warns as well."""
        most = self["max_position_embeddings"]
        if seq_len <= most or self.stretched:
            return None
        has = "has a table of" if self.family is GPT2 else "was trained for"
        return (
            f"{self.name} {has} {most} positions, and {seq_len} tokens are asked for: trtllm-build only warns, but "
            f"what the model says beyond position {most} is not to be trusted."
        )

    def kv_heads(self, tp_size: int) -> int:
        """KV heads on one GPU: below one head a GPU, every GPU keeps a copy of its head."""
        return max(1, self["num_key_value_heads"] // tp_size)

    def vocab(self, tp_size: int) -> int:
        """Vocabulary, padded to a multiple of tp_size as the output matrix is."""
        return -(-self["vocab_size"] // tp_size) * tp_size

    def weights(self, tp_size: int = 1) -> dict[str, tuple[int, ...]]:
        """{name: shape} of one rank, as the converter writes them; all ranks hold the same shapes."""
        parts_of = layout(self.family, self.config, tied=self.tied)
        return {name: fused_shape(parts, tp_size) for name, parts in parts_of.items()}

    def parameters(self) -> int:
        """What transformers counts: a tied output matrix is the embedding and counts once."""
        return sum(math.prod(s) for name, s in self.weights().items() if not (self.tied and name == "lm_head.weight"))


def from_config(config: Mapping[str, Any], name: str) -> Shape:
    """The Shape that a config.json describes: of Hugging Face, of a TensorRT-LLM checkpoint, or of an engine.

    `name` is for messages. Raises EngineError for an architecture that is not known and for missing or wrong numbers.
    """
    where = f"config.json of {name}"
    read = Config(Config(config, where).part("pretrained_config") or config, where)
    kind = read.get("architecture") or read.get("model_type")
    family = _KNOWN.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise EngineError(f"{name} is a model of type {kind!r}; known are {', '.join(FAMILIES)}, mistral and qwen2.")
    flags = {"qkv_bias": kind in _QWEN, **biases(read)}
    flags["use_parallel_embedding"] = family is GEMMA or bool(read.get("use_parallel_embedding", False))
    tied = bool(read.get("tie_word_embeddings", family.tied))
    stretched = bool(read.get("rope_scaling") or read.get("rotary_scaling"))
    return Shape(name, family, sizes(read, family) | flags, tied, stretched)


def weights(shape: Shape, dtype: str, weight_only: str | None, tp_size: int) -> int:
    """Weights of an engine.

    With weight_only ("int8", "int4") the linear layers of the blocks shrink and get one scale, in dtype, for every
    output. A tied output matrix counts although it equals the embedding: a build log of GPT-2 with TensorRT-LLM 0.20
    says 326,085,504 bytes, which is both. (From 0.16 on one table is to be shared wherever it can be, data/flags.toml;
    then this is an upper bound.) Rotary models add a float32 table of rotations.
    """
    width = DTYPES[dtype]
    total = rotations(shape)
    for name, dims in shape.weights(tp_size).items():
        if weight_only and is_quantised(name):
            total += math.ceil(math.prod(dims) * WEIGHT_ONLY[weight_only]) + dims[0] * width
        else:
            total += math.prod(dims) * width
    return total


def rotations(shape: Shape) -> int:
    """The float32 table of rotations that a build adds to the weights of a rotary model; no checkpoint holds it."""
    return 0 if shape.family is GPT2 else shape["max_position_embeddings"] * shape["head_size"] * 4


def kv_per_token(shape: Shape, kv_dtype: str, tp_size: int = 1) -> int:
    """A key and a value of one token in every layer of one GPU."""
    return 2 * shape["num_hidden_layers"] * shape.kv_heads(tp_size) * shape["head_size"] * KV_DTYPES[kv_dtype]


def activations(shape: Shape, dtype: str, tp_size: int, max_num_tokens: int, rows: int) -> int:
    """An upper bound on TensorRT's execution context: all that one layer produces for max_num_tokens tokens, nothing
    reused (norms, residuals, q, k, v, attention, MLP), as TensorRT keeps one layer at a time; the logits of `rows`
    sequences; a workspace. Public logs show 50 to 92 % of it.
    """
    split = 2 * (shape["num_attention_heads"] // tp_size + shape.kv_heads(tp_size)) * shape["head_size"]
    split += (2 if shape.family is GPT2 else 3) * shape["intermediate_size"] // tp_size
    layer = max_num_tokens * (6 * shape["hidden_size"] + split)
    return (layer + rows * shape.vocab(tp_size)) * DTYPES[dtype] + WORKSPACE


def logits(shape: Shape, tp_size: int, rows: int, context_tokens: int = 0) -> int:
    """An upper bound on the runtime's and the decoder's buffers; context_tokens: prompt tokens whose logits are kept.

    The C++ decoder gets the logits of the whole vocabulary on every GPU.
    """
    return (LOGIT_ROWS * rows + context_tokens) * shape.vocab(tp_size) * 4


def pool(free: int, per_token: int, tokens_per_block: int, fraction: float) -> tuple[int, int]:
    """(tokens, bytes) of the paged KV cache: a share of the bytes that are free, in whole blocks.

    As BaseKVCacheManager::calculateMaxNumBlocks does: the last block is rounded up.
    """
    blocks = math.ceil(max(0, int(free * fraction) // per_token) / tokens_per_block)
    return blocks * tokens_per_block, blocks * tokens_per_block * per_token


def largest(fits: Callable[[int], bool], most: int = 2**20) -> int:
    """The largest number up to `most` that fits; 0 when not even 1 does."""
    return bisect.bisect_left(range(1, most + 1), True, key=lambda number: not fits(number))
