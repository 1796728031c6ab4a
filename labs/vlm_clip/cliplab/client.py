"""Ask the ensemble `clip` as notebook 14 does: a picture, a sentence or both become one vector of length 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tritonclient.grpc as grpcclient

from cliplab.deployment import DIMENSIONS

ROWS = 16  # of one request, as write_repository sets it


def ask(client: grpcclient.InferenceServerClient, images: Sequence[bytes], texts: Sequence[str], *,
        timeout: float = 60.0) -> grpcclient.InferResult:  # fmt: skip
    """One request: as many pictures as texts, b"" and "" for what is not given. Raises InferenceServerException.

    Keep the timeout (seconds) generous: one that passes cancels the request, and Triton 24.10 has then, rarely, mixed
    up the texts of its neighbours (seen at 350 cancelled requests out of 400).
    """
    made = []
    for name, values in (("image", images), ("text", [text.encode() for text in texts])):
        tensor = grpcclient.InferInput(name, [len(values), 1], "BYTES")
        made.append(tensor.set_data_from_numpy(np.array(values, dtype=object).reshape(-1, 1)))
    return client.infer("clip", made, client_timeout=timeout)


class ClipClient:
    """Vectors from the server at "host:port" of its gRPC side; threads may share it."""

    def __init__(self, address: str) -> None:
        self.client = grpcclient.InferenceServerClient(address)

    def embed(self, image: bytes | None = None, text: str | None = None) -> np.ndarray:
        """The vector, float32 [384], of a picture file's bytes, of a text, or of both in equal parts."""
        return ask(self.client, [image or b""], [text or ""]).as_numpy("embedding")[0]

    def embed_images(self, images: Sequence[bytes]) -> np.ndarray:
        """Vectors of many pictures, a full batch in each request: float32 [n, 384]."""
        return self._many([(image, "") for image in images])

    def embed_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of many texts, a full batch in each request: float32 [n, 384]."""
        return self._many([(b"", text) for text in texts])

    @property
    def encoder(self) -> str:
        """A name of the weights behind the server. An index made with other weights finds the wrong pictures and
        nothing tells you so; give this name to `indexing.build`, which makes such vectors anew."""
        return self.client.get_model_config("fusion").config.parameters["encoder"].string_value

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> ClipClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _many(self, rows: list[tuple[bytes, str]]) -> np.ndarray:
        parts = [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]
        vectors = [ask(self.client, *zip(*part, strict=True)).as_numpy("embedding") for part in parts]
        return np.concatenate(vectors) if vectors else np.zeros((0, DIMENSIONS), np.float32)
