"""The written files against what TensorRT-LLM's model classes declare, as read in its sources (0.13, 0.14, 1.3.0rc3).

The tables below are facts from models/{llama,gpt,gemma}/model.py and layers/{attention,mlp,linear,embedding}.py, worked
out by hand for one small model of each family; nothing here is computed by the code under test.
"""

from __future__ import annotations

import json

import pytest
import torch
from engine_models import write

from engines.convert import convert
from engines.shards import load_checkpoint

# name → shape with tp_size 1, 2 and 4; of each layer, without "transformer.layers.N.".
LLAMA = {  # hidden 64, MLP 96, vocabulary 301, 8 heads of 8, 2 KV heads: with 4 ranks each rank has one of them, copied
    "model": {
        "transformer.vocab_embedding.weight": [(301, 64), (301, 64), (301, 64)],
        "transformer.ln_f.weight": [(64,), (64,), (64,)],
        "lm_head.weight": [(301, 64), (151, 64), (76, 64)],
    },
    "layer": {
        "input_layernorm.weight": [(64,), (64,), (64,)],
        "attention.qkv.weight": [(96, 64), (48, 64), (32, 64)],
        "attention.qkv.bias": [(96,), (48,), (32,)],
        "attention.dense.weight": [(64, 64), (64, 32), (64, 16)],
        "attention.dense.bias": [(64,), (64,), (64,)],
        "mlp.fc.weight": [(96, 64), (48, 64), (24, 64)],
        "mlp.gate.weight": [(96, 64), (48, 64), (24, 64)],
        "mlp.proj.weight": [(64, 96), (64, 48), (64, 24)],
        "post_layernorm.weight": [(64,), (64,), (64,)],
    },
}
GPT2 = {  # hidden 64, MLP 256, vocabulary 301, 256 positions, 8 heads
    "model": {
        "transformer.vocab_embedding.weight": [(301, 64), (301, 64), (301, 64)],
        "transformer.position_embedding.weight": [(256, 64), (256, 64), (256, 64)],
        "transformer.ln_f.weight": [(64,), (64,), (64,)],
        "transformer.ln_f.bias": [(64,), (64,), (64,)],
        "lm_head.weight": [(301, 64), (151, 64), (76, 64)],
    },
    "layer": {
        "input_layernorm.weight": [(64,), (64,), (64,)],
        "input_layernorm.bias": [(64,), (64,), (64,)],
        "attention.qkv.weight": [(192, 64), (96, 64), (48, 64)],
        "attention.qkv.bias": [(192,), (96,), (48,)],
        "attention.dense.weight": [(64, 64), (64, 32), (64, 16)],
        "attention.dense.bias": [(64,), (64,), (64,)],
        "mlp.fc.weight": [(256, 64), (128, 64), (64, 64)],
        "mlp.fc.bias": [(256,), (128,), (64,)],
        "mlp.proj.weight": [(64, 256), (64, 128), (64, 64)],
        "mlp.proj.bias": [(64,), (64,), (64,)],
        "post_layernorm.weight": [(64,), (64,), (64,)],
        "post_layernorm.bias": [(64,), (64,), (64,)],
    },
}
GEMMA = {  # hidden 64, MLP 96, vocabulary 301 (parallel embedding), 8 heads of 16, 1 KV head, which every rank has
    "model": {
        "transformer.vocab_embedding.weight": [(301, 64), (151, 64), (76, 64)],
        "transformer.ln_f.weight": [(64,), (64,), (64,)],
        "lm_head.weight": [(301, 64), (151, 64), (76, 64)],
    },
    "layer": {
        "input_layernorm.weight": [(64,), (64,), (64,)],
        "attention.qkv.weight": [(160, 64), (96, 64), (64, 64)],
        "attention.dense.weight": [(64, 128), (64, 64), (64, 32)],
        "mlp.fc.weight": [(96, 64), (48, 64), (24, 64)],
        "mlp.gate.weight": [(96, 64), (48, 64), (24, 64)],
        "mlp.proj.weight": [(64, 96), (64, 48), (64, 24)],
        "post_layernorm.weight": [(64,), (64,), (64,)],
    },
}
DECLARED = {
    "llama": (LLAMA, {"num_key_value_heads": 2, "attention_bias": True}),
    "gpt2": (GPT2, {}),
    "gemma": (GEMMA, {"num_key_value_heads": 1}),
}
# Keys that QuantConfig and Mapping of all these versions take; they refuse any other.
QUANTIZATION = {
    "quant_algo": None,
    "kv_cache_quant_algo": None,
    "group_size": 128,
    "smoothquant_val": 0.5,
    "has_zero_point": False,
    "pre_quant_scale": False,
    "exclude_modules": None,
}
COMMON = {
    "dtype": "float16",
    "logits_dtype": "float32",
    "vocab_size": 301,
    "max_position_embeddings": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_size": 8,
    "norm_epsilon": 1e-6,
    "position_embedding_type": "rope_gpt_neox",
    "use_parallel_embedding": False,
    "embedding_sharding_dim": 0,
    "qk_layernorm": False,
    "rotary_base": 10000.0,
    "rotary_scaling": None,
    "mapping": {"world_size": 2, "gpus_per_node": 8, "tp_size": 2, "pp_size": 1},
    "quantization": QUANTIZATION,
}
CONFIGS = {
    "llama": {
        **COMMON,
        "architecture": "LlamaForCausalLM",
        "hidden_act": "silu",
        "attn_bias": True,
        "mlp_bias": False,
        "residual_mlp": False,
        "disable_weight_only_quant_plugin": False,
    },
    "gpt2": {
        **COMMON,
        "architecture": "GPT2LMHeadModel",
        "intermediate_size": 256,
        "num_key_value_heads": 8,
        "hidden_act": "gelu_new",
        "norm_epsilon": 1e-5,
        "position_embedding_type": "learned_absolute",
        "gpt_variant": "gpt2",
        "bias": True,
        "q_scaling": 1.0,
        "embedding_scale": None,
        "apply_query_key_layer_scaling": False,
        "rotary_pct": 1.0,
        "inner_layernorm": False,
        "norm_before_bmm1": False,
    },
    "gemma": {
        **COMMON,
        "architecture": "GemmaForCausalLM",
        "num_key_value_heads": 1,
        "head_size": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "use_parallel_embedding": True,
        "attn_bias": False,
        "mlp_bias": False,
        "inter_layernorms": False,
    },
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    made = {}
    for family, (_, settings) in DECLARED.items():
        made[family] = tmp_path_factory.mktemp(family)
        write(made[family], family, **settings)
    return made


@pytest.mark.parametrize("column,tp_size", [(0, 1), (1, 2), (2, 4)])
@pytest.mark.parametrize("family", DECLARED)
def test_names_and_shapes_are_those_of_the_model_classes(sources, tmp_path, family, column, tp_size):
    declared = {name: shapes[column] for name, shapes in DECLARED[family][0]["model"].items()}
    for n in range(2):
        for name, shapes in DECLARED[family][0]["layer"].items():
            declared[f"transformer.layers.{n}.{name}"] = shapes[column]
    out = convert(sources[family], tmp_path / "out", tp_size=tp_size, dtype="bfloat16")
    assert sorted(p.name for p in out.iterdir()) == ["config.json", *(f"rank{n}.safetensors" for n in range(tp_size))]
    for tensors in load_checkpoint(out).ranks:
        assert {name: tuple(t.shape) for name, t in tensors.items()} == declared
        assert {t.dtype for t in tensors.values()} == {torch.bfloat16}


@pytest.mark.parametrize("family", CONFIGS)
def test_config_json_has_the_keys_that_all_versions_know(sources, tmp_path, family):
    out = convert(sources[family], tmp_path / "out", tp_size=2)
    assert json.loads((out / "config.json").read_text()) == CONFIGS[family]


@pytest.mark.parametrize("weight_only,algorithm", [("int8", "W8A16"), ("int4", "W4A16")])
def test_weight_only_is_a_word_in_config_json_and_leaves_the_shards_alone(tmp_path, weight_only, algorithm):
    write(tmp_path / "source", "llama", hidden_size=256, intermediate_size=512)
    plain = load_checkpoint(convert(tmp_path / "source", tmp_path / "plain"))
    quantised = load_checkpoint(convert(tmp_path / "source", tmp_path / "out", weight_only=weight_only))
    assert quantised.config == {**plain.config, "quantization": {**QUANTIZATION, "quant_algo": algorithm}}
    assert quantised.ranks[0].keys() == plain.ranks[0].keys()
    assert all(torch.equal(t, plain.ranks[0][name]) for name, t in quantised.ranks[0].items())


def test_llama_3_rope_is_written_for_both_spellings(tmp_path):
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    write(tmp_path / "source", "llama", rope_scaling={"rope_type": "llama3", **scaling}, rope_theta=500000.0)
    config = load_checkpoint(convert(tmp_path / "source", tmp_path / "out")).config
    assert config["rotary_scaling"] == {**scaling, "type": "llama3", "rope_type": "llama3"}
    assert config["rotary_base"] == 500000.0


def test_a_rank_gets_its_own_heads(sources, tmp_path):
    """qkv of rank 1 of 4: query heads 2 and 3, then key and value of KV head 0, for ranks 0 and 1 share it."""
    from safetensors.torch import load_file

    there = load_file(sources["llama"] / "model.safetensors")
    q, k, v = (there[f"model.layers.1.self_attn.{x}_proj.weight"] for x in "qkv")
    checkpoint = load_checkpoint(convert(sources["llama"], tmp_path / "out", tp_size=4, dtype="float32"))
    assert torch.equal(
        checkpoint.ranks[1]["transformer.layers.1.attention.qkv.weight"], torch.cat([q[16:32], k[:8], v[:8]])
    )


def test_the_vocabulary_is_padded_with_zeros_at_the_end(sources, tmp_path):
    from safetensors.torch import load_file

    there = load_file(sources["llama"] / "model.safetensors")["lm_head.weight"]
    ranks = load_checkpoint(convert(sources["llama"], tmp_path / "out", tp_size=4, dtype="float32")).ranks
    whole = torch.cat([tensors["lm_head.weight"] for tensors in ranks])
    assert torch.equal(whole[:301], there) and not whole[301:].any() and len(whole) == 304
