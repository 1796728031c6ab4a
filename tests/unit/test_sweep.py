"""`course sweep`: every combination once, refused before anything runs, resumed, and one table and one figure."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
import types

import nbformat
import pytest
import sweep
from PIL import Image
from typer.testing import CliRunner

from course import cli, doctor, manifest, runner
from servinglab.errors import CourseError

RECORD = """import json, os, pathlib
assert temperature < 5, "too hot"
(folder := pathlib.Path(os.environ["COURSE_RECORD_DIR"])).mkdir(parents=True)
parts = {"warm": temperature * 2, "of": {"seed": seed}}
(folder / "00.json").write_text(json.dumps({"notebook": "00", "device": "d", "seed": seed, "word": word, **parts}))"""
# What `course run` leaves, without a kernel: the cells run in this process. It notes when it began and when it ended.
STAND_IN = """import json, os, pathlib, sys, time
out, given = pathlib.Path(sys.argv[sys.argv.index("--out") + 1]), dict(a.split("=", 1) for a in sys.argv if "=" in a)
names = {"temperature": float(given["temperature"]), "seed": int(given.get("seed", 0)), "word": given.get("word", "a")}
began = time.time()
os.environ["COURSE_RECORD_DIR"] = str(out / "records")
time.sleep(float(os.environ.get("SECONDS_OF_WORK", "0")))
try:
    exec(json.loads(pathlib.Path(os.environ["CELL"]).read_text()), names)
    status, error = "passed", ""
except Exception as problem:
    status, error = "failed", str(problem)
