"""What a decoder-only model is made of: one Shape, and from it every weight that a rank holds (notebook 02).

Names and splits are those of a TensorRT-LLM checkpoint (tensorrt_llm.models.{llama,gpt,gemma}, 0.9 to 1.3.0rc3).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from engines import EngineError
from engines.compass import table
from servinglab.errors import did_you_mean
from servinglab.repository.assets_check import engine_config, exists

# How each architecture is called in a config.json of Hugging Face (model_type) or of TensorRT-LLM (architecture).
FAMILIES = {
    "llama": ("llama", "mistral", "LlamaForCausalLM", "MistralForCausalLM"),
    "gpt2": ("gpt2", "GPT2LMHeadModel", "GPTForCausalLM"),
    "gemma": ("gemma", "GemmaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
}


class Weight(NamedTuple):
    """One tensor: its shape on this rank, and whether weight-only quantisation applies to it."""

    shape: tuple[int, ...]
    linear: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The numbers of one model. `max_positions`: rows of the table of positions, learned or of rotations."""

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_positions: int
    tied: bool
    gated: bool = True
    learned_positions: bool = False
    scaled_positions: bool = False
    norm_bias: bool = False
    qkv_bias: bool = False
    dense_bias: bool = False
    mlp_bias: bool = False
    parallel_embedding: bool = False

    def check(self, tp_size: int, pp_size: int) -> None:
        """Raise EngineError where a split over tp_size × pp_size GPUs does not come out even."""
        for what, count in (("attention heads", self.num_heads), ("MLP columns", self.intermediate_size)):
            if count % tp_size:
                raise EngineError(
                    f"tp_size {tp_size} does not divide the {count} {what} of {self.name}; choose one that does."
                )
        if self.num_kv_heads % tp_size and tp_size % self.num_kv_heads:
            raise EngineError(
                f"tp_size {tp_size} and the {self.num_kv_heads} KV heads of {self.name} do not divide each other; "
                f"choose a tp_size that divides them, or a multiple of them."
            )
        if pp_size > self.num_layers:
            raise EngineError(f"pp_size {pp_size} is more than the {self.num_layers} layers of {self.name}.")

    def beyond(self, seq_len: int) -> str | None:
        """A warning where sequences are longer than the positions of the model; None where they are not.

        trtllm-build warns as well, and builds. Rotations may be stretched (rope_scaling); then nothing is said.
        """
        if seq_len <= self.max_positions or self.scaled_positions:
            return None
        has = "has a table of" if self.learned_positions else "was trained for"
        return (
            f"{self.name} {has} {self.max_positions} positions, and max_seq_len is {seq_len}: trtllm-build only warns, "
            f"but what the model says beyond position {self.max_positions} is not to be trusted."
        )

    def kv_heads(self, tp_size: int) -> int:
        """KV heads on one GPU: below one head a GPU, every GPU keeps a copy of its head."""
        return max(1, self.num_kv_heads // tp_size)

    def layers(self, pp_size: int, pp_rank: int) -> int:
        """Layers on one stage; the first stages take what does not divide."""
        return self.num_layers // pp_size + (pp_rank < self.num_layers % pp_size)

    def vocab(self, tp_size: int) -> int:
        """Vocabulary, padded to a multiple of tp_size as the output matrix is."""
        return -(-self.vocab_size // tp_size) * tp_size

    def weights(self, *, tp_size: int = 1, pp_size: int = 1, pp_rank: int = 0) -> dict[str, Weight]:
        """{name: Weight} of one rank; all ranks of a stage hold the same. Layers are numbered in their stage."""
        found: dict[str, Weight] = {}
        if pp_rank == 0:
            rows = self.vocab(tp_size) // tp_size if self.parallel_embedding else self.vocab_size
            found["transformer.vocab_embedding.weight"] = Weight((rows, self.hidden_size))
            if self.learned_positions:
                found["transformer.position_embedding.weight"] = Weight((self.max_positions, self.hidden_size))
        for layer in range(self.layers(pp_size, pp_rank)):
            found |= {f"transformer.layers.{layer}.{name}": w for name, w in self._layer(tp_size)}
        if pp_rank == pp_size - 1:
            found |= {f"transformer.ln_f.{name}": w for name, w in self._norm()}
            found["lm_head.weight"] = Weight((self.vocab(tp_size) // tp_size, self.hidden_size))
        return found

    def parameters(self) -> int:
        """What transformers counts: a tied output matrix is the embedding and counts once."""
        once = {"lm_head.weight"} if self.tied else set()
        return sum(w.size for name, w in self.weights().items() if name not in once)

    def _norm(self) -> Iterator[tuple[str, Weight]]:
        yield "weight", Weight((self.hidden_size,))
        if self.norm_bias:
            yield "bias", Weight((self.hidden_size,))

    def _layer(self, tp: int) -> Iterator[tuple[str, Weight]]:
        hidden, columns = self.hidden_size, self.intermediate_size // tp
        queries = self.num_heads // tp * self.head_size
        qkv = queries + 2 * self.kv_heads(tp) * self.head_size
        matrices = [
            ("attention.qkv", (qkv, hidden), self.qkv_bias),
            ("attention.dense", (hidden, queries), self.dense_bias),
            ("mlp.fc", (columns, hidden), self.mlp_bias),
            ("mlp.proj", (hidden, columns), self.mlp_bias),
        ]
        if self.gated:
            matrices.append(("mlp.gate", (columns, hidden), self.mlp_bias))
        for norm in ("input_layernorm", "post_layernorm"):
            yield from ((f"{norm}.{name}", w) for name, w in self._norm())
        for name, shape, bias in matrices:
            yield f"{name}.weight", Weight(shape, linear=True)
            if bias:
                yield f"{name}.bias", Weight(shape[:1])


def recipe_model(name: str) -> tuple[dict[str, Any], int] | None:
    """(config.json, tp_size) of a model of the recipes, or None where the name is not one."""
    entry = table("models").get(name)
    if entry is None:
        return None
    return table("models")[entry.get("same_as", name)]["config"], entry.get("tp_size", 1)


def read_config(path: Path) -> dict[str, Any]:
    """The config.json of a folder. Raises EngineError with one sentence when it is none."""
    if not exists(path):
        names = table("models")
        raise EngineError(
            f"{path} is neither a folder nor one of the models {', '.join(names)}.{did_you_mean(str(path), names)}"
        )
    where = path / "config.json"
    if not exists(where):
        raise EngineError(f"{path} holds no config.json: give the folder of a checkpoint or of an engine.")
    config = engine_config(path)
    if config is None:
        raise EngineError(f"{where} is no JSON object that can be read: write the folder again.")
    return config


def from_config(config: Mapping[str, Any], name: str) -> Shape:
    """The Shape that a config.json describes: of Hugging Face, of a TensorRT-LLM checkpoint, or of an engine.

    `name` is for messages. Raises EngineError for an architecture that is not known and for missing or wrong numbers.
    """
    config = config.get("pretrained_config", config)
    if not isinstance(config, Mapping):
        raise EngineError(f"{name}: pretrained_config in config.json is no JSON object.")
    said = config.get("architecture") or config.get("model_type")
    family = next((family for family, names in FAMILIES.items() if said in names), None)
    if family is None:
        raise EngineError(f"{name} is a model of type {said!r}; known are {', '.join(FAMILIES)}.")

    def number(*keys: str, default: int | None = None) -> int:
        for key in keys:
            if (value := config.get(key)) is not None:
                if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
                    raise EngineError(f"{name}: {key} in config.json must be a whole number above 0, not {value!r}.")
                return value
        if default is None:
            raise EngineError(f"{name}: config.json lacks {keys[0]}.")
        return default

    hidden, heads = number("hidden_size", "n_embd"), number("num_attention_heads", "n_head")
    kv_heads = number("num_key_value_heads", default=heads)
    head_size = number("head_size", "head_dim", default=hidden // heads)
    if heads % kv_heads or head_size < 1:
        raise EngineError(
            f"{name}: {heads} heads, {kv_heads} KV heads and width {hidden} in config.json do not go together."
        )
    gpt, biased = family == "gpt2", bool(config.get("attention_bias", config.get("attn_bias", False)))
    return Shape(
        name=name,
        vocab_size=number("vocab_size"),
        hidden_size=hidden,
        intermediate_size=number("intermediate_size", "n_inner", default=4 * hidden if gpt else None),
        num_layers=number("num_hidden_layers", "n_layer"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        max_positions=number("max_position_embeddings", "n_positions", default=2048),
        tied=bool(config.get("tie_word_embeddings", family in ("gpt2", "gemma"))),
        gated=not gpt,
        learned_positions=gpt,
        scaled_positions=bool(config.get("rope_scaling") or config.get("rotary_scaling")),
        norm_bias=gpt,
        qkv_bias=gpt or biased or family == "qwen2",
        dense_bias=gpt or biased,
        mlp_bias=gpt or bool(config.get("mlp_bias", False)),
        parallel_embedding=family == "gemma" or bool(config.get("use_parallel_embedding", False)),
    )
