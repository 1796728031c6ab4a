"""The way of one request through Triton's models, drawn without data (notebooks 00 and 03), and which are loaded."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from servinglab.figures.style import CARD, DASHES, FAINT, INK, MODELS, QUIET, WIDTH, name_rows, tint

_STEPS = ("preprocessing", "tensorrt_llm", "postprocessing")


def draw(route: str = "ensemble", *, prefix: str = "") -> Figure:
    """The way of one request: ``route`` is "ensemble" or "bls"; ``prefix`` starts every model name."""
    height = {"ensemble": 2.7, "bls": 3.15}[route]  # inches, and so are all places; 0.45 on top are left to the title
    fig = plt.figure(figsize=(WIDTH, height))
    axes = fig.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, height))
    axes.axis("off")
    (_ensemble if route == "ensemble" else _bls)(axes, prefix)
    return fig


def states(moments: Mapping[str, Mapping[str, str]]) -> Figure:
    """What Triton says of each model (a row) at each moment (a column): {moment: {model: "READY" or another word}}."""
    models = list(next(iter(moments.values())))
    fig, axes = plt.subplots(figsize=(WIDTH, 1.0 + 0.34 * len(models)))
    for x, found in enumerate(moments.values()):
        for y, model in enumerate(models):
            colour = tint(MODELS["postprocessing"], 0.35) if found[model] == "READY" else FAINT
            axes.add_patch(Rectangle((x - 0.47, y - 0.42), 0.94, 0.84, fc=colour))
            axes.text(x, y, found[model].lower(), ha="center", va="center", fontsize=9)
    axes.set_xticks(range(len(moments)), moments)
    axes.tick_params(axis="x", length=0, labeltop=True, labelbottom=False)
    axes.set_xlim(-0.5, len(moments) - 0.5)
    axes.spines[["left", "bottom"]].set_visible(False)
    name_rows(axes, models)
    return fig


def _ensemble(axes: Axes, prefix: str) -> None:
    _box(axes, 0.1, 0.85, 0.8, 0.7, "client", QUIET)
    _frame(axes, 1.85, 0.3, 5.55, 1.95, "Triton")
    _frame(axes, 2.0, 0.4, 5.25, 1.6, f"{prefix}ensemble: a fixed pipeline, no code", MODELS["ensemble"])
    for x, step in zip((2.15, 4.1, 6.05), _STEPS, strict=True):
        _box(axes, x, 0.95, 1.05, 0.6, _name(prefix, step), MODELS[step])
    _arrow(axes, (0.9, 1.35), (2.15, 1.35))
    _tensor(axes, 1.38, 1.48, "text_input")
    for x, name in ((3.2, "input_ids"), (5.15, "output_ids")):
        _arrow(axes, (x, 1.25), (x + 0.9, 1.25))
        _tensor(axes, x + 0.43, 1.38, name)
    axes.plot([6.58, 6.58, 0.5, 0.5], [0.95, 0.62, 0.62, 0.7], color=INK, lw=1.1)
    _arrow(axes, (0.5, 0.65), (0.5, 0.85))
    _tensor(axes, 1.38, 0.5, "text_output")


def _bls(axes: Axes, prefix: str) -> None:
    _box(axes, 0.1, 1.75, 0.8, 0.7, "client", QUIET)
    _frame(axes, 1.85, 0.3, 5.55, 2.4, "Triton")
    text = f"{prefix}tensorrt_llm_bls: Python code that calls the others,\n"
    text += "steps 1 and 2 once, step 3 for every token that 2 sends"
    _box(axes, 2.0, 1.85, 5.25, 0.5, text, MODELS["tensorrt_llm_bls"])
    _arrow(axes, (0.9, 2.2), (2.0, 2.2))
    _tensor(axes, 1.38, 2.33, "text_input")
    _arrow(axes, (2.0, 1.98), (0.9, 1.98))
    _tensor(axes, 1.38, 1.85, "text_output")
    calls = (("QUERY", "INPUT_ID"), ("input_ids", "output_ids"), ("TOKENS_BATCH", "OUTPUT"))
    for number, (step, (down, up)) in enumerate(zip(_STEPS, calls, strict=True)):
        middle = 2.7 + 1.85 * number
        _box(axes, middle - 0.6, 0.45, 1.2, 0.6, f"{number + 1}  {_name(prefix, step)}", MODELS[step])
        _arrow(axes, (middle - 0.1, 1.85), (middle - 0.1, 1.05))
        _tensor(axes, middle - 0.16, 1.62, down, ha="right")
        _arrow(axes, (middle + 0.1, 1.05), (middle + 0.1, 1.85))
        _tensor(axes, middle + 0.16, 1.28, up, ha="left")


def _box(axes: Axes, x: float, y: float, width: float, height: float, text: str, colour: str) -> None:
    shape = FancyBboxPatch((x, y), width, height, "round,pad=0,rounding_size=0.06", fc=tint(colour), ec=colour, lw=1.4)
    axes.add_patch(shape)
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9)


def _frame(axes: Axes, x: float, y: float, width: float, height: float, text: str, colour: str = QUIET) -> None:
    fill = CARD if colour == QUIET else tint(colour, 0.2)
    axes.add_patch(Rectangle((x, y), width, height, fc=fill, ec=colour, lw=1.3, ls=DASHES))
    axes.text(x + 0.08, y + height - 0.07, text, va="top", fontsize=9)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    tip = FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=10, color=INK, lw=1.1, shrinkA=0, shrinkB=0)
    axes.add_patch(tip)


def _tensor(axes: Axes, x: float, y: float, name: str, ha: str = "center") -> None:
    axes.text(x, y, name, ha=ha, va="center", fontsize=9, family="monospace")


def _name(prefix: str, model: str) -> str:
    """A long deployment name on two lines, so that it fits its box."""
    return f"{prefix}\n{model}" if prefix else model
