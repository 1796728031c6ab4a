"""A small vision-language model: the grid of mini-CLIP's trunk, a projector, and SmolLM2 with low-rank updates.

A picture becomes 49 visual tokens, vectors in the space of the language model's word embeddings; they stand in the
prompt before the question (LLaVA, Liu et al. 2023, https://arxiv.org/abs/2304.08485). The stored weights are the
projector and the low-rank factors (Hu et al. 2021, https://arxiv.org/abs/2106.09685); `merge` adds the factors' product
to the language model, which is an ordinary checkpoint afterwards. Trained by train_vlm.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from cliplab.lite0 import FEATURES, Trunk
from cliplab.mini_clip import FILE as MINI_CLIP
from cliplab.mini_clip import VisionTower
from cliplab.prepare import MEAN, SCALE
from servinglab import assets
from servinglab.assets.store import sha256
from servinglab.errors import CourseError
from servinglab.root import find_root

FILE, CARD = "vlm.safetensors", "vlm.json"
SIDE = 7  # of the grid
TOKENS = SIDE * SIDE
FINE = 11, 112  # blocks after which the trunk's grid is still 14 x 14, and its channels there
SEEN = FEATURES + 4 * FINE[1]  # numbers of one cell
CLASSES = 1000  # of ImageNet, which the trunk learned
HIDDEN = 576  # of SmolLM2-135M, and of the projector
BEFORE, AFTER = "<|im_start|>user\n", "\n{}<|im_end|>\n<|im_start|>assistant\n"
END = "<|im_end|>"
UPDATED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LONGEST = 24  # tokens of an answer


class Grid(nn.Module):
    """pixel_values float32 [batch, 3, 224, 224] to what the trunk sees in each cell, [batch, 49, 1728].

    A cell holds the trunk's last 1,280 features, which know what a thing is, and four cells of its finer grid, which
    know better where it ends. Cells are in the order of reading.
    """

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = F.relu6(self.trunk.stem(pixel_values))
        for number, block in enumerate(self.trunk.blocks, start=1):
            x = block(x)
            if number == FINE[0]:
                fine = F.pixel_unshuffle(x, 2)
        return torch.cat([F.relu6(self.trunk.head(x)), fine], dim=1).flatten(2).transpose(1, 2)


class Projector(nn.Module):
    """What the trunk sees [batch, 49, 1728] to visual tokens [batch, 49, 576].

    Beside the map of the features, each token is told the classes that the trunk's own classifier finds in its cell and
    in the whole picture: the mean of their names' word embeddings, weighted by their probabilities (ConSE, Norouzi et
    al. 2014, https://arxiv.org/abs/1312.5650). So a class that no drawing showed has its words in the prompt.
    """

    def __init__(self, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(SEEN)
        self.enter, self.leave = nn.Linear(SEEN, hidden), nn.Linear(hidden, hidden)
        self.place = nn.Parameter(torch.zeros(TOKENS, hidden))
        self.here, self.anywhere = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.register_buffer("classify", torch.zeros(CLASSES, FEATURES))
        self.register_buffer("bias", torch.zeros(CLASSES))
        self.register_buffer("words", torch.zeros(CLASSES, hidden))  # all zeros: told nothing
        self.register_buffer("usual", torch.zeros(TOKENS, hidden))  # mean tokens of training pictures, a blind look

    def forward(self, seen: Tensor) -> Tensor:
        features = seen[..., :FEATURES]
        told = [F.softmax(F.linear(x, self.classify, self.bias), dim=-1) @ self.words
                for x in (features, features.mean(dim=1, keepdim=True))]  # fmt: skip
        tokens = self.leave(F.gelu(self.enter(self.norm(seen)))) + self.place
        return tokens + self.here(told[0]) + self.anywhere(told[1])


class LowRank(nn.Module):
    """A linear layer and its update up @ down: weights [out, rank] and [rank, in], nothing at first."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


def attach(model: nn.Module, rank: int) -> dict[str, nn.Parameter]:
    """Give every layer of UPDATED its low-rank update, in place; the factors by name, e.g. model.layers.0.….up."""
    layers = [(name, layer) for name, layer in model.named_modules() if name.rpartition(".")[2] in UPDATED]
    for name, layer in layers:
        parent = model.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], LowRank(layer, rank).to(layer.weight.device))
    return {n: p for n, p in model.named_parameters() if n.endswith((".down", ".up"))}


@torch.no_grad()
def merge(model: nn.Module, factors: Mapping[str, Tensor]) -> None:
    """Add up @ down to the weights of a plain model, in place. Raises CourseError for factors of another model."""
    own = {name for name, _ in model.named_modules() if name.rpartition(".")[2] in UPDATED}
    layers = {name.rpartition(".")[0] for name in factors}
    if lacking := sorted(own - layers):
        raise CourseError(f"The low-rank update of {lacking[0]} is missing, and of {len(lacking) - 1} other layers.")
    for layer in sorted(layers):
        try:
            weight = model.get_submodule(layer).weight
            weight += (factors[f"{layer}.up"].float() @ factors[f"{layer}.down"].float()).to(weight)
        except (AttributeError, KeyError, RuntimeError) as error:
            raise CourseError(f"The low-rank update of {layer} does not fit this language model ({error}).") from None


def pixel_values(images: Sequence[np.ndarray], device: str | torch.device) -> Tensor:
    """Pictures, uint8 [224, 224, 3], as the grid takes them."""
    pixels = torch.from_numpy(np.stack(images)).to(device).permute(0, 3, 1, 2)
    return ((pixels.float() - MEAN) / SCALE).contiguous()


