"""Child process of `course run`: executes one notebook with papermill and reports each cell as a line of JSON.

    python -m servinglab.execute INPUT OUTPUT PARAMETERS_JSON KERNEL_FOLDER DESCRIPTOR

A process of its own, because papermill may hang (with its kernel, or after the last cell): the parent then ends it.
Lines that go to the open file DESCRIPTOR, which no kernel inherits: {"cells": N}, {"cell": i, "source": first line},
and one of {"ok": true} or {"error": one sentence}.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def say(stream: Any, **line: Any) -> None:
    print(json.dumps(line), file=stream, flush=True)


def _first_line(cell: Any) -> str:
    lines = [line.strip() for line in cell.source.splitlines() if line.strip()]
    return lines[0][:80] if lines else ""


def _plain(text: Any) -> str:
    """One line, without what a terminal would obey."""
    line = " ".join(_ANSI.sub("", str(text)).split())[:2000]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


def check_kernel(notebook: Any, path: Path) -> str | None:
    """The sentence to show when the notebook asks for a kernel that this environment does not have; else None."""
    name = notebook.metadata.get("kernelspec", {}).get("name", "python3")
    if name == "python3":
        return None
    return (
        f"{path.name} asks for the kernel '{name}', but the course's environment has only 'python3', its own Python; "
        "open it in JupyterLab (.venv/bin/jupyter lab), choose the kernel 'Python 3' and save it."
    )


def execute(source: Path, target: Path, parameters: dict[str, Any], folder: Path, stream: Any) -> bool:
    """Run `source` with `parameters` into `target`, the kernel working in `folder`. True when every cell ran."""
    import nbclient.client
    import nbformat
    import papermill
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient.exceptions import DeadKernelError
    from papermill.engines import NBClientEngine, papermill_engines
    from papermill.exceptions import PapermillExecutionError

    class ThisInterpreter(AsyncKernelManager):
        """The kernel is this interpreter's ipykernel, whatever kernels the user has installed."""

        def __init__(self, **kwargs: Any):
            super().__init__(**kwargs)
            self.kernel_spec_manager = KernelSpecManager(kernel_dirs=[], ensure_native_kernel=True)
            # Over TCP every user of the machine could read all outputs. The name of a socket file has an end, though.
            if len(os.fsencode(folder := tempfile.gettempdir())) < 80:
                self.transport, self.connection_file = "ipc", os.path.join(folder, f"kernel-{os.getpid()}.json")

    class Reporting(NBClientEngine):
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **kwargs: Any) -> Any:
            say(stream, cells=len(nb_man.nb.cells))
            start = nb_man.cell_start

            def cell_start(cell: Any, cell_index: int | None = None, **more: Any) -> None:
                say(stream, cell=(cell_index or 0) + 1, source=_first_line(cell))
                start(cell, cell_index, **more)

            nb_man.cell_start = cell_start
            # One block for a streamed sentence, not one for each token. nbclient's own pattern for it takes time that
            # grows with the square of a line's length; this one matches the same.
            nbclient.client._RGX_CARRIAGERETURN = re.compile(r"(?m)^.*\r(?=[^\n])")
            kwargs |= {"kernel_manager_class": ThisInterpreter, "coalesce_streams": True}
            return super().execute_managed_notebook(nb_man, kernel_name, **kwargs)

    try:
        notebook = nbformat.read(source, as_version=4)
    except FileNotFoundError:
        say(stream, error=f"{source} does not exist; restore it with git.")
        return False
    except Exception as error:  # nbformat raises whatever its JSON and schema readers raise
        say(stream, error=f"{source} is not a notebook: {str(error).splitlines()[0]}")
        return False
    if problem := check_kernel(notebook, source):
        say(stream, error=problem)
        return False
    papermill_engines.register("course", Reporting)
    try:
        papermill.execute_notebook(
            str(source),
            str(target),
            parameters=parameters,
            engine_name="course",
            kernel_name="python3",
            cwd=str(folder),
            progress_bar=False,
            autosave_cell_every=5,
            start_timeout=120,
            store_widget_state=False,
        )
    except PapermillExecutionError as error:
        say(stream, error=f"cell {error.cell_index + 1}: {error.ename}: {_plain(error.evalue)}")
        return False
    except DeadKernelError:
        say(stream, error="the kernel died (out of memory, or killed from outside)")
        return False
    except nbformat.ValidationError as error:  # of an output that JupyterLab shows all the same
        say(stream, error=f"a cell displays what no notebook can hold: {_plain(error.message)}")
        return False
    finally:
        if target.exists():
            _html(target)
    say(stream, ok=True)
    return True


def _html(path: Path) -> None:
    """Write the executed notebook as a page beside it."""
    from nbconvert import HTMLExporter

    page, _ = HTMLExporter(sanitize_html=False).from_filename(str(path))
    page = re.sub(r'href="(\d\d_\w+)\.ipynb"', r'href="\1.html"', page)  # to the other pages, not their sources
    path.with_suffix(".html").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    os.set_inheritable(int(sys.argv[5]), False)
    channel = open(int(sys.argv[5]), "w", encoding="utf-8")  # until the end: the parent reads as long
    ok = execute(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), Path(sys.argv[4]), channel)
    sys.exit(0 if ok else 1)
