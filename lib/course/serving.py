"""`course serve`: one server in the foreground, found by `course ask`, gone with Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from servinglab.errors import CourseError
from servinglab.server.process import dead_processes

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
    raise CourseError(f"{folder} holds no model (no */config.pbtxt); build one with: course repo build --out {folder}")


def serve(
    folder: Path, *, models: list[str] | None, http_port: int | None, grpc_port: int | None, metrics_port: int | None,
    tell: Callable[[str], None], timeout: float | None = None,
) -> None:  # fmt: skip
    """Serve until Ctrl-C or SIGTERM, then stop the server. Raises CourseError when the server ends by itself."""
    from servinglab.server import TritonServer

    repository = find_repository(folder)
    options = {"http_port": http_port, "grpc_port": grpc_port, "metrics_port": metrics_port}
    options |= {"timeout": timeout} if timeout else {}
    _keep_running(TritonServer(repository, models=models, **options), tell)


def serve_trtllm(
    folder: Path, *, world_size: int | None, multi_model: bool, all_interfaces: bool, dry_run: bool,
    ports: dict[str, int | None], tell: Callable[[str], None], timeout: float | None = None,
) -> None:  # fmt: skip
    """The same with TensorRT-LLM, in NVIDIA's container. `dry_run` only tells the command."""
    from servinglab.server import launch as trtllm_launch

    launch = trtllm_launch.plan_launch(
        find_repository(folder), world_size=world_size, multi_model=multi_model, all_interfaces=all_interfaces,
        ports=ports,
    )  # fmt: skip
    if dry_run:
        tell(trtllm_launch.as_shell(launch.argv(), launch.env))
        return
    _keep_running(trtllm_launch.TrtllmServer(launch, **({"timeout": timeout} if timeout else {})), tell)


def _keep_running(server: TritonServer, tell: Callable[[str], None]) -> None:
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
