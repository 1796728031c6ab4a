"""Who may administer a server: only a client with its key. Whoever may load a model runs code as the server's user."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from servinglab.server import supervisor
from servinglab.server.triton import ServerError, TritonServer, running
from triton_client import TritonClient

TINY_MODELS = Path(__file__).parents[1] / "models"
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server():
    with TritonServer(TINY_MODELS) as started:
        yield started


def post(url: str, headers: dict[str, str], body: dict | None = None) -> int:
    data = json.dumps(body or {}).encode()
    try:
        return urllib.request.urlopen(urllib.request.Request(url, data=data, headers=headers), timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code


# Triton's own documentation of each extension lists its addresses; a GET is a request without a body.
GUARDED_HTTP = [
    "/v2/repository/index", "/v2/repository/models/echo/load", "/v2/repository/models/echo/unload", "/v2/logging",
    "/v2/trace/setting", "/v2/models/echo/trace/setting", "/v2/systemsharedmemory/status",
    "/v2/systemsharedmemory/region/x/register", "/v2/systemsharedmemory/unregister", "/v2/cudasharedmemory/status",
    "/v2/cudasharedmemory/region/x/register", "/v2/cudasharedmemory/unregister",
]  # fmt: skip
GUARDED_GRPC = {
    "get_model_repository_index": (), "load_model": ("echo",), "unload_model": ("echo",), "get_log_settings": (),
    "update_log_settings": ({"log_verbose_level": 1},), "get_trace_settings": (), "update_trace_settings": ("echo",),
    "get_system_shared_memory_status": (), "register_system_shared_memory": ("x", "/x", 1),
    "unregister_system_shared_memory": (), "get_cuda_shared_memory_status": (),
    "register_cuda_shared_memory": ("x", b"", 0, 1), "unregister_cuda_shared_memory": (),
}  # fmt: skip


@pytest.mark.parametrize("path", GUARDED_HTTP)
def test_over_http_the_key_opens_what_is_closed_without_it(server, path):
    for wrong in ({}, {"servinglab-admin": "guess"}, {"servinglab-admin": ""}):
        assert post(server.http_url + path, wrong) == 403
    assert post(server.http_url + path, server.admin_headers) != 403
    server.load("echo")


@pytest.mark.parametrize("name", GUARDED_GRPC)
def test_over_grpc_the_key_opens_what_is_closed_without_it(server, name):
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        for wrong in ({}, {"triton-grpc-protocol-servinglab-admin": "guess"}):
            with pytest.raises(InferenceServerException, match="restricted"):
                getattr(client, name)(*GUARDED_GRPC[name], headers=wrong)
        try:
            getattr(client, name)(*GUARDED_GRPC[name], headers=server.admin_headers)
        except InferenceServerException as error:
            assert "restricted" not in str(error)
    server.load("echo")


def test_asking_stays_open(server):
    with TritonClient(server.grpc_url, server.http_url) as client:
        assert client.models() == ["counter", "echo"]
    with tritonclient.http.InferenceServerClient(server.http_url.removeprefix("http://")) as client:
        assert client.is_server_ready() and client.get_model_config("echo")["name"] == "echo"


STRANGER = """
import encodings.idna, json, os, pathlib, sys, urllib.error, urllib.request  # later they are out of reach
os.setgid(65534); os.setuid(65534)
url, pid, prefix, body = sys.argv[1:]
told = {}
try:
    request = urllib.request.Request(url + "/v2/repository/models/intruder/load", data=body.encode())
    told["load"] = urllib.request.urlopen(request, timeout=20).status
except urllib.error.HTTPError as error:
    told["load"] = error.code
told["ask"] = urllib.request.urlopen(url + "/v2/models/echo/config", timeout=20).status
told["words"] = []
for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        told["words"].append(file.read_text(errors="replace"))
    except OSError:  # it has ended
        pass
for name, path in {"environ": f"/proc/{pid}/environ", "shm": next(pathlib.Path("/dev/shm").glob(prefix + "*"))}.items():
    try:
        open(path, "rb").read(1)
        told[name] = "read"
    except PermissionError:
        told[name] = "refused"
print(json.dumps(told))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_another_user_of_the_machine_neither_loads_a_model_nor_finds_the_key(server, tmp_path):
    marker = tmp_path / "intruder-was-here"
    code = f"open({str(marker)!r}, 'w').close()\nclass TritonPythonModel:\n    def execute(self, requests): return []\n"
    config = {"name": "intruder", "backend": "python", "max_batch_size": 0, "input": [], "output": [],
              "instance_group": [{"kind": "KIND_CPU"}]}  # fmt: skip
    file = base64.b64encode(code.encode()).decode()
    load = {"parameters": {"config": json.dumps(config), "file:1/model.py": file}}
    prefix = f"servinglab-{os.stat('/proc/self/ns/pid').st_ino}-{supervisor_of(server)}-"
    deadline = time.monotonic() + 20  # shared memory is closed a moment after Triton made it
    while any(path.stat().st_mode & 0o077 for path in supervisor.SHM.glob(prefix + "*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    argv = [sys.executable, "-I", "-S", "-c", STRANGER, server.http_url, str(server.pid), prefix, json.dumps(load)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["load"], told["ask"]) == (403, 200) and not marker.exists()
    assert (told["environ"], told["shm"]) == ("refused", "refused")
    words = told["words"]
    assert any("servinglab-admin={key}" in word for word in words) and not any(server.admin_key in w for w in words)
    # The same request with the key is what an intruder would have: it does run the code.
    assert post(f"{server.http_url}/v2/repository/models/intruder/load", server.admin_headers, load) == 200
    assert marker.exists()
    assert post(f"{server.http_url}/v2/repository/models/intruder/unload", server.admin_headers) == 200


def supervisor_of(server) -> int:
    import psutil

    return psutil.Process(server.pid).ppid()


def test_each_server_has_a_key_of_its_own_and_only_its_user_reads_it(server, tmp_path, monkeypatch):
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path))
    state = server.announce()
    assert server.admin_key not in state.read_text() + server.log_path.read_text()
    assert stat.S_IMODE(server.log_path.stat().st_mode) == 0o600
    deadline = time.monotonic() + 60
    while not (found := running()):  # on a busy machine it may not answer at once
        assert time.monotonic() < deadline
    (stranger,) = found
    TritonServer.attach(server.grpc_url, admin_key=server.admin_key).load("echo")
    assert stranger.models() == ["counter", "echo"]
    with pytest.raises(ServerError, match=r"wants a key for that: .*admin_key=…\) that of"):
        stranger.load("echo")
    before = server.admin_key
    with TritonServer(TINY_MODELS, models=["echo"]) as other:
        assert other.admin_key != before and len(other.admin_key) >= 32


def test_where_tracing_is_forbidden_the_server_still_has_its_key(monkeypatch, tmp_path):
    """Then the key stands in the command line, as Triton wants it."""
    source, trace_me = Path(supervisor.__file__).read_text(), "ptrace(PTRACE_TRACEME, "
    assert trace_me in source
    (tmp_path / "supervisor.py").write_text(source.replace(trace_me, "ptrace(-5, "))
    monkeypatch.setattr(supervisor, "__file__", str(tmp_path / "supervisor.py"))
    with TritonServer(TINY_MODELS, models=["echo"]) as server:
        assert server.admin_key in Path(f"/proc/{server.pid}/cmdline").read_text()
        assert post(server.http_url + "/v2/repository/index", {}) == 403
        assert server.models() == ["echo"]
