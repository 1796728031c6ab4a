"""Figures of notebook 12: bytes of a stream, what came back, which words were chosen, where a field gets lost."""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from servinglab.figures.style import (
    BYTES,
    CARD,
    FAINT,
    INK,
    LANES,
    STRATEGIES,
    WIDTH,
    box,
    name_rows,
    note,
    sheet,
    tint,
)

_LOST = LANES["trtllm"]


def wire(streams: Mapping[str, Sequence[tuple[int, str]]]) -> Figure:
    """One row a stream: its events in the order of arrival, as wide as they have bytes, the text's share filled.

    ``streams``: name → (bytes, text) of each event; text is "" where it brings none.
    """
    fig, axes = plt.subplots(figsize=(WIDTH, 1.4 + 0.62 * len(streams)))
    colours = {"text": BYTES["length"], "names and marks around it": tint(BYTES["tag"], 0.35), "no text": FAINT}
    for row, events in enumerate(streams.values()):
        left = 0
        for size, text in events:
            box(axes, left, row - 0.3, size, 0.6, "", list(colours.values())[2 - bool(text)], edge=INK, lw=0.6)
            axes.barh(row, len(text.encode()), 0.6, left=left, color=colours["text"])
            if 14 * len(word := text.strip()) <= size:
                axes.text(left + size / 2, row, word, fontsize=6.5, ha="center", va="center_baseline")
            left += size
        written = sum(len(text.encode()) for _, text in events)
        words = f"{left:,} bytes in {len(events)} events, {left / written:.0f} for each byte of text"
        note(axes, words, 0, row - 0.45, (0, 0))
    name_rows(axes, list(streams), above=0.8)
    axes.set_xlabel("bytes of the answer, in the order of arrival")
    axes.spines["left"].set_visible(False)
    axes.legend(handles=_patches(colours), loc="upper right", borderaxespad=0)
    return fig


def trip(ends: Mapping[str, int], stations: Sequence[str]) -> Figure:
    """A line for each field of a request, through the APIs that it visits; `ends`: field → where it is lost, a place in
    `stations`, or their number when it arrives."""
    fig, axes = plt.subplots(figsize=(WIDTH, 1.1 + 0.3 * len(ends)))
    last = len(stations) - 1
    for row, end in enumerate(ends.values()):
        lost = end <= last
        colour = _LOST if lost else LANES["embedded"]
        axes.plot([0, end - 0.35 if lost else last], [row, row], color=colour, lw=3, solid_capstyle="butt")
        axes.plot(end - 0.35 if lost else last, row, "x" if lost else ">", color=colour, ms=9, mew=2.5)
    for place in range(len(stations)):
        axes.axvline(place, color=FAINT, lw=1, zorder=0)
    name_rows(axes, list(ends))
    axes.set_xticks(range(len(stations)), stations)
    axes.tick_params(axis="x", length=0, labeltop=True, labelbottom=False, labelcolor=INK)
    axes.set_xlim(-0.1, last + 0.2)
    axes.spines[:].set_visible(False)
    return fig


def _patches(colours: Mapping[str, str]) -> list[Patch]:
    return [Patch(facecolor=colour, edgecolor=INK, label=label) for label, colour in colours.items()]


def answers(texts: Mapping[str, Sequence[str]], question: str = "") -> Figure:
    """The texts under each name, two lines of each at most; a `question` that they repeat is coloured."""
    shown = {name: [textwrap.wrap(" ".join(text.split()), 98)[:2] for text in each] for name, each in texts.items()}
    height = 0.8 + sum(0.34 + sum(0.05 + 0.19 * len(lines) for lines in each) for each in shown.values())
    fig, axes = sheet(height)
    mono = {"family": "monospace", "fontsize": 8}
    ground = {"fc": tint(STRATEGIES["temperature"], 0.5), "ec": "none", "pad": 2}
    y = height - 0.58
    if question:
        axes.text(WIDTH - 0.15, y, "your question, repeated", fontsize=9, ha="right", va="center", bbox=ground)
    for name, each in shown.items():
        axes.text(0.1, y, name, fontsize=9, fontweight="bold", va="center")
        for line in (line for lines in each for line in ["", *lines]):
            y -= 0.19 if line else 0.05
            if question and line.startswith(question):
                first = axes.text(0.2, y, question, va="center", bbox=ground, **mono)
                note(axes, line.removeprefix(question).strip(), 1, 0.5, xycoords=first, **mono)
            else:
                axes.text(0.2, y, line, va="center", **mono)
        y -= 0.34
    return fig


def next_words(words: Mapping[tuple[str, str], Sequence[str]], likeliest: str) -> Figure:
    """(request, one of two APIs) → the words it chose, one a seed: a bar each, in one piece where it is always one."""
    many = max(map(len, words.values()))
    fig, axes = plt.subplots(figsize=(WIDTH, 1.3 + 0.36 * len(words)))
    colours = {"the likeliest word": FAINT, "another word": tint(STRATEGIES["temperature"], 0.6)}
    rows = [place + 0.9 * (place // 2) for place in range(len(words))]  # room for the request above its two bars
    for row, place, ((request, _), drawn) in zip(rows, range(len(words)), words.items(), strict=True):
        if place % 2 == 0:
            axes.text(0, row - 0.8, request, fontweight="bold", fontsize=9, va="center")
        left, counts = 0, Counter(drawn)
        for word in sorted(counts, key=lambda word: (word != likeliest, -counts[word])):
            shown = word if len(word) <= 72 * counts[word] / many else ""
            box(axes, left, row - 0.42, counts[word], 0.84, shown, list(colours.values())[word != likeliest], edge=CARD)
            left += counts[word]
    axes.set_yticks(rows, [api for _, api in words])
    axes.set(xlim=(0, many), ylim=(rows[-1] + 0.5, -1.3), xlabel=f"{many} answers, one for each seed")
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)
    axes.legend(handles=_patches(colours), loc="upper right", ncols=2, borderaxespad=0)
    return fig
