"""A quiet begin, a record last, and no machine path in between."""

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
from servinglab.figures import style


@pytest.fixture(autouse=True)
def plain_machine(monkeypatch, tmp_path):
    monkeypatch.delenv("SERVINGLAB_LANE", raising=False)
    monkeypatch.delenv("COURSE_RECORD_DIR", raising=False)
    monkeypatch.setenv("SERVINGLAB_SERVER", "")  # so that what `begin` writes is undone
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


def test_begin_is_quiet_names_the_lane_and_makes_the_small_print_of_the_figures(capsys):
    assert notebook.begin("05", "auto", seed=0, weights="int4") == "embedded"
    assert capsys.readouterr().out == ""
    text = notebook.provenance()
    assert style._small_print == text
    assert text.startswith("embedded lane · cpu, ") and text.endswith("· seed 0 · weights int4")
    notebook.begin("06")
    assert "seed" not in notebook.provenance() and "weights" not in notebook.provenance()


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
    monkeypatch.setattr(notebook, "_version", lambda package: "-")
    monkeypatch.delenv("TRITON_SERVER_VERSION", raising=False)
    assert notebook.versions()["onnxruntime"] == "-" and notebook.versions()["triton"] == "-"


def test_record_prints_one_line_and_writes_json_on_demand(monkeypatch, tmp_path, capsys):
    notebook.begin("05", seed=7, weights="int4")
    monkeypatch.setenv("COURSE_RECORD_DIR", str(tmp_path / "records"))
    notebook.record(first_token_ms=np.float32(121.5), rates=np.array([1, 2]), n=np.int64(3))
    printed = capsys.readouterr().out
    assert (
        printed.count("\n") == 1 and printed.startswith("embedded lane · cpu, ") and "seed 7 · weights int4" in printed
    )
    assert f"python {platform.python_version()} · " in printed and f"numpy {np.__version__} · " in printed
    line = json.loads((tmp_path / "records" / "05.json").read_text())
    assert list(line)[:6] == ["notebook", "lane", "device", "versions", "seed", "seconds"]
    assert line["seed"] == 7 and line["lane"] == "embedded" and 0 <= line["seconds"] < 60
    assert (line["first_token_ms"], line["rates"], line["n"]) == (121.5, [1, 2], 3)
    assert line["weights"] == "int4" and line["versions"]["numpy"] == np.__version__


def test_what_a_server_elsewhere_computed_is_not_said_of_this_machine(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("COURSE_RECORD_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_SERVER_VERSION", "9.9.9")  # of this container
    notebook.begin("06", "grpc://gpu-box:8001")
    notebook.record()
    line = json.loads((tmp_path / "06.json").read_text())
    assert line["device"] == "server at gpu-box:8001" and line["versions"]["triton"] == "-"
    printed = capsys.readouterr().out
    assert printed.startswith("server at gpu-box:8001 · python ") and "cpu" not in printed


@pytest.mark.parametrize(
    "values, said",
    [
        ({"seconds": 1}, "seconds is filled in already"),
        ({"x": object()}, "object. object has no attribute"),
        ({"x": float("nan")}, "not JSON compliant"),
        ({"x": {1j}}, "set. object has no attribute"),
    ],
)
def test_record_refuses_what_cannot_be_read_back(values, said):
    notebook.begin("05")
    with pytest.raises(CourseError, match=said):
        notebook.record(**values)


def test_paths_are_shortened_the_same_way_everywhere(monkeypatch, tmp_path):
    root, cache = tmp_path / "somewhere" / "course", tmp_path / "cache"
    monkeypatch.setattr(scratch, "find_root", lambda: root)
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
