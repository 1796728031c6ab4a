"""Figures of notebook 02: where weights went, how far off fewer bits are, what memory is needed, what a server cut."""

import re
from collections.abc import Iterable, Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from servinglab.figures.engines import memory_bars
from servinglab.figures.style import CARD, DASHES, FAINT, INK, MODELS, QUIET, WIDTH, box, name_rows, note, sheet, tint

__all__ = ["differences", "memory_bars", "renamed", "served"]

Shapes = Mapping[str, tuple[int, ...]]
_ROW, _WIDE, _ENDS = 0.34, 2.6, (0.15, WIDTH - 2.75)  # inches: height of a row, width of a box, where the columns begin
_ORDER = "embed input q_proj k_proj v_proj o_proj post gate_proj up_proj down model.norm".split()
_PARTS = {"attn": MODELS["preprocessing"], "attention": MODELS["preprocessing"], "mlp": MODELS["tensorrt_llm"]}


def renamed(before: Shapes, after: Shapes, found: Iterable[tuple[str, str]]) -> Figure:
    """Two columns of tensors (name → shape), and a line from each to those that hold it: ``found``, (old, new)."""
    found = list(found)
    old = sorted(before, key=lambda name: next(n for n, part in enumerate(_ORDER) if part in name))
    middle = {new: np.mean([old.index(was) for was, now in found if now == new] or [len(old)]) for new in after}
    new = sorted(after, key=lambda name: (middle[name], name.startswith("lm_head")))
    height = _ROW * max(len(old), len(new)) + 0.95
    fig, axes = sheet(height)
    place = {}
    for x, names, shapes, head in zip(_ENDS, (old, new), (before, after), ("Hugging Face", "checkpoint"), strict=True):
        axes.text(x, height - 0.62, head, fontweight="bold")
        for row, name in enumerate(names):
            y = height - 1.0 - _ROW * row
            fill = next((tint(each, 0.35) for part, each in _PARTS.items() if f"{part}." in name), FAINT)
            short = re.sub(r"model\.layers\.0\.|transformer\.layers\.0\.|transformer\.|^model\.|\.weight$", "", name)
            words = f"{short}  [{', '.join(map(str, shapes[name]))}]"
            box(axes, x, y - 0.13, _WIDE, 0.26, words, fill)
            place[x, name] = y
    for was, now in found:
        ends = place[_ENDS[0], was], place[_ENDS[1], now]
        axes.plot((_ENDS[0] + _WIDE + 0.04, _ENDS[1] - 0.04), ends, color=INK, lw=1.2)
    return fig


def differences(off: Mapping[str, tuple[float, float]]) -> Figure:
    """A dot for each kind of number: name → (largest difference of a logit, share of the same next tokens)."""
    fig, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.32 * len(off)))
    for row, (far, same) in enumerate(off.values()):
        axes.plot(far, row, "o", color=MODELS["tensorrt_llm"])
        note(axes, f"{_digits(far, 2)}, same next tokens {same:.0%}".replace("%", " %"), far, row, (8, 0))
    name_rows(axes, list(off))
    axes.set(xscale="log", xlim=(1e-5, 1e4), xlabel="largest difference of a logit (logarithmic)")
    axes.set_xticks([10.0**power for power in range(-5, 3)])
    axes.xaxis.set_major_formatter(lambda value, _: _digits(value, 1))
    return fig


def served(jobs: Mapping[str, tuple[int, int, int]], got: Mapping[str, int | str], longest: int) -> Figure:
    """A bar for each request: its prompt, the answer that came, and dashed what is missing of it.

    ``jobs``: name → (tokens of the prompt, tokens wanted, beams). ``got``: tokens that came, or the error's words.
    ``longest``: the engine's max_seq_len.
    """
    fig, axes = plt.subplots(figsize=(WIDTH, 1.3 + 0.4 * len(jobs)))
    for row, (name, (prompt, wanted, _)) in enumerate(jobs.items()):
        came = 0 if isinstance(got[name], str) else got[name]
        axes.barh(row, prompt, color=FAINT, height=0.6, label="prompt")
        axes.barh(row, came, left=prompt, color=tint(MODELS["postprocessing"], 0.8), height=0.6, label="answer")
        if came < wanted:
            axes.barh(row, wanted - came, left=prompt + came, color=CARD, edgecolor=QUIET, linestyle=DASHES, height=0.6,
                      label="missing")  # fmt: skip
        words = f"{came} of {wanted} tokens" if came else re.split(r"[;.] ?", f"{got[name]};")[0]
        note(axes, words, prompt + wanted, row, bbox={"facecolor": CARD, "edgecolor": "none", "pad": 1})
    name_rows(axes, list(jobs))
    axes.axvline(longest, color=INK, linewidth=1.2, linestyle=DASHES, zorder=0)
    most = max(prompt + wanted for prompt, wanted, _ in jobs.values())
    axes.set(xlim=(0, 2.5 * most), xticks=range(0, most + 50, 50))
    axes.set(xlabel=f"tokens of a sequence; dashed line: max_seq_len {longest}")
    handles, labels = axes.get_legend_handles_labels()
    legend = dict(zip(labels, handles, strict=True))
    axes.legend(legend.values(), legend, loc="lower left", bbox_to_anchor=(-0.01, 1), ncols=3, borderaxespad=0)
    return fig


def _digits(value: float, n: int) -> str:
    return np.format_float_positional(value, n, fractional=False, trim="-")
