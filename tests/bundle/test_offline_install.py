"""A real bundle for this Python, installed and used with the network cut. Takes minutes, so `make test` leaves it out:

make test ARGS=tests/bundle          needs what `make bundle ARGS="--torch cpu"` needs
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sH14s", b"lo", 1, b""))  # SIOCSIFFLAGS, IFF_UP
os.execvp(sys.argv[1], sys.argv[1:])
"""


def cut_off(*command: str) -> list[str]:
    """`command` in a network of its own that holds nothing but 127.0.0.1, where the system allows that."""
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    isolated = [*unshare, sys.executable, "-c", LOOPBACK_UP]
    if shutil.which("unshare") and subprocess.run([*isolated, "true"], capture_output=True).returncode == 0:
        return [*isolated, *command]
    return list(command)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    """Quickly compressed; with the CPU build of torch, because no other environment is there to take it from."""
    out = tmp_path_factory.mktemp("bundle")
    command = [sys.executable, ROOT / "tools" / "bundle" / "make_bundle.py", "--torch", "cpu", "--level", "0"]
    subprocess.run([*command, "--out", out], check=True)
    return out


def test_the_course_runs_from_the_bundle_alone(bundle, tmp_path):
    parts = [p for p in bundle.iterdir() if p.is_file()]
    assert len(parts) > 5 and max(p.stat().st_size for p in parts) <= 50_000_000
    nowhere = "http://127.0.0.1:9"  # for a system without network namespaces
    env = {
        "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8", "PIP_INDEX_URL": nowhere,
        "http_proxy": nowhere, "https_proxy": nowhere, "no_proxy": "127.0.0.1,localhost",
    }  # fmt: skip
    python = getattr(sys, "_base_executable", sys.executable)
    dest = tmp_path / "course"

    def run(*command: str) -> str:
        print("$", *command, flush=True)
        answer = subprocess.run(cut_off(*command), env=env, cwd="/", stdout=subprocess.PIPE, text=True)
        print(answer.stdout, flush=True)
        assert answer.returncode == 0
        return answer.stdout

    run("bash", str(bundle / "install.sh"), "--dest", str(dest), "--python", python)
    course = str(dest / ".venv" / "bin" / "course")
    env["COLUMNS"] = "200"
    in_course = ["env", "-C", str(dest), course]
    assert "FAIL" not in run(*in_course, "doctor")
    assert "00_start_here" in run(*in_course, "run", "00", "--set", "short")
    assert (dest / "build" / "index.html").is_file()
    assert "smollm2" in run(*in_course, "models") and (tmp_path / ".cache" / "servinglab" / "models").is_dir()
    assert "there already" in run("bash", str(bundle / "install.sh"), "--dest", str(dest), "--python", python)


def test_the_network_is_cut():
    """Else the test above proves nothing: an address that is always there on a machine with a network is not."""
    command = cut_off(sys.executable, "-c", "import socket; print([name for _, name in socket.if_nameindex()])")
    if command[0] != "unshare":
        pytest.skip("this system gives no network of our own; the install meets an unreachable index and proxy instead")
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "['lo']"
