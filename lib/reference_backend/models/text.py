"""Text to ids and back with the `tokenizers` library alone; streamed tokens to streamed text: whole characters, spaces
kept, stop words found across chunks (notebook 05)."""

import json
import os
from pathlib import Path

from reference_backend import BackendError
from reference_backend.models.common import InputError

# One request is one text here, and the library's thread pool would only compete with the model for the cores.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from tokenizers import Tokenizer as FastTokenizer  # noqa: E402  (reads the variable above)


class Tokenizer:
    """Text to ids and back, and the ids of the end and padding tokens (`end_id`, `pad_id`); `other_ends` end a turn as
    well. Raises BackendError when the folder cannot be used."""

    def __init__(self, folder: str):
        path = Path(folder) / "tokenizer.json"
        try:
            self._fast = FastTokenizer.from_file(str(path))
        except Exception as error:  # the library has no class for it
            what = f"a tokenizer.json that cannot be read ({error})" if path.is_file() else "no tokenizer.json"
            raise BackendError(
                f"tokenizer_dir '{folder}' has {what}; point it at a Hugging Face tokenizer folder "
                "(a folder with only tokenizer.model: load it once with transformers and save it again)."
            ) from None
        self._fast.no_padding()
        self._fast.no_truncation()
        self.size = self._fast.get_vocab_size(with_added_tokens=True)
        ends, pads = (_special_ids(Path(folder), self._fast, name) for name in ("eos_token", "pad_token"))
        if not ends:
            raise BackendError(
                f"tokenizer_dir '{folder}' names no end token: neither eos_token in tokenizer_config.json or "
                "special_tokens_map.json nor eos_token_id in config.json or generation_config.json."
            )
        self.end_id, *self.other_ends = ends
        self.pad_id = (pads or ends)[0]

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; special tokens written in the text are recognised."""
        return self._fast.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        """Text of `ids`; an incomplete UTF-8 character becomes U+FFFD. As in transformers, ids behind the vocabulary
        have no text: in a prompt they stand for pictures."""
        if ids and min(ids) < 0:
            raise InputError(f"Token id {min(ids)} is outside the tokenizer's vocabulary of {self.size} tokens.")
        return self._fast.decode(ids, skip_special_tokens=skip_special_tokens)


def _special_ids(folder: Path, fast: FastTokenizer, name: str) -> list[int]:
    """Ids of `eos_token` or `pad_token`: that of the first of the tokenizer's files that knows it, then those of the
    first of the model's, in which a model for chats lists several."""
    found = []
    for files in (("tokenizer_config", "special_tokens_map"), ("generation_config", "config")):
        for path in (folder / f"{file}.json" for file in files):
            try:
                known = dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}
            except (ValueError, RecursionError, TypeError) as error:
                raise BackendError(f"{path} cannot be read ({error}); copy the tokenizer's folder again.") from None
            token, listed = known.get(name), known.get(f"{name}_id")
            token = token.get("content") if isinstance(token, dict) else token
            ids = [token and fast.token_to_id(token), *(listed if isinstance(listed, list) else [listed])]
            if ids := [int(one) for one in ids if one is not None and fast.id_to_token(int(one)) is not None]:
                found += ids
                break
    return list(dict.fromkeys(found))


REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no complete UTF-8 character
# Tokens that may wait for the rest of a character. One has four bytes at most, but chunks of several tokens may miss
# its end several times; what waits longer is not text at all.
LONGEST_HELD = 64


class IncrementalText:
    """Turns a growing list of token ids into pieces of text whose sum is the text of all ids.

    Decoding chunk by chunk would lose what one token owes to its neighbours: a SentencePiece space, the other bytes of
    a character. So each chunk is decoded together with the tokens of the chunk before it (`windows`), and `advance`
    returns what the longer decoding has in addition.
    """

    def __init__(self) -> None:
        self._window: list[int] = []  # the last tokens whose text is complete, then the new ones
        self._known = 0  # how many tokens of the window are the old ones
        self._sent = 0  # characters of new text already returned although the window has not moved
        self._rest = ""  # text of an incomplete end

    def windows(self, new: list[int]) -> tuple[list[int], list[int]]:
        """Add `new` ids; returns the two id lists whose texts `advance` needs."""
        self._window += new
        return self._window[: self._known], self._window

    def advance(self, before: str, now: str) -> str:
        """The new text, given the texts of the two `windows`."""
        complete = not now.endswith(REPLACEMENT) or len(self._window) - self._known > LONGEST_HELD
        stable = now if complete else now.rstrip(REPLACEMENT)
        piece = stable[len(before) + self._sent :]
        self._sent += len(piece)
        self._rest = now[len(before) + self._sent :]
        if complete:
            if piece:  # else keep the old ones: tokens without text cannot tell whether the next begins with a space
                self._window = self._window[self._known :]
            self._known, self._sent = len(self._window), 0
        return piece

    def flush(self) -> str:
        """The incomplete end, when no more tokens will come."""
        rest, self._rest = self._rest, ""
        return rest


class StopText:
    """Finds the first completed stop word in streamed text, holding back what may be the start of one."""

    def __init__(self, words: list[str]) -> None:
        self.words = [word for word in words if word]
        self._held = ""
        self.stopped = False

    def feed(self, piece: str) -> str:
        """Text that may be shown now; ends with the stop word when `stopped` turns true."""
        text, self._held = self._held + piece, ""
        if (end := self.end_of_first(text)) is not None:
            self.stopped = True
            return text[:end]
        longest = max(map(len, self.words), default=1) - 1
        starts = (n for n in range(min(len(text), longest), 0, -1) if any(w.startswith(text[-n:]) for w in self.words))
        shown = len(text) - next(starts, 0)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """The held-back text, when no more will come."""
        text, self._held = self._held, ""
        return text

    def end_of_first(self, text: str) -> int | None:
        """Index just behind the stop word of `text` that is complete first; None without one."""
        return min((text.index(word) + len(word) for word in self.words if word in text), default=None)
