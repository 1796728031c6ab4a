"""Clients that read slowly or not at all, and deadlines: nobody else waits, nothing is lost, calls end in time."""

from __future__ import annotations

import json
import socket
import time
from urllib.parse import urlsplit

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import InferResult, service_pb2, service_pb2_grpc

from servinglab.client import channel_args
from triton_client import ClientError

COUNT = "Count: one two three four five six"
VOCABULARY = 49152


def short_answer(client, deadline=60.0) -> float:
    """Seconds that eight tokens of another client take."""
    began = time.monotonic()
    text = "".join(chunk.text for chunk in client.stream(COUNT, max_tokens=8, min_tokens=8, deadline=deadline))
    assert text.startswith(" seven eight nine")
    return time.monotonic() - began


def resident(server) -> float:
    """MiB of the server and its models, without shared memory."""
    root = psutil.Process(server.pid)
    found = [process.memory_info() for process in [root, *root.children(recursive=True)]]
    return sum(info.rss - info.shared for info in found) / 2**20


def test_a_reader_that_does_not_read_for_a_while_gets_everything_in_order(served, asker):
    """Its 64 responses hold 12 MiB of logits, far more than fits into gRPC's windows, so the server must keep them."""
    steps = 64
    inputs = {
        "input_ids": np.array([[5, 6, 7]], np.int32), "input_lengths": np.array([[3]], np.int32),
        "request_output_len": np.array([[steps]], np.int32), "min_tokens": np.array([[steps]], np.int32),
        "streaming": np.array([[True]]), "return_generation_logits": np.array([[True]]),
    }  # fmt: skip
    quick = short_answer(asker)
    tensors = [tensor._get_tensor() for tensor in asker.tensors("tensorrt_llm", inputs)]
    message = service_pb2.ModelInferRequest(model_name="tensorrt_llm", id="slow", inputs=tensors)
    message.raw_input_contents.extend(array.tobytes() for array in inputs.values())
    with grpc.insecure_channel(served.grpc_url, options=channel_args(served.grpc_url)) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelStreamInfer(iter([message]), timeout=120)
        answers = [next(call)]
        for _ in range(3):
            assert short_answer(asker) < 10 * quick + 20  # nobody waits for the one that does not read
        time.sleep(1.0)
        for answer in call:
            answers.append(answer)
            time.sleep(0.005)
    found = [InferResult(answer.infer_response) for answer in answers if answer.infer_response.outputs]
    ids = [int(token) for result in found for token in result.as_numpy("output_ids").reshape(-1)]
    logits = [row for result in found for row in result.as_numpy("generation_logits").reshape(-1, VOCABULARY)]
    assert len(ids) == len(logits) == steps
    assert [int(row.argmax()) for row in logits][8:] == ids[8:]  # each step's own (before, min_tokens forbids the end)


@pytest.mark.parametrize("reads", ["later", "never"])
def test_a_reader_over_http_that_lets_the_socket_fill(served, asker, reads):
    """16 events of 600 kB each, more than the kernel keeps. All come once it reads; when it hangs up, they are gone."""
    wanted = {"max_tokens": 16, "min_tokens": 16, "stream": True, "return_generation_logits": True}
    body = json.dumps({"text_input": COUNT, **wanted}).encode()
    address = urlsplit(served.http_url)
    before = resident(served)
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect((address.hostname, address.port))
        head = "POST /v2/models/tensorrt_llm_bls/generate_stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        line.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        for _ in range(3):
            short_answer(asker)
        if reads == "later":
            received = bytearray()
            while data := line.recv(2**20):
                received += data
            assert received.count(b'"text_output"') == 16 and len(received) > 3_300_000
    for _ in range(2):
        assert short_answer(asker, deadline=30) < 20
    assert resident(served) < before + 150


# --- deadlines ----------------------------------------------------------------------------------------------------


def roads(client):
    """Every kind of call of ours that can take long, with a request of minutes."""
    more = {"max_tokens": 1500, "min_tokens": 1500}
    yield "stream", lambda deadline: list(client.stream(COUNT, deadline=deadline, **more))
    yield "whole", lambda deadline: list(client.stream(COUNT, stream=False, deadline=deadline, **more))
    yield "ensemble", lambda deadline: list(client.stream(COUNT, model="ensemble", deadline=deadline, **more))


ROADS = [name for name, _ in roads(None)]


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("deadline", [0.05, 0.7])
def test_a_deadline_ends_a_call_in_time_whatever_the_clock_on_the_wall_says(asker, monkeypatch, road, deadline):
    asker.spec("tensorrt_llm_bls"), asker.spec("ensemble")
    real, offsets = time.time, iter([0.0] + [-3600.0, 3600.0] * 10_000)
    monkeypatch.setattr(time, "time", lambda: real() + next(offsets))  # as when the clock is set while it waits
    began = time.monotonic()
    with pytest.raises(ClientError, match=rf"within {deadline:g} s") as caught:
        dict(roads(asker))[road](deadline)
    assert deadline * 0.9 < time.monotonic() - began < deadline + 8.0
    assert "\n" not in str(caught.value)


def test_requests_whose_deadline_has_passed_make_room_for_the_next(asker):
    """Eight places, each held by a request of minutes; the ensemble is left out: Triton 24.10 passes no cancel on."""
    streams = [asker.stream(COUNT, max_tokens=1500, min_tokens=1500, deadline=1.5) for _ in range(12)]
    for stream in streams:
        with pytest.raises(ClientError, match="within 1.5 s"):
            list(stream)
    assert short_answer(asker, deadline=30) < 20
