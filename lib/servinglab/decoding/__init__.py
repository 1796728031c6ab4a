"""Decoding in plain numpy: from logits to tokens and to beams, as notebooks 06 to 10 derive it. Readable first.

Every function takes any real array (float16 and integers included), computes in float64 along the last axis, and leaves
its inputs alone. Logits may be -inf, which means "forbidden"; logarithms are natural. A CourseError says in a sentence
what is wrong: nan or +inf among logits, a row that is -inf throughout.
"""

from .beam import BeamResult, Hypothesis, Node, beam_search, score
from .distributions import distribution, repetition_penalty, softmax

__all__ = [
    "BeamResult", "Hypothesis", "Node", "beam_search", "distribution", "repetition_penalty", "score", "softmax",
]  # fmt: skip
