"""Write files as one tar stream in numbered parts of a limited size, the same bytes whenever the files are the same."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import tarfile
import zipfile
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

SUMS = "SHA256SUMS"
_BLOCK = 32 * 2**20  # compressed on its own: both cores work, and the result does not depend on how many there are
_TIME = 1_000_000_000  # of every file, in 2001: a zip file knows no year before 1980
# Machine code of x86 packs better when its jumps are written as absolute addresses first; other bytes hardly change.
_FILTERS = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2}]


def pack(files: Iterable[tuple[str, Path]], base: Path, *, part_size: int, level: int = 6) -> list[Path]:
    """Write `base`.001, `base`.002 …, each at most `part_size` bytes; their paths.

    files: (name in the archive, file). base: its suffix names the format: .xz, .gz or .tar (as it is).
    level: of xz or gzip, 0 to 9. The parts joined in order are one file that `tar -x` reads.
    """
    parts = _Parts(base, part_size)
    with parts, _compressor(base.suffix, parts, level) as out, tarfile.open(fileobj=out, mode="w|") as archive:
        for name, path in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = path.stat().st_size, _TIME
            entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            with path.open("rb") as content:
                archive.addfile(entry, content)
    return parts.paths


def store(wheel: Path) -> int:
    """Write a wheel anew without its own compression, so that xz has something to gain; bytes that it unpacks to.

    It stays a valid wheel: its RECORD is about the files inside.
    """
    draft = wheel.with_suffix(".part")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            content = old.read(entry)
            entry.compress_type = zipfile.ZIP_STORED
            new.writestr(entry, content)
        total = sum(entry.file_size for entry in old.infolist())
    draft.replace(wheel)
    return total


def requirement(wheel: Path) -> str:
    """The line by which pip installs this very wheel and no other."""
    name, version = wheel.name.split("-")[:2]
    return f"{name}=={version} --hash=sha256:{sha256(wheel)}\n"


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_sums(folder: Path, files: Iterable[Path]) -> None:
    """SHA256SUMS of `folder`, as sha256sum writes and reads it."""
    lines = [f"{sha256(path)}  {path.name}\n" for path in sorted(files)]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def read_sums(folder: Path) -> dict[str, str]:
    """{file name: checksum} of SHA256SUMS; empty when there is none."""
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    return {name: checksum for checksum, name in (line.split("  ", 1) for line in lines)}


class _Parts(io.RawIOBase):
    """A stream that goes on in a next file when one is full."""

    def __init__(self, base: Path, size: int):
        self.base, self.size, self.paths = base, size, []
        self._file, self._room = None, 0

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        view = memoryview(data)
        while view:
            if not self._room:
                self.paths.append(self.base.with_name(f"{self.base.name}.{len(self.paths) + 1:03}"))
                self._finish()
                self._file, self._room = self.paths[-1].open("wb"), self.size
            piece = view[: self._room]
            self._file.write(piece)
            self._room -= len(piece)
            view = view[len(piece) :]
        return len(data)

    def close(self) -> None:
        self._finish()
        super().close()

    def _finish(self) -> None:
        if self._file:
            self._file.close()
            self._file = None


class _Blocks(io.RawIOBase):
    """xz whose blocks are streams of their own, made by several threads; every xz reads them as one."""

    def __init__(self, out: io.RawIOBase, level: int):
        self._out, self._filters = out, [*_FILTERS[:-1], {**_FILTERS[-1], "preset": level}]
        self._buffer, self._waiting = bytearray(), deque()
        self._workers = os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._workers)

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self._buffer += data
        while len(self._buffer) >= _BLOCK:
            self._send(bytes(self._buffer[:_BLOCK]))
            del self._buffer[:_BLOCK]
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._send(bytes(self._buffer))
            while self._waiting:
                self._out.write(self._waiting.popleft().result())
            self._pool.shutdown()
        super().close()

    def _send(self, block: bytes) -> None:
        made: Future[bytes] = self._pool.submit(lzma.compress, block, filters=self._filters)
        self._waiting.append(made)
        if len(self._waiting) > self._workers:  # else the whole stream would wait in memory
            self._out.write(self._waiting.popleft().result())


def _compressor(suffix: str, out: _Parts, level: int):
    if suffix == ".xz":
        return _Blocks(out, level)
    if suffix == ".gz":
        return gzip.GzipFile(filename="", fileobj=out, mode="wb", compresslevel=level, mtime=0)
    return out
