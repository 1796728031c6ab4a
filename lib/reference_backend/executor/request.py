"""What a caller hands to the executor and what it gets back, with every check that needs no engine.

What a log probability is, here and in every tensor that carries one: the natural logarithm of the probability that the
chosen token had over the whole vocabulary, where the choice was made: log softmax of the logits after the embedding
bias, the temperature, the penalties and the bans, before top-k and top-p cut the rest away. Under greedy decoding and
in a beam search the temperature has no part in the choice, so it has none in the log probability. There is one for each
choice, that of `end_id` included although it is no token of the answer; their sum is the cumulative one.

TensorRT-LLM takes the same softmax (kernels/samplingTopKKernels.cu). With `normalize_log_probs`, its default before its
pull request 12366, output_log_probs are relative to the tokens that survive top-k, and end_id's is not listed.
"""

import logging
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Protocol

import numpy as np

from .params import MAX_TOKENS_LIMIT, RequestError, SamplingParams, checked

log = logging.getLogger(__name__)


@dataclass
class RequestMetrics:
    """What the outputs of a request say about it; the figures grow from one to the next.

    Times are of the monotonic clock, in nanoseconds (no date: only differences mean something); 0 is "never".
    kv_cache_alloc_total_blocks: allocated for the tokens to read (of each beam its own), and again once preempted;
    kv_cache_alloc_new_blocks: those of them for which nothing kept had to be evicted; kv_cache_reused_blocks: blocks
    whose content, or its start, was there already. A block reused in part is a copy, so it counts as allocated too.
    TensorRT-LLM counts the same (WindowBlockManager::getFreeBlock in kvCacheManager.cpp).
    """

    arrival_time_ns: int = field(default_factory=time.monotonic_ns)
    first_scheduled_time_ns: int = 0
    first_token_time_ns: int = 0
    last_token_time_ns: int = 0
    kv_cache_alloc_new_blocks: int = 0
    kv_cache_reused_blocks: int = 0
    kv_cache_alloc_total_blocks: int = 0
    total_draft_tokens: int = 0
    total_accepted_draft_tokens: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens over all draft tokens, 0 without any."""
        return self.total_accepted_draft_tokens / self.total_draft_tokens if self.total_draft_tokens else 0.0

    def scheduled(self, needed: int, whole: int, in_part: int, evicted: int) -> None:
        """The request runs: it needs so many blocks, of which some are reused; for others, kept ones were evicted."""
        self.first_scheduled_time_ns = self.first_scheduled_time_ns or time.monotonic_ns()
        self.kv_cache_reused_blocks += whole + in_part
        self.kv_cache_alloc_total_blocks += needed - whole
        self.kv_cache_alloc_new_blocks += max(0, needed - whole - evicted)

    def token(self, drafted: int = 0, accepted: int = 0) -> None:
        """A choice was made, in a step that verified so many draft tokens and accepted some."""
        self.last_token_time_ns = time.monotonic_ns()
        self.first_token_time_ns = self.first_token_time_ns or self.last_token_time_ns
        self.total_draft_tokens += drafted
        self.total_accepted_draft_tokens += accepted


METRICS = (*(figure.name for figure in fields(RequestMetrics)), "acceptance_rate")  # the names of all figures


@dataclass(frozen=True)
class Beam:
    """One path of a beam search, whole: the tokens so far (without end_id), the log probability of each choice (with
    it), their sum, and sum / choices ** length_penalty. `logits` [choices, vocab]: in the last output, if asked for."""

    tokens: list[int]
    log_probs: list[float]
    cum_log_prob: float
    score: float
    finish_reason: str | None = None
    logits: np.ndarray | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Output:
    """What one step brought for one request. The last one of a request, and only that, has a `finish_reason`:
    "end_id", "stop_words", "length", "cancelled" or "error" (then `error` is one sentence).

    tokens: new ones; log_probs: of each new choice, if asked for.
    context_logits: float32 [prompt, vocab], in the first output; generation_logits: float32 [new choices, vocab]. Both
    are the model's own, before any processing, and there only if asked for.
    beams: of a beam search, best first; `tokens` is empty then, for a path may change from its root at any step.
    metrics: so far, in every output of a request with return_perf_metrics.
    """

    request_id: str
    tokens: list[int]
    finish_reason: str | None = None
    error: str | None = None
    log_probs: Sequence[float] = ()
    context_logits: np.ndarray | None = field(default=None, repr=False, compare=False)
    generation_logits: np.ndarray | None = field(default=None, repr=False, compare=False)
    beams: tuple[Beam, ...] = ()
    metrics: RequestMetrics | None = field(default=None, repr=False, compare=False)


def joined(outputs: Sequence[Output]) -> Output:
    """Outputs of one request, in their order, as one; beams are those of the last."""
    if len(outputs) == 1:
        return outputs[0]
    context, generation = (
        [logits for output in outputs if (logits := getattr(output, name)) is not None]
        for name in ("context_logits", "generation_logits")
    )
    return replace(
        outputs[-1],
        tokens=[token for output in outputs for token in output.tokens],
        log_probs=[log_prob for output in outputs for log_prob in output.log_probs],
        context_logits=context[0] if context else None,
        generation_logits=np.concatenate(generation) if generation else None,
    )


@dataclass(frozen=True)
class Limits:
    """What requests may ask of an executor; from the engine's build_config, but for what its owner has lowered.
    max_input_len: tokens of a prompt; max_seq_len: of prompt and answer together."""

    vocab_size: int
    max_seq_len: int
    max_beam_width: int
    max_input_len: int
    gather_context_logits: bool = True
    gather_generation_logits: bool = True
    hidden_size: int = 0


class Drafter(Protocol):
    """Proposes the next tokens of a request. Called in the engine's thread between two steps, so it must be quick."""

    def propose(self, tokens: list[int], at_most: int) -> list[int]:
        """Up to `at_most` (1 or more) ids that may follow `tokens`, prompt and generated ones, which are not to be
        changed; none is a good answer."""


