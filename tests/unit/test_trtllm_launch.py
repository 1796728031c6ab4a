"""`course serve --lane trtllm`: the mpirun command, what is refused, a start with stand-ins for mpirun and Triton."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import psutil
import pytest
from repository_helpers import engine, spec
from typer.testing import CliRunner

from course import cli
from servinglab.repository import build, write_templates
from servinglab.server import TritonServer, supervisor
from servinglab.server.install import ServerError
from servinglab.server.launch import TrtllmServer, mpirun_command

ROOT = Path(__file__).resolve().parents[2]
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
PORT_FLAGS = "--grpc-port=8001 --http-port=8000 --metrics-port=8002"
ADDRESSES = "--grpc-address=127.0.0.1 --http-address=127.0.0.1 --metrics-address=127.0.0.1"
SERVER = f"/opt/tritonserver/bin/tritonserver --model-repository=/repo {PORT_FLAGS} {ADDRESSES}"
TAIL = "--disable-auto-complete-config --backend-config=python,shm-region-prefix-name="
GUARDED = "model-repository,shared-memory,trace,logging:servinglab-admin="
KEY = f" --http-restricted-api={GUARDED}{{key}} --grpc-restricted-protocol={GUARDED}{{key}}"


# --- the command line, as literal strings -----------------------------------------------------------------------------


def command(repository, world_size=1, *, llms=("tensorrt_llm",), as_root=False, ports=PORTS, **words):
    with mock.patch("os.geteuid", return_value=0 if as_root else 1000):
        return mpirun_command(repository, llms, world_size, ports, **words)


def test_one_rank():
    assert " ".join(command("/repo")) == f"mpirun -n 1 {SERVER} {TAIL}prefix0_{KEY}"


def test_four_ranks_the_first_serves_and_the_others_load_the_llm_only():
    worker = f"{SERVER} --model-control-mode=explicit --load-model=tensorrt_llm {TAIL}prefix"
    assert " ".join(command("/repo", 4)) == (
        f"mpirun -n 1 {SERVER} {TAIL}prefix0_{KEY} : -n 1 {worker}1_{KEY} : -n 1 {worker}2_{KEY} : -n 1 {worker}3_{KEY}"
    )


def test_the_flags_of_nvidias_script_in_its_order():
    """launch_triton_server.py --world_size 2, without its repeated ports, with our addresses and our key taken out."""
    ours = ("-address=", "-restricted-")
    words = [word for word in command("/repo", 2, as_root=True) if not any(flag in word for flag in ours)]
    assert " ".join(words) == (
        "mpirun --allow-run-as-root "
        "-n 1 /opt/tritonserver/bin/tritonserver --model-repository=/repo "
        "--grpc-port=8001 --http-port=8000 --metrics-port=8002 "
        "--disable-auto-complete-config --backend-config=python,shm-region-prefix-name=prefix0_ : "
        "-n 1 /opt/tritonserver/bin/tritonserver --model-repository=/repo "
        "--grpc-port=8001 --http-port=8000 --metrics-port=8002 "
        "--model-control-mode=explicit --load-model=tensorrt_llm "
        "--disable-auto-complete-config --backend-config=python,shm-region-prefix-name=prefix1_"
    )


def test_several_llms_other_ports_and_addresses():
    ports = {"http": 1, "grpc": 2, "metrics": 3}
    words = command("/repo", 2, llms=["a", "b"], ports=ports, address="0.0.0.0", tritonserver="t", mpirun="m")
    assert words[:4] == ["m", "-n", "1", "t"]
    second = words[words.index(":") :]
    assert "--load-model=a" in second and "--load-model=b" in second
    for flag in ("--http-port=1", "--grpc-port=2", "--metrics-port=3", "--http-address=0.0.0.0"):
        assert words.count(flag) == 2


def test_the_shell_form_reads_back_as_the_same_words(tp2):
    made, run = TrtllmServer(tp2).as_shell().split("\n", 1)
    assert made == "ADMIN_KEY=$(openssl rand -hex 24)" and len(run.splitlines()) == 3
    shown = [word.replace("{key}", "$ADMIN_KEY") for word in mpirun_command(tp2, ["tensorrt_llm"], 2, PORTS)]
    assert shlex.split(run.replace("\\\n", "")) == shown
    assert "'" not in run  # in quotes the shell would not put the key in


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.fixture
def tp2(tmp_path) -> Path:
    """A repository of the trtllm lane whose engine has two ranks."""
    return build(spec(tmp_path, engine_dir=engine(tmp_path / "engine", ranks=2)), tmp_path / "root")


def test_the_world_size_is_the_engines(tp2):
    assert TrtllmServer(tp2).world_size == TrtllmServer(tp2, world_size=2).world_size == 2
    with pytest.raises(ServerError, match=r"tensorrt_llm was built for 2 rank\(s\) \(tp × pp\), not 4"):
        TrtllmServer(tp2, world_size=4)


def test_tp_times_pp_counts_where_the_mapping_has_no_world_size(tp2, tmp_path):
    config = json.loads((tmp_path / "engine" / "config.json").read_text())
    config["pretrained_config"]["mapping"] = {"tp_size": 2, "pp_size": 2}
    (tmp_path / "engine" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ServerError, match="lacks rank2.engine, rank3.engine: "):
        TrtllmServer(tp2)


@pytest.mark.parametrize(
    "mapping",
    [{"world_size": 10**9}, {"world_size": "4"}, {"world_size": -1}, {"world_size": 1.5}, []],
)
def test_a_mapping_that_names_no_number_of_ranks_is_refused_at_once(tp2, tmp_path, mapping):
    config = json.loads((tmp_path / "engine" / "config.json").read_text())
    config["pretrained_config"]["mapping"] = mapping
    (tmp_path / "engine" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ServerError, match="lacks a readable config.json with a world size from 1 to 1024: "):
        TrtllmServer(tp2)


@pytest.mark.parametrize("world_size", [10**9, 0, -1])
def test_a_world_size_that_no_machine_has_is_refused_at_once(tp2, tmp_path, world_size):
    (tmp_path / "engine").rename(tmp_path / "elsewhere")
    with pytest.raises(ServerError, match=f"world size must be from 1 to 1024, not {world_size}"):
        TrtllmServer(tp2, world_size=world_size)


def test_unfilled_templates_are_refused_with_file_and_line(tmp_path):
    repository = write_templates(tmp_path / "model_repository")
    with pytest.raises(ServerError, match=r"ensemble/config.pbtxt:\d+: \$\{\w+\} is not filled.*course repo fill"):
        TrtllmServer(repository)


def test_a_repository_without_a_tensorrt_llm_engine_is_refused(tmp_path):
    folder = engine(tmp_path / "engine")
    repository = build(spec(tmp_path, engine_dir=folder), tmp_path / "root")
    (folder / "rank0.engine").unlink()
    with pytest.raises(ServerError, match="lacks rank0.engine: "):
        TrtllmServer(repository)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ServerError, match="lacks a readable config.json"):
        TrtllmServer(repository)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ServerError, match="no TensorRT-LLM model"):
        TrtllmServer(tmp_path / "empty")


def test_an_engine_that_is_not_named_is_told(tp2):
    config = tp2 / "tensorrt_llm" / "config.pbtxt"
    config.write_text(config.read_text().replace('"gpt_model_path"', '"gpt_model_pth"'))
    with pytest.raises(ServerError, match="has no gpt_model_path"):
        TrtllmServer(tp2)


def test_dry_run_needs_neither_programs_nor_the_engine(tp2, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (tmp_path / "engine").rename(tmp_path / "elsewhere")
    done = CliRunner().invoke(cli.app, ["serve", str(tp2), "--lane", "trtllm", "--world-size", "2", "--dry-run"])
    assert done.exit_code == 0, done.exception
    run = done.output.split("\n", 1)[1]
    assert shlex.split(run.replace("\\\n", "")) == [word.replace("{key}", "$ADMIN_KEY") for word in command(tp2, 2)]


def test_without_the_engine_nobody_guesses_how_many_ranks_it_has(tp2, tmp_path):
    (tmp_path / "engine").rename(tmp_path / "elsewhere")
    done = CliRunner().invoke(cli.app, ["serve", str(tp2), "--lane", "trtllm", "--dry-run"])
    assert done.exit_code == 1 and "does not exist on this machine: give its number of ranks" in str(done.exception)
    assert "--world-size" in str(done.exception) and done.output == ""


@pytest.mark.parametrize("damage, said", [
    (lambda folder: (folder / "rank1.engine").write_bytes(b""), "has nothing in rank1.engine"),
    (lambda folder: (folder / "config.json").write_text(json.dumps(
        {"pretrained_config": {"mapping": {"world_size": 2, "tp_size": 4, "pp_size": 1}}}
    )), r"says world_size 2 and tp × pp × cp = 4"),
])  # fmt: skip
def test_an_engine_that_is_not_whole_is_refused_before_a_command_is_shown(tp2, tmp_path, damage, said):
    damage(tmp_path / "engine")
    with pytest.raises(ServerError, match=said):
        TrtllmServer(tp2)


def test_without_the_programs_one_sentence_names_the_container(tp2, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(cli.app, ["serve", str(tp2), "--lane", "trtllm"])
    message = str(done.exception)
    assert "mpirun and tritonserver cannot be found here" in message and "\n" not in message
    assert "Dockerfiles/README.md" in message
    monkeypatch.setenv("SERVINGLAB_LANE", "trtllm")
    with pytest.raises(ServerError, match="NVIDIA's container, and tritonserver cannot be found here"):
        TritonServer(tp2).start()  # as a notebook does


@pytest.mark.parametrize(
    "arguments", [["--world-size", "2"], ["--dry-run"], ["--all-interfaces"], ["--lane", "trtllm", "--model", "x"]]
)
def test_options_of_the_other_lane_are_refused(tp2, arguments):
    assert "is no option of the lane" in str(CliRunner().invoke(cli.app, ["serve", str(tp2), *arguments]).exception)


def test_an_unknown_lane_is_refused(tp2):
    assert "no lane 'gpu'" in str(CliRunner().invoke(cli.app, ["serve", str(tp2), "--lane", "gpu"]).exception)


# --- processes: stand-ins on the PATH ---------------------------------------------------------------------------------

# Like Open MPI: each rank in a process group of its own; SIGTERM is passed on; a rank that ends takes the others along.
MPIRUN = """
import os, signal, subprocess, sys
blocks, words = [[]], [word for word in sys.argv[1:] if word != "--allow-run-as-root"]
for word in words:
    blocks.append([]) if word == ":" else blocks[-1].append(word)