def prompt(tokenizer: Any, question: str) -> list[int]:
    """Token ids of a question about a picture. The picture's places hold the vocabulary's size and up, which no word
    has: TensorRT-LLM numbers the rows of a prompt embedding table so."""
    parts = BEFORE, AFTER.format(question)
    before, after = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in parts)
    return [*before, *range(len(tokenizer), len(tokenizer) + TOKENS), *after]


def embed(table: nn.Embedding, ids: Tensor, visual: Tensor | None = None) -> Tensor:
    """Embeddings [batch, tokens, 576] of ids [batch, tokens]; visual [pictures, 49, 576] takes the places of the ids
    beyond the vocabulary, in order."""
    words = table(ids.clamp(max=table.num_embeddings - 1))
    if visual is None:
        return words
    return words.masked_scatter((ids >= table.num_embeddings)[..., None], visual.to(words.dtype))


class Vlm:
    """The whole model: grid, projector, merged language model, tokenizer."""

    def __init__(self, grid: Grid, projector: Projector, model: nn.Module, tokenizer: Any) -> None:
        self.grid, self.projector, self.model, self.tokenizer = grid, projector, model.eval(), tokenizer

    @classmethod
    def load(cls, folder: str | Path | None = None, *, device: str = "cpu") -> Vlm:
        """With the weights of `folder`, data/vlm when left out. Raises CourseError."""
        projector, factors, _ = load(folder)
        model, tokenizer = language_model()
        merge(model, factors)
        grid = Grid(VisionTower.load().trunk)
        return cls(grid.to(device).eval(), projector.to(device).eval(), model.to(device), tokenizer)

    @torch.inference_mode()
    def see(self, pixel_values: Tensor) -> Tensor:
        """pixel_values float32 [batch, 3, 224, 224] to visual tokens [batch, 49, 576]."""
        return self.projector(self.grid(pixel_values).float())

    @torch.inference_mode()
    def answers(self, asked: Sequence[str], visual: Tensor | None = None, *, longest: int = LONGEST) -> list[str]:
        """The likeliest answer to each question, token by token; without `visual` to the question alone."""
        rows = [prompt(self.tokenizer, question) for question in asked]
        size = len(self.tokenizer)
        if visual is None:
            rows = [[id for id in row if id < size] for row in rows]
        width, device = max(map(len, rows)), self.model.device
        filler = self.tokenizer.pad_token_id or 0
        ids = torch.tensor([[filler] * (width - len(row)) + row for row in rows], device=device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
        given = embed(self.model.get_input_embeddings(), ids, visual)
        end = self.tokenizer.convert_tokens_to_ids(END)
        said = self.model.generate(
            inputs_embeds=given, attention_mask=mask, max_new_tokens=longest, do_sample=False, eos_token_id=end,
            pad_token_id=end,
        )  # fmt: skip
        return [text.strip() for text in self.tokenizer.batch_decode(said, skip_special_tokens=True)]


def language_model(folder: str | Path | None = None, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Any]:
    """SmolLM2-135M-Instruct and its tokenizer, the course's own when left out."""
    from transformers import AutoTokenizer, LlamaForCausalLM

    folder = Path(folder) if folder else assets.resolve("smollm2")
    model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    return model.eval().requires_grad_(False), AutoTokenizer.from_pretrained(folder, local_files_only=True)


def save(folder: str | Path, projector: Projector, factors: Mapping[str, Tensor], card: Mapping[str, Any]) -> Path:
    """Write projector and factors in float16, and the card as JSON, into `folder`; the weights' path."""
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = {f"projector.{name}": weight for name, weight in projector.state_dict().items()} | dict(factors)
    save_file({name: weight.detach().half().cpu().contiguous() for name, weight in weights.items()}, path)
    path.chmod(0o644)  # safetensors makes it private
    (path.parent / CARD).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    return path


def load(folder: str | Path | None = None) -> tuple[Projector, dict[str, Tensor], dict[str, Any]]:
    """Projector, low-rank factors and card of `folder`, data/vlm when left out. Raises CourseError without them."""
    folder = Path(folder) if folder else find_root() / "data" / "vlm"
    try:
        weights = {name: weight.float() for name, weight in load_file(folder / FILE).items()}
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        if not isinstance(card, dict) or not all(weight.isfinite().all() for weight in weights.values()):
            raise ValueError(f"{CARD} is no card, or a number of {FILE} is not finite")
        projector = Projector(weights["projector.place"].shape[-1])
        own = {n.removeprefix("projector."): w for n, w in weights.items() if n.startswith("projector.")}
        projector.load_state_dict(own)
    except (OSError, ValueError, KeyError, IndexError, SafetensorError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        raise CourseError(
            f"{folder} holds no weights of the vision-language model ({why}); bring it back with `git checkout data`, "
            "or write it again with labs/vlm_clip/train_vlm.py."
        ) from None
    trunk = find_root() / "data" / "mini_clip" / MINI_CLIP
    if "trunk_sha256" in card and card["trunk_sha256"] != sha256(trunk):
        raise CourseError(
            f"{folder} was trained on another trunk than that of {trunk}: bring both back with `git checkout data`, or "
            "train on this one with labs/vlm_clip/train_vlm.py."
        )
    factors = {name: weight for name, weight in weights.items() if not name.startswith("projector.")}
    return projector.eval().requires_grad_(False), factors, card
