"""A tokenizer folder read with the `tokenizers` library alone: no torch, and a fraction of transformers' load time."""

from __future__ import annotations

import json
import os
from pathlib import Path

from reference_backend.errors import BackendError
from reference_backend.models.common import InputError

# One request is one text here, and the library's thread pool would only compete with the model for the cores.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from tokenizers import Tokenizer as FastTokenizer  # noqa: E402  (reads the variable above)


class TokenizerError(BackendError):
    """The tokenizer folder cannot be used."""


class Tokenizer:
    """Text to ids and back, and the ids of the end and padding tokens (`end_id`, `pad_id`)."""

    def __init__(self, folder: str):
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(
                f"tokenizer_dir '{folder}' has no tokenizer.json; point it at a Hugging Face tokenizer folder "
                "(a folder with only tokenizer.model: load it once with transformers and save it again)."
            )
        self._fast = FastTokenizer.from_file(str(path))
        self._fast.no_padding()
        self._fast.no_truncation()
        self.size = self._fast.get_vocab_size(with_added_tokens=True)
        end = _special_id(Path(folder), self._fast, "eos_token")
        if end is None:
            raise TokenizerError(
                f"tokenizer_dir '{folder}' names no end token: neither eos_token in tokenizer_config.json or "
                "special_tokens_map.json nor eos_token_id in config.json or generation_config.json."
            )
        pad = _special_id(Path(folder), self._fast, "pad_token")
        self.end_id, self.pad_id = end, end if pad is None else pad

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; special tokens written in the text are recognised."""
        return self._fast.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        """Text of `ids`; an incomplete UTF-8 character becomes U+FFFD."""
        if ids and not 0 <= min(ids) <= max(ids) < self.size:
            wrong = next(token for token in ids if not 0 <= token < self.size)
            raise InputError(f"Token id {wrong} is outside the tokenizer's vocabulary of {self.size} tokens.")
        return self._fast.decode(ids, skip_special_tokens=skip_special_tokens)


def _special_id(folder: Path, fast: FastTokenizer, name: str) -> int | None:
    """Id of `eos_token` or `pad_token`, from the first file that knows it."""
    for file in ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json"):
        known = json.loads((folder / file).read_text("utf-8")) if (folder / file).is_file() else {}
        token, token_id = known.get(name), known.get(f"{name}_id")
        token = token.get("content") if isinstance(token, dict) else token
        if token and fast.token_to_id(token) is not None:
            return fast.token_to_id(token)
        if token_id is not None:
            return int(token_id[0] if isinstance(token_id, list) else token_id)
    return None
