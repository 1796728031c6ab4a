"""The executor: a thread that runs one model step after another for whichever requests are there."""

import logging
import math
import threading
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from .cache import BlockPool
from .device import choose, free_bytes, place
from .inflight import InflightBatch, sentence
from .model import EngineConfig, ExecutorError
from .request import Limits, Request, RequestError
from .reuse import BlockReuse
from .scheduler import POLICIES, Scheduler, Sequence

log = logging.getLogger(__name__)

PREFILL_TOKENS = {"cpu": 64, "cuda": 256}
# For the first two, this executor does the same.
BATCHING = ("inflight_fused_batching", "inflight_batching", "V1")
KV_SHARE_OF_FREE_MEMORY = 0.9  # TensorRT-LLM's default for its kv_cache_free_gpu_mem_fraction


class Executor(AbstractContextManager):
    """In-flight batching over one engine: a request joins and leaves the running batch at any token.

    max_batch_size: requests that run at the same time; more wait in the queue. Each beam of one is a row of the batch.
    max_seq_len: prompt plus generated tokens of a request; the engine's own limit by default.
    max_tokens_in_paged_kv_cache: bounds the KV cache for all requests together; by default every row can be full.
    kv_cache_free_gpu_mem_fraction: the share of the memory that is free once the weights are loaded which the KV cache
        may take; 0.9 by default, or no bound when max_tokens_in_paged_kv_cache is given.
    enable_kv_cache_reuse: keep the blocks of requests that end, for those that begin alike (`reuse.py`).
    enable_partial_reuse: reuse parts of blocks and generated tokens as well; answers may then differ in close choices.
    batch_scheduler_policy: one of POLICIES (`scheduler.py`).
    batching_strategy: "V1" lets requests join only while the batch has not begun to generate; the others at any time.
    threads: for the model's arithmetic; by default the physical cores, at most 4.
    prefill_tokens: prompt tokens read between two steps of the running requests.
    device: one of DEVICES (`device.py`); the attribute `device` says which it became.

    Raises BackendError when the engine cannot be used. Use it as a context manager, or call `shutdown`. One
    that nobody holds any more ends by itself, so a cell that makes one may run again.
    """

    def __init__(
        self,
        engine_dir: Path | str,
        *,
        max_batch_size: int = 8,
        max_beam_width: int = 1,
        max_seq_len: int | None = None,
        max_tokens_in_paged_kv_cache: int | None = None,
        threads: int | None = None,
        kv_cache_free_gpu_mem_fraction: float | None = None,
        enable_kv_cache_reuse: bool = True,
        enable_partial_reuse: bool = False,
        batch_scheduler_policy: str = "guaranteed_no_evict",
        batching_strategy: str = "inflight_fused_batching",
        prefill_tokens: int | None = None,
        tokens_per_block: int = 64,
        device: str | None = None,
    ) -> None:
        options = {name: value for name, value in locals().items() if name not in ("self", "engine_dir", "device")}
        config = EngineConfig.read(engine_dir)
        longest = config.max_seq_len if max_seq_len is None else max_seq_len
        self.limits: Limits = replace(config, max_seq_len=longest, max_beam_width=max_beam_width)
        _check_options(config, options)
        kv_tokens, fraction = max_tokens_in_paged_kv_cache, kv_cache_free_gpu_mem_fraction
        self.max_batch_size, self.device = max_batch_size, choose(config, device)
        rows = max_batch_size * max_beam_width
        try:
            cache, model = place(config, rows, longest, device=self.device, threads=threads)
            row = -(-longest // tokens_per_block) * tokens_per_block  # tokens of a full one, in whole blocks
            free = free_bytes(self.device) // cache.bytes_per_token
            if kv_tokens is None:
                kv_tokens, fraction = rows * row, fraction or KV_SHARE_OF_FREE_MEMORY
            if fraction:  # but one request may always be full
                kv_tokens = min(kv_tokens, max(max_beam_width * row, int(fraction * free)))
            pool, static = BlockPool(kv_tokens, tokens_per_block), batching_strategy == "V1"
            self._scheduler = Scheduler(pool, max_batch_size, policy=batch_scheduler_policy, static=static)
            prefill_tokens = prefill_tokens or PREFILL_TOKENS[self.device]
            # On CUDA a token's numbers do not depend on which others are read with it.
            aligned = self.device == "cuda" or tokens_per_block % prefill_tokens == 0
            reuse = {"enabled": enable_kv_cache_reuse, "partial": enable_partial_reuse, "aligned": aligned}
            self._reuse = BlockReuse(cache, self._scheduler, **reuse)
        except OSError as error:
            raise ExecutorError(
                f"No memory for the KV cache of {rows} x {longest} tokens ({error}); lower max_batch_size, "
                "max_beam_width, max_seq_len or max_tokens_in_paged_kv_cache."
            ) from None
        if self.device == "cuda":
            model.warm_up(rows)
        self._changed = threading.Condition()  # guards the three fields below
        self._active: dict[str, Sequence] = {}
        self._arrived: list[Sequence] = []
        self._stopping = threading.Event()
        active = self._active  # neither the batch nor the thread holds the executor
        forget = lambda sequence: active.pop(sequence.request.id, None)  # noqa: E731
        self._batch = InflightBatch(model, cache, self._scheduler, prefill_tokens, forget, self._reuse)
        shared = (self._batch, self._scheduler, self._changed, active, self._arrived, self._stopping)
        self._thread = threading.Thread(target=_loop, args=shared, name="executor", daemon=True)
        self._thread.start()
        # At exit, too: a daemon thread inside native code must not outlive the interpreter.
        weakref.finalize(self, _end, weakref.ref(self), self._thread, self._changed, self._stopping)

    def __exit__(self, *exception: object) -> None:
        self.shutdown()

    # --- called from any thread

    def submit(self, request: Request) -> None:
        """Queues a request; its outputs go to `request.on_output`. Raises RequestError when it can never run."""
        max_tokens = request.fit(self.limits)
        fake, extra_ids = request.prompt >= self.limits.vocab_size, request.prompt_table_extra_ids
        # TensorRT-LLM asks for them, too, where there is a table and blocks are kept, but lets 0 pass.
        if self._reuse.enabled and fake.any() and (extra_ids is None or not extra_ids[fake].all()):
            raise RequestError(
                "prompt_table_extra_ids must give each fake id of the prompt a number above 0, the same only for the "
                "same table, because enable_kv_cache_reuse is on: give them, or turn it off."
            )
        width, pool = request.sampling.beam_width, self._scheduler.pool
        sequence = Sequence(request, max_tokens, self.limits.vocab_size)
        if sequence.blocks(pool) > pool.total:
            beams = f", for each of {width} beams," if width > 1 else ""
            raise RequestError(
                f"The prompt ({len(request.prompt)} tokens) plus max_tokens ({max_tokens}){beams} needs "
                f"{sequence.blocks(pool)} KV cache blocks of {pool.tokens_per_block} tokens, "
                f"but the cache has {pool.total}; ask for less or raise max_tokens_in_paged_kv_cache."
            )
        with self._changed:
            if self._stopping.is_set():
                raise RequestError("The executor has been shut down.")
            if request.id in self._active:
                raise RequestError(f"A request with id {request.id!r} is still running; give each request its own id.")
            self._active[request.id] = sequence
            self._arrived.append(sequence)
            self._changed.notify()

    def cancel(self, request_id: str) -> bool:
        """Ends a request before its next token. False when no such request is waiting or running."""
        with self._changed:
            sequence = self._active.get(request_id)
            if sequence is not None:
                sequence.cancelled = True
                self._changed.notify()
            return sequence is not None

    def shutdown(self) -> None:
        """Ends every request as "cancelled", stops the thread and frees the memory. May be called twice."""
        _end(weakref.ref(self), self._thread, self._changed, self._stopping)

    def stats(self) -> dict[str, int]:
        """Counts since the start, and the state now."""
        scheduler = self._scheduler
        with self._changed:
            active = len(self._active)
        generating, reading = len(scheduler.running), int(scheduler.prefilling is not None)
        running = generating + reading
        return {
            "max_batch_size": self.max_batch_size,
            "active": active,
            "running": running,
            "reading": reading,
            "generating": generating,
            "waiting": max(0, active - running),
            "kv_blocks_used": scheduler.pool.used,
            "kv_blocks_total": scheduler.pool.total,
            "kv_tokens_per_block": scheduler.pool.tokens_per_block,
            **{f"kv_{name}": count for name, count in self._reuse.counts.items()},
            **self._batch.counts,
        }


def _loop(
    batch: InflightBatch, scheduler: Scheduler, changed: threading.Condition, active: dict[str, Sequence],
    arrived: list[Sequence], stopping: threading.Event,
) -> None:  # fmt: skip
    """The engine's thread."""
    stop = False
    while not stop:
        with changed:
            changed.wait_for(lambda: active or stopping.is_set())
            new, cancelled = [*arrived], [sequence for sequence in active.values() if sequence.cancelled]
            arrived.clear()
            stop = stopping.is_set()
        for sequence in new:
            scheduler.add(sequence)
        if cancelled:
            batch.end(cancelled, "cancelled")
        try:
            if not stop:
                batch.iterate()
        except Exception as error:  # a bug here must end the requests, not the service
            log.exception("The executor failed")
            batch.end(scheduler.everyone(), "error", f"The executor failed: {sentence(error)}")
    batch.end(scheduler.everyone(), "cancelled")
    batch.free()


def _end(executor: weakref.ref, thread: threading.Thread, changed: threading.Condition, stopping) -> None:
    with changed:
        stopping.set()
        changed.notify()
    # Garbage collection waits for nobody: its thread may hold what a receiver of tokens needs.
    if executor() and threading.current_thread() is not thread:
        thread.join()


def _check_options(config: EngineConfig, options: Mapping[str, Any]) -> None:
    """Raises ExecutorError for what an executor cannot be asked for; None means by default."""
    choices = {"batch_scheduler_policy": POLICIES, "batching_strategy": BATCHING}
    least = {"max_seq_len": 2, "max_tokens_in_paged_kv_cache": options["tokens_per_block"]}
    most = {name: getattr(config, name) for name in ("max_batch_size", "max_beam_width", "max_seq_len")}
    for name, value in options.items():
        low, high = least.get(name, 1), most.get(name, math.inf)
        if name in choices:
            right, says = value in choices[name], f"one of {', '.join(choices[name])}"
        elif name == "kv_cache_free_gpu_mem_fraction":
            right, says = value is None or 0 < value < 1, "between 0 and 1"
        else:
            says = f"from {low} to {high}, for which the engine was built" if name in most else f"{low} or more"
            right = value is None or isinstance(value, bool) or low <= value <= high
        if not right:
            raise ExecutorError(f"{name} is {value!r}; it must be {says}.")
