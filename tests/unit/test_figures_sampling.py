"""The figures of notebook 07 show the numbers they are given."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest

from servinglab.figures import sampling as figures

TOKENS = {2: "two", 0: "zero"}
P = np.array([0.3, 0.2, 0.4, 0.1])
CUT = np.array([0.0, 0.0, 1.0, 0.0])


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def words(axes):
    return [text.get_text() for text in axes.texts]


def test_microscope_says_what_each_step_cut():
    first, second = figures.microscope([("model", "model", P), ("top-k 1", "top_k", CUT)], TOKENS).axes
    assert words(first) == ["40 %", "30 %", "30 %"]  # two, zero, the others together
    assert sorted(words(second)) == sorted(["100 %", "cut", "cut", "1\ntoken\nleft"])
    hatched = [bar for bar in second.patches if bar.get_hatch()]
    assert [bar.get_width() for bar in hatched] == pytest.approx([0.3, 0.3]), "what was cut, as large as it was"


def test_alternatives_share_one_beginning():
    steps = [("model", "model", P), ("a", "penalty", CUT), ("b", "penalty", P)]
    last = figures.microscope(steps, TOKENS, previous=P).axes[-1]
    assert "cut" not in words(last) and not any(bar.get_hatch() for bar in last.patches)


def test_temperature_is_across_and_every_text_is_a_dot():
    measured = {"k 5": {0.5: (0.6, [-1.0, -2.0]), 1.5: (0.9, [-3.0, -5.0])}}
    left, right = figures.diversity_quality(measured, ("loop", -0.5)).axes
    assert left.lines[0].get_xydata() == pytest.approx(np.array([[0.5, 0.6], [1.5, 0.9]]))
    reference, mean, *dots = right.lines
    assert mean.get_xydata() == pytest.approx(np.array([[0.5, -1.5], [1.5, -4.0]]))
    assert [line.get_ydata().tolist() for line in dots] == [[-1.0, -2.0], [-3.0, -5.0]]
    assert reference.get_ydata()[0] == -0.5 and words(right) == ["loop"]


def test_pass_grid_ends_with_the_mean():
    axes = figures.pass_grid({"add": {"greedy": 1.0, "hot": 0.0}, "copy": {"greedy": 1.0, "hot": 0.5}}).axes[0]
    assert words(axes) == ["100 %", "0 %", "100 %", "50 %", "100 %", "25 %"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["add", "copy", "mean"]
