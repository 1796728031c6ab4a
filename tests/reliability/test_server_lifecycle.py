"""A Triton is started, reported, refused or ended, and nothing of it stays: processes, stubs, shared memory, ports."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import nbformat
import papermill
import psutil
import pytest
import tritonclient.grpc
from server_traces import (
    CLEAN_SECONDS,
    START_AND_SLEEP,
    TINY_MODELS,
    Trace,
    broken_repository,
    free_port,
    run_owner,
    started,
)

from servinglab.server import process as triton_process
from servinglab.server import supervisor
from servinglab.server.process import LOGS_KEPT
from servinglab.server.triton import ServerError, TritonServer, running


def test_start_serves_both_models_on_loopback_only():
    with TritonServer(TINY_MODELS, timeout=60) as server:
        trace = Trace(server.pid)
        assert server.models() == ["counter", "echo"] and server.ready()
        with urllib.request.urlopen(server.metrics_url) as answer:
            assert b"nv_inference_count" in answer.read()
        listening = {c.laddr.ip for c in psutil.Process(server.pid).net_connections("tcp") if c.status == "LISTEN"}
        assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
        assert server.log_path.is_file()
        ports = [
            int(url.split(":")[-1].split("/")[0]) for url in (server.http_url, server.grpc_url, server.metrics_url)
        ]
    trace.assert_gone(0.5)
    for port in ports:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))


def test_start_and_stop_twice_have_no_further_effect():
    server = TritonServer(TINY_MODELS, models="echo", timeout=60)
    server.stop()
    try:
        assert server.start() is server
        pid, url = server.pid, server.grpc_url
        assert server.start().pid == pid and server.grpc_url == url
        trace = Trace(pid)
        server.stop()
        server.stop()
        trace.assert_gone(0.5)
        assert server.pid is None and server.grpc_url is None
        assert server.start().pid != pid and server.models() == ["echo"]
    finally:
        server.stop()


def test_two_servers_side_by_side_and_one_ends():
    with TritonServer(TINY_MODELS, models=["echo"], timeout=60) as first:
        with TritonServer(TINY_MODELS, models=["counter"], timeout=60) as second:
            traces = Trace(first.pid), Trace(second.pid)
            assert (first.models(), second.models()) == (["echo"], ["counter"])
        traces[1].assert_gone(0.5)
        assert first.ready() and traces[0].shm()


def test_attached_server_survives_stop():
    with TritonServer(TINY_MODELS, timeout=60) as server:
        for http_url in (None, server.http_url, server.http_url.removeprefix("http://")):
            attached = TritonServer.attach(server.grpc_url, http_url)
            with attached:
                assert attached.models() == ["counter", "echo"]
                assert attached.pid is None and attached.log_path is None
            attached.stop()
            assert attached.grpc_url == server.grpc_url
        assert server.ready()
        gone = server.grpc_url, server.http_url
    with pytest.raises(ServerError, match="No Triton answers"):
        TritonServer.attach(*gone)
    with pytest.raises(ServerError, match="No Triton answers"):
        TritonServer.attach(gone[0])


def unload(server, name, seconds=30.0):
    """Triton answers before the model is gone."""
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.unload_model(name, headers=server.admin_headers)
        deadline = time.monotonic() + seconds
        while any(e.name == name and e.state in ("READY", "UNLOADING") for e in index(client, server)):
            assert time.monotonic() < deadline, f"{name} is still unloading"
            time.sleep(0.05)
    assert name not in server.models()


def index(client, server):
    return client.get_model_repository_index(headers=server.admin_headers).models


def test_load_and_unload_on_demand(tmp_path):
    broken_repository(tmp_path, "fragile")
    with TritonServer(tmp_path, models=["echo"], timeout=60) as server:
        server.load("fragile")
        assert server.models() == ["echo", "fragile"]
        unload(server, "fragile")
        with pytest.raises(ServerError, match="not found"):
            server.load("absent")
        config = tmp_path / "fragile" / "config.pbtxt"
        config.write_text(config.read_text().replace("max_batch_size: 8", "max_batch_size: ${triton_max_batch_size}"))
        with pytest.raises(ServerError, match=r"config.pbtxt:\d+: \$\{triton_max_batch_size\} is not filled: "):
            server.load("fragile")
        assert server.ready() and server.models() == ["echo"]
    with pytest.raises(ServerError, match="not running"):
        server.load("echo")


# --- whoever dies, nothing stays -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_death_of_the_python_that_started_it(number):
    process = run_owner(START_AND_SLEEP)
    trace = started(process)
    process.send_signal(number)
    process.wait()
    trace.assert_gone()


def test_death_of_the_owner_while_a_fork_of_it_lives_on():
    """A multiprocessing worker inherits every pipe of the notebook process."""
    process = run_owner("""
        s.start(); print(s.pid, flush=True)
        if os.fork() == 0:
            os.close(1)
            time.sleep(60)
        print("forked", flush=True)
        time.sleep(60)
    """)
    trace = started(process)
    assert process.stdout.readline() == "forked\n"
    child = next(c for c in psutil.Process(process.pid).children() if c.pid != trace.supervisor.pid)
    process.kill()
    process.wait()
    try:
        trace.assert_gone()
    finally:
        child.kill()


def test_a_fork_neither_ends_the_server_nor_keeps_it():
    process = run_owner("""
        s.start(); print(s.pid, flush=True)
        if os.fork() == 0:
            s.stop()
            sys.exit(0)  # runs the exit handlers it inherited
        os.wait()
        print(s.ready(), flush=True)
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        began = time.monotonic()
        s.stop()
        print("stopped", time.monotonic() - began < 20, flush=True)
        time.sleep(60)
    """)
    trace = started(process)
    try:
        assert process.stdout.readline() == "True\n"
        assert process.stdout.readline() == "stopped True\n"
        trace.assert_gone(0.5)
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()


def test_death_of_the_supervisor():
    server = TritonServer(TINY_MODELS, timeout=60).start()
    trace = Trace(server.pid)
    trace.supervisor.kill()
    trace.assert_gone()
    assert server.pid is None and not server.ready()
    server.stop()


def test_death_of_supervisor_and_owner_leaves_only_what_the_next_start_removes():
    process = run_owner(START_AND_SLEEP)
    trace = started(process)
    trace.supervisor.kill()
    process.kill()
    process.wait()
    deadline = time.monotonic() + CLEAN_SECONDS
    while [x for x in trace.left() if x.isdigit()] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [x for x in trace.left() if x.isdigit()] == []
    with TritonServer(TINY_MODELS, models=["echo"], timeout=60):
        assert trace.shm() == []


def test_a_signal_to_end_that_everybody_gets_does_not_end_the_supervisor_before_its_work_is_done():
    """As a cluster's scheduler sends it to all processes of a job."""
    process = run_owner(START_AND_SLEEP)
    trace = started(process)
    trace.supervisor.terminate()
    process.terminate()
    process.wait()
    trace.assert_gone()


