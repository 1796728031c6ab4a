"""Our templates, and the contract that is read from them, against NVIDIA's own (data/nvidia_contract.json)."""

import json
import re
from pathlib import Path

import pytest
from repository_helpers import parse
from tritonclient.grpc import model_config_pb2 as pb

from servinglab.repository import contract
from servinglab.root import data

NVIDIA = json.loads((Path(__file__).parent / "data" / "nvidia_contract.json").read_text())
SINCE_1_1 = json.loads((Path(__file__).parent / "data" / "nvidia_contract_1.1.json").read_text())
FILLED = {
    "logits_datatype": "TYPE_FP32", "encoder_input_features_data_type": "TYPE_FP16",
    "prompt_embedding_table_data_type": "TYPE_BF16",
}  # fmt: skip
OLD = {"min_tokens": "min_length", "seed": "random_seed"}


def config(model: str, generation: str = "new") -> pb.ModelConfig:
    """The template as protobuf reads it, with a value wherever it needs one."""
    text = contract.template(model, generation)
    return parse(re.sub(r'(?<!")\$\{(\w+)\}', lambda found: FILLED.get(found[1], "1"), text))


def row(tensor: pb.ModelInput | pb.ModelOutput) -> list:
    words = [word for word in ("optional", "allow_ragged_batch") if getattr(tensor, word, False)]
    scalar = tensor.HasField("reshape") and not tensor.reshape.shape
    text = "".join(f"{word} " for word in words).replace("allow_ragged_batch", "ragged") + "scalar" * scalar
    return [tensor.name, pb.DataType.Name(tensor.data_type).removeprefix("TYPE_"), list(tensor.dims), text]


def without_repeats(rows: list) -> list:
    return [row for index, row in enumerate(rows) if row not in rows[:index]]


@pytest.mark.parametrize("model", contract.MODELS)
def test_inputs_are_nvidias(model):
    assert sorted(map(row, config(model).input)) == sorted(NVIDIA[model]["inputs"])


@pytest.mark.parametrize("model", contract.MODELS)
def test_outputs_are_nvidias_without_the_duplicate(model):
    ours = [row(tensor)[:3] for tensor in config(model).output]
    assert sorted(ours) == sorted(without_repeats(NVIDIA[model]["outputs"]))
    assert len({name for name, *_ in ours}) == len(ours)


def test_the_shipped_ensemble_has_the_duplicate_that_ours_drops():
    assert len(NVIDIA["ensemble"]["outputs"]) == len(contract.tensors("output", "ensemble")) + 1 == 18


@pytest.mark.parametrize("model", contract.MODELS)
def test_old_generation_differs_in_two_names_only(model):
    renamed = [[OLD.get(name, name), *rest] for name, *rest in NVIDIA[model]["inputs"]]
    assert sorted(map(row, config(model, "old").input)) == sorted(renamed)
    assert config(model, "old").output == config(model).output
    assert config(model, "old").parameters == config(model).parameters


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
@pytest.mark.parametrize("model", contract.MODELS)
def test_generation_1_1_differs_as_nvidias(model, kind):
    """Taken from their files of 1.1 and later, not from ours: what came, and what has other dimensions or datatype."""
    changed = {name: [name, *rest] for name, *rest in SINCE_1_1.get(model, {}).get(kind, [])}
    expected = {name: [name, *rest] for name, *rest in NVIDIA[model][kind]} | changed
    found = {name: [name, *rest] for name, *rest in map(row, getattr(config(model, "1.1"), kind[:-1]))}
    if kind == "outputs":
        expected, found = ({name: row[:3] for name, row in rows.items()} for rows in (expected, found))
    assert found == expected
    assert config(model, "1.1").parameters == config(model).parameters


def test_the_ensemble_of_1_1_passes_the_counts_on():
    new, newer = maps()[1], maps("1.1")[1]
    names = ("num_input_tokens", "num_output_tokens")
    assert newer["in"] == new["in"] | {f"return_{name}": f"return_{name}" for name in names}
    assert newer["out"] == new["out"] | {name: name for name in names}
    assert maps("1.1")[::2] == maps()[::2]


@pytest.mark.parametrize("generation", contract.GENERATIONS)
@pytest.mark.parametrize("model", contract.MODELS)
def test_the_contract_says_what_protobuf_reads(model, generation):
    text = contract.template(model, generation)
    for kind in ("input", "output"):
        tensors = contract.tensors(kind, model, generation)
        said = [[t.name, t.datatype.removeprefix("${").removesuffix("}"), list(t.dims), t.optional] for t in tensors]
        said = [[name, FILLED.get(datatype, f"TYPE_{datatype}")[5:], *rest] for name, datatype, *rest in said]
        rows = map(row, getattr(config(model, generation), kind))
        assert said == [[name, datatype, dims, "optional" in flags] for name, datatype, dims, flags in rows]
        assert all(f"\n{tensor.line}\n" in text and tensor.line.startswith(f"{kind} {{") for tensor in tensors)


def test_a_datatype_that_the_deployment_chooses_stays_a_variable():
    chosen = {t.name: t.datatype for t in contract.tensors("input", "tensorrt_llm") if t.datatype.startswith("$")}
    assert chosen == {
        "encoder_input_features": "${encoder_input_features_data_type}", "draft_logits": "${logits_datatype}",
    }  # fmt: skip


def maps(generation: str = "new") -> list[dict]:
    steps = config("ensemble", generation).ensemble_scheduling.step
    return [{"model": s.model_name, "in": dict(s.input_map), "out": dict(s.output_map)} for s in steps]


def test_ensemble_maps_are_nvidias():
    assert maps() == NVIDIA["ensemble"]["steps"]


def test_old_ensemble_maps_rename_both_sides():
    llm = maps("old")[1]["in"]
    assert llm["min_length"] == "min_length" and llm["random_seed"] == "random_seed"
    assert "seed" not in llm and "min_tokens" not in llm


@pytest.mark.parametrize("generation", contract.GENERATIONS)
def test_ensemble_maps_name_declared_tensors(generation):
    for step in maps(generation):
        assert step["in"].keys() <= {t.name for t in contract.tensors("input", step["model"], generation)}
        assert step["out"].keys() <= {t.name for t in contract.tensors("output", step["model"], generation)}


@pytest.mark.parametrize("model", contract.MODELS)
def test_parameters_are_nvidias(model):
    ours = {key: value.string_value for key, value in config(model).parameters.items()}
    theirs = dict(NVIDIA[model]["parameters"])
    if model == "tensorrt_llm_bls":  # our addition: all inner names are parameters
        theirs |= {f"{name}_model_name": f"${{{name}_model_name}}" for name in ("preprocessing", "postprocessing")}
    assert ours == theirs
    variables = {key: value[2:-1] for key, value in ours.items() if value.startswith("${")}
    assert contract.parameters(model) == variables


def test_every_kind_of_value_is_that_of_a_parameter():
    known = {variable for model in contract.MODELS for variable in contract.parameters(model).values()}
    kinds = data("repository.toml")["kinds"]
    named = [variable for kind in kinds for variable in kind["variables"].split()]
    assert set(named) <= known and len(set(named)) == len(named)
