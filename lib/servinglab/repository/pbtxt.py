"""config.pbtxt as a protobuf ModelConfig: composed from the contract, printed as text, read back (notebook 03)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from servinglab.repository import contract, wiring
from servinglab.repository.errors import RepositoryError
from servinglab.repository.spec import DeploymentSpec


class PbtxtError(RepositoryError):
    """Text that is no ModelConfig. `line` and `column` (from 1) say where, `reason` what, in Triton's own words."""

    def __init__(self, reason: str, line: int, column: int, file: str = "config.pbtxt") -> None:
        super().__init__(f"{file}:{line}:{column}: {reason}")
        self.reason, self.line, self.column = reason, line, column


def compose(
    model: str,
    generation: str,
    *,
    name: str,
    prefix: str,
    number: Callable[[str], int],
    datatype: Callable[[str], int],
    decoupled: bool,
    backend: str,
    parameters: Mapping[str, str],
) -> pb.ModelConfig:
    """The configuration of one of the five models.

    `number(variable)` and `datatype("INT32" or "${variable}")` give the values of structural variables, as numbers of
    the protobuf; `prefix` goes before the names of an ensemble's steps; `backend` is that of `tensorrt_llm`;
    `parameters` are written in the given order.
    """
    config = pb.ModelConfig(name=name, max_batch_size=number("triton_max_batch_size"))
    if model == "ensemble":
        config.platform = "ensemble"
    else:
        config.backend = backend if model == "tensorrt_llm" else "python"
    if model in ("tensorrt_llm", "tensorrt_llm_bls"):
        config.model_transaction_policy.decoupled = decoupled
    if model in ("tensorrt_llm", "preprocessing"):
        batching = config.dynamic_batching
        batching.preferred_batch_size.append(number("triton_max_batch_size"))
        batching.max_queue_delay_microseconds = number("max_queue_delay_microseconds")
        batching.default_queue_policy.max_queue_size = number("max_queue_size")
    elif model == "postprocessing":
        config.dynamic_batching.SetInParent()
    for tensor in contract.inputs(model, generation):
        entry = config.input.add(
            name=tensor.name,
            data_type=datatype(tensor.datatype),
            dims=tensor.dims,
            optional=tensor.optional,
            allow_ragged_batch=tensor.ragged,
        )
        if tensor.scalar:
            entry.reshape.SetInParent()
    for tensor in contract.outputs(model, generation):
        config.output.add(name=tensor.name, data_type=datatype(tensor.datatype), dims=tensor.dims)
    if model == "ensemble":
        for step in wiring.ensemble_steps(generation):
            config.ensemble_scheduling.step.add(
                model_name=prefix + step.model, model_version=-1, input_map=step.inputs, output_map=step.outputs
            )
    else:
        count = 1 if model == "tensorrt_llm" else number(f"{model.removeprefix('tensorrt_llm_')}_instance_count")
        # KIND_CPU also for `tensorrt_llm`: TensorRT-LLM places its own GPUs.
        config.instance_group.add(count=count, kind=pb.ModelInstanceGroup.KIND_CPU)
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    return config


def model_config(spec: DeploymentSpec, model: str) -> pb.ModelConfig:
    """The configuration of one of the five models (`contract.MODELS`) of a deployment, or of its `contract.DRAFT`."""
    name = spec.model_name(model)
    if model == contract.DRAFT:
        model, spec = "tensorrt_llm", spec.replace(engine_dir=spec.draft_engine_dir)
    values = spec.values(model)
    parameters = {p.key: p.text(values[p.variable]) for p in wiring.parameters(model) if p.variable in values}
    if model == "tensorrt_llm":
        parameters = dict.fromkeys(wiring.LLM_EMPTY, "") | parameters | wiring.LLM_LITERALS
    if model == "tensorrt_llm_bls" and spec.bls_decodes:
        decoding = spec.values("postprocessing")
        parameters |= {key: wiring.text_of(decoding[key]) for key in ("tokenizer_dir", "skip_special_tokens")}
    return compose(
        model,
        spec.generation,
        name=name,
        prefix=spec.prefix,
        number=values.__getitem__,
        datatype=lambda text: pb.DataType.Value(values[text[2:-1]] if text.startswith("$") else f"TYPE_{text}"),
        decoupled=spec.decoupled,
        backend=values.get("triton_backend", ""),
        parameters=parameters,
    )


_ORDER = (
    "name backend platform max_batch_size model_transaction_policy dynamic_batching instance_group parameters input "
    "output ensemble_scheduling"
).split()


def to_text(config: pb.ModelConfig) -> str:
    """The message as config.pbtxt: what the model is first, one tensor or parameter a line."""
    names = sorted((f.name for f, _ in config.ListFields()), key=lambda n: _ORDER.index(n) if n in _ORDER else 99)
    apart = ("parameters", "input", "output", "ensemble_scheduling")
    return "".join("\n" * (name in apart) + _field_text(config, name) for name in names)


def _field_text(config: pb.ModelConfig, name: str) -> str:
    if name == "parameters":  # a map: one message for each entry, in key order
        parts = [pb.ModelConfig(parameters={key: config.parameters[key]}) for key in sorted(config.parameters)]
    elif name in ("input", "output", "instance_group"):
        parts = [pb.ModelConfig(**{name: [entry]}) for entry in getattr(config, name)]
    else:
        part = pb.ModelConfig()
        part.MergeFrom(pb.ModelConfig(**{name: getattr(config, name)}))
        text = text_format.MessageToString(part, use_short_repeated_primitives=True)
        if name == "model_transaction_policy" and not config.model_transaction_policy.decoupled:
            return "model_transaction_policy {\n  decoupled: false\n}\n"  # protobuf prints no false
        return re.sub(r"(_map) \{\n\s*(key: .*)\n\s*(value: .*)\n\s*\}", r"\1 { \2 \3 }", text)
    lines = [text_format.MessageToString(p, as_one_line=True, use_short_repeated_primitives=True) for p in parts]
    if name == "input":
        lines = [line.replace("reshape { }", "reshape { shape: [] }") for line in lines]  # nor an empty list
    return "\n".join(lines) + "\n"


def parse(text: str, file: str = "config.pbtxt") -> pb.ModelConfig:
    """The ModelConfig that `text` describes. Raises PbtxtError with the place and, where it is known, the cause."""
    try:
        return text_format.Parse(text, pb.ModelConfig())
    except text_format.ParseError as error:
        line, column = error.GetLine() or 1, error.GetColumn() or 1
        lines, reason = text.split("\n"), re.sub(r"^\d+:\d+ : ", "", str(error))
        if lines[line - 1 : line] and lines[line - 1][column - 1 :].startswith("$"):
            # What protobuf's Python parser says about a "$", and what Triton (the C++ parser) says.
            said = {"integer": "integer", "Enum": "integer or identifier", "string": "string"}
            expected = next((theirs for word, theirs in said.items() if word in reason), "identifier")
            raise PbtxtError(f"Expected {expected}, got: $", line, column, file) from None
        raise PbtxtError(re.sub(r"^'.*?': ", "", reason, flags=re.DOTALL), line, column, file) from None
    except (ValueError, RecursionError, OverflowError) as error:  # such as a number beyond 64 bits
        raise PbtxtError(f"not a model configuration: {' '.join(str(error).split())}", 1, 1, file) from error
