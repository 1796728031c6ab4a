"""Both Dockerfiles, compose.yaml, Dockerfiles/README.md and the trtllm targets of the Makefile on the stand-in image:
each command as it is printed."""

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
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import websocket
from test_image import pytestmark as in_namespaces
from tiny_models import write_checkpoint

from course import manifest
from engines import recipes
from image import HERE, ROOT, Image
from servinglab import assets
from servinglab.server.process import is_ready

pytestmark = [in_namespaces, pytest.mark.timeout(1800)]
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
        (programs / "docker").write_text(f'#!/bin/sh\nexec {sys.executable} {HERE}/docker.py "$@"\n')
        (programs / "docker").chmod(0o755)
        self.env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "STANDIN_IMAGES": str(self.images)}

    def start(self, commands: str) -> subprocess.Popen:
        """A shell with the commands, in a process group of its own."""
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

    @contextlib.contextmanager
    def serving(self, commands: str) -> Iterator[None]:
        """The commands, of which the last one serves, from when it is ready until Ctrl-C."""
        shell = self.start(commands)
        try:
            until = time.monotonic() + 120
            while not is_ready(8000):
                assert shell.poll() is None, shell.stdout.read()[-3000:]
                assert time.monotonic() < until
                time.sleep(0.2)
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGINT)
            shell.communicate(timeout=60)


def ask(path: str, **how) -> httpx.Response:
    return httpx.request(how.pop("method", "GET"), f"http://127.0.0.1:{path}", timeout=60, trust_env=False, **how)


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


@pytest.fixture(scope="module")
def made(host) -> str:
    """The model repository of Dockerfiles/README.md; the command that serves it."""
    *commands, up = block("From Docker to the first token", 1).strip().splitlines()
    host.run("\n".join(commands))
    return up


@pytest.fixture
def served(host, made) -> Iterator[str]:
    host.run("docker compose up --detach --wait serve")
    yield "grpc://serve:8001"
    host.run("docker compose down")


def test_from_docker_to_the_first_streamed_token(host, made):
    with host.serving(made):
        said = host.run(block("From Docker to the first token", 2))
    pieces = [json.loads(line.removeprefix("data:"))["text_output"] for line in said.splitlines() if "data:" in line]
    assert len(pieces) > 4 and "Paris" in "".join(pieces)


def test_an_engine_of_several_ranks_answers_as_one_of_one_rank_and_as_transformers(host, made):
    """The converter and trtllm-build for 1, 2 and 4 GPUs, and the lines of mpirun that `course serve` prints. With four
    ranks each of the two key-value heads is there twice."""
    model = write_checkpoint(host.course / "build/trtllm/checkpoints/tiny/hf", num_key_value_heads=2)
    prompt = [5, 9, 33, 4]
    ids = model.generate(inputs=model.dummy_inputs["input_ids"].new_tensor([prompt]), max_new_tokens=8, do_sample=False)
    expected = [f"w{number}" for number in ids[0, len(prompt) :]]
    body = {"text_input": " ".join(f"w{number}" for number in prompt), "max_tokens": 8, "exclude_input_in_output": True}
    for ranks in (1, 2, 4):
        here, limits = f"tiny/tp{ranks}", {"max_batch_size": 8, "max_input_len": 32, "max_seq_len": 64}
        of = {"checkpoint": f"checkpoints/{here}", "dtype": "float32", "tp_size": ranks}
        steps = recipes.steps("llama", "checkpoints/tiny/hf", f"engines/{here}", limits, trtllm="1.2.1", **of)
        given = "\n".join(command.text() for command in steps)
        host.run(f"docker compose run --rm -T build sh -e << 'END'\n{given}\nEND")
        folders = f"--tokenizer-dir checkpoints/tiny/hf --engine-dir engines/{here} --out serving/{here}"
        host.run(f"docker compose run --rm build course repo build {folders}")
        printed = (
            block("More than one GPU", 0).strip().replace("run --rm serve course", "run --rm --entrypoint course serve")
        )
        launch = host.run(printed.replace("serve serving ", f"serve serving/{here} "))
        assert launch.count("-n 1 ") == ranks and launch.count("--load-model=tensorrt_llm ") == ranks - 1
        with host.serving(f"docker compose run --rm -T serve sh -e << 'END'\n{launch}\nEND"):
            answer = ask("8000/v2/models/tensorrt_llm_bls/generate", method="POST", json=body).json()["text_output"]
        assert answer.split() == expected, ranks


def test_nvidia_s_templates_are_taken_from_the_image_and_what_they_need_is_named(host, made):
    said = host.run(block("NVIDIA's own templates", 0).rstrip() + " || echo refused")
    assert "refused" in said and "tensorrt_llm/config.pbtxt:2: no value for ${triton_backend} (line 2)" in said
    with host.serving(block("NVIDIA's own templates", 1)):
        body = {"text_input": "The capital of France is", "max_tokens": 4, "stream": False}
        answer = ask("8000/v2/models/ensemble/generate_stream", method="POST", json=body)
    assert "Paris" in answer.text


