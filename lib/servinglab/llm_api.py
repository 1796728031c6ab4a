"""From the engine's API to the LLM API, to OpenAI's paths, to Triton's llmapi model, and back (notebook 12).

A request is a dict of plain values under the names of its API. Its meaning stays: names change, values that the other
API would fill in differently are written out, and what has no counterpart is reported. Sources: data/llm_api.toml.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from tritonclient.grpc import model_config_pb2 as pb

from servinglab.errors import CourseError, did_you_mean
from servinglab.repository import contract, pbtxt

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

APIS = {"engine": "the engine", "engine_old": "the engine up to 0.19", "llm_api": "the LLM API",
        "completions": "/v1/completions", "chat": "/v1/chat/completions", "llmapi": "the llmapi model"}  # fmt: skip
ENGINES, MAX_TOP_K = ("engine", "engine_old"), 1024  # of the executor behind an engine
_COLUMNS = ("engine", "llm_api", "completions", "chat", "llmapi")
_SAMPLING = ("temperature", "top k", "top p")
_KINDS = {"STRING": ((str, list, dict), "text"), "FP32": ((int, float), "a number"), "INT32": (int, "a whole number"),
          "UINT64": (int, "a whole number"), "BOOL": (int, "True or False"), "-": (object, "")}  # fmt: skip
DATA = tomllib.loads(resources.files("servinglab").joinpath("data", "llm_api.toml").read_text("utf-8"))
TIMELINE = [tuple(row) for row in DATA["timeline"]]


class Name(NamedTuple):
    """One parameter on one API: its name (None where it has none) and the value that counts when it is left out."""

    name: str | None
    default: Any = None
    required: bool = False


class Note(NamedTuple):
    """What a translation did to one parameter. kind: "renamed", "written" (the APIs differ in what they do without it),
    "differs" (kept, but it may act differently) or "lost" (no counterpart).
    """

    kind: str
    parameter: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind:7}  {self.text}"


@cache
def _rows() -> dict[str, list[str]]:
    """{parameter: [datatype, a cell for each of _COLUMNS]}."""
    lines = ([cell.strip() for cell in line.split("|")] for line in DATA["names"].strip().splitlines())
    return {parameter: cells for parameter, *cells in lines}


@cache
def parameters(api: str) -> dict[str, Name]:
    """{parameter: Name} of one of APIS. Raises CourseError for an unknown one."""
    if api not in APIS:
        raise CourseError(f"There is no API {api!r}; use one of: {', '.join(APIS)}.")
    column, found = _COLUMNS.index("engine" if api in ENGINES else api), {}
    for parameter, (_, *cells) in _rows().items():
        (name, value), *others = (_split(cells[i]) for i in (column, 1, 0, 4))
        # Without a name, an API acts as the LLM API does, which all the new ones end in.
        value = value or next((other for _, other in others if other), "None")
        plain = name.rstrip("!").replace("+", f"sampling_param_{others[0][0]}")
        plain = contract.OLD_NAMES.get(plain, plain) if api == "engine_old" else plain
        found[parameter] = Name(plain or None, ast.literal_eval(value), name.endswith("!"))
    return found


def _split(cell: str) -> tuple[str, str]:
    """Name and default of one cell, as text."""
    if cell == "-" or cell.startswith(":"):
        return "", cell[1:]
    name, _, value = cell.partition("=")
    return name, value


def decides(request: Mapping[str, Any], api: str) -> str:
    """How a request chooses the next token: "greedy", "sampling" or "beam search". The prompt may be missing."""
    counts = _defaults(api) | _read(request, api, complete=False)[0]
    return "beam search" if _width(counts, api) > 1 else "greedy" if _choice(counts, api) is None else "sampling"


def translate(
    request: Mapping[str, Any], source: str, target: str, *, template: Callable[[list], str] | None = None
) -> tuple[dict[str, Any], list[Note]]:
    """The request in the names of API `target`, and a Note of one sentence for each thing worth knowing.

    `template` turns chat messages into a prompt (`servinglab.chat.render` with a tokenizer); only `chat` as the source
    needs it. A value of None counts as left out. Guides, biases and LoRA adapters have a form of their own on each API.

    Raises CourseError: unknown API or name, a required name missing, or a target that cannot take the request.
    """
    there, here = parameters(source), parameters(target)
    said, notes = _read(request, source)
    if source == target:
        return {name: value for name, value in request.items() if value is not None}, []
    if target == "chat":
        raise CourseError("A prompt does not become chat messages, or gets the template twice; use 'completions'.")
    words, made = _words(_meaning(said, source, template), said, target), {}
    notes += _sampling_notes(words, said, source, target)
    for parameter, value in words.items():
        old, new, default, required = there[parameter].name, *here[parameter]
        no_word = value is None and default is not None and (target, parameter) != ("llm_api", "max tokens")
        unlike = value != default or (parameter == "n" and "beams" in words)
        if no_word and required:
            raise CourseError(f"Give the request {old}: {APIS[target]} needs a number.")
        if new is None or no_word or (parameter in DATA["own_form"] and value and old != new):
            if value != default:
                kind = "differs" if parameter == "keep stop word" else "lost"
                why = DATA["lost"].get(f"{parameter} on {target}") or DATA["lost"].get(parameter)
                text = f"{old or parameter}: {APIS[target]} has no counterpart" + (f"; {why}" if why else ".")
                notes.append(Note(kind, parameter, text))
        elif parameter in said or required or unlike:
            made[new] = value
            if parameter not in said and not required and parameter not in _SAMPLING:
                text = f"{new}={value}: {APIS[source]} acts like this unasked, and {APIS[target]} does not."
                notes.append(Note("written", parameter, text))
            elif old != new:
                notes.append(Note("renamed", parameter, f"{old} is called {new}."))
            if parameter in DATA["ignored"] and target not in ENGINES and value != default:
                month, pull = DATA["ignored"][parameter]
                text = f"{new}: ignored by the PyTorch backend before {month} (pull request {pull}), in 1.2.1 too."
                notes.append(Note("differs", parameter, text))
    if words.get("beams") is True and here["beams"].name:
        made["best_of"] = _width(_defaults(source) | said, source)
    return made, notes


def script(request: Mapping[str, Any], model: str) -> str:
    """The Python program that runs a request of the LLM API on `model`, a folder or a Hugging Face name."""
    said, _ = _read(request, "llm_api")
    width = _width(_defaults("llm_api") | said, "llm_api")
    load = f"model={model!r}" + (f", max_beam_width={width}" if width > 1 else "")
    fields = ", ".join(f"{k}={v!r}" for k, v in request.items() if k not in ("inputs", "streaming", "lora_request"))
    prompt = json.dumps(request["inputs"], ensure_ascii=False)
    answer = f"""    for output in llm.generate({prompt}, params).outputs:
        print(output.text)"""
    if request.get("streaming"):
        answer = f"""    for output in llm.generate_async({prompt}, params, streaming=True):
        print(output.outputs[0].text_diff, end="", flush=True)"""
    return f"""from tensorrt_llm import LLM, SamplingParams


