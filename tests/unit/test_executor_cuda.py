"""The CUDA flavour against transformers and against the CPU flavour, on tiny models.

Needs Triton's language: it comes with the CUDA build of torch. On a machine without a CUDA device the kernels run in
its interpreter, if TRITON_INTERPRET=1 is set and the package triton is installed (minutes); else these are skipped.
"""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from executor_helpers import Collector
from tiny_models import write_checkpoint, write_engine

from drafters import PromptLookup, generate
from reference_backend.executor import Executor, Request
from reference_backend.executor.model import EngineConfig

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (torch.cuda.is_available() or INTERPRETED):
    pytest.skip("neither a CUDA device nor TRITON_INTERPRET=1", allow_module_level=True)

DEVICE = "cpu" if INTERPRETED else "cuda"
PROMPT = np.random.default_rng(0).integers(3, 300, 24)
TIED = {"vocab_size": 301, "tie_word_embeddings": True}
SHAPES = {  # an even and an odd vocabulary, tied and not, one and three query heads for each key head
    "plain": {"num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 32, "head_dim": 16},
    "tied": {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96, "head_dim": 16, **TIED},
}


@pytest.fixture(scope="module", params=SHAPES)
def llama(request, tmp_path_factory):
    """(transformers' model, fp32 engine, bf16 engine)."""
    root = tmp_path_factory.mktemp(request.param)
    model = write_checkpoint(root / "checkpoint", **SHAPES[request.param])
    return model, *(write_engine(root / "checkpoint", root / precision, precision) for precision in ("fp32", "bf16"))


def cuda_model(engine, slots=3):
    from reference_backend.executor.cuda.memory import CudaCache
    from reference_backend.executor.cuda.model import DTYPES, CudaModel

    config = EngineConfig.read(engine)
    shape = (2 * config.layers, slots, config.kv_heads, config.max_seq_len, config.head_size)
    return CudaModel(config, CudaCache(*shape, dtype=DTYPES[config.precision], device=DEVICE))


@pytest.fixture
def cuda_executor(monkeypatch):
    def make(engine, **options):
        def place(config, rows, max_seq_len, **_):
            model = cuda_model(engine, rows)
            return model._cache, model

        if INTERPRETED:
            monkeypatch.setattr("reference_backend.executor.engine.place", place)
            return Executor(engine, device="cpu", **options)
        return Executor(engine, device="cuda", **options)

    return make


def reference(model, tokens):
    with torch.no_grad():
        return model(torch.tensor(np.asarray(tokens)[None])).logits[0].numpy()


@pytest.mark.parametrize(("which", "tolerance"), [("fp32", 1e-5), ("bf16", 3e-2)])
def test_logits_of_prompts_tokens_and_guesses(llama, which, tolerance):
    if which == "bf16" and INTERPRETED:
        pytest.skip("Triton's interpreter multiplies no bfloat16")
    model, fp32, bf16 = llama
    expected, ours = reference(model, PROMPT), cuda_model(fp32 if which == "fp32" else bf16)

    def close(found, rows):
        return np.linalg.norm(found - expected[rows]) < tolerance * np.linalg.norm(expected[rows])

    assert close(ours.forward(PROMPT[None, :7], np.array([7]), 2, np.arange(7)), np.arange(7))
    ours.forward(PROMPT[None, :3], np.array([3]), 0, np.arange(0))
    ours.forward(PROMPT[None, :10], np.array([10]), 1, np.arange(0))
    logits, best = ours.decode(PROMPT[[3, 10, 7], None], np.array([4, 11, 8]), 0, np.array([2, 0]))
    assert close(logits, [7, 3])  # in the order they were asked for
    if which == "fp32":
        assert best.tolist() == expected[[3, 10, 7]].argmax(1).tolist()
    assert close(ours.forward(PROMPT[None, 8:12], np.array([12]), 2, np.array([0, 3])), [8, 11])


def test_greedy_sampled_and_guessed_tokens_equal_those_of_the_cpu(llama, cuda_executor):
    _, engine, _ = llama
    asked = [
        {},
        {"temperature": 0.8, "top_k": 5, "seed": 3},
        {"repetition_penalty": 1.2},
        {"drafter": PromptLookup(ngram=1, max_draft=3)},
    ]
    found = []
    for start in (functools.partial(Executor, device="cpu"), cuda_executor):
        with start(engine, max_seq_len=64) as executor:
            found.append([generate(executor, PROMPT[:9], 6, end_id=2, **settings) for settings in asked])
    assert found[0] == found[1]


def test_rows_of_a_table_replace_embeddings_as_on_the_cpu(llama, cuda_executor):
    model, engine, _ = llama
    vocabulary, hidden = model.get_input_embeddings().weight.shape
    prompt = np.concatenate([PROMPT[:5], vocabulary + np.arange(30) % 20, PROMPT[5:9]])
    table = np.random.default_rng(1).normal(0, 0.15, (20, hidden)).astype(np.float16)
    found = []
    for start in (functools.partial(Executor, device="cpu"), cuda_executor):
        receiver, asked = Collector(), {"prompt_embedding_table": table, "prompt_table_extra_ids": prompt // vocabulary}
        with start(engine, max_seq_len=64, prefill_tokens=16) as executor:
            both = [Request(name, prompt, 6, on_output=receiver, **asked) for name in ("first", "kept")]
            for one in [*both, Request("text", PROMPT[:9], 6, on_output=receiver)]:
                executor.submit(one)
                receiver.wait(one.id)
        found.append([receiver.tokens(name) for name in ("first", "kept", "text")])
    assert found[0] == found[1] and found[0][0] == found[0][1] != found[0][2]


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("rows", [16, 32, 256])
def test_the_pieces_of_a_product_fit_into_99_kib_of_shared_memory(rows, itemsize):
    """What a program has on its way: pieces of the rows and of two weight matrices, for all stages but one."""
    from reference_backend.executor.cuda.model import _MANY, tile

    for product in _MANY:
        cut = tile(product, rows, itemsize)
        piece = (cut["BLOCK_R"] + 2 * cut["BLOCK_P"]) * cut["BLOCK_K"] * itemsize
        assert piece * (cut["num_stages"] - 1) < 99 * 1024, product


@pytest.mark.skipif(INTERPRETED, reason="minutes in the interpreter")
def test_executors_of_one_process_do_not_disturb_each_other(llama, cuda_executor):
    """One records its steps while another replays its own; memory that a step works in belongs to nobody else."""
    _, engine, _ = llama
    prompts = [PROMPT[: 3 + number].tolist() for number in range(12)]
    with Executor(engine, device="cpu", max_seq_len=128) as executor:
        expected = [generate(executor, prompt, 40) for prompt in prompts]

    def answers(batch):
        with cuda_executor(engine, max_batch_size=batch, max_seq_len=128) as executor, ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda prompt: generate(executor, prompt, 40), prompts))

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(answers, (1, 4, 8))) == [expected] * 3
