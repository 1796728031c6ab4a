"""The table of containers is whole, tags and versions are found, and the errors name the nearest."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from course.cli import app
from engines import EngineError, versions
from servinglab.repository import contract


def test_the_table_is_whole_and_in_order():
    found = versions.containers()
    months = [12 * int(c.tag[:2]) + int(c.tag[3:]) for c in found]
    assert versions.NEWEST == found[0].trtllm
    assert months == list(range(26 * 12 + 7, 24 * 12 + 3, -1)), "every month from 24.04 to 26.07, newest first"
    for newer, older in zip(found, found[1:], strict=False):
        assert versions.version(newer.trtllm) >= versions.version(older.trtllm)
        assert versions.version(newer.tensorrt).release[:3] >= versions.version(older.tensorrt).release[:3]
    for c in found:
        assert c.image == f"nvcr.io/nvidia/tritonserver:{c.tag}-trtllm-python-py3"
        assert c.python.startswith("3.12" if c.tag >= "24.12" else "3.10")
        assert 10 < c.size_gb < 40
        versions.newest_for(c.driver)  # a driver version that can be compared


@pytest.mark.parametrize(
    ("text", "tag", "trtllm", "tensorrt"),
    [
        ("26.07", "26.07", "1.2.1", "10.14.1.48"), ("25.06", "25.06", "0.20.0", "10.10.0.31"),
        ("0.16.0", "24.12", "0.16.0", "10.7.0"), ("0.9.0", "24.05", "0.9.0", "10.0.1.6"),
        ("0.17.0.post1", "25.02", "0.17.0.post1", "10.8.0.43"),
    ],
)  # fmt: skip
def test_a_container_is_found_by_tag_or_version(text, tag, trtllm, tensorrt):
    found = versions.find(text)
    assert (found.tag, found.trtllm, found.tensorrt) == (tag, trtllm, tensorrt)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("24.03", r"from 24\.04 \(0\.9\.0\) to 26\.07 \(1\.2\.1\)"), ("latest", "'latest' is no container"),
        ("0.18.1", "no TensorRT-LLM of one"),
    ],
)  # fmt: skip
def test_an_unknown_container_is_told_the_span(text, said):
    with pytest.raises(EngineError, match=said):
        versions.find(text)


@pytest.mark.parametrize(
    ("driver", "tag"),
    [("590.44.01", "26.07"), ("580.95.05", "26.02"), ("590.44", "26.02"), ("575.57.08", "25.10"),
     ("575.51.03", "25.08"),
     ("570.124.06", "25.05"), ("570.86.10", "25.02"), ("560.35.05", "24.12"), ("550.54.15", "24.07"), ("999", "26.07"),
     ("545.23.08", "24.05"), ("545.23.07", None), ("470.256.02", None)],
)  # fmt: skip
def test_the_newest_container_for_a_driver(driver, tag):
    found = versions.newest_for(driver)
    assert (found and found.tag) == tag


@pytest.mark.parametrize("driver", ["", "latest", "570.x"])
def test_no_driver_version(driver):
    with pytest.raises(EngineError, match="no NVIDIA driver version"):
        versions.newest_for(driver)


def test_generations_by_version():
    assert versions.find("0.19.0").generation == versions.find("25.05").generation == "old"
    assert {versions.find(v).generation for v in ("0.9.0", "0.16.0", "0.18.2")} == {"before 0.19"}
    assert versions.find("0.20.0").generation == versions.find("1.0.3.2510").generation == "new"
    assert versions.find("1.1.0").generation == versions.find("1.2.1").generation == "1.1"
    for container in versions.containers():  # what the table says, `repo build --generation` takes or refuses
        if container.generation == "before 0.19":
            with pytest.raises(contract.RepositoryError, match="No template"):
                contract.template("ensemble", container.generation)
        else:
            assert container.generation in contract.GENERATIONS


def test_converters_moved_in_0_20():
    assert versions.converter("gpt2", "0.19.0") == "gpt/convert_checkpoint.py"
    assert versions.converter("gpt2", "0.20.0") == "models/core/gpt/convert_checkpoint.py"
    assert versions.converter("llama", "1.2.1") == "models/core/llama/convert_checkpoint.py"
    assert versions.converter("gemma", "0.9.0") == "gemma/convert_checkpoint.py"


def test_the_workflow_ends_after_1_3_0rc20():
    versions.require_workflow("1.3.0rc20")
    for trtllm in ("1.3.0rc21", "1.3.0", "2.0"):
        with pytest.raises(EngineError, match=r"removed after 1\.3\.0rc20; take the LLM API \(notebook 12\)"):
            versions.require_workflow(trtllm)
    with pytest.raises(EngineError, match=r"older.*0\.9\.0"):
        versions.require_workflow("0.8.0")
    with pytest.raises(EngineError, match="no version of TensorRT-LLM"):
        versions.require_workflow("newest")


def test_a_recipe_is_for_the_installed_version(monkeypatch):
    recipe = ["engine", "recipe", "smollm2"]
    assert versions.here() == "1.2.1" and "\nhf download" in "\n" + CliRunner().invoke(app, recipe).output
    monkeypatch.setattr(versions.metadata, "version", {"tensorrt_llm": "1.0.0"}.get)
    assert versions.here() == "1.0.0" and "huggingface-cli download" in CliRunner().invoke(app, recipe).output
