"""gpu.yml, which needs a GPU to run: its form, the commands of its steps, its skip list and its table."""

from __future__ import annotations

import datetime
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import status_table
import yaml
from command_words import understood

from course import manifest, runner
from engines import recipes
from servinglab.repository import DeploymentSpec

ROOT = Path(__file__).resolve().parents[2]
GPU, CI = (yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text()) for name in ("gpu.yml", "ci.yml"))
COURSE = manifest.load(ROOT)
TODAY = datetime.date(2026, 12, 1)
ENTRY = '[[skip]]\nnotebook = "09_beam_search"\nlane = "trtllm"\nreason = "too | wide"\nuntil = 2026-12-01\n'


def dry(*words: str) -> str:
    """What make would run, a command on each line; nothing for a target that is not there."""
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.replace("\\\n", " ") if done.returncode == 0 else ""


def test_every_step_is_one_target_and_results_come_out_after_a_failure_too():
    assert set(GPU[True]) == {"schedule", "workflow_dispatch"} and not dry("no-such-target")  # True is `on`
    for job in GPU["jobs"].values():
        assert job["runs-on"] == ["self-hosted", "linux", "x64", "gpu"] and job["timeout-minutes"]
        for step in job["steps"]:
            text = step.get("run") or step["uses"]
            if re.match("make (trtllm-down|gpu-status)|actions/upload", text):
                assert step["if"] == "always()", text
            if "run" in step:
                make, *words = shlex.split(text)
                assert make == "make" and sum("=" not in word for word in words) == 1 and dry(*words), text


def test_the_newest_versions_are_tried_weekly_and_on_no_push():
    assert CI["jobs"]["newest"]["if"] == "github.event_name == 'schedule'"
    assert {"run": "make lock TORCH=cpu ARGS=--upgrade"} in CI["jobs"]["newest"]["steps"]
    assert "tools/lock.py --upgrade" in dry("lock", "ARGS=--upgrade")


def test_the_commands_in_the_containers_exist_and_fit_each_other():
    text = dry("trtllm-image", "trtllm-engine", "trtllm-serve", "trtllm-course", "trtllm-down")
    services = (ROOT / "compose.yaml").read_text()
    used = re.findall(r"docker compose (?:run .*?-T(?: -e \S+| --entrypoint \S+)*|up .*?\d+) +(\w+)", text)
    assert len(used) == 6 and set(used) <= set(yaml.safe_load(services)["services"]), used
    assert set(re.findall(r"(build/trtllm/\w+)}", services)) <= set(text.split())  # the folders that are mounted
    given = {}
    for words in map(shlex.split, re.findall(r"\bcourse (?:build )?((?:engine|repo|run) [^|>\n]*)", text)):
        context = understood(words)
        given[context.command.name] = context.params
    build, made = given["build"], {command.writes for command in recipes.recipe(given["recipe"]["name"]).commands}
    assert {str(build["engine_dir"]), str(build["tokenizer_dir"])} <= made
    DeploymentSpec(tokenizer_dir="t", engine_dir="e", parameters=dict(p.split("=") for p in build["setting"]))


def test_the_skip_list_is_sound_today():
    text = status_table.SKIPS.read_text()
    status_table.skips(text, COURSE, datetime.date.today())
    assert len(status_table.skips(re.sub("(?m)^# ?", "", text.partition("An entry:")[2]), COURSE, TODAY)) == 1


@pytest.mark.parametrize("old, new, word", [
    ("2026-12-01", "2026-11-30", "until 2026-11-30"), ("09_beam_search", "09_beam", "no notebook '09_beam'"),
    ("09_beam_search", "10_speculative_decoding", "in the lane trtllm"), ('"trtllm"', '"gpu"', "1.lane: "),
    ('reason = "too | wide"', "", "1.reason: "), ("too | wide", " ", "1.reason: "), ("until", "date", "1.until: "),
])  # fmt: skip
def test_an_entry_that_is_expired_or_wrong_is_refused(old, new, word):
    with pytest.raises(SystemExit, match=re.escape(word)):
        status_table.skips(ENTRY + ENTRY.replace(old, new), COURSE, TODAY)


def test_what_is_skipped_is_not_run_and_stands_in_the_table(tmp_path):
    skipped = status_table.skips(ENTRY, COURSE, TODAY)
    ran = [n.id for n in COURSE.select(status_table.files("trtllm", skipped, COURSE))]
    assert ran == [n.id for n in COURSE.notebooks if "trtllm" in n.lanes and n.id != "09_beam_search"]
    assert len(status_table.files("embedded", skipped, COURSE)) == len(COURSE.notebooks)
    runner.save([runner.Result(ran[0], "passed", 12.3), runner.Result(ran[1], "failed", 5.0, "a|b")], tmp_path)
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "00.json").write_text('{"device": "1 × GPU"}')
    lines = status_table.table("trtllm", skipped, COURSE, tmp_path).splitlines()
    assert lines[0] == f"trtllm: 1 passed, 1 failed, {len(ran) - 2} not run, 1 skipped"
    assert lines[4:6] == ["| 00_start_here | trtllm | passed | 12.3 | 1 × GPU |  |",
                          "| 01_what_is_an_engine | trtllm | failed | 5.0 |  | a\\|b |"]  # fmt: skip
    assert "| 09_beam_search | trtllm | skipped |  |  | too \\| wide (until 2026-12-01) |" in lines
