"""The search box in front of a person: JupyterLab in a headless browser, a sentence typed, pictures and an answer that
follow. Search and answers are in-process stand-ins; the box is the lab's own.

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
from PIL import Image

from servinglab.course import find_root
from servinglab.runner import environment

CHROME = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROME is None, reason="no Chromium on PATH")]

CELL = """\
import sys, time
sys.path.insert(0, LAB)
from cliplab.gallery import gallery
from cliplab.search import Found, Hit
from servinglab import plots

class Desk:
    def __call__(self, text="", image=None, *, k=5, category=None, below_cents=None):
        hit = Hit("a", 0.9, f"What {text} <i>found</i>.", category or "toys", below_cents or 450, FILE)
        return Found(text, "text", (hit,))

    def near(self, found):
        return found.hits

    def stream(self, found):
        for piece in ("I found", " a kite", " for you."):
            time.sleep(0.3)
            yield piece

desk = Desk()
wanted = {"examples": {"a kite": {"text": "a kite"}}, "categories": ["toys", "food"], "title": "Kites are found"}
gallery(desk, desk, lambda hit: hit.file, **wanted)"""


@pytest.fixture
def lab(tmp_path):
    """JupyterLab on a notebook with one cell, on a free port; its address."""
    Image.new("RGB", (60, 40), "red").save(tmp_path / "kite.png")
    folder = str(find_root() / "labs" / "vlm_clip")
    source = CELL.replace("LAB)", f"{folder!r})").replace("FILE)", f"{str(tmp_path / 'kite.png')!r})")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
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


def test_a_typed_sentence_brings_pictures_and_a_streamed_answer(lab, tmp_path):
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

        output = page.locator(".jp-Cell").first.locator(".jp-Cell-outputArea")
        output.locator("img").first.wait_for()  # the static gallery
        box, answer, cards = output.get_by_placeholder("a sentence"), output.locator(".clip-answer"), ".clip-hit"
        box.fill("a red kite")
        box.press("Enter")
        expect(answer).to_contain_text("I found")
        early = answer.inner_text()
        expect(output.locator(cards)).to_contain_text("What a red kite <i>found</i>.")
        expect(answer).to_contain_text("I found a kite for you.")
        assert early != answer.inner_text(), "the answer must stream in"
        width = output.locator(f"{cards} img").evaluate("image => image.naturalWidth")
        assert width == 60, "the picture must be in the page"

        output.locator("select").select_option("food")
        output.get_by_role("button", name="search").click()
        expect(output.locator(cards)).to_contain_text("food, 4.50 euros")
        with page.expect_file_chooser() as chooser:
            output.get_by_role("button", name="picture").first.click()
        chooser.value.set_files(tmp_path / "kite.png")
        expect(output.get_by_role("button", name="no picture")).to_be_enabled()
        browser.close()
