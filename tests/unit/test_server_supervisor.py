"""The supervisor alone, with a script in place of tritonserver."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time

import psutil
import pytest

from servinglab.server import supervisor


def start(tmp_path, script: str, grace: float = 1.0, argv: list[str] | None = None):
    """A supervisor whose server runs `script`; returns it and its first answer."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    argv = argv or ["/bin/bash", "-c", script, "{shm_prefix}"]
    order = {"argv": argv, "env": dict(os.environ), "log": str(tmp_path / "log"), "grace": grace}
    process.stdin.write(json.dumps(order).encode() + b"\n")
    process.stdin.flush()
    return process, json.loads(process.stdout.readline())


def gone(pid: int, seconds: float = 3.0) -> bool:
    deadline = time.monotonic() + seconds
    while supervisor.start_time(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return supervisor.start_time(pid) is None


def wait_for(path, seconds: float = 20.0) -> str:
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.02)
    return path.read_text()


def test_orderly_stop_lets_the_server_finish(tmp_path):
    script = f"trap 'echo done > {tmp_path}/end; exit' TERM; echo up > {tmp_path}/up; while :; do sleep 0.05; done"
    process, answer = start(tmp_path, script, grace=30)
    wait_for(tmp_path / "up")
    process.stdin.write(b"stop\n")
    process.stdin.close()
    assert process.wait(20) == 0 and wait_for(tmp_path / "end") == "done\n"
    assert gone(answer["pid"], 0)


@pytest.mark.parametrize("word, grace", [(b"stop\n", 1.0), (b"", 1.0), (b"kill\n", 30.0)])
def test_a_server_that_ignores_the_signal_is_killed_with_its_children(tmp_path, word, grace):
    forever = "while :; do sleep 1; done"
    script = f"trap '' TERM; ({forever}) & echo $! > {tmp_path}/child; {forever}"  # ignored from the first moment on
    process, answer = start(tmp_path, script, grace)
    child = int(wait_for(tmp_path / "child"))
    shm = supervisor.SHM / (answer["shm_prefix"] + "x")
    shm.touch()
    began = time.monotonic()
    process.stdin.write(word)
    process.stdin.close()
    assert process.wait(20) == 0  # at once, if it is to kill
    assert word == b"kill\n" or time.monotonic() - began >= grace
    assert gone(answer["pid"], 0) and gone(child, 0) and not shm.exists()


def test_orphans_are_reaped(tmp_path):
    """A server that dies leaves its stubs to the supervisor, so that a container without an init keeps no zombie."""
    process, answer = start(tmp_path, f"sleep 30 & echo $! > {tmp_path}/child; sleep 0.2; kill -9 $$")
    child = int(wait_for(tmp_path / "child"))
    assert process.wait(20) == 0
    assert not psutil.pid_exists(child) and not psutil.pid_exists(answer["pid"])


def test_the_empty_folder_of_a_killed_server_goes_and_those_of_running_ones_stay(tmp_path):
    old, full, new = (tmp_path / f"python_env_{name}" for name in ("oldold", "fullfu", "newnew"))
    for folder, made in ((old, 100), (full, 100), (new, 300)):
        folder.mkdir()
        if folder is full:
            (folder / "x").touch()
        os.utime(folder, (made, made))
    supervisor.remove_forgotten(tmp_path, [200.0, 400.0])
    assert not old.exists() and full.is_dir() and new.is_dir()  # the first server that runs may have made it
    supervisor.remove_forgotten(tmp_path, [])
    assert not new.exists() and full.is_dir()


def test_running_servers_are_known_by_when_they_began(tmp_path):
    server = tmp_path / "tritonserver"
    shutil.copy(shutil.which("sleep"), server)
    before = time.time()
    with subprocess.Popen([server, "30"]) as running:
        try:
            assert any(abs(began - before) < 5 for began in supervisor._tritons())
        finally:
            running.kill()


def test_a_server_that_cannot_be_executed(tmp_path):
    process, answer = start(tmp_path, "", argv=[str(tmp_path / "absent")])
    assert "No such file" in answer["error"] and process.wait(20) == 0


def test_killed_supervisor_takes_the_server_with_it(tmp_path):
    process, answer = start(tmp_path, "trap '' TERM; while :; do sleep 1; done")
    process.kill()
    process.wait()
    assert gone(answer["pid"])


def test_leftovers_of_the_dead_are_swept_and_all_others_stay(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    space, me = os.stat("/proc/self/ns/pid").st_ino, os.getpid()
    now = supervisor.start_time(me)
    names = {
        f"servinglab-{space}-{dead.pid}-123-a": False,  # its owner is gone
        f"servinglab-{space}-{me}-123-b": False,  # the number is in use again, by a younger process
        f"servinglab-{space}-{me}-{now}-c": True,  # its owner lives
        f"servinglab-{space + 1}-{dead.pid}-123-d": True,  # another container's, whose processes we cannot see
        "servinglab-e": True,
        f"other-{dead.pid}": True,
    }
    for name in names:
        (supervisor.SHM / name).touch()
    try:
        process, _ = start(tmp_path, "exit")
        assert process.wait(20) == 0
        assert {name: (supervisor.SHM / name).exists() for name in names} == names
    finally:
        for name in names:
            (supervisor.SHM / name).unlink(missing_ok=True)


def test_shared_memory_becomes_private_at_once_and_a_link_that_somebody_planted_is_not_followed(tmp_path):
    process, answer = start(tmp_path, "sleep 60")
    victim, link = tmp_path / "victim", supervisor.SHM / f"{answer['shm_prefix']}evil"
    victim.touch(0o644)
    link.symlink_to(victim)
    waits = []
    for number in range(5):
        made = supervisor.SHM / f"{answer['shm_prefix']}{number}"
        made.touch()
        made.chmod(0o666)  # as Triton does
        begun = time.monotonic()
        while made.stat().st_mode & 0o077:
            assert time.monotonic() < begun + 5
        waits.append(time.monotonic() - begun)
    assert min(waits) < 0.05, "polling alone takes up to 0.2 s"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o644
    process.stdin.close()
    process.wait(10)
    assert gone(answer["pid"]) and not link.is_symlink()


def test_start_time_of_nobody_and_of_a_zombie():
    assert supervisor.start_time(2**22 + 1) is None
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert supervisor.start_time(zombie.pid) is None
    zombie.wait()
