"""Python values to tensors, by what the model declares (notebook 05).

Arrays are sent as they are. Plain values get shape and datatype from the model's configuration: a number or text
becomes [1, 1]; a list for an input of dims [1] becomes one batch row each; a list for one of dims [-1], such as
`stop_words`, becomes one row [1, n].
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig
from tritonclient.utils import triton_to_np_dtype

from servinglab.client.kserve import ClientError

# What people call an input, and what it is called on some other version, model or server.
OTHER_NAMES = {
    "random_seed": "seed", "seed": "random_seed", "min_length": "min_tokens", "min_tokens": "min_length",
    "runtime_top_k": "top_k", "runtime_top_p": "top_p", "top_k": "runtime_top_k", "top_p": "runtime_top_p",
    "max_new_tokens": "max_tokens", "max_output_len": "max_tokens", "request_output_len": "max_tokens",
    "max_tokens": "request_output_len", "prompt": "text_input", "text": "text_input", "streaming": "stream",
    "stream": "streaming", "len_penalty": "length_penalty", "num_beams": "beam_width", "stop": "stop_words",
    "n": "num_return_sequences", "eos_token_id": "end_id", "pad_token_id": "pad_id",
}  # fmt: skip
# Of tensorrt_llm; NVIDIA's text models do not declare them.
ONLY_LLM = {"early_stopping", "beam_search_diversity_rate"}


@dataclass(frozen=True)
class InputSpec:
    """One declared input: Triton datatype ("INT32", "BYTES", …), dims without the batch dimension."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool
    batched: bool

    @property
    def shape(self) -> list[int]:
        """Shape on the wire, -1 where any length goes."""
        return ([-1] if self.batched else []) + list(self.dims)


@dataclass(frozen=True)
class ModelSpec:
    """What a client must know of a model."""

    name: str
    inputs: dict[str, InputSpec]
    outputs: dict[str, str]
    max_batch_size: int
    decoupled: bool
    parameters: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_config(cls, config: ModelConfig) -> ModelSpec:
        batched = config.max_batch_size > 0
        inputs = {
            i.name: InputSpec(i.name, _datatype(i.data_type), tuple(i.dims), i.optional, batched) for i in config.input
        }
        outputs = {o.name: _datatype(o.data_type) for o in config.output}
        decoupled = config.model_transaction_policy.decoupled
        parameters = {name: value.string_value for name, value in config.parameters.items()}
        return cls(config.name, inputs, outputs, config.max_batch_size, decoupled, parameters)

    def unknown(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in self.inputs]

    def advice(self, name: str) -> str:
        """Which input was probably meant, as the end of a sentence."""
        other = OTHER_NAMES.get(name)
        if name in ONLY_LLM and "text_input" in self.inputs:
            return "only the model tensorrt_llm has it, which takes token ids."
        near = [other] if other in self.inputs else difflib.get_close_matches(name, self.inputs, n=1, cutoff=0.5)
        if near:
            return f"did you mean '{near[0]}'?"
        return "it has " + ", ".join(sorted(self.inputs)) + "."


def _datatype(number: int) -> str:
    return DataType.Name(number).removeprefix("TYPE_").replace("STRING", "BYTES")


