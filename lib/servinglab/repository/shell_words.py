"""What of a model reaches the shell line by which Triton 24.10 starts it: only plain characters may (lint, and starts).

The line is `exec STUB REPOSITORY/MODEL/VERSION/FILE SHM … INSTANCE …`, after `source ENVIRONMENT/bin/activate &&` where
a model brings its own Python. Triton itself takes only digits for VERSION, and only the folder's name for the model's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from servinglab.repository.findings import Model
from servinglab.repository.pbtxt import PbtxtError, parse
from servinglab.triton_install import ServerError, require_plain


def shell_words(model: Model) -> Iterator[tuple[str, int | None, str]]:
    """What it is, its line in config.pbtxt, and the word."""
    yield f"The name of the folder {model.folder}", None, model.name
    if model.config is None:
        return
    yield "default_model_filename", model.lines.at("default_model_filename"), model.config.default_model_filename
    for index, group in enumerate(model.config.instance_group):
        yield "The name of an instance_group", model.lines.at("instance_group", index, "name"), group.name
    place = (model.parameter("EXECUTION_ENV_PATH") or "").replace("$$TRITON_MODEL_DIRECTORY", "")  # Triton fills it in
    yield "EXECUTION_ENV_PATH", model.lines.entry("parameters", key="EXECUTION_ENV_PATH"), place


def require_plain_models(repository: Path, names: Iterable[str]) -> None:
    """`require_plain_model` for these, and for the steps of ensembles among them, which Triton loads with them."""
    todo, seen = list(names), set()
    while todo:
        if (name := todo.pop()) not in seen:
            seen.add(name)
            config = require_plain_model(repository / name)
            todo += [step.model_name for step in config.ensemble_scheduling.step] if config else []


def require_plain_model(folder: Path) -> ModelConfig | None:
    """Refuse a model that the shell would misread, before Triton loads it. Raises ServerError.

    Returns its config; None where there is none, or none that can be parsed.
    """
    model = Model(folder)
    if model.file.is_file():
        model.text = model.file.read_bytes().decode("latin-1")  # Triton takes any bytes, as many as there are
        try:
            model.config = parse(model.text, str(model.file))
        except PbtxtError as error:  # Triton's own parser will not take it either, but what if it does
            lines = [line for line in model.text.splitlines() if not line.lstrip().startswith("#")]
            if odd := re.search(r"[`$;|&\\]", re.sub(r"\$\{\w*\}", "", "\n".join(lines))):
                raise ServerError(
                    f"{error} It holds {odd[0]!r}, which a shell might run: Triton does not get it."
                ) from None
    for what, line, word in shell_words(model):
        require_plain(word, what if line is None else f"{model.file}:{line}: {what}", "choose another")
    return model.config
