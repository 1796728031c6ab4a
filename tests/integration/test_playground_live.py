"""The playground in front of a person: JupyterLab in a headless browser, cells of the notebook, a server of its own."""

from __future__ import annotations

import re

import nbformat
import pytest

from servinglab.root import find_root

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ACTIVE = """\
import time, httpx
until, line = time.monotonic() + 20, ""
while not line.endswith(" 0") and time.monotonic() < until:
    text = httpx.get(server.metrics_url, trust_env=False).text
    line = next(line for line in text.splitlines() if line.startswith("nv_trt") and '"active"' in line)
    time.sleep(0.2)
print("active:", line.split()[-1])"""


def own_cells():
    """Imports, parameters, server and playground of the notebook; fast weights, and an answer that lasts."""
    notebook = nbformat.read(find_root() / "notebooks" / "playground.ipynb", as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"][:4]
    return "\n".join([*code[:2], 'precision, max_tokens = "int4", 256', code[2]]), code[3]


def test_every_control_reaches_the_server(live_page):
    from playwright.sync_api import expect

    expect.set_options(timeout=60_000)
    page = live_page(*own_cells(), ACTIVE)
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")
    output = page.locator(".jp-Cell").nth(1).locator(".jp-Cell-outputArea")
    bars, text = map(output.locator, (".playground-bars", ".playground-text"))
    run, stop = (output.get_by_role("button", name=name) for name in ("Run", "Stop"))
    temperature, _, _, penalty, _, beams, length = (output.locator(".noUi-handle").nth(n) for n in range(7))
    expect(bars).to_contain_text("all others")

    def others():
        return int(re.search(r"all others\s+(\d+) %", bars.inner_text())[1])

    share = others()
    for _ in range(20):  # a key that comes while the page still moves can be lost
        temperature.press("Home")
        temperature.press("End")
        page.wait_for_timeout(1000)
        if others() > share:
            break
    assert others() > share, "heat must fill the tail"
    temperature.press("Home")
    expect(bars).to_contain_text("100 %")  # greedy

    run.click()
    expect(text.locator("span").nth(8)).to_be_visible()
    expect(output).to_contain_text("What you move now counts from the next answer on.")
    stop.click()
    expect(output).to_contain_text("Stopped: the request was cancelled.")
    expect(stop).to_be_disabled()
    assert 8 < text.locator("span").count() < 250, "it must end before the answer does"
    page.locator(".jp-Cell").nth(2).locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".jp-Cell").nth(2).locator(".jp-OutputArea-output")).to_have_text("active: 0\n")

    penalty.press("Home")
    expect(output).to_contain_text("repetition_penalty is 0; it must be more than 0")
    for _ in range(10):
        penalty.press("ArrowRight")
    length.press("Home")
    for key in ("ArrowRight", "ArrowRight"):
        beams.press(key)
        length.press(key)
    run.click()
    expect(output.locator(".playground-beams tr")).to_have_count(3)
    expect(output.locator(".playground-beams")).to_contain_text(re.compile(r"nats\s+\w+ \w+"))  # of more than one token
    expect(stop).to_be_disabled()  # until then a control waits
    beams.press("End")
    expect(output).to_contain_text("beam_width 8 exceeds max_beam_width 4")
    output.locator("textarea").fill("")
    output.locator("textarea").press("Tab")
    expect(output).to_contain_text("The prompt is empty")
    assert page.locator(".jp-OutputArea-output[data-mime-type*=error]").count() == 0
