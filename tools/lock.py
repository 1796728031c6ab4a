"""`make lock`: resolve pyproject.toml with uv; write requirements/*.txt, every package with the hashes of its wheels.

The hashes are of wheels for Linux x86-64 with glibc and CPython 3.10 to 3.12, and of nothing else: an installer that
checks them never builds a package from source, so no build tool is resolved while it installs.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools" / "bundle"))

import select_wheels  # noqa: E402

FOLDER = ROOT / "requirements"
UV = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.10", "--no-python-downloads",
      "--no-emit-package", "servinglab", "--annotation-style", "line"]  # fmt: skip
GROUPS = {  # of pyproject.toml
    "ci": "What .github/workflows installs before or beside the course.",
    "training": "What labs/vlm_clip/train.py needs beside the course.",
    "edge": "What exports for Edge-LLM (notebook 12), beside a build of torch.",
}
# What only the CUDA build of torch needs, and that build itself.
OF_CUDA = re.compile(r"(nvidia-(?!pytriton)|cuda-)|(triton|torch)==")
# What every line would say, because the lock is for nothing else.
ALWAYS = ("python_full_version < '3.13'", "platform_machine == 'x86_64'", "sys_platform == 'linux'")
PLATFORMS = select_wheels.platforms("manylinux_2_50_x86_64")
TAGS = {tag for minor in (10, 11, 12) for tags in (cpython_tags((3, minor), platforms=PLATFORMS),
        compatible_tags((3, minor), f"cp3{minor}", PLATFORMS)) for tag in tags}  # fmt: skip


def resolve(what: list[str], *files: str) -> list[str]:
    """Requirement lines with hashes. What `files` of requirements/ hold now is kept where it still fits."""
    with tempfile.TemporaryDirectory() as folder:
        pins, wheels = Path(folder, "pins.txt"), Path(folder, "pylock.toml")
        pins.write_text("".join((FOLDER / name).read_text() for name in files if (FOLDER / name).exists()))
        subprocess.run([*UV, *what, "--output-file", pins], cwd=ROOT, check=True)
        again = ["--constraint", pins, "--format", "pylock.toml", "--output-file", wheels]
        subprocess.run([*UV, *what, *again], cwd=ROOT, check=True)
        found = select_wheels.tomllib.loads(wheels.read_text())["packages"]
        hashes = {f"{package['name']}=={package['version']}": usable(package) for package in found}
        return [with_hashes(line, hashes) for line in pins.read_text().splitlines() if not line.startswith("#")]


def usable(package: dict) -> list[str]:
    """Hashes of the wheels that the course's machines can install."""
    names = {wheel["url"].rsplit("/", 1)[1]: wheel["hashes"]["sha256"] for wheel in package.get("wheels", ())}
    found = sorted(digest for name, digest in names.items() if parse_wheel_filename(name)[3] & TAGS)
    if not found:
        sys.exit(f"{package['name']} {package['version']} has no wheel for the course's machines; choose another.")
    return found


def with_hashes(line: str, hashes: dict[str, list[str]]) -> str:
    requirement, _, note = line.partition("#")
    pin, _, marker = requirement.strip().partition(" ; ")
    marker = " and ".join(part for part in marker.split(" and ") if part not in ALWAYS)
    # `===`, since a CPU build that is there already (2.13.0+cpu) would satisfy `==`.
    name = pin.replace("==", "===") if pin.startswith("torch==") else pin
    listed = "".join(f" \\\n    --hash=sha256:{digest}" for digest in hashes[pin])
    return f"{name}{f' ; {marker}' if marker else ''}{listed}  # {note.strip()}"


def write(name: str, about: str, lines: list[str]) -> None:
    (FOLDER / name).write_text("\n".join([f"# {about} Made by `make lock`.", *lines]) + "\n")


def main() -> None:
    UV.extend(sys.argv[1:])  # --upgrade: what the files hold now is no reason to keep it
    course = resolve(["--extra", "all", "pyproject.toml"], "lock.txt", "torch-cuda.txt")
    cuda = [line for line in course if OF_CUDA.match(line)]
    write("lock.txt", "All packages but torch.", [line for line in course if line not in cuda])
    write("torch-cuda.txt", "The build of torch that PyPI has, and what it needs for CUDA.", cuda)
    (version,) = (line.split("===")[1].split()[0] for line in cuda if line.startswith("torch==="))
    for group, about in GROUPS.items():
        lines = resolve(["--group", f"pyproject.toml:{group}"], f"{group}.txt")
        if other := {line.split()[0] for line in lines if line.startswith("torch===")} - {f"torch==={version}"}:
            sys.exit(f"The group {group} needs {other.pop()}, and the course has {version}: move both together.")
        write(f"{group}.txt", about, [line for line in lines if not OF_CUDA.match(line)])
    if f"torch=={version}+cpu " not in (FOLDER / "torch-cpu.txt").read_text():
        sys.exit(f"torch is {version} now: write requirements/torch-cpu.txt anew, as its first lines say.")


if __name__ == "__main__":
    main()
