"""The calls that `tensorrt_llm_bls` makes to the other three models, and how the tensors are renamed on the way."""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import triton_python_backend_utils as pb_utils

from reference_backend import FAULT, BackendError, table
from reference_backend.executor.params import TENSORS
from reference_backend.executor.request import METRICS
from reference_backend.models.common import ERRORS_AS_DATA, GENERATED, QueueFull, Tensors, filled

IDS = ("output_ids", "sequence_length")  # what each response of an LLM must have
TO_PREPROCESSING = table("triton")["to_preprocessing"]
# Other client inputs and their names in `tensorrt_llm`, of a setting that of its first tensor; the rest keep theirs.
RENAMED = {"stream": "streaming"} | {setting: tensor for tensor, setting in reversed(TENSORS.items())}
# Outputs of `tensorrt_llm` that the client gets as they are, when it asked for them.
ON_REQUEST = table("triton")["on_request"] | {"return_perf_metrics": METRICS}
# Triton 24.10 blocks one of the model's 32 service threads from each call until its first response; those left over
# carry the responses and the decoding of the streams that already run.
MAX_WAITING_FOR_FIRST = 24
MAX_WAITING_FOR_DRAFT = 12  # of those: what a draft model that dies takes with it must leave places for the LLM
# When a stream of responses has ended, a thread of Triton's stub lets go of it without holding the interpreter's lock.
# If ours was not the longer grip, that thread would free Python objects, and soon the process dies (seen in 24.10).
KEEP_ENDED_SECONDS = 10.0
DIED = "is not healthy"  # Triton's word for a model whose Python process has died
_ONE = np.ones((1, 1), np.int32)
_STOP = {"input_ids": _ONE, "input_lengths": _ONE, "request_output_len": _ONE, "stop": np.ones((1, 1), bool)}


class InnerModelError(BackendError):
    """An inner model answered with an error; its sentence is passed on.

    Triton 24.10 loses the error's code on the way, so what is not a fault of the inner model counts as the client's.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        if FAULT in message or QueueFull.WORDS in message:
            self.code = pb_utils.TritonError.INTERNAL
        elif "is not ready" in message or DIED in message:
            self.code = pb_utils.TritonError.UNAVAILABLE


class InnerModels:
    """The three models by name, the draft model and the encoder of pictures if there are any. Every call raises
    :class:`InnerModelError` with the inner model's message."""

    def __init__(self, preprocessing: str, llm: str, postprocessing: str, draft: str = "", encoder: str = "") -> None:
        self.preprocessing, self.llm, self.postprocessing, self.draft = preprocessing, llm, postprocessing, draft
        self.encoder = encoder
        self._may_wait = threading.BoundedSemaphore(MAX_WAITING_FOR_FIRST)
        self._may_draft = threading.BoundedSemaphore(MAX_WAITING_FOR_DRAFT)
        self._ended: deque = deque()  # (when, stream of responses), oldest first
        self._ending = threading.Lock()

    def preprocess(self, inputs: Tensors) -> Tensors:
        """Client inputs -> the inputs of `tensorrt_llm` that come from text, and prepared pictures."""
        renamed, causes = table("triton")["from_preprocessing"], table("triton")["worth_asking"]
        wanted = [name for name in renamed if name not in causes or inputs.keys() & causes[name]]
        given = {TO_PREPROCESSING[name]: array for name, array in inputs.items() if name in TO_PREPROCESSING}
        found = _outputs(_request(self.preprocessing, given, wanted).exec())
        _check(self.preprocessing, found, "INPUT_ID", "REQUEST_INPUT_LEN", "REQUEST_OUTPUT_LEN")
        return {renamed[name]: array for name, array in found.items()}

    def encode(self, inputs: Tensors) -> Tensors:
        """Client inputs and prepared pictures -> the inputs of `tensorrt_llm` that come from pictures, none without."""
        given = {name: inputs[old] for old, name in table("triton")["to_encoder"].items() if old in inputs}
        if not (self.encoder and given):
            return {}
        renamed = table("triton")["from_encoder"]
        with self._may_wait:  # an encoder computes for long
            found = _outputs(_request(self.encoder, given, [*renamed]).exec())
        _check(self.encoder, found, "OUT_PROMPT_EMBEDDING_TABLE")
        return {renamed[name]: array for name, array in found.items()}

    def generate(
        self, inputs: Tensors, request_id: str, outputs: list[str], model: str = "", generated: int = 0
    ) -> Iterator[Tensors]:
        """The LLM's responses as they arrive, decoupled or not; arrays are valid until the next one is taken.

        model: the draft model, if not the LLM. generated: how many of the last ids are an answer that this call goes on
        with.
        """
        name, found = model or self.llm, {}
        with self._may_draft if model else contextlib.nullcontext(), self._may_wait:
            responses = _request(name, inputs, outputs, request_id, generated).exec(decoupled=True)
        try:
            for response in responses:
                if more := _outputs(response):  # the one that says that the stream has ended may have none
                    found = more
                    _check(name, found, *IDS)
                    yield found
            _check(name, found, *IDS)
        except GeneratorExit:  # our reader failed; the stream must run out, or letting go of it would wait for the LLM
            with contextlib.suppress(InnerModelError):
                self.stop(request_id)
            for _ in responses:
                pass
            raise
        finally:
            self._keep(responses)

    def decode(self, sequences: list[list[int]]) -> list[str]:
        """Text of each id list: one call, the lists go as the beams of one row."""
        tokens = filled([np.array(ids, np.int32) for ids in sequences], 0)[None]
        lengths = np.array([[len(ids) for ids in sequences]], np.int32)
        given = {"TOKENS_BATCH": tokens, "SEQUENCE_LENGTH": lengths}
        found = _outputs(_request(self.postprocessing, given, ["OUTPUT"]).exec())
        _check(self.postprocessing, found, "OUTPUT")
        return [text.decode("utf-8") for text in found["OUTPUT"].reshape(-1)]

    def stop(self, request_id: str) -> None:
        """Ask the LLM, and the draft model if there is one, to cancel the running request with this id; an ended one is
        no error."""
        self._drain(_STOP, request_id, self.llm)
        if self.draft:
            with contextlib.suppress(Exception):  # it may be unloaded: then nothing of it runs
                self._drain(_STOP, request_id, self.draft)

    def check_alive(self, model: str) -> None:
        """Raise InnerModelError when the process of a `tensorrt_llm` has died: Triton 24.10 says so to a new call, and
        never ends those that were being served. A process that is there is not asked: one that is stopped for a moment
        would be taken for dead, and Triton dies of it when it goes on."""
        if _has_process(model):
            return
        try:
            self._drain(_STOP, "", model)
        except InnerModelError as error:  # any other one is an answer, for example that a stop needs an id
            if DIED in str(error):
                raise

    def _drain(self, inputs: Tensors, request_id: str, model: str) -> None:
        responses = _request(model, inputs, [], request_id).exec(decoupled=True)  # there is a first one when it returns
        try:
            for response in responses:
                _outputs(response)
        finally:
            self._keep(responses)

    def _keep(self, responses) -> None:
        with self._ending:
            now, old = time.monotonic(), []
            self._ended.append((now, responses))
            while self._ended[0][0] < now - KEEP_ENDED_SECONDS:
                old.append(self._ended.popleft())
        old.clear()  # outside the lock: it frees all that the stream brought


