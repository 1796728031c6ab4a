# ruff: noqa: E501 (log lines are long)
"""Triton's log lines (copied from real runs of 24.10) become one sentence."""

from __future__ import annotations

import pytest

from servinglab.server.process import log_error, read_log, taken_port
from servinglab.triton_24_10 import clean

NO_GPU = """W1127 23:18:42.826457 11098 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory"
E1127 23:18:42.826659 11098 server.cc:241] "CudaDriverHelper has not been initialized."
Error: Failed to initialize NVML
W1127 23:18:44.862848 11098 metrics.cc:798] "DCGM unable to start: DCGM initialization error"
"""
RAISES = (
    NO_GPU
    + r"""I1127 23:18:43.1 11098 model_lifecycle.cc:472] "loading: raises:1"
I1127 23:18:43.9 11098 model_lifecycle.cc:839] "successfully loaded 'echo'"
E1127 23:18:44.861733 11098 backend_model.cc:692] "ERROR: Failed to create instance: ValueError: no \"x\"\n\nAt:\n  /r/1/m.py(3): i\n"
E1127 23:18:44.861866 11098 model_lifecycle.cc:642] "failed to load 'raises' version 1: Internal: ValueError: no \"x\"\n\nAt:\n  /r/1/model.py(3): initialize\n"
error: creating server: Invalid argument - load failed for model 'raises': version 1 is at UNAVAILABLE state: Internal: ValueError: no "x"
At:
  /r/1/model.py(3): initialize
;
"""
)
OTHER = """E1127 23:18:47.059606 11148 model_repository_manager.cc:1460] "Poll failed for model directory 'other'"
error: creating server: Internal - failed to load all models
"""
DEPENDS = (
    NO_GPU
    + """E1127 23:18:48.1 1 model_repository_manager.cc:724] "failed to load model 'ensemble': Invalid argument: ensemble ensemble contains models that are not available or ambiguous: depends on 'raises' which has no loaded version"
E1127 23:18:48.2 1 model_lifecycle.cc:642] "failed to load 'raises' version 1: Internal: SyntaxError: invalid syntax (model.py, line 1)"
"""
)


@pytest.mark.parametrize(
    "log, sentence",
    [
        (NO_GPU, None),
        ("", None),
        (RAISES, "model 'raises' failed to load: ValueError: no \"x\" (in /r/1/model.py, line 3)"),
        (DEPENDS, "model 'raises' failed to load: SyntaxError: invalid syntax (model.py, line 1)"),
        (
            "/x/tritonserver: error while loading shared libraries: libnuma.so.1: cannot open shared object file: No such file\n",
            "the library libnuma.so.1 is missing (cannot open shared object file: No such file)",
        ),
        (
            NO_GPU + "E1127 23:18:48.1 1 model_lifecycle.cc:642] \"failed to load 'a' version 1: Internal: "
            "Unable to initialize shared memory key 'k' to requested size (1048576 bytes). If you are running Triton inside "
            "docker, use '--shm-size' flag to control the shared memory region size. Error: No space left on device\"\n",
            "/dev/shm is full: in Docker start the container with --shm-size=1g",
        ),
        (NO_GPU + "error: creating server: Internal - something\n", "creating server: Internal - something"),
    ],
)
def test_reason(log, sentence):
    assert log_error(log) == sentence


def test_several_causes_are_counted():
    assert log_error(RAISES + OTHER).endswith("(and 1 more, see the log)")


def test_a_taken_port():
    taken = "failed to start HTTP service: Unavailable - Socket '127.0.0.1:8000' already in use"
    log = RAISES + f'E1127 23:18:48.1 1 main.cc:293] "{taken} "\n'
    assert taken_port(log) == 8000


def test_what_was_written_before_a_mark_does_not_count(tmp_path):
    (tmp_path / "log").write_text(RAISES + OTHER)
    assert log_error(read_log(tmp_path / "log", len(RAISES))).startswith("Poll failed")
    assert read_log(tmp_path / "absent") == ""


@pytest.mark.parametrize(
    "text, sentence",
    [
        (
            "[request id: 7] unexpected shape for input 'a' for model 'm'. Expected [-1,1], got [1]. NOTE: Setting a non-zero "
            "max_batch_size in the model config requires a batch dimension",
            "unexpected shape for input 'a' for model 'm'. Expected [-1,1], got [1]",
        ),
        (
            "Stub process 'tensorrt_llm_bls_0_0' is not healthy.",
            "A model's Python process died, perhaps out of memory: restart the server",
        ),
        ("plain; with: colons, Internal matters.", "plain; with: colons, Internal matters"),
        (
            "ValueError: a\nb\n\nAt:\n  /r/1/model.py(3): f\n  /r/1/model.py(9): g\n",
            "ValueError: a b (in /r/1/model.py, line 3)",
        ),
    ],
)
def test_clean(text, sentence):
    assert clean(text) == sentence
