"""Put files of ours where a person may have worked, and lose nothing that the person wrote.

A file is ours when its content is, to the byte, one that was noted before we put it there. Everything else is yours.
The standard library only: the installer of the offline bundle uses this before there is an environment.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterable
from importlib.util import cache_from_source
from pathlib import Path

NOTES, YOURS = ".ours.json", "yours"


class Keeper:
    """Knows which files under `folder` are ours; what is yours goes to yours/1, yours/2, … when its place is needed."""

    def __init__(self, folder: Path):
        self.folder, self._aside = folder.absolute(), None
        try:
            notes = json.loads((folder / NOTES).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # then all is yours
            notes = {}
        self.known: set[str] = set(notes.get("known", ()))
        self.files: dict[str, str] = notes.get("files", {})  # of the last update: name and content

    def note(self, contents: Iterable[str], files: dict[str, str] | None = None) -> None:
        """Remember contents (of `digest`) as ours."""
        self.known |= set(contents)
        self.files = self.files if files is None else files
        draft = self.folder / f"{NOTES}.{os.getpid()}"
        draft.write_text(json.dumps({"known": sorted(self.known), "files": self.files}), encoding="utf-8")
        draft.replace(self.folder / NOTES)

    def put(self, made: Path, name: str | Path) -> Path | None:
        """Move a file of ours to its place. Where that is now which was yours there."""
        if (content := digest(made)) not in self.known:
            self.note([content])
        yours = self.make_room(name)
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".py":  # files of archives are all of one age: bytecode of the old one would be used
            Path(cache_from_source(str(target))).unlink(missing_ok=True)
        made.replace(target)
        return yours

    def write(self, path: Path, content: bytes) -> None:
        """Write a file of ours, never half of it; as `put`. One that holds this already is left alone."""
        path = path.absolute()
        if path.is_file() and path.read_bytes() == content:
            return
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            draft.write_bytes(content)
            self.put(draft, path)
        finally:
            draft.unlink(missing_ok=True)

    def make_room(self, name: str | Path) -> Path | None:
        """Move away what is yours at this place, or stands where a folder above it must be; where it is now."""
        path = self.folder / name
        above = [folder for folder in path.parents if self.folder in folder.parents]
        taken = next((one for one in above if os.path.lexists(one) and not one.is_dir()), path)
        if taken is path and digest(path) in (None, *self.known):
            return None
        for number in itertools.count(1) if self._aside is None else ():
            try:
                self._aside = self.folder / YOURS / str(number)
                self._aside.mkdir(parents=True)
                break
            except FileExistsError:
                continue
        place = self._aside / taken.relative_to(self.folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        return taken.rename(place)


def update(new: Path, folder: Path, *, stays: bool = False) -> list[tuple[str, str]]:
    """Move the files of `new` into `folder`, and remove those that an earlier update put there and `new` lacks.

    What is yours at such a place is moved away; with `stays` it stays, and a version that is new to it comes beside it.
    Returns what was yours, as names: (was touched, where the other one is). Can be killed at any point and run again.
    """
    folder, keeper = folder.absolute(), Keeper(folder)
    paths = (path for path in sorted(new.rglob("*")) if path.is_symlink() or path.is_file())
    files = {p.relative_to(new).as_posix(): digest(p) for p in paths if "__pycache__" not in p.parts}
    before = keeper.files
    keeper.note(files.values(), {**dict.fromkeys(files, ""), **before})
    for name in before.keys() - files.keys():
        if digest(folder / name) in keeper.known:
            (folder / name).unlink()
            with contextlib.suppress(OSError):  # up to the first that is not empty; `folder` holds the notes
                os.removedirs((folder / name).parent)
    found = []
    for name, content in files.items():
        target = folder / name
        if digest(target) == content:
            continue
        if stays and digest(target) not in (None, *keeper.known):
            if before.get(name) == content:
                continue
            names = (f"{target.stem}.new{n}{target.suffix}" for n in itertools.chain([""], itertools.count(2)))
            target = next(p for p in map(target.with_name, names) if digest(p) in (None, *keeper.known))
            found.append((name, target.relative_to(folder).as_posix()))
        if yours := keeper.put(new / name, target):
            found.append((name, yours.relative_to(folder).as_posix()))
    keeper.note((), files)
    return found


def digest(path: Path) -> str | None:
    """What tells a file's content from another; of a link, where it leads. None where there is nothing."""
    try:
        if path.is_symlink():
            return "link to " + os.readlink(path)
        return "a folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None
