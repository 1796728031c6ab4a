"""The small vision-language model as the files that serve it, made once and kept in the cache.

    smollm2-vlm   SmolLM2 with the low-rank updates added, an ordinary Hugging Face checkpoint
    engine        of that checkpoint
    vision.onnx   trunk and projector, pixel_values to rows of the prompt embedding table
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cliplab import vlm
from cliplab.encoders import PRECISIONS, EncoderError, calibration_pictures
from cliplab.mini_clip import VisionTower
from cliplab.pictures import pixels
from cliplab.quantise import SERVED, static_int8
from cliplab.vlm_deployment import export_vision, write_vlm_repository
from servinglab import assets
from servinglab.assets.store import publish, read_stamp, say, stamp, workspace
from servinglab.root import find_root

NAME = "smollm2-vlm"  # of the checkpoint, in `course models` too
_RECIPE = "vlm-2"  # a change makes cached files stale
_DISK = 700_000_000  # bytes of the checkpoint and the encoder


@dataclass(frozen=True)
class Files:
    """What a deployment consists of; the tokenizer lies in the checkpoint's folder."""

    vision: Path
    checkpoint: Path
    engine: Path


def prepare(precision: str = "fp32", folder: str | Path | None = None, *, encoder: str = "fp32") -> Files:
    """The files, made on the first call and then found in the cache.

    precision: of the engine, see `assets.engine`. folder: of vlm.safetensors, data/vlm when left out. The trunk is that
    of data/mini_clip. encoder: "fp32", or "int8" (calibrated with mini-CLIP's pictures). Raises CourseError.
    """
    if encoder not in PRECISIONS:
        raise EncoderError(f"encoder must be one of {', '.join(PRECISIONS)}, not {encoder!r}.")
    projector, factors, _ = vlm.load(folder)
    home = assets.cache_dir() / "vlm" / _key(folder)

    def whole(part: Path) -> None:
        say("vlm", "adding the low-rank updates to the language model, and writing the encoder")
        (part / NAME).mkdir()
        model, tokenizer = vlm.language_model()
        vlm.merge(model, factors)
        model.save_pretrained(part / NAME)
        tokenizer.save_pretrained(part / NAME)
        tower = vlm.torch.nn.Sequential(vlm.Grid(VisionTower.load().trunk), projector)
        export_vision(tower.eval(), part / "vision.onnx")

    def small(part: Path) -> None:
        say("vlm", "quantising the encoder")
        seen = pixels(calibration_pictures()).astype(np.float16)[:, None]  # pictures of one text, one each
        static_int8(made / "vision.onnx", part / "vision.onnx", seen, **SERVED)

    made = _kept(home, "files", whole)
    vision = _kept(home, "int8", small) if encoder == "int8" else made
    return Files(vision / "vision.onnx", made / NAME, assets.engine(made / NAME, precision))


def _kept(home: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` in `home`, made once whatever the number of processes that want it."""
    if (read_stamp(home / name) or {}).get("recipe") != _RECIPE:
        with workspace(home, _DISK) as scratch:
            if (read_stamp(home / name) or {}).get("recipe") != _RECIPE:
                (part := scratch / name).mkdir(parents=True)
                make(part)
                stamp(part, _RECIPE)
                publish(part, home / name)
    return home / name


def deploy(
    repository: str | Path, precision: str = "fp32", folder: str | Path | None = None, *, encoder: str = "fp32"
) -> Path:
    """Write the six models with these files into `repository`; the folder's absolute path. Raises CourseError."""
    files = prepare(precision, folder, encoder=encoder)
    where = {"engine_dir": files.engine, "tokenizer_dir": files.checkpoint, "tokens": vlm.TOKENS}
    return write_vlm_repository(repository, files.vision, **where)


def _key(folder: str | Path | None) -> str:
    """What the files are made of, as a short word."""
    weights = Path(folder) if folder else find_root() / "data" / "vlm"
    parts = [weights / vlm.FILE, *sorted((find_root() / "data" / "mini_clip").glob("*.safetensors"))]
    parts.append(assets.resolve("smollm2") / "model.safetensors")
    return hashlib.sha256("".join(assets.store.sha256(part) for part in parts).encode()).hexdigest()[:16]
