"""Time the first preparation of a model in an empty cache: download, conversion, graphs.

    python benchmarks/prepare.py [--model smollm2] [--precision fp32 --precision int4] [--json]

Keys: prepare_s (everything but the download; at most 90 s for the default model on two cores), download_s, again_s (the
same call once more), stages {name: seconds}, cpu_s (of all child processes), cores, load1.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--precision", action="append", choices=["fp32", "int4"], help="fp32 when left out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    precisions = options.precision or ["fp32"]
    with tempfile.TemporaryDirectory() as cache:
        stages, total = timed(options.model, precisions, Path(cache))
        _, again = timed(options.model, precisions, Path(cache))
    download = sum(seconds for name, seconds in stages.items() if name.startswith("fetching"))
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = {
        "model": options.model,
        "precisions": precisions,
        "prepare_s": round(total - download, 1),
        "download_s": round(download, 1),
        "again_s": round(again, 1),
        "stages": {name: round(seconds, 1) for name, seconds in stages.items()},
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "cores": len(os.sched_getaffinity(0)),
        "load1": round(os.getloadavg()[0], 1),
    }
    if options.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:12} {value}")


def timed(model: str, precisions: list[str], cache: Path) -> tuple[dict[str, float], float]:
    """Prepare in a fresh process; the lines that it prints for its stages are the clock."""
    code = f"from servinglab import assets; assets.prepare({model!r}, {tuple(precisions)!r})"
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SERVINGLAB_CACHE": str(cache)},
    )
    marks = []
    for line in process.stderr:
        marks.append((line.strip().removeprefix(f"{model}: "), time.monotonic()))
    if process.wait():
        sys.exit(marks[-1][0] if marks else f"ended with {process.returncode}")
    times = [*(at for _, at in marks), time.monotonic()]
    return {name: times[i + 1] - at for i, (name, at) in enumerate(marks)}, times[-1] - start


if __name__ == "__main__":
    main()
