"""Llama, GPT-2 and Gemma: what config.json says of their TensorRT-LLM checkpoint, and which tensor comes from where.

Source: data/families.toml, which names its own.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from engines import EngineError
from engines.config import Config
from engines.split import Part
from engines.versions import table

_ROPE = {  # what each kind of scaling must say
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_QUANTISED = re.compile(r"layers\.\d+\.(attention\.(qkv|dense)|mlp\.(fc|gate|proj))\.weight")


@dataclass(frozen=True, eq=False)
class Family:
    """A row of data/families.toml, which explains the fields."""

    since: str
    architecture: str
    activation: Mapping[str, Any]
    epsilon: Mapping[str, Any]
    settings: Mapping[str, Any]
    tensors: Mapping[str, str]
    tied: bool = False
    parallel_embedding: bool = False
    norm_plus: float = 0.0
    refused: Mapping[str, Any] = field(default_factory=dict)


_ROWS = table("families")
FAMILIES = {name: Family(**{"tensors": _ROWS["llama"]["tensors"]} | row) for name, row in _ROWS.items()}
LLAMA, GPT2, GEMMA = (FAMILIES[name] for name in ("llama", "gpt2", "gemma"))


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


def check_split(config: Mapping[str, Any], tp_size: int, of: str) -> None:
    """Raise EngineError where a model (called `of`) cannot be cut evenly for its ranks. With fewer KV heads than ranks,
    each is copied equally often."""
    kv_heads = config["num_key_value_heads"]
    even = {"attention heads": config["num_attention_heads"], "MLP width": config["intermediate_size"]}
    if kv_heads > tp_size or tp_size % kv_heads:
        even["KV heads"] = kv_heads
    for what, number in even.items():
        if number % tp_size:
            raise EngineError(f"tp_size {tp_size} does not divide the {what} of {of}, {number}; take a divisor.")


def biases(config: Config) -> dict[str, bool]:
    """Which linear layers of a Llama or a Gemma have a bias."""
    attention = config.get("attention_bias", config.get("attn_bias", False))
    return {"attn_bias": bool(attention), "mlp_bias": bool(config.get("mlp_bias", False))}


def settings(config: Config, family: Family) -> dict[str, Any]:
    """The keys of pretrained_config beside the sizes, from a config.json of Hugging Face."""
    for key, value in family.refused.items():
        if config.get(key, value) != value:
            raise EngineError(f"{config.where} sets {key}, which this layout cannot express.")
    found = {
        "hidden_act": config.activation(*family.activation["keys"], default=family.activation["default"]),
        "norm_epsilon": config.number(**family.epsilon),
        **family.settings,
    }
    if family is GPT2:
        return {**found, "embedding_scale": None, "rotary_scaling": None}
    base, scaling = _rotary(config)
    found |= {**biases(config), "rotary_base": base, "rotary_scaling": scaling}
    # Of a Mistral: right for sequences that are no longer, so `build` makes no longer ones. TensorRT-LLM reads no such
    # key, but takes it; there max_attention_window_size says it to the server.
    windowed = config.get("model_type") == "mistral" and config.get("sliding_window") is not None
    return {**found, "sliding_window": config.whole("sliding_window")} if windowed else found


def _rotary(config: Config) -> tuple[float, dict[str, Any] | None]:
    """rotary_base and rotary_scaling; transformers 5 keeps both in rope_parameters, older ones apart. Where a file says
    two things, versions of transformers do not agree which counts."""
    old, new = config.part("rope_scaling"), config.part("rope_parameters")
    scaling = {**old, **new}
    inner = scaling.pop("rope_theta", None)
    if old and new and old != new:
        raise EngineError(f"{config.where} has rope_scaling and other rope_parameters; keep the one that counts.")
    base = config.number("rope_theta", 10000.0 if inner is None else inner)
    if inner not in (None, base):
        raise EngineError(f"{config.where} says {base} and {inner} for rope_theta; keep the one that counts.")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if not isinstance(kind, str) or kind not in _ROPE or scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise EngineError(
            f"{config.where} asks for rotary scaling {kind!r} {scaling}, and only {', '.join(_ROPE)} are converted."
        )
    for key in _ROPE[kind]:
        if not isinstance(value := scaling.get(key), (int, float)) or not 0 < value < 1e30:
            raise EngineError(f"{config.where}: rotary scaling {kind!r} has no {key} above 0.")
    if kind == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        raise EngineError(f"{config.where}: low_freq_factor of the rotary scaling must be below high_freq_factor.")
    return base, {**scaling, "type": kind, "rope_type": kind} if _ROPE[kind] else None


def layout(
    family: Family, config: Mapping[str, Any], *, tied: bool, names: Collection[str] = ()
) -> dict[str, tuple[Part, ...]]:
    """{name in the checkpoint: its parts}. config: of the checkpoint. names: the tensors that the source holds."""
    gpt2 = family is GPT2
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_size"]
    bias, mlp_bias = gpt2 or config["attn_bias"], gpt2 or config["mlp_bias"]
    cut = {"axis": 0, "padded": True}
    tables = {
        "vocab_embedding": ((vocab, hidden), cut if config.get("use_parallel_embedding") else {}),
        "position_embedding": ((config["max_position_embeddings"], hidden), {}),
        "lm_head": ((vocab, hidden), cut),
    }
    linear = {  # [out, in], the axis that the ranks cut, whether there is a bias
        "dense": ((hidden, heads * size), 1, bias),
        "fc": ((ffn, hidden), 0, mlp_bias),
        "gate": ((ffn, hidden), 0, mlp_bias),
        "proj": ((hidden, ffn), 1, mlp_bias),
    }

    def qkv(there: str, kind: str) -> tuple[Part, ...]:
        shapes = [(n * size, hidden)[: 2 if kind == "weight" else 1] for n in (heads, kv_heads, kv_heads)]
        if gpt2:
            places = ({"offset": n * hidden, "rows": 3 * hidden, "conv1d": True} for n in range(3))
            return tuple(Part(f"{there}.{kind}", shapes[0], axis=0, **place) for place in places)
        shared = (None, kv_heads, kv_heads)  # query heads are never shared by ranks
        parts = zip("qkv", shapes, shared, strict=True)
        return tuple(Part(f"{there}.{kind}".replace("X", x), shape, axis=0, heads=n) for x, shape, n in parts)

    def parts(what: str, there: str) -> dict[str, tuple[Part, ...]]:
        """Of a weight, and of its bias where it has one."""
        if what in tables:
            shape, how = tables[what]
            return {"weight": (Part(f"{there}.weight", shape, **how),)}
        if what == "qkv":
            kinds = ("weight", "bias") if bias or config.get("qkv_bias") else ("weight",)
            return {kind: qkv(there, kind) for kind in kinds}
        if what in linear:
            shape, axis, biased = linear[what]
            found = {"weight": (Part(f"{there}.weight", shape, axis=axis, conv1d=gpt2),)}
            if biased:  # a row-parallel layer adds its bias after the all-reduce: every rank has the whole of it
                found["bias"] = (Part(f"{there}.bias", shape[:1], axis=None if axis else 0),)
            return found
        kinds = ("weight", "bias") if gpt2 else ("weight",)
        return {kind: (Part(f"{there}.{kind}", (hidden,), plus=family.norm_plus),) for kind in kinds}

    prefix = "transformer." if gpt2 and "transformer.wte.weight" in names else ""  # the hub's gpt2 has none
    places = {here: there if here == "lm_head" else prefix + there for here, there in family.tensors.items()}
    if tied:
        places["lm_head"] = places["transformer.vocab_embedding"]
    return {
        f"{here}.{kind}".replace(".N.", f".{n}."): found
        for here, there in places.items()
        for n in (range(config["num_hidden_layers"]) if ".N." in here else [0])
        for kind, found in parts(here.rpartition(".")[2], there.replace(".N.", f".{n}.")).items()
    }
