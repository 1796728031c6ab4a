"""benchmarks/course_run.py: what an executed course left behind."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from course import manifest
from servinglab.errors import CourseError

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("course_run", ROOT / "benchmarks" / "course_run.py")
course_run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(course_run)


@pytest.fixture
def out(tmp_path):
    """A folder as `course run` leaves it; notebook 05 failed, and its record is of a run before."""
    names = [each.id for each in manifest.load().notebooks]
    results = [{"id": n, "status": "failed" if n[:2] == "05" else "passed", "seconds": 2.5, "error": ""} for n in names]
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / "records").mkdir()
    for name in names:
        (tmp_path / f"{name}.ipynb").touch()
        record = {
            "notebook": name[:2],
            "lane": "embedded",
            "device": "d",
            "versions": {},
            "seconds": 1,
            "seed": 3,
            "x": 7,
        }
        (tmp_path / "records" / f"{name.partition('_')[0]}.json").write_text(json.dumps(record))
    return tmp_path


def test_times_and_figures_of_every_notebook_in_the_order_of_the_course(out):
    found = course_run.collect(out, "abc1234")
    assert [row["id"] for row in found["notebooks"]] == [each.id for each in manifest.load().notebooks]
    assert found["seconds"] == 2.5 * len(found["notebooks"])
    by_id = {row["id"][:2]: row for row in found["notebooks"]}
    assert by_id["04"]["figures"] == {"seed": 3, "x": 7}
    assert by_id["05"]["status"] == "failed" and by_id["05"]["figures"] == {}
    assert found["versions"]["numpy"].startswith("1.") and found["cores"] >= 1


@pytest.mark.parametrize("content", [None, "{", "[1]"])
def test_a_record_that_cannot_be_read_is_named(out, content):
    record = out / "records" / "04.json"
    record.unlink() if content is None else record.write_text(content)
    with pytest.raises(CourseError, match=r"04\.json cannot be read .*: run that notebook again"):
        course_run.collect(out, "abc1234")


def test_a_course_that_ran_in_part_is_named(out):
    (out / "11_benchmarking.ipynb").unlink()
    with pytest.raises(CourseError, match="has no result of 11_benchmarking: course run --out"):
        course_run.collect(out, "abc1234")
