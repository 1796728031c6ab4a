"""Figures: legible sizes, colours people can tell apart, the right numbers, the same bytes every time."""

from __future__ import annotations

import io
import itertools

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import PIL.Image
import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from tritonclient.grpc import service_pb2

from servinglab.figures import request_path, streaming, style

mpl.use("Agg")
pytestmark = pytest.mark.usefixtures("course_style")

ARRIVALS = [0.120, 0.150, 0.170, 0.200, 0.210]
GROUPS = {"strategies": style.STRATEGIES, "lanes": style.LANES, "models": style.MODELS, "bytes": style.BYTES}


def request_fields():
    request = service_pb2.ModelInferRequest(model_name="tensorrt_llm_bls", id="7")
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    request.raw_input_contents.append(b"\x0a\0\0\0The sea is")
    return streaming.take_apart(request)


FIGURES = {
    "one stream": lambda: streaming.token_timeline({"alone": ARRIVALS}),
    "eight streams": lambda: streaming.token_timeline({f"stream {i}": np.add(ARRIVALS, i / 50) for i in range(8)}),
    "ensemble": lambda: request_path.draw("ensemble"),
    "ensemble with prefix": lambda: request_path.draw("ensemble", prefix="gemma-gly-"),
    "bls": lambda: request_path.draw("bls"),
    "bls with prefix": lambda: request_path.draw("bls", prefix="gemma-gly-"),
    "bytes": lambda: streaming.wire_bytes(request_fields()),
}
each_figure = pytest.mark.parametrize("name", FIGURES)


def png(fig) -> bytes:
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", bbox_inches="tight", metadata={"Software": None})
    return buffer.getvalue()


@pytest.fixture
def finished(monkeypatch, capsys):
    """Finish a figure as a notebook does, but keep it open; (figure, what was printed)."""

    def build(name, summary="five tokens in order"):
        with monkeypatch.context() as patch:
            patch.setattr(style.plt, "close", lambda fig: None)
            fig = FIGURES[name]()
            style.show(fig, "The first token takes longest", summary)
        fig.canvas.draw()
        return fig, capsys.readouterr().out

    return build


# --- colours -------------------------------------------------------------------------------------------------------

# Machado, Oliveira and Fernandes 2009, severity 1.0, for linear RGB.
VISION = {
    "usual": np.eye(3),
    "no red cones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green cones": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
}


def lab(colour, vision):
    rgb = np.asarray(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(VISION[vision]) @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ seen
    f = np.cbrt(np.maximum(xyz / [0.9505, 1, 1.089], 0.008856))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("group", GROUPS)
def test_colours_of_a_group_can_be_told_apart(group, vision):
    for one, other in itertools.combinations(GROUPS[group].values(), 2):
        assert np.linalg.norm(lab(one, vision) - lab(other, vision)) > 15, (one, other)


def contrast(one, other):
    def luminance(colour):
        rgb = np.asarray(to_rgb(colour))
        return np.dot(np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4), [0.2126, 0.7152, 0.0722])

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_is_readable_on_the_card_and_on_every_tint():
    assert contrast(style.INK, style.CARD) > 7 and contrast(style.QUIET, style.CARD) > 4.5
    for colour in style.BYTES.values():
        assert contrast(style.INK, style.tint(colour, 0.45)) > 7
    for colour in style.MODELS.values():
        assert contrast(style.INK, style.tint(colour)) > 7


def test_the_style_sheet_has_the_same_colours_and_width():
    drawn = [mpl.rcParams[name] for name in ("text.color", "axes.edgecolor", "figure.facecolor")]
    assert [f"#{colour.lstrip('#')}" for colour in drawn] == [style.INK, style.QUIET, style.CARD]
    assert mpl.rcParams["figure.figsize"][0] == style.WIDTH


def test_tint_keeps_or_removes_the_colour():
    assert style.tint("#0072B2", 1) == "#0072B2" and style.tint("#0072B2", 0) == "#FFFFFF"


def test_every_meaning_of_the_course_has_a_colour():
    assert set(style.STRATEGIES) == {"greedy", "temperature", "top_k", "top_p", "beam"}
    assert set(style.LANES) == {"embedded", "trtllm"}
    assert {"preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls", "ensemble"} == set(style.MODELS)


# --- every figure --------------------------------------------------------------------------------------------------


@each_figure
def test_figure_is_a_small_opaque_card_of_the_course_s_width(finished, name):
    fig, _ = finished(name)
    assert 7 <= fig.get_figwidth() <= 8
    assert to_rgb(fig.get_facecolor()) == (1, 1, 1)
    assert len(png(fig)) < 150_000


