"""Figures of notebook 06: they draw the numbers they are given, with units, in text that can be read."""

from __future__ import annotations

import math

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import scipy.special
import scipy.stats
from matplotlib.text import Text

from servinglab.figures import sampling as figures

mpl.use("Agg")
pytestmark = pytest.mark.usefixtures("course_style")

LOGITS = np.linspace(14, -14, 2000)
GRID = np.geomspace(0.1, 20, 60)


def bars_figure():
    fig, axes = plt.subplots()
    figures.token_bars(axes, ["' a'", "' b'"], [0.5, 0.2])
    return fig


def entropy_figure():
    curve = [scipy.stats.entropy(scipy.special.softmax(LOGITS / t)) for t in GRID]
    return figures.entropy_curves(GRID, {"flat": curve, "sure": np.multiply(curve, 0.5)}, LOGITS.size)


def samples_figure():
    hypotheses = {"right": [0.6, 0.4], "wrong": [0.2, 0.8]}
    return figures.samples_against_exact(["' a'", "others"], {"T = 1": (hypotheses, [15, 133])})


FIGURES = {
    "bars": bars_figure,
    "curves": lambda: figures.probability_curves(GRID, LOGITS, [1, 10, 1000]),
    "entropy": entropy_figure,
    "samples": samples_figure,
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_text_is_legible_and_every_axis_named(name):
    fig = FIGURES[name]()
    fig.canvas.draw()
    assert all(text.get_fontsize() >= 9 for text in fig.findobj(Text) if text.get_text())
    assert all(axes.get_xlabel() for axes in fig.axes)


def test_bars_show_the_tokens_and_the_remainder():
    axes = bars_figure().axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0.5, 0.2, 0.3])
    assert [text.get_text() for text in axes.texts] == ["50 %", "20 %", "30 %"]


@pytest.mark.parametrize("share, text", [(0, "0.0 %"), (0.0004, "< 0.1 %"), (0.0123, "1.2 %"), (0.1, "10 %")])
def test_percent(share, text):
    assert figures.percent(share) == text


def test_curves_are_the_softmax_by_rank():
    shuffled = np.random.default_rng(0).permutation(LOGITS)
    lines = [line for line in FIGURES["curves"]().axes[0].lines if len(line.get_xdata()) == GRID.size]
    again = figures.probability_curves(GRID, shuffled, [1, 10, 1000]).axes[0].lines
    for rank, line in zip([1, 10, 1000], lines, strict=True):
        z = LOGITS / 0.1
        assert line.get_ydata()[0] == pytest.approx(np.exp(z[rank - 1] - z.max()) / np.exp(z - z.max()).sum())
    assert all(any(np.allclose(a.get_ydata(), b.get_ydata()) for b in again if len(b.get_ydata()) > 2) for a in lines)


def test_curves_name_their_ranks_and_the_limit():
    words = {text.get_text() for text in FIGURES["curves"]().axes[0].texts}
    assert words == {"rank 1", "rank 10", "rank 1,000", "1/2,000:\nall equal"}


def test_entropy_is_below_its_ceiling_and_bits_are_nats_by_ln_2():
    fig = entropy_figure()
    fig.canvas.draw()
    axes, bits = fig.axes[0], fig.axes[0].child_axes[0]
    assert max(line.get_ydata().max() for line in axes.lines[2:]) < math.log(LOGITS.size) < axes.get_ylim()[1]
    assert bits.get_ylim()[1] == pytest.approx(axes.get_ylim()[1] / math.log(2))


def test_samples_stand_at_their_share_inside_wilsons_interval():
    """Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I, method 3: 15 of 148."""
    axes = samples_figure().axes[0]
    assert [bar.get_width() for bar in axes.patches] == [0.6, 0.4, 0.2, 0.8]
    assert axes.lines[0].get_xdata().tolist() == pytest.approx([15 / 148, 133 / 148])
    (segment, _) = axes.collections[0].get_segments()
    assert segment[:, 0] == pytest.approx([0.0624, 0.1605], abs=6e-5)
