"""The course as a web site: every link leads somewhere, nothing is fetched, and a page is what its notebook is."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

from course import manifest
from servinglab.root import find_root

ROOT = find_root()
sys.path.insert(0, str(ROOT / "tools" / "site"))

import build_site  # noqa: E402
import render  # noqa: E402
import run_pages  # noqa: E402


class Read(HTMLParser):
    """What a page names: links, sources, ids, tags."""

    def __init__(self, path: Path):
        super().__init__()
        self.links, self.sources, self.ids, self.tags = [], [], [], Counter()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags[tag] += 1
        self.links += [given["href"]] if tag == "a" and given.get("href") else []
        self.sources += [v for k in ("src", "href") if tag != "a" and (v := given.get(k)) and not v.startswith("data:")]
        self.ids += [given["id"]] if "id" in given else []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    build_site.Site(ROOT, out).build()
    return out, {path: Read(path) for path in out.rglob("*.html")}


def test_every_internal_link_and_anchor_exists(site):
    out, pages = site
    assert len(pages) > 40 and sum(len(page.links) for page in pages.values()) > 1000
    wrong = []
    for path, page in pages.items():
        for link in page.links + page.sources:
            address = urlsplit(link)
            if address.scheme in ("http", "https"):
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            anchor = unquote(address.fragment)
            known = target.is_file() and target.is_relative_to(out)
            if not known or (anchor and target in pages and anchor not in pages[target].ids):
                wrong.append(f"{path.relative_to(out)} → {link}")
    assert wrong == []


def test_no_page_needs_a_network(site):
    out, pages = site
    for path, page in pages.items():
        assert [s for s in page.sources if urlsplit(s).scheme or s.startswith("//")] == [], path
    for name in ("style.css", "site.js"):
        assert not re.search(r"https?:|@import|url\(", (out / "_static" / name).read_text()), name


def test_an_id_stands_once_on_a_page(site):
    for path, page in site[1].items():
        assert [name for name, count in Counter(page.ids).items() if count > 1] == [], path


def test_a_page_shows_every_code_cell_and_picture_of_its_notebook(site):
    out, pages = site
    for notebook in manifest.load(ROOT).notebooks:
        page = pages[out / Path(notebook.path.relative_to(ROOT)).with_suffix(".html")]
        cells = [c for c in nbformat.read(notebook.path, as_version=4).cells if c.cell_type == "code" and c.source]
        pictures = {"image/png", "image/jpeg", "image/svg+xml"}
        shown = [o for c in cells for o in c.outputs if pictures & set(o.get("data", {}))]
        assert set(page.ids) >= {cell.id for cell in cells}, notebook.id
        assert page.tags["figure"] == len(shown), notebook.id
        assert page.tags["math"] == 0 or "$" in "".join(c.source for c in nbformat.read(notebook.path, 4).cells)


def test_previous_and_next_are_those_of_the_manifest(site):
    out, _ = site
    names = [n.id for n in manifest.load(ROOT).notebooks]
    for before, notebook, after in zip([None, *names], manifest.load(ROOT).notebooks, [*names[1:], None], strict=False):
        text = (out / Path(notebook.path.relative_to(ROOT)).with_suffix(".html")).read_text()
        for rel, name in (("prev", before), ("next", after)):
            found = re.search(rf'rel="{rel}" href="([^"]*)"', text)
            assert (Path(found[1]).stem if found else None) == name, notebook.id


def test_the_search_knows_every_notebook_and_guide(site):
    text = (site[0] / "_static" / "index.js").read_text()
    index = json.loads(text.removeprefix("window.courseIndex = ").rstrip(";\n"))
    pages = {url.partition("#")[0] for url, *_ in index}
    assert pages >= {str(n.path.relative_to(ROOT).with_suffix(".html")) for n in manifest.load(ROOT).notebooks}
    found = [url for url, _, heading, words in index if "in-flight batching" in f"{heading} {words}".lower()]
    assert any(url.startswith("notebooks/04_serving.html#") for url in found)
    assert len(text) < 600_000 and "<" not in "".join(heading for _, _, heading, _ in index)


def test_the_status_page_shows_the_recorded_runs(site):
    text = (site[0] / "status.html").read_text()
    for path in sorted((ROOT / "data" / "results").glob("*/course_run.json")):
        for run in (data := json.loads(path.read_text())).get("runs", [data]):
            for row in run.get("notebooks") or run["results"]:
                assert f"{row['seconds']:.0f} s" in text
            assert run["date"] in text and run.get("commit", "") in text
            assert all(version in text for version in run.get("versions", {}).values())


@pytest.mark.parametrize(
    "data, wanted, unwanted",
    [
        ({"text/html": "<script>live()</script>", "image/svg+xml": "<svg/>", "text/plain": "x"}, "<img", "live()"),
        ({render.WIDGET: {"model_id": "1"}, "text/plain": "VBox()"}, "make lab", "VBox"),
        ({"text/html": "<b>table</b>", "text/plain": "plain"}, "<b>table</b>", "plain"),
        ({"text/plain": "<a & b>"}, "&lt;a &amp; b&gt;", "<a &"),
    ],
)
def test_what_needs_a_kernel_becomes_its_picture_or_a_sentence(tmp_path, data, wanted, unwanted):
    cell = nbformat.v4.new_code_cell("1", outputs=[nbformat.v4.new_output("display_data", data=data)])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "a.ipynb")
    page = render.Notebooks().page(tmp_path / "a.ipynb", lambda name, content: name)
    assert wanted in page and unwanted not in page


def test_formulas_are_mathml_and_what_is_no_formula_stays():
    text = render.markdown().render("$\\frac{a}{b}$ and\n\n$$x^2$$\n\n`$x$` costs $5 to $6")
    assert text.count("<math") == 2 and "<mfrac>" in text and 'display="block"' in text and "$5 to $6" in text


def test_what_follows_a_prediction_is_folded_up_to_the_next_text(tmp_path):
    made = [nbformat.v4.new_markdown_cell("**Predict:** what?"), nbformat.v4.new_code_cell("import os")]
    for text in ("one", "two", "three"):  # the second may be the figure that the first one prepares
        made.append(nbformat.v4.new_code_cell(f"print({text})", outputs=[nbformat.v4.new_output("stream", text=text)]))
    made.insert(-1, nbformat.v4.new_markdown_cell("That is what."))
    nbformat.write(nbformat.v4.new_notebook(cells=made), tmp_path / "a.ipynb")
    page = render.Notebooks().page(tmp_path / "a.ipynb", lambda name, content: name)
    assert page.count('class="answer"') == 2
    one, two, three = (page.index(f'output">{text}<') for text in ("one", "two", "three"))
    assert page.index('class="answer"') < one < page.rindex('class="answer"') < two < three
    assert page.count('class="imports"') == 1


def test_a_dead_link_stops_the_build_and_a_strange_folder_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("mine")
    with pytest.raises(build_site.CourseError, match="something else than a site"):
        build_site.Site(ROOT, tmp_path / "mine").build()
    assert (tmp_path / "mine" / "letter.txt").read_text() == "mine"
    made = build_site.Site(ROOT, tmp_path / "out")
    body = '<a href="gone.md">x</a><a href="../data/results">y</a>'
    page = build_site.Page("docs/x.html", "guide", source="docs/x.md", body=body)
    made._links(page)
    assert made.dead == ["docs/x.md → gone.md"] and "<a>y</a>" in page.body


def test_the_first_page_names_the_guides(site):
    text = (site[0] / "index.html").read_text()
    start = text.partition('<main id="main"')[2]
    for label in ("Glossary", "Cheat sheet", "Teaching this course", "Status"):
        assert f">{label}</a>" in start, label


def page_of_a_run(folder, *cells):
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells)), folder / "00_small.ipynb")
    run_pages.page(folder / "00_small.ipynb")
    return (folder / "00_small.html").read_text()


def test_the_page_of_a_run_is_one_file_and_shows_where_the_run_stopped(tmp_path):
    picture = nbformat.v4.new_output("display_data", {"image/png": "iVBORw0="}, metadata={"image/png": {"alt": "dots"}})
    error = nbformat.v4.new_output("error", ename="ValueError", evalue="v", traceback=["\x1b[31mthe cause\x1b[0m <b>"])
    code = nbformat.v4.new_code_cell("raise it", outputs=[picture, error])
    page = page_of_a_run(tmp_path, nbformat.v4.new_markdown_cell("[next](01_next.ipynb), $x^2$"), code)
    assert '<span class="ansi-red-fg">the cause</span> &lt;b&gt;' in page and 'href="01_next.html"' in page
    assert page.count("iVBORw0=") == 1 and 'alt="dots"' in page and "<math" in page
    assert not [source for source in Read(tmp_path / "00_small.html").sources if source], "nothing is fetched"
    assert "00_small.ipynb has no page: " in page_of_a_run(tmp_path, nbformat.v4.new_markdown_cell(r"$\left( x$"))


def test_a_page_with_many_colours_takes_no_time(tmp_path):
    """nbconvert copied the rest of the text at every one: minutes for these."""
    began = time.monotonic()
    texts = ("\x1b[31mx\x1b[0m " * 120_000, "\x1b[31mred\x1b[0m <b>")
    outputs = [nbformat.v4.new_output("stream", text=text) for text in texts]
    page = page_of_a_run(tmp_path, *(nbformat.v4.new_code_cell("print(…)", outputs=[each]) for each in outputs))
    assert time.monotonic() - began < 30 and page.count("x x x") and page.count("ansi-red-fg") < 20
    assert '<span class="ansi-red-fg">red</span> &lt;b&gt;' in page
