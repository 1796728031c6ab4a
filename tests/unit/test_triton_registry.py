"""The run folder of a cache that several users, or a container, share: nobody is stopped by what is another's."""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
from pathlib import Path

import pytest

from servinglab.server import process as triton_registry
from servinglab.server import supervisor

US, THEM = 54321, 54322


@pytest.fixture
def run(monkeypatch):
    """As /tmp is: everybody writes, each removes what is his. Not pytest's folder, which is closed to other users."""
    with tempfile.TemporaryDirectory(prefix="registry-", dir="/tmp") as cache:
        os.chmod(cache, 0o755)
        folder = Path(cache, "run")
        folder.mkdir()
        folder.chmod(0o1777)
        monkeypatch.setenv("SERVINGLAB_CACHE", cache)
        yield folder


def write(path: Path, state: object, owner: int | None = None) -> Path:
    path.write_text(json.dumps(state))
    path.chmod(0o600)
    if owner is not None:
        os.chown(path, owner, owner)
    return path


def name(when: int, space: int = 0, started: str = "") -> str:
    """Of the file that `announce` writes, for this process."""
    space, pid, now = supervisor.pid_namespace() + space, os.getpid(), supervisor.start_time(os.getpid())
    return f"server-{when}-{space}-{pid}-{started or now}.json"


def as_user(uid: int, folder: Path, answers: multiprocessing.Queue) -> None:
    os.setgid(uid)
    os.setuid(uid)
    try:
        triton_registry.announce(os.getppid(), name="ours")
        answers.put(([state["name"] for state in triton_registry.announced()], triton_registry.new_log().parent))
    except BaseException as error:
        answers.put(repr(error))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make another user's files")
@pytest.mark.parametrize("mode", [0o1777, 0o777], ids=["sticky", "open"])
def test_another_user_s_servers_and_logs_are_neither_read_nor_removed(run, mode):
    run.chmod(mode)
    theirs = [write(run / name(1, started="1"), {"name": "dead"}, THEM)]
    theirs.append(write(run / name(9), {"name": "theirs"}, THEM))
    theirs += [write(run / f"triton-20200101-{i:06}-{2**22 + 1}-1.log", "", THEM) for i in range(110)]
    mine = write(run / name(2, started="1"), {"name": "ours, dead"}, US)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=as_user, args=(US, run, answers))
    child.start()
    assert answers.get(timeout=60) == (["ours"], run)
    child.join()
    assert all(path.exists() for path in theirs) and not mine.exists()


def test_a_server_of_another_container_is_not_ours_to_judge(run):
    """Its process ids mean something else here."""
    other = write(run / name(1, space=1, started="1"), {})
    same = write(run / name(2, space=1), {})
    assert triton_registry.announced() == [] and other.exists() and same.exists()