(out / "00_tiny.ipynb").touch()
(out / "results.json").write_text(json.dumps([{"id": "00_tiny", "status": status, "seconds": 0.5, "error": error}]))
with open(os.environ["LOG"], "a") as log:
    log.write(f"{began} {time.time()}\\n")
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A course of one notebook that records twice its temperature."""
    parameters = nbformat.v4.new_code_cell("lane = 'auto'\ntemperature = 0.5\nseed = 0\nword = 'a'")
    parameters.metadata["tags"] = ["parameters"]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}, "language_info": {"name": "python"}}
    cells = [parameters, nbformat.v4.new_code_cell(RECORD)]
    (tmp_path / "notebooks").mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), tmp_path / "notebooks" / "00_tiny.ipynb")
    (tmp_path / "course.toml").write_text(
        '[[notebook]]\nid = "00_tiny"\ntitle = "T"\nminutes = 1\nlanes = ["embedded"]\nneeds = []\n'
        'parameters = { lane = "auto", temperature = 0.5, seed = 0, word = "a" }\n'
        'sets = [{ name = "default" }, { name = "other", word = "b" }]\n'
    )
    monkeypatch.chdir(tmp_path)
    return manifest.load(tmp_path)


@pytest.fixture
def quick(tiny, tmp_path, monkeypatch):
    """Runs are by the stand-in; calls of it are counted by the lines of its log."""
    (tmp_path / "cell").write_text(json.dumps(RECORD))
    (log := tmp_path / "log").touch()
    monkeypatch.setenv("CELL", str(tmp_path / "cell"))
    monkeypatch.setenv("LOG", str(log))
    monkeypatch.setattr(sweep, "module", lambda name, *arguments: [sys.executable, "-c", STAND_IN, *arguments])
    return lambda: [tuple(map(float, line.split())) for line in log.read_text().splitlines()]


def call(*arguments: str):
    return CliRunner().invoke(cli.app, ["sweep", *arguments])


def rows(tiny):
    with open(tiny.root / "build" / "sweep" / "00_tiny" / "table.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_every_combination_once_the_last_parameter_fastest(tiny):
    chosen, runs = sweep.grid(tiny, "0", ["temperature=0.2,0.70,0.7", 'word="a, b",c', "seed=1"], None)
    assert chosen.id == "00_tiny"
    assert [tuple(values[n] for n in ("temperature", "word", "seed")) for _, values in runs] == [
        (0.2, "a, b", 1), (0.2, "c", 1), (0.7, "a, b", 1), (0.7, "c", 1)
    ]  # fmt: skip
    assert sweep.grid(tiny, "00", ["seed=1", "seed=2"], "other")[1][1][1]["word"] == "b"
    assert len({sweep._name(chosen, *run) for run in runs}) == 4


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["00", "-p", "temprature=0.2,0.7"], "No selected notebook has a parameter 'temprature'"),
        (["00", "-p", "temperature=0.2,hot"], "Parameter 'temperature' takes a valid number, not 'hot'"),
        (["00", "-p", "temperature=0.2", "-p", "seed=1,1.5"], "'seed' takes a valid integer"),
        (["00", "-p", "seed=1,,2"], "'seed' takes a valid integer"),
        (["00", "-p", "seed"], "NAME=VALUE"),
        (["00", "-p", "lane=embedded,trtllm"], "does not run in lane 'trtllm'"),
        (["00", "-p", "seed=1", "--set", "none"], "no parameter set 'none'"),
        (["07", "-p", "seed=1"], "no notebook '07'"),
    ],
)
def test_what_course_run_refuses_is_refused_before_anything_runs(tiny, monkeypatch, arguments, said):
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("something ran"))
    done = call(*arguments)
    assert isinstance(done.exception, CourseError) and said in str(done.exception)
    assert "\n" not in str(done.exception) and not (tiny.root / "build").exists()


def test_a_lab_is_not_one_notebook():
    with pytest.raises(CourseError, match="A sweep is of one notebook; labs/vlm_clip has 13_"):
        sweep.grid(manifest.load(), "labs/vlm_clip", ["seed=1"], None)


def test_a_real_run_leaves_a_table_a_figure_and_its_page(tiny):
    done = call("00", "-p", "temperature=0.25", "-p", "seed=7", "--figure", "warm")
    assert done.exit_code == 0, done.output
    assert [(row["temperature"], row["warm"], row["of.seed"]) for row in rows(tiny)] == [("0.25", "0.5", "7")]
    assert "1 of 1  temperature=0.25 seed=7  passed in " in done.output
    folder = tiny.root / "build" / "sweep" / "00_tiny"
    assert len(list(folder.glob("temperature=0.25-seed=7-*/00_tiny.html"))) == 1
    assert Image.open(folder / "figure.png").width == 1500 and "<svg" in (folder / "figure.svg").read_text()


def test_what_has_passed_is_not_run_again_unless_asked_and_what_failed_is(tiny, quick, monkeypatch):
    monkeypatch.setattr(sweep, "_picture", lambda *_: None)  # a second each
    done = call("00", "-p", "temperature=0.2,9", "-p", "seed=1,2")
    assert done.exit_code == 1 and "temperature=9 seed=1  failed in 0.5 s  too hot" in done.output
    assert [row["status"] for row in rows(tiny)] == ["passed", "passed", "failed", "failed"]
    assert [row["warm"] for row in rows(tiny)] == ["0.4", "0.4", "", ""] and len(quick()) == 4
    (tiny.root / "cell").write_text(json.dumps(RECORD.replace("< 5", "< 50")))
    done = call("00", "-p", "temperature=0.2,9,1", "-p", "seed=1,2")
    assert done.exit_code == 0 and "6 runs, 2 from before" in done.output and len(quick()) == 8
    assert [float(row["warm"]) for row in rows(tiny)] == [0.4, 0.4, 18, 18, 2, 2]
    assert call("00", "-p", "temperature=0.2", "--again", "--out", "build/sweep/00_tiny").exit_code == 0
    assert call("00", "-p", "temperature=0.2", "--set", "other").exit_code == 0, "other values, another run"
    assert len(quick()) == 10
    path = tiny.notebooks[0].path
    path.write_text(path.read_text().replace("too hot", "much too hot"))
    assert call("00", "-p", "temperature=0.2").exit_code == 0 and len(quick()) == 11, "another notebook, another run"


def test_as_many_at_a_time_as_asked_for(tiny, quick, monkeypatch):
    monkeypatch.setenv("SECONDS_OF_WORK", "0.5")
    monkeypatch.setattr(sweep, "_picture", lambda *_: None)
    assert call("00", "-p", "seed=1,2,3,4", "-p", "temperature=1", "--jobs", "2").exit_code == 0
    spans = quick()
    together = [sum(begin <= moment < end for begin, end in spans) for moment, _ in spans]
    assert max(together) == 2 and len(spans) == 4


@pytest.mark.parametrize("cores, gib, jobs", [(1, 64, 1), (2, 64, 1), (16, 64, 8), (16, 13, 3), (4, 1, 1)])
def test_a_run_for_every_two_cores_and_within_memory(monkeypatch, cores, gib, jobs):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    memory = types.SimpleNamespace(available=gib * doctor.GIB)
    monkeypatch.setattr(sweep.psutil, "virtual_memory", lambda: memory)
    assert sweep.default_jobs() == jobs


def test_ctrl_c_ends_the_runs_in_order_and_keeps_what_has_finished(tiny, tmp_path, monkeypatch):
    code = "import signal, sys, time\ntry:\n    open(sys.argv[1], 'w').close(); time.sleep(60)\n"
    code += "except KeyboardInterrupt:\n    open(sys.argv[1], 'w').write('ended')"
    monkeypatch.setattr(sweep, "module", lambda name, *a: [sys.executable, "-c", code, str(tmp_path / "mark")])
    chosen, runs = sweep.grid(tiny, "00", ["seed=1,2"], None)

    def sleep(seconds, real=time.sleep):
        real(seconds)
        if (tmp_path / "mark").exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(sweep.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        sweep.sweep(tiny, chosen, runs, tmp_path / "out", flags=[], figure=None, jobs=1, again=False)
    assert (tmp_path / "mark").read_text() == "ended"


def test_the_figure_is_of_what_was_asked_for(tiny, quick):
    done = call("00", "-p", "word=a,b", "-p", "temperature=1,2", "--figure", "wram")
    assert "No run recorded a number 'wram'; they have: warm, of.seed. Did you mean 'warm'?" in str(done.exception)
    assert len(rows(tiny)) == 4, "the table is there"
    done = call("00", "-p", "word=a,b", "-p", "temperature=1,2", "--figure", "of.seed")
    assert done.exit_code == 0 and "of.seed: 0 at word a, 0 at b; 4 runs" in done.output


def test_what_is_the_same_in_every_run_is_drawn_only_if_asked_for(tiny, quick):
    done = call("00", "-p", "word=a,b", "-p", "temperature=1")
    assert "figure: none, because no recorded number differs between the runs" in done.output
    done = call("00", "-p", "temperature=1,2")
    assert "warm: 2 at temperature 1.0, 4 at 2.0; 2 runs" in done.output and "draws another: warm)" in done.output


def test_course_run_and_the_sweep_read_the_same_record(tiny, tmp_path):
    (tmp_path / "00.json").write_text(
        '{"notebook": "00", "device": "d", "seconds": 2, "x": {"y": 1, "n": null, "z": {"w": 2}}}'
    )
    assert dict(sweep._flat(runner.figures(tmp_path / "00.json"))) == {"x.y": 1, "x.z.w": 2}
