"""From a Hugging Face checkpoint to a TensorRT-LLM engine: convert, estimate, inspect; the API after it (01, 02, 12).

Nothing heavy is imported here, and nothing of the course's other packages anywhere in it.
"""

import difflib
from collections.abc import Iterable


class EngineError(Exception):
    """A checkpoint, an engine or a build that cannot be used. The message is one sentence: what, where, what to do."""


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """A question that names the nearest known word, with a space before it; empty when no word is near."""
    near = difflib.get_close_matches(str(word), list(map(str, known)), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def one_of(what: str, value: object, known: Iterable[object]) -> str:
    """`value` as a text. Raises EngineError where it is not among `known`."""
    known = tuple(known)
    if value not in known:
        raise EngineError(
            f"{what} must be one of {', '.join(map(str, known))}, not {value!r}.{did_you_mean(value, known)}"
        )
    return str(value)
