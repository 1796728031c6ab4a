"""One source of dependency truth: pyproject.toml. The lock and environment.yml agree with it; odd pins have reasons."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from servinglab import pages
from servinglab.course import tomllib

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "pyproject.toml").read_text()
PROJECT = tomllib.loads(TEXT)["project"]
EXTRAS = PROJECT["optional-dependencies"]
DIRECT = [Requirement(r) for group in (PROJECT["dependencies"], *EXTRAS.values()) for r in group]
DIRECT = [r for r in DIRECT if r.name != "servinglab"]


def locked(python: str) -> dict[str, Version]:
    """The lock as pip reads it under one Python version."""
    pins = {}
    for line in (ROOT / "requirements" / "lock.txt").read_text().splitlines():
        text = line.split("#")[0].strip()
        if not text:
            continue
        requirement = Requirement(text)
        environment = {"python_version": python.rsplit(".", 1)[0], "python_full_version": python}
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        (pin,) = requirement.specifier
        assert pin.operator == "==", line
        name = canonicalize_name(requirement.name)
        assert name not in pins, f"{name} is locked twice for Python {python}"
        pins[name] = Version(pin.version)
    return pins


@pytest.mark.parametrize("python", ["3.10.13", "3.11.2", "3.11.7", "3.12.1"])
def test_every_direct_dependency_is_locked_within_its_specifier(python):
    pins = locked(python)
    for requirement in DIRECT:
        if requirement.marker is not None and not requirement.marker.evaluate({"python_version": python[:4]}):
            continue
        name = canonicalize_name(requirement.name)
        assert name in pins, f"{name} is not in requirements/lock.txt; run make lock"
        assert requirement.specifier.contains(pins[name], prereleases=True), f"{requirement} is locked as {pins[name]}"


def test_the_lock_serves_cpu_and_cuda_builds_of_torch():
    """A local version such as 2.13.0+cpu satisfies the pin; the CUDA libraries bind only who pulls them."""
    line = next(x for x in (ROOT / "requirements" / "lock.txt").read_text().splitlines() if x.startswith("torch=="))
    assert Requirement(line.split("#")[0].strip()).specifier.contains("2.13.0+cpu")
    assert any(name.startswith("nvidia-c") for name in locked("3.11.7"))


def test_the_lock_names_no_address_and_no_path():
    for name in ("requirements/lock.txt", "pyproject.toml", "Makefile", "environment.yml", "requirements/setup.sh"):
        assert not re.search(r"https?://|file:|--index|@ ", (ROOT / name).read_text()), name


def test_environment_yml_derives_from_pyproject():
    assert (ROOT / "environment.yml").read_text() == pages.environment_yml(PROJECT), "run make pages"
    data = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert data["dependencies"][0].split(" ", 1) == ["python", PROJECT["requires-python"]]
    assert data["dependencies"][2]["pip"] == ["--constraint requirements/lock.txt", "--editable .[all]"]


def test_the_extra_all_is_every_extra():
    (text,) = EXTRAS["all"]
    assert Requirement(text).extras == set(EXTRAS) - {"all"}


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
    from servinglab.doctor._machine import PYTHONS

    versions = [f"{a}.{b}" for a, b in PYTHONS]
    below = f"{PYTHONS[-1][0]}.{PYTHONS[-1][1] + 1}"
    assert PROJECT["requires-python"] == f">={versions[0]},<{below}"
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == versions
    setup = (ROOT / "requirements" / "setup.sh").read_text()
    assert "(3, 10) <= sys.version_info[:2] < (3, 13)" in setup
    assert all(f"python{v}" in setup for v in versions)


def test_actions_are_pinned_by_major_version():
    uses = re.findall(r"uses: (\S+)", (ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert uses and all(re.fullmatch(r"actions/[\w-]+@v\d+", u) for u in uses)


@pytest.mark.parametrize("script", [".ci/run", "requirements/setup.sh"])
def test_shell_scripts_parse_and_stop_at_errors(script):
    text = (ROOT / script).read_text()
    assert "set -euo pipefail" in text
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_base_install_needs_no_server_and_no_torch():
    names = {canonicalize_name(Requirement(r).name) for r in PROJECT["dependencies"]}
    assert not names & {"torch", "transformers", "nvidia-pytriton", "onnxruntime", "jupyterlab"}
