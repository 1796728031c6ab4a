#!python
"""NVIDIA's flags, the course's converter."""

import sys

sys.path.insert(0, "/opt/standin")
from engines import convert, flags

given = dict(flags.pairs(sys.argv[1:]))
precision = given.get("--weight_only_precision") or "int8"
convert.convert(
    given["--model_dir"],
    given.get("--output_dir", "tllm_checkpoint"),
    tp_size=int(given.get("--tp_size", 1)),
    dtype=given.get("--dtype", "float16"),
    weight_only=precision if "--use_weight_only" in given else None,
)
