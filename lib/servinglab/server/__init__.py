"""A Triton Inference Server: started, watched, stopped."""

from typing import Any

from servinglab.server.install import ServerError

__all__ = ["ServerError", "TritonServer"]


def __getattr__(name: str) -> Any:
    if name != "TritonServer":
        raise AttributeError(name)
    from servinglab.server.triton import TritonServer  # later: the bundle's installer has only the standard library

    return TritonServer
