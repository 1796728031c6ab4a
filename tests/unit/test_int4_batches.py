"""How far the logits of int4 weights depend on what else is computed: notebook 07 tells these sizes.

ONNX Runtime multiplies one row by int4 weights otherwise than many. The bounds are twice what 12 prompts gave on one
CPU.
"""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from reference_backend.executor.cache import KVCache
from reference_backend.executor.model import EngineConfig, Model
from servinglab import assets

PROMPTS = ["She opened the door and saw a", "1 + 1 = 2\n2 + 2 = 4\n2 + 3 =", "The best thing about the sea is"]


def last_logits(config, ids, rows, at_once):
    """Of the last token, `rows` copies in one step; read with the others or behind them."""
    cache = KVCache(2 * config.layers, rows, config.kv_heads, 64, config.head_size)
    model, end = Model(config, cache, threads=1), np.array([len(ids)])
    if at_once:
        return model.forward(ids[None], end, 0, end - 1).copy()
    for row in range(rows):
        model.forward(ids[None, :-1], end - 1, row, np.arange(0))
    return model.forward(np.repeat(ids[None, -1:], rows, 0), end.repeat(rows), 0, np.arange(rows)).copy()


@pytest.mark.parametrize(("precision", "least", "most"), [("fp32", 0, 1e-3), ("int4", 0.05, 2.4)])
def test_a_logit_moves_by_no_more_than_the_pages_say(precision, least, most, request):
    config = EngineConfig.read(request.getfixturevalue(f"smollm2_engine_{precision}"))
    tokenizer = Tokenizer.from_file(str(assets.tokenizer("smollm2") / "tokenizer.json"))
    moved = []
    for prompt in PROMPTS:
        ids = np.array(tokenizer.encode(prompt).ids)
        alone = last_logits(config, ids, 1, at_once=False)
        others = (last_logits(config, ids, 8, at_once=False), last_logits(config, ids, 1, at_once=True))
        moved += [float(np.abs(other - alone).max()) for other in others]
    assert least <= max(moved) < most