def test_death_of_tritonserver_and_a_new_start():
    server = TritonServer(TINY_MODELS, timeout=60).start()
    trace = Trace(server.pid)
    trace.triton.kill()
    trace.assert_gone()
    assert server.pid is None
    try:
        assert server.start().ready()
    finally:
        server.stop()


def test_hung_tritonserver_is_killed_in_bounded_time():
    server = TritonServer(TINY_MODELS, timeout=60).start()
    trace = Trace(server.pid)
    for process in [trace.triton, *trace.stubs]:
        process.suspend()
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < triton_process.GRACE_SECONDS + 3.5
    trace.assert_gone(0.5)


def test_interrupt_during_the_start(tmp_path):
    broken_repository(tmp_path, "slow", "import time\ntime.sleep(30)\n")
    process = run_owner(f"""
        s = TritonServer({str(tmp_path)!r}, timeout=60)
        import threading
        def report():
            while s._process is None: time.sleep(0.01)
            time.sleep(0.5)
            print(s._process.pid, flush=True)
        threading.Thread(target=report).start()
        try:
            s.start()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """, start_new_session=True)  # fmt: skip
    trace = started(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends Ctrl-C: to the whole foreground group
    assert process.stdout.readline() == "interrupted\n"
    trace.assert_gone(1.0)
    process.wait(5)


def test_interrupt_while_it_runs_reaches_only_the_python():
    process = run_owner("""
        with s:
            try:
                print(s.pid, flush=True)
                time.sleep(60)
            except KeyboardInterrupt:
                time.sleep(0.5)
                print("ready", s.ready(), flush=True)
                raise
    """, start_new_session=True, stderr=subprocess.DEVNULL)  # fmt: skip
    trace = started(process)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "ready True\n"
    process.wait(10)
    trace.assert_gone(0.5)


@pytest.mark.parametrize(
    "ending", ["", "raise RuntimeError('a cell fails')", "del s; import gc; gc.collect(); time.sleep(60)"]
)
def test_forgotten_stop(ending):
    look = "sys.stdin.readline()"  # the end is quick; first the processes are counted
    process = run_owner(
        f"s.start(); print(s.pid, flush=True); {look}\n{ending}", stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    trace = started(process)
    process.stdin.write("\n")
    process.stdin.flush()
    trace.assert_gone()
    process.kill()
    process.wait()


# --- what cannot start says why -----------------------------------------------------------------------------------


def test_a_taken_port_is_named_and_a_free_one_is_used():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for service in ("http", "grpc", "metrics"):
            with pytest.raises(ServerError, match=rf"port {port} for {service} .*another {service}_port"):
                TritonServer(TINY_MODELS, models=["echo"], **{f"{service}_port": port}).start()
    with pytest.raises(ServerError, match="port 99999 for http"):
        TritonServer(TINY_MODELS, http_port=99999).start()
    fixed = free_port()
    with TritonServer(TINY_MODELS, models=["echo"], grpc_port=fixed, timeout=60) as server:
        assert server.grpc_url == f"127.0.0.1:{fixed}" and server.ready()


@pytest.mark.parametrize("service", ["http", "grpc", "metrics"])
def test_port_stolen_between_choosing_and_binding(service, monkeypatch):
    """Triton itself finds the port taken: other free ones are tried, a fixed one is reported."""
    real, calls = triton_process.choose_ports, []
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", 0))
        thief.listen()
        port = thief.getsockname()[1]

        def choose(fixed):
            calls.append(1)
            free = real({name: None for name in fixed})
            return {**free, service: port} if len(calls) == 1 else free

        monkeypatch.setattr("servinglab.server.process.choose_ports", choose)
        with TritonServer(TINY_MODELS, models=["echo"], timeout=60) as server:
            assert len(calls) == 2 and server.ready()
        calls.clear()
        with pytest.raises(ServerError, match=f"port {port} for {service}"):
            TritonServer(TINY_MODELS, models=["echo"], timeout=60, **{f"{service}_port": port}).start()


ABORTS = "printf 'terminate called after throwing an instance of X\\n  what():  boost: lock\\n'; kill -6 $$"


def test_a_server_that_aborts_is_started_once_more(monkeypatch):
    commands, command = [], TritonServer._command

    def some(self, names, ports):
        found = command(self, names, ports)
        commands.append(found[0])
        return (["bash", "-c", ABORTS], found[1]) if len(commands) <= aborts else found

    monkeypatch.setattr(TritonServer, "_command", some)
    aborts = 1
    with TritonServer(TINY_MODELS, models="echo", timeout=60) as server:
        assert server.ready() and len(commands) == 2
    commands, aborts = [], 9
    with pytest.raises(ServerError, match=r"did not start: it ended itself \(boost: lock\). Its log: "):
        TritonServer(TINY_MODELS, models="echo", timeout=60).start()
    assert len(commands) == 2


def test_repository_that_is_missing_empty_or_a_file(tmp_path):
    for where, words in [
        (tmp_path / "absent", "Cannot read .*No such file"),
        (tmp_path, "No model in"),
        (Path(__file__), "Cannot read .*Not a directory"),
    ]:
        with pytest.raises(ServerError, match=words) as caught:
            TritonServer(where).start()
        assert str(where) in str(caught.value)
    with pytest.raises(ServerError, match="No model 'ensembel' in .*it holds counter, echo"):
        TritonServer(TINY_MODELS, models=["ensembel"]).start()


def test_repository_without_permission(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o700)
    tmp_path.chmod(0o711)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o711)
    code = f"""
        import os
        from servinglab.server.triton import TritonServer, ServerError
        if os.getuid() == 0:
            os.seteuid(65534)
        else:
            os.chmod({str(tmp_path / "closed")!r}, 0)
        try:
            TritonServer({str(tmp_path / "closed")!r}).start()
        except ServerError as error:
            print(error)
    """
    answer = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert "Cannot read" in answer.stdout and "Permission denied" in answer.stdout, answer.stderr


def test_folders_that_are_no_models_are_left_alone(tmp_path):
    """`_assets` inside a repository stops Triton's default mode, and Jupyter drops .ipynb_checkpoints everywhere."""
    broken_repository(tmp_path, "good")
    (tmp_path / "_assets" / "gpt2" / "tokenizer").mkdir(parents=True)
    shutil.copytree(tmp_path / "good", tmp_path / ".ipynb_checkpoints")
    with TritonServer(tmp_path, timeout=60) as server:
        assert server.models() == ["echo", "good"]


@pytest.mark.parametrize(
    "script, words",
    [
        (
            "class TritonPythonModel:\n  def initialize(self, args):\n    raise ValueError('no engine: build it')",
            r"model 'bad' failed to load: ValueError: no engine: build it \(in .*bad/1/model.py, line 3\)",
        ),
        ("def broken(:", "model 'bad' failed to load: SyntaxError: invalid syntax"),
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("import os\nos.kill(os.getpid(), 9)", "(model 'bad' failed to load: its|a model's) Python process died"),
        ("pass", "model 'bad' failed to load: .*TritonPythonModel"),
    ],
)
def test_a_model_that_fails_to_load_gives_its_own_sentence(tmp_path, script, words):
    broken_repository(tmp_path, "bad", script)
    server = TritonServer(tmp_path, timeout=60)
    with pytest.raises(ServerError, match=words) as caught:
        server.start()
    message = str(caught.value)
    assert str(server.log_path) in message and "\n" not in message and "Traceback" not in message
    (prefix,) = re.findall(r'"shm-region-prefix-name":"([^"]+)"', server.log_path.read_text())
    assert not [f for f in os.listdir("/dev/shm") if f.startswith(prefix)]


@pytest.mark.parametrize(
    "config, words",
    [
        (
            'name: "bad"\nmax_batch_size: ${n}\n',
            r"bad/config.pbtxt:2: \$\{n\} is not filled: course repo fill .* n=…",
        ),
        ('name: "worse"\nbackend: "python"\n', "unexpected directory name 'bad' for model 'worse'"),
        (
            'name: "bad"\nbackend: "onnxruntime"\n',
            "backend library for backend 'onnxruntime'; the embedded lane has only python and tensorrtllm",
        ),
    ],
)
def test_a_configuration_that_is_wrong_gives_triton_s_reason(tmp_path, config, words):
    broken_repository(tmp_path, "bad", config=config)
    with pytest.raises(ServerError, match=words):
        TritonServer(tmp_path, timeout=60).start()


def test_timeout_says_which_model_is_late(tmp_path):
    broken_repository(tmp_path, "slow", "import time\ntime.sleep(60)\n")
    began = time.monotonic()
    with pytest.raises(ServerError, match="was not ready after 6 s, still loading: slow"):
        TritonServer(tmp_path, timeout=6).start()
    assert time.monotonic() - began < 20


# --- where it runs ------------------------------------------------------------------------------------------------


def test_without_home_and_with_a_hostile_environment(tmp_path):
    """No HOME, a PYTHONPATH whose `numpy` is broken, a PYTHONHOME that does not exist for Triton."""
    (tmp_path / "numpy.py").write_text("raise ImportError('the wrong numpy')")
    env = {"PATH": "/usr/bin:/bin", "SERVINGLAB_CACHE": str(tmp_path / "cache")}
    code = f"""
        import os
        from servinglab.server import TritonServer
        os.environ["PYTHONPATH"] = {str(tmp_path)!r}
        os.environ["PYTHONHOME"] = "/nonexistent"
        with TritonServer({str(TINY_MODELS)!r}, timeout=60) as s:
            print(s.models(), s.log_path)
    """
    answer = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=env)
    assert answer.stdout.startswith("['counter', 'echo']"), answer.stderr
    assert str(tmp_path / "cache") in answer.stdout


