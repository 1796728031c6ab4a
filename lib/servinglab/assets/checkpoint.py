"""Turn a GGUF file into a Hugging Face checkpoint that transformers 4.57 and 5.x read alike.

Two traps are behind most of this file. A quantized model refuses `save_pretrained`, so its weights move to a plain one.
And what transformers 5 writes is not what 4.x reads: 4.x takes `rope_theta` from the top level only, otherwise assumes
10,000 without a word (wrong logits), and does not know the tokenizer class that 5.x names.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

# Of this machine, of the moment, or unknown to transformers 4.
_DROP_FROM_CONFIG = ("_name_or_path", "_model_name_or_path", "quantization_config", "transformers_version")
_DROP_FROM_TOKENIZER = ("backend", "is_local", "local_files_only", "name_or_path", "tokenizer_file", "gguf_file")


def convert_gguf(gguf: Path, out: Path) -> None:
    """Write config, float32 model.safetensors and tokenizer of `gguf` into `out`; about 15 s for 135 M parameters."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name, "local_files_only": True}
    with _read_once():
        AutoTokenizer.from_pretrained(**where).save_pretrained(out)
        quantized = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    settings = {k: v for k, v in quantized.config.to_dict().items() if k not in _DROP_FROM_CONFIG}
    with torch.device("meta"):  # its own weights would be drawn at random and thrown away
        plain = type(quantized)(type(quantized.config).from_dict(settings))
    plain.load_state_dict(quantized.state_dict(), assign=True)
    plain.tie_weights()
    plain.save_pretrained(out)
    (out / "model.safetensors").chmod((out / "config.json").stat().st_mode)  # safetensors makes it private
    make_portable(out)


@contextlib.contextmanager
def _read_once() -> Iterator[None]:
    """transformers parses the GGUF header three times and makes one table 397 times; once each is enough."""
    import gguf

    with (
        mock.patch.object(gguf, "GGUFReader", functools.cache(gguf.GGUFReader)),
        mock.patch.object(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
    ):
        yield


def make_portable(folder: Path) -> None:
    """Rewrite the JSON files of a checkpoint that transformers 5 saved, so that 4.57 reads the same model."""
    config = _read(folder / "config.json")
    rope = config.get("rope_parameters") or {}
    if "rope_theta" in rope:
        config["rope_theta"] = rope["rope_theta"]
    config["dtype"] = config["torch_dtype"] = "float32"
    _write(folder / "config.json", {k: v for k, v in config.items() if k not in _DROP_FROM_CONFIG})

    tokenizer = _read(folder / "tokenizer_config.json")
    template = folder / "chat_template.jinja"
    if template.exists():
        tokenizer["chat_template"] = template.read_text(encoding="utf-8")
        template.unlink()
    tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    tokenizer["clean_up_tokenization_spaces"] = False
    tokenizer["model_max_length"] = config["max_position_embeddings"]
    _write(folder / "tokenizer_config.json", {k: v for k, v in tokenizer.items() if k not in _DROP_FROM_TOKENIZER})

    generation = folder / "generation_config.json"
    if generation.exists():
        _write(generation, {k: v for k, v in _read(generation).items() if k not in _DROP_FROM_CONFIG})


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
