"""Ask a Triton: gRPC streams for threads and for asyncio, single answers over gRPC and HTTP (notebook 05).

Every call has a deadline. Every failure is a ClientError of one sentence: the server's own, with a hint if one helps.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from servinglab.client import kserve
from servinglab.client.http import HttpSide, HttpStream
from servinglab.client.kserve import ClientError, ClientWarning, ServerGone
from servinglab.client.stream import AsyncTokenStream, Chunk, TokenStream, text_of, texts_of
from servinglab.client.tensors import ModelSpec, to_tensors
from servinglab.server import log as triton_log

__all__ = ["AsyncTokenStream", "Chunk", "ClientError", "ClientWarning", "Result", "TokenStream", "TritonClient"]

BLS = "tensorrt_llm_bls"


@dataclass
class Result:
    """One whole answer; `seconds` since the request was sent."""

    text: str
    seconds: float
    request_id: str
    outputs: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def texts(self) -> list[str]:
        """All strings of `text_output`: one for each beam."""
        return texts_of(self.outputs)


class TritonClient:
    """A client of one Triton; threads may share it, and any number of streams may be open at once.

    Args:
        grpc_url: "host:port".
        http_url: "http://host:port", for http_infer, generate and generate_stream.

    Keyword inputs are the model's own (`temperature=0.7`, `stop_words=["."]`, `seed=3`); None leaves one out.
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

    def stream(
        self, prompt: str | list[str], *, model: str = BLS, max_tokens: int = 64, deadline: float = 60.0,
        request_id: str | None = None, **inputs: Any,
    ) -> TokenStream:  # fmt: skip
        """Send a prompt; the returned iterator gives a Chunk for every response as it arrives."""
        return self.stream_inputs(
            model, _text_values(prompt, max_tokens, inputs, stream=True), deadline=deadline, request_id=request_id
        )

    def stream_inputs(
        self, model: str, inputs: Mapping[str, Any], *, outputs: Iterable[str] = (), deadline: float = 60.0,
        request_id: str | None = None, checked: bool = True,
    ) -> TokenStream:  # fmt: skip
        """The same for any model by its input names. Arrays are sent as they are.

        `checked=False` sends arrays without a look at the model's configuration, to see the server's own answer.
        """
        began, request_id = time.perf_counter(), request_id or _new_id()
        request = self._request(model, inputs, request_id, outputs, deadline, checked, empty_final=True)
        left = max(deadline - (time.perf_counter() - began), 0.001)
        explain = lambda error: self.explain(model, error)  # noqa: E731
        try:
            return TokenStream(self._stub.ModelStreamInfer, request, request_id, deadline, left, self.grpc_url, explain)
        except ValueError:
            raise kserve.closed(self.grpc_url) from None

    def astream(
        self, prompt: str | list[str], *, model: str = BLS, max_tokens: int = 64, deadline: float = 60.0,
        request_id: str | None = None, **inputs: Any,
    ) -> AsyncTokenStream:  # fmt: skip
        """`async for chunk in client.astream(…)`: in JupyterLab, under papermill, and inside asyncio.run."""
        kserve.check_deadline(deadline)
        values = _text_values(prompt, max_tokens, inputs, stream=True)
        return AsyncTokenStream(self, model, values, request_id or _new_id(), deadline)

    # --- one answer -------------------------------------------------------------------------------------------

    def infer(
        self, prompt: str | list[str], *, model: str = BLS, max_tokens: int = 64, deadline: float = 60.0,
        request_id: str | None = None, **inputs: Any,
    ) -> Result:  # fmt: skip
        """gRPC ModelInfer: one request, one response. A decoupled model refuses it; use `stream`."""
        return self.infer_inputs(
            model, _text_values(prompt, max_tokens, inputs), deadline=deadline, request_id=request_id
        )

    def infer_inputs(
        self, model: str, inputs: Mapping[str, Any], *, outputs: Iterable[str] = (), deadline: float = 60.0,
        request_id: str | None = None, checked: bool = True,
    ) -> Result:  # fmt: skip
        """gRPC ModelInfer for any model by its input names; see `stream_inputs`."""
        request = self._request(model, inputs, request_id or _new_id(), outputs, deadline, checked)
        sent = time.perf_counter()
        response = self._call("ModelInfer", request, deadline, model)
        found = kserve.read_outputs(response)
        return Result(text_of(found), time.perf_counter() - sent, response.id, found)

    def http_infer(
        self, prompt: str | list[str], *, model: str = BLS, max_tokens: int = 64, deadline: float = 60.0,
        request_id: str | None = None, **inputs: Any,
    ) -> Result:  # fmt: skip
        """The same as `infer` as JSON over HTTP."""
        spec, request_id = self._http_spec(model, deadline), request_id or _new_id()
        values = _for_model(spec, _text_values(prompt, max_tokens, inputs))
        sent = time.perf_counter()
        found = self._explained(model, lambda http: http.infer(model, to_tensors(spec, values), request_id, deadline))
        return Result(text_of(found), time.perf_counter() - sent, request_id, found)

    def generate(
        self, prompt: str | list[str], *, model: str = BLS, max_tokens: int = 64, deadline: float = 60.0,
        request_id: str | None = None, **inputs: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """POST …/generate; the JSON object of the answer. Warns of a key that is no input: Triton would ignore it."""
        _check_one_answer(inputs)
        body = self._generate_body(model, _text_values(prompt, max_tokens, inputs), request_id, deadline)
        return self._explained(model, lambda http: http.generate(model, body, deadline))

    def generate_stream(
        self, prompt: str | list[str], *, model: str = BLS, max_tokens: int = 64, deadline: float = 60.0,
        request_id: str | None = None, **inputs: Any,
    ) -> HttpStream:  # fmt: skip
        """POST …/generate_stream; an iterator of Chunks (server-sent events)."""
        values = _text_values(prompt, max_tokens, inputs, stream=True)
        body = self._generate_body(model, values, request_id, deadline)
        return self._explained(
            model, lambda http: http.generate_stream(model, body, deadline, lambda error: self.explain(model, error))
        )

    # --- what the server says about itself ---------------------------------------------------------------------

    def spec(self, model: str, *, deadline: float = 10.0) -> ModelSpec:
        """Inputs, outputs and policy that a model declares; asked once, and again after an error."""
        if model not in self._specs:
            answer = self._call("ModelConfig", service_pb2.ModelConfigRequest(name=model), deadline, model)
            self._specs[model] = ModelSpec.from_config(answer.config)
        return self._specs[model]

    async def aspec(self, stub: Any, model: str, deadline: float) -> ModelSpec:
        """The same inside an event loop, on a stub of that loop."""
        if model not in self._specs:
            answer = await stub.ModelConfig(service_pb2.ModelConfigRequest(name=model), timeout=deadline)
            self._specs[model] = ModelSpec.from_config(answer.config)
        return self._specs[model]

    def models(self, *, deadline: float = 10.0) -> list[str]:
        """Names of the models that are ready: those that have statistics. Triton's index of them wants the key."""
        answer = self._call("ModelStatistics", service_pb2.ModelStatisticsRequest(), deadline)
        return sorted({model.name for model in answer.model_stats})

    def explain(self, model: str, error: ClientError) -> ClientError:
        """The server's sentence, cleaned, with what helps a learner further."""
        spec = self._specs.pop(model, None)
        message, kind = triton_log.clean(str(error)), type(error)
        absent = re.search("unknown model|is not found|no available versions", message)
        if absent or re.search("is not ready|Python process died", message):
            kind = ServerGone
        if absent:
            message = f"There is no model '{model}' at this server ({message})."
            try:
                message += f" Ready: {', '.join(self.models(deadline=2)) or 'none'}."
            except ClientError:
                pass
        elif "decoupled transaction policy" in message:
            message += f". '{model}' may answer any number of times: use stream() or generate_stream()."
        elif "produce exactly 1 response" in message:
            message += ". Use generate_stream(), or ask for one answer: without stream, for one prompt."
        elif (found := re.search(r"unexpected (?:shape for|inference) input '([^']+)'", message)) and (
            spec := spec or self._spec_if_any(model)
        ):
            if (inner := re.search(r"for model '([^']+)'", message)) and inner[1] != model:
                return kind(f"{message}. '{inner[1]}' is a step of '{model}': their configurations disagree.")
            wanted = spec.inputs.get(found[1])
            if wanted is None:
                message += f": {spec.advice(found[1])}"
            else:
                batch = ", the first dimension is the batch" if wanted.batched else ""
                message += f". '{model}' declares '{found[1]}' as {wanted.datatype} {wanted.shape}{batch}."
        return kind(message if message.endswith((".", "?", "!")) else message + ".")

    # --- inside -----------------------------------------------------------------------------------------------

    def _request(
        self, model: str, values: Mapping[str, Any], request_id: str, outputs: Iterable[str], deadline: float,
        checked: bool, empty_final: bool = False,
    ) -> service_pb2.ModelInferRequest:  # fmt: skip
        kserve.check_deadline(deadline)
        if checked:
            return self.request_for(self.spec(model, deadline=deadline), values, request_id, outputs, empty_final)
        tensors = {name: np.asarray(value) for name, value in values.items()}
        return kserve.infer_request(model, tensors, request_id, outputs=outputs, empty_final=empty_final)

    def request_for(
        self, spec: ModelSpec, values: Mapping[str, Any], request_id: str, outputs: Iterable[str] = (),
        empty_final: bool = True,
    ) -> service_pb2.ModelInferRequest:  # fmt: skip
        """The message that a call would send; fields and bytes are taken apart in notebook 05."""
        tensors = to_tensors(spec, _for_model(spec, values))
        return kserve.infer_request(spec.name, tensors, request_id, outputs=outputs, empty_final=empty_final)

    def _spec_if_any(self, model: str) -> ModelSpec | None:
        try:
            return self.spec(model, deadline=2)
        except ClientError:
            return None

    def _call(self, method: str, request: Any, deadline: float, model: str = "") -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=deadline)
        except grpc.RpcError as error:
            raise self.explain(model, kserve.as_client_error(error, self.grpc_url, deadline)) from None
        except ValueError:  # gRPC's word for a closed channel
            raise kserve.closed(self.grpc_url) from None

    def _explained(self, model: str, call: Any) -> Any:
        if self._http is None:
            raise ClientError("This client has no HTTP address: TritonClient(grpc_url, http_url).")
        try:
            return call(self._http)
        except ClientError as error:
            raise self.explain(model, error) from None

    def _http_spec(self, model: str, deadline: float) -> ModelSpec:
        kserve.check_deadline(deadline)
        if model not in self._specs:
            self._specs[model] = self._explained(model, lambda http: http.spec(model, deadline))
        return self._specs[model]

    def _generate_body(
        self, model: str, values: Mapping[str, Any], request_id: str | None, deadline: float
    ) -> dict[str, Any]:
        spec = self._http_spec(model, deadline)
        body = {name: value for name, value in _for_model(spec, values).items() if value is not None}
        for name in spec.unknown(body):
            kserve.warn(f"'{name}' is not an input of {model}, so Triton ignores it: {spec.advice(name)}")
        if missing := [name for name, wanted in spec.inputs.items() if not wanted.optional and name not in body]:
            raise ClientError(f"{model} needs a value for {', '.join(missing)}.")
        return {**body, "id": request_id or _new_id()}


def _new_id() -> str:
    return uuid.uuid4().hex[:16]


def _text_values(prompt: Any, max_tokens: int, inputs: Mapping[str, Any], **default: Any) -> dict[str, Any]:
    return {**default, "text_input": prompt, "max_tokens": max_tokens, **inputs}


def _check_one_answer(inputs: Mapping[str, Any]) -> None:
    """Triton would find only at the end, with all of them generated, that there are several answers."""
    count, beams = (inputs.get(name) for name in ("num_return_sequences", "beam_width"))
    if isinstance(count, int) and count > 1 and not (isinstance(beams, int) and beams > 1):
        raise ClientError(
            f"num_return_sequences {count} brings {count} answers, and generate() takes one: use stream() or "
            "generate_stream()."
        )


def _for_model(spec: ModelSpec, values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out our own defaults where the model has no such input."""
    return {
        name: value for name, value in values.items() if name in spec.inputs or name not in ("max_tokens", "stream")
    }
