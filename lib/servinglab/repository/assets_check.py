"""What a model needs beside its configuration: a tokenizer folder and an engine folder. Shared by build and lint."""

from __future__ import annotations

import json
from pathlib import Path


def exists(path: Path) -> bool:
    """Path.exists that also answers False for what no file system can hold (NUL bytes, endless names, link loops)."""
    try:
        return path.exists()
    except (OSError, ValueError, RuntimeError):
        return False


def tokenizer_problem(folder: Path) -> str | None:
    """Why `folder` holds no tokenizer (the end of a sentence with the cure), or None."""
    if not exists(folder):
        return "does not exist: give the folder that holds tokenizer.json."
    if not exists(folder / "tokenizer.json"):
        return (
            "holds no tokenizer.json: copy the tokenizer files of the checkpoint there (a checkpoint with only "
            "tokenizer.model: load its tokenizer once with transformers and save it)."
        )
    return None


def engine_problem(folder: Path) -> str | None:
    """Why `folder` is no engine (the end of a sentence with the cure), or None: it holds config.json and a
    rank{r}.engine for each rank."""
    if not exists(folder):
        return "does not exist: build the engine first, or give the folder that holds it."
    if not exists(folder / "config.json"):
        return "holds no config.json: it is no engine folder (the build writes config.json beside the engines)."
    config = engine_config(folder)
    if config is None:
        return "has a config.json that is no JSON object: build the engine again."
    ranks = world_size(config)
    missing = [f"rank{n}.engine" for n in range(ranks) if not exists(folder / f"rank{n}.engine")]
    if missing:
        return f"lacks {', '.join(missing[:4])} of {ranks} rank(s): copy every file that the build wrote."
    return None


def engine_config(folder: Path) -> dict | None:
    """The engine's config.json, or None when it cannot be read."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) else None


def section(config: dict, name: str) -> dict:
    """A part of config.json, empty where it has none."""
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def world_size(config: dict) -> int:
    """Ranks of an engine: `world_size` of its mapping, else tp × pp; 1 where the config.json has neither."""
    mapping = section(section(config, "pretrained_config"), "mapping")
    sizes = {name: size for name, size in mapping.items() if isinstance(size, int) and 1 <= size <= 1024}
    return sizes.get("world_size", sizes.get("tp_size", 1) * sizes.get("pp_size", 1))
