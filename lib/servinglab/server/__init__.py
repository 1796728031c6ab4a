"""A Triton Inference Server: started, watched, stopped."""

from servinglab.server.install import ServerError
from servinglab.server.triton import TritonServer

__all__ = ["ServerError", "TritonServer"]
