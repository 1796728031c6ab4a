"""Figure of notebook 03: which fault breaks which rules of lint."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from servinglab.figures.style import FAINT, MODELS, WIDTH, name_rows, tint


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
