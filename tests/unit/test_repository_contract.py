"""The contract against NVIDIA's own templates, read with protobuf (data/nvidia_contract.json)."""

import json
from pathlib import Path

import pytest

from servinglab.repository import contract

NVIDIA = json.loads((Path(__file__).parent / "data" / "nvidia_contract.json").read_text())
FILLED = {"${logits_datatype}": "FP32", "${encoder_input_features_data_type}": "FP16"}
OLD = {"min_tokens": "min_length", "seed": "random_seed"}


def input_row(tensor: contract.Tensor) -> list:
    flags = [word for word, set_ in (("optional", tensor.optional), ("ragged", tensor.ragged)) if set_]
    text = "".join(f"{word} " for word in flags) + ("scalar" if tensor.scalar else "")
    return [tensor.name, FILLED.get(tensor.datatype, tensor.datatype), list(tensor.dims), text]


def without_repeats(rows: list) -> list:
    return [row for index, row in enumerate(rows) if row not in rows[:index]]


@pytest.mark.parametrize("model", contract.MODELS)
def test_inputs_are_nvidias(model):
    assert sorted(map(input_row, contract.inputs(model))) == sorted(NVIDIA[model]["inputs"])


@pytest.mark.parametrize("model", contract.MODELS)
def test_outputs_are_nvidias_without_the_duplicate(model):
    ours = [input_row(t)[:3] for t in contract.outputs(model)]
    assert sorted(ours) == sorted(without_repeats(NVIDIA[model]["outputs"]))
    assert len({name for name, *_ in ours}) == len(ours)


def test_the_shipped_ensemble_has_the_duplicate_that_ours_drops():
    assert len(NVIDIA["ensemble"]["outputs"]) == len(contract.outputs("ensemble")) + 1 == 18


@pytest.mark.parametrize("model", contract.MODELS)
def test_old_generation_differs_in_two_names_only(model):
    renamed = [[OLD.get(name, name), *rest] for name, *rest in NVIDIA[model]["inputs"]]
    assert sorted(map(input_row, contract.inputs(model, "old"))) == sorted(renamed)


def test_ensemble_maps_are_nvidias():
    ours = [{"model": s.model, "in": s.inputs, "out": s.outputs} for s in contract.ensemble_steps()]
    assert ours == NVIDIA["ensemble"]["steps"]


def test_old_ensemble_maps_rename_both_sides():
    llm = contract.ensemble_steps("old")[1].inputs
    assert llm["min_length"] == "min_length" and llm["random_seed"] == "random_seed"
    assert "seed" not in llm and "min_tokens" not in llm


@pytest.mark.parametrize("generation", contract.GENERATIONS)
def test_ensemble_maps_name_declared_tensors(generation):
    for step in contract.ensemble_steps(generation):
        assert step.inputs.keys() <= {t.name for t in contract.inputs(step.model, generation)}
        assert step.outputs.keys() <= {t.name for t in contract.outputs(step.model, generation)}


@pytest.mark.parametrize("model", contract.MODELS)
def test_parameters_are_nvidias(model):
    ours = {p.key: f"${{{p.variable}}}" for p in contract.parameters(model)}
    theirs = dict(NVIDIA[model]["parameters"])
    if model == "tensorrt_llm":
        ours |= contract.LLM_LITERALS
    if model == "tensorrt_llm_bls":  # our addition: all inner names are parameters
        theirs |= {f"{name}_model_name": f"${{{name}_model_name}}" for name in ("preprocessing", "postprocessing")}
    assert ours == theirs
