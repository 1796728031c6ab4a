"""A GPT-2 and a Gemma, tiny and random, each cut over two ranks, served by their names beside each other; and what a
deployment says that has the tokenizer of another model. The reference is transformers' `generate`."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer

from servinglab.repository import DeploymentSpec, build
from servinglab.server import TritonServer
from triton_client import TritonClient
from unit.tiny_models import write_checkpoint, write_engine
from unit.triton_fakes import byte_fallback_tokenizer

pytestmark = pytest.mark.integration

NEW = 12
PROMPTS = {
    "gpt2": ["w5 w37 w93", "w9", "w44 w86 w70 " * 10],
    "gemma": ["Hello world", "world wor ld abc", "é 猫 Hello " * 5],
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """{name: (transformers' model, its folder)}; GPT-2 reads words w0, w1, …, Gemma letters and bytes after <s>."""
    root = tmp_path_factory.mktemp("families")
    gpt2 = write_checkpoint(root / "gpt2", "GPT2")
    byte_fallback_tokenizer(root / "letters")
    letters = Tokenizer.from_file(str(root / "letters" / "tokenizer.json")).get_vocab_size()
    gemma = write_checkpoint(root / "gemma", "Gemma", head_dim=32, num_key_value_heads=1, vocab_size=letters)
    byte_fallback_tokenizer(root / "gemma")
    return {"gpt2": (gpt2, root / "gpt2"), "gemma": (gemma, root / "gemma")}


@pytest.fixture(scope="module")
def client(checkpoints, tmp_path_factory):
    root = tmp_path_factory.mktemp("repository")
    for name, tokenizer in {"gpt2": "gpt2", "gemma": "gemma", "mixed": "gpt2"}.items():
        folder = checkpoints["gemma" if name == "mixed" else name][1]
        engine = root / "engines" / name
        engine.parent.mkdir(exist_ok=True)
        write_engine(folder, engine, tp_size=2)
        assert sorted(path.name for path in engine.glob("*.engine")) == ["rank0.engine", "rank1.engine"]
        spec = DeploymentSpec(
            name=name, prefix=f"{name}-", tokenizer_dir=checkpoints[tokenizer][1], engine_dir=engine, max_batch_size=4
        )
        repository = build(spec, root / "served")
    with TritonServer(repository) as server, TritonClient(server.grpc_url, server.http_url) as opened:
        assert len(server.models()) == 15
        yield opened


def continued(checkpoints, model: str, words: str, prompt: str) -> tuple[Tokenizer, list[int]]:
    """The tokenizer of `words`, and what the `model` of transformers continues with, greedily, up to its end."""
    tokenizer = Tokenizer.from_file(str(checkpoints[words][1] / "tokenizer.json"))
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": NEW, "eos_token_id": 2}
    out = checkpoints[model][0].generate(ids, **options)[0, ids.shape[1] :].tolist()
    return tokenizer, out[: out.index(2)] if 2 in out else out


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
@pytest.mark.parametrize(("name", "prompt"), [(name, prompt) for name in PROMPTS for prompt in PROMPTS[name]])
def test_the_text_is_that_of_transformers(client, checkpoints, name, prompt, model):
    tokenizer, expected = continued(checkpoints, name, name, prompt)
    given = {"model": f"{name}-{model}", "max_tokens": NEW, "exclude_input_in_output": True}
    assert client.generate(prompt, **given)["text_output"] == tokenizer.decode(expected)
    with client.stream(prompt, **given) as stream:
        streamed = "".join(chunk.text for chunk in stream if chunk.outputs)
    if model == "ensemble":  # it decodes each token alone
        assert streamed == "".join(tokenizer.decode([token]) for token in expected)
    else:
        assert streamed == tokenizer.decode(expected)


def test_the_tokenizer_of_another_model_is_no_error_and_wrong(client, checkpoints):
    """Names, shapes and types fit. Only the words tell: the ids of GPT-2's words went to a Gemma."""
    prompt = PROMPTS["gpt2"][0]
    given = {"model": "mixed-tensorrt_llm_bls", "max_tokens": NEW, "exclude_input_in_output": True}
    found = client.generate(prompt, **given)["text_output"]
    words, right = continued(checkpoints, "gpt2", "gpt2", prompt)
    _, wrong = continued(checkpoints, "gemma", "gpt2", prompt)
    assert found == words.decode(wrong) != words.decode(right)
