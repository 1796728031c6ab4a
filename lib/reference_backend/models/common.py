"""What all models share: config.pbtxt parameters, request tensors, errors a client can read, sending."""

import contextlib
import shutil
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from reference_backend import FAULT, BackendError, table

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
TRUE = {"true", "yes", "1", "t", "y"}
FALSE = {"false", "no", "0", "f", "n"}
# A request's parameter with which a model sends an error as data. Triton 24.10 forgets to which stream of a BLS model
# an error response belongs (python_backend, infer_response.cc, mended in 25.04): another stream may get it, or hang.
ERRORS_AS_DATA = "errors_as_data"
# A request's parameter: how many of its last ids an earlier request generated, of an answer that is made in rounds.
GENERATED = "generated_tokens"
MAX_SEQUENCES = 1024  # of one request, over all rows: a number that is no mistake
MAX_IDS = 2**15  # of a row of words; what `preprocessing` lets through has fewer
LARGE_BYTES = 2**16  # no answer without logits is as large
SPARE_BYTES = 2**24
Tensors = dict[str, np.ndarray]  # by name


class InputError(BackendError):
    """The client's request cannot be served as it is; becomes Triton's INVALID_ARG."""


class QueueFull(BackendError):
    """As many requests wait as may; the sentence and the code are TensorRT-LLM's."""

    WORDS = "has been reached, please try again later"

    def __init__(self, size: int) -> None:
        super().__init__(f"Maximum queue size of {size} {self.WORDS}")
        self.code = pb_utils.TritonError.INTERNAL


def parameter(config: dict, name: str, default: str = "") -> str:
    """Value of a config.pbtxt parameter; `default` when it is absent, empty or still an unfilled `${…}`."""
    value = config.get("parameters", {}).get(name, {}).get("string_value", "")
    return default if value == "" or value.startswith("${") else value


def flag(config: dict, name: str, default: bool) -> bool:
    """Boolean parameter, spelled as NVIDIA's models accept it (true/yes/1/t/y in any case)."""
    value = parameter(config, name).lower()
    if value and value not in TRUE | FALSE:
        pb_utils.Logger.log_warn(f"{config['name']}: parameter {name} is '{value}', not a boolean; using {default}.")
    return value in TRUE if value in TRUE | FALSE else default


def number(config: dict, name: str, default: Any, kind: type = float) -> Any:
    """Parameter that is a number, of the given kind: int or float."""
    value = parameter(config, name)
    try:
        return kind(value) if value else default
    except ValueError:
        what = "an integer" if kind is int else "a number"
        raise InputError(f"{config['name']}: parameter {name} must be {what}, not '{value}'.") from None


def inputs_of(request) -> Tensors:
    """All input tensors of a request by name, copied: the shared memory below them goes when `execute` returns."""
    return {tensor.name(): np.array(tensor.as_numpy()) for tensor in request.inputs()}


def require(inputs: Tensors, *names: str) -> None:
    """Raise InputError for a missing one: Triton only counts inputs, so optional ones may hide that one is missing."""
    for name in names:
        if name not in inputs:
            raise InputError(f"{name} is missing; this model cannot do without it.")


def text_only(inputs: Tensors, model: str, *, pictures: bool = False) -> None:
    """Raise InputError for a video, unless `pictures` are served for a picture, and for a table of prompts, of which 0
    says that there is none."""
    for name in table("triton")["not_text" if not pictures else "not_pictures"]:
        if name in inputs and (name != "PROMPT_TABLE_EXTRA_ID" or inputs[name].any()):
            raise InputError(f"{name} was given, but model '{model}' serves text only; leave the input out.")


def scalars(inputs: Tensors, name: str, rows: int, default: Any = None) -> list:
    """The value of each row; raises InputError when there is another number of them."""
    if name not in inputs:
        return [default] * rows
    if inputs[name].size != rows:
        raise InputError(f"Input {name} must hold one value for each of the {rows} rows, not {inputs[name].size}.")
    return inputs[name].reshape(-1).tolist()


def sequences_of(inputs: Tensors, rows: int) -> list[int]:
    """How many sequences answer each row: num_return_sequences, or one beam search. Raises InputError for too many."""
    wanted = scalars(inputs, "num_return_sequences", rows, 1)
    if min(wanted, default=1) < 1 or sum(wanted) > MAX_SEQUENCES:
        raise InputError(
            f"num_return_sequences is {wanted[0] if len(wanted) == 1 else wanted}; it must be from 1 to "
            f"{MAX_SEQUENCES}, over all rows together."
        )
    widths = scalars(inputs, "beam_width", rows, 1)
    return [1 if width > 1 else count for count, width in zip(wanted, widths, strict=True)]


def any_true(inputs: Tensors, name: str) -> bool:
    """Whether the boolean input is given and true in any row."""
    return name in inputs and bool(inputs[name].any())


def check_single(decoupled: bool, model: str, inputs: Tensors, rows: int, stream: str) -> None:
    """Raise InputError for what only a decoupled model can answer; `stream` is the input that asks for chunks."""
    if not decoupled and any_true(inputs, stream):
        raise InputError(f"Streaming is only supported if model is deployed using decoupled mode; '{model}' is not.")
    if not decoupled and rows > 1:
        raise InputError(
            f"A request with batch size > 1 requires the decoupled transaction policy; this one has {rows} rows, and "
            f"model '{model}' is not decoupled."
        )


