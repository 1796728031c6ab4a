"""The client against a real Triton with tiny models: streams, several at once, leaving early, errors, a server gone."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jupytext
import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from servinglab.client import astream, channel_args, explained, gather, inputs, stream
from servinglab.repository import contract
from servinglab.server import TritonServer
from triton_client import TritonClient
from triton_crash import with_a_server

TINY_MODELS = Path(__file__).parents[1] / "models"
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "text" / "05_streaming_grpc.py"
TEXT = "hé€😀\u2028z "


@pytest.fixture
def client(tiny_server):
    with grpcclient.InferenceServerClient(tiny_server.grpc_url) as opened:
        yield opened


def asked(text, count, **more):
    """A request to `counter`, whose own inputs the contract does not know."""
    more = {name: np.array([[value]], bool if name == "final_on_data" else np.int32) for name, value in more.items()}
    return inputs(text_input=text, max_tokens=count, **more)


def text_of(result) -> str:
    return result.as_numpy("text_output").flat[0].decode()


def texts(results) -> str:
    return "".join(map(text_of, results))


def cancelled_at(server, request_id: str, seconds: float = 15.0) -> int:
    """Piece at which `counter` noticed that this request was cancelled."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if server.cancelled_file.exists():
            found = dict(line.split() for line in server.cancelled_file.read_text().splitlines())
            if request_id in found:
                return int(found[request_id])
        time.sleep(0.02)
    raise AssertionError(f"request {request_id} was not cancelled on the server")


@pytest.fixture(scope="module")
def notebook():
    """What notebook 05 arrives at: its cells that define `tensor`, `own_inputs` and `own_stream`."""
    names = {"np": np, "queue": queue, "time": time, "grpcclient": grpcclient, "triton_to_np_dtype": triton_to_np_dtype}
    names["datatypes"] = {t.name: t.datatype for t in contract.tensors("input", "tensorrt_llm_bls")}
    for cell in jupytext.read(NOTEBOOK).cells:
        if cell.cell_type == "code" and any(f"def {name}(" in cell.source for name in ("own_inputs", "own_stream")):
            exec(cell.source.partition("\n\n\nrequest = ")[0], names)
        elif "def tensor(" in cell.source:
            exec("def tensor(" + cell.source.partition("def tensor(")[2].partition("\n\n\n")[0], names)
    return names


# --- streams ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("final_on_data", [False, True])
@pytest.mark.parametrize("whose", ["the library's", "notebook 05's", "asyncio"])
def test_a_stream_gives_every_response_with_data_in_order(client, notebook, whose, final_on_data):
    async def collect(*arguments):
        return [result async for result in astream(*arguments)]

    for _ in range(2):  # the client can be used again
        request = asked(TEXT, 20, final_on_data=final_on_data)
        if whose == "asyncio":
            results = asyncio.run(collect(client, "counter", request))
        else:
            results = list((stream if whose == "the library's" else notebook["own_stream"])(client, "counter", request))
        assert [text_of(result) for result in results] == list((TEXT * 3)[:20])
        seconds = [result.seconds for result in results]
        assert seconds == sorted(seconds) and 0 < seconds[0]


def test_the_inputs_of_notebook_05_are_those_of_the_library(notebook):
    given = {"text_input": TEXT, "max_tokens": 5, "temperature": 0.5, "seed": 3, "stream": True}
    theirs, ours = notebook["own_inputs"](**given), inputs(**given)
    assert [each._get_tensor() for each in theirs] == [each._get_tensor() for each in ours]
    assert [each._get_content() for each in theirs] == [each._get_content() for each in ours]


def test_arrival_times_are_the_arrivals_not_the_reads(client):
    results = stream(client, "counter", asked("a", 4, delay_ms=500))
    first = next(results)
    time.sleep(3.0)  # a slow reader
    seconds = [first.seconds, *(result.seconds for result in results)]
    assert len(seconds) == 4 and seconds[-1] < 2.9 and seconds[-1] - seconds[0] > 0.1


def test_several_requests_at_once_keep_their_answers_apart(client):
    requests = {f"<{i}>": asked(f"<{i}>", 20, delay_ms=20) for i in range(8)}
    began = time.monotonic()
    found = gather(client, "counter", requests)
    assert {key: texts(results) for key, results in found.items()} == {key: (key * 7)[:20] for key in requests}
    assert list(found) == list(requests) and time.monotonic() - began < 2.5  # one after another: 3.2 s


def test_a_model_with_one_response_and_a_batch(client):
    (result,) = stream(client, "echo", inputs(text_input=["a", "b"], temperature=0.5))
    assert result.as_numpy("text_output").tolist() == [[b"a"], [b"b"]]


# --- leaving a stream -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["break", "close", "exception", "dropped", "asyncio", "task"])
def test_leaving_early_cancels_the_request(client, tiny_server, way):
    endless = asked("x", 1000, delay_ms=50)
    results = stream(client, "counter", endless, request_id=way)

    async def leave():
        async with contextlib.aclosing(astream(client, "counter", endless, request_id=way)) as answer:
            async for _ in answer:
                if way == "asyncio":
                    break

    async def cancel():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(leave(), 0.5)

    if way == "break":
        for _ in results:
            break
    elif way == "exception":
        with pytest.raises(ZeroDivisionError), contextlib.closing(results):
            next(results)
            raise ZeroDivisionError
    elif way in ("asyncio", "task"):
        asyncio.run(leave() if way == "asyncio" else cancel())
    else:
        next(results)
        if way == "close":
            results.close()
    del results
    assert cancelled_at(tiny_server, way) < 200
    assert texts(stream(client, "counter", asked("ab", 4))) == "abab"


