"""Where models come from: a name becomes a local folder. Offline first, verified, prepared once.

`resolve` gives a Hugging Face checkpoint, `tokenizer` its tokenizer, `engine` the engine that the executor runs. A name
is a path, one of data/models.toml, or a hub id; the order is path, cache, packaged wheel or this course's data, hub.
Nothing heavy is imported here: conversion and build happen in processes of their own (steps.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from servinglab.assets import hub
from servinglab.assets.catalogue import Asset, datasets, find
from servinglab.assets.place import as_path, cached, locate, read_config
from servinglab.assets.store import AssetError, cache_dir, missing_package, workspace

__all__ = ["Asset", "AssetError", "cache_dir", "cached", "datasets", "engine", "prepare", "resolve", "tokenizer"]


def resolve(name_or_path: str | Path) -> Path:
    """The checkpoint folder of a model: config.json, *.safetensors, tokenizer.

    Gated hub models need HF_TOKEN; nothing is fetched when HF_HUB_OFFLINE or SERVINGLAB_OFFLINE is set. Raises
    AssetError with one clear sentence.
    """
    return prepare(name_or_path)[0]


def engine(name: str | Path = "smollm2", precision: str = "fp32") -> Path:
    """The engine folder of a model: config.json and rank0.engine.

    precision: fp32, bf16 or int4 (blocks of 32: `course build --weights q4_1`). The path of an engine folder is
    returned as it is. Raises AssetError, also when the executor cannot run such a model.
    """
    path = as_path(name)
    if path and "pretrained_config" in read_config(path):
        return path
    return prepare(name, (precision,))[1]


def tokenizer(name: str | Path = "smollm2") -> Path:
    """A folder with tokenizer.json, tokenizer_config.json (chat template, special tokens) and config.json."""
    if as_path(name) is None and not ((model := find(str(name))).wheel or model.layers):
        return hub.fetch(model, weights=False)
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
                prepare(place.model.layers.target)
            with workspace(place.home, place.disk_need(missing)) as scratch:
                # Another process may have made it while this one waited.
                place.make(place.missing(precisions, whole=whole), scratch)
    except ModuleNotFoundError as error:
        raise missing_package(error) from error
    return [place.checkpoint, *map(place.engine, precisions)]
