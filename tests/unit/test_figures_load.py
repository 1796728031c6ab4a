"""The figures of notebook 11 show the numbers they are given."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.text import Text

from plots import load as figures
from servinglab.loadtest import Run, Trace

mpl.use("Agg")
pytestmark = pytest.mark.usefixtures("course_style")


def run(first, pace, **load):
    """Three requests a second apart, four tokens each; `first` seconds to the first, then `pace` a token."""
    traces = [Trace(due, due, tuple(due + first + pace * n for n in range(4)), 4) for due in (0.0, 1.0, 2.0)]
    failed = Trace(2.5, 2.5)
    return Run((*traces, failed), 2 + first + 3 * pace, load)


CLOSED = {1: run(0.1, 0.02), 2: run(0.3, 0.04)}
OPEN = [run(0.1, 0.02, rate=1.0), run(0.7, 0.02, rate=2.0)]
FIGURES = {
    "request": lambda: figures.request([(0.2, "A"), (0.25, " fox"), (0.4, ".")], lane="embedded"),
    "stall": lambda: figures.stall([0, 1, 2], [0.1, 2, 0.1], [0.1, 2, 1.1], lane="embedded"),
    "curves": lambda: figures.curves(CLOSED, lane="embedded"),
    "open loops": lambda: figures.open_loops({"slow": OPEN[0], "fast": OPEN[1]}, lane="embedded"),
    "knee": lambda: figures.knee(OPEN, (0.5, 0.05), lane="embedded"),
}


def dots(axes, marker="o"):
    return [tuple(np.ravel(line.get_xydata())) for line in axes.lines if line.get_marker() == marker]


@pytest.mark.parametrize("name", FIGURES)
def test_texts_are_legible_and_axes_named(name):
    fig = FIGURES[name]()
    fig.canvas.draw()
    assert min(text.get_fontsize() for text in fig.findobj(Text) if text.get_text()) >= 9
    assert all(axes.get_xlabel() for axes in fig.axes) and 7 <= fig.get_figwidth() <= 8


def test_a_request_has_a_mark_for_each_response_and_a_stall_both_clocks():
    (axes,) = FIGURES["request"]().axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([200, 200])
    assert [x for (x, _), _ in axes.collections[0].get_segments()] == pytest.approx([200, 250, 400])
    (axes,) = FIGURES["stall"]().axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.1, 2, 1.1], [0.1, 2, 0.1]]
    assert axes.get_xlim()[0] < 1 < axes.get_xlim()[1]


def test_curves_have_throughput_across_and_median_latency_up():
    left, right = FIGURES["curves"]().axes
    assert dots(left) == [pytest.approx((12 / 2.16, 100)), pytest.approx((12 / 2.42, 300))]
    assert [y for _, y in dots(right)] == pytest.approx([20, 40])


def test_open_loops_show_each_answered_request_in_the_order_they_were_due():
    first, second = FIGURES["open loops"]().axes
    assert dots(first)[0] == pytest.approx((1, 0.1, 2, 0.1, 3, 0.1))
    assert dots(second)[0][1] == pytest.approx(0.7)
    assert first.get_ylim() == second.get_ylim() and first.get_ylim()[1] > 0.7, "no panel cuts off another's waits"


def test_knee_shows_limit_answers_and_goodput():
    left, right = FIGURES["knee"]().axes
    assert dots(left)[0] == pytest.approx((1, 0.1, 2, 0.7)), "the median at each rate"
    asked, answered, good = right.lines
    assert list(answered.get_ydata()) == pytest.approx([3 / 2.16, 3 / 2.76])
    assert list(good.get_ydata()) == pytest.approx([3 / 2.16, 0]), "0.7 s is beyond the limit"
    assert list(asked.get_ydata()) == [1, 2]
