"""Which device an engine runs on, and the sentence when it cannot run on the one that was asked for."""

from __future__ import annotations

import pytest

from reference_backend.executor import ExecutorError, device
from reference_backend.executor.model import EngineConfig


def config(**changed):
    sizes = {"vocab_size": 300, "layers": 2, "kv_heads": 2, "head_size": 16, "tp_size": 1, "norm_epsilon": 1e-6}
    limits = {"max_seq_len": 256, "max_input_len": 255, "max_batch_size": 8, "max_beam_width": 1}
    kind = {"folder": "engines/x", "architecture": "LlamaForCausalLM", "precision": "fp32", "pretrained": {}}
    gather = {"gather_context_logits": False, "gather_generation_logits": False}
    return EngineConfig(**{**kind, **sizes, **limits, **gather, **changed})


@pytest.fixture
def cuda(monkeypatch):
    """A machine with a driver, the packages and a device, as far as anybody asks."""
    monkeypatch.setattr(device, "_missing", lambda: None)
    monkeypatch.delenv("SERVINGLAB_DEVICE", raising=False)


def test_without_a_driver_the_cpu_is_taken_and_torch_is_not_asked(monkeypatch):
    monkeypatch.delenv("SERVINGLAB_DEVICE", raising=False)
    monkeypatch.setattr(device, "_DRIVERS", ("/no/such/driver",))
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: pytest.fail("torch would be imported"))
    assert device.choose(config()) == "cpu" and device.cuda_name() is None
    with pytest.raises(ExecutorError, match="^The executor cannot run on CUDA: this machine has no NVIDIA driver.$"):
        device.choose(config(), "cuda")


def test_a_device_is_taken_when_there_is_one(cuda, monkeypatch):
    assert device.choose(config()) == "cuda"
    others = (
        {"precision": "int4"},
        {"tp_size": 2},
        {"architecture": "GPT2LMHeadModel"},
        {"pretrained": {"attn_bias": 1}},
    )
    assert {device.choose(config(**other)) for other in others} == {"cpu"}
    assert device.choose(config(), "cpu") == "cpu"
    monkeypatch.setenv("SERVINGLAB_DEVICE", "cpu")
    assert device.choose(config()) == "cpu"
    assert device.choose(config(), "cuda") == "cuda"


def test_what_cannot_be_had_is_named(cuda, monkeypatch):
    with pytest.raises(ExecutorError, match="^The executor cannot run on CUDA: engines/x is a Llama.* in int4, which"):
        device.choose(config(precision="int4"), "cuda")
    with pytest.raises(ExecutorError, match="^The device is 'tpu'; it must be one of auto, cpu, cuda.$"):
        device.choose(config(), "tpu")
    monkeypatch.setattr(device, "_missing", lambda: "torch finds no CUDA device")
    with pytest.raises(ExecutorError, match="^The executor cannot run on CUDA: torch finds no CUDA device.$"):
        device.choose(config(), "cuda")
    assert device.choose(config()) == "cpu"
