"""A stand-in for NVIDIA's image: a root with its layout, whose programs are those of the embedded lane.

What a step finds where (`Image.run`), and what it may change, is as in `nvcr.io/nvidia/tritonserver:YY.MM-trtllm-
python-py3`: `/opt/tritonserver`, `/app`, the Python that holds torch and tensorrt_llm, `mpirun` that wants OPAL_PREFIX.
Two layouts: "system", containers up to 26.02, and "venv", from 26.03 on, in which that Python is a virtual environment.
A stand-in's version of the system's Python is an environment too, but one at the front of the path, as python3.

It is entered by `unshare` (user and mount namespaces) and `pivot_root`, without root and without a daemon. No GPU, no
CUDA: this shows that a command finds what it needs, not how fast that is.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
# What NVIDIA's image brings, of what the stand-in's programs and the course import.
BROUGHT = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "tritonclient", "grpcio", "aiohttp", "psutil",
           "pillow", "nvidia-pytriton", "onnxruntime", "onnx", "sentencepiece", "setuptools", "packaging", "protobuf",
           "pydantic", "huggingface-hub")  # fmt: skip
FAMILIES = "/app/examples/models/core"
PYTHON = {"system": "/opt/system-python", "venv": "/opt/venv-tritonserver"}
HOST = ("usr", "lib", "lib64", "bin", "sbin", "etc", "dev", "proc", "sys")  # of this machine, for the programs to run


class Image:
    """A root made in `root`. `layout`: "system" or "venv"; see the module."""

    def __init__(self, root: Path, layout: str, *, tag: str = "26.07-trtllm-python-py3"):
        self.root, self.layout, self.tag = root, layout, tag
        self.python = PYTHON[layout]
        self.env = {
            "PATH": f"/opt/tritonserver/bin:{self.python}/bin:/usr/local/mpi/bin:/usr/local/bin:/usr/bin:/bin",
            "OPAL_PREFIX": "/usr/local/mpi", "LC_ALL": "C.UTF-8", "HOME": "/root", "PYTHONDONTWRITEBYTECODE": "1",
            "TRITON_SERVER_VERSION": "2.51.0",
        }  # fmt: skip
        self.mounts: dict[str, Path] = {}  # path in the image: folder here, read only
        self.cwd, self.user, self.cmd, self.shell = "/workspace", 0, [], ["/bin/sh", "-c"]

    # --- making it ----------------------------------------------------------------------------------------------

    def make(self) -> Image:
        for name in (*HOST, "tmp", "root", "home", "workspace", "work", "app", "opt/standin", "opt/packages",
                     "usr-local/bin", "usr-local/mpi/bin", "dev/shm"):  # fmt: skip
            (self.root / name).mkdir(parents=True, exist_ok=True)
        (self.root / "tmp").chmod(0o1777)
        self.mounts |= {"/opt/standin/reference_backend": ROOT / "lib/reference_backend",
                        "/opt/standin/engines": ROOT / "lib/engines", "/opt/standin/bin": HERE / "bin",
                        "/opt/packages/here": Path(sysconfig.get_path("purelib"))}  # fmt: skip
        for place in self.mounts:
            self.at(place).mkdir(parents=True, exist_ok=True)
        done = self.run([sys.base_prefix + "/bin/python3", "-m", "venv", self.python])
        done.check_returncode()
        for old in self.at(self.python).glob("lib/python*/site-packages/setuptools*"):
            shutil.rmtree(old)  # the one that NVIDIA brings counts
        self._packages()
        self._programs()
        return self

    def at(self, place: str) -> Path:
        """A path of the image as this machine sees it."""
        place = re.sub(r"^/usr/local(?=/|$)", "/usr-local", place)
        return self.root / place.lstrip("/")

    def _packages(self) -> None:
        """Links to the packages that NVIDIA brings, found by the image's Python; and the stand-in's tensorrt_llm,
        whose LLM needs more than is there."""
        names, todo = set(), list(BROUGHT)
        while todo:
            name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found = importlib.metadata.distribution(name)
                if name not in names:
                    names.add(name)
                    needs = map(Requirement, found.requires or ())
                    todo += [need.name for need in needs if not need.marker or need.marker.evaluate({"extra": ""})]
        farm = self.at("/opt/packages/brought")
        farm.mkdir(parents=True)
        here = Path(sysconfig.get_path("purelib"))
        for name in names:
            found = importlib.metadata.distribution(name)
            tops = {Path(file).parts[0] for file in found.files or ()} - {"..", "__pycache__"}
            for top in tops:
                if (here / top).exists() and not (farm / top).is_symlink():
                    (farm / top).symlink_to(f"/opt/packages/here/{top}")
        (site,) = self.at(self.python).glob("lib/python*/site-packages")
        (site / "nvidia.pth").write_text("/opt/packages/brought\n")
        shutil.copytree(HERE / "tensorrt_llm", site / "tensorrt_llm")
        _say_installed(site, "tensorrt_llm", "1.2.1")
        # trtllm-build writes the version of its maker into an engine; only the stand-in's programs look here.
        _say_installed(self.at("/opt/standin"), "servinglab", importlib.metadata.version("servinglab"))

    def _programs(self) -> None:
        from servinglab.repository import write_templates
        from servinglab.server import install

        backends = self.at("/opt/tritonserver/backends")
        for link in install.backend_directory(self.root / "cache").rglob("*"):
            if link.is_file():
                target = backends / link.parent.name / link.name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(link, target)
        for program, places in {
            "tritonserver": ["/opt/tritonserver/bin/tritonserver"],
            "mpirun": ["/usr/local/mpi/bin/mpirun"],
            "trtllm-build": [f"{self.python}/bin/trtllm-build"],
            "trtllm-serve": [f"{self.python}/bin/trtllm-serve"],
            "hf": [f"{self.python}/bin/hf"],
            "convert_checkpoint.py": [f"{FAMILIES}/{name}/convert_checkpoint.py" for name in ("gpt", "llama", "gemma")],
            "fill_template.py": ["/app/tools/fill_template.py"],
        }.items():
            for place in places:
                self.at(place).parent.mkdir(parents=True, exist_ok=True)
                text = (HERE / "bin" / program).read_text()
                self.at(place).write_text(text.replace("#!python", f"#!{self.python}/bin/python3"))
                self.at(place).chmod(0o755)
        for family in ("gpt", "llama", "gemma"):
            self.at(f"{FAMILIES}/{family}/requirements.txt").write_text(
                "-c ../../../constraints.txt\ntransformers>=4.53\n"
            )
        write_templates(self.at("/app/all_models/inflight_batcher_llm"), "1.1")

    def copy(self, root: Path) -> Image:
        """The same in another root."""
        shutil.copytree(self.root, root, symlinks=True)
        other = copy.copy(self)
        other.root, other.env, other.mounts = root, dict(self.env), dict(self.mounts)
        return other

    # --- using it -----------------------------------------------------------------------------------------------

    def command(
        self, argv: Sequence[str], *, uid: int = 0, env: Mapping[str, str] = {}, mounts: Mapping[str, Path] = {},
        cwd: str | None = None,
    ) -> list[str]:  # fmt: skip
        """What runs `argv` in the image, as a user of this id (which needs no name). `mounts`: writable folders."""
        lines = ["set -e", "mount --bind {0} {0}; cd {0}; mkdir -p outside".format(shlex.quote(str(self.root)))]
        for name in HOST:
            if Path("/" + name).is_dir():
                lines.append(f"mount --rbind /{name} {name}")
        lines.append("mount --bind usr-local usr/local")  # the machine's own stays outside
        for place in {sys.base_prefix, os.environ.get("PIP_FIND_LINKS", ""), *_pip_files()}:
            if place and Path(place).exists() and not place.startswith(tuple(f"/{n}/" for n in HOST if n != "usr")):
                lines += [_mount(Path(place), place, self)]
        lines += [_mount(path, place, self) for place, path in {**self.mounts, **mounts}.items()]
        variables = [f"{key}={value}" for key, value in {**self.env, **_network(), **env}.items()]
        inner = f"cd {shlex.quote(cwd or self.cwd)} && exec {shlex.join(argv)}"
        call = ["env", "-i", *variables, "/bin/sh", "-c", inner]
        if uid:
            call = ["/usr/bin/unshare", "--user", f"--map-user={uid}", f"--map-group={uid}", "--", *call]
        # Not chroot: in it no further user namespace can be made.
        lines.append(f"pivot_root . outside; umount -l /outside; exec {shlex.join(call)}")
        return ["unshare", "--user", "--map-root-user", "--mount", "--", "/bin/sh", "-c", "\n".join(lines)]

    def run(self, argv: Sequence[str], *, timeout: float = 300, **how) -> subprocess.CompletedProcess:
        """Run to the end; output and errors as text, together."""
        return subprocess.run(self.command(argv, **how), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=timeout)  # fmt: skip

    def build(self, dockerfile: Path, **arguments: str) -> list[str]:
        """Run the instructions of a Dockerfile, from the checkout. Returns what its RUN steps said, one by one.

        Raises RuntimeError for a step that fails. The image has ENV, USER, WORKDIR and CMD afterwards.
        """
        text = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", dockerfile.read_text()))
        said, values = [], dict(arguments)
        for line in filter(None, map(str.strip, text.splitlines())):
            word, _, rest = line.partition(" ")
            rest = rest.strip()
            if word == "ARG":
                name, _, default = rest.partition("=")
                values.setdefault(name, default.strip('"'))
            elif word == "ENV":
                self.env |= dict(item.split("=", 1) for item in shlex.split(rest))
            elif word == "COPY":
                *sources, target = rest.split()
                for source in sources:
                    self._copy(ROOT / source, target, many=len(sources) > 1 or target.endswith("/"))
            elif word == "WORKDIR":
                self.cwd = rest
                self.at(rest).mkdir(parents=True, exist_ok=True)
            elif word == "USER":
                self.user = int(rest.partition(":")[0])
            elif word in ("CMD", "SHELL"):
                setattr(self, word.lower(), json.loads(rest))
            elif word == "RUN":
                done = self.run([*self.shell, rest], env=values, timeout=900)
                said.append(done.stdout)
                if done.returncode:
                    raise RuntimeError(f"{rest[:80]}… failed:\n{done.stdout[-3000:]}")
            elif word not in ("FROM", "EXPOSE"):
                raise RuntimeError(f"The stand-in does not know {word}.")
        return said

    def _copy(self, source: Path, target: str, *, many: bool) -> None:
        place = self.at(target) / source.name if many and source.is_file() else self.at(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, place)


def _say_installed(folder: Path, name: str, version: str) -> None:
    (facts := folder / f"{name}-{version}.dist-info").mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _mount(path: Path, place: str, image: Image) -> str:
    at = image.at(place)
    if path.is_dir():
        at.mkdir(parents=True, exist_ok=True)
    else:
        at.parent.mkdir(parents=True, exist_ok=True)
        at.touch()
    inside = re.sub(r"^/usr/local(?=/|$)", "/usr/local", place).lstrip("/")
    return f"mount --rbind {shlex.quote(str(path))} {shlex.quote(inside)}"


@functools.cache
def _pip_files() -> list[str]:
    """Configuration of pip on this machine, that the image's pip finds the same index."""
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "debug"], capture_output=True, text=True).stdout
    return re.findall(r"^\s+(/\S+), exists: True", asked, re.MULTILINE)


def _network() -> dict[str, str]:
    names = re.compile(r"(?i)(.*_proxy|pip_.*|ssl_cert.*|requests_ca_bundle)")
    return {name: value for name, value in os.environ.items() if names.fullmatch(name)}
