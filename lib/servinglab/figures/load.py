"""Figures of notebook 11: latency against throughput, waits of an open loop, intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from servinglab.figures.style import INK, LANES, QUIET, WIDTH, name_rows, note, tint
from servinglab.loadtest.measures import Run, at, interval, percentile


def curves(runs: Mapping[int, Run], *, lane: str) -> Figure:
    """A closed loop: users → run. TTFT and ITL, each against tokens/s; dots are medians, bars 95 % intervals."""
    fig, panels = plt.subplots(1, 2, figsize=(WIDTH, 3.2))
    for axes, name, label in zip(panels, ("ttft", "itl"), ("TTFT (ms)", "ITL (ms per token)"), strict=True):
        speeds = [run.tokens_per_second for run in runs.values()]
        middles = [1e3 * percentile(run.values(name), 50) for run in runs.values()]
        axes.plot(speeds, middles, "-", color=tint(LANES[lane], 0.5), linewidth=1.5, zorder=1)
        for users, run, x, y in zip(runs, runs.values(), speeds, middles, strict=True):
            low, high = interval(run.values(name))
            axes.plot([x, x], [1e3 * low, 1e3 * high], color=LANES[lane], linewidth=2, zorder=2)
            axes.plot(x, y, "o", color=LANES[lane], zorder=3)
            note(axes, f"{users}", x, y, (7, 5), va="baseline")
        axes.set(ylim=(0, None), xlim=(0, None))
        axes.margins(x=0.1)
        axes.set(xlabel="tokens per second, all users together", ylabel=label)
    panels[0].annotate("numbers: users", (0.04, 0.94), xycoords="axes fraction", va="top", fontsize=9, color=QUIET)
    return fig


def open_loops(runs: Mapping[str, Run], *, lane: str) -> Figure:
    """An open loop: label → run, one panel each. TTFT of each request at the time it was due."""
    fig, panels = plt.subplots(1, len(runs), figsize=(WIDTH, 2.8), sharey=True, squeeze=False)
    for axes, (label, run) in zip(panels[0], runs.items(), strict=True):
        due = [trace.due for trace in run.traces if trace.ok]
        waits = [trace.ttft for trace in run.traces if trace.ok]
        axes.vlines(due, 0, waits, color=tint(LANES[lane], 0.5), linewidth=1.5)
        axes.plot(due, waits, "o", color=LANES[lane], markersize=4)
        axes.set_title(label, fontsize=10)
        axes.set_xlabel("due at (s)")
    panels[0][0].set_ylim(bottom=0)  # after all are drawn: the panels share this axis
    panels[0][0].set_ylabel("TTFT (s)")
    return fig


def sizes(values: Sequence[float], counts: Sequence[int], percents: Sequence[float], *, lane: str) -> Figure:
    """95 % intervals (ms) of percentiles from the first `counts` values (s): a row for each count, a panel for each."""
    fig, panels = plt.subplots(1, len(percents), figsize=(WIDTH, 1.2 + 0.32 * len(counts)), sharex=True, sharey=True)
    for axes, percent in zip(np.atleast_1d(panels), percents, strict=True):
        for row, count in enumerate(counts):
            low, high = interval(values[:count], at(percent))
            axes.hlines(row, 1e3 * low, 1e3 * high, color=tint(LANES[lane], 0.6), linewidth=5)
            axes.plot(1e3 * percentile(values[:count], percent), row, "|", color=INK, markersize=11, markeredgewidth=2)
        name_rows(axes, [f"{count} requests" for count in counts])
        axes.set_title(f"p{percent:g}", fontsize=10)
        axes.set_xlabel("TTFT (ms)")
    axes.set_xlim(left=0)  # of all panels, after all are drawn
    return fig


def knee(runs: Sequence[Run], limits: tuple[float, float], *, lane: str) -> Figure:
    """Open loops by rate. Left TTFT (median, p95), right requests/s: asked, answered, and within `limits` (s, s)."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.2))
    rates = [run.load["rate"] for run in runs]
    colour = LANES[lane]
    for percent, line, shade in ((50, "-", 0.6), (95, "--", 1.0)):
        waits = [percentile(run.values("ttft"), percent) for run in runs]
        left.plot(rates, waits, line, marker="o", color=tint(colour, shade))
        note(left, f"p{percent}", rates[-1], waits[-1])
    left.axhline(limits[0], color=QUIET, linewidth=1, linestyle=":")
    note(left, "limit", 0.02, limits[0], (0, 3), xycoords=("axes fraction", "data"), color=QUIET, va="baseline")
    left.set_ylabel("TTFT (s)")
    right.plot(rates, rates, ":", color=QUIET, label="asked")
    right.plot(rates, [run.requests_per_second for run in runs], "o-", color=tint(colour, 0.6), label="answered")
    right.plot(rates, [run.goodput(*limits) for run in runs], "s-", color=colour, label="within both limits")
    right.set_ylabel("requests per second")
    right.legend(loc="upper left")
    for axes in (left, right):
        axes.set(xlabel="requests asked for per second", ylim=(0, None), xlim=(0, None))
    left.margins(x=0.15)
    return fig
