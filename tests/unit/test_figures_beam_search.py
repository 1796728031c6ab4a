"""The figures of notebook 09 show the numbers they are given: who was kept, who wins when, how strategies differ."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from plots import beam_search as figures
from servinglab import decoding
from servinglab.figures import style

mpl.use("Agg")
pytestmark = pytest.mark.usefixtures("course_style")

FIRST, SECOND = [0.5, 0.4, 0.1], {0: [0.4, 0.35, 0.25], 1: [0.9, 0.1, 0.0], 2: [0.0, 0.8, 0.2]}
SHORT, LONG = (-6.0, 6), (-12.0, 24)  # equal scores where 4**p = 2, at p = 0.5
PANELS = {"a (x)": {"greedy": [1, 3], "beam 2": [4, 5]}, "b (y)": {"greedy": [-2.0], "beam 2": [-1.0]}}
COLOURS = {"greedy": "#222222", "beam 2": "#CC79A7"}


def toy(width):
    with np.errstate(divide="ignore"):
        return decoding.beam_search(
            lambda paths: np.log([SECOND[path[0]] if path else FIRST for path in paths]), [], width=width, max_tokens=2
        )


FIGURES = {
    "tree": lambda: figures.tree(toy(2), lambda node: str(node.id), root="0"),
    "penalty": lambda: figures.penalty(SHORT, LONG),
    "strategies": lambda: figures.strategies(PANELS, COLOURS),
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
    heights = {int(text.get_text()): text.get_position()[1] for text in fig.axes[0].texts}
    assert len(set(heights[node.id] for node in toy(2).tree if node.depth == 2)) == 4, "no leaf covers another one"


def test_a_path_that_was_pruned_can_be_marked():
    """Width 1 looks at the second beginning and prunes it: faint, but black as the path in question."""
    fig = figures.tree(toy(1), lambda node: str(node.id), root="0", best=[1, 0])
    assert boxes(fig, toy(1)) == ([(), (0,), (0, 0)], [(), (1,)])


def test_the_line_of_a_penalty_passes_1_where_both_scores_are_equal():
    line = FIGURES["penalty"]().axes[0].lines[0]
    p = np.asarray(line.get_xdata())
    np.testing.assert_allclose(line.get_ydata(), (SHORT[0] / SHORT[1] ** p) / (LONG[0] / LONG[1] ** p))
    assert line.get_ydata()[list(p).index(0.5)] == pytest.approx(1)
    assert [text.get_text() for text in FIGURES["penalty"]().axes[0].texts] == [
        "above: 24 tokens win",
        "below: 6 tokens win",
    ]


def test_strategies_have_a_dot_a_value_and_a_mark_at_their_mean():
    first, second = FIGURES["strategies"]().axes
    drawn = [(list(line.get_xdata()), line.get_marker()) for line in first.lines]
    assert drawn == [([1, 3], "o"), ([2], "|"), ([4, 5], "o"), ([4.5], "|")]
    assert [label.get_text() for label in first.get_yticklabels()] == list(COLOURS)
    assert first.get_xlim()[0] == 0 and second.get_xlim()[0] < -2 and second.get_xlim()[1] == 0, "0 is in both"
    assert not any(line.get_clip_on() for line in first.lines), "a dot at the edge is not cut in half"


def test_counts_are_bars_in_front_of_all_that_could_be_right():
    copied, spaced = figures.counts(
        {"copy": (8, {"greedy": 8}), "space": (24, {"greedy": 10, "beam 2": 12})}, COLOURS
    ).axes
    assert [bar.get_width() for bar in copied.patches] == [8, 8]
    assert [bar.get_width() for bar in spaced.patches] == [24, 24, 10, 12] and spaced.get_xlim() == (0, 24)
    assert [text.get_text() for text in spaced.texts] == ["10", "12"] and "24" in spaced.get_title(loc="left")
    assert [label.get_text() for label in spaced.get_yticklabels()] == ["greedy", "beam 2"]