@dataclass
class Request:
    """One prompt to continue.

    id: unique among the requests that are running or waiting.
    end_id: ends the request and is not part of the tokens; None (or a negative id) is off.
    stop_words: the request ends when its tokens end with one, which stays part of them.
    on_output: called in the engine's thread, once or more, so it must return quickly.
    embedding_bias: float [vocab], added to the model's logits; -inf forbids a token.
    drafter: proposes draft tokens, so that one step may bring several; draft_tokens: those of the first step. What is
        generated does not change (sequence_decoder.py). Not with beams.
    end_after_draft: the request ends, for "length", when its draft_tokens are verified, with one token more than were
        right. That is what the target model of TensorRT-LLM does.
    generated: how many of the prompt's last tokens are the answer of an earlier request that this one goes on with: the
        random numbers go on too, and min_tokens counts them.
    prompt_embedding_table: float [rows, hidden], of a picture or a tuned prompt. An id of the prompt from vocab_size on
        is a fake one: it stands for row id - vocab_size, whatever its name. It counts in no penalty and no word.
    prompt_table_extra_ids: uint64 [prompt], above 0 for fake ids. Fake ids mean the same only where these are equal,
        too: else kept blocks of one picture would answer for another.

    Raises RequestError for a value that no engine could serve.
    """

    id: str
    prompt: np.ndarray
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    end_id: int | None = None
    stop_words: Sequence[Sequence[int]] = ()
    bad_words: Sequence[Sequence[int]] = ()
    on_output: Callable[[Output], None] = lambda output: None
    embedding_bias: np.ndarray | None = None
    return_log_probs: bool = False
    return_context_logits: bool = False
    return_generation_logits: bool = False
    return_perf_metrics: bool = True
    drafter: Drafter | None = None
    draft_tokens: Sequence[int] = ()
    end_after_draft: bool = False
    generated: int = 0
    prompt_embedding_table: np.ndarray | None = None
    prompt_table_extra_ids: np.ndarray | None = None

    def __post_init__(self) -> None:
        prompt = np.asarray(self.prompt)
        if prompt.ndim != 1 or (prompt.size and prompt.dtype.kind not in "iu"):
            raise RequestError(
                f"The prompt is an array of {prompt.dtype} with {prompt.ndim} dimension(s); "
                "it must be one row of token ids (integers)."
            )
        if not prompt.size:
            raise RequestError("The prompt is empty; it must hold at least one token.")
        if prompt.flags.writeable or prompt.dtype != np.int64:  # not that of another sequence of the same request
            # Wide, so that an id past 2^31 is refused later rather than wrapped into the vocabulary here.
            prompt = prompt.astype(np.int64)
            prompt.setflags(write=False)
        self.prompt = prompt
        most, length = MAX_TOKENS_LIMIT, prompt.size
        self.max_tokens = checked("max_tokens", self.max_tokens, 1, most, f"from 1 to {most}", whole=True)
        self.generated = checked("generated", self.generated, 0, length, "at most the prompt's length", whole=True)
        if self.end_id is not None:
            self.end_id = checked("end_id", self.end_id, -(2**31), 2**31 - 1, "a token id", whole=True)
            self.end_id = None if self.end_id < 0 else self.end_id
        self.stop_words = _words("stop_words", self.stop_words)
        self.bad_words = _words("bad_words", self.bad_words)
        if self.embedding_bias is not None:
            bias = self.embedding_bias = np.asarray(self.embedding_bias, np.float32)
            if bias.ndim != 1:
                raise RequestError("embedding_bias must be one row of numbers, one for each token of the vocabulary.")
            if np.isnan(bias).any() or np.isposinf(bias).any():
                raise RequestError("embedding_bias holds nan or +inf; a number or -inf (never this token) is needed.")
        table, extra_ids = self.prompt_embedding_table, self.prompt_table_extra_ids
        if table is not None and (table.ndim != 2 or table.dtype.kind != "f" or not np.isfinite(table).all()):
            raise RequestError(
                f"prompt_embedding_table is an array of {table.dtype} with {table.ndim} dimension(s); it must be "
                "[rows, hidden] of finite floating-point numbers."
            )
        if extra_ids is not None and (extra_ids.shape != prompt.shape or extra_ids.dtype.kind not in "iu"):
            raise RequestError(
                f"prompt_table_extra_ids is {list(extra_ids.shape)} of {extra_ids.dtype}, but the prompt has {length} "
                "ids; give a whole number for each."
            )
        self.draft_tokens = _words("draft_tokens", [self.draft_tokens])[0] if len(self.draft_tokens) else []
        if (self.drafter or self.draft_tokens) and self.sampling.beam_width > 1:
            raise RequestError("A draft is for one path; leave out drafter and draft_tokens, or beam_width.")

    def fit(self, limits: Limits) -> int:
        """Checks the request against an engine; returns how many tokens it may generate.

        A prompt plus `max_tokens` beyond `max_seq_len` is clamped with a warning in the log, as TensorRT-LLM does.
        """
        vocab_size, max_beam_width = limits.vocab_size, limits.max_beam_width
        table = self.prompt_embedding_table
        if table is not None and table.shape[1] != limits.hidden_size:
            raise RequestError(
                f"prompt_embedding_table has rows of {table.shape[1]} numbers, but the model's hidden size is "
                f"{limits.hidden_size}; project the picture's features to that."
            )
        fake, rows = self.prompt[self.prompt >= vocab_size], 0 if table is None else len(table)
        if fake.size and fake.max() >= vocab_size + rows:
            raise RequestError(
                f"The prompt holds token id {fake.max()}; ids must be from 0 to {vocab_size - 1}, and those behind "
                f"name the rows of prompt_embedding_table, which has {rows or 'not been given'}."
            )
        ids = {"The prompt": self.prompt[self.prompt < vocab_size].tolist(), "draft_tokens": self.draft_tokens}
        ids |= {"end_id": [] if self.end_id is None else [self.end_id]}
        ids |= {name: [token for word in getattr(self, name) for token in word] for name in ("stop_words", "bad_words")}
        for name, tokens in ids.items():
            if outside := [token for token in tokens if not 0 <= token < vocab_size]:
                raise RequestError(f"{name} holds token id {outside[0]}; ids must be from 0 to {vocab_size - 1}.")
        if self.embedding_bias is not None and len(self.embedding_bias) > vocab_size:
            raise RequestError(
                f"embedding_bias holds {len(self.embedding_bias)} numbers, but the vocabulary has {vocab_size} tokens."
            )
        if self.sampling.beam_width > max_beam_width:
            raise RequestError(
                f"beam_width {self.sampling.beam_width} exceeds max_beam_width {max_beam_width}; ask for at most "
                f"{max_beam_width} or start the executor with a larger max_beam_width."
            )
        for name in ("context_logits", "generation_logits"):
            if getattr(self, f"return_{name}") and not getattr(limits, f"gather_{name}"):
                raise RequestError(
                    f"return_{name} needs an engine that was built with gather_{name}; leave it out, or build the "
                    f"engine again with --gather_{name}."
                )
        length, max_seq_len = len(self.prompt), limits.max_seq_len
        longest = min(limits.max_input_len, max_seq_len - 1)
        if length > longest:
            raise RequestError(
                f"Prompt length ({length}) exceeds maximum input length ({longest}); "
                "shorten the prompt or use an engine with a larger max_seq_len."
            )
        room = min(self.max_tokens, max_seq_len - length)
        if room < self.max_tokens:
            log.warning(
                "Request %s: prompt (%d) + max_tokens (%d) exceeds max_seq_len (%d); max_tokens is now %d.",
                self.id, length, self.max_tokens, max_seq_len, room,
            )  # fmt: skip
        return room


def _words(name: str, words: Sequence[Sequence[int]]) -> list[list[int]]:
    try:
        listed = [[operator.index(token) for token in word] for word in words or ()]
    except TypeError:
        raise RequestError(f"{name} must be a list of token id lists, such as [[10, 11], [12]].") from None
    if not all(listed):
        raise RequestError(f"{name} holds an empty word; each word must have at least one token.")
    return listed