def texts(array: np.ndarray, name: str) -> list[str]:
    """The strings of a BYTES tensor, flattened."""
    try:
        return [item.decode("utf-8") if isinstance(item, bytes) else str(item) for item in array.reshape(-1)]
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not valid UTF-8: {error.reason} at byte {error.start}.") from None


def triton_error(error: Exception, model: str):
    """The error as Triton sends it: a client's mistake keeps its sentence, a fault of ours goes to the log in full."""
    if isinstance(error, BackendError):
        return pb_utils.TritonError(str(error), getattr(error, "code", pb_utils.TritonError.INVALID_ARG))
    pb_utils.Logger.log_error("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    return pb_utils.TritonError(f"{model} {FAULT} {type(error).__name__}: {error} (the server's log has the details).")


def respond(requests, answer: Callable[[Tensors], Tensors], model: str) -> list:
    """One response for each request, with what `answer` makes of its tensors; one bad request must not fail the others
    of its batch."""
    responses = []
    for request in requests:
        try:
            tensors = [pb_utils.Tensor(name, array) for name, array in answer(inputs_of(request)).items()]
            responses.append(pb_utils.InferenceResponse(tensors))
        except Exception as error:
            responses.append(pb_utils.InferenceResponse([], error=triton_error(error, model)))
    return responses


def send(sender, tensors: list, final: bool = False) -> None:
    """One response. The argument holds the tensors meanwhile: Triton drops those that nobody asked for without holding
    the interpreter's lock, so it must not be the last to hold them."""
    sender.send(pb_utils.InferenceResponse(tensors), flags=FINAL if final else 0)


def send_last(sender, tensors: list) -> None:
    """The last response; FINAL goes with it, or behind it where shared memory is scarce.

    Triton 24.10 closes the sender at FINAL before it copies the tensors (python_backend, response_sender.cc). When they
    turn out not to fit, the request could get neither FINAL nor an error any more.
    """
    size = sum(tensor.as_numpy().nbytes for tensor in tensors)
    # With room to spare, for other processes take from it too.
    scarce = size > LARGE_BYTES and 4 * size + SPARE_BYTES > shutil.disk_usage("/dev/shm").free
    send(sender, tensors, final=not scarce)
    if scarce:
        sender.send(flags=FINAL)


def send_error(sender, error: Exception, model: str) -> None:
    """:func:`triton_error` as the last response; a fault that prevents even that goes to the log."""
    try:
        sender.send(pb_utils.InferenceResponse([], error=triton_error(error, model)), flags=FINAL)
    except Exception as unsent:  # one that is not decoupled may try one response only; it can still end
        pb_utils.Logger.log_error(f"{model}: an error could not be sent: {unsent}")
        with contextlib.suppress(Exception):
            sender.send(flags=FINAL)


def filled(rows: list[np.ndarray], value: float) -> np.ndarray:
    """Arrays [n, …] of different n as one [rows, longest, …]; `value` fills the ends."""
    longest = max(rows, key=len)
    found = np.full((len(rows), *longest.shape), value, longest.dtype)
    for target, row in zip(found, rows, strict=True):
        target[: len(row)] = row
    return found


def encode_words(rows: list[list[list[int]]]) -> np.ndarray:
    """Words of each batch row (lists of token ids; empty ones are skipped) as INT32 [batch, 2, L], L >= 1."""
    words = [[word for word in row if word] for row in rows]
    length = max([1] + [sum(map(len, row)) for row in words])
    encoded = np.zeros((len(words), 2, length), np.int32)
    encoded[:, 1] = -1
    for target, row in zip(encoded, words, strict=True):
        ids = [token for word in row for token in word]
        target[0, : len(ids)] = ids
        target[1, : len(row)] = np.cumsum([len(word) for word in row])
    return encoded


def decode_words(encoded: np.ndarray, name: str) -> list[list[int]]:
    """One row's `[2, L]` back to lists of token ids; raises :class:`InputError` naming the tensor."""
    if encoded.ndim != 2 or encoded.shape[0] != 2:
        raise InputError(f"{name} must have shape [batch, 2, L] (ids above offsets), not {list(encoded.shape)} a row.")
    if encoded.shape[1] > MAX_IDS:
        raise InputError(f"{name} holds {encoded.shape[1]:,} ids a row, and at most {MAX_IDS:,} are read; give fewer.")
    ids, ends = encoded.tolist()
    while ends and ends[-1] == -1:  # they fill the row
        ends.pop()
    spans = list(zip([0, *ends], ends))  # noqa: B905 (the last end starts nothing)
    if any(end <= start for start, end in spans) or (ends and ends[-1] > len(ids)):
        raise InputError(
            f"{name}: end offsets must grow and stay within the {len(ids)} ids of the first row, and -1 may only "
            f"follow them: {ends}."
        )
    return [ids[start:end] for start, end in spans]
