"""The converted checkpoint computes what the Hugging Face model does: every family, number of ranks and precision."""

from __future__ import annotations

import engine_models
import numpy as np
import pytest
import torch
from engine_models import ids, logits, write

from engines import config, reference
from engines.convert import convert
from engines.shards import load_checkpoint

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
EXACT = 2e-5  # measured: at most 6e-6, of logits whose standard deviation is 1.2
CASES = {
    "llama-gqa-untied": ("llama", {}),
    "llama-mqa-tied": ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama-2-kv-heads": ("llama", {"num_key_value_heads": 2, "rope_theta": 500.0}),
    "llama-biases-own-head-size": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 24}),
    "llama-3-rope": ("llama", {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 16}}),
    "llama-linear-rope": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "gpt2-tied": ("gpt2", {}),
    "gpt2-untied": ("gpt2", {"tie_word_embeddings": False, "n_inner": 96, "layer_norm_epsilon": 1e-3}),
    "gemma-mqa": ("gemma", {"num_key_value_heads": 1}),
    "gemma-gqa": ("gemma", {"num_key_value_heads": 2, "attention_bias": True, "vocab_size": 304}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """case → (folder, Hugging Face model), made when first asked for."""
    made = {}

    def model(case: str):
        if case not in made:
            family, settings = CASES[case]
            folder = tmp_path_factory.mktemp(case)
            made[case] = folder, write(folder, family, **settings)
        return made[case]

    return model


def difference(folder, model, out, **options) -> float:
    """The largest difference of a logit between Hugging Face and the ranks of the converted checkpoint."""
    input_ids = ids(model.config.vocab_size)
    want = logits(model, input_ids)
    got = reference.logits(load_checkpoint(convert(folder, out, **options)), input_ids)
    assert got.dtype == np.float32 and got.shape == want.shape
    assert want.std() > 0.5  # logits that a wrong layer would change
    return float(np.abs(got - want).max())


@pytest.mark.parametrize("tp_size", [1, 2, 4])
@pytest.mark.parametrize("case", CASES)
def test_float32_is_exact(models, tmp_path, case, tp_size):
    assert difference(*models(case), tmp_path / "out", tp_size=tp_size, dtype="float32") < EXACT


@pytest.mark.parametrize("case", ["llama-2-kv-heads", "gpt2-tied", "gemma-mqa"])
def test_eight_ranks(models, tmp_path, case):
    assert difference(*models(case), tmp_path / "out", tp_size=8, dtype="float32") < EXACT


@pytest.mark.parametrize("dtype,limit", [("float16", 0.02), ("bfloat16", 0.16)])
@pytest.mark.parametrize("case", ["llama-gqa-untied", "gpt2-tied", "gemma-mqa"])
def test_half_precision_loses_only_rounding(models, tmp_path, case, dtype, limit):
    """Weights lose 2^-11 (float16) or 2^-8 (bfloat16) of themselves; the reference adds nothing to that."""
    folder, model = models(case)
    assert 1e-4 < difference(folder, model, tmp_path / "a", tp_size=2, dtype=dtype) < limit

    rounded = type(model)(model.config).eval()
    rounded.load_state_dict({n: p.to(getattr(torch, dtype)).float() for n, p in model.state_dict().items()})
    if case.startswith("gemma"):  # its norms are rounded after the 1 is added
        for name, parameter in rounded.named_parameters():
            if "norm" in name:
                exact = model.state_dict()[name]
                parameter.data = (1 + exact).to(getattr(torch, dtype)).float() - 1
    assert difference(folder, rounded, tmp_path / "b", tp_size=2, dtype=dtype) < EXACT


def test_more_ranks_than_the_vocabulary_fills(tmp_path):
    """9 words, 8 ranks of 2 rows each: ranks 5 to 7 have zeros only."""
    model = write(tmp_path / "source", "gemma", vocab_size=9)
    assert difference(tmp_path / "source", model, tmp_path / "out", tp_size=8, dtype="float32") < EXACT


def test_a_checkpoint_in_several_files_and_in_bfloat16(models, tmp_path):
    _, model = models("llama-gqa-untied")
    half = type(model)(model.config).bfloat16()
    half.load_state_dict(model.state_dict())
    half.save_pretrained(tmp_path / "source", max_shard_size="40KB")
    assert len(list((tmp_path / "source").glob("*.safetensors"))) > 3
    rounded = type(model)(model.config).eval()
    rounded.load_state_dict(half.state_dict())
    assert difference(tmp_path / "source", rounded, tmp_path / "out", tp_size=2, dtype="float32") < EXACT


def test_the_hub_file_of_gpt2_has_no_prefix(models, tmp_path):
    from safetensors.torch import load_file, save_file

    folder, model = models("gpt2-tied")
    tensors = {n.removeprefix("transformer."): t for n, t in load_file(folder / "model.safetensors").items()}
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 256, 256)  # the causal mask that old versions saved
    (tmp_path / "hub").mkdir()
    save_file(tensors, tmp_path / "hub" / "model.safetensors")
    (tmp_path / "hub" / "config.json").write_text((folder / "config.json").read_text())
    assert difference(tmp_path / "hub", model, tmp_path / "out", dtype="float32") < EXACT


def test_older_config_files_say_the_same(models, tmp_path):
    """transformers 4 writes rope_theta and rope_scaling apart, with "type" in the oldest files."""
    import json

    folder, model = models("llama-3-rope")
    config = json.loads((folder / "config.json").read_text())
    rope = {**config.pop("rope_parameters", {}), **(config.get("rope_scaling") or {})}
    config["rope_theta"] = rope.pop("rope_theta", 10000.0)
    rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = rope
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    (tmp_path / "old" / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert difference(tmp_path / "old", model, tmp_path / "out", dtype="float32") < EXACT


@pytest.fixture(scope="module")
def smollm2(smollm2_checkpoint, hf_tokenizer):
    """ids of a sentence, and what Hugging Face says of them."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2_checkpoint, dtype=torch.float32)
    text = "The capital of France is Paris, and the capital of Italy is"
    input_ids = hf_tokenizer(text, return_tensors="pt").input_ids
    return input_ids, logits(model, input_ids)


@pytest.mark.parametrize("tp_size", [1, 3])
def test_smollm2(smollm2, smollm2_checkpoint, hf_tokenizer, tmp_path, tp_size):
    """Real weights; 9 heads and 3 KV heads, so only 3 ranks divide them."""
    input_ids, want = smollm2
    checkpoint = load_checkpoint(convert(smollm2_checkpoint, tmp_path / "out", tp_size=tp_size, dtype="float32"))
    got = reference.logits(checkpoint, input_ids)
    assert np.abs(got - want).max() < 2e-4  # logits go up to 30
    assert hf_tokenizer.decode(got[0, -1].argmax()) == " Rome"


def test_every_activation_that_is_converted_can_be_computed():
    assert set(reference.ACTIVATIONS) == set(config.ACTIVATIONS)


@pytest.mark.parametrize("wrong", [[[301]], [[-1]], [], [[[1]]], [list(range(257))]])
def test_the_reference_refuses_ids_that_the_model_has_not(models, tmp_path, wrong):
    from engines import EngineError

    checkpoint = load_checkpoint(convert(models("gpt2-tied")[0], tmp_path / "out"))
    with pytest.raises(EngineError):
        reference.logits(checkpoint, wrong)


def test_the_reference_takes_one_row(models, tmp_path):
    checkpoint = load_checkpoint(convert(models("gpt2-tied")[0], tmp_path / "out"))
    assert reference.logits(checkpoint, [1, 2, 3]).shape == (1, 3, engine_models.VOCABULARY)
