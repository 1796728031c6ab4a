"""The vector store: Milvus, in one file of this machine or on a cluster, by the same code (notebook 15).

    VectorStore("pictures.db")                              # Milvus Lite, a file
    VectorStore("http://milvus:19530", token="user:word")   # Milvus on a server or a cluster

Milvus Lite is a program of its own that pymilvus starts for the file and that ends with this Python. One Python at a
time may have the file open. What an upsert has acknowledged survives a SIGKILL of either.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cliplab.documents import ID_BYTES, id_fault, without_password
from cliplab.vector_file import VectorError, open_file, release, verify, writing

if TYPE_CHECKING:
    from pymilvus import MilvusClient

__all__ = ["INDEXES", "VectorError", "VectorStore", "expression"]

DIMENSIONS = 384
CATEGORY_BYTES, FINGERPRINT_BYTES = 100, 64
# What an index is built with. Milvus Lite has FLAT, IVF_FLAT and AUTOINDEX; a server has them all.
INDEXES = {"FLAT": {}, "IVF_FLAT": {"nlist": 64}, "HNSW": {"M": 16, "efConstruction": 200}, "AUTOINDEX": {}}
FIELDS = ("id", "vector", "category", "price_cents", "fingerprint")
PAGE = 1000  # rows of one call when many are written or all are read; a message of Milvus has an end


class VectorStore:
    """Vectors of length 1 with what a search filters by. Threads may share it.

    Args:
        uri: a file ending in .db (made if it is not there), or the address of a Milvus.
        token: "user:password" or an API key, for a Milvus that asks for one.
        index: one of INDEXES, for a collection that is not there yet; COSINE is its measure.
        timeout: seconds for one call.
    Raises VectorError of one sentence, here and in every method.
    """

    def __init__(
        self, uri: str | Path, token: str = "", *, collection: str = "pictures", index: str = "FLAT",
        timeout: float = 30.0,
    ) -> None:  # fmt: skip
        self.uri, self.collection, self.timeout = str(uri), collection, timeout
        self.address = without_password(self.uri)
        if index not in INDEXES:
            raise VectorError(f"There is no index {index!r}: choose one of {', '.join(INDEXES)}.")
        self._file = Path(self.uri).expanduser().resolve() if "://" not in self.uri else None
        self._writing = writing if self._file else contextlib.nullcontext()
        if self._file:
            self._client = open_file(self._file, self._connect)
        else:
            self._client = self._connect(self.uri, token)
        try:
            self._prepare(index)
        except BaseException:
            self.close()
            raise

    def _connect(self, uri: str, token: str = ""):
        from pymilvus import MilvusClient
        from pymilvus.exceptions import MilvusException

        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # errors arrive as exceptions, and once is enough
        with _quiet_root():
            try:
                # Without pings: an idle Milvus Lite hangs up on a client that sends them, and gRPC tells the terminal.
                quiet = {"grpc.keepalive_time_ms": 2**31 - 1}
                return MilvusClient(uri=uri, token=token, timeout=min(self.timeout, 10), grpc_options=quiet)
            except (MilvusException, RuntimeError, OSError) as error:
                raise VectorError(
                    f"No Milvus answers at {self.address}: start it, or correct the address. ({_reason(error)})"
                ) from None

    def _prepare(self, index: str) -> None:
        from pymilvus import DataType, MilvusClient

        with self._writing, self._speaking("open the collection") as client:
            if not client.has_collection(self.collection, timeout=self.timeout):
                schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
                schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=ID_BYTES)
                schema.add_field("vector", DataType.FLOAT_VECTOR, dim=DIMENSIONS)
                schema.add_field("category", DataType.VARCHAR, max_length=CATEGORY_BYTES)
                schema.add_field("price_cents", DataType.INT64)
                schema.add_field("fingerprint", DataType.VARCHAR, max_length=FINGERPRINT_BYTES)
                indexes = client.prepare_index_params()
                indexes.add_index("vector", index_type=index, metric_type="COSINE", params=INDEXES[index])
                # Strong: a search sees every write that was acknowledged before it, on a cluster too.
                client.create_collection(
                    self.collection, schema=schema, index_params=indexes, consistency_level="Strong",
                    timeout=self.timeout,
                )  # fmt: skip
            else:
                self._same_fields(client)
            client.load_collection(self.collection, timeout=self.timeout)

    def _same_fields(self, client: MilvusClient) -> None:
        fields = client.describe_collection(self.collection, timeout=self.timeout)["fields"]
        found = {field["name"]: field.get("params", {}).get("dim") for field in fields}
        if found != dict.fromkeys(FIELDS) | {"vector": DIMENSIONS}:
            size = found.get("vector")
            what = f"vectors of {size} numbers, not {DIMENSIONS}" if size not in (None, DIMENSIONS) else "other fields"
            raise VectorError(
                f"The collection {self.collection} at {self.address} was made for something else (it has {what}): use "
                "another, or remove it and build the index again."
            )

    def upsert(
        self, ids: Sequence[str], vectors: np.ndarray, categories: Sequence[str], prices_cents: Sequence[int],
        fingerprints: Sequence[str],
    ) -> None:  # fmt: skip
        """Write rows; a row with the same id is replaced. ids: see `documents.id_fault`. vectors: float [n, 384], of
        length 1. Returns when they are acknowledged."""
        vectors = _checked(vectors)
        _check_ids(ids)
        for what, values in (
            ("id", ids), ("category", categories), ("price", prices_cents), ("fingerprint", fingerprints)
        ):  # fmt: skip
            if len(values) != len(vectors):
                raise VectorError(f"There are {len(vectors)} vectors and {len(values)} values of {what}.")
        for what, values, most in (
            ("category", categories, CATEGORY_BYTES), ("fingerprint", fingerprints, FINGERPRINT_BYTES)
        ):  # fmt: skip
            if strange := [value for value in values if not (isinstance(value, str) and value.isprintable())]:
                raise VectorError(f"The {what} {strange[0]!r:.50} is no text, or one that cannot be printed.")
            if long := [value for value in values if len(value.encode()) > most]:
                raise VectorError(f"The {what} {long[0][:50]!r} is longer than {most} bytes.")
        whole = (int, np.integer)
        if wrong := [price for price in prices_cents if not isinstance(price, whole) or abs(price) >= 2**63]:
            raise VectorError(f"The price {wrong[0]!r:.50} is no whole number of cents of 64 bits.")
        if len(set(ids)) < len(ids):
            raise VectorError("An id is given twice in one upsert.")
        rows = [
            {"id": name, "vector": vector, "category": category, "price_cents": int(price), "fingerprint": fingerprint}
            for name, vector, category, price, fingerprint in zip(
                ids, vectors, categories, prices_cents, fingerprints, strict=True
            )
        ]
        for start in range(0, len(rows), PAGE):
            part = rows[start : start + PAGE]
            with self._writing, self._speaking("write vectors") as client:
                client.upsert(self.collection, part, timeout=self.timeout)
                if self._file:
                    self._verify(part)

    def _verify(self, rows: Sequence[Mapping[str, Any]]) -> None:
        try:
            verify(self._file, self.collection, {row["id"]: row["fingerprint"] for row in rows})
        except VectorError:
            self.close()
            raise

    def search(
        self, vectors: np.ndarray, k: int = 5, *, category: str | None = None, below_cents: int | None = None,
        effort: Mapping[str, int] | None = None,
    ) -> list[list[tuple[str, float]]]:  # fmt: skip
        """For each vector the `k` nearest rows, best first, as (id, cosine), among those of the category that cost less
        than `below_cents`. effort: what the index may spend, {"nprobe": cells} for IVF_FLAT or {"ef": candidates} for
        HNSW."""
        vectors = _checked(vectors)
        with self._speaking("search") as client:
            found = client.search(
                self.collection, list(vectors), limit=k, filter=expression(category, below_cents),
                output_fields=["id"], search_params={"params": dict(effort or {})}, timeout=self.timeout,
            )  # fmt: skip
        return [[(hit["id"], float(hit["distance"])) for hit in hits] for hits in found]

    def rows(self) -> dict[str, tuple[str, str, int]]:
        """{id: (fingerprint, category, price in cents)} of every row."""
        fields, found = ["id", "category", "price_cents", "fingerprint"], {}
        with self._speaking("read all rows") as client:
            pages = client.query_iterator(self.collection, batch_size=PAGE, output_fields=fields, timeout=self.timeout)
            while page := pages.next():
                found |= {row["id"]: (row["fingerprint"], row["category"], row["price_cents"]) for row in page}
            pages.close()
        return found

    def delete(self, ids: Sequence[str]) -> None:
        """Remove rows; ids that are not there do not matter."""
        if ids := list(ids):
            _check_ids(ids)  # else the removal of another row would be acknowledged
            with self._writing, self._speaking("delete vectors") as client:
                client.delete(self.collection, ids=ids, timeout=self.timeout)

    def __len__(self) -> int:
        with self._speaking("count rows") as client:
            (row,) = client.query(
                self.collection, filter="", output_fields=["count(*)"], consistency_level="Strong", timeout=self.timeout
            )
        return row["count(*)"]

    def close(self) -> None:
        """Leave the store; a file may then be opened by another Python."""
        client, self._client = self._client, None
        if client is None:
            return
        with contextlib.suppress(Exception):
            client.close()
        if self._file:
            release(self._file)

    def __enter__(self) -> VectorStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _speaking(self, what: str) -> Iterator[MilvusClient]:
        """The client, for as long as the block lasts: another thread may close the store meanwhile."""
        from pymilvus.exceptions import MilvusException

        client = self._client
        if client is None:
            raise VectorError(f"The vector store {self.address} is closed: open it again.")
        try:
            yield client
        except MilvusException as error:
            if self._file and "Fail connecting" in _reason(error):
                raise VectorError(
                    f"The program that keeps {self._file} has ended: close this store and open it again."
                ) from None
            raise VectorError(f"Milvus at {self.address} could not {what}: {_reason(error)}.") from None
        except (TypeError, ValueError) as error:  # of an argument that pymilvus cannot write
            raise VectorError(f"Milvus at {self.address} was not asked to {what}: {_reason(error)}.") from None


def expression(category: str | None = None, below_cents: int | None = None) -> str:
    """A filter in Milvus's language. The category is quoted, so that no text can become part of the language."""
    parts = []
    if category is not None:
        if not isinstance(category, str) or not category.isprintable():  # Milvus Lite cannot write a line break
            raise VectorError(f"The category {category!r:.60} is no text, or has a character that cannot be printed.")
        quoted = category.replace("\\", "\\\\").replace('"', '\\"')
        parts.append(f'category == "{quoted}"')
    if below_cents is not None:
        try:
            parts.append(f"price_cents < {math.ceil(below_cents)}")
        except (TypeError, ValueError, OverflowError):
            raise VectorError(f"below_cents is {below_cents!r:.60}; give a number of cents.") from None
    return " and ".join(parts)


def _check_ids(ids: Sequence[str]) -> None:
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        raise VectorError(f"The ids are {ids!r:.60}; give a list of texts.")
    for name in ids:
        if fault := id_fault(name):
            raise VectorError(f"The id {name!r:.60} {fault}.")


def _checked(vectors: np.ndarray) -> np.ndarray:
    try:
        vectors = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError):
        raise VectorError("Vectors must be rows of numbers, all of one length.") from None
    if vectors.ndim != 2 or vectors.shape[1] != DIMENSIONS:
        raise VectorError(f"Vectors must have the shape [n, {DIMENSIONS}], not {list(vectors.shape)}.")
    if not np.isfinite(vectors).all():
        raise VectorError("A vector has a value that is not a number.")
    return vectors


def _reason(error: Exception) -> str:
    return str(getattr(error, "message", error)).strip().rstrip(".").splitlines()[0]


@contextlib.contextmanager
def _quiet_root() -> Iterator[None]:
    """milvus-lite tells the root logger what the exception says as well."""
    root, silent = logging.getLogger(), logging.Filter("nothing of this name")
    root.addFilter(silent)
    try:
        yield
    finally:
        root.removeFilter(silent)
