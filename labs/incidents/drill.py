"""Broken deployments to repair. README.md says how to play, and holds every story, hint and solution.

    python labs/incidents/drill.py list | start NAME | check [COPY] | stop | solution NAME

An incident is a fault (faults.py) in the repository that `course repo build` writes. Nobody compares your files: a
check starts Triton on them and asks it what its users ask.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from faults import FAULTS
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from servinglab.client import channel_args, explained, inputs, stream
from servinglab.errors import CourseError, did_you_mean
from servinglab.repository import build_default
from servinglab.repository.contract import MODELS
from servinglab.scratch import shorten
from servinglab.server import ServerError, TritonServer
from servinglab.server.process import HOST
from servinglab.server.supervisor import identity

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[1] / "build" / "lab" / "incidents"  # where JupyterLab can open them
FACTS, RUNNING, LOG = ".incident.json", ".running.json", "triton.log"  # of a copy
SERVICES = ("http", "grpc", "metrics")
TIMEOUT, STOP_SECONDS = 60, 30

# What the users of a deployment ask: what it is, the model, the prompt, as a stream.
PROMPT, GOES_ON = "1, 2, 3, 4, 5,", "6, 7"
QUESTIONS = (
    ("A whole answer of tensorrt_llm_bls", "tensorrt_llm_bls", PROMPT, False),
    ("A stream of tensorrt_llm_bls", "tensorrt_llm_bls", PROMPT, True),
    ("A stream of ensemble", "ensemble", PROMPT, True),
    ("A prompt of 300 tokens", "tensorrt_llm_bls", "word " * 299, True),
)


def make_copy(name: str, home: Path) -> Path:
    """A new folder NAME-1, NAME-2, … with the broken deployment; what is there already stays as it is."""
    number = 1
    while (copy := home / f"{name}-{number}").exists():
        number += 1
    build_default(copy, precision="int4")
    (copy / "ports.json").write_text(json.dumps(dict.fromkeys(SERVICES, 0), indent=2) + "\n")  # 0: one that is free
    (copy / FACTS).write_text(json.dumps({"incident": name, **(FAULTS[name](copy) or {})}))
    return copy


def newest(home: Path) -> Path:
    made = sorted(home.glob(f"*/{FACTS}"), key=lambda path: path.stat().st_mtime)
    if not made:
        raise CourseError(f"There is no copy in {shorten(str(home))} yet: begin with drill.py start NAME.")
    return made[-1].parent


def read_json(file: Path) -> dict:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise CourseError(f"{file} is missing: is this a folder that drill.py start has made?") from None
    except (ValueError, TypeError) as error:
        raise CourseError(f"{file} is not what drill.py start wrote there ({error}).") from None


def section(name: str) -> tuple[str, str, str]:
    """Of an incident in README.md: difficulty and minutes, its story, its solution."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    return re.search(rf"^## {name} \((.*?)\)\n\n(.*?)\n\n.*?<summary>Solution</summary>\n\n(.*?)\n\n</details>", text,
                     re.M | re.S).groups()  # fmt: skip


@contextlib.contextmanager
def serving(copy: Path) -> Iterator[TritonServer]:
    """Triton on the copy's models and ports, with its log there. Raises ServerError when it does not start."""
    taken, ports = read_json(copy / FACTS).get("taken"), read_json(copy / "ports.json")
    for service, port in ports.items():
        if service not in SERVICES or type(port) is not int or not 0 <= port < 2**16:
            raise CourseError(f"{copy / 'ports.json'} says {service!r}: {port!r}, and a port is from 0 (any) to 65535.")
    fixed = {f"{service}_port": port for service, port in ports.items() if port}
    server = TritonServer(copy / "model_repository", **fixed)
    with somebody_on(taken, server):
        try:
            server.start()
        finally:
            link, log = copy / LOG, server.log_path
            if log and (link.is_symlink() or not link.exists()):
                link.unlink(missing_ok=True)
                link.symlink_to(log)
        with server:
            yield server


@contextlib.contextmanager
def somebody_on(port: int | None, server: TritonServer) -> Iterator[None]:
    """Another program that listens on `port`. It comes while Triton loads its models, before that opens its ports:
    of a port that is taken earlier the course itself would tell, and there would be no log to read."""
    ended = threading.Event()

    def listen() -> None:
        while server.log_path is None and not ended.wait(0.01):
            pass
        with contextlib.suppress(OSError), socket.create_server((HOST, port)):
            ended.wait()

    with ThreadPoolExecutor(1) as pool:
        if port:
            pool.submit(listen)
        try:
            yield
        finally:
            ended.set()


