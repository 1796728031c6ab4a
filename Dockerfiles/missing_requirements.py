"""What the converters of some families need and the image lacks: python3 missing_requirements.py EXAMPLES FAMILY…

build.Dockerfile runs it. What NVIDIA's image has stays as it is, whatever version a requirements.txt of the examples
names: TensorRT-LLM was tested with it, transformers first of all. Options of pip in those files are left out too.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def requirements_file(examples: Path, family: str) -> Path:
    """Where TensorRT-LLM has it: models/core/FAMILY from 0.20 on, FAMILY before."""
    for folder in (examples / "models" / "core" / family, examples / family):
        if (folder / "requirements.txt").is_file():
            return folder / "requirements.txt"
    sys.exit(f"{examples} has no requirements.txt for the family {family!r}")


def missing(text: str) -> list[str]:
    """The requirements in the text of a requirements.txt that nothing installed has the name of."""
    found = []
    for line in text.splitlines():
        line = line.partition(" #")[0].strip()
        if not line or line.startswith(("#", "-")):
            continue
        requirement = Requirement(line)
        if requirement.name.lower().startswith("nvidia-"):  # CUDA's libraries are the image's own business
            continue
        if requirement.marker is None or requirement.marker.evaluate():
            try:
                metadata.version(requirement.name)
            except metadata.PackageNotFoundError:
                found.append(line)
    return found


if __name__ == "__main__":
    files = [requirements_file(Path(sys.argv[1]), family) for family in sys.argv[2:]]
    print("\n".join(sorted({line for file in files for line in missing(file.read_text("utf-8"))})))
