"""The one line of the report, and small questions to the machine that several checks ask."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

OK, WARN, FAIL = "OK", "WARN", "FAIL"


@dataclass(frozen=True)
class Line:
    """One finding. `cure` says what to do and is empty when all is well."""

    status: str
    name: str
    detail: str
    cure: str = ""


def run(command: list[str]) -> str:
    """What a command prints, or nothing when it is missing, fails or takes longer than 2 s."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=2, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def read(path: str) -> str:
    """A file of /proc or /sys, or nothing where it does not exist."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def version(package: str) -> str | None:
    """Installed version of a distribution."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def size(count: float) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
