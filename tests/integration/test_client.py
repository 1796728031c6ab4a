"""The client against a real Triton with tiny models: streams, single answers, cancellation, deadlines, errors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
from nbclient import NotebookClient

from servinglab.old_client.triton import ClientError, ClientWarning, TritonClient
from servinglab.server import TritonServer
from triton_crash import with_a_server

TINY_MODELS = Path(__file__).parents[1] / "models"
TEXT = "hé€😀\u2028z "


@pytest.fixture(scope="module")
def tiny(tiny_server):
    with TritonClient(tiny_server.grpc_url, tiny_server.http_url) as client:
        yield client


def texts(chunks) -> str:
    return "".join(chunk.text for chunk in chunks)


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


# --- streams ------------------------------------------------------------------------------------------------------


def tritonclient_stream(url: str, text: str, count: int) -> list[str]:
    """The same request by NVIDIA's own client, as the reference."""
    arrived: queue.Queue = queue.Queue()
    inputs = [
        grpcclient.InferInput("text_input", [1, 1], "BYTES"),
        grpcclient.InferInput("max_tokens", [1, 1], "INT32"),
    ]
    inputs[0].set_data_from_numpy(np.array([[text.encode()]], object))
    inputs[1].set_data_from_numpy(np.array([[count]], np.int32))
    client = grpcclient.InferenceServerClient(url)
    client.start_stream(lambda result, error: arrived.put((result, error)))
    client.async_stream_infer("counter", inputs, enable_empty_final_response=True)
    found = []
    while True:
        result, error = arrived.get(timeout=10)
        assert error is None
        if result.as_numpy("text_output") is not None:
            found.append(result.as_numpy("text_output")[0, 0].decode())
        if result.get_response().parameters["triton_final_response"].bool_param:
            break
    client.stop_stream()
    client.close()
    return found


@pytest.mark.parametrize("final_on_data", [False, True])
def test_a_stream_gives_every_response_in_order_and_ends_with_the_final_flag(tiny, tiny_server, final_on_data):
    for _ in range(2):  # running a cell twice
        chunks = list(tiny.stream(TEXT, model="counter", max_tokens=20, request_id="r1", final_on_data=final_on_data))
        assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert [chunk.index for chunk in chunks] == list(range(20 + (not final_on_data)))
        assert {chunk.request_id for chunk in chunks} == {"r1"}
        assert bool(chunks[-1].outputs) is final_on_data
        pieces = [chunk.text for chunk in chunks if chunk.outputs]
        assert pieces == tritonclient_stream(tiny_server.grpc_url, TEXT, 20) == list((TEXT * 3)[:20])


def test_arrival_times_are_the_arrivals_not_the_reads(tiny):
    stream = tiny.stream("a", model="counter", max_tokens=4, delay_ms=500)
    time.sleep(5.0)  # a slow reader
    seconds = [chunk.seconds for chunk in stream if chunk.outputs]
    assert len(seconds) == 4 and seconds == sorted(seconds)
    assert seconds[-1] < 5 and seconds[-1] - seconds[0] > 0.1, "all were read at once, after 5 s"


def test_a_thousand_responses(tiny):
    assert texts(tiny.stream("0123456789", model="counter", max_tokens=1000)) == "0123456789" * 100


def test_the_streaming_client_works_for_a_model_with_one_response(tiny):
    (chunk,) = tiny.stream("one", model="echo", stop_words=["a", "b"], seed=2**64 - 1)
    assert (chunk.text, chunk.final) == ("one", True)
    seen = json.loads(chunk.outputs["seen"][0, 0])
    assert seen["stop_words"] == ["object", [1, 2], ["a", "b"]] and seen["seed"] == ["uint64", [1, 1], [2**64 - 1]]
    assert seen["stream"] == ["bool", [1, 1], [True]] and seen["max_tokens"] == ["int32", [1, 1], [64]]


def test_streams_at_once_in_threads(tiny):
    def one(i: int) -> str:
        return texts(tiny.stream(f"<{i}>", model="counter", max_tokens=60, delay_ms=1))

    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(one, range(24)))
    assert found == [(f"<{i}>" * 60)[:60] for i in range(24)]


