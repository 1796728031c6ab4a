"""Lint: read one config.pbtxt, or say why it cannot be read or parsed."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from servinglab.errors import did_you_mean
from servinglab.repository import pbtxt, templates
from servinglab.repository.findings import Model

MAX_BYTES = 2**20


def read_config(model: Model) -> None:
    """Fill `text` and `config` of the model, as far as the file allows, and note what is wrong with it."""
    problem = _read_text(model)
    if problem:
        model.error(
            "L013",
            None,
            f"config.pbtxt {problem}.",
            "Write it again as plain UTF-8 text, or build the deployment again.",
        )
        return
    if not re.sub(r"#[^\n]*", "", model.text).strip():
        model.error(
            "L014",
            None,
            "config.pbtxt is empty: Triton loads such a model, and it has no input and no output.",
            "Write it again, or build the deployment again.",
        )
        return
    unfilled = [p for p in templates.placeholders(model.text) if p.kind == "structural"]
    try:
        model.config = pbtxt.parse(model.text)
    except pbtxt.PbtxtError as error:
        says = f"{error.line}:{error.column}: {error.reason}"
        if not unfilled:
            model.error("L015", error.line, f"config.pbtxt is no model configuration: {says}", _cure(error.reason))
        for spot in unfilled:
            told = f' ("{says}")' if spot.line == error.line else ""
            model.error(
                "L016",
                spot.line,
                f"${{{spot.name}}} is not filled: Triton cannot parse the file{told}.",
                f"Fill {spot.name}, even if your model has no use for it.",
            )


def _read_text(model: Model) -> str | None:
    """Fill `model.text`; or say what is wrong with the file, as the end of a sentence."""
    path = model.file
    try:
        if is_link_to_nowhere(path):
            return link_problem(path)
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return "is not a regular file"  # reading a pipe would wait for ever
        if status.st_size > MAX_BYTES:
            return f"has {status.st_size} bytes, far more than a configuration"
        data = path.read_bytes()
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if data.startswith(b"\xef\xbb\xbf"):
        return "begins with a byte-order mark, which Triton cannot parse"
    if b"\0" in data:
        return "is binary"
    try:
        model.text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return f"is not UTF-8 text (line {line})"
    return None


def _cure(reason: str) -> str:
    if match := re.search(r'"inference\.(\w+)" has no field named "(\w*)"', reason):
        message = getattr(pb, match[1], None)
        fields = message.DESCRIPTOR.fields_by_name if message else []
        return f"Remove or rename the field.{did_you_mean(match[2], fields)}"
    if match := re.search(r'"inference\.DataType" has no value named (\w+)', reason):
        return f"Use a TYPE_… name.{did_you_mean('TYPE_' + match[1].removeprefix('TYPE_'), pb.DataType.keys())}"
    if "multiple" in reason:
        return "Keep one of them."
    return "Look for a missing quote, colon, comma or brace here or on the line before."


def is_link_to_nowhere(path: Path) -> bool:
    """True for a symbolic link whose target is missing or that leads back to itself."""
    return os.path.islink(path) and not os.path.exists(path)


def link_problem(path: Path) -> str:
    """What is wrong with such a link, as the end of a sentence."""
    return f"points to {os.readlink(path)}, which leads nowhere (missing, or a loop of links)"
