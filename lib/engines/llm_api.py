"""From the engine's API to the LLM API, to OpenAI's paths, to Triton's llmapi model, and back (notebook 12).

A request is a dict of plain values under the names of its API. Its meaning stays: names change, values that the other
API would fill in differently are written out, and what has no counterpart is reported. Sources: data/llm_api.toml.
"""

import ast
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from engines import EngineError, did_you_mean
from engines.versions import table

APIS = {"engine": "the engine", "llm_api": "the LLM API", "completions": "/v1/completions",
        "chat": "/v1/chat/completions", "llmapi": "the llmapi model"}  # fmt: skip
_SAMPLING = ("temperature", "top k", "top p")
DATA = table("llm_api")


class Name(NamedTuple):
    """One parameter on one API: its name (None where it has none) and the value that counts when it is left out."""

    name: str | None
    default: Any = None
    required: bool = False


class Note(NamedTuple):
    """What a translation did to one parameter. kind: "renamed", "written" (the APIs differ in what they do without it),
    "differs" (kept, but it may act differently) or "lost" (no counterpart)."""

    kind: str
    parameter: str
    text: str


@cache
def parameters(api: str) -> dict[str, Name]:
    """{parameter: Name} of one of APIS. Raises EngineError for an unknown one."""
    if api not in APIS:
        raise EngineError(f"There is no API {api!r}; use one of: {', '.join(APIS)}.")
    found = {}
    for line in DATA["names"].strip().splitlines():
        parameter, *cells = (cell.strip() for cell in line.split("|"))
        column = {each: cell.partition("=") for each, cell in zip(APIS, cells, strict=True)}
        name = column[api][0]
        # Without a name, an API acts as the LLM API does, which all the new ones end in.
        value = next((column[each][2] for each in (api, "llm_api", "engine", "llmapi") if column[each][2]), "None")
        found[parameter] = Name(name.rstrip("!") if name != "-" else None, ast.literal_eval(value), name.endswith("!"))
    return found


def decides(request: Mapping[str, Any], api: str) -> str:
    """How a request chooses the next token: "greedy", "sampling" or "beam search". The prompt may be missing."""
    counts = _defaults(api) | _read(request, api)[0]
    return "beam search" if _width(counts, api) > 1 else "greedy" if _choice(counts, api) is None else "sampling"


def translate(request: Mapping[str, Any], source: str, target: str) -> tuple[dict[str, Any], list[Note]]:
    """The request in the names of API `target`, and a Note of one sentence for each thing worth knowing.

    `messages` of a chat request must be the text that the chat template makes of them. None counts as left out. Raises
    EngineError: unknown API or name, a required name missing, or a target that cannot take the request.
    """
    there, here = parameters(source), parameters(target)
    said, notes = _read(request, source)
    if missing := [name.name for parameter, name in there.items() if name.required and parameter not in said]:
        raise EngineError(f"A request for {APIS[source]} needs {missing[0]!r}, and this one has none.")
    if target == "chat":
        raise EngineError("A prompt does not become chat messages, or gets the template twice; use 'completions'.")
    written, made = _written(said, source, target), {}
    notes += _sampling_notes(written, said, source, target)
    for parameter, value in written.items():
        old, (new, default, required) = there[parameter].name, here[parameter]
        differs = value != default
        if new is None or (value is None and target in ("engine", "llmapi")):
            if required:
                raise EngineError(f"Give the request {old}: {APIS[target]} needs a number.")
            if differs:
                why = DATA["lost"].get(f"{parameter} on {target}", DATA["lost"].get(parameter, "")).rstrip(".")
                text = f"{old or parameter}: {APIS[target]} has no counterpart{'; ' * bool(why)}{why}."
                notes.append(Note("differs" if parameter == "keep stop word" else "lost", parameter, text))
            continue
        if not (parameter in said or required or differs or (parameter == "n" and "beams" in written)):
            continue
        made[new] = value
        if parameter not in said and not required and parameter not in _SAMPLING:
            text = f"{new}={value}: {APIS[source]} acts like this unasked, and {APIS[target]} does not."
            notes.append(Note("written", parameter, text))
        elif old != new:
            notes.append(Note("renamed", parameter, f"{old} is called {new}."))
        if parameter in DATA["ignored"] and target != "engine" and differs:
            text = f"{new}: ignored by the PyTorch backend before {DATA['ignored'][parameter]}, in 1.2.1 too."
            notes.append(Note("differs", parameter, text))
    if written.get("beams") is True and here["beams"].name:
        made["best_of"] = _width(_defaults(source) | said, source)
    return made, notes


def _defaults(api: str) -> dict[str, Any]:
    return {parameter: name.default for parameter, name in parameters(api).items()}


