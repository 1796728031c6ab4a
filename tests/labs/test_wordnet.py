"""Which thing a sentence names, and what is said of it: by hand, from WordNet 3.0."""

from __future__ import annotations

import numpy as np
import pytest

from cliplab import wordnet
from servinglab.root import find_root


@pytest.fixture(scope="module")
def dictionary() -> wordnet.Dictionary:
    return wordnet.Dictionary(find_root() / "data" / "mini_clip" / wordnet.FILE)


@pytest.mark.parametrize(
    ("sentence", "thing"),
    [
        ("A wapiti.", "wapiti"),
        ("Some red flowers!", "flower"),
        ("two KNIVES", "knife"),
        ("A great blue heron.", "great blue heron"),
        ("A bunny with an Easter egg.", "bunny"),
        ("A pair of pliers.", "pliers"),
        ("a photo of a fire engine", "fire engine"),
        ("Eddie the Helicopter.", "helicopter"),
        ("A peacock (a male peafowl).", "peacock"),
        ("x", ""),
        ("to be or not to be", ""),
        ("", ""),
        ("ein Überraschungsei", ""),
        ("éclair", ""),
        ("A ‘Jack-o’-lantern’.", "jack-o'-lantern"),
        ("of the and, a: red " * 9000 + "dog", ""),
    ],
)
def test_the_thing_is_the_head_of_the_first_phrase(dictionary, sentence, thing):
    assert dictionary.thing(sentence) == thing


def test_an_explanation_says_what_it_is_and_of_which_kind(dictionary):
    assert dictionary.explained("A drake.") == (
        "A drake. drake: adult male of a wild or domestic duck; a kind of duck, anseriform bird, waterfowl"
    )
    assert dictionary.explained("Hello?") == "Hello?"
    long = "A dog runs. " * 100
    assert dictionary.explained(long) == long


def test_the_text_and_its_explanation_count_alike(dictionary):
    """With an encoder that looks at the first letter and the last, and one call for each kind."""
    calls = []

    def encode(texts):
        calls.append(texts)
        points = np.array([[ord(text[0]), ord(text[-1])] for text in texts], np.float32)
        return points / np.linalg.norm(points, axis=1, keepdims=True)

    found = dictionary.encode(["A drake.", "Hello?"], encode)
    assert calls == [["A drake.", "Hello?"], [dictionary.explained("A drake.")]]
    plain, explained, other = encode(["A drake.", "Al", "Hello?"])  # the explanation ends with "waterfowl"
    middle = plain + explained
    assert found == pytest.approx(np.stack([middle / np.linalg.norm(middle), other]), abs=1e-6)
