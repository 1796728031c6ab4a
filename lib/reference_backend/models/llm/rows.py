"""The input tensors of `tensorrt_llm`, checked and decoded, one batch row at a time (taught in notebook 03)."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reference_backend import table
from reference_backend.executor.params import TENSORS, SamplingParams
from reference_backend.executor.request import Limits, Request
from reference_backend.models.common import InputError, Tensors, decode_words, require, scalars, sequences_of
from reference_backend.models.llm.responses import COUNTS, ResponseFormat

MAX_LOGITS_BYTES = 2**29  # of one request: they are held in memory until they are sent, and copied on their way
MAX_WORD_IDS = 2**18  # of stop and bad words, counted for each sequence: each looks for them itself
RETURN = ("return_log_probs", "return_context_logits", "return_generation_logits", "return_perf_metrics")


@dataclass
class Row:
    """One prompt of a request, and how it is answered.

    sequences: how many independent samples to take, each with a seed of its own (`num_return_sequences`).
    """

    request: Request
    sequences: int
    format: ResponseFormat

    def requests(self, generated: int) -> list[Request]:
        """One for each sequence. The seeds are seed, seed + 1, …, as in TensorRT-LLM; the logits of the prompt, which
        all share, are computed with the first one alone."""
        one, sampling = self.request, self.request.sampling
        samplings = [replace(sampling, seed=(sampling.seed + at) % 2**64) for at in range(self.sequences)]
        context = [one.return_context_logits and at == 0 for at in range(self.sequences)]
        several = zip(samplings, context, strict=True)
        return [replace(one, sampling=s, return_context_logits=c, generated=generated) for s, c in several]

    def logits(self, max_seq_len: int) -> int:
        """Rows of logits that this may return, over all responses, sequences and beams; each response of a stream
        repeats those of the prompt."""
        one, length = self.request, len(self.request.prompt)
        new = max(0, min(one.max_tokens, max_seq_len - length)) * self.sequences
        context = length * (new if self.format.streaming else self.sequences)
        return one.return_context_logits * context + one.return_generation_logits * new * one.sampling.beam_width


def read_rows(inputs: Tensors, exclude_input: bool, limits: Limits) -> list[Row]:
    """Every row of the request; raises :class:`InputError` (or the executor's RequestError) in one sentence."""
    require(inputs, "input_lengths", "request_output_len")
    rows = len(inputs["input_lengths"])
    _check_features(inputs)
    if "input_ids" not in inputs:
        raise InputError("input_ids is missing; a decoder-only model needs the prompt's token ids.")
    counts = sequences_of(inputs, rows)
    read = [_read_row(inputs, row, rows, exclude_input, counts[row]) for row in range(rows)]
    word_ids = sum(row.sequences * sum(map(len, row.request.stop_words + row.request.bad_words)) for row in read)
    if word_ids > MAX_WORD_IDS:
        raise InputError(
            f"stop_words_list and bad_words_list hold {word_ids:,} ids, counted for each sequence, and "
            f"at most {MAX_WORD_IDS:,} are read; give fewer words or ask for fewer sequences."
        )
    size = 4 * limits.vocab_size * sum(row.logits(limits.max_seq_len) for row in read)
    if size > MAX_LOGITS_BYTES:
        raise InputError(
            f"return_context_logits and return_generation_logits may take {size / 1e6:,.0f} MB ({limits.vocab_size:,} "
            f"numbers for each token), and at most {MAX_LOGITS_BYTES / 1e6:,.0f} MB are returned; ask for fewer "
            "tokens, sequences or beams, for return_log_probs, or without streaming, which repeats context_logits."
        )
    return read


def _check_features(inputs: Tensors) -> None:
    for feature, names in table("triton")["unsupported"].items():
        for name in names:
            array = inputs.get(name, np.zeros(0))
            # The ensemble sends, whether wanted or not, empty tensors, False and empty strings.
            if array.size > 0 if array.dtype.kind in "iu" else array.astype(bool).any():
                raise InputError(f"Input {name} asks for {feature}, which this executor does not offer; leave it out.")
    for name, neutral in table("triton")["neutral"].items():
        if name in inputs and np.any(inputs[name] != neutral):
            raise InputError(
                f"Input {name} is {inputs[name].reshape(-1)[0]}, but this executor offers only {neutral}; leave it out."
            )


def _read_row(inputs: Tensors, row: int, rows: int, exclude_input: bool, sequences: int) -> Row:
    def scalar(name: str, default: Any) -> Any:
        return scalars(inputs, name, rows, default)[row]

    def words(name: str) -> list[list[int]]:
        return decode_words(inputs[name][row], name) if name in inputs else []

    ids, length = inputs["input_ids"][row], scalar("input_lengths", 0)
    if not 0 <= length <= len(ids):
        raise InputError(f"input_lengths is {length}, but input_ids holds {len(ids)} ids; send from 0 to {len(ids)}.")
    sampling = {field: scalar(name, None) for name, field in TENSORS.items() if name in inputs}
    if sampling.get("top_p", 0) < 0:
        sampling["top_p"] = 0.0  # the C++ backend takes everything up to 0 for "not given"
    params, count = SamplingParams(**sampling), scalar("num_return_sequences", 1)
    wanted, streaming = {name: bool(scalar(name, False)) for name in RETURN}, bool(scalar("streaming", False))
    counts = {name for name in COUNTS if scalar(f"return_{name}", False)}
    if 1 < params.beam_width < count:
        raise InputError(
            f"num_return_sequences {count} exceeds beam_width {params.beam_width}: a beam search has no more beams to "
            "return."
        )
    if params.beam_width > 1 and streaming and wanted["return_generation_logits"]:
        raise InputError("return_generation_logits with beam_width above 1 needs streaming false: beams may change.")
    table, extra_ids = _prompt_table(inputs, row, rows)
    bias = inputs.get("embedding_bias", np.zeros((rows, 0)))[row]
    draft = inputs["draft_input_ids"][row].tolist() if "draft_input_ids" in inputs else []
    request = Request(
        id="",
        prompt=ids[:length],
        max_tokens=scalar("request_output_len", 0),
        sampling=params,
        end_id=scalar("end_id", None),
        stop_words=words("stop_words_list"),
        bad_words=words("bad_words_list"),
        embedding_bias=bias if bias.size else None,
        draft_tokens=draft,
        end_after_draft=bool(draft),
        prompt_embedding_table=table,
        prompt_table_extra_ids=None if extra_ids is None else extra_ids[:length],
        **wanted,
    )
    excluded = streaming or scalar("exclude_input_in_output", exclude_input)
    before = [] if excluded else request.prompt.tolist()
    beams = count if "num_return_sequences" in inputs else params.beam_width
    beams = beams if params.beam_width > 1 else 0
    about = {"log_probs": request.return_log_probs, "metrics": request.return_perf_metrics}
    return Row(request, sequences, ResponseFormat(streaming, before, length, beams, frozenset(counts), **about))


def _prompt_table(inputs: Tensors, row: int, rows: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The table [rows, hidden] of one row of the batch, and the extra ids of its prompt, padded as input_ids are.
    Without a table those mean nothing: the ensemble sends them whether wanted or not."""
    table, extra_ids = inputs.get("prompt_embedding_table"), inputs.get("prompt_table_extra_ids")
    if table is None:
        return None, None
    if table.ndim != 3:
        raise InputError(f"prompt_embedding_table is {list(table.shape)}; it must be [batch, rows, hidden].")
    if len(table) != rows:
        raise InputError(f"prompt_embedding_table holds {len(table)} tables; send one for each of the {rows} rows.")
    size = scalars(inputs, "prompt_vocab_size", rows, table.shape[1])[row]
    if size != table.shape[1]:
        raise InputError(f"prompt_vocab_size is {size}, but prompt_embedding_table has {table.shape[1]} rows.")
    if extra_ids is not None and extra_ids.shape != inputs["input_ids"].shape:
        raise InputError(
            f"prompt_table_extra_ids has the shape {list(extra_ids.shape)}, but input_ids "
            f"{list(inputs['input_ids'].shape)}; send an extra id for each id."
        )
    return table[row], None if extra_ids is None else extra_ids[row]
