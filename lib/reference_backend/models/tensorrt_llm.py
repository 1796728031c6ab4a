"""`tensorrt_llm` of the embedded lane: the reference executor behind NVIDIA's tensors (taught in notebooks 03 and 05).

`execute` hands the request to the executor and returns at once, in decoupled mode and in the other, so that requests
share the running batch. Streaming responses hold the new ids only; FINAL travels with the last data response (behind
it where shared memory is scarce). A request with draft_input_ids ends when they are verified, as in TensorRT-LLM: its
answer is those that were right and one token more. Where this differs from NVIDIA's backend (greedy log probabilities,
beams) is said in executor/request.py and beams.py.
"""

from __future__ import annotations

import json
import os
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import triton_python_backend_utils as pb_utils

from reference_backend.executor import Executor, Output, Request, SamplingParams
from reference_backend.models._answer import Form
from reference_backend.models._common import (
    ERRORS_AS_DATA,
    GENERATED,
    InputError,
    any_true,
    flag,
    inputs_of,
    integer,
    number,
    parameter,
)
from reference_backend.models._llm_request import Row, read_rows
from reference_backend.models._responses import ResponseSender, RowState, Ticket

SHUTDOWN_SECONDS = 5.0
# The model's arithmetic keeps every core busy. Standing back a little, it lets a token that is ready leave at once;
# otherwise each of the four processes on its way waits up to 4 ms for a core.
NICENESS = 10


def _stand_back() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))  # this thread only, on Linux


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.name = config["name"]
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.exclude_input = flag(config, "exclude_input_in_output", False)
        self.max_beam_width = max(integer(config, "max_beam_width", 1), 1)
        halves = {out["name"] for out in config.get("output", ()) if out["data_type"] == "TYPE_FP16"}
        self.logits_type = np.float16 if "generation_logits" in halves else np.float32
        with ThreadPoolExecutor(1, initializer=_stand_back) as starter:  # the executor's threads inherit its priority
            self.executor = starter.submit(
                Executor,
                parameter(config, "gpt_model_path"),
                max_batch_size=max(config["max_batch_size"], 1),
                max_beam_width=self.max_beam_width,
                max_tokens_in_paged_kv_cache=integer(config, "max_tokens_in_paged_kv_cache", None),
                kv_cache_free_gpu_mem_fraction=number(config, "kv_cache_free_gpu_mem_fraction", None),
                enable_kv_cache_reuse=flag(config, "enable_kv_cache_reuse", True),
                batch_scheduler_policy=parameter(config, "batch_scheduler_policy", "guaranteed_no_evict"),
                batching_strategy=parameter(config, "gpt_model_type", "inflight_fused_batching"),
            ).result()
        poll_seconds = integer(config, "cancellation_check_period_ms", 100) / 1000
        interval = max(integer(config, "stream_interval", 1), 1)  # as in TensorRT-LLM's LLM API
        self.responses = ResponseSender(self.name, self.executor.cancel, poll_seconds, interval)

    def execute(self, requests):
        for request in requests:
            ticket = Ticket(request.get_response_sender(), request.request_id())
            try:
                parameters = json.loads(request.parameters() or "{}")
                ticket.errors_as_data = ERRORS_AS_DATA in parameters
                self._serve(ticket, inputs_of(request), parameters.get(GENERATED, 0))
            except Exception as error:
                self.responses.fail(ticket, error)
        return None  # the responses come from the sender thread

    def _serve(self, ticket: Ticket, inputs: dict, generated: int) -> None:
        if any_true(inputs, "stop"):
            if not ticket.client_id:
                raise InputError("Trying to stop a request but request ID is not provided")
            self.responses.stop_request(ticket)
            return
        engine = self.executor
        rows = read_rows(inputs, self.max_beam_width, self.exclude_input, engine.vocab_size, engine.max_seq_len)
        if not self.decoupled:
            self._check_single(rows)
        # Several requests may carry the same id, or none, so the executor gets ids of our own.
        states = [
            (row, sampling, RowState(ticket, index, uuid.uuid4().hex, form, sequence))
            for index, (row, form) in enumerate((row, self._form(row)) for row in rows)
            for sequence, sampling in enumerate(row.samplings())
        ]
        ticket.rows, ticket.sequences = len(rows), max(row.sequences for row in rows)
        ticket.open_rows = {state.id: state for _, _, state in states}
        self.responses.open_request(ticket)
        self._submit(ticket, states, generated)

    def _submit(self, ticket: Ticket, states: list[tuple[Row, SamplingParams, RowState]], generated: int) -> None:
        """All sequences, unless one has failed meanwhile, the request was stopped, or its client has left."""
        for row, sampling, state in states:
            if ticket.given_up:
                self.responses.output(state, Output(state.id, [], "cancelled"))
            else:
                self.executor.submit(self._request(row, sampling, state, generated))
        if ticket.given_up:  # one may have come in behind the cancelling
            for _, _, state in states:
                self.executor.cancel(state.id)

    def _form(self, row: Row) -> Form:
        prompt = [] if row.exclude_input or row.streaming else row.prompt.tolist()
        beams = row.beams if row.sampling.beam_width > 1 else 0
        wanted = row.wanted
        return Form(
            row.streaming, prompt, wanted["return_log_probs"], beams, self.logits_type, wanted["return_perf_metrics"]
        )

    def _request(self, row: Row, sampling: SamplingParams, state: RowState, generated: int) -> Request:
        return Request(
            id=state.id,
            prompt=row.prompt,
            max_tokens=row.max_tokens,
            sampling=sampling,
            end_id=row.end_id,
            stop_words=row.stop_words,
            bad_words=row.bad_words,
            on_output=lambda output: self.responses.output(state, output),
            embedding_bias=row.embedding_bias,
            draft_tokens=row.draft_tokens,
            end_after_draft=bool(row.draft_tokens),
            generated=generated,
            **row.wanted_of(state.sequence),
        )

    def _check_single(self, rows: list[Row]) -> None:
        if any(row.streaming for row in rows):
            raise InputError("Streaming is only supported if model is deployed using decoupled mode.")
        if len(rows) > 1:
            raise InputError(
                "A request with batch size > 1 requires the decoupled transaction policy; this one has "
                f"{len(rows)} rows: send them as separate requests, or deploy with decoupled mode."
            )
        if any(row.sequences > 1 for row in rows):
            raise InputError(
                f"num_return_sequences {rows[0].sequences} gives as many responses, which needs the decoupled "
                "transaction policy: send one request for each seed, or deploy with decoupled mode."
            )

    def finalize(self):
        self.executor.shutdown()
        self.responses.shutdown(SHUTDOWN_SECONDS)
