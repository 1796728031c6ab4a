"""A client of the five models, over tritonclient and httpx."""

from servinglab.client.kserve import ClientError
from servinglab.client.triton import TritonClient

__all__ = ["ClientError", "TritonClient"]
