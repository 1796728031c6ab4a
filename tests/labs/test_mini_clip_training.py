"""Training of mini-CLIP on a few made-up examples: what is trained moves, what is frozen stays."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

import train
from cliplab import training
from cliplab.mini_clip import Head


def test_training_learns_in_the_residual_map_alone():
    torch.manual_seed(0)
    head, draw = Head().eval(), torch.Generator().manual_seed(1)
    torch.nn.init.normal_(head.class_texts)
    texts = F.normalize(torch.randn(12, 1, 384, generator=draw), dim=-1).expand(-1, 2, -1)
    examples = training.Examples(torch.randn(12, 1280, generator=draw), texts)
    start = {name: weight.clone() for name, weight in head.state_dict().items()}
    options = {"batch": 12, "rate": 3e-3, "dropout": 0.1, "every": 1}
    curve = training.train(head, examples, steps=3, watch=lambda _: {"watched": 1}, **options)
    assert [point["step"] for point in curve] == [1, 2, 3] and all(point["watched"] for point in curve)
    assert curve[-1]["loss"] < curve[0]["loss"] - 0.1
    moved = {name for name, weight in head.state_dict().items() if not torch.equal(weight, start[name])}
    assert moved == {"residual.weight", "residual.bias"}
    assert not any(weight.requires_grad for weight in head.parameters())


def test_equal_sentences_are_encoded_once_and_every_one_gets_its_vector():
    asked = []

    def encode(texts):
        asked.extend(texts)
        return np.array([[len(text), ord(text[0])] for text in texts])

    assert train.encoded(["bb", "a", "cc", "a"], encode).tolist() == [[2, 98], [1, 97], [2, 99], [1, 97]]
    assert sorted(asked) == ["a", "bb", "cc"]
