"""Checks of notebook 12: who samples, an OpenAI request on the engine lane, an old client at the llmapi model."""

from __future__ import annotations

import json
import re

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from engines import llm_api
from servinglab.checks import exercise, is_stub, right, unattempted, wrong
from servinglab.client import gather, inputs
from servinglab.scratch import shorten
from servinglab.server import ServerError

_STORY = {"text_input": "Once upon a time", "max_tokens": 12, "stream": False}

#: (what was asked for, where it failed) → why.
_WHY = {
    ("sampling", "engine"): "an engine samples only for top_k or top_p, and only if they leave more than one token",
    ("greedy", "engine"): "top_k or top_p turns an engine's sampling on, even a top_p that leaves out no token",
    ("sampling", "others"): "there top_p 0 leaves a single token; for an engine it is off",
    ("greedy", "others"): "there a temperature above 0 is enough, unless top_k or top_p leaves a single token",
}


@exercise("12.1", expects="a dict of two requests, everywhere and nowhere, and the notebook's client")
def who_samples(answer):
    """`everywhere` must sample on three APIs, `nowhere` on none; the running server says what its engine does."""
    requests, client = answer
    if any(is_stub(requests[name]) for name in ("everywhere", "nowhere")):
        return unattempted()
    for name, wanted in (("everywhere", "sampling"), ("nowhere", "greedy")):
        request = requests[name]
        if not isinstance(request, dict) or not set(request) <= {"temperature", "top_k", "top_p"}:
            return wrong(f"{name}: a dict of temperature, top_k and top_p, please")
        if request.get("temperature") != 0.8:
            return wrong(f"{name}: the application keeps temperature 0.8; which value do you put beside it?")
        asked = {seed: inputs(**_STORY, **request, seed=seed) for seed in range(3)}
        found = gather(client, "ensemble", asked, timeout=60).values()
        texts = {result.as_numpy("text_output").flat[0] for (result,) in found}
        told = f"{name}, {request}: different texts that the engine wrote for three seeds: {len(texts)}"
        if (len(texts) > 1) != (wanted == "sampling"):
            return wrong(f"{told}; {_WHY[wanted, 'engine']}")
        for api in ("llm_api", "completions"):
            if (how := llm_api.decides(request, api)) != wanted:
                return wrong(f"{told}, but {how} on {api}; {_WHY[wanted, 'others']}")
    return right("the same temperature, greedy or sampling on every API: say what you want on each")


#: What exercise 12.2 translates.
BODY = {"prompt": "Name a fruit.", "max_tokens": 8, "n": 3, "temperature": 0.8}


def _heard(given, client):
    """The texts with which the running `ensemble` answers."""
    results = gather(client, "ensemble", {"": inputs(**given)}, timeout=60)[""]
    return [result.as_numpy("text_output").flat[0].decode() for result in results]


@exercise("12.2", expects="a dict of tensors of the engine lane, and the notebook's client")
def by_hand(answer):
    request, client = answer
    if is_stub(request):
        return unattempted()
    given = dict(request)
    if not given:
        return wrong("begin with text_input and max_tokens, which an engine needs")
    if "beam_width" in given:
        return wrong("n asks for independent samples; beam_width would search for the likeliest answers instead")
    if "n" in given or given.get("num_return_sequences") != BODY["n"]:
        return wrong("an engine calls n num_return_sequences")
    if given.get("temperature") != BODY["temperature"]:
        return wrong("temperature keeps its name and its value")
    if llm_api.decides(given, "engine") == "greedy":
        same = _heard(given, client)
        told = f"the server's {len(same)} answers hold {len(set(same))} different text; this request is greedy"
        return wrong(f"{told}: an engine samples only when top_k or top_p is there")
    if given.get("top_k") or given.get("top_p") != 1.0:
        return wrong("OpenAI's default leaves out no token: top_p 1.0 and no top_k")
    if given.get("exclude_input_in_output") is not True:
        text = _heard(given, client)[0]
        return wrong(f"OpenAI's text does not repeat the prompt; an engine does unless told otherwise: {text!r}")
    if (given.get("text_input"), given.get("max_tokens")) != (BODY["prompt"], BODY["max_tokens"]):
        return wrong("prompt becomes text_input, and max_tokens keeps its name; both keep their values")
    wanted, _ = llm_api.translate(BODY, "completions", "engine")
    if given != wanted:
        return wrong(f"something is there that the body does not ask for: {sorted(set(given) - set(wanted))}")
    texts = _heard(given, client)
    if len(texts) != BODY["n"] or any(text.startswith(BODY["prompt"]) for text in texts):
        return wrong(f"the server sent {texts}; expected {BODY['n']} texts without the prompt")
    return right(f"two names and two defaults change; the server sent {', '.join(map(repr, texts))}")


