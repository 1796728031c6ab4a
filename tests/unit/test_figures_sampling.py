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


def test_pass_grid_ends_with_the_interval_of_all():
    passed = {"add": {"greedy": (1, 1), "hot": (0, 5)}, "copy": {"greedy": (1, 1), "hot": (1, 5)}}
    axes = figures.pass_grid(passed).axes[0]
    # Wilson's bounds for 2 of 2 and 1 of 10, from his formula
    assert words(axes) == ["1 of 1", "0 of 5", "1 of 1", "1 of 5", "34 to 100 %", "2 to 40 %"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["add", "copy", "share, 95 %"]
