"""Figures of notebook 04: slots are those that were free, bars have the length of the time they stand for."""

from __future__ import annotations

from types import SimpleNamespace

import matplotlib as mpl
import pytest

from plots import slots as slot_figures

mpl.use("Agg")
pytestmark = pytest.mark.usefixtures("course_style")

S = 1_000_000_000


def request(arrival, scheduled, first, last):
    return SimpleNamespace(
        arrival_time_ns=arrival * S, first_scheduled_time_ns=scheduled * S, first_token_time_ns=first * S,
        last_token_time_ns=last * S,
    )  # fmt: skip


# Three arrive at 10 s; the third waits for the end of the first.
THREE = [request(10, 10, 11, 13), request(10, 11, 12, 20), request(10, 13, 14, 16)]


def test_a_request_takes_the_lowest_slot_that_is_free():
    assert slot_figures.assign_slots(THREE) == [0, 1, 0]
    assert slot_figures.assign_slots(THREE[::-1]) == [0, 1, 0]
    assert slot_figures.assign_slots([request(0, 0, 1, 5), request(0, 4, 5, 6), request(0, 5, 6, 7)]) == [0, 1, 0]


def test_idle_share_is_what_the_bars_leave_white():
    assert slot_figures.idle_share(THREE) == pytest.approx(1 - (3 + 9 + 3) / (2 * 10))


def bars(axes):
    """(left, width, row) of those with an edge: requests, not what is grey behind them."""
    drawn = [bar for bar in axes.patches if bar.get_zorder() > 0]
    return {(round(b.get_x(), 6), round(b.get_width(), 6), round(b.get_y() + b.get_height() / 2)) for b in drawn}


def test_a_timeline_draws_reading_and_writing_in_the_slot():
    upper, lower = slot_figures.timeline({"in flight": THREE, "static": THREE[:1]}).axes
    assert bars(upper) == {(0, 1, 0), (1, 2, 0), (1, 1, 1), (2, 8, 1), (3, 1, 0), (4, 2, 0)}
    assert upper.get_title(loc="left") == "in flight: done after 10.00 s"
    assert [label.get_text() for label in lower.get_yticklabels()] == ["slot 1"]


def test_panels_that_share_an_axis_show_every_bar():
    short, long = [request(0, 0, 1, 2)], [request(0, 0, 1, 9)]
    for runs in ({"a": short, "b": long}, {"a": long, "b": short}):
        assert all(axes.get_xlim()[1] >= 9 for axes in slot_figures.timeline(runs).axes)


def test_a_row_for_each_request_begins_with_its_wait():
    (axes,) = slot_figures.timeline({"run": THREE}, by="request").axes
    grey = {
        (b.get_x(), b.get_width(), round(b.get_y() + b.get_height() / 2)) for b in axes.patches if not b.get_zorder()
    }
    assert grey == {(0, 0, 0), (0, 1, 1), (0, 3, 2)} and {(3, 1, 2), (4, 2, 2)} <= bars(axes)
    assert "waits 3000 ms" in [text.get_text() for text in axes.texts]


def test_pending_curves_are_steps_through_the_points():
    (axes,) = slot_figures.pending_curves({"a": [(0, 3), (1, 0)], "b": [(0, 5), (2, 0)]}).axes
    assert [line.get_ydata().tolist() for line in axes.lines] == [[3, 0], [5, 0]]
    assert axes.get_xlabel() and axes.get_ylabel() and len(axes.get_legend().get_texts()) == 2


def test_a_timeline_takes_what_a_client_gets():
    dicts, objects = [vars(each) for each in THREE], THREE
    assert bars(slot_figures.timeline({"run": dicts}).axes[0]) == bars(slot_figures.timeline({"run": objects}).axes[0])


def test_clocks_stand_at_their_numbers_on_a_log_axis():
    (axes,) = slot_figures.clocks({"preprocessing": 0.5, "the answer": 400.0}).axes
    assert [line.get_xdata()[0] for line in axes.lines] == [0.5, 400] and axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.texts] == ["0.5", "400"]
    assert axes.get_xlim()[0] < 0.5 and axes.get_xlim()[1] > 400


def test_first_tokens_are_bars_with_the_blocks_that_were_reused():
    (axes,) = slot_figures.first_tokens({"first": (600, 0), "second": (150, 5)}).axes
    assert [bar.get_width() for bar in axes.patches] == [600, 150] and axes.get_xlim()[1] > 600
    assert [text.get_text() for text in axes.texts] == ["0 blocks reused", "5 blocks reused"]
    assert axes.patches[0].get_facecolor() != axes.patches[1].get_facecolor()
