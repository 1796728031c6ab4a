"""Ask a Triton: gRPC streams for threads and for asyncio, single answers over gRPC and HTTP (notebook 05).

Every call has a deadline. Every failure is a ClientError of one sentence: the server's own, with a hint if one helps.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from servinglab.old_client import kserve
from servinglab.old_client.http import HttpSide, json_inputs, json_outputs
from servinglab.old_client.kserve import ClientError, ClientWarning, ServerGone
from servinglab.old_client.stream import Chunk, TokenStream, as_async, grpc_call
from servinglab.old_client.tensors import ModelSpec, to_tensors
from servinglab.triton_24_10 import clean

__all__ = ["Chunk", "ClientError", "ClientWarning", "TokenStream", "TritonClient"]

BLS = "tensorrt_llm_bls"
Prompt = str | list[str]


class TritonClient:
    """A client of one Triton; threads may share it, and any number of streams may be open at once.

    Args:
        grpc_url: "host:port".
        http_url: "http://host:port", for http_infer, generate and generate_stream.

    Keyword inputs of its methods are the model's own (`temperature=0.7`, `stop_words=["."]`, `seed=3`); None leaves one
    out, and without `max_tokens` an answer has at most 64. `deadline`: seconds that the whole answer may take.
    `request_id`: text; one of its own for each request, unless given.
    """

    def __init__(self, grpc_url: str, http_url: str | None = None) -> None:
        if not grpc_url:
            raise ClientError("The client needs a gRPC address such as 127.0.0.1:8001: has the server been started?")
        self.grpc_url = re.sub(r"^(grpc|http)://", "", grpc_url).rstrip("/")
        self._channel = kserve.open_channel(self.grpc_url)
        self._stub = kserve.stub(self._channel)
        self._http = HttpSide(http_url) if http_url else None
        self._specs: dict[str, ModelSpec] = {}

    def close(self) -> None:
        self._channel.close()
        if self._http:
            self._http.close()

    def __enter__(self) -> TritonClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- streams over gRPC ------------------------------------------------------------------------------------

    def stream(self, prompt: Prompt, *, model: str = BLS, deadline: float = 60.0, **inputs: Any) -> TokenStream:
        """Send a prompt; the returned iterator gives a Chunk for every response as it arrives."""
        request_id, values = _text_values(prompt, {"stream": True, **inputs})
        return self.stream_inputs(model, values, deadline=deadline, request_id=request_id)

    def stream_inputs(
        self, model: str, inputs: Mapping[str, Any], *, deadline: float = 60.0, request_id: str | None = None,
        checked: bool = True, wake: Callable[[], None] = lambda: None,
    ) -> TokenStream:  # fmt: skip
        """The same for any model by its input names. Arrays are sent as they are.

        `checked=False` sends arrays without a look at the model's configuration, to see the server's own answer.
        `wake` is called after each arrival, in a thread of its own.
        """
        began = time.perf_counter()
        request = self._request(model, inputs, request_id, deadline, checked, empty_final=True)
        left = max(deadline - (time.perf_counter() - began), 0.001)
        with self._open():
            call = grpc_call(self._stub.ModelStreamInfer, request, self.grpc_url, deadline, left)
        return TokenStream(*call, request.id, partial(self.explain, model), wake)

    def astream(
        self, prompt: Prompt, *, model: str = BLS, deadline: float = 60.0, **inputs: Any
    ) -> AsyncIterator[Chunk]:
        """`async for chunk in client.astream(…)`: in JupyterLab, under papermill, and inside asyncio.run. Leaving the
        loop cancels the request once the iterator is closed (`aclose()`, contextlib.aclosing) or forgotten."""
        kserve.check_deadline(deadline)
        request_id, values = _text_values(prompt, {"stream": True, **inputs})
        return as_async(partial(self.stream_inputs, model, values, deadline=deadline, request_id=request_id))

    # --- one answer -------------------------------------------------------------------------------------------

    def infer(self, prompt: Prompt, *, model: str = BLS, deadline: float = 60.0, **inputs: Any) -> Chunk:
        """gRPC ModelInfer: one request, one response. A decoupled model refuses it; use `stream`."""
        request_id, values = _text_values(prompt, inputs)
        return self.infer_inputs(model, values, deadline=deadline, request_id=request_id)

    def infer_inputs(
        self, model: str, inputs: Mapping[str, Any], *, deadline: float = 60.0, request_id: str | None = None,
        checked: bool = True,
    ) -> Chunk:  # fmt: skip
        """gRPC ModelInfer for any model by its input names; see `stream_inputs`."""
        request = self._request(model, inputs, request_id, deadline, checked)
        sent = time.perf_counter()
        response = self._call("ModelInfer", request, deadline, model)
        return Chunk.of(kserve.read_outputs(response), 0, sent, True, response.id)

    def http_infer(self, prompt: Prompt, *, model: str = BLS, deadline: float = 60.0, **inputs: Any) -> Chunk:
        """The same as `infer` as JSON over HTTP."""
        spec, request_id, values = self._for_http(model, prompt, inputs, deadline)
        body, sent = {"id": request_id, "inputs": json_inputs(to_tensors(spec, values))}, time.perf_counter()
        return Chunk.of(json_outputs(self._ask(model, "infer", body, deadline)), 0, sent, True, request_id)

    def generate(self, prompt: Prompt, *, model: str = BLS, deadline: float = 60.0, **inputs: Any) -> dict[str, Any]:
        """POST …/generate; the JSON object of the answer. Warns of a key that is no input: Triton would ignore it."""
        spec, request_id, values = self._for_http(model, prompt, inputs, deadline)
        _warn_of_unknown(spec, values)
        return self._ask(model, "generate", {**values, "id": request_id}, deadline)

    def generate_stream(
        self, prompt: Prompt, *, model: str = BLS, deadline: float = 60.0, **inputs: Any
    ) -> TokenStream:
        """POST …/generate_stream; an iterator of Chunks (server-sent events)."""
        spec, request_id, values = self._for_http(model, prompt, {"stream": True, **inputs}, deadline)
        _warn_of_unknown(spec, values)
        call = self._http.events(model, {**values, "id": request_id}, deadline)
        return TokenStream(*call, request_id, partial(self.explain, model))

    # --- what the server says about itself ---------------------------------------------------------------------

    def spec(self, model: str, *, deadline: float = 10.0) -> ModelSpec:
        """Inputs, outputs and policy that a model declares; asked once, and again after an error."""
        if model not in self._specs:
            answer = self._call("ModelConfig", service_pb2.ModelConfigRequest(name=model), deadline, model)
            self._specs[model] = ModelSpec.from_config(answer.config)
        return self._specs[model]

    def models(self, *, deadline: float = 10.0) -> list[str]:
        """Names of the models that are ready: those that have statistics. Triton's index of them wants the key."""
        answer = self._call("ModelStatistics", service_pb2.ModelStatisticsRequest(), deadline)
        return sorted({model.name for model in answer.model_stats})

    def explain(self, model: str, error: ClientError) -> ClientError:
        """The server's sentence, cleaned, with what helps a learner further."""
        spec = self._specs.pop(model, None)
        message, kind = clean(str(error)), type(error)
        absent = re.search("unknown model|is not found|no available versions", message)
        if absent or re.search("is not ready|Python process died", message):
            kind = ServerGone
        if absent:
            message = f"There is no model '{model}' at this server ({message})."
            with contextlib.suppress(ClientError):
                message += f" Ready: {', '.join(self.models(deadline=2)) or 'none'}."
        elif "decoupled transaction policy" in message:
            message += f". '{model}' may answer any number of times: use stream() or generate_stream()."
        elif "produce exactly 1 response" in message:
            message += ". Use generate_stream(), or ask for one answer: without stream, for one prompt."
        elif found := re.search(r"unexpected (?:shape for|inference) input '([^']+)'", message):
            if (inner := re.search(r"for model '([^']+)'", message)) and inner[1] != model:
                return kind(f"{message}. '{inner[1]}' is a step of '{model}': their configurations disagree.")
            with contextlib.suppress(ClientError):
                spec = spec or self.spec(model, deadline=2)
                if wanted := spec.inputs.get(found[1]):
                    batch = ", the first dimension is the batch" if wanted.batched else ""
                    message += f". '{model}' declares '{found[1]}' as {wanted.datatype} {wanted.shape}{batch}."
                else:
                    message += f": {spec.advice(found[1])}"
        return kind(message if message.endswith((".", "?", "!")) else message + ".")

    # --- inside -----------------------------------------------------------------------------------------------

    def _request(
        self, model: str, values: Mapping[str, Any], request_id: str | None, deadline: float, checked: bool,
        empty_final: bool = False,
    ) -> service_pb2.ModelInferRequest:  # fmt: skip
        kserve.check_deadline(deadline)
        if checked:
            spec = self.spec(model, deadline=deadline)
            tensors = to_tensors(spec, _for_model(spec, values))
        else:
            tensors = {name: np.asarray(value) for name, value in values.items()}
        request_id = uuid.uuid4().hex[:16] if request_id is None else request_id
        return kserve.infer_request(model, tensors, request_id, empty_final=empty_final)

    def _for_http(self, model: str, prompt: Any, inputs: Any, deadline: float) -> tuple[ModelSpec, str, dict[str, Any]]:
        kserve.check_deadline(deadline)
        if self._http is None:
            raise ClientError("This client has no HTTP address: TritonClient(grpc_url, http_url).")
        request_id, values = _text_values(prompt, inputs)
        spec = self.spec(model, deadline=deadline)
        return spec, request_id, {n: value for n, value in _for_model(spec, values).items() if value is not None}

    def _call(self, method: str, request: Any, deadline: float, model: str = "") -> Any:
        try:
            with self._open():
                return getattr(self._stub, method)(request, timeout=deadline)
        except grpc.RpcError as error:
            raise self.explain(model, kserve.as_client_error(error, self.grpc_url, deadline)) from None

    def _ask(self, model: str, verb: str, body: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        try:
            return self._http.ask(model, verb, body, deadline)
        except ClientError as error:
            raise self.explain(model, error) from None

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        try:
            yield
        except ValueError:  # gRPC's word for a closed channel
            raise ClientError(f"This client of {self.grpc_url} is closed: make a new one.") from None


def _text_values(prompt: Any, inputs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The request's id and its inputs."""
    values = {"text_input": prompt, "max_tokens": 64, **inputs}
    request_id = values.pop("request_id", None)
    return uuid.uuid4().hex[:16] if request_id is None else request_id, values


def _for_model(spec: ModelSpec, values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out our own defaults where the model has no such input."""
    ours = ("max_tokens", "stream")
    return {name: value for name, value in values.items() if name in spec.inputs or name not in ours}


def _warn_of_unknown(spec: ModelSpec, values: Mapping[str, Any]) -> None:
    for name in values:
        if name not in spec.inputs:
            message = f"'{name}' is not an input of {spec.name}, so Triton ignores it: {spec.advice(name)}"
            warnings.warn(message, ClientWarning, stacklevel=3)  # the line that called the client
