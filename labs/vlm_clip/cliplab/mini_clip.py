"""mini-CLIP: two towers that put a picture and a sentence into one space of 384 numbers.

The text tower is MiniLM, unchanged. The vision tower is EfficientNet-Lite0 and a head that aims at MiniLM's space. The
head adds two things. The first needs no training: the classifier says how probable each of its 1,000 classes is, and
the text vectors of the class names are mixed in that proportion (ConSE, Norouzi et al. 2013,
https://arxiv.org/abs/1312.5650). The second is a linear map. train.py trains it together with trunk and classifier, on
captioned drawings.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from cliplab.lite0 import CLASSES, FEATURES, Trunk
from servinglab import assets
from servinglab.errors import CourseError
from servinglab.root import find_root

DIMENSIONS = 384
FILE = "mini-clip.safetensors"


class Head(nn.Module):
    """Features [batch, 1280] to vectors [batch, 384] of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(FEATURES, CLASSES)
        self.class_texts = nn.Parameter(torch.zeros(CLASSES, DIMENSIONS))
        self.temperature = nn.Parameter(torch.ones(()))
        self.residual = nn.Linear(FEATURES, DIMENSIONS)
        nn.init.zeros_(self.residual.weight)
        nn.init.zeros_(self.residual.bias)

    def conse(self, features: Tensor) -> Tensor:
        """The mean of the class texts, weighted by the classes' probabilities."""
        return F.softmax(self.classifier(features) / self.temperature, dim=-1) @ self.class_texts

    def forward(self, features: Tensor) -> Tensor:
        return F.normalize(self.conse(features) + self.residual(features), dim=-1)


class VisionTower(nn.Module):
    """pixel_values float32 [batch, 3, 224, 224] to image vectors float32 [batch, 384] of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = Trunk(), Head()

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.head(self.trunk(pixel_values))

    @classmethod
    def load(cls, folder: str | Path | None = None) -> VisionTower:
        """The tower with the weights of `folder`, data/mini_clip when left out. Raises CourseError without them."""
        path = (Path(folder) if folder else find_root() / "data" / "mini_clip") / FILE
        with torch.device("meta"):
            tower = cls()
        try:
            weights = {name: weight.float() for name, weight in load_file(path).items()}
            tower.load_state_dict(weights, assign=True)
        except (OSError, SafetensorError, RuntimeError) as error:
            why = str(error).splitlines()[0]
            raise CourseError(
                f"{path} holds no weights of mini-CLIP ({why}); bring it back with `git checkout data`, "
                "or write it again with labs/vlm_clip/train.py."
            ) from None
        return tower.eval().requires_grad_(False)

    def save(self, folder: str | Path) -> Path:
        """Write the weights in float16 into `folder`; the file's path."""
        path = Path(folder) / FILE
        save_file({name: weight.half().contiguous() for name, weight in self.state_dict().items()}, path)
        path.chmod(0o644)  # safetensors makes it private
        return path


class TextTower(nn.Module):
    """input_ids, attention_mask int64 [batch, tokens] to text vectors float32 [batch, 384] of length 1."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[:, :, None].to(hidden.dtype)
        return F.normalize((hidden * mask).sum(dim=1) / mask.sum(dim=1), dim=-1)

    @classmethod
    def load(cls, folder: str | Path | None = None) -> TextTower:
        """MiniLM from the checkpoint `folder`, the course's own when left out. Raises CourseError without it."""
        from transformers import BertConfig, BertModel

        folder = Path(folder) if folder else assets.resolve("minilm")
        try:
            model = BertModel(BertConfig.from_pretrained(folder, local_files_only=True), add_pooling_layer=False)
            weights = load_file(folder / "model.safetensors")
            model.load_state_dict({name: weights[name] for name in model.state_dict()})  # all but a pooler
        except (OSError, KeyError, ValueError, SafetensorError, RuntimeError) as error:
            why = str(error).splitlines()[0]
            raise CourseError(f"{folder} holds no MiniLM checkpoint ({why}); use assets.resolve('minilm').") from None
        return cls(model).eval().requires_grad_(False)
