"""Training of mini-CLIP on a few made-up examples: what is trained moves, what is frozen stays, held-out decides."""

from __future__ import annotations

import argparse

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import train
from cliplab import training
from cliplab.mini_clip import VisionTower

BLOCK = 15  # of 16: only the last is trained


@pytest.fixture
def tower() -> VisionTower:
    torch.manual_seed(0)
    tower = VisionTower().eval().requires_grad_(False)
    torch.nn.init.normal_(tower.head.class_texts)
    return tower


@pytest.fixture
def examples(tower) -> training.Examples:
    draw = torch.Generator().manual_seed(1)
    texts = F.normalize(torch.randn(12, 1, 384, generator=draw), dim=-1).expand(-1, 2, -1)
    pixels = torch.randn(12, 3, 64, 64, generator=draw)
    return training.Examples(tower.trunk.before(pixels, BLOCK).half(), texts)


def test_a_trunk_cut_at_any_block_is_the_whole(tower):
    pixels = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    whole = tower.trunk(pixels)
    for block in (0, 11, 16):
        parts = tower.trunk.after(tower.trunk.before(pixels, block), block)
        assert parts.numpy() == pytest.approx(whole.numpy(), abs=1e-5)


def test_fine_tuning_learns_in_the_last_blocks_alone(tower, examples):
    start = {name: weight.clone() for name, weight in tower.state_dict().items()}
    curve = training.fine_tune(tower, BLOCK, examples, steps=6, batch=12, rate=3e-3, every=2)
    assert [point["step"] for point in curve] == [2, 4, 6] and curve[-1]["loss"] < curve[0]["loss"] - 0.1
    moved = {name for name, weight in tower.state_dict().items() if not torch.equal(weight, start[name])}
    trained = ("trunk.blocks.15.", "trunk.head.", "head.residual.")
    assert moved == {name for name in start if name.startswith(trained)}
    assert not any(weight.requires_grad for weight in tower.parameters())


def test_the_mixture_that_finds_most_held_out_pictures_is_kept(tower, examples, monkeypatch):
    """A judge that likes two fifths of the way best: the weights must be those, and nothing of a later try."""
    start = {name: weight.clone() for name, weight in tower.state_dict().items()}
    name = "trunk.blocks.15.project.weight"
    seen = []

    class Judge(train.Choice):
        def __call__(self, head):
            seen.append(tower.state_dict()[name].clone())
            return {"photos_at_10": 1.0 if len(seen) == 3 else 0.5}

    args = argparse.Namespace(unfreeze=1, tune_steps=2, batch=8, tune_rate=1e-2, seed=0, loss_temperature=0.07)
    found = train.tune(tower, examples, Judge({}), args)
    assert found["share"] == 0.4 and torch.equal(seen[0], start[name])
    expected = start[name] + 0.4 * (seen[-1] - start[name])
    assert tower.state_dict()[name].numpy() == pytest.approx(expected.numpy(), abs=1e-6)


def test_equal_sentences_are_encoded_once_and_every_one_gets_its_vector():
    asked = []

    def encode(texts):
        asked.extend(texts)
        return np.array([[len(text), ord(text[0])] for text in texts])

    assert train.encoded(["bb", "a", "cc", "a"], encode).tolist() == [[2, 98], [1, 97], [2, 99], [1, 97]]
    assert sorted(asked) == ["a", "bb", "cc"]
