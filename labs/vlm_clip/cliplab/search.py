"""A sentence, a picture or both → the ensemble's vector → the nearest vectors → their documents (notebook 15).

The two stores are asked one after the other: the vector store knows which pictures are near and may filter by category
and price before it takes the nearest; the document store knows what is to be said about them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from servinglab.errors import CourseError

MOST = 100  # hits of one search


class Vectors(Protocol):
    """What a search needs of the vector store (`vectors.VectorStore`)."""

    def search(
        self, vectors: np.ndarray, k: int = 5, *, category: str | None = None, below_cents: int | None = None
    ) -> list[list[tuple[str, float]]]: ...


class Documents(Protocol):
    """What a search needs of the document store (`documents.DocumentStore`)."""

    def get(self, ids: Iterable[str]) -> Mapping[str, Mapping[str, Any]]: ...


@dataclass(frozen=True)
class Hit:
    """One record found. `score` is the cosine of the query's vector and the picture's, at most 1: larger is nearer."""

    id: str
    score: float
    caption: str
    category: str
    price_cents: int
    file: str

    @property
    def price(self) -> str:
        return f"{self.price_cents / 100:.2f} euros"


@dataclass(frozen=True)
class Found:
    """What one search gave. `hits`: best first. `missing`: ids that have a vector and no document, or one without
    a price, so that nothing can be said about them; not empty means that the stores disagree (`indexing.check` finds
    all of it)."""

    query: str
    kind: str  # "text", "image" or "both"
    hits: tuple[Hit, ...]
    missing: tuple[str, ...] = ()


class Search:
    """Search in two stores with vectors of one encoder.

    Args:
        embed: called as `embed(image=bytes or None, text=str or None)`; gives float [384] of length 1.
            `client.ClipClient(address).embed` is one.
        vectors, documents: the stores.
    """

    def __init__(self, embed: Callable[..., Any], vectors: Vectors, documents: Documents) -> None:
        self.embed, self.vectors, self.documents = embed, vectors, documents

    def __call__(
        self, text: str = "", image: bytes | None = None, *, k: int = 5, category: str | None = None,
        below_cents: int | None = None,
    ) -> Found:  # fmt: skip
        """The `k` nearest records among those of the category that cost less than `below_cents`.

        Raises CourseError when there is neither a sentence nor a picture, or when k is not 1 to 100; the errors of the
        encoder and of the stores pass through, each one sentence.
        """
        if not isinstance(text, str | None) or not isinstance(image, bytes | None):
            raise CourseError("Search takes text as a string, and image as the bytes of a picture file.")
        text = (text or "").strip()
        if not text and not image:
            raise CourseError("Nothing to search for: give a sentence, a picture, or both.")
        if type(k) is not int or not 1 <= k <= MOST:
            raise CourseError(f"k is {k!r}; ask for 1 to {MOST} hits.")
        vector = np.asarray(self.embed(image=image or None, text=text or None), dtype=np.float32)
        (near,) = self.vectors.search(vector.reshape(1, -1), k, category=category, below_cents=below_cents)
        records = self.documents.get([name for name, _ in near])
        usable = {name for name, record in records.items() if isinstance(record.get("price_cents"), int)}
        hits = tuple(_hit(name, score, records[name]) for name, score in near if name in usable)
        missing = tuple(name for name, _ in near if name not in usable)
        return Found(text, "both" if text and image else "text" if text else "image", hits, missing)


def _hit(name: str, score: float, record: Mapping[str, Any]) -> Hit:
    fields = {field: str(record.get(field, "")) for field in ("caption", "category", "file")}
    return Hit(id=name, score=float(score), price_cents=int(record["price_cents"]), **fields)
