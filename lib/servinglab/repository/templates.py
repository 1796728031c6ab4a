"""Templates with `${…}` placeholders, as NVIDIA ships them, and filling that says what is wrong (notebook 03).

A *structural* placeholder stands outside quotes: left unfilled, Triton cannot parse the file. A *quoted* one is part of
a string: left unfilled, the model gets the text `${name}`, which the backends read as "not set".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from google.protobuf import text_encoding
from tritonclient.grpc import model_config_pb2 as pb

from servinglab.errors import did_you_mean
from servinglab.repository import contract, pbtxt, wiring
from servinglab.repository.build import model_source
from servinglab.repository.errors import RepositoryError

# NVIDIA's fill_template.py writes 0 for these two when they are not given (since 0.12 and 0.19).
ZERO_BY_ITSELF = ("max_queue_size", "max_queue_delay_microseconds")
_SENTINEL = 900_000_000  # and up: numbers that stand for placeholders while the template is still a protobuf
_STRING = r'"(?:\\.|[^"\\\n])*"?|\'(?:\\.|[^\'\\\n])*\'?'
_PLACEHOLDER = re.compile(r"\$\{(\w*)\}")
_PARTS = re.compile(rf"#[^\n]*|(?P<string>{_STRING})|(?P<bare>{_PLACEHOLDER.pattern})")
FIRST_NEW_CONTAINER = (25, 6)


class TemplateError(RepositoryError):
    """A template that cannot be filled as asked."""


class Placeholder(NamedTuple):
    """One placeholder: `kind` is "structural" or "quoted"; `mandatory` ones must be filled for the model to load."""

    name: str
    line: int
    kind: str
    mandatory: bool


class Filled(NamedTuple):
    """A filled text, and its placeholders: given a value, set to 0 by themselves, optional and left, missing."""

    text: str
    filled: list[Placeholder]
    zero: list[Placeholder]
    left: list[Placeholder]
    missing: list[Placeholder]


def template(model: str, generation: str = "new") -> str:
    """The template of one of the five models: the whole contract, with placeholders where a deployment decides."""
    if model not in contract.MODELS:
        raise TemplateError(f"There is no template {model!r}: the models are {', '.join(contract.MODELS)}.")
    if generation not in contract.GENERATIONS:
        raise TemplateError(f"There is no generation {generation!r}: use one of {', '.join(contract.GENERATIONS)}.")
    variables = wiring.structural(model)

    def number(variable: str) -> int:
        return 1 if variable not in variables else _SENTINEL + variables.index(variable)

    def datatype(text: str) -> int:
        return number(text[2:-1]) if text.startswith("$") else pb.DataType.Value(f"TYPE_{text}")

    parameters = {p.key: f"${{{p.variable}}}" for p in wiring.parameters(model)}
    parameters |= wiring.LLM_LITERALS if model == "tensorrt_llm" else {}
    names = {"name": model, "prefix": "", "backend": "${triton_backend}", "parameters": parameters}
    config = pbtxt.compose(model, generation, number=number, datatype=datatype, decoupled=True, **names)
    text = pbtxt.to_text(config).replace("decoupled: true", "decoupled: ${decoupled_mode}")
    return re.sub(r"\b9000000\d\d\b", lambda match: f"${{{variables[int(match[0]) - _SENTINEL]}}}", text)


def placeholders(text: str) -> list[Placeholder]:
    """Every placeholder of a template or of a half-filled config, in the order of the text."""
    return [placeholder for placeholder, _, _ in _spots(text)]


def _spots(text: str) -> list[tuple[Placeholder, int, int]]:
    """Placeholders with their start and end in the text; comments are skipped, as the parser does."""
    # The same variable may be mandatory in one model and optional in another.
    mandatory = {"tokenizer_dir", "tokenizer_type"}  # the second in the templates of 0.8 and before
    if is_llm(text):
        mandatory = {p.variable for p in wiring.parameters("tensorrt_llm") if p.mandatory} | {"triton_backend"}
    found = []
    for part in _PARTS.finditer(text):
        if part["string"] or part["bare"]:
            for match in _PLACEHOLDER.finditer(text, *part.span()):
                kind = "quoted" if part["string"] else "structural"
                must = kind == "structural" or match[1] in mandatory
                line = text.count("\n", 0, match.start()) + 1
                found.append((Placeholder(match[1], line, kind, must), match.start(), match.end()))
    return found


def is_llm(text: str) -> bool:
    """Whether a config is of the model `tensorrt_llm`: it has parameters that are in that one only."""
    return re.search(r'"(gpt_model_type|max_beam_width|batch_scheduler_policy)"', text) is not None


def fill_parts(text: str, values: Mapping[str, object], *, file: str | Path = "config.pbtxt") -> Filled:
    """The text with every `${name}` in `values` replaced, and what became of each placeholder.

    Raises TemplateError for a key that the text does not have and for a value that does not fit its place.
    """
    spots = _spots(text)
    names = {spot.name for spot, _, _ in spots}
    for key in values:
        if key not in names:
            raise TemplateError(f"{file} has no placeholder ${{{key}}}.{did_you_mean(key, names)}")
    result, pieces, at = Filled("", [], [], [], []), [], 0
    for spot, start, end in spots:
        piece, group = text[start:end], result.missing if spot.mandatory else result.left
        if spot.name in values:
            group, piece = result.filled, _value(spot, values[spot.name], f"{file}:{spot.line}")
        elif spot.name in ZERO_BY_ITSELF and spot.kind == "structural":
            group, piece = result.zero, "0"
        group.append(spot)
        pieces += [text[at:start], piece]
        at = end
    return result._replace(text="".join(pieces) + text[at:])


def fill(text: str, values: Mapping[str, object], *, file: str | Path = "config.pbtxt") -> str:
    """The text with every `${name}` in `values` replaced; optional quoted ones that are not given stay.

    Values may hold colons, commas, quotes and backslashes: quoted ones are escaped. Raises TemplateError for a key that
    the text does not have, a value that does not fit its place, and mandatory placeholders that are not given: the
    message names file, line and placeholder.
    """
    result = fill_parts(text, values, file=file)
    if result.missing:
        where = ", ".join(f"${{{spot.name}}} (line {spot.line})" for spot in result.missing)
        raise TemplateError(
            f"{file}:{result.missing[0].line}: no value for {where}: Triton cannot load the model without it, "
            f"also where your model does not use that tensor."
        )
    return result.text


def _value(spot: Placeholder, value: object, where: str) -> str:
    text, name = wiring.text_of(value), spot.name
    if spot.kind == "quoted":
        known = {p.variable: p for model in contract.MODELS for p in wiring.parameters(model)}
        try:
            text = known[name].text(value) if text and name in known else text  # empty is a way to say "not set"
        except RepositoryError as error:
            raise TemplateError(f"{where}: {error}") from None
        return text_encoding.CEscape(text, as_utf8=True)
    least = int(name not in ZERO_BY_ITSELF)
    if name.endswith(("datatype", "data_type")):
        fits, wanted = text in pb.DataType.keys() and text != "TYPE_INVALID", "a Triton datatype such as TYPE_FP32"
    elif name == "decoupled_mode":
        text = text.lower()
        fits, wanted = text in ("true", "false"), "true or false"
    else:
        fits = bool(re.fullmatch(r"[0-9]{1,10}", text)) and least <= int(text) < 2**31
        text, wanted = str(int(text)) if fits else text, f"a whole number from {least} to 2147483647"
    if not fits:
        raise TemplateError(f"{where}: ${{{name}}} must be {wanted}, not {text!r}.")
    return text


def write_templates(repository: str | Path, generation: str = "new") -> Path:
    """Write the five templates as model folders (config.pbtxt with placeholders, 1/model.py), to practise filling."""
    for model in contract.MODELS:
        version = Path(repository) / model / "1"
        version.mkdir(parents=True, exist_ok=True)
        (version.parent / "config.pbtxt").write_text(template(model, generation), encoding="utf-8")
        if model in contract.PYTHON_MODELS:
            (version / "model.py").write_text(model_source(model), encoding="utf-8")
    return Path(repository)


def template_generation(text: str) -> str | None:
    """The generation that a template or config is of; None when it has nothing to tell by (pre-, postprocessing)."""
    if re.search(r'"(min_length|random_seed)"', text):
        return "old"
    return "new" if re.search(r'"(min_tokens|seed)"', text) else None


def container_generation(container: str) -> str:
    """The generation of a container: "25.06", "25.06-trtllm-python-py3" or the whole image name."""
    match = re.search(r"(?:^|:)(\d\d)\.(\d\d)(?!\d)", container)
    if match is None:
        raise RepositoryError(f"{container!r} is no Triton container tag such as 25.06 or 25.06-trtllm-python-py3.")
    return "new" if (int(match[1]), int(match[2])) >= FIRST_NEW_CONTAINER else "old"


def version_warning(text: str, container: str) -> str | None:
    """One sentence when a template or config is of another generation than the container, else None."""
    ours, theirs = template_generation(text), container_generation(container)
    names = {"old": "min_length and random_seed", "new": "min_tokens and seed"}
    if ours in (None, theirs):
        return None
    return (
        f"This file has {names[ours]}, but the models and clients of container {container} use {names[theirs]}: take "
        "the templates that lie in the container."
    )
