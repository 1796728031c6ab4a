"""A disk that is full and a cache that is read-only: real file systems, mounted in a mount namespace of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from server_traces import TINY_MODELS

from servinglab.assets import cache_dir

# $FULL is a disk with a few bytes left; $READ_ONLY is this machine's cache, mounted read-only.
MOUNT = """
set -eu
mount -t tmpfs -o size=128k tmpfs "$DISK"
mkdir "$DISK/empty"
head -c 1M /dev/zero > "$DISK/fill" 2>/dev/null || true
export FULL="$DISK"
mount -t tmpfs tmpfs "$DISK.mount"
mkdir "$DISK.mount/cache"
mount --bind "$REAL_CACHE" "$DISK.mount/cache"
mount -o remount,bind,ro "$DISK.mount/cache"
export READ_ONLY="$DISK.mount/cache"
set +e
"""
START = f"""
from servinglab.server import TritonServer
with TritonServer({str(TINY_MODELS)!r}, models=["echo"], timeout=60) as s:
    print(s.models(), s.log_path)
"""


@pytest.fixture
def on_bad_disks(tmp_path):
    """Runs a line of shell where $FULL and $READ_ONLY exist; "course" is the course command, "python" this one."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk.mount").mkdir()
    env = {**os.environ, "DISK": str(tmp_path / "disk"), "REAL_CACHE": str(cache_dir()), "START": START}
    shell = f'course() {{ "{sys.executable}" -m course.cli "$@"; }}\npython() {{ "{sys.executable}" "$@"; }}\n'

    def run(script: str) -> subprocess.CompletedProcess:
        command = ["unshare", "--mount", "--map-root-user", "bash", "-c", MOUNT + shell + textwrap.dedent(script)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        if done.returncode and ("unshare:" in done.stderr or "mount:" in done.stderr):
            pytest.skip(f"cannot mount here: {done.stderr.strip()}")
        return done

    return run


def last_line(done: subprocess.CompletedProcess) -> str:
    return (done.stdout + done.stderr).strip().splitlines()[-1]


def is_one_line(done: subprocess.CompletedProcess, said: str) -> None:
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert said in last_line(done) and last_line(done).startswith("course: "), done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("course repo build --out $FULL/out --precision int4", "cannot be written: No space left on device"),
        ("course run 06 --out $FULL/run", "cannot be written (No space left on device): free some space or give"),
        ("SERVINGLAB_CACHE=$FULL/cache course fetch minilm", "Preparing minilm needs 0.3 GB and "),
        ("course list > $FULL/list", "No space left on device: the output"),
    ],
)
def test_a_command_that_writes_to_a_full_disk_is_one_line(on_bad_disks, command, said):
    is_one_line(on_bad_disks(command), said)


@pytest.mark.parametrize("command", ["run 06", "repo build"])
def test_a_checkout_that_is_read_only_names_the_option_that_helps(on_bad_disks, command):
    done = on_bad_disks(f"""
        mount --bind {Path(__file__).parents[2]} $DISK.mount && mount -o remount,bind,ro $DISK.mount
        cd $DISK.mount && course {command}
    """)
    is_one_line(done, "is read-only for you: choose a folder with --out.")
    assert done.stdout == "", "nothing has begun"


def test_a_server_that_cannot_write_says_so_before_it_starts(on_bad_disks):
    done = on_bad_disks('export SERVINGLAB_CACHE=$FULL/empty\npython -c "$START"')
    assert done.returncode == 1 and "ServerError: Cannot write" in last_line(done)
    assert last_line(done).endswith("(No space left on device): set SERVINGLAB_CACHE.")


FILLS_ITS_LOG_S_DISK = f"""
import os, pathlib, sys
sys.path.insert(0, {str(TINY_MODELS.parent)!r})
from triton_client import TritonClient
from servinglab.server import TritonServer, process
disk = os.environ["FULL"]
os.remove(f"{{disk}}/fill")
process.run_folder = lambda: pathlib.Path(disk)  # where the log is
with TritonServer({str(TINY_MODELS)!r}) as s, TritonClient(s.grpc_url) as client:
    try:
        while True:
            open(f"{{disk}}/fill", "ab", buffering=0).write(bytes(4096))
    except OSError:
        pass
    for _ in range(20):
        assert "".join(c.text for c in client.stream("abc", model="counter", max_tokens=30)) == "abc" * 10
    print(os.statvfs(disk).f_bavail, s.ready())
"""


def test_a_disk_that_becomes_full_under_a_running_server_harms_no_request(on_bad_disks, tmp_path):
    (tmp_path / "script.py").write_text(FILLS_ITS_LOG_S_DISK)
    done = on_bad_disks(f"python {tmp_path}/script.py")
    assert done.stdout == "0 True\n", done.stderr


def test_a_read_only_cache_serves_what_is_in_it(on_bad_disks, int4_repository):
    """The log and the announcement go to the temporary folder."""
    done = on_bad_disks("""
        export SERVINGLAB_CACHE=$READ_ONLY TMPDIR=$DISK.mount
        python -c "$START"
        course ask "Name three fruits." --precision int4 --max-tokens 3
        ls -d $TMPDIR/servinglab-run-*/triton-*.log | wc -l
        course doctor | grep ^lane.embedded
    """)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert done.stdout.startswith("['echo'] ") and "servinglab-run-" in done.stdout.splitlines()[0]
    assert done.stdout.endswith("\n2\nlane embedded: runs here\n")


def test_a_read_only_cache_that_lacks_something_says_what_to_set(on_bad_disks):
    done = on_bad_disks("""
        mount -t tmpfs -o ro tmpfs $DISK.mount
        SERVINGLAB_CACHE=$DISK.mount course fetch minilm
    """)
    is_one_line(done, "cannot be used (Read-only file system); set SERVINGLAB_CACHE to a folder that you can write.")
