"""The reference executor behind the `tensorrt_llm` model: in-flight batching on a CPU."""

from typing import Any

from .params import RequestError, SamplingParams
from .request import Beam, Output, Request

__all__ = ["Beam", "Executor", "ExecutorError", "Output", "Request", "RequestError", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """The two that import ONNX Runtime, which the models beside the LLM do without."""
    if name not in ("Executor", "ExecutorError"):
        raise AttributeError(name)
    from . import engine

    return getattr(engine, name)
