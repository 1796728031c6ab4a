"""What listens while the course runs, and who can reach it: README's table against the open sockets of all servers at
once, and what a page of the web can do to them."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError, URLError

import httpx
import psutil
import pytest

from cliplab.document_server import DocumentServer
from cliplab.vectors import VectorStore
from live_page import ROOT, jupyterlab
from servinglab.openai_frontend import OpenAIFrontend
from servinglab.server import TritonServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]
EXCESS = 0o077  # what nobody but the owner may do


@pytest.fixture(scope="module")
def triton():
    with TritonServer(ROOT / "tests" / "models") as server:
        yield server


@pytest.fixture(scope="module")
def frontend(triton, smollm2_tokenizer_dir):
    with OpenAIFrontend(triton.grpc_url, smollm2_tokenizer_dir, model="echo") as running:
        yield running


def table() -> dict[str, dict[str, int]]:
    """{program: {"TCP": how many ports, "Unix": how many socket files}}, as README says."""
    section = (ROOT / "README.md").read_text().partition("\n## What listens")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| ")]
    return {
        row[1].strip("`"): {kind: int(number) for number, kind in re.findall(r"(\d+) (TCP|Unix)", row[2])}
        for row in rows[1:]
    }


def program(process: psutil.Process, known: dict) -> str:
    """Its name in the table, else its command line."""
    if process.pid == os.getpid():
        return "OpenAIFrontend"
    words = process.cmdline()
    return next((name for name in known if name in map(os.path.basename, words)), " ".join(words))


def listeners(process: psutil.Process) -> dict[str, set]:
    found = {"TCP": set(), "Unix": set()}
    for each in process.net_connections("all"):
        if each.status == psutil.CONN_LISTEN or (each.type.name == "SOCK_DGRAM" and each.family.name != "AF_UNIX"):
            found["TCP"].add(each.laddr)
        elif each.family.name == "AF_UNIX" and each.laddr:
            found["Unix"].add(each.laddr)
    return found


def closed(path: str) -> bool:
    """Whether no other user can open this socket: that takes the right to write it, and to enter its folder."""
    file = Path(path)
    return not file.stat().st_mode & 0o022 or not file.parent.stat().st_mode & EXCESS


def test_every_open_socket_is_in_the_table_of_the_readme(triton, frontend, tmp_path):
    known, family = table(), psutil.Process()
    with (
        DocumentServer(tmp_path / "documents"), VectorStore(tmp_path / "vectors.db"),
        jupyterlab(tmp_path, []) as lab, httpx.Client(base_url=lab["url"], timeout=60, trust_env=False) as client,
    ):  # fmt: skip
        assert client.get("api/kernels").status_code == 403
        client.headers["Authorization"] = f"token {lab['token']}"
        assert client.post("api/kernels", json={"name": "python3"}).status_code == 201
        deadline, found = time.monotonic() + 60, {}
        while len(found.get("ipykernel_launcher", {}).get("Unix", ())) < 5 and time.monotonic() < deadline:
            time.sleep(0.2)
            found = {}
            for process in [family, *family.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    another_test = "multiprocessing." in " ".join(process.cmdline())  # its pool
                    if any((opened := listeners(process)).values()) and not another_test:
                        found[program(process, known)] = opened
        assert found.keys() == known.keys(), f"beside README's table: {found.keys() ^ known.keys()}"
        for name, opened in found.items():
            assert {kind: len(each) for kind, each in opened.items() if each} == known[name], (name, opened)
            assert {address.ip.removeprefix("::ffff:") for address in opened["TCP"]} <= {"127.0.0.1", "::1"}, name
            assert all(map(closed, opened["Unix"])), (name, opened)


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def elsewhere():
    """The address of a page that is not ours."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


SEND = "([url, body]) => fetch(url, {method: 'POST', mode: 'no-cors', headers: {'Content-Type': 'text/plain'}, body})"


def test_a_page_of_the_web_neither_runs_code_in_triton_nor_asks_the_front_end(
    triton, frontend, browser, elsewhere, tmp_path
):
    """A browser sends such a request without asking the server first, and the page need not read the answer."""
    marker = tmp_path / "the-page-was-here"
    code = f"open({str(marker)!r}, 'w').close()\nclass TritonPythonModel:\n    def execute(self, requests): return []\n"
    config = {"backend": "python", "max_batch_size": 0, "input": [], "output": [],
              "instance_group": [{"kind": "KIND_CPU"}]}  # fmt: skip
    file = base64.b64encode(code.encode()).decode()
    attack = json.dumps({"parameters": {"config": json.dumps(config), "file:1/model.py": file}})
    load = f"{triton.http_url}/v2/repository/models/intruder/load"
    chat = f"{frontend.url}/v1/chat/completions"
    question = json.dumps({"messages": [{"role": "user", "content": "Who pays for this?"}]})

    page = browser.new_page()
    page.goto(elsewhere)
    told = {}
    for url, body in ((load, attack), (chat, question)):
        with page.expect_response(url) as answer:
            page.evaluate(SEND, [url, body])
        told[url] = answer.value.status
    # DNS rebinding: a name that the page owns leads to this machine, so that the page and our server are of one origin.
    told["rebound"] = page.goto(frontend.url.replace("127.0.0.1", "evil.example") + "/v1/models").status
    assert (told, marker.exists()) == ({load: 403, chat: 403, "rebound": 403}, False)

    request = urllib.request.Request(load, attack.encode(), triton.admin_headers)
    try:
        assert urllib.request.urlopen(request, timeout=60).status == 200 and marker.exists(), "the attack is a real one"
    except URLError as error:
        pytest.fail(f"{error}; {triton.pid = }; Triton's log ends\n{triton.log_path.read_text()[-4000:]}")
    request = urllib.request.Request(load.removesuffix("load") + "unload", b"{}", triton.admin_headers)
    assert urllib.request.urlopen(request, timeout=60).status == 200
    with pytest.raises(HTTPError, match="400"):  # from a program it reaches Triton: echo has no such inputs
        urllib.request.urlopen(urllib.request.Request(chat, question.encode()), timeout=60)
