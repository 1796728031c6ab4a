"""The reference executor behind the `tensorrt_llm` model: in-flight batching on a CPU."""

from .engine import Executor
from .model import ExecutorError
from .params import RequestError, SamplingParams
from .request import Beam, Output, Request

__all__ = ["Beam", "Executor", "ExecutorError", "Output", "Request", "RequestError", "SamplingParams"]
