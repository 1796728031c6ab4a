"""The `tensorrtllm` backend of the embedded lane: a reference executor, and the Python models around it."""

import functools
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


FAULT = "failed on this request:"  # marks, in a message of our Triton models, an error that is not the client's


class BackendError(Exception):
    """An expected failure. Its message is one clear sentence: what went wrong, where, and what to do."""


@functools.cache
def table(name: str) -> dict[str, Any]:
    """A table of the folder data by its name. Do not change what comes back."""
    return tomllib.loads((Path(__file__).parent / "data" / f"{name}.toml").read_text("utf-8"))
