"""A line of `course …` read by the parser of the command itself."""

from __future__ import annotations

import typer
from typer.main import get_command

from course import cli


def understood(words: list[str]) -> typer.Context:
    """What the command makes of the words behind `course`. Raises for an option or argument that does not exist."""
    command, context = get_command(cli.app), None
    while hasattr(command, "commands"):
        context = command.make_context(words[0], [words[0]], parent=context, resilient_parsing=True)
        command, words = command.commands[words[0]], words[1:]
    return command.make_context(command.name, list(words))
