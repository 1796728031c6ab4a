"""The five config.pbtxt as templates with `${…}` placeholders, as NVIDIA ships them, and their filling (notebook 03).

A *structural* placeholder stands outside quotes: left unfilled, Triton cannot parse the file. A *quoted* one is part of
a string: left unfilled, the model gets the text `${name}`, which the backends read as "not set".
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from google.protobuf import text_encoding, text_format
from tritonclient.grpc import model_config_pb2 as pb

from servinglab.errors import did_you_mean
from servinglab.keep import YOURS
from servinglab.repository import contract
from servinglab.repository.contract import RepositoryError

MOST_BYTES = 2**22  # of a config.pbtxt
NO_CONFIG = (text_format.ParseError, ValueError, RecursionError, OverflowError)  # what `parse` raises

# NVIDIA's fill_template.py writes 0 for these two when they are not given (since 0.12 and 0.19).
ZERO_BY_ITSELF = {"max_queue_size": 0, "max_queue_delay_microseconds": 0}

_QUEUE = """\
dynamic_batching {
  preferred_batch_size: [${triton_max_batch_size}]
  max_queue_delay_microseconds: ${max_queue_delay_microseconds}
  default_queue_policy { max_queue_size: ${max_queue_size} }
}
"""
_INSTANCES = "instance_group { count: %s kind: KIND_CPU }\n"  # of the LLM too: TensorRT-LLM places its own GPUs
_DECOUPLED = "model_transaction_policy {\n  decoupled: ${decoupled_mode}\n}\n"
_SCHEDULING = {
    "ensemble": "",
    "preprocessing": _QUEUE + _INSTANCES % "${preprocessing_instance_count}",
    "postprocessing": "dynamic_batching { }\n" + _INSTANCES % "${postprocessing_instance_count}",
    "tensorrt_llm": _DECOUPLED + _QUEUE + _INSTANCES % 1,
    "tensorrt_llm_bls": _DECOUPLED + _INSTANCES % "${bls_instance_count}",
}


class Placeholder(NamedTuple):
    """One placeholder: `kind` is "structural" or "quoted"; `mandatory` ones must be filled for the model to load."""

    name: str
    line: int
    kind: str
    mandatory: bool


def template(model: str, generation: str = "new", *, name: str = "", prefix: str = "") -> str:
    """The template of one of the five models: the whole contract, one tensor or parameter a line.

    `name`: the model's, if it is another; `prefix` goes before the names of an ensemble's steps.
    """
    if model not in contract.MODELS or generation not in contract.GENERATIONS:
        raise RepositoryError(f"No template {model!r} ({generation!r}): there are {contract.MODELS}, old and new.")
    backend = "${triton_backend}" if model == "tensorrt_llm" else "python"
    lines = [f'name: "{name or prefix + model}"', f'backend: "{backend}"', "max_batch_size: ${triton_max_batch_size}"]
    if model == "ensemble":
        lines[1] = 'platform: "ensemble"'
    lines += [_SCHEDULING[model], *(parameter_line(p.key, f"${{{p.variable}}}") for p in contract.parameters(model))]
    lines += [parameter_line(*item) for item in contract.LLM_LITERALS.items() if model == "tensorrt_llm"]
    lines += ["", *(tensor_line("input", tensor) for tensor in contract.inputs(model, generation))]
    lines += ["", *(tensor_line("output", tensor) for tensor in contract.outputs(model, generation))]
    if model == "ensemble":
        lines += ["", "ensemble_scheduling {"]
        for step in contract.ensemble_steps(generation):
            lines += ["  step {", f'    model_name: "{prefix}{step.model}"', "    model_version: -1"]
            lines += [f'    input_map {{ key: "{key}" value: "{value}" }}' for key, value in step.inputs.items()]
            lines += [f'    output_map {{ key: "{key}" value: "{value}" }}' for key, value in step.outputs.items()]
            lines += ["  }"]
        lines += ["}"]
    return "\n".join(lines) + "\n"


def parameter_line(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def tensor_line(kind: str, tensor: contract.Tensor) -> str:
    datatype = tensor.datatype if tensor.datatype.startswith("$") else f"TYPE_{tensor.datatype}"
    flags = " reshape { shape: [] }" * tensor.scalar + " allow_ragged_batch: true" * tensor.ragged
    flags += " optional: true" * tensor.optional
    return f'{kind} {{ name: "{tensor.name}" data_type: {datatype} dims: {list(tensor.dims)}{flags} }}'


def placeholders(text: str) -> list[Placeholder]:
    """Every placeholder of a template or of a half-filled config, in the order of the text."""
    return [spot for spot, _ in _spots(text)]


def _spots(text: str) -> Iterator[tuple[Placeholder, re.Match]]:
    # The same variable may be mandatory in one model and optional in another.
    mandatory = {"tokenizer_dir", "tokenizer_type"}  # the second in the templates of 0.8 and before
    if re.search(r'"(gpt_model_type|max_beam_width|batch_scheduler_policy)"', text):  # those of the model tensorrt_llm
        mandatory = {p.variable for p in contract.parameters("tensorrt_llm") if p.mandatory} | {"triton_backend"}
    for match in re.finditer(r"\$\{(\w*)\}", text):
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if "#" not in re.sub(r'"[^"]*"?', "", before):  # no comment
            kind = "quoted" if before.count('"') % 2 else "structural"
            must = kind == "structural" or match[1] in mandatory
            yield Placeholder(match[1], text.count("\n", 0, match.start()) + 1, kind, must), match


def fill(text: str, values: Mapping[str, object], *, file: str | Path = "config.pbtxt") -> str:
    """The text with every `${name}` in `values` replaced; optional quoted ones that are not given stay.

    Raises RepositoryError: a value does not fit its place, or a mandatory placeholder is not given.
    """
    values = ZERO_BY_ITSELF | dict(values)
    if missing := [spot for spot in placeholders(text) if spot.mandatory and spot.name not in values]:
        where = ", ".join(f"${{{spot.name}}} (line {spot.line})" for spot in missing)
        why = "Triton cannot load the model without it, also where your model does not use that tensor."
        raise RepositoryError(f"{file}:{missing[0].line}: no value for {where}: {why}")
    known = {p.variable: p for model in contract.MODELS for p in contract.parameters(model)}
    for spot, match in reversed([*_spots(text)]):
        if spot.name in values:
            given = contract.text_of(values[spot.name])
            if spot.kind == "quoted":
                if given and spot.name in known:  # an empty one is a way to say "not set"
                    known[spot.name].text(given)
                given = text_encoding.CEscape(given, as_utf8=True)
            text = text[: match.start()] + given + text[match.end() :]
    try:
        parse(text)
    except NO_CONFIG as error:
        line, reason = place(error)
        there = text.split("\n")[line - 1].strip()
        raise RepositoryError(f"{file}:{line}: {reason} {there}") from None
    return text


def read_config(file: Path) -> str:
    """The text of a config.pbtxt. Raises OSError, with the reason, for what is none: a pipe may never begin, and some
    devices never end."""
    with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise OSError(0, "no regular file")
        if len(content := opened.read(MOST_BYTES + 1)) > MOST_BYTES:
            raise OSError(0, f"larger than {MOST_BYTES >> 20} MiB")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise OSError(0, f"no UTF-8 text: {error.reason}") from None


def parse(text: str) -> pb.ModelConfig:
    """A config.pbtxt as a message. Raises one of NO_CONFIG; `place` says where and why."""
    return text_format.Parse(text, pb.ModelConfig())


def place(error: Exception) -> tuple[int, str]:
    """The line, from 1, and the reason of an error of protobuf's parser."""
    line = getattr(error, "GetLine", int)() or 1
    reason = " ".join(re.sub(r"^\d+:\d+ : ('.*?': )?", "", str(error), flags=re.DOTALL).split())
    return line, reason if reason.isprintable() else ascii(reason)[1:-1]


