"""`tensorrt_llm`: the reference executor behind NVIDIA's tensors, the code of the backend (notebooks 03 and 05).

`execute` hands the request to the executor and returns at once, in decoupled mode and in the other, so that requests
share the running batch. A request with draft_input_ids ends when they are verified, as in TensorRT-LLM.
"""

import json
import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import triton_python_backend_utils as pb_utils

from reference_backend import table
from reference_backend.executor import Executor, Output
from reference_backend.models import common
from reference_backend.models.common import InputError, QueueFull
from reference_backend.models.llm.metrics import Metrics
from reference_backend.models.llm.responses import PendingRequest, ResponseSender, RowState
from reference_backend.models.llm.rows import read_rows

SHUTDOWN_SECONDS = 5.0
# The model's arithmetic keeps every core busy. Standing back a little, it lets a token that is ready leave at once;
# otherwise each of the four processes on its way waits up to 4 ms for a core.
NICENESS = 10
PARAMETERS = table("triton")["parameters"]
WINDOW = "max_attention_window_size"  # honoured as far as it is not smaller than max_seq_len


def check_parameters(config: dict) -> None:
    """Refuse (InputError) what would change answers without a word; name in the log what else has no effect here."""
    given = {name: value for name in config.get("parameters", {}) if (value := common.parameter(config, name))}
    for name, feature in PARAMETERS["refused"].items():
        if given.get(name, "0") != "0":
            raise InputError(
                f"{config['name']}: parameter {name} is '{given[name]}', but this executor does not offer {feature}; "
                "leave it unset."
            )
    if not common.flag(config, "normalize_log_probs", False):  # true has no effect here
        given.pop("normalize_log_probs", None)
    unknown = sorted(given.keys() - {name for names in PARAMETERS.values() for name in names})
    if unknown:
        pb_utils.Logger.log_warn(f"{config['name']}: parameters that have no effect here: {', '.join(unknown)}.")


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.name = config["name"]
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.exclude_input = common.flag(config, "exclude_input_in_output", False)
        policy = config.get("dynamic_batching", {}).get("default_queue_policy", {})
        self.max_queue_size = int(policy.get("max_queue_size", 0))  # Triton's own queue is empty: see `execute`
        halves = {out["name"] for out in config.get("output", ()) if out["data_type"] == "TYPE_FP16"}
        logits_type = np.float16 if "generation_logits" in halves else np.float32
        check_parameters(config)
        place = (os.PRIO_PROCESS, 0)  # on Linux this thread only; the executor's threads inherit its priority
        place += (max(NICENESS, os.getpriority(*place)),)
        with ThreadPoolExecutor(1, initializer=os.setpriority, initargs=place) as starter:
            self.executor = starter.submit(
                Executor,
                common.parameter(config, "gpt_model_path"),
                max_batch_size=max(config["max_batch_size"], 1),
                max_beam_width=max(common.number(config, "max_beam_width", 1, int), 1),
                max_tokens_in_paged_kv_cache=common.number(config, "max_tokens_in_paged_kv_cache", None, int),
                kv_cache_free_gpu_mem_fraction=common.number(config, "kv_cache_free_gpu_mem_fraction", None),
                enable_kv_cache_reuse=common.flag(config, "enable_kv_cache_reuse", True),
                batch_scheduler_policy=common.parameter(config, "batch_scheduler_policy", "guaranteed_no_evict"),
                batching_strategy=common.parameter(config, "gpt_model_type", "inflight_fused_batching"),
            ).result()
        longest = self.executor.limits.max_seq_len
        window = min(map(int, re.findall(r"\d+", common.parameter(config, WINDOW))), default=longest)
        if window < longest:
            self.executor.shutdown()
            raise InputError(
                f"{self.name}: parameter {WINDOW} is {window}, but this executor attends to all tokens, up to "
                f"{longest}; leave it unset, or build the engine with that --max_seq_len."
            )
        poll_seconds = common.number(config, "cancellation_check_period_ms", 100, int) / 1000
        period = common.number(config, "stats_check_period_ms", 1000, int) / 1000
        self.metrics = Metrics(self.name, args["model_version"], self.executor.stats, period)
        calls = (self.executor.cancel, self.metrics.ended)
        self.responses = ResponseSender(self.name, *calls, poll_seconds, logits_type)

    def execute(self, requests):
        for request in requests:
            pending = PendingRequest(request.get_response_sender(), request.request_id())
            try:
                parameters = json.loads(request.parameters() or "{}")
                pending.errors_as_data = common.ERRORS_AS_DATA in parameters
                self._serve(pending, common.inputs_of(request), parameters.get(common.GENERATED, 0))
            except Exception as error:
                self.responses.fail(pending, error)
        return None  # the responses come from the sender thread

    def _serve(self, pending: PendingRequest, inputs: dict, generated: int) -> None:
        if common.any_true(inputs, "stop"):
            if not pending.client_id:
                raise InputError("Trying to stop a request but request ID is not provided")
            self.responses.stop_request(pending)
            return
        rows = read_rows(inputs, self.exclude_input, self.executor.limits)
        common.check_single(self.decoupled, self.name, inputs, len(rows), "streaming")
        if not self.decoupled and rows[0].sequences > 1:
            raise InputError(
                f"num_return_sequences {rows[0].sequences} gives as many responses, which needs the decoupled "
                "transaction policy: send one request for each seed, or deploy with decoupled mode."
            )
        states, to_run = {}, []
        for index, row in enumerate(rows):
            for sequence, one in enumerate(row.requests(generated)):
                # Several requests may carry the same id, or none, so the executor gets ids of our own.
                one.id = uuid.uuid4().hex
                states[one.id] = state = RowState(pending, index, one.id, row.format, sequence)
                one.on_output = partial(self.responses.output, state)
                to_run.append(one)
        if 0 < self.max_queue_size < self.executor.stats()["waiting"] + len(to_run):  # those that run are not counted
            raise QueueFull(self.max_queue_size)
        pending.rows, pending.sequences, pending.open_rows = len(rows), max(row.sequences for row in rows), states
        self.responses.open_request(pending)
        for one in to_run:
            if pending.given_up:  # one has failed meanwhile, the request was stopped, or its client has left
                one.on_output(Output(one.id, [], "cancelled"))
            else:
                self.executor.submit(one)
        if pending.given_up:  # one may have come in behind the cancelling
            for one in to_run:
                self.executor.cancel(one.id)

    def finalize(self):
        self.executor.shutdown()
        self.responses.shutdown(SHUTDOWN_SECONDS)
        self.metrics.shutdown(SHUTDOWN_SECONDS)
