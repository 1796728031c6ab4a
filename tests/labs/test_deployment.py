"""What is written: configurations that fit together, folders that hold all they need, refusals."""

from __future__ import annotations

import json
from types import SimpleNamespace

import clip_standin
import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from cliplab.deployment import MODELS, DeploymentError, model_config, write_repository
from servinglab.repository import lint
from servinglab.server.install import ServerError

LABELS = ["red apple", "green leaf", "blue sea"]


def parse(text):
    return text_format.Parse(text, ModelConfig())


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    return clip_standin.write(tmp_path_factory.mktemp("encoders"))


@pytest.fixture
def repository(tmp_path, encoders):
    return write_repository(tmp_path / "models", encoders, LABELS)


def test_the_linter_finds_nothing(repository):
    assert lint(repository) == []
    assert sorted(path.name for path in repository.iterdir()) == sorted(MODELS)


def test_a_path_on_which_no_model_starts_is_refused_before_anything_is_written(tmp_path, encoders):
    with pytest.raises(ServerError, match="path of the model repository, .*my models"):
        write_repository(tmp_path / "my models", encoders, LABELS)
    assert not list(tmp_path.iterdir())


def test_every_tensor_of_the_ensemble_comes_from_somewhere(repository):
    config = parse((repository / "clip" / "config.pbtxt").read_text())
    known = {tensor.name for tensor in config.input}
    for step in config.ensemble_scheduling.step:
        assert set(step.input_map.values()) <= known
        known |= set(step.output_map.values())
    assert {tensor.name for tensor in config.output} <= known


def test_folders_hold_all_that_their_model_needs(repository, encoders):
    assert {p.name for p in (repository / "image_preprocessing" / "1").iterdir()} == {"model.py", "prepare.py"}
    assert (repository / "vision_encoder" / "1" / "model.onnx").read_bytes() == encoders.vision.read_bytes()
    assert {p.name for p in (repository / "text_encoder" / "1").iterdir()} == {
        "model.py", "model.onnx", "tokenizer.json", "wordnet.py", "words.json.gz",
    }  # fmt: skip
    assert list((repository / "clip" / "1").iterdir()) == []
    for code in repository.glob("*/1/*.py"):
        assert "servinglab" not in code.read_text() and "cliplab" not in code.read_text()


def test_labels_are_the_text_towers_vectors(repository):
    folder = repository / "fusion" / "1"
    assert json.loads((folder / "labels.json").read_text()) == LABELS
    expected = [clip_standin.WORDS[[2, 4, 7, 3]].sum(axis=0)]  # [CLS] red apple [SEP]
    np.testing.assert_allclose(np.load(folder / "labels.npy")[:1], clip_standin.unit(np.stack(expected)), atol=1e-5)


def test_writing_again_replaces_and_others_stay(tmp_path, encoders):
    other = tmp_path / "models" / "tensorrt_llm"
    other.mkdir(parents=True)
    first = write_repository(tmp_path / "models", encoders, LABELS)
    again = write_repository(tmp_path / "models", encoders, LABELS[:2])
    assert again == first and other.is_dir() and {path.name for path in first.glob("**/.*")} == {".ours.json"}
    config = parse((again / "fusion" / "config.pbtxt").read_text())
    assert [list(tensor.dims) for tensor in config.output] == [[384], [2], [2]]


def test_writing_again_loses_nothing_of_yours(tmp_path, encoders):
    """Edited code and settings, weights of one's own in place of a link, and a file of the other flavour."""
    repository = write_repository(tmp_path / "models", encoders, LABELS)
    edited = ["fusion/1/model.py", "clip/config.pbtxt", "fusion/1/labels.json", "vision_encoder/1/model.onnx"]
    before = {name: (repository / name).read_bytes() for name in edited}
    for name in edited:
        (repository / name).unlink()
    for name in [*edited, "vision_encoder/1/model.plan"]:
        (repository / name).write_text(f"mine: {name}")
    write_repository(repository, encoders, LABELS)
    assert {name: (repository / name).read_bytes() for name in edited} == before
    assert not (repository / "vision_encoder" / "1" / "model.plan").exists()
    kept = [path.read_text() for path in repository.rglob("yours/1/**/*") if path.is_file()]
    assert sorted(kept) == sorted(f"mine: {name}" for name in [*edited, "vision_encoder/1/model.plan"])
    assert lint(repository) == [] and [path.name for path in tmp_path.iterdir()].count(".ours.json") == 0


def test_the_weights_have_a_name_that_changes_with_them(tmp_path, encoders):
    def name(files):
        folder = write_repository(tmp_path / "models", files, LABELS) / "fusion"
        return parse((folder / "config.pbtxt").read_text()).parameters["encoder"].string_value

    def others(tower):
        model = onnx.load(getattr(encoders, tower))
        model.doc_string = "other weights"
        onnx.save(model, tmp_path / f"{tower}.onnx")
        return SimpleNamespace(**vars(encoders) | {tower: tmp_path / f"{tower}.onnx"})

    first = name(encoders)
    assert len(first) == 16 and first == name(encoders)
    assert first != name(others("text")) and first != name(others("vision"))


