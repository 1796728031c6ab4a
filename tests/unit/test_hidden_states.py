"""decoding/hidden_states.py against transformers, on a small model with random weights."""

from __future__ import annotations

import json

import numpy as np
import pytest

from servinglab.decoding.hidden_states import OpenModel
from servinglab.errors import CourseError

IDS = [3, 17, 4, 4, 60, 9, 31]


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "own head"])
def pair(request, tmp_path_factory):
    """(folder, the model of transformers)"""
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, **heads, tie_word_embeddings=request.param)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weights in model.parameters():  # norms, too, and far enough from 0 that a slip shows
            weights.add_(0.2 * torch.randn_like(weights))
    folder = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    given = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(given | {"rope_theta": 10000.0}))  # transformers 5 has it elsewhere
    return folder, model


def test_states_and_logits_are_those_of_transformers(pair):
    import torch

    folder, model = pair
    with torch.inference_mode():
        theirs = model.model(torch.tensor([IDS]), output_hidden_states=True).hidden_states
        logits = model(torch.tensor([IDS])).logits[0].numpy()
    opened = OpenModel(folder)
    ours = list(opened.states(IDS))
    assert len(ours) == len(opened.layers) == 3
    for state, expected in zip(ours[:-1], theirs[1:-1], strict=True):  # their last one is normed already
        np.testing.assert_allclose(state, expected[0].numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(opened.logits(ours[-1]), logits, rtol=1e-4, atol=1e-4)


def test_some_layers_only(pair):
    import torch

    folder, model = pair
    *_, state = OpenModel(folder).states(IDS, [0, 2])
    layers, model.model.layers = model.model.layers, model.model.layers[:1] + model.model.layers[-1:]
    with torch.inference_mode():
        expected = model.model(torch.tensor([IDS]), use_cache=False).last_hidden_state[0]
        expected = model.lm_head(expected).numpy()
    model.model.layers = layers
    np.testing.assert_allclose(OpenModel(folder).logits(state), expected, rtol=1e-4, atol=1e-4)


def test_another_architecture_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(CourseError, match="no plain Llama model"):
        OpenModel(tmp_path)
