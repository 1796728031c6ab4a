"""The cache folder: one place for each model, written whole or not at all, by one process at a time.

<cache>/wheels/FILE.whl
<cache>/models/NAME/checkpoint/ engine-fp32/ engine-int4/   each with a stamp: checksums of its files
<cache>/clip/KEY/                                           encoders of the lab, written by labs/vlm_clip
<cache>/models/NAME/.partial-*/                             work in progress; left over only after a kill, then removed
"""

from __future__ import annotations

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

from servinglab.assets.catalogue import AssetError

STAMP = ".servinglab.json"
_PARTIAL = ".partial-"
OFFLINE = ("SERVINGLAB_OFFLINE", "HF_HUB_OFFLINE")


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


def stamp(folder: Path, recipe: str, **facts: Any) -> None:
    """Record what a finished folder holds, so that a damaged or outdated one is noticed and made again."""
    files = {str(p.relative_to(folder)): _entry(p) for p in sorted(folder.rglob("*")) if p.is_file()}
    _write_stamp(folder, {"recipe": recipe, **facts, "files": files})


def read_stamp(folder: Path, *, whole: bool = False) -> dict[str, Any] | None:
    """The stamp of a folder whose files are all there as they were made, else None.

    A file is read only when its size and time are not what they were, because gigabytes take seconds. whole: read all,
    which also finds what a disk damaged.
    """
    try:
        found = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        changed = {}
        for name, (size, time, digest) in found["files"].items():
            status = (folder / name).stat()
            if status.st_size != size:
                return None
            if whole or status.st_mtime_ns != time:
                changed[name] = _entry(folder / name)
                if changed[name][2] != digest:
                    return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if (now := found["files"] | changed) != found["files"]:
        found["files"] = now
        with contextlib.suppress(OSError):  # a cache that cannot be written is read again next time
            _write_stamp(folder, found)
    return found


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _entry(path: Path) -> list[Any]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, sha256(path)]


def _write_stamp(folder: Path, content: dict[str, Any]) -> None:
    draft = folder / f"{STAMP}.{os.getpid()}"
    draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    draft.replace(folder / STAMP)


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

    with disk_errors(home):
        home.mkdir(parents=True, exist_ok=True)
        lock = FileLock(home / ".lock")  # the kernel frees it when its holder dies
        try:
            lock.acquire(timeout=0.2)
        except Timeout:
            print(f"{home.name}: another process is preparing it; waiting", file=sys.stderr, flush=True)
            lock.acquire()
        try:
            for old in home.glob(f"{_PARTIAL}*"):
                shutil.rmtree(old, ignore_errors=True)
            free = shutil.disk_usage(home).free
            if free < need:
                raise AssetError(
                    f"Preparing {home.name} needs {need / 1e9:.1f} GB and {home} has {free / 1e9:.1f} GB left; "
                    "free some, or set SERVINGLAB_CACHE to a folder on a larger disk."
                )
            scratch = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=home))
            try:
                yield scratch
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        finally:
            lock.release()


@contextlib.contextmanager
def disk_errors(home: Path) -> Iterator[None]:
    """Turn what the disk refuses into one sentence."""
    try:
        yield
    except OSError as error:
        raise disk_error(home, error) from error


def disk_error(home: Path, error: OSError) -> AssetError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return AssetError(
            f"The disk under {home} became full; free some space, or set SERVINGLAB_CACHE to a folder on a larger disk."
        )
    reason = error.strerror or str(error)
    return AssetError(
        f"The cache folder {home} cannot be used ({reason}); set SERVINGLAB_CACHE to a folder that you can write."
    )
