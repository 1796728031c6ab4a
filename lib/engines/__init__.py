"""From a Hugging Face checkpoint to a TensorRT-LLM engine: convert, estimate, inspect (notebooks 01 and 02).

Nothing heavy is imported here, and nothing of the course's other packages anywhere in it.
"""

from engines.errors import EngineError

__all__ = ["EngineError"]
