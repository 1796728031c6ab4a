"""Why an engine will not run here: every reason, in one sentence that names both sides and the cure."""

from __future__ import annotations

import json

import numpy as np
import pytest
from engine_helpers import TENSORRT, TRTLLM, engine_folder, plan_bytes, rewrite
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import write_checkpoint
from typer.testing import CliRunner

from course.cli import app
from engines import EngineError
from engines.compatibility import Machine, incompatibility
from engines.inspection import inspect, look, read
from engines.versions import containers

HERE = Machine(TRTLLM, TENSORRT, 4)


def one_sentence(text: str | None) -> str:
    assert text and "\n" not in text and text.endswith("."), text
    return text


@pytest.fixture
def engine(tmp_path):
    return engine_folder(tmp_path / "engine")


def test_a_whole_engine_of_the_same_versions_runs(engine):
    assert incompatibility(engine, HERE) is None
    assert incompatibility(str(engine), HERE) is None


def test_what_a_folder_says(tmp_path):
    four = engine_folder(tmp_path / "four", ranks=4, size=5000)
    found = read(four)
    assert (found.kind, found.version, found.tensorrt) == ("engine", TRTLLM, TENSORRT)
    assert (found.tp_size, found.pp_size, found.world_size) == (4, 1, 4)
    files = [(f"rank{n}.engine", 5000, "TensorRT", TENSORRT) for n in range(4)]
    assert [(f.name, f.size_bytes, f.product, f.version) for f in found.files] == files
    assert found.build.get("max_batch_size") == 64 and found.build.part("plugin_config")["gemm_plugin"] == "float16"


# versions


@pytest.mark.parametrize("container", [c for c in containers() if c.trtllm != TRTLLM], ids=lambda c: c.tag)
def test_another_version_names_both_and_the_container_to_use(tmp_path, container):
    """The message of TensorRT itself says "Current Version 228, Serialized Engine Version 237" and no more."""
    built = engine_folder(tmp_path / "engine", version=container.trtllm)
    (built / "rank0.engine").write_bytes(b"ftrt" + bytes(4))  # too short to say its TensorRT
    assert "is cut" in one_sentence(incompatibility(built, HERE))
    (built / "rank0.engine").write_bytes(b"ftrt" + b"\1" + bytes(99))  # another layout, which is not known
    said = one_sentence(incompatibility(built, HERE))
    assert f"TensorRT-LLM {container.trtllm}" in said and f"TensorRT-LLM {TRTLLM} and TensorRT {TENSORRT}" in said
    newest = next(c for c in containers() if c.trtllm == container.trtllm)
    assert f"container {newest.tag}" in said


def test_the_engine_file_decides_which_tensorrt_it_was(tmp_path):
    old = engine_folder(tmp_path / "old", version="0.9.0", tensorrt="10.0.1.6")  # 24.04 and 24.05 both have 0.9.0
    assert "TensorRT 10.0.1.6," in (said := one_sentence(incompatibility(old, HERE))) and "container 24.05" in said
    older = engine_folder(tmp_path / "older", version="0.9.0", tensorrt="9.3.0.1")
    assert "container 24.04" in one_sentence(incompatibility(older, HERE))
    foreign = engine_folder(tmp_path / "foreign", tensorrt="10.9.0.34")  # config.json says 1.2.1 all the same
    assert "TensorRT 10.9.0.34, here is" in one_sentence(incompatibility(foreign, HERE))
    short = engine_folder(tmp_path / "short", version="0.16.0", tensorrt="10.7.0.23")  # the table says 10.7.0
    assert incompatibility(short, Machine("0.16.0", "10.7.0", 1)) is None


def test_an_unknown_version_is_told_and_not_invented(tmp_path):
    built = engine_folder(tmp_path / "engine", version="0.99.0")
    said = one_sentence(incompatibility(built, HERE))
    assert "0.99.0" in said and "container" not in said
    rewrite(built, "version", value=None)
    assert incompatibility(built, HERE) is None  # the TensorRT in the file is the right one
    assert "container" not in one_sentence(incompatibility(built, Machine(TRTLLM, "10.9.0.34", 1)))


def test_without_tensorrt_llm_the_container_is_named(engine):
    said = one_sentence(incompatibility(engine, Machine(gpus=1)))
    assert "no TensorRT-LLM is installed here" in said and "container 26.07" in said


# GPUs


def test_too_few_gpus(tmp_path):
    four = engine_folder(tmp_path / "four", ranks=4)
    said = one_sentence(incompatibility(four, Machine(TRTLLM, TENSORRT, 2)))
    assert "needs 4 GPU(s) (tensor parallel 4 × pipeline parallel 1)" in said and "shows 2" in said
    assert incompatibility(four, Machine(TRTLLM, TENSORRT, 4)) is None
    assert "shows 0" in one_sentence(incompatibility(four, Machine(TRTLLM, TENSORRT)))


def test_this_machine_is_looked_at(monkeypatch):
    monkeypatch.setattr("engines.compatibility._nvidia_smi", ["NVIDIA H100 80GB HBM3", "NVIDIA L4"].copy)
    assert Machine.here("25.06") == Machine("0.20.0", "10.10.0.31", 2)
    monkeypatch.setattr("engines.compatibility._nvidia_smi", list)
    assert Machine.here().gpus == 0


