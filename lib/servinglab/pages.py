"""Pages made from data: the index of a run, and the parts of README.md and environment.yml that derive from others.

python -m servinglab.pages     writes those parts again (make pages)
"""

from __future__ import annotations

import json
import re
import sys
import time
from html import escape
from pathlib import Path
from typing import Any

from servinglab.course import Course, load, tomllib
from servinglab.errors import CourseError
from servinglab.keep import write
from servinglab.notebook import device

SERVING_RESULTS = Path("data") / "results" / "cpu" / "serving.json"
SCHEDULING_RESULTS = Path("data") / "results" / "cpu" / "scheduling.json"
GPU_RESULTS = Path("data") / "results" / "h200" / "gpu.json"
COURSE_RESULTS = (Path("data") / "results" / "cpu" / "course_run.json", GPU_RESULTS.with_name("course_run.json"))
DRAFT_CARD = Path("data") / "draft" / "README.md"
DRAFT_RESULTS = Path("data") / "draft" / "smollm2-draft.json"
CLIP_CARD = Path("data") / "mini_clip" / "README.md"
CLIP_RESULTS = Path("data") / "mini_clip" / "mini-clip.json"
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .4rem .6rem; border-bottom: 1px solid #8886; vertical-align: top; }
td.number { text-align: right; } .failed, .timeout { color: #c62828; } .passed { color: #2e7d32; }
"""


def write_index(course: Course, results: list[Any], out: Path) -> Path:
    """Write `out`/index.html: the notebooks that ran, with time, status and links to page and notebook."""
    titles = {n.id: n.title for n in course.notebooks}
    rows = []
    for r in results:
        page = out / f"{r.id}.html"
        title = escape(titles.get(r.id, r.id))
        name = f'<a href="{r.id}.html">{title}</a>' if page.exists() else title
        notebook = f'<a href="{r.id}.ipynb">{r.id}.ipynb</a>' if (out / f"{r.id}.ipynb").exists() else escape(r.id)
        rows.append(
            f'<tr><td>{name}<br><small>{notebook}</small></td><td class="number">{r.seconds:.1f}</td>'
            f'<td class="{r.status}">{r.status}<br><small>{escape(r.error)}</small></td></tr>'
        )
    when = f"Last run {time.strftime('%Y-%m-%d %H:%M')} on {escape(device())}. Each page ends with what produced it."
    path = out / "index.html"
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>The course, executed</title>'
        f"<style>{_STYLE}</style></head><body><h1>The course, executed</h1>"
        f"<p>{when}</p>"
        "<table><tr><th>notebook</th><th>seconds</th><th>status</th></tr>" + "".join(rows) + "</table></body></html>\n"
    )
    write(path, page.encode())
    return path


def notebook_table(course: Course) -> str:
    """The README's table of notebooks, in Markdown."""
    rows = ["| notebook | what it is about | minutes | lanes |", "|---|---|---|---|"]
    for n in course.notebooks:
        rows.append(f"| [{n.id}]({n.folder}/{n.id}.ipynb) | {n.title} | {n.minutes} | {', '.join(n.lanes)} |")
    return "\n".join(rows)


def benchmark_table(results: dict[str, Any] | None) -> str:
    """The README's figures, all of them from the results file of benchmarks/serving.py."""
    if results is None:
        return "Not measured yet: `python benchmarks/serving.py --json` writes the figures that belong here."
    rows = [
        ("tokens/s through Triton against transformers' `generate`, one stream", f"{results['stream1_ratio']:.1f} ×"),
        ("the same, eight streams, `generate` one prompt after another", f"{results['stream8_ratio']:.1f} ×"),
        ("share of the in-process executor's tokens/s that Triton's path keeps", f"{results['triton_share']:.0%}"),
        ("the same, eight streams", f"{results['triton_share_8']:.0%}"),
        ("time to first token that Triton's path adds", f"{results['ttft_extra_ms']:.1f} ms"),
    ]
    text = "the BLS model itself (`bls_decodes`)" if results["decoder"] == "bls" else "`postprocessing`, the default"
    how = f"{results['precision']} weights, float32 in `generate`; ids become text in {text}"
    lines = [f"| measured in one run ({results['cpu']}; {how}) | |", "|---|---|"]
    return "\n".join(lines + [f"| {what} | {value} |" for what, value in rows])


def scheduling_table(results: dict[str, Any] | None) -> str:
    """What benchmarks/scheduling.py found."""
    if results is None:
        return "Not measured yet: `python benchmarks/scheduling.py --json` writes the figures that belong here."
    rows = [
        ("time to first token after 500 tokens that were read before: without over with reuse", "prefix_ttft"),
        ("tokens/s of a ragged load, in-flight over static batching", "inflight"),
        ("tokens/s of one stream that copies a text, with prompt lookup over without", "lookup"),
    ]
    lines = [f"| measured in one run ({results['cpu']}; fp32 weights, in-process) | | lowest to highest round |"]
    lines.append("|---|---|---|")
    for what, name in rows:
        low, high = results[f"{name}_spread"]
        lines.append(f"| {what} | {results[f'{name}_speedup']:.1f} × | {low:.1f} to {high:.1f} |")
    same = "the same tokens" if results["lookup_identical"] else "NOT the same tokens"
    return "\n".join(lines) + f"\n\nPrompt lookup wrote {same} as plain decoding."


def gpu_table(results: dict[str, Any] | None) -> str:
    """What benchmarks/gpu.py found."""
    if results is None:
        return "Not measured yet: `python benchmarks/gpu.py --json` writes the figures that belong here."
    rows = [
        ("transformers' eager `generate`, one prompt", f"{results['generate_tok_s']:,.0f} tokens/s"),
        ("the executor in-process, one request", f"{results['executor_tok_s']:,.0f} tokens/s"),
        ("the same over `generate`", f"{results['over_generate']:.0f} ×"),
        ("share of what the memory bandwidth allows", f"{results['bound_share']:.0%}"),
        ("the executor in-process, 64 requests, in total", f"{results['executor_64_tok_s']:,.0f} tokens/s"),
    ]
    if "triton_tok_s" in results:
        rows.append(("one gRPC stream through Triton and the BLS model", f"{results['triton_tok_s']:,.0f} tokens/s"))
    how = f"{results['device']}, {results['date']}; SmolLM2-135M, bf16, greedy; PyTorch {results['torch']}"
    return "\n".join([f"| measured in one run ({how}) | |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)])


def course_table(runs: list[dict[str, Any] | None]) -> str:
    """How long the notebooks took on each of some machines, from what benchmarks/course_run.py found."""
    runs = [run for run in runs if run]
    if not runs:
        return "Not measured yet: `python benchmarks/course_run.py` writes the figures that belong here."
    heads = [f"{run['cpu'] if run['device'] == 'cpu' else run['device']}, {run['cores']} cores" for run in runs]
    lines = [f"| seconds | {' | '.join(heads)} |", f"|---|{'---:|' * len(runs)}"]
    for rows in zip(*(run["notebooks"] for run in runs), strict=True):
        cells = [f"{row['seconds']:.0f}" if row["status"] == "passed" else row["status"] for row in rows]
        lines.append(f"| {rows[0]['id']} | {' | '.join(cells)} |")
    lines.append(f"| all, on {' and '.join(run['date'] for run in runs)} | " + " | ".join(
        f"{run['seconds']:.0f}" for run in runs
    ) + " |")  # fmt: skip
    return "\n".join(lines)


def draft_table(results: dict[str, Any] | None) -> str:
    """The figures on the draft model's card, all of them from what tools/train_draft.py wrote beside the weights."""
    if results is None:
        return "Not trained yet."
    held_out, training = results["held_out"], results["training"]
    lines = ["| | trained | untrained |", "|---|---|---|"]
    for kind, where in (("chat", "answers to questions"), ("text", "plain texts"), ("all", "both")):
        for what, name in (("agreement", "next token is the target's"), ("tokens_per_round", "tokens a round")):
            values = [held_out[draft][kind][what] for draft in ("draft", "untrained")]
            shown = [f"{v:.1%}" if what == "agreement" else f"{v:.2f}" for v in values]
            lines.append(f"| {name}, {where} | {shown[0]} | {shown[1]} |")
    return "\n".join(lines) + (
        f"\n\n{results['tokens_written'] / 1e6:.1f} M tokens written, {results['tokens_trained'] / 1e6:.0f} M trained "
        f"on in {results['steps']:,} steps; KL on these texts from {training['kl_before']:.2f} to "
        f"{training['kl_after']:.2f} nats a token; "
        f"{results['seconds']:.0f} s in all on one {results['device']}, {results['date']}, PyTorch {results['torch']}, "
        f"seed {results['seed']}, layers {' and '.join(map(str, results['layers']))} of the target."
    )


def clip_table(results: dict[str, Any] | None) -> str:
    """The figures on mini-CLIP's card, all of them from what labs/vlm_clip/train.py wrote beside the weights."""
    if results is None:
        return "Not trained yet."
    lines = ["| share of captions that find their picture (95 % interval) | mini-CLIP | ConSE | difference |"]
    lines.append("|---|---|---|---|")
    for found in (results["evaluation"], results["subset"]):
        for k in (1, 10):
            cells = []
            for name, sign in ((f"recall_at_{k}", ""), (f"conse_recall_at_{k}", ""), (f"gain_at_{k}", "+")):
                low, high = found["intervals"][name]
                cells.append(f"{found[name]:{sign}.3f} ({low:{sign}.3f} to {high:{sign}.3f})")
            lines.append(f"| recall at {k}, {found['n']} pictures | {' | '.join(cells)} |")
    whole, training, seconds = results["evaluation"], results["training"], results["seconds"]
    return "\n".join(lines) + (
        f"\n\n{whole['n']} pictures have {whole['captions']} captions; the median rank is {whole['median_rank']}, with "
        f"ConSE {whole['conse_median_rank']}. Trained on {training['trained_on']:,} pictures in {training['steps']:,} "
        f"steps ({seconds['training']} s on {results['device']}, {results['date']}, PyTorch {results['torch']}, "
        f"seed {training['seed']}); settings chosen on {results['chosen_on']['photos']} photos and "
        f"{results['chosen_on']['drawings']} held-out drawings."
    )


def environment_yml(project: dict[str, Any]) -> str:
    """environment.yml for conda users: only Python. The packages come by `make setup`, with their hashes checked."""
    return (
        "# Made by `make pages` from pyproject.toml. conda brings Python alone; with it, `make setup` makes .venv.\n"
        f"name: {project['name']}\n"
        "channels:\n  - conda-forge\n"
        "dependencies:\n"
        f"  - python {project['requires-python']}\n"
    )


def fill(text: str, name: str, content: str) -> str:
    """Replace what stands between `<!-- name:begin … -->` and `<!-- name:end -->`. Raises CourseError without them."""
    pattern = re.compile(rf"(<!-- {name}:begin[^>]*-->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    if not pattern.search(text):
        raise CourseError(f"There is no place marked {name}:begin … {name}:end.")
    return pattern.sub(lambda found: f"{found.group(1)}{content}\n{found.group(2)}", text)


def derived(root: Path) -> dict[Path, str]:
    """Every derived file with the content it must have."""
    course = load(root)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (root / "README.md").read_text(encoding="utf-8")
    readme = fill(readme, "notebooks", notebook_table(course))
    readme = fill(readme, "benchmark", benchmark_table(_stored(root / SERVING_RESULTS)))
    readme = fill(readme, "scheduling", scheduling_table(_stored(root / SCHEDULING_RESULTS)))
    readme = fill(readme, "gpu", gpu_table(_stored(root / GPU_RESULTS)))
    readme = fill(readme, "course", course_table([_stored(root / path) for path in COURSE_RESULTS]))
    card = fill((root / DRAFT_CARD).read_text(encoding="utf-8"), "draft", draft_table(_stored(root / DRAFT_RESULTS)))
    clip = fill((root / CLIP_CARD).read_text(encoding="utf-8"), "clip", clip_table(_stored(root / CLIP_RESULTS)))
    return {
        root / "README.md": readme,
        root / DRAFT_CARD: card,
        root / CLIP_CARD: clip,
        root / "environment.yml": environment_yml(project),
    }


def _stored(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def main() -> int:
    for path, content in derived(load().root).items():
        path.write_text(content, encoding="utf-8")
        print(f"wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