def test_streams_open_before_any_is_read(tiny):
    streams = [tiny.stream(f"{i}", model="counter", max_tokens=10, delay_ms=100) for i in range(5)]
    began = time.monotonic()
    assert [texts(stream) for stream in streams] == [f"{i}" * 10 for i in range(5)]
    assert time.monotonic() - began < 3.5  # one after another they would take five seconds


def test_batch_of_prompts(tiny):
    (chunk,) = tiny.stream(["a", "b"], model="echo", temperature=0.5)
    assert chunk.outputs["text_output"].tolist() == [[b"a"], [b"b"]]
    assert json.loads(chunk.outputs["seen"][0, 0])["temperature"] == ["float32", [2, 1], [0.5, 0.5]]


# --- leaving a stream -----------------------------------------------------------------------------------------------


def endless(client, **more):
    return client.stream("x", model="counter", max_tokens=1000, delay_ms=50, **more)


def test_cancel_ends_the_iterator_and_the_request(tiny, tiny_server):
    stream = endless(tiny)
    next(stream), next(stream)
    stream.cancel()
    stream.cancel()
    assert list(stream) == [] and stream.cancelled
    assert 2 <= cancelled_at(tiny_server, stream.request_id) < 100


def test_cancel_from_another_thread_wakes_the_reader(tiny, tiny_server):
    stream = tiny.stream("x", model="counter", max_tokens=3, delay_ms=4000)
    threading.Timer(0.3, stream.cancel).start()
    began = time.monotonic()
    assert list(stream) == [] and time.monotonic() - began < 3.5


@pytest.mark.parametrize("way", ["break", "with", "exception", "dropped"])
def test_leaving_the_loop_cancels_the_request(tiny, tiny_server, way):
    stream = endless(tiny)
    request_id = stream.request_id
    if way == "dropped":
        next(stream)
    elif way == "break":
        for _ in stream:
            break
    elif way == "with":
        with stream:
            next(stream)
    elif way == "exception":
        with pytest.raises(ZeroDivisionError), stream:
            for _ in stream:
                raise ZeroDivisionError
    del stream
    gc.collect()
    assert cancelled_at(tiny_server, request_id) < 100


def test_a_finished_stream_is_not_cancelled(tiny, tiny_server):
    stream = tiny.stream("x", model="counter", max_tokens=3)
    assert texts(stream) == "xxx"
    stream.cancel()
    assert not stream.cancelled and list(stream) == []


def run_script(server, body: str, **more) -> subprocess.Popen:
    head = f"""
        import asyncio, os, signal, sys, time
        from servinglab.old_client.triton import *
        client = TritonClient({server.grpc_url!r}, {server.http_url!r})
    """
    script = textwrap.dedent(head) + textwrap.dedent(body)
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", script], stdout=pipe, stderr=pipe, text=True, **more)


def test_ctrl_c_while_waiting_for_one_stream_cancels_all(tiny_server):
    process = run_script(tiny_server, """
        later = client.stream("x", model="counter", max_tokens=1000, delay_ms=20, request_id="later")
        try:
            for chunk in client.stream("x", model="counter", max_tokens=1000, delay_ms=900, request_id="ctrl-c"):
                print(chunk.text, flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            time.sleep(60)
    """)  # fmt: skip
    process.stdout.readline()
    time.sleep(0.3)  # it waits for the next piece again, and is no longer printing
    process.send_signal(signal.SIGINT)
    assert "interrupted\n" in iter(process.stdout.readline, "")
    assert cancelled_at(tiny_server, "ctrl-c") < 500 and cancelled_at(tiny_server, "later") < 900
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    "body",
    [
        "stream = client.stream('x', model='counter', max_tokens=5000, delay_ms=20); next(stream)",
        "stream = client.generate_stream('x', model='counter', max_tokens=5000, delay_ms=20); next(stream)",
        """
        async def main():
            async for chunk in client.astream('x', model='counter', max_tokens=5000, delay_ms=20):
                return
        asyncio.run(main())
        """,
    ],
)
def test_a_script_with_a_forgotten_stream_ends(tiny_server, body):
    process = run_script(tiny_server, textwrap.dedent(body))
    assert process.wait(60) == 0
    assert process.stderr.read() == ""


