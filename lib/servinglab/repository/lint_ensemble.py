"""Lint, fifth part: an ensemble's steps and maps. Holds for every ensemble, not only for the LLM's."""

from __future__ import annotations

from tritonclient.grpc import model_config_pb2 as pb

from servinglab.errors import did_you_mean
from servinglab.repository.findings import Model


def check_ensemble(model: Model, models: dict[str, Model]) -> None:
    """Steps name models of the repository; every mapped tensor exists on both sides, with one datatype and shape."""
    steps = model.config.ensemble_scheduling.step
    if not steps:
        model.error("L044", model.lines.at("platform"), "The ensemble has no steps.", "Write ensemble_scheduling.")
        return
    tensors = {t.name: _kind(t, model) for t in model.config.input}  # of the ensemble: name -> what it is
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
            _check_rows(model, target)
            _check_maps(model, index, step, target, tensors)
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
            _agree(model, line, tensor.name, _kind(tensor, model), tensors)


def _check_rows(model: Model, target: Model) -> None:
    """A step must take as many rows as the ensemble lets in."""
    allowed, taken = model.config.max_batch_size, target.config.max_batch_size
    if 0 < taken < allowed and not (_reported(model) or _reported(target)):
        model.error(
            "L047",
            model.lines.at("max_batch_size"),
            f"The ensemble allows {allowed} rows in a request, and its step {target.name} only {taken}.",
            "Lower max_batch_size here, or raise it there.",
        )


def _reported(model: Model) -> bool:
    """Whether its max_batch_size is known to be wrong; what follows from that is not worth a finding."""
    return any(finding.code == "L040" for finding in model.findings)


def _check_maps(model: Model, index: int, step, target: Model, tensors: dict) -> None:
    for field, mapping, declared in (
        ("input", step.input_map, target.config.input),
        ("output", step.output_map, target.config.output),
    ):
        table = {t.name: t for t in declared}
        for key, name in mapping.items():
            line = _line(model, index, f"{field}_map", key)
            if key in table:
                _agree(model, line, name, _kind(table[key], target), tensors)
            else:
                model.error(
                    "L044",
                    line,
                    f"Step {index + 1} maps {field} {key}, which {step.model_name} does not declare.",
                    f"Correct the key of this map.{did_you_mean(key, table)}",
                )
    unmapped = [t.name for t in target.config.input if not t.optional and t.name not in step.input_map]
    if unmapped:
        model.error(
            "L044",
            model.lines.at("ensemble_scheduling", 0, "step", index, "model_name"),
            f"Step {index + 1} gives {step.model_name} no {', '.join(unmapped)}, which it needs.",
            "Add an input_map for it.",
        )


def _kind(tensor, model: Model) -> tuple[int, tuple[int, ...]]:
    """Datatype and whole shape: where max_batch_size is above 0, the batch dimension comes before dims."""
    return tensor.data_type, (-1,) * (model.config.max_batch_size > 0 or _reported(model)) + tuple(tensor.dims)


def _agree(model: Model, line: int, name: str, kind: tuple[int, tuple[int, ...]], tensors: dict) -> None:
    """Compare with what is known of the ensemble's tensor `name`, or remember it. -1 fits every size."""
    datatype, shape = tensors.setdefault(name, kind)
    same_shape = len(shape) == len(kind[1]) and all(a == b or -1 in (a, b) for a, b in zip(shape, kind[1], strict=True))
    if datatype != kind[0] or not same_shape:
        cure = "Give both sides the same datatype and dims."
        if len(shape) != len(kind[1]):
            cure += " With max_batch_size above 0 the batch dimension (-1 in front) is there already; do not write it."
        model.error(
            "L044",
            line,
            f"The ensemble's tensor {name}, batch dimension included, is {_text((datatype, shape))} in one place and "
            f"{_text(kind)} here.",
            cure,
        )


def _text(kind: tuple[int, tuple[int, ...]]) -> str:
    name = pb.DataType.Name(kind[0]) if kind[0] in pb.DataType.values() else str(kind[0])
    return f"{name}{list(kind[1])}"


def _line(model: Model, step: int, field: str, key: str) -> int:
    return model.lines.entry("ensemble_scheduling", 0, "step", step, field, key=key)