# files


def test_missing_empty_and_foreign_files(tmp_path):
    built = engine_folder(tmp_path / "engine", ranks=2)
    (built / "rank1.engine").unlink()
    assert "lacks rank1.engine of 2 rank(s)" in one_sentence(incompatibility(built, HERE))
    (built / "rank1.engine").write_bytes(b"")
    assert "rank1.engine is empty" in one_sentence(incompatibility(built, HERE))
    (built / "rank1.engine").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "git lfs pull" in one_sentence(incompatibility(built, HERE))
    (built / "rank1.engine").write_bytes(b"\x08\x07onnx" + bytes(99))
    assert "is no engine: it begins with" in one_sentence(incompatibility(built, HERE))
    (built / "rank1.engine").unlink()
    (built / "rank1.engine").mkdir()
    assert "cannot be read" in one_sentence(incompatibility(built, HERE))
    (built / "config.json").write_text(" \n")
    assert one_sentence(incompatibility(built, HERE)).endswith("config.json is empty; make it or copy it again.")


def test_other_folders_are_named_for_what_they_are(tmp_path, smollm2_checkpoint):
    from engines.convert import convert

    assert "There is no folder" in one_sentence(incompatibility(tmp_path / "nowhere", HERE))
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in one_sentence(incompatibility(tmp_path / "empty", HERE))
    assert "Hugging Face checkpoint" in one_sentence(incompatibility(smollm2_checkpoint, HERE))
    write_checkpoint(tmp_path / "hf")
    checkpoint = convert(tmp_path / "hf", tmp_path / "checkpoint")
    assert "trtllm-build --checkpoint_dir" in one_sentence(incompatibility(checkpoint, HERE))


def test_an_engine_of_the_courses_backend_is_told_from_nvidias(engine):
    from safetensors.numpy import save_file

    save_file({"w": np.zeros((2, 3), np.float32)}, engine / "rank0.engine")
    assert look(engine / "rank0.engine").product == "safetensors"
    assert "lane embedded" in one_sentence(incompatibility(engine, HERE))


def test_a_plan_of_tensorrt_rtx_is_refused(engine):
    (engine / "rank0.engine").write_bytes(b"vtrt" + bytes(99))
    assert "engine of TensorRT-RTX" in one_sentence(incompatibility(engine, HERE))


# hostile config.json


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"engine"', "\0", "[" * 100_000, "{}", '{"pretrained_config": 3}',
     '{"pretrained_config": {"mapping": []}}', '{"pretrained_config": {"mapping": {"tp_size": "four"}}}',
     '{"pretrained_config": {"mapping": {"tp_size": -1}}}', '{"pretrained_config": {"mapping": {"tp_size": 1e300}}}',
     '{"pretrained_config": {"mapping": {"tp_size": 2, "world_size": 3}}}',
     '{"pretrained_config": {"mapping": {"world_size": 1000000000}}}',
     '{"pretrained_config": {"quantization": 1}}', '{"pretrained_config": {}, "build_config": "none"}'],
)  # fmt: skip
def test_a_hostile_config_is_one_sentence(engine, text):
    (engine / "config.json").write_text(text)
    assert str(engine) in one_sentence(incompatibility(engine, HERE))
    with pytest.raises(EngineError):
        read(engine)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    return engine_folder(tmp_path_factory.mktemp("fuzz") / "engine")


@given(key=st.sampled_from([("version",), ("pretrained_config",), ("build_config",), ("build_config", "plugin_config")]
                           + [("pretrained_config", inner) for inner in
                              ("mapping", "quantization", "dtype", "architecture", "num_hidden_layers")]),
       value=anything)  # fmt: skip
def test_no_value_of_a_config_gets_past_as_an_exception(fuzzed, key, value):
    before = (fuzzed / "config.json").read_text()
    try:
        rewrite(fuzzed, *key, value=value)
        assert incompatibility(fuzzed, HERE) is None or one_sentence(incompatibility(fuzzed, HERE))
        json.dumps(inspect(fuzzed))
    except EngineError as error:
        one_sentence(str(error))
    finally:
        (fuzzed / "config.json").write_text(before)


# the command


def test_the_command_exits_with_1_when_an_engine_will_not_run(engine):
    result = CliRunner().invoke(app, ["engine", "check", str(engine), "--container", "25.06"])
    assert result.exit_code == 1 and "TensorRT-LLM 0.20.0" in result.stdout
    (engine / "rank0.engine").write_bytes(plan_bytes()[:20])
    assert "is cut" in CliRunner().invoke(app, ["engine", "check", str(engine)]).stdout


@pytest.mark.parametrize("words", [["inspect", "smollm2"], ["diff", "smollm2", "smollm2"]])
def test_a_folder_that_is_not_there_is_an_error_that_names_no_models(words):
    result = CliRunner().invoke(app, ["engine", *words])
    assert isinstance(result.exception, EngineError) and result.stdout == ""
    assert str(result.exception) == "There is no folder smollm2; give the folder of an engine or of a checkpoint."
    asked = CliRunner().invoke(app, ["engine", "check", "smollm2"])
    assert asked.exit_code == 1 and asked.stdout == f"{result.exception}\n"
