"""Small stand-ins for tokenizers and engines: the repository's writer and linter look at file names only."""

import json
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from servinglab.repository import DeploymentSpec, config_text


def tokenizer(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def engine(
    folder: Path, ranks: int = 1, max_batch_size: int = 8, vocab_size: int = 100, version: str = "1.0.0"
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "version": version,
        "pretrained_config": {"mapping": {"world_size": ranks}, "vocab_size": vocab_size},
        "build_config": {"max_batch_size": max_batch_size},
    }
    (folder / "config.json").write_text(json.dumps(config))
    for rank in range(ranks):
        (folder / f"rank{rank}.engine").write_bytes(b"plan")
    return folder


def spec(folder: Path, **fields) -> DeploymentSpec:
    """A spec whose tokenizer and engine lie in `folder`."""
    for name, make in (("tokenizer", tokenizer), ("engine", engine)):
        if f"{name}_dir" not in fields:
            fields[f"{name}_dir"] = make(folder / name)
    return DeploymentSpec(**fields)


def parse(text: str) -> pb.ModelConfig:
    """protobuf's own parser is the reference."""
    return text_format.Parse(text, pb.ModelConfig())


def message(deployment: DeploymentSpec, model: str) -> pb.ModelConfig:
    return parse(config_text(deployment, model))
