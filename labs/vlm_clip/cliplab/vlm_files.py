"""The small vision-language model as the files that serve it, made once and kept in the cache.

    checkpoint    SmolLM2 with the low-rank updates added, an ordinary Hugging Face checkpoint
    engine        of that checkpoint
    vision.onnx   trunk and projector, pixel_values to rows of the prompt embedding table
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cliplab import vlm
from cliplab.mini_clip import VisionTower
from cliplab.vlm_deployment import export_vision, write_vlm_repository
from servinglab import assets
from servinglab.assets.store import publish, read_stamp, say, stamp, workspace
from servinglab.root import find_root

_RECIPE = "vlm-1"  # a change makes cached files stale
_DISK = 700_000_000  # bytes of the checkpoint and the encoder


@dataclass(frozen=True)
class Files:
    """What a deployment consists of; the tokenizer lies in the checkpoint's folder."""

    vision: Path
    checkpoint: Path
    engine: Path


def prepare(precision: str = "fp32", folder: str | Path | None = None) -> Files:
    """The files, made on the first call and then found in the cache.

    precision: of the engine, see `assets.engine`. folder: of vlm.safetensors, data/vlm when left out. The trunk is that
    of data/mini_clip. Raises CourseError.
    """
    projector, factors, _ = vlm.load(folder)
    home = assets.cache_dir() / "vlm" / _key(folder)
    made = home / "files"
    if (read_stamp(made) or {}).get("recipe") != _RECIPE:
        with workspace(home, _DISK) as scratch:
            if (read_stamp(made) or {}).get("recipe") != _RECIPE:  # another process may have made it meanwhile
                say("vlm", "adding the low-rank updates to the language model, and writing the encoder")
                part = scratch / "files"
                (part / "checkpoint").mkdir(parents=True)
                model, tokenizer = vlm.language_model()
                vlm.merge(model, factors)
                model.save_pretrained(part / "checkpoint")
                tokenizer.save_pretrained(part / "checkpoint")
                tower = vlm.torch.nn.Sequential(vlm.Grid(VisionTower.load().trunk), projector)
                export_vision(tower.eval(), part / "vision.onnx")
                stamp(part, _RECIPE)
                publish(part, made)
    return Files(made / "vision.onnx", made / "checkpoint", assets.engine(made / "checkpoint", precision))


def deploy(repository: str | Path, precision: str = "fp32", folder: str | Path | None = None) -> Path:
    """Write the six models with these files into `repository`; the folder's absolute path. Raises CourseError."""
    files = prepare(precision, folder)
    where = {"engine_dir": files.engine, "tokenizer_dir": files.checkpoint, "tokens": vlm.TOKENS}
    return write_vlm_repository(repository, files.vision, **where)


def _key(folder: str | Path | None) -> str:
    """What the files are made of, as a short word."""
    weights = Path(folder) if folder else find_root() / "data" / "vlm"
    parts = [weights / vlm.FILE, *sorted((find_root() / "data" / "mini_clip").glob("*.safetensors"))]
    parts.append(assets.resolve("smollm2") / "model.safetensors")
    return hashlib.sha256("".join(assets.store.sha256(part) for part in parts).encode()).hexdigest()[:16]
