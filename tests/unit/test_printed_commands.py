"""Every flag that a page, a cell or a table gives to a program of NVIDIA's is one that the program takes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from engines import flags, recipes, versions
from servinglab.assets import cache_dir
from servinglab.root import tomllib
from servinglab.server import install
from servinglab.server.launch import mpirun_command
from servinglab.server.triton import TritonServer

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "Makefile", "compose.yaml")]
PAGES += [path for name in ("Dockerfiles/*", "lib/**/*.py", "lib/**/*.toml", "lib/*/README.md", "notebooks/*/*.py",
                            "labs/*/text/*.py") for path in ROOT.glob(name) if path.is_file()]  # fmt: skip
RELEASED = tomllib.loads((ROOT / "tests" / "image" / "tensorrt_llm" / "api.toml").read_text())


def shown(program: str, *words: str) -> set[str]:
    """The flags in a program's own help."""
    if program == "tritonserver":
        argv, environment = install.program("embedded", cache_dir())
        done = subprocess.run([argv[0], "--help"], capture_output=True, text=True, env=environment)
    else:
        done = subprocess.run([Path(sys.executable).parent / program, *words, "--help"], capture_output=True, text=True)
    return set(re.findall(r"--[a-z][\w-]+", done.stdout + done.stderr))


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    """{program: its flags}; of the programs that flags.toml knows by version, none yet."""
    return {
        "trtllm-build": set(), "convert_checkpoint.py": set(),
        "trtllm-serve": set(RELEASED["trtllm-serve"]["flags"].split()),
        "tritonserver": shown("tritonserver"),
        # tensorrtllm_backend v0.19.0, scripts/launch_triton_server.py
        "launch_triton_server.py": {
            "--world_size", "--tritonserver", "--grpc_port", "--http_port", "--metrics_port", "--force", "--log",
            "--log-file", "--model_repo", "--tensorrt_llm_model_name", "--multi-model", "--no-mpi", "--oversubscribe",
            "--multimodal_gpu0_cuda_mem_pool_bytes", "--disable-spawn-processes",
        },
        "mpirun": {"--allow-run-as-root", "--hostfile"},  # Open MPI's mpirun(1)
    }  # fmt: skip


def of_versions(program: str, versions: Iterable[str]) -> set[str]:
    families = [f"{name}/{program}" for name in ("gpt", "llama", "gemma")] if program.endswith(".py") else [program]
    return {flag for name in families for version in versions for flag in flags.known(name, version)}


def commands(text: str, programs: Iterable[str]) -> list[tuple[str, list[str]]]:
    """(program, its flags) of each command in a text: of a shell, in backticks, or as a list of words in Python."""
    text = re.sub(r"\\\n[ #]*", " ", text)
    text = re.sub(r"\n# (?=--\w)", " ", text)  # a line of prose that was wrapped
    text = re.sub(r"""["'], f?["']""", " ", text)
    found = re.findall(rf"(?<![\w-])({'|'.join(map(re.escape, programs))})\b([^\n`|;:]*)", text)
    return [(program, re.findall(r"(?<![\w-])--[A-Za-z][\w-]*", rest)) for program, rest in found]


def test_what_is_printed_is_what_the_programs_take(known):
    """In the pinned version; where a cell names older ones, in one of those."""
    seen, releases = Counter(), {container.trtllm for container in versions.containers()}
    for page in PAGES:
        for cell in page.read_text().split("\n# %%"):
            named = {"1.2.1", *re.findall(r"\b\d+\.\d+\.\d+\b", cell)} & releases
            for program, given in commands(cell, known):
                takes = known[program] or of_versions(program, named)
                assert set(given) <= takes, (page.name, program, set(given) - takes)
                seen[program] += len(given)
    assert set(seen) == set(known), seen
    assert all(count for program, count in seen.items() if program != "convert_checkpoint.py"), seen


@pytest.mark.parametrize("line", ["tritonserver --model-repo x", "`trtllm-build --dtype float16`",
                                  '["trtllm-serve", model, "--host", host, "--batch"]'])  # fmt: skip
def test_a_flag_that_is_not_there_is_seen(known, line):
    ((program, given),) = commands(line, known)
    assert set(given) - (known[program] or of_versions(program, ["1.2.1"]))


def test_what_the_library_runs_too(known, tmp_path):
    ports = dict(zip(("http", "grpc", "metrics"), range(1, 4), strict=True))
    ours = mpirun_command("/repository", ["tensorrt_llm"], 2, ports)
    ours += TritonServer(tmp_path)._command(["a"], ports)[0]
    given = {word.partition("=")[0] for word in ours if word.startswith("--")}
    assert len(given) > 12 and given <= known["tritonserver"] | known["mpirun"]


def test_the_hub_s_client_takes_what_the_recipes_give_it():
    given = {flag for name in recipes.NAMES for flag, _ in recipes.recipe(name).commands[0].args}
    assert given and given <= shown("hf", "download")
