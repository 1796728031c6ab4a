"""The course as a static site: course build site [--out build/site] [--run build]; the same as make site.

Pages are the notebooks as they are stored (with --run, those that `course run` executed into that folder), every guide
in Markdown, the files that these link to, and a status page of the recorded runs. A page lies where its source lies,
with the suffix .html. Links are relative, and nothing is fetched: the folder can be opened from disk, or published.
A dead link stops the build.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import re
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined

sys.path.insert(0, str(Path(__file__).parent))
import render  # noqa: E402

from course import manifest, runner  # noqa: E402
from servinglab.errors import CourseError  # noqa: E402

HERE = Path(__file__).parent
TITLE = "Serving language models with TensorRT-LLM and Triton"
# Guides by their place; a place that does not exist yet is no error.
REFERENCE = ("GLOSSARY.md", "docs/cheatsheet.md", "docs/coverage.md")
TEACHING = ("docs/instructors/README.md", "docs/instructors/[0-9]*.md", "docs/instructors/*.md")
PROJECT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "labs/**/*.md", "Dockerfiles/README.md",
           "lib/*/README.md", "data/**/README.md", "tests/reliability/README.md")  # fmt: skip
HEADING = re.compile(r"<h([1-4])([^>]*)>(.*?)</h\1>", re.DOTALL)
PART = re.compile(r"<(h[1-4]|p|li|td|summary)\b([^>]*)>(.*?)(?=<(?:h[1-4]|p|li|td|summary|div|/section)\b)", re.DOTALL)
LINK = re.compile(r'(<(?:a|img)\b[^>]*?\b(?:href|src)=")([^"]*)"([^>]*>)')
MOST = 400_000  # bytes of a linked file that gets a page of its own


@dataclass(eq=False)
class Page:
    """`place`: where it lies in the site; `source`: the file it shows, from the course's root."""

    place: str
    kind: str
    label: str = ""
    source: str = ""
    title: str = ""
    about: str = ""
    body: str = ""
    sections: list[tuple[str, str]] = field(default_factory=list)
    before: Page | None = None
    after: Page | None = None

    def href(self, page: Page) -> str:
        """The link from another page to this one."""
        return os.path.relpath(self.place, Path(page.place).parent)


