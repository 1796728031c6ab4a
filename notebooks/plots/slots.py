"""Figures of notebook 04: who occupies which slot of the batch, and who waits, drawn from the metrics of requests.
The metrics of a request are what `return_perf_metrics` says, its times nanoseconds of a clock without a date.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from servinglab.figures.style import FAINT, INK, LANES, MODELS, QUIET, WIDTH, bars, name_rows, note, tint
from servinglab.lane import resolve_lane


def assign_slots(metrics: Sequence[Any]) -> list[int]:
    """The slot of each request, from 0: the lowest one that was free when it was first scheduled."""
    slots, free_at = [0] * len(metrics), []
    for number in sorted(range(len(metrics)), key=lambda n: metrics[n].first_scheduled_time_ns):
        start, end = metrics[number].first_scheduled_time_ns, metrics[number].last_token_time_ns
        slot = next((slot for slot, at in enumerate(free_at) if at <= start), len(free_at))
        free_at[slot : slot + 1] = [end]
        slots[number] = slot
    return slots


def idle_share(metrics: Sequence[Any]) -> float:
    """The share of slots x time that nobody used, from the first arrival to the last token."""
    busy = sum(m.last_token_time_ns - m.first_scheduled_time_ns for m in metrics) / 1e9
    return max(0.0, 1 - busy / (seconds(metrics) * (1 + max(assign_slots(metrics)))))


def timeline(runs: Mapping[str, Sequence[Any]], *, by: str = "slot") -> Figure:
    """One panel for each run, one row for each slot, or for each "request"; a bar is a request, pale while its prompt
    is read. Grey is the time that a slot was empty, or that a request waited. Metrics may be objects or dicts."""
    as_object = lambda one: SimpleNamespace(**one) if isinstance(one, Mapping) else one  # noqa: E731
    runs = {name: list(map(as_object, run)) for name, run in runs.items()}
    rows = {name: assign_slots(run) if by == "slot" else list(range(len(run))) for name, run in runs.items()}
    heights = [0.6 + 0.3 * (1 + max(slots)) for slots in rows.values()]
    size, colour = (WIDTH, sum(heights) + 1.0), LANES[resolve_lane()]
    longest = max(map(seconds, runs.values()))
    fig, panels = plt.subplots(len(heights), 1, figsize=size, height_ratios=heights, sharex=True, squeeze=False)
    for axes, (name, metrics) in zip(panels.flat, runs.items(), strict=True):
        for number, (row, one) in enumerate(zip(rows[name], metrics, strict=True), 1):
            times = (one.arrival_time_ns, one.first_scheduled_time_ns, one.first_token_time_ns, one.last_token_time_ns)
            zero = min(each.arrival_time_ns for each in metrics)
            arrival, begin, first, last = ((at - zero) / 1e9 for at in times)
            grey = (0, seconds(metrics)) if by == "slot" else (arrival, begin)
            axes.barh(row, grey[1] - grey[0], left=grey[0], height=0.7, color=FAINT, zorder=0)
            for left, right, share in ((begin, first, 0.25), (first, last, 0.6)):
                look = {"color": tint(colour, share), "edgecolor": colour, "linewidth": 0.6}
                axes.barh(row, right - left, left=left, height=0.7, **look)
            label, start, end = f"{number}", begin, last
            if by == "request":
                label, start, end = f"waits {1000 * (begin - arrival):.0f} ms", arrival, begin
            if end - start > 0.013 * len(label) * longest:  # else it would hide its neighbours
                axes.text((start + end) / 2, row, label, ha="center", va="center", fontsize=9, clip_on=True)
        name_rows(axes, [f"{by} {n + 1}" for n in range(max(rows[name]) + 1)], above=0.55, below=0.55)
        axes.spines["left"].set_visible(False)
        axes.set_title(f"{name}: done after {seconds(metrics):.2f} s", fontsize=11)
    axes.set(xlabel="time since the first request arrived (s)", xlim=(0, 1.01 * longest))
    return fig


def pending_curves(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Requests that wait in a model's queue over time; ``curves``: name → (seconds, requests), ascending."""
    fig, axes = plt.subplots(figsize=(WIDTH, 3.3))
    looks = ((LANES[resolve_lane()], "-"), (INK, "--"), (QUIET, ":"))
    for (name, points), (colour, dashes) in zip(curves.items(), looks, strict=False):
        axes.step(*zip(*points, strict=True), where="post", color=colour, linestyle=dashes, linewidth=1.8, label=name)
    axes.set(xlabel="time since the first request was sent (s)", ylabel="requests in the queue", ylim=(0, None))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper right")
    return fig


def first_tokens(found: Mapping[str, tuple[float, int]]) -> Figure:
    """A bar for each question's time to first token; ``found``: name → (ms, blocks of the KV cache reused)."""
    fig, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.38 * len(found)))
    colours = {"first token": [tint(LANES[resolve_lane()], 0.4 if reused else 0.9) for _, reused in found.values()]}
    rows = {name: (ms,) for name, (ms, _) in found.items()}
    bars(axes, rows, colours, [f"{reused} blocks reused" for _, reused in found.values()])
    axes.set(xlabel="time to first token (ms)", xlim=(0, 1.25 * max(ms for ms, _ in found.values())))
    return fig


def clocks(spent: Mapping[str, float]) -> Figure:
    """Milliseconds of an answer on a log axis: by Triton's clock of a model, or by another one."""
    fig, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.38 * len(spent)))
    for row, (name, ms) in enumerate(spent.items()):
        axes.plot(ms, row, "o", color=MODELS.get(name, INK), markersize=9)
        note(axes, f"{ms:.1f}" if ms < 100 else f"{ms:.0f}", ms, row, (9, 0))
    name_rows(axes, list(spent))
    axes.grid(axis="y", color=FAINT)
    axes.set(xscale="log", xlabel="mean time of an answer (ms, log scale)")
    axes.set_xlim(min(0.1, *spent.values()) / 2, 3 * max(spent.values()))
    axes.xaxis.set_major_formatter("{x:g}")
    return fig


def seconds(metrics: Sequence[Any]) -> float:
    """From the first arrival to the last token."""
    start = min(one.arrival_time_ns for one in metrics)
    return (max(one.last_token_time_ns for one in metrics) - start) / 1e9
