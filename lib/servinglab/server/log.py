"""Find in Triton's log the line that says what went wrong, and make one sentence of it."""

from __future__ import annotations

import re
from pathlib import Path

from servinglab.triton_24_10 import clean

# Errors that every machine without an NVIDIA driver logs, and consequences of an error already logged.
HARMLESS = ("CudaDriverHelper", "NVML", "DCGM", "Failed to create instance", "failed to load all models")
CONSEQUENCE = ("which has no loaded version", "depends on", "not ready")
LINE = re.compile(r"[EF]\d{4} [\d:.]+ \d+ [\w.]+:\d+\] (?P<text>.*)$")


def read(path: Path, offset: int = 0) -> str:
    """What the log holds after byte `offset`; "" when there is none."""
    try:
        return path.read_bytes()[offset:].decode(errors="replace")
    except OSError:
        return ""


def log_error(log: str) -> str | None:
    """The log's own reason, cleaned: one sentence, or None if it holds no error.

    Looked for in this order: a library the loader misses, shared memory, a configuration that does not parse or a model
    that fails to load, then any other error line.
    """
    if found := re.search(r"error while loading shared libraries: ([^:\s]+): (.*)", log):
        return f"the library {found[1]} is missing ({found[2].strip()})"
    if re.search(r"No space left on device|shared memory key|--shm-size", log):
        return "/dev/shm is full: in Docker start the container with --shm-size=1g"
    # Protobuf's position is joined to the line about the file that it is in.
    log = re.sub(
        r"Error parsing text-format [\w.]+: (\d+):(\d+): (.*)\n(.*)failed to read text proto from ([^\"\n]*)",
        r"\n\4\5 does not parse, line \1, column \2: \3", log,
    )  # fmt: skip
    lines = (match["text"] for line in log.splitlines() if (match := LINE.match(line)))
    errors = dict.fromkeys(clean(text) for text in lines if not any(word in text for word in HARMLESS))
    if causes := [e for e in errors if not any(word in e for word in CONSEQUENCE)] or [*errors]:
        return causes[0] + (f" (and {len(causes) - 1} more, see the log)" if len(causes) > 1 else "")
    found = re.search(r"^error: (.*)", log, re.M)
    return clean(found[1]) if found else None


def taken_port(log: str) -> int | None:
    """Port that another program had, if that is why the server did not start."""
    found = re.search(r"Socket '[^']*:(\d+)' already in use", log)
    return int(found[1]) if found else None


def loaded_models(log: str) -> set[str]:
    """Models that the log says are loaded (Triton answers no request before all of them are)."""
    return set(re.findall(r"successfully loaded '([^']+)'", log))


def listens(log: str) -> bool:
    """Whether the log says that every endpoint is open: gRPC and HTTP come first, metrics last."""
    return "Started Metrics Service" in log