def to_tensors(spec: ModelSpec, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays ready to send. None leaves an input out. Single values are repeated to the batch size of the others.

    Raises ClientError: unknown input, missing input, value that does not fit the datatype.
    """
    values = {name: value for name, value in values.items() if value is not None}
    for name in spec.unknown(values):
        raise ClientError(f"Model '{spec.name}' has no input '{name}': {spec.advice(name)}")
    for name, wanted in spec.inputs.items():
        if not wanted.optional and name not in values:
            raise ClientError(
                f"Model '{spec.name}' needs the input '{name}' ({wanted.datatype}, shape {wanted.shape})."
            )
    tensors = {name: to_tensor(spec.inputs[name], value) for name, value in values.items()}
    if spec.max_batch_size > 0:
        batch = max((array.shape[0] for array in tensors.values() if array.ndim), default=1)
        single = [n for n, array in tensors.items() if not isinstance(values[n], np.ndarray) and array.shape[0] == 1]
        _check_rows(spec, {name: array for name, array in tensors.items() if name not in single and array.ndim})
        tensors |= {name: np.repeat(tensors[name], batch, axis=0) for name in single if batch > 1}
    return tensors


def _check_rows(spec: ModelSpec, tensors: Mapping[str, np.ndarray]) -> None:
    """Triton would name any of the inputs, not the odd one; the prompt is the first that a model declares."""
    names = [name for name in spec.inputs if name in tensors]
    for name in names[1:]:
        rows, first = tensors[name].shape[0], tensors[names[0]].shape[0]
        if rows != first:
            raise ClientError(
                f"Input '{name}' has shape {list(tensors[name].shape)}, that is {rows} row(s), but '{names[0]}' has "
                f"{first}: '{spec.name}' takes {spec.inputs[name].shape} of it, the first dimension is the batch."
            )


def to_tensor(spec: InputSpec, value: Any) -> np.ndarray:
    """One value as the array that `spec` wants; an array stays as it is."""
    if isinstance(value, np.ndarray):
        return value
    flat: list[Any] = []
    shape = _flatten(spec, value, flat)
    array = np.empty(len(flat), triton_to_np_dtype(spec.datatype))
    for i, item in enumerate(flat):
        array[i] = _convert(spec, item)
    rank = len(spec.dims) + spec.batched
    if not shape:
        shape = [1] * rank
    elif spec.batched and len(shape) == len(spec.dims):
        # One row, unless each row holds a single value: then every element is a row.
        shape = [shape[0], 1] if list(spec.dims) == [1] else [1, *shape]
    if len(shape) != rank:
        raise ClientError(
            f"Input '{spec.name}' takes shape {spec.shape} and {_show(value)} has {len(shape)} dimensions."
        )
    return array.reshape(shape)


def _flatten(spec: InputSpec, value: Any, into: list[Any]) -> list[int]:
    """Append the leaves of nested lists to `into`; returns the shape."""
    if not isinstance(value, (list, tuple)):
        into.append(value)
        return []
    shapes = [_flatten(spec, item, into) for item in value]
    if any(shape != shapes[0] for shape in shapes):
        raise ClientError(f"Input '{spec.name}': the rows of {_show(value)} have different lengths; pad them.")
    return [len(value), *(shapes[0] if shapes else [])]


def _convert(spec: InputSpec, item: Any) -> Any:
    kind, item = spec.datatype, item.item() if isinstance(item, np.generic) else item
    try:
        if kind == "BYTES" and isinstance(item, (str, bytes)):
            return item.encode() if isinstance(item, str) else item
        if kind == "BOOL" and isinstance(item, bool):
            return item
        if kind.startswith(("INT", "UINT")) and isinstance(item, int) and not isinstance(item, bool):
            return _within(spec, item, np.iinfo(triton_to_np_dtype(kind)))
        if kind in ("FP16", "FP32", "FP64") and isinstance(item, (int, float)) and not isinstance(item, bool):
            return item if item in (math.inf, -math.inf) else _within(spec, item, np.finfo(triton_to_np_dtype(kind)))
    except UnicodeEncodeError:
        raise ClientError(f"Input '{spec.name}': {_show(item)} holds half a character (a lone surrogate).") from None
    wanted = {"BYTES": "text", "BOOL": "True or False"}.get(kind, "a whole number" if "INT" in kind else "a number")
    raise ClientError(f"Input '{spec.name}' wants {wanted} ({kind}), not {_show(item)} ({type(item).__name__}).")


def _within(spec: InputSpec, item: Any, limits: Any) -> Any:
    low, high = (int(x) if isinstance(item, int) else float(x) for x in (limits.min, limits.max))
    if item < low or item > high:  # not a number passes
        span = (
            f"from {limits.min:.8g} to {limits.max:.8g}" if spec.datatype.startswith("FP") else f"from {low} to {high}"
        )
        raise ClientError(f"Input '{spec.name}' is {spec.datatype}, {span}: {_show(item)} does not fit.")
    return item


def _show(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python prints no integer of more than 4300 digits
        return "that number"
    return text if len(text) <= 60 else text[:57] + "..."
