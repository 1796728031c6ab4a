"""Version compass: the table is whole, tags and versions are found, and the errors name the nearest."""

from __future__ import annotations

import re

import pytest

from engines import EngineError, compass, examples
from servinglab.repository import container_generation, contract


def test_the_table_is_whole_and_in_order():
    found = compass.containers()
    months = [12 * c.release[0] + c.release[1] for c in found]
    assert months == list(range(26 * 12 + 7, 24 * 12 + 3, -1)), "every month from 24.04 to 26.07, newest first"
    for newer, older in zip(found, found[1:], strict=False):
        assert compass.version(newer.trtllm) >= compass.version(older.trtllm)
        assert compass.version(newer.tensorrt).release[:3] >= compass.version(older.tensorrt).release[:3]
    for c in found:
        assert c.image == f"nvcr.io/nvidia/tritonserver:{c.tag}-trtllm-python-py3"
        assert c.python.startswith("3.12" if c.release >= (24, 12) else "3.10")
        assert 10 < c.size_gb < 40
        compass.newest_for(c.driver)  # a driver version that can be compared


@pytest.mark.parametrize(
    ("text", "tag", "trtllm", "tensorrt"),
    [
        ("26.07", "26.07", "1.2.1", "10.14.1.48"), ("25.06-trtllm-python-py3", "25.06", "0.20.0", "10.10.0.31"),
        ("nvcr.io/nvidia/tritonserver:24.12-trtllm-python-py3", "24.12", "0.16.0", "10.7.0"),
        ("25.5", "25.05", "0.19.0", "10.9.0.34"), ("0.16.0", "24.12", "0.16.0", "10.7.0"),
        ("v1.2.1", "26.07", "1.2.1", "10.14.1.48"),
        ("0.9.0", "24.05", "0.9.0", "10.0.1.6"), ("0.17.0.post1", "25.02", "0.17.0.post1", "10.8.0.43"),
    ],
)  # fmt: skip
def test_a_container_is_found_by_tag_image_or_version(text, tag, trtllm, tensorrt):
    found = compass.find(text)
    assert (found.tag, found.trtllm, found.tensorrt) == (tag, trtllm, tensorrt)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("24.03", r"24\.03.*outside.*24\.04 \(TensorRT-LLM 0\.9\.0\)"), ("26.08", r"outside.*26\.07"),
        ("latest", r"'latest' is neither.*26\.07"), ("", "neither"),
        ("0.18.1", r"25\.03.* and 25\.04 \(TensorRT-LLM 0\.18\.2\)"),
        ("9.9", r"nearest: 26\.07"),
    ],
)  # fmt: skip
def test_an_unknown_container_names_the_nearest(text, said):
    with pytest.raises(EngineError, match=said):
        compass.find(text)


@pytest.mark.parametrize(
    ("driver", "tag"),
    [("590.44.01", "26.07"), ("580.95.05", "26.02"), ("590.44", "26.02"), ("575.57.08", "25.10"),
     ("575.51.03", "25.08"),
     ("570.124.06", "25.05"), ("570.86.10", "25.02"), ("560.35.05", "24.12"), ("550.54.15", "24.07"), ("999", "26.07"),
     ("545.23.08", "24.05"), ("545.23.07", None), ("470.256.02", None)],
)  # fmt: skip
def test_the_newest_container_for_a_driver(driver, tag):
    found = compass.newest_for(driver)
    assert (found and found.tag) == tag


@pytest.mark.parametrize("driver", ["", "latest", "570.x"])
def test_no_driver_version(driver):
    with pytest.raises(EngineError, match="no NVIDIA driver version"):
        compass.newest_for(driver)


def test_generations_by_version_and_by_container_are_one_truth():
    assert [compass.generation(v) for v in ("0.9.0", "0.19.0", "0.20.0", "1.0.3.2510", "1.1.0", "1.2.1")] == [
        "old", "old", "new", "new", "1.1", "1.1"]  # fmt: skip
    assert [compass.first_release(g) for g in contract.GENERATIONS] == [(0, 0), (25, 6), (25, 12)]
    for c in compass.containers():
        assert c.generation == container_generation(c.tag)


