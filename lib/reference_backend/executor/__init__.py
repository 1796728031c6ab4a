"""The reference executor behind the `tensorrt_llm` model: in-flight batching, on a CPU or a CUDA device."""

from importlib import import_module
from typing import Any

from .params import RequestError, SamplingParams
from .request import Beam, Output, Request

# Those that import ONNX Runtime, which the models beside the LLM do without.
_LATER = ("Executor", "ExecutorError")

__all__ = ["Beam", "Output", "Request", "RequestError", "SamplingParams", *_LATER]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(name)
    return getattr(import_module(".engine", __name__), name)
