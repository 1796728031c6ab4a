"""Diversity and repetition, counted in n-grams. A text is a string (split at white space) or a sequence of tokens.

Notebooks 07 and 09.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from servinglab.errors import CourseError

Text = str | Sequence[int]


def distinct_n(texts: Text | Sequence[Text], n: int) -> float:
    """Distinct n-grams over all n-grams of one text or of several together, from just above 0 to 1 (Li et al. 2016, "A
    Diversity-Promoting Objective Function"). It falls as texts grow longer, so compare equal lengths only.

    Raises CourseError when no text has n tokens.
    """
    one = isinstance(texts, str) or not any(hasattr(text, "__len__") for text in texts)
    grams = [gram for text in ([texts] if one else texts) for gram in _ngrams(text, n)]
    if not grams:
        raise CourseError(f"No text has {n} tokens, so there is no {n}-gram to count; use longer texts or a smaller n.")
    return len(set(grams)) / len(grams)


def repetition_rate(tokens: Text, n: int = 4) -> float:
    """The share of a text's n-grams that already occurred in it: 0 = none repeats (or too short), near 1 = a loop."""
    grams = _ngrams(tokens, n)
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def self_bleu(texts: Sequence[Text], max_n: int = 4) -> float:
    """Mean BLEU of each text against all others: 1 = all alike, near 0 = nothing shared (Zhu et al. 2018, "Texygen").

    BLEU (Papineni et al. 2002) is the geometric mean of the clipped n-gram precisions, n = 1 to max_n, times
    exp(1 - r/c) when the text (c tokens) is shorter than the reference nearest in length (r tokens). A precision with
    no match counts 0.1 matches, lest it zero the product (Chen and Cherry 2014, method 1). A text shorter than max_n
    uses the orders it has; an empty one scores 0.

    Raises CourseError for fewer than two texts.
    """
    if isinstance(texts, str) or len(texts) < 2:
        raise CourseError("Self-BLEU compares texts with each other; give a list of at least two.")
    counts = [[Counter(_ngrams(text, n)) for n in range(1, max_n + 1)] for text in texts]
    return sum(_bleu(own, counts[:i] + counts[i + 1 :]) for i, own in enumerate(counts)) / len(counts)


def _bleu(own: list[Counter], others: list[list[Counter]]) -> float:
    length = own[0].total()
    if not length:
        return 0.0
    logs = []
    for order, grams in enumerate(own):
        if grams:
            allowed = Counter()
            for other in others:
                allowed |= other[order]  # per n-gram, the most that any one reference holds
            logs.append(math.log(max((grams & allowed).total(), 0.1) / grams.total()))
    nearest = min((other[0].total() for other in others), key=lambda r: (abs(r - length), r))
    return math.exp(sum(logs) / len(logs) + min(0.0, 1 - nearest / length))


def _ngrams(text: Text, n: int) -> list[tuple]:
    tokens = text.split() if isinstance(text, str) else list(text)
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
