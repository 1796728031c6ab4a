"""What every notebook of the course has in common, as checks: header, first cells, rhythm, last cells, figures."""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import re
import statistics
import tokenize
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode
from notebook_files import ROOT, tagged, tags

from course.manifest import Notebook

MEDIAN_LINES, MOST_LINES, MOST_SHARE, CAP_LINES = 6, 12, 0.90, 30
OURS = ("servinglab", "engines", "reference_backend", "course", "cliplab", "plots", "drafters", "build_log", "minilm",
        "traffic", "standin")  # fmt: skip
MOST_NAMES = 10
PROSE_SHARE = 0.75
PICTURE_BYTES = 150_000

_TIME = re.compile(
    r"^\*\*Time:\*\* (?P<minutes>\d+) minutes · \*\*Lanes:\*\* (?P<lanes>[a-z, ]+) · \*\*Needs:\*\* (?P<needs>.+)$",
    re.MULTILINE,
)
_WAY = re.compile(r"^Previous: (?P<previous>.+) · Next: (?P<next>.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def findings(notebook: NotebookNode, entry: Notebook) -> list[str]:
    """Everything that breaks the course's style. ``entry``: the notebook's entry in course.toml."""
    lesson = [*header(notebook, entry), *last_cells(notebook)] if entry.number.isdigit() else []
    return [
        *lesson, *first_cells(notebook, entry), *names_of_ours(notebook), *rhythm(notebook),
        *links(notebook, ROOT / entry.folder), *figures(notebook), *commands(notebook),
    ]  # fmt: skip


def header(notebook: NotebookNode, entry: Notebook) -> list[str]:
    """Title, one sentence of promise, 3 to 5 objectives, minutes, lanes, needs, previous and next."""
    cell = notebook.cells[0]
    if cell.cell_type != "markdown":
        return ["cell 1 must be the header, in markdown"]
    blocks = [block.strip() for block in cell.source.split("\n\n")]
    found = []
    title = f"# {entry.number} · {entry.title}"
    if blocks[0] != title:
        found.append(f"the header must begin with {title!r}, not {blocks[0]!r}")
    promise = blocks[1] if len(blocks) > 1 else ""
    if promise.startswith("-") or not promise.endswith(".") or re.search(r"[.!?]\s+[A-Z]", promise):
        found.append("the paragraph after the title must be the promise, in one sentence")
    objectives = re.findall(r"^- ", cell.source, re.MULTILINE)
    if not 3 <= len(objectives) <= 5:
        found.append(f"the header needs 3 to 5 objectives as a list, it has {len(objectives)}")
    time = _TIME.search(cell.source)
    if time is None:
        found.append("the header needs the line '**Time:** N minutes · **Lanes:** … · **Needs:** …'")
    else:
        lanes = [lane.strip() for lane in time["lanes"].split(",")]
        if int(time["minutes"]) != entry.minutes:
            found.append(f"the header says {time['minutes']} minutes, course.toml {entry.minutes}")
        if lanes != list(entry.lanes):
            found.append(f"the header says lanes {', '.join(lanes)}, course.toml {', '.join(entry.lanes)}")
        parts = re.search(r"^read: (\d+) min, do: (\d+) min$", cell.source, re.MULTILINE)
        if parts is None or sum(map(int, parts.groups())) != entry.minutes:
            found.append(f"the header needs 'read: N min, do: N min', together {entry.minutes}")
    if _WAY.search(cell.source) is None:
        found.append("the header needs the line 'Previous: … · Next: …'")
    return found


def first_cells(notebook: NotebookNode, entry: Notebook) -> list[str]:
    """Cell 2 imports; cell 3, tagged parameters, holds typed and commented plain values; the next code cell begins."""
    cells = notebook.cells
    found = []
    if len(cells) < 3 or cells[1].cell_type != "code" or not _only_imports(cells[1].source):
        found.append("cell 2 must be code that imports, and does nothing else")
    if len(cells) < 3 or "parameters" not in tags(cells[2]):
        return [*found, "cell 3 must be tagged 'parameters'"]
    found += parameter_problems(cells[2].source)
    values = parameters(cells[2].source)
    if values != entry.parameters:
        found.append(f"the parameters cell says {values}, course.toml {entry.parameters}; make them equal")
    after = next((cell.source for cell in cells[3:] if cell.cell_type == "code"), "")
    if entry.number not in [_first_value(call) for call in _calls(after, "notebook.begin")]:
        found.append(f'the first code cell after the parameters must call notebook.begin("{entry.number}", lane, …)')
    return found


def _only_imports(code: str) -> bool:
    return all(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.parse(code).body)


def _calls(code: str, name: str) -> list[ast.Call]:
    calls = [node for node in ast.walk(_tree(code)) if isinstance(node, ast.Call)]
    return [call for call in calls if ast.unparse(call.func) == name]


def _first_value(call: ast.Call) -> object:
    return call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None


def _tree(code: str) -> ast.Module:
    """The parsed code of a cell; a line for IPython, such as `%pip`, is left out (see `commands`)."""
    return ast.parse("\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in code.splitlines()))


def imported(notebook: NotebookNode) -> list[tuple[str, str]]:
    """Every (module, name) that the code cells import, once, in order; of `import a.b` the name is ""."""
    names: dict[tuple[str, str], None] = {}
    for node in _nodes(notebook):
        if isinstance(node, ast.Import):
            names |= dict.fromkeys((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names |= dict.fromkeys((node.module or "", alias.name) for alias in node.names)
    return list(names)


def names_of_ours(notebook: NotebookNode) -> list[str]:
    """Few names come from our packages: a cell calls the API that the learner will meet at work."""
    ours = [f"{module}.{name}".strip(".") for module, name in imported(notebook) if module.split(".")[0] in OURS]
    if len(ours) <= MOST_NAMES:
        return []
    return [f"{len(ours)} names come from our packages; at most {MOST_NAMES}: {', '.join(ours)}"]


def uses(notebook: NotebookNode, package: str) -> bool:
    """Whether a code cell imports a package, or a module of it, and a cell uses a name that this gave."""
    given = set()
    for node in _nodes(notebook):
        if isinstance(node, ast.Import):
            given |= {a.asname or a.name.split(".")[0] for a in node.names if a.name.split(".")[0] == package}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package:
            given |= {alias.asname or alias.name for alias in node.names}
    return any(isinstance(node, ast.Name) and node.id in given for node in _nodes(notebook))


def _nodes(notebook: NotebookNode) -> Iterator[ast.AST]:
    return (node for cell in notebook.cells if cell.cell_type == "code" for node in ast.walk(_tree(cell.source)))


def parameters(code: str) -> dict[str, object]:
    """Names and default values in a parameters cell; what is not a plain value is left out."""
    values = {}
    for node in ast.parse(code).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            with contextlib.suppress(ValueError):
                values[node.target.id] = ast.literal_eval(node.value)
    return values


def parameter_problems(code: str) -> list[str]:
    """A parameters cell may hold ``name: type = literal  # comment`` only.

    Papermill overrides values after the cell ran, so a value derived here would keep the old one.
    """
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    found = []
    for node in ast.parse(code).body:
        line = ast.get_source_segment(code, node)
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value):
            found.append(f"parameter line {line!r} must be 'name: type = value  # comment'")
            continue
        try:
            ast.literal_eval(node.value)
        except ValueError:
            found.append(f"parameter {node.target.id} is derived; move it to the next cell")
        if node.end_lineno not in comments:
            found.append(f"parameter {node.target.id} has no comment")
    return found


def rhythm(notebook: NotebookNode) -> list[str]:
    """Short cells, most of them introduced by prose."""
    code = [(n, cell) for n, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    lengths = [sum(1 for line in cell.source.splitlines() if line.strip()) for _, cell in code]
    found = []
    if statistics.median(lengths) > MEDIAN_LINES:
        found.append(f"the median code cell has {statistics.median(lengths):g} lines; at most {MEDIAN_LINES}")
    share = sum(length <= MOST_LINES for length in lengths) / len(lengths)
    if share < MOST_SHARE:
        found.append(f"{share:.0%} of the code cells have at most {MOST_LINES} lines; {MOST_SHARE:.0%} must")
    found += [
        f"cell {n + 1} has {length} lines; at most {CAP_LINES}"
        for (n, _), length in zip(code, lengths, strict=True)
        if length > CAP_LINES
    ]
    introduced = sum(n > 0 and notebook.cells[n - 1].cell_type == "markdown" for n, _ in code) / len(code)
    if introduced < PROSE_SHARE:
        found.append(f"{introduced:.0%} of the code cells follow prose; {PROSE_SHARE:.0%} must")
    return found


def last_cells(notebook: NotebookNode) -> list[str]:
    """Recap, an experiment that breaks something, and the results record as the last cell."""
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    found = [f"a section '## {name}' is missing" for name in ("Recap", "Break it") if f"## {name}" not in prose]
    last = notebook.cells[-1]
    calls = _calls(last.source, "notebook.record") if last.cell_type == "code" else []
    if not calls or any(call.args for call in calls):
        found.append("the last cell must call notebook.record(name=value, …)")
    exercises = tagged(notebook, "exercise:")
    if not 2 <= len(exercises) <= 3:
        found.append(f"a notebook has 2 or 3 exercises, this one {len(exercises)}")
    return found


def links(notebook: NotebookNode, folder: Path) -> list[str]:
    """Relative links lead to files of the course."""
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    targets = _LINK.findall(prose)
    return [f"the link to {target} leads nowhere" for target in targets if not (folder / target).exists()]


def figures(notebook: NotebookNode) -> list[str]:
    """What draws has its picture, and pictures stay small enough for a page that loads at once."""
    found = []
    for number, cell in enumerate(notebook.cells, start=1):
        kinds = {kind for output in cell.get("outputs", []) for kind in output.get("data", {})}
        draws = cell.cell_type == "code" and re.search(r"^(show|explore|playground)\(", cell.source, re.MULTILINE)
        if draws and not kinds & {"image/png", "image/jpeg", "image/svg+xml"}:
            found.append(f"cell {number} draws, but no picture is stored: execute the notebook")
        for output in cell.get("outputs", []):
            for kind in ("image/png", "image/jpeg"):
                size = len(base64.b64decode(output.get("data", {}).get(kind, "")))
                if size > PICTURE_BYTES:
                    most = PICTURE_BYTES // 1000
                    found.append(f"cell {number} stores a picture of {size // 1000} kB; at most {most} kB")
    return found


def commands(notebook: NotebookNode) -> list[str]:
    """Nothing is installed and no shell is needed in the middle of a lesson."""
    return [
        f"cell {number} runs the shell command {line.strip()!r}; call Python instead"
        for number, cell in enumerate(notebook.cells, start=1)
        if cell.cell_type == "code"
        for line in cell.source.splitlines()
        if re.match(r"\s*(!|%%?(bash|sh|pip|conda|script)\b)", line)
    ]
