"""The `explore` cell of notebook 06 in front of a person: JupyterLab in a headless browser, a slider that moves and a
figure that follows.

Needs a Chromium or Chrome on PATH (Debian: `apt-get install chromium`) and is skipped without one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import nbformat
import pytest

from servinglab.course import find_root
from servinglab.runner import environment

CHROME = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(CHROME is None, reason="no Chromium on PATH"),
]

# What the cell needs from those before it: logits, here without a server, and names of tokens.
BEFORE = """\
import numpy as np
from servinglab import decoding, plots
from servinglab.decoding_figures import temperature as figures
from servinglab.explore import explore

lane, seed, precision, name = "embedded", 0, "fp32", str
z = np.random.default_rng(seed).normal(scale=3, size=1000)
order = np.argsort(-z)"""


def own_cell():
    """The source of the one cell of notebook 06 that calls `explore`."""
    notebook = nbformat.read(find_root() / "notebooks" / "06_temperature.ipynb", as_version=4)
    (source,) = (cell.source for cell in notebook.cells if "\nexplore(" in cell.source)
    return source


@pytest.fixture
def lab(tmp_path):
    """JupyterLab on a notebook with two cells, on a free port; its address."""
    cells = [nbformat.v4.new_code_cell(source) for source in (BEFORE, own_cell())]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    (tmp_path / "work").mkdir()
    nbformat.write(notebook, tmp_path / "work" / "live.ipynb")
    folders = {name: str(tmp_path / name) for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    env = environment(JUPYTER_PREFER_ENV_PATH="1", **folders)
    del env["SERVINGLAB_STATIC"]
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0",
        "--IdentityProvider.token=t", f"--ServerApp.root_dir={tmp_path / 'work'}",
    ]  # fmt: skip
    with open(tmp_path / "lab.log", "wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        state = _wait_for(tmp_path / "JUPYTER_RUNTIME_DIR" / f"jpserver-{process.pid}.json", tmp_path / "lab.log")
        yield f"{state['url']}lab/tree/live.ipynb?token=t"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _wait_for(path, log):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError):
            time.sleep(0.2)
    raise AssertionError(f"JupyterLab did not start: {log.read_text()[-2000:]}")


def test_a_moved_slider_redraws_the_figure(lab):
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        # Chromium refuses its sandbox to root, as in a container; the page is ours.
        browser = playwright.chromium.launch(executable_path=CHROME, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 1600})
        page.set_default_timeout(60_000)
        page.goto(lab)
        page.locator(".jp-Notebook .jp-Cell .cm-content").first.click()
        page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").wait_for(state="attached")
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
        browser.close()
