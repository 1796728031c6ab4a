"""A client of the five models, over tritonclient and httpx."""

from servinglab.old_client.kserve import ClientError
from servinglab.old_client.triton import TritonClient

__all__ = ["ClientError", "TritonClient"]
