"""The document store and its offline server: what is written is there, also after a SIGKILL; errors are sentences."""

from __future__ import annotations

import datetime
import decimal
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import psutil
import pytest
from filelock import FileLock
from pymongo.errors import PyMongoError

from cliplab import own_user
from cliplab.document_server import LOCK, DocumentServer, DocumentServerError
from cliplab.documents import DocumentError, DocumentStore
from servinglab.server.install import ServerError


def document(number: int, **changes) -> dict:
    fields = {"caption": f"A picture, number {number}: é", "category": f"c{number % 3}", "price_cents": number}
    return {"_id": f"p{number}", **fields, "file": "a.png", "fingerprint": "f"} | changes


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with DocumentServer(tmp_path_factory.mktemp("documents")) as server:
        yield server


def test_a_second_server_on_a_folder_waits(tmp_path, monkeypatch):
    with FileLock(tmp_path / LOCK, thread_local=False) as held:
        with monkeypatch.context() as patched, pytest.raises(DocumentServerError, match="open: stop it, or use anoth"):
            patched.setattr("cliplab.document_server.LOCKED_SECONDS", 0.1)
            DocumentServer(tmp_path)
        monkeypatch.setattr("cliplab.document_server.LOCKED_SECONDS", 30)
        threading.Timer(0.5, held.release).start()
        with DocumentServer(tmp_path):
            pass


def test_what_is_yours_in_the_folder_stays(tmp_path):
    mine = {"settings.toml": "mine = 1", "server-2024.log": "my log", "server-1764448788000000000.log": "mine, too"}
    mine |= {".lock": "my lock"}
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
    for _ in range(2):
        with DocumentServer(tmp_path) as server:
            assert server.log.stat().st_mode & 0o077 == 0
    assert {name: (tmp_path / name).read_text() for name in mine} == mine
    assert {path.name for path in tmp_path.iterdir()} == {*mine, LOCK, "data"}


def test_a_start_that_fails_leaves_the_folder_to_the_next(tmp_path, monkeypatch):
    (tmp_path / LOCK).mkdir()
    with pytest.raises(DocumentServerError, match="cannot be kept in .*: Is a directory\\.$") as first:
        DocumentServer(tmp_path)
    (tmp_path / LOCK).rmdir()
    monkeypatch.setattr("cliplab.document_server.TritonProcess", MagicMock(side_effect=ServerError))
    with pytest.raises(DocumentServerError, match="could not be started") as second:
        DocumentServer(tmp_path)
    FileLock(tmp_path / LOCK).acquire(timeout=0)
    assert first and second  # their tracebacks hold the servers, and what those have open


@pytest.fixture
def store(server, request):
    with DocumentStore(server.uri, collection=request.node.name) as store:
        yield store


def test_documents_come_back_as_they_were_written(store, monkeypatch):
    monkeypatch.setattr("cliplab.documents.BATCH", 16)
    store.put(document(n) for n in range(40))
    store.put([])
    store.put([document(3, caption="changed"), document(99)])
    assert len(store) == 41
    assert store.get(["p3", "p5", "nobody"]) == {"p3": document(3, caption="changed"), "p5": document(5)}
    assert store.all() == {f"p{n}": document(n) for n in [*range(40), 99]} | {"p3": document(3, caption="changed")}
    store.delete(["p3", "nobody"])
    store.delete([])
    assert len(store) == 40 and store.get(["p3"]) == {}


def test_a_document_without_a_field_is_refused(store):
    with pytest.raises(DocumentError, match="'x' has no caption, category"):
        store.put([document(1), {"_id": "x"}])
    assert len(store) == 0


LOOP: dict = {}
LOOP["again"] = LOOP
NOT_IN_BSON = [
    2**63, -(2**63) - 1, np.int64(3), np.ones(3), "\ud800", {1}, object(), 1j, LOOP, {"a\0b": 1}, {1: 2},
    datetime.date(2026, 1, 1), uuid.UUID(int=1), decimal.Decimal(1), "x" * 17_000_000,
]  # fmt: skip


@pytest.mark.parametrize("value", NOT_IN_BSON, ids=lambda value: type(value).__name__)
def test_a_value_that_cannot_be_stored_is_refused_in_a_sentence(store, value):
    with pytest.raises(DocumentError, match="^The document store mongodb.* could not write [^\n]+\\.$") as caught:
        store.put([document(1), document(2, caption=value)])
    assert "batch op errors" not in str(caught.value) and len(str(caught.value)) < 400
    if not isinstance(value, str) or len(value) == 1:  # the size is for the server to judge
        assert "write the document 'p2'" in str(caught.value) and len(store) == 0
    for call in (store.get, store.delete):
        if not isinstance(value, str) or len(value) == 1:
            with pytest.raises(DocumentError, match="^The document store .*\\.$"):
                call([value])


