"""A notebook in front of a person: JupyterLab on a free port, in a headless browser."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import nbformat
import pytest

CHROME = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.fixture
def live_page(tmp_path):
    """live_page(*sources) -> a page of playwright on a notebook of these cells; the first one has the cursor.

    Needs a Chromium or Chrome on PATH (Debian: `apt-get install chromium`); the test is skipped without one.
    """
    if CHROME is None:
        pytest.skip("no Chromium on PATH")
    from playwright.sync_api import sync_playwright

    with contextlib.ExitStack() as stack:
        # Chromium refuses its sandbox to root, as in a container; the page is ours.
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROME, args=["--no-sandbox"])
        stack.callback(browser.close)

        def open_notebook(*sources):
            page = browser.new_page(viewport={"width": 1200, "height": 1600})
            page.set_default_timeout(60_000)
            page.goto(stack.enter_context(_jupyterlab(tmp_path, sources)))
            page.locator(".jp-Notebook .jp-Cell .cm-content").first.click()
            page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").wait_for(state="attached")
            return page

        yield open_notebook


@contextlib.contextmanager
def _jupyterlab(folder, sources):
    """The address of a notebook of these cells, as long as the block lasts."""
    from servinglab.runner import environment

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    (folder / "work").mkdir()
    nbformat.write(notebook, folder / "work" / "live.ipynb")
    folders = {name: str(folder / name) for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    env = environment(JUPYTER_PREFER_ENV_PATH="1", **folders)
    del env["SERVINGLAB_STATIC"]
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0",
        "--IdentityProvider.token=t", f"--ServerApp.root_dir={folder / 'work'}",
    ]  # fmt: skip
    with open(folder / "lab.log", "wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        state = _wait_for(folder / "JUPYTER_RUNTIME_DIR" / f"jpserver-{process.pid}.json", folder / "lab.log")
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
