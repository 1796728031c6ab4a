"""Figures of notebook 14: the ensemble drawn, and the time of its steps beside its own."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from servinglab.figures.style import CARD, DASHES, INK, MODELS, QUIET, WIDTH, name_rows, note, tint

# The course's colours, by what a step does: prepare, compute, collect.
COLOURS = {
    "image_preprocessing": MODELS["preprocessing"], "vision_encoder": MODELS["tensorrt_llm"],
    "text_encoder": MODELS["tensorrt_llm_bls"], "fusion": MODELS["postprocessing"], "clip": MODELS["ensemble"],
}  # fmt: skip
_PLACES = {  # centre of each box, in inches
    "image_preprocessing": (2.05, 2.25), "vision_encoder": (4.35, 2.25), "text_encoder": (3.2, 0.95),
    "fusion": (5.75, 1.6),
}  # fmt: skip


def pipeline() -> Figure:
    """The steps of `clip` and the tensors between them."""
    height = 3.55
    fig = plt.figure(figsize=(WIDTH, height))
    axes = fig.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, height))
    axes.axis("off")
    frame = {"fc": tint(COLOURS["clip"], 0.2), "ec": COLOURS["clip"], "lw": 1.3, "ls": DASHES}
    axes.add_patch(Rectangle((1.0, 0.35), 5.5, 2.65, **frame))
    axes.text(1.08, 2.94, "clip: an ensemble, no code", va="top", fontsize=9)
    lines = [
        ((0.5, 2.25), (1.27, 2.25), "image", (0.6, 2.37)),
        ((0.5, 0.95), (2.72, 0.95), "text", (0.6, 1.07)),
        ((2.83, 2.25), (3.8, 2.25), "pixel_values", (3.31, 2.4)),
        ((4.9, 2.25), (5.6, 1.82), "image_embedding", (5.72, 2.28)),
        ((2.05, 2.03), (5.4, 1.63), "image_state", (3.1, 1.75)),
        ((3.68, 0.95), (5.55, 1.38), "text_embedding, text_state", (4.75, 0.9)),
        ((6.1, 1.6), (6.62, 1.6), "", (0, 0)),
    ]
    for start, end, name, place in lines:
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.1})
        axes.text(*place, name, ha="center", va="center", fontsize=9, family="monospace")
    axes.text(6.68, 1.6, "embedding\nlabels\nscores", va="center", fontsize=9, family="monospace")
    for name, place in _PLACES.items():
        box = {"boxstyle": "round,pad=0.5", "fc": tint(COLOURS[name]), "ec": COLOURS[name], "lw": 1.4}
        axes.text(*place, name, ha="center", va="center", fontsize=9, bbox=box)
    axes.text(0.28, 1.6, "client", ha="center", va="center", fontsize=9,
              bbox={"boxstyle": "round,pad=0.5", "fc": CARD, "ec": QUIET})  # fmt: skip
    axes.plot([0.28, 0.28, 0.5], [1.8, 2.25, 2.25], color=INK, lw=1.1)
    axes.plot([0.28, 0.28, 0.5], [1.4, 0.95, 0.95], color=INK, lw=1.1)
    return fig


def step_bars(step_ms: Mapping[str, float], ensemble_ms: float) -> Figure:
    """Mean time of the steps, each where it begins when nothing waits for it, above the ensemble's own."""
    fig, axes = plt.subplots(figsize=(WIDTH, 2.6))
    after_images = step_ms["image_preprocessing"] + step_ms["vision_encoder"]
    begins = {
        "image_preprocessing": 0.0, "vision_encoder": step_ms["image_preprocessing"], "text_encoder": 0.0,
        "fusion": max(after_images, step_ms["text_encoder"]), "clip": 0.0,
    }  # fmt: skip
    for row, name in enumerate(begins):
        ms = ensemble_ms if name == "clip" else step_ms[name]
        axes.barh(row, ms, left=begins[name], height=0.62, color=tint(COLOURS[name], 0.6), ec=COLOURS[name])
        note(axes, f"{ms:.1f} ms", begins[name] + ms, row, (4, 0))
    name_rows(axes, list(begins))
    axes.set_xlim(0, 1.15 * max(ensemble_ms, begins["fusion"] + step_ms["fusion"]))
    axes.set_xlabel("time since the request (ms); steps drawn as if nothing waited")
    return fig
