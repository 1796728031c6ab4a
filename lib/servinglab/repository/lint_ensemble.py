"""Lint, fifth part: an ensemble's steps and maps. Holds for every ensemble, not only for the LLM's."""

from __future__ import annotations

from collections.abc import Sequence

from tritonclient.grpc import model_config_pb2 as pb

from servinglab.errors import did_you_mean
from servinglab.repository.findings import Model


def check_ensemble(model: Model, models: dict[str, Model]) -> None:
    """Steps name models of the repository; every mapped tensor exists on both sides, with one datatype and shape."""
    steps = model.config.ensemble_scheduling.step
    if not steps:
        model.error("L044", model.lines.at("platform"), "The ensemble has no steps.", "Write ensemble_scheduling.")
        return
    tensors = {t.name: (t.data_type, t.dims) for t in model.config.input}  # of the ensemble: name -> what it is
    produced = tensors.keys() | {name for step in steps for name in step.output_map.values()}
    for index, step in enumerate(steps):
        target = models.get(step.model_name)
        if target is None:
            model.error(
                "L043",
                model.lines.at("ensemble_scheduling", 0, "step", index, "model_name"),
                f"Step {index + 1} calls {step.model_name!r}, and the repository has no such model.",
                f"Name a model of this repository.{did_you_mean(step.model_name, models)}",
            )
        for key, name in step.input_map.items():
            if name not in produced:
                model.error(
                    "L044",
                    _line(model, index, "input_map", key),
                    f"Step {index + 1} reads the tensor {name!r}, "
                    f"which is no input of the ensemble and no output of a step.",
                    f"Correct the value of this map.{did_you_mean(name, produced)}",
                )
        if target and target.config is not None:
            _check_maps(model, index, step, target.config, tensors)
    for index, tensor in enumerate(model.config.output):
        line = model.lines.at("output", index, "name")
        if tensor.name not in produced:
            model.error(
                "L044",
                line,
                f"No step produces the output {tensor.name}.",
                "Add it to the output_map of the step that makes it, or remove it.",
            )
        else:
            _agree(model, line, tensor.name, (tensor.data_type, tensor.dims), tensors)


def _check_maps(model: Model, index: int, step, target: pb.ModelConfig, tensors: dict) -> None:
    for field, mapping, declared in (
        ("input", step.input_map, target.input),
        ("output", step.output_map, target.output),
    ):
        table = {t.name: t for t in declared}
        for key, name in mapping.items():
            line = _line(model, index, f"{field}_map", key)
            if key in table:
                _agree(model, line, name, (table[key].data_type, table[key].dims), tensors)
            else:
                model.error(
                    "L044",
                    line,
                    f"Step {index + 1} maps {field} {key}, which {step.model_name} does not declare.",
                    f"Correct the key of this map.{did_you_mean(key, table)}",
                )
    unmapped = [t.name for t in target.input if not t.optional and t.name not in step.input_map]
    if unmapped:
        model.error(
            "L044",
            model.lines.at("ensemble_scheduling", 0, "step", index, "model_name"),
            f"Step {index + 1} gives {step.model_name} no {', '.join(unmapped)}, which it needs.",
            "Add an input_map for it.",
        )


def _agree(model: Model, line: int, name: str, kind: tuple[int, Sequence[int]], tensors: dict) -> None:
    """Compare with what is known of the ensemble's tensor `name`, or remember it. -1 fits every size."""
    datatype, dims = tensors.setdefault(name, kind)
    same_dims = len(dims) == len(kind[1]) and all(a == b or -1 in (a, b) for a, b in zip(dims, kind[1], strict=True))
    if datatype != kind[0] or not same_dims:
        model.error(
            "L044",
            line,
            f"The ensemble's tensor {name} is {_text((datatype, dims))} in one place and {_text(kind)} here.",
            "Give both sides the same datatype and dims.",
        )


def _text(kind: tuple[int, Sequence[int]]) -> str:
    name = pb.DataType.Name(kind[0]) if kind[0] in pb.DataType.values() else str(kind[0])
    return f"{name}{list(kind[1])}"


def _line(model: Model, step: int, field: str, key: str) -> int:
    return model.lines.entry("ensemble_scheduling", 0, "step", step, field, key=key)
