"""`course run` is interrupted at any cell, and two runs share one machine: each ends as it should, nothing is left."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from server_traces import TINY_MODELS, Mark

from servinglab.assets import cache_dir

ROOT = Path(__file__).parents[2]
START = f"""
import os, sys, tempfile
sys.path.insert(0, {str(TINY_MODELS.parent)!r})
from triton_client import TritonClient
from servinglab.server import TritonServer
folder = tempfile.mkdtemp(prefix="servinglab-notebook-")
server = TritonServer({str(TINY_MODELS)!r}, timeout=60).start()
client = TritonClient(server.grpc_url, server.http_url)
"""
STREAM = """
text = "".join(chunk.text for chunk in client.stream(word, model="counter", max_tokens=50, delay_ms=20))
assert text == (word * 50)[:50], text
"""
CELLS = [
    START,
    STREAM,
    "stream = client.stream(word, model='counter', max_tokens=1000, delay_ms=5)\nnext(stream)",  # stays open
    "import asyncio\nawait asyncio.to_thread(list, client.stream(word, model='counter', max_tokens=40, delay_ms=20))",
    "server.load('echo'); server.load('echo')",
    STREAM,
    "stream.close(); client.close(); server.stop()",
]


def write_course(folder: Path) -> None:
    """One notebook that serves and streams for some seconds; each cell leaves its number in the file `cells`."""
    (folder / "notebooks").mkdir(parents=True)
    parameters = nbformat.v4.new_code_cell("word = 'abc'\nlane = 'auto'", metadata={"tags": ["parameters"]})
    note = f"open({str(folder / 'cells')!r}, 'a').write('{{}}\\n')\n"
    cells = [nbformat.v4.new_code_cell(note.format(number) + cell.strip()) for number, cell in enumerate(CELLS)]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}, "language_info": {"name": "python"}}
    notebook = nbformat.v4.new_notebook(cells=[parameters, *cells], metadata=metadata)
    nbformat.write(notebook, folder / "notebooks" / "00_small.ipynb")
    (folder / "course.toml").write_text(
        '[[notebook]]\nid = "00_small"\ntitle = "Small"\nminutes = 1\nlanes = ["embedded"]\nneeds = []\n'
        'parameters = { word = "abc", lane = "auto" }\nsets = [{ name = "default" }, { name = "other", word = "x" }]\n'
    )


def course_run(mark: Mark, cwd: Path, *arguments: str, **env: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "course.cli", "run", *arguments], cwd=cwd, env={**mark.env, **env}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def assert_ended_by_ctrl_c(process: subprocess.Popen, mark: Mark, scratch: Path) -> None:
    mark.of("")
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to the whole foreground group
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err, err
    assert "stopped; what has finished is in " in err and time.monotonic() - began < 30
    mark.assert_gone()
    assert [p.name for p in scratch.iterdir() if p.name.startswith("servinglab")] == []


@pytest.mark.parametrize(
    "cell", [cell if cell in (0, 3) else pytest.param(cell, marks=pytest.mark.long) for cell in range(len(CELLS))]
)
def test_ctrl_c_at_a_cell(tmp_path, cell):
    write_course(tmp_path / "course")
    (tmp_path / "scratch").mkdir()
    mark = Mark()
    process = course_run(mark, tmp_path / "course", "--out", str(tmp_path / "out"), TMPDIR=str(tmp_path / "scratch"))
    begun, deadline = tmp_path / "course" / "cells", time.monotonic() + 90
    while not (begun.exists() and f"{cell}\n" in begun.read_text()) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(random.Random(cell).uniform(0, 0.3))
    assert_ended_by_ctrl_c(process, mark, tmp_path / "scratch")
    assert (tmp_path / "out" / "index.html").is_file()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(8))
def test_ctrl_c_at_a_random_moment_of_a_real_notebook(tmp_path, seed):
    chance, mark = random.Random(seed), Mark()
    (tmp_path / "scratch").mkdir()
    notebook = chance.choice(["00", "03", "05", "07"])
    process = course_run(mark, ROOT, notebook, "--set", "short", "--out", str(tmp_path / "out"),
                         TMPDIR=str(tmp_path / "scratch"))  # fmt: skip
    time.sleep(chance.uniform(2, 20))
    assert_ended_by_ctrl_c(process, mark, tmp_path / "scratch")


def two_runs(tmp_path: Path, cwd: tuple[Path, Path], *arguments: tuple[str, ...], **env: str) -> None:
    """Both at once; both must pass, and neither leaves anything."""
    marks = Mark(), Mark()
    runs = [
        course_run(mark, folder, *more, "--out", str(tmp_path / f"out{number}"), **env)
        for number, (mark, folder, more) in enumerate(zip(marks, cwd, arguments, strict=True))
    ]
    said = [run.communicate(timeout=500) for run in runs]
    for number, run in enumerate(runs):
        assert run.returncode == 0, said[number]
        results = json.loads((tmp_path / f"out{number}" / "results.json").read_text())
        assert [result["status"] for result in results] == ["passed"]
    for mark in marks:
        mark.assert_gone()


def test_two_notebooks_at_once_with_a_cache_that_is_new(tmp_path):
    """Both prepare Triton's folder in it, both take free ports, and each reads its own words."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "models").symlink_to(cache_dir() / "models")
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        write_course(folder)
    words = ("-p", "word=xyz"), ("-p", "word=0123456789")
    two_runs(tmp_path, folders, *words, SERVINGLAB_CACHE=str(tmp_path / "cache"))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_real_notebooks_at_once(tmp_path):
    two_runs(tmp_path, (ROOT, ROOT), ("00", "--set", "short"), ("05", "--set", "short"))