def test_engine_on_a_gpu_box(tmp_path, encoders):
    plan = tmp_path / "vision.plan"
    plan.write_bytes(b"an engine")
    repository = write_repository(tmp_path / "models", encoders, LABELS, flavour="tensorrt", plan=plan)
    folder = repository / "vision_encoder"
    config = parse((folder / "config.pbtxt").read_text())
    assert config.backend == "tensorrt" and config.instance_group[0].kind == config.instance_group[0].KIND_GPU
    assert config.HasField("dynamic_batching") and not config.parameters
    assert [path.name for path in (folder / "1").iterdir()] == ["model.plan"]
    same = model_config("vision_encoder")
    assert list(config.input) == list(same.input) and list(config.output) == list(same.output)
    assert [f.code for f in lint(repository)] == ["L019"]  # that Triton has no such backend


def test_the_flavour_may_change_in_one_folder(tmp_path, encoders):
    plan = tmp_path / "vision.plan"
    plan.write_bytes(b"an engine")
    for arguments in ({}, {"flavour": "tensorrt", "plan": plan}, {}):
        repository = write_repository(tmp_path / "models", encoders, LABELS, **arguments)
        (repository / "vision_encoder" / "1" / "notes.txt").touch()  # somebody's
    names = {path.name for path in (repository / "vision_encoder" / "1").iterdir()}
    assert names == {"model.py", "model.onnx", "notes.txt"}


REFUSED = {
    "no labels": ({"labels": []}, "at least one label"),
    "empty label": ({"labels": ["cat", " "]}, "none that is empty"),
    "twice": ({"labels": ["cat", "dog", "cat "]}, "'cat' is there twice"),
    "one text": ({"labels": "cat"}, "labels must be a list of texts"),
    "numbers": ({"labels": [1, 2]}, "labels must be a list of texts"),
    "half a label": ({"top": 2.5}, "top must be a whole number from 1 to 2,147,483,647, not 2.5"),
    "no answers": ({"top": 0}, "top must be a whole number from 1"),
    "no batch": ({"max_batch_size": 0}, "max_batch_size must be a whole number from 1"),
    "unknown flavour": ({"flavour": "openvino"}, "one of onnx, tensorrt"),
    "no plan": ({"flavour": "tensorrt"}, "needs plan"),
    "plan for nothing": ({"plan": "vision.plan"}, "needs plan"),
    "plan that is not there": ({"flavour": "tensorrt", "plan": "/nowhere/vision.plan"}, "vision.plan"),
}


@pytest.mark.parametrize("changed, sentence", REFUSED.values(), ids=REFUSED)
def test_refused_with_one_sentence(tmp_path, encoders, changed, sentence):
    with pytest.raises(DeploymentError, match=sentence):
        write_repository(tmp_path / "models", encoders, **({"labels": LABELS} | changed))


def change(repository, model, dims=None, rows=None):
    """Write other dims of some tensors, and another max_batch_size, into a configuration."""
    file = repository / model / "config.pbtxt"
    config = parse(file.read_text())
    for tensor in (*config.input, *config.output):
        if tensor.name in (dims or {}):
            del tensor.dims[:]
            tensor.dims.extend(dims[tensor.name])
    config.max_batch_size = config.max_batch_size if rows is None else rows
    file.write_text(text_format.MessageToString(config))


IMAGES = [3, 224, 224]
OF_CLIP = {"image": [1], "text": [1], "embedding": [384], "labels": [3], "scores": [3], "tokens_left_out": [1]}
WITH_ROWS = {name: [-1, *dims] for name, dims in OF_CLIP.items()}
# Each of them was shown to Triton 24.10: what it refuses, and what it loads and then fails every request of.
BATCH_MISTAKES = {
    "batch repeated at the encoder": (
        [("vision_encoder", {"pixel_values": [-1, *IMAGES]})], {"L021", "L044"}, "a request needs 5 dimensions",
    ),
    "batch of 1 repeated": ([("vision_encoder", {"pixel_values": [1, *IMAGES]})], {"L021", "L044"}, "do not write it"),
    "batch repeated on both sides": (
        [(model, {"pixel_values": [-1, *IMAGES]}) for model in ("vision_encoder", "image_preprocessing")],
        {"L021"}, "Write dims: [3, 224, 224]",
    ),
    "no batch in the ensemble, dims unchanged": ([("clip", {}, 0)], {"L044"}, "TYPE_STRING[1] in one place"),
    "no batch in a step, dims unchanged": ([("image_preprocessing", {}, 0)], {"L044"}, "do not write it"),
    "more rows than a step takes": ([("clip", {}, 32)], {"L047"}, "allows 32 rows in a request, and its step"),
    "another size of picture": (
        [("vision_encoder", {"pixel_values": [3, 336, 336]})], {"L044"}, "[-1, 3, 336, 336] here",
    ),
    "right: the ensemble writes its batch itself": ([("clip", WITH_ROWS, 0)], set(), ""),
    "right: a step writes its batch itself": (
        [("image_preprocessing", {"image": [-1, 1], "pixel_values": [-1, *IMAGES], "image_state": [-1, 1]}, 0)],
        set(), "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("changes, codes, words", BATCH_MISTAKES.values(), ids=BATCH_MISTAKES)
def test_the_linter_knows_mixed_batch_dimensions(repository, changes, codes, words):
    for arguments in changes:
        change(repository, *arguments)
    found = lint(repository)
    assert {finding.code for finding in found} == codes
    assert words in " ".join(finding.message + finding.cure for finding in found)