@pytest.mark.parametrize(("free", "reason"), [(0, "its disk is full"), (2**30, "it said nothing")])
def test_a_server_that_ends_without_a_word(tmp_path, monkeypatch, free, reason):
    (tmp_path / "true").write_text("")
    monkeypatch.setattr("cliplab.document_server.PROGRAM", "true")
    monkeypatch.setattr("shutil.which", lambda name, path: str(tmp_path / name))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(DocumentServerError, match=f"^true ended while it started .{reason}.: its log is "):
        DocumentServer(tmp_path)


def test_an_error_that_says_nothing_points_to_the_disk_and_the_log(store):
    with pytest.raises(DocumentError, match="could not write: internal server error; is its disk full"):
        with store._speaking("write"):
            raise PyMongoError("internal server error, full error: {'ok': 0.0}")


def test_acknowledged_documents_survive_a_kill_and_the_server_leaves_nothing_behind(tmp_path):
    first = DocumentServer(tmp_path)
    with DocumentStore(first.uri) as store:
        # What makes the difference when more clients write (benchmarks/document_stores.py), and not always with one.
        assert store._pictures.write_concern.document == {"w": "majority", "j": True}
        for number in range(60):
            store.put([document(number)])
        os.kill(first.pid, signal.SIGKILL)
    first.stop()
    with DocumentServer(tmp_path) as second:
        with DocumentStore(second.uri) as store:
            assert store.all() == {f"p{n}": document(n) for n in range(60)}
        assert psutil.Process(second.pid).net_connections()[0].laddr.ip == "127.0.0.1"
    assert not psutil.pid_exists(second.pid)
    with pytest.raises(DocumentError, match="No document store answers"):
        DocumentStore(second.uri, timeout=0.3)


def test_the_server_ends_with_the_python_that_started_it_and_the_next_one_waits_for_that(tmp_path):
    code = (
        "import os, sys; from cliplab.document_server import LOCK, DocumentServer\n"
        "from servinglab.server import process as triton_process\n"
        "triton_process.GRACE_SECONDS = 5; server = DocumentServer(sys.argv[1]); print(server.pid, flush=True)\n"
        "os.kill(server.pid, 19); os.kill(os.getpid(), 9)"  # a server that is stopped does not end when it is told to
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, tmp_path]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=60)
    assert psutil.pid_exists(int(done.stdout))
    first = psutil.Process(int(done.stdout))
    with DocumentServer(tmp_path):
        first.wait(10)  # or TimeoutExpired
        assert not psutil.pid_exists(int(done.stdout))


@pytest.mark.parametrize(
    ("uri", "word"),
    [
        ("mongodb://me:secret@127.0.0.1:1/", "No document store answers at mongodb://…@127.0.0.1:1/: start it"),
        ("http://127.0.0.1:1", "is no address of a document store"),
        ("mongodb://me:p@w@host", "must be escaped"),
    ],
)
def test_a_store_that_cannot_be_reached(uri, word):
    with pytest.raises(DocumentError) as caught:
        DocumentStore(uri, timeout=0.2)
    assert word in str(caught.value) and "secret" not in str(caught.value) and "\n" not in str(caught.value)


NAMES = """
import os, pymongo, sys
os.setuid(int(sys.argv[1]))
with pymongo.MongoClient(sys.argv[2], serverSelectionTimeoutMS=1500) as client:
    print(client.list_database_names())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize(("user", "heard"), [("0", "['course', 'local']\n"), ("65534", "")])
def test_other_users_of_the_machine_are_hung_up_on(server, store, user, heard):
    """Else they could have it write into any folder of its user."""
    store.put([document(1)])
    command = [sys.executable, "-c", NAMES, user, server.uri]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == heard and ("ServerSelectionTimeoutError" in done.stderr) is not bool(heard)


def test_what_was_sent_over_a_connection_that_is_closed_already_is_nobody_s():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        for close in (False, True):
            with socket.create_connection(listening.getsockname()) as sender:
                sender.sendall(b"a command")
                if close:
                    sender.close()
                with listening.accept()[0] as connection:
                    assert own_user.is_own(connection) is not close


def test_a_closed_store_says_so(server):
    store = DocumentStore(server.uri)
    store.close()
    with pytest.raises(DocumentError, match="is closed"):
        len(store)
