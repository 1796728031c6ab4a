"""Behind a company's proxy: what goes to a server on this machine never reaches it, and what the user set is kept."""

from __future__ import annotations

import ast
import http.server
import json
import re
import socket
import threading
import types
import urllib.request
from pathlib import Path

import grpc
import httpx
import jupytext
import openai
import pytest
import requests
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from servinglab import notebook
from servinglab.client import channel_args, explained, inputs, stream
from servinglab.lane import spare_the_proxy

ROOT = Path(__file__).resolve().parents[2]
EXCEPTIONS = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
HERE = "127.0.0.1,localhost,::1"
WHOLE = b'{"model_name": "m", "text_output": "here"}'


@pytest.fixture
def proxy(monkeypatch):
    """Every variable that can name a proxy names this one, which nobody may have connected to at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        for name in EXCEPTIONS:
            monkeypatch.delenv(name, raising=False)
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://{address}")
            monkeypatch.setenv(name.upper(), f"http://{address}")
        for name in ("all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"socks5://{address}")  # httpx has no package for it, and says so at once
        yield
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.fixture
def web():
    """Answers as Triton's HTTP side would."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(WHOLE)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def nobody():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{sock.getsockname()[1]}"


def test_the_course_s_clients_need_no_setting(proxy, nobody):
    with InferenceServerClient(nobody, channel_args=channel_args(nobody)) as client:
        for call in (client.is_server_live, lambda: list(stream(client, "m", inputs(text_input="x")))):
            with pytest.raises(InferenceServerException, match="refused") as caught:
                call()
            assert explained(caught.value, nobody, 60)[0].startswith(f"No server answers at {nobody}")


@pytest.mark.parametrize("user", [{}, {"no_proxy": ".corp,10.0.0.0/8"}, {"NO_PROXY": ".corp"}, {"no_proxy": "*"},
                                  {"no_grpc_proxy": ".corp"}])  # fmt: skip
def test_after_the_first_cell_nor_do_other_clients(proxy, web, nobody, user, monkeypatch, capsys):
    for name, value in user.items():
        monkeypatch.setenv(name, value)
    for name in set(EXCEPTIONS) - set(user):
        monkeypatch.setenv(name, "-")  # so that monkeypatch takes away what begin() sets
        monkeypatch.delenv(name)
    for name in ("all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name)  # for httpx, which cannot even be made with it
    monkeypatch.setattr(notebook.scratch, "adopt", lambda: None)  # this process is no notebook
    notebook.begin("embedded")
    assert json.load(urllib.request.urlopen(web, timeout=9))["text_output"] == "here"
    assert httpx.get(web, timeout=9).json()["text_output"] == "here"
    assert httpx.get(web.replace("127.0.0.1", "localhost"), timeout=9).json()["text_output"] == "here"
    assert requests.get(web, timeout=9).json()["text_output"] == "here"
    for address in (nobody, nobody.replace("127.0.0.1", "localhost")):
        with InferenceServerClient(address) as client, pytest.raises(InferenceServerException, match="refused"):
            client.is_server_live(client_timeout=20)
    with grpc.insecure_channel(nobody) as channel, pytest.raises(grpc.RpcError, match="refused"):
        channel.unary_unary("/x/y")(b"", timeout=20)


PAGES = sorted([*ROOT.glob("notebooks/text/*.py"), *ROOT.glob("labs/*/text/*.py")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_client_of_a_notebook_asks_the_environment(page):
    """With ALL_PROXY=socks5://… httpx raises ImportError where it is made, whatever no_proxy says."""
    cells = [cell.source for cell in jupytext.read(page).cells if cell.cell_type == "code"]
    for node in ast.walk(ast.parse("\n".join(cells), feature_version=(3, 11))):
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if re.fullmatch(r"httpx\.(\w*[cC]lient|get|post|put|head|stream|request)|openai\.\w*Client", name):
            assert ("trust_env", "False") in [(each.arg, ast.unparse(each.value)) for each in node.keywords], name
        if re.fullmatch(r"openai\.(Async)?OpenAI", name):
            assert "http_client" in [each.arg for each in node.keywords], name


def test_the_client_of_notebook_12_is_made_behind_such_a_proxy(proxy, web):
    (cell,) = [
        c for c in jupytext.read(ROOT / "notebooks" / "text" / "12_llm_api.py").cells if "DefaultHttpx" in c.source
    ]
    names = {"openai": openai, "openai_server": types.SimpleNamespace(url=web)}
    exec(cell.source, names)
    assert names["application"].get("/m", cast_to=str) == WHOLE.decode()


@pytest.mark.parametrize(
    ("user", "wanted"),
    [
        ({}, {name: HERE for name in EXCEPTIONS}),
        ({"no_proxy": "a, localhost"}, {name: "a, localhost,127.0.0.1,::1" for name in EXCEPTIONS}),
        ({"NO_PROXY": "a"}, {name: f"a,{HERE}" for name in EXCEPTIONS}),
        ({"no_proxy": "a", "NO_PROXY": "b"}, {"no_proxy": f"a,{HERE}", "NO_PROXY": f"b,{HERE}",
                                              "no_grpc_proxy": f"a,{HERE}"}),
        ({"no_grpc_proxy": "g", "no_proxy": ""}, {"no_proxy": HERE, "NO_PROXY": HERE, "no_grpc_proxy": f"g,{HERE}"}),
        ({"no_proxy": "*"}, {"no_proxy": "*", "no_grpc_proxy": f"*,{HERE}"}),
    ],
)  # fmt: skip
def test_what_the_user_set_is_kept_and_the_second_time_changes_nothing(user, wanted):
    env = {"http_proxy": "http://p:1", **user}
    for _ in range(2):
        spare_the_proxy(env)
        assert env == {"http_proxy": "http://p:1", **wanted}
