"""What is written for a model that sees: configurations that fit together, in both flavours; refusals."""

from __future__ import annotations

import pytest
import torch
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig
from vlm_standin import TOKENS, Tower

from cliplab.deployment import DeploymentError
from cliplab.vlm_deployment import MODELS, export_vision, write_vlm_repository
from servinglab.repository import lint


@pytest.fixture
def write(tmp_path, smollm2_engine_fp32, smollm2_tokenizer_dir):
    where = {"engine_dir": smollm2_engine_fp32, "tokenizer_dir": smollm2_tokenizer_dir, "tokens": TOKENS}
    return lambda vision, **more: write_vlm_repository(tmp_path / "models", vision, **where, **more)


def config(repository, model):
    return text_format.Parse((repository / model / "config.pbtxt").read_text(), ModelConfig())


def test_the_linter_finds_nothing_and_a_second_writing_changes_nothing(tmp_path, write):
    vision = export_vision(Tower(torch.eye(8, 16)), tmp_path / "vision.onnx")
    repository = write(vision)
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    assert write(vision) == repository
    assert {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()} == before
    assert lint(repository) == [] and sorted(path.name for path in repository.iterdir()) == sorted(MODELS)
    for code in repository.glob("*/1/*.py"):
        assert "servinglab" not in code.read_text() and "cliplab" not in code.read_text()


def test_a_plan_serves_with_the_tensors_of_the_same_onnx_file(tmp_path, write):
    plan = tmp_path / "vision.plan"
    plan.write_bytes(b"an engine")
    repository = write(plan, flavour="tensorrt")
    encoder = config(repository, "vision_encoder")
    assert encoder.backend == "tensorrt" and [t.name for t in encoder.input] == ["pixel_values"]
    assert [t.name for t in encoder.output] == ["OUT_PROMPT_EMBEDDING_TABLE"]
    # That this Triton has no such backend; and a warning, for pictures before colours look like a batch.
    assert [f.code for f in lint(repository)] == ["L021", "L019"]


def test_what_cannot_be_written_is_one_sentence(tmp_path, write):
    with pytest.raises(DeploymentError, match=r"flavour 'onnx' must be one of onnx, tensorrt, and .*nothing a file"):
        write(tmp_path / "nothing")
