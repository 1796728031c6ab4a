#!/usr/bin/env python
"""Make notebooks/NN_topic.ipynb, executed and with outputs, from notebooks/text/NN_topic.py.

    python tools/execute_notebooks.py            every notebook, in order
    python tools/execute_notebooks.py 05 03      only these
    python tools/execute_notebooks.py --check    execute, compare nothing, write nothing: does it run?
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from notebook_files import (
    NOTEBOOKS,
    NotebookError,
    notebook_of,
    read_source,
    scrub,
    set_last_run,
    storage_problems,
    text_sources,
    write,
)

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class _ThisInterpreter(AsyncKernelManager):
    """Kernels named python3 run in the interpreter that runs this script, whatever a user's kernel folders say."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.kernel_spec_manager = KernelSpecManager(kernel_dirs=[], ensure_native_kernel=True)


def execute(notebook: NotebookNode, name: str, *, cwd: Path = NOTEBOOKS, cell_timeout: int = 600) -> float:
    """Execute in place and return the seconds it took. Raises NotebookError that names the cell."""
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        kernel_manager_class=_ThisInterpreter,
        timeout=cell_timeout,
        store_widget_state=False,
        record_timing=False,
        resources={"metadata": {"path": str(cwd)}},
    )
    started = time.perf_counter()
    try:
        # A run by a script has nobody to move a slider: servinglab.explore draws its figure only.
        client.execute(env={**os.environ, "SERVINGLAB_STATIC": "1"})
    except CellExecutionError as error:
        raise NotebookError(f"{name}, {_where(notebook)}: {error.ename}: {_ANSI.sub('', error.evalue)}") from None
    except CellTimeoutError:
        raise NotebookError(f"{name}, {_where(notebook)}: still running after {cell_timeout} s") from None
    except DeadKernelError:
        raise NotebookError(f"{name}, {_where(notebook)}: the kernel died") from None
    return time.perf_counter() - started


def _where(notebook: NotebookNode) -> str:
    """The cell that was running: the first code cell with an error, else the first that never finished."""
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "code":
            continue
        failed = any(output.output_type == "error" for output in cell.outputs)
        if failed or cell.execution_count is None:
            return f"cell {number} ({cell.source.strip().splitlines()[0][:60]!r})"
    return "after the last cell"


def make(source: Path, *, keep: bool = True, cell_timeout: int = 600) -> float:
    """Execute one text source; with ``keep``, write the .ipynb and the measured seconds. Returns the seconds."""
    notebook = read_source(source)
    seconds = execute(notebook, source.stem, cwd=source.parents[1], cell_timeout=cell_timeout)
    scrub(notebook)
    if problems := storage_problems(notebook):
        raise NotebookError(f"{source.stem}: " + "; ".join(problems))
    if keep:
        text = set_last_run(source.read_text(encoding="utf-8"), seconds)
        source.write_text(text, encoding="utf-8")
        notebook.cells[0].source = read_source(source).cells[0].source
        write(nbformat.from_dict(notebook), notebook_of(source))
    return seconds


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", help="notebook numbers such as 05")
    parser.add_argument("--check", action="store_true", help="execute without writing anything")
    parser.add_argument("--folder", type=Path, default=NOTEBOOKS, help="the notebooks folder")
    parser.add_argument("--cell-timeout", type=int, default=600, help="seconds a cell may take")
    options = parser.parse_args(arguments)
    sources = text_sources(options.folder)
    unknown = sorted(set(options.ids) - {s.name[:2] for s in sources})
    if unknown:
        have = ", ".join(s.name[:2] for s in sources) or "none"
        print(f"no notebook {', '.join(unknown)} in {options.folder / 'text'}; there are: {have}", file=sys.stderr)
        return 2
    failed = 0
    for source in sources:
        if options.ids and source.name[:2] not in options.ids:
            continue
        print(f"{source.stem} …", flush=True)
        try:
            seconds = make(source, keep=not options.check, cell_timeout=options.cell_timeout)
            print(f"{source.stem}: {seconds:.1f} s", flush=True)
        except NotebookError as error:
            failed += 1
            print(f"FAILED {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
