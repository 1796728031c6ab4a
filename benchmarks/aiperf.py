"""AIPerf in an environment of its own: its packages do not go together with the course's, and take 1.2 GB.

python benchmarks/aiperf.py        makes the environment, once, in the course's cache
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from servinglab.assets import cache_dir
from servinglab.errors import CourseError
from servinglab.lane import spare_the_proxy

VERSION = "0.13.0"
# Ours → AIPerf's. Its values are in milliseconds, tokens/s and requests/s.
METRICS = {
    "ttft_ms": "time_to_first_token",
    "itl_ms": "inter_token_latency",
    "latency_ms": "request_latency",
    "tokens_per_second": "output_token_throughput",
    "requests_per_second": "request_throughput",
    "requests": "request_count",
    "output_tokens": "output_sequence_length",
    "input_tokens": "input_sequence_length",
}
_STATISTICS = ("avg", "p50", "p90", "p95", "p99")


def ensure(tell: Any = print) -> Path:
    """Install AIPerf into the cache unless it is there. Returns its program; takes minutes and 1.2 GB the first time.

    Raises CourseError when pip fails; the next call begins anew.
    """
    folder, program = _folder(), _folder() / "bin" / "aiperf"
    if (folder / "complete").is_file():
        return program
    shutil.rmtree(folder, ignore_errors=True)
    tell(f"Installing AIPerf {VERSION} into the cache: 1.2 GB, some minutes.")
    venv.create(folder, with_pip=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", f"aiperf=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CourseError(f"AIPerf {VERSION} could not be installed: {_last_line(done.stderr)}")
    (folder / "complete").touch()
    return program


def profile(command: Sequence[str], folder: Path, *, timeout: float = 600) -> dict[str, Any]:
    """Run a command of loadtest.aiperf whose artifacts go to `folder`; returns {"ttft_ms": {"avg", …}, …}.

    Raises CourseError when AIPerf or one of its requests fails, when it says nothing within `timeout` seconds, and when
    it is not installed.
    """
    if not (_folder() / "complete").is_file():
        raise CourseError("AIPerf is not installed: run python benchmarks/aiperf.py first (1.2 GB).")
    # Offline mode forbids its tokenizer even a local folder.
    env = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    spare_the_proxy(env)
    words = [str(_folder() / "bin" / "aiperf"), *command[1:], "--ui", "none"]
    export = Path(folder, "profile_export_aiperf.json")  # folders below it hold one of each phase, the warm-up's too
    export.unlink(missing_ok=True)
    # A session of its own: its many processes end with it, and do not go on loading the server.
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen(words, text=True, env=env, start_new_session=True, **pipes)
    try:
        printed, problems = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise CourseError(f"AIPerf did not end within {timeout:g} s; ask for fewer requests.") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if child.returncode or not export.is_file():
        text = problems or printed
        errors = re.findall(r"^[\d:.]+ +(?:ERROR|CRITICAL) +(.*?)(?: \(\w+\.py:\d+\))?$", text, re.M)
        raise CourseError(f"AIPerf ended without a result: {errors[-1][:300] if errors else _last_line(text)}")
    return read(export)


def read(path: Path) -> dict[str, Any]:
    """AIPerf's JSON export, reduced to what notebook 11 compares; what it did not measure is left out.

    Raises CourseError when requests failed: AIPerf leaves them out of every other number, and ends as if all were well.
    """
    export = json.loads(path.read_text(encoding="utf-8"))
    if failed := (export.get("error_request_count") or {}).get("avg"):  # absent without errors
        total = failed + (export.get("request_count") or {}).get("avg", 0)  # which counts only those that were answered
        first = next(iter(export.get("error_summary") or ()), {}).get("error_details") or {}
        why = " ".join(f"{first.get('code')} {first.get('type')}: {first.get('message')}".split())[:300]
        raise CourseError(f"{failed:g} of AIPerf's {total:g} requests failed, so its numbers are of the others: {why}")
    found = {ours: export[theirs] for ours, theirs in METRICS.items() if isinstance(export.get(theirs), dict)}
    return {
        ours: {name: round(values[name], 3) for name in _STATISTICS if values.get(name) is not None}
        for ours, values in found.items()
    }


def _folder() -> Path:
    return cache_dir() / "tools" / f"aiperf-{VERSION}-py{sys.version_info[0]}.{sys.version_info[1]}"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1].strip()[:300]


if __name__ == "__main__":
    print(ensure())
