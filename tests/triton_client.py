"""A client for the tests, on tritonclient and httpx: many streams at once, any model by the inputs that it declares."""

from __future__ import annotations

import contextlib
import json
import queue
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.grpc.model_config_pb2 import DataType
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, triton_to_np_dtype

from servinglab.client import channel_args, explained

BLS = "tensorrt_llm_bls"


class ClientError(Exception):
    """A request that failed; one sentence."""


@dataclass
class Chunk:
    """One response; `seconds` since the request was sent."""

    outputs: dict[str, np.ndarray]
    seconds: float = 0.0
    final: bool = False
    request_id: str = ""
    texts: list[str] = field(init=False)
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.texts = [value.decode(errors="replace") for value in np.ravel(self.outputs.get("text_output", []))]
        self.text = (self.texts or [""])[0]

    @classmethod
    def of(cls, result: grpcclient.InferResult, seconds: float) -> Chunk:
        response = result.get_response()
        outputs = {output.name: result.as_numpy(output.name) for output in response.outputs}
        return cls(outputs, seconds, response.parameters["triton_final_response"].bool_param, response.id)


class Stream:
    """Iterator over the Chunks of one request, which is on its way; leaving or forgetting it cancels the request."""

    def __init__(self, url: str, model: str, tensors: list, deadline: float, request_id: str) -> None:
        self.request_id, self.cancelled = request_id, False
        self._over, self._url, self._deadline = False, url, deadline
        self._arrived: queue.SimpleQueue = queue.SimpleQueue()
        self._client = grpcclient.InferenceServerClient(url, channel_args=channel_args(url))
        self._sent = time.perf_counter()
        self._client.start_stream(partial(_note, self._arrived), stream_timeout=deadline)
        try:
            self._client.async_stream_infer(model, tensors, request_id=request_id, enable_empty_final_response=True)
        except InferenceServerException as error:  # broken already, as by its deadline: the reason comes as an answer
            if "no longer in valid state" not in str(error):
                raise

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Chunk:
        if self._over:
            raise StopIteration
        when, result, error = self._arrived.get()
        if self.cancelled:
            raise StopIteration
        if error is not None:
            self._over = error.status() is None
            self.close()
            raise ClientError(explained(error, self._url, self._deadline)[0]) from None
        chunk = Chunk.of(result, when - self._sent)
        if chunk.final:
            self._over = True
            self.close()
        return chunk

    def close(self) -> None:
        self._client.stop_stream(cancel_requests=not self._over)
        self._over = True
        self._client.close()

    def cancel(self) -> None:
        if not self._over:
            self.cancelled = True
            self.close()
            self._arrived.put((0.0, None, None))

    __del__ = close

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _note(arrived: queue.SimpleQueue, result: Any, error: Any) -> None:
    arrived.put((time.perf_counter(), result, error))


