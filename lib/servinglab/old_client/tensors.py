"""Python values to tensors, by what the model declares (notebook 05).

Arrays are sent as they are. Plain values get shape and datatype from the model's configuration: a number or text
becomes [1, 1]; a list for an input of dims [1] becomes one batch row each; a list for one of dims [-1], such as
`stop_words`, becomes one row [1, n].
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig
from tritonclient.utils import triton_to_np_dtype

from servinglab.old_client.kserve import ClientError

# What an input is called on some other version, model or server, where that is spelt otherwise.
OTHER_NAMES = {"max_output_len": "max_tokens", "request_output_len": "max_tokens", "max_tokens": "request_output_len",
               "prompt": "text_input", "num_beams": "beam_width", "n": "num_return_sequences",
               "eos_token_id": "end_id", "pad_token_id": "pad_id"}  # fmt: skip
_WANTED = {"BYTES": "text", "BOOL": "True or False", "FP16": "a number", "FP32": "a number", "FP64": "a number"}
_TYPES = {"text": (str, bytes), "True or False": bool, "a number": (int, float), "a whole number": int}


@dataclass(frozen=True)
class InputSpec:
    """One declared input: Triton datatype ("INT32", "BYTES", …), dims without the batch dimension."""

    name: str
    datatype: str
    dims: list[int]
    optional: bool
    batched: bool

    @property
    def shape(self) -> list[int]:
        """Shape on the wire, -1 where any length goes."""
        return [-1] * self.batched + self.dims


@dataclass(frozen=True)
class ModelSpec:
    """What a client must know of a model."""

    name: str
    inputs: dict[str, InputSpec]
    outputs: list[str]
    max_batch_size: int
    decoupled: bool
    parameters: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_config(cls, config: ModelConfig) -> ModelSpec:
        batched, decoupled = config.max_batch_size > 0, config.model_transaction_policy.decoupled
        inputs = {i.name: InputSpec(i.name, _datatype(i), list(i.dims), i.optional, batched) for i in config.input}
        parameters = {name: value.string_value for name, value in config.parameters.items()}
        outputs = [output.name for output in config.output]
        return cls(config.name, inputs, outputs, config.max_batch_size, decoupled, parameters)

    def advice(self, name: str) -> str:
        """Which input was probably meant, as the end of a sentence."""
        other = OTHER_NAMES.get(name)
        near = [other] if other in self.inputs else difflib.get_close_matches(name, self.inputs, n=1, cutoff=0.5)
        return f"did you mean '{near[0]}'?" if near else f"it has {', '.join(sorted(self.inputs))}."


def _datatype(tensor: Any) -> str:
    return DataType.Name(tensor.data_type).removeprefix("TYPE_").replace("STRING", "BYTES")


def to_tensors(spec: ModelSpec, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays ready to send. None leaves an input out. Single values are repeated to the batch size of the others.

    Raises ClientError: unknown input, missing input, value that does not fit the datatype.
    """
    values = {name: value for name, value in values.items() if value is not None}
    for name in values:
        if name not in spec.inputs:
            raise ClientError(f"Model '{spec.name}' has no input '{name}': {spec.advice(name)}")
    for name, wanted in spec.inputs.items():
        if not wanted.optional and name not in values:
            raise ClientError(
                f"Model '{spec.name}' needs the input '{name}' ({wanted.datatype}, shape {wanted.shape})."
            )
    tensors = {name: _to_tensor(spec.inputs[name], value) for name, value in values.items()}
    batch = max((array.shape[0] for array in tensors.values() if array.ndim), default=1)
    for name, value in values.items():
        if spec.max_batch_size > 0 and not isinstance(value, np.ndarray) and len(tensors[name]) == 1:
            tensors[name] = np.repeat(tensors[name], batch, axis=0)
    return tensors


def _to_tensor(spec: InputSpec, value: Any) -> np.ndarray:
    """One value as the array that `spec` wants; an array stays as it is."""
    if isinstance(value, np.ndarray):
        return value
    items = np.array(value, dtype=object)
    array = np.empty(items.size, triton_to_np_dtype(spec.datatype))
    for i, item in enumerate(items.flat):
        array[i] = _convert(spec, item)
    shape, rank = list(items.shape), len(spec.shape)
    if not shape:
        shape = [1] * rank
    elif spec.batched and len(shape) == rank - 1:
        # One row, unless each row holds a single value: then every element is a row.
        shape = [shape[0], 1] if spec.dims == [1] else [1, *shape]
    if len(shape) != rank:
        raise ClientError(f"Input '{spec.name}' takes shape {spec.shape} and this has {len(shape)} dimensions.")
    return array.reshape(shape)


def _convert(spec: InputSpec, item: Any) -> Any:
    """Of an integer that is too large, numpy would keep the lower bits."""
    kind, item = spec.datatype, item.item() if isinstance(item, np.generic) else item
    wanted = _WANTED.get(kind, "a whole number")
    if not isinstance(item, _TYPES[wanted]) or (kind != "BOOL" and isinstance(item, bool)):
        raise ClientError(f"Input '{spec.name}' wants {wanted} ({kind}), not {_show(item)} ({type(item).__name__}).")
    if isinstance(item, str):
        try:
            return item.encode()
        except UnicodeEncodeError:
            raise ClientError(
                f"Input '{spec.name}': {_show(item)} holds half a character (a lone surrogate)."
            ) from None
    if wanted.endswith("number"):
        limits = (np.iinfo if "INT" in kind else np.finfo)(triton_to_np_dtype(kind))
        low, high = (limits.min, limits.max) if "INT" in kind else (float(limits.min), float(limits.max))
        if item not in (math.inf, -math.inf) and (item < low or item > high):  # not a number passes
            raise ClientError(f"Input '{spec.name}' is {kind}, from {low} to {high}: {_show(item)} does not fit.")
    return item


def _show(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python prints no integer of more than 4300 digits
        return "that number"
    return text if len(text) <= 60 else text[:57] + "..."
