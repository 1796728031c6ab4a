"""A server that is silent, gone, or something else: every call ends with one sentence within its deadline."""

from __future__ import annotations

import asyncio
import http.server
import json
import socket
import threading
import time

import pytest

from servinglab.old_client import ClientError, TritonClient
from servinglab.old_client.tensors import InputSpec, ModelSpec
from servinglab.server import ServerError, TritonServer

DEADLINE = 1.5


@pytest.fixture
def silent():
    """A TCP server that accepts every connection and never answers."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(50)
        yield f"127.0.0.1:{sock.getsockname()[1]}"


@pytest.fixture
def nobody():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{sock.getsockname()[1]}"


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """The client knows what the model declares, so that each call meets the server as itself."""
    spec = ModelSpec("m", {"text_input": InputSpec("text_input", "BYTES", [1], False, True)}, [], 4, True)
    monkeypatch.setattr(TritonClient, "spec", lambda self, model, deadline: spec)


@pytest.fixture
def web():
    """An HTTP server whose answers a test gives: a dict from path ending to a function of the handler."""
    answers = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            answers[self.path.rsplit("/", 1)[-1]](self)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answers["url"] = f"http://127.0.0.1:{server.server_address[1]}"
        yield answers
        server.shutdown()


def send(handler, status: int, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


async def first_of(stream) -> None:
    async for _ in stream:
        return


def calls(client: TritonClient, deadline: float = DEADLINE):
    """Every kind of call, ready to run."""
    yield "stream", lambda: list(client.stream("x", deadline=deadline))
    yield "infer", lambda: client.infer("x", deadline=deadline)
    yield "astream", lambda: asyncio.run(first_of(client.astream("x", deadline=deadline)))
    yield "models", lambda: client.models(deadline=deadline)
    yield "generate", lambda: client.generate("x", deadline=deadline)
    yield "generate_stream", lambda: list(client.generate_stream("x", deadline=deadline))
    yield "http_infer", lambda: client.http_infer("x", deadline=deadline)


KINDS = [name for name, _ in calls(None)]


@pytest.mark.parametrize("kind", KINDS)
def test_silent_server(silent, kind):
    with TritonClient(silent, silent) as client:
        began = time.monotonic()
        with pytest.raises(ClientError, match=r"(No answer from .* within|closed the connection)") as caught:
            dict(calls(client))[kind]()
        assert DEADLINE * 0.8 < time.monotonic() - began < DEADLINE + 10
        assert silent in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_there(nobody, kind):
    with TritonClient(nobody, nobody) as client:
        with pytest.raises(ClientError, match=f"No server answers at .*{nobody}: is it running"):
            dict(calls(client, 30))[kind]()


@pytest.mark.parametrize("kind", ["stream", "infer", "astream", "models"])
def test_a_web_server_where_grpc_is_expected(web, kind):
    address = web["url"].removeprefix("http://")
    with TritonClient(address) as client, pytest.raises(ClientError) as caught:
        dict(calls(client))[kind]()
    assert address in str(caught.value) and "\n" not in str(caught.value)


def test_attaching_to_a_silent_server_is_refused_in_time(silent):
    began = time.monotonic()
    with pytest.raises(ServerError, match="No Triton answers"):
        TritonServer.attach(silent)
    with pytest.raises(ServerError, match="No Triton answers"):
        TritonServer.attach(silent, silent)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("kind", ["stream", "infer", "astream", "models"])
def test_closed_client(nobody, kind):
    client = TritonClient(nobody)
    client.close()
    client.close()
    with pytest.raises(ClientError, match="is closed: make a new one"):
        dict(calls(client))[kind]()


def test_addresses():
    with TritonClient("grpc://localhost:8001/", "localhost:8000/") as client:
        assert client.grpc_url == "localhost:8001" and client._http.url == "http://localhost:8000"
    with pytest.raises(ClientError, match="has the server been started"):
        TritonClient(None)
    with TritonClient("localhost:1") as client, pytest.raises(ClientError, match="no HTTP address"):
        client.generate("x")
    with (
        TritonClient("localhost:1", "ftp://localhost:1") as client,
        pytest.raises(ClientError, match="not an HTTP address"),
    ):
        client.generate("x")


@pytest.mark.parametrize(
    "status, body, words",
    [
        (
            200,
            b'{"error": "generate expects model to produce exactly 1 response"}',
            "exactly 1 response. Use generate_stream",
        ),
        (400, b'{"error": "no"}', "^no.$"),
        (500, b"{}", "status 500"),
        (200, b"<html>", "answered 200 without JSON"),
        (404, b"", "answered 404 without JSON"),
        (200, b"5", "status 200"),
    ],
)
def test_answers_that_are_errors(web, status, body, words):
    web["generate"] = lambda handler: send(handler, status, body)
    with TritonClient("127.0.0.1:1", web["url"]) as client, pytest.raises(ClientError, match=words):
        client.generate("x", model="m")


def event_stream(*pieces: bytes, pause: float = 0.0, hang: float = 0.0):
    def answer(handler):
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream; charset=utf-8")
        handler.end_headers()
        for piece in pieces:
            handler.wfile.write(piece)
            handler.wfile.flush()
            time.sleep(pause)
        time.sleep(hang)

    return answer


def test_events_cut_anywhere_are_put_together(web):
    """A UTF-8 character in two packets, a line separator inside a JSON string, a line without data."""
    text = "é\u2028😀 \x85 end"
    data = b": comment\n\n" + b"data: " + json.dumps({"text_output": text}, ensure_ascii=False).encode() + b"\n\n"
    web["generate_stream"] = event_stream(*(data[i : i + 1] for i in range(len(data))))
    with TritonClient("127.0.0.1:1", web["url"]) as client:
        assert [chunk.text for chunk in client.generate_stream("x", model="m")] == [text]


def test_an_error_after_the_first_event(web):
    web["generate_stream"] = event_stream(b'data: {"text_output": "a"}\n\n', b'data: {"error": "boom"}\n\n')
    with TritonClient("127.0.0.1:1", web["url"]) as client:
        stream = client.generate_stream("x", model="m")
        assert next(stream).text == "a"
        with pytest.raises(ClientError, match="^boom.$"):
            next(stream)
        assert list(stream) == []


def test_an_event_stream_that_never_ends_meets_the_deadline(web):
    web["generate_stream"] = event_stream(*[b'data: {"text_output": "a"}\n\n'] * 300, pause=0.1)
    began = time.monotonic()
    words = r"^No end of the answer from .* within 1 s \(after \d+ chunks?\).$"
    with TritonClient("127.0.0.1:1", web["url"]) as client, pytest.raises(ClientError, match=words):
        list(client.generate_stream("x", model="m", deadline=1))
    assert time.monotonic() - began < 15  # the stream itself lasts 30 s


def test_how_far_a_stream_came_is_said_to_a_reader_that_takes_its_time(web):
    web["generate_stream"] = event_stream(*[b'data: {"text_output": "a"}\n\n'] * 2, hang=20)
    with TritonClient("127.0.0.1:1", web["url"]) as client:
        stream = client.generate_stream("x", model="m", deadline=1)
        assert [next(stream).text, next(stream).text] == ["a", "a"]
        until = time.monotonic() + 20
        while stream._arrived.empty() and time.monotonic() < until:
            time.sleep(0.05)
        with pytest.raises(ClientError, match=r"No end of the answer from .* within 1 s \(after 2 chunks\)"):
            next(stream)


def test_leaving_an_event_stream_hangs_up(web):
    seen = threading.Event()

    def answer(handler):
        try:
            event_stream(*[b'data: {"text_output": "a"}\n\n'] * 2000, pause=0.02)(handler)
        except OSError:
            seen.set()

    web["generate_stream"] = answer
    with TritonClient("127.0.0.1:1", web["url"]) as client:
        for _ in client.generate_stream("x", model="m"):
            break
        assert seen.wait(20)


def test_leaving_a_stream_that_has_ended_leaves_other_requests_alone(web):
    """Its connection must not be in the pool, where another request may have taken it."""
    answering = threading.Event()

    def events(handler):
        handler.protocol_version = "HTTP/1.1"  # which keeps connections
        send(handler, 200, b'data: {"text_output": "x"}\n\n')
        handler.close_connection = "close" in handler.headers.get("connection", "")

    def slow(handler):
        handler.protocol_version = "HTTP/1.1"
        answering.set()
        time.sleep(0.3)
        send(handler, 200, b'{"text_output": "y"}')

    web |= {"generate_stream": events, "generate": slow}
    with TritonClient("localhost:1", web["url"]) as client:
        client.generate("warm", deadline=10)
        answering.clear()
        stream = client.generate_stream("x", deadline=10)
        assert next(stream).text == "x"
        time.sleep(0.2)  # the answer has been read to its end
        other: list = []
        thread = threading.Thread(target=lambda: other.append(client.generate("x", deadline=10)))
        thread.start()
        assert answering.wait(10)
        stream.close()
        thread.join(10)
    assert other == [{"text_output": "y"}]


def test_leaving_a_stream_before_its_first_event_hangs_up(web):
    """The server has not even sent its headers then."""
    asked, gone = threading.Event(), threading.Event()

    def slow(handler):
        asked.set()
        handler.connection.settimeout(10)
        if handler.connection.recv(1) == b"":
            gone.set()

    web["generate_stream"] = slow
    with TritonClient("localhost:1", web["url"]) as client:
        stream = client.generate_stream("x", deadline=60)
        assert asked.wait(10)
        stream.close()
        assert gone.wait(5)
        stream = client.generate_stream("x", deadline=60)
        stream.close()  # perhaps before there is a connection
        assert isinstance(stream._arrived.get(timeout=5), Exception), "the reading thread must end"


@pytest.mark.parametrize("deadline", [float("nan"), "5", 0, -1, None])
@pytest.mark.parametrize("kind", ["generate", "generate_stream", "http_infer"])
def test_a_deadline_that_is_none_is_refused_over_http_too(web, kind, deadline):
    with TritonClient("localhost:1", web["url"]) as client, pytest.raises(ClientError, match="deadline must be"):
        getattr(client, kind)("x", deadline=deadline)


def test_values_that_json_cannot_hold(web):
    with TritonClient("127.0.0.1:1", web["url"]) as client:
        for value in (float("nan"), object(), b"\xff"):
            with pytest.raises(ClientError, match="cannot be written as JSON"):
                client.generate(value, model="m")
