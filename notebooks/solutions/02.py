"""Answers of notebook 02."""

SETUP = """
import tempfile
from pathlib import Path
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from engines.convert import convert
torch.manual_seed(0)
sizes = {"vocab_size": 301, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8}
root, dtype = Path(tempfile.mkdtemp()), "float32"
LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=2)).save_pretrained(root / "hf")
convert(root / "hf", root / dtype, dtype=dtype)
"""

LIVE = {"02.2"}

_ROWS = "def qkv_rows(heads, kv_heads, head_size, tp_size):\n    return "

SOLUTIONS = {
    "02.1": _ROWS + "(heads // tp_size + 2 * max(1, kv_heads // tp_size)) * head_size",
    "02.2": 'flags = "--max_batch_size 4 --max_seq_len 180 --max_beam_width 3"',
}


def _flags(batch, length, beams, more=""):
    given = {"batch_size": batch, "seq_len": length, "beam_width": beams}
    text = " ".join(f"--max_{name} {value}" for name, value in given.items() if value)
    return f'flags = "{text} {more}"'


MUTANTS = {
    "02.1": [
        ("every head has its own k and v", _ROWS + "3 * heads // tp_size * head_size", "grouped-query"),
        ("k and v are one tensor", _ROWS + "(heads + kv_heads) // tp_size * head_size", "count twice"),
        ("tensor parallelism copies", _ROWS + "(heads + 2 * kv_heads) * head_size", "whole model"),
        ("only queries are cut", _ROWS + "(heads // tp_size + 2 * kv_heads) * head_size", "not only the queries"),
        ("heads can be cut", _ROWS + "(heads + 2 * kv_heads) / tp_size * head_size", "a head stays whole"),
        ("rows are a fraction", _ROWS + "(heads / tp_size + 2 * max(1, kv_heads / tp_size)) * head_size",
         "but a float"),
        ("some ranks have no KV head", _ROWS + "(heads // tp_size + 2 * (kv_heads // tp_size)) * head_size",
         "at least one"),
    ],
    "02.2": [
        ("max_seq_len is the answer", _flags(4, 80, 3), "maximum input length (79)"),
        ("max_seq_len is the prompt", _flags(4, 151, 3), "got 1 of 20"),
        ("longest prompt and longest answer", _flags(4, 230, 3), "no request has the longest prompt"),
        ("a server sets the beams", _flags(4, 180, None), "no more beams than"),
        ("more beams are safer", _flags(4, 180, 4), "no request asks for so many"),
        ("a batch fills itself", _flags(2, 180, 3), "only 2 of 4"),
        ("a beam is a request", _flags(6, 180, 3), "is one request"),
        ("an old guide's flag", _flags(4, 180, 3, "--max_output_len 80"), "lost --max_output_len"),
        ("a list of words", 'flags = ["--max_batch_size", "4"]', "one text, please"),
    ],
}  # fmt: skip
