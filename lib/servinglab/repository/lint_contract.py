"""Lint, third part: the tensors of a deployment against the contract."""

from __future__ import annotations

from collections.abc import Iterator

from tritonclient.grpc import model_config_pb2 as pb

from servinglab.errors import did_you_mean
from servinglab.repository import contract
from servinglab.repository.findings import Deployment, Model
from servinglab.repository.spec import CHOICES

_RENAMED = ("ensemble", "tensorrt_llm", "tensorrt_llm_bls")
# Declared by releases that contract.py leaves out.
_LATER = {"return_num_input_tokens", "return_num_output_tokens", "num_input_tokens", "num_output_tokens"}

Difference = tuple[str, str, int, str, str]  # severity, code, line, message, cure


def check_contract(group: Deployment) -> None:
    """Datatypes, dims and names of every tensor; a mix of old and new names within one deployment."""
    _check_generations(group)
    for base in group.models:
        model = group.get(base)
        if model is None:
            continue
        allowed = ("old",) if _has(model, contract.OLD_NAMES.values()) else ("new", "1.1")
        for severity, *rest in min((list(_differences(model, base, g)) for g in allowed), key=len):
            (model.error if severity == "error" else model.warning)(*rest)


def _has(model: Model, names) -> bool:
    return any(tensor.name in names for tensor in model.config.input)


def _check_generations(group: Deployment) -> None:
    old = [m for m in map(group.get, _RENAMED) if m and _has(m, contract.OLD_NAMES.values())]
    new = [m for m in map(group.get, _RENAMED) if m and _has(m, contract.OLD_NAMES.keys())]
    if not (old and new):
        return
    for model in old if len(old) <= len(new) else new:
        mine = contract.OLD_NAMES.values() if model in old else contract.OLD_NAMES.keys()
        line = next(model.lines.at("input", i, "name") for i, t in enumerate(model.config.input) if t.name in mine)
        model.error(
            "L033",
            line,
            f"The deployment mixes two generations of names: here {' and '.join(mine)}, in other "
            f"models or on other lines {' and '.join(_other(mine))}.",
            "Take all five files from one version (min_tokens and seed since TensorRT-LLM 0.20).",
        )


def _other(names) -> list[str]:
    return list(
        contract.OLD_NAMES.keys() if set(names) == set(contract.OLD_NAMES.values()) else contract.OLD_NAMES.values()
    )


def _differences(model: Model, base: str, generation: str) -> Iterator[Difference]:
    for field, wanted in (("input", contract.inputs(base, generation)), ("output", contract.outputs(base, generation))):
        table = {tensor.name: tensor for tensor in wanted}
        declared = {tensor.name for tensor in getattr(model.config, field)}
        yield from _missing(model, field, [t for t in wanted if t.name not in declared])
        for index, tensor in enumerate(getattr(model.config, field)):
            line = model.lines.at(field, index, "name")
            if tensor.name in table:
                yield from _compare(model, field, index, tensor, table[tensor.name], generation)
            elif tensor.name not in _LATER:
                yield (
                    "warning",
                    "L032",
                    line,
                    f"{base} has no {field} {tensor.name} in the contract."
                    f"{did_you_mean(tensor.name, table.keys() - declared)}",
                    "Rename or remove it.",
                )


def _missing(model: Model, field: str, tensors: list[contract.Tensor]) -> Iterator[Difference]:
    line = model.lines.at(field)
    needed = [t.name for t in tensors if not t.optional]
    if needed:
        yield (
            "error",
            "L031",
            line,
            f"{field}(s) {', '.join(needed)} of the contract are not declared.",
            "Declare them, or build the deployment again.",
        )
    optional = [t.name for t in tensors if t.optional]
    if optional:
        yield (
            "warning",
            "L031",
            line,
            f"Optional {field}(s) {', '.join(optional)} are not declared: a client that sends "
            f'one gets "unexpected inference input".',
            "Declare them, or build the deployment again.",
        )


def _compare(
    model: Model, field: str, index: int, tensor, wanted: contract.Tensor, generation: str
) -> Iterator[Difference]:
    datatype = pb.DataType.Name(tensor.data_type) if tensor.data_type in pb.DataType.values() else str(tensor.data_type)
    allowed = CHOICES[wanted.datatype[2:-1]] if wanted.datatype.startswith("$") else (f"TYPE_{wanted.datatype}",)
    if tensor.name == "prompt_embedding_table" and generation == "1.1":
        allowed = CHOICES["prompt_embedding_table_data_type"]  # also where the ensemble passes it on
    if datatype not in allowed:
        yield (
            "error",
            "L030",
            model.lines.at(field, index, "data_type"),
            f"{field} {tensor.name} is {datatype} and must be {' or '.join(allowed)}.",
            f"Write data_type: {allowed[0]}.",
        )
    if tuple(tensor.dims) != wanted.dims:
        yield (
            "error",
            "L030",
            model.lines.at(field, index, "dims"),
            f"{field} {tensor.name} has dims "
            f"{list(tensor.dims)} and must have {list(wanted.dims)} (without the batch dimension).",
            f"Write dims: {list(wanted.dims)}.",
        )
    if field == "output":
        return
    if tensor.HasField("reshape") != wanted.scalar or (wanted.scalar and tensor.reshape.shape):
        cure = "Write reshape { shape: [] }." if wanted.scalar else "Remove reshape."
        yield (
            "error",
            "L030",
            model.lines.at(field, index, "reshape"),
            f"input {tensor.name} must "
            f"{'be reshaped to a scalar' if wanted.scalar else 'not be reshaped'}: the model expects that shape.",
            cure,
        )
    if wanted.optional and not tensor.optional:
        yield (
            "error",
            "L030",
            model.lines.at(field, index, "name"),
            f"input {tensor.name} must be optional: clients leave it out.",
            "Write optional: true.",
        )