def unseen_ticks(fig):
    """Labels of ticks outside the view: matplotlib keeps them, but does not draw them."""
    unseen = []
    for axis in (axis for axes in fig.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        unseen += [tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high]
    return unseen


@each_figure
def test_no_text_is_small_hidden_or_on_top_of_another(finished, name):
    fig, _ = finished(name)
    texts = [t for t in fig.findobj(Text) if t.get_text().strip() and t.get_visible() and t not in unseen_ticks(fig)]
    assert min(t.get_fontsize() for t in texts) >= 9
    boxes = {t.get_text(): t.get_window_extent() for t in texts}
    edge = fig.bbox
    for text, box in boxes.items():
        assert box.x0 >= -1 and box.x1 <= edge.x1 + 1 and box.y0 >= -1 and box.y1 <= edge.y1 + 1, f"{text!r} is cut off"
    extents = [(t.get_text(), t.get_window_extent()) for t in texts]
    for (text, box), (other, second) in itertools.combinations(extents, 2):
        width = min(box.x1, second.x1) - max(box.x0, second.x0)
        height = min(box.y1, second.y1) - max(box.y0, second.y0)
        assert width <= 1 or height <= 2, f"{text!r} lies on {other!r}"


@each_figure
def test_figure_is_the_same_every_time(finished, name):
    assert png(finished(name)[0]) == png(finished(name)[0])


@pytest.mark.parametrize("drawing", [False, True])
def test_show_prints_the_summary_closes_the_figure_and_says_where_numbers_come_from(capsys, drawing):
    fig = FIGURES["one stream"]()
    style.use("made here")
    style.show(fig, "Title", "one line", drawing=drawing)
    style.use()
    assert capsys.readouterr().out == "one line\n"
    assert not plt.get_fignums()
    assert {text.get_text() for text in fig.texts} == {"Title", "" if drawing else "made here"}


@pytest.mark.parametrize("photos, kind, dots", [(False, "png", 2), (True, "jpeg", 1)])
def test_a_notebook_gets_the_figure_with_the_summary_as_its_words_alone(monkeypatch, capsys, photos, kind, dots):
    """With twice as many dots as are shown, unless it is full of photographs, and not a second time in print."""
    shown = []
    monkeypatch.setattr(style, "kernel", object)
    monkeypatch.setattr("IPython.display.display", shown.append)
    style.show(FIGURES["one stream"](), "Title", "one line", photos=photos)
    (thing,) = shown
    (data, said) = thing._repr_mimebundle_()
    assert list(data) == [f"image/{kind}"] and said[f"image/{kind}"]["alt"] == "one line"
    picture = PIL.Image.open(io.BytesIO(thing.data))
    assert picture.format == kind.upper() and 780 <= said[f"image/{kind}"].get("width", picture.width) <= 840
    assert 780 <= picture.width / dots <= 840 and len(thing.data) < 60_000
    assert capsys.readouterr().out == "" and not plt.get_fignums()


# --- the timeline --------------------------------------------------------------------------------------------------


def labels(axes):
    return [text.get_text() for text in axes.texts]


def test_one_stream_shows_first_token_rate_and_waits():
    upper, lower = streaming.token_timeline({"alone": ARRIVALS}).axes
    assert upper.patches[0].get_width() == pytest.approx(0.120)
    assert list(upper.lines[0].get_xdata()) == ARRIVALS
    assert labels(upper) == ["first 120 ms, then 44 tokens/s"]  # four tokens in 90 ms
    assert sorted(lower.lines[0].get_xdata()) == pytest.approx([10, 20, 30, 30])
    assert labels(lower) == ["half below 25 ms"]


def test_several_streams_have_a_row_each():
    upper, lower = streaming.token_timeline({"a": ARRIVALS, "b": np.multiply(ARRIVALS, 2)}).axes
    assert [label.get_text() for label in upper.get_yticklabels()] == ["a", "b"]
    assert labels(upper) == ["first 120 ms, then 44 tokens/s", "first 240 ms, then 22 tokens/s"]
    assert labels(lower) == ["half below 25 ms", "half below 50 ms"]
    assert sorted(lower.lines[2].get_xdata()) == pytest.approx([20, 40, 60, 60])


def test_tokens_that_arrive_together_have_no_rate():
    upper, _ = streaming.token_timeline({"burst": [0.1, 0.1, 0.1]}).axes
    assert labels(upper) == ["first 100 ms"]


# --- drawings ------------------------------------------------------------------------------------------------------


def test_bytes_are_shown_with_offset_name_and_meaning_and_long_values_are_cut():
    name = streaming.WireField("model_name (1)", '"abc"', b"\x0a", b"\x03", b"abc")
    raw = streaming.WireField("raw (7)", "99 bytes", b"\x3a", b"\x63", bytes(98) + b"\xff")
    shown = labels(streaming.wire_bytes([name, raw]).axes[0])
    assert shown.index("0a") < shown.index("03") < shown.index("61 62 63")
    assert "5" in shown and '"abc"' in shown and "raw (7)" in shown  # the second field starts at byte 5
    assert "00 00 00 00 00 00 00 00 00 00 … ff" in shown


@pytest.mark.parametrize("route, box", [("ensemble", "gly-\npreprocessing"), ("bls", "2  gly-\ntensorrt_llm")])
def test_drawings_carry_the_deployment_s_names(route, box):
    assert box in labels(request_path.draw(route, prefix="gly-").axes[0])