def main():
    llm = LLM({load})
    params = SamplingParams({fields})
{answer}


if __name__ == "__main__":  # the workers are new processes that import this file
    main()
"""


def missing() -> str | None:
    """What this machine lacks to run such a program, as the end of a sentence; None when it can."""
    if importlib.util.find_spec("tensorrt_llm") is None:
        return "tensorrt_llm is not installed"
    return None if shutil.which("nvidia-smi") else "there is no NVIDIA GPU"


def removed(text: str) -> list[str]:
    """A sentence for everything in a script, a Dockerfile or a page that newer versions of TensorRT-LLM lack."""
    return [
        f"line {number}: {row['thing']} is gone since {row['since']}; {row['instead']}."
        for number, line in enumerate(text.splitlines(), 1)
        for row in DATA["removed"]
        if re.search(row["pattern"], line)
    ]


def llmapi_config(name: str = "tensorrt_llm") -> pb.ModelConfig:
    """The configuration of Triton's llmapi model, inputs in the order of the name table.

    As NVIDIA's, it leaves max_batch_size at 0 and the policy unsaid: the model sets both from model.yaml when Triton
    completes configurations (which our TritonServer does with auto_complete=True).
    """
    found = pb.ModelConfig(name=name, backend="python")
    for parameter, (tensor, _, required) in parameters("llmapi").items():
        if tensor:
            kind = _rows()[parameter][0]
            found.input.add(name=tensor, data_type=pb.DataType.Value(f"TYPE_{kind}"), optional=not required,
                            dims=[-1 if kind == "STRING" else 1])  # fmt: skip
    for kind, dims, names in DATA["llmapi_outputs"]:
        for tensor in names.split():
            found.output.add(name=tensor, data_type=pb.DataType.Value(f"TYPE_{kind}"), dims=[dims])
    found.instance_group.add(count=1, kind=pb.ModelInstanceGroup.KIND_CPU)
    return found


def write_llmapi(repository: str | Path, model: str, *, name: str = "tensorrt_llm", **arguments: Any) -> Path:
    """Write the folder `name` into a model repository and return it: config.pbtxt and 1/model.yaml, whose `arguments`
    go to LLM(). It still needs NVIDIA's programs in `1/`, which lie in the container under /app/all_models/llmapi.

    Raises CourseError when the folder is there already.
    """
    folder = Path(repository) / name
    if folder.exists():
        raise CourseError(f"{folder} is there already; choose another name or remove the folder.")
    values = {"model": model, "backend": "pytorch", **arguments}
    values["triton_config"] = {"max_batch_size": 0, "decoupled": False}
    (folder / "1").mkdir(parents=True)
    lines = (f"{key}: {json.dumps(value)}\n" for key, value in values.items())  # JSON is valid YAML
    (folder / "1" / "model.yaml").write_text("".join(lines), encoding="utf-8")
    (folder / "config.pbtxt").write_text(pbtxt.to_text(llmapi_config(name)), encoding="utf-8")
    return folder


def _defaults(api: str) -> dict[str, Any]:
    return {parameter: name.default for parameter, name in parameters(api).items()}


def _read(request: Mapping[str, Any], api: str, complete: bool = True) -> tuple[dict[str, Any], list[Note]]:
    """{parameter: value} of what the request says; names without a row become notes."""
    table = parameters(api)
    names, others = {n.name: p for p, n in table.items() if n.name}, DATA["others"].get(api, "").split()
    if api in ENGINES:
        others = [t.name for t in contract.inputs("ensemble", "old" if api == "engine_old" else "new")]
    said, notes = {}, []
    for name, value in request.items():
        if name not in names and name not in others:
            parameter = next((p for other in APIS for p, n in parameters(other).items() if n.name == name), None)
            called = table[parameter].name if parameter else None
            hint = f" It is called {called!r} there." if called else did_you_mean(str(name), [*names, *others])
            raise CourseError(f"There is no {name!r} on {APIS[api]}.{hint}")
        if value is not None and name in names:
            kind, what = _KINDS[_rows()[names[name]][0]]
            if not isinstance(value, kind) and names[name] not in DATA["own_form"]:
                raise CourseError(f"{name} is {value!r}; it must be {what}.")
            said[names[name]] = value
        elif value is not None and name != "model":
            notes.append(Note("lost", name, f"{name}: the table has no counterpart for it on another API."))
    for parameter, cell in table.items():
        if complete and cell.required and parameter not in said:
            raise CourseError(f"A request for {APIS[api]} needs {cell.name!r}, and this one has none.")
    return said, notes


def _width(counts: Mapping[str, Any], api: str) -> int:
    """Beams of a beam search, 1 for none."""
    if api in ENGINES:
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
    if api in ENGINES:
        return (temperature, top_k, top_p or 1.0) if top_k or top_p else None
    if top_p == 0 or (temperature, top_k, top_p) == (None, None, None):
        return None
    return (1.0 if temperature is None else temperature), top_k or 0, (1.0 if top_p is None else top_p)


def _meaning(said: Mapping[str, Any], source: str, template: Callable[[list], str] | None) -> dict[str, Any]:
    """Every parameter with the value that counts, in one form for all APIs."""
    counts = _defaults(source) | said
    width, openai = _width(counts, source), source in ("completions", "chat")
    if source == "chat":
        if template is None:
            raise CourseError("Chat messages become a prompt through the chat template: pass template=… (chat.render).")
        counts["prompt"] = template(counts["prompt"])
    if source in ENGINES and width > 1 and "n" not in said:
        counts["n"] = width  # an engine returns all its beams
    logs, repeats = counts["log probs"], counts["repeat the prompt"]
    counts["log probs"] = None if logs is None or logs is False or (openai and not logs) else int(logs) - (logs is True)
    counts["repeat the prompt"] = repeats if source == "completions" else not repeats and not counts["stream"]
    counts["best of"] = counts["best of"] if width == 1 and (counts["best of"] or 1) > counts["n"] else None
    return counts | {"beams": width, "choice": None if width > 1 else _choice(counts, source)}


def _words(meaning: Mapping[str, Any], said: Mapping[str, Any], target: str) -> dict[str, Any]:
    """{parameter: value} in the form of `target`, without the parameters that do not matter there."""
    engine, choice, width, defaults = target in ENGINES, meaning["choice"], meaning["beams"], _defaults(target)
    words = {parameter: value for parameter, value in meaning.items() if parameter not in ("choice", *_SAMPLING)}
    logs = meaning["log probs"]
    words["log probs"] = (
        logs is not None if engine else max(logs, 1) if logs is not None and target == "completions" else logs
    )
    words["beams"] = width if engine else width > 1
    words["repeat the prompt"] = meaning["repeat the prompt"] == (target == "completions")
    words["min tokens"] = meaning["min tokens"] if meaning["min tokens"] > 1 else defaults["min tokens"]
    idle = [] if width > 1 else ["length penalty", "early stopping"]
    idle += [] if meaning["stop words"] else ["keep stop word"]
    idle += ["beams"] if width == 1 else []
    idle += [parameter for parameter in ("best of", "log probs") if meaning[parameter] is None]
    idle += ["n"] if meaning["n"] == (width if engine else 1) else []
    if choice is None and width == 1 and not engine:
        words["n"] = None  # copies of a greedy answer: SamplingParams refuses them
    if meaning["stream"] and target != "completions":  # no stream repeats the prompt, but OpenAI's
        words["repeat the prompt"] = None
        idle += [] if meaning["repeat the prompt"] else ["repeat the prompt"]
    for parameter in idle:
        words.pop(parameter)
    return words if width > 1 else words | _wanted(choice, said, target)


def _wanted(choice: tuple[float, int, float] | None, said: Mapping[str, Any], target: str) -> dict[str, Any]:
    """The least that makes an API choose so; what was said stays said."""
    unasked = _choice(_defaults(target), target) is not None
    if choice is None:
        return {"temperature": 0.0} if unasked else {}
    off = {"temperature": 1.0, "top k": 0, "top p": 1.0}
    found = {k: v for k, v in zip(_SAMPLING, choice, strict=True) if v != off[k] or (k in said and k != "top k")}
    if target in ENGINES and choice[1] == 0:
        found["top p"] = choice[2]  # 1.0 leaves out no token, and turns sampling on
    if choice[1] > MAX_TOP_K and target in ENGINES:
        raise CourseError(f"top_k is {choice[1]}; {APIS[target]} takes at most {MAX_TOP_K}.")
    return found or ({} if unasked else {"temperature": 1.0})


def _sampling_notes(words: Mapping[str, Any], said: Mapping[str, Any], source: str, target: str) -> list[Note]:
    """What has to be known of temperature, top_k and top_p, which together turn sampling on."""
    mine = {parameter: said[parameter] for parameter in _SAMPLING if parameter in said}
    if "beams" in words:
        return [Note("lost", p, f"{parameters(source)[p].name}: a beam search does not use it.") for p in mine]
    samples = _choice(_defaults(source) | mine, source) is not None
    if samples == (_choice(_defaults(target) | mine, target) is not None):
        return []
    would, does = ("be greedy", "samples") if samples else ("sample", "is greedy")
    wrote = " and ".join(f"{parameters(target)[p].name}={words[p]}" for p in _SAMPLING if p in words)
    text = f"{APIS[target]} would {would} with the same values and {APIS[source]} {does}, so "
    return [
        Note(
            "written",
            "temperature",
            f"temperature, top_k, top_p: {text}{'write ' + wrote if wrote else 'leave them out'}.",
        )
    ]
