"""The pages of `course run`: each executed notebook as one file that needs no network, and an index of them."""

from __future__ import annotations

import base64
import re
import time
from html import escape
from pathlib import Path
from typing import Any

import render
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from course.manifest import Course
from course.runner import Result
from servinglab.keep import Keeper
from servinglab.notebook import device

HERE = Path(__file__).parent
TITLE = "The course, executed"
_TEMPLATES = Environment(loader=FileSystemLoader(HERE), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
_KINDS = {suffix: kind for kind, suffix in render.SUFFIX.items()}


def page(notebook: Path) -> None:
    """Write the page of an executed notebook beside it, with its pictures inside; links lead to the other pages."""
    if not notebook.is_file():
        return
    try:
        body = _body(notebook)
    except Exception as error:  # such as a formula of yours that is none; the run goes on
        body = f"<p class='bad'>{escape(notebook.name)} has no page: {escape(f'{type(error).__name__}: {error}')}</p>"
    _write(notebook.with_suffix(".html"), title=notebook.stem, body=body)


def index(course: Course, results: list[Result], out: Path) -> Path:
    """Write `out`/index.html: the notebooks that ran, with time, status and links to page and notebook."""
    titles = {n.id: n.title for n in course.notebooks}
    made = [[(out / f"{r.id}{kind}").exists() for kind in (".html", ".ipynb")] for r in results]
    rows = [(titles.get(r.id, r.id), r, *there) for r, there in zip(results, made, strict=True)]
    _write(out / "index.html", title=TITLE, rows=rows, when=time.strftime("%Y-%m-%d %H:%M"), device=device())
    return out / "index.html"


def _body(notebook: Path) -> str:
    body = render.Notebooks().page(notebook, lambda name, content: _inside(Path(name).suffix, content))
    body = re.sub(r'<a href="data:[^"]*">(<img [^>]*>)</a>', r"\1", body)
    body = re.sub(r'(<img [^>]*?src=")(pictures/[^"]+)', lambda m: m[1] + _shown(notebook.parent / m[2], m[2]), body)
    return re.sub(r'href="(\d\d_\w+)\.ipynb"', r'href="\1.html"', body)


def _write(path: Path, **values: Any) -> None:
    style = (HERE / "style.css").read_text("utf-8") + render.colours()
    text = _TEMPLATES.get_template("run.html.j2").render(style=style, **values)
    Keeper(path.parent).write(path, f"{text}\n".encode())


def _shown(picture: Path, address: str) -> str:
    return _inside(picture.suffix, picture.read_bytes()) if picture.is_file() else address


def _inside(suffix: str, content: bytes) -> str:
    return f"data:{_KINDS[suffix]};base64,{base64.b64encode(content).decode()}"
