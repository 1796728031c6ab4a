"""`course build`: trtllm-build's flags, for the engine that this machine's backend runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import typer


def build(context: typer.Context) -> None:
    """A TensorRT-LLM checkpoint as an engine for this machine, with the flags of trtllm-build. No GPU.

    --checkpoint_dir DIR --output_dir DIR [--max_batch_size N] [--max_seq_len N] [--max_input_len N]
    [--max_beam_width N] [--gather_context_logits] [--gather_generation_logits] …

    Flags that change speed on a GPU are taken and have no effect here; others are refused by name. Ours alone:
    --weights q4_1, four bits in blocks of 32.
    """
    from engines import flags, versions

    given = [(name, value) for name, value in flags.pairs(context.args) if name != "--weights"]
    for caution in flags.check("trtllm-build", versions.containers()[0].trtllm, given):
        typer.echo(caution, err=True)
    # The backend is a program like trtllm-build: nothing of it is imported here.
    command = [sys.executable, "-m", "reference_backend.trtllm_build", *context.args]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    raise typer.Exit(subprocess.run(command, env={**os.environ, "PYTHONPATH": path}).returncode)
