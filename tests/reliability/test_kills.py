"""kill -9 of the server, of a model's process, of a client: while Triton starts, and in the middle of a stream."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import httpx
import psutil
import pytest
from server_traces import TINY_MODELS, Mark, Trace, broken_repository

from servinglab.openai_frontend import OpenAIFrontend
from servinglab.repository import build_default
from servinglab.server import ServerError, TritonServer
from triton_client import ClientError, TritonClient

SUPERVISOR, TRITON, STUB = "supervisor.py", "bin/tritonserver", "triton_python_backend_stub"
COUNT = "Count: one two three four five six"
DIED = "A model's Python process died, perhaps out of memory: restart the server."

# --- while it starts ----------------------------------------------------------------------------------------------


@pytest.fixture
def slow_repository(tmp_path):
    """Its model needs a while to load, so that every stage of the start can be met."""
    return broken_repository(tmp_path, "slow", "import time\ntime.sleep(8)\n" + (
        TINY_MODELS / "echo" / "1" / "model.py"
    ).read_text())  # fmt: skip


@pytest.mark.parametrize("stage", [SUPERVISOR, TRITON, STUB, "ready"])
def test_the_python_that_starts_a_server_is_killed_at_every_stage(slow_repository, stage):
    mark = Mark()
    code = f"""
        import time
        from servinglab.server import TritonServer
        s = TritonServer({str(slow_repository)!r}, timeout=60).start()
        print("ready", flush=True)
        time.sleep(60)
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], env=mark.env, stdout=subprocess.PIPE, text=True
    )
    try:
        if stage == "ready":
            assert owner.stdout.readline() == "ready\n"
        else:
            mark.wait_for(stage)
        mark.of("")
    finally:
        owner.kill()
        owner.wait()
    mark.assert_gone(10)


@pytest.mark.parametrize(
    ("victim", "stage", "said"),
    [
        (SUPERVISOR, STUB, "Triton did not start: it ended during the start"),
        (TRITON, TRITON, "Triton did not start: it ended during the start"),
        (TRITON, STUB, "Triton did not start: it ended during the start"),
        (STUB, STUB, "Triton did not start: .*Python process died"),  # said by us, or by Triton if it was that far
    ],
)
def test_a_part_of_the_server_is_killed_while_it_starts(slow_repository, monkeypatch, victim, stage, said):
    mark = Mark()
    monkeypatch.setenv(Mark.NAME, mark.word)  # not in the environment this process was started with

    def kill():
        mark.wait_for(stage)
        for process in mark.of(victim):
            process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(ServerError, match=said) as caught:
        TritonServer(slow_repository, timeout=60).start()
    killer.join()
    assert "Its log: " in str(caught.value) and "\n" not in str(caught.value)
    mark.assert_gone()


# --- in the middle of a stream ------------------------------------------------------------------------------------


def long_stream(client, **more):
    return client.stream(COUNT, max_tokens=1500, min_tokens=1500, **more)


def stub_of(server: TritonServer, model: str) -> psutil.Process:
    children = psutil.Process(server.pid).children()
    (found,) = [child for child in children if f"/{model}/1/model.py" in " ".join(child.cmdline())]
    return found


LATER = [pytest.param(model, marks=pytest.mark.long) for model in ("tensorrt_llm_bls", "postprocessing")]


@pytest.mark.parametrize("model", ["tensorrt_llm", *LATER])
def test_a_model_s_process_is_killed_in_the_middle_of_a_stream(int4_repository, smollm2_tokenizer_dir, model):
    """Triton 24.10 stays "ready" and tells running streams nothing; the next request hears the reason. The BLS model
    asks an LLM that has fallen silent, so its streams hear of that one, too. Now and then Triton dies of the death of
    the process, when that was writing a response. `course serve` sees both."""
    llm = model == "tensorrt_llm"
    with TritonServer(int4_repository) as server, TritonClient(server.grpc_url, server.http_url) as client:
        trace = Trace(server.pid)
        stream = long_stream(client, deadline=60 if llm else 3)
        next(stream)
        began = time.monotonic()
        stub_of(server, model).kill()
        with pytest.raises(ClientError) as first:
            list(stream)
        told_after = time.monotonic() - began
        with pytest.raises(ClientError) as second:
            client.generate(COUNT, max_tokens=2, deadline=20)
        with OpenAIFrontend(server.grpc_url, smollm2_tokenizer_dir) as frontend:
            body = {"messages": [{"role": "user", "content": COUNT}]}
            answer = httpx.post(f"{frontend.url}/v1/chat/completions", json=body, timeout=20, trust_env=False)
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")
        died_too = server.pid is None
    gone = "No server answers at|has it stopped"  # the port of a server that died can outlive its streams
    silent = DIED if llm else f"{DIED}|No further answer from"
    for said, expected in ((first, silent), (second, DIED)):
        assert re.search(f"{expected}|{gone}" if died_too else expected, str(said.value))
    assert told_after < 20
    trace.assert_gone(1.0)


