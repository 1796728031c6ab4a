"""Requests to the served vision-language model, and how its answers are compared: plumbing of notebook 16."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image
from tritonclient.grpc import InferenceServerClient

from cliplab import vlm
from cliplab.prepare import MEAN, SCALE
from cliplab.vlm_data import normal
from servinglab.client import Inputs, gather, inputs, stream

__all__ = [
    "FORM", "about", "as_picture", "from_pixels", "from_rows", "inputs", "named", "normal", "stream", "texts", "uri",
]  # fmt: skip

FORM = f"{vlm.BEFORE}<image>{vlm.AFTER}"


def uri(image: np.ndarray) -> bytes:
    """A picture, uint8 [height, width, 3], as a data URI."""
    Image.fromarray(image).save(file := io.BytesIO(), "PNG")
    return b"data:image/png;base64," + base64.b64encode(file.getvalue())


def about(image: np.ndarray, question: str, **more: Any) -> Inputs:
    """A question about a picture, uint8 [height, width, 3]."""
    return _asked(question, image_url_input=np.array([[uri(image)]], object), **more)


def from_pixels(pixels: np.ndarray, question: str, extra_id: int) -> Inputs:
    """The same for prepared pixels, float16 [3, 224, 224]; the response tells how many KV blocks were reused."""
    given = {"image_input": pixels[None, None], "prompt_table_extra_id": extra_id}
    return _asked(question, return_perf_metrics=True, **given)


def from_rows(rows: Any, question: str, extra_id: int) -> Inputs:
    """The same for rows [49, 576] of a prompt embedding table, a torch tensor: no encoder runs."""
    table = rows[None].numpy().astype(np.float16)
    return _asked(question, prompt_embedding_table=table, prompt_vocab_size=len(rows), prompt_table_extra_id=extra_id)


def _asked(question: str, **given: Any) -> Inputs:
    return inputs(text_input=FORM.format(question), max_tokens=vlm.LONGEST, stream=True, **given)


def texts(client: InferenceServerClient, requests: Sequence[Inputs], model: str = "llava_ensemble") -> list[str]:
    """The answers to requests that are sent at once, in their order. Raises InferenceServerException."""
    found = gather(client, model, dict(enumerate(requests)))
    return ["".join(r.as_numpy("text_output").flat[0].decode() for r in results) for results in found.values()]


def as_picture(pixels: np.ndarray) -> np.ndarray:
    """Pixels as the encoder reads them, [3, n, n], as uint8 [n, n, 3]."""
    return np.uint8(pixels.astype(np.float32).transpose(1, 2, 0) * SCALE + MEAN)


def named(said: str, caption: str) -> bool:
    """Whether the words of an answer stand in the caption."""
    return bool(normal(said)) and re.search(rf"\b{re.escape(normal(said))}\b", normal(caption)) is not None
