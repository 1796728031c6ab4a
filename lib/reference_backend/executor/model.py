"""One step of the language model: tokens in, logits out, the KV cache updated in place. ONNX Runtime on the CPU.

The graph is written by `executor.graph` when the engine is loaded; its input `logit_rows` picks the positions that need
logits (a prompt needs one row of 49,152 numbers, not one per token).
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import psutil

from reference_backend import BackendError

from . import graph
from .cache import KVCache
from .rank_files import ENGINE_VERSION, Tensor, tensors
from .request import Limits

_PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
log = logging.getLogger(__name__)


class ExecutorError(BackendError):
    """The executor could not be started, or has been shut down."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig(Limits):
    """What `config.json` of an engine folder says: the model, and what a request may ask for (trtllm-build's limits).

    precision: fp32, fp16, bf16, int8 or int4, of the weights. pretrained: the whole pretrained_config.
    """

    folder: Path
    architecture: str
    precision: str
    layers: int
    kv_heads: int
    head_size: int
    tp_size: int
    norm_epsilon: float
    max_batch_size: int
    pretrained: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, folder: Path | str) -> "EngineConfig":
        """Raises ExecutorError when the folder holds no engine for this executor."""
        folder = Path(folder)
        path = folder / "config.json"
        try:
            text = path.read_text()
            if not text.strip():
                raise ExecutorError(f"{path} is empty; copy or build the engine again.")
            config = json.loads(text)
            model, build = config["pretrained_config"], config["build_config"]
            version = str(config.get("version"))
            if version.partition("+")[2] != f"reference.{ENGINE_VERSION}":
                raise ExecutorError(
                    f"{folder} holds an engine of version {version}, which the reference executor cannot run; build "
                    "one with course build or servinglab.assets.engine()."
                )
            bits = ((model.get("quantization") or {}).get("quant_algo") or "")[:2]
            names = "max_seq_len max_batch_size max_beam_width gather_context_logits gather_generation_logits".split()
            return cls(
                folder=folder,
                architecture=model.get("architecture", ""),
                precision={"W8": "int8", "W4": "int4"}.get(bits) or _PRECISIONS[model.get("dtype", "float32")],
                vocab_size=model["vocab_size"],
                hidden_size=model.get("hidden_size", 0),
                layers=model["num_hidden_layers"],
                kv_heads=model["num_key_value_heads"],
                head_size=model["head_size"],
                tp_size=(model.get("mapping") or {}).get("tp_size", 1),
                norm_epsilon=model.get("norm_epsilon") or 1e-6,
                max_input_len=build.get("max_input_len", build["max_seq_len"] - 1),
                pretrained=model,
                **{name: build[name] for name in names},
            )
        except FileNotFoundError:
            raise ExecutorError(
                f"{path} does not exist; name an engine folder (engine_dir, in config.pbtxt gpt_model_path)."
            ) from None
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise ExecutorError(
                f"{path} is not the config.json of an engine ({type(error).__name__}: {error})."
            ) from None

    def ranks(self) -> list[dict[str, Tensor]]:
        """The tensors of each rank's file. Raises BackendError when one cannot be read."""
        return [tensors(self.folder.resolve() / f"rank{rank}.engine") for rank in range(self.tp_size)]


def split_fake(ids: np.ndarray, limits: Limits, table: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ids [B, S] with 0 for fake ones, the places of those, int64 [M, 2], and their rows of the table, float32
    [M, hidden]."""
    if table is None:
        return ids, np.empty((0, 2), np.int64), np.empty((0, limits.hidden_size), np.float32)
    fake = ids >= limits.vocab_size
    places = np.ascontiguousarray(np.argwhere(fake))  # numpy makes it by columns
    return np.where(fake, 0, ids), places, table[ids[fake] - limits.vocab_size].astype(np.float32)


def default_threads() -> int:
    """One for each physical core this process may use, four at most: decoding waits for memory, not for arithmetic."""
    return max(1, min(4, psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0))))


class Model:
    """The graph with its weights. `forward` is the only way in, for prompts, single tokens and drafts alike.

    Not thread-safe. The logits it returns are a view of one buffer, valid until the next call.
    """

    chooses = False  # whether there is a `decode`, which says what the likeliest token is

    def __init__(self, config: EngineConfig, cache: KVCache, *, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # A memory plan is kept for every input shape, and here each step has a new one (the mask grows).
        options.enable_mem_pattern = False
        # A worker thread polls 10 us for its next piece of work before it sleeps. That is as fast as ONNX Runtime's
        # default on idle cores, and where a server shares them it does not poll while others could work.
        options.add_session_config_entry("session.intra_op.spin_duration_us", "10")
        folder, ranks = config.folder.resolve(), config.ranks()
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        try:
            made = graph.Decoder(config.pretrained, ranks, config.max_seq_len).graph().SerializeToString()
            self._session = onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's own exceptions share no base class
            raise ExecutorError(f"{config.folder} cannot be loaded: {str(error).splitlines()[0]}") from error
        if len(ranks) > 1:
            log.info("%s: its %d ranks run in this process, their partial sums added here.", config.folder, len(ranks))
        self._config, self._cache = config, cache
        self._bindings: dict[tuple[int, int], onnxruntime.IOBinding] = {}
        self._logits = np.empty((cache.buffers.shape[1], config.vocab_size), np.float32)

    def forward(
        self, ids: np.ndarray, lengths: np.ndarray, first_slot: int, logit_rows: np.ndarray,
        table: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Runs the new tokens of `B` neighbouring slots, `S` for each.

        ids: int64 [B, S], the new tokens. With S > 1, B must be 1 (a limit of the operator once the cache is in use).
        lengths: int64 [B], tokens in the cache after this call, the new ones included.
        first_slot: row b uses cache slot first_slot + b.
        logit_rows: int64 [N]: the positions whose logits are wanted, as flat b * S + s; may be empty.
        table: float [rows, hidden], what ids from vocab_size on stand for.
        Returns float32 [N, vocab].
        """
        batch = len(ids)
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
        if len(logit_rows) > len(self._logits):  # somebody asked for those of the prompt
            self._logits = np.empty((len(logit_rows), self._logits.shape[1]), np.float32)
        logits = self._logits[: len(logit_rows)]
        binding = self._bindings.get((first_slot, batch)) or self._bind_cache(first_slot, batch)
        ids, places, rows = split_fake(ids, self._config, table)
        inputs = {"input_ids": ids, "attention_mask": mask, "logit_rows": logit_rows}
        inputs |= {"prompt_places": places, "prompt_rows": rows}
        for name, array in inputs.items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        binding.bind_output("logits", "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
        self._session.run_with_iobinding(binding)
        return logits

    def _bind_cache(self, first_slot: int, batch: int) -> onnxruntime.IOBinding:
        """The binding for a range of slots, made once: input and output of each layer are the same memory."""
        binding = self._session.io_binding()
        past = [node.name for node in self._session.get_inputs() if node.name.startswith("past_key_values.")]
        for tensor, name in enumerate(past):
            rows = self._cache.buffers[tensor, first_slot : first_slot + batch]
            place = ("cpu", 0, rows.dtype, rows.shape, rows.ctypes.data)
            binding.bind_input(name, *place)
            binding.bind_output(name.replace("past_key_values", "present"), *place)
        self._bindings[first_slot, batch] = binding
        return binding
