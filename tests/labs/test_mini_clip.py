"""The towers against what others compute, and the figures on mini-CLIP's card against a measurement."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pages
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

import evaluate
from cliplab import conse, lite0
from cliplab.mini_clip import FILE, Head, TextTower, VisionTower
from cliplab.pictures import catalogue
from servinglab import assets
from servinglab.errors import CourseError
from servinglab.root import find_root

ROOT = find_root()
REFERENCE = json.loads((Path(__file__).parent / "data" / "lite0_reference.json").read_text())


@pytest.fixture(scope="module")
def tower() -> VisionTower:
    return VisionTower.load()


def test_the_recorded_classes_are_those_of_the_packaged_model():
    numbers, shares = conse.recorded(REFERENCE["pictures"])
    assert numbers[:, 0].tolist() == REFERENCE["best"]
    assert (np.diff(shares) <= 0).all() and (shares > 0).all() and (shares.sum(axis=1) <= 1).all()
    with pytest.raises(CourseError, match="has no classes of a/unicorn; it has those of the stamps"):
        conse.recorded(["a/unicorn"])


def test_folding_keeps_the_function():
    """A network with random weights, its batch norms and TensorFlow's padding written out, and `Trunk` with `fold`."""
    draw = torch.Generator().manual_seed(0)
    weights: dict[str, torch.Tensor] = {}

    def layer(conv: str, norm: str, x: torch.Tensor, shape: tuple[int, ...], stride: int = 1, groups: int = 1):
        weights[f"{conv}.weight"] = torch.randn(shape, generator=draw) * (2 / np.prod(shape[1:])) ** 0.5
        for name, low in (("weight", 0.5), ("bias", -0.5), ("running_mean", -0.5), ("running_var", 0.5)):
            weights[f"{norm}.{name}"] = torch.rand(shape[0], generator=draw) + low
        kernel, size = shape[-1], x.shape[-1]
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        x = F.pad(x, (total // 2, total - total // 2) * 2)
        x = F.conv2d(x, weights[f"{conv}.weight"], None, stride, 0, 1, groups)
        values = [weights[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(x, *values, eps=1e-3)

    pixels = torch.randn(1, 3, 64, 64, generator=draw)
    x, number = F.relu6(layer("_conv_stem", "_bn0", pixels, (32, 3, 3, 3), 2)), 0
    plan = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112),
            (4, 5, 2, 6, 192), (1, 3, 1, 6, 320))  # fmt: skip
    for count, kernel, first, expansion, out in plan:
        for turn in range(count):
            name, channels, stride = f"_blocks.{number}.", x.shape[1], first if turn == 0 else 1
            wide, y = channels * expansion, x
            if expansion > 1:
                y = F.relu6(layer(f"{name}_expand_conv", f"{name}_bn0", y, (wide, channels, 1, 1)))
            shape = (wide, 1, kernel, kernel)
            y = F.relu6(layer(f"{name}_depthwise_conv", f"{name}_bn1", y, shape, stride, wide))
            y = layer(f"{name}_project_conv", f"{name}_bn2", y, (out, wide, 1, 1))
            x, number = (x + y if stride == 1 and channels == out else y), number + 1
    expected = F.relu6(layer("_conv_head", "_bn1", x, (1280, 320, 1, 1))).mean(dim=(2, 3))

    weights |= {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}
    folded = {n.removeprefix("trunk."): w for n, w in lite0.fold(weights).items() if n.startswith("trunk.")}
    trunk = lite0.Trunk()
    trunk.load_state_dict(folded)
    assert trunk(pixels).detach().numpy() == pytest.approx(expected.numpy(), abs=1e-3)


def test_a_head_before_training_is_conse():
    head = Head()
    torch.nn.init.normal_(head.class_texts, generator=torch.Generator().manual_seed(0))
    head.temperature.data = torch.tensor(2.0)
    features = torch.randn(3, 1280, generator=torch.Generator().manual_seed(1))
    logits = (features @ head.classifier.weight.T + head.classifier.bias).detach().numpy() / 2
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    mean = shares @ head.class_texts.detach().numpy()
    expected = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    assert head(features).detach().numpy() == pytest.approx(expected, abs=1e-5)


def test_the_text_tower_is_minilm():
    texts = ["A red apple.", "Something to play music on, made of wood and strings"]
    vectors = evaluate.sentence_encoder(TextTower.load())(texts)
    folder = assets.resolve("minilm")
    given = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden, mask = AutoModel.from_pretrained(folder)(**given)[0], given["attention_mask"][:, :, None]
    expected = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    assert vectors == pytest.approx(expected.numpy(), abs=1e-5)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)


def test_weights_are_small_and_come_back_as_saved(tower, tmp_path):
    assert (ROOT / "data" / "mini_clip" / FILE).stat().st_size <= 25e6
    again = VisionTower.load(tower.save(tmp_path).parent)
    assert all(torch.equal(a, b) for a, b in zip(tower.state_dict().values(), again.state_dict().values(), strict=True))


def test_broken_weights_are_one_sentence(tower, tmp_path):
    with pytest.raises(CourseError, match=r"holds no weights of mini-CLIP .*; bring it back with `git checkout data`"):
        VisionTower.load(tmp_path)
    path = tower.save(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CourseError, match=r"mini-clip\.safetensors holds no weights of mini-CLIP"):
        VisionTower.load(tmp_path)
    with pytest.raises(CourseError, match=r"holds no MiniLM checkpoint"):
        TextTower.load(tmp_path)


@pytest.mark.long
def test_the_stored_figures_are_those_of_the_weights():
    """On the subset; the whole set is 161 MB to fetch. `evaluate.py --pictures full` measures the rest of the card."""
    results = json.loads((ROOT / "data/mini_clip/mini-clip.json").read_text())
    assert results["evaluation"]["pictures"] == "full" and results["evaluation"]["n"] == 532
    measured = evaluate.measure(catalogue("subset"))
    found, stored = evaluate.figures(measured), results["subset"]
    for name in ("recall_at_1", "recall_at_10", "plain_recall_at_10", "conse_recall_at_1", "conse_recall_at_10"):
        assert found[name] == pytest.approx(stored[name], abs=0.012), name  # three pictures of 256
    assert found["n"] == stored["n"]
    assert found["recall_at_10"] > found["plain_recall_at_10"] > found["conse_recall_at_10"]


def test_a_table_of_figures():
    numbers = {"recall_at_1": 0.3, "recall_at_10": 0.6, "conse_recall_at_1": 0.2, "conse_recall_at_10": 0.45}
    numbers |= {"plain_recall_at_1": 0.3, "plain_recall_at_10": 0.6, "gain_at_1": 0.1, "gain_at_10": 0.15}
    numbers |= {"explained_gain_at_1": 0.0, "explained_gain_at_10": 0.01}
    intervals = {name: [value - 0.04, value + 0.04] for name, value in numbers.items()}
    part = {"n": 532, "captions": 492, **numbers, "intervals": intervals, "median_rank": 6}
    part |= {"plain_median_rank": 7, "conse_median_rank": 14}
    row = {"name": "soup", "score": 0.5, "photos_at_10": 0.6, "drawings_at_10": 0.7, "stamps_at_10": [0.5, 0.4, 0.6]}
    table = pages.part("clip", {
        "evaluation": part, "subset": {**part, "n": 256}, "tried": [row],
        "training": {"trained_on": 6000, "steps": 160, "batch": 512, "seed": 0},
        "chosen_on": {"photos": 354, "drawings": 278, "soup": ["a", "b"], "share": 0.85, "scale": 0.1},
        "seconds": {"training": 60}, "device": "X", "torch": "2.13", "date": "2026-01-01",
    })  # fmt: skip
    row = "0.600 (0.560 to 0.640) | 0.600 (0.560 to 0.640) | 0.450 (0.410 to 0.490) | +0.150 (+0.110 to +0.190) |"
    assert f"| recall at 10, 532 pictures | {row}" in table
    assert "6,000 drawings" in table and "| recall at 1, 256 pictures |" in table
    assert "| soup | 0.500 | 0.60 | 0.70 | 0.500 (0.400 to 0.600) |" in table and '"a" and "b", 85 %' in table
