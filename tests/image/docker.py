#!/usr/bin/env python3
"""`docker compose build | run | up` on stand-in images: what compose.yaml says, entered without a daemon.

    docker compose build
    docker compose run --rm [-T] [-e NAME=VALUE] [--entrypoint PROGRAM] [--service-ports] SERVICE [COMMAND…]
    docker compose up [--detach --wait --wait-timeout SECONDS] SERVICE
    docker compose logs [--no-color]
    docker compose down

A test puts it on the path as `docker`, so that the commands of Dockerfiles/README.md and the Makefile run as they are
printed. The network is that of this machine: a service listens where its published ports say, and its name is
127.0.0.1. STANDIN_IMAGES: the folder of the images, in which `base` is NVIDIA's, and of what runs detached.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))
from image import Image  # noqa: E402

IMAGES = Path(os.environ["STANDIN_IMAGES"])


def variables(text: str) -> str:
    """${NAME:-default} as compose fills it."""
    return re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", lambda found: os.environ.get(found[1]) or found[2] or "", text)


def read_variables(file: Path) -> None:
    """Those of the file .env, as compose reads it: of two lines the later counts, and the shell's value before both."""
    lines = file.read_text().split() if file.exists() else ()
    for name, value in dict(line.split("=", 1) for line in lines).items():
        os.environ.setdefault(name, value)


def load(name: str) -> Image:
    path = IMAGES / name.replace(":", "_") / "image.pickle"
    if not path.exists():
        sys.exit(f"there is no image {name}: docker compose build")
    return pickle.loads(path.read_bytes())


def build(services: dict) -> None:
    for service in services.values():
        folder = IMAGES / service["image"].replace(":", "_")
        if "build" in service and not folder.exists():
            folder.mkdir()
            made = load("base").copy(folder / "root")
            for step in made.build(Path(service["build"]["dockerfile"]), TAG=service["build"]["args"]["TAG"]):
                print(step)
            (folder / "image.pickle").write_bytes(pickle.dumps(made))


def up(name: str, service: dict, seconds: float) -> None:
    """Detached, until the service's own health check is content in it."""
    with open(IMAGES / f"{name}.log", "w") as log:
        words = [sys.executable, __file__, "compose", "up", name]
        started = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    (IMAGES / f"{name}.pid").write_text(str(started.pid))
    check = entered(service, service["healthcheck"]["test"][1:])
    until = time.monotonic() + seconds
    while subprocess.run(check, capture_output=True).returncode != 0:
        if started.poll() is not None or time.monotonic() > until:
            sys.exit(f"container {name} is not healthy: docker compose logs")
        time.sleep(0.5)


def down() -> None:
    for file in IMAGES.glob("*.pid"):
        with contextlib.suppress(psutil.NoSuchProcess):
            (ended := psutil.Process(int(file.read_text()))).terminate()
            until = time.monotonic() + 30
            while ended.status() != psutil.STATUS_ZOMBIE:
                if time.monotonic() > until:
                    sys.exit(f"container {file.stem} did not stop in its time of grace")
                time.sleep(0.1)
        file.unlink()


def run(service: dict, command: list[str], entrypoint: str) -> None:
    """Replaces this process by the service's command, or another one. NVIDIA's entrypoint prints a banner first."""
    if not entrypoint:
        print("\n=============================\n== Triton Inference Server ==\n=============================\n")
    argv = entered(service, [entrypoint, *command] if entrypoint else command)
    sys.stdout.flush()
    os.execvp(argv[0], argv)


def entered(service: dict, command: list[str]) -> list[str]:
    """The words that run a command in the image of a service."""
    image, mounts, env = load(service["image"]), {"/etc/hosts": IMAGES / "hosts"}, {}
    for mount in service.get("volumes", ()):
        mounts[mount["target"]] = source = Path(mount["source"]).resolve()
        if not source.exists():
            sys.exit(f"Error response from daemon: invalid mount config: bind source path does not exist: {source}")
    for name in service.get("environment", ()):
        env |= {name: os.environ[name]} if name in os.environ else {}
    uid = int(service["user"].partition(":")[0])
    return image.command(command or service.get("command") or image.cmd, uid=uid, env=env, mounts=mounts,
                         cwd=service.get("working_dir"))  # fmt: skip


def main(words: list[str]) -> None:
    if words[:1] != ["compose"]:
        sys.exit(f"the stand-in of docker knows compose, not {words[:1]}")
    read_variables(Path(".env"))
    services = yaml.safe_load(variables(Path("compose.yaml").read_text()))["services"]
    action, rest = words[1], words[2:]
    entrypoint, more, detach, seconds = "", [], False, 60.0
    while rest and rest[0].startswith("-"):
        if (flag := rest.pop(0)) == "--entrypoint":
            entrypoint = rest.pop(0)
        elif flag == "--wait-timeout":
            seconds = float(rest.pop(0))
        elif flag == "-e":
            name, _, os.environ[name] = rest.pop(0).partition("=")
            more.append(name)
        elif flag in ("--detach", "--wait"):
            detach = True
        elif flag not in ("--rm", "-T", "--no-color", "--service-ports"):
            sys.exit(f"the stand-in of docker compose does not know {flag}")
    (IMAGES / "hosts").write_text(f"127.0.0.1 localhost {' '.join(services)}\n")
    for port in services[rest[0]].get("ports", ()) if action == "up" else ():
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", int(port.split(":")[1]))):
            continue
        sys.exit(f"Error response from daemon: Bind for {port} failed: port is already allocated")
    if action == "build":
        build({name: services[name] for name in rest or services})
    elif action == "up" and detach:
        up(rest[0], services[rest[0]], seconds)
    elif action == "logs":
        print("".join(file.read_text() for file in sorted(IMAGES.glob("*.log"))))
    elif action == "down":
        down()
    elif action in ("run", "up"):
        service = services[rest[0]]
        run({**service, "environment": [*service.get("environment", ()), *more]}, rest[1:], entrypoint)
    else:
        sys.exit(f"the stand-in of docker compose has no {action}")


if __name__ == "__main__":
    main(sys.argv[1:])
