"""Llama, GPT-2 and Gemma: what config.json says of their TensorRT-LLM checkpoint, and which tensor comes from where.

The names did not change from TensorRT-LLM 0.9 to 1.3.0rc3: tensorrt_llm/models/{llama,gpt,gemma} declare the tensors,
models/modeling_utils.py the keys of config.json. Only keys that all versions know are written (read: 0.12 to 1.3.0rc3).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from engines import EngineError
from engines.config import Config
from engines.split import Part

_ROPE = {  # what each kind of scaling must say
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_QUANTISED = re.compile(r"layers\.\d+\.(attention\.(qkv|dense)|mlp\.(fc|gate|proj))\.weight")


@dataclass(frozen=True)
class Family:
    """architecture: in both config.json files. tied: what a file means that does not say whether input and output
    embedding are one tensor. parallel_embedding: with several ranks each holds a part of the vocabulary. norm_plus:
    Hugging Face multiplies by (this + weight) in its norms, TensorRT-LLM by the weight.
    """

    architecture: str
    tied: bool = False
    parallel_embedding: bool = False
    norm_plus: float = 0.0


LLAMA = Family("LlamaForCausalLM")
GPT2 = Family("GPT2LMHeadModel", tied=True)
GEMMA = Family("GemmaForCausalLM", tied=True, parallel_embedding=True, norm_plus=1.0)
FAMILIES = {"llama": LLAMA, "gpt2": GPT2, "gemma": GEMMA}


def is_quantised(name: str) -> bool:
    """Whether weight-only quantisation takes this tensor: the weights of qkv, dense, fc, gate and proj."""
    return bool(_QUANTISED.search(name))


def sizes(config: Config, family: Family) -> dict[str, int]:
    """The numbers that decide every shape, from a config.json of Hugging Face or of TensorRT-LLM."""
    hidden = config.whole("hidden_size", "n_embd")
    heads = config.whole("num_attention_heads", "n_head")
    of_gpt2 = config.get("n_embd") is not None  # of Hugging Face: its width of the MLP may be left out
    ffn = config.whole("n_inner", default=4 * hidden) if of_gpt2 else config.whole("intermediate_size")
    found = {
        "vocab_size": config.whole("vocab_size"),
        "max_position_embeddings": config.whole("max_position_embeddings", "n_positions", default=2048),
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": config.whole("num_hidden_layers", "n_layer"),
        "num_attention_heads": heads,
        "num_key_value_heads": config.whole("num_key_value_heads", default=heads),
        "head_size": config.whole("head_size", "head_dim", default=256 if family is GEMMA else hidden // heads),
    }
    if heads % (kv_heads := found["num_key_value_heads"]):
        raise EngineError(f"{config.where}: {heads} attention heads cannot share {kv_heads} KV heads evenly.")
    if family is GPT2 and hidden % heads:
        raise EngineError(f"{config.where}: n_head {heads} does not divide n_embd {hidden}.")
    return found


def biases(config: Config) -> dict[str, bool]:
    """Which linear layers of a Llama or a Gemma have a bias."""
    attention = config.get("attention_bias", config.get("attn_bias", False))
    return {"attn_bias": bool(attention), "mlp_bias": bool(config.get("mlp_bias", False))}


def settings(config: Config, family: Family) -> dict[str, Any]:
    """The keys of pretrained_config beside the sizes, from a config.json of Hugging Face."""
    if family is GPT2:
        plain = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
        for key, value in plain.items():
            if config.get(key, value) != value:
                raise EngineError(f"{config.where} sets {key}, which this layout cannot express.")
        return {
            "hidden_act": config.activation("activation_function", default="gelu_new"),
            "norm_epsilon": config.number("layer_norm_epsilon", 1e-5),
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
    base, scaling = _rotary(config)
    own = {"inter_layernorms": False}
    act = {"keys": ("hidden_activation", "hidden_act"), "default": "gelu_pytorch_tanh"}
    if family is LLAMA:
        own = {"residual_mlp": False, "disable_weight_only_quant_plugin": False}
        act = {"keys": ("hidden_act",), "default": "silu"}
    return {
        "hidden_act": config.activation(*act["keys"], default=act["default"]),
        "norm_epsilon": config.number("rms_norm_eps", 1e-6),
        "position_embedding_type": "rope_gpt_neox",
        **biases(config),
        "rotary_base": base,
        "rotary_scaling": scaling,
        **own,
    }


def _rotary(config: Config) -> tuple[float, dict[str, Any] | None]:
    """rotary_base and rotary_scaling; transformers 5 keeps both in rope_parameters, older ones apart."""
    scaling = {**config.part("rope_scaling"), **config.part("rope_parameters")}
    base = config.number("rope_theta", scaling.pop("rope_theta", 10000.0))
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if not isinstance(kind, str) or kind not in _ROPE or scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise EngineError(
            f"{config.where} asks for rotary scaling {kind!r} {scaling}, and only {', '.join(_ROPE)} are converted."
        )
    missing = [key for key in _ROPE[kind] if not isinstance(scaling.get(key), (int, float))]
    if missing:
        raise EngineError(f"{config.where}: rotary scaling {kind!r} has no {missing[0]}.")
    return base, {**scaling, "type": kind, "rope_type": kind} if _ROPE[kind] else None


def layout(
    family: Family, config: Mapping[str, Any], *, tied: bool, names: Collection[str] = ()
) -> dict[str, tuple[Part, ...]]:
    """{name in the checkpoint: its parts}. config: of the checkpoint. names: the tensors that the source holds."""
    gpt2, found = family is GPT2, {}
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_size"]

    def norm(here: str, there: str) -> None:
        for kind in ("weight", "bias") if gpt2 else ("weight",):
            found[f"{here}.{kind}"] = (Part(f"{there}.{kind}", (hidden,), plus=family.norm_plus),)

    def linear(here: str, there: str, out: int, into: int, axis: int, bias: bool) -> None:
        found[f"{here}.weight"] = (Part(f"{there}.weight", (out, into), axis=axis, conv1d=gpt2),)
        if bias:  # a row-parallel layer adds its bias after the all-reduce: every rank has the whole of it
            found[f"{here}.bias"] = (Part(f"{there}.bias", (out,), axis=None if axis else 0),)

    def qkv(there: str, kind: str) -> tuple[Part, ...]:
        shapes = [(n * size, hidden)[: 2 if kind == "weight" else 1] for n in (heads, kv_heads, kv_heads)]
        if gpt2:  # they lie beside each other already
            name = f"{there}.c_attn.{kind}"
            places = ({"offset": n * hidden, "rows": 3 * hidden, "conv1d": True} for n in range(3))
            return tuple(Part(name, shapes[0], axis=0, **place) for place in places)
        shared = (None, kv_heads, kv_heads)  # query heads are never shared by ranks
        parts = zip("qkv", shapes, shared, strict=True)
        return tuple(Part(f"{there}.{x}_proj.{kind}", shape, axis=0, heads=n) for x, shape, n in parts)

    prefix = "transformer." if "transformer.wte.weight" in names else ""  # the hub's gpt2 has none
    embedding = f"{prefix}wte.weight" if gpt2 else "model.embed_tokens.weight"
    cut = {"axis": 0, "padded": True}
    parallel = cut if config.get("use_parallel_embedding") else {}
    found["transformer.vocab_embedding.weight"] = (Part(embedding, (vocab, hidden), **parallel),)
    if gpt2:
        positions = (config["max_position_embeddings"], hidden)
        found["transformer.position_embedding.weight"] = (Part(f"{prefix}wpe.weight", positions),)
    for n in range(config["num_hidden_layers"]):
        here, there = f"transformer.layers.{n}", f"{prefix}h.{n}" if gpt2 else f"model.layers.{n}"
        bias, mlp_bias = gpt2 or config["attn_bias"], gpt2 or config["mlp_bias"]
        attention = f"{there}.attn" if gpt2 else f"{there}.self_attn"
        for kind in ("weight", "bias") if bias or config.get("qkv_bias") else ("weight",):
            found[f"{here}.attention.qkv.{kind}"] = qkv(attention, kind)
        linear(
            f"{here}.attention.dense", f"{attention}.{'c_proj' if gpt2 else 'o_proj'}", hidden, heads * size, 1, bias
        )
        # A Llama's gated half is `fc` here and gate_proj there; `gate` is up_proj: act(fc) * gate.
        linear(f"{here}.mlp.fc", f"{there}.mlp.{'c_fc' if gpt2 else 'gate_proj'}", ffn, hidden, 0, mlp_bias)
        if not gpt2:
            linear(f"{here}.mlp.gate", f"{there}.mlp.up_proj", ffn, hidden, 0, mlp_bias)
        linear(f"{here}.mlp.proj", f"{there}.mlp.{'c_proj' if gpt2 else 'down_proj'}", hidden, ffn, 1, mlp_bias)
        norm(f"{here}.input_layernorm", f"{there}.{'ln_1' if gpt2 else 'input_layernorm'}")
        norm(f"{here}.post_layernorm", f"{there}.{'ln_2' if gpt2 else 'post_attention_layernorm'}")
    norm("transformer.ln_f", f"{prefix}ln_f" if gpt2 else "model.norm")
    found["lm_head.weight"] = (Part(embedding if tied else "lm_head.weight", (vocab, hidden), **cut),)
    return found
