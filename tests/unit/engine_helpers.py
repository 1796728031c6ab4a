"""Engine folders for tests: the config.json that trtllm-build writes, and files that begin as engines do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "example_builds.json"  # written by hand, with the keys that 1.3.0rc3 writes
TRTLLM, TENSORRT = "1.2.1", "10.14.1.48"  # as in container 26.07


def plan_bytes(tensorrt: str = TENSORRT, size: int = 4096) -> bytes:
    """The head of an engine as trtexec reads it (tag, layout 0, version at byte 24), and then nothing of use."""
    head = b"ftrt" + bytes(20) + bytes(int(part) for part in tensorrt.split("."))
    return head + bytes(size - len(head))


def engine_folder(
    folder: Path, *, which: str = "plain", ranks: int = 1, tensorrt: str = TENSORRT, size: int = 4096, **changes: Any
) -> Path:
    """A whole engine folder of a Llama of 7 billion parameters, "plain" or "tuned".

    changes: further keys of pretrained_config or build_config, or `version`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads(DATA.read_text())[which]
    del config["note"]
    config["pretrained_config"]["mapping"] |= {"world_size": ranks, "tp_size": ranks}
    for key, value in changes.items():
        part = config if key in config else config["pretrained_config"]
        part = config["build_config"] if key in config["build_config"] else part
        part[key] = value
    (folder / "config.json").write_text(json.dumps(config))
    for rank in range(ranks):
        (folder / f"rank{rank}.engine").write_bytes(plan_bytes(tensorrt, size))
    return folder


def rewrite(folder: Path, *keys: str, value: Any) -> None:
    """Set one value of a folder's config.json, however wrong."""
    config = json.loads((folder / "config.json").read_text())
    part = config
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    (folder / "config.json").write_text(json.dumps(config))
