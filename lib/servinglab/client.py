"""The streaming client that notebook 05 writes, for the notebooks after it: plumbing around tritonclient.grpc.

A request is a list of tritonclient's InferInput, an answer its InferResult, an error its InferenceServerException.
"""

import asyncio
import contextlib
import queue
import re
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, InferResult
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, triton_to_np_dtype

from servinglab.errors import FAULT
from servinglab.repository import contract
from servinglab.triton_24_10 import clean

Inputs = Sequence[InferInput]


@cache
def _declared() -> dict[str, tuple[np.dtype, bool]]:
    """Of every input of the five models: numpy dtype, and whether a row of it is a list."""
    every = [t for g in contract.GENERATIONS for m in contract.MODELS for t in contract.tensors("input", m, g)]
    known = [t for t in every if not t.datatype.startswith("$")]
    dtypes = [np.dtype(triton_to_np_dtype(t.datatype.replace("STRING", "BYTES"))) for t in known]
    return {t.name: (dtype, t.dims != (1,)) for t, dtype in zip(known, dtypes, strict=True)}


def inputs(**values: Any) -> list[InferInput]:
    """The tensors of a request to one of the five models, by name: `inputs(text_input="A fox", max_tokens=5)`.

    Datatypes are the contract's. A plain value becomes shape [1, 1]; a list becomes one row [1, n] where a row is a
    list (`stop_words`, `input_ids`), and elsewhere a batch, one row each, for which single values are repeated. Arrays
    and what the contract does not know are sent as they are; None is left out. Raises TypeError or OverflowError for a
    value that the datatype cannot hold.
    """
    arrays = {name: _array(name, value) for name, value in values.items() if value is not None}
    rows = max((len(array) for array in arrays.values()), default=1)
    made = []
    for name, array in arrays.items():
        if len(array) == 1 < rows and not isinstance(values[name], np.ndarray):
            array = np.repeat(array, rows, axis=0)
        tensor = InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        made.append(tensor.set_data_from_numpy(array))
    return made


def _array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    dtype, is_list = _declared().get(name, (None, False))
    given = np.asarray(value)
    if given.dtype.kind in "US":  # numpy's own types for text drop NULs at the end
        encode = np.vectorize(lambda each: each.encode() if isinstance(each, str) else each, otypes=[object])
        given = encode(np.asarray(value, object))
    dtype = given.dtype if dtype is None else dtype
    whole = given.dtype.kind in "iu" and dtype.kind in "iu"
    fits = whole or np.can_cast(given.dtype, dtype, "same_kind")
    if not fits or (dtype.kind == "O") != (given.dtype.kind == "O"):
        raise TypeError(f"{name} is {np_to_triton_dtype(dtype)}, and {value!r} is not.")
    with np.errstate(over="ignore"):
        array = given.astype(dtype)
    lost = dtype.kind == "f" and np.any(np.isinf(array) > np.isinf(given))
    if lost or (whole and not np.array_equal(array, given)):
        raise OverflowError(f"{name} is {np_to_triton_dtype(dtype)}, which cannot hold {value!r}.")
    if array.ndim == 0:
        return array.reshape(1, 1)
    return array.reshape((1, -1) if is_list else (-1, 1)) if array.ndim == 1 else array


# Of each client: the thread that started its last stream, and a mark of that stream.
_streams: weakref.WeakKeyDictionary[InferenceServerClient, tuple[int, object]] = weakref.WeakKeyDictionary()
_NONE = (0, None)


def stream(
    client: InferenceServerClient, model: str, inputs: Inputs, *, timeout: float = 60.0, **options: Any
) -> Iterator[InferResult]:
    """Send one request and yield its results as they arrive; `result.seconds` is the time since it was sent.

    The empty final response is asked for and not yielded. Leaving the loop cancels the request. `options` are those of
    `async_stream_infer`: request_id, outputs, parameters, …  Raises InferenceServerException: the server's error, or
    no end within `timeout` seconds. A client has one stream at a time: a new one ends what the same thread left open.
    """
    yield from _results(client, model, {"": inputs}, timeout, options)


def gather(
    client: InferenceServerClient, model: str, requests: Mapping[Any, Inputs], *, timeout: float = 300.0, **options: Any
) -> dict[Any, list[InferResult]]:
    """Send several requests at once over one stream; the results of each under its key. Otherwise as `stream`."""
    found: dict[Any, list[InferResult]] = {key: [] for key in requests}
    for result in _results(client, model, requests, timeout, options):
        found[result.key].append(result)
    return found


