"""`course lab`: notebooks 00 to 15 open from a copy without outputs, their links and imports lead somewhere, and what
was typed there stays."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import jupytext
import nbformat
import pytest
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from notebook_style import _LINK

from course import lab, manifest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def checkout(tmp_path):
    """A checkout of its own: copies of the notebooks, links to the rest."""
    root = tmp_path / "checkout"
    for folder in ("notebooks", "labs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "none"))
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name not in ("notebooks", "labs", "build"):
            (root / path.name).symlink_to(path)
    return manifest.load(root)


async def test_every_notebook_opens_without_outputs_and_saving_makes_no_text_twin(checkout):
    folder, newer = lab.working_copy(checkout)
    assert newer == [] and len(checkout.notebooks) == 16
    manager = jupytext.build_async_jupytext_contents_manager_class(AsyncLargeFileManager)(root_dir=str(folder))
    before = {path.name for path in folder.rglob("*")}
    for notebook in checkout.notebooks:
        path = f"{notebook.folder}/{notebook.id}.ipynb"
        opened = (await manager.get(path, content=True, type="notebook"))["content"]
        assert [cell.source for cell in opened.cells] == [cell.source for cell in nbformat.read(notebook.path, 4).cells]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in opened.cells)
        await manager.save({"type": "notebook", "content": opened}, path)
    assert lab.working_copy(checkout) == (folder, [])
    assert {path.name for path in folder.rglob("*") if ".ipynb_checkpoints" not in path.parts} == before


def test_links_imports_and_the_courses_root_are_found_from_the_copy(checkout):
    folder, _ = lab.working_copy(checkout)
    followed = 0
    for notebook in checkout.notebooks:
        copy = folder / notebook.folder / f"{notebook.id}.ipynb"
        prose = "\n".join(cell.source for cell in nbformat.read(copy, 4).cells if cell.cell_type == "markdown")
        for target in _LINK.findall(prose):
            place = Path(os.path.normpath(copy.parent / target))  # JupyterLab follows none that leaves its root
            assert place.exists() and place.is_relative_to(folder), (notebook.id, target)
            followed += 1
    assert followed >= 30
    pictures = [path for path in folder.rglob("pictures/*.svg") if not path.is_symlink()]
    assert len(pictures) >= 10, "files: JupyterLab's server refuses to show what a link leads out of its root to"
    assert not any(path.parent.is_symlink() for path in pictures)
    code = "from cliplab import deployment, pictures; from servinglab.root import find_root; print(find_root(), "
    code += "deployment.SOURCES.is_dir(), len(pictures.catalogue('subset')) > 9)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder / "labs" / "vlm_clip", capture_output=True, text=True
    )
    assert done.stdout.split() == [str(checkout.root), "True", "True"], done.stderr


def test_a_notebook_that_was_worked_in_stays_and_its_new_version_comes_beside_it(checkout):
    folder, _ = lab.working_copy(checkout)
    touched, other = (folder / "notebooks" / name for name in ("05_streaming_grpc.ipynb", "06_temperature.ipynb"))
    mine = touched.read_text().replace("None", "ANSWER")
    touched.write_text(mine)
    (folder / "notebooks" / "scribbles.ipynb").write_text("SCRIBBLES")
    assert lab.working_copy(checkout)[1] == [] and touched.read_text() == mine
    for name in (touched.name, other.name):
        path = checkout.root / "notebooks" / name
        path.write_text(path.read_text().replace("**Time:**", "**New time:**"))
    found = "notebooks/05_streaming_grpc.ipynb", "notebooks/05_streaming_grpc.new.ipynb"
    assert lab.working_copy(checkout)[1] == [found]
    assert touched.read_text() == mine and "New time" in (folder / found[1]).read_text()
    assert "New time" in other.read_text() and (folder / "notebooks" / "scribbles.ipynb").read_text() == "SCRIBBLES"


def fetch(address):
    straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy another test knew
    while True:
        try:
            return json.load(straight.open(address, timeout=60))
        except urllib.error.URLError as error:  # it says where it listens before it does
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
            time.sleep(0.2)


def test_the_command_opens_jupyterlab_where_all_of_them_can_be_reached_and_leaves_nothing(checkout, tmp_path):
    folders = {name: str(tmp_path / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "course.cli", "lab", "--no-browser", "--port=0"], cwd=checkout.root,
        env={**os.environ, **folders}, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said = ""
        while not (found := re.search(r"(http://127\S+?/)lab/tree/notebooks/00_start_here.ipynb\?token=(\w+)\n", said)):
            assert (line := process.stderr.readline()), said
            said += line
        for notebook in checkout.notebooks:
            address = f"{found[1]}api/contents/{notebook.folder}/{notebook.id}.ipynb?content=0&token={found[2]}"
            assert fetch(address)["type"] == "notebook"
        specs = fetch(f"{found[1]}api/kernelspecs?token={found[2]}")["kernelspecs"]
        assert [spec["spec"]["metadata"]["debugger"] for spec in specs.values()] == [False], "it opens doors"
        (runtime,) = {Path(path) for path in re.findall(r"/tmp/servinglab-\w+", said)}
        assert runtime.is_dir()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=100)
        assert not runtime.exists()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
