"""MiniLM in numpy against transformers."""

from __future__ import annotations

import numpy as np
import pytest

from servinglab import assets
from servinglab.errors import CourseError
from servinglab.minilm import Encoder

TEXTS = ["A fox.", "An inference server runs models for clients and keeps the accelerator busy.", "Ein Fuchs läuft!"]


@pytest.fixture(scope="module")
def encoder():
    return Encoder(assets.resolve("minilm"))


def test_hidden_states_equal_those_of_transformers(encoder):
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = assets.resolve("minilm")
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    given = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model(**given).last_hidden_state.numpy()
    mask = given["attention_mask"].numpy()
    found = encoder.hidden(given["input_ids"].numpy(), mask)
    assert np.abs((found - expected) * mask[:, :, None]).max() < 1e-4
    mean = (expected * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
    wanted = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    assert np.allclose(encoder.encode(TEXTS), wanted, atol=1e-5)


def test_a_text_has_the_same_vector_alone_and_padded(encoder):
    together = encoder.encode(TEXTS)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    assert together.shape == (3, 384) and together.dtype == np.float32
    assert np.allclose(together, alone, atol=1e-5)
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)


def test_similar_sentences_are_nearer(encoder):
    fox, dog, tax = encoder.encode(["A fox runs in the wood.", "A dog runs in the forest.", "Taxes are due in May."])
    assert fox @ dog > fox @ tax + 0.2


def test_another_folder_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(CourseError, match="holds no MiniLM checkpoint"):
        Encoder(tmp_path)
