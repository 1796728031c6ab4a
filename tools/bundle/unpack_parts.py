"""Read the numbered parts that pack_parts.py wrote; with the standard library only, as there is no environment yet."""

from __future__ import annotations

import io
import shutil
import sys
import tarfile
from pathlib import Path

from servinglab.errors import CourseError


class Joined(io.RawIOBase):
    """The parts of one archive, read as one file."""

    def __init__(self, paths: list[Path]):
        self._paths, self._file = list(paths), None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while self._file or self._paths:
            self._file = self._file or self._paths.pop(0).open("rb")
            if count := self._file.readinto(buffer):
                return count
            self._file = self._file.close()
        return 0


def unpack(bundle: Path, name: str, folder: Path) -> None:
    """The files of an archive, all in one folder; a file is there whole or not at all."""
    joined = io.BufferedReader(Joined(sorted(bundle.glob(f"{name}.[0-9]*"))), 1 << 20)
    with decompressed(joined) if name.endswith(".xz") else joined as stream:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for entry in archive:
                draft = folder / f".{Path(entry.name).name}.part"
                with draft.open("wb") as out:
                    shutil.copyfileobj(archive.extractfile(entry), out, 1 << 20)
                draft.replace(folder / Path(entry.name).name)


def decompressed(stream: io.BufferedReader):
    try:
        import lzma
    except ImportError:
        raise CourseError(
            f"{sys.executable} was built without lzma, so it cannot unpack the bundle; use another Python (--python)."
        ) from None
    return lzma.open(stream)