def complaint(server: TritonServer) -> str | None:
    """The first thing of which the users of a running server complain, one sentence; None when all are served."""
    if missing := sorted(set(MODELS) - set(server.models())):
        return f"The server has no model {missing[0]}."
    with InferenceServerClient(url := server.grpc_url, channel_args=channel_args(url)) as client:
        for what, model, prompt, streams in QUESTIONS:
            request = inputs(text_input=prompt, max_tokens=8, stream=streams)
            try:
                results = list(stream(client, model, request, timeout=TIMEOUT))
            except InferenceServerException as error:
                return f"{what} failed: {explained(error, url, TIMEOUT)[0]}"
            pieces = [piece.decode(errors="replace") for r in results for piece in r.as_numpy("text_output").flat]
            text = "".join(pieces)
            if streams and len(pieces) < 2:
                return f"{what} came in {len(pieces)} piece, so nobody can read along."
            if prompt == PROMPT and (GOES_ON not in text or not (streams or text.startswith(PROMPT))):
                return f"{what} makes no sense: the prompt was {PROMPT!r}, and what came is {text!r}."
    return None


def start(name: str, home: Path) -> None:
    older = [str(path) for path in sorted(home.glob(f"{name}-*"))]
    copy = make_copy(name, home)
    say(f"{section(name)[1]}\n\nYour copy is {copy}.")
    if older:
        say(f"What you did before is still in {', '.join(older)}.")
    say("Triton starts …")
    (copy / RUNNING).write_text(json.dumps({"pid": os.getpid(), "identity": identity(os.getpid())}))
    try:
        with serving(copy) as server:
            say(f"Triton runs on {server.grpc_url} (gRPC) and {server.http_url}, and its log is {copy / LOG}.")
            say(f"Its users say: {complaint(server)}\nCtrl-C stops it.")
            while server.pid is not None:
                time.sleep(0.2)
        say(f"Triton has ended, and {copy / LOG} says why.")
    except ServerError:
        if not (copy / LOG).exists():  # it did not come to a start: this machine lacks something
            raise
        say(f"Triton did not start, and {copy / LOG} says why.")
    except KeyboardInterrupt:
        say("Stopped.")
    finally:
        (copy / RUNNING).unlink()
    say("Repair the copy, then: python labs/incidents/drill.py check")


def check(copy: Path) -> bool:
    """Say whether the copy serves its users, and what is wrong if not."""
    try:
        with serving(copy) as server:
            problem = complaint(server)
    except ServerError as error:
        problem = str(error).partition(" Its log: ")[0]
    say(f"{copy} still fails: {problem}" if problem else f"{copy} passed: all of its users are served.")
    return not problem


def stop(home: Path) -> None:
    for file in sorted(home.glob(f"*/{RUNNING}")):
        facts = read_json(file)
        if identity(facts["pid"]) != facts["identity"]:  # it was killed, and its Triton with it
            file.unlink()
            continue
        os.kill(facts["pid"], signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while identity(facts["pid"]) == facts["identity"]:
            if time.monotonic() > deadline:
                raise CourseError(f"The start of {file.parent}, process {facts['pid']}, does not end.")
            time.sleep(0.05)
        say(f"{file.parent} is stopped.")
        return
    say("Nothing runs.")


def say(text: str) -> None:
    print(shorten(text), flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Broken deployments to repair: labs/incidents/README.md")
    parser.add_argument("--home", type=Path, default=HOME, help="folder of the copies, default build/lab/incidents")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the incidents")
    commands.add_parser("start", help="make a broken copy and start Triton on it").add_argument("name")
    commands.add_parser("check", help="start Triton on a copy, and ask it").add_argument("copy", nargs="?", type=Path)
    commands.add_parser("stop", help="end what a start in another terminal runs")
    commands.add_parser("solution", help="what to change").add_argument("name")
    given = parser.parse_args(arguments)
    home, name = given.home.absolute(), getattr(given, "name", None)
    try:
        if name and name not in FAULTS:
            raise CourseError(f"No incident {name!r}: drill.py list shows them.{did_you_mean(name, FAULTS)}")
        if given.command == "list":
            say("\n".join(f"{each:21} {section(each)[0]}" for each in FAULTS))
        elif given.command == "start":
            start(name, home)
        elif given.command == "check":
            return int(not check((given.copy or newest(home)).absolute()))
        elif given.command == "stop":
            stop(home)
        else:
            say(section(name)[2])
    except (CourseError, OSError) as error:
        print(f"drill.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def interrupt(number: int, frame: object) -> None:
    """Whoever ends this otherwise means Ctrl-C, so that Triton ends in good order."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # not under nohup
            signal.signal(number, interrupt)
    sys.exit(main())