def test_a_proxy_of_the_environment_is_not_asked_about_this_machine(tiny_server):
    proxies = dict.fromkeys(["http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"], "http://127.0.0.1:9")
    process = run_script(tiny_server, """
        print(client.infer("a", model="echo").text + client.generate("b", model="echo")["text_output"])
        async def main():
            async for chunk in client.astream("c", model="echo"):
                print(chunk.text)
        asyncio.run(main())
    """, env={"PATH": "/usr/bin:/bin", **proxies})  # fmt: skip
    assert process.communicate(timeout=20) == ("ab\nc\n", "")


# --- asyncio --------------------------------------------------------------------------------------------------------


async def collect(stream) -> list:
    return [chunk async for chunk in stream]


def test_async_stream_equals_the_other(tiny):
    for _ in range(2):  # a second event loop
        chunks = asyncio.run(collect(tiny.astream(TEXT, model="counter", max_tokens=20)))
        assert texts(chunks) == texts(tiny.stream(TEXT, model="counter", max_tokens=20))
        assert chunks[-1].final and [chunk.seconds for chunk in chunks] == sorted(chunk.seconds for chunk in chunks)


def test_async_streams_run_at_once(tiny):
    async def main():
        streams = [tiny.astream(f"{i}", model="counter", max_tokens=20, delay_ms=20) for i in range(20)]
        return await asyncio.gather(*map(collect, streams))

    began = time.monotonic()
    found = asyncio.run(main())
    assert [texts(chunks) for chunks in found] == [f"{i}" * 20 if i < 10 else (f"{i}" * 10) for i in range(20)]
    assert time.monotonic() - began < 6  # one after another: 8 s


def test_cancelled_task_cancels_the_request(tiny, tiny_server):
    async def main():
        stream = endless_async()
        await stream.__anext__()
        task = asyncio.create_task(collect(stream))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return "task"

    def endless_async():
        return tiny.astream("x", model="counter", max_tokens=1000, delay_ms=50, request_id="task")

    assert cancelled_at(tiny_server, asyncio.run(main())) < 200


@pytest.mark.parametrize("way", ["break", "aclose", "closing", "timeout"])
def test_leaving_an_async_stream_cancels_the_request(tiny, tiny_server, way):
    async def main():
        request_id = f"async-{way}"
        stream = tiny.astream("x", model="counter", max_tokens=1000, delay_ms=50, request_id=request_id)
        if way == "timeout":
            await stream.__anext__()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(collect(stream), 0.3)
        elif way == "closing":
            async with contextlib.aclosing(stream):
                await stream.__anext__()
        else:
            async for _ in stream:
                break
        if way == "aclose":
            await stream.aclose()
            assert await collect(stream) == []
        del stream
        gc.collect()
        await asyncio.sleep(0.2)
        return request_id

    assert cancelled_at(tiny_server, asyncio.run(main())) < 200


def test_async_errors(tiny):
    for more, words in [
        ({"model": "counter", "fail_at": 2}, "^counter fails at 2.$"),
        ({"model": "absent"}, "no model 'absent' at this server"),
        ({"model": "counter", "delya_ms": 3}, "did you mean 'delay_ms'"),
        ({"model": "counter", "delay_ms": 300, "deadline": 0.5}, "within 0.5 s"),
    ]:
        with pytest.raises(ClientError, match=words):
            asyncio.run(collect(tiny.astream("x", max_tokens=5, **more)))
    assert texts(asyncio.run(collect(tiny.astream("ab", model="counter", max_tokens=2)))) == "ab"


