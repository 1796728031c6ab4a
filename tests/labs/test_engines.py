"""Plans of the towers, the commands for NVIDIA's container, and the two configurations of one model."""

from __future__ import annotations

import shlex

import pytest
import torch
from google.protobuf import text_format
from test_quantise import PIXELS, Tower
from tritonclient.grpc import model_config_pb2 as pb

from cliplab import engines
from cliplab.encoders import EncoderError, export
from cliplab.quantise import half, static_int8


def test_profiles_have_three_shapes_for_each_input():
    assert engines.profile("vision") == {"pixel_values": ((1, 3, 224, 224), (8, 3, 224, 224), (32, 3, 224, 224))}
    assert engines.profile("text", batch=(1, 4, 16), tokens=(2, 8, 64)) == {
        "input_ids": ((1, 2), (4, 8), (16, 64)), "attention_mask": ((1, 2), (4, 8), (16, 64)),
    }  # fmt: skip


@pytest.mark.parametrize("batch", [(8, 1, 32), (0, 1, 2), (1, 2)])
def test_profiles_ascend(batch):
    with pytest.raises(EncoderError, match="three ascending sizes"):
        engines.profile("vision", batch=batch)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    fp32 = export(Tower(), folder / "fp32.onnx", [torch.zeros(2, 3, 32, 32)], ["pixel_values"], "image_embedding")
    int8 = static_int8(fp32, folder / "int8.onnx", PIXELS, keep=1, for_tensorrt=True)
    return {"fp32": fp32, "fp16": half(fp32, folder / "fp16.onnx"), "int8": int8}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_a_plan_is_built_here_for_each_precision(files, precision, monkeypatch):
    pytest.importorskip("tensorrt_rtx_bindings")
    monkeypatch.setattr(engines, "SIZE", 32)
    plan = engines.build_plan(files[precision], "vision", batch=(1, 2, 4))
    assert plan.data[:4] == b"vtrt" and plan.layers
    kinds = {layer.kind for layer in plan.layers}
    assert plan.header.targets, kinds


def test_trtexec_is_given_the_shapes_of_the_profile():
    words = shlex.split(engines.trtexec("text", "fp16", batch=(1, 8, 32), tokens=(1, 16, 64)))
    assert words[:4] == ["trtexec", "--onnx=text.fp16.onnx", "--saveEngine=text.fp16.plan", "--stronglyTyped"]
    assert words[4:] == [
        "--minShapes=input_ids:1x1,attention_mask:1x1",
        "--optShapes=input_ids:8x16,attention_mask:8x16",
        "--maxShapes=input_ids:32x64,attention_mask:32x64",
    ]


def test_the_file_decides_the_precision_and_no_flag_does():
    words = shlex.split(engines.trtexec("vision", "int8"))
    assert "--onnx=vision.int8.onnx" in words and "--maxShapes=pixel_values:32x3x224x224" in words
    assert not {"--fp16", "--int8"} & set(words), "TensorRT 11 refuses them"


def test_kept_files_replace_those_of_an_earlier_run(files, tmp_path):
    folder = engines.keep({"vision.old.plan": b"old"}, tmp_path / "home" / "engines")
    assert engines.keep({"vision.fp16.onnx": files["fp16"], "vision.fp16.plan": b"new"}, folder) == folder
    assert {path.name for path in folder.iterdir()} == {"vision.fp16.onnx", "vision.fp16.plan"}
    assert (folder / "vision.fp16.onnx").read_bytes() == files["fp16"].read_bytes()
    assert not list(folder.parent.glob(".partial-*"))


@pytest.mark.parametrize("version", ["8.6.1", "9.3.0"])
def test_a_tensorrt_before_10_is_refused(version):
    with pytest.raises(EncoderError, match=f"{version} is too old .* take 10.0 or newer"):
        engines.trtexec("vision", version=version)


def test_a_version_that_is_none_is_refused():
    with pytest.raises(EncoderError, match="no version of TensorRT"):
        engines.require_tensorrt("latest")


@pytest.mark.parametrize("tower, dims", [("vision", [3, 224, 224]), ("text", [-1])])
def test_both_flavours_have_the_same_tensors(tower, dims):
    onnx, plan = (text_format.Parse(engines.config_pbtxt(tower, f), pb.ModelConfig()) for f in engines.FLAVOURS)
    assert list(onnx.input) == list(plan.input) and list(onnx.output) == list(plan.output)
    assert onnx.input[0].dims == dims and onnx.output[0].dims == [384]
    assert (onnx.backend, plan.platform) == ("python", "tensorrt_plan")
    assert onnx.max_batch_size == plan.max_batch_size == 32


@pytest.mark.parametrize("call", [lambda: engines.profile("audio"), lambda: engines.config_pbtxt("vision", "tflite"),
                                  lambda: engines.trtexec("vision", "int4")])  # fmt: skip
def test_what_is_unknown_is_named(call):
    with pytest.raises(EncoderError, match="not '(audio|tflite|int4)'"):
        call()
