"""The catalogue of the lab: stamps of Tux Paint, each with one English sentence that a person wrote about it.

The whole set comes from a Debian package, without root. A subset lies in data/stamps, for a quick start and for
machines without apt. The pictures are GPL-2, unlike this code; data/stamps holds their licence and attribution.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from cliplab.prepare import open_picture, to_array
from servinglab import assets
from servinglab.assets.store import read_stamp, sha256, stamp, told_offline, workspace
from servinglab.errors import CourseError
from servinglab.root import find_root

PACKAGE = "tuxpaint-stamps-default"
# Version 2022.06.04-1, the same file in Debian 12 and Ubuntu.
SHA256 = "6db6c1bfc870a47f1499d6203b083522eacb57c5f9c87d468f2e92eb6d9d5f34"
LEFT_OUT = ("symbols/", "town/flags/")  # letters, coins, plain flags: drawings of signs, not things one looks for
SUBSET = Path("data") / "stamps"
_DISK = 600_000_000


class PicturesError(CourseError):
    """The pictures cannot be had."""


@dataclass(frozen=True)
class Picture:
    """One product of the catalogue. The price is invented: a formula of the id, see `invented_price`."""

    id: str
    file: Path
    caption: str
    category: str
    price_cents: int


def invented_price(id: str) -> int:
    """A price from 1.00 to 99.95, in cents and in steps of five: always the same for an id, and without a meaning."""
    return 100 + zlib.crc32(id.encode()) % 1980 * 5


def catalogue(source: Literal["subset", "full", "auto"] = "subset") -> list[Picture]:
    """The pictures in the order of their ids.

    subset: those of data/stamps. full: all, fetched if need be. auto: all if they were fetched before, else the subset;
    never uses the network. Raises PicturesError.
    """
    if source not in ("subset", "full", "auto"):
        raise PicturesError(f"There is no set of pictures {source!r}; choose subset, full or auto.")
    if source == "full" or (source == "auto" and _is_whole(full_folder())):
        return _full(fetch_full())
    folder = find_root() / SUBSET
    try:
        entries = json.loads((folder / "catalogue.json").read_text(encoding="utf-8"))
        found = [_picture(e["id"], folder / e["file"], e["caption"]) for e in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PicturesError(f"{folder} is damaged ({error}); bring it back with `git checkout data`.") from None
    if missing := [p.file for p in found if not p.file.is_file()]:
        raise PicturesError(
            f"{len(missing)} pictures are missing, {missing[0]} among them; bring them back with `git checkout data`."
        )
    return found


def pixels(pictures: Iterable[Picture]) -> np.ndarray:
    """Pictures as the vision tower reads them: float32 [n, 3, 224, 224]. Raises PictureError for a broken file."""
    return np.stack([to_array(open_picture(picture.file.read_bytes())) for picture in pictures])


def is_blank(picture: Picture) -> bool:
    """Whether there is nothing to see: on white, all pixels have one colour. So it is with white on transparency."""
    return all(low == high for low, high in open_picture(picture.file.read_bytes()).getextrema())


def full_folder() -> Path:
    """Where the unpacked package lies once it was fetched."""
    return assets.cache_dir() / "pictures" / PACKAGE


def fetch_full() -> Path:
    """Fetch and unpack the package (161 MB) unless that was done before; the folder of the stamps.

    Needs apt and dpkg, no root: what apt writes stays in the cache. Safe to interrupt and to run twice at once.
    Raises PicturesError with one sentence when there is no apt, no network or another version of the package.
    """
    folder = full_folder()
    if not _is_whole(folder):
        with workspace(folder.parent, _DISK) as scratch:
            if not _is_whole(folder):
                package = download(PACKAGE, scratch, SHA256)
                unpack(package, scratch / "unpacked")
                shutil.rmtree(folder, ignore_errors=True)
                stamp(scratch / "unpacked", SHA256)
                (scratch / "unpacked").rename(folder)
    return folder / "usr" / "share" / "tuxpaint" / "stamps"


def download(package: str, folder: Path, expected: str) -> Path:
    """Download a Debian package as an ordinary user; the file in `folder`. Raises PicturesError."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise PicturesError(f"The package {package} needs apt-get and dpkg-deb; use the subset on this system.")
    if told_offline("SERVINGLAB_OFFLINE"):
        raise PicturesError(f"SERVINGLAB_OFFLINE is set and {package} was not fetched before; use the subset.")
    lists = folder / "apt"
    (lists / "lists" / "partial").mkdir(parents=True)
    own = [f"-oDir::State::Lists={lists / 'lists'}", f"-oDir::Cache={lists}", "-oDebug::NoLocking=1"]
    said = _run(["apt-get", "-qq", "download", package], folder)
    if said is not None:  # the machine has no lists, or old ones; bring lists that nobody else sees
        said = _run(["apt-get", "-qq", *own, "update"], folder) or _run(
            ["apt-get", "-qq", *own, "download", package], folder
        )
    found = sorted(folder.glob(f"{package}_*.deb"))
    if not found:
        raise PicturesError(f"apt-get brought no {package} ({said}); use the subset, or try again with a network.")
    if (digest := sha256(found[0])) != expected:
        raise PicturesError(
            f"{found[0].name} is not the version that the figures of this lab belong to "
            f"(SHA-256 {digest[:12]}…, expected {expected[:12]}…); use the subset."
        )
    return found[0]


def unpack(package: Path, folder: Path) -> None:
    """Unpack the files of a Debian package into `folder`. Raises PicturesError."""
    if said := _run(["dpkg-deb", "-x", str(package), str(folder)], package.parent):
        raise PicturesError(f"{package.name} cannot be unpacked ({said}).")


def _full(stamps: Path) -> list[Picture]:
    found = []
    for file in sorted(stamps.rglob("*.png")):
        name = file.relative_to(stamps).as_posix()
        text = file.with_suffix(".txt")
        if name.startswith(LEFT_OUT) or not text.is_file():  # mirrored copies have no text of their own
            continue
        caption = text.read_text(encoding="utf-8").splitlines()[0].strip()
        if caption:
            found.append(_picture(name.removesuffix(".png"), file, caption))
    return sorted(found, key=lambda p: p.id)


def _picture(id: str, file: Path, caption: str) -> Picture:
    return Picture(id, file, caption, id.split("/")[0], invented_price(id))


def _is_whole(folder: Path) -> bool:
    return (read_stamp(folder) or {}).get("recipe") == SHA256


def _run(command: list[str], folder: Path) -> str | None:
    """None when it went well, else the last line it said."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
