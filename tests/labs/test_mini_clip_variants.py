"""Training of mini-CLIP's whole tower: the pictures are the server's, and only what a variant names moves."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from cliplab import variants
from cliplab.mini_clip import VisionTower
from cliplab.prepare import to_array
from cliplab.variants import Data, Variant

SIZE = 64  # of the pictures that are trained on here, for speed


def test_a_picture_on_the_gpu_is_what_the_server_prepares():
    rng = np.random.default_rng(0)
    smooth = Image.fromarray(rng.integers(0, 256, (16, 12, 4), dtype=np.uint8), "RGBA").resize((192, 256))
    square = Image.new("RGBA", (256, 256), (9, 9, 9, 0))
    square.paste(smooth, (32, 0))
    white = Image.new("RGB", smooth.size, (255, 255, 255))
    white.paste(smooth, mask=smooth)
    found = variants.plain(torch.from_numpy(np.array(square))[None], 224)[0].numpy()
    apart = np.abs(found - to_array(white))
    assert apart[:, 2:-2, 31:-31].max() < 2 / 128 and apart.mean() < 0.5 / 128  # its edges are blended with the white


def test_a_drawing_stays_whole_and_stands_where_it_was_put():
    torch.manual_seed(0)
    full = torch.full((32, 256, 256, 4), 255, dtype=torch.uint8)
    at = torch.tensor([[-0.5, 0.25]]).repeat(32, 1)
    alpha = variants.placed(full, SIZE, (0.3, 0.4), at)[:, 3]
    pixels = (torch.arange(SIZE) + 0.5) * 2 / SIZE - 1
    total = alpha.sum(dim=(1, 2))
    x, y = (alpha * pixels).sum(dim=(1, 2)) / total, (alpha * pixels[:, None]).sum(dim=(1, 2)) / total
    assert torch.allclose(x, at[:, 0], atol=0.02) and torch.allclose(y, at[:, 1], atol=0.02)
    side = total.sqrt() / SIZE
    assert (side > 0.29).all() and (side < 0.41).all() and side.std() > 0.01


def made_up(count: int = 12) -> Data:
    draw = torch.Generator().manual_seed(1)
    pictures = torch.randint(0, 256, (count, 256, 256, 4), generator=draw, dtype=torch.uint8)
    texts = F.normalize(torch.randn(2 * count, 384, generator=draw), dim=-1)
    ways = torch.arange(count)[:, None].expand(-1, 2)
    pairs = torch.tensor([[0, 1, count], [2, 3, count + 1]])
    return Data(pictures, ways, texts, pairs, torch.arange(count))


def moved(variant: Variant) -> set[str]:
    torch.manual_seed(0)
    start = VisionTower().eval().requires_grad_(False)
    torch.nn.init.normal_(start.head.class_texts)
    tower, _ = variants.train(start, made_up(), variant, seconds=9, steps=2, size=8, seed=0)
    old = start.state_dict()
    return {name for name, weight in tower.state_dict().items() if not torch.equal(weight, old[name])}


def test_a_variant_moves_the_parts_that_it_names():
    residual = {"head.residual.weight", "head.residual.bias"}
    assert moved(Variant("head", size=SIZE, trained=0, ways=2)) == residual
    some = moved(Variant("last", size=SIZE, trained=2, ways=2, scenes=0.25))
    assert {name.split(".")[1] for name in some if name.startswith("trunk.")} == {"blocks", "head"}
    assert {name.split(".")[2] for name in some if name.startswith("trunk.blocks.")} == {"15"}
    assert residual < some and "head.class_texts" not in some and "head.classifier.weight" in some
