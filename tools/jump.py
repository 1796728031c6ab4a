"""`course lab 05 --at 4`: JupyterLab opens a notebook whose kernel has executed all cells before a section.

The kernel is that of the notebook's session, so JupyterLab finds it there. Only its state is made: the notebook's file
is not written, so outputs and answers in it stay as they are. The page itself begins at its top: JupyterLab 4 forgets
the place in an address that it is opened with.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from jupyter_client import BlockingKernelClient

from course import report
from servinglab.errors import CourseError

_SECTION = re.compile(r"^## (\d+)\b.*$", re.MULTILINE)


def before(path: Path, folder: Path, section: int) -> Callable[[Path], None]:
    """What to do beside JupyterLab, which shows `folder`. Raises CourseError when the notebook has no such section."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    prose = [(i, "".join(cell["source"])) for i, cell in enumerate(cells) if cell["cell_type"] == "markdown"]
    at = {int(number): i for i, text in prose for number in _SECTION.findall(text)}
    if section not in at:
        raise CourseError(f"{path.stem} has no section {section}; it has: {', '.join(map(str, at)) or 'none'}.")
    code = [cell for cell in cells[: at[section]] if cell["cell_type"] == "code"]
    sources = [("".join(cell["source"]), "raises-exception" in cell["metadata"].get("tags", ())) for cell in code]
    place = path.relative_to(folder).as_posix()

    def then(runtime: Path) -> None:
        try:
            server = _server(runtime)
            report.say(f"executing the {len(sources)} cells before section {section} of {path.stem}")
            failed = _execute(_kernel(server, runtime, place), sources)
            report.say(f"stopped at {failed}" if failed else f"section {section} of {path.stem} can begin")
        except (OSError, httpx.HTTPError, RuntimeError) as error:
            report.say(f"section {section} could not be prepared ({error}); run the cells before it in JupyterLab.")

    return then


def _server(runtime: Path) -> dict[str, Any]:
    """What JupyterLab says about itself, once it can be asked."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for path in runtime.glob("jpserver-*.json"):
            try:
                server = json.loads(path.read_text(encoding="utf-8"))
                httpx.get(f"{server['url']}api", trust_env=False, timeout=10).raise_for_status()
                return server
            except (ValueError, httpx.TransportError):  # it says where it listens before it does
                pass
        time.sleep(0.2)
    raise RuntimeError("JupyterLab did not start")


def _kernel(server: dict[str, Any], runtime: Path, place: str) -> Path:
    """The connection file of the notebook's kernel, which is started if it has none."""
    wanted = {"path": place, "name": Path(place).name, "type": "notebook", "kernel": {"name": "python3"}}
    headers = {"Authorization": f"token {server['token']}"}
    address = f"{server['url']}api/sessions"
    answer = httpx.post(address, json=wanted, headers=headers, trust_env=False, timeout=120).raise_for_status()
    return runtime / f"kernel-{answer.json()['kernel']['id']}.json"


def _execute(connection: Path, sources: list[tuple[str, bool]]) -> str:
    """Execute each (cell, whether it may fail) in this kernel; the error that ended it, "" for none."""
    client = BlockingKernelClient(connection_file=str(connection))
    client.load_connection_file()
    client.start_channels(hb=False)  # a kernel that is just starting would be taken for a dead one
    try:
        client.wait_for_ready(timeout=120)
        for number, (source, may_fail) in enumerate(sources, 1):
            reply = client.execute_interactive(source, allow_stdin=False, output_hook=lambda message: None)
            if reply["content"]["status"] == "error" and not may_fail:
                return f"code cell {number}: {reply['content']['ename']}: {reply['content']['evalue']}"
        return ""
    finally:
        client.stop_channels()
