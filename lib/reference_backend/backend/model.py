"""The Triton backend `tensorrtllm` of machines without TensorRT-LLM: a Python-based backend, one file in its folder.

Triton loads every model whose config.pbtxt says `backend: "tensorrtllm"` with it; such a model's version folder stays
empty, as NVIDIA's does. `servinglab.server.install.backend_directory` copies this file to <backend-dir>/tensorrtllm.
"""

from reference_backend.models.tensorrt_llm import TritonPythonModel

__all__ = ["TritonPythonModel"]
