"""Pictures found: the figure on the page, the cards and the search box, which never raises."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from PIL import Image
from test_prepare import many_scans

from cliplab import describe, gallery
from cliplab.answer import NOTHING
from cliplab.describe import QUESTIONS
from cliplab.search import Found, Hit
from servinglab import explore
from servinglab.errors import CourseError

matplotlib.use("Agg")


@pytest.fixture
def hits(tmp_path):
    Image.new("RGBA", (300, 150), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    return [
        Hit("a", 0.91, "A <b>bold</b> & \"quoted\" kite.", "toys", 450, str(tmp_path / "clear.png")),
        Hit("b", 0.52, "A torn kite.", "toys", 120, str(tmp_path / "broken.png")),
    ]  # fmt: skip


def files(hit):
    return hit.file


def test_a_thumbnail_is_small_and_on_white(hits):
    small = gallery.thumbnail(hits[0].file)
    assert small.size == (120, 60) and small.mode == "RGB"
    assert (np.asarray(small) == 255).all()  # the whole picture is transparent


def test_a_picture_that_cannot_be_read_is_a_grey_square(hits, tmp_path):
    (tmp_path / "bomb.jpg").write_bytes(many_scans(5010))
    for path in (hits[1].file, tmp_path / "gone.png", tmp_path / "bomb.jpg"):
        assert (np.asarray(gallery.thumbnail(path)) == 0xE4).all()


def test_the_figure_has_a_row_for_each_query(hits):
    fig = gallery.figure({"a kite": hits, "a tax form": []}, files, columns=3)
    assert [len(axes.images) for axes in fig.axes] == [1, 1, 0, 0, 0, 0]
    assert fig.axes[1].get_title() == " \n \nA torn kite.\n1.20 euros · 0.52"
    assert fig.axes[3].get_title("left") == " \n \nnothing near enough\n "
    assert [text.get_text() for axes in fig.axes for text in axes.texts] == ["a kite", "a tax form"]
    by_picture = gallery.figure({"a kite": hits[:1]}, files, asked={"a kite": hits[1].file}, columns=3)
    titles = [axes.get_title().split("\n")[2:3] for axes in by_picture.axes]
    assert titles == [["asked with"], ["A <b>bold</b> &…"], []]
    with pytest.raises(CourseError, match="at least one query"):
        gallery.figure({}, files)


def test_two_groups_are_shown_in_percent_of_each():
    (axes,) = gallery.two_groups({"captions": np.array([0.2, 0.9, 0.9, 0.8]), "others": np.array([0.1, 0.3])}, 0.3).axes
    assert [sum(bar.get_height() for bar in group) for group in axes.containers] == pytest.approx([100, 100])
    assert list(axes.lines[0].get_xdata()) == [0.3, 0.3]


def test_cards_escape_what_a_record_says(hits):
    page = gallery.cards(hits, files)
    assert page.count('class="clip-hit"') == 2 and page.count("data:image/png;base64,") == 2
    assert "<b>" not in page and "A &lt;b&gt;bold&lt;/b&gt; &amp; &quot;quoted&quot; kite." in page


class Desk:
    """Search and answers without a server."""

    def __init__(self, hits):
        self.hits, self.asked, self.error = hits, [], None

    def __call__(self, text="", image=None, *, k=5, category=None, below_cents=None):
        self.asked.append((text, image, category, below_cents))
        if self.error:
            raise self.error
        return Found(text, "text", tuple(self.hits))

    def near(self, found):
        return tuple(hit for hit in found.hits if hit.score > 0.5)

    def stream(self, found):
        yield from ("I found a blue ", "kite.") if self.near(found) else (NOTHING,)


@pytest.fixture
def box(hits):
    desk = Desk(hits)
    widget = gallery.search_box(desk, desk, files, categories=["food", "toys"])
    (text, go), (upload, forget, category, price) = (row.children for row in widget.children[:2])
    said, shown = widget.children[2:]
    parts = {"text": text, "go": go, "upload": upload, "forget": forget, "category": category, "price": price}
    return SimpleNamespace(desk=desk, said=said, shown=shown, **parts)


def test_a_typed_sentence_searches_and_is_answered(box):
    box.text.value = "a kite"
    assert box.desk.asked == [("a kite", None, None, None)]
    assert box.shown.value.count("clip-hit") == 2
    assert box.said.value == "I found a blue kite.<br><i>not in the record: blue</i>"


def test_filters_and_a_picture_go_along(box):
    box.text.value = "a kite"
    box.category.value, box.price.value = "toys", 40
    file = {"name": "k.png", "type": "image/png", "size": 2, "last_modified": datetime.now(timezone.utc)}
    box.upload.value = ({**file, "content": memoryview(b"px")},)
    box.go.click()
    assert box.desk.asked[-1] == ("a kite", b"px", "toys", 4000)
    assert not box.forget.disabled
    box.forget.click()
    box.go.click()
    assert box.desk.asked[-1][1] is None and box.forget.disabled


def test_nothing_near_shows_no_picture(box):
    box.desk.hits = []
    box.text.value = "a tax form"
    assert box.said.value == NOTHING and "clip-hit" not in box.shown.value


@pytest.mark.parametrize("error", [CourseError("No <Triton> answers."), RuntimeError("broken <pipe>")])
def test_a_failure_is_a_sentence_in_the_box(box, error):
    box.desk.error = error
    box.text.value = "a kite"
    assert "&lt;" in box.said.value and not box.go.disabled and box.shown.value == ""


def test_the_gallery_is_a_figure_and_a_box_only_when_live(hits, monkeypatch, capsys):
    desk, shown = Desk(hits), []
    monkeypatch.setattr("IPython.display.display", lambda *things, **_: shown.extend(things))
    wanted = {"examples": {"a kite": {"text": "a kite"}}, "categories": ["toys"], "title": "Kites are found"}
    gallery.gallery(desk, desk, files, **wanted)
    assert shown == [] and capsys.readouterr().out == "1 queries; a kite: 2 near enough\n"
    monkeypatch.setattr(explore, "is_live", lambda: True)
    gallery.gallery(desk, desk, files, **wanted)
    (tabs,) = shown
    assert tabs.titles == ("search", "describe and ask")


class Describer:
    def __init__(self):
        self.asked, self.error = [], None

    def stream(self, picture, question):
        self.asked.append((picture, question))
        yield "A <kite"
        if self.error:
            raise self.error
        yield ">."


@pytest.fixture
def ask(hits):
    describer, searched = Describer(), []
    page = gallery.describe_box(describer, {"A kite.": Path(hits[0].file)}, searched.append)
    (choose, upload), (question, go, use) = (row.children for row in page.children[:2])
    parts = {"choose": choose, "upload": upload, "question": question, "go": go, "use": use, "said": page.children[2]}
    return SimpleNamespace(describer=describer, searched=searched, picture=hits[0].file, **parts)


def test_a_picture_is_asked_about_and_the_answer_searches(ask):
    assert ask.question.options == QUESTIONS and ask.use.disabled
    ask.question.value = "What colour is it?"
    ask.go.click()
    assert ask.describer.asked == [(Path(ask.picture).read_bytes(), "What colour is it?")]
    assert ask.said.value == "A &lt;kite&gt;." and not ask.use.disabled
    ask.use.click()
    assert ask.searched == ["A <kite>."]
    file = {"name": "k.png", "type": "image/png", "size": 2, "last_modified": datetime.now(timezone.utc)}
    ask.upload.value = ({**file, "content": memoryview(b"px")},)
    ask.describer.error = RuntimeError("broken <pipe>")
    ask.go.click()
    assert ask.describer.asked[-1][0] == b"px" and "broken &lt;pipe&gt;" in ask.said.value
    assert ask.use.disabled and not ask.go.disabled


@pytest.mark.parametrize(
    ("address", "picture", "said"),
    [("", b"px", "notebook 16 shows how"), ("127.0.0.1:9", b"px", "answers at 127.0.0.1:9"), ("", b"", "Choose a pic")],
)
def test_without_a_model_that_sees_it_is_one_sentence(address, picture, said):
    with pytest.raises(CourseError, match=said):
        list(describe.Describer(address).stream(picture, "What is it?"))


@pytest.mark.parametrize("card", ["", "{", "[]", "null", "{}", '{"before": "", "after": "{x}"}'])
def test_a_damaged_card_is_one_sentence(card, tmp_path, monkeypatch):
    (tmp_path / "data" / "vlm").mkdir(parents=True)
    (tmp_path / "data" / "vlm" / "vlm.json").write_text(card)
    monkeypatch.setattr(describe, "find_root", lambda: tmp_path)
    with pytest.raises(CourseError, match="vlm.json is damaged"):
        list(describe.Describer("127.0.0.1:9").stream(b"px", "What is it?"))
    with pytest.raises(CourseError, match="Choose a picture, and ask a question"):
        list(describe.Describer("127.0.0.1:9").stream(b"px", "<image> "))


def test_an_answer_opens_the_search(hits, monkeypatch):
    desk, shown = Desk(hits), []
    monkeypatch.setattr("IPython.display.display", lambda *things, **_: shown.extend(things))
    monkeypatch.setattr(explore, "is_live", lambda: True)
    wanted = {"examples": {"a kite": {"text": "a kite"}}, "categories": ["toys"], "title": "Kites are found"}
    describer, pictures = Describer(), {"A kite.": Path(hits[0].file)}
    gallery.gallery(desk, desk, files, describer=describer, pictures=pictures, **wanted)
    (tabs,) = shown
    tabs.selected_index = 1
    go, use = tabs.children[1].children[1].children[1:]
    go.click()
    use.click()
    assert tabs.selected_index == 0 and desk.asked[-1][0] == "A <kite>."
