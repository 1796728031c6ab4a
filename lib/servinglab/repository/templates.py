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
from servinglab.repository.parameter_types import checked, text_of
from servinglab.repository.pbtxt_source import spots

# NVIDIA's fill_template.py writes 0 for these two when they are not given (since 0.12 and 0.19).
ZERO_BY_ITSELF = ("max_queue_size", "max_queue_delay_microseconds")
_SENTINEL = 900_000_000  # and up: numbers that stand for placeholders while the template is still a protobuf


class TemplateError(RepositoryError):
    """A template that cannot be filled as asked."""


class Placeholder(NamedTuple):
    """One placeholder: `kind` is "structural" or "quoted"; `mandatory` ones must be filled for the model to load."""

    name: str
    line: int
    kind: str
    mandatory: bool


def template(model: str, generation: str = "new") -> str:
    """The template of one of the five models: the whole contract, with placeholders where a deployment decides."""
    if model not in contract.MODELS:
        raise TemplateError(f"There is no template {model!r}: the models are {', '.join(contract.MODELS)}.")
    if generation not in contract.GENERATIONS:
        raise TemplateError(f"There is no generation {generation!r}: use one of {', '.join(contract.GENERATIONS)}.")
    variables = wiring.structural(model, generation)

    def number(variable: str) -> int:
        return 1 if variable not in variables else _SENTINEL + variables.index(variable)

    def datatype(text: str) -> int:
        return number(text[2:-1]) if text.startswith("$") else pb.DataType.Value(f"TYPE_{text}")

    parameters = {p.key: f"${{{p.variable}}}" for p in wiring.parameters(model)}
    if model == "tensorrt_llm":
        parameters |= wiring.LLM_LITERALS
    text = pbtxt.to_text(
        pbtxt.compose(
            model,
            generation,
            name=model,
            prefix="",
            number=number,
            datatype=datatype,
            decoupled=True,
            backend="${triton_backend}",
            parameters=parameters,
        )
    )
    text = text.replace("decoupled: true", "decoupled: ${decoupled_mode}")
    return re.sub(r"\b9000000\d\d\b", lambda match: f"${{{variables[int(match[0]) - _SENTINEL]}}}", text)


def placeholders(text: str) -> list[Placeholder]:
    """Every placeholder of a template or of a half-filled config, in the order of the text."""
    found = spots(text)
    mandatory = _mandatory_quoted(text)
    return [
        Placeholder(s.name, s.line, "quoted" if s.quoted else "structural", not s.quoted or s.name in mandatory)
        for s in found
    ]


def _mandatory_quoted(text: str) -> set[str]:
    # The same variable may be mandatory in one model and optional in another.
    if is_llm(text):
        names = {p.variable for p in wiring.parameters("tensorrt_llm") if p.mandatory} | {"triton_backend"}
        # Only the C++ backend reads the batching strategy.
        return names - {"batching_strategy"} if re.search(r'backend:\s*"python"', text) else names
    return {"tokenizer_dir", "tokenizer_type"}  # the second in the templates of 0.8 and before


class Filled(NamedTuple):
    """A filled text, and its placeholders: given a value, set to 0 by themselves, optional and left, missing."""

    text: str
    filled: list[Placeholder]
    zero: list[Placeholder]
    left: list[Placeholder]
    missing: list[Placeholder]


def fill_parts(text: str, values: Mapping[str, object], *, file: str | Path = "config.pbtxt") -> Filled:
    """The text with every `${name}` in `values` replaced, and what became of each placeholder.

    Raises TemplateError for a key that the text does not have and for a value that does not fit its place.
    """
    found = spots(text)
    names = {spot.name for spot in found}
    for key in values:
        if key not in names:
            raise TemplateError(f"{file} has no placeholder ${{{key}}}.{did_you_mean(key, names)}")
    result = Filled("", [], [], [], [])
    pieces, end = [], 0
    mandatory = _mandatory_quoted(text)
    if values.get("triton_backend") == "python":
        mandatory.discard("batching_strategy")
    for spot in found:
        piece = text[spot.start : spot.end]
        must = not spot.quoted or spot.name in mandatory
        if spot.name in values:
            group = result.filled
            piece = _value(spot.name, values[spot.name], quoted=spot.quoted, where=f"{file}:{spot.line}")
        elif spot.name in ZERO_BY_ITSELF and not spot.quoted:
            group, piece = result.zero, "0"
        else:
            group = result.missing if must else result.left
        group.append(Placeholder(spot.name, spot.line, "quoted" if spot.quoted else "structural", must))
        pieces += [text[end : spot.start], piece]
        end = spot.end
    return result._replace(text="".join(pieces) + text[end:])


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


def _value(name: str, value: object, *, quoted: bool, where: str) -> str:
    text = text_of(value)
    if quoted:
        if text:  # empty is a way to say "not set"
            try:
                text = checked(name, value, f"{where}: ")
            except RepositoryError as error:
                raise TemplateError(str(error)) from None
        return text_encoding.CEscape(text, as_utf8=True)
    if name.endswith(("datatype", "data_type")):
        if text not in pb.DataType.keys() or text == "TYPE_INVALID":
            raise TemplateError(
                f"{where}: ${{{name}}} must be a Triton datatype such as TYPE_FP32, not {text!r}."
                f"{did_you_mean(text.upper(), pb.DataType.keys())}"
            )
    elif name == "decoupled_mode":
        if text.lower() not in ("true", "false"):
            raise TemplateError(f"{where}: ${{{name}}} must be true or false, not {text!r}.")
        return text.lower()
    elif not re.fullmatch(r"[0-9]{1,10}", text) or not (name not in ZERO_BY_ITSELF) <= int(text) < 2**31:
        raise TemplateError(
            f"{where}: ${{{name}}} must be a whole number from {int(name not in ZERO_BY_ITSELF)} to 2147483647, not "
            f"{text!r}."
        )
    else:
        return str(int(text))  # 08 would be no number to protobuf
    return text


def is_llm(text: str) -> bool:
    """Whether a config is of the model `tensorrt_llm`: it has parameters that are in that one only."""
    return re.search(r'"(gpt_model_type|max_beam_width|batch_scheduler_policy)"', text) is not None


def fill_file(path: str | Path, values: Mapping[str, object]) -> None:
    """Fill a config.pbtxt in place; on an error the file stays as it was."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TemplateError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise TemplateError(f"{path} is not UTF-8 text: take a fresh copy of the template.") from error
    path.write_text(fill(text, values, file=f"{path.parent.name}/{path.name}"), encoding="utf-8")


def write_templates(repository: str | Path, generation: str = "new") -> Path:
    """Write the five templates as model folders (config.pbtxt with placeholders, 1/model.py), to practise filling."""
    for model in contract.MODELS:
        version = Path(repository) / model / "1"
        version.mkdir(parents=True, exist_ok=True)
        (version.parent / "config.pbtxt").write_text(template(model, generation), encoding="utf-8")
        if model != "ensemble":
            (version / "model.py").write_text(model_source(model), encoding="utf-8")
    return Path(repository)
