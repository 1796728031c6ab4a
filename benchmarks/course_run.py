"""What an executed course left behind, as one JSON: how long each notebook took, and the figures that it recorded.

    course run --out build
    python benchmarks/course_run.py build --commit "$(git rev-parse --short HEAD)" > data/results/cpu/course_run.json

Run it in the environment and on the machine of the run: device and versions are theirs.

Keys
    commit                the course that ran, as told (an offline bundle has no git)
    device, cpu, cores, versions, date (of the last notebook)
    seconds               of all notebooks together; what is `untimed` in course.toml runs two at a time
    notebooks             [{id, status, seconds, memory_mb, error, figures}]; memory: the most of all its processes;
                          figures: what the notebook passed to `record`
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import Any

from course import manifest, runner
from reference_backend.executor.device import cuda_name
from servinglab import notebook
from servinglab.errors import CourseError

PACKAGES = ("torch", "transformers", "servinglab")


def collect(out: Path, commit: str) -> dict[str, Any]:
    """The results in `out`, in the order of the course. Raises CourseError when a notebook has none."""
    found = {result.id: result for result in runner.earlier(out)}
    listed = {each.id: each.number for each in manifest.load().notebooks}
    if missing := [name for name in listed if name not in found]:
        raise CourseError(f"{out} has no result of {', '.join(missing)}: course run --out {out} makes them.")
    rows = [
        {"id": name, "status": found[name].status, "seconds": found[name].seconds,
         "memory_mb": found[name].memory_mb, "error": found[name].error,
         "figures": runner.figures(out / "records" / f"{number}.json") if found[name].status == "passed" else {}}
        for name, number in listed.items()
    ]  # fmt: skip
    last = max((out / f"{name}.ipynb").stat().st_mtime for name in listed)
    return {
        "commit": commit,
        "device": cuda_name() or "cpu",
        "cpu": notebook.cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": notebook.versions() | {name: importlib.metadata.version(name) for name in PACKAGES},
        "date": datetime.date.fromtimestamp(last).isoformat(),
        "seconds": round(sum(row["seconds"] for row in rows), 1),
        "notebooks": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder that `course run` wrote into")
    parser.add_argument("--commit", required=True)
    given = parser.parse_args()
    try:
        print(json.dumps(collect(given.out, given.commit), indent=2))
    except CourseError as error:
        sys.exit(f"course_run: {error}")


if __name__ == "__main__":
    main()