class Site:
    def __init__(self, root: Path, out: Path, run: Path | None = None):
        self.course, self.root, self.out, self.run = manifest.load(root), root, out, run
        self.notebooks, self.dead = render.Notebooks(), []
        self.templates = Environment(
            loader=FileSystemLoader(HERE),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
        )
        self.runs = recorded(root, run)
        self.index: list[tuple[str, str, str, str]] = []
        self.pages: dict[str, Page] = {}  # by source, which is what links name

    def build(self) -> int:
        if self.out.exists():
            if not (self.out / "_static" / "site.js").is_file() and any(self.out.iterdir()):
                raise CourseError(f"{self.out} holds something else than a site: choose an empty folder with --out.")
            shutil.rmtree(self.out)
        static = self.out / "_static"
        static.mkdir(parents=True)
        shutil.copy(HERE / "site.js", static)  # by it a folder is known as a site, also after a build that stopped
        chapters = [self._page(str(n.path.relative_to(self.root)), "notebook") for n in self.course.notebooks]
        for page, notebook in zip(chapters, self.course.notebooks, strict=True):
            page.label = f"{notebook.number} {notebook.title}" if notebook.number.isdigit() else notebook.title
        listed = {page.source for page in chapters}
        found = [
            str(p.relative_to(self.root))
            for where in ("notebooks", "labs/*")
            for p in self.root.glob(f"{where}/*.ipynb")
        ]
        more = [self._page(source, "notebook") for source in sorted(set(found) - listed)]
        home, status = (
            Page("index.html", "home", "Home", title=TITLE),
            Page("status.html", "status", "Status", title="Status"),
        )
        reference = self._guides(REFERENCE)
        teaching = self._guides(TEACHING)
        project = self._guides(PROJECT)
        for row in (chapters, teaching):
            for one, other in zip(row, row[1:], strict=False):
                one.after, other.before = other, one
        everything = [home, *chapters, *more, *reference, status, *teaching, *project]
        self.groups = [("Course", [home, *chapters]), ("More notebooks", more), ("Look it up", [*reference, status]),
                       ("Teach it", teaching), ("The project", project)]  # fmt: skip
        self.groups = [(name, pages) for name, pages in self.groups if pages]
        for page in everything[1:]:  # the labels on the first page are those that the others have by then
            if page is not status:
                self._render(page)
        seconds = {name: f"{row['seconds']:.0f}" for name, row in (self.runs[0]["rows"] if self.runs else {}).items()}
        start = [
            p for p in everything if p.source in (
                "GLOSSARY.md", "docs/cheatsheet.md", "docs/instructors/README.md", "labs/incidents/README.md",
                "labs/capstone/README.md",
            )
        ]  # fmt: skip
        rows = list(zip(chapters, self.course.notebooks, strict=True))
        cards = [(page, notebook, seconds.get(notebook.id)) for page, notebook in rows]
        home.body = self._fill("home", page=home, start=[*start, status], more=more, notebooks=cards)
        facts = {
            "packages": list(dict.fromkeys(name for run in self.runs for name in run["versions"])),
            "measured_memory": any(row.get("peak") for run in self.runs for row in run["rows"].values()),
        }
        status.body = self._fill("status", page=status, runs=self.runs, notebooks=rows, **facts)
        self._render(home)
        self._render(status)
        queue = list(everything)
        for page in queue:  # what a page links to may become a page, and is looked through then
            queue += self._links(page)
        for page in queue:
            self._write(page)
        (static / "style.css").write_text((HERE / "style.css").read_text("utf-8") + render.colours() + "\n", "utf-8")
        (static / "index.js").write_text(
            f"window.courseIndex = {json.dumps(self.index, ensure_ascii=False)};\n", "utf-8"
        )
        if self.dead:
            raise CourseError("Dead links: " + "; ".join(self.dead) + ".")
        return len(queue)

    def _page(self, source: str, kind: str) -> Page:
        page = Page(str(Path(source).with_suffix(".html")), kind, source=source)
        self.pages[source] = page
        return page

    def _guides(self, patterns: tuple[str, ...]) -> list[Page]:
        sources = dict.fromkeys(
            str(p.relative_to(self.root)) for pattern in patterns for p in sorted(self.root.glob(pattern))
        )
        return [
            self._page(source, "cheatsheet" if "cheatsheet" in source else "guide")
            for source in sources
            if source not in self.pages
        ]

    def _fill(self, template: str, **values: Any) -> str:
        return self.templates.get_template(f"{template}.html.j2").render(course_title=TITLE, **values)

    def _render(self, page: Page) -> None:
        """The body of a page, its title and its sections."""
        if page.kind == "notebook":
            executed = self.run / Path(page.source).name if self.run else None
            path = executed if executed and executed.is_file() else self.root / page.source
            page.body = self.notebooks.page(path, lambda name, content: self._picture(page, name, content))
        elif page.source:
            text = (self.root / page.source).read_text(encoding="utf-8")
            page.body = f'<section class="prose">{self.notebooks.prose(text)}</section>'
        seen: set[str] = set()

        def anchored(found: re.Match[str]) -> str:
            """A heading with its anchor; each cell was rendered alone, so an anchor may be there twice."""
            level, attributes, inner = found.groups()
            given = re.search(r'id="([^"]+)"', attributes)
            base = anchor = given[1] if given else render.slug(plain(inner))
            while anchor in seen:
                anchor = f"{base}-{sum(one.startswith(base) for one in seen)}"
            seen.add(anchor)
            page.title = page.title or plain(inner)
            if level == "2":
                page.sections.append((anchor, plain(inner)))
            return f'<h{level} id="{anchor}">{inner}</h{level}>'

        page.body = HEADING.sub(anchored, page.body)
        page.title = page.title or Path(page.source).stem
        page.label = page.label or {"README.md": "README"}.get(page.source, page.title)
        self._note(page)

    def _note(self, page: Page) -> None:
        """The prose of each section, for the search; code is left out."""
        prose = "".join(re.findall(r'<section class="prose">.*?</section>', page.body, re.DOTALL)) or page.body
        where, heading, words = "", "", []
        for level, attributes, inner in [*PART.findall(prose), ("h1", "", "")]:
            if level[0] == "h":
                if words:
                    self.index.append((page.place + where, page.title, heading, " ".join(words)))
                where, heading, words = "#" + attributes.partition('id="')[2].partition('"')[0], plain(inner), []
            else:
                words.append(plain(inner))
        page.about = next((text[:150] for url, _, _, text in self.index if url.startswith(page.place)), "")

    def _picture(self, page: Page, name: str, content: bytes) -> str:
        path = self.out / "_images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return os.path.relpath(f"_images/{name}", Path(page.place).parent)

    def _links(self, page: Page) -> list[Page]:
        """Point a page's links to files of the course at their pages. Returns those that had none before."""
        if not page.source or page.kind == "file":
            return []
        folder, new = (self.root / page.source).parent, []

        def pointed(found: re.Match[str]) -> str:
            before, given, after = found.groups()
            address = urlsplit(html.unescape(given))
            if address.scheme or address.netloc or not address.path or "_images/" in address.path:
                return found[0]
            path = Path(os.path.normpath(folder / unquote(address.path)))
            source = str(path.relative_to(self.root)) if path.is_relative_to(self.root) else ""
            if source and f"{source}/README.md" in self.pages:
                source += "/README.md"
            if source in self.pages:
                target = self.pages[source].href(page)
            elif source and path.is_file():
                target, made = self._file(page, source, before.startswith("<img"))
                new.extend(made)
            elif source and path.is_dir():
                return "<a" + after  # a folder has no page
            else:
                self.dead.append(f"{page.source} → {given}")
                return found[0]
            return before + html.escape(target + (f"#{address.fragment}" if address.fragment else "")) + '"' + after

        page.body = LINK.sub(pointed, page.body)
        return new

    def _file(self, page: Page, source: str, picture: bool) -> tuple[str, list[Page]]:
        path = self.root / source
        try:
            if picture or path.stat().st_size > MOST:
                raise UnicodeError
            place = re.sub(r"(^|/)\.", r"\1", source)  # GitHub Pages leaves out a folder whose name begins with a dot
            made = Page(f"{place}.html", "file", path.name, source, path.name, body=render.source_page(path))
            self.pages[source] = made
            return made.href(page), [made]
        except UnicodeError:  # a picture, or too large to be read as a page
            (self.out / source).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, self.out / source)
            return os.path.relpath(source, Path(page.place).parent), []

    def _write(self, page: Page) -> None:
        target = self.out / page.place
        target.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * (len(Path(page.place).parts) - 1)
        target.write_text(self._fill("page", page=page, up=up, groups=self.groups), encoding="utf-8")


