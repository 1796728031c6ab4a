"""The stand-in image: what NVIDIA's container has where, and the way from a checkpoint to an engine in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from image import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from tiny_models import write_checkpoint  # noqa: E402

ENTER = ["unshare", "--user", "--map-root-user", "--mount", "--", "sh", "-c", "mount --bind /tmp /mnt"]
pytestmark = pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run(ENTER, capture_output=True).returncode != 0,
    reason="this machine lets no program make namespaces of its own",
)


@pytest.fixture(scope="module", params=["venv", pytest.param("system", marks=pytest.mark.long)])
def image(request, tmp_path_factory):
    return Image(tmp_path_factory.mktemp("image"), request.param).make()


def test_its_python_has_what_nvidia_s_has_and_nothing_of_the_course(image):
    ask_for = "import sys, torch, numpy, tensorrt_llm; print(sys.prefix, tensorrt_llm.__version__)"
    assert image.run(["python3", "-c", ask_for]).stdout.split() == [image.python, "1.2.1"]
    assert "No broken requirements" in image.run(["python3", "-m", "pip", "check"]).stdout
    for name in ("servinglab", "course", "jupyterlab", "papermill"):
        assert "ModuleNotFoundError" in image.run(["python3", "-c", f"import {name}"]).stdout


def test_a_user_without_a_name_is_one_too(image):
    assert image.run(["id"], uid=12345).stdout.startswith("uid=12345 gid=12345")


def test_mpirun_wants_its_folder_and_no_root(image):
    assert "OPAL_PREFIX" in image.run(["mpirun", "-n", "1", "true"], env={"OPAL_PREFIX": ""}).stdout
    assert "--allow-run-as-root" in image.run(["mpirun", "-n", "1", "true"]).stdout
    assert image.run(["mpirun", "-n", "1", "true"], uid=1000).returncode == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_from_a_checkpoint_to_an_engine(image, tmp_path, ranks):
    """The converter and trtllm-build of the image, as a user of any id, in a folder that is mounted."""
    write_checkpoint(tmp_path / "hf", num_attention_heads=4, num_key_value_heads=2)
    here = {"mounts": {str(tmp_path): tmp_path}, "cwd": str(tmp_path), "uid": 12345, "env": {"HOME": "/tmp"}}
    script = "/app/examples/models/core/llama/convert_checkpoint.py"
    words = ["--model_dir", "hf", "--output_dir", "checkpoint", "--dtype", "float32", "--tp_size", str(ranks)]
    for argv in (
        ["python3", script, *words],
        ["trtllm-build", "--checkpoint_dir", "checkpoint", "--output_dir", "engine", "--max_batch_size", "4"],
    ):
        done = image.run(argv, **here)
        assert done.returncode == 0, done.stdout
    assert len(list((tmp_path / "engine").glob("rank*.engine"))) == ranks
