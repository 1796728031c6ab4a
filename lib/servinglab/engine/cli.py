"""`course engine …`: each command says what to do and leaves the work to a module that it imports only then."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="Checkpoints and engines of TensorRT-LLM: convert, estimate, build, inspect.")

# The commands: convert (A), recipe, build, versions (B), estimate, check, inspect, diff (C).
