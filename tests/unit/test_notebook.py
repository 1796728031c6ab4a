"""Versions first, a record last, and no machine path in between."""

from __future__ import annotations

import json
import platform
import tempfile
from pathlib import Path

import numpy as np
import pytest

from servinglab import assets, notebook, scratch
from servinglab import lane as lanes
from servinglab.errors import CourseError


@pytest.fixture(autouse=True)
def plain_machine(monkeypatch, tmp_path):
    monkeypatch.delenv("SERVINGLAB_LANE", raising=False)
    monkeypatch.delenv("COURSE_RECORD_DIR", raising=False)
    monkeypatch.setattr(lanes, "TRTLLM_BACKEND", tmp_path / "absent")
    monkeypatch.setattr(scratch, "adopt", lambda: None)  # this process is no notebook


def test_lane_is_embedded_unless_this_is_the_container_or_the_user_says_so(monkeypatch, tmp_path):
    assert notebook.resolve_lane() == "embedded"
    monkeypatch.setattr(lanes, "TRTLLM_BACKEND", tmp_path)
    assert notebook.resolve_lane("auto") == "trtllm"
    monkeypatch.setenv("SERVINGLAB_LANE", "embedded")
    assert notebook.resolve_lane("auto") == "embedded"
    assert notebook.resolve_lane("trtllm") == "trtllm"


@pytest.mark.parametrize("lane", ["gpu", "", "Embedded"])
def test_unknown_lanes_name_the_known_ones(lane):
    with pytest.raises(CourseError, match="auto, embedded, trtllm"):
        notebook.resolve_lane(lane)


def test_begin_prints_a_small_table(capsys):
    notebook.begin()
    lines = capsys.readouterr().out.splitlines()
    rows = dict(line.split(maxsplit=1) for line in lines)
    assert list(rows) == ["python", "triton", "tritonclient", "numpy", "onnxruntime", "lane", "device"]
    assert rows["python"] == platform.python_version() and rows["numpy"] == np.__version__
    assert rows["lane"] == "embedded" and rows["device"].startswith("cpu, ")
    assert all(len(line) < 80 for line in lines)


def test_a_cuda_device_is_asked_in_a_process_of_its_own(monkeypatch, tmp_path):
    """Whatever the package of the backend needs: here its answer is a stand-in's."""
    (tmp_path / "reference_backend" / "executor").mkdir(parents=True)
    for name in ("__init__.py", "executor/__init__.py", "executor/device.py"):
        (tmp_path / "reference_backend" / name).write_text("if __name__ == '__main__': print('NVIDIA H200')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == "/dev/nvidiactl")
    monkeypatch.setenv("SERVINGLAB_DEVICE", "cuda")
    notebook._cuda.cache_clear()
    assert notebook.device().startswith("cuda, NVIDIA H200 (int4: cpu, ")
    monkeypatch.setenv("SERVINGLAB_DEVICE", "cpu")
    assert notebook.device().startswith("cpu, ")


def test_what_is_missing_is_a_dash(monkeypatch):
    monkeypatch.setattr(notebook, "_version", lambda package: None)
    monkeypatch.delenv("TRITON_SERVER_VERSION", raising=False)
    assert notebook.versions()["onnxruntime"] == "-" and notebook.versions()["triton"] == "-"


def test_record_is_one_line_of_json_and_a_file_on_demand(monkeypatch, tmp_path, capsys):
    notebook.begin()
    capsys.readouterr()
    monkeypatch.setenv("COURSE_RECORD_DIR", str(tmp_path / "records"))
    notebook.record("05", lane="auto", seed=7, first_token_ms=np.float32(121.5), rates=np.array([1, 2]), n=np.int64(3))
    printed = capsys.readouterr().out
    line = json.loads(printed)
    assert printed.count("\n") == 1
    assert list(line)[:6] == ["notebook", "lane", "device", "versions", "seed", "seconds"]
    assert line["seed"] == 7 and line["lane"] == "embedded" and 0 <= line["seconds"] < 60
    assert (line["first_token_ms"], line["rates"], line["n"]) == (121.5, [1, 2], 3)
    assert json.loads((tmp_path / "records" / "05.json").read_text()) == line


@pytest.mark.parametrize(
    "values, said",
    [
        ({"seconds": 1}, "seconds is filled in already"),
        ({"x": object()}, "object is not one of them"),
        ({"x": float("nan")}, "not JSON compliant"),
        ({"x": {1j}}, "set is not one of them"),
    ],
)
def test_record_refuses_what_cannot_be_read_back(values, said):
    with pytest.raises(CourseError, match=said):
        notebook.record("05", lane="auto", **values)


def test_paths_are_shortened_the_same_way_everywhere(monkeypatch, tmp_path):
    root, cache = tmp_path / "somewhere" / "course", tmp_path / "cache"
    monkeypatch.setattr("servinglab.root.find_root", lambda: root)
    monkeypatch.setattr(assets, "cache_dir", lambda: cache)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/var/tmp/me")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ada"))
    text = f"{root}/build/a.txt {root} {root}-old {cache}/models /var/tmp/me/x /home/ada/y /home/adam (/home/ada)"
    expected = f"build/a.txt . {root}-old $SERVINGLAB_CACHE/models $TMPDIR/x ~/y /home/adam (~)"
    assert notebook.shorten(text) == expected
    assert notebook.shorten(notebook.shorten(text)) == expected
    assert notebook.shorten(root / "a") == "a"


def test_a_home_folder_at_the_root_does_not_eat_every_slash(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    assert notebook.shorten("/v2/models/ensemble") == "/v2/models/ensemble"
