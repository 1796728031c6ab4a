"""Checkpoints from the Hugging Face hub, kept in the hub's own cache, where your other programs find them too."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from pathlib import Path

from servinglab.assets.catalogue import AssetError, Model

_TOKENIZER = ["tokenizer*.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.*"]
_TOKENIZER += ["merges.txt", "*.jinja", "config.json", "generation_config.json", "README.md"]
# No *.bin: a pickle can run code. The folders hold the same weights again for other programs.
_WEIGHTS = [*_TOKENIZER, "*.safetensors", "*.json", "*.txt"]
_NOT = ["onnx/*", "openvino/*", "original/*", "runs/*"]


def fetch(model: Model, *, token: str | None, offline: bool, weights: bool = True) -> Path:
    """The snapshot folder of `model.hub`, complete; without weights only tokenizer and configuration.

    Interrupted downloads continue. Raises AssetError: gated, unknown, unreachable, or no safetensors weights.
    """
    from huggingface_hub import errors, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    repo = model.hub or model.name
    wanted = {"allow_patterns": _WEIGHTS if weights else _TOKENIZER, "ignore_patterns": _NOT}
    with contextlib.suppress(errors.LocalEntryNotFoundError, OSError, ValueError):
        folder = Path(snapshot_download(repo, local_files_only=True, **wanted))
        if _complete(folder, weights):
            return folder
    if offline:
        raise AssetError(f"{repo} is not complete in the Hugging Face cache, and the course works offline now.")
    try:
        if not sys.stderr.isatty():
            disable_progress_bars()
        folder = Path(snapshot_download(repo, token=token, **wanted))
    except errors.GatedRepoError as error:
        raise AssetError(
            f"{repo} is gated{f' ({model.licence})' if model.licence else ''}: accept its licence on its page on the "
            "hub, then set HF_TOKEN to a token of your account, or choose an open model such as smollm2."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise AssetError(
            f"The hub knows no model {repo!r}, or it is private and HF_TOKEN is not set to a token that may read it."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise AssetError(f"{repo} is not in the Hugging Face cache, and the hub cannot be reached.") from error
    except Exception as error:  # noqa: BLE001  whatever the HTTP library of the day raises when a connection breaks
        first = str(error).strip().splitlines() or [""]
        raise AssetError(
            f"Fetching {repo} from the hub failed: {type(error).__name__}: {first[0][:300]}; run this again."
        ) from error
    if not _complete(folder, weights):
        raise AssetError(
            f"{repo} has no config.json with safetensors weights and a tokenizer, so the course cannot use it; "
            "the pickle files of older models are not read."
        )
    return folder


def licence(folder: Path) -> str:
    """The licence that a model card states in its front matter."""
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    found = re.search(r"^license(?:_name)?: *[\"']?([\w.+-]+)", text, re.MULTILINE)
    return found[1] if found else "see its model card"


def _complete(folder: Path, weights: bool) -> bool:
    names = {path.name for path in folder.iterdir() if path.exists()}  # a broken link is a missing file
    if "config.json" not in names or not names & {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"}:
        return False
    if not weights:
        return True
    if "model.safetensors.index.json" in names:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        return set(index["weight_map"].values()) <= names
    return "model.safetensors" in names