def test_the_same_async_cell_in_a_kernel_and_as_a_script(tiny_server):
    """A kernel (JupyterLab, papermill, nbclient) has a running loop, so that asyncio.run would fail there."""
    cell = "async for chunk in client.astream('ab', model='counter', max_tokens=4): print(chunk.text, end='')"
    head = (
        "from servinglab.old_client import TritonClient\n"
        f"client = TritonClient({tiny_server.grpc_url!r})\n"
        "print(''.join(chunk.text for chunk in client.stream('cd', model='counter', max_tokens=4)))"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in (head, cell, cell)])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    outputs = ["".join(o.get("text", "") for o in found.outputs) for found in notebook.cells]
    assert outputs == ["cdcd\n", "abab", "abab"]
    body = textwrap.indent(cell, "    ")
    process = run_script(tiny_server, f"async def main():\n{body}\nasyncio.run(main())")
    assert process.communicate(timeout=20) == ("abab", "")


# --- one answer -----------------------------------------------------------------------------------------------------


def test_every_road_gives_the_same_text(tiny):
    for text in (TEXT, "", '\x00\n\t"\\', "x" * 2**20):
        found = [
            tiny.infer(text, model="echo").text,
            tiny.http_infer(text, model="echo").text,
            tiny.generate(text, model="echo")["text_output"],
            texts(tiny.generate_stream(text, model="echo")),
            texts(tiny.stream(text, model="echo")),
        ]
        assert all(each == text for each in found), [len(each) for each in found]


def test_every_road_sends_the_same_tensors(tiny):
    inputs = dict(temperature=0.5, stop_words=["a", "é"], seed=7, top_k=None, max_tokens=3)
    expected = {
        "text_input": ["object", [1, 1], ["t"]],
        "max_tokens": ["int32", [1, 1], [3]],
        "temperature": ["float32", [1, 1], [0.5]],
        "stop_words": ["object", [1, 2], ["a", "é"]],
        "seed": ["uint64", [1, 1], [7]],
    }
    assert json.loads(tiny.infer("t", model="echo", **inputs).outputs["seen"][0, 0]) == expected
    assert json.loads(tiny.http_infer("t", model="echo", **inputs).outputs["seen"][0, 0]) == expected
    assert json.loads(tiny.generate("t", model="echo", **inputs)["seen"]) == expected


def test_result_carries_id_and_time(tiny):
    for call in (tiny.infer, tiny.http_infer):
        found = call("a", model="echo", request_id="r9")
        assert found.request_id == "r9" and 0 < found.seconds < 5
    assert tiny.generate("a", model="echo", request_id="r9")["id"] == "r9"


def test_generate_stream_gives_every_piece_as_it_comes(tiny):
    for _ in range(2):
        chunks = list(tiny.generate_stream("abc", model="counter", max_tokens=4, delay_ms=50))
        assert [chunk.text for chunk in chunks] == list("abca")
        assert chunks[-1].seconds - chunks[0].seconds > 0.1  # three pauses of 0.05 s; 0 if it had waited for all


def test_leaving_generate_stream_cancels_at_the_next_piece(tiny, tiny_server):
    for chunk in tiny.generate_stream("x", model="counter", max_tokens=1000, delay_ms=50, request_id="http-1"):
        assert chunk.request_id == "http-1"
        break
    assert cancelled_at(tiny_server, "http-1") < 100


