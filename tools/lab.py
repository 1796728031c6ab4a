"""The notebooks to work in, build/lab: copies without outputs, so that none is known before it is predicted.

What you write there is yours. A version of a notebook that you have not touched takes the place of the older one.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from course.manifest import Course, Notebook
from servinglab import keep, scratch
from servinglab.errors import CourseError
from servinglab.root import MANIFEST, module

FLAGS = ["--ip=127.0.0.1", "--KernelManager.transport=ipc"]
KERNEL = {
    "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
    "display_name": "Python 3 (ipykernel)", "language": "python", "metadata": {"debugger": False},
}  # fmt: skip
# The manifest is what makes a folder the course's root, for whoever looks upwards from a notebook.
_NOT_LINKED = {"text", "pictures", "build", "dist", keep.YOURS, MANIFEST, "__pycache__"}


def working_copy(
    course: Course, name: str = "lab", made_of: Callable[[Path], str] | None = None, without: str = ""
) -> tuple[Path, list[tuple[str, str]]]:
    """Make build/lab, or bring it up to date. The folder, and (notebook of yours, newer version beside it).

    `name`: another folder below build. `made_of`: what a notebook becomes there. `without`: links of this name."""
    lab = course.root / "build" / name
    lab.mkdir(parents=True, exist_ok=True)
    with scratch.folder(lab.parent) as made:
        new = made / "lab"
        for notebook in course.notebooks:
            (new / notebook.folder).mkdir(parents=True, exist_ok=True)
            text = (made_of or without_outputs)(notebook.path)
            (new / notebook.folder / notebook.path.name).write_text(text, encoding="utf-8")
        for path in (path for path in _links(course) if path.name != without):
            place = path.relative_to(course.root)
            (new / place).symlink_to(os.path.relpath(path, lab / place.parent))
        for folder in {notebook.folder for notebook in course.notebooks}:
            if (pictures := course.root / folder / "pictures").is_dir():  # JupyterLab shows none that is a link
                shutil.copytree(pictures, new / folder / "pictures")
        return lab, keep.update(new, lab, stays=True)


def open_jupyterlab(
    folder: Path, arguments: list[str], first: Notebook, then: Callable[[Path], None] | None = None
) -> int:
    """Run JupyterLab on `folder` until it ends; its exit code. `arguments`: more options of its own. `first`: the
    notebook that is open. `then`: called meanwhile, with the folder of the server's and the kernels' files.

    Kernels listen on socket files in a folder of yours with a short name, and without JupyterLab's debugger: over TCP
    every user of the machine could read what a notebook prints.
    """
    command = module("jupyterlab", *FLAGS, f"--ServerApp.root_dir={folder}")
    command += [f"--LabApp.default_url=/lab/tree/{first.folder}/{first.path.name}", *arguments]
    command += ["--allow-root"] * (os.geteuid() == 0)  # root is refused otherwise, also in a container
    with scratch.folder("/tmp") as runtime:
        env = {**os.environ, "JUPYTER_PREFER_ENV_PATH": "1", "JUPYTER_RUNTIME_DIR": str(runtime)}
        env["JUPYTER_PATH"] = os.pathsep.join(filter(None, [str(runtime), os.environ.get("JUPYTER_PATH")]))
        (spec := runtime / "kernels" / "python3").mkdir(parents=True)
        (spec / "kernel.json").write_text(json.dumps(KERNEL), encoding="utf-8")
        signal.signal(signal.SIGINT, lambda *_: None)  # JupyterLab hears Ctrl-C too, and asks what is meant
        child = subprocess.Popen(command, env=env)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: child.send_signal(number))
        if then:
            threading.Thread(target=then, args=(runtime,), daemon=True).start()
        return child.wait()


def _links(course: Course) -> Iterator[Path]:
    """What stands beside the notebooks and above them: links in a notebook, and its imports, lead there."""
    places = {place for notebook in course.notebooks for place in (course.root / notebook.folder / "x").parents}
    places = {place for place in places if place.is_relative_to(course.root)}
    for path in (path for place in places for path in place.iterdir() if path not in places):
        if not path.name.startswith(".") and path.suffix != ".ipynb" and path.name not in _NOT_LINKED:
            yield path


def without_outputs(path: Path) -> str:
    """A notebook as nobody has run it, and without a text twin: what you write is in one file."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        notebook["metadata"].pop("jupytext", None)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell.update(outputs=[], execution_count=None)
    except (ValueError, KeyError, TypeError):
        raise CourseError(f"{path} is not a notebook; bring it back with `git checkout {path}`.") from None
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
