"""CLIP's loading code, on a small CLIP with random weights: the same classes and files as the real one has."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer, CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizer

from cliplab import hub_clip
from servinglab.assets.store import OFFLINE

TEXTS = ["a red apple", "a photo of a dog, running", "x"]


def write_tiny(folder, seed=0):
    """Save a CLIP with random weights, small enough for a test: every part of the real one, 512 numbers a vector."""
    letters = sorted(ByteLevel.alphabet())
    words = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": len(words) - 2, "eos_token_id": len(words) - 1, "pad_token_id": len(words) - 1}
    text = {**tower, **ends, "vocab_size": len(words), "max_position_embeddings": 77}
    config = CLIPConfig(text_config=text, vision_config={**tower, "image_size": 224, "patch_size": 32})
    torch.manual_seed(seed)
    CLIPModel(config).save_pretrained(folder)
    CLIPTokenizer(vocab={word: number for number, word in enumerate(words)}, merges=[]).save_pretrained(folder)
    hub_clip._image_processor()(size={"shortest_edge": 224}, crop_size=224).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def clip(folder):
    return hub_clip.HubClip(folder)


def picture(colour, size=(60, 40), mode="RGB"):
    buffer = io.BytesIO()
    Image.new(mode, size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def test_vectors_are_those_of_the_whole_model(folder, clip):
    """CLIPModel.forward normalises both sides itself; its similarities are the reference."""
    data = [picture("red"), picture("blue", (300, 500))]
    images = [Image.open(io.BytesIO(each)).convert("RGB") for each in data]
    model, tokenizer = CLIPModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    inputs = CLIPImageProcessor.from_pretrained(folder)(images=images, return_tensors="pt")
    words = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        said = model(input_ids=words["input_ids"], attention_mask=words["attention_mask"], **inputs)
    seen, read = clip.encode_images(data), clip.encode_texts(TEXTS)
    assert seen.shape == (2, 512) and read.shape == (3, 512) and seen.dtype == np.float32
    np.testing.assert_allclose(seen @ read.T * model.logit_scale.exp().item(), said.logits_per_image, atol=1e-4)


def test_a_sentence_has_the_same_vector_alone_and_beside_a_longer_one(clip):
    together, alone = clip.encode_texts(TEXTS), [clip.encode_texts([text])[0] for text in TEXTS]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_a_text_longer_than_the_77_positions_is_cut_and_not_refused(clip):
    assert clip.encode_texts(["word " * 500]).shape == (1, 512)


def test_transparent_pictures_lie_on_white(clip):
    np.testing.assert_allclose(clip.encode_images([picture((9, 9, 9, 0), mode="RGBA")]),
                               clip.encode_images([picture("white")]), atol=1e-6)  # fmt: skip


def test_a_pickle_is_not_read(folder, tmp_path):
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(hub_clip.HubError, match="safetensors"):
        hub_clip.HubClip(tmp_path)


def test_without_the_hub_one_sentence_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(hub_clip, "reachable", lambda: False)
    with pytest.raises(hub_clip.HubError, match="not reachable from here, and its cache has no copy") as caught:
        hub_clip.HubClip("openai/no-such-model")
    assert "\n" not in str(caught.value)


def test_offline_wishes_are_kept_without_asking(monkeypatch):
    monkeypatch.setenv("SERVINGLAB_OFFLINE", "1")
    assert not hub_clip.reachable()


def test_an_unreachable_mirror_is_noticed(monkeypatch):
    for name in OFFLINE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert not hub_clip.reachable(seconds=0.5)
    for proxy in ("socks5://127.0.0.1:9", "socks://127.0.0.1:9", "http://127.0.0.1:port"):
        monkeypatch.setenv("all_proxy", proxy)
        assert not hub_clip.reachable(seconds=0.5)
