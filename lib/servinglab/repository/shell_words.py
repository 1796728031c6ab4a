"""What of a model reaches the shell line by which Triton 24.10 starts it: only plain characters may.

The line is `exec STUB REPOSITORY/MODEL/VERSION/FILE SHM … INSTANCE …`, after `source ENVIRONMENT/bin/activate &&` where
a model brings its own Python. Triton itself takes only digits for VERSION, and only the folder's name for the model's.
"""

from __future__ import annotations

from pathlib import Path

from servinglab.repository.lint import shell_words
from servinglab.repository.pbtxt import PbtxtError, parse
from servinglab.server.install import require_plain


def require_plain_model(folder: Path) -> None:
    """Refuse a model that the shell would misread, before Triton loads it. Raises ServerError."""
    require_plain(folder.name, f"The name of the folder {folder}", "choose another")
    try:
        text = (folder / "config.pbtxt").read_text(encoding="utf-8")
        config = parse(text)
    except (OSError, UnicodeDecodeError, PbtxtError):  # Triton will not read it either
        return
    for what, _, word in shell_words(folder.name, config):
        require_plain(word, f"{folder / 'config.pbtxt'}: {what}", "choose another")
