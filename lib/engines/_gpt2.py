"""GPT-2: names, shapes and config.json of its TensorRT-LLM checkpoint.

Its layers are Conv1D, stored [in, out] and therefore turned here; q, k and v already lie beside each other.
"""

from __future__ import annotations

from typing import Any

from engines import EngineError
from engines.source import Source
from engines.split import Part

ARCHITECTURE = "GPT2LMHeadModel"
PARALLEL_EMBEDDING = False
TIED = True
_PLAIN = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}


def config(source: Source) -> dict[str, Any]:
    """The keys of pretrained_config that depend on the model."""
    for key, plain in _PLAIN.items():
        if source.get(key, plain) != plain:
            raise EngineError(f"{source.folder}/config.json sets {key}, which this layout cannot express.")
    hidden, heads = source.whole("n_embd"), source.whole("n_head")
    if hidden % heads:
        raise EngineError(f"{source.folder}/config.json: n_head {heads} does not divide n_embd {hidden}.")
    return {
        "vocab_size": source.whole("vocab_size"),
        "max_position_embeddings": source.whole("n_positions"),
        "hidden_size": hidden,
        "intermediate_size": source.whole("n_inner", 4 * hidden),
        "num_hidden_layers": source.whole("n_layer"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_size": hidden // heads,
        "hidden_act": source.activation("activation_function", "gelu_new"),
        "norm_epsilon": source.number("layer_norm_epsilon", 1e-5),
        "position_embedding_type": "learned_absolute",
        "gpt_variant": "gpt2",
        "bias": True,
        "q_scaling": 1.0,
        "embedding_scale": None,
        "apply_query_key_layer_scaling": False,
        "rotary_pct": 1.0,
        "rotary_base": 10000.0,
        "rotary_scaling": None,
        "inner_layernorm": False,
        "norm_before_bmm1": False,
    }


def tensors(source: Source, config: dict[str, Any]) -> dict[str, tuple[Part, ...]]:
    """{name in the checkpoint: its parts}."""
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    prefix = "transformer." if "transformer.wte.weight" in source.names else ""  # the hub's gpt2 has none
    found = {
        "transformer.vocab_embedding.weight": (Part(f"{prefix}wte.weight", (vocab, hidden)),),
        "transformer.position_embedding.weight": (
            Part(f"{prefix}wpe.weight", (config["max_position_embeddings"], hidden)),
        ),
    }

    def layer(there: str, here: str, out: int, into: int, axis: int) -> None:
        found[f"{here}.weight"] = (Part(f"{there}.weight", (out, into), axis=axis, conv1d=True),)
        # A row-parallel layer adds its bias after the all-reduce: every rank has the whole of it.
        found[f"{here}.bias"] = (Part(f"{there}.bias", (out,), axis=0 if axis == 0 else None),)

    def norm(there: str, here: str) -> None:
        for kind in ("weight", "bias"):
            found[f"{here}.{kind}"] = (Part(f"{there}.{kind}", (hidden,)),)

    for n in range(config["num_hidden_layers"]):
        there, here = f"{prefix}h.{n}", f"transformer.layers.{n}"
        for kind, shape in (("weight", (hidden, hidden)), ("bias", (hidden,))):
            found[f"{here}.attention.qkv.{kind}"] = tuple(
                Part(f"{there}.attn.c_attn.{kind}", shape, axis=0, offset=i * hidden, rows=3 * hidden, conv1d=True)
                for i in range(3)
            )
        layer(f"{there}.attn.c_proj", f"{here}.attention.dense", hidden, hidden, axis=1)
        layer(f"{there}.mlp.c_fc", f"{here}.mlp.fc", ffn, hidden, axis=0)
        layer(f"{there}.mlp.c_proj", f"{here}.mlp.proj", hidden, ffn, axis=1)
        norm(f"{there}.ln_1", f"{here}.input_layernorm")
        norm(f"{there}.ln_2", f"{here}.post_layernorm")
    norm(f"{prefix}ln_f", "transformer.ln_f")
    head = f"{prefix}wte.weight" if source.get("tie_word_embeddings", TIED) else "lm_head.weight"
    found["lm_head.weight"] = (Part(head, (vocab, hidden), axis=0, padded=True),)
    return found
