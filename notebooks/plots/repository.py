"""Figures of notebook 03: inputs, five configs side by side, where placeholders are, which fault breaks which rules."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from servinglab.figures.style import FAINT, LANES, MODELS, WIDTH, bars, beside, name_rows, table, tint


def inputs(total: Mapping[str, int], needed: Mapping[str, Sequence[str]]) -> Figure:
    """A bar for each model: the inputs that its config declares, dark those that a request must bring."""
    fig, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.32 * len(total)))
    rows = {name: (len(needed[name]), count - len(needed[name])) for name, count in total.items()}
    colours = {"needed": [MODELS[name] for name in total], "optional": [tint(MODELS[name], 0.3) for name in total]}
    bars(axes, rows, colours, [f"{count}, needs {', '.join(needed[name])}" for name, count in total.items()])
    most = max(total.values())
    axes.set(xlim=(0, 1.7 * most), xticks=range(0, most + 1, 20), xlabel="inputs; dark: a request must bring it")
    return fig


def facts(about: Mapping[tuple[str, str], str]) -> Figure:
    """(model, column) → what its config or its folder says; coloured where there is something."""
    models, columns = (list(dict.fromkeys(key)) for key in zip(*about, strict=True))
    fig, axes = plt.subplots(figsize=(WIDTH, 0.7 + 0.34 * len(models)))
    grey = {"no", "nothing"}
    table(axes, models, columns, {(model, column): (said, FAINT if said in grey else tint(MODELS[model], 0.35))
                                  for (model, column), said in about.items()})  # fmt: skip
    return fig


def placeholders(found: Mapping[str, Sequence[tuple[int, str]]], length: Mapping[str, int]) -> Figure:
    """A row for each template, its lines from left to right: where placeholders are, and of which kind."""
    fig, axes = plt.subplots(figsize=(WIDTH, 1.1 + 0.34 * len(found)))
    for row, (name, holes) in enumerate(found.items()):
        axes.barh(row, length[name], left=0.5, height=0.7, color=tint(FAINT, 0.6))
        for kind, colour in (("quoted", LANES["embedded"]), ("structural", LANES["trtllm"])):
            lines = [line for line, its in holes if its == kind]
            axes.bar(lines, 0.7, 0.8, row - 0.35, color=colour, label=kind if not row else None)
        said = [sum(its == kind for _, its in holes) for kind in ("quoted", "structural")]
        beside(axes, "{} quoted, {} structural".format(*said), row)
    name_rows(axes, list(found))
    axes.set(xlim=(0.5, max(length.values()) + 0.5), xlabel="line of the template")
    axes.spines["left"].set_visible(False)
    axes.legend(loc="upper right", ncols=2)
    return fig


def faults(found: Mapping[str, Sequence[Any]], rules: Sequence[str]) -> Figure:
    """A row for each fault, a column for each rule; a cell is coloured by the model whose file breaks the rule."""
    fig, axes = plt.subplots(figsize=(WIDTH, 1.1 + 0.3 * len(found)))
    seen = {}
    for row, findings in enumerate(found.values()):
        for column in range(len(rules)):
            axes.barh(row, 0.92, left=column - 0.46, height=0.84, color=tint(FAINT, 0.4))
        for each in findings:
            model = Path(each.file).parent.name
            seen[model] = axes.barh(row, 0.92, left=rules.index(each.code) - 0.46, height=0.84,
                                    color=tint(MODELS[model], 0.6))  # fmt: skip
            axes.text(rules.index(each.code), row, f"line {each.line}", ha="center", va="center", fontsize=9)
    name_rows(axes, list(found))
    axes.set(xlim=(-0.5, len(rules) - 0.5), xticks=range(len(rules)), xticklabels=rules)
    axes.tick_params(axis="x", length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    fig.legend(seen.values(), seen, loc="outside lower center", ncols=len(seen), title="a line in the config.pbtxt of")
    return fig