def test_jupyterlab_answers_beside_the_server_to_whoever_has_its_token(host, served):
    host.env["SERVINGLAB_SERVER"] = served
    lab = host.start(block("The notebooks", 0))
    try:
        said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:8888/\S*\?token=(\w+)", said)):
            assert (line := lab.stdout.readline()), said
            said += line
        until, key = time.monotonic() + 60, {"Authorization": f"token {found[1]}"}
        while True:
            with contextlib.suppress(httpx.ConnectError):
                assert ask("8888/api/contents/05_streaming_grpc.ipynb?content=0").status_code == 403
                break
            assert time.monotonic() < until
        opened = ask("8888/api/contents/05_streaming_grpc.ipynb?content=0", headers=key)
        assert opened.status_code == 200 and opened.json()["type"] == "notebook"
        assert ask("8888/api", headers={**key, "Host": "page.example"}).status_code == 403
        kernel = ask("8888/api/kernels", method="POST", headers=key, json={}).json()["id"]
        code = "from servinglab.serving import serve; print(serve().models())"
        assert "tensorrt_llm_bls" in execute(f"ws://127.0.0.1:8888/api/kernels/{kernel}/channels", key, code)
    finally:
        del host.env["SERVINGLAB_SERVER"]
        os.killpg(lab.pid, signal.SIGTERM)
        lab.communicate(timeout=60)


def execute(address: str, key: dict[str, str], code: str) -> str:
    """What a cell prints in a kernel of JupyterLab."""
    content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False, "stop_on_error": True}
    head = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": "s", "username": "", "version": "5.4"}
    message = {"header": head, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    socket, said = websocket.create_connection(address, header=key, timeout=120), ""
    with contextlib.closing(socket):
        socket.send(json.dumps(message))
        while (heard := json.loads(socket.recv())).get("channel") != "shell":
            said += heard["content"].get("text", "") + "\n".join(heard["content"].get("traceback", ()))
    return said


def test_notebooks_take_the_server_that_runs_or_say_why_not(host, served):
    run = (
        f"docker compose run --rm -T -e SERVINGLAB_STATIC=1 lab course run 06 00 -p lane={served} --out build/attached"
    )
    host.run(run)
    first, second = (json.loads((host.course / f"build/attached/{name}.ipynb").read_text())
                     for name in ("06_temperature", "00_start_here"))  # fmt: skip
    last = ["".join(page["cells"][-1]["outputs"][0]["text"]) for page in (first, second)]
    assert last[0].startswith("server at serve:8001 · ") and last[1].startswith("trtllm lane · ")
    assert "# The server at serve:8001 is not used: this notebook changes its server" in json.dumps(second)
    # 07, 08 and 11 read the tokenizer where the server says that it has it.
    told = "InferenceServerClient('serve:8001').get_model_config('preprocessing').config.parameters['tokenizer_dir']"
    look = f"import os; from tritonclient.grpc import *; print(os.listdir({told}.string_value))"
    assert "tokenizer.json" in host.run(f'docker compose run --rm lab python3 -c "{look}"')


def test_the_steps_of_the_workflow_are_make_s(host):
    """All targets of the lane, in the order of gpu.yml; the environment is this one instead of that of `make setup`.
    One notebook of the lane, by papermill and nbval; the skip list leaves out the others."""
    entry = '[[skip]]\nnotebook = "{}"\nlane = "trtllm"\nreason = "enough"\nuntil = 9999-12-31\n'
    others = [n.id for n in manifest.load(ROOT).notebooks if "trtllm" in n.lanes and n.id != "06_temperature"]
    (host.course / "tests" / "gpu_skips.toml").write_text("".join(entry.format(name) for name in others))
    bins = Path(sys.executable).parent
    make = f"make --old-file=setup BIN={bins} LANE=trtllm"
    steps = re.findall(r"make (trtllm-\w+)", (ROOT / ".github" / "workflows" / "gpu.yml").read_text())
    said = host.run("\n".join(f"{make} {step}" for step in [*steps, "gpu-status"]))
    assert len(steps) == 5 and '"text_output":"Rain is' in said.replace('": "', '":"') and "0 failed" not in said
    assert "11 skipped, 1 passed" in said and re.search(r"\| 06_temperature \| trtllm \| passed \|", said)
    report = (host.course / "build/gpu/logs/nbval-trtllm.xml").read_text()
    assert (
        re.search(r'errors="0" failures="0"', report) and "tensorrt_llm_bls" in (host.images / "serve.log").read_text()
    )