def plain(fragment: str) -> str:
    """The words of a piece of HTML; of a formula its symbols."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " " if "<br" in fragment else "", fragment)).split())


def recorded(root: Path, run: Path | None) -> list[dict[str, Any]]:
    """The runs of the status page: that of this site where it has one, then those in data/results/*/course_run.json."""
    found = []
    if run and (results := runner.earlier(run)):
        rows = {r.id: {"status": r.status, "seconds": r.seconds, "peak": r.memory_mb} for r in results}
        date = time.strftime("%Y-%m-%d", time.localtime(max(p.stat().st_mtime for p in run.glob("*.ipynb"))))
        found.append(_run("this site's run", rows, date=date, machine="the machine that built this site"))
    for path in sorted((root / "data" / "results").glob("*/course_run.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        for one in data.get("runs", [data]):
            listed = one.get("notebooks") or one["results"]
            rows = {row["id"]: row | {"peak": row.get("memory_mb") or row.get("peak_mb")} for row in listed}
            machine = one.get("device", "–")
            machine = one.get("cpu", "–") if machine == "cpu" else machine
            facts = {"date": one["date"], "versions": one.get("versions", {}), "commit": one.get("commit", "–")}
            facts["machine"] = machine + (f", {one['cores']} cores" if "cores" in one else "")
            if "tag" in data:
                facts["lane"] = f"trtllm, in a stand-in for {data['tag']}"
                machine = f"stand-in: {one['layout']}, {one['by']}"
            found.append(_run(machine, rows, **facts))
    return found


def _run(name: str, rows: dict[str, Any], **facts: Any) -> dict[str, Any]:
    passed = sum(row["status"] == "passed" for row in rows.values())
    made = {"name": name, "rows": rows, "seconds": sum(row["seconds"] for row in rows.values())}
    made["passed"] = f"{passed} of {len(rows)}"
    return {"lane": "embedded", "commit": "–", "versions": {}, "machine": "–", **made, **facts}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="course build site", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="folder of the site; build/site of the course when left out")
    parser.add_argument(
        "--run", type=Path, help="a folder that `course run` wrote; its notebooks in place of the stored ones"
    )
    given = parser.parse_args(arguments)
    root = manifest.load().root
    if given.run and not runner.earlier(given.run):
        parser.error(f"{given.run} holds no run: course run --out {given.run} makes one.")
    out = (given.out or root / "build" / "site").resolve()
    try:
        count = Site(root, out, given.run).build()
    except CourseError as error:
        sys.exit(f"course build site: {error}")
    print(f"{count} pages: {out / 'index.html'}")


if __name__ == "__main__":
    main()
