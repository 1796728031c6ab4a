"""Figures of notebook 11: latency against throughput, waits of an open loop, the knee."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from servinglab.figures.style import INK, LANES, QUIET, WIDTH, note, tint
from servinglab.loadtest import Run, interval, percentile


def request(log: Sequence[tuple[float, str]], *, lane: str) -> Figure:
    """One streamed answer: a mark for each response (seconds since sending, text), the waits named."""
    fig, axes = plt.subplots(figsize=(WIDTH, 1.7))
    times = [1e3 * seconds for seconds, _ in log]
    axes.barh(0, times[0], height=0.3, color=tint(LANES[lane], 0.25))
    axes.barh(0, times[-1] - times[0], left=times[0], height=0.3, color=tint(LANES[lane], 0.6))
    axes.vlines(times, -0.3, 0.3, color=LANES[lane], linewidth=2)
    for x, words in ((times[0] / 2, "TTFT"), ((times[0] + times[-1]) / 2, f"{len(log) - 1} waits: ITL is their mean")):
        axes.text(x, 0.42, words, ha="center", va="bottom", fontsize=10)
    for x, (_, text), side in ((times[0], log[0], "right"), (times[-1], log[-1], "right")):
        axes.text(x, -0.42, repr(text), ha=side, va="top", fontsize=9, color=QUIET)
    axes.set(xlim=(0, 1.02 * times[-1]), ylim=(-0.9, 0.9), yticks=[], xlabel="time since sending (ms)")
    axes.spines["left"].set_visible(False)
    return fig


def stall(due: Sequence[float], sender: Sequence[float], felt: Sequence[float], *, lane: str) -> Figure:
    """Seconds that each request took, over when it was due: by the sender's clock, and from when it was due."""
    fig, axes = plt.subplots(figsize=(WIDTH, 2.8))
    axes.plot(due, felt, "o", color=LANES[lane], markersize=4, label="from when it was due")
    axes.plot(due, sender, "o", color=INK, markersize=2.5, label="by the sender's clock")
    middle, width = due[int(max(range(len(sender)), key=lambda n: sender[n]))], max(felt)
    axes.set(xlim=(middle - width, middle + 3 * width), ylim=(0, None), xlabel="due (s)", ylabel="took (s)")
    axes.legend()
    return fig


def curves(runs: Mapping[int, Run], *, lane: str) -> Figure:
    """A closed loop: users → run. TTFT and ITL, each against tokens/s; dots are medians, bars 95 % intervals."""
    fig, panels = plt.subplots(1, 2, figsize=(WIDTH, 3.2))
    for axes, name, label in zip(panels, ("ttft", "itl"), ("TTFT (ms)", "ITL (ms per token)"), strict=True):
        speeds = [run.tokens_per_second for run in runs.values()]
        middles = [1e3 * percentile(run.values(name), 50) for run in runs.values()]
        axes.plot(speeds, middles, "-", color=tint(LANES[lane], 0.5), linewidth=1.5, zorder=1)
        for users, run, x, y in zip(runs, runs.values(), speeds, middles, strict=True):
            axes.vlines(x, *(1e3 * end for end in interval(run.values(name))), color=LANES[lane], linewidth=2)
            axes.plot(x, y, "o", color=LANES[lane])
            note(axes, f"{users}", x, y, (7, 5), va="baseline")
        axes.margins(x=0.1)
        axes.set(ylim=(0, None), xlim=(0, None), xlabel="tokens per second, all users together", ylabel=label)
    panels[0].annotate("numbers: users", (0.04, 0.94), xycoords="axes fraction", va="top", fontsize=9, color=QUIET)
    return fig


def open_loops(runs: Mapping[str, Run], *, lane: str) -> Figure:
    """An open loop: label → run, one panel each, all with the same axes. TTFT of each request, in order of due time."""
    fig, panels = plt.subplots(1, len(runs), figsize=(WIDTH, 2.8), sharex=True, sharey=True, squeeze=False)
    for axes, (label, run) in zip(panels[0], runs.items(), strict=True):
        waits = run.values("ttft")
        axes.vlines(range(1, len(waits) + 1), 0, waits, color=tint(LANES[lane], 0.5), linewidth=1.5)
        axes.plot(range(1, len(waits) + 1), waits, "o", color=LANES[lane], markersize=4)
        axes.set(title=label, xlabel="request")
    panels[0][0].set(ylim=(0, None), ylabel="TTFT (s)")  # after all are drawn: the panels share this axis
    return fig


def knee(runs: Sequence[Run], limits: tuple[float, float], *, lane: str) -> Figure:
    """Open loops by rate. Left TTFT (median, p95), right requests/s: asked, answered, and within `limits` (s, s)."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.2))
    rates, colour = [run.load["rate"] for run in runs], LANES[lane]
    for percent, line, shade in ((50, "-", 0.6), (95, "--", 1.0)):
        waits = [percentile(run.values("ttft"), percent) for run in runs]
        left.plot(rates, waits, line, marker="o", color=tint(colour, shade))
        note(left, f"p{percent}", rates[-1], waits[-1])
    left.axhline(limits[0], color=QUIET, linewidth=1, linestyle=":")
    at_the_end = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "baseline"}
    note(left, "limit", 0.98, limits[0], (0, 3), color=QUIET, **at_the_end)
    right.plot(rates, rates, ":", color=QUIET, label="asked")
    right.plot(rates, [run.requests_per_second for run in runs], "o-", color=tint(colour, 0.6), label="answered")
    right.plot(rates, [run.goodput(*limits) for run in runs], "s-", color=colour, label="within both limits")
    right.legend(loc="upper left")
    for axes, label in ((left, "TTFT (s)"), (right, "requests per second")):
        axes.set(xlabel="requests asked for per second", ylabel=label, ylim=(0, None), xlim=(0, None))
    left.margins(x=0.15)
    return fig
