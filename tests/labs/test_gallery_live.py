"""The search box in front of a person: JupyterLab in a headless browser, a sentence typed, pictures and an answer that
follow. Search and answers are in-process stand-ins; the box is the lab's own."""

from __future__ import annotations

import pytest
from PIL import Image

from servinglab.root import find_root

pytestmark = pytest.mark.slow

CELL = """\
import pathlib, sys, time
sys.path.insert(0, LAB)
from cliplab.gallery import gallery
from cliplab.search import Found, Hit
from servinglab.figures import style

class Desk:
    def __call__(self, text="", image=None, *, k=5, category=None, below_cents=None):
        hit = Hit("a", 0.9, f"What {text} <i>found</i>.", category or "toys", below_cents or 450, FILE)
        return Found(text, "text", (hit,))

    def near(self, found):
        return found.hits

    def stream(self, found):
        for piece in ("I found", " a kite", " for you."):
            yield piece
            while not pathlib.Path(GO).exists():
                time.sleep(0.05)

class Describer:
    def stream(self, picture, question):
        yield from (question, " A <kite>.")

desk = Desk()
wanted = {"describer": Describer(), "pictures": {"A red kite.": pathlib.Path(FILE)}}
wanted |= {"examples": {"a kite": {"text": "a kite"}}, "categories": ["toys", "food"], "title": "Kites are found"}
gallery(desk, desk, lambda hit: hit.file, **wanted)"""


def test_a_typed_sentence_brings_pictures_and_a_streamed_answer(live_page, tmp_path):
    from playwright.sync_api import expect

    Image.new("RGB", (60, 40), "red").save(tmp_path / "kite.png")
    lab, kite = str(find_root() / "labs" / "vlm_clip"), str(tmp_path / "kite.png")
    go_on = tmp_path / "go"
    paths = {"LAB)": lab, "FILE)": kite, "GO)": str(go_on)}
    cell = CELL
    for name, path in paths.items():
        cell = cell.replace(name, f"{path!r})")
    page = live_page(cell)
    page.keyboard.press("Shift+Enter")

    output = page.locator(".jp-Cell").first.locator(".jp-Cell-outputArea")
    output.locator("img").first.wait_for()  # the static gallery
    box, answer, cards = output.get_by_placeholder("a sentence"), output.locator(".clip-answer"), ".clip-hit"
    box.fill("a red kite")
    box.press("Enter")
    expect(answer).to_contain_text("I found")
    assert "for you" not in answer.inner_text(), "the answer must stream in"
    go_on.touch()
    expect(output.locator(cards)).to_contain_text("What a red kite <i>found</i>.")
    expect(answer).to_contain_text("I found a kite for you.")
    width = output.locator(f"{cards} img").evaluate("image => image.naturalWidth")
    assert width == 60, "the picture must be in the page"

    output.locator("select").first.select_option("food")
    output.get_by_role("button", name="search").click()
    expect(output.locator(cards)).to_contain_text("food, 4.50 euros")
    with page.expect_file_chooser() as chooser:
        output.get_by_role("button", name="picture").first.click()
    chooser.value.set_files(tmp_path / "kite.png")
    expect(output.get_by_role("button", name="no picture")).to_be_enabled()

    output.get_by_role("tab", name="describe and ask").click()
    output.get_by_role("combobox").last.fill("What colour is it?")
    output.get_by_role("button", name="ask", exact=True).click()
    expect(output.locator(".vlm-answer")).to_contain_text("What colour is it? A <kite>.")
    output.get_by_role("button", name="search with this answer").click()
    expect(box).to_have_value("What colour is it? A <kite>.")
    expect(output.locator(cards)).to_contain_text("What What colour is it? A <kite>. <i>found</i>.")
