"""A road that still ends in an engine: TensorRT Edge-LLM, whose exporter notebook 12 runs."""

import os
from pathlib import Path

from servinglab import assets
from servinglab.root import find_root


def export_command(folder: Path | str) -> list[str] | None:
    """The command that exports the default model to ONNX, into `folder`; None where the exporter is not installed.

    It wants numpy 2, so it has an environment of its own: .edge (`make edge`), or the folder SERVINGLAB_EDGE.
    """
    exporter = Path(os.environ.get("SERVINGLAB_EDGE") or find_root() / ".edge", "bin", "tensorrt-edgellm-export")
    return [str(exporter), str(assets.resolve("smollm2")), str(folder)] if exporter.is_file() else None
