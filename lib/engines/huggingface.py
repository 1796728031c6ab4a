"""Checkpoints of Hugging Face's form out of something else: a GGUF file, or the trained layers of a draft model."""

import functools
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engines.config import read_json

# What transformers writes of a GGUF file and a checkpoint does without: it is of this machine, of the moment, or
# unknown to transformers 4.
_NOT_IN_CONFIG = ("_name_or_path", "_model_name_or_path", "quantization_config", "transformers_version")
_NOT_IN_TOKENIZER = ("backend", "is_local", "local_files_only", "name_or_path", "tokenizer_file", "gguf_file")


def from_gguf(gguf: Path, out: Path) -> None:
    """Write config, float32 model.safetensors and tokenizer of a GGUF file into `out`, a Hugging Face checkpoint that
    transformers 4.57 and 5 read alike: 4 takes `rope_theta` from the top level only, otherwise assumes 10,000 without a
    word (wrong logits), and does not know the tokenizer class that 5 names.
    """
    import gguf as reader
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for name in ("GGUFReader", "get_tensor_name_map"):  # transformers reads the file three times, and maps each layer
        setattr(reader, name, functools.cache(getattr(reader, name)))
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name, "local_files_only": True}
    AutoTokenizer.from_pretrained(**where).save_pretrained(out)
    quantized = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    settings = {k: v for k, v in quantized.config.to_dict().items() if k not in _NOT_IN_CONFIG}
    # A quantized model refuses `save_pretrained`, so its weights move to a plain one.
    with torch.device("meta"):  # its own weights would be drawn at random and thrown away
        plain = type(quantized)(type(quantized.config).from_dict(settings))
    plain.load_state_dict(quantized.state_dict(), assign=True)
    plain.tie_weights()
    plain.save_pretrained(out)
    (out / "model.safetensors").chmod((out / "config.json").stat().st_mode)  # safetensors makes it private

    config, tokenizer = read_json(out / "config.json"), read_json(out / "tokenizer_config.json")
    config |= {k: v for k, v in (config.get("rope_parameters") or {}).items() if k == "rope_theta"}
    config |= {"dtype": "float32", "torch_dtype": "float32"}
    if (template := out / "chat_template.jinja").exists():
        tokenizer["chat_template"] = template.read_text(encoding="utf-8")
        template.unlink()
    tokenizer |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    tokenizer["model_max_length"] = config["max_position_embeddings"]
    _write(out / "config.json", config, _NOT_IN_CONFIG)
    _write(out / "tokenizer_config.json", tokenizer, _NOT_IN_TOKENIZER)
    if (generation := out / "generation_config.json").exists():
        _write(generation, read_json(generation), _NOT_IN_CONFIG)


def from_draft(target: Path, layers: Path, out: Path) -> None:
    """Write config.json, float32 model.safetensors and the tokenizer of a draft into the existing folder `out`: an
    ordinary checkpoint, of which the course's data keeps no more than the trained layers.

    target: the checkpoint whose embedding, head and tokenizer the draft shares; layers: model.layers.N.* and
    model.norm.weight of one that was trained for it.
    """
    import numpy as np
    from safetensors.numpy import load_file, save_file

    weights, own = load_file(target / "model.safetensors"), load_file(layers)
    own |= {name: weights[name] for name in ("model.embed_tokens.weight", "lm_head.weight") if name in weights}
    made = out / "model.safetensors"
    save_file({name: weight.astype(np.float32) for name, weight in own.items()}, made, metadata={"format": "pt"})
    made.chmod((target / "config.json").stat().st_mode)  # safetensors makes it private
    config = read_json(target / "config.json")
    config["num_hidden_layers"] = len({found[1] for name in own if (found := re.match(r"model\.layers\.(\d+)", name))})
    _write(out / "config.json", config)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (target / name).exists():
            shutil.copyfile(target / name, out / name)


def _write(path: Path, value: dict[str, Any], dropped: Sequence[str] = ()) -> None:
    kept = {k: v for k, v in value.items() if k not in dropped}
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
