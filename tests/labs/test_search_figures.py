"""Figures of notebook 15 show the numbers they were given."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

from cliplab import gallery

matplotlib.use("Agg")


def point(index, vectors, effort, recall, ms):
    values = {"index": index, "vectors": vectors, "effort": effort, "recall_at_10": recall, "p50_ms": ms}
    return {**values, "build_s": vectors / 100}


POINTS = [
    point("flat", 10, 0, 1.0, 5.0), point("flat", 100, 0, 1.0, 50.0),
    point("hnsw", 10, 20, 0.99, 2.0), point("hnsw", 10, 10, 0.90, 1.0), point("hnsw", 10, 40, 1.0, 4.0),
    point("ivf", 100, 1, 0.5, 0.1),
]  # fmt: skip


def test_the_fastest_setting_with_enough_recall_is_taken():
    chosen = gallery.at_recall(POINTS, 0.95)
    assert [(p["index"], p["vectors"], p["p50_ms"]) for p in chosen] == [
        ("flat", 10, 5.0), ("hnsw", 10, 2.0), ("flat", 100, 50.0),
    ]  # fmt: skip


def test_growth_draws_time_of_a_query_and_of_building():
    time, build = gallery.growth(POINTS).axes
    assert list(time.lines[0].get_xdata()) == [10, 100] and list(time.lines[0].get_ydata()) == [5.0, 50.0]
    assert list(build.lines[0].get_ydata()) == [0.1, 1.0]
    assert list(time.lines[2].get_xdata()) == []  # IVF never finds enough here


def test_two_groups_are_shown_in_percent_of_each():
    groups = {"captions": np.array([0.2, 0.9, 0.9, 0.8]), "unrelated": np.array([0.1, 0.3])}
    fig = gallery.two_groups(groups, 0.3)
    (axes,) = fig.axes
    heights = [sum(bar.get_height() for bar in group) for group in axes.containers]
    assert heights == pytest.approx([100, 100])
    assert list(axes.lines[0].get_xdata()) == [0.3, 0.3]
