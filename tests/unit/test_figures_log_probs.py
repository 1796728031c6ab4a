"""Notebook 08's figures show the numbers they are given, in legible sizes; its labelled questions are sound."""

from __future__ import annotations

import json

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from plots import log_probs as figures
from servinglab.root import find_root

mpl.use("Agg")
pytestmark = pytest.mark.usefixtures("course_style")

LOGS = np.log(np.full(60, 1 / 8))
PRODUCTS = {name: np.multiply.accumulate(np.exp(LOGS).astype(name)) for name in figures.DTYPES}
CONFIDENCES, OUTCOMES = np.array([0.1, 0.15, 0.3, 0.7, 0.9]), np.array([False, True, False, True, True])


FIGURES = {
    "underflow": lambda: figures.underflow(PRODUCTS, np.cumsum(LOGS)),
    "surprise": lambda: figures.surprise({"a b": (["a", " b"], [-2.0]), "b a": (["b", " a"], [-9.0])}),
    "reliability": lambda: figures.reliability({"all": CONFIDENCES}, OUTCOMES),
}


@pytest.mark.parametrize("name", FIGURES)
def test_texts_are_legible_and_axes_named(name):
    fig = FIGURES[name]()
    assert min(text.get_fontsize() for text in fig.findobj(Text) if text.get_text()) >= 9
    assert all(axes.get_xlabel() for axes in fig.axes if name != "surprise")
    assert 7 <= fig.get_figwidth() <= 8


def test_a_product_ends_where_it_becomes_zero():
    """1/8 = 2^-3: the ninth product is 2^-27, below half of float16's smallest; float32 lasts to 2^-147."""
    half, single, double = FIGURES["underflow"]().axes
    assert half.get_title(loc="left") == "float16: 0 at token 9"
    assert single.get_title(loc="left") == "float32: 0 at token 50"
    assert double.get_title(loc="left") == "float64: not 0 yet"
    line = half.lines[0].get_ydata()
    assert len(line) == 8 and line[-1] == pytest.approx(-24 * np.log10(2), rel=1e-6)


def test_reliability_shows_share_interval_and_count():
    axes = FIGURES["reliability"]().axes[0]
    points = np.concatenate([line.get_xydata() for line in axes.lines[1:]])
    np.testing.assert_allclose(points, [(0.125, 0.5), (0.3, 0), (0.7, 1), (0.9, 1)])
    first = axes.collections[0].get_segments()[0][:, 1]
    np.testing.assert_allclose(first, [0.0945, 0.9055], atol=1e-4)  # Wilson's interval of 1 of 2
    assert [text.get_text() for text in axes.texts] == ["2", "1", "1", "1"]


def test_a_confidence_of_1_is_in_the_last_bin():
    axes = figures.reliability({"all": np.array([0.85, 1.0])}, np.array([True, False])).axes[0]
    assert [text.get_text() for text in axes.texts] == ["2"]


def test_kept_counts_right_and_wrong_at_a_threshold():
    fig, axes = plt.subplots()
    figures.kept(axes, CONFIDENCES, OUTCOMES, 0.3)
    assert [text.get_text() for text in axes.texts] == ["2 kept", "1 kept", "67% right"]
    rights, wrongs = axes.lines[1:]
    assert sorted(rights.get_xdata()) == [0.15, 0.7, 0.9] and sorted(wrongs.get_xdata()) == [0.1, 0.3]
    assert to_hex(rights.get_color()) != to_hex(wrongs.get_color())


def test_questions_are_distinct_and_labelled():
    labelled = json.loads((find_root() / "data/decoding/questions.json").read_text(encoding="utf-8"))
    questions = labelled["questions"]
    assert len({entry["question"] for entry in questions}) == len(questions) == 60
    assert labelled["example"].endswith("\n")
    for entry in questions:
        assert set(entry) == {"kind", "question", "answers"} and entry["question"].endswith("?")
        assert entry["answers"] and all(answer == answer.strip() != "" for answer in entry["answers"])
        assert entry["question"] not in labelled["example"]
