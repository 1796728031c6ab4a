"""`tensorrt_llm_bls`: text in, text out, by calling the other three models (taught in notebooks 03 and 05), and where
multimodal_encoders_name names one, a fourth that encodes pictures.

Unlike NVIDIA's, it needs no torch, serves many requests at once with one instance (a thread each), takes the names of
all three inner models as parameters, streams whole characters, finds a stop word across chunks, stops the inner request
when the client has left, and passes num_return_sequences on, which NVIDIA's declares and does not use.
"""

import json
import threading
import uuid

import numpy as np
import triton_python_backend_utils as pb_utils

from reference_backend.models import common
from reference_backend.models.bls.calls import InnerModels, llm_inputs, llm_outputs
from reference_backend.models.bls.detokenizer import Chunk, Detokenizer, Row
from reference_backend.models.bls.reply import Monitor, Reply
from reference_backend.models.bls.speculation import check_draft, draft_length, speculate
from reference_backend.models.common import InputError
from reference_backend.models.text import Tokenizer

INDEXES = ("batch_index", "sequence_index")
CONSUMED = {"output_ids", "sequence_length", "batch_index"}  # outputs of the LLM that do not go on to the client
SHUTDOWN_SECONDS = 5.0
GATHER_SECONDS = 0.002  # the tokens of one step come one after another, yet one call can decode them all


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.name = config["name"]
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.accumulate = common.flag(config, "accumulate_tokens", False)
        self.models = InnerModels(
            common.parameter(config, "preprocessing_model_name", "preprocessing"),
            common.parameter(config, "tensorrt_llm_model_name", "tensorrt_llm"),
            common.parameter(config, "postprocessing_model_name", "postprocessing"),
            common.parameter(config, "tensorrt_llm_draft_model_name"),
            common.parameter(config, "multimodal_encoders_name"),
        )
        self.detokenizer = Detokenizer(*self._decoder(config))
        self.monitor = Monitor(self.models.stop, self.models.check_alive)

    def _decoder(self, config):
        """How ids become text, and how long to gather ids for one call.

        By `postprocessing`, or in this process when the configuration names a tokenizer_dir: a call to another model
        for every token costs more than all the rest of this model does.
        """
        if not common.parameter(config, "tokenizer_dir"):
            return self.models.decode, GATHER_SECONDS
        tokenizer = Tokenizer(common.parameter(config, "tokenizer_dir"))
        skip_special_tokens = common.flag(config, "skip_special_tokens", True)
        return lambda sequences: [tokenizer.decode(ids, skip_special_tokens) for ids in sequences], 0.0

    def execute(self, requests):
        for request in requests:
            reply = Reply(request.get_response_sender(), uuid.uuid4().hex, self.name, self.decoupled)
            try:
                inputs = common.inputs_of(request)
                threading.Thread(target=self._serve, args=(inputs, reply), daemon=True).start()
            except Exception as error:
                reply.fail(error)
        return None  # the responses come from the threads

    def _serve(self, inputs, reply):
        with self.monitor.watching(reply):
            try:
                self._check(inputs)
                self._generate(inputs, reply)
            except Exception as error:
                reply.fail(error)

    def _check(self, inputs):
        common.require(inputs, "text_input", "max_tokens")
        common.text_only(inputs, self.name, pictures=bool(self.models.encoder))
        check_draft(inputs, self.models.draft)
        if self.accumulate and common.any_true(inputs, "stream") and (inputs.get("beam_width", np.ones(1)) > 1).any():
            raise InputError(
                f"beam_width above 1 cannot be streamed with accumulate_tokens, which model '{self.name}' is set to: "
                "leave stream or beam_width out."
            )
        common.check_single(self.decoupled, self.name, inputs, len(inputs["text_input"]), "stream")

    def _generate(self, inputs, reply):
        reply.rows = len(inputs["text_input"])
        counts = common.sequences_of(inputs, reply.rows)
        reply.parts = sum(counts)
        prepared = self.models.preprocess(inputs)
        prepared |= self.models.encode(inputs | prepared)
        prepared.pop("pixel_values", None)
        given = llm_inputs(inputs, prepared)
        places = [(index, sequence) for index, count in enumerate(counts) for sequence in range(count)]
        rows = {place: Row(reply, inputs, given, place[0], self.accumulate) for place in places}
        try:
            if not reply.cancelled:
                self._pass_all_on(rows, inputs, given, reply)
        except Exception as error:
            reply.fail(error)  # before the ends of the rows, which would mean success
        for row in rows.values():
            self.detokenizer.put(Chunk(row, last=True))

    def _pass_all_on(self, rows, inputs, given, reply):
        stopped, outputs = False, llm_outputs(inputs)
        reply.waits_for(self.models.llm)
        responses = self.models.generate(given, reply.id, outputs)
        if length := draft_length(inputs):
            responses = speculate(self.models, given, reply, outputs, length)
        for response in responses:
            reply.waits_for(self.models.llm)
            if reply.closed and not stopped:  # by a stop word, or by an error
                self.models.stop(reply.id)
                stopped = True
            if not stopped and not reply.cancelled:
                self._pass_on(rows, response)

    def _pass_on(self, rows, response):
        """Queue the ids of one response, as lists: its memory is gone when the next response is taken."""
        row = rows[tuple(int(response[name][0, 0]) if name in response else 0 for name in INDEXES)]
        lengths = response["sequence_length"][0].tolist()
        beams = [ids[:length] for ids, length in zip(response["output_ids"][0].tolist(), lengths, strict=True)]
        extra = {name: np.array(array) for name, array in response.items() if name not in CONSUMED}
        self.detokenizer.put(Chunk(row, beams, extra))

    def finalize(self):
        self.monitor.drain(SHUTDOWN_SECONDS)
        self.detokenizer.shutdown(SHUTDOWN_SECONDS)
