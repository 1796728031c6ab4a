"""The way of one request through Triton's models, drawn without data (notebooks 00 and 03), and which are loaded."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from servinglab.figures.style import FAINT, MODELS, QUIET, WIDTH, drawing, table, tint
from servinglab.root import data


def draw(route: str = "ensemble", *, prefix: str = "") -> Figure:
    """The way of one request: ``route`` is "ensemble" or "bls"; ``prefix`` starts every model name."""

    def named(words: str) -> str:  # a long deployment name gets a line of its own, so that it fits its box
        return words.replace("{prefix}\n", f"{prefix}\n" if prefix else "").replace("{prefix}", prefix)

    return drawing(data("drawings.toml")[route], {**MODELS, "client": QUIET}, named)


def states(moments: Mapping[str, Mapping[str, str]]) -> Figure:
    """What Triton says of each model (a row) at each moment (a column): {moment: {model: "READY" or another word}}."""
    models, ready = list(next(iter(moments.values()))), {"READY": tint(MODELS["postprocessing"], 0.35)}
    said = {(model, moment): word for moment, found in moments.items() for model, word in found.items()}
    fig, axes = plt.subplots(figsize=(WIDTH, 1.0 + 0.34 * len(models)))
    table(axes, models, list(moments), {at: (word.lower(), ready.get(word, FAINT)) for at, word in said.items()})
    axes.tick_params(axis="x", labelcolor=QUIET)
    return fig
