"""Both Dockerfiles, compose.yaml and Dockerfiles/README.md on the stand-in image: each command as it is printed."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_image import pytestmark  # noqa: F401  skipped where no namespace can be made

from image import HERE, ROOT, Image
from servinglab import assets
from servinglab.server.process import is_ready

PAGE = (ROOT / "Dockerfiles" / "README.md").read_text()
HUB = "/opt/hub/HuggingFaceTB/SmolLM2-135M-Instruct"


def block(section: str, number: int) -> str:
    """The commands of one code block of Dockerfiles/README.md."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"```\n(.*?)```", text, re.DOTALL)[number]


class Host:
    """A machine with the course's checkout and a `docker`, whose base image is the stand-in."""

    def __init__(self, folder: Path, layout: str) -> None:
        self.images, self.course, programs = folder / "images", folder / "course", folder / "bin"
        for each in (self.images / "base", programs):
            each.mkdir(parents=True)
        base = Image(self.images / "base" / "root", layout).make()
        base.mounts[HUB] = assets.resolve("smollm2")
        (self.images / "base" / "image.pickle").write_bytes(pickle.dumps(base))
        self.base = base
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, files.split("\0")):
            (self.course / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.course / name)
        (programs / "docker").write_text(f"#!/bin/sh\nexec {sys.executable} {HERE / 'docker.py'} \"$@\"\n")
        (programs / "docker").chmod(0o755)
        self.env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "STANDIN_IMAGES": str(self.images)}

    def start(self, commands: str) -> subprocess.Popen:
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
        return subprocess.Popen(["bash", "-euo", "pipefail", "-c", commands], cwd=self.course, env=self.env, **quiet)

    def run(self, commands: str, timeout: float = 900) -> str:
        """What the commands print. Fails with it when one of them fails."""
        shell = self.start(commands)
        try:
            said, _ = shell.communicate(timeout=timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
        assert shell.returncode == 0, said[-5000:]
        return said


# The images take minutes to build, most of them pip's downloads.
@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.long) for name in ("venv", "system")])
def host(request, tmp_path_factory) -> Host:
    host = Host(tmp_path_factory.mktemp("host"), request.param)
    first = block("From Docker to the first token", 0)
    host.packages = host.base.run(["python3", "-m", "pip", "list", "--format=freeze"]).stdout
    host.run(first)
    host.env |= {"COURSE_UID": "1234", "COURSE_GID": "1234"}  # which has no name in the image
    return host


def test_the_images_change_nothing_of_nvidia_s(host):
    for service in ("build", "serve"):
        after = host.run(f"docker compose run --rm {service} python3 -m pip list --format=freeze")
        assert set(host.packages.splitlines()) <= set(after.splitlines())
        assert "No broken requirements" in host.run(f"docker compose run --rm {service} python3 -m pip check")
        see = "import torch, tensorrt_llm, servinglab, reference_backend; print(servinglab.__file__)"
        nameless = "import getpass, os; print(os.getuid(), getpass.getuser())"
        assert host.run(f"docker compose run --rm {service} python3 -c '{nameless}'").split()[-2:] == ["1234", "course"]
        where = host.run(f"docker compose run --rm {service} python3 -c '{see}'").splitlines()[-1]
        assert where.startswith(host.base.python)


def test_from_docker_to_the_first_streamed_token(host):
    *commands, up = block("From Docker to the first token", 1).strip().splitlines()
    host.run("\n".join(commands))
    assert up == "docker compose up serve"
    server = host.start(up)
    try:
        for _ in range(600):
            time.sleep(0.2)
            assert server.poll() is None, server.stdout.read()[-3000:]
            if is_ready(8000):
                break
        said = host.run(block("From Docker to the first token", 2))
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
    pieces = [json.loads(line.removeprefix("data:"))["text_output"] for line in said.splitlines() if "data:" in line]
    assert len(pieces) > 4 and "Paris" in "".join(pieces)
