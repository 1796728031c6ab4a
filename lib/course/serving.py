"""`course serve`: one server in the foreground, found by `course ask`, gone with Ctrl-C."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servinglab.errors import CourseError
from servinglab.triton_24_10 import dead_processes

LOOK_SECONDS = 2.0  # between looks at the server's processes

if TYPE_CHECKING:
    from servinglab.server import TritonServer


def find_repository(folder: Path) -> Path:
    """`folder` itself when it holds models, else its `model_repository`. Raises CourseError when there is neither."""
    for candidate in (folder, folder / "model_repository"):
        if any(candidate.glob("*/config.pbtxt")):
            return candidate
    if not folder.is_dir():
        raise CourseError(f"{folder} is not a folder; build one with: course repo build --out {folder}")
    if (folder / "config.pbtxt").is_file():
        raise CourseError(f"{folder} is one model; give the repository that holds it: {folder.parent}")
    raise CourseError(f"{folder} holds no model (no */config.pbtxt); build one with: course repo build --out {folder}")


def serve(
    folder: Path, lane: str, tell: Callable[[str], None], *, models: list[str] | None = None,
    world_size: int | None = None, all_interfaces: bool = False, dry_run: bool = False,
    ports: dict[str, int | None], timeout: float | None = None,
) -> None:  # fmt: skip
    """Serve until Ctrl-C or SIGTERM, then stop the server. Raises CourseError when the server ends by itself.

    `dry_run` only tells the command of the lane trtllm.
    """
    from servinglab.server.launch import TrtllmServer
    from servinglab.server.triton import TritonServer

    options: dict[str, Any] = {f"{name}_port": port for name, port in ports.items() if port is not None}
    options |= {"timeout": timeout} if timeout else {}
    if lane == "trtllm":
        options |= {"world_size": world_size, "all_interfaces": all_interfaces}
        server = TrtllmServer(find_repository(folder), **options)
    else:
        server = TritonServer(find_repository(folder), models=models, **options)
    if dry_run:
        tell(server.as_shell())
        return
    _keep_running(server, tell)


def _keep_running(server: "TritonServer", tell: Callable[[str], None]) -> None:
    with _until_stopped() as stopped:
        with server:
            stopped()  # from here on a signal only sets the mark
            server.announce()
            tell(f"models:  {', '.join(server.models())}")
            tell(f"http:    {server.http_url}\ngrpc:    {server.grpc_url}\nmetrics: {server.metrics_url}")
            tell(f'log:     {server.log_path}\nCtrl-C stops it. Ask something in another terminal: course ask "…"')
            told, look, dead = False, 0.0, set()
            while not stopped():
                time.sleep(0.2)
                if server.pid is None:
                    raise CourseError(f"The server ended by itself; its log is {server.log_path}.")
                if not told and time.monotonic() > look:
                    before, dead = dead, dead_processes(server.pid)
                    told, look = bool(before & dead), time.monotonic() + LOOK_SECONDS
                    if told:
                        tell("A model's Python process has died, and what it was at is lost. Stop with "
                             "Ctrl-C and serve again.")  # fmt: skip
    tell("stopped")


@contextlib.contextmanager
def _until_stopped() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM only set a mark, so that a second one cannot interrupt the clean-up."""
    seen: list[int] = []

    def note(number: int, frame: object) -> None:
        seen.append(number)
        if len(seen) == 1 and not ready:
            raise KeyboardInterrupt

    ready = False

    def stopped() -> bool:
        nonlocal ready
        ready = True
        return bool(seen)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
