"""The cache folder: one place for each model, written whole or not at all, by one process at a time.

<cache>/wheels/FILE.whl
<cache>/models/NAME/checkpoint/ engine-fp32/ engine-int4/   each with a stamp: checksums of its files
<cache>/clip/KEY/                                           encoders of the lab, written by labs/vlm_clip
<cache>/models/NAME/.partial-*/                             work in progress; left over only after a kill, then removed
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servinglab.errors import CourseError

STAMP = ".servinglab.json"
_PARTIAL = ".partial-"
OFFLINE = ("HF_HUB_OFFLINE", "SERVINGLAB_OFFLINE")


class AssetError(CourseError):
    """A model cannot be found, fetched or prepared."""


def missing_package(error: ModuleNotFoundError) -> AssetError:
    """The client needs none of the packages that prepare models."""
    cure = "install it with: pip install 'servinglab[models]'"
    return AssetError(f"Preparing models needs the package {error.name}; {cure}")


def told_offline(*variables: str) -> bool:
    """Whether one of these environment variables is switched on; by default one of OFFLINE."""
    said = [os.environ.get(name, "").lower() for name in variables or OFFLINE]
    return any(value in ("1", "true", "yes", "on") for value in said)


def cache_dir() -> Path:
    """$SERVINGLAB_CACHE, else $XDG_CACHE_HOME/servinglab, else ~/.cache/servinglab; not created here."""
    try:
        if chosen := os.environ.get("SERVINGLAB_CACHE"):
            return Path(chosen).expanduser().absolute()
        base = os.environ.get("XDG_CACHE_HOME")
        return (Path(base) if base else Path.home() / ".cache").absolute() / "servinglab"
    except RuntimeError as error:  # no such user, or one without a home folder
        raise AssetError(f"There is no cache folder ({error}): set SERVINGLAB_CACHE.") from None


def say(name: str, stage: str) -> None:
    """What a preparation is doing, on standard error."""
    print(f"{name}: {stage}", file=sys.stderr, flush=True)


def stamp(folder: Path, recipe: str, **facts: Any) -> None:
    """Record what a finished folder holds, so that a damaged or outdated one is noticed and made again."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = {str(p.relative_to(folder)): [p.stat().st_size, p.stat().st_mtime_ns, sha256(p)] for p in paths}
    content = {"recipe": recipe, **facts, "files": files}
    (folder / STAMP).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_stamp(folder: Path, *, whole: bool = False) -> dict[str, Any] | None:
    """The stamp of a folder whose files are all there as they were made, else None.

    A file is read only when its size and time are not what they were, because gigabytes take seconds. whole: read all,
    which also finds what a disk damaged.
    """
    try:
        found = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        for name, (length, time, digest) in found["files"].items():
            status = (folder / name).stat()
            if status.st_size != length or ((whole or status.st_mtime_ns != time) and sha256(folder / name) != digest):
                return None
            if status.st_mtime_ns != time:  # a copied cache: the next look need not read it again
                with contextlib.suppress(OSError):
                    os.utime(folder / name, ns=(time, time))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def publish(made: Path, final: Path) -> None:
    """Move a finished folder to its place. A damaged or outdated one that stands there goes away first."""
    if final.exists():
        final.rename(made.with_name(f"{made.name}-old"))
    made.rename(final)


@contextlib.contextmanager
def workspace(home: Path, need: int) -> Iterator[Path]:
    """A scratch folder on the file system of `home`, while no other process works there.

    need: bytes that will be written. Raises AssetError when the folder cannot be written or the disk is too full.
    """
    from filelock import FileLock, Timeout

    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = FileLock(home / ".lock")  # the kernel frees it when its holder dies
        try:
            held = lock.acquire(timeout=0.2)
        except Timeout:
            say(home.name, "another process is preparing it; waiting")
            held = lock.acquire()
        with held:
            for old in home.glob(f"{_PARTIAL}*"):
                shutil.rmtree(old, ignore_errors=True)
            if (free := shutil.disk_usage(home).free) < need:
                what = f"Preparing {home.name} needs {need / 1e9:.1f} GB and {home} has {free / 1e9:.1f} GB left"
                raise AssetError(f"{what}; free some, or set SERVINGLAB_CACHE to a folder on a larger disk.")
            with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=home, ignore_cleanup_errors=True) as scratch:
                yield Path(scratch)
    except OSError as error:
        cure = f"cannot be used ({error.strerror or error}); set SERVINGLAB_CACHE to a folder that you can write."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            cure = "is on a disk that became full; free some space, or set SERVINGLAB_CACHE to one on a larger disk."
        raise AssetError(f"The cache folder {home} {cure}") from error
