"""A server that somebody else started takes the place of a notebook's own: SERVINGLAB_SERVER, or `lane` an address."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from pathlib import Path

import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from course.ask import some_server
from servinglab import notebook, scratch, serving
from servinglab.client import explained, inputs, stream
from servinglab.errors import CourseError
from servinglab.lane import server_elsewhere
from servinglab.server import ServerError, TritonServer

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    for name in ("SERVINGLAB_SERVER", "SERVINGLAB_LANE"):
        monkeypatch.setenv(name, "")  # so that what `begin` writes is undone
    monkeypatch.setattr(scratch, "adopt", lambda: None)  # this process is no notebook


@pytest.mark.parametrize(
    "given, grpc, http",
    [
        ("grpc://gpu-box:8001", "gpu-box:8001", "http://gpu-box:8000"),
        ("grpc://10.0.0.7:9001, http://10.0.0.7:9100/", "10.0.0.7:9001", "http://10.0.0.7:9100"),
        ("grpc://[::1]:8001", "[::1]:8001", "http://[::1]:8000"),
    ],
)
def test_one_address_stands_for_both_unless_the_other_is_given(monkeypatch, given, grpc, http):
    monkeypatch.setenv("SERVINGLAB_SERVER", given)
    assert server_elsewhere() == (grpc, http)


@pytest.mark.parametrize("given", ["gpu-box:8001", "http://gpu-box:8000", "grpc://gpu-box", "grpc://a b:1"])
def test_another_word_is_refused(monkeypatch, given):
    monkeypatch.setenv("SERVINGLAB_SERVER", given)
    with pytest.raises(CourseError, match="it must be like grpc://127.0.0.1:8001"):
        server_elsewhere()


@pytest.mark.parametrize("given", ["grpcs://gpu-box:8001", "https://gpu-box:8000", "grpc://a:1,https://a:2"])
def test_tls_is_refused_by_its_name_with_the_way_round_it(monkeypatch, given):
    monkeypatch.setenv("SERVINGLAB_SERVER", given)
    for call in (server_elsewhere, lambda: TritonServer.attach(*given.split(","))):
        with pytest.raises(CourseError, match=r"asks for TLS, which the clients .*: open a tunnel \(ssh -L ") as caught:
            call()
        assert all(part in str(caught.value) for part in given.split(","))


def test_a_port_that_speaks_tls_only_is_asked_about():
    """It needs no certificate to refuse what is no TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            with contextlib.suppress(OSError):  # the listener is closed
                while opened := listener.accept()[0]:
                    with contextlib.suppress(ssl.SSLError, ConnectionError), opened:
                        context.wrap_socket(opened, server_side=True)

        threading.Thread(target=answer, daemon=True).start()
        url = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ServerError, match=f"No Triton answers at {url}: .* without TLS?"):
            TritonServer.attach(url)
        with InferenceServerClient(url) as client, pytest.raises(InferenceServerException) as caught:
            list(stream(client, "m", inputs(text_input="x")))
        assert explained(caught.value, url, 60)[0].endswith("is this its gRPC port, without TLS?")


def test_a_notebook_uses_it_and_leaves_it_alone(tiny_server, capsys):
    address = f"grpc://{tiny_server.grpc_url},{tiny_server.http_url}"
    assert notebook.begin("06", address) == "embedded"
    server = serving.serve(precision="int4", max_beam_width=8)
    assert (server.grpc_url, server.http_url) == (tiny_server.grpc_url, tiny_server.http_url)
    said = capsys.readouterr().out
    assert f"{tiny_server.grpc_url} runs already" in said and "precision='int4', {'max_beam_width': 8}" in said
    assert server.models() == tiny_server.models() and server.pid is None
    server.stop()
    assert tiny_server.ready()
    with pytest.raises(ServerError, match="was started elsewhere, and its files are there: unset SERVINGLAB_SERVER"):
        server.repository  # noqa: B018
    assert notebook.provenance() == f"server at {tiny_server.grpc_url}"
    with some_server("int4", print) as asked:
        assert asked.grpc_url == tiny_server.grpc_url


def test_a_tokenizer_that_is_on_the_server_s_machine_alone_is_named(server, monkeypatch, capsys):
    monkeypatch.setenv("SERVINGLAB_SERVER", f"grpc://{server.grpc_url}")
    serving.serve()
    assert "tokenizer" not in capsys.readouterr().out
    monkeypatch.setattr(Path, "is_dir", lambda folder: False)
    serving.serve()
    said = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"# Its tokenizer is in /\S+, which this machine lacks: cells that read it fail .*", said)


def test_a_notebook_that_changes_its_server_says_that_it_starts_its_own(monkeypatch, capsys):
    monkeypatch.setenv("SERVINGLAB_SERVER", "grpc://gpu-box:8001")
    notebook.begin("05")
    said = capsys.readouterr().out
    assert said.startswith("# The server at gpu-box:8001 is not used: ") and said.count("\n") == 1
    assert server_elsewhere() is None and notebook.provenance().startswith("embedded lane")
    changes = re.compile(r"server\.repository|admin_headers|serve\([^)]*(decoupled=|draft_|max_beam_width)")
    pages = [*(ROOT / "notebooks" / "text").glob("[0-9]*.py"), *(ROOT / "labs").glob("*/text/*.py")]
    assert {page.name[:2] for page in pages if changes.search(page.read_text())} == set(notebook.OWN_SERVER)


def test_one_that_is_gone_is_one_sentence(monkeypatch):
    monkeypatch.setenv("SERVINGLAB_SERVER", "grpc://127.0.0.1:9")
    with pytest.raises(ServerError, match="No Triton answers at 127.0.0.1:9"):
        serving.serve()