def _read(request: Mapping[str, Any], api: str) -> tuple[dict[str, Any], list[Note]]:
    """{parameter: value} of what the request says; names without a row become notes."""
    names = {name.name: parameter for parameter, name in parameters(api).items() if name.name}
    others = DATA["others"].get(api, "").split()
    if unknown := [name for name in request if name not in names and name not in others]:
        raise EngineError(f"There is no {unknown[0]!r} on {APIS[api]}.{did_you_mean(unknown[0], [*names, *others])}")
    given = {name: value for name, value in request.items() if name != "model" and value is not None}
    text = "the table has no counterpart for it on another API."
    notes = [Note("lost", name, f"{name}: {text}") for name in given if name not in names]
    return {names[name]: value for name, value in given.items() if name in names}, notes


def _width(counts: Mapping[str, Any], api: str) -> int:
    """Beams of a beam search, 1 for none."""
    if api == "engine":
        return counts["beams"]
    return max(counts["best of"] or 1, counts["n"]) if counts["beams"] else 1


def _choice(counts: Mapping[str, Any], api: str) -> tuple[float, int, float] | None:
    """(temperature, top_k, top_p) of sampling, where 0 and 1.0 mean off; None for greedy.

    Behind an engine top_k or top_p turns sampling on and temperature never does. For SamplingParams any of the three
    does (SamplingParams.params_imply_greedy_decoding). Both are greedy when one of them leaves a single token.
    """
    temperature, top_k, top_p = (counts[parameter] for parameter in _SAMPLING)
    if temperature == 0 or top_k == 1:
        return None
    if api == "engine":
        return (temperature, top_k, top_p or 1.0) if top_k or top_p else None
    if top_p == 0 or (temperature, top_k, top_p) == (None, None, None):
        return None
    return (1.0 if temperature is None else temperature), top_k or 0, (1.0 if top_p is None else top_p)


def _written(said: Mapping[str, Any], source: str, target: str) -> dict[str, Any]:
    """{parameter: the value that counts}, in the form of `target`, without the parameters that do not matter there."""
    counts, engine = _defaults(source) | said, target == "engine"
    width, logs, repeats = _width(counts, source), counts["log probs"], counts["repeat the prompt"]
    choice = None if width > 1 else _choice(counts, source)
    none = logs is None or logs is False or (not logs and source == "completions")
    logs = None if none else int(logs) - (logs is True)  # so many besides the chosen token's
    repeats = repeats if source == "completions" else not repeats and not counts["stream"]
    n = width if source == "engine" and width > 1 and "n" not in said else counts["n"]  # all its beams
    best = counts["best of"] if width == 1 and (counts["best of"] or 1) > n else None
    copies = choice is None and width == 1 and not engine  # of a greedy answer: SamplingParams refuses them
    form = {parameter: value for parameter, value in counts.items() if parameter not in _SAMPLING} | {
        "log probs": logs is not None if engine else max(logs or 0, target == "completions"),
        "beams": width if engine else width > 1, "best of": best, "n": None if copies else n,
        "repeat the prompt": repeats == (target == "completions"),
        "min tokens": counts["min tokens"] if counts["min tokens"] > 1 else parameters(target)["min tokens"].default,
    }  # fmt: skip
    matters = dict.fromkeys(("length penalty", "early stopping", "beams"), width > 1) | {
        "best of": best, "log probs": logs is not None, "keep stop word": counts["stop words"],
        "n": n != (width if engine else 1),
        "repeat the prompt": target == "completions" or not counts["stream"],  # no stream repeats it, but OpenAI's
    }  # fmt: skip
    form = {parameter: value for parameter, value in form.items() if matters.get(parameter, True)}
    return form if width > 1 else form | _sampling(choice, said, target)


def _sampling(choice: tuple[float, int, float] | None, said: Mapping[str, Any], target: str) -> dict[str, Any]:
    """The least that makes an API choose so; what was said stays said."""
    unasked = _choice(_defaults(target), target) is not None
    if choice is None:
        return {"temperature": 0.0} if unasked else {}
    off = {"temperature": 1.0, "top k": 0, "top p": 1.0}
    found = {k: v for k, v in zip(_SAMPLING, choice, strict=True) if v != off[k] or (k in said and k != "top k")}
    if target == "engine" and choice[1] == 0:
        found["top p"] = choice[2]  # 1.0 leaves out no token, and turns sampling on
    return found or ({} if unasked else {"temperature": 1.0})


def _sampling_notes(written: Mapping[str, Any], said: Mapping[str, Any], source: str, target: str) -> list[Note]:
    """What has to be known of temperature, top_k and top_p, which together turn sampling on."""
    mine = {parameter: said[parameter] for parameter in _SAMPLING if parameter in said}
    here, there = (_choice(_defaults(api) | mine, api) is not None for api in (source, target))
    if here == there or "beams" in written:
        return []
    wrote = " and ".join(f"{parameters(target)[p].name}={written[p]}" for p in _SAMPLING if p in written)
    text = f"with the same temperature, top_k and top_p {APIS[target]} would {'sample' if there else 'be greedy'}; "
    return [Note("written", "temperature", text + f"write {wrote or 'none of them'}.")]
