"""Which device an engine runs on, and the sentence when it cannot run on the one that was asked for."""

from __future__ import annotations

import sys

import pytest

from reference_backend.executor import ExecutorError, device
from reference_backend.executor.model import EngineConfig


def config(architecture="LlamaForCausalLM", precision="fp32"):
    return EngineConfig("engines/x", architecture, precision, 300, 2, 2, 16, 256, 1e-6)


@pytest.fixture
def cuda(monkeypatch, tmp_path):
    """A machine with a driver, the packages and a device, as far as anybody asks."""
    driver = tmp_path / "driver"
    driver.touch()
    monkeypatch.setattr(device, "_DRIVERS", (str(driver),))
    monkeypatch.setattr(device, "_missing", lambda: None)
    kernels = type(sys)("reference_backend.executor.cuda_model")
    kernels.runs = lambda config: config.precision != "int4"
    monkeypatch.setitem(sys.modules, "reference_backend.executor.cuda_model", kernels)
    monkeypatch.setattr("reference_backend.executor.cuda_model", kernels, raising=False)
    monkeypatch.delenv("SERVINGLAB_DEVICE", raising=False)


def test_without_a_driver_the_cpu_is_taken_and_torch_is_not_asked(monkeypatch):
    monkeypatch.delenv("SERVINGLAB_DEVICE", raising=False)
    monkeypatch.setattr(device, "_DRIVERS", ("/no/such/driver",))
    monkeypatch.setattr(device, "_missing", lambda: pytest.fail("torch would be imported"))
    assert device.choose(config()) == "cpu"


def test_a_device_is_taken_when_there_is_one(cuda, monkeypatch):
    assert device.choose(config()) == "cuda"
    assert device.choose(config(precision="int4")) == "cpu"
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
