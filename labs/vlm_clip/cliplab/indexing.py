"""Catalogue → vectors and documents, in two stores that agree (notebook 15).

The catalogue is the truth; both stores are made from it. Every row and every document carries a fingerprint: a hash of
the picture's bytes, of what is said about it, and of the name of the encoder. From it follows all the rest:

* A picture is done when both stores have what the catalogue has now. Whatever ends a build, the next one does what is
  left, and a build of what is done does nothing.
* For each batch the documents are written first, the vectors second, each acknowledged before the next step. A search
  starts at the vectors, so it finds a picture only when there is something to say about it. Removal goes the other way.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tritonclient.utils import InferenceServerException

from cliplab.document_server import DocumentServer
from cliplab.documents import DocumentStore, id_fault
from cliplab.search import Search
from cliplab.vectors import CATEGORY_BYTES, VectorStore
from servinglab.errors import CourseError

BATCH = 16  # pictures embedded and written together: what a SIGKILL can cost at most
CAPTION_BYTES = 10_000


class Picture(Protocol):
    """What is needed of a picture of the catalogue (pictures.Picture)."""

    id: str
    file: Path
    caption: str
    category: str
    price_cents: int


Embed = Callable[[list[bytes]], np.ndarray]
Document = dict[str, Any]


class IndexingError(CourseError):
    """The catalogue or the encoder gave something that cannot be stored."""


class Stores:
    """Both stores in one folder: `vectors`, a file at `file`, and `documents`, a server at `uri`. Ends with the block,
    or with this Python; one Python at a time."""

    def __init__(self, folder: str | Path) -> None:
        self.file, self.documents, self.vectors = Path(folder) / "vectors.db", None, None
        self.server = DocumentServer(Path(folder) / "documents")
        self.uri = self.server.uri
        try:
            self.documents, self.vectors = DocumentStore(self.uri), VectorStore(self.file)
        except BaseException:
            self.close()
            raise

    def search(self, embed: Callable[..., np.ndarray]) -> Search:
        """A search in both; see `search.Search`."""
        return Search(embed, self.vectors, self.documents)

    def close(self) -> None:
        """Leave both. No effect the second time."""
        for each in (self.vectors, self.documents):
            if each is not None:
                each.close()
        self.server.stop()

    def __enter__(self) -> Stores:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Agreement:
    """What `check` found, as sorted ids.

    missing_vectors, missing_documents: in one store only, named by the store that lacks them.
    different: in both, not the same. With a catalogue also: missing (in neither store), outdated (in both, which agree,
    but not as the catalogue has it), orphans (in a store, not in the catalogue).
    """

    pictures: int
    missing_vectors: tuple[str, ...] = ()
    missing_documents: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()

    @property
    def agree(self) -> bool:
        return not self.problems()

    def problems(self) -> dict[str, tuple[str, ...]]:
        names = ("missing_vectors", "missing_documents", "different", "missing", "outdated", "orphans")
        return {name: ids for name in names if (ids := getattr(self, name))}

    def __str__(self) -> str:
        if self.agree:
            return f"The stores agree on {self.pictures} pictures."
        parts = [
            f"{len(ids)} {name.replace('_', ' ')} ({', '.join(map(str, ids[:3]))}{', …' if len(ids) > 3 else ''})"
            for name, ids in self.problems().items()
        ]
        return f"The stores disagree: {'; '.join(parts)}. Run reindex."


@dataclass(frozen=True)
class Built:
    """What a build did: pictures written, found done already, and removed because the catalogue has them no more."""

    written: int
    done_before: int
    removed: int

    def __str__(self) -> str:
        return f"{self.written} pictures written, {self.done_before} were there already, {self.removed} removed."


def build(
    pictures: Sequence[Picture], embed: Embed, vectors: Any, documents: Any, *, encoder: str = "",
    batch: int = BATCH, progress: Callable[[int, int], None] | None = None,
) -> Built:  # fmt: skip
    """Bring both stores to the state of the catalogue. Safe to kill at any moment, to repeat, to run after a change.

    Args:
        embed: bytes of picture files -> float [n, 384] of length 1.
        vectors, documents: a VectorStore and a DocumentStore, or what has their methods.
        encoder: a name of what makes the vectors; another name makes all of them anew.
        progress: called with (pictures done, pictures in all) after each batch.
    Raises IndexingError for a picture that cannot be read or stored, which it names, and for vectors of a wrong shape;
    the stores' own errors pass.
    """
    if batch < 1:
        raise IndexingError(f"batch is {batch}; write 1 picture or more at a time.")
    wanted = {document["_id"]: (picture, document) for picture, document in _wanted(pictures, encoder)}
    rows, records = vectors.rows(), documents.all()
    gone = sorted((set(rows) | set(records)) - set(wanted), key=str)
    vectors.delete([name for name in gone if name in rows])
    documents.delete([name for name in gone if name in records])

    left = [
        name
        for name, (_, document) in wanted.items()
        if records.get(name) != document or rows.get(name) != _row(document)
    ]
    done = len(wanted) - len(left)
    for start in range(0, len(left), batch):
        part = left[start : start + batch]
        _write([wanted[name] for name in part], embed, vectors, documents)
        if progress:
            progress(done + start + len(part), len(wanted))
    return Built(len(left), done, len(gone))


def check(vectors: Any, documents: Any, pictures: Sequence[Picture] | None = None, *, encoder: str = "") -> Agreement:
    """Compare the two stores, row by row, and with the catalogue if one is given; changes nothing."""
    rows, records = vectors.rows(), documents.all()
    both, either = set(rows) & set(records), set(rows) | set(records)
    found = {
        "missing_vectors": set(records) - set(rows),
        "missing_documents": set(rows) - set(records),
        "different": {name for name in both if rows[name] != _row(records[name])},
    }
    if pictures is not None:
        wanted = {document["_id"]: document for _, document in _wanted(pictures, encoder)}
        found["orphans"] = either - set(wanted)
        found["missing"] = set(wanted) - either
        same = both & set(wanted) - found["different"]
        found["outdated"] = {name for name in same if records[name] != wanted[name]}
    return Agreement(len(either), **{name: tuple(sorted(ids, key=str)) for name, ids in found.items()})


def reindex(
    pictures: Sequence[Picture], embed: Embed, vectors: Any, documents: Any, *, encoder: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> Agreement:  # fmt: skip
    """Repair whatever `check` finds; what is right stays as it is. Returns the check afterwards."""
    build(pictures, embed, vectors, documents, encoder=encoder, progress=progress)
    return check(vectors, documents, pictures, encoder=encoder)


def _wanted(pictures: Iterable[Picture], encoder: str) -> Iterator[tuple[Picture, Document]]:
    """Each picture with the document that it should have."""
    seen = set()
    for picture in pictures:
        _check(picture)
        if picture.id in seen:
            raise IndexingError(f"The catalogue has the id {picture.id!r} twice.")
        seen.add(picture.id)
        document = {
            "_id": picture.id, "caption": picture.caption, "category": picture.category,
            "price_cents": picture.price_cents, "file": picture.file.name,
        }  # fmt: skip
        said = json.dumps([encoder, document], sort_keys=True).encode()
        document["fingerprint"] = hashlib.sha256(said + _read(picture)).hexdigest()
        yield picture, document


def _check(picture: Picture) -> None:
    """Refuse what one store would take and the other not: nothing is written yet."""
    if fault := id_fault(picture.id):
        raise IndexingError(f"The id of the picture {picture.id!r:.60} {fault}.")
    for name, value, most in (
        ("category", picture.category, CATEGORY_BYTES), ("caption", picture.caption, CAPTION_BYTES)
    ):  # fmt: skip
        size = len(value.encode(errors="replace")) if isinstance(value, str) else -1
        if not 0 <= size <= most:
            raise IndexingError(f"The picture {picture.id!r:.60} needs a text of at most {most} bytes as its {name}.")
        if not value.isprintable() and (name != "caption" or any("\ud800" <= c <= "\udfff" for c in value)):
            raise IndexingError(f"The {name} of the picture {picture.id!r:.60} has a character that cannot be stored.")
    price = picture.price_cents
    if not isinstance(price, int) or isinstance(price, bool) or not 0 <= price < 2**63:
        raise IndexingError(f"The picture {picture.id!r:.60} has the price {price!r:.40}; give whole cents from 0 on.")


def _row(document: Document) -> tuple[str, str, int]:
    """What the vector store keeps of a document."""
    return tuple(document.get(field) for field in ("fingerprint", "category", "price_cents"))


def _write(batch: list[tuple[Picture, Document]], embed: Embed, vectors: Any, documents: Any) -> None:
    made = np.asarray(_embedded([picture for picture, _ in batch], embed), dtype=np.float32)
    if made.ndim != 2 or len(made) != len(batch) or not np.allclose(np.linalg.norm(made, axis=1), 1, atol=1e-3):
        raise IndexingError(
            f"embed gave an array of shape {list(made.shape)} for {len(batch)} pictures; it must give one vector of "
            "length 1 for each."
        )
    documents.put(document for _, document in batch)
    fingerprints, categories, prices = zip(*(_row(document) for _, document in batch), strict=True)
    vectors.upsert([picture.id for picture, _ in batch], made, categories, prices, fingerprints)


def _embedded(pictures: list[Picture], embed: Embed) -> np.ndarray:
    """The vectors. An error about one row ("Row 3 of 16: …", as `fusion` says it) becomes one about the picture."""
    try:
        return embed([_read(picture) for picture in pictures])
    except InferenceServerException as error:
        said = re.search(r"Row (\d+) of \d+: (.+)", error.message())
        if not said:
            raise
        picture = pictures[int(said[1]) - 1]
        raise IndexingError(f"The picture {picture.id!r} ({picture.file}) cannot be indexed: {said[2]}") from None


def _read(picture: Picture) -> bytes:
    try:
        return picture.file.read_bytes()
    except OSError as error:
        raise IndexingError(
            f"The picture {picture.id!r} cannot be read: {picture.file}: {error.strerror}. Bring it back, or take it "
            "out of the catalogue."
        ) from None
