"""A stand-in for TensorRT-LLM's Python package, for tests, and for notebook 12 where it is not installed: its LLM API,
computed by the course's executor. What the released one takes and ignores in 1.2.1 (seed, penalties, bad words) counts
here; what is not here is refused by its name. api.toml: the released names and defaults."""

from .llmapi import LLM, SamplingParams  # noqa: F401

__version__ = "1.2.1"
