"""Where the course lies."""

from __future__ import annotations

from pathlib import Path

from servinglab.errors import CourseError

MANIFEST = "course.toml"


def find_root(start: Path | None = None) -> Path:
    """The folder that holds `course.toml`: `start` (default: here) or one above it, else this package's checkout."""
    here = (start or Path.cwd()).resolve()
    checkout = Path(__file__).resolve().parents[2]
    for folder in (here, *here.parents, checkout):
        if (folder / MANIFEST).is_file():
            return folder
    raise CourseError(f"No {MANIFEST} here or above {here}; run this from the course's folder.")
