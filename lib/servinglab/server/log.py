"""Find in Triton's log the line that says what went wrong, and make one sentence of it."""

from __future__ import annotations

import re
from pathlib import Path

# Errors that every machine without an NVIDIA driver logs, and consequences of an error already logged.
HARMLESS = ("CudaDriverHelper", "NVML", "DCGM", "Failed to create instance", "failed to load all models")
CONSEQUENCE = ("which has no loaded version", "depends on", "not ready")
LINE = re.compile(r"^(?P<level>[IWEF])\d{4} [\d:.]+ \d+ [\w.]+:\d+\] (?P<text>.*)$")


def log_error(path: str | Path, offset: int = 0) -> str | None:
    """The log's own reason, cleaned: one sentence, or None if the log holds no error.

    Looked for in this order: a library the loader misses, shared memory, a taken port, a configuration that does not
    parse, a model that fails to load, then any other error line. Only what was written after byte `offset` counts.
    """
    text = _read(path)[offset:].decode(errors="replace")
    if found := re.search(r"error while loading shared libraries: ([^:\s]+): (.*)", text):
        return f"the library {found[1]} is missing ({found[2].strip()})"
    if re.search(r"No space left on device|shared memory key|--shm-size", text):
        return "/dev/shm is full: in Docker start the container with --shm-size=1g"
    if found := re.search(r"Socket '([^']+)' already in use", text):
        return f"the address {found[1]} is already in use"
    if found := missing_model_file(text):
        return found
    errors = _errors(text)
    causes = [e for e in errors if not any(word in e for word in CONSEQUENCE)] or errors
    if causes:
        more = f" (and {len(causes) - 1} more, see the log)" if len(causes) > 1 else ""
        return causes[0] + more
    if found := re.search(r"^error: (.*)", text, re.M):
        return clean(found[1])
    return None


def missing_model_file(text: str) -> str | None:
    """The reason when a Python model has no model.py. Triton 24.10 logs it as information and waits for ever."""
    found = re.search(r"Failed to preinitialize Python stub: Python model file not found in '([^']*)'", text)
    return f"the Python model has no model.py: {found[1]} does not exist" if found else None


def hopeless(path: str | Path, offset: int = 0) -> str | None:
    """Why the load that began at byte `offset` of the log will never end, None if it may."""
    return missing_model_file(_read(path)[offset:].decode(errors="replace"))


def taken_port(path: str | Path) -> int | None:
    """Port that another program had, if that is why the server did not start."""
    found = re.search(rb"Socket '[^']*:(\d+)' already in use", _read(path))
    return int(found[1]) if found else None


def loaded_models(path: str | Path) -> set[str]:
    """Models that the log says are loaded (Triton answers no request before all of them are)."""
    return {name.decode() for name in re.findall(rb"successfully loaded '([^']+)'", _read(path))}


def listens(path: str | Path) -> bool:
    """Whether the log says that every endpoint is open: gRPC and HTTP come first, metrics last."""
    return b"Started Metrics Service" in _read(path)


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _errors(text: str) -> list[str]:
    """Every distinct error of the log, in order; protobuf's position is joined to the line of the file it is about."""
    found: list[str] = []
    position = ""
    for line in text.splitlines():
        if parse := re.search(r"Error parsing text-format [\w.]+: (\d+):(\d+): (.*)", line):
            position = f"line {parse[1]}, column {parse[2]}: {parse[3]}"
            continue
        match = LINE.match(line)
        if not match or match["level"] not in "EF" or any(word in match["text"] for word in HARMLESS):
            continue
        message = clean(match["text"])
        if position and "failed to read text proto" in message:
            message = re.sub(r"failed to read text proto from (.*)", rf"\1 does not parse, {position}", message)
            position = ""
        if message not in found:
            found.append(message)
    return found


def clean(text: str) -> str:
    """One error text of Triton without quotes, escapes, status words and traceback."""
    text = text.strip().strip('"').replace("\\n", "\n").replace('\\"', '"').replace("\\'", "'")
    body, _, trace = text.partition("\n\nAt:\n")
    where = re.search(r"^\s*(\S+)\((\d+)\): (\S+)", trace)
    body = re.sub(r"^failed to load '([^']+)' version \d+: ", r"model '\1' failed to load: ", body)
    body = re.sub(r": (Internal|Invalid argument|Unavailable|Not found|Unknown|Unsupported)(?: -)?: ", ": ", body)
    body = re.sub(r"^\[request id: [^\]]*\] ", "", body)
    body = body.partition(" NOTE: Setting a non-zero max_batch_size")[0]  # says at length what the client's hint says
    body = re.sub(r"\s*\n\s*", " ", body).strip(" ;.")
    if "Stub process" in body and "is not healthy" in body:
        model, loading, _ = body.partition(" failed to load")
        died = "Python process died, perhaps out of memory"
        body = f"{model} failed to load: its {died}" if loading else f"A model's {died}: restart the server"
    if "unable to find backend library" in body:
        body = body.partition(", try specifying")[0] + "; the embedded Triton has only the backend python"
    return f"{body} (in {where[1]}, line {where[2]})" if where else body
