"""`course serve` and `course ask` against the real server: they find each other, and nothing outlives them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from servinglab.assets import cache_dir

COURSE = [sys.executable, "-m", "course.cli"]
LONG = "Write a very long story about a fox and a dog."


def start(*arguments: str) -> subprocess.Popen:
    # A session of its own, as a shell gives a job: signals sent to the group reach everything in it.
    return subprocess.Popen([*COURSE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            start_new_session=True)  # fmt: skip


def tree(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive, [p.cmdline() for p in alive]


@pytest.fixture(scope="module", autouse=True)
def own_announcements(tmp_path_factory):
    """`course ask` takes the newest server that is announced in the cache: here only those of this file."""
    own = tmp_path_factory.mktemp("cache")
    for entry in cache_dir().iterdir():
        if entry.name != "run":
            (own / entry.name).symlink_to(entry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVINGLAB_CACHE", str(own))
        yield


@pytest.fixture(scope="module")
def served(own_announcements, repository):
    """`course serve` of the session's repository; yields (process, what it printed)."""
    process = start("serve", str(repository.parent))
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C"):
            break
    yield process, "".join(lines)
    if process.poll() is None:
        children = tree(process)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "stopped\n", "")
        assert_gone(children)


def ask(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([*COURSE, "ask", *arguments], capture_output=True, text=True, timeout=120)


def test_serve_says_where_it_is(served):
    _, printed = served
    assert "tensorrt_llm_bls" in printed and "http://127.0.0.1:" in printed and "grpc:" in printed


def test_ask_finds_it_and_answers_through_the_chat_template(served):
    done = ask("What is the capital of France?", "--max-tokens", "24")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "using the server at" in done.stderr and "system" not in done.stdout


def test_streamed_and_whole_answers_are_the_same(served):
    arguments = ("Name three fruits.", "--max-tokens", "24", "--top-k", "5", "--seed", "7")
    assert ask(*arguments).stdout == ask(*arguments, "--no-stream").stdout


def test_the_model_s_errors_are_one_line(served):
    done = ask("x", "--top-p", "100")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("course: ") and "100" in done.stderr


def test_a_model_that_is_not_there_is_named_beside_those_that_are(served):
    done = ask("x", "--model", "gemma-ensemble")
    assert done.returncode == 1
    assert "unknown model: 'gemma-preprocessing'" in done.stderr and "Ready: ensemble" in done.stderr


def test_no_proxy_of_the_environment_is_asked(served, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.setenv("ALL_PROXY", f"socks5://127.0.0.1:{proxy.getsockname()[1]}")
        done = ask("What is the capital of France?", "--max-tokens", "24")
        assert done.returncode == 0 and "using the server at" in done.stderr, done.stderr
        assert "Paris" in done.stdout
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_ask_ends_its_own_server_and_leaves_nothing(number, code, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = start("ask", LONG, "--max-tokens", "4000", "--precision", "int4")
    assert process.stdout.read(5), "the first words are there"
    children = tree(process)
    assert any("tritonserver" in " ".join(p.cmdline()) for p in children)
    assert list(tmp_path.glob("servinglab-*"))
    started = time.monotonic()
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code and "Traceback" not in err
    assert time.monotonic() - started < 20
    assert_gone(children)
    assert not list(tmp_path.glob("servinglab-*"))


def test_a_cancelled_ask_leaves_the_served_model_free(served):
    process = start("ask", LONG, "--max-tokens", "4000")
    assert process.stdout.read(5)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Paris" in ask("What is the capital of France?", "--max-tokens", "24").stdout


def test_a_model_process_that_dies_is_told(repository):
    process = start("serve", str(repository), "--model", "postprocessing")
    for line in process.stdout:
        if line.startswith("Ctrl-C"):
            break
    stub = next(p for p in tree(process) if "triton_python_backend_stub" in " ".join(p.cmdline()))
    stub.kill()
    assert "A model's Python process has died" in process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60) == ("stopped\n", "")
    assert process.returncode == 0
