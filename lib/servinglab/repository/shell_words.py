"""What of a model reaches the shell line by which Triton 24.10 starts it: only plain characters may (lint, and starts).

The line is `exec STUB REPOSITORY/MODEL/VERSION/FILE SHM … INSTANCE …`, after `source ENVIRONMENT/bin/activate &&` where
a model brings its own Python. Triton itself takes only digits for VERSION, and only the folder's name for the model's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from servinglab.repository.findings import Model
from servinglab.repository.lint_read import read_config
from servinglab.server.install import require_plain


def shell_words(model: Model) -> Iterator[tuple[str, int | None, str]]:
    """What it is, its line in config.pbtxt, and the word."""
    yield f"The name of the folder {model.folder}", None, model.name
    if model.config is None:  # Triton will not read it either
        return
    yield "default_model_filename", model.lines.at("default_model_filename"), model.config.default_model_filename
    for index, group in enumerate(model.config.instance_group):
        yield "The name of an instance_group", model.lines.at("instance_group", index, "name"), group.name
    place = (model.parameter("EXECUTION_ENV_PATH") or "").replace("$$TRITON_MODEL_DIRECTORY", "")  # Triton fills it in
    yield "EXECUTION_ENV_PATH", model.lines.entry("parameters", key="EXECUTION_ENV_PATH"), place


def require_plain_model(folder: Path) -> None:
    """Refuse a model that the shell would misread, before Triton loads it. Raises ServerError."""
    read_config(model := Model(folder))
    for what, line, word in shell_words(model):
        require_plain(word, what if line is None else f"{model.file}:{line}: {what}", "choose another")
