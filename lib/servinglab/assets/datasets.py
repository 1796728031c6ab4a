"""The data sets and weights of the labs with their licences (data/datasets.toml): for `course models`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from servinglab.assets.catalogue import tomllib
from servinglab.assets.store import cache_dir
from servinglab.errors import CourseError
from servinglab.root import find_root

_CACHE = "cache:"


@dataclass(frozen=True)
class DataSet:
    """What something was used for and under which licence. path and bytes: where it lies here, if it does."""

    name: str
    licence: str
    source: str
    use: str
    path: Path | None = None
    bytes: int = 0


def datasets() -> list[DataSet]:
    """Every data set that the labs hold, fetch or were trained on."""
    text = (Path(__file__).parent.parent / "data" / "datasets.toml").read_text(encoding="utf-8")
    found = []
    for name, entry in tomllib.loads(text).items():
        path = _locate(entry.pop("place", None))
        files = [path, *path.rglob("*")] if path else []
        size = sum(file.stat().st_size for file in files if file.is_file())
        found.append(DataSet(name, **entry, path=path, bytes=size))
    return found


def _locate(place: str | None) -> Path | None:
    """The place on this machine, None when nothing is there."""
    if place is None:
        return None
    try:
        path = cache_dir() / place.removeprefix(_CACHE) if place.startswith(_CACHE) else find_root() / place
    except CourseError:  # installed without the course's folder
        return None
    return path if path.exists() else None