def test_converters_moved_in_0_20():
    assert compass.converter("gpt2", "0.19.0") == "gpt/convert_checkpoint.py"
    assert compass.converter("gpt2", "0.20.0") == "models/core/gpt/convert_checkpoint.py"
    assert compass.converter("llama", "1.2.1") == "models/core/llama/convert_checkpoint.py"
    assert compass.converter("gemma", "0.9.0") == "gemma/convert_checkpoint.py"
    with pytest.raises(EngineError, match="no converter for 'bert'"):
        compass.converter("bert", "1.2.1")


def test_the_workflow_ends_after_1_3_0rc20():
    compass.require_workflow("1.3.0rc20")
    for version in ("1.3.0rc21", "1.3.0", "2.0"):
        with pytest.raises(EngineError, match=r"removed after 1\.3\.0rc20; take the LLM API \(notebook 12\)"):
            compass.require_workflow(version)
    with pytest.raises(EngineError, match=r"older.*0\.9\.0"):
        compass.require_workflow("0.8.0")
    with pytest.raises(EngineError, match="no version of TensorRT-LLM"):
        compass.require_workflow("newest")


@pytest.mark.parametrize(
    ("ours", "wheel", "family", "said"),
    [
        ("0.12.0", "0.13.0", "gemma", "quant_config where mapping is expected.*TypeError"),
        ("0.13.0.dev2024090300", "0.16.0", "gemma", "quant_config where mapping is expected"),
        ("0.9.0", "0.11.0", "gemma", "functions that other versions have"), ("0.13.0", "0.14.0", "gemma", "functions"),
        ("0.13.0", "0.12.0", "gemma", "functions"), ("0.12.0", "0.13.0", "llama", "functions"),
        ("1.2.0", "1.2.1", None, 'tag "v1.2.1"'), ("0.13.0", "0.13.0", "gemma", None),
        ("v1.2.1", "1.2.1", "gpt2", None),
    ],
)  # fmt: skip
def test_converter_and_wheel_of_different_versions(ours, wheel, family, said):
    """E54: the Gemma trap and its relatives."""
    found = examples.check(ours, wheel, family)
    if said is None:
        assert found is None
    else:
        assert re.search(said, found), found


def test_the_version_of_an_examples_folder_is_read_not_run(tmp_path):
    script = tmp_path / "examples" / "models" / "core" / "gemma" / "convert_checkpoint.py"
    script.parent.mkdir(parents=True)
    script.touch()
    assert examples.version_of(script) is None
    version = tmp_path / "tensorrt_llm" / "version.py"
    version.parent.mkdir()
    version.write_text('# licence\nraise SystemExit\n__version__ = "0.13.0.dev2024090300"\n')
    for path in (script, script.parent, tmp_path / "examples", tmp_path):
        assert examples.version_of(path) == "0.13.0.dev2024090300"


@pytest.mark.parametrize(
    ("config", "trtllm", "said"),
    [
        ({"model_type": "gpt2"}, "0.9.0", None), ({"model_type": "llama"}, "0.9.0", None),
        ({"model_type": "gemma2"}, "0.12.0", r"Gemma 2 needs TensorRT-LLM 0\.13\.0"),
        ({"model_type": "gemma2"}, "0.13.0", None),
        ({"model_type": "gemma3_text"}, "0.18.2", r"needs TensorRT-LLM 0\.19\.0"),
        ({"model_type": "qwen3"}, "0.21.0", r"1\.0\.0"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "llama3"}}, "0.11.0",
         r"Llama 3\.1 needs TensorRT-LLM 0\.12\.0"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "llama3"}}, "0.12.0", None),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "llama3"}, "tie_word_embeddings": True}, "0.14.0",
         r"Llama 3\.2 needs TensorRT-LLM 0\.15\.0"),
        ({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2}}, "0.9.0", None),
        ({"model_type": "novel"}, "1.2.1", "not known here"),
    ],
)  # fmt: skip
def test_a_model_that_is_newer_than_tensorrt_llm(config, trtllm, said):
    """E55: the version that a model needs, or that it is not known."""
    found = examples.supports(config, trtllm)
    assert found is None if said is None else re.search(said, found), found


def test_no_hugging_face_config():
    with pytest.raises(EngineError, match="no model_type"):
        examples.supports({"architecture": "GPTForCausalLM"}, "1.2.1")
