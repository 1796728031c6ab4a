#!/usr/bin/env python3
"""`docker compose build | run | up` on stand-in images: what compose.yaml says, entered without a daemon.

    docker compose build
    docker compose run --rm [-T] [--entrypoint PROGRAM] SERVICE [COMMAND…]
    docker compose up SERVICE

A test puts it on the path as `docker`, so that the commands of Dockerfiles/README.md run as they are printed. The
network is that of this machine: a service listens where its published ports say. STANDIN_IMAGES: the folder of the
images, in which `base` is NVIDIA's.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))
from image import Image  # noqa: E402

IMAGES = Path(os.environ["STANDIN_IMAGES"])


def variables(text: str) -> str:
    """${NAME:-default} as compose fills it."""
    return re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", lambda found: os.environ.get(found[1]) or found[2] or "", text)


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


def run(service: dict, command: list[str], entrypoint: str) -> None:
    """Replaces this process by the service's command, or another one. NVIDIA's entrypoint prints a banner first."""
    if not entrypoint:
        print("\n=============================\n== Triton Inference Server ==\n=============================\n")
    command = [entrypoint, *command] if entrypoint else command
    image, mounts, env = load(service["image"]), {}, {}
    for mount in service.get("volumes", ()):
        mounts[mount["target"]] = source = Path(mount["source"]).resolve()
        if not source.exists():
            sys.exit(f"Error response from daemon: invalid mount config: bind source path does not exist: {source}")
    for name in service.get("environment", ()):
        env |= {name: os.environ[name]} if name in os.environ else {}
    uid = int(service["user"].partition(":")[0])
    argv = image.command(command or service.get("command") or image.cmd, uid=uid, env=env, mounts=mounts,
                         cwd=service.get("working_dir"))  # fmt: skip
    sys.stdout.flush()
    os.execvp(argv[0], argv)


def main(words: list[str]) -> None:
    if words[:1] != ["compose"]:
        sys.exit(f"the stand-in of docker knows compose, not {words[:1]}")
    services = yaml.safe_load(variables(Path("compose.yaml").read_text()))["services"]
    action, rest = words[1], words[2:]
    entrypoint, more = "", []
    while rest and rest[0].startswith("-"):
        if (flag := rest.pop(0)) == "--entrypoint":
            entrypoint = rest.pop(0)
        elif flag == "-e":
            name, _, os.environ[name] = rest.pop(0).partition("=")
            more.append(name)
        elif flag not in ("--rm", "-T"):
            sys.exit(f"the stand-in of docker compose does not know {flag}")
    if action == "build":
        build(services)
    elif action in ("run", "up"):
        service = services[rest[0]]
        run({**service, "environment": [*service.get("environment", ()), *more]}, rest[1:], entrypoint)
    else:
        sys.exit(f"the stand-in of docker compose has no {action}")


if __name__ == "__main__":
    main(sys.argv[1:])