def test_a_tiny_dev_shm_is_noticed_before_the_start():
    """In a mount namespace of its own, with 2 MiB of shared memory, as a container with a small --shm-size has."""
    code = f"""
        from servinglab.server.triton import TritonServer, ServerError
        try:
            TritonServer({str(TINY_MODELS)!r}, timeout=60).start()
        except ServerError as error:
            print(error)
    """
    script = 'mount -t tmpfs -o size=2m tmpfs /dev/shm && exec "$0" -c "$1"'
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, sys.executable, textwrap.dedent(code)]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode and "ServerError" not in answer.stderr:
        pytest.skip(f"cannot mount here: {answer.stderr.strip()}")
    assert "/dev/shm has 2 MiB free" in answer.stdout and "--shm-size" in answer.stdout


def test_announced_server_is_found_until_it_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path))
    assert running() == []
    with TritonServer(TINY_MODELS, timeout=60) as server:
        assert running() == []
        path = server.announce()
        found = running()
        assert [f.grpc_url for f in found] == [server.grpc_url]
        assert found[0].http_url == server.http_url
        found[0].stop()
        assert server.ready()
    assert running() == [] and not path.exists()
    other = path.with_name(f"server-1-{supervisor.pid_namespace()}-{os.getpid()}-1.json")
    other.write_text("{}")  # the process id now belongs to another program
    assert running() == [] and not other.exists()


