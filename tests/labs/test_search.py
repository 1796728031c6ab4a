"""A search asks the encoder, then the vectors, then the documents, and says what it could not find."""

from __future__ import annotations

import numpy as np
import pytest

from cliplab.search import Found, Hit, Search
from servinglab.errors import CourseError

RECORDS = {
    "apple": {"caption": "A red apple.", "category": "food", "price_cents": 150, "file": "apple.png"},
    "pear": {"caption": "A pear.", "category": "food", "price_cents": 220, "file": "pear.png"},
    "boat": {"caption": "A boat.", "category": "vehicles", "price_cents": 9900, "file": "boat.png"},
}
VECTORS = {"apple": [1, 0, 0], "pear": [0.8, 0.6, 0], "boat": [0, 0, 1]}


class Memory:
    """Both stores in memory: exact cosine, filtered before the nearest are taken."""

    def __init__(self, records=RECORDS):
        self.records, self.asked = records, []

    def search(self, vectors, k=5, *, category=None, below_cents=None):
        self.asked.append((vectors.shape, vectors.dtype, k, category, below_cents))
        wanted = [
            name
            for name in VECTORS
            if category in (None, RECORDS[name]["category"])
            and (below_cents is None or RECORDS[name]["price_cents"] < below_cents)
        ]
        scores = {name: float(vectors[0] @ np.array(VECTORS[name], np.float32)) for name in wanted}
        return [sorted(scores.items(), key=lambda pair: -pair[1])[:k]]

    def get(self, ids):
        return {name: self.records[name] for name in ids if name in self.records}


def embed(image=None, text=None):
    if image == b"not a picture":
        raise CourseError("The picture cannot be read.")
    seen = {"apple": [1, 0, 0], "boat": [0, 0, 1]}[text or image.decode()]
    return np.array(seen, np.float64)


@pytest.fixture
def memory():
    return Memory()


@pytest.fixture
def search(memory):
    return Search(embed, memory, memory)


def test_the_nearest_come_first_with_what_their_documents_say(search):
    found = search("apple", k=2)
    assert found == Found(
        "apple",
        "text",
        (
            Hit("apple", 1.0, "A red apple.", "food", 150, "apple.png"),
            Hit("pear", pytest.approx(0.8), "A pear.", "food", 220, "pear.png"),
        ),
    )
    assert [hit.price for hit in found.hits] == ["1.50 euros", "2.20 euros"]


@pytest.mark.parametrize(
    "given, kind",
    [({"text": " apple "}, "text"), ({"image": b"boat"}, "image"), ({"text": "apple", "image": b"x"}, "both")],
)
def test_a_query_is_a_sentence_a_picture_or_both(search, given, kind):
    found = search(**given)
    assert found.kind == kind
    assert found.hits[0].id == ("boat" if kind == "image" else "apple")


def test_filters_and_a_plain_float32_row_reach_the_vector_store(search, memory):
    found = search("boat", k=3, category="food", below_cents=200)
    assert [hit.id for hit in found.hits] == ["apple"]
    assert memory.asked == [((1, 3), np.float32, 3, "food", 200)]


def test_a_vector_without_a_document_is_named_and_not_shown(memory):
    found = Search(embed, memory, Memory({"pear": RECORDS["pear"]}))("apple", k=3)
    assert [hit.id for hit in found.hits] == ["pear"]
    assert found.missing == ("apple", "boat")
    no_price = {name: value for name, value in RECORDS["apple"].items() if name != "price_cents"}
    found = Search(embed, memory, Memory({**RECORDS, "apple": no_price}))("apple", k=3)
    assert found.missing == ("apple",) and len(found.hits) == 2


@pytest.mark.parametrize(
    "given, said",
    [({}, "Nothing to search"), ({"text": "  \n"}, "Nothing to search"), ({"image": b""}, "Nothing to search"),
     ({"text": "apple", "k": 0}, "k is 0"), ({"text": "apple", "k": 101}, "1 to 100"),
     ({"text": "apple", "k": 2.5}, "k is 2.5"), ({"text": 5}, "text as a string"), ({"image": "a.png"}, "as the bytes"),
     ({"image": b"not a picture"}, "cannot be read")],
)  # fmt: skip
def test_mistakes_are_one_sentence(search, given, said):
    with pytest.raises(CourseError, match=said):
        search(**given)
