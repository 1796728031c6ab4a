"""Filling of the templates, ours and NVIDIA's: `${…}` placeholders become values (notebook 03).

A *structural* placeholder stands outside quotes: left unfilled, Triton cannot parse the file. A *quoted* one is part of
a string: left unfilled, the model gets the text `${name}`, which the backends read as "not set".
"""

import os
import re
import shutil
import stat
from collections.abc import Mapping
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


class Placeholder(NamedTuple):
    """One placeholder, from `start` on in the text: `kind` is "structural" or "quoted"; `mandatory` ones must be filled
    for the model to load."""

    name: str
    line: int
    kind: str
    mandatory: bool
    start: int


def placeholders(text: str) -> list[Placeholder]:
    """Every placeholder of a template or of a half-filled config, in the order of the text."""
    # The same variable may be mandatory in one model and optional in another.
    mandatory = {"tokenizer_dir", "tokenizer_type"}  # the second in the templates of 0.8 and before
    if re.search(r'"(gpt_model_type|max_beam_width|batch_scheduler_policy)"', text):  # those of the model tensorrt_llm
        mandatory = {"triton_backend", "engine_dir", "batching_strategy"}
    found = []
    for match in re.finditer(r"\$\{(\w*)\}", text):
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if "#" not in re.sub(r'"[^"]*"?', "", before):  # no comment
            kind = "quoted" if before.count('"') % 2 else "structural"
            must = kind == "structural" or match[1] in mandatory
            found.append(Placeholder(match[1], text.count("\n", 0, match.start()) + 1, kind, must, match.start()))
    return found


def fill(text: str, values: Mapping[str, object], *, file: str | Path = "config.pbtxt") -> str:
    """The text with every `${name}` in `values` replaced; optional quoted ones that are not given stay.

    Raises RepositoryError: a value does not fit its place, or a mandatory placeholder is not given.
    """
    values, spots = ZERO_BY_ITSELF | dict(values), placeholders(text)
    if missing := [spot for spot in spots if spot.mandatory and spot.name not in values]:
        where = ", ".join(f"${{{spot.name}}} (line {spot.line})" for spot in missing)
        why = "Triton cannot load the model without it, also where your model does not use that tensor."
        raise RepositoryError(f"{file}:{missing[0].line}: no value for {where}: {why}")
    for spot in reversed(spots):
        if spot.name in values:
            given = contract.text_of(values[spot.name])
            if spot.kind == "quoted":
                if given:  # an empty one is a way to say "not set"
                    contract.check_value(spot.name, given)
                given = text_encoding.CEscape(given, as_utf8=True)
            text = text[: spot.start] + text[spot.start :].replace(f"${{{spot.name}}}", given, 1)
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
        if values and not known:
            raise RepositoryError(f"{target} has no placeholder: it is filled already.")
        wrong += [f"No file has the placeholder ${{{key}}}.{did_you_mean(key, known)}" for key in values.keys() - known]
        if wrong:
            raise RepositoryError("\n".join(wrong))
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
