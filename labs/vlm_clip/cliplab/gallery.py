"""Notebook 15's figures, and a search box for those who have a live notebook.

`figure` is for pages: matplotlib, small. `gallery` draws it for a few queries and, when live (`servinglab.explore` says
so), adds a box in which you type a sentence or drop a picture; the answer streams in while the pictures are there. A
second tab asks the vision-language model about a picture.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from tritonclient.utils import InferenceServerException

from cliplab.answer import Answerer, compare
from cliplab.describe import QUESTIONS, Describer
from cliplab.figures import answers
from cliplab.prepare import PictureError, open_picture
from cliplab.search import Found, Hit, Search
from servinglab import explore
from servinglab.errors import CourseError
from servinglab.figures import style

if TYPE_CHECKING:
    import ipywidgets

ANY = "any category"
SIDE = 120  # pixels of a thumbnail's longer side
_CARD = "width:140px;margin:4px;padding:4px;border:1px solid #E4E4E4;background:#FFFFFF;color:#222222;font-size:12px"
_GROUPS = ("#009E73", "#D55E00")


def thumbnail(path: str | Path, side: int = SIDE) -> Image.Image:
    """A picture of the catalogue on white, at most `side` pixels wide and high; a grey square when it cannot be read,
    because one lost file should not hide what else was found."""
    try:
        picture = open_picture(Path(path).read_bytes())
    except (OSError, PictureError):
        return Image.new("RGB", (side, side), "#E4E4E4")
    picture.thumbnail((side, side))
    return picture


def figure(
    rows: Mapping[str, Sequence[Hit]], files: Callable[[Hit], Path], *, asked: Mapping[str, Path] | None = None,
    columns: int = 5,
) -> Figure:  # fmt: skip
    """One row for each query: its first hits with caption, price and score. Hand it to `style.show`.

    `files`: where the picture of a hit lies. `asked`: for queries by picture that picture, drawn in the first column.
    Raises CourseError when there is nothing to draw.
    """
    if not rows:
        raise CourseError("The gallery needs at least one query with its hits.")
    heights = [1 if hits else 0.05 for hits in rows.values()]
    size = (style.WIDTH, sum(0.65 + 1.4 * height for height in heights) + 0.4)  # words, and pictures of 1.4 inches
    fig, grid = plt.subplots(len(rows), columns, figsize=size, height_ratios=heights, squeeze=False)
    for line, (query, hits) in zip(grid, rows.items(), strict=True):
        places = list(line)
        for axes in places:
            axes.axis("off")
            axes.set_anchor("W")  # so that what stands above begins where pictures do, in a row without any, too
        _above(places[0], _short(query, 90))
        if asked and query in asked:
            _picture(places.pop(0), asked[query], "asked with", "")
        if not hits:
            places[0].set_title(" \n \nnothing near enough\n ", fontsize=9, loc="left")  # as high as other rows
        for axes, hit in zip(places, hits, strict=False):
            _picture(axes, files(hit), _short(hit.caption, 21), f"{hit.price} · {hit.score:.2f}")
    return fig


def _above(axes: plt.Axes, text: str) -> None:
    """Words over a title of two lines, wider than their picture without making its column wider."""
    look = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": 10, "fontweight": "bold"}
    axes.annotate(text, (0, 1), (0, 34), **look).set_in_layout(False)


def spoken(
    hits: Sequence[Hit], files: Callable[[Hit], Path], texts: Sequence[str], right: Sequence[str], good: Sequence[bool]
) -> Figure:
    """What was said about each hit, below its picture; in a dashed frame, with what would be right, when not good."""
    rows = zip(map(_square, map(files, hits)), (hit.caption for hit in hits), right, texts, good, strict=True)
    return answers([(np.asarray(picture), *row) for picture, *row in rows], columns=4)


def _square(path: Path) -> Image.Image:
    """A picture in a square of SIDE pixels, so that all stand in line."""
    picture = thumbnail(path)
    square = Image.new("RGB", (SIDE, SIDE), "white")
    square.paste(picture, ((SIDE - picture.width) // 2, (SIDE - picture.height) // 2))
    return square


def _picture(axes: plt.Axes, path: Path, *words: str) -> None:
    axes.imshow(_square(path))
    axes.add_patch(plt.Rectangle((0, 0), SIDE - 1, SIDE - 1, fill=False, clip_on=False, ec=style.FAINT, lw=0.8))
    axes.set_title("\n".join((" ", " ", *words)), fontsize=9, loc="center")  # the first lines are for the query


def cards(hits: Sequence[Hit], files: Callable[[Hit], Path]) -> str:
    """The hits as HTML: pictures inside, captions escaped."""
    return f'<div style="display:flex;flex-wrap:wrap">{"".join(_card(hit, files(hit)) for hit in hits)}</div>'


def _card(hit: Hit, path: Path) -> str:
    caption = html.escape(hit.caption, quote=True)
    words = f"{caption}<br>{html.escape(hit.category)}, {hit.price}, score {hit.score:.2f}"
    return f'<div class="clip-hit" style="{_CARD}">{_image(thumbnail(path), caption)}<br>{words}</div>'


def _image(picture: Image.Image, caption: str) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return f'<img src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}" alt="{caption}">'


def gallery(
    search: Search, answerer: Answerer, files: Callable[[Hit], Path], *, examples: Mapping[str, Mapping[str, Any]],
    categories: Sequence[str], title: str, most_cents: int = 10_000, describer: Describer | None = None,
    pictures: Mapping[str, Path] | None = None,
) -> None:  # fmt: skip
    """Draw what the `examples` find, and add the two tabs when somebody is there to use them.

    `examples`: name of a row → arguments of `search` (`{"text": "a red fruit", "category": "food"}`). `pictures`: what
    the second tab offers to ask `describer` about, by caption.
    """
    found = {name: search(**arguments) for name, arguments in examples.items()}
    rows = {name: answerer.near(one) for name, one in found.items()}
    fig = figure(rows, files)
    counted = ", ".join(f"{name}: {len(hits)} near enough" for name, hits in rows.items())
    style.show(fig, title, f"{len(rows)} queries; {counted}", photos=True)
    if explore.is_live():
        import ipywidgets as w
        from IPython.display import display

        box = search_box(search, answerer, files, categories=categories, most_cents=most_cents)
        tabs = w.Tab()

        def search_with(sentence: str) -> None:
            tabs.selected_index, box.children[0].children[0].value = 0, sentence

        tabs.children = box, describe_box(describer or Describer(), pictures or {}, search_with)
        tabs.titles = "search", "describe and ask"
        display(tabs)


def search_box(
    search: Search, answerer: Answerer, files: Callable[[Hit], Path], *, categories: Sequence[str],
    most_cents: int = 10_000,
) -> ipywidgets.Widget:  # fmt: skip
    """A line of text, a picture, a category and a price; Enter or the button searches. Never raises: what goes wrong is
    shown in one sentence."""
    import ipywidgets as w

    text = w.Text(placeholder="a sentence, such as: something to play music on", continuous_update=False)
    upload = w.FileUpload(accept="image/*", multiple=False, description="picture")
    forget = w.Button(description="no picture", disabled=True)
    category = w.Dropdown(options=[ANY, *categories])
    price = w.IntSlider(value=most_cents // 100, min=1, max=max(most_cents // 100, 2), description="below euros")
    go = w.Button(description="search", button_style="primary")
    said, shown = w.HTML(), w.HTML()
    said.add_class("clip-answer")

    def picture() -> bytes | None:
        return bytes(upload.value[0]["content"]) if upload.value else None

    def work() -> None:
        shown.value = ""
        limit = None if price.value == price.max else price.value * 100
        chosen = None if category.value == ANY else category.value
        found = search(text.value, picture(), category=chosen, below_cents=limit)
        shown.value = cards(answerer.near(found), files)
        _say(said, answerer, found)

    run = _guarded(work, said, go)

    def chosen(*_: object) -> None:
        forget.disabled = not upload.value

    def drop(*_: object) -> None:
        upload.value = ()

    go.on_click(run)
    forget.on_click(drop)
    text.observe(lambda change: run() if change["new"].strip() else None, "value")
    upload.observe(chosen, "value")
    first, second = w.HBox([text, go]), w.HBox([upload, forget, category, price])
    return w.VBox([first, second, said, shown])


def describe_box(
    describer: Describer, pictures: Mapping[str, Path], search_with: Callable[[str], None]
) -> ipywidgets.Widget:
    """A picture, of `pictures` or the user's own, and a question; the answer streams in, and a button hands it to
    `search_with`. Never raises: what goes wrong is shown in one sentence."""
    import ipywidgets as w

    choose = w.Dropdown(options=list(pictures.items()))
    upload = w.FileUpload(accept="image/*", multiple=False, description="my picture")
    question = w.Combobox(options=QUESTIONS, value=QUESTIONS[0], ensure_option=False)
    ask, use = w.Button(description="ask", button_style="primary"), w.Button(description="search with this answer")
    use.disabled = True
    said, shown = w.HTML(), w.HTML()
    said.add_class("vlm-answer")
    answer = ""

    def picture() -> bytes:
        if upload.value:
            return bytes(upload.value[0]["content"])
        return choose.value.read_bytes() if choose.value else b""

    def show(*_: object) -> None:
        upload.value = ()
        shown.value = _image(thumbnail(choose.value), html.escape(choose.label, quote=True)) if choose.value else ""

    def work() -> None:
        nonlocal answer
        answer, use.disabled = "", True
        for piece in describer.stream(picture(), question.value):
            answer += piece
            said.value = html.escape(answer)
        use.disabled = not answer.strip()

    def own(*_: object) -> None:
        shown.value = f"<i>{html.escape(upload.value[0]['name'])}</i>" if upload.value else shown.value

    ask.on_click(_guarded(work, said, ask))
    use.on_click(lambda _: search_with(answer.strip()))
    choose.observe(show, "value")
    upload.observe(own, "value")
    show()
    return w.VBox([w.HBox([choose, upload]), w.HBox([question, ask, use]), said, shown])


def _guarded(work: Callable[[], None], said: ipywidgets.HTML, go: ipywidgets.Button) -> Callable[..., None]:
    """`work` as a callback; what goes wrong is shown in one sentence, for a callback that raises shows nothing."""

    def run(*_: object) -> None:
        said.value, go.disabled = "", True
        try:
            work()
        except (CourseError, InferenceServerException) as error:
            sentence = error.message() if isinstance(error, InferenceServerException) else str(error)
            said.value = f"<b>{html.escape(sentence)}</b>"
        except Exception as error:
            said.value = f"<b>It failed: {html.escape(f'{type(error).__name__}: {error}')}</b>"
        finally:
            go.disabled = False

    return run


def _say(box: ipywidgets.HTML, answerer: Answerer, found: Found) -> None:
    """Stream the answer into a widget; then mark what the record does not say."""
    sentence = ""
    for piece in answerer.stream(found):
        sentence += piece
        box.value = html.escape(sentence)
    near = answerer.near(found)
    if near and (added := compare(sentence, near[0]).added):
        box.value += f"<br><i>not in the record: {html.escape(', '.join(added))}</i>"


def _short(text: str, most: int) -> str:
    """At most so many characters, cut between words where there are any."""
    head = text[:most]
    return text if head == text else (head.rpartition(" ")[0] or head[:-1]).rstrip(" ,;-–—") + "…"


def two_groups(best: Mapping[str, np.ndarray], line: float) -> Figure:
    """How the best scores of two groups of queries are spread, in percent of each group, and a threshold."""
    fig, axes = plt.subplots(figsize=(style.WIDTH, 2.9))
    values = np.concatenate(list(best.values()))
    edges = np.linspace(values.min(), values.max(), 25)
    for (name, scores), colour in zip(best.items(), _GROUPS, strict=True):
        share = np.full(len(scores), 100 / len(scores))
        axes.hist(scores, edges, weights=share, color=colour, alpha=0.6, label=f"{name} ({len(scores)})")
    axes.axvline(line, color=style.INK, linewidth=1.2)
    style.note(axes, f"{line:.2f}", line, 1, (4, -6), xycoords=("data", "axes fraction"), fontsize=10)
    axes.set(xlabel="score of the best hit (cosine)", ylabel="share of the group (%)")
    axes.legend()
    return fig
