"""The reference executor behind the `tensorrt_llm` model: in-flight batching on a CPU."""

from .engine import Executor
from .model import ExecutorError
from .request import Output, Request, RequestError, SamplingParams

__all__ = ["Executor", "ExecutorError", "Output", "Request", "RequestError", "SamplingParams"]
