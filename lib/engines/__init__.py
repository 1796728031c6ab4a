"""From a Hugging Face checkpoint to a TensorRT-LLM engine: convert, estimate, build, inspect (notebooks 01 and 02).

Nothing heavy is imported here.
"""

from servinglab.errors import CourseError


class EngineError(CourseError):
    """A checkpoint, an engine or a build that cannot be used. The message says what, where and what to do."""
