"""Where an engine runs: on the CPU, or on a CUDA device if there is one that can. The rest of the executor is the same.

auto (the default) takes the CUDA device if torch finds one and the engine is a plain Llama-type model in fp32 or bf16;
int4 is a format for CPUs. SERVINGLAB_DEVICE = auto, cpu or cuda says otherwise without a change of code.
"""

import importlib.util
import os
from pathlib import Path
from typing import Any

import psutil

from .cache import KVCache
from .model import EngineConfig, ExecutorError, Model, default_threads

DEVICES = ("auto", "cpu", "cuda")
CUDA_PRECISIONS = ("fp32", "bf16")
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # of Linux, and of Linux inside Windows: importing torch to ask takes seconds


def choose(config: EngineConfig, wanted: str | None = None) -> str:
    """ "cpu" or "cuda" for an engine. wanted: one of DEVICES; by default SERVINGLAB_DEVICE, else auto.

    Raises ExecutorError for another name, or when cuda is asked for and cannot be had.
    """
    wanted = wanted or os.environ.get("SERVINGLAB_DEVICE") or "auto"
    if wanted not in DEVICES:
        raise ExecutorError(f"The device is {wanted!r}; it must be one of {', '.join(DEVICES)}.")
    if wanted == "cpu":
        return "cpu"
    missing = _missing()
    if not missing and not runs_on_cuda(config):
        missing = f"{config.folder} is a {config.architecture} in {config.precision}, which it does not run"
    if missing and wanted == "cuda":
        raise ExecutorError(f"The executor cannot run on CUDA: {missing}.")
    return "cpu" if missing else "cuda"


def cuda_name() -> str | None:
    """The CUDA device that engines run on by default, such as "NVIDIA H100"; None where they run on the CPU."""
    if os.environ.get("SERVINGLAB_DEVICE") == "cpu" or _missing():
        return None
    import torch

    return torch.cuda.get_device_name()


def runs_on_cuda(config: EngineConfig) -> bool:
    """Whether the engine is one rank of layers that are exactly the one in cuda/kernels.py."""
    model = config.pretrained
    plain = config.architecture == "LlamaForCausalLM" and model.get("hidden_act", "silu") == "silu"
    biased = model.get("attn_bias") or model.get("mlp_bias")
    return config.precision in CUDA_PRECISIONS and config.tp_size == 1 and plain and not biased


def _missing() -> str | None:
    """What this machine lacks for CUDA."""
    if not any(Path(driver).exists() for driver in _DRIVERS):
        return "this machine has no NVIDIA driver"
    for package in ("torch", "triton"):
        if importlib.util.find_spec(package) is None:
            return f"the package {package} is not installed"
    import torch

    return None if torch.cuda.is_available() else "torch finds no CUDA device"


def place(
    config: EngineConfig, rows: int, max_seq_len: int, *, device: str, threads: int | None = None
) -> tuple[Any, Any]:
    """The KV cache with `rows` slots and the model that uses it, on "cpu" or "cuda".

    Raises ExecutorError when the engine cannot be loaded, OSError when there is no memory for the cache.
    """
    shape = (2 * config.layers, rows, config.kv_heads, max_seq_len, config.head_size)
    if device == "cuda":
        from .cuda.memory import CudaCache
        from .cuda.model import DTYPES, CudaModel

        cache = CudaCache(*shape, dtype=DTYPES[config.precision], device="cuda")
        return cache, CudaModel(config, cache)
    cache = KVCache(*shape)
    return cache, Model(config, cache, threads=threads or default_threads())


def free_bytes(device: str) -> int:
    """Memory of the device that nobody uses."""
    if device == "cuda":
        import torch

        return torch.cuda.mem_get_info()[0]
    return psutil.virtual_memory().available


if __name__ == "__main__":  # asked by notebooks, which import nothing of this package
    print(cuda_name() or "")
