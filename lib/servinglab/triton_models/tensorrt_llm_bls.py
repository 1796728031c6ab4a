"""`tensorrt_llm_bls`: text in, text out, by calling the other three models (taught in notebooks 03 and 05).

Unlike NVIDIA's, it needs no torch, serves many requests at once with one instance (a thread each), takes the names of
all three inner models as parameters, streams whole characters, finds a stop word across chunks, stops the inner request
when the client has left, and answers an error with one sentence instead of a traceback.
"""

from __future__ import annotations

import json
import threading
import uuid

import numpy as np
import triton_python_backend_utils as pb_utils

from servinglab.triton_models._bls_calls import InnerModels, llm_inputs, llm_outputs
from servinglab.triton_models._bls_reply import CancelWatch, Reply
from servinglab.triton_models._bls_row import Row
from servinglab.triton_models._common import InputError, any_true, flag, inputs_of, parameter

NOT_SERVED = ("image_input", "image_bytes_input", "image_url_input", "video_bytes_input")
CONSUMED = {"output_ids", "sequence_length", "batch_index"}  # outputs of the LLM that do not go on to the client
SHUTDOWN_SECONDS = 5.0


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.name = config["name"]
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.accumulate = flag(config, "accumulate_tokens", False)
        self.models = InnerModels(
            parameter(config, "preprocessing_model_name", "preprocessing"),
            parameter(config, "tensorrt_llm_model_name", "tensorrt_llm"),
            parameter(config, "postprocessing_model_name", "postprocessing"),
        )
        self.watch = CancelWatch(self.models.stop)

    def execute(self, requests):
        for request in requests:
            reply = Reply(request.get_response_sender(), uuid.uuid4().hex, self.name, self.decoupled)
            try:
                inputs = inputs_of(request)
                threading.Thread(target=self._serve, args=(inputs, reply), daemon=True).start()
            except Exception as error:
                reply.fail(error)
        return None  # the responses come from the threads

    def _serve(self, inputs, reply):
        with self.watch.watching(reply):
            try:
                self._check(inputs)
                self._generate(inputs, reply)
                reply.close()
            except Exception as error:
                reply.fail(error)

    def _check(self, inputs):
        rows = len(inputs["text_input"])
        for name in NOT_SERVED:
            if name in inputs:
                raise InputError(f"{name} was given, but model '{self.name}' serves text only; leave the input out.")
        if any_true(inputs, "num_draft_tokens") or any_true(inputs, "use_draft_logits"):
            raise InputError(
                "num_draft_tokens and use_draft_logits ask for speculative decoding, which this model does not offer; "
                "leave them out."
            )
        if "num_return_sequences" in inputs and (inputs["num_return_sequences"] != 1).any():
            raise InputError("num_return_sequences other than 1 is not offered; send one request for each sequence.")
        if not self.decoupled and any_true(inputs, "stream"):
            raise InputError("Streaming is only supported if model is deployed using decoupled mode.")
        if not self.decoupled and rows > 1:
            raise InputError(
                f"A request with batch size > 1 requires the decoupled transaction policy; this one has {rows} rows: "
                "send them as separate requests, or deploy with decoupled mode."
            )

    def _generate(self, inputs, reply):
        given = llm_inputs(inputs, self.models.preprocess(inputs))
        rows = [Row(inputs, given, i, self.accumulate, self.models.decode) for i in range(len(inputs["text_input"]))]
        if reply.cancelled:
            return
        for response in self.models.generate(given, reply.id, llm_outputs(inputs)):
            if reply.closed or reply.cancelled or "output_ids" not in response:
                continue  # the LLM has been told to stop; its last responses still have to be taken
            index = int(response["batch_index"][0, 0]) if len(rows) > 1 else 0
            row = rows[index]
            if not row.done:
                self._send(reply, row.texts(response), index, len(rows), response)
            if row.done and all(other.done for other in rows):
                reply.close()
                self.models.stop(reply.id)
        if not reply.cancelled and not reply.closed:
            for index, row in enumerate(rows):
                self._send(reply, row.rest(), index, len(rows), {})

    def _send(self, reply, texts, index, rows, response):
        if not texts:
            return
        tensors = [pb_utils.Tensor("text_output", np.array(texts, np.object_))]
        if rows > 1:
            tensors.append(pb_utils.Tensor("batch_index", np.array([[index]], np.int32)))
        tensors += [pb_utils.Tensor(name, array) for name, array in response.items() if name not in CONSUMED]
        reply.send(tensors)

    def finalize(self):
        self.watch.drain(SHUTDOWN_SECONDS)
