"""Drawings: as their script writes them, legible, and wherever a notebook is read: in the page and beside a run."""

from __future__ import annotations

import base64
import dataclasses
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import draw_pictures
import nbformat
import pytest
from matplotlib import font_manager
from notebook_files import ROOT, read_source, text_sources
from PIL import ImageFont

from course.checkout import tool
from course.runner import run_notebook

run_pages = tool("site/run_pages")

SVG = "{http://www.w3.org/2000/svg}"
LINK = re.compile(r"!\[([^]]*)\]\(([^)\s]+)\)")
# One of the widest fonts that a reader may have: what fits in it fits in the others.
FONTS = {kind: font_manager.findfont(f"DejaVu Sans{kind}") for kind in ("", ":bold")}
each_picture = pytest.mark.parametrize("name", draw_pictures.PICTURES)


def shown(source: Path) -> list[tuple[str, str]]:
    """(alt text, place) of each picture in a notebook's prose."""
    return [pair for c in read_source(source).cells if c.cell_type == "markdown" for pair in LINK.findall(c.source)]


@pytest.mark.parametrize("source", text_sources(), ids=lambda source: source.stem)
def test_a_picture_that_a_notebook_shows_is_there_and_said_in_words(source):
    folder = source.parents[1]
    for alt, place in shown(source):
        assert (folder / place).is_file() and Path(place).parent == Path("pictures"), place
        assert 20 <= len(alt) <= 200 and "\n" not in alt, (place, alt)


def test_the_pictures_are_those_of_the_script():
    folders = [ROOT / "notebooks", *(ROOT / "labs").iterdir()]
    there = {str(path.relative_to(ROOT)) for each in folders for path in each.glob("pictures/*")}
    assert there == set(draw_pictures.PICTURES)


@each_picture
def test_a_picture_is_what_the_script_draws(name):
    assert (ROOT / name).read_text(encoding="utf-8") == draw_pictures.PICTURES[name]().svg(), "run `make pictures`"


@each_picture
def test_a_picture_says_what_it_shows_on_a_card_of_its_own(name):
    root = ET.parse(ROOT / name).getroot()
    title, words, card = list(root)[:3]
    assert title.tag == f"{SVG}title" and 20 <= len(title.text) <= 80
    assert words.tag == f"{SVG}desc" and len(words.text) > 100
    assert 700 <= int(root.get("width")) <= 900
    size = [root.get("width"), root.get("height")]
    assert [card.get("width"), card.get("height"), card.get("fill")] == [*size, "#FFFFFF"], "also on a dark page"


def places(name: str) -> list[tuple[str, tuple[float, float, float, float]]]:
    """Each text with its left, top, right and bottom in a wide font."""
    found = []
    for text in ET.parse(ROOT / name).iter(f"{SVG}text"):
        kind = ":bold" if text.get("font-weight") else ""
        size, x, y = (float(text.get(which)) for which in ("font-size", "x", "y"))
        assert size >= 13, (name, text.text)
        width = ImageFont.truetype(FONTS[kind], 100).getlength(text.text) * size / 100
        x -= {None: 0, "middle": width / 2, "end": width}[text.get("text-anchor")]
        found.append((text.text, (x, y - 0.75 * size, x + width, y + 0.2 * size)))
    return found


@each_picture
def test_no_text_runs_out_of_its_picture_or_into_another(name):
    root, texts = ET.parse(ROOT / name).getroot(), places(name)
    for number, (words, (left, top, right, bottom)) in enumerate(texts):
        assert 4 <= left and right <= int(root.get("width")) - 4 and bottom <= int(root.get("height")) - 4, words
        for other, (left2, top2, right2, bottom2) in texts[:number]:
            apart = right <= left2 or right2 <= left or bottom <= top2 or bottom2 <= top
            assert apart, f"{words!r} lies on {other!r}"


def test_a_run_shows_a_picture_in_its_page_and_beside_its_notebook(made, example_entry, tmp_path):
    """The page is one file; the executed notebook, which may be opened where it lies, has the picture beside it."""
    picture = ROOT / next(iter(draw_pictures.PICTURES))
    path = tmp_path / "notebooks" / made[1].name
    (path.parent / "pictures").mkdir(parents=True)
    shutil.copy(picture, path.parent / "pictures")
    notebook = nbformat.read(made[1], as_version=4)
    notebook.cells.insert(1, nbformat.v4.new_markdown_cell(f"![what it shows](pictures/{picture.name})"))
    nbformat.write(notebook, path)

    result = run_notebook(dataclasses.replace(example_entry, path=path), tmp_path / "out", {})
    assert (result.status, result.error) == ("passed", "")
    run_pages.page(tmp_path / "out" / path.name)
    page = (tmp_path / "out" / path.with_suffix(".html").name).read_text(encoding="utf-8")
    data, alt = re.search(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="([^"]*)"', page).groups()
    assert base64.b64decode(data) == picture.read_bytes() and alt == "what it shows"
    assert (tmp_path / "out" / "pictures" / picture.name).read_bytes() == picture.read_bytes()
