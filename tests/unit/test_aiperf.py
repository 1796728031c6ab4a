"""What AIPerf's export says, and what it says when it fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from servinglab.errors import CourseError

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
import aiperf  # noqa: E402


def test_aiperf_export_is_read_by_name_and_what_is_missing_is_left_out(tmp_path):
    export = {"time_to_first_token": {"unit": "ms", "avg": 120.0004, "p50": 110, "p99": None}, "version": "x"}
    path = tmp_path / "profile_export_aiperf.json"
    path.write_text(json.dumps(export))
    assert aiperf.read(path) == {"ttft_ms": {"avg": 120.0, "p50": 110}}


@pytest.fixture
def export():
    """What AIPerf 0.13.0 wrote about nine requests, of which its server refused three; most of its metrics left out."""
    return json.loads((Path(__file__).parent / "data" / "aiperf_export.json").read_text())


def test_requests_of_aiperf_that_failed_are_counted_and_said(tmp_path, export):
    path = tmp_path / "profile_export_aiperf.json"
    path.write_text(json.dumps(export))
    with pytest.raises(CourseError, match="^3 of AIPerf's 9 requests failed.*: 500 Internal Server Error: .*error"):
        aiperf.read(path)
    del export["error_request_count"]  # so it looks without errors
    path.write_text(json.dumps(export | {"error_summary": []}))
    found = aiperf.read(path)
    assert found["requests"] == {"avg": 6.0} and found.keys() == aiperf.METRICS.keys()


@pytest.fixture
def program(tmp_path, monkeypatch):
    """program(code of Python) -> AIPerf is this instead."""

    def install(code):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / "aiperf").write_text(f"#!{sys.executable}\n{code}")
        (tmp_path / "bin" / "aiperf").chmod(0o755)
        (tmp_path / "complete").touch()
        monkeypatch.setattr(aiperf, "_folder", lambda: tmp_path)

    return install


def test_the_numbers_of_aiperf_are_those_of_the_whole_run_not_of_its_warm_up(tmp_path, program):
    """It writes a file of the same name for each phase; and one may be there from an earlier run."""
    program(
        "import json, pathlib\n"
        f"for folder, n in (('.', 40), ('phases/profiling', 40), ('phases/warmup', 4)):\n"
        f"    path = pathlib.Path({str(tmp_path)!r}, 'out', folder)\n"
        "    path.mkdir(parents=True, exist_ok=True)\n"
        "    (path / 'profile_export_aiperf.json').write_text(json.dumps({'request_count': {'avg': n}}))\n"
    )
    assert aiperf.profile(["aiperf"], tmp_path / "out") == {"requests": {"avg": 40}}
    program("")
    with pytest.raises(CourseError, match="without a result: it said nothing"):
        aiperf.profile(["aiperf"], tmp_path / "out")


def test_a_run_of_aiperf_in_which_all_requests_failed_says_so(tmp_path, program):
    said = "All 9 inference request(s) failed; no successful responses were collected."
    lines = f"00:44:02.064 ERROR    {said} (system_controller.py:2370)\nLog File: aiperf.log\n"
    program(f"print({lines!r})\nraise SystemExit(1)\n")
    with pytest.raises(CourseError) as caught:
        aiperf.profile(["aiperf"], tmp_path)
    assert str(caught.value) == f"AIPerf ended without a result: {said}"


def test_aiperf_that_is_not_there_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(aiperf, "cache_dir", lambda: tmp_path)
    with pytest.raises(CourseError, match="not installed"):
        aiperf.profile(["aiperf"], tmp_path)
