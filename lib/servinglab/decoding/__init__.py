"""Decoding in plain numpy and in log space: from logits to tokens, scores and texts. Readable first, fast second.

Every function takes any real array (float16 and integers included), computes in float64, returns float64 (token ids as
int) and leaves its inputs alone. Logits may be -inf, which means "forbidden"; nan and +inf are a CourseError. So is a
row that is -inf throughout wherever a probability or a token must come out of it; `top_k`, `min_p`, the penalties and
the mask return it as it is, and `logsumexp` gives -inf. Logarithms are natural unless a `base` is named. Taught in
notebooks 06 to 10.
"""

from . import speculative
from .beam import BeamResult, Hypothesis, Node, beam_search, exhaustive_search, greedy_search
from .calibration import Reliability, expected_calibration_error, reliability, wilson_interval
from .diversity import distinct_n, repetition_rate, self_bleu
from .filters import min_p, top_k, top_p
from .logspace import entropy, log_softmax, logsumexp, softmax
from .penalties import min_tokens_mask, presence_frequency_penalty, repetition_penalty
from .sampling import categorical, distribution, greedy, gumbel_max
from .scores import perplexity, score, sequence_log_prob

__all__ = [
    "BeamResult", "Hypothesis", "Node", "Reliability", "beam_search", "categorical", "distinct_n", "distribution",
    "entropy", "exhaustive_search", "expected_calibration_error", "greedy", "greedy_search", "gumbel_max",
    "log_softmax", "logsumexp", "min_p", "min_tokens_mask", "perplexity", "presence_frequency_penalty", "reliability",
    "repetition_penalty", "repetition_rate", "score", "self_bleu", "sequence_log_prob", "softmax", "speculative",
    "top_k", "top_p", "wilson_interval",
]  # fmt: skip
