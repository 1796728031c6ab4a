"""Markdown and notebooks as HTML, with formulas as MathML: nothing that a page shows needs a network or a script."""

from __future__ import annotations

import ast
import base64
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markupsafe import escape
from mdit_py_plugins.anchors import anchors_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from nbconvert import TemplateExporter
from nbconvert.filters import ansi2html, strip_ansi
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.styles import get_style_by_name
from pygments.token import STANDARD_TYPES, Token
from pygments.util import ClassNotFound

PRIORITY = ("image/svg+xml", "image/png", "image/jpeg", "text/html", "text/markdown", "text/latex", "text/plain")
MOST_COLOURS = 2000  # of one output: nbconvert takes time that grows with the square of their number
WIDGET = "application/vnd.jupyter.widget-view+json"
SUFFIX = {"image/svg+xml": ".svg", "image/png": ".png", "image/jpeg": ".jpg"}


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def math(tex: str, display: str = "inline") -> str:
    """A formula as MathML; a long one within a sentence may scroll on a small screen."""
    made = convert(tex, display=display)
    return f'<span class="long">{made}</span>' if display == "inline" and len(tex) > 25 else made


def colour(text: str, language: str = "text") -> str:
    """Code in colours; the classes are those of `colours()`."""
    try:
        lexer = get_lexer_by_name(language or "text")
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    return highlight(text.strip("\n"), lexer, HtmlFormatter(cssclass="highlight"))


def only_imports(source: str) -> bool:
    """Whether a cell does nothing but import: a page shows it folded."""
    try:
        return all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.parse(source).body)
    except SyntaxError:  # a magic of IPython, or a top-level await
        return False


def source_page(path: Path) -> str:
    """A text file of the course, in colours."""
    try:
        language = get_lexer_for_filename(path.name).aliases[0]
    except (ClassNotFound, IndexError):
        language = "text"
    return f"<h1>{escape(path.name)}</h1>\n{colour(path.read_text(encoding='utf-8'), language)}"


def colours() -> str:
    """CSS of the colours of code, each for light and for dark pages."""
    light, dark = get_style_by_name("xcode"), get_style_by_name("github-dark")
    rules = []
    for token, name in STANDARD_TYPES.items():
        one, other = light.style_for_token(token), dark.style_for_token(token)
        if name and token is not Token.Error and (one["color"] or other["color"]):
            pair = f"light-dark(#{one['color'] or '1c2128'}, #{other['color'] or 'dde3ea'})"
            rules.append(f".highlight .{name} {{ color: {pair}; }}")
    ansi = {"red": "#b3261e, #ff8a80", "green": "#1a6b2f, #7ee08f", "yellow": "#7a5b00, #e8c35a",
            "blue": "#0a56b0, #79b8ff", "magenta": "#8b2fa0, #dba0ee", "cyan": "#0b6b76, #6fd6e2"}  # fmt: skip
    rules += [f".ansi-{n}-fg, .ansi-{n}-intense-fg {{ color: light-dark({pair}); }}" for n, pair in ansi.items()]
    return "\n".join([*rules, ".ansi-bold { font-weight: 600; }"])


def terminal(text: str) -> str:
    """A terminal's text as HTML, in its colours unless there are too many."""
    return ansi2html(text if text.count("\x1b[") < MOST_COLOURS else strip_ansi(text))


def markdown() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": True, "highlight": lambda text, language, _: colour(text, language)})
    made.enable(["table", "strikethrough"])
    made.use(anchors_plugin, max_level=4, slug_func=slug)
    made.use(dollarmath_plugin, allow_space=False, allow_digits=False)
    made.add_render_rule("table_open", lambda *_: '<div class="wide"><table>\n')
    made.add_render_rule("table_close", lambda *_: "</table></div>\n")
    made.add_render_rule("math_inline", lambda _, tokens, at, *__: math(tokens[at].content))
    made.add_render_rule("math_block", lambda _, tokens, at, *__: math(tokens[at].content, "block"))
    made.add_render_rule("fence", lambda _, tokens, at, *__: colour(tokens[at].content, tokens[at].info.strip()))
    return made


class Notebooks:
    """Renders notebooks; pictures go to files, through `keep(name, content)`, which returns the address on a page."""

    def __init__(self) -> None:
        self.markdown = markdown()
        self._keep: Callable[[str, bytes], str] = lambda name, content: name
        where = {"template_name": "notebook", "extra_template_basedirs": [str(Path(__file__).parent)]}
        self._exporter = TemplateExporter(file_extension=".html", **where)
        filters = {"prose": self.prose, "code": lambda text: colour(text, "python"), "ansi": terminal,
                   "best": self.best, "picture": self.picture, "only_imports": only_imports}  # fmt: skip
        for name, made in filters.items():
            self._exporter.register_filter(name, made)

    def page(self, path: Path, keep: Callable[[str, bytes], str]) -> str:
        notebook = nbformat.read(path, as_version=4)
        self._keep, asked = keep, False
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                asked = "**Predict" in cell.source
            elif cell.cell_type == "code":  # what answers a question is folded, up to the next text
                cell.metadata.predicted = asked
        return self._exporter.from_notebook_node(notebook)[0]

    def prose(self, text: str) -> str:
        return self.markdown.render(text)

    @staticmethod
    def best(data: dict[str, Any]) -> str:
        """What a page shows of an output: a picture where there is one, never what needs a kernel."""
        found = next((kind for kind in PRIORITY if kind in data), "")
        return "widget" if WIDGET in data and found in ("", "text/plain") else found

    def picture(self, output: Any, kind: str) -> str:
        data = output.data[kind]
        content = data.encode() if kind == "image/svg+xml" else base64.b64decode(data)
        address = self._keep(hashlib.sha256(content).hexdigest()[:16] + SUFFIX[kind], content)
        said = output.metadata.get(kind, {})
        alt = said.get("alt") or output.metadata.get("alt") or ""
        width = f' width="{said["width"]}"' if said.get("width") else ""
        image = f'<img src="{address}" alt="{escape(alt)}" loading="lazy"{width}>'
        return f'<figure><a href="{address}">{image}</a></figure>'
