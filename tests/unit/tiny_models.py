"""Checkpoints of a few kilobytes with random weights, made in a second: real files for tests that need no real text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 300
LOGITS = {"gather_context_logits": True, "gather_generation_logits": True}
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT2_NAMES = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
UNKNOWN = ("num_key_value_heads",)  # to GPT-2


def write_checkpoint(folder: Path, kind: str = "Llama", **settings: Any) -> Any:
    """Save a random `kind`ForCausalLM and a tokenizer of the words w0, w1, … into `folder`; returns the model."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    sizes = {GPT2_NAMES.get(k, k): v for k, v in SIZES.items() if k not in UNKNOWN} if kind == "GPT2" else SIZES
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:  # large enough that a wrong layer shows in the logits
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"bos_token": "w1", "eos_token": "w2", "pad_token": "w0"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    return model


def write_engine(checkpoint: Path, out: Path, precision: str = "fp32", *, tp_size: int = 1, **options: Any) -> Path:
    """The engine of a Hugging Face checkpoint, as `assets.engine` makes it; options: limits of `build`."""
    from engines.convert import convert
    from reference_backend.build import build

    kind = json.loads((checkpoint / "config.json").read_text())["model_type"]
    family = "llama" if kind == "mistral" else None
    dtype = {"bf16": "bfloat16"}.get(precision, "float32")
    convert(checkpoint, f"{out}.checkpoint", dtype=dtype, tp_size=tp_size, family=family)
    limits = {"max_batch_size": 256, "max_beam_width": 16, **LOGITS, **options}
    return build(f"{out}.checkpoint", out, weights="q4_1" if precision == "int4" else "checkpoint", **limits)


def write_gguf(path: Path) -> None:
    """A llama-type GGUF file, weights in Q4_1, vocabulary in Q8_0, with a byte-level tokenizer and a chat template."""
    import gguf
    from tokenizers.pre_tokenizers import ByteLevel

    random = np.random.default_rng(0)
    tokens = ["<unk>", "<s>", "</s>", *sorted(ByteLevel.alphabet())]
    tokens += ["he", "ll"]  # the two merges
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["h e", "l l"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}")

    def add(name: str, *shape: int, kind: Any = gguf.GGMLQuantizationType.Q4_1) -> None:
        values = random.normal(0, 0.15, shape).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", len(tokens), 64, kind=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", random.normal(1, 0.1, 64).astype(np.float32))
    for layer in range(2):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", random.normal(1, 0.1, 64).astype(np.float32))
        for name, shape in {
            "attn_q": (64, 64),
            "attn_k": (32, 64),
            "attn_v": (32, 64),
            "attn_output": (64, 64),
            "ffn_gate": (96, 64),
            "ffn_up": (96, 64),
            "ffn_down": (64, 96),
        }.items():
            add(f"blk.{layer}.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
