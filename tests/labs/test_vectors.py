"""The vector store against numpy: nearest rows, filters, what is refused, and files that cannot be opened."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
import textwrap
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import psutil
import pytest

from cliplab.vector_file import open_file, release, verify, writing
from cliplab.vectors import VectorError, VectorStore, expression

ROWS = 400
# Names that would end a quotation or the whole filter if they were pasted in.
CATEGORIES = ["animals", 'a "quoted" one', "back\\slash\\", "it's", "é ☃ 😀", 'x" or category != "', "{a} %s", "a\\"]


@pytest.fixture(scope="module")
def data():
    vectors = np.random.default_rng(0).standard_normal((ROWS, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors, [CATEGORIES[i % len(CATEGORIES)] for i in range(ROWS)], [(i * 37) % 1000 for i in range(ROWS)]


@pytest.fixture(scope="module")
def store(data, tmp_path_factory):
    vectors, categories, prices = data
    with VectorStore(tmp_path_factory.mktemp("vectors") / "pictures.db") as store:
        names = [f"p{i}" for i in range(ROWS)]
        for _ in range(2):  # written twice, there once
            store.upsert(names, vectors, categories, prices, ["f"] * ROWS)
        yield store


def nearest(data, query, k, category, below):
    vectors, categories, prices = data
    scores = vectors @ query
    kept = [i for i in np.argsort(-scores) if category in (None, categories[i])]
    return [(f"p{i}", scores[i]) for i in kept if below is None or prices[i] < below][:k]


@pytest.mark.parametrize("below", [None, 300, 0])
@pytest.mark.parametrize("category", [None, *CATEGORIES, "nobody has this"])
def test_nearest_rows_and_filters_are_those_of_numpy(store, data, category, below):
    queries = np.random.default_rng(1).standard_normal((3, 384)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    found = store.search(queries, 7, category=category, below_cents=below)
    for query, hits in zip(queries, found, strict=True):
        expected = nearest(data, query, 7, category, below)
        assert [name for name, _ in hits] == [name for name, _ in expected]
        np.testing.assert_allclose([score for _, score in hits], [score for _, score in expected], atol=1e-5)


def test_every_row_is_read_once(store, data, monkeypatch):
    monkeypatch.setattr("cliplab.vectors.PAGE", 64)
    vectors, categories, prices = data
    store.upsert([f"p{i}" for i in range(100)], vectors[:100], categories[:100], prices[:100], ["f"] * 100)
    assert store.rows() == {f"p{i}": ("f", categories[i], prices[i]) for i in range(ROWS)}
    assert len(store) == ROWS


def test_an_upsert_replaces_and_a_deletion_removes(store, data):
    vectors, categories, prices = data
    store.upsert(["p3", "new"], vectors[[5, 6]], ["animals", "new"], [1, 2], ["g", "g"])
    assert store.rows()["p3"] == ("g", "animals", 1)
    assert dict(store.search(vectors[[5]], 2)[0]).keys() == {"p3", "p5"}
    store.delete(["new", "never there"])
    store.upsert(["p3"], vectors[[3]], [categories[3]], [prices[3]], ["f"])
    assert len(store) == ROWS and "new" not in store.rows()


def test_eight_threads_search_at_once(store, data):
    wrong = []

    def search(first):
        for i in range(first, first + 20):
            if store.search(data[0][[i]], 1)[0][0][0] != f"p{i}":
                wrong.append(i)

    threads = [threading.Thread(target=search, args=(n * 40,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"vectors": np.zeros((1, 512))}, "[n, 384], not [1, 512]"),
        ({"vectors": np.full((1, 384), np.nan)}, "not a number"),
        ({"ids": ["a", "b"]}, "2 values of id"),
        ({"ids": [""]}, "empty or longer than 200 bytes"),
        ({"ids": ["é" * 101]}, "longer than 200 bytes"),
        ({"ids": None}, "give a list"),
        ({"ids": "a"}, "give a list"),
        ({"categories": ["two\nlines"]}, "cannot be printed"),
        ({"categories": [5]}, "no text"),
        ({"fingerprints": [None]}, "no text"),
        ({"fingerprints": ["f" * 65]}, "longer than 64 bytes"),
        ({"prices_cents": []}, "0 values of price"),
        ({"prices_cents": [1.7]}, "no whole number"),
        ({"prices_cents": [None]}, "no whole number"),
        ({"prices_cents": [2**63]}, "no whole number"),
        ({"vectors": "x"}, "rows of numbers"),
        ({"vectors": [[1.0], [1.0, 2.0]]}, "rows of numbers"),
    ],
)
def test_what_cannot_be_stored_is_refused_in_a_sentence(store, change, word):
    row = {"ids": ["a"], "vectors": np.ones((1, 384)), "categories": ["c"], "prices_cents": [1], "fingerprints": ["f"]}
    with pytest.raises(VectorError, match="^[A-Z].*\\.$") as caught:
        store.upsert(**(row | change))
    assert word in str(caught.value)
    with pytest.raises(VectorError, match="was not asked to search"):
        store.search(row["vectors"], effort=5)
    with pytest.raises(VectorError, match="twice"):
        store.upsert(["a", "a"], np.ones((2, 384)), ["c"] * 2, [1] * 2, ["f"] * 2)


def test_a_filter_cannot_be_broken_out_of():
    assert expression('x" or id != "', 5) == 'category == "x\\" or id != \\"" and price_cents < 5'
    assert expression() == ""
    assert expression(None, 2.5) == "price_cents < 3"  # 2 cents are below 2.5
    for wrong in [("a\nb",), (5,), (["a"],), (None, "1 or id != ''"), (None, float("nan")), (None, float("inf"))]:
        with pytest.raises(VectorError, match="^(The category|below_cents is) .*\\.$"):
            expression(*wrong)


def test_a_file_that_another_python_has_open(store, tmp_path, monkeypatch):
    file = tmp_path / "held.db"
    lock = tmp_path / ".held.db.lock"  # the name that milvus-lite gives it
    hold = f"import fcntl, time; f = open({str(lock)!r}, 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True)"
    holder = subprocess.Popen([sys.executable, "-c", f"{hold}; time.sleep(60)"], stdout=subprocess.PIPE)
    try:
        holder.stdout.readline()
        monkeypatch.setattr("cliplab.vector_file.LOCKED_SECONDS", 0.3)
        with pytest.raises(VectorError, match="open in another Python"):
            VectorStore(file)
        with open(tmp_path / ".other.db.open", "a") as other:  # our own lock: milvus-lite's comes too late
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(VectorError, match="open in another Python"):
                VectorStore(tmp_path / "other.db")
        monkeypatch.setattr("cliplab.vector_file.LOCKED_SECONDS", 10)
        threading.Timer(0.5, holder.kill).start()
        with VectorStore(file) as opened:  # it waits until the other is gone
            assert len(opened) == 0
    finally:
        holder.kill()
        holder.wait()


def test_an_interrupt_of_all_processes_of_a_notebook_does_not_end_the_store(tmp_path):
    """JupyterLab's Stop sends it to the kernel's process group."""
    code = f"""
        import os, signal, time
        from cliplab.vectors import VectorStore
        with VectorStore({str(tmp_path / "a.db")!r}) as store:
            try:
                os.killpg(0, signal.SIGINT)
                time.sleep(10)
            except KeyboardInterrupt:
                time.sleep(1)
            print(len(store), "rows")
    """
    folder = Path(__file__).parents[2] / "labs" / "vlm_clip"
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, start_new_session=True)
    assert done.stdout == "0 rows\n", done.stderr


def test_files_and_addresses_that_cannot_be_opened(store, tmp_path, monkeypatch):
    (tmp_path / "broken.db").write_bytes(b"no database" * 1000)
    for uri, word in [
        (tmp_path / "broken.db", "build the index again"),
        (tmp_path / "no spaces.db", "must end in .db"),
        (tmp_path / ("long" * 10 + ".db"), "36 characters"),
        ("vectors.txt", "must end in .db"),
        (tmp_path / "broken.db" / "a.db", "cannot be kept"),
        ("http://user:secret@127.0.0.1:1", "No Milvus answers at http://…@127.0.0.1:1"),
    ]:
        with pytest.raises(VectorError) as caught:
            VectorStore(uri)
        assert word in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(VectorError, match="no index"):
        VectorStore(tmp_path / "a.db", index="TREE")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))  # Milvus Lite says no more than above
    with pytest.raises(VectorError, match="cannot be kept in .*: its disk is full; make room\\.$"):
        VectorStore(tmp_path / "broken.db")


def test_closing_one_leaves_the_other_open(tmp_path, capfd):
    (tmp_path / "link").symlink_to(tmp_path)
    one, two = VectorStore(tmp_path / "a.db"), VectorStore(tmp_path / "link" / "a.db")
    one.close()
    one.close()
    assert len(two) == 0
    with pytest.raises(VectorError, match="is closed"):
        len(one)
    two.close()
    with pytest.raises(VectorError, match="Milvus at .*HNSW"):  # Milvus Lite has none; said once
        VectorStore(tmp_path / "b.db", index="HNSW")
    assert "pkg_resources" not in capfd.readouterr().err


def test_what_is_not_in_the_file_is_not_acknowledged(tmp_path, data):
    """Milvus Lite acknowledges what it cannot insert, on a full disk too; here the file is gone."""
    row = {"vectors": data[0][:1], "categories": ["c"], "prices_cents": [1], "fingerprints": ["f"]}
    store = VectorStore(tmp_path / "a.db")
    store.upsert(["a"], **row)
    (tmp_path / "a.db").unlink()
    with pytest.raises(VectorError, match="could not delete"):  # this it says by itself
        store.delete(["a"])
    with pytest.raises(VectorError, match="a.db does not hold what was written to it last .*again\\.$"):
        store.upsert(["b"], **row)
    with pytest.raises(VectorError, match="is closed"):
        len(store)
    with VectorStore(tmp_path / "a.db") as again:  # and not what the program had in its memory
        assert again.rows() == {}


def test_what_was_acknowledged_is_compared_with_the_file(tmp_path, data):
    file, fingerprint = tmp_path / "a.db", "3f" * 32
    with VectorStore(file) as store:
        store.upsert(["a", "b"], data[0][:2], ["c"] * 2, [1] * 2, [fingerprint] * 2)
        verify(file, "pictures", {"a": fingerprint, "b": fingerprint})
        for wrong in {"a": "0" * 64}, {"not there": fingerprint}, {"a": fingerprint, "b": "0" * 64}:
            with pytest.raises(VectorError, match="is its disk full"):
                verify(file, "pictures", wrong)


def test_writers_of_a_file_wait_for_each_other_and_those_of_a_server_do_not(tmp_path, data, monkeypatch):
    store = VectorStore(tmp_path / "a.db")
    with ThreadPoolExecutor() as pool:
        with writing:
            tasks = [
                pool.submit(store.upsert, ["a"], data[0][:1], ["c"], [1], ["f"]),
                pool.submit(store.delete, ["a"]),
                pool.submit(store.delete, ["b"]),
                opened := pool.submit(VectorStore, tmp_path / "a.db"),
            ]
            assert not wait(tasks, 0.5, FIRST_COMPLETED).done
            store.close()
        for task in tasks[:3]:
            with pytest.raises(VectorError, match="is closed: open it again"):
                task.result()
        opened.result().close()
        server = MagicMock(has_collection=lambda *_, **__: False)
        monkeypatch.setattr(VectorStore, "_connect", lambda *_: server)
        with writing:
            pool.submit(lambda: VectorStore("http://milvus").delete(["a"])).result(5)


def test_a_program_that_was_killed_is_named_and_started_anew(tmp_path):
    first = VectorStore(tmp_path / "killed.db")
    (program,) = (p for p in psutil.Process().children(recursive=True) if "killed.db" in " ".join(p.cmdline()))
    program.kill()
    program.wait()
    with pytest.raises(VectorError, match="killed.db has ended: close this store and open it again"):
        first.rows()
    with VectorStore(tmp_path / "killed.db") as second:  # while the first one is still open
        assert len(second) == 0
    first.close()
    for left in ("tmp*_killed.db.sock", f"milvus.*.{program.pid}"):
        assert not list(Path(tempfile.gettempdir()).glob(left))


def test_a_collection_of_other_vectors_is_refused_when_it_is_opened(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("cliplab.vectors.DIMENSIONS", 512)
        VectorStore(tmp_path / "a.db").close()
    with pytest.raises(VectorError, match="vectors of 512 numbers, not 384.*use another"):
        VectorStore(tmp_path / "a.db")


def test_a_new_file_is_tried_twice_and_an_old_one_is_not(tmp_path):
    def connect(path):
        tried.append(path)
        if len(tried) == 1:
            raise VectorError("not ready")
        return "a client"

    tried = []
    assert open_file(tmp_path / "new.db", connect) == "a client" and len(tried) == 2
    release(tmp_path / "new.db")
    tried.clear()
    (tmp_path / "old.db").write_bytes(b"no vectors")
    with pytest.raises(VectorError, match="no file of vectors"):
        open_file(tmp_path / "old.db", connect)
    assert len(tried) == 1


def test_a_new_file_for_which_milvus_does_not_come_up_is_not_called_broken(tmp_path):
    def connect(path):
        raise VectorError("not ready")

    with pytest.raises(VectorError, match="did not come up for the new file .*a.db: try again, or set TMPDIR"):
        open_file(tmp_path / "a.db", connect)


@pytest.mark.parametrize("name", ["long" * 25, "a space and é"])
def test_whatever_the_temporary_folder_is_called(tmp_path, monkeypatch, name):
    """A socket's path has 107 bytes at most."""
    (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
    with VectorStore(tmp_path / "made-here.db") as store:
        assert len(store) == 0
    assert not [*(tmp_path / name).iterdir()] and not [*Path("/tmp").glob("tmp*_made-here.db.sock")]
