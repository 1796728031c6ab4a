"""Which notebooks .github/workflows/gpu.yml runs in a lane, and what became of them.

    .venv/bin/python tools/status_table.py run trtllm     # the files to run: those of the lane but tests/gpu_skips.toml
    .venv/bin/python tools/status_table.py show trtllm    # a table in Markdown, of build/gpu/trtllm/results.json
"""

from __future__ import annotations

import datetime
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from course.manifest import Course, Lane, load, one_sentence
from servinglab.root import tomllib

ROOT = Path(__file__).resolve().parents[1]
SKIPS = ROOT / "tests" / "gpu_skips.toml"


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Skip:
    notebook: str
    lane: Lane
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    until: datetime.date


def skips(text: str, course: Course, today: datetime.date) -> list[Skip]:
    """The entries of a skip list. One that is expired, or wrong in any other way, ends the program."""
    try:
        found = TypeAdapter(list[Skip]).validate_python(tomllib.loads(text).get("skip", []))
    except ValidationError as error:
        sys.exit(f"{SKIPS.name}, entry {one_sentence(error)}")
    lanes = {n.id: n.lanes for n in course.notebooks}
    for skip in found:
        if skip.lane not in lanes.get(skip.notebook, ()):
            sys.exit(f"{SKIPS.name}: course.toml has no notebook {skip.notebook!r} in the lane {skip.lane}.")
        if skip.until < today:
            sys.exit(f"{SKIPS.name}: {skip.notebook} was left out of the lane {skip.lane} until {skip.until} only.")
    return found


def files(lane: str, skipped: list[Skip], course: Course) -> list[str]:
    out = {skip.notebook for skip in skipped if skip.lane == lane}
    found = [str(n.path.relative_to(course.root)) for n in course.notebooks if lane in n.lanes and n.id not in out]
    return found or sys.exit(f"No notebook is left to run in the lane {lane}.")  # without names, `course run` runs all


def table(lane: str, skipped: list[Skip], course: Course, folder: Path) -> str:
    """`folder`: what `course run --out` wrote. A notebook with neither a result nor an entry was not run."""
    file = folder / "results.json"
    results = {result["id"]: result for result in (json.loads(file.read_text()) if file.exists() else ())}
    reasons = {skip.notebook: f"{skip.reason} (until {skip.until})" for skip in skipped if skip.lane == lane}
    rows = [["notebook", "lane", "status", "seconds", "device", "reason"], ["---"] * 6]
    for name, number in ((n.id, n.number) for n in course.notebooks if lane in n.lanes):
        result = results.get(name) or {"status": "skipped" if name in reasons else "not run", "seconds": ""}
        record = folder / "records" / f"{number}.json"  # by the notebook's last cell
        device = json.loads(record.read_text())["device"] if record.exists() else ""
        row = name, lane, result["status"], result["seconds"], device, result.get("error", reasons.get(name, ""))
        rows.append([str(cell).replace("|", "\\|") for cell in row])
    counts = ", ".join(f"{count} {status}" for status, count in Counter(row[2] for row in rows[2:]).items())
    return "\n".join([f"{lane}: {counts}\n", *(f"| {' | '.join(row)} |" for row in rows)])


if __name__ == "__main__":
    what, lane = sys.argv[1:]
    course = load(ROOT)
    skipped = skips(SKIPS.read_text(encoding="utf-8"), course, datetime.date.today())
    if what == "run":
        print(*files(lane, skipped, course))
    else:
        print(table(lane, skipped, course, ROOT / "build" / "gpu" / lane))