assert all(block[:2] == ["-n", "1"] for block in blocks), words
ranks = [subprocess.Popen(block[2:], preexec_fn=os.setpgrp) for block in blocks]
open(os.environ["FAKE_PIDS"], "w").write(" ".join(str(rank.pid) for rank in ranks) + "\\n")
def leave(*_):
    for rank in ranks:
        rank.terminate()
signal.signal(signal.SIGTERM, leave)
os.wait()
leave()
"""
# Rank 0 answers as Triton does; the others only wait, and one of them does not heed SIGTERM.
TRITON = """
import http.server, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
flags = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:] if "=" in word)
if "model-control-mode" in flags:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
if os.environ.get("FAKE_FAILS"):
    print("E1128 05:00:00.000000 1 model_lifecycle.cc:654] \\"failed to load 'tensorrt_llm' version 1: Internal: "
          "unexpected error when creating modelInstanceState: Assertion failed: mpiSize == tp * pp\\"", file=sys.stderr)
    sys.exit(1)
import grpc
from tritonclient.grpc import service_pb2 as pb, service_pb2_grpc as service
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
class Index(service.GRPCInferenceServiceServicer):
    def ModelStatistics(self, request, context):
        answer = pb.ModelStatisticsResponse()
        answer.model_stats.add(name="ensemble", version="1")
        return answer
    def ServerReady(self, request, context):
        return pb.ServerReadyResponse(ready=True)
server = grpc.server(ThreadPoolExecutor(2))
service.add_GRPCInferenceServiceServicer_to_server(Index(), server)
server.add_insecure_port(f"{flags['grpc-address']}:{flags['grpc-port']}")
server.start()
for name in ("http", "metrics"):
    found = http.server.ThreadingHTTPServer((flags[f"{name}-address"], int(flags[f"{name}-port"])), Handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
print("I1128 05:00:00.000000 1 http_server.cc:320] \\"Started Metrics Service at here\\"", file=sys.stderr, flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """mpirun and tritonserver on the PATH; returns the pids of the ranks, once they run."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("mpirun", MPIRUN), ("tritonserver", TRITON)):
        (folder / name).write_text(f"#!{sys.executable}\n{text}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_PIDS", str(tmp_path / "pids"))
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path / "cache"))

    def ranks() -> list[int]:
        wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().endswith("\n"))
        return [int(pid) for pid in (tmp_path / "pids").read_text().split()]

    return ranks


def wait_until(condition, seconds: float = 20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if supervisor.start_time(pid)]


def served(repository: Path, ports: dict[str, int], **options) -> TrtllmServer:
    return TrtllmServer(repository, **{f"{name}_port": port for name, port in ports.items()}, **options)


def free_ports() -> dict[str, int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
    found = dict(zip(PORTS, (s.getsockname()[1] for s in sockets), strict=True))
    for each in sockets:
        each.close()
    return found


def test_it_starts_becomes_ready_and_takes_every_rank_with_it(tp2, programs):
    ports = free_ports()
    with served(tp2, ports, timeout=30) as server:
        typed = server.command_line.split()
        assert typed[0].endswith("mpirun") and typed.count("tritonserver") == 2, "one for each rank"
        assert any(word.endswith("=$ADMIN_KEY") for word in typed)
        assert server.ready() and server.models() == ["ensemble"]
        assert server.http_url == f"http://127.0.0.1:{ports['http']}"
        ranks = programs()
        assert len(alive(ranks)) == 2
        assert all("servinglab-" in " ".join(psutil.Process(pid).cmdline()) for pid in ranks)
        assert all(addr.laddr.ip.endswith("127.0.0.1") for addr in psutil.Process(ranks[0]).net_connections("tcp"))
    assert alive(ranks) == []  # also the rank that ignores SIGTERM, in a process group of its own
    server.stop()


def test_a_failure_gives_the_logs_reason_and_leaves_nothing(tp2, programs, monkeypatch):
    monkeypatch.setenv("FAKE_FAILS", "1")
    with pytest.raises(ServerError, match=r"Triton did not start: model 'tensorrt_llm' .*mpiSize == tp \* pp"):
        served(tp2, free_ports(), timeout=30).start()
    wait_until(lambda: not alive(programs()), 5)


def test_a_taken_port_is_a_sentence(tp2, programs):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = free_ports() | {"grpc": taken.getsockname()[1]}
        with pytest.raises(ServerError, match=f"cannot use port {ports['grpc']} for grpc"):
            served(tp2, ports).start()


def test_an_engine_that_is_not_here_is_refused_before_the_start(tp2, tmp_path, programs):
    (tmp_path / "engine").rename(tmp_path / "elsewhere")
    with pytest.raises(ServerError, match="does not exist on this machine"):
        TrtllmServer(tp2, world_size=2).start()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_command_serves_and_leaves_nothing_however_it_ends(tp2, programs, number):
    ports = free_ports()
    arguments = ["--lane", "trtllm", "--world-size", "2", *(f"--{name}-port={port}" for name, port in ports.items())]
    process = subprocess.Popen(
        [sys.executable, "-m", "course.cli", "serve", str(tp2), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        lines = []
        while not any("Ctrl-C stops it" in line for line in lines):
            line = process.stdout.readline()
            assert line, lines
            lines.append(line)
        assert f"grpc:    127.0.0.1:{ports['grpc']}\n" in lines
        ranks = programs()
        assert len(alive(ranks)) == 2
        process.send_signal(number)
        process.wait(30)
        wait_until(lambda: not alive(ranks), 15)
        if number == signal.SIGINT:
            assert process.returncode == 0
    finally:
        process.kill()
        process.stdout.close()


def test_a_killed_supervisor_leaves_no_rank_either(tp2, programs):
    server = served(tp2, free_ports(), timeout=30).start()
    ranks = programs()
    psutil.Process(server.pid).parent().kill()
    wait_until(lambda: not alive(ranks), 10)
    server.stop()
