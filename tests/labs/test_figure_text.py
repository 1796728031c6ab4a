"""Whatever a model, a prompt or a caption is made of: every kind of figure is drawn, without a word, as it stands."""

from __future__ import annotations

import io
import warnings

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from cliplab import figures, gallery
from cliplab.search import Hit
from plots import beam_search, log_probs, speculative
from plots import load as loads
from servinglab import decoding, explore
from servinglab.figures import engines as engine_figures
from servinglab.figures import request_path, sampling, streaming, style
from servinglab.loadtest import Run, Trace

mpl.use("Agg")
NASTY = [
    "$$", r"$\frac{a}$ ^_", "  ",
    # Controls, ends of lines, a script without glyphs here, right to left, emoji, marks, what is no character.
    "\0\x1b[m\t\na\u2028語ש\u202e😀e\u0301\u0302\ufffd\ufffe\ue000",
]  # fmt: skip
HALF = np.array([0.5, 0.3, 0.2])
GRID = np.geomspace(0.1, 20, 30)
ARRIVALS = [0.1, 0.2, 0.3]


def on_axes(draw):
    fig, axes = plt.subplots()
    draw(axes)
    return fig


def tree(word):
    rows = np.log([[0.6, 0.4], [0.3, 0.7]])
    found = decoding.beam_search(
        lambda paths: np.array([rows[len(path) % 2] for path in paths]), [], width=2, max_tokens=2
    )
    return beam_search.tree(found, lambda node: word, root=word)


def open_loops(word):
    traces = tuple(Trace(due, due, (due + 0.1, due + 0.2), 2) for due in (0.0, 1.0))
    return loads.open_loops({word: Run(traces, 1.2, {"rate": 1.0})}, lane="embedded")


def pictures(word, folder):
    Image.new("RGB", (9, 9), "red").save(folder / "red.png")
    return folder / "red.png"


def found(word, folder):
    hit = Hit("a", 0.9, word, word, 100, str(pictures(word, folder)))
    return gallery.figure({word: [hit], f"{word}2": []}, lambda hit: hit.file)


def spoken(word, folder):
    hits = [Hit("a", 0.9, word, word, 100, str(pictures(word, folder)))] * 2
    return gallery.spoken(hits, lambda hit: hit.file, [word, word], [word, word], [True, False])


def fusions(word, _):
    layer = f"Name: {word}, LayerType: gemm, Metadata: [ONNX Layer: node]"
    return engine_figures.fusions({word: [layer]}, {"node": word})


FIGURES = {
    "token bars": lambda w, _: on_axes(lambda axes: sampling.token_bars(axes, [w, w], [0.5, 0.2])),
    "entropy": lambda w, _: sampling.entropy_curves(GRID, {w: GRID / 9}, 100),
    "probabilities": lambda *_: sampling.probability_curves(GRID, -np.arange(2000.0) / 99, [1, 10, 1000]),
    "samples": lambda w, _: sampling.samples_against_exact([w, *"bcd"], {"T": ({"exact": [0.4] * 4}, [5] * 4)}),
    "microscope": lambda w, _: sampling.microscope([(w, "model", HALF), (w, "top_k", HALF)], {0: w, 1: w}),
    "grid": lambda w, _: sampling.pass_grid({w: {w: (1, 1)}}),
    "surprise": lambda w, _: log_probs.surprise({w: ([w, w], [-2.0])}),
    "tree": lambda w, _: tree(w),
    "strategies": lambda w, _: beam_search.strategies(
        {n: {w: [1.0, 2.0]} for n in (w, *"bcd")}, dict.fromkeys((w, *"bcd"), "#222222")
    ),
    "overlap": lambda w, _: speculative.overlap([w, "b", "c"], HALF, HALF[::-1]),
    "kept": lambda w, _: speculative.kept([w, w], [0.9, 0.3], [True, False]),
    "timeline": lambda w, _: streaming.token_timeline({w: ARRIVALS, "b": ARRIVALS}),
    "request": lambda w, _: request_path.draw("bls", prefix=w),
    "bytes": lambda w, _: streaming.wire_bytes([streaming.WireField(w, w, b"\n", b"\1", b"a")]),
    "open loops": lambda w, _: open_loops(w),
    "plan": fusions,
    "files": lambda w, _: engine_figures.sizes({w: (1e6, 2e6)}),
    "captions": lambda w, folder: figures.gallery([(pictures(w, folder), w)], rows=[w]),
    "precisions": lambda w, _: figures.sizes_and_drift({w: (1.0, 1e-3)}, 0.1),
    "queries": found,
    "uses": spoken,
    "groups": lambda w, _: gallery.two_groups({w: HALF, "b": HALF}, 0.3),
}


@pytest.mark.parametrize("kind", FIGURES)
def test_no_text_breaks_a_figure(kind, tmp_path, capsys):
    for word in NASTY:
        with mpl.rc_context(), warnings.catch_warnings():
            warnings.simplefilter("error")
            style.use()
            fig = FIGURES[kind](word, tmp_path)
            style.show(fig, word, word)
            fig.savefig(io.BytesIO(), bbox_inches="tight")
            texts = fig.findobj(Text)
            assert not any(text.get_parse_math() or "mathdefault" in text.get_text() for text in texts)
        capsys.readouterr()


def test_no_text_breaks_the_panels_of_a_slider():
    with mpl.rc_context():
        style.use()
        explore.explore(lambda axes, T: axes.set_ylabel(T), title="$$", summary="$$", T=NASTY)
