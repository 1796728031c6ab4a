"""docs/coverage.md: what it names exists, and it leaves out no section of a notebook."""

from __future__ import annotations

import re

import pytest
from notebook_files import text_sources

from servinglab.root import find_root

TEXT = (find_root() / "docs" / "coverage.md").read_text()
CELLS = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if line.startswith("| ")]
ROWS = [row for row in CELLS if len(row) == 4 and row[0] not in ("topic", "report")]
SECTIONS = {
    source.stem[:2]: set(re.findall(r"(?m)^# ## (\d+) ", source.read_text())) for source in text_sources()
}  # fmt: skip
FILES = {path.name: path.read_text() for path in (find_root() / "tests").rglob("test_*.py")}


def places(cell):
    """(notebook, section) of "01 §7, 8, 02 §3"."""
    return [
        (notebook, section)
        for notebook, sections in re.findall(r"(\d\d) §((?:\d+(?!\d* §)(?:, )?)+)", cell)
        for section in re.findall(r"\d+", sections)
    ]


def test_places_are_read_as_they_are_meant():
    assert {len(row) for row in CELLS} == {3, 4} and sum(len(row) == 3 for row in CELLS) == 5, "the letters"
    assert places("01 §7, 8, 02 §3") == [("01", "7"), ("01", "8"), ("02", "3")]
    assert places("15 §10, 11") == [("15", "10"), ("15", "11")]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_row_names_what_exists(row):
    topic, where, tests, ran = row
    assert topic and places(where) and re.search(r"\b[CHSN]\b", ran)
    assert re.fullmatch(r"(\d\d §\d+(, \d+)*(, (?=\d\d §))?)+", where)
    for notebook, section in places(where):
        assert section in SECTIONS[notebook], f"{notebook} has no section {section}"
    named = re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", tests)
    assert named and len(named) == len(re.findall("`", tests)) / 2
    for file, name in named:
        assert file in FILES and (not name or re.search(rf"(?m)^ *(?:async )?def {name}\(", FILES[file])), (file, name)


def test_every_section_of_the_course_is_in_a_row():
    named = {place for row in ROWS for place in places(row[1])}
    assert {(notebook, section) for notebook, all_ in SECTIONS.items() for section in all_} == named


def test_the_two_tests_that_hold_every_row_exist():
    for file, name in re.findall(r"`(test_\w+\.py)::(\w+)`", TEXT.partition("## The course")[0]):
        assert f"def {name}(" in FILES[file]
