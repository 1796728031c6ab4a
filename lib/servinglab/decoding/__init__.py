"""Decoding in plain numpy and in log space: from logits to tokens, scores and texts. Readable first, fast second.

Every function takes any real array (float16 and integers included), computes in float64, returns float64 (token ids as
int) and leaves its inputs alone. Logits may be -inf, which means "forbidden". Logarithms are natural unless a `base` is
named. A CourseError says in a sentence what is wrong: nan or +inf among logits, a row that is -inf throughout,
probabilities that do not sum to 1, a setting out of range. Taught in notebooks 06 to 10.
"""

from . import speculative
from .beam import BeamResult, Hypothesis, Node, beam_search, exhaustive_search
from .distributions import categorical, distribution, entropy, greedy, log_softmax, logsumexp, softmax
from .penalties import min_tokens_mask, presence_frequency_penalty, repetition_penalty
from .scores import Reliability, expected_calibration_error, perplexity, reliability, score, wilson_interval
from .texts import distinct_n, repetition_rate, self_bleu

__all__ = [
    "BeamResult", "Hypothesis", "Node", "Reliability", "beam_search", "categorical", "distinct_n", "distribution",
    "entropy", "exhaustive_search", "expected_calibration_error", "greedy", "log_softmax", "logsumexp",
    "min_tokens_mask", "perplexity", "presence_frequency_penalty", "reliability", "repetition_penalty",
    "repetition_rate", "score", "self_bleu", "softmax", "speculative", "top_k", "top_p", "wilson_interval",
]  # fmt: skip