# --- errors: one sentence, and the next request works ---------------------------------------------------------------


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda c: c.infer("x", model="counter"), "decoupled transaction policy. .* use stream"),
        (lambda c: c.http_infer("x", model="counter"), "decoupled transaction policy. .* use stream"),
        (lambda c: c.generate("x", model="counter", max_tokens=2), "exactly 1 response, .* Use generate_stream"),
        (lambda c: list(c.stream("x", model="counter", max_tokens=5, fail_at=2)), "^counter fails at 2.$"),
        (lambda c: list(c.generate_stream("x", model="counter", max_tokens=5, fail_at=2)), "^counter fails at 2.$"),
        (lambda c: list(c.stream("fail", model="echo")), "^echo refuses the word fail.$"),
        (lambda c: c.infer("fail", model="echo"), "^echo refuses the word fail.$"),
        (lambda c: c.generate("fail", model="echo"), "^echo refuses the word fail.$"),
        (lambda c: list(c.stream("x", model="ecko")), r"There is no model 'ecko' .* Ready: counter, echo\."),
        (lambda c: c.generate("x", model="ecko"), r"There is no model 'ecko' .* Ready: counter, echo\."),
        (lambda c: c.http_infer("x", model="a/b?c"), r"There is no model 'a/b\?c'"),
        (lambda c: c.infer("x", model="echo", random_seed=1), "no input 'random_seed': did you mean 'seed'"),
        (lambda c: c.infer(["x"] * 9, model="echo"), "batch-size must be <= 8"),
        (lambda c: c.infer_inputs("echo", {}), r"needs the input 'text_input' \(BYTES, shape \[-1, 1\]\)"),
        (lambda c: c.infer_inputs("echo", {}, checked=False), r"missing required input\(s\) \['text_input'\]"),
        (
            lambda c: c.infer_inputs("echo", {"text_input": np.array([b"x"], object)}),
            r"Expected \[-1,1\], got \[1\]. 'echo' declares 'text_input' as BYTES \[-1, 1\], the first",
        ),
        (
            lambda c: c.infer_inputs("echo", {"text_input": np.array([["x"]]), "max_tokens": np.zeros((1, 3), "i4")}),
            r"Expected \[-1,1\], got \[1,3\]. 'echo' declares 'max_tokens' as INT32",
        ),
        (
            lambda c: c.infer_inputs("echo", {"text_input": np.array([[1.5]])}),
            "data-type is 'FP64', but model 'echo' expects 'BYTES'",
        ),
        (
            lambda c: c.infer_inputs("echo", {"text_input": [["x"]], "random_seed": [[1]]}, checked=False),
            "unexpected inference input 'random_seed' for model 'echo': did you mean 'seed'",
        ),
        (  # the same when nothing is known of the model yet, or not any more after an error
            lambda c: c._specs.clear() or c.infer_inputs("echo", {"text_input": [["x"]], "sead": [[1]]}, checked=False),
            "unexpected inference input 'sead' for model 'echo': did you mean 'seed'",
        ),
        (lambda c: list(c.stream("x", model="counter", deadline=float("inf"))), "^deadline must be .* not inf"),
        (lambda c: c.infer("x", model="echo", deadline=float("nan")), "^deadline must be a number of seconds"),
        (lambda c: c.infer("x", model="echo", deadline=-1), "^deadline must be .* above 0"),
        (lambda c: c.infer("x", model="echo", request_id=5), "^request_id must be text, not 5"),
        (lambda c: list(c.stream("x", model="counter", delay_ms=700, deadline=3)), "within 3 s .after [1-4] chunk"),
        (lambda c: list(c.generate_stream("x", model="counter", delay_ms=100, deadline=0.5)), "within 0.5 s"),
        (lambda c: c.generate("x", model="counter", max_tokens=1, delay_ms=2000, deadline=0.5), "within 0.5 s"),
    ],
)
def test_error_and_the_next_request_works(tiny, call, words):
    with pytest.raises(ClientError, match=words) as caught:
        call(tiny)
    message = str(caught.value)
    assert "\n" not in message and "Traceback" not in message and message[-1] in ".?" and len(message) < 400
    assert caught.value.__cause__ is None and caught.value.__suppress_context__ or caught.value.__context__ is None
    assert tiny.infer("again", model="echo").text == "again"


@pytest.mark.parametrize(
    "key, advice",
    [("runtime_top_k", "did you mean 'top_k'"), ("random_seed", "did you mean 'seed'"), ("zzzzz", "it has max_tokens")],
)
def test_http_key_that_is_no_input_is_warned_of(tiny, key, advice):
    """Triton takes such a key for a request parameter and says nothing."""
    with pytest.warns(
        ClientWarning, match=f"'{key}' is not an input of echo, so Triton ignores it: {advice}"
    ) as caught:
        tiny.generate("x", model="echo", **{key: 5})
    assert caught[0].filename == __file__
    with pytest.warns(ClientWarning, match=key) as caught:
        list(tiny.generate_stream("x", model="echo", **{key: 5}))
    assert caught[0].filename == __file__


