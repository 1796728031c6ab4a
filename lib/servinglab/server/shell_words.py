"""What of a model reaches the shell line by which Triton 24.10 starts it: only plain characters may.

The line is `exec STUB REPOSITORY/MODEL/VERSION/FILE SHM … INSTANCE …`, after `source ENVIRONMENT/bin/activate &&` where
a model brings its own Python. Triton itself takes only digits for VERSION, and only the folder's name for the model's.
"""

from __future__ import annotations

import re
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from servinglab.server.install import require_plain


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
    """A model's configuration as Triton reads it, None where it cannot."""
    try:
        return text_format.Parse((folder / "config.pbtxt").read_text(encoding="utf-8"), ModelConfig())
    except (OSError, ValueError, text_format.ParseError, RecursionError, OverflowError):
        return None


def require_plain_model(folder: Path) -> None:
    """Refuse a model that the shell would misread, before Triton loads it. Raises ServerError."""
    require_plain(folder.name, f"The name of the folder {folder}", "choose another")
    if config := read_config(folder):  # Triton will not load one that it cannot read
        for what, _, word in shell_words(folder.name, config):
            require_plain(word, f"{folder / 'config.pbtxt'}: {what}", "choose another")
