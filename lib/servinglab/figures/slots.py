"""Figures of notebook 04: who occupies which slot of the batch, and who waits, drawn from the metrics of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from servinglab.figures.style import FAINT, INK, LANES, QUIET, WIDTH, beside, name_rows, tint
from servinglab.notebook import resolve_lane

_READS, _WRITES = 0.25, 0.6  # how much colour a bar has while its prompt is read, and while it generates


class Times(Protocol):
    """What `return_perf_metrics` says about a request: nanoseconds of a clock without a date."""

    arrival_time_ns: int
    first_scheduled_time_ns: int
    first_token_time_ns: int
    last_token_time_ns: int


def assign_slots(metrics: Sequence[Times]) -> list[int]:
    """The slot of each request, from 0: the lowest one that was free when it was first scheduled."""
    slots, free_at = [0] * len(metrics), []
    for number in sorted(range(len(metrics)), key=lambda n: metrics[n].first_scheduled_time_ns):
        start, end = metrics[number].first_scheduled_time_ns, metrics[number].last_token_time_ns
        slot = next((slot for slot, at in enumerate(free_at) if at <= start), len(free_at))
        free_at[slot : slot + 1] = [end]
        slots[number] = slot
    return slots


def idle_share(metrics: Sequence[Times]) -> float:
    """The share of slots x time that nobody used, from the first arrival to the last token."""
    busy = sum(m.last_token_time_ns - m.first_scheduled_time_ns for m in metrics) / 1e9
    return max(0.0, 1 - busy / (_seconds(metrics) * (1 + max(assign_slots(metrics)))))


def slot_timeline(runs: Mapping[str, Sequence[Times]], *, lane: str = "auto") -> Figure:
    """One panel for each run, one row for each slot; a bar is a request, pale while its prompt is read."""
    heights = [0.6 + 0.3 * (1 + max(assign_slots(metrics))) for metrics in runs.values()]
    size = (WIDTH, sum(heights) + 1.0)
    fig, panels = plt.subplots(len(heights), 1, figsize=size, height_ratios=heights, sharex=True, squeeze=False)
    for axes, (name, metrics) in zip(panels.flat, runs.items(), strict=True):
        slots = assign_slots(metrics)
        for number, (slot, one) in enumerate(zip(slots, metrics, strict=True), 1):
            _request(axes, slot, one, _begin(metrics), f"{number}", lane)
        _rows(axes, [f"slot {slot + 1}" for slot in range(max(slots) + 1)])
        axes.set_title(f"{name}: done after {_seconds(metrics):.2f} s")
    axes.set_xlabel("time since the first request arrived (s)")
    axes.set_xlim(0, 1.01 * max(map(_seconds, runs.values())))  # of all panels: they share the axis
    return fig


def request_timeline(metrics: Sequence[Times], *, lane: str = "auto") -> Figure:
    """One row for each request: grey while it waits in the queue, pale while its prompt is read, then generating."""
    fig, axes = plt.subplots(figsize=(WIDTH, 1.6 + 0.3 * len(metrics)))
    begin = _begin(metrics)
    for row, one in enumerate(metrics):
        wait = (one.first_scheduled_time_ns - one.arrival_time_ns) / 1e9
        axes.barh(row, wait, left=(one.arrival_time_ns - begin) / 1e9, height=0.7, color=FAINT)
        _request(axes, row, one, begin, "", lane)
        beside(axes, f"waits {1000 * wait:.0f} ms", row)
    _rows(axes, [f"request {number + 1}" for number in range(len(metrics))])
    axes.set_title(f"done after {_seconds(metrics):.2f} s")
    axes.set(xlabel="time since the first request arrived (s)", xlim=(0, None))
    return fig


def pending_curves(curves: Mapping[str, Sequence[tuple[float, float]]], *, lane: str = "auto") -> Figure:
    """Requests that wait in a model's queue over time; ``curves``: name → (seconds, requests), ascending."""
    fig, axes = plt.subplots(figsize=(WIDTH, 3.3))
    lines = (LANES[resolve_lane(lane)], INK, QUIET)
    for (name, points), colour, dashes in zip(curves.items(), lines, ("-", "--", ":"), strict=False):
        axes.step(*zip(*points, strict=True), where="post", color=colour, linestyle=dashes, linewidth=1.8, label=name)
    axes.set(xlabel="time since the first request was sent (s)", ylabel="requests in the queue", ylim=(0, None))
    axes.legend()
    return fig


def _begin(metrics: Sequence[Times]) -> int:
    return min(one.arrival_time_ns for one in metrics)


def _seconds(metrics: Sequence[Times]) -> float:
    return (max(one.last_token_time_ns for one in metrics) - _begin(metrics)) / 1e9


def _request(axes: Axes, row: int, one: Times, begin: int, label: str, lane: str) -> None:
    times = one.first_scheduled_time_ns, one.first_token_time_ns, one.last_token_time_ns
    start, first, last = ((at - begin) / 1e9 for at in times)
    colour = LANES[resolve_lane(lane)]
    for left, right, share in ((start, first, _READS), (first, last, _WRITES)):
        axes.barh(row, right - left, left=left, height=0.7, color=tint(colour, share), edgecolor=colour, linewidth=0.6)
    axes.text((start + last) / 2, row, label, ha="center", va="center", fontsize=9, clip_on=True)


def _rows(axes: Axes, names: Sequence[str]) -> None:
    name_rows(axes, names, above=0.55, below=0.55)
    axes.spines["left"].set_visible(False)