def test_known_keys_are_not_warned_of(tiny):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny.generate("x", model="echo", temperature=0.5, stop_words=["a"], request_id="a")
        list(tiny.generate_stream("x", model="counter", max_tokens=2, delay_ms=1))


def test_a_model_that_is_loaded_again_with_other_inputs_is_asked_again(tmp_path):
    for name in ("config.pbtxt", "1/model.py"):
        (tmp_path / "echo" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "echo" / name).write_text((TINY_MODELS / "echo" / name).read_text())
    with TritonServer(tmp_path, timeout=60) as server, TritonClient(server.grpc_url, server.http_url) as client:
        client.infer("x", model="echo", seed=1)
        config = tmp_path / "echo" / "config.pbtxt"
        config.write_text(config.read_text().replace('"seed"', '"random_seed"'))
        server.load("echo")
        with pytest.raises(ClientError, match="unexpected inference input 'seed'"):
            client.infer("x", model="echo", seed=1)
        assert client.infer("x", model="echo", random_seed=1).text == "x"


# --- a server that goes away ------------------------------------------------------------------------------------------


@pytest.fixture
def own_server():
    with TritonServer(TINY_MODELS, timeout=60) as server:
        yield server


def test_server_killed_in_the_middle_of_streams(own_server):
    with TritonClient(own_server.grpc_url, own_server.http_url) as client:
        more = dict(model="counter", max_tokens=500, delay_ms=20, deadline=60)
        stream, events = client.stream("x", **more), client.generate_stream("x", **more)
        next(stream), next(events)

        async def asynchronous():
            found = client.astream("x", **more)
            await found.__anext__()
            psutil.Process(own_server.pid).kill()
            await collect(found)

        began = time.monotonic()
        with pytest.raises(ClientError, match=r"closed the connection \(after \d+ chunks?\): has it stopped"):
            asyncio.run(asynchronous())
        with pytest.raises(ClientError, match=r"closed the connection \(after \d+ chunks?\): has it stopped"):
            list(stream)
        with pytest.raises(ClientError, match=r"closed the connection( \(after \d+ chunks?\))?: has it stopped"):
            list(events)
        for call in (client.infer, client.generate, client.http_infer):
            # Both are true: the port of a killed process can take connections a moment longer than its streams live.
            with pytest.raises(ClientError, match="No server answers at|closed the connection: has it stopped"):
                call("x", model="echo")
        assert time.monotonic() - began < 20


def test_server_that_hangs_meets_the_deadline(own_server):
    with TritonClient(own_server.grpc_url, own_server.http_url) as client:
        more = dict(model="counter", max_tokens=500, delay_ms=20, deadline=5)
        stream, events = client.stream("x", **more), client.generate_stream("x", **more)
        next(stream), next(events)
        psutil.Process(own_server.pid).suspend()
        began = time.monotonic()
        with pytest.raises(ClientError, match=r"No end of the answer from .* within 5 s \(after \d+ chunks?\)"):
            list(stream)
        with pytest.raises(ClientError, match="within 5 s"):
            list(events)
        with pytest.raises(ClientError, match="within 1 s"):
            client.infer("x", model="echo", deadline=1)
        assert time.monotonic() - began < 20


def test_server_stopped_in_the_middle_of_a_stream(own_server):
    """Triton finishes what runs for two seconds, then ends; the client sees the connection close."""
    with TritonClient(own_server.grpc_url) as client:
        stream = client.stream("x", model="counter", max_tokens=1000, delay_ms=20, deadline=60)
        next(stream)
        began = time.monotonic()
        own_server.stop()
        with pytest.raises(ClientError):
            list(stream)
        assert time.monotonic() - began < 15  # the whole stream lasts twenty


def test_many_requests_with_cancels_lose_nothing():
    """At the pace of a language model: at a thousand responses a second Triton crashes once in some hundred cancels."""
    with_a_server(TINY_MODELS, many_requests_with_cancels)


def many_requests_with_cancels(server, client):
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