class TritonClient:
    """Keyword inputs are the model's own; None leaves one out. Plain values get the declared datatype and shape."""

    def __init__(self, grpc_url: str, http_url: str | None = None) -> None:
        self.grpc_url, self.http_url = grpc_url, http_url
        self.raw = grpcclient.InferenceServerClient(grpc_url, channel_args=channel_args(grpc_url))
        self.spec = cache(self._spec)

    def close(self) -> None:
        self.raw.close()

    def __enter__(self) -> TritonClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stream(self, prompt: str | list[str], *, model: str = BLS, **inputs: Any) -> Stream:
        return self.stream_inputs(model, {"text_input": prompt, "max_tokens": 64, "stream": True, **inputs})

    def stream_inputs(
        self, model: str, inputs: dict[str, Any], *, deadline: float = 60.0, request_id: str = "", checked: bool = True
    ) -> Stream:
        """checked=False sends arrays of any name, as they are."""
        inputs = dict(inputs)
        deadline, request_id = inputs.pop("deadline", deadline), inputs.pop("request_id", request_id)
        tensors = self.tensors(model, inputs) if checked else [tensor(*each) for each in inputs.items()]
        return Stream(self.grpc_url, model, tensors, deadline, request_id or uuid.uuid4().hex[:16])

    def infer(self, prompt: str | list[str], *, model: str = BLS, **inputs: Any) -> Chunk:
        return self.infer_inputs(model, {"text_input": prompt, "max_tokens": 64, **inputs})

    def infer_inputs(
        self, model: str, inputs: dict[str, Any], *, deadline: float = 60.0, checked: bool = True
    ) -> Chunk:
        inputs = dict(inputs)
        deadline, request_id = inputs.pop("deadline", deadline), inputs.pop("request_id", "")
        tensors = self.tensors(model, inputs) if checked else [tensor(*each) for each in inputs.items()]
        return Chunk.of(self._ask(deadline, "infer", model, tensors, request_id=request_id), 0.0)

    def generate(self, prompt: str, *, model: str = BLS, deadline: float = 60.0, **inputs: Any) -> dict[str, Any]:
        with self._post(model, "generate", deadline, {"text_input": prompt, "max_tokens": 64, **inputs}) as answer:
            return _checked(answer.read())

    def generate_stream(
        self, prompt: str, *, model: str = BLS, deadline: float = 60.0, **inputs: Any
    ) -> Iterator[Chunk]:
        body = {"text_input": prompt, "max_tokens": 64, "stream": True, **inputs}
        with self._post(model, "generate_stream", deadline, body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    yield Chunk({"text_output": np.array([_checked(line[5:])["text_output"].encode()], object)})

    def models(self) -> list[str]:
        return sorted(model.name for model in self._ask(10.0, "get_inference_statistics").model_stats)

    def tensors(self, model: str, values: dict[str, Any]) -> list[grpcclient.InferInput]:
        """Arrays as they are; single values, lists of rows, and one row of a list, by what the model declares."""
        declared, made = self.spec(model).inputs, {}
        values = {name: value for name, value in values.items() if value is not None}
        for name in {"max_tokens", "stream"} - set(declared):
            values.pop(name, None)
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                made[name] = value
                continue
            if name not in declared:
                raise ClientError(f"Model '{model}' has no input '{name}'.")
            dims, kind = declared[name].dims, triton_to_np_dtype(declared[name].datatype)
            items = np.array(value, object)
            flat = [item.encode() if isinstance(item, str) else item for item in items.flat]
            shape = items.shape
            if len(shape) < 1 + len(dims):
                shape = (-1, 1) if dims == [1] else (1,) * (1 + len(dims) - len(shape)) + shape
            made[name] = np.array(flat, kind).reshape(shape)
        rows = max((len(array) for array in made.values()), default=1)
        for name in made:
            if len(made[name]) == 1 < rows and not isinstance(values[name], np.ndarray):
                made[name] = np.repeat(made[name], rows, axis=0)
        return [tensor(name, array) for name, array in made.items()]

    def _spec(self, model: str) -> Any:
        """What a model declares: inputs (datatype and dims by name), names of outputs."""
        config = self._ask(10.0, "get_model_config", model).config
        inputs = {
            each.name: SimpleNamespace(
                datatype=DataType.Name(each.data_type).removeprefix("TYPE_").replace("STRING", "BYTES"),
                dims=list(each.dims),
            )
            for each in config.input
        }
        return SimpleNamespace(inputs=inputs, outputs=[each.name for each in config.output])

    def _ask(self, deadline: float, method: str, *arguments: Any, **more: Any) -> Any:
        try:
            return getattr(self.raw, method)(*arguments, client_timeout=deadline, **more)
        except InferenceServerException as error:
            raise ClientError(explained(error, self.grpc_url, deadline)[0]) from None

    @contextlib.contextmanager
    def _post(self, model: str, verb: str, deadline: float, body: dict[str, Any]) -> Iterator[httpx.Response]:
        body = {name: value for name, value in body.items() if value is not None}
        url = f"{self.http_url}/v2/models/{model}/{verb}"
        try:
            with httpx.stream("POST", url, json=body, timeout=deadline, trust_env=False) as answer:
                yield answer
        except httpx.TimeoutException:
            raise ClientError(f"No answer from {url} within {deadline:g} s.") from None
        except httpx.ConnectError:
            raise ClientError(f"No server answers at {url}.") from None
        except httpx.TransportError:
            raise ClientError(f"The server at {url} closed the connection: has it stopped?") from None


def tensor(name: str, array: np.ndarray) -> grpcclient.InferInput:
    made = grpcclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array)


def _checked(content: str | bytes) -> dict[str, Any]:
    found = json.loads(content)
    if "error" in found and "model_name" not in found:
        raise ClientError(explained(InferenceServerException(found["error"]), "", 0.0)[0])
    return found
