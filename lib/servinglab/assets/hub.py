"""Checkpoints from the Hugging Face hub, kept in the hub's own cache, where your other programs find them too."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from servinglab.assets.catalogue import Model
from servinglab.assets.store import AssetError, told_offline

_TOKENIZER = ["tokenizer*.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.*"]
_TOKENIZER += ["merges.txt", "*.jinja", "config.json", "generation_config.json", "README.md"]
# No *.bin: a pickle can run code. The folders hold the same weights again for other programs.
_WEIGHTS = [*_TOKENIZER, "*.safetensors", "*.json", "*.txt"]
_NOT = ["onnx/*", "openvino/*", "original/*", "runs/*"]


def fetch(model: Model, *, weights: bool = True) -> Path:
    """The snapshot folder of `model.hub`, complete; without weights only tokenizer and configuration.

    Interrupted downloads continue. Raises AssetError: gated, unknown, unreachable, or no safetensors weights.
    """
    from huggingface_hub import errors, snapshot_download

    repo = model.hub or model.name
    wanted = {"allow_patterns": _WEIGHTS if weights else _TOKENIZER, "ignore_patterns": _NOT}
    with contextlib.suppress(errors.LocalEntryNotFoundError, OSError, ValueError):
        folder = Path(snapshot_download(repo, local_files_only=True, **wanted))
        if _complete(folder, weights):
            return folder
    if told_offline():
        raise AssetError(f"{repo} is not complete in the Hugging Face cache, and the course works offline now.")
    try:
        folder = Path(snapshot_download(repo, **wanted))
    except Exception as error:  # noqa: BLE001  whatever the HTTP library of the day raises when a connection breaks
        first = (str(error).strip().splitlines() or [""])[0]
        said = f"Fetching {repo} from the hub failed: {type(error).__name__}: {first[:300]}; run this again."
        if isinstance(error, errors.GatedRepoError):
            said = f"{repo} is gated: accept its licence on its page on the hub, then set HF_TOKEN, or choose smollm2."
        raise AssetError(said) from error
    if not _complete(folder, weights):
        raise AssetError(
            f"{repo} has no config.json with safetensors weights and a tokenizer, so the course cannot use it; "
            "the pickle files of older models are not read."
        )
    return folder


def _complete(folder: Path, weights: bool) -> bool:
    names = {path.name for path in folder.iterdir() if path.exists()}  # a broken link is a missing file
    if "config.json" not in names or not names & {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"}:
        return False
    needed, index = {"model.safetensors"} if weights else set(), folder / "model.safetensors.index.json"
    if weights and index.name in names:
        needed = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return needed <= names
