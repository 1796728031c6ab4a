"""A notebook in front of a person: JupyterLab with the flags of `make lab`, on a free port, in a headless browser."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
CHROME = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.fixture
def browser():
    """A browser of playwright.

    Needs a Chromium or Chrome on PATH (Debian: `apt-get install chromium`); the test is skipped without one.
    """
    if CHROME is None:
        pytest.skip("no Chromium on PATH")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium refuses its sandbox to root, as in a container; the pages are ours.
        flags = ["--no-sandbox", "--no-proxy-server", "--host-resolver-rules=MAP evil.example 127.0.0.1"]
        with playwright.chromium.launch(executable_path=CHROME, args=flags) as opened:
            yield opened


@pytest.fixture
def live_page(browser, tmp_path):
    """live_page(*sources) -> a page of playwright on a notebook of these cells; the first one has the cursor."""
    with contextlib.ExitStack() as stack:

        def open_notebook(*sources):
            page = browser.new_page(viewport={"width": 1200, "height": 1600})
            page.set_default_timeout(60_000)
            state = stack.enter_context(jupyterlab(tmp_path, sources))
            page.goto(f"{state['url']}lab/tree/live.ipynb?token={state['token']}")
            page.locator(".jp-Notebook .jp-Cell .cm-content").first.click()
            page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").wait_for(state="attached")
            return page

        yield open_notebook


@contextlib.contextmanager
def jupyterlab(folder, sources):
    """What JupyterLab says of itself (url, token, pid), with a notebook of these cells, as long as the block lasts."""
    from lab import FLAGS

    from course.runner import environment

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    (folder / "work").mkdir()
    nbformat.write(notebook, folder / "work" / "live.ipynb")
    folders = {name: str(folder / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    env = environment(JUPYTER_PREFER_ENV_PATH="1", **folders)
    del env["SERVINGLAB_STATIC"]
    command = [sys.executable, "-m", "jupyterlab", *FLAGS, "--no-browser", "--allow-root", "--port=0"]
    command += [f"--ServerApp.root_dir={folder / 'work'}"]
    with tempfile.TemporaryDirectory(prefix="servinglab-lab-", dir="/tmp") as runtime:
        with open(folder / "lab.log", "wb") as log:
            process = subprocess.Popen(
                command, env=env | {"JUPYTER_RUNTIME_DIR": runtime}, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield _wait_for(Path(runtime, f"jpserver-{process.pid}.json"), folder / "lab.log")
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _wait_for(path, log):
    until = time.monotonic() + 180
    while time.monotonic() < until:
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError):
            time.sleep(0.2)
    raise AssertionError(f"JupyterLab did not start: {log.read_text()[-2000:]}")