def test_logs_do_not_pile_up_and_running_ones_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path))
    (tmp_path / "run").mkdir()
    for i in range(LOGS_KEPT + 10):
        (tmp_path / "run" / f"triton-20200101-{i:06}-{2**22 + 1}-1.log").write_text("old")
    oldest = tmp_path / "run" / f"triton-20190101-000000-{os.getpid()}-1.log"  # `course serve` for a long time
    oldest.write_text("")
    with TritonServer(TINY_MODELS, models=["echo"], timeout=60) as server:
        logs = list((tmp_path / "run").glob("triton-*.log"))
        assert len(logs) == LOGS_KEPT + 1 and server.log_path in logs and oldest in logs


def test_log_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path / "file"))
    with pytest.raises(ServerError, match="Cannot write the log .*file/run.*: set SERVINGLAB_CACHE"):
        TritonServer(TINY_MODELS).start()


@pytest.mark.parametrize("last_cell", ["", "raise RuntimeError('a cell fails')"])
def test_end_of_a_papermill_run(tmp_path, last_cell):
    first = f"from servinglab.server import TritonServer\ns = TritonServer({str(TINY_MODELS)!r}, timeout=60).start()\n"
    cells = [nbformat.v4.new_code_cell(source) for source in (first + "print(s.pid)", last_cell)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "in.ipynb")
    with pytest.raises(papermill.PapermillExecutionError) if last_cell else contextlib.nullcontext():
        papermill.execute_notebook(tmp_path / "in.ipynb", tmp_path / "out.ipynb", progress_bar=False)
    done = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    pid = int(next(o.text for cell in done.cells for o in cell.get("outputs", []) if o.get("name") == "stdout"))

    def left() -> bool:
        stubs = [p for p in psutil.process_iter(["cmdline"]) if str(pid) in (p.info["cmdline"] or [])]
        return supervisor.start_time(pid) is not None or bool(stubs)

    deadline = time.monotonic() + CLEAN_SECONDS
    while left() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left()


@pytest.mark.parametrize("way", ["start", "load"])
def test_a_model_without_its_python_file_is_named_at_once(tmp_path, way):
    repository = broken_repository(tmp_path / "repository", "empty")
    (repository / "empty" / "1" / "model.py").unlink()
    began = time.monotonic()
    with pytest.raises(ServerError, match=r"no model\.py: .*empty/1/model\.py does not exist"):
        if way == "start":
            TritonServer(repository, timeout=60).start()
        else:
            with TritonServer(repository, models=["echo"], timeout=60) as server:
                server.load("empty")
    assert time.monotonic() - began < 30  # Triton itself would never answer


def test_a_model_unloads_after_streams_that_ended_by_themselves(tmp_path):
    from triton_client import TritonClient

    with TritonServer(TINY_MODELS, timeout=60) as server, TritonClient(server.grpc_url) as client:
        for _ in range(20):
            values = {"text_input": "abc", "max_tokens": 3}
            assert [chunk.text for chunk in client.stream_inputs("counter", values)][:3] == ["a", "b", "c"]
        unload(server, "counter", seconds=10)
