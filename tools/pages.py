"""What derives from data: parts of READMEs, model cards and run sheets, and environment.yml. python tools/pages.py
(make pages) writes them again.

A part stands between two comments, `<!-- NAME:begin … -->` and `<!-- NAME:end -->`; templates/NAME.md says how it
looks (Jinja; `x|f(".1f")` formats), and gets the values of the results files of PARTS; a value that they lack is an
error, not an empty cell.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from course.manifest import Course, load, tomllib
from servinglab.errors import CourseError

# Each file with derived parts, and for each part the files with its figures.
PARTS = {
    "README.md": {
        "notebooks": (),
        "benchmark": ("data/results/cpu/serving.json",),
        "scheduling": ("data/results/cpu/scheduling.json",),
        "gpu": ("data/results/h200/gpu.json",),
        "course": ("data/results/cpu/course_run.json", "data/results/h200/course_run.json"),
    },
    "Dockerfiles/README.md": {
        "ran": tuple(f"data/results/{where}/course_run.json" for where in ("cpu", "h200", "standin")),
    },
    "data/draft/README.md": {"draft": ("data/draft/smollm2-draft.json",)},
    "data/mini_clip/README.md": {"clip": ("data/mini_clip/mini-clip.json",)},
    "data/vlm/README.md": {"vlm": ("data/vlm/vlm.json",), "int8": ("data/results/cpu/int8_served.json",)},
}
PARTS |= {f"docs/instructors/{n:02}.md": {"expected": ("data/results/cpu/course_run.json",)} for n in range(17)}
_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")), undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True,
)  # fmt: skip
_TEMPLATES.filters["f"] = format
_TEMPLATES.filters["shown"] = lambda value: format(value, ".3g") if isinstance(value, float) else value


def part(name: str, *runs: dict[str, Any], course: Course | None = None, file: str = "") -> str:
    """One derived part, in Markdown. `runs`: what its results files hold; a value that they lack is an error."""
    values = {**(runs[0] if len(runs) == 1 else {}), "runs": runs, "course": course, "file": file}
    return _TEMPLATES.get_template(f"{name}.md").render(values).strip("\n")


def fill(text: str, name: str, content: str) -> str:
    """Replace what stands between `<!-- name:begin … -->` and `<!-- name:end -->`. Raises CourseError without them."""
    pattern = re.compile(rf"(<!-- {name}:begin[^>]*-->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    if not pattern.search(text):
        raise CourseError(f"There is no place marked {name}:begin … {name}:end.")
    return pattern.sub(lambda found: f"{found[1]}{content}\n{found[2]}", text)


def derived(root: Path) -> dict[Path, str]:
    """Every derived file with the content it must have."""
    course, project = load(root), tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    files = {root / "environment.yml": _TEMPLATES.get_template("environment.yml").render(project=project) + "\n"}
    for file, parts in PARTS.items():
        text = (root / file).read_text(encoding="utf-8")
        for name, results in parts.items():
            runs = [json.loads((root / result).read_text(encoding="utf-8")) for result in results]
            text = fill(text, name, part(name, *runs, course=course, file=file))
        files[root / file] = text
    return files


if __name__ == "__main__":
    for path, content in derived(load().root).items():
        path.write_text(content, encoding="utf-8")
        print(f"wrote {path.name}")