def test_a_model_s_process_that_stops_for_a_while_loses_nothing(repository):
    """As under a debugger. Asked meanwhile whether it lives, it would be taken for dead, and Triton would die."""
    with TritonServer(repository) as server, TritonClient(server.grpc_url, server.http_url) as client:
        given = {"max_tokens": 100, "min_tokens": 100, "deadline": 60}
        expected = "".join(chunk.text for chunk in client.stream(COUNT, **given))
        stream, whole = client.stream(COUNT, **given), client.stream(COUNT, stream=False, **given)
        start, pid, stub = next(stream), server.pid, stub_of(server, "tensorrt_llm")
        stub.suspend()
        time.sleep(3.0)
        stub.resume()
        assert start.text + "".join(chunk.text for chunk in stream) == expected
        assert "".join(chunk.text for chunk in whole).endswith(expected)
        assert client.generate(COUNT, max_tokens=2, deadline=20) and server.pid == pid


def test_the_process_of_a_draft_model_is_killed_in_the_middle_of_an_answer(tmp_path, smollm2_engine_int4):
    repository = build_default(tmp_path, precision="int4", draft_engine_dir=smollm2_engine_int4)
    with TritonServer(repository) as server, TritonClient(server.grpc_url, server.http_url) as client:
        trace = Trace(server.pid)
        # A draft of so many tokens is what the process is at when it is killed.
        answer = long_stream(client, stream=False, num_draft_tokens=1499, deadline=60)
        time.sleep(1.0)
        began = time.monotonic()
        stub_of(server, "tensorrt_llm_draft").kill()
        with pytest.raises(ClientError) as caught:
            list(answer)
        assert str(caught.value) == DIED and time.monotonic() - began < 20
        (whole,) = [chunk.text for chunk in client.stream(COUNT, max_tokens=2, stream=False) if chunk.outputs]
        assert whole.endswith(" seven eight")
    trace.assert_gone(1.0)


def test_the_server_is_killed_while_the_model_answers(int4_repository):
    """The same with tiny models, on every road: test_client.py."""
    with TritonServer(int4_repository) as server, TritonClient(server.grpc_url, server.http_url) as client:
        trace = Trace(server.pid)
        stream = long_stream(client)
        next(stream)
        client.generate(COUNT, max_tokens=1)  # reads what the next one would have to read first
        whole: list[Exception] = []
        asking = threading.Event()

        def ask():
            try:
                asking.set()
                client.generate(COUNT, max_tokens=1500, min_tokens=1500)
            except ClientError as error:
                whole.append(error)

        waiting = threading.Thread(target=ask)
        waiting.start()
        asking.wait(10)
        time.sleep(1.0)
        began = time.monotonic()
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(ClientError, match="closed the connection: has it stopped"):
            list(stream)
        waiting.join(10)
        assert "closed the connection: has it stopped" in str(whole[0])
        trace.assert_gone()
        assert time.monotonic() - began < 30


@pytest.mark.parametrize("road", ["stream", "generate_stream", "whole"])
def test_a_client_is_killed_in_the_middle_of_its_streams(served, asker, road):
    """It holds all eight places of the batch. Were one of its requests to live on, the next would wait for minutes."""
    code = f"""
        import sys, time
        sys.path.insert(0, {str(TINY_MODELS.parent)!r})
        from triton_client import TritonClient
        client = TritonClient({served.grpc_url!r}, {served.http_url!r})
        call = client.generate_stream if {road!r} == "generate_stream" else client.stream
        options = dict(max_tokens=1500, min_tokens=1500, stream={road != "whole"}, deadline=500)
        streams = [call({COUNT!r}, **options) for _ in range(8)]
        if {road != "whole"}:
            for stream in streams:
                next(stream)
        print("all stream", flush=True)
        time.sleep(60)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "all stream\n"
    if road == "whole":
        time.sleep(2.0)
    process.kill()
    process.wait()
    began = time.monotonic()
    texts = ["".join(c.text for c in s) for s in [asker.stream(COUNT, max_tokens=2, deadline=60) for _ in range(8)]]
    assert texts == [" seven eight"] * 8
    assert time.monotonic() - began < 15
