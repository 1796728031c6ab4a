"""What a killed process left in the temporary folder is removed by the next one, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from servinglab import scratch

BEGIN = """
import os, pathlib, subprocess, sys, tempfile
from servinglab.notebook import begin
begin("embedded")
kept = tempfile.TemporaryDirectory(prefix="servinglab-02-")
pathlib.Path(kept.name, "model").write_bytes(bytes(100))
begin("embedded")  # a cell that is run twice
child = [sys.executable, "-c", "import tempfile; print(tempfile.mkdtemp())"]
print(kept.name, subprocess.run(child, capture_output=True, text=True).stdout.strip(), sep="\\n", flush=True)
"""
DIE, WAIT = "os.kill(os.getpid(), 9)", "sys.stdin.read()"


def python(code: str, temporary: Path) -> subprocess.Popen:
    env = {**os.environ, "TMPDIR": str(temporary)}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def waiting(tmp_path):
    """Starts Pythons that own a folder of `parent`, and live until they are told to end."""
    children = []

    def start(parent: Path) -> tuple[subprocess.Popen, Path]:
        code = "import sys\nfrom servinglab import scratch\n"
        code += f"with scratch.folder({str(parent)!r}) as made:\n  print(made, flush=True); {WAIT}"
        children.append(python(code, parent))
        return children[-1], Path(children[-1].stdout.readline().strip())

    yield start
    for child in children:
        child.kill()
        child.communicate()


def test_a_notebook_that_is_killed_leaves_its_folder_to_the_next_and_one_that_ends_leaves_none(tmp_path):
    for end in (DIE, ""):
        child = python(BEGIN + end, tmp_path)
        printed = child.communicate()[0].splitlines()
        *_, model, childs = printed
        assert child.returncode == (-9 if end else 0)
        left = list(tmp_path.iterdir())
        assert len(left) == (1 if end else 0)  # of the killed one before this, nothing
        assert all(Path(made).parents[1] == tmp_path for made in (model, childs))  # in one folder of the process
    assert Path(model).parent == Path(childs).parent != left


def test_only_a_dead_owners_folder_is_removed_and_no_link_is_followed(tmp_path, waiting, monkeypatch):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("mine")
    living, used = waiting(tmp_path)
    owners, died = zip(*(waiting(tmp_path) for _ in range(4)), strict=True)
    for owner, left in zip(owners, died, strict=True):
        owner.kill()
        owner.wait()
        (left / "inside").symlink_to(precious)
    dead, unlocked, piped, linked = died
    (unlocked / scratch.LOCK).unlink()
    (piped / scratch.LOCK).unlink()
    os.mkfifo(piped / scratch.LOCK)
    real = linked.rename(tmp_path / "real")
    linked.symlink_to(real)

    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with scratch.folder(tmp_path):
        assert dead.exists()  # another user's
    monkeypatch.undo()
    with scratch.folder(tmp_path) as made:
        assert made.is_dir() and made.stat().st_mode & 0o777 == 0o700
        assert not dead.exists()
    assert not made.exists()
    assert all(path.is_dir() for path in (unlocked, piped, used, real)) and linked.is_symlink()
    assert (precious / "thesis").read_text() == "mine"
    living.communicate("")
    with scratch.folder(tmp_path):
        assert not used.exists()


def test_a_fork_neither_removes_the_folder_nor_loses_it_when_its_owner_dies(tmp_path):
    code = "import os, sys\nfrom servinglab import scratch\nscratch.adopt()\nprint(os.environ['TMPDIR'], flush=True)\n"
    code += "if os.fork() == 0:\n  sys.exit()\nos.wait()\nif os.fork() == 0:\n  sys.stdin.read(); os._exit(0)\n"
    child = python(f"{code}print(os.path.isdir(os.environ['TMPDIR']), flush=True); os.kill(os.getpid(), 9)", tmp_path)
    folder = Path(child.stdout.readline().strip())
    assert child.stdout.readline() == "True\n"
    child.wait()
    with scratch.folder(tmp_path):
        assert folder.is_dir()
    child.communicate("")
    with scratch.folder(tmp_path):
        assert not folder.exists()


def test_a_killed_run_leaves_its_folder_while_the_kernel_in_it_lives(tmp_path, waiting):
    runner, folder = waiting(tmp_path)
    kernel, inner = waiting(folder)
    runner.kill()
    runner.wait()
    with scratch.folder(tmp_path):
        assert inner.is_dir()
    kernel.kill()
    kernel.wait()
    with scratch.folder(tmp_path):
        assert not folder.exists()