def _has_process(model: str) -> bool:
    """Whether a process of this Python model lives. Triton is the parent of all of them, and of ours. (A zombie has no
    command line.)"""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(os.getppid()).children():
            with contextlib.suppress(psutil.Error):
                if any(Path(p).parent.parent.name == model for p in child.cmdline() if p.endswith("/model.py")):
                    return True
    return False


def llm_inputs(inputs: Tensors, preprocessed: Tensors) -> Tensors:
    """Everything that `tensorrt_llm` gets for a client's request."""
    rows = len(inputs["text_input"])
    own = {*TO_PREPROCESSING, *table("triton")["to_encoder"], "num_draft_tokens", "use_draft_logits"}
    passed = {RENAMED.get(name, name): array for name, array in inputs.items() if name not in own}
    # A scalar that our config reshapes arrives as [rows]; on the wire it is [rows, 1].
    return preprocessed | {name: array.reshape(rows, 1) if array.ndim == 1 else array for name, array in passed.items()}


def llm_outputs(inputs: Tensors) -> list[str]:
    """The outputs to ask `tensorrt_llm` for; more would only be copied through three processes."""
    names = list(IDS)
    if len(inputs["text_input"]) > 1:
        names.append("batch_index")
    if "num_return_sequences" in inputs:
        names.append("sequence_index")
    return names + [name for cause, more in ON_REQUEST.items() if inputs.get(cause, np.zeros(0)).any() for name in more]


def _request(model: str, inputs: Tensors, outputs: list[str], request_id: str = "", generated: int = 0):
    return pb_utils.InferenceRequest(
        model_name=model,
        inputs=[pb_utils.Tensor(name, array) for name, array in inputs.items()],
        requested_output_names=outputs,
        request_id=request_id,
        parameters={ERRORS_AS_DATA: True} | ({GENERATED: generated} if generated else {}),
    )


def _check(model: str, found: Tensors, *needed: str) -> None:
    for name in needed:
        if name not in found:
            raise InnerModelError(f"Model '{model}' {FAULT} it answered without {name}, which every answer must have.")


def _outputs(response) -> Tensors:
    if response.has_error():
        raise InnerModelError(response.error().message())
    outputs = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
    if (outputs.get("sequence_length", np.zeros(1)) < 0).any():  # see ERRORS_AS_DATA
        raise InnerModelError(bytes(outputs["output_ids"].astype(np.uint8).reshape(-1)).decode())
    return outputs
