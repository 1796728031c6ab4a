"""A stand-in for `triton_python_backend_utils`, which exists only inside Triton's stub process.

Import this before anything of `reference_backend.models`. It keeps tensors as they are given and records what is sent.
"""

from __future__ import annotations

import json
import sys
import threading
import types
from pathlib import Path

import numpy as np

FINAL = 1
# What a BLS call reaches: name -> TritonPythonModel, or function(inputs, request id) -> iterable of InferenceResponse.
MODELS: dict = {}
LOG: list[str] = []


class Tensor:
    def __init__(self, name, array):
        self._name, self._array = name, array

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array


class TritonError:
    INVALID_ARG, INTERNAL, UNAVAILABLE = "INVALID_ARG", "INTERNAL", "UNAVAILABLE"

    def __init__(self, message, code="INTERNAL"):
        self._message, self._code = message, code

    def message(self):
        return self._message

    def code(self):
        return self._code


class InferenceResponse:
    def __init__(self, output_tensors=(), error=None):
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self):
        return self._tensors

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error


class InferenceRequest:
    """Both what `execute` receives and what a BLS model sends."""

    def __init__(
        self, model_name="", inputs=(), requested_output_names=(), request_id="", sender=None, parameters=None
    ):
        self.model_name, self._inputs, self._id, self._sender = model_name, list(inputs), request_id, sender
        self.requested_output_names, self._parameters = list(requested_output_names), json.dumps(parameters or {})

    def inputs(self):
        return self._inputs

    def request_id(self):
        return self._id

    def parameters(self):
        return self._parameters

    def get_response_sender(self):
        return self._sender

    def exec(self, decoupled=False):
        model = MODELS[self.model_name]
        responses = self._serve(model) if hasattr(model, "execute") else model(as_dict(self), self._id)
        return responses if decoupled else next(iter(responses))

    def _serve(self, model):
        sender = Sender()
        parameters = json.loads(self._parameters)
        model.execute([InferenceRequest("", self._inputs, (), self._id, sender, parameters)])
        for content, _ in sender.wait():
            if isinstance(content, TritonError):
                yield InferenceResponse(error=content)
            else:
                yield InferenceResponse([Tensor(k, v) for k, v in content.items() if k in self.requested_output_names])


class Sender:
    """Records (outputs or error or None, final) and lets a test wait for the last response.

    As in Triton 24.10, a response of more than `room` bytes is refused, but only after it has counted: one with FINAL
    closes the sender all the same, and one that is not `decoupled` may try no other response.
    """

    def __init__(self, room=2**40, decoupled=True):
        self.sent, self.cancelled, self.done = [], False, threading.Event()
        self.room, self.decoupled, self.closed, self.tries = room, decoupled, False, 0

    def send(self, response=None, flags=0):
        assert not self.closed, "nothing may be sent after FINAL"
        assert self.decoupled or response is None or not self.tries, "only one response may be sent"
        assert self.decoupled or response is not None or self.tries, "a response must come before FINAL"
        self.closed, self.tries = bool(flags & FINAL), self.tries + 1
        if response is not None and sum(tensor.as_numpy().nbytes for tensor in response.output_tensors()) > self.room:
            raise RuntimeError("Failed to increase the shared memory pool size.")
        content = response
        if response is not None:
            content = response.error() if response.has_error() else as_dict(response)
        self.sent.append((content, bool(flags & FINAL)))
        if flags & FINAL:
            self.done.set()

    def is_cancelled(self):
        assert not self.done.is_set(), "Triton 24.10 crashes when it is asked after FINAL"
        return self.cancelled

    def wait(self):
        assert self.done.wait(10), f"no FINAL; so far: {self.sent}"
        return self.sent


class MetricFamily:
    """Keeps what /metrics would show: name -> {labels: [kind, values of `set`, or those observed]}."""

    GAUGE, HISTOGRAM = "gauge", "histogram"
    shown: dict[str, dict] = {}

    def __init__(self, name, description, kind):
        self.name, self.kind = name, kind

    def Metric(self, labels, buckets=None):
        assert (buckets is not None) == (self.kind == self.HISTOGRAM), "Triton refuses it otherwise"
        values = self.shown.setdefault(self.name, {})[tuple(sorted(labels.items()))] = [self.kind]
        append = values.append
        return types.SimpleNamespace(**{"set" if self.kind == self.GAUGE else "observe": append})


class Logger:
    log_info = log_warn = log_error = staticmethod(LOG.append)


def as_dict(message):
    """Tensors of a request or a response by name."""
    tensors = message.output_tensors() if isinstance(message, InferenceResponse) else message.inputs()
    return {tensor.name(): tensor.as_numpy() for tensor in tensors}


def strings(*rows):
    """A BYTES tensor, one row for each argument (a string or a list of strings)."""
    listed = [[row] if isinstance(row, str) else row for row in rows]
    return np.array([[item.encode() for item in row] for row in listed], np.object_)


def request(inputs, request_id="", sender=None):
    return InferenceRequest("", [Tensor(k, v) for k, v in inputs.items()], (), request_id, sender)


def arguments(name, decoupled=True, max_batch_size=8, **parameters):
    """The argument of `initialize`."""
    config = {
        "name": name,
        "max_batch_size": max_batch_size,
        "model_transaction_policy": {"decoupled": decoupled},
        "parameters": {key: {"string_value": str(value)} for key, value in parameters.items()},
    }
    return {"model_config": json.dumps(config), "model_version": "1"}


def byte_fallback_tokenizer(folder: Path) -> Path:
    """A tokenizer folder of the SentencePiece kind: words begin with a metaspace, unknown characters become bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁Hello", "▁world", "wor", "ld"]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    vocabulary = {piece: index for index, piece in enumerate([*pieces, *letters])}
    fast = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=False))
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    folder.mkdir(parents=True, exist_ok=True)
    fast.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}}))
    return folder


_module = types.ModuleType("triton_python_backend_utils")
for _item in (Tensor, TritonError, InferenceResponse, InferenceRequest, MetricFamily, Logger):
    setattr(_module, _item.__name__, _item)
_module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
_module.using_decoupled_model_transaction_policy = lambda config: config["model_transaction_policy"]["decoupled"]
sys.modules.setdefault("triton_python_backend_utils", _module)
