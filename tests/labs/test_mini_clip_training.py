"""Training of mini-CLIP: its pictures are the server's, the whole tower moves, and mistakes are told at once."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import train
import train_vlm
from cliplab import training
from cliplab.mini_clip import VisionTower
from cliplab.prepare import to_array
from cliplab.training import Data, Variant

SIZE = 64  # of the pictures that are trained on here, for speed


def test_a_picture_on_the_gpu_is_what_the_server_prepares():
    rng = np.random.default_rng(0)
    smooth = Image.fromarray(rng.integers(0, 256, (16, 12, 4), dtype=np.uint8), "RGBA").resize((192, 256))
    square = Image.new("RGBA", (256, 256), (9, 9, 9, 0))
    square.paste(smooth, (32, 0))
    white = Image.new("RGB", smooth.size, (255, 255, 255))
    white.paste(smooth, mask=smooth)
    found = training.plain(torch.from_numpy(np.array(square))[None])[0].numpy()
    apart = np.abs(found - to_array(white))
    assert apart[:, 2:-2, 31:-31].max() < 2 / 128 and apart.mean() < 0.5 / 128  # its edges are blended with the white


def test_a_drawing_stays_whole_and_stands_where_it_was_put():
    torch.manual_seed(0)
    full = torch.full((32, 256, 256, 4), 255, dtype=torch.uint8)
    at = torch.tensor([[-0.5, 0.25]]).repeat(32, 1)
    alpha = training.placed(full, SIZE, (0.3, 0.4), at)[:, 3]
    pixels = (torch.arange(SIZE) + 0.5) * 2 / SIZE - 1
    total = alpha.sum(dim=(1, 2))
    x, y = (alpha * pixels).sum(dim=(1, 2)) / total, (alpha * pixels[:, None]).sum(dim=(1, 2)) / total
    assert torch.allclose(x, at[:, 0], atol=0.02) and torch.allclose(y, at[:, 1], atol=0.02)
    side = total.sqrt() / SIZE
    assert (side > 0.29).all() and (side < 0.41).all() and side.std() > 0.01


def made_up(count: int = 12) -> Data:
    draw = torch.Generator().manual_seed(1)
    colours = torch.randint(0, 256, (count, 1, 1, 4), generator=draw, dtype=torch.uint8)
    pictures = colours.expand(count, 256, 256, 4).clone()
    pictures[..., 3] = 255
    texts = F.normalize(torch.randn(2 * count, 384, generator=draw), dim=-1)
    ways = torch.arange(count)[:, None].expand(-1, 2)
    pairs = torch.tensor([[0, 1, count], [2, 3, count + 1]])
    return Data(pictures, ways, texts, pairs, torch.arange(count))


def test_training_lowers_the_loss_and_moves_all_but_the_class_texts():
    start = VisionTower.load()
    variant = Variant("all", side=SIZE, keep=0.1, scenes=0.25)
    tower, said = training.train(start, made_up(6), variant, steps=16, size=6, seed=0)
    assert said["loss"][1] < said["loss"][0] - 0.5
    old = start.state_dict()
    still = {name for name, weight in tower.state_dict().items() if torch.equal(weight, old[name])}
    assert still == {"head.class_texts", "head.temperature"}


def test_pairs_of_like_captions_are_no_wrong_answers():
    images = F.normalize(torch.randn(3, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    texts = torch.eye(8)[[0, 0, 1]]  # the first two say the same
    scores = images @ texts.T / 0.07
    wrong = [[2], [2], [0, 1]]
    rows = [-scores[n, n] + torch.logsumexp(scores[n, [n, *wrong[n]]], 0) for n in range(3)]
    columns = [-scores[n, n] + torch.logsumexp(scores[[n, *wrong[n]], n], 0) for n in range(3)]
    expected = (torch.stack(rows).mean() + torch.stack(columns).mean()) / 2
    assert torch.allclose(training.contrastive(images, texts), expected, atol=1e-5)


def test_a_mixture_is_the_share_of_the_mean_and_the_whole_learned_map():
    towers = [VisionTower() for _ in range(3)]
    for value, tower in enumerate(towers):
        for weight in tower.parameters():
            torch.nn.init.constant_(weight, float(value))
    found = train.mixed(towers[0], towers[1:], 0.5)
    assert all(bool((w == (1.5 if "residual" in name else 0.75)).all()) for name, w in found.state_dict().items())


def test_every_sentence_gets_its_vector_whatever_the_order():
    def encode(texts):
        return np.array([[len(text), ord(text[0])] for text in texts])

    assert train.encoded(["bbb", "a", "cc"], encode).tolist() == [[3, 98], [1, 97], [2, 99]]


BOTH = ["--from", "there", "--prepare", "here"], "--prepare writes a folder and --from reads one; give one of them."


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        BOTH,
        (["--steps", "0"], "--steps is 0; give 1 or more"),
        (["--device", "abacus"], "--device abacus cannot be used here"),
        (["--prepare", "here"], "Training needs resvg_py: pip install --require-hashes "),
        (["--from", "nowhere"], "nowhere/mini-clip.safetensors holds no weights"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_is_fetched(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    monkeypatch.setattr(train, "find_spec", lambda name: None)
    monkeypatch.setattr(train.vlm_data, "prepare", lambda *_: pytest.fail("it went on"))
    assert train.main() == 1
    output = capsys.readouterr().err
    assert output.startswith(said) and output.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        BOTH,
        (["--steps", "5", "0"], "--steps is 0; give 1 or more"),
        (["--rank", "0"], "--rank is 0; give 1 or more"),
        (["--minutes", "nan"], "--minutes is nan; give 0 or more"),
        (["--device", "abacus"], "--device abacus cannot be used here"),
        (["--from", "nowhere"], "nowhere/pictures.npz cannot be read"),
    ],
)
def test_a_mistake_in_training_the_vlm_is_one_sentence(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train_vlm.py", *arguments])
    monkeypatch.setattr(train_vlm.vlm_data, "prepare", lambda *_: pytest.fail("it went on"))
    assert train_vlm.main() == 1
    output = capsys.readouterr().err
    assert output.startswith(said) and output.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--count", "0"], "--count is 0"), (["--from", "nowhere"], "names.json cannot be read")]
)
def test_a_mistake_in_evaluating_the_vlm_is_found_before_minutes_of_work(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(train_vlm.evaluate_vlm.Vlm, "load", lambda *_: pytest.fail("it went on"))
    assert train_vlm.evaluate_vlm.main(arguments) == 1
    output = capsys.readouterr().err
    assert output.startswith(said) and output.count("\n") == 1
