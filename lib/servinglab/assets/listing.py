"""What is in the cache: for `course models`."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from servinglab.assets.catalogue import models
from servinglab.assets.store import STAMP, cache_dir, read_stamp

_HUB = "hub.json"


@dataclass(frozen=True)
class CachedModel:
    """One thing in the cache. kind: "checkpoint", "engine fp32", "engine int4", "wheel", or "hub checkpoint"."""

    name: str
    path: Path
    bytes: int
    licence: str
    source: str
    kind: str = "checkpoint"


def cached() -> list[CachedModel]:
    """Everything that is prepared and whole; nothing is fetched, made or imported for it."""
    found = []
    root = cache_dir()
    for folder in sorted(path.parent for path in root.glob(f"models/*/*/{STAMP}")):
        if not folder.name.startswith(".") and (facts := read_stamp(folder)):
            size, kind = sum(file[0] for file in facts["files"].values()), folder.name.replace("-", " ")
            found.append(CachedModel(facts["name"], folder, size, facts["licence"], facts["source"], kind))
    for pointer in sorted(root.glob(f"models/*/{_HUB}")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            facts = json.loads(pointer.read_text(encoding="utf-8"))
            folder = Path(facts["path"])
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            if size:
                about = facts["licence"], facts["source"], "hub checkpoint"
                found.append(CachedModel(facts["name"], folder, size, *about))
    for model in models().values():
        if model.wheel and (file := root / "wheels" / model.wheel.file).is_file():
            found.append(CachedModel(model.name, file, file.stat().st_size, model.licence, model.source, "wheel"))
    return found


def remember_hub(home: Path, name: str, snapshot: Path, licence: str, source: str) -> None:
    """Note where the hub's own cache keeps a model, so that `cached` can list it."""
    with contextlib.suppress(OSError):  # a cache that cannot be written loses the note, not the model
        home.mkdir(parents=True, exist_ok=True)
        facts = {"name": name, "path": str(snapshot), "licence": licence, "source": source}
        (home / _HUB).write_text(json.dumps(facts) + "\n", encoding="utf-8")
