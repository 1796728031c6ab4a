"""The names of the two towers' tensors, and the error that everything about their files raises."""

from __future__ import annotations

from servinglab.errors import CourseError

VISION_INPUTS, VISION_OUTPUT = ("pixel_values",), "image_embedding"
TEXT_INPUTS, TEXT_OUTPUT = ("input_ids", "attention_mask"), "text_embedding"
LONGEST = 256  # tokens; MiniLM was trained for sentences up to this length, the rest of a longer text is cut off


class EncoderError(CourseError):
    """The towers cannot be exported, prepared or run."""
