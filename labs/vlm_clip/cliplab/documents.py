"""The document store: what is known about each picture, by the protocol of MongoDB (notebook 15).

    DocumentStore("mongodb://user:password@host1,host2/?replicaSet=rs0")   # MongoDB, or Atlas with mongodb+srv://…
    with DocumentServer(folder) as server:                                 # offline: document_server.py
        DocumentStore(server.uri)

Every write is acknowledged only when a majority of the servers has it in its journal on disk. That is not what a
client asks for by default, and it matters: see document_server.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from servinglab.errors import CourseError

ID_BYTES = 200
# What no id may have: Milvus Lite pastes ids into its language unquoted, so such a row is written and then cannot be
# read, or ends every reading of the store, or cannot be removed.
NOT_IN_IDS = frozenset("\"'\\")
BATCH = 200  # documents of one call, so that its time does not depend on how many there are
FIELDS = ("caption", "category", "price_cents", "file", "fingerprint")


class DocumentError(CourseError):
    """The document store cannot be reached, or refuses something."""


class DocumentStore:
    """One document for each picture: its id, and FIELDS. Threads may share it.

    Args:
        uri: mongodb://… or mongodb+srv://…, with user and password where the server asks for them.
        timeout: seconds to find a server, and for one call.
    Raises DocumentError of one sentence, here and in every method.
    """

    def __init__(
        self, uri: str, *, database: str = "course", collection: str = "pictures", timeout: float = 10.0
    ) -> None:
        import pymongo
        from pymongo.errors import PyMongoError

        self.address = without_password(uri)
        try:
            self._client = pymongo.MongoClient(
                uri, serverSelectionTimeoutMS=timeout * 1e3, timeoutMS=timeout * 1e3, appname="servinglab"
            )
        except (PyMongoError, ValueError) as error:
            raise DocumentError(f"{self.address} is no address of a document store: {_reason(error)}.") from None
        concern = pymongo.WriteConcern(w="majority", j=True)
        self._pictures = self._client.get_database(database).get_collection(collection, write_concern=concern)
        try:
            with self._speaking("be reached"):
                self._client.admin.command("ping")
                self._pictures.create_index("category")
        except BaseException:
            self.close()
            raise

    def put(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Write documents; each has its id as "_id" (see `id_fault`) and the FIELDS. One with the same id is replaced.
        Returns when all are on disk."""
        import bson
        import pymongo

        documents = list(documents)
        for document in documents:
            if missing := {"_id", *FIELDS} - set(document):
                raise DocumentError(f"The document {document.get('_id')!r} has no {', '.join(sorted(missing))}.")
            if fault := id_fault(document["_id"]):
                raise DocumentError(f"The id {document['_id']!r:.60} {fault}.")
            with self._speaking(f"write the document {document['_id']!r}"):
                bson.encode(document)  # pymongo would say which value it cannot write, and not of which document
        writes = [pymongo.ReplaceOne({"_id": each["_id"]}, dict(each), upsert=True) for each in documents]
        for start in range(0, len(writes), BATCH):
            with self._speaking("write documents"):
                self._pictures.bulk_write(writes[start : start + BATCH], ordered=False)

    def get(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """{id: document} of those ids that are there."""
        with self._speaking("read documents"):
            return {each["_id"]: each for each in self._pictures.find({"_id": {"$in": list(ids)}})}

    def all(self) -> dict[str, dict[str, Any]]:
        """{id: document} of every document."""
        with self._speaking("read all documents"):
            return {each["_id"]: each for each in self._pictures.find()}

    def delete(self, ids: Iterable[str]) -> None:
        """Remove documents; ids that are not there do not matter."""
        if ids := list(ids):
            with self._speaking("delete documents"):
                self._pictures.delete_many({"_id": {"$in": ids}})

    def __len__(self) -> int:
        with self._speaking("count documents"):
            return self._pictures.count_documents({})

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> DocumentStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _speaking(self, what: str) -> Iterator[None]:
        from bson.errors import BSONError
        from pymongo.errors import ConnectionFailure, InvalidOperation, PyMongoError

        try:
            yield
        except ConnectionFailure as error:
            raise DocumentError(
                f"No document store answers at {self.address}: start it, or correct the address. ({_reason(error)})"
            ) from None
        except InvalidOperation:
            raise DocumentError(f"The document store {self.address} is closed: open it again.") from None
        except (PyMongoError, BSONError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise DocumentError(f"The document store {self.address} could not {what}: {_reason(error)}.") from None


def id_fault(value: Any) -> str:
    """Why neither store takes this as an id, as the end of a sentence; "" when both do."""
    if not isinstance(value, str):
        return "is no text"
    if not value.isprintable():
        return "has a character that cannot be printed"
    if not 0 < len(value.encode()) <= ID_BYTES:
        return f"is empty or longer than {ID_BYTES} bytes"
    return "has a quote or a backslash: choose another" if NOT_IN_IDS & set(value) else ""


def without_password(uri: str) -> str:
    """An address as it may be printed."""
    head, at, tail = uri.rpartition("@")
    return f"{head.partition('://')[0]}://…@{tail}" if at else uri


def _reason(error: Exception) -> str:
    refused = (getattr(error, "details", None) or {}).get("writeErrors")  # the text says only that there are
    text = (refused[0]["errmsg"] if refused else str(error)).splitlines()[0]
    for addition in (" (configured", ", Timeout:", ", full error:"):
        text = text.partition(addition)[0]
    if text == "internal server error":
        text += "; is its disk full? Its log says more"
    return text.strip().rstrip(".")[:300]
