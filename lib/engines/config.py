"""A config.json, read with care: the one place where numbers of a foreign file enter (Hugging Face, TensorRT-LLM)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines import EngineError

# TensorRT-LLM knows these by the names of Hugging Face, but computes every gelu, exact or not, with the tanh formula.
_GELUS = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh")
ACTIVATIONS = (*_GELUS, "quick_gelu", "relu", "silu")


class Config:
    """The object in a config.json. `where` stands in messages, such as the path of the file."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def get(self, key: str, default: Any = None) -> Any:
        """A value; the default also where the file says null."""
        value = self.values.get(key)
        return default if value is None else value

    def part(self, key: str) -> Mapping[str, Any]:
        """An object inside; empty when it is not there. Raises EngineError where it is something else."""
        value = self.get(key, {})
        if not isinstance(value, Mapping):
            raise EngineError(f"{self.where}: {key} is no JSON object; copy the file again.")
        return value

    def whole(self, *keys: str, default: int | None = None) -> int:
        """A size, under the first of the keys that is there: a whole number of at least 1."""
        key = next((key for key in keys if self.get(key) is not None), keys[0])
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            said = "has no" if value is None else f"says {value!r:.40} for"
            raise EngineError(f"{self.where} {said} {key}: it must be a whole number of at least 1.")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
            raise EngineError(f"{self.where} says {value!r:.40} for {key}: it must be a finite number above 0.")
        return float(value)

    def activation(self, *keys: str, default: str) -> str:
        """Under the first key; one of another version of transformers must mean the same where it is there."""
        for key in keys:
            if (value := self.get(key, default)) not in ACTIVATIONS:
                known = ", ".join(ACTIVATIONS)
                raise EngineError(f"{self.where} says {value!r:.40} for {key}, which is not converted; known: {known}.")
        found = {key: self.get(key, default) for key in keys if key == keys[0] or self.get(key)}
        if len({"gelu" if value in _GELUS else value for value in found.values()}) > 1:
            said = " and ".join(f"{value} for {key}" for key, value in found.items())
            raise EngineError(f"{self.where} says {said}; keep the one that counts.")
        return found[keys[0]]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises EngineError with one sentence when there is none."""
    try:
        if not (text := path.read_text(encoding="utf-8")).strip():
            raise EngineError(f"{path} is empty; make it or copy it again.")
        value = json.loads(text)
    except FileNotFoundError:
        raise EngineError(f"{path.parent} has no {path.name}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(f"{path} cannot be read ({error}).") from None
    if not isinstance(value, dict):
        raise EngineError(f"{path} holds {type(value).__name__}, not an object.")
    return value