@pytest.mark.parametrize("way", ["notebook 05's", "notebook 05's, closed"])
def test_leaving_the_learners_own_stream_cancels_within_two_seconds(client, tiny_server, notebook, way, monkeypatch):
    sent = functools.partial(client.async_stream_infer, request_id=way.replace(" ", "-"))  # its own sends no id
    monkeypatch.setattr(client, "async_stream_infer", sent)
    results = notebook["own_stream"](client, "counter", asked("x", 1000, delay_ms=50))
    next(results)
    left = time.monotonic()
    if "closed" in way:
        results.close()
    del results
    assert cancelled_at(tiny_server, way.replace(" ", "-"), seconds=2.0) < 60 and time.monotonic() - left < 2.0


def test_a_finished_stream_is_not_cancelled(client, tiny_server):
    for result in stream(client, "counter", asked("x", 3, final_on_data=True), request_id="whole"):
        last = text_of(result)
    assert last == "x" and "whole" not in (tiny_server.cancelled_file.read_text() if
                                           tiny_server.cancelled_file.exists() else "")  # fmt: skip


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model, request_, timeout, words",
    [
        ("counter", asked("x", 5, fail_at=2), 60, "^counter fails at 2"),
        ("ecko", asked("x", 5), 60, "unknown model: 'ecko'"),
        ("echo", inputs(text_input="x", sead=np.array([[1]])), 60, "unexpected inference input 'sead'"),
        ("echo", inputs(text_input=np.array([b"x"], object)), 60, r"Expected \[-1,1\], got \[1\]"),
        ("counter", asked("x", 20, delay_ms=300), 1, "^No answer from .* within 1 s"),
    ],
)
@pytest.mark.parametrize("way", [stream, gather, astream])
def test_an_error_is_triton_s_own_and_the_next_request_works(client, tiny_server, way, model, request_, timeout, words):
    async def collect():
        return [result async for result in astream(client, model, request_, timeout=timeout)]

    with pytest.raises(InferenceServerException) as caught:
        if way is astream:
            asyncio.run(collect())
        elif way is gather:
            gather(client, model, {1: request_, 2: request_}, timeout=timeout)
        else:
            list(stream(client, model, request_, timeout=timeout))
    sentence, _ = explained(caught.value, tiny_server.grpc_url, timeout)
    assert re.search(words, sentence) and "\n" not in sentence
    assert texts(stream(client, "counter", asked("ab", 4))) == "abab"


@pytest.fixture
def own_server():
    with TritonServer(TINY_MODELS, timeout=60) as server:
        yield server


def test_a_server_that_hangs_meets_the_timeout_and_one_that_is_killed_ends_every_stream(own_server):
    url = own_server.grpc_url
    clients = [grpcclient.InferenceServerClient(url, channel_args=channel_args(url)) for _ in range(2)]
    hung, killed = (stream(each, "counter", asked("x", 500, delay_ms=20), timeout=t)
                    for each, t in zip(clients, (5, 60), strict=True))  # fmt: skip
    next(hung), next(killed)
    process = psutil.Process(own_server.pid)
    process.suspend()
    began = time.monotonic()
    with pytest.raises(InferenceServerException) as late:
        list(hung)
    process.kill()
    with pytest.raises(InferenceServerException) as gone:
        list(killed)
    with pytest.raises(InferenceServerException) as nobody:
        list(stream(clients[0], "counter", asked("x", 5), timeout=20))
    assert explained(late.value, url, 5) == (f"No answer from {url}, or no end of it, within 5 s.", 504)
    assert "closed the connection" in explained(gone.value, url, 60)[0]
    assert explained(nobody.value, url, 20)[1] == 503 and time.monotonic() - began < 30


def test_what_a_stopped_cell_left_open_is_no_obstacle(client, monkeypatch):
    """Its traceback keeps the loop alive; and an interrupt may come while the stream is being opened."""
    left = stream(client, "counter", asked("ab", 500))
    assert text_of(next(left)) == "a"
    assert texts(stream(client, "counter", asked("ab", 4))) == "abab"
    going = stream(client, "counter", asked("ab", 4))
    assert text_of(next(going)) == "a"
    left.close()  # the traceback is forgotten; the stream that runs by now is another one
    assert texts(going) == "bab"

    start = client.start_stream

    def interrupted(*args, **kwargs):
        start(*args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(client, "start_stream", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(stream(client, "counter", asked("ab", 4)))
    assert texts(stream(client, "counter", asked("ab", 4))) == "abab"


def test_the_stream_of_another_thread_is_left_alone(client):
    going = stream(client, "counter", asked("ab", 6))
    assert text_of(next(going)) == "a"
    with ThreadPoolExecutor(1) as pool, pytest.raises(InferenceServerException, match="only a single active stream"):
        pool.submit(lambda: list(stream(client, "counter", asked("ab", 4)))).result()
    assert texts(going) == "babab"


def test_many_requests_with_cancels_lose_nothing():
    """At the pace of a language model: at a thousand responses a second Triton crashes once in some hundred cancels."""
    with_a_server(TINY_MODELS, many_requests_with_cancels)


def many_requests_with_cancels(server, client: TritonClient):
    random = np.random.default_rng(0)
    plans = [(i, int(random.integers(3, 20)), bool(random.random() < 0.15)) for i in range(120)]

    def one(plan) -> bool:
        i, count, leave = plan
        stream = client.stream(f"<{i}>", model="counter", max_tokens=count, delay_ms=20)
        expected = (f"<{i}>" * count)[:count]
        found = ""
        for chunk in stream:
            found += chunk.text
            if leave and len(found) > count // 2:
                stream.cancel()
        return expected.startswith(found) if leave else found == expected

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, plans))
    assert server.ready() and client.infer("x", model="echo").text == "x"
    assert threading.active_count() < 60
