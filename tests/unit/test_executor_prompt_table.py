"""Fake ids: a table gives the embeddings of a prompt. The reference is transformers' `generate(inputs_embeds=…)`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from executor_helpers import Collector, request
from tiny_models import VOCABULARY, write_checkpoint, write_engine

from drafters import PromptLookup
from reference_backend.executor import Executor, RequestError

ROWS, NEW = 40, 16
RANDOM = np.random.default_rng(0)
FAKE = VOCABULARY + np.arange(ROWS)
PROMPT = np.concatenate([RANDOM.integers(3, VOCABULARY, 30), FAKE, RANDOM.integers(3, VOCABULARY, 9), FAKE[:3]])
EXTRA = np.where(PROMPT >= VOCABULARY, 7, 0).astype(np.uint64)


@pytest.fixture(scope="module", params=["Llama", "Gemma", "GPT2"])
def pair(request, tmp_path_factory):
    """transformers' model and an engine of it, the Llama's in two ranks."""
    root = tmp_path_factory.mktemp(request.param)
    sizes = {"head_dim": 16} if request.param == "Gemma" else {}
    model = write_checkpoint(root / "checkpoint", request.param, **sizes)
    return model, write_engine(root / "checkpoint", root / "engine", tp_size=2 if request.param == "Llama" else 1)


@pytest.fixture
def start(pair):
    running = []

    def make(**options):
        running.append(Executor(pair[1], prefill_tokens=16, tokens_per_block=16, device="cpu", **options))
        return running[-1]

    yield make
    for executor in running:
        executor.shutdown()


def picture(pair, seed: int) -> np.ndarray:
    scale = pair[0].get_input_embeddings().weight.std().item()
    return np.random.default_rng(seed).normal(0, scale, (ROWS, 64)).astype(np.float16)


def expected(pair, table, prompt=PROMPT, **options) -> list[int]:
    layer = pair[0].get_input_embeddings()
    every = np.concatenate([layer.weight.detach().numpy(), table.astype(np.float32)])
    every *= getattr(layer, "scalar_embed_scale", 1)  # Gemma's; TensorRT-LLM scales the rows of a table, too
    given = {"inputs_embeds": torch.from_numpy(every[prompt])[None], "attention_mask": torch.ones(1, len(prompt))}
    with torch.inference_mode():
        given |= {"max_new_tokens": NEW, "min_new_tokens": NEW, "pad_token_id": 0, "do_sample": False}
        out = pair[0].generate(**given, **options)
    return out[0].tolist()


def ask(name, table, receiver, *, prompt=PROMPT, extra=EXTRA, **sampling):
    made = request(name, prompt, NEW, receiver, **sampling)
    made.prompt_embedding_table, made.prompt_table_extra_ids = table, extra
    return made


def run(executor, *requests) -> list[list[int]]:
    """Tokens of requests that run together."""
    receiver = requests[0].on_output
    for one in requests:
        executor.submit(one)
    receiver.wait(*(one.id for one in requests))
    return [receiver.tokens(one.id) for one in requests]


def test_tokens_are_those_of_transformers_alone_and_beside_others(pair, start):
    executor, receiver = start(), Collector()
    tables = [picture(pair, seed) for seed in range(3)]
    right = [expected(pair, table) for table in tables]
    assert len({tuple(tokens) for tokens in right}) == 3, "three pictures that look alike prove nothing"
    assert run(executor, ask("alone", tables[0], receiver)) == [right[0]]
    text = np.array([5, 6, 7, 8])
    together = [ask(str(n), table, receiver, extra=EXTRA * (n + 1)) for n, table in enumerate(tables)]
    *found, written = run(executor, *together, request("text", text, NEW, receiver))
    assert found == right and written == expected(pair, tables[0], text)


def test_one_extra_id_for_two_pictures_is_the_trap_and_two_ids_are_the_way_out(pair, start):
    """TensorRT-LLM knows a fake id by its number and its extra id alone. So does this executor: with one extra id for
    both, the second picture is answered with what is kept of the first."""
    executor, receiver = start(), Collector()
    first, second = picture(pair, 0), picture(pair, 1)
    assert run(executor, ask("1", first, receiver)) == [expected(pair, first)]
    kept = executor.stats()["kv_reused_blocks"]
    assert run(executor, ask("2", second, receiver))[0] != expected(pair, second)
    assert executor.stats()["kv_reused_blocks"] > kept
    assert run(executor, ask("3", second, receiver, extra=2**63 + EXTRA)) == [expected(pair, second)]
    (again,) = run(executor, ask("4", first, receiver))
    assert again == expected(pair, first) and executor.stats()["kv_reused_blocks"] >= kept + 2 * (len(PROMPT) // 16)


def test_a_running_picture_is_no_prefix_of_another(pair, start):
    executor, receiver = start(), Collector()
    tables = [picture(pair, seed) for seed in range(2)]
    head = np.concatenate([FAKE, PROMPT])  # before anything that two prompts share
    extra = np.where(head >= VOCABULARY, 1, 0).astype(np.uint64)
    found = run(executor, *(ask(str(n), t, receiver, prompt=head, extra=extra * (n + 1)) for n, t in enumerate(tables)))
    assert found == [expected(pair, table, head) for table in tables]


def test_a_request_that_is_preempted_reads_its_table_again(pair, start):
    few = {"max_tokens_in_paged_kv_cache": 12 * 16, "batch_scheduler_policy": "max_utilization"}
    executor, receiver = start(**few), Collector()
    tables = [picture(pair, seed) for seed in range(2)]
    found = run(executor, *(ask(str(n), table, receiver, extra=EXTRA * (n + 1)) for n, table in enumerate(tables)))
    assert found == [expected(pair, table) for table in tables]
    assert executor.stats()["preempted"], "else this test says nothing"


def test_without_reuse_no_extra_ids_are_needed(pair, start):
    executor, receiver = start(enable_kv_cache_reuse=False), Collector()
    tables = [picture(pair, seed) for seed in range(2)]
    asked = [ask(str(n), table, receiver, extra=None) for n, table in enumerate(tables)]
    asked[1].prompt = asked[0].prompt  # the same object, as the sequences of one request have it
    found = run(executor, *asked)
    assert found == [expected(pair, table) for table in tables]


def test_penalties_words_guesses_and_beams_pass_over_fake_ids(pair, start):
    executor, receiver, table = start(max_beam_width=2), Collector(), picture(pair, 0)
    right = expected(pair, table)
    bias = {"presence_penalty": 1e-9, "repetition_penalty": 1.0 + 1e-9}  # counts, and changes nothing
    assert run(executor, ask("penalty", table, receiver, **bias)) == [right]
    assert run(executor, ask("words", table, receiver, bad_words=[[299, 298]], stop_words=[[299, 298, 297]])) == [right]
    guessed = ask("guessed", table, receiver, prompt=np.append(PROMPT, right[0]), extra=np.append(EXTRA, EXTRA[:1]))
    guessed.drafter = PromptLookup()
    guessed.prompt = np.insert(guessed.prompt, 30, right[0])  # what came before the picture comes again behind it
    guessed.prompt_table_extra_ids = np.insert(guessed.prompt_table_extra_ids, 30, EXTRA[0])
    assert run(executor, guessed) == [expected(pair, table, guessed.prompt)]
    executor.submit(ask("beams", table, receiver, beam_width=2, early_stopping=1, **bias))
    receiver.wait("beams")
    beams = receiver.outputs["beams"][-1].beams
    assert beams[0].tokens == expected(pair, table, num_beams=2, length_penalty=0.0, renormalize_logits=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt_embedding_table": None}, "The prompt holds token id 339; .*table, which has not been given"),
        ({"prompt_embedding_table": np.zeros((39, 64), np.float16)}, "token id 339; .* which has 39"),
        ({"prompt_embedding_table": np.zeros((40, 65), np.float16)}, "rows of 65 numbers, but .* hidden size is 64"),
        ({"prompt_table_extra_ids": None}, "prompt_table_extra_ids must give each fake id"),
        ({"prompt_table_extra_ids": 0 * EXTRA}, "prompt_table_extra_ids must give each fake id"),
    ],
)
def test_what_is_wrong_is_one_sentence(start, change, said):
    executor, receiver = start(), Collector()
    wrong = ask("wrong", np.zeros((ROWS, 64), np.float16), receiver)
    for name, value in change.items():
        setattr(wrong, name, value)
    with pytest.raises(RequestError, match=said):
        executor.submit(wrong)
