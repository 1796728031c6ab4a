"""Child process of `course run`: executes one notebook with papermill and writes a line of JSON for each cell.

    python -m course.execute INPUT OUTPUT PARAMETERS_JSON KERNEL_FOLDER PROGRESS_FILE

A process of its own, because papermill may hang (with its kernel, or after the last cell): the parent then ends it.
Lines of PROGRESS_FILE: {"cells": N}, {"cell": i, "source": first line}, and one of {"ok": true}, {"error": sentence}.
"""

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

SAVE_SECONDS = 5  # between two saves of a notebook that runs


class Refused(Exception):
    """A notebook that cannot run, or a cell that failed: one sentence."""


def execute(source: Path, target: Path, parameters: dict[str, Any], folder: Path, progress: Path) -> None:
    """Run `source` with `parameters` into `target`, the kernel working in `folder`. Raises Refused."""
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
            self.context.rcvhwm = 0  # else ZeroMQ drops what a cell prints faster than it is taken
            # Over TCP every user of the machine could read all outputs. The name of a socket file has an end, though.
            if len(os.fsencode(folder := tempfile.gettempdir())) < 80:
                self.transport, self.connection_file = "ipc", os.path.join(folder, f"kernel-{os.getpid()}.json")

    class Reporting(NBClientEngine):
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **kwargs: Any) -> Any:
            start = nb_man.cell_start

            def cell_start(cell: Any, cell_index: int, **more: Any) -> None:
                say(progress, cell=cell_index + 1, source=cell.source.strip().partition("\n")[0][:80])
                start(cell, cell_index, **more)

            def save() -> None:  # papermill's own writes the whole notebook twice for each cell: 8 s for one of 130
                if (nb_man.now() - nb_man.last_save_time).total_seconds() > SAVE_SECONDS:
                    type(nb_man).save(nb_man)

            say(progress, cells=len(nb_man.nb.cells))
            nb_man.cell_start, nb_man.save = cell_start, save
            # One block for a streamed sentence, not one for each token. nbclient's own pattern for it takes time that
            # grows with the square of a line's length; this one matches the same.
            nbclient.client._RGX_CARRIAGERETURN = re.compile(r"(?m)^.*\r(?=[^\n])")
            kwargs |= {"kernel_manager_class": ThisInterpreter, "coalesce_streams": True}
            kwargs["iopub_timeout"] = 30  # seconds for what is still on its way when a cell ends
            try:
                return super().execute_managed_notebook(nb_man, kernel_name, **kwargs)
            finally:
                del nb_man.save  # the last one is whole

    papermill_engines.register("course", Reporting)
    try:
        papermill.execute_notebook(
            str(source), str(target), parameters=parameters, engine_name="course", kernel_name="python3",
            cwd=str(folder), progress_bar=False, autosave_cell_every=SAVE_SECONDS, start_timeout=120,
            store_widget_state=False,
        )  # fmt: skip
    except PapermillExecutionError as error:
        raise Refused(f"cell {error.cell_index + 1}: {error.ename}: {error.evalue}") from None
    except DeadKernelError:
        raise Refused("the kernel died (out of memory, or killed from outside)") from None
    except nbformat.ValidationError as error:  # of an output that JupyterLab shows all the same
        raise Refused(f"a cell displays what no notebook can hold: {error.message}") from None


def require_kernel(path: Path) -> None:
    """Raise Refused when the notebook cannot be read, or asks for a kernel that this environment does not have."""
    import nbformat

    try:
        name = nbformat.read(path, as_version=4).metadata.get("kernelspec", {}).get("name", "python3")
    except FileNotFoundError:
        raise Refused(f"{path} does not exist; restore it with git.") from None
    except Exception as error:  # nbformat raises whatever its JSON and schema readers raise
        raise Refused(f"{path} is not a notebook: {str(error).splitlines()[0]}") from None
    if name != "python3":
        raise Refused(
            f"{path.name} asks for the kernel '{name}', but the course's environment has only 'python3', its own "
            "Python; open it in JupyterLab (.venv/bin/jupyter lab), choose the kernel 'Python 3' and save it."
        )


def say(progress: Path, **line: Any) -> None:
    with progress.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _plain(text: str) -> str:
    """One line, without what a terminal would obey."""
    line = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())[:2000]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


def main(source: str, target: str, parameters: str, folder: str, progress: str) -> int:
    try:
        require_kernel(Path(source))
        execute(Path(source), Path(target), json.loads(parameters), Path(folder), Path(progress))
    except Refused as reason:
        say(Path(progress), error=_plain(str(reason)))
    except Exception as error:
        say(Path(progress), error=_plain(f"{type(error).__name__}: {error}"))
    else:
        say(Path(progress), ok=True)
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
