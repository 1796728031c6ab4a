"""The base of every error that this backend expects, and the mark of those that are not the client's."""

from __future__ import annotations

FAULT = "failed on this request:"  # marks, in a message of our Triton models, an error that is not the client's


class BackendError(Exception):
    """An expected failure. Its message is one clear sentence: what went wrong, where, and what to do."""
