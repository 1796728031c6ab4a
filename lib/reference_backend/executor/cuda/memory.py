"""What a Llama-type engine holds on a CUDA device: its weights as torch tensors, and the KV cache."""

from types import SimpleNamespace
from typing import Any

import torch

from reference_backend.executor.cache import KVCache
from reference_backend.executor.graph import rotary_tables
from reference_backend.executor.model import EngineConfig, ExecutorError
from reference_backend.executor.rank_files import Tensor

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class CudaCache(KVCache):
    """The KV cache with memory of `device` that is taken at once. Raises OSError when its memory does not hold it."""

    def __init__(self, *shape: int, dtype: Any, device: Any) -> None:
        self._kind = {"dtype": dtype, "device": device}
        super().__init__(*shape)

    def forget(self, place: int) -> None:
        """Nothing to do: the memory stays taken, and the next owner of the place writes over it."""

    def drop(self, slot: int) -> None:
        """Nothing to do, as for `forget`."""

    def _reserve(self, shape: tuple[int, ...]) -> tuple[None, torch.Tensor]:
        try:
            return None, torch.zeros(shape, **self._kind)
        except torch.OutOfMemoryError as error:
            raise OSError(str(error).split(". ")[0]) from None


def load(config: EngineConfig, device: Any, dtype: Any) -> SimpleNamespace:
    """Reads an engine's weights onto `device`. Raises ExecutorError when some are missing.

    embed and head [vocab, hidden], one tensor if they are tied; head has a row of zeros more if vocab is odd. layers:
    the matrices of each are [out, in] of `dtype`, qkv and gate_up stacked in that order. All norms are float32 gains
    [hidden]; cos and sin float32 [positions, head_size / 2].
    """
    (found,) = config.ranks()

    def take(name: str, kind: Any = dtype) -> Any:
        try:
            return _read(found.pop(name)).to(device, kind)
        except KeyError:
            raise ExecutorError(f"{config.folder} has no weight {name}, so it cannot run on CUDA.") from None

    def layer(name: str) -> SimpleNamespace:
        return SimpleNamespace(
            input_norm=take(f"{name}.input_layernorm.weight", torch.float32),
            qkv=take(f"{name}.attention.qkv.weight"),
            out=take(f"{name}.attention.dense.weight"),
            post_norm=take(f"{name}.post_layernorm.weight", torch.float32),
            gate_up=torch.cat([take(f"{name}.mlp.fc.weight"), take(f"{name}.mlp.gate.weight")]),
            down=take(f"{name}.mlp.proj.weight"),
        )

    layers = [layer(f"transformer.layers.{n}") for n in range(config.layers)]
    norm, embed = take("transformer.ln_f.weight", torch.float32), take("transformer.vocab_embedding.weight")
    head = take("lm_head.weight") if "lm_head.weight" in found else embed
    if len(head) % 2:  # the kernels compute pairs of outputs
        head = torch.cat([head, torch.zeros_like(head[:1])])
    cos, sin = (torch.from_numpy(table).to(device) for table in rotary_tables(config.pretrained, config.max_seq_len))
    return SimpleNamespace(embed=embed, layers=layers, norm=norm, head=head, cos=cos, sin=sin)


def _read(tensor: Tensor) -> torch.Tensor:
    # From a copy: what is mapped cannot be written, and torch warns of that.
    with tensor.file.open("rb") as file:
        file.seek(tensor.offset)
        return torch.frombuffer(bytearray(file.read(tensor.length)), dtype=_DTYPES[tensor.dtype]).view(tensor.shape)
