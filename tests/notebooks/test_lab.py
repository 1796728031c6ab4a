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
import types
import urllib.error
import urllib.request
from pathlib import Path

import editions
import jupytext
import lab
import nbformat
import pytest
from jupyter_client import BlockingKernelClient
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from notebook_style import _LINK
from typer.testing import CliRunner

from course import cli, manifest

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
    assert newer == [] and len(checkout.notebooks) == 18
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


@pytest.mark.parametrize(
    "arguments, opens, rest",
    [
        (["05", "--no-browser"], "/lab/tree/notebooks/05_streaming_grpc.ipynb", ["--no-browser"]),
        (["14"], "/lab/tree/labs/vlm_clip/14_ensemble.ipynb", []),
        (["--port", "8899"], "/lab/tree/notebooks/00_start_here.ipynb", ["--port", "8899"]),
        (["--instructor", "6"], "/lab/tree/notebooks/06_temperature.ipynb", []),
    ],
)
def test_the_command_opens_the_notebook_that_is_named(monkeypatch, arguments, opens, rest):
    copies = {"lab": [], "editions/instructor": []}
    monkeypatch.setattr(lab, "working_copy", lambda course, name="lab", *made: (Path("/none") / name, copies[name]))
    monkeypatch.setattr(editions, "working_copy", lab.working_copy)
    monkeypatch.setattr(lab.signal, "signal", lambda *_: None)
    seen = []
    child = types.SimpleNamespace(wait=lambda: 0)
    monkeypatch.setattr(lab.subprocess, "Popen", lambda command, env: seen.extend(command) or child)
    assert CliRunner().invoke(cli.app, ["lab", *arguments]).exit_code == 0
    (root,) = [word for word in seen if word.startswith("--ServerApp.root_dir=")]
    assert root == f"--ServerApp.root_dir=/none/{'editions/instructor' if '--instructor' in arguments else 'lab'}"
    at = seen.index(f"--LabApp.default_url={opens}")
    assert [word for word in seen[at + 1 :] if word != "--allow-root"] == rest


@pytest.mark.parametrize("section, said", [("99", "06_temperature has no section 99; it has: 1, 2, 3"), ("0", "")])
def test_a_section_that_is_not_there_is_refused_before_anything_starts(checkout, monkeypatch, section, said):
    monkeypatch.chdir(checkout.root)
    monkeypatch.setattr(lab, "open_jupyterlab", lambda *_: pytest.fail("it started"))
    done = CliRunner().invoke(cli.app, ["lab", "06", "--at", section])
    assert done.exit_code and said in str(done.exception)


def test_at_a_section_the_kernel_has_executed_what_stands_before_it_and_the_file_is_as_it_was(tmp_path):
    """A cell that may fail does, and what comes after the section has not run."""
    cells = [("markdown", "# T"), ("code", "a = 1"), ("markdown", "words\n\n## 1 One"), ("code", "1 / 0"),
             ("code", "b = a + 41"), ("markdown", "Ends.\n\n## 2 Two"), ("code", "b = 0")]  # fmt: skip
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    for n, (kind, source) in enumerate(cells):
        notebook.cells.append(getattr(nbformat.v4, f"new_{kind}_cell")(source, id=f"cell-{n}"))
    notebook.cells[3].metadata["tags"] = ["raises-exception"]
    (tmp_path / "notebooks").mkdir()
    nbformat.write(notebook, tmp_path / "notebooks" / "00_t.ipynb")
    (tmp_path / "course.toml").write_text(
        '[[notebook]]\nid = "00_t"\ntitle = "T"\nminutes = 1\nlanes = ["embedded"]\nneeds = []\n'
        'parameters = { seed = 0 }\nsets = [{ name = "a" }, { name = "b", seed = 1 }]\n'
    )
    folders = {name: str(tmp_path / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "course.cli", "lab", "00", "--at", "2", "--no-browser", "--port=0"], cwd=tmp_path,
        env={**os.environ, **folders}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        said = ""
        while "section 2 of 00_t can begin\n" not in said:
            assert (line := process.stdout.readline()) and "stopped" not in line and "could not" not in line, said
            said += line
        found = re.search(r"(http://127\S+?/)lab/tree/notebooks/00_t.ipynb\?token=(\w+)\n", said)
        (session,) = fetch(f"{found[1]}api/sessions?token={found[2]}")
        assert (session["path"], session["kernel"]["name"]) == ("notebooks/00_t.ipynb", "python3")
        (runtime,) = {Path(path) for path in re.findall(r"/tmp/servinglab-\w+", said)}
        client = BlockingKernelClient(connection_file=str(runtime / f"kernel-{session['kernel']['id']}.json"))
        client.load_connection_file()
        client.start_channels()
        reply = client.execute_interactive("", user_expressions={"b": "b"}, timeout=60)
        assert reply["content"]["user_expressions"]["b"]["data"]["text/plain"] == "42"
        client.stop_channels()
        copy = nbformat.read(tmp_path / "build" / "lab" / "notebooks" / "00_t.ipynb", as_version=4)
        assert copy.cells == nbformat.read(tmp_path / "notebooks" / "00_t.ipynb", as_version=4).cells
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=100)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