_OLD = [
    {"text_input": ["Hi"], "max_tokens": [100]},
    {"text_input": ["Ho"], "max_tokens": [7], "stop_words": [".", "!"]},
]
_NEW = {"text_input": "text_input", "max_tokens": "sampling_param_max_tokens", "stop_words": "sampling_param_stop"}

#: What Triton says → what lies behind it; the first that is found counts.
_BEHIND = {
    "directory name": "The name is that of the folder, old_names",
    "model.py": "An ensemble has no program and no backend: platform says that it is one",
    "non-existing input": "The key of an input_map is a name that llmapi declares; the value is the old one",
    "is not used": "Each input needs an input_map: the key is llmapi's name for it, the value the old one",
    "data type": "A step gets an input as it declares it: look at llmapi's types",
    "required version": "Ask for the newest version of llmapi: model_version: -1",
    "but got 3 inputs": "The old client sends stop_words, too",
    "missing required": "The old client sends stop_words only sometimes: optional: true",
    "inconsistent shape": "dims leave out the batch dimension, as in notebook 03",
    "unexpected shape": "The old client puts a batch dimension in front: with max_batch_size Triton takes it off",
    "output": "The client reads text_output: declare it, and say in an output_map which step makes it",
}


@exercise("12.3", expects="the text of a config.pbtxt, and the notebook's server")
def front_model(answer):
    """The running Triton must load it, and `llmapi` must hear what the old client meant."""
    text, server = answer
    if is_stub(text):
        return unattempted()
    if not isinstance(text, str):
        return wrong("expected the whole text of the config: a string")
    folder = server.repository / "old_names"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(text)
    try:
        server.load("old_names")
        heard = [_sent(server, request) for request in _OLD]
    except (ServerError, InferenceServerException) as error:
        said = error.message() if isinstance(error, InferenceServerException) else str(error)
        reason = re.split(r"\n| NOTE:", shorten(said).split("] ")[-1])[0].rstrip(". ")
        return wrong(f"{reason}. {next((words for part, words in _BEHIND.items() if part in said), 'Read it again')}")
    for request, got in zip(_OLD, heard, strict=True):
        if got != {_NEW[name]: values for name, values in request.items()}:
            return wrong(f"Triton loads it, but for {request} llmapi heard {got}")
    try:
        _sent(server, {name: [values, values] for name, values in _OLD[0].items()})
    except InferenceServerException as error:
        if "must be <= 1" in error.message():
            return right("one step renames and takes the batch dimension off; defaults stay llmapi's, as before")
    return wrong("it works for one prompt, and two fail inside the step: llmapi has no batch, so promise 1 row")


def _sent(server, request):
    """What `llmapi` hears of an old request; a request of one row gets its batch dimension here."""
    tensors = []
    for name, values in request.items():
        array = np.array(values, np.int32 if name == "max_tokens" else object)
        array = array if array.ndim > 1 else array[None]
        kind = "INT32" if name == "max_tokens" else "BYTES"
        tensors.append(grpcclient.InferInput(name, array.shape, kind).set_data_from_numpy(array))
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        return json.loads(client.infer("old_names", tensors, client_timeout=30).as_numpy("text_output").flat[0])
