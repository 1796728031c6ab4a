"""What of a model reaches the shell line by which Triton 24.10 starts it: only plain characters may.

The line is `exec STUB REPOSITORY/MODEL/VERSION/FILE SHM … INSTANCE …`, after `source ENVIRONMENT/bin/activate &&` where
a model brings its own Python. Triton itself takes only digits for VERSION, and only the folder's name for the model's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from servinglab.server.install import ServerError, require_plain


def shell_words(name: str, config: ModelConfig) -> list[tuple[str, str, str]]:
    """What it is, a pattern for its line in config.pbtxt, and the word."""
    place = config.parameters["EXECUTION_ENV_PATH"].string_value if "EXECUTION_ENV_PATH" in config.parameters else ""
    return [
        ("The name of the folder", "", name),
        ("default_model_filename", "default_model_filename", config.default_model_filename),
        *(("The name of an instance_group", rf'name\s*:\s*"{re.escape(g.name)}', g.name)
          for g in config.instance_group),
        ("EXECUTION_ENV_PATH", "EXECUTION_ENV_PATH", place.replace("$$TRITON_MODEL_DIRECTORY", "")),  # Triton fills it
    ]  # fmt: skip


def read_config(folder: Path) -> ModelConfig | None:
    """A model's configuration, None where it cannot be parsed. Triton takes any bytes, as many as there are."""
    try:
        return text_format.Parse((folder / "config.pbtxt").read_bytes().decode("latin-1"), ModelConfig())
    except (OSError, ValueError, text_format.ParseError, RecursionError, OverflowError):
        return None


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
    file = folder / "config.pbtxt"
    require_plain(folder.name, f"The name of the folder {folder}", "choose another")
    if config := read_config(folder):
        for what, _, word in shell_words(folder.name, config):
            require_plain(word, f"{file}: {what}", "choose another")
    elif file.is_file():  # Triton's own parser will not take it either, but what if it does
        lines = [line for line in file.read_bytes().decode("latin-1").splitlines() if not line.lstrip().startswith("#")]
        if odd := re.search(r"[`$;|&\\]", re.sub(r"\$\{\w*\}", "", "\n".join(lines))):
            raise ServerError(f"{file} is no model configuration and holds {odd[0]!r}, which a shell might run.")
    return config
