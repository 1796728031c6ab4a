"""Figures of notebook 12: which API has a name for what, who samples, what comes back, and what gets lost."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from servinglab.figures.style import CARD, FAINT, INK, LANES, MODELS, STRATEGIES, WIDTH, box, note, sheet, table, tint

KINDS = {"same name as in the LLM API": tint(LANES["embedded"], 0.75), "another name": tint(MODELS["ensemble"], 0.8),
         "no name": CARD}  # fmt: skip


def names(kinds: Mapping[str, Sequence[int]], apis: Sequence[str]) -> Figure:
    """One row a parameter, one column an API, in two halves beside each other; kinds: parameter → place in KINDS."""
    half = -(-len(kinds) // 2)
    fig, panels = plt.subplots(1, 2, figsize=(WIDTH, 1.5 + 0.21 * half))
    for axes, part in zip(panels, (list(kinds.items())[:half], list(kinds.items())[half:]), strict=True):
        cells = np.array([values for _, values in part])
        axes.pcolormesh(cells, cmap=ListedColormap(list(KINDS.values())), vmin=0, vmax=2, edgecolor=FAINT, linewidth=1)
        axes.set_yticks(np.arange(len(part)) + 0.5, [parameter for parameter, _ in part])
        axes.set_xticks(np.arange(len(apis)) + 0.5, apis, rotation=40, ha="left", rotation_mode="anchor")
        axes.xaxis.tick_top()
        axes.set(ylim=(half, 0), frame_on=False)
        axes.tick_params(length=0, labelcolor=INK)
    fig.legend(handles=_patches(KINDS), loc="outside lower center", ncols=3)
    return fig


def _patches(colours: Mapping[str, str]) -> list[Patch]:
    return [Patch(facecolor=colour, edgecolor=INK, label=label) for label, colour in colours.items()]


def choices(rule: Mapping[tuple[str, str], str]) -> Figure:
    """(request, API) → "greedy" or "sampling"."""
    requests, apis = (list(dict.fromkeys(names)) for names in zip(*rule, strict=True))
    fig, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.38 * len(requests)))
    colours = {"greedy": FAINT, "sampling": tint(STRATEGIES["temperature"], 0.6)}
    table(axes, requests, apis, {at: (how, colours[how]) for at, how in rule.items()})
    return fig


def answers(texts: Mapping[str, Sequence[str]], question: str) -> Figure:
    """The texts that each kind of request brought back, a line each; a `question` that they repeat is coloured."""
    height = 0.8 + sum(0.34 + 0.22 * len(each) for each in texts.values())
    fig, axes = sheet(height)
    mono = {"family": "monospace", "fontsize": 8}
    ground = {"fc": tint(STRATEGIES["temperature"], 0.5), "ec": "none", "pad": 2}
    axes.text(WIDTH - 0.15, height - 0.58, "your question, repeated", fontsize=9, ha="right", va="center", bbox=ground)
    y = height - 0.58
    for name, each in texts.items():
        axes.text(0.1, y, name, fontsize=9, fontweight="bold", va="center")
        for text in (" ".join(text.split())[:100] for text in each):
            y -= 0.22
            if text.startswith(question):
                first = axes.text(0.2, y, question, va="center", bbox=ground, **mono)
                note(axes, text.removeprefix(question).strip(), 1, 0.5, xycoords=first, **mono)
            else:
                axes.text(0.2, y, text, va="center", **mono)
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
            shown = word if len(word) <= 6 * counts[word] else ""
            box(axes, left, row - 0.42, counts[word], 0.84, shown, list(colours.values())[word != likeliest], edge=CARD)
            left += counts[word]
    axes.set_yticks(rows, [api for _, api in words])
    axes.set(xlim=(0, many), ylim=(rows[-1] + 0.5, -1.3), xlabel=f"{many} answers, one for each seed")
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)
    axes.legend(handles=_patches(colours), loc="upper right", ncols=2, borderaxespad=0)
    return fig


def losses(request: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]], apis: Sequence[str]) -> Figure:
    """What each field of an engine's request is called on each of `apis`; `tables`: API → its parameters."""
    fig, axes = plt.subplots(figsize=(WIDTH, 1.2 + 0.4 * len(request)))
    same, other, none = tint(LANES["embedded"], 0.3), tint(MODELS["ensemble"], 0.6), tint(LANES["trtllm"], 0.45)
    cells = {}
    for parameter, ours in tables["engine"].items():
        for api in apis if ours.name in request else ():
            name = tables[api][parameter].name
            colour = none if name is None else same if name == ours.name else other
            cells[ours.name, api] = ((name or "lost").replace("sampling_param_", "sampling_param_\n"), colour)
    table(axes, list(request), apis, cells)
    legend = _patches({"the engine's name": same, "another name": other, "lost": none})
    fig.legend(handles=legend, loc="outside lower center", ncols=3)
    return fig
