"""CLIP itself, from the Hugging Face hub or from a folder: two towers that were trained together.

Notebook 13 uses it as the first of three cures. Weights are read from safetensors only, and no code comes with them.
Paper: Radford et al. 2021, https://arxiv.org/abs/2103.00020. The classes are those of transformers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cliplab.prepare import open_picture
from servinglab.assets.store import told_offline
from servinglab.errors import CourseError

MODEL = "openai/clip-vit-base-patch32"
HUB = "https://huggingface.co"


class HubError(CourseError, OSError):
    """CLIP cannot be had or is no CLIP."""


class HubClip:
    """A CLIP model: pictures and sentences to vectors [n, projection_dim] of length 1 (512 in CLIP ViT-B/32).

    source: a hub id, or a folder that holds config.json, model.safetensors, the tokenizer and the processor.
    Raises HubError with one sentence when the weights cannot be had.
    """

    def __init__(self, source: str | Path = MODEL) -> None:
        from transformers import AutoTokenizer, CLIPModel
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        wanted: dict[str, Any] = {}
        if not Path(source).is_dir() and not reachable():
            wanted["local_files_only"] = True  # what an earlier session fetched is still good
        try:
            # Where a repository has a pickle only, use_safetensors takes the conversion that the hub keeps beside it.
            self.model = CLIPModel.from_pretrained(source, use_safetensors=True, **wanted).eval()
            self._tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **wanted)
            self._processor = _image_processor().from_pretrained(source, **wanted)
        except (OSError, ValueError) as error:
            raise HubError(_sentence(source, error, bool(wanted.get("local_files_only")))) from None
        self.size: int = self.model.config.projection_dim
        self._longest = self.model.config.text_config.max_position_embeddings

    def encode_images(self, images: Sequence[bytes]) -> np.ndarray:
        """Picture files to vectors, float32 [n, projection_dim]. Raises PictureError for bytes that are no picture."""
        pictures = [open_picture(data) for data in images]
        inputs = self._processor(images=pictures, return_tensors="pt")
        return self._unit(self.model.vision_model, self.model.visual_projection, **inputs)

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Sentences to vectors, float32 [n, projection_dim]. CLIP reads 77 tokens; what is behind them is cut off."""
        inputs = self._tokenizer(
            list(texts), padding=True, truncation=True, max_length=self._longest, return_tensors="pt"
        )
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        return self._unit(self.model.text_model, self.model.text_projection, **inputs)

    def _unit(self, tower: Any, projection: Any, **inputs: Any) -> np.ndarray:
        import torch

        with torch.inference_mode():
            vectors = projection(tower(**inputs).pooler_output)
            return torch.nn.functional.normalize(vectors, dim=-1).numpy()


def reachable(seconds: float = 3.0) -> bool:
    """Whether the hub, or the mirror that HF_ENDPOINT names, answers; False where the environment says offline."""
    import httpx

    if told_offline():
        return False
    try:
        return httpx.head(os.environ.get("HF_ENDPOINT", HUB), timeout=seconds).status_code < 500
    except (httpx.HTTPError, httpx.InvalidURL, ImportError, ValueError):  # the last two: a proxy that httpx cannot use
        return False


def _image_processor() -> Any:
    """The class that needs no torchvision: transformers 5 gave it a name of its own."""
    import transformers

    name = "CLIPImageProcessorPil"
    return getattr(transformers, name if hasattr(transformers, name) else "CLIPImageProcessor")


def _sentence(source: str | Path, error: Exception, offline: bool) -> str:
    if Path(source).is_dir():
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"The folder {source} holds no CLIP model with safetensors weights ({first:.200})."
    if offline:
        return f"CLIP ({source}) cannot be fetched: the hub is not reachable from here, and its cache has no copy."
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"CLIP ({source}) cannot be loaded from the hub: {first:.200}"
