"""The playground's text and bars: HTML while an answer streams, a picture for a page. The colour of a token says how
likely the model found it: ColorBrewer's YlOrBr, an order for the colour-blind too, under dark letters on any theme."""

import html
import math
import re
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from servinglab.figures.sampling import percent, zoom
from servinglab.figures.style import INK, QUIET, WIDTH

# Lowest log probability in nats, the log of 90, 50, 10 and 1 %: colour, and words for the legend.
SHADES = {-0.1054: ("#FFFFE5", " 90 % or more "), -0.6932: ("#FEE391", " 50 % "), -2.3026: ("#FEC44F", " 10 % "),
          -4.6052: ("#FE9929", " 1 % "), -math.inf: ("#EC7014", " less ")}  # fmt: skip
_LEGEND, _COLUMNS = "The model's probability of each token:", 84
_CUT = "repeating-linear-gradient(135deg,currentColor 0 1px,transparent 1px 5px)"


def _shade(log_prob: float) -> str:
    return next(colour for least, (colour, _) in SHADES.items() if log_prob >= least)


def _on(colour: str, words: str, more: str = "") -> str:
    return f'<span style="background:{colour};color:{INK}" title="{more}">{html.escape(words)}</span>'


def page(
    pieces: Sequence[str], log_probs: Sequence[float], names: Mapping[int, str], before: np.ndarray, after: np.ndarray
) -> str:
    """HTML: each token on its colour, with its number where the mouse rests; a bar for each token of `names`, outlined
    the model's probability, filled what the settings make of it, hatched what they cut. before, after: [vocabulary]."""
    text = "".join(
        _on(_shade(value), piece, f"{value:.2f} nats, {percent(math.exp(value))}")
        for piece, value in zip(pieces, log_probs, strict=True)
    )
    ids, rows = list(names), ""
    shown = [*zip(names.values(), before[ids], after[ids], strict=True)]
    for name, old, new in [*shown, ("all others", 1 - before[ids].sum(), 1 - after[ids].sum())]:
        fill, length, words = ("#E69F00", new, percent(new)) if new > 1e-9 else (_CUT, old, "cut")
        rows += f'<span style="text-align:right;overflow:hidden;white-space:pre">{html.escape(name)}</span>'
        rows += '<span style="position:relative">'
        for share, look in ((length, f"background:{fill}"), (old, "box-shadow:inset 0 0 0 1px currentColor")):
            rows += f'<span style="position:absolute;height:14px;width:{100 * share:.2f}%;{look}"></span>'
        rows += f"</span><span>{words}</span>"
    look, grid = "white-space:pre-wrap;line-height:1.6", "display:grid;grid-template-columns:auto 1fr 4em;gap:3px 8px"
    said = f"{_LEGEND} {' '.join(_on(*entry) for entry in SHADES.values())}\nThe last token, "
    said += f"{html.escape(repr(pieces[-1]))}, was drawn from this. Outlined: the model; filled: after your settings."
    blocks = {"text": (look, text), "words": (look, said), "bars": (f"{grid};line-height:16px", rows)}
    return "".join(f'<div class="playground-{n}" style="{css}">{inner}</div>' for n, (css, inner) in blocks.items())


def beams(texts: Sequence[str], log_probs: Sequence[float]) -> str:
    """HTML: a row for each beam, with the log probability of all of its text."""
    rows = [f"<tr><td>{value:.2f} nats&emsp;</td><td>{html.escape(words)}</td></tr>"
            for words, value in zip(texts, log_probs, strict=True)]  # fmt: skip
    return f'Beams come at the end, not as a stream.<table class="playground-beams">{"".join(rows)}</table>'


def picture(
    prompt: str, pieces: Sequence[str], log_probs: Sequence[float], names: Mapping[int, str], before: np.ndarray,
    after: np.ndarray,
) -> Figure:  # fmt: skip
    """The prompt and its answer in colours, and below what could follow the prompt, as `sampling.zoom` draws it."""
    parts = [(prompt, ""), *((piece, _shade(value)) for piece, value in zip(pieces, log_probs, strict=True))]
    letters = [(letter, colour) for piece, colour in parts for letter in piece.replace("\r", "").replace("\n", "↵")]
    legend = [(letter, colour) for colour, words in [("", _LEGEND), *SHADES.values()] for letter in words]
    lines = [*_lines(letters), [], legend]
    deep, high = 0.2 * len(lines), 0.27 * (len(names) + 1)  # inches
    fig = plt.figure(figsize=(WIDTH, height := deep + high + 1.6))
    upper = fig.add_axes((0.02, 1 - (0.4 + deep) / height, 0.96, deep / height))
    upper.set(xlim=(0, _COLUMNS), ylim=(len(lines) - 0.5, -0.5))
    upper.axis("off")
    for row, column, letter, colour in [(r, c, *mark) for r, line in enumerate(lines) for c, mark in enumerate(line)]:
        upper.add_patch(Rectangle((column, row - 0.5), 1.05, 1, color=colour or "none", linewidth=0))
        look = {"ha": "center", "va": "center", "family": "monospace", "fontsize": 9, "color": INK if colour else QUIET}
        upper.text(column + 0.5, row, letter, **look)
    lower = fig.add_axes((0.2, 0.72 / height, 0.78, high / height))
    lower.set_title("the next token after the prompt; outlined: before the settings")
    highest = max(max(p.max(), 1 - p[list(names)].sum()) for p in (before, after))
    zoom(lower, names, before, after, "temperature", highest)
    return fig


def _lines(letters: Sequence[tuple[str, str]]) -> list[Sequence[tuple[str, str]]]:
    """Lines that end where a space was; only a word of more letters than a line has is broken."""
    found = re.finditer(f"(.{{1,{_COLUMNS}}})(?: |$)|.{{{_COLUMNS}}}", "".join(letter for letter, _ in letters))
    return [letters[slice(*each.span(each.lastindex or 0))] for each in found]
