"""Building, checking and repairing the two stores; and SIGKILL at random moments of a build."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from tritonclient.utils import InferenceServerException

from cliplab.document_server import DocumentServer
from cliplab.documents import DocumentError, DocumentStore
from cliplab.indexing import IndexingError, Stores, build, check, reindex
from cliplab.pictures import Picture
from cliplab.vectors import VectorError, VectorStore

PICTURES = 84


def catalogue(folder: Path, count: int) -> list[Picture]:
    """Pictures whose bytes are only a name: embed below needs no more."""
    for number in range(count):
        (folder / f"{number}.png").write_text(f"picture {number}")
    return [
        Picture(f"p{n:03}", folder / f"{n}.png", f"Number {n}.", ("animals", "town")[n % 2], 10 * n)
        for n in range(count)
    ]


def embed(pictures: list[bytes]) -> np.ndarray:
    """A vector of length 1 that depends on every byte."""
    seeds = [int.from_bytes(hashlib.sha256(each).digest()[:8], "little") for each in pictures]
    vectors = np.stack([np.random.default_rng(seed).standard_normal(384) for seed in seeds])
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with DocumentServer(tmp_path_factory.mktemp("documents")) as server:
        yield server


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    with VectorStore(tmp_path_factory.mktemp("vectors") / "pictures.db") as vectors:
        yield vectors


@pytest.fixture
def stores(server, vectors, request):
    vectors.delete(list(vectors.rows()))
    with DocumentStore(server.uri, collection=request.node.name) as documents:
        yield vectors, documents


@pytest.fixture
def pictures(tmp_path):
    return catalogue(tmp_path, 40)


def test_a_build_is_complete_and_a_second_one_does_nothing(stores, pictures):
    seen = []
    built = build(pictures, embed, *stores, progress=lambda *step: seen.append(step))
    assert (built.written, built.done_before, built.removed) == (40, 0, 0)
    assert seen == [(16, 40), (32, 40), (40, 40)]
    assert check(*stores, pictures).agree
    vectors, documents = stores
    for picture in pictures[::7]:
        ((name, score),) = vectors.search(embed([picture.file.read_bytes()]), 1)[0]
        assert name == picture.id and score == pytest.approx(1, abs=1e-5)
        record = documents.get([name])[name]
        assert record["caption"] == picture.caption and record["price_cents"] == picture.price_cents
        assert record["file"] == picture.file.name
    rows, records = vectors.rows(), documents.all()

    def never(_):
        raise AssertionError("nothing was to be embedded")

    again = build(pictures, never, *stores)
    assert (again.written, again.done_before, again.removed) == (0, 40, 0)
    assert (vectors.rows(), documents.all()) == (rows, records)


def test_changes_of_the_catalogue_are_followed(stores, pictures):
    build(pictures, embed, *stores)
    pictures[1].file.write_text("another picture")
    changed = [replace(pictures[0], price_cents=7), *pictures[1:3], replace(pictures[3], caption="New."), *pictures[5:]]
    found = check(*stores, changed)
    assert found.outdated == ("p000", "p001", "p003") and found.orphans == ("p004",) and not found.agree
    built = build(changed, embed, *stores)
    assert (built.written, built.done_before, built.removed) == (3, 36, 1)
    assert check(*stores, changed).agree
    assert stores[0].search(embed([b"another picture"]), 1)[0][0][0] == "p001"
    assert build(changed, embed, *stores, encoder="another").written == 39  # all vectors are others


def test_every_kind_of_disagreement_is_named_and_repaired(stores, pictures):
    vectors, documents = stores
    build(pictures, embed, *stores)
    vectors.delete(["p001", "p009"])
    documents.delete(["p002", "p009"])
    documents.put([documents.get(["p003"])["p003"] | {"price_cents": 1}])
    documents.put([documents.get(["p004"])["p004"] | {"caption": "Not what the catalogue says."}])
    documents.put([documents.get(["p005"])["p005"] | {"_id": "alone"}])
    vectors.upsert(["stray"], embed([b"x"]), ["town"], [1], ["f"])
    found = check(*stores, pictures)
    assert found.problems() == {
        "missing_vectors": ("alone", "p001"), "missing_documents": ("p002", "stray"), "different": ("p003",),
        "missing": ("p009",), "outdated": ("p004",), "orphans": ("alone", "stray"),
    }  # fmt: skip
    assert "2 missing vectors (alone, p001)" in str(found) and "Run reindex" in str(found)
    assert set(check(*stores).problems()) == {"missing_vectors", "missing_documents", "different"}
    calls = []
    repaired = reindex(pictures, lambda batch: calls.append(len(batch)) or embed(batch), *stores)
    assert repaired.agree and sum(calls) == 5  # no more than was wrong
    assert str(repaired) == "The stores agree on 40 pictures."


def test_what_cannot_be_indexed_is_said_in_a_sentence(stores, pictures):
    with pytest.raises(IndexingError, match="twice"):
        build([*pictures, pictures[0]], embed, *stores)
    with pytest.raises(IndexingError, match="length 1"):
        build(pictures, lambda batch: 2 * embed(batch), *stores)
    with pytest.raises(IndexingError, match="shape \\[1, 384\\] for 16 pictures"):
        build(pictures, lambda batch: embed(batch[:1]), *stores)
    assert len(stores[0]) == len(stores[1]) == 0
    refused = InferenceServerException("in ensemble 'clip', Row 2 of 16: These 3 bytes are no picture.")
    with pytest.raises(IndexingError, match="'p001' \\(.*1.png\\) cannot be indexed: These 3 bytes"):
        build(pictures, lambda _: (_ for _ in ()).throw(refused), *stores)
    pictures[5].file.unlink()
    with pytest.raises(IndexingError, match="'p005' cannot be read: .*5.png: No such file"):
        build(pictures, embed, *stores)
    with pytest.raises(IndexingError, match="batch is -1"):  # it would write nothing and say that it has
        build(pictures, embed, *stores, batch=-1)


@pytest.mark.parametrize(
    "change",
    [{"id": ""}, {"id": 5}, {"id": "x" * 300}, {"id": "a\0b"}, {"id": 'a"b'}, {"category": None},
     {"category": "c" * 200}, {"caption": "\ud800"}, {"caption": "x" * 10**6}, {"price_cents": 2.5},
     {"price_cents": "12"}, {"price_cents": None}, {"price_cents": 2**70}, {"price_cents": -1}],
    ids=lambda change: f"{change!r:.30}",
)  # fmt: skip
def test_a_picture_that_cannot_be_stored_is_refused_before_anything_is_written(pictures, change):
    class Untouched:
        def rows(self):
            return {}

        all = rows

    changed = [pictures[0], replace(pictures[1], **change)]
    with pytest.raises(IndexingError, match="picture '?(p001|x*|5|a.*b)'?.* (needs|has|is) .*\\.$"):
        build(changed, embed, Untouched(), Untouched())


ASCII = [form.format(chr(code)) for code in range(32, 127) for form in ("{}", "a{}b", "a{}")]
REFUSED = [name for name in ASCII if set(name) & set("\"'\\")] + ['x" or id != "', '\\"q', "a\tb", "a\0b", "\u202e"]
REFUSED += ["\ud800", "", "\u00df" * 101, "x" * 201, 5, None, b"a", 1.5, True]
KEPT = [name for name in ASCII if name not in REFUSED]
KEPT += ["é ☃ 😀", "[1]", "{x}", "10", "nan", "None", "e\u0301", "\u00e9", "\u00df" * 100, "x" * 200]


@pytest.mark.timeout(120)  # a bad id once made Milvus Lite read for ever
def test_both_stores_keep_the_same_ids(stores):
    vectors, documents = stores
    row = {"caption": "A.", "category": "c", "price_cents": 1, "file": "a.png", "fingerprint": "f"}
    made, same = embed([repr(name).encode() for name in KEPT]), [["c"], [1], ["f"]]
    for name, vector in zip(KEPT, made, strict=True):
        vectors.upsert([name], vector[None], *same)
        documents.put([row | {"_id": name}])
    assert set(KEPT) == set(vectors.rows()) == set(documents.all())
    assert [hits[0][0] for hits in vectors.search(made, 1)] == KEPT
    for start in range(0, len(KEPT), 7):
        for store in stores:
            store.delete(KEPT[start : start + 7])
        assert set(KEPT[start + 7 :]) == set(vectors.rows()) == set(documents.all())


@pytest.mark.parametrize("name", REFUSED, ids=lambda name: f"{name!r:.20}")
def test_both_stores_refuse_the_same_ids_in_the_same_sentence(stores, name):
    vectors, documents = stores
    row = {"_id": name, "caption": "A.", "category": "c", "price_cents": 1, "file": "a.png", "fingerprint": "f"}
    with pytest.raises(VectorError, match="^The id .*\\.$") as first:
        vectors.upsert([name], embed([b"x"]), ["c"], [1], ["f"])
    with pytest.raises(DocumentError) as second:
        documents.put([row])
    with pytest.raises(VectorError) as third:  # or it would acknowledge a removal that did not happen
        vectors.delete([name])
    assert str(first.value) == str(second.value) == str(third.value) and "\n" not in str(first.value)


def test_documents_that_somebody_wrote_by_hand_are_found_and_removed(stores, pictures):
    documents = stores[1]
    build(pictures, embed, *stores)
    documents._pictures.insert_many([{"_id": 5}, {"caption": "without an id of its own"}])
    found = check(*stores, pictures)
    assert len(found.orphans) == 2 and "2 orphans (5, " in str(found)
    assert reindex(pictures, embed, *stores).agree


def build_slowly(folder: Path, uri: str, acknowledged, embedded, limit) -> None:
    """In a process of its own, which is killed, at the latest while it waits at `limit` acknowledged pictures. The
    counters are in shared memory and survive it."""

    def slow(batch):
        while acknowledged.value >= limit.value:
            time.sleep(0.01)
        embedded.value += len(batch)
        time.sleep(0.02)
        return embed(batch)

    def progress(done, _):
        acknowledged.value = done

    with VectorStore(folder / "pictures.db") as vectors, DocumentStore(uri, collection="killed") as documents:
        build(catalogue(folder, PICTURES), slow, vectors, documents, batch=4, progress=progress)


def test_a_build_that_is_killed_at_any_moment_goes_on_and_loses_nothing_acknowledged(server, tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pymilvus", "pymongo", "pkg_resources", __name__])  # imported once, not per child
    acknowledged, embedded, limit = context.Value("i", 0), context.Value("i", 0), context.Value("i", 0)
    randomness, kills = random.Random(os.getpid()), 0
    while True:
        before = acknowledged.value
        limit.value = before + 24 if kills < 3 else PICTURES
        child = context.Process(target=build_slowly, args=(tmp_path, server.uri, acknowledged, embedded, limit))
        child.start()
        while child.is_alive() and acknowledged.value == before:
            time.sleep(0.002)
        child.join(randomness.uniform(0, 0.5) if kills < 3 else None)
        if not child.is_alive():
            break
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        kills += 1
        with VectorStore(tmp_path / "pictures.db") as vectors, DocumentStore(server.uri, collection="killed") as stored:
            found = check(vectors, stored)
            assert len(vectors) >= acknowledged.value
            # Documents are written first: at most the batch of the kill has no vectors; no vector is without document.
            assert found.missing_documents == found.different == () and len(found.missing_vectors) <= 4
    assert child.exitcode == 0 and kills >= 2 and acknowledged.value == PICTURES
    assert embedded.value <= PICTURES + 4 * kills
    with VectorStore(tmp_path / "pictures.db") as vectors, DocumentStore(server.uri, collection="killed") as stored:
        assert check(vectors, stored, catalogue(tmp_path, PICTURES)).agree


def test_both_stores_of_a_folder_come_back_after_they_were_closed(tmp_path, pictures):
    with Stores(tmp_path / "shop") as both:
        build(pictures[:4], embed, both.vectors, both.documents)
        found = both.search(lambda image=None, text=None: embed([image])[0])(image=pictures[2].file.read_bytes(), k=1)
        assert [(hit.id, hit.caption) for hit in found.hits] == [("p002", "Number 2.")]
        server = both.server.pid
    assert not psutil.pid_exists(server)
    with Stores(tmp_path / "shop") as both:
        assert check(both.vectors, both.documents, pictures[:4]).agree
