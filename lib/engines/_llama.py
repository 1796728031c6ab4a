"""Llama: names, shapes and config.json of its TensorRT-LLM checkpoint. SmolLM2 is one of them."""

from __future__ import annotations

from typing import Any

from engines import EngineError
from engines.source import Source
from engines.split import Part

ARCHITECTURE = "LlamaForCausalLM"
_ROPE = {  # what each kind of scaling must say
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
PARALLEL_EMBEDDING = False  # every rank holds the whole embedding table
TIED = False  # what a config.json means that does not say


def config(source: Source) -> dict[str, Any]:
    """The keys of pretrained_config that depend on the model."""
    base, scaling = rotary(source)
    return {
        **sizes(source),
        "hidden_act": source.activation("hidden_act", "silu"),
        "norm_epsilon": source.number("rms_norm_eps", 1e-6),
        "position_embedding_type": "rope_gpt_neox",
        "attn_bias": bool(source.get("attention_bias", False)),
        "mlp_bias": bool(source.get("mlp_bias", False)),
        "rotary_base": base,
        "rotary_scaling": scaling,
        "residual_mlp": False,
        "disable_weight_only_quant_plugin": False,
    }


def sizes(source: Source) -> dict[str, int]:
    hidden, heads = source.whole("hidden_size"), source.whole("num_attention_heads")
    return {
        "vocab_size": source.whole("vocab_size"),
        "max_position_embeddings": source.whole("max_position_embeddings", 2048),
        "hidden_size": hidden,
        "intermediate_size": source.whole("intermediate_size"),
        "num_hidden_layers": source.whole("num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": source.whole("num_key_value_heads", heads),
        "head_size": source.whole("head_dim", hidden // heads),
    }


def rotary(source: Source) -> tuple[float, dict[str, Any] | None]:
    """rotary_base and rotary_scaling; transformers 5 keeps both in rope_parameters, older ones apart."""
    found = [source.get(key, {}) for key in ("rope_scaling", "rope_parameters")]
    if not all(isinstance(part, dict) for part in found):
        raise EngineError(f"{source.folder}/config.json: rope_scaling and rope_parameters must be objects.")
    scaling = {**found[0], **found[1]}
    base = source.number("rope_theta", scaling.pop("rope_theta", 10000.0))
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if not isinstance(kind, str) or kind not in _ROPE or scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise EngineError(
            f"{source.folder}/config.json asks for rotary scaling {kind!r} {scaling}, which is not converted; "
            f"{', '.join(_ROPE)} are."
        )
    missing = [key for key in _ROPE[kind] if not isinstance(scaling.get(key), (int, float))]
    if missing:
        raise EngineError(f"{source.folder}/config.json: rotary scaling {kind!r} has no {missing[0]}.")
    return base, {**scaling, "type": kind, "rope_type": kind} if _ROPE[kind] else None


def tensors(source: Source, config: dict[str, Any], *, norm_plus: float = 0.0) -> dict[str, tuple[Part, ...]]:
    """{name in the checkpoint: its parts}. norm_plus: added to the norms (Gemma)."""
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_size"]

    def norm(name: str) -> tuple[Part]:
        return (Part(f"{name}.weight", (hidden,), plus=norm_plus),)

    embedding = Part("model.embed_tokens.weight", (vocab, hidden))
    if config["use_parallel_embedding"]:
        embedding = Part(embedding.name, embedding.shape, axis=0, padded=True)
    head = embedding.name if source.get("tie_word_embeddings", TIED) else "lm_head.weight"
    found = {"transformer.vocab_embedding.weight": (embedding,)}
    for n in range(config["num_hidden_layers"]):
        there, here = f"model.layers.{n}", f"transformer.layers.{n}"
        q, k, v, o = (f"{there}.self_attn.{x}_proj" for x in "qkvo")
        gate, up, down = (f"{there}.mlp.{x}_proj" for x in ("gate", "up", "down"))
        found[f"{here}.attention.qkv.weight"] = (
            Part(f"{q}.weight", (heads * size, hidden), axis=0),
            Part(f"{k}.weight", (kv_heads * size, hidden), axis=0, heads=kv_heads),
            Part(f"{v}.weight", (kv_heads * size, hidden), axis=0, heads=kv_heads),
        )
        found[f"{here}.attention.dense.weight"] = (Part(f"{o}.weight", (hidden, heads * size), axis=1),)
        # The gated half is `fc` here and gate_proj there; `gate` is up_proj: act(fc) * gate.
        found[f"{here}.mlp.fc.weight"] = (Part(f"{gate}.weight", (ffn, hidden), axis=0),)
        found[f"{here}.mlp.gate.weight"] = (Part(f"{up}.weight", (ffn, hidden), axis=0),)
        found[f"{here}.mlp.proj.weight"] = (Part(f"{down}.weight", (hidden, ffn), axis=1),)
        found[f"{here}.input_layernorm.weight"] = norm(f"{there}.input_layernorm")
        found[f"{here}.post_layernorm.weight"] = norm(f"{there}.post_attention_layernorm")
        if config["attn_bias"]:
            found[f"{here}.attention.qkv.bias"] = (
                Part(f"{q}.bias", (heads * size,), axis=0),
                Part(f"{k}.bias", (kv_heads * size,), axis=0, heads=kv_heads),
                Part(f"{v}.bias", (kv_heads * size,), axis=0, heads=kv_heads),
            )
            found[f"{here}.attention.dense.bias"] = (Part(f"{o}.bias", (hidden,)),)
        if config["mlp_bias"]:
            found[f"{here}.mlp.fc.bias"] = (Part(f"{gate}.bias", (ffn,), axis=0),)
            found[f"{here}.mlp.gate.bias"] = (Part(f"{up}.bias", (ffn,), axis=0),)
            found[f"{here}.mlp.proj.bias"] = (Part(f"{down}.bias", (hidden,)),)
    found["transformer.ln_f.weight"] = norm("model.norm")
    found["lm_head.weight"] = (Part(head, (vocab, hidden), axis=0, padded=True),)
    return found