def fill_repository(
    target: str | Path, values: Mapping[str, object], *, write: bool = True
) -> dict[Path, tuple[list[str], list[str]]]:
    """Fill `target`, a config.pbtxt or a folder with models under it: all files, or none (`course repo fill`).

    A key goes to every file that has its placeholder; `folder/key` goes to the one file in that folder and wins over
    the plain key. Without `write` nothing is changed. Returns {file: the placeholders that are filled, those that are
    left}. Raises RepositoryError as `fill` does, of all files, and for one that cannot be read or written.
    """
    target, groups, done, wrong, known = Path(target), {}, {}, [], set()
    found = {*target.glob("**/config.pbtxt"), *target.glob("*/config.pbtxt")}  # the second: also behind links
    files = sorted(path for path in found if YOURS not in path.relative_to(target).parts) or [target]
    if files == [target] and not target.is_file():
        raise RepositoryError(f"{target} holds no config.pbtxt: copy NVIDIA's models there first.")
    try:
        for path in files:
            text, folder = read_config(path), path.absolute().parent.name
            names = {spot.name for spot in placeholders(text)}
            known |= names | {f"{folder}/{name}" for name in names}
            given = {name: values.get(f"{folder}/{name}", values.get(name)) for name in names}
            given = {name: value for name, value in given.items() if value is not None}
            groups[path] = sorted(given), sorted(names - given.keys() - ZERO_BY_ITSELF.keys())
            try:
                done[path.resolve()] = fill(text, given, file=f"{folder}/{path.name}").encode()
            except RepositoryError as error:
                wrong.append(str(error))
        wrong += [f"No file has the placeholder ${{{key}}}.{did_you_mean(key, known)}" for key in values.keys() - known]
        if wrong:
            raise RepositoryError(" ".join(wrong))
        drafts = {path.with_name(f".{path.name}.{os.getpid()}"): path for path in done} if write else {}
        try:
            for draft, path in drafts.items():
                draft.write_bytes(done[path])
                shutil.copymode(path, draft)
            for draft, path in drafts.items():
                draft.replace(path)
        finally:
            for draft in drafts:
                draft.unlink(missing_ok=True)
    except (OSError, UnicodeError) as error:
        raise RepositoryError(f"A config.pbtxt under {target} cannot be read or written: {error}.") from None
    return groups
