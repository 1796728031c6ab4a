"""Speculative decoding with a draft model, in rounds of two calls: the draft model proposes, the LLM verifies (nb 10).

The LLM's answer to a round is the ids that it would have chosen itself, and one more. The text is that of a request
without a draft, sampled with a seed as well: each call says how many ids the answer has so far, and random numbers and
min_tokens go on from there. Where the draft's engine or its KV cache is the smaller one, the LLM goes on without it, in
one call for all that is left. But when its process dies, the request ends with an error.

Limits are those of NVIDIA's BLS model: one prompt, one beam, no streaming, no context logits. Unlike it, this one adds
up the log probabilities and metrics of all rounds, and refuses return_generation_logits.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_backend import table
from reference_backend.executor.request import METRICS
from reference_backend.models.bls.calls import IDS, InnerModelError, InnerModels
from reference_backend.models.common import InputError, Tensors, any_true, decode_words

FULL = "exceeds maximum input length"  # of the engine; what TensorRT-LLM says, too
TOO_LONG = (FULL, "KV cache blocks")  # for an engine, or for its cache


def draft_length(inputs: Tensors) -> int:
    """num_draft_tokens, 0 without."""
    return int(inputs["num_draft_tokens"].max()) if "num_draft_tokens" in inputs else 0


def check_draft(inputs: Tensors, draft_model: str) -> None:
    """Raise InputError when a client asks for speculative decoding in a way that this model does not offer."""
    if "num_draft_tokens" in inputs and inputs["num_draft_tokens"].min() < 0:
        raise InputError(f"num_draft_tokens is {inputs['num_draft_tokens'].min()}; it must be 0 (off) or more.")
    if any_true(inputs, "use_draft_logits"):
        raise InputError(
            "use_draft_logits asks to accept a draft by its probabilities, which this executor does not offer: it "
            "accepts the tokens that it would have chosen itself; leave it out."
        )
    if not draft_length(inputs):
        return
    if not draft_model:
        raise InputError(
            "num_draft_tokens: cannot perform speculative decoding without draft model; leave it out, or deploy one "
            "and name it in the parameter tensorrt_llm_draft_model_name."
        )
    if len(inputs["text_input"]) > 1:
        raise InputError("speculative decoding is not supported with batch size > 1; send the rows one by one.")
    for name, reason in table("triton")["no_draft"].items():
        if any_true(inputs, name):
            raise InputError(f"{reason}; leave {name} or num_draft_tokens out.")
    for name in ("beam_width", "num_return_sequences"):
        if name in inputs and inputs[name].max() > 1:
            raise InputError(f"{name} above 1 is not supported with speculative decoding; leave one of the two out.")


def speculate(models: InnerModels, given: Tensors, reply: Any, outputs: list[str], length: int) -> Iterator[Tensors]:
    """The one response of a request, as `models.generate` would give it.

    given: inputs of the LLM; outputs: those to ask for; reply: whose id the calls get, and which may end early.
    """
    answer, drafting, fits = _Answer(given), True, False
    while not (answer.ended or reply.cancelled or reply.closed):
        draft: list[int] = []
        count = min(length, answer.room - 1) if drafting else 0
        if count > 0:
            asked = answer.inputs(count) | {name: np.zeros((1, 1), bool) for name in given if name.startswith("return")}
            try:
                draft = _ids(_call(models, asked, reply, IDS, models.draft, answer.generated))
            except InnerModelError as error:
                if not any(words in str(error) for words in TOO_LONG):
                    raise
                drafting = False
        # A call ends when its draft is verified, whatever length it asks for. So the first one asks for all of the
        # answer, and what has no place in the KV cache is refused now and not after many rounds.
        whole = not drafting or (draft and not fits)
        # Without room from the start (max_tokens below 1) it is the LLM that refuses.
        asked = answer.inputs(answer.room if whole else min(len(draft) + 1, answer.room))
        if draft:
            asked["draft_input_ids"] = np.array([draft], np.int32)
        try:
            answer.add(_call(models, asked, reply, outputs, "", answer.generated), draft)
        except InnerModelError as error:
            if FULL not in str(error) or not answer.generated:
                raise
            answer.ended = True  # as where the LLM itself meets its max_seq_len
        fits = fits or whole
        answer.ended = answer.ended or not drafting
    if not (reply.cancelled or reply.closed):
        yield answer.response(_holds_prompt(models, given, reply, answer.generated))


class _Answer:
    """What the rounds add up to."""

    def __init__(self, given: Tensors) -> None:
        self._given = given
        self._prompt = given["input_ids"][0, : int(given["input_lengths"].item())].tolist()
        self._tokens: list[int] = []
        self._most = int(given["request_output_len"].item())
        words = given.get("stop_words_list")
        self._stop_words = [] if words is None else decode_words(words[0], "stop_words_list")
        self._rounds: list[Tensors] = []
        self.ended = False

    @property
    def generated(self) -> int:
        return len(self._tokens)

    @property
    def room(self) -> int:
        """How many tokens may follow."""
        return self._most - len(self._tokens)

    def inputs(self, count: int) -> Tensors:
        """Those of a call that goes on for `count` tokens and answers with the new ones only."""
        ids = np.array([self._prompt + self._tokens], np.int32)
        return self._given | {
            "input_ids": ids,
            "input_lengths": np.array([[ids.size]], np.int32),
            "request_output_len": np.array([[count]], np.int32),
            "exclude_input_in_output": np.ones((1, 1), bool),
        }

    def add(self, response: Tensors, draft: list[int]) -> None:
        """The LLM's answer to a round with this draft."""
        new = _ids(response)
        self._tokens += new
        self._rounds.append(response)
        # It holds a token of the LLM's own behind those of the draft, unless end_id or a stop word came first.
        ended_early = new == draft[: len(new)]
        text = self._prompt + self._tokens
        stopped = any(text[-len(word) :] == word for word in self._stop_words)
        self.ended = ended_early or stopped or self.room <= 0

    def response(self, with_prompt: bool) -> Tensors:
        """All of it as one response."""
        ids = np.array([[(self._prompt if with_prompt else []) + self._tokens]], np.int32)
        found = {"output_ids": ids, "sequence_length": np.array([[ids.size]], np.int32)}
        named = {name: [r[name] for r in self._rounds if name in r] for name in {n for r in self._rounds for n in r}}
        for name, arrays in named.items():
            if name == "output_log_probs":
                found[name] = np.concatenate(arrays, axis=2)
            elif name.endswith("_ns") or name == "num_input_tokens":
                found[name] = arrays[-1 if name == "last_token_time_ns" else 0]
            elif name == "num_output_tokens":
                found[name] = found["sequence_length"]
            elif name == "cum_log_probs" or name in METRICS:
                found[name] = sum(arrays)
        if "acceptance_rate" in found:
            drafted, accepted = (found.get(f"total_{what}draft_tokens", np.zeros((1, 1))) for what in ("", "accepted_"))
            found["acceptance_rate"] = (accepted / np.maximum(drafted, 1)).astype(np.float32)
        return found


def _holds_prompt(models: InnerModels, given: Tensors, reply: Any, generated: int) -> bool:
    """Whether a response without streaming holds the prompt: as the client says, else as the LLM is deployed, which the
    first of the `generated` tokens shows when it is asked for once more."""
    if "exclude_input_in_output" in given:
        return not given["exclude_input_in_output"].any()
    one = given | {"request_output_len": np.ones((1, 1), np.int32)}
    one |= {name: np.zeros((1, 1), bool) for name in given if name.startswith("return")}
    return len(_ids(_call(models, one, reply, IDS))) > min(generated, 1)


def _call(
    models: InnerModels, inputs: Tensors, reply: Any, outputs: list[str], model: str = "", generated: int = 0
) -> Tensors:
    """The one response of a call, copied."""
    inputs = {name: array for name, array in inputs.items() if name != "streaming"}
    found: Tensors = {}
    reply.waits_for(model or models.llm)
    for response in models.generate(inputs, reply.id, outputs, model, generated):
        found |= {name: np.array(array) for name, array in response.items()}
    return found


def _ids(response: Tensors) -> list[int]:
    return response["output_ids"][0, 0, : int(response["sequence_length"][0, 0])].tolist()
