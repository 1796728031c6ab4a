"""What the README says is true: its commands exist, its table is the manifest, its figures are the results file."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import jinja2
import pages
import pytest
from typer.main import get_command

from course import cli

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
LINES = [line for block in BLOCKS for line in block.replace("\\\n", "").splitlines() if line.strip()]
COMMANDS = [line.split("#")[0].strip() for line in LINES]
INLINE = re.findall(r"`((?:make|course) [^`]+)`", README)


def part(name: str) -> str:
    return re.search(rf"<!-- {name}:begin[^>]*-->\n(.*?)\n?<!-- {name}:end -->", README, re.DOTALL).group(1)


def test_it_begins_with_the_two_commands():
    assert BLOCKS[0].split() == ["make", "course", "make", "test"]


def test_the_test_command_is_what_ci_runs():
    assert "make test" in COMMANDS
    assert re.search(r"^timeout .* make test ", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert "run: make test" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()


@pytest.mark.parametrize("command", sorted({c for c in COMMANDS + INLINE if c.startswith("make ")}))
def test_every_make_command_has_its_target(command):
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    words = [w for w in shlex.split(command)[1:] if "=" not in w]
    assert words and set(words) <= set(targets)
    for option in (w.split("=")[0] for w in command.split() if "=" in w):
        assert re.search(rf"^{option} \?=", (ROOT / "Makefile").read_text(), re.MULTILINE), option


@pytest.mark.parametrize("command", sorted({c for c in COMMANDS + INLINE if c.startswith("course ")}))
def test_every_course_command_parses(command):
    """By the parser of the command itself: names, options and the number of arguments."""
    current, words = get_command(cli.app), shlex.split(command)[1:]
    while hasattr(current, "commands"):
        assert words and words[0] in current.commands, command
        current, words = current.commands[words[0]], words[1:]
    if command in INLINE and not words:
        return  # named in a sentence, without its arguments
    current.make_context(current.name, list(words), resilient_parsing=False)


def test_every_command_of_the_cli_is_in_the_readme():
    shown = " ".join(COMMANDS + INLINE)
    for name in get_command(cli.app).commands:
        assert f"course {name}" in shown, name


def test_there_are_no_other_measured_figures():
    rest = README
    for name in ("benchmark", "notebooks", "scheduling", "gpu", "course"):
        rest = rest.replace(part(name), "")
    assert not re.findall(r"\d+(?:\.\d+)? ?(?:×|tok|ms|%)", rest)


def test_figures_come_out_as_they_are_in_the_file():
    ratios = {"stream1_ratio": 6.24, "stream8_ratio": 17.96, "triton_share": 0.934, "triton_share_8": 0.871}
    words = {"precision": "int4", "decoder": "bls", "cpu": "a CPU"}
    table = pages.part("benchmark", {**ratios, "ttft_extra_ms": 7.31, **words})
    assert all(text in table for text in ("6.2 ×", "18.0 ×", "93%", "87%", "7.3 ms", "int4", "BLS", "a CPU"))
    with pytest.raises(jinja2.UndefinedError, match="'cpu' is undefined"):
        pages.part("benchmark", ratios)


def test_figures_of_scheduling_and_of_a_gpu_come_out_as_they_are():
    ratios = {"prefix_ttft": 31.66, "inflight": 2.07, "lookup": 3.04}
    found = {f"{name}_speedup": value for name, value in ratios.items()}
    found |= {f"{name}_spread": [value - 0.5, value + 0.5] for name, value in ratios.items()}
    table = pages.part("scheduling", {**found, "lookup_identical": True, "cpu": "a CPU"})
    assert "| 31.7 × | 31.2 to 32.2 |" in table and "2.1 ×" in table and "3.0 ×" in table and "the same tokens" in table
    assert "NOT the same" in pages.part("scheduling", {**found, "lookup_identical": False, "cpu": "a CPU"})

    speeds = {"generate_tok_s": 11.1, "executor_tok_s": 1188.2, "over_generate": 107.0, "bound_share": 0.0987}
    facts = {"executor_64_tok_s": 22598.0, "device": "a GPU", "date": "2026-01-01", "torch": "2.11"}
    table = pages.part("gpu", {**speeds, **facts})
    assert all(text in table for text in ("11 tok", "1,188 tok", "107 ×", "10%", "22,598 tok", "a GPU", "2026-01-01"))
    assert "gRPC" not in table
    assert "| 612 tok" in pages.part("gpu", {**speeds, **facts, "triton_tok_s": 612.0})


def test_the_times_of_the_notebooks_come_out_as_they_are():
    def run(device, *rows):
        rows = [dict(zip(("id", "status", "seconds"), row, strict=True)) for row in rows]
        return {"device": device, "cpu": "a CPU", "cores": 2, "date": "2026-01-01", "seconds": 99.6, "notebooks": rows}

    first = run("cpu", ("00", "passed", 12.4), ("01", "failed", 3.0))
    lines = pages.part("course", first, run("a GPU", ("00", "passed", 9.5), ("01", "passed", 4.0))).splitlines()
    assert lines[0] == "| seconds | a CPU, 2 cores | a GPU, 2 cores |"
    assert lines[2:4] == ["| 00 | 12 | 10 |", "| 01 | failed | 4 |"] and lines[4].endswith("| 100 | 100 |")


def test_where_a_notebook_ran_is_what_the_runs_say():
    def results(*rows):
        return [{"id": name, "status": status} for name, status in rows]

    cpu = {"cpu": "a CPU", "date": "a day", "notebooks": results(("00_start_here", "passed"), ("10_x", "passed"))}
    gpu = {"device": "a GPU", "date": "a day", "notebooks": results(("00_start_here", "failed"))}
    run = {"layout": "venv", "by": "nbval", "date": "a day", "results": results(("00_start_here", "passed"))}
    course = pages.load(ROOT)
    lines = pages.part("ran", cpu, gpu, {"runs": [run]}, course=course).splitlines()
    assert len(lines) == 2 + len(course.notebooks) and len({line.count("|") for line in lines}) == 1
    assert lines[2] == "| 00_start_here | passed | failed | passed | not run |"
    assert lines[3] == "| 01_what_is_an_engine | not run | not run | not run | not run |"
    assert lines[12].startswith("| 10_speculative_decoding | not run | not run | – | – |")


def test_every_notebook_that_names_the_lane_trtllm_ran_in_the_stand_in():
    wanted = {notebook.id for notebook in pages.load(ROOT).notebooks if "trtllm" in notebook.lanes}
    runs = json.loads((ROOT / "data" / "results" / "standin" / "course_run.json").read_text())["runs"]
    assert {run["layout"] for run in runs} == {"venv", "system"}
    for run in runs:
        assert wanted == {found["id"] for found in run["results"] if found["status"] == "passed"}, run["layout"]
    text = " ".join(README.split())
    assert "every notebook that names the lane `trtllm` above ran in a stand-in" in text and "not run." not in text


def test_the_figures_of_the_draft_come_out_as_they_are():
    kinds = ("chat", "text", "all")
    one, two = (
        {kind: {"agreement": agreement, "tokens_per_round": tokens} for kind in kinds}
        for agreement, tokens in ((0.5, 2.2), (0.0625, 1.1))
    )
    results = {"held_out": {"draft": one, "untrained": two}, "training": {"kl_before": 9.876, "kl_after": 1.234}}
    results |= {"tokens_written": 2.5e7, "tokens_trained": 2e8, "steps": 6000, "seconds": 400.4, "device": "X"}
    table = pages.part("draft", {**results, "date": "2026-01-01", "torch": "2.11", "seed": 0, "layers": [0, 29]})
    assert "| next token is the target's, both | 50.0% | 6.2% |\n| tokens a round, both | 2.20 | 1.10 |" in table
    assert "25.0 M tokens written, 200 M trained on in 6,000 steps" in table and "9.88 to 1.23 nats" in table


def test_every_file_and_folder_it_names_exists():
    for name in re.findall(r"`([\w./]+/|LICENSE|[\w./]+\.(?:yml|toml|md))`", README):
        if not name.startswith((".venv", "build")):
            assert (ROOT / name).exists(), name
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_make_without_a_target_lists_the_targets():
    text = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("course", "test", "lab", "setup"):
        assert f"make {target}" in text


def test_pages_are_written_between_their_marks_only():
    text = "a\n<!-- x:begin (note) -->\nold\n<!-- x:end -->\nb\n"
    assert pages.fill(text, "x", "new") == "a\n<!-- x:begin (note) -->\nnew\n<!-- x:end -->\nb\n"
    assert pages.fill(pages.fill(text, "x", "n\\1w"), "x", "new") == pages.fill(text, "x", "new")
    with pytest.raises(pages.CourseError, match="no place marked y"):
        pages.fill(text, "y", "new")


def test_the_derived_files_are_up_to_date():
    for path, content in pages.derived(ROOT).items():
        assert path.read_text() == content, f"{path.name} is out of date; run make pages"


@pytest.mark.parametrize("page", sorted((ROOT / "lib").glob("*/README.md")), ids=lambda page: page.parent.name)
def test_what_a_package_s_readme_names_is_there(page):
    """Its modules, its functions (`module.name`, `Class.name`), and every file or pattern of a test or a tool."""
    lib = ROOT / "lib"
    text = page.read_text().replace("NN_name", "00_start_here").replace("NN", "00")
    text = text.replace("tools/fill_template.py", "").replace("pb_utils.MetricFamily", "")  # NVIDIA's
    for pattern in re.findall(r"(?:tests|tools|notebooks|benchmarks)/[\w./*-]*[\w*]", text):
        assert any(ROOT.glob(pattern)), f"{pattern} is not in the course"
    for module in re.findall(r"`([\w/]+\.(?:py|toml))`", text):
        found = [*lib.glob(f"**/{module}"), *ROOT.glob(f"tests/**/{module}"), *ROOT.glob(module)]
        assert found, f"{module} is nowhere"
    code = "\n".join(path.read_text() for path in lib.rglob("*.py"))
    for owner, name in re.findall(r"`(\w+)\.(\w+)[()]*`", text):
        known = re.search(rf"\b(def|class) {name}\b", code) or any(lib.glob(f"**/{owner}/{name}*"))
        assert known or name in ("py", "toml", "json", "pbtxt"), f"{owner}.{name} is nowhere"
