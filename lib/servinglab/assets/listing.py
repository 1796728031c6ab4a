"""What is here and under which licence, for `course models`: the models in the cache, the labs' data sets."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from servinglab.assets.catalogue import models, tomllib
from servinglab.assets.store import STAMP, cache_dir, read_stamp
from servinglab.errors import CourseError
from servinglab.root import find_root

_HUB = "hub.json"
_CACHE = "cache:"


@dataclass(frozen=True)
class CachedModel:
    """One thing in the cache. kind: "checkpoint", "engine fp32", "engine int4", "wheel", or "hub checkpoint"."""

    name: str
    path: Path
    bytes: int
    licence: str
    source: str
    kind: str = "checkpoint"


@dataclass(frozen=True)
class DataSet:
    """What something was used for and under which licence. path and bytes: where it lies here, if it does."""

    name: str
    licence: str
    source: str
    use: str
    path: Path | None = None
    bytes: int = 0


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
            if size := _size(folder := Path(facts["path"])):
                found.append(
                    CachedModel(facts["name"], folder, size, facts["licence"], facts["source"], "hub checkpoint")
                )
    for model in models().values():
        if model.wheel and (file := root / "wheels" / model.wheel.file).is_file():
            found.append(CachedModel(model.name, file, _size(file), model.licence, model.source, "wheel"))
    return found


def remember_hub(home: Path, name: str, snapshot: Path, licence: str, source: str) -> None:
    """Note where the hub's own cache keeps a model, so that `cached` can list it."""
    with contextlib.suppress(OSError):  # a cache that cannot be written loses the note, not the model
        home.mkdir(parents=True, exist_ok=True)
        facts = {"name": name, "path": str(snapshot), "licence": licence, "source": source}
        (home / _HUB).write_text(json.dumps(facts) + "\n", encoding="utf-8")


def datasets() -> list[DataSet]:
    """Every data set that the labs hold, fetch or were trained on (data/datasets.toml)."""
    text = (Path(__file__).parent.parent / "data" / "datasets.toml").read_text(encoding="utf-8")
    found = []
    for name, entry in tomllib.loads(text).items():
        path, place = None, entry.pop("place", None)
        with contextlib.suppress(CourseError):  # installed without the course's folder
            if place:
                in_cache = place.startswith(_CACHE)
                path = cache_dir() / place.removeprefix(_CACHE) if in_cache else find_root() / place
        path = path if path and path.exists() else None
        found.append(DataSet(name, **entry, path=path, bytes=_size(path) if path else 0))
    return found


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