def _results(*request: Any) -> Iterator[InferResult]:
    """Of `_sent` with all of its arguments but the last."""
    arrived: queue.SimpleQueue = queue.SimpleQueue()
    client = request[0]
    if _streams.get(client, _NONE)[0] == threading.get_ident():
        # Of a cell that was stopped: as long as its traceback is kept, so is its loop, and with it the stream.
        client.stop_stream(cancel_requests=True)
    with _sent(*request, arrived.put) as (open_ids, read):
        while open_ids:
            yield from read(*arrived.get())


async def astream(
    client: InferenceServerClient, model: str, inputs: Inputs | Mapping[Any, Inputs], *, timeout: float = 60.0,
    **options: Any,
) -> AsyncIterator[InferResult]:  # fmt: skip
    """`stream` for an event loop: `async for result in astream(…)`. Whoever leaves early closes it (`aclose()`).
    Several requests by their keys go over the one stream, as with `gather`; `result.key` says whose a result is.

    The client is the same one: that of tritonclient.grpc.aio cannot ask for the empty final response, and to close our
    side before it can crash Triton 24.10.
    """
    arrived, loop = asyncio.Queue(), asyncio.get_running_loop()

    def put(what: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(arrived.put_nowait, what)

    requests = inputs if isinstance(inputs, Mapping) else {"": inputs}
    with _sent(client, model, requests, timeout, options, put) as (open_ids, read):
        while open_ids:
            for result in read(*await arrived.get()):
                yield result


@contextlib.contextmanager
def _sent(
    client: InferenceServerClient, model: str, requests: Mapping[Any, Inputs], timeout: float, options: dict[str, Any],
    put: Callable[[Any], None],
) -> Iterator[tuple[dict[str, Any], Callable]]:  # fmt: skip
    """Send the requests, cancel those that are open at the end. Gives the ids of the open ones, and what makes a result
    of what `put` was given: at most one, with its time and its request's key."""
    open_ids, over, ours = {}, not requests, (threading.get_ident(), object())

    def read(when: float, result: Any, error: Any) -> list[InferResult]:
        nonlocal over
        if error is not None:
            over = error.status() is None and len(open_ids) == 1  # said by the server: this request has ended
            raise error
        response = result.get_response()
        result.seconds, result.key = when - began, open_ids[response.id]
        if response.parameters["triton_final_response"].bool_param:
            del open_ids[response.id]
        over = not open_ids
        return [result] if response.outputs else []

    before, _streams[client] = _streams.get(client, _NONE), ours
    try:
        try:
            client.start_stream(lambda result, error: put((time.perf_counter(), result, error)), stream_timeout=timeout)
        except InferenceServerException:  # the client has one, and it is not ours to stop
            _streams[client] = before
            raise
        began = time.perf_counter()
        for number, (key, tensors) in enumerate(requests.items()):
            more = {"request_id": str(number), **options}
            open_ids[more["request_id"]] = key
            try:
                client.async_stream_infer(model, tensors, enable_empty_final_response=True, **more)
            except InferenceServerException as error:  # the stream has broken already: its callback gets the reason
                if "no longer in valid state" not in str(error):
                    raise
        yield open_ids, read
    finally:
        if _streams.get(client) is ours:
            client.stop_stream(cancel_requests=not over)


# --- for the command line and the front end -----------------------------------------------------------------------


def channel_args(url: str) -> list[tuple[str, int]]:
    """Of a tritonclient for `url`: messages of any size, and no proxy of the environment before this machine."""
    size = [(f"grpc.max_{way}_message_length", 2**31 - 1) for way in ("send", "receive")]
    return size + [("grpc.enable_http_proxy", 0)] * bool(re.match(r"127\.|localhost|\[::1\]", url))


def explained(error: InferenceServerException, url: str, timeout: float) -> tuple[str, int]:
    """One sentence for a request to `url` that failed, and the HTTP status that says the same.

    504: its `timeout` passed; 503: the server or the model is gone; 500: the model failed; 400: its own fault.
    """
    code, said = str(error.status()).removeprefix("StatusCode."), clean(error.message() or "")
    if code == "DEADLINE_EXCEEDED":
        return f"No answer from {url}, or no end of it, within {timeout:g} s.", 504
    if code == "UNAVAILABLE" and re.search("(?i)failed to connect|resol", said):
        return f"No server answers at {url}: is it running, and is this its gRPC port, without TLS?", 503
    if code == "UNAVAILABLE" and re.search("Socket closed|recvmsg|GOAWAY", said) or "Stream removed" in said:
        return f"The server at {url} closed the connection: has it stopped? Its log says why.", 503
    if code == "UNIMPLEMENTED" and not said:
        return f"{url} does not speak the KServe v2 protocol: is this Triton's gRPC port?", 400
    said = said or f"{url} answered with {code}"
    gone = re.search("unknown model|is not found|no available versions|is not ready|Python process died", said)
    return said if said.endswith((".", "?", "!")) else f"{said}.", 503 if gone else 500 if FAULT in said else 400
