"""The figures of notebook 10 show the numbers they are given, with names on their axes and legible text."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from plots import speculative as figures

mpl.use("Agg")
pytestmark = pytest.mark.usefixtures("course_style")

P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.7, 0.1])
FIGURES = {
    "overlap": lambda: figures.overlap("abc", P, Q),
    "kept": lambda: figures.kept(["a", "b"], [0.9, 0.3], [True, False]),
    "verify": lambda: figures.verify({0: 1.0, 2: 1.3}, np.array([[1.0, 1.0], [1.2, 1.4]])),
    "costs": lambda: figures.cost_model([1, 2], ([1.5, 1.75], [1.4, 1.6]), ([1.2, 1.1], [1.3, 0.9])),
}


@pytest.mark.parametrize("name", FIGURES)
def test_texts_are_legible_and_axes_named(name):
    fig = FIGURES[name]()
    fig.canvas.draw()
    assert min(text.get_fontsize() for text in fig.findobj(Text) if text.get_text()) >= 9
    for axes in fig.axes:
        assert axes.get_xlabel() and (axes.get_ylabel() or axes.get_title("left"))


def test_overlap_fills_what_both_have():
    heights = [bar.get_height() for bar in FIGURES["overlap"]().axes[0].patches]
    np.testing.assert_allclose(heights, [*Q, *np.minimum(P, Q), *P, *np.minimum(P, Q)])


def test_verify_shows_each_measurement_and_a_step_for_each_token():
    separate, measured, middle = FIGURES["verify"]().axes[0].lines
    assert list(separate.get_ydata()) == [1, 3] and list(middle.get_ydata()) == [1.0, 1.3]
    assert list(zip(*measured.get_data(), strict=True)) == [(0, 1.0), (0, 1.0), (2, 1.2), (2, 1.4)]


def test_kept_fills_where_the_likeliest_agree():
    bars = FIGURES["kept"]().axes[0].patches
    assert [bar.get_height() for bar in bars] == [0.9, 0.3]
    assert [to_hex(bar.get_facecolor()) == figures.KEPT.lower() for bar in bars] == [True, False]


def test_predicted_is_a_line_and_measured_are_dots():
    for axes, (predicted, measured) in zip(
        FIGURES["costs"]().axes, [([1.5, 1.75], [1.4, 1.6]), ([1.2, 1.1], [1.3, 0.9])], strict=True
    ):
        line, dots = axes.lines[:2]
        assert list(line.get_ydata()) == predicted and line.get_marker() in ("None", "")
        assert list(dots.get_ydata()) == measured and dots.get_marker() == "o"
