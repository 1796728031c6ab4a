"""One step of the language model on a CUDA device: the same call as `model.Model`, a few kernels a layer, one launch.

A step is recorded once for each number of rows (1, 2, 4, … MAX_ROWS) as a CUDA graph, copies from and to the host
included, and replayed from then on: the host writes a few numbers into pinned memory, launches one graph, waits once.
Fewer rows than recorded are filled up with rows of length 0, which the kernels skip.
"""

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from reference_backend.executor.cuda import kernels
from reference_backend.executor.cuda.memory import CudaCache, load
from reference_backend.executor.device import CUDA_PRECISIONS
from reference_backend.executor.model import EngineConfig, split_fake

# Several executors may live in one process: what one records must not meet what another launches.
_one_at_a_time = threading.RLock()
MAX_ROWS = 256
# benchmarks/gpu_steps.py measures other numbers.
FEW_ROWS = {2: 4, 4: 8}  # by the bytes of a weight: up to so many rows, products go element by element
SPLIT_ROWS = 16  # up to so many, the attention of a row is split
DTYPES = dict(zip(CUDA_PRECISIONS, (torch.float32, torch.bfloat16), strict=True))


class CudaModel:
    """The weights on the device of `cache`, and the recorded steps. Not thread-safe.

    config: of an engine that `device.runs_on_cuda`; the arithmetic is done in its type, sums in float32.
    """

    chooses = True

    def __init__(self, config: EngineConfig, cache: CudaCache) -> None:
        self._config, self._cache = config, cache
        self._device, self._dtype = cache.buffers.device, DTYPES[config.precision]
        self._weights = load(config, self._device, self._dtype)
        self._hidden, self._width = config.pretrained["hidden_size"], config.pretrained["intermediate_size"]
        self._heads = config.pretrained["num_attention_heads"]
        self._steps: dict[Any, SimpleNamespace] = {}

    def forward(
        self, ids: np.ndarray, lengths: np.ndarray, first_slot: int, logit_rows: np.ndarray,
        table: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """As `model.Model.forward`; with S > 1, B may be anything."""
        return self._run(ids, lengths, first_slot, logit_rows, logit_rows, table)[0]

    def decode(
        self, ids: np.ndarray, lengths: np.ndarray, first_slot: int, wanted: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """One token for each of B neighbouring slots, ids int64 [B, 1]: logits float32 [len(wanted), vocab] of the rows
        `wanted`, and the likeliest token of every row, int64 [B]. It is found on the device: logits are 200 kB a row.
        """
        return self._run(ids, lengths, first_slot, np.arange(len(ids)), wanted)

    def warm_up(self, rows: int) -> None:
        """Records the steps of up to `rows` running requests, so that none of them waits for the compiler."""
        size = 1
        while size < 2 * rows and size <= MAX_ROWS:
            self._step(size, size, False)
            size *= 2

    def _run(
        self, ids: Any, lengths: Any, first_slot: int, picked: Any, wanted: Any, table: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """In pieces of MAX_ROWS tokens."""
        batch, new = ids.shape
        ids, places, replaced = split_fake(ids.reshape(1, -1), self._config, table)
        fake = places[:, 1]
        rows = np.empty((3, batch * new), np.int32)  # ids, slots, lengths
        rows[0] = ids
        rows[0, fake] = -1
        rows[1] = np.repeat(np.arange(first_slot, first_slot + batch), new)
        rows[2] = (lengths[:, None] - np.arange(new)[::-1]).reshape(-1)
        logits = np.empty((len(wanted), self._config.vocab_size), np.float32)
        best = np.empty(len(picked), np.int64)
        with _one_at_a_time:
            for first in range(0, batch * new, MAX_ROWS):
                piece = rows[:, first : first + MAX_ROWS]
                heads, due = (np.flatnonzero((some >= first) & (some < first + MAX_ROWS)) for some in (picked, wanted))
                here = (fake >= first) & (fake < first + MAX_ROWS)
                step = self._step(_bucket(piece.shape[1]), _bucket(len(heads)), bool(here.any()))
                step.host[2] = 0  # no tokens but those that follow
                step.replaced[fake[here] - first] = replaced[here]
                step.host[:3, : piece.shape[1]] = piece
                step.host[3, : len(heads)] = picked[heads] - first
                step.replay()
                if len(due):
                    at = torch.from_numpy(np.searchsorted(picked[heads], wanted[due])).to(self._device)
                    logits[due] = step.scratch.logits[at, : logits.shape[1]].cpu().numpy()
                elif self._device.type == "cuda":
                    torch.cuda.current_stream(self._device).synchronize()
                best[heads] = step.best[: len(heads)]
        return logits, best

    def _step(self, *kind: Any) -> SimpleNamespace:
        """The recorded step for `rows` tokens, of which up to `heads` get logits, some with embeddings of a table."""
        with _one_at_a_time:
            if kind not in self._steps:
                self._steps[kind] = self._record(*kind)
            return self._steps[kind]

    def _record(self, rows: int, heads: int, fake: bool) -> SimpleNamespace:
        """The host's sides: host int32 [4, n], best int64 [heads], and replaced float32 [rows, hidden], the embeddings
        of ids below 0. The recorded graph knows the memory of `scratch` by its addresses only: it must not be freed."""
        config, on_cuda = self._config, self._device.type == "cuda"
        splits = 16 if rows <= SPLIT_ROWS else 1
        host = torch.zeros((4, max(rows, heads)), dtype=torch.int32, pin_memory=on_cuda)
        best = torch.zeros(heads, dtype=torch.int64, pin_memory=on_cuda)
        replaced = torch.zeros((rows * fake, self._hidden), pin_memory=on_cuda)
        part = (rows, self._heads, splits)

        def empty(*shape: int, dtype: Any = torch.float32) -> Any:
            return torch.empty(shape, dtype=dtype, device=self._device)

        scratch = SimpleNamespace(  # device memory; inputs int32 [4, n]: ids, slots, lengths, rows that get logits
            inputs=host.to(self._device),
            replaced=replaced.to(self._device),
            queries=empty(rows, self._heads, config.head_size, dtype=self._dtype),
            attended=empty(rows, self._heads, config.head_size, dtype=self._dtype),
            parts=empty(*part, config.head_size),
            peaks=empty(*part),
            sums=empty(*part),
            gated=empty(rows, self._width, dtype=self._dtype),
            logits=empty(heads, self._weights.head.shape[0]),
        )

        def launch() -> None:
            scratch.inputs.copy_(host, non_blocking=True)
            scratch.replaced.copy_(replaced, non_blocking=True)
            x = self._layers(scratch, rows, splits)
            if heads:
                best.copy_(self._vocabulary(scratch, x, heads), non_blocking=True)

        launch()  # compiles the kernels; on rows of length 0
        replay = launch
        if on_cuda:
            torch.cuda.current_stream(self._device).synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                launch()
            replay = graph.replay
        arrays = {"host": host.numpy(), "best": best.numpy(), "replaced": replaced.numpy()}
        return SimpleNamespace(**arrays, scratch=scratch, replay=replay)

    def _layers(self, scratch: SimpleNamespace, rows: int, splits: int) -> Any:
        """The residual stream float32 [rows, hidden] behind the last layer."""
        config, buffers, hidden, width = self._config, self._cache.buffers, self._hidden, self._width
        ids, slots, lengths, _ = scratch.inputs
        seq, eps = buffers.shape[3], config.norm_epsilon
        kv = {"HEADS": self._heads, "KV_HEADS": config.kv_heads, "D": config.head_size}
        qkv_pairs = (self._heads + 2 * config.kv_heads) * config.head_size // 2
        x = self._weights.embed.index_select(0, ids[:rows].clamp(min=0)).float()
        if len(scratch.replaced):
            x = torch.where(ids[:rows, None] < 0, scratch.replaced, x)
        pieces = scratch.attended, scratch.parts, scratch.peaks, scratch.sums
        for index, layer in enumerate(self._weights.layers):
            keys, values = buffers[2 * index], buffers[2 * index + 1]
            self._multiply(
                kernels.project_qkv, "qkv", rows, qkv_pairs,
                x, layer.input_norm, layer.qkv, self._weights.cos, self._weights.sin, slots, lengths,
                scratch.queries, keys, values, rows, seq, eps, K=hidden, **kv,
            )  # fmt: skip
            kernels.attend[rows, config.kv_heads, splits](
                scratch.queries, keys, values, slots, lengths, *pieces, seq, config.head_size**-0.5,
                **kv, SPLITS=splits, BLOCK_H=16, BLOCK_T=32 if splits > 1 else 64,
            )  # fmt: skip
            if splits > 1:
                kernels.merge_splits[rows * self._heads,](*pieces, D=config.head_size, SPLITS=splits, num_warps=1)
            self._multiply(
                kernels.add_product, "out", rows, hidden // 2,
                scratch.attended, layer.out, x, lengths, rows, K=self._heads * config.head_size, OUT=hidden,
            )  # fmt: skip
            self._multiply(
                kernels.gate_up, "gate_up", rows, width,
                x, layer.post_norm, layer.gate_up, scratch.gated, lengths, rows, eps, K=hidden, WIDTH=width,
            )  # fmt: skip
            self._multiply(
                kernels.add_product, "down", rows, hidden // 2,
                scratch.gated, layer.down, x, lengths, rows, K=width, OUT=hidden,
            )  # fmt: skip
        return x

    def _vocabulary(self, scratch: SimpleNamespace, x: Any, heads: int) -> Any:
        """Fills the logits of the picked rows of x, and returns the likeliest token of each, int64 [heads]."""
        norm, head = self._weights.norm, self._weights.head
        self._multiply(
            kernels.vocabulary, "vocab", heads, len(head) // 2,
            x, norm, head, scratch.inputs[3], scratch.logits, heads, self._config.norm_epsilon,
            K=self._hidden, VOCAB=len(head),
        )  # fmt: skip
        return scratch.logits[:, : self._config.vocab_size].argmax(dim=1)

    def _multiply(self, kernel: Any, product: str, rows: int, pairs: int, *given: Any, **sizes: int) -> None:
        """Launches the kernel of a product for so many rows and pairs of outputs."""
        cut = tile(product, rows, self._dtype.itemsize)
        kernel[-(-pairs // cut["BLOCK_P"]), -(-rows // cut["BLOCK_R"])](*given, **sizes, **cut)


def tile(product: str, rows: int, itemsize: int) -> dict[str, Any]:
    """How the product of `rows` is cut into programs, with their warps and pipeline stages: what was fastest of some 20
    ways each, tried on an H200.

    A matrix unit computes 16 rows or more; up to FEW_ROWS are multiplied element by element, each row on its own.
    itemsize: bytes of a weight. fp32 has pieces of half the length, or they would not fit into the 99 KiB of shared
    memory of most cards.
    """
    if rows <= FEW_ROWS[itemsize]:
        pairs, inner, warps = _FEW[product]
        return {"BLOCK_R": 1, "BLOCK_P": pairs, "BLOCK_K": inner, "DOT": False, "num_warps": warps}
    most, pairs, inner, stages = _MANY[product]
    found = {"BLOCK_R": min(most, max(16, rows)), "BLOCK_P": pairs, "BLOCK_K": 2 * inner // itemsize, "DOT": True}
    return {**found, "num_warps": 4, "num_stages": stages}


# Pairs of outputs, length of a piece of the sum, warps.
_FEW = {"qkv": (4, 1024, 4), "out": (4, 1024, 4), "gate_up": (4, 1024, 8), "down": (2, 2048, 8), "vocab": (8, 1024, 4)}
# Rows at most, pairs of outputs, length of a piece of the sum, stages.
_MANY = {"qkv": (16, 32, 64, 4), "out": (16, 16, 64, 3), "gate_up": (32, 32, 64, 3), "down": (16, 32, 128, 4),
         "vocab": (64, 128, 64, 3)}  # fmt: skip


def _bucket(count: int) -> int:
    """The next power of two; 0 for 0."""
    return 1 << (count - 1).bit_length() if count else 0
