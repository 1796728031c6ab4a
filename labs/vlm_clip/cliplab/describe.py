"""Ask the vision-language model about a picture: its bytes and a question go in, the answer streams out."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from servinglab.client import inputs, stream
from servinglab.errors import CourseError
from servinglab.root import find_root
from servinglab.server import TritonServer

MODEL = "tensorrt_llm_bls"
LONGEST = 24  # tokens of an answer
# One of each kind that the model was trained on.
QUESTIONS = (
    "What is it?", "What colour is it?", "How many things are there?", "What is on the left?", "Is there a dog?",
)  # fmt: skip


class Describer:
    """The model behind the server at `address` ("host:port" of its gRPC side); with "" every question is answered by
    the sentence that none is served."""

    def __init__(self, address: str = "") -> None:
        self.address, self.server = address, None

    @classmethod
    def serve(cls, folder: str | Path, precision: str = "fp32") -> Describer:
        """Start `server` with nothing but that model, written into `folder`. It needs one of its own, because every
        language model has models of the same names. precision: of its engine."""
        from cliplab import vlm_files

        server = TritonServer(vlm_files.deploy(folder, precision)).start()
        made = cls(server.grpc_url)
        made.server = server
        return made

    def stream(self, picture: bytes, question: str, *, timeout: float = 60.0) -> Iterator[str]:
        """Pieces of the answer as they arrive. picture: the bytes of a picture file.

        Raises CourseError without a picture, a question or a server, InferenceServerException for what the server
        refuses. Leaving the iterator early stops the model's work.
        """
        question = re.sub(r"<\|[^|]*\|>|<image>", " ", question).strip()
        if not picture or not question:
            raise CourseError("Choose a picture, and ask a question about it.")
        if not self.address:
            raise CourseError("No model that sees pictures is served here; notebook 16 shows how to serve one.")
        try:
            card = json.loads((find_root() / "data" / "vlm" / "vlm.json").read_text(encoding="utf-8"))
            prompt = f"{card['before']}<image>{card['after'].format(question)}"
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise CourseError(f"data/vlm/vlm.json is damaged ({error!r}); bring it back: git checkout data") from None
        url = b"data:image/png;base64," + base64.b64encode(picture)  # the bytes say what kind it is
        asked = inputs(text_input=prompt, max_tokens=LONGEST, stream=True, image_url_input=np.array([[url]], object))
        try:
            with (
                grpcclient.InferenceServerClient(self.address) as client,
                closing(stream(client, MODEL, asked, timeout=timeout)) as results,
            ):
                yield from (result.as_numpy("text_output").reshape(-1)[0].decode() for result in results)
        except InferenceServerException as error:
            if "UNAVAILABLE" not in str(error.status()):
                raise
            raise CourseError(f"No model that sees pictures answers at {self.address}; is its server up?") from None
