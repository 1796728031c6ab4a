"""Ask the ensemble `clip`: a picture, a sentence or both become one vector, with the labels nearest to it.

Taught by notebook 14.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cliplab.deployment import DIMENSIONS
from servinglab.old_client.triton import Chunk, ClientError, TritonClient


@dataclass(frozen=True)
class Embedding:
    """One answer: `vector` float32 [384] of length 1; `labels`, best first, with `scores` (cosines, -1 to 1).

    `tokens_left_out` of the text were beyond what the text tower reads. `seconds` since the request was sent.
    """

    vector: np.ndarray
    labels: tuple[str, ...]
    scores: np.ndarray
    tokens_left_out: int
    seconds: float


class RowError(ClientError):
    """An item was refused: `row`, counted from 0, and the `reason`."""

    def __init__(self, row: int, rows: int, reason: str) -> None:
        super().__init__(f"Row {row + 1} of {rows}: {reason}" if rows > 1 else reason)
        self.row, self.reason = row, reason


class ClipClient:
    """A client of one server, at "host:port" of its gRPC side; threads may share it.

    Every failure is a ClientError of one sentence, the server's own where it has one. Keep the deadline (seconds)
    generous: one that passes cancels the request, and Triton 24.10 has then, rarely, mixed up the texts of its
    neighbours (seen at 350 cancelled requests out of 400).
    """

    def __init__(self, address: str, *, model: str = "clip", deadline: float = 60.0) -> None:
        self.triton = TritonClient(address)
        self.model, self.deadline = model, deadline

    def embed(self, image: bytes | None = None, text: str | None = None) -> Embedding:
        """The vector of a picture file's bytes, of a text, or of both in equal parts."""
        result = self._ask(self._inputs([image], [text]))
        found = {name: value[0] for name, value in result.outputs.items()}
        labels = tuple(label.decode() for label in found["labels"])
        return Embedding(found["embedding"], labels, found["scores"], int(found["tokens_left_out"][0]), result.seconds)

    def embed_images(self, images: Sequence[bytes]) -> np.ndarray:
        """Vectors of many pictures, a full batch in each request: float32 [n, 384]."""
        return self._many(images, lambda part: self._inputs(part, [None] * len(part)))

    def embed_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of many texts, a full batch in each request: float32 [n, 384]."""
        return self._many(texts, lambda part: self._inputs([None] * len(part), part))

    @property
    def encoder(self) -> str:
        """A name of the weights behind the server. An index made with other weights finds the wrong pictures and
        nothing tells you so; give this name to `indexing.build`, which makes such vectors anew."""
        return self.triton.spec("fusion").parameters.get("encoder", "")

    def close(self) -> None:
        self.triton.close()

    def __enter__(self) -> ClipClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _many(self, items, inputs) -> np.ndarray:
        if isinstance(items, (bytes, str)):
            raise ClientError("Give a list of pictures or of texts; embed() takes a single one.")
        items, vectors = list(items), []
        size = self.triton.spec(self.model).max_batch_size
        for start in range(0, len(items), size):
            result = self._ask(inputs(items[start : start + size]), start, len(items))
            vectors.append(result.outputs["embedding"])
        return np.concatenate(vectors) if vectors else np.zeros((0, DIMENSIONS), np.float32)

    def _ask(self, inputs: dict[str, np.ndarray], first: int = 0, rows: int = 1) -> Chunk:
        """`first`: which of the caller's `rows` the first one is; an error names the caller's."""
        try:
            return self.triton.infer_inputs(self.model, inputs, deadline=self.deadline)
        except ClientError as error:
            said = re.sub(r"^in ensemble '[^']*', ", "", str(error))
            if found := re.match(r"Row (\d+) of \d+: (.+)", said):
                raise RowError(first + int(found[1]) - 1, rows, found[2]) from None
            raise ClientError(said) from None

    @staticmethod
    def _inputs(images: Sequence[bytes | None], texts: Sequence[str | None]) -> dict[str, np.ndarray]:
        """Both tensors, BYTES [rows, 1]: an empty string for what is not given."""
        for image, text in zip(images, texts, strict=True):
            if image is not None and not isinstance(image, bytes):
                kind = type(image).__name__
                raise ClientError(f"image takes the bytes of a picture file (path.read_bytes()), not {kind}.")
            if text is not None and not isinstance(text, str):
                raise ClientError(f"text takes a string, not {type(text).__name__}.")
        try:
            encoded = [(text or "").encode() for text in texts]
        except UnicodeEncodeError:
            raise ClientError("The text holds half a character (a lone surrogate).") from None
        rows = {"image": [image or b"" for image in images], "text": encoded}
        return {name: np.array(values, dtype=object).reshape(-1, 1) for name, values in rows.items()}
