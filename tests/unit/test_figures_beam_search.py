"""The figures of notebook 09 show the numbers they are given: who was kept, who wins when, and how sure that is."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from servinglab import decoding
from servinglab.figures import beam_search as figures
from servinglab.figures import style

mpl.use("Agg")
pytestmark = pytest.mark.usefixtures("course_style")

FIRST, SECOND = [0.5, 0.4, 0.1], {0: [0.4, 0.35, 0.25], 1: [0.9, 0.1, 0.0], 2: [0.0, 0.8, 0.2]}
ANSWERS = {"short": (-6.0, 6), "long": (-12.0, 24)}  # equal scores where 4**p = 2, at p = 0.5
ROWS = {"greedy": {"a (x)": [1, 3], "b (y)": [2.0]}, "beam 2": {"a (x)": [4, 5], "b (y)": []}}
PANELS = {"copy": {"greedy": (8, 8), "beam": (3, 8)}}
COLOURS = {"greedy": "#222222", "beam": "#CC79A7", "beam 2": "#CC79A7"}


def toy(width):
    with np.errstate(divide="ignore"):
        return decoding.beam_search(
            lambda paths: np.log([SECOND[path[0]] if path else FIRST for path in paths]), [], width=width, max_tokens=2
        )


FIGURES = {
    "tree": lambda: figures.tree(toy(2), lambda node: str(node.id), root="0"),
    "penalty": lambda: figures.penalty_lines(np.linspace(0, 2, 21), ANSWERS, 0.5),
    "strategies": lambda: figures.strategies(ROWS, COLOURS),
    "answers": lambda: figures.right_answers(PANELS, COLOURS),
}


@pytest.mark.parametrize("name", FIGURES)
def test_texts_are_legible_and_axes_named(name):
    fig = FIGURES[name]()
    fig.canvas.draw()
    assert min(text.get_fontsize() for text in fig.findobj(Text) if text.get_text()) >= 9
    assert all(axes.get_xlabel() for axes in fig.axes if name != "tree")
    assert 7 <= fig.get_figwidth() <= 8


def boxes(fig, marked):
    """The paths of filled boxes, and of those with a black edge; `marked` is the search that was drawn."""
    patches = {int(text.get_text()): text.get_bbox_patch() for text in fig.axes[0].texts}
    assert sorted(patches) == [node.id for node in marked.tree], "a box for each node"
    filled = [tuple(marked.path(id)) for id, box in patches.items() if to_hex(box.get_facecolor()) != "#ffffff"]
    black = [tuple(marked.path(id)) for id, box in patches.items() if to_hex(box.get_edgecolor()) == "#222222"]
    return sorted(filled), sorted(black)


def test_a_tree_shows_what_was_kept_and_who_won():
    """Width 2: both best beginnings live; 0.4 * 0.9 = 0.36 wins, 0.5 * 0.4 = 0.20 is second."""
    fig = FIGURES["tree"]()
    assert boxes(fig, toy(2)) == ([(), (0,), (0, 0), (1,), (1, 0)], [(), (1,), (1, 0)])
    assert [line.get_color() for line in fig.axes[0].lines].count(style.INK) == 2, "the edges of the winner's path"


def test_a_path_that_was_pruned_can_be_marked():
    """Width 1 looks at the second beginning and prunes it: faint, but black as the path in question."""
    fig = figures.tree(toy(1), lambda node: str(node.id), root="0", best=[1, 0])
    assert boxes(fig, toy(1)) == ([(), (0,), (0, 0)], [(), (1,)])


def test_penalty_lines_are_scores_that_cross_where_the_title_says():
    short, long, mark = FIGURES["penalty"]().axes[0].lines
    for line, (log_prob, length) in zip((short, long), ANSWERS.values(), strict=True):
        np.testing.assert_allclose(line.get_ydata(), log_prob / length ** np.asarray(line.get_xdata()))
    at = list(short.get_xdata()).index(0.5)
    assert short.get_ydata()[at] == pytest.approx(long.get_ydata()[at])
    assert short.get_ydata()[0] > long.get_ydata()[0] and short.get_ydata()[-1] < long.get_ydata()[-1]
    assert set(mark.get_xdata()) == {0.5} and "0.50" in [text.get_text() for text in FIGURES["penalty"]().axes[0].texts]


def test_strategies_have_a_dot_a_value_and_their_mean_and_nothing_where_nothing_was_measured():
    first, second = FIGURES["strategies"]().axes
    drawn = [(list(line.get_xdata()), line.get_marker()) for line in first.lines]
    assert drawn[:4] == [([1, 3], "o"), ([2], "|"), ([4, 5], "o"), ([4.5], "|")]
    assert [list(line.get_xdata()) for line in second.lines if line.get_marker() in "o|"] == [[2], [2]]
    assert [label.get_text() for label in first.get_yticklabels()] == list(ROWS)
    assert first.get_xlim()[0] <= 0, "lengths are compared from 0"


def test_right_answers_carry_wilson_intervals_and_whole_dots():
    axes = FIGURES["answers"]().axes[0]
    spans = [bar.get_segments()[0][:, 0] for bar in axes.collections]
    for span, given in zip(spans, PANELS["copy"].values(), strict=True):
        np.testing.assert_allclose(span, 100 * np.array(decoding.wilson_interval(*given)))
    assert [list(line.get_xdata()) for line in axes.lines] == [[100], [37.5]]
    assert not any(line.get_clip_on() for line in axes.lines), "a dot at 100 % is not cut in half"
    assert [text.get_text() for text in axes.texts] == ["8/8", "3/8"]
