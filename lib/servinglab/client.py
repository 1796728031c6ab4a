"""The streaming client that notebook 05 writes, for the notebooks after it: plumbing around tritonclient.grpc.

A request is a list of tritonclient's InferInput, an answer its InferResult, an error its InferenceServerException.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, triton_to_np_dtype

from servinglab.errors import FAULT
from servinglab.repository import contract
from servinglab.triton_24_10 import clean


@cache
def _declared() -> dict[str, tuple[np.dtype, bool]]:
    """Of every input of the five models: numpy dtype, and whether a row of it is a list."""
    tensors = [t for g in contract.GENERATIONS for m in contract.MODELS for t in contract.inputs(m, g)]
    known = {t.name: t for t in tensors if not t.datatype.startswith("$")}
    return {
        name: (np.dtype(triton_to_np_dtype(t.datatype.replace("STRING", "BYTES"))), t.dims != (1,))
        for name, t in known.items()
    }


def inputs(**values: Any) -> list[grpcclient.InferInput]:
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
        tensor = grpcclient.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        made.append(tensor.set_data_from_numpy(array))
    return made


def _array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    dtype, is_list = _declared().get(name, (None, False))
    given = np.asarray(value)
    if given.dtype.kind in "US":
        given = np.asarray(value, object)  # numpy's own type for text drops NULs at the end
        texts = [each.encode() if isinstance(each, str) else each for each in given.flat]
        given = np.array(texts, object).reshape(given.shape)
    dtype = given.dtype if dtype is None else dtype
    whole = given.dtype.kind in "iu" and dtype.kind in "iu"
    text = {given.dtype.kind, dtype.kind} & {"O"}
    if (text and given.dtype.kind != dtype.kind) or not (whole or np.can_cast(given.dtype, dtype, "same_kind")):
        raise TypeError(f"{name} is {np_to_triton_dtype(dtype)}, and {value!r} is not.")
    with np.errstate(over="ignore"):
        array = given.astype(dtype)
    lost = dtype.kind == "f" and np.any(np.isinf(array) > np.isinf(given))
    if lost or (whole and not np.array_equal(array, given)):
        raise OverflowError(f"{name} is {np_to_triton_dtype(dtype)}, which cannot hold {value!r}.")
    if array.ndim == 0:
        return array.reshape(1, 1)
    return array.reshape((1, -1) if is_list else (-1, 1)) if array.ndim == 1 else array


def stream(
    client: grpcclient.InferenceServerClient, model: str, inputs: Sequence[grpcclient.InferInput], *,
    timeout: float = 60.0, **options: Any,
) -> Iterator[grpcclient.InferResult]:  # fmt: skip
    """Send one request and yield its results as they arrive; `result.seconds` is the time since it was sent.

    The empty final response is asked for and not yielded. Leaving the loop cancels the request. `options` are those of
    `async_stream_infer`: request_id, outputs, parameters, …  Raises InferenceServerException: the server's error, or
    no end within `timeout` seconds. A client has one stream at a time.
    """
    yield from (result for _, result in _results(client, model, {"": inputs}, timeout, options))


def gather(
    client: grpcclient.InferenceServerClient, model: str, requests: Mapping[Any, Sequence[grpcclient.InferInput]], *,
    timeout: float = 300.0, **options: Any,
) -> dict[Any, list[grpcclient.InferResult]]:  # fmt: skip
    """Send several requests at once over one stream; the results of each under its key. Otherwise as `stream`."""
    found: dict[Any, list[grpcclient.InferResult]] = {key: [] for key in requests}
    for key, result in _results(client, model, requests, timeout, options):
        found[key].append(result)
    return found


def _results(
    client: grpcclient.InferenceServerClient, model: str, requests: Mapping[Any, Sequence[grpcclient.InferInput]],
    timeout: float, options: dict[str, Any],
) -> Iterator[tuple[Any, grpcclient.InferResult]]:  # fmt: skip
    arrived: queue.SimpleQueue = queue.SimpleQueue()
    client.start_stream(lambda result, error: arrived.put((time.perf_counter(), result, error)), stream_timeout=timeout)
    open_ids, sent = {}, time.perf_counter()
    done = False
    try:
        for number, (key, tensors) in enumerate(requests.items()):
            more = {"request_id": str(number), **options}
            open_ids[more["request_id"]] = key
            _send(client, model, tensors, more)
        while open_ids:
            when, result, error = arrived.get()
            if error is not None:
                done = error.status() is None and len(open_ids) == 1  # said by the server: this request has ended
                raise error
            response = result.get_response()
            key = open_ids[response.id]
            if response.parameters["triton_final_response"].bool_param:
                del open_ids[response.id]
            if response.outputs:
                result.seconds = when - sent
                done = not open_ids
                yield key, result
        done = True
    finally:
        client.stop_stream(cancel_requests=not done)


def _send(
    client: grpcclient.InferenceServerClient, model: str, inputs: Sequence[grpcclient.InferInput], options: Any
) -> None:
    try:
        client.async_stream_infer(model, inputs, enable_empty_final_response=True, **options)
    except InferenceServerException as error:  # the stream has broken already: its callback gets the reason
        if "no longer in valid state" not in str(error):
            raise


async def astream(
    client: grpcclient.InferenceServerClient, model: str, inputs: Sequence[grpcclient.InferInput], *,
    timeout: float = 60.0, **options: Any,
) -> AsyncIterator[grpcclient.InferResult]:  # fmt: skip
    """`stream` for an event loop: `async for result in astream(…)`. Whoever leaves early closes it (`aclose()`).

    The client is the same one: that of tritonclient.grpc.aio cannot ask for the empty final response, and to close our
    side before it can crash Triton 24.10.
    """
    arrived, loop, done = asyncio.Queue(), asyncio.get_running_loop(), False

    def put(result: Any, error: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(arrived.put_nowait, (time.perf_counter(), result, error))

    client.start_stream(put, stream_timeout=timeout)
    try:
        sent = time.perf_counter()
        _send(client, model, inputs, options)
        while not done:
            when, result, error = await arrived.get()
            if error is not None:
                done = error.status() is None
                raise error
            response = result.get_response()
            done = response.parameters["triton_final_response"].bool_param
            if response.outputs:
                result.seconds = when - sent
                yield result
    finally:
        client.stop_stream(cancel_requests=not done)


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
        return f"No server answers at {url}: is it running, and is this its gRPC port?", 503
    if code == "UNAVAILABLE" and re.search("Socket closed|recvmsg|GOAWAY", said) or "Stream removed" in said:
        return f"The server at {url} closed the connection: has it stopped? Its log says why.", 503
    if code == "UNIMPLEMENTED" and not said:
        return f"{url} does not speak the KServe v2 protocol: is this Triton's gRPC port?", 400
    said = said or f"{url} answered with {code}"
    gone = re.search("unknown model|is not found|no available versions|is not ready|Python process died", said)
    return said if said.endswith((".", "?", "!")) else f"{said}.", 503 if gone else 500 if FAULT in said else 400
