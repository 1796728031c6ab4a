"""A notebook and its text twin in JupyterLab: both orders of age, which is chance after a git checkout."""

from __future__ import annotations

import os
import shutil

import jupytext
import nbformat
import pytest
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from notebook_files import notebook_of, text_sources

SOURCES = text_sources()


@pytest.fixture(params=[*SOURCES, None], ids=lambda s: s.stem if s else "99_example")
def pair(request):
    """(text twin, notebook): each of the course, and the example that the tool has just made."""
    return (request.param, notebook_of(request.param)) if request.param else request.getfixturevalue("made")


@pytest.mark.parametrize("older", ["text twin", "notebook"])
async def test_a_pair_opens_and_saving_it_changes_no_byte(pair, older, tmp_path):
    """With the contents manager that JupyterLab uses here; it refuses a twin that is older and differs in a line."""
    source, notebook = tmp_path / "text" / pair[0].name, tmp_path / pair[1].name
    source.parent.mkdir()
    for copy, path in ((source, pair[0]), (notebook, pair[1])):
        shutil.copy(path, copy)
    os.utime(source if older == "text twin" else notebook, (10**9, 10**9))
    manager = jupytext.build_async_jupytext_contents_manager_class(AsyncLargeFileManager)(root_dir=str(tmp_path))
    opened = await manager.get(notebook.name, content=True, type="notebook")
    assert [c.source for c in opened["content"].cells] == [c.source for c in nbformat.read(notebook, 4).cells]
    await manager.save({"type": "notebook", "content": opened["content"]}, notebook.name)
    assert (source.read_bytes(), notebook.read_bytes()) == (pair[0].read_bytes(), pair[1].read_bytes())
