"""Exercises outside the notebook: put solutions in, read verdicts out.

``notebooks/solutions/05.py`` holds, by exercise id, the code that replaces the stub cell:

    SETUP = "import numpy as np"                     # optional: names the notebook has by then
    LIVE = {"05.2"}                                  # optional: those whose check takes seconds, as a server judges
    SOLUTIONS = {"05.1": 'answer_1 = "triton_final_response"'}
    MUTANTS = {"05.1": [("output instead of parameter", 'answer_1 = "sequence_end"', "is an output tensor")]}

A mutant is (what the learner believes, the code they would write, words the check must say).
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import copy
import functools
import io
import os
import re
import runpy
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from nbformat import NotebookNode
from notebook_files import NotebookError, notebook_folders, tagged
from tritonclient.grpc import InferenceServerClient

from servinglab import assets, scratch
from servinglab.server import TritonServer
from servinglab.serving import serve

_VERDICT = re.compile(r"^(\d\d\.\d+) (right|wrong|not attempted): (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Answers:
    """Solutions and mutants of one notebook."""

    solutions: dict[str, str]
    mutants: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)
    setup: str = ""
    live: frozenset[str] = frozenset()


def load_answers(notebook: str, folder: Path | None = None) -> Answers:
    """Answers of a notebook ("05"), from ``folder`` or from where the course has them. Raises NotebookError when the
    file or its SOLUTIONS is missing. The playground has no exercises."""
    if notebook == "playground":
        return Answers({})
    folders = [folder] if folder else [place / "solutions" for place in notebook_folders()]
    paths = [place / f"{notebook}.py" for place in folders]
    path = next((p for p in paths if p.is_file()), paths[0])
    if not path.is_file():
        raise NotebookError(f"notebook {notebook} has exercises but no solutions/{path.name}; write one")
    names = runpy.run_path(str(path))
    if "SOLUTIONS" not in names:
        raise NotebookError(f"solutions/{path.name} must define SOLUTIONS = {{exercise id: code}}")
    live = frozenset(names.get("LIVE", ()))
    return Answers(names["SOLUTIONS"], names.get("MUTANTS", {}), names.get("SETUP", ""), live)


@functools.cache
def _server() -> tuple[TritonServer, InferenceServerClient]:
    server = serve(draft_engine_dir=assets.engine("smollm2-draft", "int4"), max_beam_width=8)
    client = InferenceServerClient(server.grpc_url)
    atexit.register(client.close)
    return server, client


class _Served:
    """A client of the five models and a draft model, for a SETUP whose check asks the notebook's server; also that
    server, for its URL. It is one for all, and starts when the client is first used."""

    def __getattr__(self, name: str) -> Any:
        server, client = _server()
        return getattr(client if hasattr(client, name) else server, name)


served = _Served()


def exercise_ids(notebook: NotebookNode) -> list[str]:
    """A notebook's exercises, in its order. Raises NotebookError for a stub without its check, or the reverse."""
    stubs, checks = tagged(notebook, "exercise:"), tagged(notebook, "check:")
    if lonely := sorted(set(stubs) ^ set(checks)):
        raise NotebookError(f"exercise {', '.join(lonely)} needs both a stub cell and a check cell")
    return list(stubs)


def with_solutions(notebook: NotebookNode, solutions: dict[str, str]) -> NotebookNode:
    """A copy of the notebook in which every stub cell holds its solution."""
    solved = copy.deepcopy(notebook)
    for exercise_id, cell in tagged(solved, "exercise:").items():
        if exercise_id not in solutions:
            raise NotebookError(f"exercise {exercise_id} has no solution")
        cell.source = solutions[exercise_id]
    return solved


def assigned_names(code: str) -> set[str]:
    """Names a cell gives a value to at its top level: variables and functions."""
    names: set[str] = set()
    for node in ast.parse(code).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            names |= {leaf.id for leaf in ast.walk(target) if isinstance(leaf, ast.Name)} if target else set()
    return names


def verdicts_of(text: str) -> dict[str, tuple[str, str]]:
    """Verdicts printed in a text: {id: (status, message)}."""
    return {i: (status, message) for i, status, message in _VERDICT.findall(text)}


def verdicts(notebook: NotebookNode) -> dict[str, tuple[str, str]]:
    """Verdicts in the outputs of an executed notebook's check cells."""
    cells = tagged(notebook, "check:").values()
    return verdicts_of("".join(output.get("text", "") for cell in cells for output in cell.outputs))


@functools.cache
def _folder() -> Path:
    atexit.register((stack := contextlib.ExitStack()).close)
    return stack.enter_context(scratch.folder())


def ask(notebook: NotebookNode, exercise_id: str, code: str, setup: str = "") -> tuple[str, str]:
    """Verdict on one answer without a kernel: run ``setup``, the answer, then the notebook's own check cell."""
    names: dict[str, object] = {}
    printed = io.StringIO()
    # What a check writes, and a server it keeps, goes with this process, which may do other things meanwhile.
    own = mock.patch.object(tempfile, "tempdir", str(_folder())), mock.patch.dict(os.environ, TMPDIR=str(_folder()))
    with contextlib.redirect_stdout(printed), own[0], own[1], warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a wrong answer may divide by zero: its verdict says so
        exec(setup, names)
        exec(code, names)
        exec("from servinglab.checks import check", names)
        exec(tagged(notebook, "check:")[exercise_id].source, names)
    return verdicts_of(printed.getvalue()).get(exercise_id, ("silent", printed.getvalue()))
