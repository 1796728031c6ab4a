"""Small stand-ins for tokenizers and engines: the repository's writer and linter look at file names only."""

import json
from pathlib import Path

from servinglab.repository import DeploymentSpec


def tokenizer(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def engine(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"version": "1", "pretrained_config": {}, "build_config": {}}))
    (folder / "model.onnx").write_bytes(b"onnx")
    return folder


def trt_engine(folder: Path, ranks: int = 1, max_batch_size: int = 8) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "version": "1.0.0",
        "pretrained_config": {"mapping": {"world_size": ranks}},
        "build_config": {"max_batch_size": max_batch_size},
    }
    (folder / "config.json").write_text(json.dumps(config))
    for rank in range(ranks):
        (folder / f"rank{rank}.engine").write_bytes(b"plan")
    return folder


def spec(folder: Path, **fields) -> DeploymentSpec:
    """A spec whose tokenizer and engine lie in `folder`."""
    make = trt_engine if fields.get("lane") == "trtllm" else engine
    fields.setdefault("tokenizer_dir", tokenizer(folder / "tokenizer"))
    fields.setdefault("engine_dir", make(folder / f"engine-{fields.get('lane', 'embedded')}"))
    return DeploymentSpec(**fields)
