"""The `explore` cell of notebook 06 in front of a person: JupyterLab in a headless browser, a slider that moves and a
figure that follows."""

from __future__ import annotations

import nbformat
import pytest

from servinglab.root import find_root

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# What the cell needs from those before it: logits, here without a server, and names of tokens.
BEFORE = """\
import numpy as np
from scipy.special import softmax
from servinglab.figures import sampling as figures
from servinglab.explore import explore

name = str
z = np.random.default_rng(0).normal(scale=3, size=1000)
order = np.argsort(-z)"""


def own_cells():
    """The source of the one cell of notebook 06 that calls `explore`, after that of the one that draws a panel."""
    notebook = nbformat.read(find_root() / "notebooks" / "06_temperature.ipynb", as_version=4)
    wanted = ("def draw(", "\nexplore(")
    return "\n\n".join(cell.source for text in wanted for cell in notebook.cells if text in cell.source)


def test_a_moved_slider_redraws_the_figure(live_page):
    from playwright.sync_api import expect

    expect.set_options(timeout=60_000)
    page = live_page(BEFORE, own_cells())
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")

    output = page.locator(".jp-Cell").nth(1).locator(".jp-Cell-outputArea")
    static = output.locator("img").first
    static.wait_for()
    live = output.locator(".jupyter-widgets-output-area img, .widget-output img").first
    live.wait_for()
    readout, handle = output.locator(".widget-readout").first, output.locator(".noUi-handle").first
    expect(readout).to_have_text("0.25")  # the first panel of the static figure
    before, still = live.get_attribute("src"), static.get_attribute("src")

    handle.focus()
    page.keyboard.press("ArrowRight")
    expect(readout).to_have_text("0.3")  # finer steps than those of the panels
    expect(live).not_to_have_attribute("src", before)
    moved = live.get_attribute("src")
    page.keyboard.press("ArrowLeft")
    expect(readout).to_have_text("0.25")
    expect(live).to_have_attribute("src", before)
    assert moved != before and static.get_attribute("src") == still, "the static figure must stay as it is"
