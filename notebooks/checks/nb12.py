"""Checks of notebook 12: who samples, an OpenAI request on the engine lane, an old client at the llmapi model."""

from __future__ import annotations

from engines import llm_api
from servinglab.checks import exercise, right, unattempted, wrong

_APIS = ["engine", "llm_api", "completions"]


@exercise("12.1", expects='a dict whose two values are lists of "engine", "llm_api" and "completions"')
def who_samples(answer):
    said = [answer["nothing"], answer["temperature"]]
    if None in said:
        return unattempted()
    if not all(isinstance(apis, list | tuple | set) for apis in said):
        return wrong('a list for each of the two, please, also for one: ["engine"]; [] for none')
    nothing, temperature = ({str(api) for api in apis} for apis in said)
    if strange := sorted((nothing | temperature) - set(_APIS)):
        return wrong(f"{strange[0]!r} is not one of {', '.join(_APIS)}")
    if "completions" not in nothing:
        return wrong("trtllm-serve fills in temperature 1 and top_p 1 as OpenAI does, so a bare request samples there")
    if "engine" in nothing or "llm_api" in nothing:
        return wrong("with nothing said an engine and SamplingParams both take the likeliest token")
    if "engine" in temperature:
        return wrong("an engine starts to sample for top_k or top_p; temperature alone changes nothing there")
    if "llm_api" not in temperature:
        return wrong("for SamplingParams a temperature above 0 is enough; only an engine waits for top_k or top_p")
    if "completions" not in temperature:
        return wrong("a temperature does not turn off what a bare request already does")
    return right("the same words mean greedy on one API and sampling on another: say what you want on each")


#: What exercise 12.2 translates.
BODY = {"prompt": "Name a fruit.", "max_tokens": 8, "n": 3, "temperature": 0.8}


@exercise("12.2", expects="a dict of tensors of the engine lane")
def by_hand(answer):
    given = dict(answer)
    if not given:
        return wrong("begin with text_input and max_tokens, which an engine needs")
    if "beam_width" in given:
        return wrong("n asks for independent samples; beam_width would search for the likeliest answers instead")
    if "n" in given or given.get("num_return_sequences") != BODY["n"]:
        return wrong("an engine calls n num_return_sequences")
    if given.get("temperature") != BODY["temperature"]:
        return wrong("temperature keeps its name and its value")
    if llm_api.decides(given, "engine") == "greedy":
        return wrong("this request is greedy: an engine samples only when top_k or top_p is there")
    if given.get("top_k") or given.get("top_p") != 1.0:
        return wrong("OpenAI's default leaves out no token: top_p 1.0 and no top_k")
    if given.get("exclude_input_in_output") is not True:
        return wrong("OpenAI's text does not repeat the prompt; an engine does unless told otherwise")
    if (given.get("text_input"), given.get("max_tokens")) != (BODY["prompt"], BODY["max_tokens"]):
        return wrong("prompt becomes text_input, and max_tokens keeps its name; both keep their values")
    wanted, _ = llm_api.translate(BODY, "completions", "engine")
    if given != wanted:
        return wrong(f"something is there that the body does not ask for: {sorted(set(given) - set(wanted))}")
    return right("two names and two defaults change; a renaming alone would have given one greedy answer, prompt first")


@exercise("12.3", expects='a dict with a number of tokens or "error" for "grpc" and for "http"')
def old_client(answer):
    grpc, http = answer["grpc"], answer["http"]
    if None in (grpc, http):
        return unattempted()
    for value in (grpc, http):
        if value != "error" and (isinstance(value, bool) or not isinstance(value, int)):
            return wrong(f'a whole number or "error", in small letters, for each; {value!r} is neither')
    if http == 100:
        return wrong("the limit is called sampling_param_max_tokens here; nobody reads a parameter named max_tokens")
    if http == "error":
        return wrong("over HTTP an unknown number is taken for a parameter and passed by: no error tells you")
    if http == 16:
        return wrong("16 is the default of OpenAI's own service; here SamplingParams fills the value in")
    if http != 32:
        return wrong("without its own name for the limit the request gets the default of SamplingParams")
    if grpc != "error":
        return wrong("over gRPC every input must be declared: an unknown one is refused")
    return right("gRPC tells you about the wrong name, HTTP cuts your answers at 32 tokens and says nothing")
